//! Pages come: looked up, and made where there is none.

use core::ops::Range;

use super::index::{self, MOST_NODES};
use super::{MAX_SIZE, Object, ObjectError, ObjectPage, remove};
use crate::addr::Pfn;
use crate::frame::{Counts, Use, flag};
use crate::group::{GroupId, LruList};
use crate::machine::Machine;
use crate::platform::Platform;
use crate::stats::Counter;

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

/// What may be needed to add a page, got before the object is locked. What is not needed goes back.
struct Spare<'m, P: Platform> {
    machine: &'m Machine<'m, P>,
    folio: Option<Pfn>,
    nodes: [Pfn; MOST_NODES],
    count: usize,
}

impl<'m, P: Platform> Spare<'m, P> {
    /// A zeroed page, charged to a group and listed, with the object's reference.
    fn provide_folio(&mut self, object: Pfn, order: u8, group: GroupId) -> Result<(), ObjectError> {
        if self.folio.is_some() {
            return Ok(());
        }
        let frames = self.machine.frames();
        let pfn = frames.alloc(order, true, Use::Folio)?;
        frames.make_folio(pfn, order, flag::OBJECT, Counts { refs: 1, maps: 0 });
        frames.frame(pfn).set_data(object.0 as u64);
        if let Err(over) = self.machine.groups().admit(frames, group, pfn, order, Some(LruList::Shmem)) {
            frames.put(pfn, frames.frame(pfn), 1, 0);
            // SAFETY: never in an index, never listed: nobody else knows of it. It is still as zero as it came.
            unsafe { frames.free(pfn, 1 << order, true, Use::Folio) };
            return Err(over.into());
        }
        self.folio = Some(pfn);
        Ok(())
    }

    fn provide_nodes(&mut self, count: usize, group: GroupId) -> Result<(), ObjectError> {
        let frames = self.machine.frames();
        while self.count < count {
            let node = frames.alloc(0, true, Use::Kernel)?;
            if let Err(over) = self.machine.groups().admit(frames, group, node, 0, None) {
                // SAFETY: just allocated, and still all zero.
                unsafe { frames.free(node, 1, true, Use::Kernel) };
                return Err(over.into());
            }
            index::prepare(frames, node);
            self.nodes[self.count] = node;
            self.count += 1;
        }
        Ok(())
    }
}

impl<P: Platform> Drop for Spare<'_, P> {
    fn drop(&mut self) {
        if let Some(folio) = self.folio {
            self.machine.put_folio(folio, 1, 0);
        }
        for node in &self.nodes[..self.count] {
            remove::free_node(self.machine, *node);
        }
    }
}

