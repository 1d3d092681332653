//! The files of block devices, through the page cache.

use super::contents::{ObjectContents, Opener};
use crate::mem::block::{BlockDevice, RamDisk, WholeDevice};
use crate::mem::disk::Disk;
use crate::mem::storage::Store;
use crate::mem::swap;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Pages;
use vellum_kernel::fs::inode::{File, Mappable};
use vellum_kernel::fs::io::{Limited, Sink, Source};
use vellum_kernel::fs::meta::Device;
use vellum_kernel::parse::DISK;
use vellum_kernel::sleeplock::SleepLock;

/// Makes the file of the disk at its PCI slot: `/dev/vda`, or `/dev/vdb` beside a disk to swap to,
/// as the names of Linux go by slots.
///
/// # Errors
///
/// `ENODEV`: the machine has no such disk. `ENOMEM`.
pub fn init_disk() -> Result<(), Errno> {
    let disk = Disk::find(DISK).ok_or(Errno::ENODEV)?;
    let is_second = swap::stores().any(|store| store.path == "/dev/vda");
    let (path, minor) = if is_second { ("/dev/vdb", 16) } else { ("/dev/vda", 0) };
    init(path, Device { major: 253, minor }, Box::new(disk))
}

/// Makes `/dev/ram0`, a disk of `bytes` bytes in memory.
///
/// # Errors
///
/// `ENOMEM`.
pub fn init_memory(bytes: u64) -> Result<(), Errno> {
    init("/dev/ram0", Device { major: 1, minor: 0 }, Box::new(RamDisk::new(bytes)?))
}

fn init(path: &str, number: Device, device: Box<dyn BlockDevice>) -> Result<(), Errno> {
    let size = device.size();
    let store: Arc<dyn Store> = Arc::new(WholeDevice(device));
    let block = Arc::new(Block { contents: ObjectContents::stored(store, size)?, writing: SleepLock::default() });
    let open = move |_| {
        let opened = Opened { block: block.clone(), opener: block.contents.opener() };
        Ok(Arc::new(opened) as Arc<dyn File>)
    };
    super::add_block_device(path, number, Arc::new(open))
}

/// A block device with its page cache.
struct Block {
    contents: Arc<ObjectContents>,
    /// Serializes writes that take several calls.
    writing: SleepLock,
}

/// An open block device.
pub struct Opened {
    block: Arc<Block>,
    opener: Opener,
}

impl Opened {
    /// Returns the contents, and the page cache's state for this opener.
    pub fn contents(&self) -> (&Arc<ObjectContents>, &Opener) {
        (&self.block.contents, &self.opener)
    }
}

impl File for Opened {
    fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        let end = at.saturating_add(to.room() as u64).min(self.block.contents.size());
        if at < end {
            self.block.contents.read_ahead(&self.opener, at..end);
        }
        self.block.contents.read(at, to)
    }

    fn write(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        let room = self.block.contents.size().saturating_sub(at);
        if room == 0 && from.left() > 0 {
            return Err(Errno::ENOSPC);
        }
        self.block.contents.write(at, &mut Limited(from, room as usize))
    }

    fn append(&self, from: &mut dyn Source) -> Result<(usize, u64), Errno> {
        if from.left() == 0 { Ok((0, self.block.contents.size())) } else { Err(Errno::ENOSPC) }
    }

    fn write_lock(&self) -> Option<&SleepLock> {
        Some(&self.block.writing)
    }

    fn seekable(&self) -> bool {
        true
    }

    fn end(&self) -> Option<u64> {
        Some(self.block.contents.size())
    }

    fn mappable(&self) -> Mappable {
        Mappable::Pages(self.block.contents.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
