//! Stale TLB entries: how long a TLB may keep an outdated copy of a PTE after a plain store made
//! the PTE allow more (INV-20).
//!
//! *Removing* a page or a permission always ends with a TLB invalidation on every CPU. *Adding* one
//! does not: a plain store makes a PTE writable, present, accessed or dirty, and each architecture
//! defines how long a CPU may keep faulting on its cached copy of the old PTE. [`TlbRules`] states
//! that for a format; the engine's fault path and the simulated TLB both obey it:
//!
//! | a TLB caches a PTE that is … | x86-64 | AArch64 | RISC-V with Svvptc | RISC-V without |
//! |---|---|---|---|---|
//! | not present | [never] | [never] | [for a while] | [until invalidated] |
//! | without the permission | [until the fault] | [until invalidated] | [until invalidated] | [until invalidated] |
//! | not accessed, where software sets the bit | – | [never] | [until invalidated] | [until invalidated] |
//! | not dirty, where software sets the bit | – | [until invalidated] | [until invalidated] | [until invalidated] |
//!
//! [never]: Stale::NotCached
//! [for a while]: Stale::Bounded
//! [until the fault]: Stale::UntilFault
//! [until invalidated]: Stale::UntilInvalidated
//!
//! In the cells "until invalidated" the fault handler invalidates, on the CPU that faulted and on
//! no other ([`Tlb::invalidate_local`](crate::platform::Tlb::invalidate_local)). Another CPU that
//! caches the same old PTE takes a spurious fault of its own.
//!
//! # Sources
//! - **x86-64**: Intel SDM vol. 3A, "Caching Translation Information" (§4.10 in older editions,
//!   §5.10 in newer ones). "Details of TLB Use": a translation is cached only if every PTE on the
//!   way is present and has its accessed flag set; "Caches for Paging Structures" has the same of
//!   upper levels. "Operations that Invalidate TLBs and Paging-Structure Caches": a page fault
//!   drops the TLB entries and the paging-structure caches' entries for the address that faulted.
//!   "Optional Invalidation": a PTE that comes to allow more without an invalidation makes an
//!   address fault at most once. AMD APM vol. 2 §5.5, "TLB Management", goes further: a CPU walks
//!   again before it reports a page fault. The CPU itself sets accessed and dirty.
//! - **AArch64**: Arm ARM (DDI 0487, issue M.a) D8.16, "Translation Lookaside Buffers": a PTE that
//!   causes a Translation fault, an Address size fault or an Access flag fault is never cached in a
//!   TLB. D8.15.1.5, "Permission fault": a PTE that causes a Permission fault may be cached, and
//!   software that changes it has to invalidate it. A clean writable PTE is read-only to a CPU that
//!   does not manage the dirty state (D8.5.2.1), so a write to it is a Permission fault. Linux
//!   invalidates on the CPU that faulted, too (`__ptep_set_access_flags`,
//!   `flush_tlb_fix_spurious_fault`).
//! - **RISC-V**: Privileged specification, "Supervisor Memory-Management Fence Instruction": an
//!   implementation may use any translation that was valid since the last SFENCE.VMA that reaches
//!   it, and may cache PTEs that are not valid. Software that makes a leaf valid, or adds a
//!   permission to one, may leave the SFENCE.VMA to the page-fault handler. An SFENCE.VMA with an
//!   address reaches leaf PTEs only. Svvptc: a PTE that becomes valid is observed in bounded time.
//!   Svade: where A, or for a store D, is clear, the access is a page fault, like one without
//!   permission. Svadu: hardware sets A and D where `menvcfg.ADUE` is set.

/// The time for which a CPU may keep faulting on the old contents of a PTE that now allows the
/// access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// No time: no TLB caches such a PTE, and each access reads it again.
    NotCached,
    /// One fault: the fault itself invalidates the cached PTE.
    UntilFault,
    /// A bounded time, however often the CPU retries the access and faults in this time.
    Bounded,
    /// The time until software invalidates the cached PTE.
    UntilInvalidated,
}

impl Stale {
    /// Returns true if the same access may fault for ever unless software invalidates the cached
    /// PTE.
    pub const fn lasts(self) -> bool {
        matches!(self, Stale::UntilInvalidated)
    }
}

/// How long a TLB may keep a PTE that makes an access fault, after the PTE has changed so that it
/// no longer would: a column of the [table above](self) for one format, by the reason of the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlbRules {
    /// The PTE, of any level, is not present.
    pub not_present: Stale,
    /// The leaf PTE does not allow the access.
    pub denied: Stale,
    /// The leaf PTE is not accessed, and the CPU leaves the accessed bit to software.
    pub not_accessed: Stale,
    /// The access is a write, the leaf PTE is writable but not dirty, and the CPU leaves the dirty
    /// bit to software.
    pub not_dirty: Stale,
}

impl TlbRules {
    /// Returns true if for at least one of the four rules a CPU may keep faulting on a cached PTE
    /// until software invalidates it.
    pub const fn any_lasts(self) -> bool {
        self.not_present.lasts() || self.denied.lasts() || self.not_accessed.lasts() || self.not_dirty.lasts()
    }
}
