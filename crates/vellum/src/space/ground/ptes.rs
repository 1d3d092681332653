//! The attributes of a space's PTEs: access rights, soft-dirty, uffd-wp; and swap slots.
//!
//! A PTE allows a write only where the page is exclusive to the space, is not write-protected for
//! userfaultfd, and, after soft-dirty was cleared, is soft-dirty ([`Ptes::rights`]). Every PTE that
//! this engine makes present gets its rights here, so that no other code can forget one of the
//! three.

use core::sync::atomic::Ordering::Relaxed;

use crate::addr::FRAME_SHIFT;
use crate::arch::{Arch, Attrs, SwapEntry};
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::swap::{Slots, SwapRun};
use crate::table::{LockedTable, Run, Stretch};
use crate::tlb::Gather;
use crate::vma::{Prot, Vma};

use super::Ptes;

/// The leaf PTEs that map a folio.
#[derive(Clone, Copy)]
pub(in crate::space) struct LeafShape {
    /// The level of the page table that the PTEs are in.
    pub(in crate::space) level: u8,
    /// The number of PTEs.
    pub(in crate::space) entries: usize,
}

impl<'s, 'm, P: Platform> Ptes<'s, 'm, P> {
    /// Returns whether soft-dirty was ever cleared in this space, or in its parent before the fork.
    /// Then PTEs that are not soft-dirty must not be writable.
    #[inline]
    pub(in crate::space) fn is_soft_dirty_on(self) -> bool {
        self.space.soft_dirty_on.load(Relaxed)
    }

    /// Returns the access rights of PTEs with the attributes `attrs` in a VMA with the protection
    /// `prot`: those of `prot`, but without the right to write where a write must fault (see the
    /// module's text).
    #[inline]
    pub(in crate::space) fn rights(self, attrs: Attrs, prot: Prot) -> Attrs {
        let mut rights = prot.attrs();
        let traps = attrs.contains(Attrs::UFFD_WP) || !attrs.contains(Attrs::SOFT_DIRTY) && self.is_soft_dirty_on();
        if traps || !attrs.contains(Attrs::EXCLUSIVE) {
            rights -= Attrs::WRITE;
        }
        rights
    }

    /// Returns the attributes of new PTEs that map memory exclusive to the space, with `extra`
    /// added.
    #[inline]
    pub(in crate::space) fn exclusive_attrs(self, vma: &Vma, extra: Attrs) -> Attrs {
        let attrs = Attrs::HARDWARE | Attrs::EXCLUSIVE | Attrs::SOFT_DIRTY | extra;
        attrs | self.rights(attrs, vma.prot)
    }

    /// Gives the swap PTEs `run` the attributes `attrs`. The caller holds the lock of their page
    /// table.
    pub(in crate::space) fn set_swap_attrs(self, table: &LockedTable<'_, 'm, P>, run: &Run, attrs: Attrs) {
        let arch = self.arch();
        let raw = arch.swap_pte(SwapEntry { attrs, ..arch.swap_entry(run.raw) });
        if raw != run.raw {
            table.replace(run, &Run { raw, ..*run });
        }
    }

    /// Gives a run of leaf PTEs the access rights of its VMA, which has `prot`, as far as
    /// [`Ptes::rights`] allows. Returns whether the caller must flush ([`Attrs::must_flush`]).
    pub(in crate::space) fn apply_prot(self, table: &LockedTable<'_, 'm, P>, run: &Run, prot: Prot) -> bool {
        self.set_attrs(table, run, run.attrs(self.arch()), prot)
    }

    /// Gives a stretch of leaf PTEs the access rights of its VMA, as [`Ptes::apply_prot`] does for
    /// a run. Returns `None`, with nothing changed, where it must be done by the run: see
    /// [`Stretch::change`], and where the memory becomes executable.
    #[inline]
    pub(in crate::space) fn apply_prot_to_stretch(
        self,
        table: &LockedTable<'_, 'm, P>,
        at: u64,
        end: u64,
        prot: Prot,
    ) -> Option<Stretch> {
        Stretch::change(table, at, end, |old| {
            let new = (old - Attrs::GRANT) | self.rights(old, prot);
            // The frames of memory that becomes executable are needed, to synchronise the
            // instruction caches.
            (!(new - old).contains(Attrs::EXEC)).then_some(new)
        })
    }

    /// Gives a run of leaf PTEs the attributes `attrs`, and the access rights of a VMA with `prot`
    /// as far as [`Ptes::rights`] allows. Returns whether the caller must flush
    /// ([`Attrs::must_flush`]).
    pub(in crate::space) fn set_attrs(
        self,
        table: &LockedTable<'_, 'm, P>,
        run: &Run,
        attrs: Attrs,
        prot: Prot,
    ) -> bool {
        let arch = self.arch();
        let old = run.attrs(arch);
        let new = (attrs - Attrs::GRANT) | self.rights(attrs, prot);
        if new == old {
            return false;
        }
        self.machine().frames().sync_icache(run.pfn(arch), run.frames(arch), new - old);
        table.rewrite(run, arch.leaf(arch.leaf_addr(run.raw, run.level), new, run.level));
        old.must_flush(new)
    }

    /// Returns the level and the number of the leaf PTEs that map a whole folio of `order`.
    pub(in crate::space) fn leaf_shape(self, order: u8) -> LeafShape {
        let arch = self.arch();
        let level = if order as u32 + FRAME_SHIFT >= arch.level_shift(2) { 2 } else { 1 };
        LeafShape { level, entries: 1 << (order as u32 + FRAME_SHIFT - arch.level_shift(level)) }
    }

    /// Returns the swap slots that a run of swap PTEs names.
    pub(crate) fn swap_slots(self, run: &Run) -> SwapRun {
        let arch = self.arch();
        let swapped = arch.swap_entry(run.raw);
        let first = (swapped.slot as u32) << arch.page_order();
        SwapRun { device: swapped.device, slots: Slots { first, count: run.frames(arch) } }
    }

    /// Adds the slots of swap PTEs that were cleared to `gather`, which is not full.
    /// [`Gather::release_slots`] releases them later, without the page table's lock.
    pub(in crate::space) fn defer_swap_release(self, run: &Run, gather: &mut Gather<'_, 'm, P>) {
        self.tables().slot().add(SpaceCounter::Swap, -(run.frames(self.arch()) as i64));
        gather.push_slots(self.swap_slots(run));
    }

    /// Releases the slots of swap PTEs that were cleared. The caller holds no spin lock.
    pub(in crate::space) fn release_swap(self, run: &Run) {
        let machine = self.machine();
        self.tables().slot().add(SpaceCounter::Swap, -(run.frames(self.arch()) as i64));
        // SAFETY: the swap PTEs that were cleared had these references, so the caller owns them
        // now.
        unsafe { machine.swaps().release(machine.frames(), self.swap_slots(run)) };
    }
}
