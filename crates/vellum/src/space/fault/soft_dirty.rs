//! The first write to a page since soft-dirty was cleared.

use crate::addr::align_down;
use crate::arch::{Attrs, Kind};
use crate::platform::Platform;
use crate::table::Found;
use crate::vma::Vma;

use super::uffd::reports_wp;
use super::{Fault, Outcome};
use crate::space::ground::Ptes;

impl<P: Platform> Fault<'_, '_, P> {
    /// Resolves the first write to an exclusive page since soft-dirty was cleared, or since the
    /// page was write-protected for a userfaultfd in asynchronous mode: makes its PTE soft-dirty
    /// and writable. A write that is an event for a userfaultfd does not get here. Returns
    /// [`Outcome::Again`].
    #[cold]
    pub(super) fn first_write(self, vma: &Vma, addr: u64) -> Outcome {
        let arch = self.arch();
        let Found::Table(table) = self.tables().find(vma.range.tail(addr)) else { return Outcome::Again };
        if let Some(run) = table.run(align_down(addr, table.shift()), addr + 1)
            && run.kind == Kind::Leaf
        {
            let mut attrs = run.attrs(arch);
            attrs.set(Attrs::UFFD_WP, attrs.contains(Attrs::UFFD_WP) && reports_wp(vma));
            attrs.set(Attrs::SOFT_DIRTY, attrs.intersects(Attrs::SOFT_DIRTY | Attrs::EXCLUSIVE));
            Ptes::of(self.space).set_attrs(&table, &run, attrs, vma.prot);
        }
        table.release();
        Outcome::Again
    }
}
