//! What keeps a tree beyond a restart: a file system on a disk, of which the tree is the cache.

use crate::errno::Errno;
use crate::fs::inode::{NewInode, Space};
use crate::fs::meta::{Device, Kind, Time};
use alloc::boxed::Box;

/// The attributes of an inode on a disk.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Kept {
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    /// The size in bytes.
    pub size: u64,
    /// The number of the device that a device file stands for.
    pub special: Device,
    pub accessed: Time,
    pub modified: Time,
    pub changed: Time,
    pub born: Time,
}

/// The attributes of an inode that a disk is to keep.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Attributes {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub accessed: Time,
    pub modified: Time,
}

/// A function that takes the name, inode number and kind of an entry.
pub type EachEntry<'a> = dyn FnMut(&[u8], u64, Kind) -> Result<(), Errno> + 'a;

/// A file system on a disk. Inodes are known by their numbers. The tree checks each operation
/// first, so that it can fail for want of room or of a working disk alone; but for the contents of
/// files, which the page cache reads and writes.
///
/// An operation may wait for the disk. It takes no lock of the tree, which calls it with its own
/// locks held.
pub trait Disk: Send + Sync {
    /// Returns the number of the root directory.
    fn root(&self) -> u64;

    /// Calls `each` with the entries of a directory but `.` and `..`, until it fails.
    ///
    /// # Errors
    /// `EIO`; those of `each`.
    fn list(&self, directory: u64, each: &mut EachEntry<'_>) -> Result<(), Errno>;

    /// Returns an inode's attributes. `at`: the directory and the name by which the inode was
    /// found; `None` for the root directory.
    ///
    /// # Errors
    /// `EIO`; `ENOENT`: the disk, which others change too, has the inode there no more.
    fn inode(&self, number: u64, at: Option<(u64, &[u8])>) -> Result<Kept, Errno>;

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    fn target(&self, link: u64) -> Result<Box<[u8]>, Errno>;

    /// Creates an inode with its entry, and returns its number.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`, `EROFS`.
    fn make(&self, directory: u64, name: &[u8], new: &NewInode<'_>) -> Result<u64, Errno>;

    /// Adds an entry for an inode.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`, `EROFS`, `EMLINK`.
    fn link(&self, directory: u64, name: &[u8], inode: u64) -> Result<(), Errno>;

    /// Removes an entry, of an empty directory if `is_directory`. An inode that has no entry left
    /// stays until [`Disk::forget`].
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`, `EROFS`.
    fn remove(&self, directory: u64, name: &[u8], is_directory: bool) -> Result<(), Errno>;

    /// Moves an entry, and replaces the entry with the new name or, if `exchange`, exchanges the
    /// two. A replaced inode that has no entry left stays until [`Disk::forget`].
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`, `EROFS`.
    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool) -> Result<(), Errno>;

    /// Frees an inode that has no entry and no user. An error is for the disk to report.
    fn forget(&self, number: u64);

    /// Changes an inode's attributes.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`, `EROFS`.
    fn set(&self, number: u64, attributes: &Attributes) -> Result<(), Errno>;

    /// Has all earlier operations survive a loss of power.
    ///
    /// # Errors
    /// `EIO`.
    fn sync(&self) -> Result<(), Errno>;

    /// Ends the use of the file system, which is then clean: the next mount has no journal to
    /// replay. The caller has had all contents written. Further operations fail.
    ///
    /// # Errors
    /// `EIO`; `EBUSY`: a file without a name is in use.
    fn unmount(&self) -> Result<(), Errno>;

    /// Returns the statistics.
    fn space(&self) -> Space;
}
