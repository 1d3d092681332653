//! Objects whose pages are huge pages of the pool (Linux: hugetlbfs), and their reservations.
//!
//! Such an object is one with pages of 2 MiB: its index, its size, truncation and holes work by
//! whole huge pages, as those of any object work by whole pages. Its pages come from the pool
//! ([`HugePool`](crate::machine::HugePool)), are charged to no memcg, and are on no LRU list, so
//! that nothing reclaims, splits or swaps them.
//!
//! # Reservations
//! A bit for each page tells that the pool keeps a page for it: `mmap` sets the bits, and the fault
//! that puts a page in its place clears the page's bit, under the object's lock. The bits of an
//! object that backs private memory are for the faults of one space, which mapped it (Linux:
//! `HPAGE_RESV_OWNER`): a forked child has none. While two CPUs fault one page with a bit in, one
//! of them may find the pool empty. It tries again then, and finds the page or the bit gone.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{LockedState, Object, ObjectError};
use crate::addr::{FRAME_SIZE, Pfn};
use crate::arch::UserRange;
use crate::frame::{Frames, HUGE_ORDER};
use crate::machine::Machine;
use crate::memcg::MemcgId;
use crate::platform::{Platform, SpaceId};
use crate::vma::{HUGETLB_SHIFT, Vma};

/// The number of pages of an object that can be reserved: one for each bit of a frame. They are
/// 64 GiB from the object's beginning.
const MAX_RESERVED: u64 = FRAME_SIZE * 8;
/// The number of pages that are looked up under one hold of the object's lock (INV-11).
const BATCH: u64 = 256;

/// The reservations of an object, which the object's lock protects.
pub(super) struct Reservations {
    /// The frame with the bits; [`Pfn::NONE`] for an object with pages of another size.
    bits: Pfn,
    /// The number of bits that are set.
    count: u64,
    /// The space that the bits are for; `None` for every one.
    owner: Option<SpaceId>,
}

impl Reservations {
    /// The reservations of an object that has none.
    pub(super) const NONE: Reservations = Reservations { bits: Pfn::NONE, count: 0, owner: None };

    /// Returns the number of frames for the bits.
    pub(super) fn frames(&self) -> u64 {
        u64::from(self.bits != Pfn::NONE)
    }

    /// Returns the word with a page's bit, and the bit.
    fn word<'f, P: Platform>(&self, frames: &'f Frames<'_, P>, page: u64) -> Option<(&'f AtomicU64, u64)> {
        if page >= MAX_RESERVED {
            return None;
        }
        let words = frames.at(self.bits.some()?.addr()).cast::<AtomicU64>();
        // SAFETY: the frame has `MAX_RESERVED` bits, belongs to the object, which keeps it longer
        // than the caller holds the object's lock, and is accessed as such words alone.
        let word = unsafe { words.add((page / 64) as usize).as_ref() };
        Some((word, 1 << (page % 64)))
    }

    /// Returns whether a page is reserved for a space.
    pub(super) fn has<P: Platform>(&self, frames: &Frames<'_, P>, page: u64, space: Option<SpaceId>) -> bool {
        (self.owner.is_none() || self.owner == space)
            && self.word(frames, page).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
    }

    /// Sets a page's bit. Returns false if it was set or the page can't have one.
    fn set<P: Platform>(&mut self, frames: &Frames<'_, P>, page: u64) -> bool {
        let new = self.word(frames, page).is_some_and(|(word, bit)| word.fetch_or(bit, Relaxed) & bit == 0);
        self.count += u64::from(new);
        new
    }

    /// Clears a page's bit. Returns whether it was set.
    pub(super) fn clear<P: Platform>(&mut self, frames: &Frames<'_, P>, page: u64) -> bool {
        let old = self.word(frames, page).is_some_and(|(word, bit)| word.fetch_and(!bit, Relaxed) & bit != 0);
        self.count -= u64::from(old);
        old
    }

    /// Takes the reservations from an object that ends.
    pub(super) fn take(&mut self) -> Self {
        core::mem::replace(self, Reservations::NONE)
    }

    /// Gives the frame with the bits, and all that they reserve, back when the object ends.
    pub(super) fn end<P: Platform>(self, machine: &Machine<'_, P>) {
        machine.huge_pool().unreserve(self.count);
        if let Some(bits) = self.bits.some() {
            // SAFETY: the frame belongs to the object alone, whose last reference was dropped.
            unsafe { machine.memcgs().free(machine.frames(), bits, 0, false) };
        }
    }
}

/// A reference to an object, with the methods that are about huge pages of the machine's pool.
pub struct Hugetlb<'o, 'm, P: Platform>(pub &'o Object<'m, P>);

