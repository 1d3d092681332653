//! The traits of a file system: [`Inode`], [`Directory`] (together Linux's `inode_operations`) and
//! [`File`] (`file_operations`).

use super::bytes::copy_of;
use super::io::{Sink, Source};
use super::meta::{Device, Kind, Meta, Rights, Time};
use super::notify::watch::Watches;
use super::pages::Pages;
use super::write_access::WriteAccess;
use crate::errno::Errno;
use crate::sleeplock::SleepLock;
use crate::wait::Queue;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::ops::Range;
use linux_raw_sys::general;

/// A change of an inode's attributes (Linux: `iattr`). An attribute whose field is `None` stays as
/// it is. The file system sets the change time.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Change {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub accessed: Option<Time>,
    pub modified: Option<Time>,
}

impl Change {
    /// Makes the change to attributes; their change time stays.
    pub fn apply(&self, meta: &mut Meta) {
        meta.mode = self.mode.unwrap_or(meta.mode);
        meta.uid = self.uid.unwrap_or(meta.uid);
        meta.gid = self.gid.unwrap_or(meta.gid);
        meta.accessed = self.accessed.unwrap_or(meta.accessed);
        meta.modified = self.modified.unwrap_or(meta.modified);
    }
}

/// The description of an inode to create.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct NewInode<'a> {
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// The number of the device that a device file stands for.
    pub special: Device,
    /// The target of a symbolic link; empty for other kinds.
    pub target: &'a [u8],
}

/// A file system's statistics, for `statfs`.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Space {
    /// The file system's magic number.
    pub magic: u32,
    /// The size of a page in bytes; 0 stands for 4096.
    pub block: u32,
    /// The file system's size in pages.
    pub pages: u64,
    pub free_pages: u64,
    pub inodes: u64,
    pub free_inodes: u64,
}

impl Space {
    /// Returns the size of a page in bytes.
    pub fn block_size(&self) -> u64 {
        if self.block == 0 { 4096 } else { self.block.into() }
    }

    /// Returns the result of `statfs`.
    pub fn statfs(&self) -> general::statfs {
        let block = self.block_size() as i64;
        general::statfs {
            f_type: self.magic.into(),
            f_bsize: block,
            f_blocks: self.pages as i64,
            f_bfree: self.free_pages as i64,
            f_bavail: self.free_pages as i64,
            f_files: self.inodes as i64,
            f_ffree: self.free_inodes as i64,
            f_fsid: general::__kernel_fsid_t { val: [0; 2] },
            f_namelen: 255,
            f_frsize: block,
            f_flags: 0,
            f_spare: [0; 4],
        }
    }
}

/// An inode.
pub trait Inode: Send + Sync + Any {
    /// Returns the attributes.
    fn meta(&self) -> Meta;

    /// Returns [`Meta::identity`] of the attributes. An inode knows that without them, which may
    /// need locks and counts.
    fn identity(&self) -> (u64, u64) {
        self.meta().identity()
    }

    /// Returns the attributes on which permissions depend.
    fn rights(&self) -> Rights {
        self.meta().rights()
    }

    /// Returns the file type in the attributes.
    fn kind(&self) -> Kind {
        self.meta().kind
    }

    /// Changes attributes. The caller has checked the permissions.
    ///
    /// # Errors
    /// `EPERM`: the file system does not support it.
    fn change(&self, _change: &Change) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }

    /// Returns the file that handles reads and writes, opened with the `flags` of `open`. It is not
    /// called for directories, symbolic links, and devices with a driver.
    ///
    /// # Errors
    /// `ENXIO`: it can't be opened with these flags, or is a device without a driver.
    fn open(self: Arc<Self>, flags: u32) -> Result<Arc<dyn File>, Errno>;

    /// Returns the operations of a directory, or `None` for other kinds.
    fn directory(&self) -> Option<&dyn Directory> {
        None
    }

    /// Returns the target of a symbolic link (`readlink`).
    ///
    /// # Errors
    /// `EINVAL`: not a symbolic link.
    fn target(&self) -> Result<Vec<u8>, Errno> {
        Err(Errno::EINVAL)
    }

    /// Returns the inode that a magic link leads to, such as `/proc/self/fd/0`, whatever its
    /// target's name says (Linux: `nd_jump_link`); `None` for other inodes.
    fn jump(&self) -> Option<Arc<dyn Inode>> {
        None
    }

    /// Sets the size of a regular file.
    ///
    /// # Errors
    /// `EINVAL`: not a regular file; `EPERM`: sealed; `ENOMEM`, `EFBIG`.
    fn truncate(&self, _size: u64) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// Returns the count of write accesses; `None` for an inode from which no program runs.
    fn write_access(&self) -> Option<&WriteAccess> {
        None
    }

    /// Returns the alignment in bytes of the offsets, lengths and memory of direct reads and writes
    /// (`STATX_DIOALIGN`); `None` if there are none, so that `O_DIRECT` changes nothing.
    fn direct_alignment(&self) -> Option<u32> {
        None
    }

    /// Returns the statistics of its file system.
    fn space(&self) -> Space {
        Space::default()
    }

    /// Returns the inode's watches (`inotify`); `None` if it never had one, unless the caller would
    /// `create` the list, or if the file system reports no events.
    fn watches(&self, _create: bool) -> Option<&Arc<Watches>> {
        None
    }

    /// Returns the inode for a downcast to the type of its file system.
    fn as_any(&self) -> &dyn Any;
}

