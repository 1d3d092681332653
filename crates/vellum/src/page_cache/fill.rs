//! Looks pages up, and inserts them where none exists (Linux: `filemap_get_folio`,
//! `shmem_get_folio`).
//!
//! A page is looked up and mapped, or referenced, under the object's lock. The folio and the index
//! nodes that an insertion may need are allocated before the lock is taken. Those that the
//! insertion does not need are freed again.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use super::index::{self, Entry, MAX_NODES};
use super::read::{Hints, Reads};
use super::{Head, Hugetlb, LockedState, MAX_SIZE, Object, ObjectError, ObjectPage, mapping, remove};
use crate::addr::{FRAME_SHIFT, Pfn};
use crate::frame::policy::{Advice, ShmemFolios, ShmemOrders};
use crate::frame::{Counts, HUGE_ORDER, Use, flag};
use crate::machine::Machine;
use crate::memcg::{LruList, MemcgId, MemcgPin, Refused};
use crate::platform::Platform;
use crate::sync::Retries;

/// The number of times that a lookup waits for another CPU that has taken the huge page that the
/// pool kept for it. That CPU zeroes the page before it inserts it.
const MAX_ATTEMPTS: u32 = 1 << 20;

/// The result of a lookup that inserts nothing.
pub(crate) enum Lookup<'m, P: Platform> {
    /// The page, with a reference.
    Page(ObjectPage<'m, P>),
    /// The page does not exist and reads as zeros.
    Hole,
    /// The page lies beyond the end of the object (SIGBUS).
    BeyondEnd,
}

/// The folios that may be inserted for missing pages besides single pages. Orders are bit sets: bit
/// n permits a folio of 2^n frames.
#[derive(Clone)]
pub(super) struct FolioLimits {
    /// The pages within which a folio of one of `orders` must lie.
    pages: Range<u64>,
    orders: u32,
    /// The orders by the settings of shared memory.
    shmem: ShmemOrders,
    /// The advice about the VMA, which counts for reads.
    hints: Hints,
    /// True if a folio may be inserted for a page that does not exist.
    inserts: bool,
}

/// Returns the orders of the folios that may be inserted into an object without a store, by the
/// settings of shared memory, for a fault in a VMA with this advice.
pub(crate) fn shmem_orders<P: Platform>(object: &Object<'_, P>, advice: Advice) -> ShmemOrders {
    match object.head().store {
        None => object.machine.policy().shmem().orders(ShmemFolios::load(&object.head().folios), advice),
        Some(_) => ShmemOrders::default(),
    }
}

/// Returns the largest order of a folio that a fault in a VMA with this advice may find in an
/// object, or insert there. Only a hint, as another CPU may insert a larger one.
pub(crate) fn largest_order<P: Platform>(object: &Object<'_, P>, advice: Advice) -> u8 {
    let inserted = shmem_orders(object, advice).any().checked_ilog2().unwrap_or(0);
    object.head().largest_folio.load(Relaxed).max(inserted as u8)
}

impl FolioLimits {
    /// Returns limits that allow the folios of [`shmem_orders`].
    pub(super) fn new<P: Platform>(object: &Object<'_, P>, hints: Hints) -> Self {
        FolioLimits { pages: 0..0, orders: 0, shmem: shmem_orders(object, hints.folios), hints, inserts: true }
    }

    /// Returns limits that allow no folio to be inserted.
    pub(super) fn of_existing<P: Platform>(object: &Object<'_, P>, hints: Hints) -> Self {
        FolioLimits { inserts: false, ..Self::new(object, hints) }
    }

    /// Returns the largest of the orders.
    fn largest(&self) -> u32 {
        (self.orders | self.shmem.any() | 1).ilog2()
    }

    /// Removes the orders from `order` on.
    fn remove_from(&mut self, order: u8) {
        let smaller = (1 << order) - 1;
        for orders in [&mut self.orders, &mut self.shmem.within_size, &mut self.shmem.always] {
            *orders &= smaller;
        }
    }
}

