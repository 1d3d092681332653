//! The slots of one device: who gets which, and how often each is referred to.
//!
//! A folio's slots lie in a row and begin at a multiple of their number, as its frames do, so that they are one entry of a page
//! table, or one run of entries, whatever the size. Slots come in *clusters* of a huge folio's size. Each CPU has a cluster of
//! its own that it takes slots from in a row; the others are filed by the largest block that is free in them, and a CPU whose
//! own cluster hasn't what it wants gets the one that has least of those that do. If none is filed, the other CPUs' own ones
//! are looked through. So a block is refused only when there is none.
//!
//! A slot has a reference count: its swap entries, its swap-cache page, and the CPUs that read it
//! ([`super::cluster`]). What is taken has one reference, the caller's. A slot whose last reference
//! goes is free when its contents have been forgotten, and not before.
//!
//! Which frame in memory holds the same as a slot is known too: see [`super::cache`].
//!
//! Locks: a CPU's choice of a cluster, a cluster's, that of the files. The last reference is dropped with none of them held.

use core::ops::Range;
use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use super::cache::Copies;
use super::cluster::{Cluster, Counts, Locked, SLOTS, SlotSet};
use super::files::{Files, NONE};
use super::paged::Paged;
use super::{Saturated, Slots};
use crate::frame::{Frames, HUGE_ORDER, OutOfMemory, Zeroable};
use crate::platform::{Event, Platform, Wanted, allows, trace};
use crate::sync::SpinLock;

/// Which cluster a CPU takes slots from, [`NONE`] being a possible answer; on a cache line of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Own(SpinLock<u32>);

// SAFETY: a lock and an integer; aligned to 128 bytes.
unsafe impl Zeroable for Own {}

/// The slots of one device.
#[must_use]
pub struct SlotAllocator {
    pub(super) clusters: Paged<Cluster>,
    /// One a cluster.
    counts: Paged<Counts>,
    /// One a cluster.
    pub(super) copies: Paged<Copies>,
    /// How many slots have a copy in memory.
    pub(super) cached: AtomicU32,
    own: Paged<Own>,
    files: SpinLock<Files>,
    len: u32,
    /// Counted when slots have been taken and after they were given back: may be negative for a moment.
    free: AtomicI64,
    closed: AtomicBool,
}

impl SlotAllocator {
    /// For a device of `len` slots, all of which are free. The memory for what is known of them, a
    /// quarter over eight bytes a slot, is taken here, and none afterwards: no reference is ever
    /// refused for want of memory.
    ///
    /// # Errors
    /// There is not so much memory; nothing of it is taken then.
    pub fn new<P: Platform>(frames: &Frames<'_, P>, len: u32) -> Result<Self, OutOfMemory> {
        let platform = frames.platform();
        let clusters = Paged::<Cluster>::new(frames, len.div_ceil(SLOTS))?;
        let counts = Paged::<Counts>::new(frames, clusters.len());
        let copies = Paged::<Copies>::new(frames, clusters.len());
        let own = Paged::<Own>::new(frames, platform.count() as u32);
        let (counts, copies, own) = match (counts, copies, own) {
            (Ok(counts), Ok(copies), Ok(own)) => (counts, copies, own),
            (counts, copies, own) => {
                clusters.free(frames);
                counts.into_iter().for_each(|counts| counts.free(frames));
                copies.into_iter().for_each(|copies| copies.free(frames));
                own.into_iter().for_each(|own| own.free(frames));
                return Err(OutOfMemory);
            }
        };
        (0..own.len()).for_each(|cpu| *own.get(cpu).0.lock(platform) = NONE);
        let mut files = Files::new();
        // The lowest come first.
        for index in (0..clusters.len()).rev() {
            let usable = (len - index * SLOTS).min(SLOTS);
            let mut cluster = Locked::new(clusters.get(index), counts.get(index), platform);
            cluster.free(&SlotSet::range(0..usable));
            files.refile(&clusters, index, cluster.room());
        }
        let free = AtomicI64::new(len.into());
        let (files, cached, closed) = (SpinLock::new(files), AtomicU32::new(0), AtomicBool::new(false));
        Ok(SlotAllocator { clusters, counts, copies, cached, own, files, len, free, closed })
    }

