//! Contents of files in huge pages of the machine's pool: those of hugetlbfs, and memfds with
//! `MFD_HUGETLB`. Programs map them; they can read them, but not write to them.

use super::{errno, new_tag};
use crate::mem::spaces::All;
use crate::mem::{Object, machine, payer};
use core::any::Any;
use core::ops::Range;
use spin::Mutex;
use vellum::HugePages;
use vellum::addr::FRAME_SIZE;
use vellum::frame::HUGE_ORDER;
use vellum::page_cache::{Hugetlb, PageCounts};
use vellum::space;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::io::in_pieces;
use vellum_kernel::fs::{Pages, Sink, Source};

/// The size of a huge page.
pub const HUGE_PAGE: u64 = FRAME_SIZE << HUGE_ORDER;

/// A file's contents in huge pages.
pub struct HugeContents {
    /// The page-cache object.
    pub object: Object,
    /// Serializes changes of the object's size.
    sizing: Mutex<()>,
}

impl HugeContents {
    /// Creates the contents of an empty file.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self, Errno> {
        let object = Hugetlb::new_object(machine(), payer::payer(), new_tag(), 0).map_err(|_| Errno::ENOMEM)?;
        Ok(Self { object, sizing: Mutex::new(()) })
    }

    /// Returns the counts of the machine's pool of huge pages.
    pub fn pool() -> HugePages {
        machine().huge_pool().counts()
    }
}

impl Pages for HugeContents {
    fn size(&self) -> u64 {
        self.object.size()
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        if !size.is_multiple_of(HUGE_PAGE) {
            return Err(Errno::EINVAL);
        }
        let _sizing = self.sizing.lock();
        let gone = self.object.set_size(size).map_err(errno)?;
        space::unmap_removed(&All, &self.object, &gone);
        Ok(())
    }

    fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        let mut at = at;
        in_pieces(|| {
            let end = self.size().min(at.saturating_add(to.room() as u64));
            if at >= end {
                return Ok((0, false));
            }
            // A step copies no more than a small page.
            let wanted = (end - at).min(FRAME_SIZE - at % FRAME_SIZE) as usize;
            let offset = (at % HUGE_PAGE) as usize;
            let put = match self.object.page(at / HUGE_PAGE).map_err(errno)? {
                Some(page) => to.put_page(&page.bytes()[offset..offset + wanted])?,
                None => to.put(&[0; FRAME_SIZE as usize][..wanted])?,
            };
            at += put as u64;
            Ok((put, put == wanted))
        })
    }

    fn write(&self, _at: u64, _from: &mut dyn Source) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    fn allocate(&self, bytes: Range<u64>) -> Result<(), Errno> {
        self.object.allocate(bytes, payer::payer()).map_err(errno)
    }

    fn punch(&self, bytes: Range<u64>) -> Result<(), Errno> {
        let gone = self.object.punch_hole(bytes).map_err(errno)?;
        space::unmap_removed(&All, &self.object, &gone);
        Ok(())
    }

    fn next_data(&self, at: u64) -> Option<u64> {
        Some((self.object.next_data(at / HUGE_PAGE)? * HUGE_PAGE).max(at))
    }

    fn next_hole(&self, at: u64) -> u64 {
        self.object.next_hole(at / HUGE_PAGE).saturating_mul(HUGE_PAGE).max(at)
    }

    fn resident(&self) -> u64 {
        let PageCounts { resident, .. } = self.object.page_counts();
        resident * HUGE_PAGE
    }

    fn deny_shared_write(&self) -> Result<(), Errno> {
        self.object.deny_shared_write().map_err(errno)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
