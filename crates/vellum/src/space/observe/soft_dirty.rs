//! Soft-dirty: a record of the pages that were written since soft-dirty was cleared (Linux:
//! `/proc/PID/clear_refs`).
//!
//! Soft-dirty is a software bit of each PTE, and a PTE without it is not writable: the first write
//! faults, and the fault sets the bit and makes the PTE writable. PTEs with the bit and PTEs
//! without are never in one cont block (PTEs that a TLB may cache as one translation). The record
//! is therefore exact to the page: the first write to a cont block splits it, and it is folded
//! again when all of it was written. The exception is a huge page of anonymous memory, which counts
//! as one page.
//!
//! Swap PTEs have the bit too, and swap-in keeps it. New memory counts as written, and so do all
//! pages of VMAs that were mapped or moved since soft-dirty was cleared.

use core::sync::atomic::Ordering::Relaxed;

use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::platform::Platform;
use crate::vma::VmaFlags;

use super::Observe;
use crate::space::ground::{Change, Ptes, Zap};

/// The error of a page-table format whose PTEs have no soft-dirty bit ([`Arch::supported`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftDirtyUnsupported;

impl core::fmt::Display for SoftDirtyUnsupported {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("PTEs of this page-table format have no soft-dirty bit")
    }
}

impl core::error::Error for SoftDirtyUnsupported {}

impl<P: Platform> Observe<'_, '_, P> {
    /// Implements [`AddressSpace::clear_soft_dirty`](crate::space::AddressSpace::clear_soft_dirty).
    pub(super) fn clear_soft_dirty(self) -> Result<(), SoftDirtyUnsupported> {
        let arch = self.arch();
        if !arch.supported().contains(Attrs::SOFT_DIRTY) {
            return Err(SoftDirtyUnsupported);
        }
        let all = UserRange::all(arch);
        let mut change = Change::begin(self.space, all);
        // Faults read the VMA flag and `soft_dirty_on` under the VMA lock, so both are set with
        // that lock held for writing.
        change.vmas().each(self.machine(), all, |v| v.flags |= VmaFlags::SOFT_DIRTY_CLEARED);
        self.space.soft_dirty_on.store(true, Relaxed);
        // From now on faults map the pages of objects by small PTEs alone.
        self.space.peak.note(&self.tables().slots);
        let mut gather = self.space.gather(all);
        let mut at = 0;
        while let Some(range) = change.vmas().tree.iter_from(at).find(|v| !v.backing.is_anonymous()).map(|v| v.range) {
            change.unlock();
            Zap::of(self.space).huge_objects(range, &mut gather);
            at = range.end;
        }
        change.unlock();
        drop(gather);
        Ptes::of(self.space).each_run(all, |table, run| {
            if run.kind != Kind::Leaf {
                if run.kind == Kind::Swap {
                    Ptes::of(self.space).set_swap_attrs(table, run, arch.swap_entry(run.raw).attrs - Attrs::SOFT_DIRTY);
                }
                return false;
            }
            let attrs = run.attrs(arch);
            let new = attrs - Attrs::SOFT_DIRTY - Attrs::WRITE;
            if new != attrs {
                table.rewrite(run, arch.leaf(arch.leaf_addr(run.raw, run.level), new, run.level));
            }
            new != attrs
        });
        Ok(())
    }
}
