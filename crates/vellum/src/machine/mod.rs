//! The memory of one machine: the structures that all its address spaces share.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::policy::FolioPolicy;
use crate::frame::{
    BootError, BootOptions, Counts, Frame, FrameKind, Frames, HUGE_ORDER, LARGEST_FOLIO, OutOfMemory, Use, Zeroable,
    flag,
};
use crate::memcg::{Lru, LruvecId, MemcgId, Memcgs, Uncharger};
use crate::platform::{Platform, SpaceId};
use crate::stats::{COUNTERS, Counter, CounterSlot, SIZES, SizeCounter};
use crate::swap::Swaps;
use crate::sync::{SpinLock, Walkers};

mod bits;
mod compaction;
mod frame_set;
mod hugetlb;
mod refault;
mod scratch;
mod tally;

use compaction::Compaction;
pub(crate) use frame_set::FrameSet;
use hugetlb::PoolState;
pub use hugetlb::{HugePages, HugePool};
pub(crate) use refault::Dropped;
use refault::{FileOf, Refaults};
use scratch::ScratchBuffer;
pub(crate) use scratch::{FrameRange, Scratch};
pub(crate) use tally::DirtyTally;

/// The memory of one machine. A process may have any number of machines.
///
/// ```
/// # // A host is needed to run it: see the `vellum-sim` crate for one in software.
/// fn boot<P: vellum::platform::Platform>(host: &P) -> Result<(), vellum::frame::BootError> {
///     let machine = vellum::Machine::boot(host, Default::default())?;
///     assert!(machine.frames().free_frames() <= machine.frames().total());
///     Ok(())
/// }
/// ```
pub struct Machine<'p, P: Platform> {
    frames: Frames<'p, P>,
    memcgs: Memcgs<'p>,
    walkers: Walkers<'p>,
    policy: FolioPolicy,
    /// The counters of each CPU.
    counters: &'p [CounterSlot],
    /// The scratch buffer of each CPU.
    scratch_buffers: &'p [ScratchBuffer],
    zero_folio: ZeroFolio,
    /// The state of compaction.
    compaction: Compaction,
    /// The pages of files that reclaim dropped lately.
    refaults: Refaults<'p>,
    swaps: Swaps<P>,
    shmem_swap_list: SpinLock<ShmemSwapList>,
    /// The pool of huge pages.
    huge_pool: SpinLock<PoolState>,
    /// The identifier of the next space.
    spaces: AtomicU64,
    /// The next serial number.
    serials: AtomicU64,
}

/// The list of page-cache objects that may have pages on swap devices, linked through the objects'
/// heads, the frames that hold the objects (Linux: `shmem_swaplist`; see [`crate::page_cache`]).
pub(crate) struct ShmemSwapList {
    /// The frame of the first object's head.
    pub(crate) first: Pfn,
}

/// The zero folio, which read faults map (Linux: `huge_zero_folio`). PTEs that map it form runs
/// like other leaf PTEs, but do not count as resident memory. The folio has the flag
/// [`flag::ZERO_FOLIO`]; the frame number in a PTE alone shows that the PTE maps the zero folio, so
/// that the descriptor need not be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ZeroFolio {
    /// The first frame.
    pub(crate) pfn: Pfn,
    /// log2 of the number of frames.
    pub(crate) order: u8,
}

impl ZeroFolio {
    /// Returns true if a frame belongs to the zero folio.
    #[inline]
    pub(crate) fn contains(&self, pfn: Pfn) -> bool {
        pfn.0.wrapping_sub(self.pfn.0) < 1 << self.order
    }
}

/// log2 of the number of frames of the largest base page of any format: 64 KiB (AArch64).
const LARGEST_PAGE: u8 = 4;