/// A directory entry, as `getdents64` lists it.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Entry<'a> {
    pub name: &'a [u8],
    pub inode: u64,
    pub kind: Kind,
    /// The position behind this entry (`d_off`).
    pub next: u64,
}

/// The first position of a directory's own entries; `.` and `..` come before them.
pub const FIRST: u64 = 2;

/// A directory's operations. Names are neither empty nor `.` or `..`, and contain no slash.
pub trait Directory {
    /// Looks up an entry.
    ///
    /// # Errors
    /// `ENOENT`.
    fn find(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno>;

    /// Returns the parent directory; `None` for the root of a file system, and a removed directory.
    fn parent(&self) -> Option<Arc<dyn Inode>>;

    /// Calls `each` with the entries from a position on ([`FIRST`], or an [`Entry::next`]) until it
    /// returns false. Entries that are neither added nor removed between calls are listed exactly
    /// once.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn list(&self, from: u64, each: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<(), Errno>;

    /// Returns the name of a directory in this one; `None` if there is no such entry, or no memory
    /// for the name.
    fn name_of(&self, child: &Arc<dyn Inode>) -> Option<Vec<u8>> {
        let (_, number) = child.identity();
        let mut name = None;
        let listed = self.list(FIRST, &mut |entry| {
            if entry.inode == number && entry.kind == Kind::Directory {
                name = Some(copy_of(entry.name));
            }
            name.is_none()
        });
        listed.ok()?;
        name?.ok()
    }

    /// Creates an inode and its entry.
    ///
    /// # Errors
    /// `EEXIST`; `ENOENT`: the directory was removed; `EPERM`: not supported; `ENOMEM`; `ENOSPC`.
    fn make(&self, _name: &[u8], _new: &NewInode<'_>) -> Result<Arc<dyn Inode>, Errno> {
        Err(Errno::EPERM)
    }

    /// Creates a regular file without an entry (`O_TMPFILE`).
    ///
    /// # Errors
    /// `EOPNOTSUPP`, `ENOMEM`, `ENOSPC`.
    fn make_tmpfile(&self, _new: &NewInode<'_>) -> Result<Arc<dyn Inode>, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Adds an entry for an inode of the same file system.
    ///
    /// # Errors
    /// `EEXIST`, `EXDEV`, `ENOENT`, `EPERM`, `EMLINK`, `ENOMEM`.
    fn link(&self, _name: &[u8], _inode: &Arc<dyn Inode>) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }

    /// With `_directory`, removes the entry of an empty directory (`rmdir`); without, the entry of
    /// any other inode (`unlink`).
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EISDIR`, `ENOTEMPTY`, `EPERM`.
    fn remove(&self, _name: &[u8], _directory: bool) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }

    /// Moves an entry into the directory `to` of the same file system, and replaces an entry of the
    /// name `to_name` there. `flags` are those of `renameat2`.
    ///
    /// # Errors
    /// Those of `renameat2`.
    fn rename(&self, _name: &[u8], _to: &dyn Inode, _to_name: &[u8], _flags: u32) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }
}

/// The backing of a mapping of a file.
pub enum Mappable {
    /// The file can't be mapped: `ENODEV`.
    No,
    /// Anonymous memory (`/dev/zero`).
    Zeros,
    /// The file's pages.
    Pages(Arc<dyn Pages>),
}

/// The operations of an open file. They never block: an operation that would have to fails with
/// `EAGAIN`, and [`super::Open`] waits in [`File::queue`] and retries.
pub trait File: Send + Sync {
    /// Reads at offset `_at`, which a file that is not seekable ignores. Returns the number of
    /// bytes; zero means end of file.
    ///
    /// # Errors
    /// `EAGAIN`; the sink's; the file's own.
    fn read(&self, _at: u64, _to: &mut dyn Sink) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    /// Writes at an offset. Returns the number of bytes written. A call may write only a part of
    /// the bytes, to bound its time; the caller then calls again for the rest.
    ///
    /// # Errors
    /// `EAGAIN`; `EPIPE`, for which the caller sends `SIGPIPE`; the source's; the file's own.
    fn write(&self, _at: u64, _from: &mut dyn Source) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    /// Writes at the end of the file (`O_APPEND`). Returns the number of bytes written, and the
    /// offset behind the last of them.
    ///
    /// # Errors
    /// Those of [`File::write`].
    fn append(&self, from: &mut dyn Source) -> Result<(usize, u64), Errno> {
        self.write(0, from).map(|count| (count, 0))
    }

    /// Returns true if the file may be open with `O_DIRECT` (Linux: `FMODE_CAN_ODIRECT`).
    fn permits_direct(&self) -> bool {
        false
    }

    /// Reads as [`File::read`] does, for a file that is open with `O_DIRECT`: past the page cache,
    /// unless the file is in memory.
    ///
    /// # Errors
    /// `EINVAL`: not aligned. Those of [`File::read`].
    fn read_direct(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        self.read(at, to)
    }

    /// Writes as [`File::write`] does, or without `at` as [`File::append`] does, for a file that is
    /// open with `O_DIRECT`: past the page cache, unless the file is in memory. Returns the number
    /// of bytes written, and the offset behind the last of them.
    ///
    /// # Errors
    /// `EINVAL`: not aligned. Those of [`File::write`].
    fn write_direct(&self, at: Option<u64>, from: &mut dyn Source) -> Result<(usize, u64), Errno> {
        match at {
            Some(at) => self.write(at, from).map(|count| (count, at + count as u64)),
            None => self.append(from),
        }
    }

    /// Returns the lock that the caller holds while one `write` takes several calls, if other
    /// writes must not come in between; `None` if they may.
    fn write_lock(&self) -> Option<&SleepLock> {
        None
    }

    /// Returns true if reads and writes have offsets.
    fn seekable(&self) -> bool {
        false
    }

    /// Returns true if `lseek` succeeds without effect, and the offset stays 0, as of files that
    /// have no place to move to (Linux: `noop_llseek`, `null_lseek`).
    fn ignores_seeks(&self) -> bool {
        false
    }

    /// Returns the offset that `SEEK_END` means, if that is not the inode's size.
    fn end(&self) -> Option<u64> {
        None
    }

    /// Returns the events of `poll` that are ready: `POLLIN`, `POLLOUT` and others.
    fn ready(&self) -> u32 {
        general::POLLIN | general::POLLOUT | general::POLLRDNORM | general::POLLWRNORM
    }

    /// Returns true if `poll` reports `POLLERR` unless the file is open with `O_NONBLOCK`.
    fn poll_requires_nonblock(&self) -> bool {
        false
    }

    /// Returns the wait queue that is woken when an event becomes ready; `None` if the file is
    /// always ready.
    fn queue(&self) -> Option<&Queue> {
        None
    }

    /// Returns the number of bytes that can be read at an offset without waiting (`FIONREAD`).
    ///
    /// # Errors
    /// `ENOTTY`: not supported.
    fn unread(&self, _at: u64) -> Result<u64, Errno> {
        Err(Errno::ENOTTY)
    }

    /// Returns true if `open` may return: for a FIFO, once its other end was opened.
    fn connected(&self) -> bool {
        true
    }

    /// Returns the backing for a mapping of the file, and records an access.
    fn mappable(&self) -> Mappable {
        Mappable::No
    }

    /// Returns the file's pages as this opener sees them; `None` if it has none.
    fn pages(&self) -> Option<&Arc<dyn Pages>> {
        None
    }

    /// Does the next step of `fallocate` on the range `bytes`, of whose bytes the first `done` were
    /// processed by earlier steps. Returns the number processed after this step; the caller calls
    /// again until that is the length of the range.
    ///
    /// # Errors
    /// `ENODEV`, `ESPIPE`, `EOPNOTSUPP`, `ENOSPC`, `EPERM`.
    fn allocate(&self, _mode: u32, _bytes: Range<u64>, _done: u64) -> Result<u64, Errno> {
        Err(Errno::ENODEV)
    }

    /// Returns the offset of the next data from `at` on (`SEEK_DATA`), or of the next hole if
    /// `hole` (`SEEK_HOLE`).
    ///
    /// # Errors
    /// `ENXIO`: beyond the end; `EINVAL`: not supported.
    fn seek(&self, _at: u64, _hole: bool) -> Result<u64, Errno> {
        Err(Errno::EINVAL)
    }

    /// Executes an `fcntl` command of special files: pipe sizes (`F_SETPIPE_SZ`, `F_GETPIPE_SZ`)
    /// and seals (`F_ADD_SEALS`, `F_GET_SEALS`).
    ///
    /// # Errors
    /// `EINVAL`: not supported.
    fn control(&self, _command: u32, _argument: u64) -> Result<u64, Errno> {
        Err(Errno::EINVAL)
    }

    /// Executes an `ioctl` request of this kind of file.
    ///
    /// # Errors
    /// `ENOTTY`: not supported.
    fn request(&self, _request: u32, _argument: u64) -> Result<u64, Errno> {
        Err(Errno::ENOTTY)
    }

    /// Returns the lines that `/proc/PID/fdinfo` has for this kind of file.
    fn facts(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Returns the file for a downcast by the kernel, as `ioctl` does for terminals.
    fn as_any(&self) -> &dyn Any;
}
