//! The first write to a page of a file since the page was written to the host's storage, through a
//! shared VMA (Linux: `do_page_mkwrite`): the page is dirty before the PTE lets a program write
//! (INV-22).

use crate::addr::align_down;
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::page_cache::{Object, Writes};
use crate::platform::Platform;
use crate::table::Found;
use crate::vma::Vma;

use super::{Fault, Outcome};
use crate::space::ground::{Keep, Ptes, Zap};

impl<P: Platform> Fault<'_, '_, P> {
    /// Marks the page of an object with a store that a shared VMA maps at `addr` as dirty, and
    /// makes its PTE exclusive, and writable as far as the VMA allows. Unmaps the page instead if
    /// it was removed from the object. Returns [`Outcome::Again`].
    #[cold]
    pub(super) fn write_to_store(self, vma: &Vma, addr: u64) -> Outcome {
        let arch = self.arch();
        // SAFETY: `vma` is a VMA of the space and the VMAs are locked, so that its reference to the
        // object stays.
        let object = unsafe { Object::of_backing(self.machine(), &vma.backing) };
        let Found::Table(table) = self.tables().find(vma.range.tail(addr)) else { return Outcome::Again };
        let mut was_removed = false;
        if let Some(run) = table.run(align_down(addr, table.shift()), addr + 1)
            && run.kind == Kind::Leaf
        {
            // The page is dirty before another thread can write to it through the PTE, and
            // writeback, which takes the mark first, takes the PTE's right after this lock is
            // released.
            let page = vma.backing.offset(run.va) >> arch.page_shift();
            if Writes(&object).allow_write(page, run.pfn(arch)) {
                let attrs = run.attrs(arch) | Attrs::EXCLUSIVE | Attrs::SOFT_DIRTY;
                Ptes::of(self.space).set_attrs(&table, &run, attrs, vma.prot);
            } else {
                was_removed = true;
            }
        }
        table.release();
        if was_removed {
            self.unmap_removed_page(vma.range.around(addr, arch.page_shift()));
        }
        Outcome::Again
    }

    /// Unmaps a page that was removed from its object, so that the next try of the fault finds the
    /// object's present state. It can't wait until truncation unmaps the page: truncation waits for
    /// the claim of a fault that has tried too often (INV-21).
    fn unmap_removed_page(self, page: UserRange) {
        self.space.peak.note(&self.tables().slots);
        let mut gather = self.space.gather(page);
        // The page has a PTE of the lowest level, so no huge PTE has to be split, and `piece` can't
        // fail.
        let _ = Zap::of(self.space).piece(page, Keep::Guards, &mut gather);
    }
}
