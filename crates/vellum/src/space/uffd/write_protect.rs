//! Write protection for a userfaultfd (`UFFDIO_WRITEPROTECT`).

use crate::addr::VirtRange;
use crate::arch::{Arch, Attrs, Kind, Marker, UserRange};
use crate::platform::Platform;
use crate::vma::VmaFlags;

use super::{Uffd, UffdError};
use crate::space::ground::{Change, Ptes};
use crate::space::observe::Observe;

impl<'s, 'm, P: Platform> Uffd<'s, 'm, P> {
    /// Implements
    /// [`AddressSpace::uffd_write_protect`](crate::space::AddressSpace::uffd_write_protect).
    pub(super) fn uffd_write_protect(self, range: VirtRange, unmapped: bool) -> Result<(), UffdError> {
        let range = self.whole_pages(range)?;
        let change = self.begin_wp_change(range)?;
        let protected = Observe::of(self.space).write_protect_all(range, unmapped);
        drop(change);
        Ok(protected?)
    }

    /// Implements
    /// [`AddressSpace::uffd_write_unprotect`](crate::space::AddressSpace::uffd_write_unprotect).
    pub(super) fn uffd_write_unprotect(self, range: VirtRange) -> Result<(), UffdError> {
        let range = self.whole_pages(range)?;
        let _change = self.begin_wp_change(range)?;
        self.tables().split_edges(range)?;
        self.clear_wp(range);
        Ok(())
    }

    /// Claims `range` ([`Change`]), and checks that all of it is registered for write protection.
    /// The VMAs are unlocked when this returns.
    ///
    /// # Errors
    /// [`UffdError::NotRegistered`]; then nothing is claimed.
    fn begin_wp_change(self, range: UserRange) -> Result<Change<'s, 'm, P>, UffdError> {
        let mut change = Change::begin(self.space, range);
        let vmas = change.vmas();
        let is_registered = vmas.overlapping(self.platform(), range).all(|v| v.flags.contains(VmaFlags::UFFD_WP));
        if !is_registered || !vmas.covers(self.platform(), range) {
            return Err(UffdError::NotRegistered);
        }
        change.unlock();
        Ok(change)
    }

    /// Removes the write protection of all pages in a range: of leaf PTEs, of swap PTEs, and of
    /// markers. The caller has claimed the range. No write-protected huge PTE crosses an end of it.
    pub(super) fn clear_wp(self, range: UserRange) {
        let arch = self.arch();
        Ptes::of(self.space).each_run(range, |table, run| {
            match run.kind {
                Kind::Leaf if run.attrs(arch).contains(Attrs::UFFD_WP) => {
                    // The PTEs stay read-only, so nothing needs to be flushed. The next write
                    // faults, and the fault makes the run writable if its VMA allows that.
                    let attrs = run.attrs(arch) - Attrs::UFFD_WP;
                    table.rewrite(run, arch.leaf(arch.leaf_addr(run.raw, run.level), attrs, run.level));
                }
                Kind::Swap => {
                    Ptes::of(self.space).set_swap_attrs(table, run, arch.swap_entry(run.raw).attrs - Attrs::UFFD_WP)
                }
                Kind::Marker if arch.marker_of(run.raw) == Some(Marker::UffdWp) => table.erase(run),
                _ => {}
            }
            false
        });
    }
}
