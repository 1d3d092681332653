//! The counters, VMAs and runs of PTEs of a space.

use crate::addr::{FRAME_SHIFT, FRAME_SIZE, VirtRange};
use crate::platform::Platform;
use crate::stats::{SpaceCounter, sum};
use crate::table::Run;
use crate::vma::{State, Vma};

use super::Observe;
use crate::space::AddressSpace;
use crate::space::ground::Ptes;

/// The counters of a space (Linux: `/proc/PID/status`). Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceStats {
    /// The size of all VMAs (`VmSize`).
    pub mapped: u64,
    /// The largest size that all VMAs ever had (`VmPeak`).
    pub peak_mapped: u64,
    /// The size of all locked VMAs (`VmLck`).
    pub locked: u64,
    /// Resident anonymous memory (`RssAnon`).
    pub anon: u64,
    /// Resident file memory (`RssFile`).
    pub file: u64,
    /// Resident shared memory (`RssShmem`).
    pub shmem: u64,
    /// Huge pages of the pool, which are no part of the resident set (`HugetlbPages`).
    pub hugetlb: u64,
    /// Swapped-out anonymous memory (`VmSwap`).
    pub swap: u64,
    /// The largest resident set so far (`VmHWM`). It is updated before an operation makes the
    /// resident set smaller, and by [`AddressSpace::stats`](crate::space::AddressSpace::stats).
    pub peak_rss: u64,
    /// The size of the page tables of all levels (`VmPTE`).
    pub tables: u64,
    /// The size of the engine's other structures for the space: the nodes of the VMA tree, and the
    /// per-CPU counters.
    pub kernel: u64,
    /// The number of VMAs.
    pub vmas: usize,
}

/// Returns the largest resident set that `space` has had, in bytes: [`SpaceStats::peak_rss`] alone,
/// which takes no lock (Linux: `get_mm_hiwater_rss`).
pub fn peak_rss<P: Platform>(space: &AddressSpace<'_, P>) -> u64 {
    let observe = Observe::of(space);
    observe.space.peak.note(&observe.tables().slots) << FRAME_SHIFT
}

impl<P: Platform> Observe<'_, '_, P> {
    /// Implements [`AddressSpace::stats`](crate::space::AddressSpace::stats).
    pub(super) fn stats(self) -> SpaceStats {
        let peak = self.space.peak.note(&self.tables().slots);
        let count = |c| sum(&self.tables().slots, c) << FRAME_SHIFT;
        let vmas = self.space.read();
        SpaceStats {
            mapped: vmas.mapped,
            peak_mapped: vmas.peak_mapped,
            locked: vmas.locked,
            anon: count(SpaceCounter::Anon),
            file: count(SpaceCounter::File),
            shmem: count(SpaceCounter::Shmem),
            hugetlb: count(SpaceCounter::Hugetlb),
            swap: count(SpaceCounter::Swap),
            peak_rss: peak << FRAME_SHIFT,
            tables: count(SpaceCounter::Tables),
            kernel: (self.space.slot_frames.len() + vmas.tree.nodes() + vmas.tree.spares()) as u64 * FRAME_SIZE,
            vmas: vmas.tree.iter_from(0).filter(|v| v.state != State::Dying).count(),
        }
    }

    /// Implements [`AddressSpace::vmas`](crate::space::AddressSpace::vmas).
    pub(super) fn vmas(self, addr: u64, mut visit: impl FnMut(&Vma) -> bool) {
        let vmas = self.space.read();
        for vma in vmas.tree.iter_from(addr).filter(|v| v.state != State::Dying) {
            if !visit(vma) {
                return;
            }
        }
    }

    /// Implements [`AddressSpace::runs`](crate::space::AddressSpace::runs).
    pub(super) fn runs(self, range: VirtRange, mut visit: impl FnMut(&Run)) {
        Ptes::of(self.space).each_run_or_hole(self.user_part(range), |_, run| visit(run));
    }
}
