//! Implements the system calls that take a path, and those that change a file's metadata.

use super::{Answer, file, program};
use crate::files::{self, Executable};
use crate::mem::{now_ns, payer, started_at, uaccess};
use crate::task::Thread;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as abi;
use vellum_kernel::credentials::UNCHANGED;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::meta::{Access, Device, Time};
use vellum_kernel::fs::names::{LONGEST_PATH, MappedFile, View};
use vellum_kernel::fs::notify::hooks;
use vellum_kernel::fs::{FileCredentials, Files, Inode, Kind, Meta, Open};

/// `AT_FDCWD`: calls without a directory argument resolve paths from the current directory.
pub const HERE: u64 = abi::AT_FDCWD as u32 as u64;

fn path(thread: &Thread, at: u64) -> Result<Vec<u8>, Errno> {
    program::read_string(&thread.memory(), at, LONGEST_PATH)
}

/// Calls `look` with the thread's view of the file system, to resolve `path` from directory `at`.
pub fn with<T>(thread: &Thread, at: u64, path: &[u8], look: impl FnOnce(View) -> Result<T, Errno>) -> Result<T, Errno> {
    files::view(&thread.files(), &thread.credentials().file_credentials(), at as i32, path.first() == Some(&b'/'), look)
}

fn masked(files: &Files, mode: u64) -> u32 {
    mode as u32 & 0o7777 & !files.umask.load(Ordering::Relaxed)
}

/// An inode, and the directory entry by which it was found.
pub struct Named {
    /// The inode.
    pub inode: Arc<dyn Inode>,
    entry: Option<OwnedEntry>,
}

/// A directory, and a name in it.
type OwnedEntry = (Arc<dyn Inode>, Arc<[u8]>);

impl Named {
    fn of(open: &Open) -> Self {
        let entry = open.entry().map(|(directory, name)| (directory.clone(), name.into()));
        Named { inode: open.inode().clone(), entry }
    }

    /// Reports an event of the inode to the watches of its directory and to its own.
    pub fn notify(&self, event: u32) {
        hooks::event(&self.inode, self.entry.as_ref().map(|(directory, name)| (directory, &**name)), event);
    }
}

/// Resolves the path of an `...at` call. With `AT_EMPTY_PATH` and an empty path, returns the file
/// of the descriptor `at` itself. `nofollow` is the call's flag that keeps links from being
/// followed.
pub fn inode_at(thread: &Thread, at: u64, name: u64, flags: u64, nofollow: u32) -> Result<Arc<dyn Inode>, Errno> {
    named_at(thread, at, name, flags, nofollow).map(|named| named.inode)
}

