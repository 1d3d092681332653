//! Pages come: looked up, and made where there is none.

use core::ops::Range;

use super::index::{self, MOST_NODES, Page};
use super::{Contents, MAX_SIZE, Object, ObjectError, ObjectPage, owner, remove};
use crate::addr::Pfn;
use crate::frame::{Counts, Use, flag};
use crate::machine::Machine;
use crate::memcg::{LruList, MemcgId, MemcgPin, Refused};
use crate::platform::Platform;
use crate::stats::Counter;
use crate::sync::Retries;

/// Pages of an object that follow each other there and in memory, each with a reference and a mapping for the caller.
#[must_use = "its references and mappings leak unless they are mapped or put back"]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The number of the first page in the object.
    pub(crate) page: u64,
    pub(crate) pfn: Pfn,
    pub(crate) pages: u32,
}

/// What a fault finds that must not make a page.
pub(crate) enum Looked<'m, P: Platform> {
    /// The page.
    Page(ObjectPage<'m, P>),
    /// Nothing: zeros, if anybody looks.
    Hole,
    /// The object ends before it.
    BeyondEnd,
}

/// Which pages may come together, in one folio, if there are none yet.
#[derive(Clone)]
struct Together {
    /// No others than these.
    pages: Range<u64>,
    /// The sizes of folios, as a bit set of log2 of frames.
    orders: u32,
}

/// A folio that is to be an object's, got before the object is locked: charged, listed, and with the object's references, one a page. If
/// it is not needed it goes back.
pub(super) struct NewFolio<'m, P: Platform> {
    machine: &'m Machine<'m, P>,
    /// Its first frame, and its order.
    folio: Option<(Pfn, u8)>,
    page_order: u8,
}

/// What may be needed to add pages, got before the object is locked. What is not needed goes back.
struct Spare<'m, P: Platform> {
    machine: &'m Machine<'m, P>,
    folio: NewFolio<'m, P>,
    nodes: [Pfn; MOST_NODES],
    count: usize,
}

impl<'m, P: Platform> NewFolio<'m, P> {
    /// None yet.
    pub(super) fn new(machine: &'m Machine<'m, P>, page_order: u8) -> Self {
        NewFolio { machine, folio: None, page_order }
    }

    /// Get one of this order, instead of what there was. `zero`: it holds zeros.
    pub(super) fn provide(&mut self, order: u8, zero: bool, memcg: MemcgId) -> Result<(), ObjectError> {
        self.put_back();
        let frames = self.machine.frames();
        let (pfn, shard) = frames.alloc_at_lruvec(order, zero, Use::Folio).map_err(Refused::from)?;
        let refs = 1 << (order - self.page_order);
        let head = frames.make_folio(pfn, order, flag::OBJECT, Counts { refs, maps: 0 });
        owner::leave(head);
        let admitted =
            self.machine.memcgs().charge_frames(frames, memcg, (pfn, head, shard), order, Some(LruList::Shmem));
        if let Err(over) = admitted {
            frames.put(pfn, head, refs, 0);
            // SAFETY: never in an index, never listed: nobody else knows of it. It is still as zero as it came.
            unsafe { frames.free(pfn, 1 << order, zero, Use::Folio) };
            return Err(over.into());
        }
        self.folio = Some((pfn, order));
        Ok(())
    }

    /// Its first frame, if there is one, of this order. It is the caller's to put into the index.
    pub(super) fn take(&mut self, order: u8) -> Option<Pfn> {
        self.folio.take_if(|folio| folio.1 == order).map(|(pfn, _)| pfn)
    }

    fn put_back(&mut self) {
        if let Some((pfn, order)) = self.folio.take() {
            self.machine.put_folio(pfn, 1 << (order - self.page_order), 0);
        }
    }
}

impl<P: Platform> Drop for NewFolio<'_, P> {
    fn drop(&mut self) {
        self.put_back();
    }
}

impl<'m, P: Platform> Spare<'m, P> {
    fn provide_nodes(&mut self, count: usize, memcg: MemcgId) -> Result<(), ObjectError> {
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

impl<P: Platform> Drop for Spare<'_, P> {
    fn drop(&mut self) {
        for node in &self.nodes[..self.count] {
            remove::free_node(self.machine, *node);
        }
    }
}

impl<'m, P: Platform> Object<'m, P> {
    /// A page by its number, if there is one, wherever the object ends. If it was on a swap device it comes back, charged to the object's
    /// memcg.
    ///
    /// # Errors
    /// No memory to bring it back to, or over a limit, or it is lost.
    pub fn page(&self, page: u64) -> Result<Option<ObjectPage<'m, P>>, ObjectError> {
        match self.look_within(MAX_SIZE, page, self.memcg())? {
            Looked::Page(page) => Ok(Some(page)),
            Looked::Hole | Looked::BeyondEnd => Ok(None),
        }
    }

