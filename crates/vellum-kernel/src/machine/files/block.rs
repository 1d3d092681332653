//! The files of block devices, through the page cache.

use super::contents::{ObjectContents, OpenedContents};
use crate::mem::block::BlockDevice;
use crate::mem::block::disk::Disk;
use crate::mem::block::ram::RamDisk;
use crate::mem::block::whole::WholeDevice;
use crate::mem::payer::Shared;
use crate::mem::{swap, uaccess};
use crate::task::Thread;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use vellum::addr::FRAME_SIZE;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Pages;
use vellum_kernel::fs::inode::{File, Mappable};
use vellum_kernel::fs::io::{Limited, Sink, Source};
use vellum_kernel::fs::meta::Device;
use vellum_kernel::parse::DISK;
use vellum_kernel::sleeplock::SleepLock;

/// The number of the disk that has the root file system (`--root`).
pub const ROOT_DISK: Device = Device { major: 253, minor: 32 };

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
    init(path, Device { major: 253, minor }, Arc::new(disk))
}

/// Makes `/dev/ram0`, a disk of `bytes` bytes in memory.
///
/// # Errors
///
/// `ENOMEM`.
pub fn init_memory(bytes: u64) -> Result<(), Errno> {
    init("/dev/ram0", Device { major: 1, minor: 0 }, Arc::new(RamDisk::new(bytes)?))
}

/// The block devices, by their numbers.
static BLOCKS: Shared<Vec<(Device, Arc<Block>)>> = Shared::new(Vec::new());

fn init(path: &str, number: Device, device: Arc<dyn BlockDevice>) -> Result<(), Errno> {
    let contents = ObjectContents::stored(Arc::new(WholeDevice(device.clone())), device.size())?;
    let block = Arc::new(Block { device, contents, writing: SleepLock::default() });
    let mut blocks = BLOCKS.lock();
    blocks.try_reserve(1)?;
    blocks.push((number, block.clone()));
    drop(blocks);
    let open = move |_| {
        let pages = Arc::new(OpenedContents::new(block.contents.clone()));
        Ok(Arc::new(Opened { block: block.clone(), pages }) as Arc<dyn File>)
    };
    super::add_block_device(path, number, Arc::new(open))
}

/// Returns the block device with this number.
pub fn find(number: Device) -> Option<Arc<Block>> {
    BLOCKS.lock().iter().find(|(other, _)| *other == number).map(|(_, block)| block.clone())
}

/// Has all block devices keep what they were told.
pub fn flush_all() {
    let blocks = BLOCKS.lock().clone();
    for (_, block) in blocks {
        // Only `fsync` reports errors.
        let _ = block.contents.flush_store();
    }
}

/// A block device with its page cache.
pub struct Block {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// The page cache of its file.
    pub contents: Arc<ObjectContents>,
    /// Serializes writes that take several calls.
    writing: SleepLock,
}

/// The requests about a block device's size, which the crate lacks.
mod ask {
    /// `BLKGETSIZE64`: the size in bytes.
    pub const SIZE: u32 = 0x8008_1272;
    /// `BLKGETSIZE`: the size in sectors of 512 bytes.
    pub const SECTORS: u32 = 0x1260;
    /// `BLKSSZGET`.
    pub const SECTOR_SIZE: u32 = 0x1268;
    /// `BLKPBSZGET`.
    pub const PHYSICAL_SECTOR_SIZE: u32 = 0x127b;
    /// `BLKBSZGET`.
    pub const BLOCK_SIZE: u32 = 0x8008_1270;
    /// `BLKROGET`.
    pub const READ_ONLY: u32 = 0x125e;
}

/// The bytes of a sector.
const SECTOR: u64 = 512;

/// An open block device.
struct Opened {
    block: Arc<Block>,
    pages: Arc<dyn Pages>,
}

impl File for Opened {
    fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        self.pages.read(at, to)
    }

    fn write(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        let room = self.pages.size().saturating_sub(at);
        if room == 0 && from.left() > 0 {
            return Err(Errno::ENOSPC);
        }
        self.pages.write(at, &mut Limited(from, room as usize))
    }

    fn append(&self, from: &mut dyn Source) -> Result<(usize, u64), Errno> {
        if from.left() == 0 { Ok((0, self.pages.size())) } else { Err(Errno::ENOSPC) }
    }

    fn permits_direct(&self) -> bool {
        true
    }

    fn read_direct(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        self.pages.read_direct(at, to)
    }

    fn write_direct(&self, at: Option<u64>, from: &mut dyn Source) -> Result<(usize, u64), Errno> {
        let at = at.unwrap_or_else(|| self.pages.size());
        let room = self.pages.size().saturating_sub(at);
        if room == 0 && from.left() > 0 {
            return Err(Errno::ENOSPC);
        }
        let count = self.pages.write_direct(at, &mut Limited(from, room as usize))?;
        Ok((count, at + count as u64))
    }

    fn write_lock(&self) -> Option<&SleepLock> {
        Some(&self.block.writing)
    }

    fn seekable(&self) -> bool {
        true
    }

    fn end(&self) -> Option<u64> {
        Some(self.pages.size())
    }

    fn mappable(&self) -> Mappable {
        Mappable::Pages(self.pages.clone())
    }

    fn request(&self, request: u32, argument: u64) -> Result<u64, Errno> {
        let thread = Thread::current().ok_or(Errno::ENOTTY)?;
        let put = |bytes: &[u8]| uaccess::write(&thread.memory(), argument, bytes).map(|()| 0);
        match request {
            ask::SIZE => put(&self.pages.size().to_le_bytes()),
            ask::SECTORS => put(&(self.pages.size() / SECTOR).to_le_bytes()),
            ask::SECTOR_SIZE | ask::PHYSICAL_SECTOR_SIZE => put(&(SECTOR as u32).to_le_bytes()),
            ask::BLOCK_SIZE => put(&(FRAME_SIZE as u32).to_le_bytes()),
            ask::READ_ONLY => put(&[0; 4]),
            _ => Err(Errno::ENOTTY),
        }
    }

    fn pages(&self) -> Option<&Arc<dyn Pages>> {
        Some(&self.pages)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