    /// Locks a cluster.
    #[inline]
    pub(super) fn lock<'a, P: Platform>(&'a self, platform: &'a P, index: u32) -> Locked<'a, P> {
        Locked::new(self.clusters.get(index), self.counts.get(index), platform)
    }

    /// How many slots there are.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many are free now: exact when nothing runs. When it says all, nobody is at work on a release any more.
    pub fn free_slots(&self) -> u32 {
        self.free.load(Acquire).max(0) as u32
    }

    /// A naturally aligned block of `1 << order` slots, each referred to once. `None` if there is no such block, be it because all
    /// is in use, because what is free lies scattered, because the device is closed, or because a block is never larger than a
    /// cluster, 2 MiB: smaller blocks may still be had then. (Also while others are at work on what would be one.)
    #[inline]
    pub fn allocate<P: Platform>(&self, platform: &P, order: u8) -> Option<Slots> {
        let count = 1u32.checked_shl(order.into()).filter(|_| order <= HUGE_ORDER)?;
        if self.free.load(Relaxed) < count.into() || !allows(platform, Wanted::Slots) {
            return None;
        }
        let here = platform.current();
        let first = self
            .allocate_at(platform, here, order, true)
            .or_else(|| (0..platform.count()).find_map(|cpu| self.allocate_at(platform, cpu, order, false)))?;
        self.free.fetch_sub(count.into(), Relaxed);
        Some(Slots { first, count })
    }

    /// From a CPU's own cluster, or, with `filed`, from one that then may become its own.
    fn allocate_at<P: Platform>(&self, platform: &P, cpu: usize, order: u8, filed: bool) -> Option<u32> {
        trace(platform, || Event::Step);
        let mut own = self.own.get(cpu as u32).0.lock(platform);
        // Read with the lock held, which `close` takes after it has written.
        if self.closed.load(Relaxed) {
            return None;
        }
        if *own != NONE
            && let Some(first) = self.lock(platform, *own).take(order)
        {
            return Some(*own * SLOTS + first);
        }
        if !filed {
            return None;
        }
        trace(platform, || Event::Step);
        let found = self.files.lock(platform).pop(&self.clusters, order)?;
        trace(platform, || Event::Step);
        let mut cluster = self.lock(platform, found);
        let first = cluster.take(order);
        debug_assert!(first.is_some(), "a cluster that is filed has what its file promises");
        let left = cluster.room();
        drop(cluster);
        // The one with more room stays.
        let room = if *own == NONE { None } else { self.lock(platform, *own).room() };
        let other = if left > room { core::mem::replace(&mut *own, found) } else { found };
        if other != NONE {
            trace(platform, || Event::Step);
            let cluster = self.lock(platform, other);
            self.files.lock(platform).give_up(&self.clusters, other, cluster.room());
        }
        Some(found * SLOTS + first?)
    }

    /// Adds a reference to each of these slots, for a swap entry to keep. Each has another one
    /// meanwhile.
    ///
    /// # Errors
    /// [`Saturated`]: one of them has 2^31 references. Nothing is changed. (Others may be refused
    /// while this is found out.)
    ///
    /// # Panics
    /// If there are no such slots: numbers that no caller can supply.
    #[inline]
    pub fn duplicate<P: Platform>(&self, platform: &P, slots: Slots) -> Result<(), Saturated> {
        if !allows(platform, Wanted::References) {
            return Err(Saturated { slot: slots.first });
        }
        for (index, range) in pieces(slots) {
            trace(platform, || Event::Step);
            if let Err(full) = self.lock(platform, index).duplicate(&range) {
                self.undo(platform, slots, index);
                return Err(Saturated { slot: index * SLOTS + full });
            }
        }
        Ok(())
    }

    /// Drop what was added before cluster `end` was found to refuse.
    #[cold]
    fn undo<P: Platform>(&self, platform: &P, slots: Slots, end: u32) {
        for (index, range) in pieces(slots).take_while(|(index, _)| *index < end) {
            let dead = self.lock(platform, index).release(&range);
            debug_assert!(dead.is_empty(), "somebody has a reference meanwhile");
        }
    }

