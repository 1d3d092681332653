//! The entry allows what the CPU faulted on, and the CPU is to see that.
//!
//! An entry comes to allow more by a store, without a flush: copy-on-write reuse ([`super::cow`]),
//! `mprotect` that gives a right back, uffd-wp lifted ([`super::watch`]), the first write to a
//! soft-dirty page ([`super::track`]), reclaim that failed ([`super::evict`]), or a fault that
//! makes it present. What a CPU's TLB held of it before makes the next access there fault once
//! more; whether that fault drops it, or only an invalidation does, the format says
//! ([`crate::arch::stale`]). Where it takes an invalidation, **each fault that is resolved ends
//! with one, of the address that faulted, on the CPU that faulted** (INV-20): so the access goes
//! ahead when it is tried again. A CPU that has not faulted yet will, once, and ends up here too.
//! If the task changed its CPU meanwhile, that is one more such fault.

use crate::addr::{VirtRange, align_down};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::platform::Platform;
use crate::stats::Counter;
use crate::table::Found;

use super::{Access, Fault, Outcome, Resolved};

impl<'s, P: Platform, A: Arch> Fault<'s, '_, P, A> {
    /// Resolves a fault on an entry that allows the access already. `page`: what the entry maps.
    pub(super) fn spurious(self, addr: u64, page: UserRange, access: Access, attrs: Attrs) -> Outcome {
        self.machine().count(Counter::SpuriousFaults, 1);
        // Perhaps the CPU walked through a table that another one is about to flush: let it.
        self.platform().relax();
        self.record_access(addr, page, access, attrs);
        Outcome::Allowed(*page)
    }

    /// If it was not for want of a right that the CPU faulted, then because it leaves the accessed
    /// and dirty bits to software (RISC-V Svade; AArch64 without FEAT_HAFDBS). A TLB that holds the
    /// entry without them faults as by one without the right.
    fn record_access(self, addr: u64, page: UserRange, access: Access, attrs: Attrs) {
        let mut happened = Attrs::ACCESSED;
        if access == Access::Write {
            happened |= Attrs::DIRTY;
        }
        if attrs.contains(happened) {
            return;
        }
        let Found::Table(table) = self.tables().find(page.tail(addr)) else { return };
        let arch = self.arch();
        let raw = table.get(addr);
        if arch.kind(raw, table.level) == Kind::Leaf && arch.attrs(raw, table.level).contains(attrs & Attrs::PROT) {
            table.set_accessed_dirty(addr, happened);
        }
        table.release();
    }

    /// Returns what a fault mapped, and what that took, when this CPU sees it: it may hold that
    /// nothing was mapped there.
    #[inline(always)]
    pub(super) fn finish_mapped(self, range: VirtRange, took: Resolved) -> (VirtRange, Resolved) {
        if self.arch().tlb_rules().not_present.lasts() {
            // With an address no more than the last level's entries are sure to be reached.
            let huge = range.len() >= 1 << self.arch().level_shift(2);
            self.tables().tlb.invalidate_local(range, self.page_shift(), huge);
        }
        (range, took)
    }

    /// Has this CPU forget what made an access to `addr` fault, if it may hold that: the page's
    /// entry as it was, of whatever size, or one on the way there.
    #[inline(always)]
    pub(super) fn finish_allowed(self, addr: u64) {
        if self.arch().tlb_rules().any_lasts() {
            let start = align_down(addr, self.page_shift());
            let page = VirtRange { start, end: start + (1 << self.page_shift()) };
            self.tables().tlb.invalidate_local(page, self.page_shift(), true);
        }
    }
}
