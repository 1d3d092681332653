//! Which pages were written since somebody asked (Linux: soft-dirty, `/proc/PID/clear_refs`).
//!
//! It is told by a software bit of each entry, and no entry that lacks it may be written: the first write faults, and the page
//! gets both. Entries with the bit and entries without are different runs, so they are not joined to one block either, and the
//! answer is exact to the page though TLBs hold larger translations: a block is taken apart by the first write to it, and joined again
//! when all of it was written. Only a huge mapping is one page.
//!
//! What is swapped out has the bit in its entry too, and comes back as it went.
//!
//! Memory that comes into being counts as written, as do VMAs that are newer than the question, or moved since.

use core::sync::atomic::Ordering::Relaxed;

use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::platform::Platform;
use crate::vma::VmaFlags;

use super::AddressSpace;
use crate::space::ground::{Change, Ptes};

/// The format's entries have no room to remember what was written ([`Arch::supported`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CantTrack;

impl core::fmt::Display for CantTrack {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("entries of this format can't remember what was written")
    }
}

impl core::error::Error for CantTrack {}

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Ask: from now on a page was written exactly if its entry has [`Attrs::SOFT_DIRTY`], or its VMA lacks
    /// [`VmaFlags::TRACKED`]. What is written while this runs may count or not. A child that is forked has the bits and the
    /// question.
    ///
    /// # Errors
    /// [`CantTrack`]: nothing was changed.
    pub fn track_writes(&self) -> Result<(), CantTrack> {
        let arch = &self.tables.arch;
        if !arch.supported().contains(Attrs::SOFT_DIRTY) {
            return Err(CantTrack);
        }
        let all = UserRange::all(arch);
        let mut change = Change::begin(self, all);
        // In the lock in which faults read it.
        change.vmas().each(self.tables.machine, all, |v| v.flags |= VmaFlags::TRACKED);
        self.tracks.store(true, Relaxed);
        change.unlock();
        Ptes::of(self).each_run(all, |table, run| {
            if run.kind != Kind::Leaf {
                if run.kind == Kind::Swap {
                    Ptes::of(self).set_swap_attrs(table, run, arch.swapped(run.raw).attrs - Attrs::SOFT_DIRTY);
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