/// A folio that is to be inserted into an object, allocated before the object is locked: charged,
/// on an LRU list, and with the object's references, one for each page. Dropping this value frees
/// the folio, unless [`NewFolio::take`] has taken it.
pub(super) struct NewFolio<'m, P: Platform> {
    machine: &'m Machine<'m, P>,
    /// The folio's first frame and its order.
    folio: Option<(Pfn, u8)>,
    /// log2 of the number of frames of a page of the object.
    page_order: u8,
    /// The flags of the folio.
    flags: u32,
}

/// The index nodes that an insertion may need, allocated before the object is locked. Dropping this
/// value frees those that were not used.
pub(super) struct SpareNodes<'m, P: Platform> {
    machine: &'m Machine<'m, P>,
    /// The nodes, initialised.
    nodes: [Pfn; MAX_NODES],
    /// The number of `nodes` that are present.
    count: usize,
}

impl<'m, P: Platform> NewFolio<'m, P> {
    /// Creates a value without a folio, for an object.
    pub(super) fn new(object: &Object<'m, P>) -> Self {
        let Head { page_order, store, .. } = *object.head();
        let flags = if store.is_some() { flag::OBJECT | flag::FILE } else { flag::OBJECT };
        NewFolio { machine: object.machine, folio: None, page_order, flags }
    }

    /// Has the next folio begin on the list of active ones.
    pub(super) fn activate(&mut self) {
        self.flags |= flag::ACTIVE;
    }

    /// Allocates a folio of this order, charged to `memcg`, and frees the folio that was present,
    /// if any. With `zero` the new folio holds zeros.
    ///
    /// # Errors
    /// Fails if there is no memory or `memcg` is at its limit; no folio is present then.
    pub(super) fn provide(&mut self, order: u8, zero: bool, memcg: MemcgId) -> Result<(), ObjectError> {
        self.put_back();
        let frames = self.machine.frames();
        let (pfn, lruvec) = frames.alloc_at_lruvec(order, zero, Use::Folio).map_err(Refused::from)?;
        let refs = 1 << (order - self.page_order);
        let head = frames.make_folio(pfn, order, self.flags, Counts { refs, maps: 0 });
        mapping::set_no_object(head);
        let charged = self.machine.memcgs().charge_frames(
            frames,
            memcg,
            (pfn, head, lruvec),
            order,
            Some(LruList::evictable(head)),
        );
        if let Err(over) = charged {
            frames.put(pfn, head, refs, 0);
            // SAFETY: the folio was never in an index or on a list, so no other CPU can reach it.
            // It is still zero if it was allocated as zero.
            unsafe { frames.free(pfn, 1 << order, zero, Use::Folio) };
            return Err(over.into());
        }
        self.folio = Some((pfn, order));
        Ok(())
    }

    /// Takes a folio of zeros from the pool of huge pages: any page, for a `reserved` one. Gives
    /// back the folio that was present, if any.
    ///
    /// # Errors
    /// [`ObjectError::NoHugePage`]; no folio is present then.
    fn provide_huge(&mut self, reserved: bool) -> Result<(), ObjectError> {
        self.put_back();
        let counts = Counts { refs: 1, maps: 0 };
        let pfn = self.machine.take_huge(reserved, self.flags, counts).ok_or(ObjectError::NoHugePage)?;
        mapping::set_no_object(self.machine.frames().frame(pfn));
        self.folio = Some((pfn, HUGE_ORDER));
        // SAFETY: the folio was just taken from the pool, and no other CPU can reach it.
        unsafe { self.machine.frames().zero(pfn, 1 << HUGE_ORDER) };
        Ok(())
    }

    /// Takes the folio, if one of this order is present, to be inserted into the index. Returns its
    /// first frame.
    pub(super) fn take(&mut self, order: u8) -> Option<Pfn> {
        self.folio.take_if(|folio| folio.1 == order).map(|(pfn, _)| pfn)
    }

    /// Takes the folio, if one is present, to be inserted into the index. Returns its first frame
    /// and its order.
    pub(super) fn take_any(&mut self) -> Option<(Pfn, u8)> {
        self.folio.take()
    }

    /// Frees the folio that is present, if any.
    fn put_back(&mut self) {
        if let Some((pfn, order)) = self.folio.take() {
            self.machine.put_folio(pfn, 1 << (order - self.page_order), 0);
        }
    }
}

impl<P: Platform> Drop for NewFolio<'_, P> {
    /// Frees the folio, unless it was taken.
    fn drop(&mut self) {
        self.put_back();
    }
}

