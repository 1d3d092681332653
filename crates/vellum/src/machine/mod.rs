//! A machine's memory as a whole: what all its address spaces share.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::policy::FolioPolicy;
use crate::frame::{
    BootError, BootOptions, Counts, Frame, FrameKind, Frames, HUGE_ORDER, LARGEST_FOLIO, OutOfMemory, Use, Zeroable,
    flag,
};
use crate::memcg::{LruvecId, MemcgId, Memcgs, Uncharger};
use crate::platform::{Platform, SpaceId};
use crate::stats::{COUNTERS, Counter, CounterSlot, SIZES, SizeCounter};
use crate::swap::Swaps;
use crate::sync::{SpinLock, Walkers};

mod scratch;

use scratch::Sheet;
pub(crate) use scratch::{Scratch, Stretch};

/// The memory of one machine. Any number of them live side by side in one process.
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
    counters: &'p [CounterSlot],
    sheets: &'p [Sheet],
    zeros: Zeros,
    swaps: Swaps<P>,
    objects: SpinLock<Objects>,
    spaces: AtomicU64,
    numbers: AtomicU64,
}

/// The memory objects that may have something on swap devices, linked through their heads (see [`crate::page_cache`]).
pub(crate) struct Objects {
    pub(crate) first: Pfn,
}

/// The folio of zeros, which read faults map. Entries that map it are present runs like any other; that they count as
/// nothing is said by the folio ([`flag::ZEROS`]) and known from the frame's number alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zeros {
    pub(crate) pfn: Pfn,
    pub(crate) order: u8,
}

impl Zeros {
    /// Whether a frame is one of its.
    #[inline]
    pub(crate) fn contains(&self, pfn: Pfn) -> bool {
        pfn.0.wrapping_sub(self.pfn.0) < 1 << self.order
    }
}

/// log2 of the frames of the largest page that a format has: 64 KiB (AArch64).
const LARGEST_PAGE: u8 = 4;

impl<'p, P: Platform> Machine<'p, P> {
    /// Take over the host's memory and set up what every address space needs.
    ///
    /// # Errors
    /// [`BootError`], before anything outside the host's regions is touched.
    pub fn boot(platform: &'p P, options: BootOptions) -> Result<Self, BootError> {
        let frames = Frames::boot(platform, options)?;
        let too_small = |_: OutOfMemory| BootError::TooSmall(FRAME_SIZE);
        let cpus = platform.count();
        let memcgs = Memcgs::boot(&frames).map_err(too_small)?;
        // SAFETY: `kept` gives zeroed memory for good, of the size asked for, aligned to a frame.
        let walkers = unsafe { Walkers::new(kept(&frames, Walkers::bytes(cpus)).map_err(too_small)?, cpus) };
        let counters = kept_slice::<CounterSlot, P>(&frames, cpus).map_err(too_small)?;
        let sheets = kept_slice::<Sheet, P>(&frames, cpus).map_err(too_small)?;
        let swaps = Swaps::new(&frames).map_err(too_small)?;
        let zeros = Self::zeros(&frames).map_err(too_small)?;
        Ok(Machine {
            frames,
            memcgs,
            walkers,
            policy: FolioPolicy::default(),
            counters,
            sheets,
            zeros,
            swaps,
            objects: SpinLock::new(Objects { first: Pfn::NONE }),
            spaces: AtomicU64::new(1),
            numbers: AtomicU64::new(1),
        })
    }

