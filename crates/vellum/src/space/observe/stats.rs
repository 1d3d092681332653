//! What is mapped, and what of it is resident.

use crate::addr::{FRAME_SHIFT, FRAME_SIZE, VirtRange};
use crate::arch::Arch;
use crate::platform::Platform;
use crate::stats::{SpaceCounter, sum};
use crate::table::Run;
use crate::vma::{State, Vma};

use super::Observe;
use crate::space::ground::Ptes;

/// A space in numbers. Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceStats {
    /// Address space in use (`VmSize`).
    pub mapped: u64,
    /// The most that ever was in use (`VmPeak`).
    pub peak_mapped: u64,
    /// In locked VMAs (`VmLck`).
    pub locked: u64,
    /// Resident anonymous memory (`RssAnon`).
    pub anon: u64,
    /// Resident file memory (`RssFile`).
    pub file: u64,
    /// Resident shared memory (`RssShmem`).
    pub shmem: u64,
    /// Swapped out (`VmSwap`).
    pub swap: u64,
    /// The most that was ever resident, looked at whenever it was about to become less (`VmHWM`).
    pub peak_rss: u64,
    /// Page tables of all levels (`VmPTE`).
    pub tables: u64,
    /// The engine's other structures for the space: nodes of VMAs, and what each CPU counts.
    pub kernel: u64,
    /// VMAs.
    pub vmas: usize,
}

impl<P: Platform, A: Arch> Observe<'_, '_, P, A> {
    /// Implements [`AddressSpace::stats`].
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
            swap: count(SpaceCounter::Swap),
            peak_rss: peak << FRAME_SHIFT,
            tables: count(SpaceCounter::Tables),
            kernel: (self.space.slot_frames.len() + vmas.tree.nodes() + vmas.tree.spares()) as u64 * FRAME_SIZE,
            vmas: vmas.tree.iter_from(0).filter(|v| v.state != State::Dying).count(),
        }
    }

    /// Implements [`AddressSpace::vmas`].
    pub(super) fn vmas(self, addr: u64, mut visit: impl FnMut(&Vma) -> bool) {
        let vmas = self.space.read();
        for vma in vmas.tree.iter_from(addr).filter(|v| v.state != State::Dying) {
            if !visit(vma) {
                return;
            }
        }
    }

    /// Implements [`AddressSpace::runs`].
    pub(super) fn runs(self, range: VirtRange, mut visit: impl FnMut(&Run)) {
        Ptes::of(self.space).each_run_or_hole(self.user_part(range), |_, run| visit(run));
    }
}