impl<'p, P: Platform> Machine<'p, P> {
    /// Takes over the host's memory, and allocates the structures that address spaces share.
    ///
    /// # Errors
    /// [`BootError`]: the host's regions are invalid or too small. No memory outside them was
    /// touched.
    pub fn boot(platform: &'p P, options: BootOptions) -> Result<Self, BootError> {
        let frames = Frames::boot(platform, options)?;
        let too_small = |_: OutOfMemory| BootError::TooSmall(FRAME_SIZE);
        let cpus = platform.count();
        let memcgs = Memcgs::boot(&frames).map_err(too_small)?;
        // SAFETY: `alloc_permanent` returns zeroed memory of this size, aligned to a frame, that is
        // never freed.
        let walkers = unsafe { Walkers::new(alloc_permanent(&frames, Walkers::bytes(cpus)).map_err(too_small)?, cpus) };
        let counters = alloc_permanent_slice::<CounterSlot, P>(&frames, cpus).map_err(too_small)?;
        let scratch_buffers = alloc_permanent_slice::<ScratchBuffer, P>(&frames, cpus).map_err(too_small)?;
        let swaps = Swaps::new(&frames).map_err(too_small)?;
        let refaults = Refaults::new(&frames).map_err(too_small)?;
        let zero_folio = Self::alloc_zero_folio(&frames).map_err(too_small)?;
        Ok(Machine {
            frames,
            memcgs,
            walkers,
            policy: FolioPolicy::default(),
            counters,
            scratch_buffers,
            zero_folio,
            swaps,
            shmem_swap_list: SpinLock::new(ShmemSwapList { first: Pfn::NONE }),
            huge_pool: SpinLock::new(PoolState::default()),
            compaction: Compaction::default(),
            refaults,
            spaces: AtomicU64::new(1),
            serials: AtomicU64::new(1),
        })
    }

    /// Allocates the zero folio: a huge page, or less if that is more than about a thousandth of
    /// memory, but at least the largest base page of any format.
    ///
    /// The frames on both sides of it are never used for anything else. So no run of PTEs maps
    /// frames of the zero folio together with frames of another folio, whose references are
    /// counted.
    fn alloc_zero_folio(frames: &Frames<'p, P>) -> Result<ZeroFolio, OutOfMemory> {
        let order = ((frames.total() / 1024).max(1).ilog2() as u8).clamp(LARGEST_PAGE, HUGE_ORDER);
        let size = 1 << order;
        let block = frames.alloc(order + 2, true, Use::Folio)?;
        let pfn = block.add(size);
        // SAFETY: the block was just allocated and zeroed. The zero folio is the second of its four
        // quarters. This frees the first quarter except its last frame, and the third and fourth
        // quarters except the third's first frame. No other CPU knows of these frames, and nothing
        // was written to them.
        unsafe {
            frames.free(block, size - 1, true, Use::Folio);
            frames.free(pfn.add(size + 1), 2 * size - 1, true, Use::Folio);
        }
        for fence in [block.add(size - 1), pfn.add(size)] {
            frames.frame(fence).set_kind(FrameKind::Private, 0, 0);
        }
        frames.make_folio(pfn, order, flag::ZERO_FOLIO, Counts { refs: 1, maps: 0 });
        Ok(ZeroFolio { pfn, order })
    }

