//! VMAs: the ranges of addresses that a space has mapped, each with its protection, flags and
//! backing.
//!
//! A [`Vma`] is Linux's `vm_area_struct`: a plain value, kept in order by a [`VmaTree`]. The lock
//! around the tree, and the rules for changing VMAs, are in [`crate::space`].
//!
//! | file | what it does |
//! |---|---|
//! | `tree` | keeps VMAs in order: a B+tree of whole pages (Linux: the maple tree) |
//! | `edit` | makes one change: descends to the leaf, and updates the nodes on the way back |
//! | `node` | lays out leaf nodes, and owns the memory of all nodes |
//! | `inner` | keeps the summaries of inner nodes: spans and largest gaps |
//! | `gap` | searches for free addresses (Linux: `vm_unmapped_area`) |

mod edit;
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
use crate::frame::policy::Advice;
use crate::frame::{HUGE_ORDER, RmapKey};

bitflags! {
    /// The protection of a VMA, as `mmap` and `mprotect` set it (`PROT_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Prot: u8 {
        /// The program may read (`PROT_READ`).
        const READ = 1;
        /// The program may write (`PROT_WRITE`). On every architecture of the engine, writable
        /// memory can be read as well.
        const WRITE = 2;
        /// The program may execute (`PROT_EXEC`).
        const EXEC = 4;
    }

    /// The flags of a VMA (Linux: `VM_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct VmaFlags: u32 {
        /// Grows toward lower addresses when the program touches the page below it: a stack
        /// (`MAP_GROWSDOWN`).
        const GROWSDOWN = 1;
        /// Its memory is not reclaimed (`mlock`; Linux: `VM_LOCKED`).
        const LOCKED = 2;
        /// Does not count against the commit limit (`MAP_NORESERVE`).
        const NORESERVE = 4;
        /// Fork does not copy the VMA to the child (`MADV_DONTFORK`).
        const DONTFORK = 8;
        /// The child gets the VMA without its pages (`MADV_WIPEONFORK`).
        const WIPEONFORK = 16;
        /// A core dump leaves its memory out (`MADV_DONTDUMP`).
        const DONTDUMP = 32;
        /// Pages are locked when they are faulted in, not before (`MLOCK_ONFAULT`). Set only
        /// together with [`VmaFlags::LOCKED`].
        const ONFAULT = 64;
        /// The VMA can't be unmapped, moved, resized, replaced or given another protection
        /// (`mseal`).
        const SEALED = 128;
        /// Soft-dirty tracking covers this VMA: its PTEs record which pages were written since the
        /// last clearing (`/proc/PID/clear_refs`). All pages of a VMA without this flag count as
        /// written, because it was mapped or moved since. The inverse of Linux's `VM_SOFTDIRTY`.
        const SOFT_DIRTY_CLEARED = 256;
        /// Registered with userfaultfd for missing pages (`UFFDIO_REGISTER_MODE_MISSING`).
        const UFFD_MISSING = 512;
        /// Registered with userfaultfd for writes to pages that are write-protected by uffd-wp
        /// (`UFFDIO_REGISTER_MODE_WP`).
        const UFFD_WP = 1024;
        /// A write to a uffd-wp page proceeds without an event, and only removes the protection
        /// (`UFFD_FEATURE_WP_ASYNC`). Set only together with [`VmaFlags::UFFD_WP`].
        const UFFD_WP_ASYNC = 2048;
        /// A stream of reads is expected (`MADV_SEQUENTIAL`).
        const SEQ_READ = 4096;
        /// Reads without a pattern are expected (`MADV_RANDOM`).
        const RAND_READ = 8192;
        /// May have guard pages (`MADV_GUARD_INSTALL`; Linux: `VM_MAYBE_GUARD`). Stays when the
        /// guards are removed, and when the VMA is merged with one that has none.
        const MAYBE_GUARD = 16384;
        /// Registered with userfaultfd for pages that an object has and no PTE maps
        /// (`UFFDIO_REGISTER_MODE_MINOR`).
        const UFFD_MINOR = 32768;
        /// Reclaim may drop pages at any time, written ones too, and never swaps them out
        /// (`MAP_DROPPABLE`; Linux: `VM_DROPPABLE`). Set when the VMA is mapped, together with
        /// [`VmaFlags::DROPPED`], and never cleared.
        const DROPPABLE = 1 << 16;
        /// Equal pages of it may become one (`MADV_MERGEABLE`). The engine merges no pages.
        const MERGEABLE = 1 << 17;
        /// In a private VMA of an object: may have private copies of pages, or markers, though it
        /// is not writable now (Linux: `anon_vma`). Stays while the VMA exists.
        const MAYBE_COPIES = 1 << 18;
        /// Maps huge pages of the machine's pool, by whole ones (Linux: `VM_HUGETLB`). Set when the
        /// VMA is mapped, and never cleared. The VMA has an object, private memory too.
        const HUGETLB = 1 << 19;
        /// The flags that a VMA with [`VmaFlags::DROPPABLE`] always has: contents that may vanish
        /// at any time are not worth memory that is reserved, copied or dumped.
        const DROPPED = Self::NORESERVE.bits() | Self::WIPEONFORK.bits() | Self::DONTDUMP.bits();
        /// All flags about reads. That a page of such a VMA was read does not tell that it will be
        /// read again (Linux: `vma_has_recency`).
        const READ_MASK = Self::SEQ_READ.bits() | Self::RAND_READ.bits();
        /// All flags that a merged VMA has if one of its parts has them (Linux: `VM_STICKY`).
        const STICKY = Self::MAYBE_GUARD.bits() | Self::MAYBE_COPIES.bits();
        /// All userfaultfd flags (Linux: `__VM_UFFD_FLAGS`).
        const UFFD_FLAGS = Self::UFFD_MISSING.bits()
            | Self::UFFD_MINOR.bits()
            | Self::UFFD_WP.bits()
            | Self::UFFD_WP_ASYNC.bits();
        /// All `mlock` flags (Linux: `VM_LOCKED_MASK`).
        const LOCKED_MASK = Self::LOCKED.bits() | Self::ONFAULT.bits();
    }
}

