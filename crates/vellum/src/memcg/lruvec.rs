//! The per-CPU lruvec: a memcg's LRU lists and its stock of charged pages for one CPU, behind one
//! lock.
//!
//! Linux has one lruvec for each memcg and node, and a memcg stock for each CPU. Here both are one
//! structure: a memcg has one for each CPU, which has memory of that CPU's node only. On a machine
//! with several nodes it also has one for each node, which has the memory that CPUs of other nodes
//! allocated from that node. So a fault takes one lock of its own CPU to charge a folio and to put
//! it on a list.
//!
//! A folio's descriptor names its lruvec and its list (INV-9), packed into one word:
//! [`LruvecId::pack`].

use core::sync::atomic::AtomicBool;

use crate::addr::Pfn;
use crate::frame::{Cut, Frame, FrameList, Frames, ListEnd, flag};
use crate::memcg::MemcgId;
use crate::platform::{MAX_CPUS, MAX_NODES, Platform};
use crate::sync::{SpinGuard, SpinLock};

/// An LRU list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LruList {
    /// Anonymous folios, the youngest first.
    Anon = 0,
    /// Folios that may not be reclaimed, because a locked VMA (`VM_LOCKED`) maps them.
    Unevictable = 1,
    /// Folios of page-cache objects without a store: shared memory, and files that are in memory
    /// alone. They have a list of their own because reclaim finds their
    /// mappings through the object and not through the anonymous rmap, and because a memcg's
    /// statistics count them separately.
    Shmem = 2,
    /// Lazyfree folios: anonymous folios that reclaim may free without writing them to swap
    /// (`MADV_FREE`).
    Lazyfree = 3,
    /// Folios of page-cache objects with a store, files of the host's storage, which were not used
    /// since their first use (Linux: the inactive list).
    File = 4,
    /// Folios of files that were used again, or were read again soon after reclaim dropped them
    /// (Linux: the active list).
    ActiveFile = 5,
}

impl LruList {
    /// The number of lists.
    pub const COUNT: usize = 6;
    /// All lists, in the order of their numbers.
    pub(crate) const ALL: [LruList; LruList::COUNT] =
        [LruList::Anon, LruList::Unevictable, LruList::Shmem, LruList::Lazyfree, LruList::File, LruList::ActiveFile];

    /// Returns the list on which a folio belongs while no locked VMA maps it.
    pub(crate) fn evictable(head: &Frame) -> LruList {
        match head.state() {
            state if state.has(flag::ACTIVE) => LruList::ActiveFile,
            state if state.has(flag::FILE) => LruList::File,
            state if state.has(flag::OBJECT) => LruList::Shmem,
            state if state.has(flag::LAZYFREE) => LruList::Lazyfree,
            _ => LruList::Anon,
        }
    }

    /// Returns the list that a folio is on, from the descriptor of its head. `None`: the folio is
    /// isolated, or the frame is not a folio's. The answer is stable only under the lock of the
    /// folio's lruvec.
    pub fn of(head: &Frame) -> Option<LruList> {
        LruList::unpack(head.lruvec())
    }

    /// Returns the list in a word that [`LruvecId::pack`] made.
    #[inline]
    pub(super) fn unpack(packed: u32) -> Option<LruList> {
        match packed >> 28 {
            1 => Some(LruList::Anon),
            2 => Some(LruList::Unevictable),
            3 => Some(LruList::Shmem),
            4 => Some(LruList::Lazyfree),
            5 => Some(LruList::File),
            6 => Some(LruList::ActiveFile),
            _ => None,
        }
    }
}

/// The identifier of a per-CPU lruvec: a memcg, and an index among its lruvecs. Every folio and
/// every page table is charged to one (INV-9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LruvecId {
    /// The memcg that is charged.
    pub(crate) memcg: MemcgId,
    /// The index of the lruvec within the memcg: a CPU's number, or, for memory that CPUs of other
    /// nodes took from a node, the number of CPUs plus the node's number
    /// ([`Frames::lruvecs_on`]).
    pub(crate) index: usize,
}

impl LruvecId {
    /// The bits of a packed word ([`LruvecId::pack`]) that name the lruvec. The other bits name the
    /// list.
    pub(super) const MASK: u32 = 0x0fff_ffff;

