//! The swap cache: pages in memory that have the contents of a swap slot (Linux: `swap_state.c`).
//!
//! A slot records the frame of its *swap-cache page*, under the lock of its cluster. Conversely
//! each frame has a *hint*, the slot of which it may be the swap-cache page; the slot's record
//! confirms or refutes the hint. A frame is the swap-cache page of at most one slot. The swap cache
//! holds a reference to the slot, so page and slot have the same contents until the page is deleted
//! from the cache.
//!
//! Nothing writes to a swap-cache page (INV-15): a page is deleted from the cache before a write in
//! place and before its frame is freed. Being cached does not keep a page in memory.
//!
//! The swap cache has two uses. A page that was swapped in and not written to can be paged out
//! again without a write to the device. And a slot that several address spaces refer to is swapped
//! in once: the second space finds the page by the slot and maps the same folio.
//!
//! A slot to which only its swap-cache page refers can be reclaimed at any time.

use core::cell::Cell;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::cluster::{LockedCluster, SLOTS, SlotSet};
use super::paged::Paged;
use super::slots::{ClusterRange, by_cluster};
use super::swap_info::SwapInfo;
use super::swaps::ActiveDevices;
use super::{MAX_SWAP_DEVICES, SlotAllocator, Slots, SwapRun, Swaps};
use crate::addr::Pfn;
use crate::frame::{Frames, OutOfMemory, Zeroable, flag};
use crate::platform::{Event, FailPoint, Platform, allows, trace};

/// The swap-cache pages of a cluster's slots. Each slot has a word with the bitwise inverse of the
/// page's frame number, so that 0 stands for no page.
pub(super) struct ClusterCache([AtomicU32; SLOTS as usize]);

// SAFETY: it consists of atomic integers, for which 0 is valid.
unsafe impl Zeroable for ClusterCache {}

impl ClusterCache {
    /// Returns the entries of these slots.
    pub(super) fn of(&self, range: &Range<u32>) -> &[AtomicU32] {
        &self.0[range.start as usize..range.end as usize]
    }
}

/// A slot of a swap device.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SlotId {
    /// The device.
    device: u8,
    /// The slot of that device.
    slot: u32,
}

/// For each frame, the slot of which it may be the swap-cache page (Linux: `folio->swap`).
pub(super) struct SwapHints(Paged<SwapHint>);

/// A hint: the numbers of a device and of one of its slots, and [`SwapHint::VALID`]. 0 stands for
/// no hint.
pub(super) struct SwapHint(AtomicU64);

// SAFETY: it is an atomic integer, for which 0 is valid.
unsafe impl Zeroable for SwapHint {}

impl SwapHint {
    /// The bit that is set in every hint.
    const VALID: u64 = 1 << 63;

    /// Returns the slot, if there is a hint.
    fn get(&self) -> Option<SlotId> {
        let raw = self.0.load(Relaxed);
        (raw & SwapHint::VALID != 0).then_some(SlotId { device: (raw >> 32) as u8, slot: raw as u32 })
    }

    /// Sets the hint.
    fn set(&self, SlotId { device, slot }: SlotId) {
        self.0.store(SwapHint::VALID | u64::from(device) << 32 | u64::from(slot), Relaxed);
    }
}

impl SwapHints {
    /// Allocates empty hints for all frames of the machine, eight bytes each.
    ///
    /// # Errors
    /// [`OutOfMemory`]: there is not enough memory, and none stays allocated.
    pub(super) fn new<P: Platform>(frames: &Frames<'_, P>) -> Result<Self, OutOfMemory> {
        Ok(SwapHints(Paged::with_holes(frames, frames.end().0, |first| frames.get(Pfn(first)).is_some())?))
    }

    /// Returns the hint of a frame: the slot of which it may be the swap-cache page.
    fn of(&self, pfn: Pfn) -> &SwapHint {
        self.0.get(pfn.0)
    }

    /// Frees the memory.
    pub(super) fn free<P: Platform>(self, frames: &Frames<'_, P>) {
        self.0.free(frames);
    }
}