impl<'m, P: Platform> SpareNodes<'m, P> {
    /// Creates a value without nodes.
    pub(super) fn new(machine: &'m Machine<'m, P>) -> Self {
        SpareNodes { machine, nodes: [Pfn::NONE; MAX_NODES], count: 0 }
    }

    /// Returns the number of nodes.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Takes a node, of which there is one.
    pub(super) fn take(&mut self) -> Pfn {
        self.count -= 1;
        self.nodes[self.count]
    }

    /// Allocates nodes until `count` are present, charged to `memcg`. No lock is held.
    ///
    /// # Errors
    /// Fails if there is no memory or `memcg` is at its limit. The nodes allocated so far stay in
    /// this value.
    pub(super) fn provide(&mut self, count: usize, memcg: MemcgId) -> Result<(), ObjectError> {
        let frames = self.machine.frames();
        while self.count < count {
            let (node, _) = self.machine.memcgs().alloc(frames, memcg, 0, true)?;
            index::prepare(frames, node);
            self.nodes[self.count] = node;
            self.count += 1;
        }
        Ok(())
    }
}

impl<P: Platform> Drop for SpareNodes<'_, P> {
    /// Frees the nodes that were not used.
    fn drop(&mut self) {
        for node in &self.nodes[..self.count] {
            remove::free_node(self.machine, *node);
        }
    }
}

/// Returns the number of frames that have the first of `pages`, which begins in frame `pfn`, and
/// those of the others that follow it in its folio.
fn resident_frames<P: Platform>(object: &Object<'_, P>, state: &LockedState, pages: Range<u64>, pfn: Pfn) -> u32 {
    let (frames, step) = (object.machine.frames(), 1 << object.page_order());
    if pages.end.saturating_sub(pages.start) <= 1 {
        return step;
    }
    let (head, frame) = frames.head(pfn);
    let left = (head.0 + (1 << frame.order()) - pfn.0) / step;
    let end = pages.end.min(pages.start + u64::from(left));
    step * state.index.resident_run(frames, pages.start..end, pfn, step)
}