    /// A huge page of zeros on a machine that can spare it; a smaller one, of at most a thousandth of memory, otherwise, but
    /// at least the largest page of any format.
    ///
    /// The frames on either side of it are kept too. So no run of entries has zeros and something else in it, which counts
    /// and must be freed.
    fn zeros(frames: &Frames<'p, P>) -> Result<Zeros, OutOfMemory> {
        let order = ((frames.total() / 1024).max(1).ilog2() as u8).clamp(LARGEST_PAGE, HUGE_ORDER);
        let size = 1 << order;
        let block = frames.alloc(order + 2, true, Use::Folio)?;
        let pfn = block.add(size);
        // SAFETY: of four pieces that were just allocated, all of the first but its last frame, and all behind the second but
        // its first: nobody knows of them, and they are as zero as they came.
        unsafe {
            frames.free(block, size - 1, true, Use::Folio);
            frames.free(pfn.add(size + 1), 2 * size - 1, true, Use::Folio);
        }
        for fence in [block.add(size - 1), pfn.add(size)] {
            frames.frame(fence).become_kind(FrameKind::Private, 0, 0);
        }
        frames.make_folio(pfn, order, flag::ZEROS, Counts { refs: 1, maps: 0 });
        Ok(Zeros { pfn, order })
    }

    /// Its frames.
    #[inline]
    pub fn frames(&self) -> &Frames<'p, P> {
        &self.frames
    }

    /// Its host.
    #[inline]
    pub fn platform(&self) -> &'p P {
        self.frames.platform()
    }

    /// Its memcgs.
    #[inline]
    pub fn memcgs(&self) -> &Memcgs<'p> {
        &self.memcgs
    }

    /// Its swap devices.
    #[inline]
    pub fn swaps(&self) -> &Swaps<P> {
        &self.swaps
    }

    /// Which folio sizes faults may use.
    #[inline]
    pub fn policy(&self) -> &FolioPolicy {
        &self.policy
    }

    /// What a counter stands at.
    pub fn counter(&self, counter: Counter) -> u64 {
        // One that goes down may have come up on another CPU.
        self.counters.iter().fold(0, |sum, c| sum.wrapping_add(c.get(counter)))
    }

    /// What a counter of large folios of one order stands at.
    pub fn size_counter(&self, counter: SizeCounter, order: u8) -> u64 {
        self.counters.iter().map(|c| c.get_size(counter, order)).sum()
    }

    /// How many pages (of 4 KiB) are in a slot as well, of those that are charged to groups of which this says so; locks are held when it is
    /// asked. Looks at every slot of the devices that have such.
    pub fn swap_cached(&self, of: impl Fn(MemcgId) -> bool) -> u64 {
        let mut pages = 0;
        self.swaps.each_copy(&self.frames, |copy| {
            pages += u64::from(of(LruvecId::unpack(self.frames.head(copy).1.lruvec()).memcg));
        });
        pages
    }

    #[inline]
    pub(crate) fn count_size(&self, counter: SizeCounter, order: u8) {
        self.counters[self.platform().current()].add_size(counter, order);
    }

    #[inline]
    pub(crate) fn count(&self, counter: Counter, n: u64) {
        self.counters[self.platform().current()].add(counter, n);
    }

    #[inline]
    pub(crate) fn walkers(&self) -> &Walkers<'p> {
        &self.walkers
    }

    pub(crate) fn objects(&self) -> &SpinLock<Objects> {
        &self.objects
    }

    #[inline]
    pub(crate) fn zeros_folio(&self) -> Zeros {
        self.zeros
    }

    /// Drop references and mappings of a folio that no page table has; the last one frees it. (What leaves a page table goes
    /// through a [`crate::tlb::Gather`].)
    #[cold]
    pub(crate) fn put_folio(&self, head: Pfn, refs: u32, maps: u32) {
        let frame = self.frames.frame(head);
        if self.frames.put(head, frame, refs, maps).refs == 0 {
            self.free_folio(head, frame);
        }
    }

    /// Drop references that are nobody's mappings.
    #[inline]
    pub(crate) fn put_refs(&self, head: Pfn, frame: &Frame, refs: u32) {
        if self.frames.put(head, frame, refs, 0).refs == 0 {
            self.free_folio(head, frame);
        }
    }

    /// A folio is to be freed or changed, which somebody has `alone`: its slots are given up, so that nobody else finds it. Whether he
    /// has it alone until then; if not, some may have been given up.
    #[inline]
    pub(crate) fn uncache(&self, head: Pfn, frame: &Frame, alone: impl Fn() -> bool) -> bool {
        !frame.has(flag::SWAP_CACHED) || self.swaps.uncache(&self.frames, head, 1 << frame.order(), alone)
    }

    /// The same a part at a time, for a caller that holds no spin lock.
    #[cold]
    pub(crate) fn uncache_in_parts(&self, head: Pfn, frame: &Frame, alone: impl Fn() -> bool) -> bool {
        let parts = (0..1 << frame.order()).step_by(1 << UNCACHED);
        !frame.has(flag::SWAP_CACHED)
            || parts.fold(true, |all, at| {
                let given_up = self.swaps.uncache(&self.frames, head.add(at), 1 << frame.order().min(UNCACHED), &alone);
                self.platform().resched();
                all && given_up
            })
    }

    /// Of a folio that is larger than such a part, gives up the slots of one. Whether it had any.
    pub(crate) fn uncache_part(&self, head: Pfn, frame: &Frame, alone: impl Fn() -> bool) -> bool {
        let order = frame.order();
        order > UNCACHED
            && frame.has(flag::SWAP_CACHED)
            && (0..1 << order).step_by(1 << UNCACHED).any(|at| {
                self.swaps.slot_of(self.platform(), head.add(at)).is_some()
                    && self.swaps.uncache(&self.frames, head.add(at), 1 << UNCACHED, &alone)
            })
    }

    #[cold]
    fn free_folio(&self, head: Pfn, frame: &Frame) {
        let order = frame.order();
        self.uncache_in_parts(head, frame, || true);
        Uncharger::new(&self.frames, &self.memcgs).uncharge(head, frame, 1 << order);
        // SAFETY: the last reference is gone, no page table has it, and it left its memcg's lists.
        unsafe { self.frames.free(head, 1 << order, false, Use::Folio) };
    }

    /// A number that was never given out before, and is not 0.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Relaxed)
    }

    /// Returns the number of a space that is about to come. Numbers are given out in ascending
    /// order.
    pub(crate) fn next_space(&self) -> SpaceId {
        SpaceId(self.spaces.fetch_add(1, AcqRel))
    }

    /// Returns the number that the next space will have, or one that came meanwhile has. A space
    /// with this number or a higher one finds what the caller has written before.
    pub(crate) fn spaces_end(&self) -> SpaceId {
        // Not a load: a number that is given out later follows this in the order of changes, and so
        // acquires what this releases.
        SpaceId(self.spaces.fetch_add(0, AcqRel))
    }
}

/// log2 of the frames whose slots are given up in one go.
const UNCACHED: u8 = 7;

const _: () = assert!(COUNTERS * 8 <= size_of::<CounterSlot>() && SIZES == LARGEST_FOLIO as usize + 1);

/// Zeroed memory that is never given back.
fn kept<P: Platform>(frames: &Frames<'_, P>, bytes: usize) -> Result<*mut u8, OutOfMemory> {
    let order = bytes.div_ceil(FRAME_SIZE as usize).next_power_of_two().trailing_zeros() as u8;
    Ok(frames.at(frames.alloc(order, true, Use::Kernel)?.addr()).as_ptr())
}

// SAFETY: atomics only; 128-byte alignment.
unsafe impl Zeroable for CounterSlot {}

fn kept_slice<'p, T: Zeroable, P: Platform>(frames: &Frames<'p, P>, len: usize) -> Result<&'p [T], OutOfMemory> {
    let at = kept(frames, len * size_of::<T>())?;
    // SAFETY: zeroed, large enough, aligned to a frame, nobody else's, never given back; zeros are a valid `T`.
    Ok(unsafe { core::slice::from_raw_parts(at.cast::<T>(), len) })
}
