//! Pages go: truncation, holes, and the object's end.

use core::ops::Range;

use super::index::{Dead, Index};
use super::{MAX_SIZE, Object, ObjectError, head};
use crate::addr::Pfn;
use crate::frame::Use;
use crate::group::Leavers;
use crate::machine::Machine;
use crate::platform::Platform;
use crate::stats::Counter;

/// Pages that are removed between two points where the CPU may do something else, and others may have the object.
const BATCH: usize = 64;

/// Pages that an object does not have any more. Spaces may still map them: before whoever removed them says that it is done,
/// each space that maps the object must hear of it ([`crate::AddressSpace::discard_object`]).
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
    /// Beyond [`MAX_SIZE`].
    pub fn set_size(&self, size: u64) -> Result<Gone, ObjectError> {
        if size > MAX_SIZE {
            return Err(ObjectError::TooLarge);
        }
        let before = core::mem::replace(&mut self.lock().size, size);
        let first = size.div_ceil(1 << self.page_shift());
        if size > before {
            return Ok(Gone { first, end: first, copies: true });
        }
        self.zero(size..first << self.page_shift());
        self.remove(first..u64::MAX);
        Ok(Gone { first, end: u64::MAX, copies: true })
    }

    /// Forget a range of bytes, which will read as zeros: pages that lie in it are removed, parts of pages overwritten (Linux:
    /// `fallocate` with `PUNCH_HOLE`).
    pub fn punch_hole(&self, bytes: Range<u64>) -> Gone {
        let shift = self.page_shift();
        let end = bytes.end.min(MAX_SIZE);
        let start = bytes.start.min(end);
        let first = start.div_ceil(1 << shift);
        let pages = first..(end >> shift).max(first);
        self.zero(start..end.min(first << shift));
        self.zero((pages.end << shift).max(start).min(end)..end);
        self.remove(pages.clone());
        Gone { first: pages.start, end: pages.end, copies: false }
    }

    /// The first page from `page` on that there is (`SEEK_DATA`).
    pub fn next_data(&self, page: u64) -> Option<u64> {
        self.lock().index.next(self.machine.frames(), page).map(|(page, _)| page)
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

    /// Zeros in bytes of one page, if there is one.
    fn zero(&self, bytes: Range<u64>) {
        let shift = self.page_shift();
        if !bytes.is_empty()
            && let Some(page) = self.page(bytes.start >> shift)
        {
            page.zero((bytes.start & ((1 << shift) - 1)) as usize, (bytes.end - bytes.start) as usize);
        }
    }

    fn remove(&self, pages: Range<u64>) {
        let mut from = pages.start;
        loop {
            // A statement of its own, so that the lock is given back before the batch is freed.
            let taken = Batch::take(self.machine, &mut self.lock().index, from..pages.end);
            let Some(batch) = taken else { return };
            from = batch.next;
            batch.free(self.machine, self.head().page_order);
        }
    }
}

/// The object has no references any more: everything that it has goes.
pub(super) fn end<P: Platform>(machine: &Machine<'_, P>, at: Pfn) {
    // SAFETY: nobody but the caller knows the object.
    let head = unsafe { head(machine, at) };
    let mut from = 0;
    loop {
        let taken = Batch::take(machine, &mut head.contents.lock(machine.platform()).index, from..u64::MAX);
        let Some(batch) = taken else { return };
        from = batch.next;
        batch.free(machine, head.page_order);
    }
}

/// Give back a node that holds nothing and that nobody else knows.
pub(super) fn free_node<P: Platform>(machine: &Machine<'_, P>, node: Pfn) {
    let frames = machine.frames();
    Leavers::new(frames, machine.groups()).leave(node, frames.frame(node), 0);
    // SAFETY: the caller's alone; a node without entries is all zero bits.
    unsafe { frames.free(node, 1, true, Use::Kernel) };
}

/// Pages that have left their object, with its reference, and nodes.
struct Batch {
    pages: [Pfn; BATCH],
    count: usize,
    nodes: Dead,
    /// Where to go on.
    next: u64,
}

impl Batch {
    /// Take the first pages of a range out. `None`: there are no more.
    fn take<P: Platform>(machine: &Machine<'_, P>, index: &mut Index, range: Range<u64>) -> Option<Batch> {
        let frames = machine.frames();
        let mut batch = Batch { pages: [Pfn::NONE; BATCH], count: 0, nodes: Dead::new(), next: range.start };
        while batch.count < BATCH
            && let Some((page, _)) = index.next(frames, batch.next)
            && page < range.end
            && let Some(pfn) = index.remove(frames, page, &mut batch.nodes)
        {
            batch.pages[batch.count] = pfn;
            batch.count += 1;
            batch.next = page + 1;
        }
        (batch.count != 0).then_some(batch)
    }

    /// With the object unlocked.
    fn free<P: Platform>(mut self, machine: &Machine<'_, P>, order: u8) {
        machine.count(Counter::ShmemPages, ((self.count as u64) << order).wrapping_neg());
        // The pages of a folio at once, which mostly leave together.
        let head = |pfn: &Pfn| machine.frames().head(*pfn).0;
        for folio in self.pages[..self.count].chunk_by(|a, b| head(a) == head(b)) {
            machine.put_folio(head(&folio[0]), folio.len() as u32, 0);
        }
        while let Some(node) = self.nodes.pop(machine.frames()) {
            free_node(machine, node);
        }
        machine.platform().resched();
    }
}