    /// Returns whether a packed word ([`LruvecId::pack`]) names a list: whether the folio with this
    /// word in its descriptor is on an LRU list.
    #[inline]
    pub(crate) fn is_listed(packed: u32) -> bool {
        packed & !LruvecId::MASK != 0
    }

    /// Packs the lruvec and a list into the word that a frame's descriptor has
    /// ([`Frame::set_lruvec`]): bits 0-15 the memcg, 16-27 the index, 28-31 the list plus one, or 0
    /// for none.
    #[inline]
    pub(crate) fn pack(self, list: Option<LruList>) -> u32 {
        let list = list.map_or(0, |l| l as u32 + 1);
        self.memcg.0 as u32 | (self.index as u32) << 16 | list << 28
    }

    /// Returns the lruvec in a word that [`LruvecId::pack`] made.
    #[inline]
    pub(crate) fn unpack(packed: u32) -> LruvecId {
        LruvecId { memcg: MemcgId(packed as u16), index: (packed >> 16 & 0xfff) as usize }
    }
}

const _: () = assert!(MAX_CPUS + MAX_NODES <= 1 << 12);

/// The size of an LRU list, as its lruvec counts it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListSize {
    /// The number of folios on the list.
    pub(crate) folios: u64,
    /// The number of pages (of 4 KiB) of these folios.
    pub(crate) pages: u64,
}

/// The most that [`Lruvec::isolate`] takes off a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IsolateLimit {
    /// The maximum number of folios.
    pub(crate) folios: usize,
    /// The number of pages (of 4 KiB) at which isolation stops. The last folio may exceed it.
    pub(crate) pages: u64,
}

/// A per-CPU lruvec with its lock, on cache lines of its own, so that CPUs do not share any.
#[repr(C, align(128))]
pub(crate) struct PerCpuLruvec {
    inner: SpinLock<Lruvec>,
    /// True from the first charge to this lruvec on. Statistics skip lruvecs that were never used.
    pub(super) used: AtomicBool,
}

impl PerCpuLruvec {
    /// Makes an unused lruvec, with empty lists and no stock.
    pub(super) fn new() -> Self {
        PerCpuLruvec { inner: SpinLock::new(Lruvec::default()), used: AtomicBool::new(false) }
    }

    /// Locks the lruvec. The caller may hold page-table locks, and holds neither another lruvec's
    /// lock nor one of the frame allocator's. Not for interrupt handlers.
    #[inline(always)]
    pub(crate) fn lock<'s, P: Platform>(&'s self, platform: &'s P) -> SpinGuard<'s, Lruvec, P> {
        self.inner.lock(platform)
    }
}

/// The part of a per-CPU lruvec that its lock protects.
#[derive(Debug, Default)]
pub(crate) struct Lruvec {
    /// Pages that are charged to the memcg and that no frame uses yet (Linux: the memcg stock).
    pub(crate) stock: u32,
    /// The largest stock that the lruvec may keep when its lock is released. It is 0 while the
    /// lruvec is not marked as stocked ([`super::charge`]): then the CPU that releases the lock
    /// takes the whole stock out and uncharges it.
    pub(super) stock_limit: u32,
    /// The LRU lists. Folios are linked through the descriptors of their heads.
    lru: [FrameList; LruList::COUNT],
    /// The pages (of 4 KiB) of the folios on each list. They fit, as a machine has fewer than 2^32
    /// frames.
    pages: [u32; LruList::COUNT],
    /// The deferred-split queue: partially mapped folios, linked through the descriptors of their
    /// first tails.
    pub(crate) deferred: FrameList,
}

impl Lruvec {
    /// Returns the pages (of 4 KiB) on each list.
    pub(crate) fn pages(&self) -> [u64; LruList::COUNT] {
        self.pages.map(u64::from)
    }

    /// Returns the counted size of a list, and an iterator over the folios on it, the oldest first.
    /// The caller holds the lruvec's lock until it has dropped the iterator.
    pub(super) fn listed<'f, 'p, P: Platform>(
        &self,
        frames: &'f Frames<'p, P>,
        list: LruList,
    ) -> (ListSize, impl Iterator<Item = (Pfn, &'p Frame)> + use<'f, 'p, P>) {
        let at = list as usize;
        let counted = ListSize { folios: self.lru[at].len().into(), pages: self.pages[at].into() };
        (counted, self.lru[at].iter_rev(frames))
    }

    /// Adds a folio, which is on no list, to the young end of a list. The caller makes the folio's
    /// descriptor name the list ([`LruvecId::pack`]).
    #[inline]
    pub(crate) fn add<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        (pfn, frame): (Pfn, &Frame),
        order: u8,
        list: LruList,
    ) {
        self.lru[list as usize].push(frames, pfn, frame);
        self.pages[list as usize] += 1 << order;
    }