/// Checks the flags of a call that knows these (`AT_…`).
///
/// # Errors
///
/// `EINVAL`: there are others.
fn knows(flags: u64, known: u32) -> Result<(), Errno> {
    if flags as u32 & !known != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

/// As [`inode_at`], with the directory entry.
pub fn named_at(thread: &Thread, at: u64, name: u64, flags: u64, nofollow: u32) -> Result<Named, Errno> {
    named_for(thread, &thread.credentials().file_credentials(), at, name, flags, nofollow)
}

/// As [`named_at`], with the access rights of `who`.
fn named_for(
    thread: &Thread,
    who: &FileCredentials,
    at: u64,
    name: u64,
    flags: u64,
    nofollow: u32,
) -> Result<Named, Errno> {
    let path = if name == 0 && flags as u32 & abi::AT_EMPTY_PATH != 0 { Vec::new() } else { path(thread, name)? };
    if path.is_empty() && flags as u32 & abi::AT_EMPTY_PATH == 0 {
        return Err(Errno::ENOENT);
    }
    if path.is_empty() {
        if at as i32 == abi::AT_FDCWD {
            return Ok(Named { inode: thread.files().current.lock().clone(), entry: None });
        }
        return Ok(Named::of(&*file::open_of(thread, at & 0xffff_ffff)?));
    }
    let absolute = path.first() == Some(&b'/');
    let found =
        files::view(&thread.files(), who, at as i32, absolute, |view| view.find(&path, flags as u32 & nofollow == 0))?;
    let inode = found.inode.ok_or(Errno::ENOENT)?;
    // Copied for the event that a change of the inode reports.
    let entry = (hooks::any() && !found.name.is_empty()).then(|| (found.parent, found.name.into()));
    Ok(Named { inode, entry })
}

/// Calls `look` with the caller's rights, for an operation on an inode already resolved.
pub fn view<T>(thread: &Thread, look: impl FnOnce(View) -> Result<T, Errno>) -> Result<T, Errno> {
    files::view(&thread.files(), &thread.credentials().file_credentials(), abi::AT_FDCWD, true, look)
}

/// Implements `open`, `openat` and `creat`.
pub async fn open(thread: &Arc<Thread>, at: u64, name: u64, flags: u64, mode: u64) -> Answer {
    let (path, flags) = (path(thread, name)?, flags as u32);
    let mode = masked(&thread.files(), mode);
    let open = with(thread, at, &path, |view| view.open(&path, flags, mode))?;
    thread.interruptible(open.wait_until_connected(), None).await?;
    file::add(thread, Arc::new(open), flags)
}

/// Implements `stat`, `lstat` and `newfstatat`.
pub fn stat(thread: &Thread, at: u64, name: u64, to: u64, flags: u64) -> Answer {
    knows(flags, abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH | abi::AT_NO_AUTOMOUNT)?;
    let inode = inode_at(thread, at, name, flags, abi::AT_SYMLINK_NOFOLLOW)?;
    write_stat(thread, &inode.meta(), to)
}

/// Implements `fstat`.
pub fn fstat(thread: &Thread, fd: u64, to: u64) -> Answer {
    write_stat(thread, &file::open_of(thread, fd)?.inode().meta(), to)
}

/// Writes a `struct stat`, whose field order, widths and padding differ per architecture.
#[allow(clippy::unnecessary_cast)]
fn write_stat(thread: &Thread, meta: &Meta, to: u64) -> Answer {
    // SAFETY: the struct has only integer fields, for which zero bits are a value.
    let mut stat: abi::stat = unsafe { core::mem::zeroed() };
    stat.st_dev = meta.device.number();
    stat.st_ino = meta.inode;
    stat.st_nlink = meta.links as _;
    stat.st_mode = meta.st_mode();
    stat.st_uid = meta.uid;
    stat.st_gid = meta.gid;
    stat.st_rdev = meta.special.number();
    stat.st_size = meta.size as i64;
    stat.st_blksize = 4096;
    stat.st_blocks = meta.used.div_ceil(512) as i64;
    stat.st_atime = meta.accessed.seconds as _;
    stat.st_atime_nsec = meta.accessed.nanoseconds.into();
    stat.st_mtime = meta.modified.seconds as _;
    stat.st_mtime_nsec = meta.modified.nanoseconds.into();
    stat.st_ctime = meta.changed.seconds as _;
    stat.st_ctime_nsec = meta.changed.nanoseconds.into();
    uaccess::write(&thread.memory(), to, uaccess::bytes_of(&stat)).map(|()| 0)
}

/// Implements `statx`.
pub fn statx(thread: &Thread, [at, name, flags, mask, to, _]: [u64; 6]) -> Answer {
    let kinds = abi::AT_STATX_FORCE_SYNC | abi::AT_STATX_DONT_SYNC;
    knows(flags, abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH | abi::AT_NO_AUTOMOUNT | kinds)?;
    if mask as u32 & abi::STATX__RESERVED != 0 || flags as u32 & kinds == kinds {
        return Err(Errno::EINVAL);
    }
    let inode = inode_at(thread, at, name, flags, abi::AT_SYMLINK_NOFOLLOW)?;
    let mut statx = inode.meta().statx();
    if let Some(alignment) = inode.direct_alignment() {
        statx.stx_mask |= abi::STATX_DIOALIGN;
        (statx.stx_dio_mem_align, statx.stx_dio_offset_align) = (alignment, alignment);
    }
    uaccess::write(&thread.memory(), to, uaccess::bytes_of(&statx)).map(|()| 0)
}

/// Implements `fstatfs`, and `statfs` once the path is resolved.
pub fn statfs(thread: &Thread, inode: &Arc<dyn Inode>, to: u64) -> Answer {
    let statfs = inode.space().statfs();
    uaccess::write(&thread.memory(), to, uaccess::bytes_of(&statfs)).map(|()| 0)
}

/// Implements `statfs`.
pub fn statfs_at(thread: &Thread, name: u64, to: u64) -> Answer {
    statfs(thread, &inode_at(thread, HERE, name, 0, 0)?, to)
}

/// Implements `access`, `faccessat` and `faccessat2`.
pub fn access(thread: &Thread, at: u64, name: u64, mode: u64, flags: u64) -> Answer {
    knows(flags, abi::AT_EACCESS | abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH)?;
    if mode & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    let credentials = thread.credentials();
    let effective = flags as u32 & abi::AT_EACCESS != 0;
    let who = if effective { credentials.file_credentials() } else { credentials.real_credentials() };
    let inode = named_for(thread, &who, at, name, flags, abi::AT_SYMLINK_NOFOLLOW)?.inode;
    who.may(inode.rights(), Access(mode as u32)).map(|()| 0)
}

/// Implements `mkdir` and `mkdirat`.
pub fn mkdir(thread: &Thread, at: u64, name: u64, mode: u64) -> Answer {
    make(thread, at, name, Kind::Directory, mode, Device::default(), &[])
}

/// Implements `mknod` and `mknodat`.
pub fn mknod(thread: &Thread, at: u64, name: u64, mode: u64, device: u64) -> Answer {
    let kind = if mode as u32 & abi::S_IFMT == 0 { Kind::Regular } else { Kind::of(mode as u32)? };
    let device =
        Device { major: (device >> 8) as u32 & 0xfff, minor: device as u32 & 0xff | (device >> 12) as u32 & !0xff };
    make(thread, at, name, kind, mode, device, &[])
}

/// Implements `symlink` and `symlinkat`.
pub fn symlink(thread: &Thread, target: u64, at: u64, name: u64) -> Answer {
    let target = path(thread, target)?;
    make(thread, at, name, Kind::Link, 0o777, Device::default(), &target)
}

fn make(thread: &Thread, at: u64, name: u64, kind: Kind, mode: u64, device: Device, target: &[u8]) -> Answer {
    let path = path(thread, name)?;
    let mode = if kind == Kind::Link { 0o777 } else { masked(&thread.files(), mode) };
    with(thread, at, &path, |view| view.make(&path, kind, mode, device, target)).map(|()| 0)
}

/// Implements `link` and `linkat`.
pub fn link(thread: &Thread, [from_at, from, at, name, flags, _]: [u64; 6]) -> Answer {
    knows(flags, abi::AT_SYMLINK_FOLLOW | abi::AT_EMPTY_PATH)?;
    // Unlike other calls, `linkat` follows links only on request.
    let follow = flags as u32 & abi::AT_SYMLINK_FOLLOW != 0;
    let flags = if follow { flags } else { flags | u64::from(abi::AT_SYMLINK_NOFOLLOW) };
    let inode = inode_at(thread, from_at, from, flags, abi::AT_SYMLINK_NOFOLLOW)?;
    let path = path(thread, name)?;
    with(thread, at, &path, |view| view.link(&inode, &path)).map(|()| 0)
}

/// Implements `unlink`, `rmdir` and `unlinkat`.
pub fn unlink(thread: &Thread, at: u64, name: u64, flags: u64) -> Answer {
    if flags as u32 & !abi::AT_REMOVEDIR != 0 {
        return Err(Errno::EINVAL);
    }
    let path = path(thread, name)?;
    with(thread, at, &path, |view| view.remove(&path, flags as u32 & abi::AT_REMOVEDIR != 0)).map(|()| 0)
}

/// Implements `rename`, `renameat` and `renameat2`.
pub fn rename(thread: &Thread, from_at: u64, from: u64, at: u64, to: u64, flags: u64) -> Answer {
    let (from, to) = (path(thread, from)?, path(thread, to)?);
    with(thread, from_at, &from, |view| with(thread, at, &to, |target| view.rename(&from, &target, &to, flags as u32)))
        .map(|()| 0)
}

/// Implements `readlink` and `readlinkat`.
pub fn readlink(thread: &Thread, at: u64, name: u64, to: u64, len: u64) -> Answer {
    if len as i32 <= 0 {
        return Err(Errno::EINVAL);
    }
    let path = path(thread, name)?;
    let target = match path.is_empty() {
        // The link that a descriptor stands for (`O_PATH`).
        true => inode_at(thread, at, name, abi::AT_EMPTY_PATH.into(), 0)?.target().map_err(|_| Errno::ENOENT)?,
        false => with(thread, at, &path, |view| view.get(&path, false)?.target())?,
    };
    let count = target.len().min(len as usize);
    uaccess::write(&thread.memory(), to, &target[..count])?;
    Ok(count as u64)
}

/// Implements `chmod`, `fchmodat` and `fchmodat2`.
pub fn chmod(thread: &Thread, at: u64, name: u64, mode: u64, flags: u64) -> Answer {
    knows(flags, abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH)?;
    set_mode(thread, &named_at(thread, at, name, flags, abi::AT_SYMLINK_NOFOLLOW)?, mode)
}

fn set_mode(thread: &Thread, named: &Named, mode: u64) -> Answer {
    view(thread, |view| view.set_mode(&*named.inode, mode as u32))?;
    named.notify(abi::IN_ATTRIB);
    Ok(0)
}

/// Sets a file's owner and group; −1 keeps the present one.
fn set_owner(thread: &Thread, named: &Named, [uid, gid]: [u64; 2]) -> Answer {
    let owner = |id: u64| Some(id as u32).filter(|id| *id != UNCHANGED);
    view(thread, |view| view.set_owner(&*named.inode, owner(uid), owner(gid)))?;
    if owner(uid).is_some() || owner(gid).is_some() {
        named.notify(abi::IN_ATTRIB);
    }
    Ok(0)
}

/// Implements `chown`, `lchown` and `fchownat`.
pub fn chown(thread: &Thread, at: u64, name: u64, uid: u64, gid: u64, flags: u64) -> Answer {
    knows(flags, abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH)?;
    set_owner(thread, &named_at(thread, at, name, flags, abi::AT_SYMLINK_NOFOLLOW)?, [uid, gid])
}

/// Returns the inode of a descriptor whose metadata is to be changed.
fn changeable(thread: &Thread, fd: u64) -> Result<Named, Errno> {
    let open = file::open_of(thread, fd)?;
    if open.flags() & abi::O_PATH != 0 { Err(Errno::EBADF) } else { Ok(Named::of(&open)) }
}

/// Implements `fchmod`.
pub fn fchmod(thread: &Thread, fd: u64, mode: u64) -> Answer {
    set_mode(thread, &changeable(thread, fd)?, mode)
}

/// Implements `fchown`.
pub fn fchown(thread: &Thread, fd: u64, uid: u64, gid: u64) -> Answer {
    set_owner(thread, &changeable(thread, fd)?, [uid, gid])
}

/// Implements `utimensat`.
pub fn utimensat(thread: &Arc<Thread>, at: u64, name: u64, times: u64, flags: u64) -> Answer {
    knows(flags, abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH)?;
    let named = if name == 0 && at as i32 != abi::AT_FDCWD {
        Named::of(&*file::open_of(thread, at)?)
    } else {
        named_at(thread, at, name, flags, abi::AT_SYMLINK_NOFOLLOW)?
    };
    let now = started_at() + now_ns();
    let now = Time { seconds: (now / 1_000_000_000) as i64, nanoseconds: (now % 1_000_000_000) as u32 };
    let mut wanted = [Some(now); 2];
    let mut present = true;
    if times != 0 {
        let mut bytes = [0; 32];
        uaccess::read(&thread.memory(), times, &mut bytes)?;
        for (time, bytes) in wanted.iter_mut().zip(bytes.chunks_exact(16)) {
            let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
            present &= word(8) as u32 == abi::UTIME_NOW;
            *time = match word(8) as u32 {
                abi::UTIME_NOW => Some(now),
                abi::UTIME_OMIT => None,
                ns if ns < 1_000_000_000 => Some(Time { seconds: word(0) as i64, nanoseconds: ns }),
                _ => return Err(Errno::EINVAL),
            };
        }
    }
    let [accessed, modified] = wanted;
    if wanted == [None; 2] {
        return Ok(0);
    }
    view(thread, |view| view.set_times(&*named.inode, accessed, modified, present))?;
    named.notify(match (accessed, modified) {
        (Some(_), Some(_)) => abi::IN_ATTRIB,
        (Some(_), None) => abi::IN_ACCESS,
        _ => abi::IN_MODIFY,
    });
    Ok(0)
}

/// Implements `fchdir`, and `chdir` once the path is resolved.
pub fn chdir(thread: &Thread, inode: Arc<dyn Inode>) -> Answer {
    if inode.directory().is_none() {
        return Err(Errno::ENOTDIR);
    }
    thread.credentials().file_credentials().may(inode.rights(), Access::EXECUTE)?;
    *thread.files().current.lock() = inode;
    Ok(0)
}

/// Implements `chdir`.
pub fn chdir_to(thread: &Thread, name: u64) -> Answer {
    chdir(thread, inode_at(thread, HERE, name, 0, 0)?)
}

/// Implements `getcwd`.
pub fn getcwd(thread: &Thread, to: u64, len: u64) -> Answer {
    let mut path = files::current_path(&thread.files())?;
    path.push(0);
    if path.len() as u64 > len {
        return Err(Errno::ERANGE);
    }
    uaccess::write(&thread.memory(), to, &path)?;
    Ok(path.len() as u64)
}

/// Implements `umask`.
pub fn umask(thread: &Thread, mask: u64) -> Answer {
    Ok(thread.files().umask.swap(mask as u32 & 0o777, Ordering::Relaxed).into())
}

/// Returns the executable file at `path`; with an empty path, that of descriptor `at`.
pub fn executable(thread: &Thread, at: u64, path: &[u8], follow: bool) -> Result<Executable, Errno> {
    let file = if path.is_empty() {
        let open = file::open_of(thread, at & 0xffff_ffff)?;
        (open.inode().clone(), MappedFile::from_open(&open))
    } else {
        with(thread, at, path, |view| files::executable(&view, path, follow))?
    };
    if file.0.kind() == Kind::Link {
        return Err(Errno::ELOOP);
    }
    thread.credentials().file_credentials().may(file.0.rights(), Access::EXECUTE)?;
    Ok(file)
}

/// Reads a whole file.
///
/// # Errors
///
/// `ENOMEM`; those of the file.
pub fn read_file(inode: &Arc<dyn Inode>) -> Result<Vec<u8>, Errno> {
    let size = inode.meta().size as usize;
    let file = inode.clone().open(abi::O_RDONLY)?;
    let mut bytes = payer::zeros(size)?;
    let read = file.read(0, &mut &mut bytes[..])?;
    bytes.truncate(read);
    Ok(bytes)
}
