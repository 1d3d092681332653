//! The root file system: the archive's files in memory, or a folder or a file system of the host,
//! over which programs' changes, and the archive's files, stay in memory.

use super::contents::{ObjectContents, StoreOf};
use super::{MEMORY, block, ext4, time_of_day};
use crate::mem::block::BlockDevice;
use crate::mem::block::disk::Disk;
use crate::mem::store::Store;
use crate::mem::transfers::to_read;
use crate::mem::virtio::folder::SharedFolder;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use vellum::addr::FRAME_SIZE;
use vellum::page_cache::Changes;
use vellum::platform::ReadRequest;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::ext4::SECTOR;
use vellum_kernel::fs::ext4::contents::Place;
use vellum_kernel::fs::meta::{Device, Time};
use vellum_kernel::fs::p9::Folder;
use vellum_kernel::fs::tree::disk;
use vellum_kernel::fs::tree::{self, Capacity, Node, Tree};
use vellum_kernel::fs::{Inode, Pages, archive};
use vellum_kernel::parse::{self, BootOption, ROOT, Root};

/// The first file systems.
pub struct Roots {
    /// The archive's files, in a tmpfs that also has the files without a name.
    pub memory: Arc<Node>,
    /// The root file system.
    pub root: Arc<Node>,
    /// The type of the root file system.
    pub kind: &'static str,
}

/// Unpacks the archive, and finds the root file system that its options name.
///
/// # Errors
///
/// The archive is malformed; there is no such root file system; memory is short.
pub fn unpack(bytes: &[u8]) -> Result<Roots, &'static str> {
    const UNREADABLE: &str = "the initramfs can't be read";
    let memory = Tree::root(Arc::new(MEMORY), 1, 0o755);
    let above: Arc<dyn Inode> = memory.clone();
    archive::unpack(bytes, &above).map_err(|_| UNREADABLE)?;
    let options = archive::entries(bytes).flatten().find(|entry| entry.name == b".vellum/options");
    let named = parse::boot_options(options.map_or(b"", |entry| entry.contents)).find_map(|option| match option {
        Ok(BootOption::Root(root)) => Some(root),
        _ => None,
    });
    let root = match named {
        None => memory.clone(),
        Some(Root::Folder) => {
            folder().map_err(|_| "there is no folder for the root file system, or it can't be read")?
        }
        Some(Root::Disk) => image().map_err(|error| match error {
            Errno::EINVAL => "the disk for the root file system has no ext4 that this kernel knows",
            Errno::EUCLEAN => "the ext4 for the root file system is damaged: check it with e2fsck",
            _ => "there is no disk for the root file system, or it can't be read",
        })?,
    };
    if named.is_some() {
        let above: Arc<dyn Inode> = root.clone();
        archive::unpack(bytes, &above).map_err(|_| UNREADABLE)?;
    }
    let kind = match named {
        None => "tmpfs",
        Some(Root::Folder) => "9p",
        Some(Root::Disk) => "ext4",
    };
    Ok(Roots { memory, root, kind })
}

/// Returns the root of the host's folder.
fn folder() -> Result<Arc<Node>, Errno> {
    let device = SharedFolder::find(ROOT).ok_or(Errno::ENODEV)?;
    let folder = Arc::new(Folder::attach(Box::new(device))?);
    let files = folder.clone();
    let store = move |file| Arc::new(FolderFile { folder: files.clone(), file }) as Arc<dyn Store>;
    over(Device { major: 0, minor: 2 }, folder, Box::new(store))
}

/// Returns the root of the ext4 on a disk.
fn image() -> Result<Arc<Node>, Errno> {
    let disk = Arc::new(Disk::find(ROOT).ok_or(Errno::ENODEV)?);
    let (fs, store) = ext4::open(disk, true)?;
    over(block::ROOT_DISK, fs, store)
}

/// Returns the root directory of a tree over a disk.
fn over(device: Device, disk: Arc<dyn disk::Disk>, store: StoreOf) -> Result<Arc<Node>, Errno> {
    Tree::over_disk(Arc::new(Layer { store }), device, disk)
}

/// The tree's way to the page cache.
struct Layer {
    store: StoreOf,
}

impl tree::Host for Layer {
    fn now(&self) -> Time {
        time_of_day()
    }

    fn pages(&self) -> Result<Arc<dyn Pages>, Errno> {
        MEMORY.pages()
    }

    fn kept_pages(&self, inode: u64, size: u64) -> Result<Arc<dyn Pages>, Errno> {
        let store = Unwritten { below: (self.store)(inode), size: AtomicU64::new(size) };
        Ok(ObjectContents::stored(Arc::new(store), size)?)
    }

    fn space(&self) -> Capacity {
        MEMORY.space()
    }
}

/// The store of a file whose changes stay in memory.
struct Unwritten {
    below: Arc<dyn Store>,
    /// The smallest size that the file has had: what is behind was cut off in memory alone, and
    /// reads as zeros.
    size: AtomicU64,
}

impl Store for Unwritten {
    fn device(&self) -> Option<&Arc<dyn BlockDevice>> {
        self.below.device()
    }

    fn place(&self, bytes: Range<u64>) -> Result<(Place, Range<u64>), Errno> {
        // The device transfers whole sectors.
        let end = self.end().next_multiple_of(SECTOR).min(bytes.end);
        if end <= bytes.start { Ok((Place::Hole, bytes)) } else { self.below.place(bytes.start..end) }
    }

    fn end(&self) -> u64 {
        self.size.load(Relaxed)
    }

    fn read(&self, request: &ReadRequest) -> u64 {
        self.below.read(request)
    }

    fn flush(&self) -> bool {
        true
    }

    fn changes(&self) -> Changes {
        Changes::InMemory
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        self.size.fetch_min(size, Relaxed);
        Ok(())
    }

    fn allocate(&self, _: Range<u64>) -> Result<(), Errno> {
        Ok(())
    }

    fn punch(&self, bytes: Range<u64>) -> Result<(), Errno> {
        // The store below has the bytes still.
        if bytes.start < self.size.load(Relaxed) { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
    }

    fn used(&self) -> u64 {
        self.size.load(Relaxed).next_multiple_of(FRAME_SIZE)
    }
}

/// The store of a file of the host's folder.
struct FolderFile {
    folder: Arc<Folder>,
    file: u64,
}

impl Store for FolderFile {
    fn read(&self, request: &ReadRequest) -> u64 {
        let mut at = request.pages().start * FRAME_SIZE;
        for bytes in to_read(request) {
            match self.folder.read(self.file, at, bytes) {
                // Behind the end, which may be nearer than it was, the file has zeros.
                Ok(read) => bytes[read..].iter().for_each(|byte| byte.store(0, Relaxed)),
                Err(_) => break,
            }
            at += bytes.len() as u64;
        }
        at / FRAME_SIZE - request.pages().start
    }

    fn flush(&self) -> bool {
        true
    }
}

impl Drop for FolderFile {
    fn drop(&mut self) {
        self.folder.close(self.file);
    }
}