    /// A page by its number, wherever the object ends (files are allocated ahead of their size); zeros, charged to `memcg`, if
    /// there was none.
    ///
    /// # Errors
    /// No memory, over a limit, or beyond [`MAX_SIZE`].
    pub fn page_or_new(&self, page: u64, memcg: MemcgId) -> Result<ObjectPage<'m, P>, ObjectError> {
        let _pinned = self.pinned(memcg)?;
        // SAFETY: `with` hands out what the index of the locked object has.
        let get = |pfn| unsafe { ObjectPage::get(self.machine, pfn, self.page_shift()) };
        let page = self.with(page, memcg, false, &self.alone(page), |_, pfn| get(pfn))?;
        Ok(page.ok_or(ObjectError::TooLarge)??)
    }

    /// Have all pages in a range of bytes, in large folios where they fit in ([`FolioPolicy::fills`]): Linux's `fallocate` with
    /// `KEEP_SIZE`, and what a host does that is about to fill them. If this fails, some of them may have come; what the object
    /// says is the same.
    ///
    /// [`FolioPolicy::fills`]: crate::frame::policy::FolioPolicy::fills
    ///
    /// # Errors
    /// As [`Object::page_or_new`].
    pub fn allocate(&self, bytes: Range<u64>, memcg: MemcgId) -> Result<(), ObjectError> {
        if bytes.end > MAX_SIZE {
            return Err(ObjectError::TooLarge);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let _pinned = self.pinned(memcg)?;
        let shift = self.page_shift();
        let end = ((bytes.end - 1) >> shift) + 1;
        let together = Together { pages: bytes.start >> shift..end, orders: self.machine.policy().fills() };
        let mut page = together.pages.start;
        while page < end {
            let step = self.head().page_order;
            // No further than to the end of the folio that the page is in.
            let left = |_: &Contents, pfn: Pfn| {
                let (head, frame) = self.machine.frames().head(pfn);
                (head.add(1 << frame.order()).0 - pfn.0) >> step
            };
            let left = self.with(page, memcg, false, &together, left)?.map_or(1, u64::from);
            page = self.next_hole(page).min(page + left);
            self.machine.platform().resched();
        }
        Ok(())
    }

    /// What a fault on a page may copy. What was on a swap device is charged to `memcg`.
    pub(crate) fn look(&self, page: u64, memcg: MemcgId) -> Result<Looked<'m, P>, ObjectError> {
        self.look_within(0, page, memcg)
    }

    /// The same, of an object that is at least of this size.
    fn look_within(&self, size: u64, page: u64, memcg: MemcgId) -> Result<Looked<'m, P>, ObjectError> {
        let mut patience = Retries::new(&self.head().gate);
        loop {
            let contents = self.lock();
            if !self.is_inside(contents.size.max(size), page) {
                return Ok(Looked::BeyondEnd);
            }
            match contents.index.find(self.machine.frames(), page) {
                None => return Ok(Looked::Hole),
                Some(Page::Here(pfn)) => {
                    // SAFETY: in the index of an object that is locked.
                    return Ok(Looked::Page(unsafe { ObjectPage::get(self.machine, pfn, self.page_shift()) }?));
                }
                Some(Page::Held(_) | Page::Away(..)) => {}
            }
            drop(contents);
            self.bring_back(page, memcg, &mut patience)?;
        }
    }

    /// The page, to be mapped, and of those beside it, in `window`, as many as lie beside it in memory too; further than `around`
    /// reaches, only those of the same folio. If there is no page it is made, of zeros, charged to `memcg`, in a folio as large as
    /// policy allows. `None`: the object ends before it.
    pub(crate) fn map_row(
        &self,
        page: u64,
        window: Range<u64>,
        around: Range<u64>,
        memcg: MemcgId,
    ) -> Result<Option<Row>, ObjectError> {
        let frames = self.machine.frames();
        let step = 1 << self.head().page_order;
        let together = Together { pages: window.clone(), orders: self.machine.policy().objects() };
        self.with(page, memcg, true, &together, |contents, pfn| {
            let mut row = Row { page, pfn, pages: 1 };
            let (head, frame) = frames.head(pfn);
            let first = page - u64::from((pfn.0 - head.0) / step).min(page);
            let last = page + u64::from((head.add(1 << frame.order()).0 - pfn.0) / step);
            let window = around.start.min(first).max(window.start)..around.end.max(last).min(window.end);
            let there =
                |page, pfn| window.contains(&page) && contents.index.find(frames, page) == Some(Page::Here(pfn));
            while row.page > 0 && row.pfn.0 >= step && there(row.page - 1, Pfn(row.pfn.0 - step)) {
                row = Row { page: row.page - 1, pfn: Pfn(row.pfn.0 - step), pages: row.pages + 1 };
            }
            while self.is_inside(contents.size, row.page + row.pages as u64)
                && there(row.page + row.pages as u64, row.pfn.add(row.pages * step))
            {
                row.pages += 1;
            }
            let mut held = 0;
            for (head, frame, count) in frames.folios(row.pfn, row.pages * step) {
                if let Err(error) = frames.share_counts(head, frame, count, count) {
                    self.unmap_row(&Row { pages: held / step, ..row });
                    return Err(error);
                }
                held += count;
            }
            Ok(row)
        })?
        .transpose()
        .map_err(ObjectError::from)
    }

    /// Put back a row that was not mapped.
    pub(crate) fn unmap_row(&self, row: &Row) {
        for (head, _, count) in self.machine.frames().folios(row.pfn, row.pages << self.head().page_order) {
            self.machine.put_folio(head, count, count);
        }
    }

    /// Keeps a memcg that the caller names from being removed. The object's own has the object
    /// charged.
    fn pinned(&self, memcg: MemcgId) -> Result<Option<MemcgPin<'_, 'm>>, Refused> {
        let foreign = (memcg != self.memcg()).then(|| self.machine.memcgs().pinned(memcg).ok_or(Refused::OutOfMemory));
        foreign.transpose()
    }

    /// Nothing comes with a page.
    fn alone(&self, page: u64) -> Together {
        Together { pages: page..page + 1, orders: 0 }
    }

    /// The largest folio that may bring a page which is missing, none of whose other pages is there.
    fn order_of(&self, contents: &Contents, page: u64, together: &Together) -> u8 {
        let page_order = self.head().page_order;
        let mut left = together.orders >> page_order & !1;
        while left != 0 {
            let order = left.ilog2();
            let first = page >> order << order;
            let end = first + (1 << order);
            let fits = together.pages.start <= first && end <= together.pages.end;
            if fits && contents.index.next(self.machine.frames(), first).is_none_or(|(next, _)| next >= end) {
                return order as u8 + page_order;
            }
            left &= !(1 << order);
        }
        page_order
    }

    /// Whether a page lies in the object, in part at least.
    fn is_inside(&self, size: u64, page: u64) -> bool {
        page < size.div_ceil(1 << self.page_shift())
    }

    /// Do something with a page while the object is locked; it is made if it is missing, perhaps with others. `None`: the page lies
    /// beyond what is allowed, which is the object's end if `bounded`.
    fn with<R>(
        &self,
        page: u64,
        memcg: MemcgId,
        bounded: bool,
        together: &Together,
        mut found: impl FnMut(&Contents, Pfn) -> R,
    ) -> Result<Option<R>, ObjectError> {
        let (machine, frames) = (self.machine, self.machine.frames());
        let page_order = self.head().page_order;
        let folio = NewFolio::new(machine, page_order);
        let mut spare = Spare { machine, folio, nodes: [Pfn::NONE; MOST_NODES], count: 0 };
        let mut together = together.clone();
        let mut patience = Retries::new(&self.head().gate);
        loop {
            let mut contents = self.lock();
            let size = if bounded { contents.size } else { MAX_SIZE };
            if !self.is_inside(size, page) {
                return Ok(None);
            }
            match contents.index.find(frames, page) {
                Some(Page::Here(pfn)) => return Ok(Some(found(&contents, pfn))),
                Some(Page::Held(_) | Page::Away(..)) => {
                    drop(contents);
                    self.bring_back(page, memcg, &mut patience)?;
                    continue;
                }
                None => {}
            }
            let missing = contents.index.missing(frames, page);
            if bounded {
                together.pages.end = together.pages.end.min(size.div_ceil(1 << self.page_shift()));
            }
            let order = self.order_of(&contents, page, &together);
            if missing <= spare.count
                && let Some(pfn) = spare.folio.take(order)
            {
                // All of a folio is in one node, so only the first page may take nodes.
                let pages = 1u64 << (order - page_order);
                let first = page & !(pages - 1);
                for i in 0..pages {
                    contents.index.insert(frames, first + i, pfn.add((i as u32) << page_order), || {
                        spare.count -= 1;
                        spare.nodes[spare.count]
                    });
                }
                owner::enter(frames.frame(pfn), self.at, first);
                machine.count(Counter::ShmemPages, 1 << order);
                return Ok(Some(found(&contents, pfn.add(((page - first) as u32) << page_order))));
            }
            drop(contents);
            spare.provide_nodes(missing, self.memcg())?;
            match spare.folio.provide(order, true, memcg) {
                // Then smaller ones.
                Err(_) if order > page_order => together.orders &= (1 << order) - 1,
                provided => provided?,
            }
        }
    }
}
