//! The swap cache: what is in memory and in a slot as well.
//!
//! Of a slot it is known which frame holds the same, its *copy*; and of a frame where its slot may be, its *place*. What is said of the
//! slot is true as long as it stands there, under the lock of its cluster; the place is a hint, which the slot confirms. A frame is
//! the copy of one slot at most. Being a copy is a reference to the slot, so contents and copy are the same until it is given up.
//!
//! Nobody writes to a copy (INV-15): who wants to, in place, has its slot given up first. So is that of whatever is freed; a copy is
//! not kept in memory by being one. Thus what comes back by being read can go again without being written, and what several have in one
//! slot comes back to all of them as one folio: whoever comes second finds it by the slot.
//!
//! Where nothing but its copy refers to a slot, it can be had back at any time.

use core::cell::Cell;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::attached::Attached;
use super::cluster::{Locked, SLOTS, SlotSet};
use super::paged::Paged;
use super::slots::pieces;
use super::swaps::Order;
use super::{DEVICES, SlotAllocator, Slots, SwapRun, Swaps};
use crate::addr::Pfn;
use crate::frame::{Frames, OutOfMemory, Zeroable, flag};
use crate::platform::{Event, Platform, Wanted, allows, trace};

/// The copies of a cluster's slots, as frame numbers with all bits turned over: zeros are none.
pub(super) struct Copies([AtomicU32; SLOTS as usize]);

// SAFETY: atomics only.
unsafe impl Zeroable for Copies {}

impl Copies {
    pub(super) fn of(&self, range: &Range<u32>) -> &[AtomicU32] {
        &self.0[range.start as usize..range.end as usize]
    }
}

/// The place of each frame.
pub(super) struct Places(Paged<Place>);

/// Zeros are none, else a device, a slot, and [`Place::SOME`].
pub(super) struct Place(AtomicU64);

// SAFETY: an atomic.
unsafe impl Zeroable for Place {}

impl Place {
    const SOME: u64 = 1 << 63;

    fn get(&self) -> Option<(u8, u32)> {
        let raw = self.0.load(Relaxed);
        (raw & Place::SOME != 0).then_some(((raw >> 32) as u8, raw as u32))
    }

    fn set(&self, device: u8, slot: u32) {
        self.0.store(Place::SOME | u64::from(device) << 32 | u64::from(slot), Relaxed);
    }
}

impl Places {
    /// For all frames of the machine: eight bytes each.
    pub(super) fn new<P: Platform>(frames: &Frames<'_, P>) -> Result<Self, OutOfMemory> {
        Ok(Places(Paged::with_holes(frames, frames.end().0, |first| frames.get(Pfn(first)).is_some())?))
    }

    fn of(&self, pfn: Pfn) -> &Place {
        self.0.get(pfn.0)
    }

    pub(super) fn free<P: Platform>(self, frames: &Frames<'_, P>) {
        self.0.free(frames);
    }
}

/// Why slots get no copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotCached {
    /// One of them has one.
    Taken,
    /// They are not of one cluster, or a test refuses it.
    Refused,
}

/// The cluster of some slots, if that is one.
fn in_one(slots: Slots) -> Option<(u32, Range<u32>)> {
    let mut all = pieces(slots);
    let first = all.next()?;
    all.next().is_none().then_some(first)
}

impl SlotAllocator {
    /// Frames in a row become copies.
    fn cache<P: Platform>(&self, platform: &P, slots: Slots, pfn: Pfn) -> Result<(), NotCached> {
        let Some((index, range)) = in_one(slots).filter(|_| allows(platform, Wanted::References)) else {
            return Err(NotCached::Refused);
        };
        trace(platform, || Event::Step);
        let mut cluster = self.lock(platform, index);
        let copies = self.copies.get(index).of(&range);
        if copies.iter().any(|copy| copy.load(Relaxed) != 0) {
            return Err(NotCached::Taken);
        }
        // A slot has no other reference of this kind.
        cluster.hold(&range);
        copies.iter().zip(pfn.0..).for_each(|(copy, frame)| copy.store(!frame, Relaxed));
        self.cached.fetch_add(slots.count, Relaxed);
        Ok(())
    }

