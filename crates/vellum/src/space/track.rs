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

use crate::addr::align_down;
use crate::arch::{Arch, Attrs, Kind, SwapEntry, UserRange};
use crate::platform::Platform;
use crate::table::{Found, LockedTable, Run};
use crate::vma::{Prot, Vma, VmaFlags};

use super::AddressSpace;
use super::fault::Outcome;
use super::watch::tells;

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
        let mut change = self.change(all);
        // In the lock in which faults read it.
        change.vmas().each(self.tables.machine, all, |v| v.flags |= VmaFlags::TRACKED);
        self.tracks.store(true, Relaxed);
        change.let_go();
        self.each_run(all, |table, run| {
            if run.kind != Kind::Leaf {
                if run.kind == Kind::Swap {
                    self.restate_swapped(table, run, arch.swap_entry(run.raw).attrs - Attrs::SOFT_DIRTY);
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

    /// Whether somebody has asked.
    #[inline]
    pub(super) fn tracks(&self) -> bool {
        self.tracks.load(Relaxed)
    }

    /// The rights of entries with these attributes, in a VMA with those.
    #[inline]
    pub(super) fn rights(&self, attrs: Attrs, prot: Prot) -> Attrs {
        let mut rights = prot.attrs();
        let told = attrs.contains(Attrs::UFFD_WP) || !attrs.contains(Attrs::SOFT_DIRTY) && self.tracks();
        if told || !attrs.contains(Attrs::EXCLUSIVE) {
            rights -= Attrs::WRITE;
        }
        rights
    }

    /// The attributes of the first entries of what is the space's own, with these marks.
    #[inline]
    pub(super) fn own_attrs(&self, vma: &Vma, marks: Attrs) -> Attrs {
        let attrs = Attrs::HARDWARE | Attrs::EXCLUSIVE | Attrs::SOFT_DIRTY | marks;
        attrs | self.rights(attrs, vma.prot)
    }

    /// Entries of what is swapped out say something else from now on.
    pub(super) fn restate_swapped(&self, table: &LockedTable<'_, 'm, P, A>, run: &Run, attrs: Attrs) {
        let arch = &self.tables.arch;
        let raw = arch.swap_pte(SwapEntry { attrs, ..arch.swap_entry(run.raw) });
        if raw != run.raw {
            table.replace(run, &Run { raw, ..*run });
        }
    }

    /// A page is written for the first time since somebody asked. Who watches for writes has been told, if he is to be told at once.
    #[cold]
    pub(super) fn first_write(&self, vma: &Vma, addr: u64) -> Outcome {
        let arch = &self.tables.arch;
        let Found::Table(table) = self.tables.find(vma.range.tail(addr)) else { return Outcome::Again };
        if let Some(run) = table.run(align_down(addr, table.shift()), addr + 1)
            && run.kind == Kind::Leaf
        {
            let mut attrs = run.attrs(arch);
            attrs.set(Attrs::UFFD_WP, attrs.contains(Attrs::UFFD_WP) && tells(vma));
            attrs.set(Attrs::SOFT_DIRTY, attrs.intersects(Attrs::SOFT_DIRTY | Attrs::EXCLUSIVE));
            self.restate(&table, &run, attrs, vma.prot);
        }
        table.release();
        Outcome::Again
    }
}
