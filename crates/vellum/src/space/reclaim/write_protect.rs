//! Takes the right to write to pages of a file from the PTEs that map them, before the host writes
//! the pages to its storage (Linux: `folio_mkclean`).

use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::page_cache::{Object, WriteBatch};
use crate::platform::{Part, Platform};
use crate::table::{LockedTable, Run};

use super::Rmap;
use crate::space::ground::{Change, Ptes};

impl<'m, P: Platform> Rmap<'_, 'm, P> {
    /// Takes [`Attrs::EXCLUSIVE`] and the right to write from all PTEs of this space that map pages
    /// of a batch, by run, and flushes them. When this returns, no write through this space changes
    /// the pages, until a fault has marked them as dirty again.
    ///
    /// Claims the space, so that no VMA moves past the walk; faults go on.
    pub(in crate::space) fn write_protect(self, object: &Object<'m, P>, batch: &WriteBatch) {
        let all = UserRange::all(self.arch());
        let mut change = Change::begin(self.space, all);
        let mut at = 0;
        loop {
            let vmas = change.vmas();
            let found = vmas.tree.iter_from(at).filter(|vma| vma.backing.is_shared()).find_map(|vma| {
                let range = self.mapped_part(vma, object, &batch.range())?;
                Some((range, *vma))
            });
            change.unlock();
            let Some((range, vma)) = found else { return };
            Ptes::of(self.space).each_run(range, |table, run| {
                let first = vma.backing.offset(run.va) >> self.page_shift();
                run.kind == Kind::Leaf && self.write_protect_run(table, run, first, batch.parts())
            });
            at = vma.range.end;
        }
    }

    /// Takes the rights from those PTEs of a run that map pages of `parts`. The run's first PTE
    /// maps page `first` of the object. Returns whether a PTE has changed.
    fn write_protect_run(self, table: &LockedTable<'_, 'm, P>, run: &Run, first: u64, parts: &[Part]) -> bool {
        let arch = self.arch();
        let end = first + run.len as u64;
        let mut changed = false;
        for part in parts.iter().filter(|part| part.page < end && first < part.range().end) {
            let (from, to) = (part.page.max(first), part.range().end.min(end));
            let frames = |pages: u64| (pages as u32) << arch.page_order();
            // Of a page that was removed from the object, the PTE may still map the old frame.
            if run.pfn(arch).add(frames(from - first)) != part.pfn.add(frames(from - part.page)) {
                continue;
            }
            let va = |page: u64| run.va + ((page - first) << arch.page_shift());
            // A change of the part before may have unfolded the PTEs' cont block: they are read
            // again.
            let mut at = va(from);
            while at < va(to)
                && let Some(piece) = table.run(at, va(to))
            {
                at = piece.range(arch).end;
                let attrs = piece.attrs(arch);
                let new = attrs - Attrs::EXCLUSIVE - Attrs::WRITE;
                if new != attrs {
                    table.rewrite(&piece, arch.leaf(arch.leaf_addr(piece.raw, piece.level), new, piece.level));
                    changed = true;
                }
            }
        }
        changed
    }
}
