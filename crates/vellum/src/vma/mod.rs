//! Virtual memory VMAs: which addresses a space has given out, and for what.
//!
//! | file | story |
//! |---|---|
//! | `tree` | VMAs in order: a B+tree of pages |
//! | `node`, `inner` | its nodes |
//! | `gap` | where there is room |

mod gap;
mod inner;
mod node;
#[cfg(test)]
mod tests;
mod tree;

pub use gap::Direction;
pub use tree::{Interval, Iter, NodeMemory, OutOfNodes, VmaTree};

use core::num::NonZeroU16;

use bitflags::bitflags;

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Attrs, UserRange};
use crate::frame::RmapKey;
use crate::frame::policy::Advice;

bitflags! {
    /// What may be done with memory, as `mmap` and `mprotect` say it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Prot: u8 {
        /// Read.
        const READ = 1;
        /// Write. On every architecture the engine knows, what may be written may be read.
        const WRITE = 2;
        /// Execute.
        const EXEC = 4;
    }

    /// What else is to know about a VMA.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct VmaFlags: u16 {
        /// Grows toward lower addresses when the page below it is touched: a stack.
        const GROWSDOWN = 1;
        /// Its memory is not to be reclaimed.
        const LOCKED = 2;
        /// Not counted against what the machine can promise.
        const NORESERVE = 4;
        /// A child does not have it (`MADV_DONTFORK`).
        const DONTFORK = 8;
        /// A child has it empty (`MADV_WIPEONFORK`).
        const WIPEONFORK = 16;
        /// Not to be written to a core file (`MADV_DONTDUMP`).
        const DONTDUMP = 32;
        /// Locked, but nothing is faulted in for that. Together with `LOCKED`.
        const ONFAULT = 64;
        /// Not to be unmapped, moved, resized, replaced or protected otherwise (`mseal`).
        const SEALED = 128;
        /// It was there when somebody asked last what is written ([`crate::AddressSpace::track_writes`]).
        const TRACKED = 256;
        /// Somebody is told of pages that are touched and not there ([`crate::AddressSpace::watch`]).
        const MISSING = 512;
        /// Somebody is told of writes to pages that he has protected.
        const WRITES = 1024;
        /// Writes to protected pages go on, and can be asked for later. Together with `WRITES`.
        const ASYNC = 2048;
        /// All that is watched for.
        const WATCHES = Self::MISSING.bits() | Self::WRITES.bits() | Self::ASYNC.bits();
        /// All that locking is about.
        const LOCKS = Self::LOCKED.bits() | Self::ONFAULT.bits();
    }
}

impl Prot {
    /// As attributes of an entry.
    pub(crate) fn attrs(self) -> Attrs {
        let mut attrs = Attrs::empty();
        attrs.set(Attrs::READ, !self.is_empty());
        attrs.set(Attrs::WRITE, self.contains(Prot::WRITE));
        attrs.set(Attrs::EXEC, self.contains(Prot::EXEC));
        attrs
    }
}

/// Whether what is written to a VMA is written to what stands behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// No: who writes has a copy.
    Private,
    /// It would be, but it may never be written.
    ReadOnly,
    /// Yes.
    Shared,
}

/// What stands behind a VMA: nothing (its memory is anonymous and its own), or a memory object.
///
/// The object's address is not said by what the VMA begins with but by how far the two are apart. So a part of a VMA has
/// the VMA's backing, and two neighbours continue each other exactly when they have the same.
///
/// Anonymous memory has its place too: the address where it was mapped first, which it keeps when it is moved. It is how the reverse
/// map finds it ([`crate::reclaim`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The object's own frame.
    pub(crate) object: Pfn,
    pub(crate) sharing: Sharing,
    /// What to add to an address (wrapping around) for the place in the object.
    pub(crate) delta: u64,
    pub(crate) tag: u64,
}

impl Backing {
    /// Nothing.
    pub(crate) const ANONYMOUS: Backing = Backing { object: Pfn::NONE, sharing: Sharing::Private, delta: 0, tag: 0 };

