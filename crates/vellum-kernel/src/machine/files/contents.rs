//! Backs files in memory with the engine's page-cache objects, so that programs can map them.

use crate::mem::spaces::All;
use crate::mem::thread::{self, BlockedOn};
use crate::mem::{self, Object, machine, payer};
use alloc::sync::Arc;
use alloc::vec;
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use spin::Mutex;
use vellum::addr::FRAME_SIZE;
use vellum::memcg::Refused;
use vellum::page_cache::{ObjectError, PageCounts};
use vellum::space;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::{Pages, Sink, Source};

/// A file's contents in a page-cache object.
pub struct ObjectContents {
    /// The page-cache object.
    pub object: Object,
    /// Serializes changes of the object's size.
    sizing: Mutex<()>,
}

const PAGE: usize = FRAME_SIZE as usize;

/// Converts an engine error. On a memory shortage the thread is marked as blocked, so that the call
/// is retried after reclaim.
fn errno(error: ObjectError) -> Errno {
    let shortage = match error {
        ObjectError::TooLarge => return Errno::EFBIG,
        ObjectError::Busy => return Errno::EBUSY,
        ObjectError::Lost | ObjectError::NotWritten => return Errno::EIO,
        ObjectError::TooManyReferences => return Errno::ENOMEM,
        // No object of this kernel has a store.
        ObjectError::Pending(_) => return Errno::EIO,
        ObjectError::NoMemory(Refused::OutOfMemory) if !machine().swaps().has_room(machine().platform()) => {
            return Errno::ENOSPC;
        }
        ObjectError::NoMemory(why) => why,
    };
    thread::current(|thread| thread.block(BlockedOn::Shortage(shortage)));
    Errno::ENOMEM
}

impl ObjectContents {
    /// Creates an empty object.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self, Errno> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let tag = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let object = mem::new_object(payer::payer(), tag).map_err(|_| Errno::ENOMEM)?;
        Ok(Self { object, sizing: Mutex::new(()) })
    }
}

impl Pages for ObjectContents {
    fn size(&self) -> u64 {
        self.object.size()
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        let _sizing = self.sizing.lock();
        let gone = self.object.set_size(size).map_err(errno)?;
        space::unmap_removed(&All, &self.object, &gone);
        Ok(())
    }

    fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        let size = self.size();
        let mut done = 0;
        let mut buffer = vec![0; PAGE];
        while to.room() > 0 && at + (done as u64) < size {
            let from = at + done as u64;
            let (page, offset) = (from / FRAME_SIZE, (from % FRAME_SIZE) as usize);
            let count = to.room().min(PAGE - offset).min((size - from) as usize);
            match self.object.page(page) {
                Ok(Some(page)) => _ = page.read(offset, &mut buffer[..count]),
                Ok(None) => buffer[..count].fill(0),
                Err(_) if done > 0 => break,
                Err(error) => return Err(errno(error)),
            }
            match to.put(&buffer[..count]) {
                Ok(put) => done += put,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        let mut done = 0;
        let mut buffer = vec![0; PAGE];
        while from.left() > 0 {
            let to = at + done as u64;
            let (page, offset) = (to / FRAME_SIZE, (to % FRAME_SIZE) as usize);
            let wanted = from.left().min(PAGE - offset);
            // The page is allocated before bytes are taken: bytes taken cannot be put back, and the
            // call may be retried.
            let page = match self.object.page_or_new(page, payer::payer()) {
                Ok(page) => page,
                Err(_) if done > 0 => break,
                Err(error) => return Err(errno(error)),
            };
            let taken = match from.take(&mut buffer[..wanted]) {
                Ok(taken) => taken,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            page.write(offset, &buffer[..taken]);
            done += taken;
            if to + taken as u64 > self.size() {
                let _sizing = self.sizing.lock();
                if to + taken as u64 > self.size() {
                    // The size only grows, so no page is truncated.
                    let _ = self.object.set_size(to + taken as u64).map_err(errno)?;
                }
            }
        }
        Ok(done)
    }

    fn expect_write(&self, bytes: Range<u64>) {
        // A failure is ignored: the write allocates page by page what is missing here.
        let _ = self.object.allocate(bytes, payer::payer());
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
        let page = self.object.next_data(at / FRAME_SIZE)?;
        Some((page * FRAME_SIZE).max(at))
    }

    fn next_hole(&self, at: u64) -> u64 {
        (self.object.next_hole(at / FRAME_SIZE) * FRAME_SIZE).max(at)
    }

    fn resident(&self) -> u64 {
        let PageCounts { resident, swapped, .. } = self.object.page_counts();
        (resident + swapped) * FRAME_SIZE
    }

    fn deny_shared_write(&self) -> Result<(), Errno> {
        self.object.deny_shared_write().map_err(errno)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Returns the page-cache object behind a file's contents.
pub fn object_of(pages: &Arc<dyn Pages>) -> Option<&Object> {
    pages.as_any().downcast_ref::<ObjectContents>().map(|contents| &contents.object)
}