    /// Adds a reference to each of these slots until the caller has read them. Each has another one
    /// meanwhile. It can't be refused: there are no more than one for each thread that reads.
    #[inline]
    pub(super) fn hold<P: Platform>(&self, platform: &P, slots: Slots) {
        for (index, range) in pieces(slots) {
            trace(platform, || Event::Step);
            self.lock(platform, index).hold(&range);
        }
    }

    /// Refer to each of these slots once less. Those that nothing refers to any more are handed to `forget`, in stretches, and
    /// are free when it has returned.
    ///
    /// # Panics
    /// If there are no such slots: numbers that no caller can supply.
    #[inline]
    pub fn release<P: Platform>(&self, platform: &P, slots: Slots, mut forget: impl FnMut(Slots)) {
        for (index, range) in pieces(slots) {
            self.drop_in(platform, index, |cluster| cluster.release(&range), &mut forget);
        }
    }

    /// Drop references to slots of one cluster, under its lock, by `drop`, which says which slots had no other. These are forgotten,
    /// and free then: how many.
    #[inline]
    pub(super) fn drop_in<P: Platform>(
        &self,
        platform: &P,
        index: u32,
        drop: impl FnOnce(&mut Locked<'_, P>) -> SlotSet,
        mut forget: impl FnMut(Slots),
    ) -> u32 {
        trace(platform, || Event::Step);
        let dead = drop(&mut self.lock(platform, index));
        if dead.is_empty() {
            return 0;
        }
        let mut count = 0;
        for stretch in dead.stretches(0..SLOTS) {
            count += stretch.len() as u32;
            forget(Slots { first: index * SLOTS + stretch.start, count: stretch.len() as u32 });
        }
        trace(platform, || Event::Step);
        let mut cluster = self.lock(platform, index);
        cluster.free(&dead);
        if Files::would_move(self.clusters.get(index), || cluster.room()) {
            trace(platform, || Event::Step);
            self.files.lock(platform).refile(&self.clusters, index, cluster.room());
        }
        core::mem::drop(cluster);
        // The last access: who finds all slots free may take the memory away.
        self.free.fetch_add(count.into(), Release);
        count
    }

    /// Returns the highest reference count among `slots`, or 0 if all are free.
    ///
    /// # Panics
    /// If there are no such slots: numbers that no caller can supply.
    pub fn references<P: Platform>(&self, platform: &P, slots: Slots) -> u32 {
        let most = |(index, range): (u32, Range<u32>)| {
            let cluster = self.lock(platform, index);
            range.map(|slot| cluster.references(slot)).max().unwrap_or(0)
        };
        pieces(slots).map(most).max().unwrap_or(0)
    }

    /// From the return of this call on, nothing is allocated; what is in use stays so.
    pub fn close<P: Platform>(&self, platform: &P) {
        self.closed.store(true, Relaxed);
        // Whoever came before has taken its slots when its lock can be had.
        (0..self.own.len()).for_each(|cpu| drop(self.own.get(cpu).0.lock(platform)));
    }

    /// Undo [`SlotAllocator::close`].
    pub fn open(&self) {
        self.closed.store(false, Relaxed);
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Give the memory back.
    pub fn free<P: Platform>(self, frames: &Frames<'_, P>) {
        self.clusters.free(frames);
        self.counts.free(frames);
        self.copies.free(frames);
        self.own.free(frames);
    }
}

/// What of some slots lies in each cluster.
#[inline]
pub(super) fn pieces(slots: Slots) -> impl Iterator<Item = (u32, Range<u32>)> {
    let end = slots.first as u64 + slots.count as u64;
    let mut at = slots.first as u64;
    core::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let (index, from) = (at / SLOTS as u64, (at % SLOTS as u64) as u32);
        let to = (end - index * SLOTS as u64).min(SLOTS.into()) as u32;
        at += u64::from(to - from);
        Some((index as u32, from..to))
    })
}
