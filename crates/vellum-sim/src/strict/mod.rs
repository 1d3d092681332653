//! The machine for tests: a sanitizer for memory managers.
//!
//! The engine announces each event before it happens. At each event, in this order:
//! 1. another CPU of the machine may go on first;
//! 2. the hardware does what it may at any moment, and rather now than later ([`Hostility`]): it
//!    walks ahead of programs, sets accessed and dirty, caches translations, evicts some;
//! 3. the event is checked against earlier ones, memory and the CPUs' caches ([`Rule`]), and a
//!    broken rule is reported with the history of the frames and entries involved.
//!
//! Under a deterministic scheduler no other CPU gets a turn between the check and the engine's own
//! next instruction, so there an event and the change that it announces are one step.
//!
//! | file | content |
//! |---|---|
//! | `options` | seed, hostility, panic or collect |
//! | `violation` | the rules, and reports |
//! | `history` | the last events of a frame or an entry |
//! | `shadow` | the checker's own state |
//! | `frames` | allocation, freeing, counting, leaks |
//! | `tables` | the tree of page tables |
//! | `writes` | changes of entries |
//! | `upper` | entries of upper levels |
//! | `blocks` | entries of cont blocks |
//! | `locks` | locks, lockless walks, and that a CPU holds nothing where it may be rescheduled |
//! | `adversary` | hostile hardware |

mod adversary;
mod blocks;
mod frames;
mod history;
mod locks;
mod options;
mod platform;
mod ptes;
mod shadow;
mod tables;
mod upper;
mod violation;
mod writes;

pub use options::{Hostility, Strictness};
pub use violation::{Rule, Violation};

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::{fmt, mem, thread};

use vellum::addr::{Pfn, PhysAddr};
use vellum::arch::X86_64;
use vellum::platform::{Event, FailPoint, SpaceId};

use crate::hardware::{Hardware, Simulated};
use crate::inject::{Injector, Refusal};
use crate::program::{Access, Cpu};
use crate::schedule::Schedule;
use crate::stats::Stats;
use crate::walker::Silicon;
use adversary::Adversary;
use shadow::{Checker, Work};
use writes::How;

/// A machine for tests, which checks every event of the engine.
#[derive(Debug)]
pub struct Strict<A = X86_64> {
    hardware: Hardware<A>,
    collect: bool,
    /// Not held while another CPU gets a turn: coroutines share one thread of the host.
    checker: Mutex<Checker<A>>,
    adversary: Adversary,
    /// The fault injectors, one for each [`FailPoint`].
    injectors: [Injector; 4],
    violations: Mutex<Vec<Violation>>,
    /// True if a rule was broken. The CPU that found it is panicking, and no other goes on.
    stopped: AtomicBool,
    ticks: AtomicU64,
    /// The number of times that each CPU has spun since its last event.
    spins: Box<[AtomicU32]>,
    observer: OnceLock<Observer>,
}

/// A callback that gets each event and the CPU that is about to do it.
struct Observer(Box<dyn Fn(usize, Event) + Send + Sync>);

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// Iterations of a waiting loop after which the CPU counts as deadlocked.
const MAX_SPINS: u32 = 1 << 28;
/// Iterations of a waiting loop after which the CPU counts as deadlocked while a panic unwinds.
const MAX_SPINS_UNWINDING: u32 = 1 << 20;

impl<A: Silicon> Strict<A> {
    pub(crate) fn new(hardware: Hardware<A>, strictness: Strictness) -> Self {
        hardware.provoke(strictness.seed, strictness.hostility != Hostility::NONE, A::CONT != 0);
        let checker = Checker::new(*hardware.arch(), hardware.arena().frames(), hardware.seats.count());
        Strict {
            collect: strictness.collect,
            checker: Mutex::new(checker),
            adversary: Adversary::new(strictness.seed, strictness.hostility),
            injectors: std::array::from_fn(|at| Injector::new(strictness.seed ^ 0x5eed ^ at as u64)),
            violations: Mutex::new(Vec::new()),
            stopped: AtomicBool::new(false),
            ticks: AtomicU64::new(0),
            spins: (0..hardware.seats.count()).map(|_| AtomicU32::new(0)).collect(),
            observer: OnceLock::new(),
            hardware,
        }
    }

