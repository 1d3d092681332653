//! What a story works with: spaces in a group of its own, counters from some moment on, and a way to fail.

use super::user::{self, Machine, Space};
use crate::println;
use core::fmt::{Debug, Display};
use core::panic::Location;
use vellum::addr::FRAME_SIZE;
use vellum::arch::Arch;
use vellum::frame::HUGE_ORDER;
use vellum::frame::policy::Knob;
use vellum::memcg::{MemcgId, MemcgUsage};
use vellum::stats::{COUNTERS, Counter};

/// A check failed, and what was wrong is on the console.
#[derive(Debug)]
pub struct Failed;

/// What a check comes to.
pub type Checked<T = ()> = Result<T, Failed>;

/// Says so if something is not as expected.
#[track_caller]
pub fn expect<T: PartialEq + Debug>(what: impl Display, found: T, expected: T) -> Checked {
    if found == expected {
        return Ok(());
    }
    println!("FAILED: {what}\n  expected {expected:?}\n  found    {found:?}\n  at {}", Location::caller());
    Err(Failed)
}

/// What must succeed.
#[track_caller]
pub fn must<T, E: Debug>(what: impl Display, result: Result<T, E>) -> Checked<T> {
    result.map_err(|error| {
        println!("FAILED: {what}: {error:?}\n  at {}", Location::caller());
        Failed
    })
}

/// What a story works with.
pub struct Lab {
    /// The machine.
    pub machine: &'static Machine,
    /// The group that the story's spaces are charged to.
    pub group: MemcgId,
    /// Whether time is instructions.
    pub counted: bool,
}

impl Lab {
    /// An empty space.
    #[track_caller]
    pub fn space(&self) -> Checked<Space> {
        must("make a space", user::new_space(self.machine, self.group))
    }

    /// Gives faults folios of this order, or of a single page where those do not go.
    pub fn use_folios(&self, order: u8) {
        let policy = self.machine.policy();
        for other in 1..=HUGE_ORDER {
            policy.set(other, if other == order { Knob::Always } else { Knob::Never });
        }
    }

    /// Counters, from here on.
    pub fn tally(&self) -> Tally {
        Tally(self.machine, counters(self.machine))
    }

    /// The group: its charge, its list of anonymous folios, and its folios that wait to be split.
    #[track_caller]
    pub fn expect_group(&self, charged: u64, listed: u64, deferred: u64) -> Checked {
        let usage = must("read the group's usage", self.machine.memcgs().usage(self.machine.frames(), self.group))?;
        let MemcgUsage { peak, limit, .. } = usage;
        let expected = MemcgUsage { charged, peak, limit, lru: [listed, 0, 0, 0], deferred, swapped: 0, lruvecs: 0 };
        expect("the group", usage, expected)
    }
}

/// Every counter there is but those of blocks, which only some formats have.
const ALL_COUNTERS: [Counter; COUNTERS - 2] = [
    Counter::Faults,
    Counter::SpuriousFaults,
    Counter::LargeFolios,
    Counter::LargeFallbacks,
    Counter::RunsCleared,
    Counter::PagesCleared,
    Counter::FoliosFreed,
    Counter::Flushes,
    Counter::TablesAllocated,
    Counter::TablesFreed,
    Counter::HugeSplits,
    Counter::SplitDeferred,
    Counter::CowCopies,
    Counter::CowReuses,
    Counter::SwapOut,
    Counter::SwapIn,
    Counter::LazyFree,
    Counter::LazyFreed,
    Counter::ShmemPages,
];

fn counters(machine: &Machine) -> [u64; ALL_COUNTERS.len()] {
    ALL_COUNTERS.map(|counter| machine.counter(counter))
}

/// What the counters stood at.
pub struct Tally(&'static Machine, [u64; ALL_COUNTERS.len()]);

impl Tally {
    /// What a counter has counted since.
    pub fn since(&self, counter: Counter) -> u64 {
        let at = ALL_COUNTERS.iter().position(|other| *other == counter);
        self.0.counter(counter) - at.map_or(0, |at| self.1[at])
    }

    /// Since the last time these counters have counted this much, and the others nothing.
    #[track_caller]
    pub fn expect(&mut self, what: &str, changes: &[(Counter, u64)]) -> Checked {
        for counter in ALL_COUNTERS {
            let expected = changes.iter().filter(|(c, _)| *c == counter).map(|(_, n)| n).sum();
            expect(format_args!("{what}: {counter:?}"), self.since(counter), expected)?;
        }
        self.1 = counters(self.0);
        Ok(())
    }
}

/// Pages that the group is charged for besides a space's memory and page tables.
pub fn kernel_pages(space: &Space) -> u64 {
    space.stats().kernel / FRAME_SIZE
}

/// The tables that lead from a space's root to one of the last level.
pub fn tables_between(space: &Space) -> u64 {
    u64::from(space.arch().levels()) - 2
}