    /// How many of these slots, from the first on, have these frames as copies.
    fn row(&self, index: u32, range: &Range<u32>, pfn: Pfn) -> u32 {
        let copies = self.copies.get(index).of(range).iter().zip(pfn.0..);
        copies.take_while(|(copy, frame)| copy.load(Relaxed) == !*frame).count() as u32
    }

    /// See [`Swaps::share`].
    fn share<P: Platform>(&self, frames: &Frames<'_, P>, slots: Slots, order: u8) -> Option<(Pfn, u32)> {
        let (index, range) = pieces(slots).next()?;
        trace(frames.platform(), || Event::Step);
        // Who frees a copy has the slot given up first, for which he needs this lock.
        let _cluster = self.lock(frames.platform(), index);
        let pfn = Pfn(!self.copies.get(index).of(&range)[0].load(Relaxed)).some()?;
        let row = self.row(index, &range, pfn) >> order << order;
        let mut shared = 0;
        if pfn.is_aligned(order) {
            for (head, frame, pages) in frames.folios(pfn, row) {
                if !frames.try_get(head, frame, pages, pages) {
                    break;
                }
                shared += pages;
            }
        }
        (shared > 0).then_some((pfn, shared))
    }

    /// See [`Swaps::slots_of`]; here the first frame's place is known.
    fn confirm<P: Platform>(&self, platform: &P, slot: u32, pfn: Pfn, most: u32, order: u8) -> Option<Slots> {
        let (index, range) = pieces(Slots { first: slot, count: most.min(self.len() - slot) }).next()?;
        trace(platform, || Event::Step);
        let mut cluster = self.lock(platform, index);
        let count = self.row(index, &range, pfn) >> order << order;
        if count == 0 || !slot.is_multiple_of(1 << order) || !allows(platform, Wanted::References) {
            return None;
        }
        cluster.duplicate(&(range.start..range.start + count)).ok()?;
        Some(Slots { first: slot, count })
    }

    /// Give up the copies of those of a cluster's slots of which this says so, by the slot and the copy: how many slots are free then.
    fn uncache<P: Platform>(
        &self,
        platform: &P,
        (index, range): (u32, Range<u32>),
        which: impl Fn(&Locked<'_, P>, u32, Pfn) -> bool,
        forget: impl FnMut(Slots),
    ) -> u32 {
        let copies = self.copies.get(index);
        let drop = |cluster: &mut Locked<'_, P>| {
            let mut dead = SlotSet::default();
            for at in range {
                let copy = &copies.0[at as usize];
                if Pfn(!copy.load(Relaxed)).some().is_some_and(|pfn| which(cluster, at, pfn)) {
                    copy.store(0, Relaxed);
                    self.cached.fetch_sub(1, Relaxed);
                    dead.add(&cluster.release(&(at..at + 1)));
                }
            }
            dead
        };
        self.drop_in(platform, index, drop, forget)
    }
}

impl<P: Platform> Swaps<P> {
    /// These slots hold the same as the frames from `pfn` on, which are found by them from now on.
    ///
    /// # Errors
    /// [`NotCached`], and nothing is changed.
    ///
    /// # Safety
    /// The caller has a reference to each slot, and to the folios, which nobody else caches meanwhile. They do hold the same, and
    /// whoever may write to the frames uncaches them first.
    pub(crate) unsafe fn cache(&self, frames: &Frames<'_, P>, run: SwapRun, pfn: Pfn) -> Result<(), NotCached> {
        let order = self.order(frames.platform());
        let Some(places) = &order.places else { return Err(NotCached::Refused) };
        let mut again = false;
        for (_, frame, _) in frames.folios(pfn, run.slots.count) {
            again |= frame.set_flag(flag::SWAP_CACHED);
        }
        if again {
            self.uncache_row(frames, &order, pfn, run.slots.count, || true);
        }
        (0..run.slots.count).for_each(|i| places.of(pfn.add(i)).set(run.device, run.slots.first + i));
        // SAFETY: the caller has references.
        unsafe { self.device(run.device) }.slots.cache(frames.platform(), run.slots, pfn)
    }

