//! The descriptor of a frame: 32 bytes, two to a cache line (Linux: `struct page`).
//!
//! The meaning of the fields depends on the kind of the frame:
//!
//! | field | folio head | page-table page | head of a free block | tail of a folio |
//! |---|---|---|---|---|
//! | `counts` | references, mappings | | | |
//! | `state` | kind, order, flags | kind, level, flags | kind, order, the flag [`flag::ZERO`] | kind, order |
//! | `lruvec` | memcg, per-CPU lruvec, LRU list | memcg, per-CPU lruvec | | |
//! | `link` | LRU links, or the isolating reclaim batch | lock, live count | free-list links | deferred-split links |
//! | `data` | the rmap key, or the page-cache object and index | parent table, and index of the entry in it | | |
//!
//! The live count of a page table is the number of its entries that are not empty. Of a folio's
//! tails, the first has the links of the deferred-split queue.
//!
//! Except for these links, a tail holds only what is needed to find its head. So unmapping a folio
//! touches one descriptor, whatever the folio's size.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::addr::Pfn;
use crate::sync::RawSpin;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Not managed by the allocator: a hole, or the engine's boot-time structures. A zeroed
    /// descriptor reads as this.
    Reserved = 0,
    /// The first frame of a free block of the buddy allocator (Linux: `PageBuddy`), of 2 MiB or
    /// more. [`Frames::block`](super::Frames::block) reports smaller ones by this, too; their
    /// descriptors are left over from an earlier use.
    Free = 1,
    /// The first frame of a free block in a per-CPU cache.
    Cached = 2,
    /// The first frame of an allocated block without a more specific kind: one that is not yet
    /// turned into a folio or page table, or one with structures of the engine or the host.
    Private = 3,
    /// The first frame of a folio, its head.
    Folio = 4,
    /// Any other frame of a folio.
    Tail = 5,
    /// A page-table page.
    Table = 6,
}

const KIND_MASK: u32 = 0xf;
const ORDER_SHIFT: u32 = 4;
const ORDER_MASK: u32 = 0x1f << ORDER_SHIFT;
const LEVEL_SHIFT: u32 = 9;
const LEVEL_MASK: u32 = 0x7 << LEVEL_SHIFT;

/// Flags in a descriptor's state word.
pub mod flag {
    /// A free block every byte of which is zero (INV-10).
    pub const ZERO: u32 = 1 << 16;
    /// A page table that was unhooked: the page table above no longer points to it. A CPU that
    /// reaches it in a walk starts the walk again.
    pub const UNHOOKED: u32 = 1 << 17;
    /// A partially mapped folio, which is on the deferred-split list of its per-CPU lruvec.
    pub const PARTIALLY_MAPPED: u32 = 1 << 18;
    /// The zero folio, which read faults map. It has no counts and is never freed (Linux: the huge
    /// zero folio).
    pub const ZERO_FOLIO: u32 = 1 << 19;
    /// A folio that belongs to a page-cache object, or belonged to one before it was removed from
    /// it.
    pub const OBJECT: u32 = 1 << 20;
    /// A lazyfree folio (`MADV_FREE`): reclaim may free it without writing it out, as long as it is
    /// clean.
    pub const LAZYFREE: u32 = 1 << 21;
    /// A folio at least one page of which is, or was, in the swap cache ([`crate::swap`]).
    pub const SWAP_CACHED: u32 = 1 << 22;
    /// A [`Private`](super::FrameKind::Private) block that is charged to the memcg in its
    /// descriptor.
    pub const CHARGED: u32 = 1 << 23;
    /// A charged block that holds structures of the host.
    pub const HOST: u32 = 1 << 24;
    /// A charged frame that begins with the head (size, lock and counters) of a page-cache object.
    pub const OBJECT_HEAD: u32 = 1 << 25;
    /// A folio with [`OBJECT`] whose object has a store: reclaim drops it if it is clean, as the
    /// host's storage has its contents.
    pub const FILE: u32 = 1 << 26;
    /// A folio with [`FILE`] that belongs to a working set: it was used again after its first use.
    pub const ACTIVE: u32 = 1 << 27;
    /// A folio with [`FILE`] that was used once since it was read, or, if it is [`ACTIVE`], since
    /// reclaim last scanned it.
    pub const REFERENCED: u32 = 1 << 28;
    /// Two bits of a folio with [`OBJECT`], which `frame::icache` packs: they tell whether
    /// instruction fetches are coherent with the folio.
    pub const ICACHE: u32 = 3 << 29;
    /// A folio from the pool of huge pages ([`crate::machine::HugePool`]): it is charged to no
    /// memcg, is on no LRU list, and goes back to the pool with its last reference.
    pub const HUGETLB: u32 = 1 << 31;
}

