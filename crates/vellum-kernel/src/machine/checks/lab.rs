//! Provides what all checks use: spaces in a memcg of their own, counter deltas, and failure
//! reports.

use super::user::{self, Machine, Space};
use crate::arch::serial::println;
use core::fmt::{Debug, Display};
use core::panic::Location;
use vellum::addr::FRAME_SIZE;
use vellum::arch::Arch;
use vellum::frame::HUGE_ORDER;
use vellum::frame::policy::Knob;
use vellum::memcg::{LruList, MemcgId, MemcgUsage};
use vellum::stats::{COUNTERS, Counter};

/// A check failed. The reason is on the console.
#[derive(Debug)]
pub struct Failed;

/// The result of a check.
pub type Checked<T = ()> = Result<T, Failed>;

/// Compares two values. If they differ, prints both and the caller's location, and returns
/// [`Failed`].
#[track_caller]
pub fn expect<T: PartialEq + Debug>(what: impl Display, found: T, expected: T) -> Checked {
    if found == expected {
        return Ok(());
    }
    println!("FAILED: {what}\n  expected {expected:?}\n  found    {found:?}\n  at {}", Location::caller());
    Err(Failed)
}

/// Returns the value of a result. If it is an error, prints it, and returns [`Failed`].
#[track_caller]
pub fn must<T, E: Debug>(what: impl Display, result: Result<T, E>) -> Checked<T> {
    result.map_err(|error| {
        println!("FAILED: {what}: {error:?}\n  at {}", Location::caller());
        Failed
    })
}

/// The environment of one check.
pub struct Lab {
    /// The machine.
    pub machine: &'static Machine,
    /// The memcg that the check's spaces are charged to.
    pub group: MemcgId,
    /// True if time is counted in instructions (QEMU's `-icount`).
    pub counted: bool,
}

impl Lab {
    /// Creates an empty address space.
    #[track_caller]
    pub fn space(&self) -> Checked<Space> {
        must("create an address space", user::new_space(self.machine, self.group))
    }

    /// Makes faults use folios of this order, or single pages where such a folio does not fit.
    pub fn use_folios(&self, order: u8) {
        let policy = self.machine.policy();
        for other in 1..=HUGE_ORDER {
            policy.set(other, if other == order { Knob::Always } else { Knob::Never });
        }
    }

    /// Starts counter deltas.
    pub fn tally(&self) -> CounterChanges {
        CounterChanges(self.machine, counters(self.machine))
    }

    /// Checks the memcg's charge, the length of its anonymous LRU list, and the number of folios on
    /// its deferred-split list.
    #[track_caller]
    pub fn expect_group(&self, charged: u64, listed: u64, deferred: u64) -> Checked {
        let usage = must("read the memcg's usage", self.machine.memcgs().usage(self.machine.frames(), self.group))?;
        let MemcgUsage { peak, limit, .. } = usage;
        let mut lru = [0; LruList::COUNT];
        lru[LruList::Anon as usize] = listed;
        let expected = MemcgUsage { charged, peak, limit, lru, deferred, swapped: 0, lruvecs: 0 };
        expect("usage of the memcg", usage, expected)
    }
}

/// All counters but those of cont blocks, which only some page-table formats have.
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
    Counter::CompactStalls,
    Counter::CompactSuccesses,
    Counter::CompactFailures,
    Counter::PagesMigrated,
    Counter::ShmemPages,
    Counter::FilePages,
    Counter::ShmemHugePages,
    Counter::FileHugePages,
    Counter::FileRefaults,
    Counter::HugetlbPages,
];

fn counters(machine: &Machine) -> [u64; ALL_COUNTERS.len()] {
    ALL_COUNTERS.map(|counter| machine.counter(counter))
}

/// The counter values at some moment.
pub struct CounterChanges(&'static Machine, [u64; ALL_COUNTERS.len()]);

impl CounterChanges {
    /// Returns the change of a counter since these values were taken.
    pub fn since(&self, counter: Counter) -> u64 {
        let at = ALL_COUNTERS.iter().position(|other| *other == counter);
        self.0.counter(counter) - at.map_or(0, |at| self.1[at])
    }

    /// Checks that these counters changed by these amounts since the last call, and the others not
    /// at all.
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

/// Returns the number of kernel pages that a space is charged for, without its page tables.
pub fn kernel_pages(space: &Space) -> u64 {
    space.stats().kernel / FRAME_SIZE
}

/// Returns the number of page tables between the root and one of the last level.
pub fn tables_between(space: &Space) -> u64 {
    u64::from(space.arch().levels()) - 2
}