/// Swap-cache pages in consecutive frames. For each page the folio's refcount and mapcount were
/// raised by one for the caller, which maps the page or drops both.
pub(crate) struct CachedPages {
    /// The first frame.
    pub(crate) pfn: Pfn,
    /// The number of frames.
    pub(crate) frames: u32,
}

/// The reason why frames did not become swap-cache pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotCached {
    /// One of the slots has a swap-cache page.
    Taken,
    /// The slots are not in one cluster, or no device is attached, or fault injection refused it.
    Refused,
}

/// Returns `slots` as a range of one cluster, or `None` if they are not all in one.
fn single_cluster(slots: Slots) -> Option<ClusterRange> {
    let mut all = by_cluster(slots);
    let first = all.next()?;
    all.next().is_none().then_some(first)
}

impl SlotAllocator {
    /// Records the frames from `pfn` on as the swap-cache pages of `slots`, all of them or none.
    /// Takes the cluster's lock.
    ///
    /// # Errors
    /// [`NotCached`]; nothing was changed.
    fn add_to_cache<P: Platform>(&self, platform: &P, slots: Slots, pfn: Pfn) -> Result<(), NotCached> {
        let Some(ClusterRange { index, range }) =
            single_cluster(slots).filter(|_| allows(platform, FailPoint::References))
        else {
            return Err(NotCached::Refused);
        };
        trace(platform, || Event::Step);
        let mut cluster = self.lock(platform, index);
        let cached_frames = self.cached_frames.get(index).of(&range);
        if cached_frames.iter().any(|cached| cached.load(Relaxed) != 0) {
            return Err(NotCached::Taken);
        }
        // The swap cache has at most one reference to a slot, so the counts cannot overflow.
        cluster.get_transient(&range);
        cached_frames.iter().zip(pfn.0..).for_each(|(cached, frame)| cached.store(!frame, Relaxed));
        self.cached.fetch_add(slots.count, Relaxed);
        Ok(())
    }

    /// Returns how many of these slots, counted from the first, have consecutive frames from `pfn`
    /// on as their swap-cache pages. The caller holds the cluster's lock.
    fn cached_run_len(&self, index: u32, range: &Range<u32>, pfn: Pfn) -> u32 {
        let cached_frames = self.cached_frames.get(index).of(range).iter().zip(pfn.0..);
        cached_frames.take_while(|(cached, frame)| cached.load(Relaxed) == !*frame).count() as u32
    }

    /// Raises the refcount and mapcount of the swap-cache pages of `slots`: see
    /// [`Swaps::get_cached`].
    fn get_cached<P: Platform>(&self, frames: &Frames<'_, P>, slots: Slots, order: u8) -> Option<CachedPages> {
        let ClusterRange { index, range } = by_cluster(slots).next()?;
        trace(frames.platform(), || Event::Step);
        // Freeing a swap-cache page requires deleting it from the cache first, under this lock.
        let _cluster = self.lock(frames.platform(), index);
        let pfn = Pfn(!self.cached_frames.get(index).of(&range)[0].load(Relaxed)).some()?;
        let run_len = self.cached_run_len(index, &range, pfn) >> order << order;
        let mut taken = 0;
        if pfn.is_aligned(order) {
            for (head, frame, pages) in frames.folios(pfn, run_len) {
                if !frames.try_get(head, frame, pages, pages) {
                    break;
                }
                taken += pages;
            }
        }
        (taken > 0).then_some(CachedPages { pfn, frames: taken })
    }

    /// Adds a reference to each slot from `slot` on, at most `limit`, as long as the frames from
    /// `pfn` on are their swap-cache pages. The number of slots is rounded down to a multiple of
    /// `1 << order`. Returns these slots, or `None` if there are fewer than `1 << order`, if `slot`
    /// is not aligned to that number, or if a slot has the maximum number of references.
    fn duplicate_cached<P: Platform>(&self, platform: &P, slot: u32, pfn: Pfn, limit: u32, order: u8) -> Option<Slots> {
        let ClusterRange { index, range } =
            by_cluster(Slots { first: slot, count: limit.min(self.len() - slot) }).next()?;
        trace(platform, || Event::Step);
        let mut cluster = self.lock(platform, index);
        let count = self.cached_run_len(index, &range, pfn) >> order << order;
        if count == 0 || !slot.is_multiple_of(1 << order) || !allows(platform, FailPoint::References) {
            return None;
        }
        cluster.duplicate(&(range.start..range.start + count)).ok()?;
        Some(Slots { first: slot, count })
    }

