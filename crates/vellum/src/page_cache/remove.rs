//! Pages go: truncation, holes, and the object's end.

use core::ops::Range;

use arrayvec::ArrayVec;

use super::index::{Dead, Index, Page};
use super::{Head, MAX_SIZE, Object, ObjectError, ObjectPage, head, owner};
use crate::addr::Pfn;
use crate::machine::Machine;
use crate::platform::Platform;
use crate::stats::Counter;
use crate::swap::{Slots, SwapRun};

/// Pages that are removed between two points where the CPU may do something else, and others may have the object.
const BATCH: usize = 32;

/// Pages that an object does not have any more. Spaces may still map them: before whoever removed them says that it is done,
/// each space that maps the object must hear of it ([`crate::space::discard`]).
#[must_use = "spaces may still map these pages"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The first page.
    pub first: u64,
    /// The page after the last.
    pub end: u64,
    /// Whether private copies of the pages go as well: those of pages beyond the end do, those of a hole don't.
    pub copies: bool,
}

impl Gone {
    /// Whether there is nothing to discard.
    pub fn is_empty(&self) -> bool {
        self.first >= self.end
    }
}

impl<P: Platform> Object<'_, P> {
    /// Change the size, in bytes. What lies beyond it is removed, and the rest of the last page is overwritten with zeros; a
    /// larger object has holes at its end (or what was allocated there ahead). The caller sees to it that sizes of one object
    /// are not set side by side.
    ///
    /// # Errors
    /// Beyond [`MAX_SIZE`], or as of [`Object::page`]: nothing was changed.
    pub fn set_size(&self, size: u64) -> Result<Gone, ObjectError> {
        if size > MAX_SIZE {
            return Err(ObjectError::TooLarge);
        }
        let first = size.div_ceil(1 << self.page_shift());
        if size > self.size() {
            self.lock().size = size;
            return Ok(Gone { first, end: first, copies: true });
        }
        let rest = self.part(size..first << self.page_shift())?;
        self.lock().size = size;
        rest.zero();
        self.remove(first..u64::MAX);
        Ok(Gone { first, end: u64::MAX, copies: true })
    }

    /// Forget a range of bytes, which will read as zeros: pages that lie in it are removed, parts of pages overwritten (Linux:
    /// `fallocate` with `PUNCH_HOLE`).
    ///
    /// # Errors
    /// As of [`Object::page`]: nothing was changed.
    pub fn punch_hole(&self, bytes: Range<u64>) -> Result<Gone, ObjectError> {
        let shift = self.page_shift();
        let end = bytes.end.min(MAX_SIZE);
        let start = bytes.start.min(end);
        let first = start.div_ceil(1 << shift);
        let pages = first..(end >> shift).max(first);
        let parts = [start..end.min(first << shift), (pages.end << shift).max(start).min(end)..end];
        let [head, tail] = parts.map(|bytes| self.part(bytes));
        let (head, tail) = (head?, tail?);
        head.zero();
        tail.zero();
        self.remove(pages.clone());
        Ok(Gone { first: pages.start, end: pages.end, copies: false })
    }

    /// The first page from `page` on that there is (`SEEK_DATA`).
    pub fn next_data(&self, page: u64) -> Option<u64> {
        self.next_page(page).map(|(page, _)| page)
    }

    /// The first page from `page` on that there is not (`SEEK_HOLE`).
    pub fn next_hole(&self, mut page: u64) -> u64 {
        loop {
            let found = self.lock().index.hole(self.machine.frames(), page);
            match found {
                Ok(hole) => return hole,
                Err(end) => page = end,
            }
            self.machine.platform().resched();
        }
    }

    /// Whether there is such a page.
    pub fn has(&self, page: u64) -> bool {
        self.lock().index.find(self.machine.frames(), page).is_some()
    }

    /// Bytes of one page, in memory if there is one.
    fn part(&self, bytes: Range<u64>) -> Result<Part<'_, P>, ObjectError> {
        let shift = self.page_shift();
        let page = if bytes.is_empty() { None } else { self.page(bytes.start >> shift)? };
        let first = (bytes.start & ((1 << shift) - 1)) as usize;
        Ok(Part { page, first, count: (bytes.end.saturating_sub(bytes.start)) as usize })
    }

    fn remove(&self, pages: Range<u64>) {
        let mut from = pages.start;
        loop {
            // A statement of its own, so that the lock is given back before the batch is freed.
            let taken = Batch::take(self.machine, self.head(), &mut self.lock().index, from..pages.end);
            let Some(batch) = taken else { return };
            from = batch.next;
            batch.free(self.machine, self.head());
        }
    }
}