    /// Makes this thread CPU `cpu` until the returned value is dropped.
    ///
    /// # Panics
    /// If another thread is that CPU.
    pub fn cpu(&self, cpu: usize) -> Cpu<'_, Self> {
        Cpu::sit(self, cpu)
    }

    /// Makes this thread CPU `cpu` while `f` runs.
    ///
    /// # Panics
    /// If another thread is that CPU.
    pub fn on_cpu<R>(&self, cpu: usize, f: impl FnOnce() -> R) -> R {
        let _cpu = self.cpu(cpu);
        f()
    }

    /// Returns the counters of all CPUs.
    pub fn stats(&self) -> Stats {
        self.hardware.stats()
    }

    /// Names what this CPU does next, for reports.
    pub fn label(&self, what: &str) {
        let cpu = self.hardware.seats.current();
        self.checker().cpus[cpu].label = Some(what.into());
    }

    /// Calls `observe` at each event from now on, before another CPU may go on. A scheduler that
    /// looks for the worst moment needs this. `observe` gets the number of the CPU and must not use
    /// the machine.
    ///
    /// # Panics
    /// If there is an observer already.
    pub fn observe(&self, observe: impl Fn(usize, Event) + Send + Sync + 'static) {
        assert!(self.observer.set(Observer(Box::new(observe))).is_ok(), "a machine has one observer");
    }

    /// Sets which allocations fail from now on.
    pub fn refuse(&self, refusal: Refusal) {
        self.refuse_wanted(FailPoint::Frames, refusal);
    }

    /// Sets which requests of this kind are refused from now on.
    pub fn refuse_wanted(&self, wanted: FailPoint, refusal: Refusal) {
        self.injectors[wanted as usize].set(refusal);
    }

    /// Returns how many requests of this kind were made, and how many were refused, since the last
    /// [`Strict::refuse_wanted`].
    pub fn wanted(&self, wanted: FailPoint) -> (u64, u64) {
        self.injectors[wanted as usize].counts()
    }

    /// Returns how many allocations were requested, and how many were refused, since the last
    /// [`Strict::refuse`].
    pub fn allocations(&self) -> (u64, u64) {
        self.wanted(FailPoint::Frames)
    }

    /// Takes the baseline, once the engine has booted: frames that are allocated after it have to
    /// be freed before [`Strict::finish`].
    pub fn baseline(&self) {
        self.checker().take_baseline();
    }

    /// Checks the end of a test, when nothing runs any more: all frames allocated since the
    /// baseline are freed, no lock is held, no walk is under way.
    pub fn finish(&self) {
        self.examine(|checker| {
            checker.event = Event::Step;
            let spaces: Vec<SpaceId> = checker.roots.keys().copied().collect();
            spaces.into_iter().for_each(|space| checker.check_changed_blocks_of(space, &self.hardware));
            checker.check_leaks();
        });
    }

    /// Returns the broken rules, if the machine collects them.
    pub fn violations(&self) -> Vec<Violation> {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the broken rules and forgets them.
    pub fn take_violations(&self) -> Vec<Violation> {
        mem::take(&mut self.violations.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn checker(&self) -> MutexGuard<'_, Checker<A>> {
        self.checker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a check, then reports the violations that it found.
    fn examine(&self, look: impl FnOnce(&mut Checker<A>)) {
        let found = {
            let mut checker = self.checker();
            look(&mut checker);
            mem::take(&mut checker.found)
        };
        let Some(first) = found.first().map(Violation::to_string) else {
            return;
        };
        let more = found.len() - 1;
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
        if !self.collect && !thread::panicking() {
            self.stopped.store(true, Ordering::Relaxed);
            let more = if more > 0 { format!("\n(and {more} more at the same event)") } else { String::new() };
            panic!("{first}{more}");
        }
    }

    /// Gives other CPUs a turn, and lets the hardware do its worst.
    fn pause(&self, place: impl FnOnce(&Checker<A>) -> Option<(SpaceId, u64)>) {
        self.check_stopped();
        let schedule = self.hardware.seats.schedule();
        let preempts = schedule == Schedule::Host && self.adversary.preempts();
        schedule.switch_point(preempts && self.hardware.seats.several());
        self.check_stopped();
        let place = place(&self.checker());
        self.adversary.act(&self.hardware, self.hardware.seats.current(), place);
        for (cpu, conflict) in self.hardware.take_conflicts() {
            self.examine(|checker| {
                checker.cpu = cpu;
                checker.conflict(cpu, conflict);
            });
        }
    }

    /// Panics if another CPU has found a rule broken: the machine's state means nothing any more.
    fn check_stopped(&self) {
        if self.stopped.load(Ordering::Relaxed) && !thread::panicking() {
            panic!("stopped, because another CPU of this machine broke a rule");
        }
    }

    fn handle(&self, event: Event) {
        // During a panic, broken rules are a consequence of the unwinding and would hide its cause.
        if thread::panicking() {
            return;
        }
        if let Some(Observer(observe)) = self.observer.get() {
            observe(self.hardware.seats.current(), event);
        }
        self.pause(|checker| match event {
            Event::Store(table, index, ..) | Event::ClearAnon(table, index, _) | Event::Exchange(table, index, _) => {
                checker.locate(table, index).map(|(space, va, _)| (space, va))
            }
            _ => None,
        });
        let cpu = self.hardware.seats.current();
        self.spins[cpu].store(0, Ordering::Relaxed);
        self.examine(|checker| {
            checker.seq += 1;
            (checker.cpu, checker.event) = (cpu, event);
            if matches!(event, Event::Store(..) | Event::ClearAnon(..) | Event::Exchange(..)) {
                checker.work(Work { entries: 1, ..Work::default() });
            }
            if !matches!(event, Event::Locked(_)) {
                checker.cpus[cpu].waiting = None;
            }
            check(checker, event, &self.hardware);
        });
    }
}

fn check<A: Silicon>(checker: &mut Checker<A>, event: Event, hardware: &Hardware<A>) {
    match event {
        Event::Allocated(pfn, count) => checker.allocated(pfn, count, hardware),
        Event::Freed(pfn, count) => checker.freed(pfn, count, hardware),
        Event::Locking(table) => checker.locking(table),
        Event::Locked(table) => checker.locked(table, hardware),
        Event::Unlocking(table) => checker.unlocking(table, hardware),
        Event::TableAllocated(table, level, space) => checker.born(table, level, space, hardware),
        Event::TableFreed(table) => checker.dead(table),
        Event::Store(table, index, expected, new) => checker.write(table, index, How::Store(expected), new, hardware),
        Event::ClearAnon(table, index, expected) => checker.write(table, index, How::Discard(expected), 0, hardware),
        Event::Exchange(table, index, new) => checker.write(table, index, How::Exchange, new, hardware),
        Event::Counts(head, before, after) => {
            checker.work(Work { folios: 1, ..Work::default() });
            checker.counts(head, before, after);
        }
        Event::WalkBegin => checker.walk_begin(),
        Event::WalkEnd => checker.walk_end(),
        Event::Descend(table, index) => checker.descend(table, index, hardware),
        Event::DeviceIo => checker.check_free_to("does I/O on a device", false),
        _ => {}
    }
}

/// Returns the entries of a page table, none if there is no memory.
fn entries<A: Silicon>(hardware: &Hardware<A>, table: Pfn) -> &[AtomicU64] {
    let count = 1 << hardware.arch().index_bits();
    match hardware.arena().holds(table.addr(), 8 * count as u64) {
        true => hardware.arena().words(table.addr(), count),
        false => &[],
    }
}

/// Returns an entry of a page table, if there is memory.
fn entry<A: Silicon>(hardware: &Hardware<A>, table: Pfn, index: u16) -> Option<&AtomicU64> {
    let at = PhysAddr(table.addr().0 + 8 * index as u64);
    let fits = (index as u64) < 1 << hardware.arch().index_bits();
    (fits && hardware.arena().holds(at, 8)).then(|| hardware.arena().word(at))
}

impl<A: Silicon> Simulated for Strict<A> {
    const STRICT: bool = true;

    fn hardware(&self) -> &Hardware<A> {
        &self.hardware
    }

    fn before_use(&self, cpu: usize, space: SpaceId, va: u64, pa: PhysAddr, _access: Access) {
        self.adversary.notice(space, va);
        self.pause(|_| Some((space, va)));
        self.examine(|checker| checker.used(cpu, space, va, pa));
    }

    fn switched(&self, _cpu: usize, space: SpaceId, loaded: bool) {
        if loaded {
            // Another CPU comes to a space that one CPU has changed without locks.
            self.examine(|checker| {
                if checker.lockless.remove(&space).is_some() {
                    checker.check_changed_blocks_of(space, &self.hardware);
                }
            });
        }
    }
}
