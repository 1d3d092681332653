//! Implements the engine's platform for the strict machine.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use vellum::memcg::MemcgId;
use vellum::platform::{
    Clock, CpuSet, Cpus, Event, FailPoint, Invalidation, Memory, ReadRequest, Region, Storage, Tlb, Trace, WriteRequest,
};

use super::violation::Rule;
use super::{MAX_SPINS, MAX_SPINS_UNWINDING, Strict};
use crate::walker::Silicon;

// SAFETY: the regions are the arena's, which lives as long as the machine. Only the engine writes
// there, and the machine's programs through the engine's page tables.
unsafe impl<A: Silicon> Memory for Strict<A> {
    fn regions(&self) -> &[Region] {
        self.hardware.arena().regions()
    }

    fn direct_map(&self) -> *mut u8 {
        self.hardware.arena().direct_map()
    }

    unsafe fn zero(&self, at: *mut u8, bytes: usize) {
        self.at(|checker| checker.touch(bytes));
        // SAFETY: the caller promises that these bytes are memory of this machine, all of which
        // lies in the arena, and that nothing else uses them meanwhile.
        unsafe { self.hardware.arena().zero(at, bytes) }
    }

    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) {
        self.at(|checker| checker.touch(bytes));
        for at in (0..bytes).step_by(8) {
            // SAFETY: the caller's contract; the word is aligned.
            let word = unsafe { &*from.add(at).cast::<AtomicU64>() }.load(Ordering::Relaxed);
            // SAFETY: the caller's contract; the word is aligned.
            unsafe { to.add(at).cast::<u64>().write(word) };
        }
    }
}

// SAFETY: a seat is checked against the number of CPUs when it is taken. There are no interrupts;
// and a CPU is one thread of execution for as long as that holds its seat, so no other task runs
// there, with preemption disabled or not.
unsafe impl<A: Silicon> Cpus for Strict<A> {
    fn count(&self) -> usize {
        self.hardware.seats.count()
    }

    fn current(&self) -> usize {
        self.hardware.seats.current()
    }

    fn node(&self, cpu: usize) -> usize {
        self.hardware.node(cpu)
    }

    fn relax(&self) {
        self.check_stopped();
        let cpu = self.hardware.seats.current();
        let spins = self.spins[cpu].fetch_add(1, Ordering::Relaxed);
        if std::thread::panicking() {
            if spins > MAX_SPINS_UNWINDING {
                self.give_up();
            }
        } else if spins == MAX_SPINS {
            self.examine(|checker| {
                checker.cpu = cpu;
                let waiting = checker.cpus[cpu].waiting;
                let text = format!("CPU {cpu} waits forever, perhaps for the lock of {waiting:?}");
                checker.fail(Rule::Deadlock, text, waiting.as_slice(), &[]);
            });
        }
        self.hardware.seats.schedule().relax();
    }

    fn resched(&self) {
        self.handle(Event::Step);
        self.at(|checker| checker.check_free_to("would be rescheduled", false));
    }

    fn preempt_disable(&self) {
        self.at(|checker| checker.cpus[checker.cpu].preempt += 1);
    }

    fn preempt_enable(&self) {
        self.at(|checker| checker.preempt_enable());
    }

    fn irq_disable(&self) -> bool {
        let mut enabled = false;
        self.at(|checker| enabled = !std::mem::replace(&mut checker.cpus[checker.cpu].irqs_masked, true));
        enabled
    }

    fn irq_restore(&self, was_enabled: bool) {
        self.at(|checker| {
            let masked = &mut checker.cpus[checker.cpu].irqs_masked;
            if !*masked {
                let text = format!("CPU {} restores interrupts that are not masked", checker.cpu);
                return checker.fail(Rule::Atomic, text, &[], &[]);
            }
            *masked = !was_enabled;
        });
    }
}