/// The object has no references any more: everything that it has goes.
pub(super) fn end<P: Platform>(machine: &Machine<'_, P>, at: Pfn) {
    // SAFETY: nobody but the caller knows the object.
    let head = unsafe { head(machine, at) };
    let mut from = 0;
    loop {
        let taken = Batch::take(machine, head, &mut head.contents.lock(machine.platform()).index, from..u64::MAX);
        let Some(batch) = taken else { return };
        from = batch.next;
        batch.free(machine, head);
    }
}

/// Give back a node that holds nothing and that nobody else knows.
pub(super) fn free_node<P: Platform>(machine: &Machine<'_, P>, node: Pfn) {
    let frames = machine.frames();
    // SAFETY: the caller's alone; a node without entries is all zero bits.
    unsafe { machine.memcgs().free(frames, node, 0, true) };
}

/// Bytes of a page that somebody has in hand, if there is one.
struct Part<'m, P: Platform> {
    page: Option<ObjectPage<'m, P>>,
    first: usize,
    count: usize,
}

impl<P: Platform> Part<'_, P> {
    fn zero(&self) {
        if let Some(page) = &self.page {
            page.zero(self.first, self.count);
        }
    }
}

/// Pages that have left their object, with its references, and nodes.
struct Batch {
    pages: ArrayVec<Page, BATCH>,
    nodes: Dead,
    /// Where to go on.
    next: u64,
}

impl Batch {
    /// Take the first pages of a range out. `None`: there are no more.
    fn take<P: Platform>(machine: &Machine<'_, P>, head: &Head, index: &mut Index, range: Range<u64>) -> Option<Batch> {
        let frames = machine.frames();
        let mut batch = Batch { pages: ArrayVec::new(), nodes: Dead::new(), next: range.start };
        // The last one of a folio that has left says that for the folio.
        let mut last = None;
        let left = |index: &Index, last: Option<(u64, Pfn)>| {
            last.into_iter().for_each(|(page, pfn)| owner::left(frames, index, page, pfn, head.page_order));
        };
        while !batch.pages.is_full()
            && let Some((page, _)) = index.next(frames, batch.next)
            && page < range.end
            && let Some(was) = index.remove(frames, page, &mut batch.nodes)
        {
            let now = was.frame().map(|pfn| (page, pfn));
            let folio = |of: Option<(u64, Pfn)>| of.map(|(_, pfn)| frames.head(pfn).0);
            if folio(last) != folio(now) {
                left(index, last);
            }
            last = now;
            batch.pages.push(was);
            batch.next = page + 1;
        }
        left(index, last);
        (!batch.pages.is_empty()).then_some(batch)
    }

    /// With the object unlocked.
    fn free<P: Platform>(mut self, machine: &Machine<'_, P>, object: &Head) {
        let order = object.page_order;
        let here = self.pages.iter().filter_map(|page| page.frame()).count() as u64;
        let away = (self.pages.len() as u64 - here) << order;
        machine.count(Counter::ShmemPages, (here << order).wrapping_neg());
        machine.memcgs().count_swapped(object.memcg, -(away as i64));
        // The pages of a folio at once, which mostly leave together, and slots in a row.
        let head = |page: &Page| page.frame().map(|pfn| machine.frames().head(pfn).0);
        let follows = |a: &Page, b: &Page| match (a, b) {
            (Page::Away(device, a), Page::Away(other, b)) => device == other && a + (1 << order) == *b,
            _ => head(a).is_some() && head(a) == head(b),
        };
        for row in self.pages.chunk_by(follows) {
            if let Page::Away(device, first) = row[0] {
                let slots = Slots { first, count: (row.len() as u32) << order };
                // SAFETY: the references that the index had.
                unsafe { machine.swaps().release(machine.frames(), SwapRun { device, slots }) };
            } else if let Some(head) = head(&row[0]) {
                machine.put_folio(head, row.len() as u32, 0);
            }
            machine.platform().resched();
        }
        while let Some(node) = self.nodes.pop(machine.frames()) {
            free_node(machine, node);
        }
    }
}
