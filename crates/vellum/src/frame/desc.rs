//! The descriptor of a frame: 32 bytes, two to a cache line.
//!
//! What the fields mean depends on what the frame is:
//!
//! | field | folio head | table | free block's head | tail of a folio |
//! |---|---|---|---|---|
//! | `counts` | references, mappings | | | |
//! | `state` | kind, order, flags | kind, level, flags | kind, order, zero | kind, order |
//! | `lruvec` | memcg, LRU shard, LRU list | memcg, shard | | |
//! | `link` | LRU list, or who has isolated it | lock, live count | free list | first tail only: the deferred-split list |
//! | `data` | owner, for the reverse map | parent and index there | | |
//!
//! A tail carries nothing but the way to its head, so that unmapping a folio touches one descriptor however large it is.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sync::RawSpin;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Not the engine's to give: a hole, or the engine's own boot-time structures. What a zeroed descriptor says.
    Reserved = 0,
    /// The first frame of a free block of the buddy allocator.
    Free = 1,
    /// The first frame of a free block in some CPU's cache.
    Cached = 2,
    /// The first frame of an allocated block that nobody has given a meaning yet, or one of the engine's own nodes.
    Private = 3,
    /// The first frame of a folio.
    Folio = 4,
    /// Another frame of a folio.
    Tail = 5,
    /// A page table.
    Table = 6,
}

const KIND: u32 = 0xf;
const ORDER_SHIFT: u32 = 4;
const ORDER: u32 = 0x1f << ORDER_SHIFT;
const LEVEL_SHIFT: u32 = 9;
const LEVEL: u32 = 0x7 << LEVEL_SHIFT;

/// Flags in a descriptor's state.
pub mod flag {
    /// A free block whose every byte is known to be zero.
    pub const ZERO: u32 = 1 << 16;
    /// A table that was unhooked.
    pub const DEAD: u32 = 1 << 17;
    /// A folio on its shard's deferred-split list, because part of it is not mapped any more.
    pub const PARTIAL: u32 = 1 << 18;
    /// The folio of zeros that read faults map: never counted, never freed.
    pub const ZERO_FOLIO: u32 = 1 << 19;
    /// A folio that is, or was, a memory object's.
    pub const OBJECT: u32 = 1 << 20;
    /// A folio whose contents may go as long as nobody has written to it since that was said.
    pub const LAZY: u32 = 1 << 21;
    /// A folio some of whose frames have, or had, slots that hold the same ([`crate::swap`]).
    pub const SWAP_CACHED: u32 = 1 << 22;
    /// A [`Private`](super::FrameKind::Private) block that is charged to the memcg that its
    /// descriptor names.
    pub const CHARGED: u32 = 1 << 23;
    /// A charged block that holds the host's own structures.
    pub const HOST: u32 = 1 << 24;
    /// A charged frame that begins with the head of a memory object.
    pub const HEAD: u32 = 1 << 25;
}

/// Where the reverse map of an anonymous folio begins: with the spaces of one family (a space, and what was forked from it and from
/// those), and with the VMAs there that have its place behind them ([`Backing`](crate::vma::Backing)). A hint to look there, and no
/// promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) family: Family,
    /// Its place in pages of 4 KiB, as many bits of it as user addresses have.
    pub(crate) page: u64,
}

/// The number of a family, and perhaps of others, because there are fewer numbers than families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Family(pub(crate) u32);

impl Owner {
    /// So many bits of a place are kept, in pages of 4 KiB.
    pub(crate) const PAGE_BITS: u32 = 44;

    #[inline]
    pub(crate) fn pack(self) -> u64 {
        (self.family.0 as u64) << Self::PAGE_BITS | self.page & ((1 << Self::PAGE_BITS) - 1)
    }

    #[inline]
    pub(crate) fn unpack(raw: u64) -> Owner {
        Owner { family: Family((raw >> Self::PAGE_BITS) as u32), page: raw & ((1 << Self::PAGE_BITS) - 1) }
    }
}

impl Family {
    /// That of a space and its descendants.
    pub(crate) fn of(space: u64) -> Family {
        Family((space & ((1 << (64 - Owner::PAGE_BITS)) - 1)) as u32)
    }
}

/// References and mappings of a folio, read at one instant.
///
/// Every mapped page of a folio holds one reference, so `refs >= maps` at every instant (INV-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// References.
    pub refs: u32,
    /// Page-table entries that map a page of the folio, in units of frames.
    pub maps: u32,
}

impl Counts {
    /// The number of references from which on a program's call gets no more. A quarter of what
    /// there is room for: neither count comes near its last value, however many CPUs add to it at
    /// once.
    pub const MOST: u32 = 1 << 30;

