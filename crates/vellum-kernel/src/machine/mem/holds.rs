//! The longest stretches in which a processor could do nothing else, each with the calls at its
//! end: for `vellum bench holds`, under whose clock a nanosecond is an instruction. Compiled in by
//! the feature `holds` alone.
//!
//! Only the first processor is measured, as there is no other one where instructions are counted.
//! What measuring costs is not part of any stretch.

use crate::arch::percpu;
use crate::arch::{cpu, stack};
use crate::mem::now_ns;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What keeps a processor from other work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A spin lock of the engine's is held, or a walk is under way: no other task may run.
    Lock,
    /// The engine has interrupts masked: no shootdown is answered.
    Masked,
    /// Between two points where other work may come first: where a task begins, leaves for user
    /// mode or comes back, gives way or asks ([`may_switch`]).
    Work,
}

/// The calls that are kept of the end of a stretch.
const CALLS: usize = 10;

/// Stretches of one kind. Times are in nanoseconds, those of measuring left out.
struct Stretches {
    name: &'static str,
    /// How often the one that is under way was begun and not ended.
    depth: AtomicU64,
    began: AtomicU64,
    longest: AtomicU64,
    /// Where the one that is under way began, innermost first; kept of [`Kind::Work`] only.
    before: Calls,
    /// Where the longest began, …
    since: Calls,
    /// … and where it ended.
    calls: Calls,
}

/// Return addresses, innermost first, and zeros.
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
/// Nanoseconds that measuring has taken.
static MEASURING: AtomicU64 = AtomicU64::new(0);

/// Does some measuring, given the time without any; what it takes is left out of that from now on.
fn measure(f: impl FnOnce(u64)) {
    let from = now_ns();
    if percpu::current().index == 0 {
        f(from - MEASURING.load(Relaxed));
        MEASURING.store(MEASURING.load(Relaxed) + (now_ns() - from), Relaxed);
    }
}

/// A stretch begins, unless it is part of another of its kind.
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

/// Ends what was begun last.
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

/// Other work may come first here.
pub fn may_switch() {
    measure(|now| {
        assert!(STRETCHES[Kind::Lock as usize].depth.load(Relaxed) == 0, "a point to give way with a lock held");
        let work = &STRETCHES[Kind::Work as usize];
        work.note(now);
        work.began.store(now, Relaxed);
        note_calls(&work.before);
    });
}

/// Forgets what was longest, and the part of each stretch that is over.
pub fn forget() {
    measure(|now| {
        for stretches in &STRETCHES {
            stretches.began.store(now, Relaxed);
            stretches.longest.store(0, Relaxed);
        }
    });
}

/// Keeps the return addresses of those that led here, as far as there is room.
fn note_calls(calls: &Calls) {
    let mut frame = cpu::frame_pointer();
    for call in calls {
        if !stack::is_in_stack(frame) || !stack::is_in_stack(frame + 8) {
            call.store(0, Relaxed);
            continue;
        }
        // SAFETY: both words lie in a stack. Whatever they hold, they can be read.
        let [caller, address] = unsafe { (frame as *const [u64; 2]).read_volatile() };
        // The call, not the instruction after it, which may belong to another line.
        call.store(address.wrapping_sub(1), Relaxed);
        frame = if caller > frame { caller } else { 0 };
    }
}

/// Says what was longest of each kind: a line with its length, in nanoseconds, and the calls where
/// it began, if that is known, and where it ended.
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