    /// Removes a folio from its list, if it is on one. The folio stays charged to the memcg.
    /// `packed` is the word of the folio's descriptor that names its lruvec and list
    /// ([`LruvecId::pack`]), as the caller read it under the lruvec's lock. Returns the list.
    #[inline(always)]
    pub(super) fn remove<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        (pfn, frame): (Pfn, &Frame),
        packed: u32,
    ) -> Option<LruList> {
        let list = LruList::unpack(packed)?;
        self.lru[list as usize].cut(frames, &Cut::one(pfn, frame));
        self.pages[list as usize] -= 1 << frame.order();
        frame.set_lruvec(packed & LruvecId::MASK);
        Some(list)
    }

    /// Moves the folios of `cut`, which are neighbours on the list `from`, to an end of the list
    /// `to`. They have `pages` pages, and their descriptors name the list `to`.
    pub(super) fn relist_all<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        cut: &Cut,
        [from, to]: [LruList; 2],
        end: ListEnd,
        pages: u32,
    ) {
        self.lru[from as usize].cut(frames, cut);
        self.lru[to as usize].insert(frames, cut, end);
        self.pages[from as usize] -= pages;
        self.pages[to as usize] += pages;
    }

    /// Moves a folio, which is charged to this lruvec, from its list to the young end of `list`;
    /// the folio may also be on no list.
    pub(crate) fn relist<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, list: LruList) {
        let frame = frames.frame(pfn);
        let packed = frame.lruvec();
        self.remove(frames, (pfn, frame), packed);
        frame.set_lruvec(LruvecId::unpack(packed).pack(Some(list)));
        self.add(frames, (pfn, frame), frame.order(), list);
    }

    /// Removes the folios of `cut`, which are neighbours on `list` and have `pages` frames, from
    /// that list. Their descriptors do not name it any more.
    #[inline]
    pub(super) fn remove_all<P: Platform>(&mut self, frames: &Frames<'_, P>, cut: &Cut, list: LruList, pages: u32) {
        self.lru[list as usize].cut(frames, cut);
        self.pages[list as usize] -= pages;
    }

    /// Isolates folios from the old end of a list, within `limit` (Linux: `isolate_lru_folios`).
    /// Takes a reference to each, and passes its head and its number of pages to `take`; stops when
    /// `take` returns false, after that folio. Skips folios without references: the CPU that
    /// dropped the last reference removes them from the list. Returns the number of pages isolated.
    pub(crate) fn isolate<'p, P: Platform>(
        &mut self,
        frames: &Frames<'p, P>,
        list: LruList,
        limit: IsolateLimit,
        mut take: impl FnMut(Pfn, &'p Frame, u32) -> bool,
    ) -> u64 {
        let (mut folios, mut sum) = (limit.folios, 0);
        let mut cut = Cut::default();
        for (pfn, frame) in self.lru[list as usize].iter_rev(frames) {
            if folios == 0 || sum >= limit.pages {
                break;
            }
            if frames.try_get(pfn, frame, 1, 0) {
                if !cut.extend(pfn, frame) {
                    self.lru[list as usize].cut(frames, &cut);
                    cut = Cut::one(pfn, frame);
                }
                frame.set_lruvec(frame.lruvec() & LruvecId::MASK);
                let pages = 1 << frame.order();
                sum += u64::from(pages);
                folios -= 1;
                if !take(pfn, frame, pages) {
                    break;
                }
            }
        }
        self.lru[list as usize].cut(frames, &cut);
        self.pages[list as usize] -= sum as u32;
        sum
    }

    /// Uncharges folios that are about to be freed: removes the folios of `cut`, which are
    /// neighbours on `list`, from that list (`None`: the folios are on no list), and adds their
    /// `pages` to the stock.
    #[inline]
    pub(crate) fn uncharge<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        cut: &Cut,
        list: Option<LruList>,
        pages: u32,
    ) {
        if let Some(list) = list {
            self.remove_all(frames, cut, list, pages);
        }
        self.stock += pages;
    }
}
