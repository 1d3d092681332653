//! The store by which the page cache reads and writes a block device as a whole.

use super::{BlockDevice, Sectors};
use crate::mem::store::Store;
use alloc::sync::Arc;
use core::ops::Range;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::ext4::contents::Place;
use vellum_kernel::fs::ext4::{BlockDevice as _, SECTOR};

/// The store of a block device's own file: page n of the file is page n of the device.
pub struct WholeDevice(pub Arc<dyn BlockDevice>);

impl Store for WholeDevice {
    fn device(&self) -> Option<&Arc<dyn BlockDevice>> {
        Some(&self.0)
    }

    fn place(&self, bytes: Range<u64>) -> Result<(Place, Range<u64>), Errno> {
        Ok((Place::At(bytes.start), bytes))
    }

    fn room_for(&self, bytes: Range<u64>) -> Result<(u64, Range<u64>), Errno> {
        Ok((bytes.start, bytes))
    }

    fn flush(&self) -> bool {
        self.0.flush()
    }

    fn direct_alignment(&self) -> Option<u64> {
        Some(SECTOR)
    }

    fn read_direct(&self, at: u64, to: &mut [u8]) -> usize {
        if Sectors(self.0.clone()).read(at, to) { to.len() } else { 0 }
    }

    fn write_direct(&self, at: u64, from: &[u8]) -> Result<usize, Errno> {
        Ok(if Sectors(self.0.clone()).write(at, from) { from.len() } else { 0 })
    }
}