impl<'m, P: Platform> Object<'m, P> {
    /// Returns a page with a reference, if it exists, even beyond the end of the object. A
    /// swapped-out page is read from its device, and charged to the object's memcg.
    ///
    /// # Errors
    /// Fails if there is no memory for a swapped-out page, the memcg is at its limit, the device
    /// can't return the page ([`ObjectError::Lost`]), or the folio has the largest number of
    /// references.
    pub fn page(&self, page: u64) -> Result<Option<ObjectPage<'m, P>>, ObjectError> {
        self.pages(page..page.saturating_add(1))
    }

    /// Returns the first of `pages` with those of the others that follow it in its folio, and a
    /// reference to them, as [`Object::page`] does for the first.
    ///
    /// # Errors
    /// As for [`Object::page`].
    pub fn pages(&self, pages: Range<u64>) -> Result<Option<ObjectPage<'m, P>>, ObjectError> {
        match self.lookup_within_size(MAX_SIZE, pages, Hints::default(), self.memcg())? {
            Lookup::Page(page) => Ok(Some(page)),
            Lookup::Hole | Lookup::BeyondEnd => Ok(None),
        }
    }

    /// Returns a page with a reference, even beyond the end of the object (a file system may
    /// allocate pages before it sets the size). If the page does not exist, inserts a zeroed one
    /// that is charged to `memcg`, in a folio as large as the settings of shared memory permit
    /// ([`Object::set_folios`]).
    ///
    /// # Errors
    /// As for [`Object::page`], or if the page lies beyond [`MAX_SIZE`], or, of an object with a
    /// store, beyond its end ([`ObjectError::TooLarge`]).
    pub fn page_or_new(&self, page: u64, memcg: MemcgId) -> Result<ObjectPage<'m, P>, ObjectError> {
        let _pinned = self.pin_memcg(memcg)?;
        // SAFETY: `with_page` passes a page in the index of the locked object.
        let get = |pfn| unsafe { ObjectPage::get(self.machine, pfn, 1 << self.page_order()) };
        let page = self.with_page(page, memcg, false, FolioLimits::new(self, Hints::default()), |_, pfn| get(pfn))?;
        Ok(page.ok_or(ObjectError::TooLarge)??)
    }

    /// Inserts all missing pages in a range of bytes, in large folios where these fit into the
    /// range ([`FolioPolicy::file_orders`]): Linux's `fallocate` with `FALLOC_FL_KEEP_SIZE`. A
    /// host also calls it before it fills a file with data. The size does not change.
    ///
    /// [`FolioPolicy::file_orders`]: crate::frame::policy::FolioPolicy::file_orders
    ///
    /// # Errors
    /// As for [`Object::page_or_new`]. Some pages may have been inserted then; they read as zeros,
    /// as before.
    pub fn allocate(&self, bytes: Range<u64>, memcg: MemcgId) -> Result<(), ObjectError> {
        if bytes.end > MAX_SIZE {
            return Err(ObjectError::TooLarge);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let _pinned = self.pin_memcg(memcg)?;
        let shift = self.page_shift();
        let end = ((bytes.end - 1) >> shift) + 1;
        let first = bytes.start >> shift;
        let policy = self.machine.policy();
        let orders = if self.head().store.is_some() { policy.file_orders() } else { policy.memory_orders() };
        let limits = FolioLimits { pages: first..end, orders, ..FolioLimits::new(self, Hints::default()) };
        let mut page = first;
        while page < end {
            let step = self.head().page_order;
            // The distance in pages from this page to the end of its folio.
            let left = |_: &LockedState, pfn: Pfn| {
                let (head, frame) = self.machine.frames().head(pfn);
                (head.add(1 << frame.order()).0 - pfn.0) >> step
            };
            let left = self.with_page(page, memcg, false, limits.clone(), left)?.ok_or(ObjectError::TooLarge)?;
            page = remove::next_hole_in(self, page..page + u64::from(left));
            self.machine.platform().resched();
        }
        Ok(())
    }

    /// Looks a page up for a fault that copies it, and inserts nothing. A swapped-out page is read
    /// from its device and charged to `memcg`.
    ///
    /// # Errors
    /// As for [`Object::page`].
    pub(crate) fn lookup(&self, page: u64, hints: Hints, memcg: MemcgId) -> Result<Lookup<'m, P>, ObjectError> {
        self.lookup_within_size(0, page..page + 1, hints, memcg)
    }

    /// Looks up the first of `pages`, with the others that follow it in its folio, as if the
    /// object's size were at least `size` bytes.
    fn lookup_within_size(
        &self,
        size: u64,
        pages: Range<u64>,
        hints: Hints,
        memcg: MemcgId,
    ) -> Result<Lookup<'m, P>, ObjectError> {
        let page = pages.start;
        let mut retries = Retries::new(&self.head().gate);
        loop {
            let state = self.lock();
            if !self.is_inside(state.size.max(size), page) {
                return Ok(Lookup::BeyondEnd);
            }
            state.check_hold(self, page)?;
            match state.index.find(self.machine.frames(), page) {
                None if self.head().is_stored(&state, page) => {
                    drop(state);
                    Reads(self).start(page, hints, memcg, &mut retries)?;
                    continue;
                }
                None => return Ok(Lookup::Hole),
                Some(Entry::Reading(_)) => return Err(Reads(self).wait_for(&state, page)),
                Some(Entry::Resident(pfn)) => {
                    Reads(self).end_wait(&state, page);
                    let count = resident_frames(self, &state, pages, pfn);
                    // SAFETY: the pages are in the index of the object, whose lock is held.
                    return Ok(Lookup::Page(unsafe { ObjectPage::get(self.machine, pfn, count) }?));
                }
                Some(Entry::Writeback(_) | Entry::Swapped { .. }) => {}
            }
            drop(state);
            self.swap_in(page, memcg, &mut retries)?;
        }
    }

    /// Pins a memcg that the caller names, so that it can't be removed. The object's own memcg
    /// needs no pin, because the object is charged to it.
    ///
    /// # Errors
    /// Fails if the memcg does not exist.
    pub(super) fn pin_memcg(&self, memcg: MemcgId) -> Result<Option<MemcgPin<'_, 'm>>, Refused> {
        let foreign = (memcg != self.memcg()).then(|| self.machine.memcgs().pinned(memcg).ok_or(Refused::OutOfMemory));
        foreign.transpose()
    }

    /// Returns the order of the largest folio that may be inserted for a missing page: the folio is
    /// within the limits, and none of its pages exists in the object.
    fn folio_order_for(&self, state: &LockedState, page: u64, limits: &FolioLimits) -> u8 {
        let page_order = self.head().page_order;
        for order in (page_order + 1..=limits.largest() as u8).rev() {
            let first = page & !((1 << (order - page_order)) - 1);
            let end = first + (1 << (order - page_order));
            let has = |orders: u32| orders & 1 << order != 0;
            let fits = has(limits.shmem.always) && end <= MAX_SIZE >> self.page_shift()
                || has(limits.shmem.within_size) && self.is_inside(state.size, end - 1)
                || has(limits.orders) && limits.pages.start <= first && end <= limits.pages.end;
            if fits && state.index.next(self.machine.frames(), first).is_none_or(|(next, _)| next >= end) {
                return order;
            }
        }
        page_order
    }

    /// Returns whether a page lies within the first `size` bytes, at least in part.
    pub(super) fn is_inside(&self, size: u64, page: u64) -> bool {
        page < size.div_ceil(1 << self.page_shift())
    }

    /// Calls `found` with a page's first frame under the object's lock. If the page does not exist,
    /// inserts it first, in a folio as large as `limits` permits; if it is swapped out, reads it
    /// back first. Returns `None` if the page lies beyond the object's end and `bounded` is set, or
    /// beyond [`MAX_SIZE`], or if it does not exist and `limits` forbid an insertion.
    ///
    /// The lock is released to allocate, and the lookup then starts again. After too many retries
    /// because of pageout this call closes the object's gate, so that no page of the object is
    /// paged out until this call has its page (INV-21).
    ///
    /// # Errors
    /// As for [`Object::page_or_new`].
    pub(super) fn with_page<R>(
        &self,
        page: u64,
        memcg: MemcgId,
        bounded: bool,
        mut limits: FolioLimits,
        mut found: impl FnMut(&LockedState, Pfn) -> R,
    ) -> Result<Option<R>, ObjectError> {
        let (machine, frames) = (self.machine, self.machine.frames());
        let page_order = self.head().page_order;
        let is_huge = Hugetlb(self).has_pages();
        let (mut new, mut spare) = (NewFolio::new(self), SpareNodes::new(machine));
        let mut retries = Retries::new(&self.head().gate);
        let mut attempts = 0;
        loop {
            let mut state = self.lock();
            // Reclaim would drop a page of a store that the storage has not.
            let size = if bounded || self.head().store.is_some() { state.size } else { MAX_SIZE };
            if !self.is_inside(size, page) {
                return Ok(None);
            }
            state.check_hold(self, page)?;
            match state.index.find(frames, page) {
                Some(Entry::Resident(pfn)) => {
                    Reads(self).end_wait(&state, page);
                    return Ok(Some(found(&state, pfn)));
                }
                Some(Entry::Writeback(_) | Entry::Swapped { .. }) => {
                    drop(state);
                    self.swap_in(page, memcg, &mut retries)?;
                    continue;
                }
                Some(Entry::Reading(_)) => return Err(Reads(self).wait_for(&state, page)),
                None if self.head().is_stored(&state, page) => {
                    drop(state);
                    Reads(self).start(page, limits.hints, memcg, &mut retries)?;
                    continue;
                }
                None if !limits.inserts => return Ok(None),
                None => {}
            }
            let missing = state.index.missing_nodes(frames, page);
            let order = self.folio_order_for(&state, page, &limits);
            if missing <= spare.count()
                && let Some(pfn) = new.take(order)
            {
                // All entries of a folio are in one index node, so only the insertion of the first
                // page may need nodes.
                let pages = 1u64 << (order - page_order);
                let first = page & !(pages - 1);
                let entries = (Entry::Resident(pfn), 1 << page_order);
                state.index.insert(frames, first..first + pages, entries, || spare.take());
                mapping::set_object(frames.frame(pfn), self, first);
                machine.count(self.head().pages_counter(), 1 << order);
                if is_huge && state.reserved.clear(frames, page) {
                    machine.huge_pool().commit();
                }
                return Ok(Some(found(&state, pfn.add(((page - first) as u32) << page_order))));
            }
            let reserved = is_huge && state.reserved.has(frames, page, None);
            drop(state);
            spare.provide(missing, self.memcg())?;
            if is_huge {
                match new.provide_huge(reserved) {
                    // Another CPU has taken the reserved page, and is about to insert it.
                    Err(_) if reserved && attempts < MAX_ATTEMPTS => {
                        attempts += 1;
                        machine.platform().relax();
                        machine.platform().resched();
                    }
                    provided => provided?,
                }
                continue;
            }
            match new.provide(order, true, memcg) {
                // No memory for a large folio: tries again with a smaller one.
                Err(_) if order > page_order => limits.remove_from(order),
                provided => provided?,
            }
        }
    }
}