    /// Deletes from the cache those swap-cache pages of a cluster's slots for which `selects`
    /// returns true. `selects` gets the slot's index in the cluster and the frame, and runs under
    /// the cluster's lock. Slots without other references are passed to `forget` and become free.
    /// Returns the number of slots that became free.
    fn delete_from_cache<P: Platform>(
        &self,
        platform: &P,
        ClusterRange { index, range }: ClusterRange,
        selects: impl Fn(&LockedCluster<'_, P>, u32, Pfn) -> bool,
        forget: impl FnMut(Slots),
    ) -> u32 {
        let cached_frames = self.cached_frames.get(index);
        let delete = |cluster: &mut LockedCluster<'_, P>| {
            let mut dead = SlotSet::default();
            for at in range {
                let cached = &cached_frames.0[at as usize];
                if Pfn(!cached.load(Relaxed)).some().is_some_and(|pfn| selects(cluster, at, pfn)) {
                    cached.store(0, Relaxed);
                    self.cached.fetch_sub(1, Relaxed);
                    dead.add(&cluster.release(&(at..at + 1)));
                }
            }
            dead
        };
        self.release_in(platform, index, delete, forget)
    }
}

impl<P: Platform> Swaps<P> {
    /// Makes the frames from `pfn` on the swap-cache pages of the slots of `run`, so that they can
    /// be found by their slots (Linux: `add_to_swap_cache`). If a frame already is the swap-cache
    /// page of another slot, it is first deleted from the cache as that slot's page.
    ///
    /// # Errors
    /// [`NotCached`]; no frame is then a swap-cache page of these slots.
    ///
    /// # Safety
    /// The caller has a reference to each slot and to the folios, and no other CPU adds these
    /// folios to the cache during the call. Slots and frames have the same contents, and every CPU
    /// that may write to the frames deletes them from the cache first.
    pub(crate) unsafe fn add_to_cache(&self, frames: &Frames<'_, P>, run: SwapRun, pfn: Pfn) -> Result<(), NotCached> {
        let active = self.active(frames.platform());
        let Some(hints) = &active.hints else { return Err(NotCached::Refused) };
        let mut was_cached = false;
        for (_, frame, _) in frames.folios(pfn, run.slots.count) {
            was_cached |= frame.set_flag(flag::SWAP_CACHED);
        }
        if was_cached {
            self.delete_run_from_cache(frames, &active, pfn, run.slots.count, || true);
        }
        (0..run.slots.count)
            .for_each(|i| hints.of(pfn.add(i)).set(SlotId { device: run.device, slot: run.slots.first + i }));
        // SAFETY: the caller has references to the slots.
        unsafe { self.device(run.device) }.slots.add_to_cache(frames.platform(), run.slots, pfn)
    }

    /// Returns true if any of these slots has a swap-cache page, or if they are not in one cluster.
    /// If false, [`Swaps::add_to_cache`] may succeed for all of them. Takes no lock, so the result
    /// may be outdated on return.
    ///
    /// # Safety
    /// Each slot has a reference during the call.
    pub(crate) unsafe fn is_cached(&self, run: SwapRun) -> bool {
        // SAFETY: a slot of the device has a reference during the call (this contract).
        let slots = unsafe { &self.device(run.device).slots };
        let is_cached = |cached: &AtomicU32| cached.load(Relaxed) != 0;
        single_cluster(run.slots)
            .is_none_or(|ClusterRange { index, range }| slots.cached_frames.get(index).of(&range).iter().any(is_cached))
    }

    /// Raises by one the folio's refcount and mapcount for each swap-cache page of the slots of
    /// `run`, from the first slot on, as long as the frames are consecutive and still in use
    /// (Linux: `swap_cache_get_folio`). Returns `None` if the first frame is not a multiple of `1
    /// << order`, or if fewer than `1 << order` frames qualify; the folio may then be about to be
    /// freed.
    ///
    /// # Safety
    /// Each slot has a reference during the call.
    pub(crate) unsafe fn get_cached(&self, frames: &Frames<'_, P>, run: SwapRun, order: u8) -> Option<CachedPages> {
        // SAFETY: a slot of the device has a reference during the call (this contract).
        unsafe { self.device(run.device) }.slots.get_cached(frames, run.slots, order)
    }

