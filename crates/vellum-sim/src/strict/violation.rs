//! Rules of the strict machine, and reports of broken ones.

use std::fmt;

/// The rules. Each is a promise that the engine makes to the hardware or to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// A frame is allocated or freed only when no TLB holds a translation of it (INV-1).
    StaleTranslation,
    /// A page table is freed only when no paging-structure cache holds a pointer to it (INV-1).
    StalePointer,
    /// A frame is freed only when no live PTE maps it.
    StillMapped,
    /// A page table is freed only when no live entry points to it.
    StillHooked,
    /// The engine neither reads nor writes the entries of a root that translate no user address:
    /// they are the host's (INV-17).
    HostHalf,
    /// A page table is freed only when every lockless walker that was under way when it was
    /// unhooked has left (INV-1).
    TableUnderWalker,
    /// A lockless walk begins once, ends once, and reads entries of page tables only.
    Walk,
    /// An entry that other CPUs can see is written by the holder of its page table's lock, or by
    /// the only CPU that uses the space (INV-5).
    Unlocked,
    /// An entry holds what the engine expects, and changes only by announced events.
    Unexpected,
    /// A leaf maps allocated frames, and a table entry points to a page table of the next level
    /// that is not hooked elsewhere.
    WrongTarget,
    /// An upper-level entry that maps something becomes empty only when its removal is final
    /// (INV-4).
    TransientlyEmpty,
    /// A mapping changes its size only when no TLB holds a translation of the old size any more.
    TwoSizes,
    /// A cont block is whole, alike, consecutive, aligned and of one folio
    /// (INV-14).
    Block,
    /// A live PTE is folded into a cont block, unfolded from one, or comes to map something else,
    /// only after it was cleared (break-before-make; INV-14).
    BreakBeforeMake,
    /// No CPU finds two translations for one address that disagree.
    Conflict,
    /// No accessed or dirty bit that hardware set is lost (INV-6).
    LostBit,
    /// A folio's refcount is never below its mapcount, and neither is negative (INV-2).
    References,
    /// Frames that are allocated were free, and frames that are freed were allocated.
    Allocator,
    /// Programs access allocated frames only.
    UseAfterFree,
    /// A page table that other CPUs can see and that is not locked has a non-empty entry (INV-3).
    EmptyTable,
    /// While a page table is locked, only the one above it may be locked; a lock that is released
    /// was held.
    LockOrder,
    /// No CPU waits forever.
    Deadlock,
    /// The CPU holds no lock, is in no lockless walk and has no interrupts masked where the engine
    /// may be rescheduled or waits for other CPUs (INV-8).
    Atomic,
    /// The work that a CPU does with preemption disabled, or touching memory without a point to
    /// reschedule, is bounded (INV-11).
    Long,
    /// An invalidation names the space's root, and non-empty ranges in ascending order.
    Invalidation,
    /// All frames that were allocated after the baseline are freed in the end.
    Leak,
}

/// A broken rule.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// The CPU that broke it, or at which it was found.
    pub cpu: usize,
    /// The number of the event, counted from 1.
    pub event: u64,
    /// The violation, and the history of the frames and entries involved.
    pub report: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} broken by CPU {} at event {}: {}", self.rule, self.cpu, self.event, self.report)
    }
}