impl Prot {
    /// The bits of the protection key, which belong to no flag: two protections that differ in it
    /// are different, so that their VMAs are not merged.
    const KEY: u8 = 0xf0;

    /// Returns the same protection with another protection key (Linux: `vma_pkey`), below 16. The
    /// key alone permits and forbids nothing: each thread decides about the memory with that key.
    #[must_use]
    pub const fn with_key(self, key: u8) -> Prot {
        Prot::from_bits_retain(self.bits() & !Self::KEY | key << 4)
    }

    /// Returns the protection key.
    pub const fn key(self) -> u8 {
        self.bits() >> 4
    }

    /// Returns true if no access is permitted (`PROT_NONE`), whatever the protection key.
    #[inline]
    pub const fn is_none(self) -> bool {
        !self.intersects(Prot::all())
    }

    /// Returns the PTE attributes that grant this protection.
    pub(crate) fn attrs(self) -> Attrs {
        let mut attrs = Attrs::from_bits_retain(u16::from(self.key()) << Attrs::KEY.bits().trailing_zeros());
        attrs.set(Attrs::READ, !self.is_none());
        attrs.set(Attrs::WRITE, self.contains(Prot::WRITE));
        attrs.set(Attrs::EXEC, self.contains(Prot::EXEC));
        attrs
    }
}

/// The effect of a write to a VMA on its backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// A write goes to a private copy (`MAP_PRIVATE`).
    Private,
    /// A shared VMA that may never be made writable, because its object was opened for reading only
    /// (Linux: no `VM_MAYWRITE`).
    ReadOnly,
    /// A write goes to the object (`MAP_SHARED`).
    Shared,
}

/// The backing of a VMA: nothing, if its memory is anonymous and private, or a page-cache object.
///
/// The backing holds the distance between the VMA's addresses and the object's offsets, not the
/// offset of the VMA's start (Linux: `vm_pgoff`). So each part of a VMA has the backing of the
/// whole, and two neighbours can be merged exactly if their backings are equal.
///
/// The same distance of an anonymous VMA gives the rmap index of its pages: the address at which
/// the memory was mapped first, which it keeps when `mremap` moves it. The rmap finds anonymous
/// pages by that index ([`crate::reclaim`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The frame that holds the page-cache object; [`Pfn::NONE`] if there is no object.
    pub(crate) object: Pfn,
    /// The effect of writes.
    pub(crate) sharing: Sharing,
    /// The number that gives, added to an address (wrapping), the byte offset in the object. For
    /// anonymous memory the sum is the rmap index in bytes.
    pub(crate) delta: u64,
    /// The number by which the host knows the object; see [`Backing::tag`].
    pub(crate) tag: u64,
}