    /// Whether some of these slots have copies, or are not of one cluster: if neither, they may all get some together.
    ///
    /// # Safety
    /// Somebody has a reference to each slot, and keeps it meanwhile.
    pub(crate) unsafe fn is_cached(&self, run: SwapRun) -> bool {
        // SAFETY: by contract.
        let slots = unsafe { &self.device(run.device).slots };
        let has = |copy: &AtomicU32| copy.load(Relaxed) != 0;
        in_one(run.slots).is_none_or(|(index, range)| slots.copies.get(index).of(&range).iter().any(has))
    }

    /// The copies of slots, of the first and those behind it whose copies are in a row with it, as far as somebody still has them: the
    /// first one, and how many, each with a reference and a mapping more. None if the first one is not at a multiple of `1 << order`
    /// frames, or so many are not to be had: then they may be about to be freed.
    ///
    /// # Safety
    /// Somebody has a reference to each slot, and keeps it meanwhile.
    pub(crate) unsafe fn share(&self, frames: &Frames<'_, P>, run: SwapRun, order: u8) -> Option<(Pfn, u32)> {
        // SAFETY: by contract.
        unsafe { self.device(run.device) }.slots.share(frames, run.slots, order)
    }

    /// The slots that hold the same as frames, this one and those behind it, up to so many, in blocks of this order. The caller has a
    /// reference to each slot then. He has one to the folios.
    pub(crate) fn slots_of(&self, frames: &Frames<'_, P>, pfn: Pfn, most: u32, order: u8) -> Option<SwapRun> {
        if !frames.head(pfn).1.has(flag::SWAP_CACHED) {
            return None;
        }
        let devices = self.order(frames.platform());
        let (device, slot) = self.place(&devices, pfn)?;
        // SAFETY: it is in the order.
        let slots = unsafe { &self.device(device).slots };
        let slots = slots.confirm(frames.platform(), slot, pfn, most, order)?;
        Some(SwapRun { device, slots })
    }

    /// The slot of which a frame is the copy: it holds the same. As of an instant that nobody holds still.
    pub fn slot_of(&self, platform: &P, pfn: Pfn) -> Option<SwapRun> {
        let order = self.order(platform);
        let (device, slot) = self.place(&order, pfn)?;
        // SAFETY: it is in the order.
        let slots = unsafe { &self.device(device).slots };
        let (index, range) = pieces(Slots { first: slot, count: 1 }).next()?;
        let _cluster = slots.lock(platform, index);
        (slots.row(index, &range, pfn) == 1).then_some(SwapRun { device, slots: Slots { first: slot, count: 1 } })
    }

    /// Nobody finds frames by their slots any more, if `alone` says so of each when it is given up: because they are to be freed, or
    /// written to. While nobody else has them they stay uncached. Whether all of them were given up.
    #[cold]
    pub(crate) fn uncache(&self, frames: &Frames<'_, P>, pfn: Pfn, count: u32, alone: impl Fn() -> bool) -> bool {
        self.uncache_row(frames, &self.order(frames.platform()), pfn, count, alone)
    }

    /// Where a frame's slot may be.
    fn place(&self, order: &Order, pfn: Pfn) -> Option<(u8, u32)> {
        let (device, slot) = order.places.as_ref()?.of(pfn).get().filter(|(device, _)| order.ids().contains(device))?;
        // SAFETY: it is in the order. (And may be another one than was meant.)
        let len = unsafe { self.device(device) }.slots.len();
        (slot < len).then_some((device, slot))
    }

