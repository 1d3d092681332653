//! memcgs (memory control memcgs) and their LRU lists.
//!
//! Every folio is charged to a memcg and stands on one of its LRU lists from its first fault to its last unmap. Both are
//! done in one step, because both belong to the same *shard*: a memcg has one shard a CPU, with a lock, lists, and a stock
//! of pages charged in advance. A fault uses its own CPU's shard, so faults on different CPUs share no line; the memcg's
//! counter is touched once a stock ([`STOCK`] pages). Memory of another node goes to that node's own shard, so each list has
//! memory of one node only ([`crate::frame`]). A folio stays in the shard where it was faulted in, and says which
//! that is, so whoever frees a batch takes each shard's lock once for as many folios as stand there in a row.
//!
//! | file | story |
//! |---|---|
//! | `tree` | which memcgs there are |
//! | `charge` | counters, limits, stocks |
//! | `host` | memory of a host's own structures |
//! | `shard` | one shard's part: lists and stock |
//! | `leave` | freeing folios in batches |
//! | `refused` | why memory was refused |
//! | `split` | one folio becomes several |
//!
//! Locks: a shard's lock is taken with page-table locks held or without, never while holding another shard's or the
//! allocator's; it is not for interrupt handlers.

mod charge;
mod host;
mod leave;
mod refused;
mod shard;
mod split;
#[cfg(test)]
mod tests;
mod tree;

pub use charge::MARGIN;
pub(crate) use leave::Leavers;
pub(crate) use refused::may_be_refused;
pub use refused::{MayBeRefused, OverLimit, Refused};
pub use shard::LruList;
pub(crate) use shard::{Listed, LruvecId, PerCpuLruvec};
pub(crate) use split::Mapped;
pub(crate) use tree::Pinned;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::{Frame, FrameKind, Frames, OutOfMemory, Use, flag};
use crate::platform::Platform;
use crate::sync::{SpinGuard, SpinLock};
use shard::Lists;
use tree::{HEAD_FRAMES, chunk_shift};

/// Pages that a shard charges at once, to have them at hand.
pub const STOCK: u32 = 64;
/// The most memcgs that a machine can have: one frame of frame numbers.
pub const MAX_MEMCGS: usize = FRAME_SIZE as usize / size_of::<u32>();

/// The name of a memcg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemcgId(pub(crate) u16);

impl MemcgId {
    /// The memcg that every other descends from. It has no limit.
    pub const ROOT: MemcgId = MemcgId(0);
}

/// Why a memcg can't be made, changed or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemcgError {
    /// No such memcg.
    NoSuchMemcg(MemcgId),
    /// All [`MAX_MEMCGS`] are in use.
    TooMany,
    /// No memory for it, or its parent may not have it.
    NoMemory(Refused),
    /// It still has pages charged, or children, or is the root.
    Busy(MemcgId),
}

may_be_refused!(MemcgError);

/// The counters of a memcg and its descendants, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemcgCounters {
    /// Charged, with what shards have in stock: at most `2 * STOCK` pages a shard more than
    /// [`MemcgUsage::charged`], and never more than the limit was.
    pub charged: u64,
    /// The most that ever was charged, stocks included.
    pub peak: u64,
    /// The limit.
    pub limit: u64,
    /// Of objects, on swap devices.
    pub swapped: u64,
}

/// What a memcg holds, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemcgUsage {
    /// Charged here and in all descendants.
    pub charged: u64,
    /// The most that ever was, stocks included.
    pub peak: u64,
    /// The limit.
    pub limit: u64,
    /// On this memcg's own LRU lists, by list.
    pub lru: [u64; LruList::COUNT],
    /// Folios of this memcg waiting to be split because part of them is not mapped.
    pub deferred: u64,
    /// Of objects, on swap devices; here and in all descendants.
    pub swapped: u64,
    /// Of the charged pages, those that the engine uses for the lists of descendants.
    pub shards: u64,
}