/// The key of the anonymous reverse map (rmap): the fork family whose spaces may map an anonymous
/// folio, and the folio's rmap index in that family (the page offset at which the folio was first
/// mapped; Linux: `folio->mapping` and `folio->index`).
///
/// Reverse-map walks visit the VMAs whose [`Backing`](crate::vma::Backing) covers the rmap index,
/// in every space of the family. The key is a hint: a VMA found by it need not map the folio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RmapKey {
    /// The fork family: a space and all its descendants.
    pub(crate) family: Family,
    /// The folio's rmap index, in 4 KiB pages, truncated to [`RmapKey::RMAP_INDEX_BITS`].
    pub(crate) rmap_index: u64,
}

/// The number of a fork family (a space without a parent, and all its descendants): the low 20 bits
/// of the number of that first space. If two families have the same number, reverse-map walks for
/// one family visit the spaces of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Family(pub(crate) u32);

impl RmapKey {
    /// The number of low bits that a key keeps of an rmap index, which counts 4 KiB pages.
    pub(crate) const RMAP_INDEX_BITS: u32 = 44;

    /// Packs the key into the word that a folio's descriptor keeps.
    #[inline]
    pub(crate) fn pack(self) -> u64 {
        (self.family.0 as u64) << Self::RMAP_INDEX_BITS | self.rmap_index & ((1 << Self::RMAP_INDEX_BITS) - 1)
    }

    /// Unpacks a word that [`RmapKey::pack`] made.
    #[inline]
    pub(crate) fn unpack(raw: u64) -> RmapKey {
        RmapKey {
            family: Family((raw >> Self::RMAP_INDEX_BITS) as u32),
            rmap_index: raw & ((1 << Self::RMAP_INDEX_BITS) - 1),
        }
    }
}

impl Family {
    /// Returns the fork family of a space without a parent, by the space's number.
    pub(crate) fn of(space: u64) -> Family {
        Family((space & ((1 << (64 - RmapKey::RMAP_INDEX_BITS)) - 1)) as u32)
    }
}

/// References and mappings of a folio, read in one atomic load.
///
/// Every mapped page of a folio holds one reference, so `refs >= maps` at every instant (INV-2).
#[derive(Clone, Copy, Debug, Eq)]
pub struct Counts {
    /// References (Linux: refcount).
    pub refs: u32,
    /// Mappings (Linux: mapcount): the number of frames of the folio that each PTE maps, summed
    /// over all PTEs.
    pub maps: u32,
}

impl Counts {
    /// The counts of a folio that is about to be freed.
    pub(crate) const NONE: Counts = Counts { refs: 0, maps: 0 };

    /// The refcount of a folio at which a program's system call gets no further reference
    /// (`Frame::get_checked`). It is a quarter of a count's range, so neither count overflows,
    /// however many CPUs add to it at the same time.
    pub const MAX_REFS: u32 = 1 << 30;

    /// Packs both counts into one word, references in the upper half.
    #[inline]
    const fn pack(self) -> u64 {
        (self.refs as u64) << 32 | self.maps as u64
    }

    /// Returns whether there are references beyond those of mappings, such as a pin. The result may
    /// be outdated. It may also be true for a moment without such a reference, while an unmap has
    /// dropped the mappings and not yet their references.
    #[inline]
    pub(crate) const fn has_unmapped_refs(self) -> bool {
        self.refs > self.maps
    }

