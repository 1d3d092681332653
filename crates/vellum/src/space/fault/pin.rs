//! A page is kept for the host to read or write, whatever the space does with it.

use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::frame::TooManyReferences;
use crate::page_cache::ObjectPage;
use crate::platform::Platform;
use crate::table::Found;

use super::{Access, Fault, FaultError, Retry};

impl<'s, 'm, P: Platform, A: Arch> Fault<'s, 'm, P, A> {
    /// Implements [`AddressSpace::pin`].
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
                    // SAFETY: a page of the space's size, which the entry refers to, under the lock
                    // of its table.
                    page = Some(unsafe { ObjectPage::get(self.machine(), pfn, arch.page_shift()) });
                    if access == Access::Write && !arch.attrs(raw, table.level).contains(Attrs::HARDWARE) {
                        // What is written past the entry hardware will not record, and clean memory
                        // may go.
                        table.set_accessed_dirty(addr, Attrs::HARDWARE);
                    }
                }
                table.release();
                if let Some(page) = page {
                    return page.map_err(|TooManyReferences| FaultError::TooManyReferences(addr));
                }
            }
            // The page may be gone again before it is looked at.
            retry.again(self.space, whole);
            let outcome = self.try_again(addr, access, &retry.patience)?;
            self.fault_in_turn(addr, access, outcome, &mut retry)?;
        }
    }
}
