//! What TLBs may hold of entries that have since come to allow more.
//!
//! Taking a right away, or a page, always ends with an invalidation on every CPU. *Adding* one does
//! not: an entry becomes writable, present, accessed or dirty by a store, and each architecture
//! says how long a CPU may go on faulting by what the entry said before. [`TlbRules`] is that
//! answer, in a form that the engine's fault path and a simulated TLB both obey:
//!
//! | a TLB holds an entry that is … | x86-64 | AArch64 | RISC-V with Svvptc | RISC-V without |
//! |---|---|---|---|---|
//! | not present | [never](Stale::NotCached) | [never](Stale::NotCached) | [for a while](Stale::Bounded) | [until invalidated](Stale::UntilInvalidated) |
//! | without the right | [until the fault](Stale::UntilFault) | [until invalidated](Stale::UntilInvalidated) | [until invalidated](Stale::UntilInvalidated) | [until invalidated](Stale::UntilInvalidated) |
//! | not accessed, where software sets that | – | [never](Stale::NotCached) | [until invalidated](Stale::UntilInvalidated) | [until invalidated](Stale::UntilInvalidated) |
//! | not dirty, where software sets that | – | [until invalidated](Stale::UntilInvalidated) | [until invalidated](Stale::UntilInvalidated) | [until invalidated](Stale::UntilInvalidated) |
//!
//! Where the answer is "until invalidated" the fault handler invalidates, on the CPU that faulted
//! and there alone ([`Tlb::invalidate_local`](crate::platform::Tlb::invalidate_local)); a CPU that
//! holds the same old entry takes a fault of its own.
//!
//! # Sources
//! - **x86-64**: Intel SDM vol. 3A, "Caching Translation Information" (§4.10 in older editions, §5.10
//!   in newer ones). "Details of TLB Use": a translation is cached only if every entry on the way is
//!   present and has its accessed flag set; "Caches for Paging Structures" has the same of upper
//!   levels. "Operations that Invalidate TLBs and Paging-Structure Caches": a page fault drops the
//!   TLB entries and the paging-structure caches' entries for the address that faulted. "Optional
//!   Invalidation": an entry that comes to allow more without an invalidation makes an address
//!   fault at most once. AMD APM vol. 2 §5.5, "TLB Management", goes further: a CPU walks again
//!   before it reports a page fault. Accessed and dirty are the processor's to set.
//! - **AArch64**: Arm ARM (DDI 0487, issue M.a) D8.16, "Translation Lookaside Buffers": an entry that
//!   causes a Translation fault, an Address size fault or an Access flag fault is never held in a
//!   TLB. D8.15.1.5, "Permission fault": one that causes such a fault may be, and software that
//!   changes it has to invalidate it. A clean writable entry is read-only to a CPU that does not
//!   manage the dirty state (D8.5.2.1), so a write to it is a Permission fault. Linux
//!   invalidates on the CPU that faulted, too (`__ptep_set_access_flags`,
//!   `flush_tlb_fix_spurious_fault`).
//! - **RISC-V**: Privileged specification, "Supervisor Memory-Management Fence Instruction": an
//!   implementation may use any translation that was valid since the last SFENCE.VMA that reaches
//!   it, and may cache entries that are not valid; software that makes a leaf valid, or adds a right
//!   to one, may leave the SFENCE.VMA to the page-fault handler. One with an address reaches leaf
//!   entries only. Svvptc: an entry that becomes valid is seen in bounded time. Svade: where A, or
//!   for a store D, is clear, the access is a page fault, like one for want of a right; Svadu:
//!   hardware sets them where `menvcfg.ADUE` is set.

/// How long a CPU may go on faulting by what an entry said before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// Not at all: no TLB holds such an entry, and each access reads it anew.
    NotCached,
    /// Once: the fault drops what caused it.
    UntilFault,
    /// For a bounded time, however often it is tried meanwhile.
    Bounded,
    /// Until it is invalidated.
    UntilInvalidated,
}

impl Stale {
    /// Returns whether the same access may fault for ever unless software invalidates.
    pub const fn lasts(self) -> bool {
        matches!(self, Stale::UntilInvalidated)
    }
}

/// What a format's TLBs may hold: the rows of the [table above](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlbRules {
    /// Entries that are not present, of any level.
    pub not_present: Stale,
    /// Leaves that do not allow the access.
    pub denied: Stale,
    /// Leaves that are not accessed, where software sets that.
    pub not_accessed: Stale,
    /// Writable leaves that are not dirty, where software sets that.
    pub not_dirty: Stale,
}

impl TlbRules {
    /// Returns whether any entry may make an access fault until it is invalidated.
    pub const fn any_lasts(self) -> bool {
        self.not_present.lasts() || self.denied.lasts() || self.not_accessed.lasts() || self.not_dirty.lasts()
    }
}
