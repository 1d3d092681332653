//! Memory cgroups (memcgs), their counters and their LRU lists.
//!
//! Every folio is charged to a memcg and is on one of its LRU lists from its first fault to its
//! last unmap (INV-9). One lock covers both: that of a *per-CPU lruvec*, which has the LRU lists
//! and a stock of pages charged in advance (Linux: the lruvec and the memcg stock). A memcg has one
//! such lruvec for each CPU. A fault uses the lruvec of its own CPU, so faults on different CPUs
//! share no cache line; the memcg's counter, which all CPUs share, is touched once for each
//! [`STOCK`] pages. Memory of another node goes to a lruvec of that node, so that each list has
//! memory of one node only ([`crate::frame`]). A folio stays in the lruvec where it was charged,
//! and its descriptor names that lruvec. So a CPU that frees a batch of folios takes a lruvec's
//! lock once for each stretch of consecutive folios in the batch that name that lruvec.
//!
//! | file | contents |
//! |---|---|
//! | `tree` | the tree of memcgs: creation, removal, and the memory of lruvecs |
//! | `charge` | counters, limits, stocks |
//! | `dirty` | dirty pages of files: numbers, limits, the turns of tasks that make more |
//! | `host` | memory of a host's own structures |
//! | `isolate` | isolating folios that a page table maps |
//! | `lru` | LRU lists and deferred-split queues, as reclaim and faults use them |
//! | `lruvec` | a per-CPU lruvec: LRU lists and stock |
//! | `list_move` | moving folios between LRU lists in batches |
//! | `uncharge` | uncharging folios in batches |
//! | `refused` | the reasons why an allocation fails |
//! | `split` | splitting a partially mapped folio |
//!
//! Lock order: a lruvec's lock may be taken under page-table locks. It is never taken under another
//! lruvec's lock or one of the frame allocator's, and not by interrupt handlers.

mod charge;
mod dirty;
mod hold;
mod host;
mod isolate;
mod list_move;
mod lru;
mod lruvec;
mod refused;
mod split;
#[cfg(test)]
mod tests;
mod tree;
mod uncharge;

pub use charge::MARGIN;
pub(crate) use dirty::DirtyChange;
pub use dirty::{DirtyLimits, Throttle, Turns};
pub(crate) use hold::ListHold;
pub(crate) use list_move::ListMove;
pub(crate) use lru::Lru;
pub use lruvec::LruList;
pub(crate) use lruvec::{IsolateLimit, LruvecId};
pub(crate) use refused::may_be_refused;
pub use refused::{MayBeRefused, OverLimit, Refused};
pub(crate) use split::MappedPages;
pub(crate) use tree::MemcgPin;
pub(crate) use uncharge::Uncharger;

pub use crate::platform::MemcgId;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::{Frame, FrameKind, Frames, OutOfMemory, Use, flag};
use crate::platform::Platform;
use crate::sync::{SpinGuard, SpinLock};
use lruvec::{Lruvec, PerCpuLruvec};
use tree::{HEAD_FRAMES, chunk_shift};

/// The number of pages that a per-CPU lruvec charges in advance.
pub const STOCK: u32 = 64;
/// The maximum number of memcgs on a machine: as many as the frame numbers (4 bytes each) that fit
/// into one frame.
pub const MAX_MEMCGS: usize = FRAME_SIZE as usize / size_of::<u32>();

impl MemcgId {
    /// The root memcg, from which every other memcg descends. It has no limit.
    pub const ROOT: MemcgId = MemcgId(0);
}

/// The reason why a memcg can't be created, changed or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemcgError {
    /// There is no memcg with this identifier.
    NoSuchMemcg(MemcgId),
    /// All [`MAX_MEMCGS`] identifiers are in use.
    TooMany,
    /// The memory for the memcg's structures could not be allocated, or not be charged to its
    /// parent.
    NoMemory(Refused),
    /// The memcg still has charged pages, spaces or children, or is the root.
    Busy(MemcgId),
}

may_be_refused!(MemcgError);

