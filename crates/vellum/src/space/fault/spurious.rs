//! Spurious faults: the PTE allows the access already, but the CPU's TLB does not.
//!
//! A PTE comes to allow more by a plain store, without a flush: copy-on-write reuse
//! ([`super::cow`]), `mprotect` that adds a right, uffd-wp removed ([`crate::space::uffd`]), the
//! first write since soft-dirty was cleared ([`super::soft_dirty`]), a pageout that failed
//! ([`crate::space::reclaim`]), or a fault that makes the PTE present. A CPU that caches the old
//! PTE in its TLB faults once more. Whether that fault drops the cached PTE, or only an
//! invalidation does, depends on the format ([`crate::arch::stale`]). Where it takes an
//! invalidation, **each resolved fault ends with one, of the address that faulted, on the CPU that
//! faulted** (INV-20), so that the access succeeds when it is retried. Every other CPU that caches
//! the old PTE faults once, and gets here too; so does a task that moves to such a CPU.

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
        // The CPU may have walked through a page table that another CPU is about to flush: give
        // that CPU time.
        self.platform().relax();
        self.record_access(addr, page, access, attrs);
        Outcome::Allowed(*page)
    }

    /// Sets the accessed and dirty bits of the PTE for `addr` as the access would, on a CPU that
    /// leaves them to software and faults where they are clear (RISC-V Svade; AArch64 without
    /// FEAT_HAFDBS). A TLB that caches the PTE without these bits faults as if the right were
    /// missing.
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

    /// Ends a fault that mapped `range`: invalidates on this CPU, if its TLB may cache that nothing
    /// was mapped there. Returns its arguments.
    #[inline(always)]
    pub(super) fn finish_mapped(self, range: VirtRange, cost: Resolved) -> (VirtRange, Resolved) {
        if self.arch().tlb_rules().not_present.lasts() {
            // An invalidation by address is sure to reach PTEs of the lowest level only.
            let huge = range.len() >= 1 << self.arch().level_shift(2);
            self.tables().tlb.invalidate_local(range, self.page_shift(), huge);
        }
        (range, cost)
    }

    /// Ends a fault at `addr` on a PTE that was present: invalidates on this CPU, if its TLB may
    /// cache the old PTE, of any size, or an entry of a page table above it.
    #[inline(always)]
    pub(super) fn finish_allowed(self, addr: u64) {
        if self.arch().tlb_rules().any_lasts() {
            let start = align_down(addr, self.page_shift());
            let page = VirtRange { start, end: start + (1 << self.page_shift()) };
            self.tables().tlb.invalidate_local(page, self.page_shift(), true);
        }
    }
}