    /// Unpacks a word that [`Counts::pack`] made.
    #[inline]
    const fn unpack(raw: u64) -> Counts {
        Counts { refs: (raw >> 32) as u32, maps: raw as u32 }
    }
}

/// Compares both counts at once.
impl PartialEq for Counts {
    #[inline]
    fn eq(&self, other: &Counts) -> bool {
        self.pack() == other.pack()
    }
}

/// The descriptor of one frame; the module's documentation describes the fields.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub struct Frame {
    /// The packed [`Counts`].
    counts: AtomicU64,
    /// The packed [`FrameState`].
    state: AtomicU32,
    /// The packed memcg, per-CPU lruvec and LRU list.
    lruvec: AtomicU32,
    /// The previous and the next frame of a list; a page table's lock and live count (the number of
    /// its entries that are not empty).
    link: [AtomicU32; 2],
    /// The word that identifies what maps or contains the frame: see `Frame::data`.
    data: AtomicU64,
}

const _: () = assert!(size_of::<Frame>() == 32);

/// The state word of a descriptor, read in one atomic load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameState(u32);

impl FrameState {
    /// Returns the state of the first frame of a free block.
    pub(super) fn free(order: u8, zero: bool) -> FrameState {
        let flags = if zero { flag::ZERO } else { 0 };
        FrameState(FrameKind::Free as u32 | (order as u32) << ORDER_SHIFT | flags)
    }

    /// Returns the kind of the frame.
    #[inline]
    pub fn kind(self) -> FrameKind {
        match self.0 & KIND_MASK {
            1 => FrameKind::Free,
            2 => FrameKind::Cached,
            3 => FrameKind::Private,
            4 => FrameKind::Folio,
            5 => FrameKind::Tail,
            6 => FrameKind::Table,
            _ => FrameKind::Reserved,
        }
    }

    /// Returns the order of the block or folio to which the frame belongs.
    #[inline]
    pub fn order(self) -> u8 {
        ((self.0 & ORDER_MASK) >> ORDER_SHIFT) as u8
    }

    /// Returns the level of a page table; 1 is the last level.
    #[inline]
    pub fn level(self) -> u8 {
        ((self.0 & LEVEL_MASK) >> LEVEL_SHIFT) as u8
    }

    /// Returns whether any of the given [`flag`] bits is set.
    #[inline]
    pub fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    /// Returns whether the frame is the head of a folio that only PTEs refer to: it is not a
    /// page-cache object's, not in the swap cache, not partially mapped, not the zero folio and not
    /// from the pool of huge pages.
    #[inline]
    pub(crate) fn is_private(self) -> bool {
        let others = flag::SWAP_CACHED | flag::PARTIALLY_MAPPED | flag::ZERO_FOLIO | flag::HUGETLB;
        let mask = KIND_MASK | flag::OBJECT | others;
        self.0 & mask == FrameKind::Folio as u32
    }
}

impl Frame {
    /// Reads the state word once. Use this where several fields must be consistent.
    #[inline]
    pub fn state(&self) -> FrameState {
        FrameState(self.state.load(Ordering::Relaxed))
    }

    /// Reads the kind.
    #[inline]
    pub fn kind(&self) -> FrameKind {
        self.state().kind()
    }

    /// Reads the order of the frame's block or folio.
    #[inline]
    pub fn order(&self) -> u8 {
        self.state().order()
    }

    /// Reads whether any of the given [`flag`] bits is set.
    #[inline]
    pub fn has(&self, flag: u32) -> bool {
        self.state().has(flag)
    }

    /// Returns whether the frame has this kind and this order, by one read. By this the buddy
    /// allocator finds whether a block's buddy is free.
    #[inline]
    pub(crate) fn is(&self, kind: FrameKind, order: u8) -> bool {
        self.state.load(Ordering::Relaxed) & (KIND_MASK | ORDER_MASK) == kind as u32 | (order as u32) << ORDER_SHIFT
    }

    /// Sets kind, order and flags with a plain store. The caller owns the frame alone.
    #[inline]
    pub(crate) fn set_kind(&self, kind: FrameKind, order: u8, flags: u32) {
        self.state.store(kind as u32 | (order as u32) << ORDER_SHIFT | flags, Ordering::Relaxed);
    }

