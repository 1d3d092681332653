//! Measures (for INV-11 of `docs/invariants.md`) the longest stretches of kernel code during which
//! a CPU can do nothing else, and records the call stack at both ends of each. `vellum bench holds`
//! runs it under a clock that counts one nanosecond per instruction. Only the feature `holds`
//! compiles it in.
//!
//! Only CPU 0 is measured, because a machine that counts instructions has no other. The time that
//! measuring takes is subtracted from every stretch.

use crate::arch::percpu;
use crate::arch::{cpu, stack};
use crate::mem::now_ns;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The kinds of stretches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The engine holds a spin lock or a page-table walk is under way: no other task may run.
    Lock,
    /// The engine has interrupts masked: this CPU answers no shootdown.
    Masked,
    /// From one point at which other work may run to the next: a task's start, its exit to user
    /// mode and its return, a yield, and a check for other work ([`may_switch`]).
    Work,
}

/// The number of return addresses that are recorded for each end of a stretch.
const CALLS: usize = 10;

/// The stretches of one kind: times for which CPU 0 could do nothing else. Times are in
/// nanoseconds, without the time that measuring took.
struct Stretches {
    name: &'static str,
    /// The number of `begin`s of the present stretch without an `end` so far.
    depth: AtomicU64,
    began: AtomicU64,
    longest: AtomicU64,
    /// The call stack where the present stretch began, innermost first; recorded for [`Kind::Work`]
    /// only.
    before: Calls,
    /// The call stack where the longest stretch began.
    since: Calls,
    /// The call stack where the longest stretch ended.
    calls: Calls,
}

/// Return addresses, innermost first, padded with zeros.
type Calls = [AtomicU64; CALLS];

impl Stretches {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            depth: AtomicU64::new(0),
            began: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            before: [const { AtomicU64::new(0) }; CALLS],
            since: [const { AtomicU64::new(0) }; CALLS],
            calls: [const { AtomicU64::new(0) }; CALLS],
        }
    }

    fn note(&self, now: u64) {
        let length = now - self.began.load(Relaxed);
        if length > self.longest.load(Relaxed) {
            self.longest.store(length, Relaxed);
            self.since.iter().zip(&self.before).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
            note_calls(&self.calls);
        }
    }
}

static STRETCHES: [Stretches; 3] = [Stretches::new("lock"), Stretches::new("masked"), Stretches::new("work")];
/// The nanoseconds that measuring has taken so far.
static MEASURING: AtomicU64 = AtomicU64::new(0);

/// Runs `f` with the present time, measuring time excluded, and adds the time that `f` takes to the
/// measuring time. Does nothing on CPUs other than 0.
fn measure(f: impl FnOnce(u64)) {
    let from = now_ns();
    if percpu::current().index == 0 {
        f(from - MEASURING.load(Relaxed));
        MEASURING.store(MEASURING.load(Relaxed) + (now_ns() - from), Relaxed);
    }
}

/// Begins a stretch; one inside another of its kind counts as part of it.
pub fn begin(kind: Kind) {
    measure(|now| {
        let stretches = &STRETCHES[kind as usize];
        let depth = stretches.depth.load(Relaxed);
        stretches.depth.store(depth + 1, Relaxed);
        if depth == 0 {
            stretches.began.store(now, Relaxed);
            if kind == Kind::Work {
                note_calls(&stretches.before);
            }
        }
    });
}

/// Ends the innermost stretch of this kind that [`begin`] began.
pub fn end(kind: Kind) {
    measure(|now| {
        let stretches = &STRETCHES[kind as usize];
        let depth = stretches.depth.load(Relaxed);
        stretches.depth.store(depth.saturating_sub(1), Relaxed);
        if depth == 1 {
            stretches.note(now);
        }
    });
}

/// Ends the present [`Kind::Work`] stretch and begins the next: other work may run at this point.
/// Panics if the engine holds a lock.
pub fn may_switch() {
    measure(|now| {
        assert!(STRETCHES[Kind::Lock as usize].depth.load(Relaxed) == 0, "scheduling point with an engine lock held");
        let work = &STRETCHES[Kind::Work as usize];
        work.note(now);
        work.began.store(now, Relaxed);
        note_calls(&work.before);
    });
}

/// Resets the longest stretches, and restarts the ones that are under way.
pub fn forget() {
    measure(|now| {
        for stretches in &STRETCHES {
            stretches.began.store(now, Relaxed);
            stretches.longest.store(0, Relaxed);
        }
    });
}

/// Records the return addresses of the present call stack, as many as fit.
fn note_calls(calls: &Calls) {
    let mut frame = cpu::frame_pointer();
    for call in calls {
        if !stack::is_in_stack(frame) || !stack::is_in_stack(frame + 8) {
            call.store(0, Relaxed);
            continue;
        }
        // SAFETY: both words lie in a stack, and any value there can be read.
        let [caller, address] = unsafe { (frame as *const [u64; 2]).read_volatile() };
        // Record the call itself: the return address may belong to another line.
        call.store(address.wrapping_sub(1), Relaxed);
        frame = if caller > frame { caller } else { 0 };
    }
}

/// The longest stretch of each kind: a line with its length in nanoseconds, then the call stacks
/// where it began, if known, and where it ended.
pub struct Longest;

impl fmt::Display for Longest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for stretches in &STRETCHES {
            writeln!(f, "{} {}", stretches.name, stretches.longest.load(Relaxed))?;
            for (word, calls) in [("since", &stretches.since), ("at", &stretches.calls)] {
                for call in calls.iter().map(|call| call.load(Relaxed)).take_while(|call| *call != 0) {
                    writeln!(f, "  {word} {call:#018x}")?;
                }
            }
        }
        Ok(())
    }
}