    /// Returns the frame allocator and the descriptors.
    #[inline]
    pub fn frames(&self) -> &Frames<'p, P> {
        &self.frames
    }

    /// Returns the host.
    #[inline]
    pub fn platform(&self) -> &'p P {
        self.frames.platform()
    }

    /// Returns the memcgs.
    #[inline]
    pub fn memcgs(&self) -> &Memcgs<'p> {
        &self.memcgs
    }

    /// Returns the LRU lists and deferred-split queues of all memcgs.
    #[inline]
    pub(crate) fn lru(&self) -> Lru<'_, 'p, P> {
        self.memcgs.lru(self.frames())
    }

    /// Returns the state of compaction.
    pub(crate) fn compaction(&self) -> &Compaction {
        &self.compaction
    }

    /// Returns true if a page of a file that a memcg reads belongs to its working set: reclaim
    /// dropped it lately, and would not have if the memcg's pages in other uses had been fewer.
    pub(crate) fn is_refault(&self, object: u64, page: u64, memcg: MemcgId) -> bool {
        let distance = self.refaults.distance(FileOf::new(object, memcg), page, self.memcgs.clock(memcg).load(Relaxed));
        let charged = self.memcgs.counters(memcg).map_or(0, |counters| counters.charged);
        distance.is_some_and(|distance| distance <= charged)
    }

    /// Returns the swap devices.
    #[inline]
    pub fn swaps(&self) -> &Swaps<P> {
        &self.swaps
    }

    /// Returns the policy that selects the folio sizes for faults.
    #[inline]
    pub fn policy(&self) -> &FolioPolicy {
        &self.policy
    }

    /// Returns the value of a counter, summed over all CPUs. The sum is exact if no CPU changes the
    /// counter during the call.
    pub fn counter(&self, counter: Counter) -> u64 {
        // A counter may be incremented on one CPU and decremented on another, below zero there, so
        // the sum wraps around.
        self.counters.iter().fold(0, |sum, c| sum.wrapping_add(c.get(counter)))
    }

    /// Returns the value of a counter for large folios of one order, summed over all CPUs.
    pub fn size_counter(&self, counter: SizeCounter, order: u8) -> u64 {
        self.counters.iter().map(|c| c.get_size(counter, order)).sum()
    }

    /// Returns the number of swap-cache pages (of 4 KiB) that are charged to memcgs for which `of`
    /// returns true. `of` is called under the lock of a swap cluster (512 slots). Reads every slot
    /// of each device that has swap-cache pages.
    pub fn swap_cached(&self, of: impl Fn(MemcgId) -> bool) -> u64 {
        let mut pages = 0;
        self.swaps.each_cached_page(&self.frames, |pfn| {
            pages += u64::from(of(self.charged(pfn)));
        });
        pages
    }

    /// Returns the memcg that the folio with this frame is charged to. The caller keeps the folio
    /// from being freed.
    pub(crate) fn charged(&self, pfn: Pfn) -> MemcgId {
        LruvecId::unpack(self.frames.head(pfn).1.lruvec()).memcg
    }

    /// Returns true if the folio with this frame is charged to a memcg or one of its descendants.
    /// The caller keeps the folio from being freed.
    pub(crate) fn is_charged_below(&self, pfn: Pfn, memcg: MemcgId) -> bool {
        self.memcgs.is_below(self.charged(pfn), memcg)
    }

    /// Adds one to a counter for large folios of one order.
    #[inline]
    pub(crate) fn count_size(&self, counter: SizeCounter, order: u8) {
        self.counters[self.platform().current()].add_size(counter, order);
    }

    /// Adds `n` to a counter.
    #[inline]
    pub(crate) fn count(&self, counter: Counter, n: u64) {
        self.counters[self.platform().current()].add(counter, n);
    }

    /// Returns the counters by which a CPU waits for lockless page-table walkers (INV-1).
    #[inline]
    pub(crate) fn walkers(&self) -> &Walkers<'p> {
        &self.walkers
    }

    /// Returns the list of page-cache objects that may have pages in swap. While its lock is held,
    /// no object's head (the frame that holds the object) is freed.
    pub(crate) fn shmem_swap_list(&self) -> &SpinLock<ShmemSwapList> {
        &self.shmem_swap_list
    }

    /// Returns the pool of huge pages.
    pub fn huge_pool(&self) -> HugePool<'_, 'p, P> {
        HugePool(self)
    }

    /// Returns the zero folio.
    #[inline]
    pub(crate) fn zero_folio(&self) -> ZeroFolio {
        self.zero_folio
    }

    /// Drops references and mappings that a folio's counts have for the caller but that no PTE
    /// stands for, such as those of a mapping that failed. Frees the folio with the last reference.
    /// (Mappings whose PTEs were cleared go through a [`crate::tlb::Gather`].)
    /// Freeing a folio that is in the swap cache calls `resched`, so a caller that holds a spin
    /// lock must know that this folio is not in the swap cache.
    #[cold]
    pub(crate) fn put_folio(&self, head: Pfn, refs: u32, maps: u32) {
        let frame = self.frames.frame(head);
        if self.frames.put(head, frame, refs, maps).refs == 0 {
            self.free_folio(head, frame);
        }
    }

    /// Drops references that do not belong to mappings, so that the mapcount stays, and frees the
    /// folio with the last reference. If the folio is in the swap cache, freeing it calls
    /// `resched`.
    #[inline]
    pub(crate) fn put_refs(&self, head: Pfn, frame: &Frame, refs: u32) {
        if self.frames.put(head, frame, refs, 0).refs == 0 {
            self.free_folio(head, frame);
        }
    }

    /// Removes a folio from the swap cache (Linux: `folio_free_swap`), so that no other CPU finds
    /// it by its slots, before the caller frees or writes to it. `alone` returns true if the folio
    /// has only the references and mappings that the caller knows of. It is called under the lock
    /// of each swap cluster with slots of the folio, under which other CPUs look the folio up.
    /// Returns true if `alone` returned true each time; if not, some of the folio's pages may have
    /// been removed.
    #[inline]
    pub(crate) fn uncache(&self, head: Pfn, frame: &Frame, alone: impl Fn() -> bool) -> bool {
        !frame.has(flag::SWAP_CACHED) || self.swaps.delete_from_cache(&self.frames, head, 1 << frame.order(), alone)
    }

    /// Removes a folio from the swap cache like [`Machine::uncache`], in parts ([`UNCACHE_ORDER`]),
    /// with a call of `resched` after each part (INV-11). The caller holds no spin lock.
    #[cold]
    pub(crate) fn uncache_in_parts(&self, head: Pfn, frame: &Frame, alone: impl Fn() -> bool) -> bool {
        let parts = (0..1 << frame.order()).step_by(1 << UNCACHE_ORDER);
        !frame.has(flag::SWAP_CACHED)
            || parts.fold(true, |all, at| {
                let removed = self.swaps.delete_from_cache(
                    &self.frames,
                    head.add(at),
                    1 << frame.order().min(UNCACHE_ORDER),
                    &alone,
                );
                self.platform().resched();
                all && removed
            })
    }

    /// Removes one part ([`UNCACHE_ORDER`]) of a folio from the swap cache, if the folio is larger
    /// than a part and in the swap cache, so that a caller that holds a page table's lock keeps it
    /// for a bounded time (INV-11). Returns true if a part was removed.
    pub(crate) fn uncache_part(&self, head: Pfn, frame: &Frame, alone: impl Fn() -> bool) -> bool {
        let order = frame.order();
        order > UNCACHE_ORDER
            && frame.has(flag::SWAP_CACHED)
            && (0..1 << order).step_by(1 << UNCACHE_ORDER).any(|at| {
                self.swaps.slot_of(self.platform(), head.add(at)).is_some()
                    && self.swaps.delete_from_cache(&self.frames, head.add(at), 1 << UNCACHE_ORDER, &alone)
            })
    }

    /// Frees a folio that has no reference left: removes it from the swap cache, uncharges it, and
    /// frees its frames.
    #[cold]
    fn free_folio(&self, head: Pfn, frame: &Frame) {
        let order = frame.order();
        if frame.has(flag::HUGETLB) {
            return self.huge_pool().give_back(head);
        }
        self.uncache_in_parts(head, frame, || true);
        Uncharger::new(&self.frames, &self.memcgs).uncharge(head, frame, 1 << order);
        // SAFETY: the last reference is gone, no page table maps the folio, and it is uncharged.
        unsafe { self.frames.free(head, 1 << order, false, Use::Folio) };
    }

    /// Returns a serial number that is not 0 and was never returned before: for page-cache objects
    /// and isolation batches.
    pub(crate) fn next_serial(&self) -> u64 {
        self.serials.fetch_add(1, Relaxed)
    }

    /// Returns the identifier for a space that is about to be created. Identifiers ascend.
    pub(crate) fn next_space(&self) -> SpaceId {
        SpaceId(self.spaces.fetch_add(1, AcqRel))
    }

    /// Returns an upper bound of the identifiers of all spaces that exist now. The CPU that creates
    /// a space with this identifier or a higher one sees what the caller wrote before the call.
    pub(crate) fn spaces_end(&self) -> SpaceId {
        // This is a read-modify-write and not a load, so that the read-modify-write that creates a
        // later space follows it in the modification order, and acquires what this one releases.
        SpaceId(self.spaces.fetch_add(0, AcqRel))
    }
}