    /// Whether no object stands behind the VMA.
    #[inline]
    pub fn is_anonymous(&self) -> bool {
        self.object == Pfn::NONE
    }

    /// What stands behind a VMA like this when it has nothing yet.
    pub(crate) fn renewed(self) -> Backing {
        if self.is_anonymous() { Backing::ANONYMOUS } else { self }
    }

    /// Whether the VMA is shared: what is written to it is written to the object (`MAP_SHARED`).
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.sharing != Sharing::Private
    }

    /// Whether the VMA is shared and may be written, if not now.
    pub fn may_write(&self) -> bool {
        self.sharing == Sharing::Shared
    }

    /// What the host calls the object; 0 for none, and for shared anonymous memory, whose object the host has not named.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Which byte of the object is found at an address; of anonymous memory, at which address that was mapped first.
    #[inline]
    pub fn offset(&self, addr: u64) -> u64 {
        addr.wrapping_add(self.delta)
    }
}

/// What faults and queries should make of a VMA while its range is being changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// It is what it says. (If what may be done with it has just changed, its entries may still be behind.)
    #[default]
    Live,
    /// It is being unmapped. For faults and queries it is gone; its addresses are not free yet.
    Dying,
    /// Nothing may be faulted in, written anew or forgotten here for a while; who wants that waits. It is being unmapped to
    /// make place for another that will take its addresses at once (who waits finds the old or the new, never nothing), it
    /// is moved, or a child is to have it.
    Held,
}

/// Who watches a VMA: a number that the host knows him by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Watcher(pub NonZeroU16);

/// Guard pages below a stack (Linux: `stack_guard_gap`), in bytes.
pub const STACK_GUARD: u64 = 256 << 12;

/// One VMA: a range of addresses that are used alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vma {
    /// The addresses, in whole pages.
    pub range: UserRange,
    /// What may be done with it.
    pub prot: Prot,
    /// What else is to know.
    pub flags: VmaFlags,
    /// Who watches it, if somebody does, for what [`VmaFlags::WATCHES`] says.
    pub watcher: Option<Watcher>,
    /// What the program said about large folios.
    pub advice: Advice,
    /// What stands behind it.
    pub backing: Backing,
    pub(crate) state: State,
}

impl Vma {
    /// Whether it counts as a program's data: private memory that may be written, stacks aside.
    pub(crate) fn is_data(&self) -> bool {
        self.prot.contains(Prot::WRITE) && !self.backing.is_shared() && !self.flags.contains(VmaFlags::GROWSDOWN)
    }

    /// Whether it may have private memory that is not where its place behind the VMA says.
    pub(crate) fn is_displaced(&self) -> bool {
        self.backing.delta != 0 && !self.backing.is_shared()
    }

    /// Where in the VMA memory with these places is: those that begin as far into user addresses, whatever is above those bits.
    pub(crate) fn with_places(&self, places: VirtRange) -> Option<UserRange> {
        let bits = |place: u64| place & ((1 << (RmapKey::RMAP_INDEX_BITS + FRAME_SHIFT)) - 1);
        let (here, whole) = (self.backing.offset(self.range.start), self.range);
        let after = bits(places.start.wrapping_sub(here));
        let before = bits(here.wrapping_sub(places.start));
        let (skip, len) = match after < whole.len() {
            true => (after, places.len()),
            false => (0, places.len().saturating_sub(before)),
        };
        let start = whole.start + skip;
        (len > 0).then(|| whole.tail(start).head(start + len))
    }

    /// Whether the two are neighbours that could be one.
    pub(crate) fn continues(&self, before: &Vma) -> bool {
        let like = Vma { range: before.range, ..*self };
        before.range.end == self.range.start && like == *before && self.state == State::Live
    }
}

impl Interval for Vma {
    fn range(&self) -> VirtRange {
        *self.range
    }

    fn reserved_start(&self) -> u64 {
        if self.flags.contains(VmaFlags::GROWSDOWN) {
            self.range.start.saturating_sub(STACK_GUARD)
        } else {
            self.range.start
        }
    }
}