/// All groups of a machine.
pub struct Memcgs<'p> {
    /// Frames of heads; 0 for none.
    heads: [AtomicU32; HEAD_FRAMES],
    /// The frame of each chunk of shards of each memcg; 0 for none.
    chunks: &'p [AtomicU32],
    /// log2 of the chunks of a memcg.
    chunk_shift: u32,
    /// Which memcgs have shards that may have a stock.
    stocked: [AtomicU64; MAX_MEMCGS / 64],
    direct: *mut u8,
    changing: SpinLock<()>,
}

// SAFETY: `direct` only serves to find the memcgs' memory, which consists of atomics and locks.
unsafe impl Sync for Memcgs<'_> {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Memcgs<'_> {}

impl<'p> Memcgs<'p> {
    /// With the root memcg alone.
    pub(crate) fn boot<P: Platform>(frames: &Frames<'p, P>) -> Result<Self, OutOfMemory> {
        let shift = chunk_shift(frames.shards());
        let bytes = (MAX_MEMCGS << shift) * size_of::<AtomicU32>();
        let order = bytes.div_ceil(FRAME_SIZE as usize).next_power_of_two().trailing_zeros() as u8;
        let pfn = frames.alloc(order, true, Use::Kernel)?;
        let first = frames.at(pfn.addr()).as_ptr().cast::<AtomicU32>();
        // SAFETY: frames of zeros, just allocated and kept for `'p`, that have room for so many
        // atomics.
        let chunks = unsafe { core::slice::from_raw_parts(first, MAX_MEMCGS << shift) };
        let memcgs = Memcgs {
            heads: [const { AtomicU32::new(0) }; HEAD_FRAMES],
            chunks,
            chunk_shift: shift,
            stocked: [const { AtomicU64::new(0) }; MAX_MEMCGS / 64],
            direct: frames.platform().direct_map(),
            changing: SpinLock::new(()),
        };
        // Nothing limits the root.
        memcgs.set_up(frames, MemcgId::ROOT, MemcgId::ROOT, u64::MAX).map_err(|_| OutOfMemory)?;
        Ok(memcgs)
    }

    /// From now on so many pages of a memcg's spaces and objects and of those of its descendants may go to swap, and no more until this is called
    /// again (`u64::MAX`: any number). Who has what in swap is the host's to know: it says how much less than a limit that is.
    ///
    /// # Errors
    /// There is no such memcg.
    pub fn set_swap_room(&self, id: MemcgId, pages: u64) -> Result<(), MemcgError> {
        let memcg = self.find(id).ok_or(MemcgError::NoSuchMemcg(id))?;
        memcg.swap_room.store(pages, Relaxed);
        Ok(())
    }

    /// How many pages more may go to swap.
    #[inline]
    pub(crate) fn swap_room(&self, id: MemcgId) -> u64 {
        self.ancestors(id).map(|at| self.of(at).swap_room.load(Relaxed)).min().unwrap_or(u64::MAX)
    }

    /// So many went. (Two CPUs that find room at a time may both use it.)
    #[inline]
    pub(crate) fn use_swap_room(&self, id: MemcgId, pages: u64) {
        let less = |room: u64| (room < u64::MAX).then(|| room.saturating_sub(pages));
        for at in self.ancestors(id) {
            // Without a limit there is nothing to count.
            let _ = self.of(at).swap_room.fetch_update(Relaxed, Relaxed, less);
        }
    }

    /// So many more pages of a memcg's objects are on swap devices, or fewer.
    pub(crate) fn count_swapped(&self, id: MemcgId, pages: i64) {
        self.ancestors(id).for_each(|at| _ = self.of(at).swapped.fetch_add(pages as u64, Relaxed));
    }

