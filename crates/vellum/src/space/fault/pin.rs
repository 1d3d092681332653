//! Pins: references by which the host keeps a page, to read or write it, even if the space unmaps
//! it.

use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::frame::TooManyReferences;
use crate::page_cache::ObjectPage;
use crate::platform::Platform;
use crate::table::Found;

use super::{Access, Fault, FaultError, Retry};

impl<'s, 'm, P: Platform> Fault<'s, 'm, P> {
    /// Implements [`AddressSpace::pin`](crate::space::AddressSpace::pin).
    pub(super) fn pin(self, addr: u64, access: Access) -> Result<ObjectPage<'m, P>, FaultError> {
        let arch = self.arch();
        let needed = match access {
            Access::Read => Attrs::READ,
            Access::Write => Attrs::WRITE,
            Access::Exec => Attrs::EXEC,
        };
        let whole = UserRange::all(arch).around(addr, self.page_shift());
        let mut retry = Retry::new(self.space);
        loop {
            if let Found::Table(table) = self.tables().find(UserRange::all(arch).tail(addr)) {
                let raw = table.get(addr);
                let mut page = None;
                if arch.kind(raw, table.level) == Kind::Leaf && arch.attrs(raw, table.level).contains(needed) {
                    let inside = (addr & ((1 << table.shift()) - 1)) >> arch.page_shift() << arch.page_order();
                    let pfn = arch.leaf_pfn(raw, table.level).add(inside as u32);
                    // SAFETY: the PTE maps the page `pfn`, which has the space's page size, and
                    // keeps it while the page table is locked.
                    page = Some(unsafe { ObjectPage::get(self.machine(), pfn, 1 << arch.page_order()) });
                    if access == Access::Write && !arch.attrs(raw, table.level).contains(Attrs::HARDWARE) {
                        // The host does not write through this PTE, so hardware will not set its
                        // dirty bit. With the bit clear, reclaim would drop the page as clean.
                        table.set_accessed_dirty(addr, Attrs::HARDWARE);
                    }
                }
                table.release();
                if let Some(page) = page {
                    return page.map_err(|TooManyReferences| FaultError::TooManyReferences(addr));
                }
            }
            // The fault below maps the page, but other CPUs may unmap it before the PTE is read
            // again: count the tries.
            retry.again(self.space, whole);
            let outcome = self.try_again(addr, access, &retry.retries)?;
            self.retry_fault_in(addr, access, outcome, &mut retry)?;
        }
    }
}