    /// Turns the frame into a page table of this level, with its lock unlocked and no entry counted
    /// as live (not empty). The caller owns the frame alone.
    #[inline]
    pub(crate) fn set_table(&self, level: u8, order: u8) {
        let state = FrameKind::Table as u32 | (level as u32) << LEVEL_SHIFT | (order as u32) << ORDER_SHIFT;
        self.state.store(state, Ordering::Relaxed);
        self.link[0].store(0, Ordering::Relaxed);
        self.link[1].store(0, Ordering::Relaxed);
    }

    /// Returns the lock of a page table (Linux: `ptlock`). Its word has no other use while the
    /// frame is a page table, and is unlocked as [`Frame::set_table`] leaves it.
    #[inline]
    pub(crate) fn table_lock(&self) -> &RawSpin {
        const { assert!(size_of::<RawSpin>() == size_of::<AtomicU32>()) };
        const { assert!(align_of::<RawSpin>() <= align_of::<AtomicU32>()) };
        // SAFETY: a lock is two atomics that fill this word, as asserted, and every bit pattern of
        // them is valid. The word is accessed as a whole only before the page table is published
        // and after every walk and every lock ticket that may know of it has ended (INV-1), so
        // never at the same time as the lock.
        unsafe { &*core::ptr::from_ref(&self.link[0]).cast::<RawSpin>() }
    }

    /// Replaces the state word by what `next` returns, in one atomic step, unless that is `None`.
    /// Returns the word before as `Ok` if it was replaced, else as `Err`.
    pub(super) fn change_state(&self, next: impl FnMut(u32) -> Option<u32>) -> Result<u32, u32> {
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
    }

    /// Sets a [`flag`]. Returns whether it was set before.
    #[inline]
    pub(crate) fn set_flag(&self, flag: u32) -> bool {
        self.state.fetch_or(flag, Ordering::Relaxed) & flag != 0
    }

    /// Clears a [`flag`]. Returns whether it was set before.
    #[inline]
    pub(crate) fn clear_flag(&self, flag: u32) -> bool {
        self.state.fetch_and(!flag, Ordering::Relaxed) & flag != 0
    }

    /// Takes references and mappings unless the folio's refcount is zero (Linux: `folio_try_get`).
    /// Returns whether it took them. The caller found the folio on a list, and holds the list's
    /// lock, which keeps the descriptor from being reused during the call.
    #[inline]
    pub(crate) fn try_get(&self, refs: u32, maps: u32) -> bool {
        let more = Counts { refs, maps }.pack();
        let add = |raw| (Counts::unpack(raw).refs > 0).then_some(raw + more);
        self.counts.fetch_update(Ordering::Acquire, Ordering::Relaxed, add).is_ok()
    }

    /// Returns the previous and the next frame of the frame's list. They may be outdated.
    #[inline]
    pub(crate) fn neighbours(&self) -> [Pfn; 2] {
        [0, 1].map(|end| Pfn(self.link(end).load(Ordering::Relaxed)))
    }

    /// Returns the references and mappings of a folio.
    #[inline]
    pub fn counts(&self) -> Counts {
        Counts::unpack(self.counts.load(Ordering::Acquire))
    }

    /// Sets both counts with a store, which is no atomic read-modify-write. The caller owns the
    /// folio alone.
    #[inline]
    pub(crate) fn set_counts(&self, counts: Counts) {
        self.counts.store(counts.pack(), Ordering::Release);
    }

    /// Drops `refs` references and `maps` mappings in one atomic step: both counts are in one word,
    /// so references are never fewer than mappings (INV-2). Returns the remaining counts; at zero
    /// references the folio belongs to the caller alone.
    ///
    /// The ordering is release, so that this CPU's accesses to the folio happen before its reuse,
    /// and acquire, so that every other CPU's accesses happen before the caller frees it.
    #[inline]
    pub(crate) fn put(&self, refs: u32, maps: u32) -> Counts {
        let delta = Counts { refs, maps }.pack();
        let before = Counts::unpack(self.counts.fetch_sub(delta, Ordering::AcqRel));
        debug_assert!(
            before.refs >= refs && before.maps >= maps,
            "dropped {refs} references and {maps} mappings of {before:?}"
        );
        Counts { refs: before.refs - refs, maps: before.maps - maps }
    }