impl core::fmt::Display for MemcgError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            MemcgError::NoSuchMemcg(id) => write!(f, "no memcg has the identifier {id:?}"),
            MemcgError::TooMany => write!(f, "all {MAX_MEMCGS} memcg identifiers are in use: remove a memcg first"),
            MemcgError::NoMemory(refused) => write!(f, "no memory for a memcg's structures: {refused}"),
            MemcgError::Busy(id) => write!(f, "memcg {id:?} has charged pages, spaces or children, or is the root"),
        }
    }
}

impl core::error::Error for MemcgError {}

/// The counters of a memcg and its descendants, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemcgCounters {
    /// Charged pages, including stocks (pages that per-CPU lruvecs have charged in advance). A
    /// charge compares this number with the limit. It exceeds [`MemcgUsage::charged`] by at most
    /// twice [`STOCK`] pages for each per-CPU lruvec.
    pub charged: u64,
    /// The highest value that `charged` ever had.
    pub peak: u64,
    /// The limit.
    pub limit: u64,
    /// Pages of page-cache objects on swap devices.
    pub swapped: u64,
    /// Pages of files that differ from the host's storage.
    pub dirty: u64,
    /// Pages of files that the host is writing to its storage. They may be dirty again.
    pub writing: u64,
    /// The limits of `dirty`.
    pub dirty_limits: DirtyLimits,
}

/// The memory of a memcg, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemcgUsage {
    /// Pages charged to this memcg and all its descendants, without stocks (pages that per-CPU
    /// lruvecs have charged in advance).
    pub charged: u64,
    /// The highest number of pages that were ever charged at once, stocks included.
    pub peak: u64,
    /// The limit.
    pub limit: u64,
    /// Pages on this memcg's own LRU lists, by list; descendants are not counted.
    pub lru: [u64; LruList::COUNT],
    /// Folios of this memcg on the deferred-split queue, because they are partially mapped.
    pub deferred: u64,
    /// Pages of page-cache objects of this memcg and all its descendants on swap devices.
    pub swapped: u64,
    /// The part of `charged` that is memory of descendants' per-CPU lruvecs.
    pub lruvecs: u64,
}

/// All memcgs of a machine.
pub struct Memcgs<'p> {
    /// The frame numbers of the frames that hold memcgs' heads ([`tree::Memcg`]: counters, limit,
    /// parent); 0 for a frame that is not allocated.
    heads: [AtomicU32; HEAD_FRAMES],
    /// The frame numbers of the chunks (a chunk is a frame that holds per-CPU lruvecs of one
    /// memcg); 0 for a chunk that is not allocated. Each memcg has `1 << chunk_shift` entries in a
    /// row.
    chunks: &'p [AtomicU32],
    /// log2 of the number of a memcg's entries in `chunks`.
    chunk_shift: u32,
    /// The set of memcgs that have a per-CPU lruvec marked as stocked: it may have pages that were
    /// charged in advance ([`charge`]).
    stocked: [AtomicU64; MAX_MEMCGS / 64],
    /// The base of the host's direct map.
    direct: *mut u8,
    /// Serializes creation and removal of memcgs.
    changing: SpinLock<()>,
}

// SAFETY: `direct` only serves to find the memcgs' memory, which consists of atomics and locks.
unsafe impl Sync for Memcgs<'_> {}
// SAFETY: no field is bound to the thread that made it.
unsafe impl Send for Memcgs<'_> {}

