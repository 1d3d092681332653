//! Copies what parent and child can't share: pages that may be pinned.

use crate::arch::{Arch, Attrs, Kind};
use crate::frame::HUGE_ORDER;
use crate::memcg::Refused;
use crate::platform::Platform;
use crate::table::{Found, NotMapped, Run};
use crate::vma::{HUGETLB_SHIFT, Vma, VmaFlags};

use super::{ForkError, Parent};
use crate::space::AddressSpace;
use crate::space::anon::Anon;
use crate::space::fault::Fault;

impl<'m, P: Platform> Parent<'_, 'm, P> {
    /// Copies the pages of a VMA that stayed exclusive to the parent because they may be pinned,
    /// and maps the copies in the child. The parent's PTEs are read-only by now, so only the host
    /// can write to these pages while they are copied.
    ///
    /// # Errors
    /// There is no memory for a copy.
    pub(super) fn copy_pinned(self, child: &AddressSpace<'m, P>, vma: &Vma) -> Result<(), ForkError> {
        let arch = self.arch();
        let mut at = vma.range.start;
        let private_end = self.private_end(vma);
        while at < private_end {
            match self.tables().find(vma.range.tail(at)) {
                Found::Hole(end) => at = end,
                Found::Table(table) => {
                    let run = table.run(at, private_end.min(table.end()));
                    table.release();
                    let Some(run) = run else { continue };
                    at = run.range(arch).end;
                    if run.kind == Kind::Leaf && run.attrs(arch).contains(Attrs::EXCLUSIVE) {
                        self.copy_run(child, vma, &run)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies the pages of a run, and maps the copies in the child.
    fn copy_run(self, child: &AddressSpace<'m, P>, vma: &Vma, run: &Run) -> Result<(), Refused> {
        let arch = self.arch();
        if vma.is_hugetlb() {
            return self.copy_huge_run(child, vma, run);
        }
        let pages = run.range(arch).len() >> arch.page_shift();
        for n in 0..pages as u32 {
            let va = run.va + ((n as u64) << arch.page_shift());
            let from = run.pfn(arch).add(n << arch.page_order());
            let (pfn, order) = Anon::of(child).alloc_or_smaller(vma, va, arch.page_order(), 0, false)?;
            // SAFETY: this fork has locked the parent's VMAs, so that the parent keeps mapping the
            // page. Nothing else refers to the copy yet.
            unsafe { self.machine().frames().copy(from, pfn, 1 << order) };
            let kept =
                if vma.flags.contains(VmaFlags::UFFD_WP) { run.attrs(arch) & Attrs::UFFD_WP } else { Attrs::empty() };
            Anon::of(child).map_with(vma, va, (pfn, order), kept).map_err(NotMapped::shortage)?;
            self.platform().resched();
        }
        Ok(())
    }

    /// Copies huge pages of the pool, and maps the copies in the child.
    ///
    /// # Errors
    /// The pool has no page, or there is no memory for a page table.
    fn copy_huge_run(self, child: &AddressSpace<'m, P>, vma: &Vma, run: &Run) -> Result<(), Refused> {
        let arch = self.arch();
        for n in 0..run.frames(arch) >> HUGE_ORDER {
            let (va, from) = (run.va + (u64::from(n) << HUGETLB_SHIFT), run.pfn(arch).add(n << HUGE_ORDER));
            let taken = Fault::of(child).take_huge(vma, va, false).map_err(|_| Refused::OutOfMemory)?;
            let pfn = taken.ok_or(Refused::OutOfMemory)?;
            // SAFETY: this fork has locked the parent's VMAs, so that the parent keeps mapping the
            // page. Nothing else refers to the copy yet.
            unsafe { self.machine().frames().copy(from, pfn, 1 << HUGE_ORDER) };
            Fault::of(child).map_own_huge(vma, va, pfn).map_err(|_| Refused::OutOfMemory)?;
            self.platform().resched();
        }
        Ok(())
    }
}
