//! Trees of inodes in memory: all of a tmpfs, and the cache of a file system on a [`Disk`]. Times
//! and pages come from the kernel ([`Host`]). A tree over a disk keeps all changes in memory, for a
//! disk that is not to be written ([`Tree::over_disk`]).
//!
//! The tree of a disk has a directory's entries from the first access to the directory on, and an
//! inode from its first lookup on, until it is unmounted. An operation on names is checked in the
//! tree, done on the disk, and then in the tree. Times and the contents of files get to the disk
//! later ([`Tree::write_attributes`], and the page cache).
//!
//! # Lock order
//! 1. `Tree::renaming`. A thread that locks two directories holds `renaming`, so it may lock the
//!    two in either order (Linux: `s_vfs_rename_mutex`).
//! 2. A directory's entries.
//! 3. The table of a disk's inodes in memory.
//! 4. An inode's attributes.
//!
//! A disk takes its own locks after all of these.
//!
//! A thread takes the lock of a regular file's `seals` before that of its attributes, and before
//! those of its pages.
//!
//! | file | subject |
//! |---|---|
//! | [`disk`] | what a tree needs of a file system on a disk |
//! | `node` | inodes: what all kinds have in common |
//! | `entries` | a directory's entries, by name and by position |
//! | `directory` | creating, linking, removing, renaming |
//! | `regular` | regular files: reads, writes, holes, seals |

mod directory;
pub mod disk;
mod entries;
mod node;
mod regular;
#[cfg(test)]
mod tests;

use super::inode::NewInode;
use super::meta::{Device, Kind, Time};
use super::pages::Pages;
use crate::errno::Errno;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use disk::Disk;
use linux_raw_sys::general::TMPFS_MAGIC;
pub use node::Node;
use spin::Mutex;

/// The services of the kernel that a tmpfs uses.
pub trait Host: Send + Sync {
    /// Returns the time of day.
    fn now(&self) -> Time;

    /// Returns pages for a new regular file: no pages, of size 0.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn pages(&self) -> Result<Arc<dyn Pages>, Errno>;

    /// Returns the pages of a regular file of `size` bytes on the tree's disk.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn kept_pages(&self, _inode: u64, _size: u64) -> Result<Arc<dyn Pages>, Errno> {
        Err(Errno::EIO)
    }

    /// Returns the magic number of a tree without a disk, and the size of the blocks that its
    /// capacity counts.
    fn kind(&self) -> (u32, u32) {
        (TMPFS_MAGIC, 4096)
    }

    /// Returns the capacity of a tree without a disk.
    fn space(&self) -> Capacity;
}

/// A tmpfs's capacity, in pages of the size that [`Host::kind`] returns.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Capacity {
    pub total: u64,
    pub free: u64,
}

/// The first number of an inode that is in no file system on a disk ([`Tree::over_disk`]).
pub const FIRST_OVER_DISK: u64 = 1 << 63;

/// A tmpfs instance, or the cache of a file system on a disk.
pub struct Tree {
    device: Device,
    host: Arc<dyn Host>,
    disk: Option<Arc<dyn Disk>>,
    /// Changes stay in memory.
    is_over_disk: bool,
    /// The inodes of the disk that are in memory, by their numbers.
    kept: Mutex<BTreeMap<u64, Weak<Node>>>,
    next_inode: AtomicU64,
    renaming: Mutex<()>,
}

impl Tree {
    /// Creates a tmpfs, and returns its empty root directory of mode `mode`. `minor`: the minor
    /// number of its device, which no other file system has.
    pub fn root(host: Arc<dyn Host>, minor: u32, mode: u32) -> Arc<Node> {
        let fs = Tree::of(host, Device { major: 0, minor }, None, false);
        let new = NewInode { kind: Kind::Directory, mode, uid: 0, gid: 0, special: Device::default(), target: &[] };
        node::directory(&fs, &new, None)
    }

    /// Creates the tree of a disk, and returns its root directory. `device`: the number of the
    /// disk.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`; `ENOTDIR`: the disk has no root directory.
    pub fn of_disk(host: Arc<dyn Host>, device: Device, disk: Arc<dyn Disk>) -> Result<Arc<Node>, Errno> {
        Tree::root_of(disk.root(), Tree::of(host, device, Some(disk), false))
    }

    /// Creates a tree that begins as the file system on a disk, and returns its root directory.
    /// Changes stay in memory, as those of a tmpfs do. The disk, whose inodes have numbers below
    /// [`FIRST_OVER_DISK`], is never written, and neither synchronised nor unmounted.
    ///
    /// # Errors
    /// As for [`Tree::of_disk`].
    pub fn over_disk(host: Arc<dyn Host>, device: Device, disk: Arc<dyn Disk>) -> Result<Arc<Node>, Errno> {
        Tree::root_of(disk.root(), Tree::of(host, device, Some(disk), true))
    }

    fn root_of(number: u64, tree: Arc<Tree>) -> Result<Arc<Node>, Errno> {
        let root = node::load(&tree, number, None)?;
        if root.is_directory() { Ok(root) } else { Err(Errno::ENOTDIR) }
    }

    fn of(host: Arc<dyn Host>, device: Device, disk: Option<Arc<dyn Disk>>, is_over_disk: bool) -> Arc<Tree> {
        let first = if is_over_disk { FIRST_OVER_DISK } else { 1 };
        let (kept, next_inode, renaming) = (Mutex::default(), AtomicU64::new(first), Mutex::default());
        Arc::new(Tree { device, host, disk, is_over_disk, kept, next_inode, renaming })
    }

    /// Returns the disk that keeps the tree's changes, if one does.
    fn kept_by(&self) -> Option<&Arc<dyn Disk>> {
        self.disk.as_ref().filter(|_| !self.is_over_disk)
    }

    /// Calls `act` with the disk that keeps the tree's changes, if one does.
    ///
    /// # Errors
    /// Those of `act`.
    pub fn on_disk(&self, act: impl FnOnce(&dyn Disk) -> Result<(), Errno>) -> Result<(), Errno> {
        self.kept_by().map_or(Ok(()), |disk| act(&**disk))
    }

    /// Has the disk keep the attributes of all inodes that changed in memory alone: the times of
    /// reads and writes.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`, for the first inode that failed. All others are done.
    pub fn write_attributes(&self) -> Result<(), Errno> {
        let (mut next, mut result) = (0, Ok(()));
        loop {
            let kept = self.kept.lock();
            let Some((number, node)) = kept.range(next..).next().map(|(number, node)| (*number, node.upgrade())) else {
                return result;
            };
            drop(kept);
            next = number + 1;
            if let Some(node) = node {
                result = result.and(node.write_attributes());
            }
        }
    }

    /// Returns an unused inode number.
    fn new_number(&self) -> u64 {
        self.next_inode.fetch_add(1, Relaxed)
    }
}

/// Implements `memfd_create`: creates a regular file without a name in the file system of `beside`.
/// `sealable`: seals may be added (`MFD_ALLOW_SEALING`).
///
/// # Errors
/// `ENOMEM`.
pub fn memfd(beside: &Node, uid: u32, gid: u32, sealable: bool) -> Result<Arc<Node>, Errno> {
    let new = NewInode { kind: Kind::Regular, mode: 0o777, uid, gid, special: Device::default(), target: &[] };
    let node = node::make(&beside.fs, &new, None)?;
    node.clear_links(false);
    if sealable {
        node.allow_seals();
    }
    Ok(node)
}