impl<'p> Memcgs<'p> {
    /// Allocates the structures of a machine's memcgs, and creates the root memcg.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(crate) fn boot<P: Platform>(frames: &Frames<'p, P>) -> Result<Self, OutOfMemory> {
        let shift = chunk_shift(frames.lruvecs());
        let bytes = (MAX_MEMCGS << shift) * size_of::<AtomicU32>();
        let order = bytes.div_ceil(FRAME_SIZE as usize).next_power_of_two().trailing_zeros() as u8;
        let pfn = frames.alloc(order, true, Use::Kernel)?;
        let first = frames.at(pfn.addr()).as_ptr().cast::<AtomicU32>();
        // SAFETY: the frames are zeroed, were just allocated, stay allocated for `'p`, and have
        // room for `MAX_MEMCGS << shift` atomics.
        let chunks = unsafe { core::slice::from_raw_parts(first, MAX_MEMCGS << shift) };
        let memcgs = Memcgs {
            heads: [const { AtomicU32::new(0) }; HEAD_FRAMES],
            chunks,
            chunk_shift: shift,
            stocked: [const { AtomicU64::new(0) }; MAX_MEMCGS / 64],
            direct: frames.platform().direct_map(),
            changing: SpinLock::new(()),
        };
        // The root has no limit and no parent, so only an allocation can fail here, not a charge.
        memcgs.init_memcg(frames, MemcgId::ROOT, MemcgId::ROOT, u64::MAX).map_err(|_| OutOfMemory)?;
        Ok(memcgs)
    }

    /// Sets how many more pages of the spaces and page-cache objects of a memcg and its descendants
    /// may go to swap; `u64::MAX` is no limit. A page that goes to swap lowers the number; a page
    /// that comes back does not raise it. The engine does not count the swap usage of memcgs: the
    /// host does, and calls this again with its limit less that usage.
    ///
    /// # Errors
    /// There is no such memcg.
    pub fn set_swap_room(&self, id: MemcgId, pages: u64) -> Result<(), MemcgError> {
        let memcg = self.find(id).ok_or(MemcgError::NoSuchMemcg(id))?;
        memcg.swap_room.store(pages, Relaxed);
        Ok(())
    }

    /// Returns how many more pages of a memcg may go to swap: the least that the memcg and its
    /// ancestors allow.
    #[inline]
    pub(crate) fn swap_room(&self, id: MemcgId) -> u64 {
        self.ancestors(id).map(|at| self.memcg(at).swap_room.load(Relaxed)).min().unwrap_or(u64::MAX)
    }

    /// Lowers the swap room of a memcg and its ancestors by `pages` that went to swap. Two CPUs
    /// that read the same room may both use it; the swap usage then passes the host's limit by that
    /// much.
    #[inline]
    pub(crate) fn use_swap_room(&self, id: MemcgId, pages: u64) {
        let less = |room: u64| (room < u64::MAX).then(|| room.saturating_sub(pages));
        for at in self.ancestors(id) {
            // An `Err` means that this memcg has no swap limit, so its room does not change.
            let _ = self.memcg(at).swap_room.fetch_update(Relaxed, Relaxed, less);
        }
    }

    /// Adds `pages`, which may be negative, to the count of pages of a memcg's page-cache objects
    /// that are on swap devices, and to its ancestors' counts.
    pub(crate) fn count_swapped(&self, id: MemcgId, pages: i64) {
        self.ancestors(id).for_each(|at| _ = self.memcg(at).swapped.fetch_add(pages as u64, Relaxed));
    }

    /// Charges `1 << order` frames to a memcg and, with a `list`, adds the folio to that list
    /// (Linux: `mem_cgroup_charge` and `folio_add_lru`). `pfn` and `frame` are the first frame;
    /// `index` is the lruvec index that [`Frames::alloc_at_lruvec`] returned with it. The frame's
    /// descriptor records the lruvec and the list (INV-9). Takes the lruvec's lock.
    ///
    /// # Errors
    /// The charge exceeds a limit; or the lruvec has no memory yet, and that memory can't be
    /// allocated, or not be charged to the memcg's parent. Then nothing is charged or listed.
    #[inline(always)]
    pub(crate) fn charge_frames<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: MemcgId,
        (pfn, frame, index): (Pfn, &Frame, usize),
        order: u8,
        list: Option<LruList>,
    ) -> Result<(), Refused> {
        let pages = 1u32 << order;
        let lruvec = LruvecId { memcg: id, index };
        let Some(at) = self.try_lruvec(lruvec) else {
            return self.charge_first_frames(frames, lruvec, (pfn, frame), order, list);
        };
        let mut lists = at.lock(frames.platform());
        if lists.stock < pages
            && let Err(over) = self.restock((lruvec, at), &mut lists, pages)
        {
            drop(lists);
            lists = self.charge_from_stocks(frames, (id, at), pages, over)?;
        }
        lists.stock -= pages;
        frame.set_lruvec(lruvec.pack(list));
        if let Some(list) = list {
            lists.add(frames, (pfn, frame), order, list);
        }
        Ok(())
    }

    /// Charges frames as [`Memcgs::charge_frames`] does, to a lruvec that has no memory yet, which
    /// this allocates.
    ///
    /// # Errors
    /// As for [`Memcgs::charge_frames`]; [`OverLimit`] with the identifier if there is no such
    /// memcg.
    #[cold]
    fn charge_first_frames<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        lruvec: LruvecId,
        (pfn, frame): (Pfn, &Frame),
        order: u8,
        list: Option<LruList>,
    ) -> Result<(), Refused> {
        // The host can make an identifier from any number, so there may be no such memcg.
        self.find(lruvec.memcg).ok_or(OverLimit(lruvec.memcg))?;
        self.alloc_lruvecs(frames, lruvec)?;
        self.charge_frames(frames, lruvec.memcg, (pfn, frame, lruvec.index), order, list)
    }

    /// Charges `pages` to the memcg `id` after the limit of the memcg in `over` refused them:
    /// drains the stocks (pages charged in advance) of that memcg's and its descendants' lruvecs,
    /// so that the charge succeeds, and adds `pages` to the stock of the lruvec `at`. Returns the
    /// lists of `at`, locked. The caller holds no lruvec's lock.
    ///
    /// # Errors
    /// A memcg is full even though its lruvecs and its descendants' have no stocks left.
    #[cold]
    fn charge_from_stocks<'s, P: Platform>(
        &self,
        frames: &'s Frames<'p, P>,
        (id, at): (MemcgId, &'s PerCpuLruvec),
        pages: u32,
        over: OverLimit,
    ) -> Result<SpinGuard<'s, Lruvec, P>, OverLimit> {
        if self.memcg(over.0).stocks.load(Relaxed) == 0 {
            return Err(over);
        }
        self.charge(frames, id, pages)?;
        let mut lists = at.lock(frames.platform());
        lists.stock += pages;
        Ok(lists)
    }

    /// Allocates `1 << order` frames for a structure of the engine's own (a page table, a VMA node,
    /// the per-CPU slots of a space), charged to a memcg. The descriptor of the first frame records
    /// the memcg until [`Memcgs::free`]. Returns that frame and its descriptor. With `zero`, every
    /// byte is zero.
    ///
    /// # Errors
    /// Memory is short, or a limit does not allow the charge. Then nothing is allocated.
    pub(crate) fn alloc<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: MemcgId,
        order: u8,
        zero: bool,
    ) -> Result<(Pfn, &'p Frame), Refused> {
        self.alloc_flagged(frames, id, (order, zero), flag::CHARGED)
    }

    /// Allocates as [`Memcgs::alloc`] does, and sets `flags` in the descriptor of the first frame,
    /// by which the audit ([`crate::audit`]) finds charged memory.
    fn alloc_flagged<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: MemcgId,
        (order, zero): (u8, bool),
        flags: u32,
    ) -> Result<(Pfn, &'p Frame), Refused> {
        let (pfn, index) = frames.alloc_at_lruvec(order, zero, Use::Kernel)?;
        let frame = frames.frame(pfn);
        if let Err(refused) = self.charge_frames(frames, id, (pfn, frame, index), order, None) {
            // SAFETY: the frames were just allocated, no other CPU knows of them, and nothing was
            // written to them.
            unsafe { frames.free(pfn, 1 << order, zero, Use::Kernel) };
            return Err(refused);
        }
        frame.set_kind(FrameKind::Private, order, flags);
        Ok((pfn, frame))
    }

    /// Frees frames that [`Memcgs::alloc`] allocated, and uncharges the memcg that was charged for
    /// them. With `zero`, every byte of them is zero.
    ///
    /// # Safety
    /// As for [`Frames::free`].
    pub(crate) unsafe fn free<P: Platform>(&self, frames: &Frames<'p, P>, pfn: Pfn, order: u8, zero: bool) {
        self.uncharge(frames, pfn, order);
        // SAFETY: the caller keeps the contract of [`Frames::free`]: no reference, stale
        // translation or walk of the frames is left. They came from `alloc_flagged`, whose `Use` is
        // `Kernel`.
        unsafe { frames.free(pfn, 1 << order, zero, Use::Kernel) };
    }

    /// Uncharges `1 << order` frames that are about to be freed.
    fn uncharge<P: Platform>(&self, frames: &Frames<'p, P>, pfn: Pfn, order: u8) {
        Uncharger::new(frames, self).uncharge(pfn, frames.frame(pfn), 1 << order);
    }
}
