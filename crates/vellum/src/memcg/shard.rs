//! One shard's part of a memcg: LRU lists and a stock of charged pages, behind one lock.

use core::sync::atomic::AtomicBool;

use crate::addr::Pfn;
use crate::frame::{Cut, Frame, FrameList, Frames, flag};
use crate::memcg::MemcgId;
use crate::platform::{MAX_CPUS, MAX_NODES, Platform};
use crate::sync::SpinLock;

/// The LRU lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LruList {
    /// Anonymous folios, the youngest first.
    Anon = 0,
    /// Folios that may not be reclaimed, because a VMA that maps them is locked.
    Unevictable = 1,
    /// Folios of memory objects. Apart from anonymous ones, because their mappings are found through the object, and because
    /// memcgs say how many they have.
    Shmem = 2,
    /// Anonymous folios whose contents may go.
    Lazy = 3,
}

impl LruList {
    /// How many lists there are.
    pub const COUNT: usize = 4;
    /// All of them.
    pub(crate) const ALL: [LruList; LruList::COUNT] =
        [LruList::Anon, LruList::Unevictable, LruList::Shmem, LruList::Lazy];

    /// The list on which a folio belongs that no locked VMA maps.
    pub(crate) fn evictable(head: &Frame) -> LruList {
        match head.state() {
            state if state.has(flag::OBJECT) => LruList::Shmem,
            state if state.has(flag::LAZY) => LruList::Lazy,
            _ => LruList::Anon,
        }
    }

    /// The list on which a folio is now, by its head.
    pub fn of(head: &Frame) -> Option<LruList> {
        LruvecId::unpack(head.lruvec()).list
    }
}

/// Where a folio or table is charged and listed: what [`crate::frame::Frame`]'s `lruvec` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LruvecId {
    pub(crate) memcg: MemcgId,
    pub(crate) shard: usize,
    pub(crate) list: Option<LruList>,
}

impl LruvecId {
    /// Which shard: equal for frames that share one.
    pub(crate) const SHARD: u32 = 0x0fff_ffff;

    /// Whether a home names a list.
    #[inline]
    pub(crate) fn is_listed(raw: u32) -> bool {
        raw & !LruvecId::SHARD != 0
    }

    #[inline]
    pub(crate) fn pack(self) -> u32 {
        let list = self.list.map_or(0, |l| l as u32 + 1);
        self.memcg.0 as u32 | (self.shard as u32) << 16 | list << 28
    }

    #[inline]
    pub(crate) fn unpack(raw: u32) -> LruvecId {
        let list = match raw >> 28 {
            1 => Some(LruList::Anon),
            2 => Some(LruList::Unevictable),
            3 => Some(LruList::Shmem),
            4 => Some(LruList::Lazy),
            _ => None,
        };
        LruvecId { memcg: MemcgId(raw as u16), shard: (raw >> 16 & 0xfff) as usize, list }
    }
}

const _: () = assert!(MAX_CPUS + MAX_NODES <= 1 << 12);

/// How much a list has, by its own account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed {
    pub(crate) folios: u64,
    pub(crate) pages: u64,
}

/// A shard, on cache lines of its own; and whether anything was ever charged there.
#[repr(C, align(128))]
pub(crate) struct PerCpuLruvec(pub(crate) SpinLock<Lists>, pub(super) AtomicBool);

/// What a shard's lock protects.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    /// Pages charged to the memcg that no frame uses yet.
    pub(crate) stock: u32,
    /// A larger stock is too large. 0, unless the shard is marked: then the stock is 0 too when its
    /// lock is given back.
    pub(super) keeps: u32,
    lru: [FrameList; LruList::COUNT],
    pages: [u64; LruList::COUNT],
    /// Folios with a part that is not mapped any more, linked through their first tail.
    pub(crate) deferred: FrameList,
}

impl Lists {
    /// Pages on each list.
    pub(crate) fn pages(&self) -> [u64; LruList::COUNT] {
        self.pages
    }