impl Backing {
    /// The backing of private anonymous memory that was never moved.
    pub(crate) const ANONYMOUS: Backing = Backing { object: Pfn::NONE, sharing: Sharing::Private, delta: 0, tag: 0 };

    /// Returns true if no object backs the VMA.
    #[inline]
    pub fn is_anonymous(&self) -> bool {
        self.object == Pfn::NONE
    }

    /// Returns the backing of a VMA like this one that has no pages yet: anonymous memory gets its
    /// own addresses as rmap indices.
    pub(crate) fn renewed(self) -> Backing {
        if self.is_anonymous() { Backing::ANONYMOUS } else { self }
    }

    /// Returns true if a write to the VMA goes to the object (`MAP_SHARED`), or would go there if
    /// the VMA were writable.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.sharing != Sharing::Private
    }

    /// Returns true if the VMA is shared and may be writable, now or after `mprotect`.
    pub fn may_write(&self) -> bool {
        self.sharing == Sharing::Shared
    }

    /// Returns the number by which the host knows the object; 0 if there is no object, or if it is
    /// shared anonymous memory that the host has not named.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Returns the byte offset in the object that is mapped at `addr`; for anonymous memory the
    /// address at which this memory was mapped first.
    #[inline]
    pub fn offset(&self, addr: u64) -> u64 {
        addr.wrapping_add(self.delta)
    }
}

/// The state of a VMA while an operation changes its range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// The VMA is in use. If its protection was just changed, its PTEs may still have the old
    /// protection.
    #[default]
    Live,
    /// The VMA is being unmapped. Faults and queries treat it as unmapped, but its addresses can't
    /// be mapped anew yet.
    Dying,
    /// The range is locked: faults, changes of PTEs and clearing of accessed bits wait until the
    /// state changes. The VMA is being replaced by another one at the same addresses (waiters find
    /// the old or the new VMA, never a hole), moved, or copied by fork.
    Locked,
}

/// The number by which the host knows a userfaultfd instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UffdId(pub NonZeroU16);

/// The reads of a file that a program expects (`madvise`, `posix_fadvise`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expected {
    /// Any: the accesses decide what is read ahead.
    #[default]
    Unknown,
    /// A stream: more is read ahead.
    Sequential,
    /// No pattern: nothing is read ahead.
    Random,
}

/// The number of bytes below a stack that must stay unmapped (Linux: `stack_guard_gap`).
pub const STACK_GUARD: u64 = 256 << 12;

/// log2 of the size of the huge pages of the machine's pool.
pub(crate) const HUGETLB_SHIFT: u32 = HUGE_ORDER as u32 + FRAME_SHIFT;

/// A VMA: a range of addresses with the same protection, flags and backing (Linux:
/// `vm_area_struct`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vma {
    /// The addresses, in whole pages.
    pub range: UserRange,
    /// The protection.
    pub prot: Prot,
    /// The flags.
    pub flags: VmaFlags,
    /// The userfaultfd instance that this VMA is registered with, for the events of
    /// [`VmaFlags::UFFD_FLAGS`].
    pub uffd: Option<UffdId>,
    /// The program's advice on large folios (`MADV_HUGEPAGE`, `MADV_NOHUGEPAGE`).
    pub advice: Advice,
    /// The number by which the host knows the VMA's name; 0: it has none. VMAs with different names
    /// are not merged (Linux: `anon_vma_name`).
    pub name: u32,
    /// The backing.
    pub backing: Backing,
    /// The state of the VMA while an operation changes its range.
    pub(crate) state: State,
}

impl Vma {
    /// Returns true if the VMA counts as data (`RLIMIT_DATA`): private and writable, and not a
    /// stack.
    pub(crate) fn is_data(&self) -> bool {
        self.prot.contains(Prot::WRITE) && !self.backing.is_shared() && !self.flags.contains(VmaFlags::GROWSDOWN)
    }

    /// Returns whether a fork must look for what the child does not fault in by itself: private
    /// memory, guard pages, write protection for a userfaultfd (Linux: `vma_needs_copy`).
    pub(crate) fn may_have_own(&self) -> bool {
        self.flags.intersects(VmaFlags::MAYBE_GUARD.union(VmaFlags::UFFD_WP))
            || !self.backing.is_shared()
                && (self.backing.is_anonymous()
                    || self.prot.contains(Prot::WRITE)
                    || self.flags.contains(VmaFlags::MAYBE_COPIES))
    }

