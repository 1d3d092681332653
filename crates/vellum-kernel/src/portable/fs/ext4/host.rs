//! The services that the crate needs: blocks, time, random numbers.

use super::super::meta::Time;
use super::cache::Cache;
use crate::sectors;
use alloc::sync::Arc;
use rsext4::{
    BlockIo, DeviceCapabilities, DeviceGeometry, EntropySource, Ext4Error, Ext4Result, Ext4Timestamp, SectorId,
};

/// The services of the kernel that a file system uses.
pub trait Host: Sync {
    /// Returns the time of day.
    fn now(&self) -> Time;

    /// Fills bytes with random numbers.
    fn random(&self, to: &mut [u8]);

    /// The crate begins to work on this CPU. Until [`Host::leave`] its allocations are for the
    /// whole machine, and none may be refused that can be had at all: it can't undo what it did.
    fn enter(&self) {}

    /// The crate no longer works on this CPU.
    fn leave(&self) {}
}

/// Guard: while one exists, the crate works.
pub(super) struct Works(&'static dyn Host);

impl Works {
    pub(super) fn begin(host: &'static dyn Host) -> Self {
        host.enter();
        Works(host)
    }
}

impl Drop for Works {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A block device. Offsets and lengths are multiples of 512 bytes. A call waits for the device.
pub trait BlockDevice: Send + Sync {
    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Reads bytes from `at` on. Returns whether it succeeded.
    fn read(&self, at: u64, to: &mut [u8]) -> bool;

    /// Writes bytes from `at` on. Returns whether it succeeded.
    fn write(&self, at: u64, from: &[u8]) -> bool;

    /// Has what was written survive a loss of power. Returns whether it succeeded.
    fn flush(&self) -> bool;
}

/// The unit of a device's offsets and lengths, in bytes.
pub const SECTOR: u64 = sectors::SECTOR as u64;

/// The crate's device: the blocks in memory, and those on a device.
pub(super) struct Blocks(pub Arc<dyn BlockDevice>, pub Arc<Cache>);

/// Converts the outcome of a transfer.
fn done(succeeded: bool) -> Ext4Result<()> {
    if succeeded { Ok(()) } else { Err(Ext4Error::io()) }
}

impl BlockIo for Blocks {
    fn read(&mut self, to: &mut [u8], sector: SectorId, _count: u32) -> Ext4Result<()> {
        done(self.1.read(&*self.0, sector.raw() * SECTOR, to))
    }

    fn write(&mut self, from: &[u8], sector: SectorId, _count: u32) -> Ext4Result<()> {
        done(self.1.write(&*self.0, sector.raw() * SECTOR, from))
    }

    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry::new(SECTOR as u32, self.0.size() / SECTOR)
    }

    fn capabilities(&self) -> DeviceCapabilities {
        DeviceCapabilities { flush: true, ..DeviceCapabilities::default() }
    }

    fn flush(&mut self) -> Ext4Result<()> {
        done(self.0.flush())
    }
}

pub(super) struct Clock(pub &'static dyn Host);

impl rsext4::Clock for Clock {
    fn now(&self) -> Ext4Result<Ext4Timestamp> {
        let Time { seconds, nanoseconds } = self.0.now();
        Ok(Ext4Timestamp::new(seconds, nanoseconds))
    }
}

pub(super) struct Entropy(pub &'static dyn Host);

impl EntropySource for Entropy {
    fn fill_bytes(&mut self, to: &mut [u8]) -> Ext4Result<()> {
        self.0.random(to);
        Ok(())
    }
}