    /// The folios on a list, the oldest first, and how many there should be. The caller holds the
    /// shard's lock meanwhile.
    pub(super) fn listed<'f, 'p, P: Platform>(
        &self,
        frames: &'f Frames<'p, P>,
        list: LruList,
    ) -> (Listed, impl Iterator<Item = (Pfn, &'p Frame)> + use<'f, 'p, P>) {
        let at = list as usize;
        let counted = Listed { folios: self.lru[at].len().into(), pages: self.pages[at] };
        (counted, self.lru[at].backward(frames))
    }

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

    /// Take a folio off its list, without its leaving the memcg.
    #[inline(always)]
    pub(crate) fn unlist<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, lruvec: LruvecId) {
        let frame = frames.frame(pfn);
        if let Some(list) = lruvec.list {
            self.lru[list as usize].remove(frames, pfn);
            self.pages[list as usize] -= 1 << frame.order();
            frame.set_lruvec(LruvecId { list: None, ..lruvec }.pack());
        }
    }

    /// Make a folio that is on a list of this shard the oldest there.
    pub(crate) fn make_oldest<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, list: LruList) {
        self.lru[list as usize].remove(frames, pfn);
        self.lru[list as usize].push_back(frames, pfn, frames.frame(pfn));
    }

    /// Put a folio on a list of this shard, where its home is.
    pub(crate) fn relist<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, list: LruList) {
        let frame = frames.frame(pfn);
        let lruvec = LruvecId::unpack(frame.lruvec());
        self.unlist(frames, pfn, lruvec);
        frame.set_lruvec(LruvecId { list: Some(list), ..lruvec }.pack());
        self.add(frames, (pfn, frame), frame.order(), list);
    }

    /// Take a folio off a list of this shard, if it is on that, with a reference; somebody else has one. Whether it was.
    pub(crate) fn isolate_one<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, list: LruList) -> bool {
        let frame = frames.frame(pfn);
        let lruvec = LruvecId::unpack(frame.lruvec());
        let there = lruvec.list == Some(list);
        if there {
            self.unlist(frames, pfn, lruvec);
            frames.get_counts(pfn, frame, 1, 0);
        }
        there
    }

    /// Take folios off the old end of a list, no more than this many, and no more than make up so many pages; each with a reference, and
    /// shown to `take`, with how many pages it is, as long as that says that it takes more. How many pages that were.
    pub(crate) fn isolate<'p, P: Platform>(
        &mut self,
        frames: &Frames<'p, P>,
        list: LruList,
        (mut folios, pages): (usize, u64),
        mut take: impl FnMut(Pfn, &'p Frame, u32) -> bool,
    ) -> u64 {
        let mut sum = 0;
        let mut cut = Cut::default();
        for (pfn, frame) in self.lru[list as usize].backward(frames) {
            if folios == 0 || sum >= pages {
                break;
            }
            // One to which nobody refers is about to leave the list by itself.
            if frames.try_get(pfn, frame, 1, 0) {
                if !cut.extend(pfn, frame) {
                    self.lru[list as usize].cut(frames, &cut);
                    cut = Cut::one(pfn, frame);
                }
                frame.set_lruvec(frame.lruvec() & LruvecId::SHARD);
                let its = 1 << frame.order();
                sum += u64::from(its);
                folios -= 1;
                if !take(pfn, frame, its) {
                    break;
                }
            }
        }
        self.lru[list as usize].cut(frames, &cut);
        self.pages[list as usize] -= sum;
        sum
    }

    /// Neighbours leave a list, or, on none, only the memcg; their pages return to the stock.
    #[inline]
    pub(crate) fn leave<P: Platform>(&mut self, frames: &Frames<'_, P>, cut: &Cut, list: Option<LruList>, pages: u32) {
        if let Some(list) = list {
            self.lru[list as usize].cut(frames, cut);
            self.pages[list as usize] -= pages as u64;
        }
        self.stock += pages;
    }
}