    /// Finds the slots whose swap-cache pages are the frames from `pfn` on: at most `limit` slots,
    /// and a number rounded down to a multiple of `1 << order`. Adds a reference to each slot for
    /// the caller. The caller has a reference to the folios. Returns `None` if fewer than `1 <<
    /// order` such slots exist.
    pub(crate) fn slots_of(&self, frames: &Frames<'_, P>, pfn: Pfn, limit: u32, order: u8) -> Option<SwapRun> {
        if !frames.head(pfn).1.has(flag::SWAP_CACHED) {
            return None;
        }
        let active = self.active(frames.platform());
        let SlotId { device, slot } = self.hint(&active, pfn)?;
        // SAFETY: the device is in the list, which this CPU has locked.
        let slots = unsafe { &self.device(device).slots };
        let slots = slots.duplicate_cached(frames.platform(), slot, pfn, limit, order)?;
        Some(SwapRun { device, slots })
    }

    /// Returns the slot of which a frame is the swap-cache page, as a run of one slot. The result
    /// may be outdated on return, because the page may leave the cache at any time.
    pub fn slot_of(&self, platform: &P, pfn: Pfn) -> Option<SwapRun> {
        let active = self.active(platform);
        let SlotId { device, slot } = self.hint(&active, pfn)?;
        // SAFETY: the device is in the list, which this CPU has locked.
        let slots = unsafe { &self.device(device).slots };
        let ClusterRange { index, range } = by_cluster(Slots { first: slot, count: 1 }).next()?;
        let _cluster = slots.lock(platform, index);
        (slots.cached_run_len(index, &range, pfn) == 1)
            .then_some(SwapRun { device, slots: Slots { first: slot, count: 1 } })
    }

    /// Deletes frames from the swap cache, because they are to be freed or written to (Linux:
    /// `delete_from_swap_cache`). A frame is deleted only if `can_delete` returns true.
    /// `can_delete` is called under the cluster's lock. So its check of the folio's references
    /// stays valid: without that lock no CPU can find the frame by its slot and take a reference.
    /// Returns true if all frames were deleted or were not cached.
    #[cold]
    pub(crate) fn delete_from_cache(
        &self,
        frames: &Frames<'_, P>,
        pfn: Pfn,
        count: u32,
        can_delete: impl Fn() -> bool,
    ) -> bool {
        self.delete_run_from_cache(frames, &self.active(frames.platform()), pfn, count, can_delete)
    }

    /// Returns the slot of which a frame may be the swap-cache page, if the hint names a slot that
    /// exists on an attached device.
    fn hint(&self, active: &ActiveDevices, pfn: Pfn) -> Option<SlotId> {
        let hint = active.hints.as_ref()?.of(pfn).get().filter(|hint| active.ids().contains(&hint.device))?;
        // SAFETY: the device is in the list, which this CPU has locked. (A new device may have the
        // number of a detached one that the hint names; the slot's record refutes such a hint.)
        let len = unsafe { self.device(hint.device) }.slots.len();
        (hint.slot < len).then_some(hint)
    }

