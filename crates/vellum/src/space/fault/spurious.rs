//! Spurious faults: the PTE allows the access already, but the CPU's TLB does not.
//!
//! The engine lets a PTE allow more by a plain store, without a flush: copy-on-write reuse
//! ([`super::cow`]), `mprotect` that adds a right, uffd-wp removed ([`crate::space::uffd`]), the
//! first write since soft-dirty was cleared ([`super::soft_dirty`]), a pageout that failed
//! ([`crate::space::reclaim`]), or a fault that makes the PTE present. A CPU that caches the old
//! PTE in its TLB faults once more. Whether that fault drops the cached PTE, or only an
//! invalidation does, depends on the format ([`crate::arch::stale`]). Where it takes an
//! invalidation, **each resolved fault ends with one, of the address that faulted, on the CPU that
//! faulted** (INV-20), so that the access succeeds when it is retried. Every other CPU that caches
//! the old PTE faults once on its next such access, and that fault ends in the same way.

use crate::addr::{VirtRange, align_down};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::platform::Platform;
use crate::stats::Counter;
use crate::table::Found;

use super::{Access, Fault, Outcome, Resolved};

impl<'s, P: Platform> Fault<'s, '_, P> {
    /// Resolves a fault on a PTE that allows the access already. The PTE maps `page`.
    pub(super) fn spurious(self, addr: u64, page: UserRange, access: Access, attrs: Attrs) -> Outcome {
        self.machine().count(Counter::SpuriousFaults, 1);
        // This CPU may have used a stale pointer to an old page table, which another CPU has
        // replaced and is about to flush: give the other CPU time.
        self.platform().relax();
        self.record_access(addr, page, access, attrs);
        Outcome::Allowed(*page)
    }

    /// Sets the accessed bit, and for a write the dirty bit, of the PTE for `addr`. Some CPUs leave
    /// these bits to software, and fault where they are clear (RISC-V Svade; AArch64 without
    /// FEAT_HAFDBS). A CPU whose TLB caches the PTE without these bits faults too, as if the right
    /// were missing.
    fn record_access(self, addr: u64, page: UserRange, access: Access, attrs: Attrs) {
        let mut recorded = Attrs::ACCESSED;
        if access == Access::Write {
            recorded |= Attrs::DIRTY;
        }
        if attrs.contains(recorded) {
            return;
        }
        let Found::Table(table) = self.tables().find(page.tail(addr)) else { return };
        let arch = self.arch();
        let raw = table.get(addr);
        if arch.kind(raw, table.level) == Kind::Leaf && arch.attrs(raw, table.level).contains(attrs & Attrs::PROT) {
            table.set_accessed_dirty(addr, recorded);
        }
        table.release();
    }

    /// Ends a fault that mapped `range`: invalidates `range` on this CPU, if TLBs of this format
    /// may cache PTEs that are not present. Returns its arguments.
    #[inline(always)]
    pub(super) fn finish_mapped(self, range: VirtRange, cost: Resolved) -> (VirtRange, Resolved) {
        if self.arch().tlb_rules().not_present.lasts() {
            // An invalidation by address is guaranteed to drop cached PTEs of the lowest level
            // only. If the fault mapped a huge PTE, also drop cached entries of upper-level page
            // tables.
            let huge = range.len() >= 1 << self.arch().level_shift(2);
            self.tables().tlb.invalidate_local(range, self.page_shift(), huge);
        }
        (range, cost)
    }

    /// Ends a fault at `addr` on a PTE that was present: invalidates the page on this CPU, if TLBs
    /// of this format may keep the old PTE until an invalidation. Also drops cached entries of
    /// upper-level page tables, because the old PTE may have been huge.
    #[inline(always)]
    pub(super) fn finish_allowed(self, addr: u64) {
        if self.arch().tlb_rules().any_lasts() {
            let start = align_down(addr, self.page_shift());
            let page = VirtRange { start, end: start + (1 << self.page_shift()) };
            self.tables().tlb.invalidate_local(page, self.page_shift(), true);
        }
    }
}
