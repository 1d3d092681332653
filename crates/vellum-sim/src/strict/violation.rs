//! What a strict machine finds.

use std::fmt;

/// The rules. Each is a promise that the engine makes to the hardware or to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// A frame goes back to the allocator, or leaves it, only when no TLB holds a translation of it.
    StaleTranslation,
    /// A table goes back only when no paging-structure cache holds a pointer to it.
    StalePointer,
    /// A frame goes back only when no live entry maps it.
    StillMapped,
    /// A table goes back only when no live entry points to it.
    StillHooked,
    /// The engine neither reads nor writes those entries of a root that translate no user address:
    /// they are the host's.
    HostHalf,
    /// A table goes back only when every lockless walker has left that was under way when it was unhooked.
    TableUnderWalker,
    /// A lockless walker begins once, ends once, and reads entries of tables only.
    Walk,
    /// An entry that others can see is written by the holder of its table's lock, or by who is alone in the space.
    Unlocked,
    /// An entry is what the engine thinks it is, and changes only when the engine says so.
    Unexpected,
    /// An entry maps frames that are in use, or points to a table of the next level that hangs nowhere else.
    WrongTarget,
    /// An upper-level entry that maps something becomes empty only when its removal is final.
    TransientlyEmpty,
    /// A mapping changes its size only when no TLB holds a translation of the old size any more.
    TwoSizes,
    /// What one translation may stand for is whole, alike, consecutive, aligned and of one folio.
    Block,
    /// A live entry joins a block, leaves one, or comes to map something else, only after it was taken out.
    BreakBeforeMake,
    /// No CPU finds two translations for one address that don't agree.
    Conflict,
    /// An accessed or dirty bit that hardware set is noticed.
    LostBit,
    /// References are never fewer than mappings, and nothing is negative.
    References,
    /// What is allocated is free, and what is freed is allocated.
    Allocator,
    /// Programs reach frames that are in use.
    UseAfterFree,
    /// A table that others can see and nobody has locked holds something.
    EmptyTable,
    /// Locks of tables nest from a table to the one above it, and no other way; what is given back was held.
    LockOrder,
    /// Nobody waits for ever.
    Deadlock,
    /// No lock, walk, or masked interrupt where the engine gives way or waits for other CPUs.
    Atomic,
    /// The work for which a CPU keeps its locks, or touches memory without a look at what else
    /// there is to do, is bounded.
    Long,
    /// An invalidation names the space's root, and ranges in order.
    Invalidation,
    /// What was allocated is freed in the end.
    Leak,
}

/// A broken rule.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// The CPU that broke it, or at which it came to light.
    pub cpu: usize,
    /// The number of the event, counted from 1.
    pub event: u64,
    /// What happened, and the history of the frames and entries involved.
    pub report: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} broken by CPU {} at event {}: {}", self.rule, self.cpu, self.event, self.report)
    }
}