impl<A: Silicon> Strict<A> {
    /// Ends the process when a panic can't end the test, because the unwinding waits for a lock
    /// that the panic left locked. Prints the violations past the test harness, which would capture
    /// and lose them.
    #[cold]
    fn give_up(&self) -> ! {
        let mut err = std::io::stderr();
        for violation in self.violations() {
            let _ = writeln!(err, "{violation}");
        }
        let _ =
            writeln!(err, "a panic left a lock locked for which its own unwinding now waits: the process ends here");
        std::process::abort();
    }

    /// Runs a check as this CPU.
    fn at(&self, look: impl FnOnce(&mut super::Checker<A>)) {
        let cpu = self.hardware.seats.current();
        self.examine(|checker| {
            checker.cpu = cpu;
            look(checker);
        });
    }

    fn check_invalidation(&self, what: &Invalidation<'_>, cpus: &CpuSet) {
        let me = self.hardware.seats.current();
        self.at(|checker| {
            let ordered = what.ranges.windows(2).all(|pair| pair[0].end <= pair[1].start);
            let root = checker.roots.get(&what.space).copied();
            if what.ranges.iter().any(|range| range.end > self.hardware.arch().user_end()) {
                checker.fail(Rule::HostHalf, format!("CPU {me} invalidates {what:?}"), &[what.root], &[]);
            }
            let exist = cpus.iter().all(|cpu| cpu < checker.cpus.len());
            if !ordered || what.ranges.iter().any(|r| r.is_empty()) || root != Some(what.root) || !exist {
                let text = format!("{what:?} for {:?}, where the root is {root:?}", cpus.iter().collect::<Vec<_>>());
                checker.fail(Rule::Invalidation, text, &[what.root], &[]);
            }
            if cpus.iter().any(|cpu| cpu != me) {
                // The CPU may hold locks of page tables: the engine does not wait for such a lock
                // with interrupts masked, so a CPU that waits for one still answers the shootdown.
                checker.check_free_to("would wait for other CPUs", true);
            }
        });
    }
}

// SAFETY: `Hardware::invalidate` drops what the ranges reach from each CPU's caches, under the lock
// that every walk of that CPU holds, and waits for an access that has found its translation before
// and is yet to happen.
unsafe impl<A: Silicon> Tlb for Strict<A> {
    type Arch = A;

    fn invalidate(&self, what: &Invalidation<'_>, cpus: &CpuSet) {
        if !std::thread::panicking() {
            self.pause(|_| None);
            self.check_invalidation(what, cpus);
        }
        let between = || {
            if !std::thread::panicking() {
                self.pause(|_| what.ranges.first().map(|r| (what.space, r.start)));
            }
        };
        self.hardware.invalidate(what, cpus, between);
    }

    fn invalidate_local(&self, what: &Invalidation<'_>) {
        if !std::thread::panicking() {
            self.pause(|_| what.ranges.first().map(|r| (what.space, r.start)));
            self.check_invalidation(what, &CpuSet::one(self.hardware.seats.current()));
        }
        self.hardware.invalidate_local(what);
    }
}

impl<A: Silicon> Clock for Strict<A> {
    fn now_ns(&self) -> u64 {
        // Time advances with each reading, so that a schedule that is replayed reads the same
        // times.
        self.ticks.fetch_add(1, Ordering::Relaxed)
    }
}

impl<A: Silicon> Storage for Strict<A> {
    fn read(&self, request: ReadRequest) {
        self.hardware.files().take(request);
    }

    fn write(&self, request: WriteRequest) {
        self.hardware.files().take_write_early(request, self);
    }

    fn dirtied(&self, memcg: MemcgId, pages: u64) {
        self.hardware.files().note_dirtied(memcg, pages);
    }

    fn forget(&self, tag: u64) {
        self.hardware.files().forget(tag);
    }
}

impl<A: Silicon> Trace for Strict<A> {
    const ENABLED: bool = true;

    fn event(&self, event: Event) {
        self.handle(event);
    }

    fn allow(&self, wanted: FailPoint) -> bool {
        if wanted == FailPoint::Frames {
            self.handle(Event::Step);
        }
        self.injectors[wanted as usize].allow()
    }
}