    /// Adds `refs` references and `maps` mappings in one atomic step and returns the counts before.
    /// The caller has a reference, or holds a lock that prevents the last one from being dropped.
    #[inline]
    pub(crate) fn get(&self, refs: u32, maps: u32) -> Counts {
        let before = Counts::unpack(self.counts.fetch_add(Counts { refs, maps }.pack(), Ordering::Relaxed));
        debug_assert!(before.refs > 0, "took a reference to a folio whose refcount is zero");
        before
    }

    /// Adds references and mappings for a program's system call. As for [`Frame::get`], the caller
    /// has a reference, or holds a lock that prevents the last one from being dropped. Returns
    /// `false`, with nothing changed, if the folio already had [`Counts::MAX_REFS`] references
    /// (Linux: `try_grab_folio`).
    ///
    /// The refcount rises before the check and drops again if the check fails. So it exceeds the
    /// limit by what all CPUs add at the same time, and by the references that the engine takes for
    /// itself ([`Frame::get`]), a few for each CPU. The count's range above the limit has room for
    /// both.
    #[inline]
    #[must_use]
    pub(crate) fn get_checked(&self, refs: u32, maps: u32) -> bool {
        let before = Counts::unpack(self.counts.fetch_add(Counts { refs, maps }.pack(), Ordering::Relaxed));
        debug_assert!(before.refs > 0, "took a reference to a folio whose refcount is zero");
        before.refs < Counts::MAX_REFS || self.put_back_excess(refs, maps)
    }

    /// Drops the references and mappings that [`Frame::get_checked`] added above the limit, and
    /// returns `false`.
    #[cold]
    fn put_back_excess(&self, refs: u32, maps: u32) -> bool {
        self.counts.fetch_sub(Counts { refs, maps }.pack(), Ordering::Relaxed);
        false
    }

    /// Returns the packed memcg, per-CPU lruvec and LRU list; see [`crate::memcg`].
    #[inline]
    pub(crate) fn lruvec(&self) -> u32 {
        self.lruvec.load(Ordering::Relaxed)
    }

    /// Sets the packed memcg, per-CPU lruvec and LRU list.
    #[inline]
    pub(crate) fn set_lruvec(&self, lruvec: u32) {
        self.lruvec.store(lruvec, Ordering::Relaxed);
    }

    /// Returns the word that identifies what maps or contains the frame. It is the packed
    /// [`RmapKey`] of an anonymous folio; the object of a page-cache folio and the folio's index in
    /// it; or the parent of a page table and the index of the page table's entry in it.
    #[inline]
    pub(crate) fn data(&self) -> u64 {
        self.data.load(Ordering::Relaxed)
    }

    /// Sets the word that [`Frame::data`] returns.
    #[inline]
    pub(crate) fn set_data(&self, data: u64) {
        self.data.store(data, Ordering::Relaxed);
    }

    /// Returns the number of the batch that has isolated the folio: the reclaim call that took it
    /// off its LRU list. While the folio is isolated, the two words of its LRU links hold this
    /// number.
    #[inline]
    pub(crate) fn isolated_by(&self) -> u64 {
        let [low, high] = [0, 1].map(|i| u64::from(self.link[i].load(Ordering::Relaxed)));
        high << 32 | low
    }

    /// Sets the number that [`Frame::isolated_by`] returns. The caller has just taken the folio off
    /// its LRU list.
    #[inline]
    pub(crate) fn set_isolated_by(&self, by: u64) {
        self.link[0].store(by as u32, Ordering::Relaxed);
        self.link[1].store((by >> 32) as u32, Ordering::Relaxed);
    }

    /// Returns the link to the previous (0) or next (1) frame of the list that the frame is on. The
    /// list's lock protects it.
    #[inline]
    pub(crate) fn link(&self, i: usize) -> &AtomicU32 {
        &self.link[i]
    }
}