impl<'m, P: Platform> Hugetlb<'_, 'm, P> {
    /// Creates an object as [`Object::new`] does, whose pages are huge pages of the machine's pool.
    /// Its size is a multiple of theirs.
    ///
    /// # Errors
    /// As for [`Object::new`].
    pub fn new_object(
        machine: &'m Machine<'m, P>,
        memcg: MemcgId,
        tag: u64,
        size: u64,
    ) -> Result<Object<'m, P>, ObjectError> {
        let (bits, _) = machine.memcgs().alloc(machine.frames(), memcg, 0, true)?;
        match Object::create(machine, HUGE_ORDER, memcg, (tag, size), None) {
            Ok(object) => {
                object.lock().reserved.bits = bits;
                Ok(object)
            }
            Err(error) => {
                // SAFETY: the frame was just allocated, and nothing was written to it.
                unsafe { machine.memcgs().free(machine.frames(), bits, 0, true) };
                Err(error)
            }
        }
    }

    /// Reserves all huge pages of the object that it does not have yet, for every space that will
    /// map it (`shmget` with `SHM_HUGETLB`).
    ///
    /// # Errors
    /// [`ObjectError::NoHugePage`]: the pool can't have as many pages. Nothing was reserved.
    pub fn reserve_all(&self) -> Result<(), ObjectError> {
        self.reserve(0..self.0.size() >> self.0.page_shift(), None).map(|_| ())
    }

    /// Returns whether the object's pages are huge pages of the machine's pool.
    #[inline]
    pub fn has_pages(&self) -> bool {
        self.0.page_order() == HUGE_ORDER
    }

    /// Reserves those of `pages` that neither exist nor are reserved, for the faults of `owner`, or
    /// of every space. Returns the number of pages that were not reserved before. The caller holds
    /// no lock except the VMA lock.
    ///
    /// # Errors
    /// [`ObjectError::NoHugePage`]: the pool can't have as many pages. Nothing was reserved.
    pub(crate) fn reserve(&self, pages: Range<u64>, owner: Option<SpaceId>) -> Result<u64, ObjectError> {
        if pages.end > MAX_RESERVED {
            return Err(ObjectError::NoHugePage);
        }
        let (machine, frames) = (self.0.machine, self.0.machine.frames());
        let each = |visit: &mut dyn FnMut(&mut LockedState, u64)| {
            for first in pages.clone().step_by(BATCH as usize) {
                let mut state = self.0.lock();
                for page in first..pages.end.min(first + BATCH) {
                    if state.index.find(frames, page).is_none() {
                        visit(&mut state, page);
                    }
                }
                drop(state);
                machine.platform().resched();
            }
        };
        let mut missing = 0;
        each(&mut |state, page| missing += u64::from(!state.reserved.has(frames, page, state.reserved.owner)));
        if !machine.huge_pool().reserve(missing) {
            return Err(ObjectError::NoHugePage);
        }
        let mut left = missing;
        each(&mut |state, page| {
            state.reserved.owner = owner;
            left -= u64::from(left > 0 && state.reserved.set(frames, page));
        });
        machine.huge_pool().unreserve(left);
        Ok(missing - left)
    }

    /// Reserves again those of `pages` that the space that mapped them has dropped, as far as the
    /// pool has pages.
    pub(crate) fn reserve_again(&self, pages: Range<u64>, owner: SpaceId) {
        if self.0.lock().reserved.owner == Some(owner) {
            let _ = self.reserve(pages, Some(owner));
        }
    }

    /// Gives up the reservations of `pages`. With `space`, only if they are that space's own. The
    /// caller holds no spin lock.
    pub(crate) fn unreserve(&self, pages: Range<u64>, space: Option<SpaceId>) {
        let (machine, frames) = (self.0.machine, self.0.machine.frames());
        let mut freed = 0;
        let mut from = pages.start;
        let end = pages.end.min(MAX_RESERVED);
        while from < end {
            let mut state = self.0.lock();
            if state.reserved.count == 0 || space.is_some() && state.reserved.owner != space {
                break;
            }
            let next = end.min(from + BATCH);
            freed += (from..next).filter(|page| state.reserved.clear(frames, *page)).count() as u64;
            from = next;
        }
        machine.huge_pool().unreserve(freed);
    }

    /// Returns whether a page is reserved for private memory of a space.
    pub(crate) fn is_reserved(&self, page: u64, space: SpaceId) -> bool {
        let state = self.0.lock();
        state.reserved.owner.is_some() && state.reserved.has(self.0.machine.frames(), page, Some(space))
    }

    /// Gives up the reservation of a page that a private mapping has got a page for.
    pub(crate) fn commit_reserved(&self, page: u64) {
        if self.0.lock().reserved.clear(self.0.machine.frames(), page) {
            self.0.machine.huge_pool().commit();
        }
    }
}

/// Gives up the reservations that a private VMA of huge pages has in `range`, which is unmapped
/// from `space`. Does nothing for another VMA. The caller holds no spin lock.
pub(crate) fn unreserve_huge<P: Platform>(machine: &Machine<'_, P>, vma: &Vma, range: UserRange, space: SpaceId) {
    if vma.is_hugetlb() && !vma.backing.is_shared() {
        let part = vma.range.intersect(&range);
        let page = |addr: u64| vma.backing.offset(addr) >> HUGETLB_SHIFT;
        // SAFETY: the VMA maps an object, and keeps its reference to it during the call: the caller
        // has the VMAs locked, and drops the reference only later.
        let object = unsafe { Object::of_backing(machine, &vma.backing) };
        Hugetlb(&object).unreserve(page(part.start)..page(part.end), Some(space));
    }
}