    fn uncache_row(
        &self,
        frames: &Frames<'_, P>,
        order: &Order,
        pfn: Pfn,
        count: u32,
        alone: impl Fn() -> bool,
    ) -> bool {
        let (all, mut at) = (Cell::new(true), 0);
        while at < count {
            let first = pfn.add(at);
            let Some((device, slot)) = self.place(order, first) else {
                at += 1;
                continue;
            };
            // SAFETY: it is in the order.
            let attached = unsafe { self.device(device) };
            let most = (attached.slots.len() - slot).min(count - at);
            let follows = |i: &u32| self.place(order, first.add(*i)) == Some((device, slot + i));
            let row = 1 + (1..most).take_while(follows).count() as u32;
            for (index, range) in pieces(Slots { first: slot, count: row }) {
                // Who finds them by the slot does so under the lock that is held here.
                let mine = |_: &Locked<'_, P>, at: u32, copy: Pfn| {
                    let mine = copy.0 == first.0 + (index * SLOTS + at - slot);
                    let alone = !mine || alone();
                    all.set(all.get() && alone);
                    mine && alone
                };
                // SAFETY: as of `release`.
                let forget = |dead| unsafe { attached.forget(frames, dead) };
                attached.slots.uncache(frames.platform(), (index, range), mine, forget);
            }
            at += row;
        }
        all.get()
    }

    /// Give up all slots that nothing but a copy refers to: how many that were.
    #[cold]
    pub(crate) fn trim(&self, frames: &Frames<'_, P>) -> u64 {
        (0..DEVICES as u8).map(|device| self.trim_device(frames, device)).sum()
    }

    /// The same, of one device if it is there.
    pub(super) fn trim_device(&self, frames: &Frames<'_, P>, device: u8) -> u64 {
        let mut freed = 0;
        self.each_cluster(frames, device, |attached, index| {
            let only = |cluster: &Locked<'_, P>, at: u32, _| cluster.references(at) == 1;
            // SAFETY: as of `release`.
            let forget = |dead| unsafe { attached.forget(frames, dead) };
            freed += u64::from(attached.slots.uncache(frames.platform(), (index, 0..SLOTS), only, forget));
        });
        freed
    }

    /// Show all copies. None of them is freed before `visit` returns; a cluster of slots is locked meanwhile.
    pub(crate) fn each_copy(&self, frames: &Frames<'_, P>, mut visit: impl FnMut(Pfn)) {
        for device in 0..DEVICES as u8 {
            self.each_cluster(frames, device, |Attached { slots, .. }, index| {
                let _cluster = slots.lock(frames.platform(), index);
                let copies = slots.copies.get(index).0.iter();
                copies.filter_map(|copy| Pfn(!copy.load(Relaxed)).some()).for_each(&mut visit);
            });
        }
    }

    /// Show the clusters of a device, as long as it is there and has copies.
    fn each_cluster(&self, frames: &Frames<'_, P>, device: u8, mut visit: impl FnMut(&Attached<P>, u32)) {
        for index in 0.. {
            let order = self.order(frames.platform());
            if !order.ids().contains(&device) {
                break;
            }
            // SAFETY: it is in the order.
            let attached = unsafe { self.device(device) };
            if index == attached.slots.clusters.len() || attached.slots.cached.load(Relaxed) == 0 {
                break;
            }
            visit(attached, index);
            drop(order);
            frames.platform().resched();
        }
    }

    /// Whether a device has so little room that it should keep nothing that is in memory: less than half, or it is closed.
    ///
    /// # Safety
    /// Somebody has a reference to one of its slots, and keeps it meanwhile.
    pub(crate) unsafe fn is_crowded(&self, device: u8) -> bool {
        // SAFETY: by contract.
        let slots = unsafe { &self.device(device).slots };
        slots.is_closed() || slots.free_slots() < slots.len() / 2
    }
}