/// The reason why [`Inserts::insert_page`] inserted no page.
pub(crate) enum NotInserted {
    /// The page exists, in memory or on a swap device.
    Exists,
    /// The page lies beyond the end of the object.
    BeyondEnd,
    /// The caller failed to provide the contents.
    NoContents,
    /// There is no memory.
    Failed(ObjectError),
}

impl From<ObjectError> for NotInserted {
    fn from(error: ObjectError) -> Self {
        NotInserted::Failed(error)
    }
}

/// A reference to an object into which pages with given contents are inserted.
pub(crate) struct Inserts<'o, 'm, P: Platform>(pub(crate) &'o Object<'m, P>);

impl<P: Platform> Inserts<'_, '_, P> {
    /// Returns whether pages that do not exist have no contents: no store has them.
    pub(crate) fn are_possible(&self) -> bool {
        self.0.head().store.is_none() && !Hugetlb(self.0).has_pages()
    }

    /// Inserts a page where none exists, in an object without a store (`UFFDIO_COPY` to shared
    /// memory; Linux: `shmem_mfill_filemap_add`), and charges it to `memcg`. `contents` fills the
    /// page before the page can be found in the object, and holds no lock: it may fault pages of
    /// the same object. The page is a folio of its own.
    ///
    /// # Errors
    /// [`NotInserted`]; nothing was changed.
    pub(crate) fn insert_page(
        &self,
        page: u64,
        memcg: MemcgId,
        contents: impl FnOnce(&mut [u8]) -> Result<(), ()>,
    ) -> Result<(), NotInserted> {
        let object = self.0;
        let (machine, frames) = (object.machine, object.machine.frames());
        let _pinned = object.pin_memcg(memcg).map_err(ObjectError::from)?;
        self.check_missing(&object.lock(), page)?;
        let order = object.page_order();
        let mut new = NewFolio::new(object);
        new.provide(order, false, memcg)?;
        let Some((pfn, _)) = new.folio else { return Err(ObjectError::InUse.into()) };
        // SAFETY: the folio was just allocated, and its bytes are contiguous in the direct map. The
        // engine reads and writes the contents of a folio only if a page table maps it or an object
        // has it, and neither is true before the insertion below, after the last use of the slice.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(frames.at(pfn.addr()).as_ptr(), 1 << (u32::from(order) + FRAME_SHIFT))
        };
        contents(bytes).map_err(|()| NotInserted::NoContents)?;
        let mut spare = SpareNodes::new(machine);
        loop {
            let mut state = object.lock();
            self.check_missing(&state, page)?;
            let missing = state.index.missing_nodes(frames, page);
            if missing <= spare.count()
                && let Some(pfn) = new.take(order)
            {
                let entries = (Entry::Resident(pfn), 1 << order);
                state.index.insert(frames, page..page + 1, entries, || spare.take());
                mapping::set_object(frames.frame(pfn), object, page);
                machine.count(object.head().pages_counter(), 1 << order);
                return Ok(());
            }
            drop(state);
            spare.provide(missing, object.memcg())?;
        }
    }

    /// Checks that a page can be inserted: it does not exist, and lies within the object.
    fn check_missing(&self, state: &LockedState, page: u64) -> Result<(), NotInserted> {
        let object = self.0;
        if !object.is_inside(state.size, page) {
            return Err(NotInserted::BeyondEnd);
        }
        state.check_hold(object, page)?;
        match state.index.find(object.machine.frames(), page) {
            Some(_) => Err(NotInserted::Exists),
            None => Ok(()),
        }
    }
}