    /// Returns true if the VMA maps huge pages of the machine's pool.
    #[inline]
    pub fn is_hugetlb(&self) -> bool {
        self.flags.contains(VmaFlags::HUGETLB)
    }

    /// Returns true if the VMA has an object whose pages are found one by one, beside the PTEs.
    pub(crate) fn may_swap_object(&self) -> bool {
        !self.backing.is_anonymous() && !self.is_hugetlb()
    }

    /// Returns true if an address is in the middle of one of the VMA's huge pages, so that the VMA
    /// can't be split there (Linux: `hugetlb_vm_op_split`).
    pub(crate) fn splits_huge_at(&self, addr: u64) -> bool {
        self.is_hugetlb() && addr & ((1 << HUGETLB_SHIFT) - 1) != 0 && self.range.contains(addr)
    }

    /// Returns the end of `range` that is in the middle of one of the VMA's huge pages, if there is
    /// one.
    pub(crate) fn cut_huge(&self, range: UserRange) -> Option<u64> {
        [range.start, range.end].into_iter().find(|at| self.splits_huge_at(*at))
    }

    /// Notes that the VMA may get private copies or markers by other means than writes, or that it
    /// may have got some by writes and is about to be writable no more.
    pub(crate) fn note_copies(&mut self) {
        let private_object = !self.backing.is_anonymous() && !self.backing.is_shared();
        self.flags.set(VmaFlags::MAYBE_COPIES, private_object || self.flags.contains(VmaFlags::MAYBE_COPIES));
    }

    /// Changes the protection.
    pub(crate) fn protect(&mut self, prot: Prot) {
        if self.prot.contains(Prot::WRITE) && !prot.contains(Prot::WRITE) {
            self.note_copies();
        }
        self.prot = prot;
    }

    /// Returns the reads that the program expects.
    pub(crate) fn expected(&self) -> Expected {
        match self.flags.intersection(VmaFlags::READ_MASK) {
            VmaFlags::SEQ_READ => Expected::Sequential,
            VmaFlags::RAND_READ => Expected::Random,
            _ => Expected::Unknown,
        }
    }

    /// Returns true if private pages of this VMA may have rmap indices other than their addresses:
    /// after `mremap`, or in a private file mapping. Reclaim searches these VMAs separately.
    pub(crate) fn is_displaced(&self) -> bool {
        self.backing.delta != 0 && !self.backing.is_shared()
    }

    /// Returns the addresses in this VMA of anonymous pages with the rmap indices `indices` (in
    /// bytes); `None` if there are none. Compares only the bits of an rmap index that a folio's
    /// descriptor keeps.
    pub(crate) fn rmap_part(&self, indices: VirtRange) -> Option<UserRange> {
        let bits = |index: u64| index & ((1 << (RmapKey::RMAP_INDEX_BITS + FRAME_SHIFT)) - 1);
        let (here, whole) = (self.backing.offset(self.range.start), self.range);
        let after = bits(indices.start.wrapping_sub(here));
        let before = bits(here.wrapping_sub(indices.start));
        let (skip, len) = match after < whole.len() {
            true => (after, indices.len()),
            false => (0, indices.len().saturating_sub(before)),
        };
        let start = whole.start + skip;
        (len > 0).then(|| whole.tail(start).head(start + len))
    }

    /// Returns true if this VMA begins where `before` ends and the two can be merged (Linux:
    /// `can_vma_merge_after`).
    pub(crate) fn can_merge_after(&self, before: &Vma) -> bool {
        let flags = (self.flags - VmaFlags::STICKY) | before.flags & VmaFlags::STICKY;
        let like = Vma { range: before.range, flags, ..*self };
        before.range.end == self.range.start && like == *before && self.state == State::Live
    }

    /// Adds a VMA that [can be merged after](Self::can_merge_after) this one.
    pub(crate) fn append(&mut self, next: &Vma) {
        self.range.append(&next.range);
        self.flags |= next.flags & VmaFlags::STICKY;
    }
}

impl Interval for Vma {
    /// Returns the addresses of the VMA.
    fn range(&self) -> VirtRange {
        *self.range
    }

    /// Returns the start of the VMA, or of the guard gap below it if it is a stack.
    fn reserved_start(&self) -> u64 {
        if self.flags.contains(VmaFlags::GROWSDOWN) {
            self.range.start.saturating_sub(STACK_GUARD)
        } else {
            self.range.start
        }
    }
}
