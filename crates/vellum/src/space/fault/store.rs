//! The first write to a page of a file since the page was written to the host's storage, through a
//! shared VMA (Linux: `do_page_mkwrite`): the page is dirty before the PTE lets a program write
//! (INV-22).

use crate::addr::align_down;
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::page_cache::{Object, Writes};
use crate::platform::Platform;
use crate::table::{Found, LockedTable, Run};
use crate::vma::Vma;

use super::{Fault, FaultError, Outcome};
use crate::space::ground::{Keep, Ptes, Zap};

/// The most pages that a write fault of a stream makes writable.
const STREAM_PAGES: u64 = 16;

impl<'m, P: Platform> Fault<'_, 'm, P> {
    /// Marks the page of an object with a store that a shared VMA maps at `addr` as dirty, and
    /// makes its PTE exclusive, and writable as far as the VMA allows; in a stream of writes also
    /// pages after it. Unmaps the page instead if it was removed from the object. Splits a huge PTE
    /// first, so that the object knows which of its pages are dirty. Returns [`Outcome::Again`].
    ///
    /// # Errors
    /// There is no memory to split a huge PTE.
    #[cold]
    pub(super) fn write_to_store(self, vma: &Vma, addr: u64) -> Result<Outcome, FaultError> {
        let arch = self.arch();
        // SAFETY: `vma` is a VMA of the space and the VMAs are locked, so that its reference to the
        // object stays.
        let object = unsafe { Object::of_backing(self.machine(), &vma.backing) };
        let Found::Table(table) = self.tables().find(vma.range.tail(addr)) else { return Ok(Outcome::Again) };
        if table.level > 1 {
            let huge = vma.range.around(addr, table.shift());
            table.release();
            return self.split_huge(addr, huge);
        }
        let mut was_removed = false;
        let at = align_down(addr, table.shift());
        if let Some(run) = table.run(at, self.writable_end(&table, vma, at))
            && run.kind == Kind::Leaf
        {
            // The pages are dirty before another thread can write to them through the PTEs, and
            // writeback, which takes the marks first, takes the PTEs' rights after this lock is
            // released.
            let first = vma.backing.offset(run.va) >> arch.page_shift();
            let marked = Writes(&object).allow_write(first..first + run.len as u64, run.pfn(arch));
            if marked > 0 {
                Writes(&object).note_mapped_write();
                let run = run.part(arch, 0, marked as usize);
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
        Ok(Outcome::Again)
    }

    /// Returns the end of the pages from `at` on that the fault makes writable: as many as the
    /// program has written to directly before it, and at least one. So a stream of writes takes few
    /// faults, and no more than twice as much is written to the storage as the program has written.
    fn writable_end(self, table: &LockedTable<'_, 'm, P>, vma: &Vma, at: u64) -> u64 {
        let arch = self.arch();
        let page = 1 << table.shift();
        let is_written = |run: &Run| run.kind == Kind::Leaf && run.attrs(arch).contains(Attrs::EXCLUSIVE);
        let most = STREAM_PAGES * page;
        let mut stream = at.saturating_sub(most).max(vma.range.start).max(table.base);
        let mut seen = stream;
        while seen < at
            && let Some(run) = table.run(seen, at)
        {
            seen = run.range(arch).end;
            if !is_written(&run) {
                stream = seen;
            }
        }
        let ahead = (at - stream.min(at)).clamp(page, most);
        // Soft-dirty tracking tells which pages were written.
        let len = if Ptes::of(self.space).is_soft_dirty_on() { page } else { ahead };
        at.saturating_add(len).min(vma.range.end).min(table.end())
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