/// log2 of the number of frames that are removed from the swap cache between two calls of
/// `resched`.
const UNCACHE_ORDER: u8 = 7;

const _: () = assert!(COUNTERS * 8 <= size_of::<CounterSlot>() && SIZES == LARGEST_FOLIO as usize + 1);

/// Allocates zeroed memory that is never freed, aligned to a frame.
fn alloc_permanent<P: Platform>(frames: &Frames<'_, P>, bytes: usize) -> Result<*mut u8, OutOfMemory> {
    let order = bytes.div_ceil(FRAME_SIZE as usize).next_power_of_two().trailing_zeros() as u8;
    Ok(frames.at(frames.alloc(order, true, Use::Kernel)?.addr()).as_ptr())
}

// SAFETY: the type has only atomics, of which zeros are a valid value, and its alignment of 128
// bytes is less than a frame's.
unsafe impl Zeroable for CounterSlot {}

/// Allocates a slice of zeroed elements that is never freed.
fn alloc_permanent_slice<'p, T: Zeroable, P: Platform>(
    frames: &Frames<'p, P>,
    len: usize,
) -> Result<&'p [T], OutOfMemory> {
    let at = alloc_permanent(frames, len * size_of::<T>())?;
    // SAFETY: the memory is zeroed, large enough, aligned to a frame, not shared, and never freed;
    // zeros are a valid `T`.
    Ok(unsafe { core::slice::from_raw_parts(at.cast::<T>(), len) })
}