    #[inline]
    const fn pack(self) -> u64 {
        (self.refs as u64) << 32 | self.maps as u64
    }

    /// Whether there is a reference without a mapping. (Or was just now: while pages are unmapped,
    /// their mappings may go first.)
    #[inline]
    pub(crate) const fn is_held(self) -> bool {
        self.refs > self.maps
    }

    #[inline]
    const fn unpack(raw: u64) -> Counts {
        Counts { refs: (raw >> 32) as u32, maps: raw as u32 }
    }
}

/// One frame's descriptor; see the module's text.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub struct Frame {
    counts: AtomicU64,
    state: AtomicU32,
    lruvec: AtomicU32,
    link: [AtomicU32; 2],
    data: AtomicU64,
}

const _: () = assert!(size_of::<Frame>() == 32);

/// What a descriptor said of its frame at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameState(u32);

impl FrameState {
    /// What it is.
    #[inline]
    pub fn kind(self) -> FrameKind {
        match self.0 & KIND {
            1 => FrameKind::Free,
            2 => FrameKind::Cached,
            3 => FrameKind::Private,
            4 => FrameKind::Folio,
            5 => FrameKind::Tail,
            6 => FrameKind::Table,
            _ => FrameKind::Reserved,
        }
    }

    /// log2 of the frames of the block or folio that it belongs to.
    #[inline]
    pub fn order(self) -> u8 {
        ((self.0 & ORDER) >> ORDER_SHIFT) as u8
    }

    /// The level of a table.
    #[inline]
    pub fn level(self) -> u8 {
        ((self.0 & LEVEL) >> LEVEL_SHIFT) as u8
    }

    /// Whether a [`flag`] is set.
    #[inline]
    pub fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }
}

impl Frame {
    /// What it is now.
    #[inline]
    pub fn state(&self) -> FrameState {
        FrameState(self.state.load(Ordering::Relaxed))
    }

    /// What it is now, for who asks nothing else.
    #[inline]
    pub fn kind(&self) -> FrameKind {
        self.state().kind()
    }

    /// log2 of the frames of its block or folio now, for who asks nothing else.
    #[inline]
    pub fn order(&self) -> u8 {
        self.state().order()
    }

    /// Whether a [`flag`] is set now, for who asks nothing else.
    #[inline]
    pub fn has(&self, flag: u32) -> bool {
        self.state().has(flag)
    }

    /// Kind and order in one read, for the allocator's merging.
    #[inline]
    pub(crate) fn is(&self, kind: FrameKind, order: u8) -> bool {
        self.state.load(Ordering::Relaxed) & (KIND | ORDER) == kind as u32 | (order as u32) << ORDER_SHIFT
    }

    /// Become something else. For whoever owns the frame alone.
    #[inline]
    pub(crate) fn become_kind(&self, kind: FrameKind, order: u8, flags: u32) {
        self.state.store(kind as u32 | (order as u32) << ORDER_SHIFT | flags, Ordering::Relaxed);
    }

    /// Become a table of this level. For whoever owns the frame alone.
    #[inline]
    pub(crate) fn become_table(&self, level: u8, order: u8) {
        let state = FrameKind::Table as u32 | (level as u32) << LEVEL_SHIFT | (order as u32) << ORDER_SHIFT;
        self.state.store(state, Ordering::Relaxed);
        self.link[0].store(0, Ordering::Relaxed);
        self.link[1].store(0, Ordering::Relaxed);
    }

    /// Returns the lock of a table. Its word is nothing else while the frame is a table, and is
    /// unlocked as [`Frame::become_table`] leaves it.
    #[inline]
    pub(crate) fn table_lock(&self) -> &RawSpin {
        const { assert!(size_of::<RawSpin>() == size_of::<AtomicU32>()) };
        const { assert!(align_of::<RawSpin>() <= align_of::<AtomicU32>()) };
        // SAFETY: a lock is two atomics that fill this word, as asserted, and every value of them
        // is one. The word is accessed as a whole only before the table is published, and after
        // every walk and every ticket that may know of it has ended: never at the same time.
        unsafe { &*core::ptr::from_ref(&self.link[0]).cast::<RawSpin>() }
    }

    /// Set a [`flag`]; whether it was set before.
    #[inline]
    pub(crate) fn set_flag(&self, flag: u32) -> bool {
        self.state.fetch_or(flag, Ordering::Relaxed) & flag != 0
    }

    /// Clear a [`flag`]; whether it was set before.
    #[inline]
    pub(crate) fn clear_flag(&self, flag: u32) -> bool {
        self.state.fetch_and(!flag, Ordering::Relaxed) & flag != 0
    }

