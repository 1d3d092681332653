//! Writes to pages in memory, which the store gets later.

use super::filling::Filling;
use super::{ObjectContents, PAGE, errno, pages_of};
use crate::mem::payer;
use vellum::page_cache::Overwrite;
use vellum::platform::bytes as page_bytes;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::{Pages, Source};

impl ObjectContents {
    /// Overwrites whole pages that are missing, from `at` on, and returns the number of bytes
    /// written. Returns `None` if the first page has to be read first, or is in memory.
    ///
    /// # Errors
    ///
    /// Those of the source, also if its next page is not in memory but may be soon; `ENOMEM`.
    pub(super) fn overwrite(&self, at: u64, from: &mut dyn Source) -> Result<Option<usize>, Errno> {
        let (size, end) = (self.size(), at.saturating_add(from.left() as u64));
        // The write must cover its first and its last page as far as the file reaches.
        let first = at / PAGE;
        let last = if end >= size { end.div_ceil(PAGE) } else { end / PAGE };
        let begins_page = at.is_multiple_of(PAGE) || first * PAGE >= size;
        if self.store.is_none() || !begins_page || first >= last {
            return Ok(None);
        }
        // Among the bytes may be those of the pages to overwrite: then these must be in memory
        // first, as an access to them would wait for the end of the overwrite.
        if !from.fault_in(PAGE as usize) {
            // Behind the end of the file there is no page to write to before the write.
            return if first * PAGE < size { Ok(None) } else { Err(Errno::EFAULT) };
        }
        let over = Overwrite::begin(&self.object, first..last, payer::payer()).map_err(errno)?;
        let Some(over) = over else { return Ok(None) };
        let filling = Filling::new(over, self.object.serial())?;
        let mut skip = (at % PAGE) as usize;
        let (mut done, mut bytes, mut failed) = (0, 0, None);
        for folio in filling.folios() {
            page_bytes::clear(&folio[..skip]);
            let taken = match from.take_page(&folio[skip..]) {
                Ok(taken) => taken,
                Err(error) => {
                    failed = Some(error);
                    0
                }
            };
            done += taken;
            bytes += (skip + taken) as u64;
            page_bytes::clear(&folio[skip + taken..]);
            if skip + taken < folio.len() {
                break;
            }
            skip = 0;
        }
        // The last page counts if the write ends in it, and not if user memory does.
        let whole = if from.left() == 0 || bytes.is_multiple_of(PAGE) || first * PAGE + bytes >= size {
            bytes.div_ceil(PAGE)
        } else {
            bytes / PAGE
        };
        let kept = done.min(((first + whole) * PAGE).saturating_sub(at) as usize);
        // A page of which only a part was written is read first, by the next step.
        from.give_back(done - kept);
        let done = kept;
        filling.finish(whole, at + done as u64);
        match failed {
            Some(error) if done == 0 => Err(error),
            _ => Ok(Some(done)),
        }
    }

    /// Writes to a page that is in memory, or that is read first, with those that follow it in its
    /// folio. Returns the number of bytes written, and whether more may follow.
    pub(super) fn write_pages(&self, at: u64, from: &mut dyn Source) -> Result<(usize, bool), Errno> {
        let (first, offset) = (at / PAGE, (at % PAGE) as usize);
        let end = at.saturating_add(from.left() as u64);
        if end == at {
            return Ok((0, false));
        }
        // The page is allocated before bytes are taken: bytes taken cannot be put back, and the
        // call may be retried.
        let pages = match self.object.pages(pages_of(at..end)).map_err(errno)? {
            Some(pages) => pages,
            None => self.object.page_or_new(first, payer::payer()).map_err(errno)?,
        };
        let len = pages.len().min((end - first * PAGE) as usize);
        let old = self.size();
        let grows = self.store.is_some() && first * PAGE + len as u64 > old;
        if grows {
            // Zeroes what lies behind the old end, before the bytes of the write get there.
            self.grow(first * PAGE + len as u64)?;
        }
        let taken = from.take_page(&pages.bytes()[offset..len]);
        pages.written();
        let reached = at + taken.unwrap_or(0) as u64;
        if grows && reached < first * PAGE + len as u64 {
            self.set_object_size(reached.max(old)).map_err(errno)?;
        }
        let taken = taken?;
        self.object.mark_dirty(pages_of(at..reached));
        if self.store.is_none() {
            self.grow(reached)?;
        }
        Ok((taken, taken == len - offset))
    }

    /// Makes the file at least `size` bytes large.
    ///
    /// # Errors
    ///
    /// `EFBIG`, `EIO`, `ENOMEM`.
    pub fn grow(&self, size: u64) -> Result<(), Errno> {
        if size > self.size() {
            let _sizing = self.sizing.lock();
            if size > self.size() {
                // The size only grows, so no page is truncated.
                let _ = self.object.set_size(size).map_err(errno)?;
            }
        }
        Ok(())
    }
}
