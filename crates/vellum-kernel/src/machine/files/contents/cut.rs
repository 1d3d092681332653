//! Truncation, in the order in which the storage learns of it: first the zeros behind the new end
//! in its page, then the new size (Linux: `ext4_block_truncate_page`, with ordered data). So the
//! bytes that were cut off never return when the file grows again, whenever the power is lost.

use super::sync::complete;
use super::{ObjectContents, PAGE, errno};
use crate::mem::storage;
use vellum::page_cache::ObjectError;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Pages;

impl ObjectContents {
    /// Begins to cut the file off at `size`, if it is larger: sets its size in memory. The caller
    /// holds the file's write lock until the storage has the size ([`Pages::set_size`]).
    ///
    /// # Errors
    ///
    /// Those of the last page, with nothing changed: `ENOMEM`; `EIO`, also with the thread marked
    /// as blocked.
    pub fn begin_cut(&self, size: u64) -> Result<(), Errno> {
        match self.cut(size) {
            // The size is set, and pages behind it are being written.
            Err(ObjectError::Pending(_)) if self.size() <= size => Ok(()),
            cut => cut.map_err(errno),
        }
    }

    /// Waits until the storage can be cut off, too: until no page behind `size` is in memory or
    /// being written, and the zeros behind `size` in its page were written. No signal interrupts
    /// this: the sizes in memory and on the storage differ meanwhile.
    pub async fn end_cut(&self, size: u64) {
        while let Err(ObjectError::Pending(page)) = self.cut(size) {
            storage::wait_for_request(page).await;
        }
        complete(&self.object, size / PAGE..size.div_ceil(PAGE)).await;
        while let Some(page) = storage::being_written(self.object.serial(), size / PAGE..u64::MAX) {
            storage::wait_for_request(page).await;
        }
    }

    /// Cuts the file off at `size` in memory, unless it is smaller.
    fn cut(&self, size: u64) -> Result<(), ObjectError> {
        let _sizing = self.sizing.lock();
        if size <= self.size() { self.set_object_size(size) } else { Ok(()) }
    }
}