    /// Add references and mappings to a folio unless nobody refers to it any more. Whoever knows of it by a list keeps it from being
    /// freed meanwhile, by the list's lock.
    #[inline]
    pub(crate) fn try_get(&self, refs: u32, maps: u32) -> bool {
        let more = Counts { refs, maps }.pack();
        let add = |raw| (Counts::unpack(raw).refs > 0).then_some(raw + more);
        self.counts.fetch_update(Ordering::Acquire, Ordering::Relaxed, add).is_ok()
    }

    /// References and mappings of a folio.
    #[inline]
    pub fn counts(&self) -> Counts {
        Counts::unpack(self.counts.load(Ordering::Acquire))
    }

    /// For whoever owns the folio alone: start counting.
    #[inline]
    pub(crate) fn set_counts(&self, counts: Counts) {
        self.counts.store(counts.pack(), Ordering::Release);
    }

    /// Drop `refs` references and `maps` mappings at once: both are in one word, so no instant exists at which the
    /// references are fewer than the mappings. Answers what is left; at no references the folio is the caller's alone.
    ///
    /// Release, so that what the caller did with the folio happens before its reuse; acquire, so that what all others did
    /// happens before the caller frees it.
    #[inline]
    pub(crate) fn put(&self, refs: u32, maps: u32) -> Counts {
        let delta = Counts { refs, maps }.pack();
        let before = Counts::unpack(self.counts.fetch_sub(delta, Ordering::AcqRel));
        debug_assert!(before.refs >= refs && before.maps >= maps, "{before:?} less {refs} references, {maps} mappings");
        Counts { refs: before.refs - refs, maps: before.maps - maps }
    }

    /// Add `refs` references and `maps` mappings at once. The caller has a reference, or keeps whoever has one from dropping it.
    #[inline]
    pub(crate) fn get(&self, refs: u32, maps: u32) -> Counts {
        let before = Counts::unpack(self.counts.fetch_add(Counts { refs, maps }.pack(), Ordering::Relaxed));
        debug_assert!(before.refs > 0, "a reference to a folio that nobody has");
        before
    }

    /// Adds as many references and mappings as a program's call asks for, under the same condition;
    /// returns `false`, with nothing changed, if there are [`Counts::MOST`] references already.
    ///
    /// References that the engine takes for itself ([`Frame::get`]) are a few for each CPU: what
    /// lies between that number and the last one is room for them, and for all CPUs that find out
    /// here at the same time that there are too many.
    #[inline]
    #[must_use]
    pub(crate) fn share(&self, refs: u32, maps: u32) -> bool {
        let before = Counts::unpack(self.counts.fetch_add(Counts { refs, maps }.pack(), Ordering::Relaxed));
        debug_assert!(before.refs > 0, "a reference to a folio that nobody has");
        before.refs < Counts::MOST || self.unshare(refs, maps)
    }

    #[cold]
    fn unshare(&self, refs: u32, maps: u32) -> bool {
        self.counts.fetch_sub(Counts { refs, maps }.pack(), Ordering::Relaxed);
        false
    }

    /// memcg, shard and list; see [`crate::memcg`].
    #[inline]
    pub(crate) fn lruvec(&self) -> u32 {
        self.lruvec.load(Ordering::Relaxed)
    }

    /// Set memcg, shard and list.
    #[inline]
    pub(crate) fn set_lruvec(&self, lruvec: u32) {
        self.lruvec.store(lruvec, Ordering::Relaxed);
    }

    /// Owner of a folio, parent of a table.
    #[inline]
    pub(crate) fn data(&self) -> u64 {
        self.data.load(Ordering::Relaxed)
    }

    /// Set owner or parent.
    #[inline]
    pub(crate) fn set_data(&self, data: u64) {
        self.data.store(data, Ordering::Relaxed);
    }

    /// Who has isolated a folio.
    #[inline]
    pub(crate) fn isolated_by(&self) -> u64 {
        let [low, high] = [0, 1].map(|i| u64::from(self.link[i].load(Ordering::Relaxed)));
        high << 32 | low
    }

    /// Set that, for whoever has just isolated it.
    #[inline]
    pub(crate) fn set_isolated_by(&self, by: u64) {
        self.link[0].store(by as u32, Ordering::Relaxed);
        self.link[1].store((by >> 32) as u32, Ordering::Relaxed);
    }

    /// Previous (0) and next (1) on a list.
    #[inline]
    pub(crate) fn link(&self, i: usize) -> &AtomicU32 {
        &self.link[i]
    }
}