    /// Charge `1 << order` frames, of which this is the first, to a memcg and, if `list` says so,
    /// put the folio on that list of its shard, which the allocator named
    /// ([`Frames::alloc_at_lruvec`]). The frame's descriptor remembers where it is at home.
    #[inline(always)]
    pub(crate) fn admit<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: MemcgId,
        (pfn, frame, shard): (Pfn, &Frame, usize),
        order: u8,
        list: Option<LruList>,
    ) -> Result<(), Refused> {
        let pages = 1u32 << order;
        let Some(at) = self.shard_of(id, shard) else {
            return self.admit_first(frames, id, (pfn, frame, shard), order, list);
        };
        let mut lists = at.0.lock(frames.platform());
        if lists.stock < pages
            && let Err(over) = self.restock((id, shard, at), &mut lists, pages)
        {
            drop(lists);
            lists = self.charge_for(frames, (id, at), pages, over)?;
        }
        lists.stock -= pages;
        frame.set_lruvec(LruvecId { memcg: id, shard, list }.pack());
        if let Some(list) = list {
            lists.add(frames, (pfn, frame), order, list);
        }
        Ok(())
    }

    /// [`Memcgs::admit`] to a shard that has no memory yet.
    #[cold]
    fn admit_first<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: MemcgId,
        (pfn, frame, shard): (Pfn, &Frame, usize),
        order: u8,
        list: Option<LruList>,
    ) -> Result<(), Refused> {
        // A number that a host has from elsewhere may be no memcg's.
        self.find(id).ok_or(OverLimit(id))?;
        self.provide_shard(frames, id, shard)?;
        self.admit(frames, id, (pfn, frame, shard), order, list)
    }

    /// A charge was refused: takes from the stocks below the full memcg, and puts it into this
    /// shard's.
    #[cold]
    fn charge_for<'s, P: Platform>(
        &self,
        frames: &'s Frames<'p, P>,
        (id, at): (MemcgId, &'s PerCpuLruvec),
        pages: u32,
        over: OverLimit,
    ) -> Result<SpinGuard<'s, Lists, P>, OverLimit> {
        if self.of(over.0).stocks.load(Relaxed) == 0 {
            return Err(over);
        }
        self.charge(frames, id, pages)?;
        let mut lists = at.0.lock(frames.platform());
        lists.stock += pages;
        Ok(lists)
    }

    /// Allocates `1 << order` frames for a structure of the engine's own (a page table, a node,
    /// per-CPU slots), charged to a memcg. The descriptor of the first records the memcg until
    /// [`Memcgs::free`]. Returns both.
    pub(crate) fn alloc<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: MemcgId,
        order: u8,
        zero: bool,
    ) -> Result<(Pfn, &'p Frame), Refused> {
        self.alloc_marked(frames, id, (order, zero), flag::CHARGED)
    }

    /// [`Memcgs::alloc`], with these flags in the descriptor of the first frame, by which an audit
    /// knows what is charged.
    fn alloc_marked<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: MemcgId,
        (order, zero): (u8, bool),
        flags: u32,
    ) -> Result<(Pfn, &'p Frame), Refused> {
        let (pfn, shard) = frames.alloc_at_lruvec(order, zero, Use::Kernel)?;
        let frame = frames.frame(pfn);
        if let Err(why) = self.admit(frames, id, (pfn, frame, shard), order, None) {
            // SAFETY: just allocated, unknown to anybody else, and as zero as it came.
            unsafe { frames.free(pfn, 1 << order, zero, Use::Kernel) };
            return Err(why);
        }
        frame.become_kind(FrameKind::Private, order, flags);
        Ok((pfn, frame))
    }

    /// Frees frames that [`Memcgs::alloc`] allocated, and returns their charge to the memcg that
    /// was charged. `zero`: they hold zeros.
    ///
    /// # Safety
    /// As for [`Frames::free`].
    pub(crate) unsafe fn free<P: Platform>(&self, frames: &Frames<'p, P>, pfn: Pfn, order: u8, zero: bool) {
        self.uncharge(frames, pfn, order);
        // SAFETY: by contract.
        unsafe { frames.free(pfn, 1 << order, zero, Use::Kernel) };
    }

    /// Returns the charge of what is about to be freed.
    fn uncharge<P: Platform>(&self, frames: &Frames<'p, P>, pfn: Pfn, order: u8) {
        Leavers::new(frames, self).leave(pfn, frames.frame(pfn), 1 << order);
    }

    /// See [`Lists::isolate`]: off the lists that a shard has of a memcg.
    pub(crate) fn isolate<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        (id, shard): (MemcgId, usize),
        list: LruList,
        most: (usize, u64),
        take: impl FnMut(Pfn, &'p Frame, u32) -> bool,
    ) -> u64 {
        let isolate = |shard: &PerCpuLruvec| shard.0.lock(frames.platform()).isolate(frames, list, most, take);
        self.look(frames, (id, shard), isolate).unwrap_or(0)
    }

    /// See [`Lists::isolate_one`].
    pub(crate) fn isolate_one<P: Platform>(&self, frames: &Frames<'p, P>, pfn: Pfn, list: LruList) -> bool {
        let LruvecId { memcg, shard, .. } = LruvecId::unpack(frames.frame(pfn).lruvec());
        self.shard(memcg, shard).0.lock(frames.platform()).isolate_one(frames, pfn, list)
    }

    /// Put a folio on a list, as the youngest: one that somebody has isolated, or one that is on `from`. The caller has a reference.
    pub(crate) fn relist<P: Platform>(&self, frames: &Frames<'p, P>, pfn: Pfn, from: Option<LruList>, to: LruList) {
        let frame = frames.frame(pfn);
        let LruvecId { memcg, shard, .. } = LruvecId::unpack(frame.lruvec());
        let mut lists = self.shard(memcg, shard).0.lock(frames.platform());
        // Whoever has isolated it puts it back where it belongs then.
        if LruvecId::unpack(frame.lruvec()).list == from {
            lists.relist(frames, pfn, to);
        }
    }

    /// A folio that is on this list is the next to be looked at. The caller has a reference.
    pub(crate) fn make_oldest<P: Platform>(&self, frames: &Frames<'p, P>, pfn: Pfn, list: LruList) {
        let frame = frames.frame(pfn);
        let LruvecId { memcg, shard, .. } = LruvecId::unpack(frame.lruvec());
        let mut lists = self.shard(memcg, shard).0.lock(frames.platform());
        if LruList::of(frame) == Some(list) {
            lists.make_oldest(frames, pfn, list);
        }
    }

    /// How many pages a shard's list of a memcg has.
    pub(crate) fn listed<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        (id, shard): (MemcgId, usize),
        list: LruList,
    ) -> u64 {
        let listed = |shard: &PerCpuLruvec| shard.0.lock(frames.platform()).pages()[list as usize];
        self.look(frames, (id, shard), listed).unwrap_or(0)
    }

    /// Shows each LRU list of a memcg's own shards, with how much is on it by its own account;
    /// under the shard's lock.
    pub(crate) fn each_listed<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: MemcgId,
        mut show: impl FnMut(LruList, Listed, &mut dyn Iterator<Item = (Pfn, &'p Frame)>),
    ) {
        self.each_used(frames, id, |shard| {
            let lists = shard.0.lock(frames.platform());
            for list in LruList::ALL {
                let (counted, mut listed) = lists.listed(frames, list);
                show(list, counted, &mut listed);
            }
        });
    }

    /// All shards of a memcg and its descendants that have memory of a node, or of any.
    pub(crate) fn shards_on<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: MemcgId,
        node: Option<usize>,
    ) -> impl Iterator<Item = (MemcgId, usize)> {
        self.descendants(id).flat_map(move |id| frames.shards_on(node).map(move |shard| (id, shard)))
    }
}
