//! The interfaces: what a file system is made of.

use super::io::{Sink, Source};
use super::meta::{Device, Kind, Meta, Time};
use super::pages::Pages;
use crate::errno::Errno;
use crate::sleeplock::SleepLock;
use crate::wait::Queue;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::ops::Range;
use linux_raw_sys::general;

/// A change of what [`Meta`] says; what is `None` stays. The file system sets the time of change.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Change {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub accessed: Option<Time>,
    pub modified: Option<Time>,
}

/// An inode to make.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct New<'a> {
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub special: Device,
    /// Of a symbolic link.
    pub target: &'a [u8],
}

/// What `statfs` says.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Space {
    /// The file system's magic number.
    pub magic: u32,
    /// In pages of 4096 bytes.
    pub pages: u64,
    pub free_pages: u64,
    pub inodes: u64,
    pub free_inodes: u64,
}

impl Space {
    /// For `statfs`.
    pub fn statfs(&self) -> general::statfs {
        general::statfs {
            f_type: self.magic.into(),
            f_bsize: 4096,
            f_blocks: self.pages as i64,
            f_bfree: self.free_pages as i64,
            f_bavail: self.free_pages as i64,
            f_files: self.inodes as i64,
            f_ffree: self.free_inodes as i64,
            f_fsid: general::__kernel_fsid_t { val: [0; 2] },
            f_namelen: 255,
            f_frsize: 4096,
            f_flags: 0,
            f_spare: [0; 4],
        }
    }
}

/// An inode: something that has a name, or had one.
pub trait Inode: Send + Sync + Any {
    /// What there is to know about it.
    fn meta(&self) -> Meta;

    /// Change that. Rights are the caller's business.
    ///
    /// # Errors
    /// `EPERM`: it can't be changed.
    fn change(&self, _change: &Change) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }

    /// What reads and writes go to, with the flags of `open`. Not asked of directories, links and
    /// devices.
    ///
    /// # Errors
    /// `ENXIO`: it can't be opened so.
    fn open(self: Arc<Self>, flags: u32) -> Result<Arc<dyn File>, Errno>;

    /// Its entries, if it is a directory.
    fn directory(&self) -> Option<&dyn Directory> {
        None
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// `EINVAL`: it is none.
    fn target(&self) -> Result<Vec<u8>, Errno> {
        Err(Errno::EINVAL)
    }

    /// Where a link leads that is not by name (`/proc/self/fd/0`).
    fn jump(&self) -> Option<Arc<dyn Inode>> {
        None
    }

    /// Set the size of a regular file.
    ///
    /// # Errors
    /// `EINVAL`: it has none. `EPERM`: sealed. `ENOMEM`, `EFBIG`.
    fn truncate(&self, _size: u64) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// About its file system.
    fn space(&self) -> Space {
        Space::default()
    }

    /// For file systems to know their own.
    fn as_any(&self) -> &dyn Any;
}

/// An entry of a directory.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Entry<'a> {
    pub name: &'a [u8],
    pub inode: u64,
    pub kind: Kind,
    /// Where to go on behind it.
    pub next: u64,
}

/// The first position that a directory's own entries may have: before them come `.` and `..`.
pub const FIRST: u64 = 2;

/// The entries of a directory. Names are neither empty nor `.` or `..`, and have no slash.
pub trait Directory {
    /// # Errors
    /// `ENOENT`.
    fn find(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno>;

    /// The directory that it is in; none if it is the root of its file system, or removed.
    fn parent(&self) -> Option<Arc<dyn Inode>>;

    /// Name entries from a position on ([`FIRST`] or one that an entry gave), until `each` has
    /// enough and says false. Entries that are neither added nor removed meanwhile are named once.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn list(&self, from: u64, each: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<(), Errno>;

    /// Make an inode under a name.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT` (the directory was removed), `EPERM` (not here), `ENOMEM`, `ENOSPC`.
    fn make(&self, _name: &[u8], _new: &New<'_>) -> Result<Arc<dyn Inode>, Errno> {
        Err(Errno::EPERM)
    }

    /// Make a regular file without a name (`O_TMPFILE`).
    ///
    /// # Errors
    /// `EOPNOTSUPP`, `ENOMEM`, `ENOSPC`.
    fn make_nameless(&self, _new: &New<'_>) -> Result<Arc<dyn Inode>, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Another name for an inode of the same file system.
    ///
    /// # Errors
    /// `EEXIST`, `EXDEV`, `ENOENT`, `EPERM`, `EMLINK`, `ENOMEM`.
    fn link(&self, _name: &[u8], _inode: &Arc<dyn Inode>) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }

    /// Remove a name; with `directory`, of an empty directory, and else of anything but.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EISDIR`, `ENOTEMPTY`, `EPERM`.
    fn remove(&self, _name: &[u8], _directory: bool) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }

    /// Move an entry into a directory of the same file system, over what has the name there;
    /// `flags` are those of `renameat2`.
    ///
    /// # Errors
    /// As `renameat2`.
    fn rename(&self, _name: &[u8], _to: &dyn Inode, _to_name: &[u8], _flags: u32) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }
}

/// What a program gets that maps a file.
pub enum Mappable {
    /// `ENODEV`.
    No,
    /// Private zeros (`/dev/zero`).
    Zeros,
    /// The file.
    Pages(Arc<dyn Pages>),
}

/// What reads and writes of an open file do. They never wait: what would have to answers `EAGAIN`,
/// and to wait at [`File::queue`] until it doesn't is the business of [`super::Open`].
pub trait File: Send + Sync {
    /// Read at an offset (which matters if it is seekable); zero bytes are the end.
    ///
    /// # Errors
    /// `EAGAIN`; the sink's; the file's own.
    fn read(&self, _at: u64, _to: &mut dyn Sink) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    /// Write at an offset. It may be less than all for no other reason than that it would take
    /// long.
    ///
    /// # Errors
    /// `EAGAIN`; `EPIPE` (to which belongs `SIGPIPE`); the source's; the file's own.
    fn write(&self, _at: u64, _from: &mut dyn Source) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    /// Write at the end (`O_APPEND`); also the offset behind what was written.
    ///
    /// # Errors
    /// As [`File::write`].
    fn append(&self, from: &mut dyn Source) -> Result<(usize, u64), Errno> {
        self.write(0, from).map(|count| (count, 0))
    }

    /// Returns the lock that a write of several calls takes, if other writes must not come in
    /// between.
    fn write_lock(&self) -> Option<&SleepLock> {
        None
    }

    /// Whether it has offsets.
    fn seekable(&self) -> bool {
        false
    }

    /// What can be done without waiting: `POLLIN` and its kin.
    fn ready(&self) -> u32 {
        general::POLLIN | general::POLLOUT | general::POLLRDNORM | general::POLLWRNORM
    }

    /// Whether only those may ask for that who would not wait for it by reading (`O_NONBLOCK`).
    fn is_polled_unblocked(&self) -> bool {
        false
    }

    /// Where it is told that something became ready. Only what is always ready has none.
    fn queue(&self) -> Option<&Queue> {
        None
    }

    /// How many bytes can be read at an offset without waiting (`FIONREAD`).
    ///
    /// # Errors
    /// `ENOTTY`: it doesn't know.
    fn unread(&self, _at: u64) -> Result<u64, Errno> {
        Err(Errno::ENOTTY)
    }

    /// Whether an `open` may return: the other end of a FIFO is there.
    fn connected(&self) -> bool {
        true
    }

    /// What a program gets that maps it, which counts as an access.
    fn mappable(&self) -> Mappable {
        Mappable::No
    }

    /// `fallocate`, with its mode: the next piece of a range whose first `done` bytes are dealt
    /// with. Returns how many are then.
    ///
    /// # Errors
    /// `ENODEV`, `ESPIPE`, `EOPNOTSUPP`, `ENOSPC`, `EPERM`.
    fn allocate(&self, _mode: u32, _bytes: Range<u64>, _done: u64) -> Result<u64, Errno> {
        Err(Errno::ENODEV)
    }

    /// `SEEK_DATA` or, if `hole`, `SEEK_HOLE`.
    ///
    /// # Errors
    /// `ENXIO`: beyond the end. `EINVAL`: it doesn't know.
    fn seek(&self, _at: u64, _hole: bool) -> Result<u64, Errno> {
        Err(Errno::EINVAL)
    }

    /// `fcntl`'s commands for special files: `F_SETPIPE_SZ`, `F_ADD_SEALS`, and those that get.
    ///
    /// # Errors
    /// `EINVAL`: it has no such thing.
    fn control(&self, _command: u32, _argument: u64) -> Result<u64, Errno> {
        Err(Errno::EINVAL)
    }

    /// `ioctl`, of what only this kind of file knows.
    ///
    /// # Errors
    /// `ENOTTY`: it has no such thing.
    fn request(&self, _request: u32, _argument: u64) -> Result<u64, Errno> {
        Err(Errno::ENOTTY)
    }

    /// For the kernel, to know its own (terminals and their `ioctl`s).
    fn as_any(&self) -> &dyn Any;
}