impl<'m, P: Platform> Object<'m, P> {
    /// A page by its number, if there is one, wherever the object ends.
    pub fn page(&self, page: u64) -> Option<ObjectPage<'m, P>> {
        let contents = self.lock();
        let pfn = contents.index.find(self.machine.frames(), page)?;
        // SAFETY: in the index of an object that is locked.
        Some(unsafe { ObjectPage::get(self.machine, pfn, self.page_shift()) })
    }

    /// A page by its number, wherever the object ends (files are allocated ahead of their size); zeros, charged to `group`, if
    /// there was none.
    ///
    /// # Errors
    /// No memory, over a limit, or beyond [`MAX_SIZE`].
    pub fn page_or_new(&self, page: u64, group: GroupId) -> Result<ObjectPage<'m, P>, ObjectError> {
        // SAFETY: `with` hands out what the index of the locked object has.
        let get = |pfn| unsafe { ObjectPage::get(self.machine, pfn, self.page_shift()) };
        self.with(page, group, false, |_, pfn| get(pfn))?.ok_or(ObjectError::TooLarge)
    }

    /// Have all pages in a range of bytes (Linux: `fallocate` with `KEEP_SIZE`). If this fails, some of them may have come;
    /// what the object says is the same.
    ///
    /// # Errors
    /// As [`Object::page_or_new`].
    pub fn allocate(&self, bytes: Range<u64>, group: GroupId) -> Result<(), ObjectError> {
        if bytes.end > MAX_SIZE {
            return Err(ObjectError::TooLarge);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let shift = self.page_shift();
        for page in bytes.start >> shift..((bytes.end - 1) >> shift) + 1 {
            self.with(page, group, false, |_, _| ())?;
            self.machine.platform().resched();
        }
        Ok(())
    }

    /// What a fault on a page may copy.
    pub(crate) fn look(&self, page: u64) -> Looked<'m, P> {
        let contents = self.lock();
        if !self.is_inside(contents.size, page) {
            return Looked::BeyondEnd;
        }
        match contents.index.find(self.machine.frames(), page) {
            // SAFETY: in the index of an object that is locked.
            Some(pfn) => Looked::Page(unsafe { ObjectPage::get(self.machine, pfn, self.page_shift()) }),
            None => Looked::Hole,
        }
    }

    /// The page, to be mapped, and of those beside it, in `window`, as many as lie beside it in memory too. If there is no
    /// page it is made, of zeros, charged to `group`. `None`: the object ends before it.
    pub(crate) fn map_row(&self, page: u64, window: Range<u64>, group: GroupId) -> Result<Option<Row>, ObjectError> {
        let frames = self.machine.frames();
        let step = 1 << self.head().page_order;
        self.with(page, group, true, |contents, pfn| {
            let mut row = Row { page, pfn, pages: 1 };
            let there = |page, pfn| window.contains(&page) && contents.index.find(frames, page) == Some(pfn);
            while row.page > 0 && row.pfn.0 >= step && there(row.page - 1, Pfn(row.pfn.0 - step)) {
                row = Row { page: row.page - 1, pfn: Pfn(row.pfn.0 - step), pages: row.pages + 1 };
            }
            while self.is_inside(contents.size, row.page + row.pages as u64)
                && there(row.page + row.pages as u64, row.pfn.add(row.pages * step))
            {
                row.pages += 1;
            }
            for i in 0..row.pages {
                let (head, frame) = frames.head(row.pfn.add(i * step));
                frames.get_counts(head, frame, step, step);
            }
            row
        })
    }

    /// Put back a row that was not mapped.
    pub(crate) fn unmap_row(&self, row: &Row) {
        let step = 1 << self.head().page_order;
        for i in 0..row.pages {
            let (head, _) = self.machine.frames().head(row.pfn.add(i * step));
            self.machine.put_folio(head, step, step);
        }
    }

    /// Whether a page lies in the object, in part at least.
    fn is_inside(&self, size: u64, page: u64) -> bool {
        page < size.div_ceil(1 << self.page_shift())
    }

    /// Do something with a page while the object is locked; it is made if it is missing. `None`: the page lies beyond what is
    /// allowed, which is the object's end if `bounded`.
    fn with<R>(
        &self,
        page: u64,
        group: GroupId,
        bounded: bool,
        mut found: impl FnMut(&super::Contents, Pfn) -> R,
    ) -> Result<Option<R>, ObjectError> {
        let (machine, frames) = (self.machine, self.machine.frames());
        let mut spare = Spare { machine, folio: None, nodes: [Pfn::NONE; MOST_NODES], count: 0 };
        loop {
            let mut contents = self.lock();
            let size = if bounded { contents.size } else { MAX_SIZE };
            if !self.is_inside(size, page) {
                return Ok(None);
            }
            if let Some(pfn) = contents.index.find(frames, page) {
                return Ok(Some(found(&contents, pfn)));
            }
            let missing = contents.index.missing(frames, page);
            if missing <= spare.count
                && let Some(pfn) = spare.folio.take()
            {
                contents.index.insert(frames, page, pfn, || {
                    spare.count -= 1;
                    spare.nodes[spare.count]
                });
                machine.count(Counter::ShmemPages, 1 << self.head().page_order);
                return Ok(Some(found(&contents, pfn)));
            }
            drop(contents);
            spare.provide_nodes(missing, self.group())?;
            spare.provide_folio(self.at, self.head().page_order, group)?;
        }
    }
}