    /// Deletes frames from the swap cache with the list of devices locked: see
    /// [`Swaps::delete_from_cache`]. Frames of consecutive slots are handled together.
    fn delete_run_from_cache(
        &self,
        frames: &Frames<'_, P>,
        active: &ActiveDevices,
        pfn: Pfn,
        count: u32,
        can_delete: impl Fn() -> bool,
    ) -> bool {
        let (all, mut at) = (Cell::new(true), 0);
        while at < count {
            let first = pfn.add(at);
            let Some(SlotId { device, slot }) = self.hint(active, first) else {
                at += 1;
                continue;
            };
            // SAFETY: the device is in the list, which this CPU has locked.
            let info = unsafe { self.device(device) };
            let limit = (info.slots.len() - slot).min(count - at);
            let follows = |i: &u32| self.hint(active, first.add(*i)) == Some(SlotId { device, slot: slot + i });
            let run_len = 1 + (1..limit).take_while(follows).count() as u32;
            for ClusterRange { index, range } in by_cluster(Slots { first: slot, count: run_len }) {
                // A CPU that finds the frame by its slot does so under the cluster's lock, which is
                // held here.
                let selects = |_: &LockedCluster<'_, P>, at: u32, cached: Pfn| {
                    let is_ours = cached.0 == first.0 + (index * SLOTS + at - slot);
                    let is_permitted = !is_ours || can_delete();
                    all.set(all.get() && is_permitted);
                    is_ours && is_permitted
                };
                // SAFETY: the slots in `dead` have no reference any more, and get none before they
                // are free, so no other CPU accesses them.
                let forget = |dead| unsafe { info.forget(frames, dead) };
                info.slots.delete_from_cache(frames.platform(), ClusterRange { index, range }, selects, forget);
            }
            at += run_len;
        }
        all.get()
    }

    /// Frees all slots to which only their swap-cache pages refer (Linux: `__try_to_reclaim_swap`).
    /// Returns the number of freed slots. The caller holds no spin lock.
    #[cold]
    pub(crate) fn reclaim_cached_slots(&self, frames: &Frames<'_, P>) -> u64 {
        (0..MAX_SWAP_DEVICES as u8).map(|device| self.reclaim_cached_slots_of(frames, device)).sum()
    }

    /// Frees the slots of one device to which only their swap-cache pages refer, if the device is
    /// attached: see [`Swaps::reclaim_cached_slots`]. Returns the number of freed slots.
    pub(super) fn reclaim_cached_slots_of(&self, frames: &Frames<'_, P>, device: u8) -> u64 {
        let mut freed = 0;
        self.each_cluster(frames, device, |info, index| {
            let has_no_other = |cluster: &LockedCluster<'_, P>, at: u32, _| cluster.references(at) == 1;
            // SAFETY: the slots in `dead` have no reference any more, and get none before they are
            // free, so no other CPU accesses them.
            let forget = |dead| unsafe { info.forget(frames, dead) };
            freed += u64::from(info.slots.delete_from_cache(
                frames.platform(),
                ClusterRange { index, range: 0..SLOTS },
                has_no_other,
                forget,
            ));
        });
        freed
    }

    /// Calls `visit` for every swap-cache page. No page is freed before `visit` returns, because
    /// the cluster of the page's slot is locked until then.
    pub(crate) fn each_cached_page(&self, frames: &Frames<'_, P>, mut visit: impl FnMut(Pfn)) {
        for device in 0..MAX_SWAP_DEVICES as u8 {
            self.each_cluster(frames, device, |SwapInfo { slots, .. }, index| {
                let _cluster = slots.lock(frames.platform(), index);
                let cached_frames = slots.cached_frames.get(index).0.iter();
                cached_frames.filter_map(|cached| Pfn(!cached.load(Relaxed)).some()).for_each(&mut visit);
            });
        }
    }

    /// Calls `visit` for each cluster of a device while the device is attached and has swap-cache
    /// pages. The CPU may be rescheduled between two clusters.
    fn each_cluster(&self, frames: &Frames<'_, P>, device: u8, mut visit: impl FnMut(&SwapInfo<P>, u32)) {
        for index in 0.. {
            let active = self.active(frames.platform());
            if !active.ids().contains(&device) {
                break;
            }
            // SAFETY: the device is in the list, which this CPU has locked.
            let info = unsafe { self.device(device) };
            if index == info.slots.clusters.len() || info.slots.cached.load(Relaxed) == 0 {
                break;
            }
            visit(info, index);
            drop(active);
            frames.platform().resched();
        }
    }

    /// Returns true if a device should keep no slot for a page that is in memory (Linux:
    /// `vm_swap_full`): less than half of its slots are free, or it is closed for allocation.
    ///
    /// # Safety
    /// One of the device's slots has a reference during the call.
    pub(crate) unsafe fn is_half_full(&self, device: u8) -> bool {
        // SAFETY: a slot of the device has a reference during the call (this contract).
        let slots = unsafe { &self.device(device).slots };
        slots.is_closed() || slots.free_slots() < slots.len() / 2
    }
}
