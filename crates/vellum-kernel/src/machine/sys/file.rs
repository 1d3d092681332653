//! Implements the system calls that take a file descriptor, other than reads and writes: `fcntl`,
//! `close` and the like.

use super::sync::write_pages;
use super::{Answer, anon_inode, interface, lock, terminal};
use crate::files;
use crate::files::contents;
pub use crate::files::descriptors::{add, limit};
use crate::files::user::UserBytes;
use crate::mem::{Object, uaccess};
use crate::task::Thread;
use alloc::sync::Arc;
use linux_raw_sys::{general as abi, ioctl};
use vellum::addr::FRAME_SIZE;
use vellum::page_cache::PageCounts;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::inode::Mappable;
use vellum_kernel::fs::table::Slot;
use vellum_kernel::fs::{Kind, Open, pipe};
use vellum_kernel::net::interface::is_request;
use vellum_kernel::net::socket_of;

/// Returns the open file of descriptor `fd`, or `EBADF`.
pub fn open_of(thread: &Thread, fd: u64) -> Result<Arc<Open>, Errno> {
    thread.files().open(fd)
}

/// Returns the object that has the pages of an open file, if it has pages.
pub fn object_of(open: &Open) -> Option<Object> {
    match open.file().ok()?.mappable() {
        Mappable::Pages(pages) => contents::object_of(&pages).cloned(),
        _ => None,
    }
}

/// Adds descriptors for the two ends of a pipe, or a pair of sockets, and writes their numbers to
/// memory.
pub fn add_pair(thread: &Thread, to: u64, ends: [Arc<Open>; 2], flags: u32) -> Answer {
    let [one, other] = ends;
    let first = add(thread, one, flags)?;
    let second = match add(thread, other, flags) {
        Ok(second) => second,
        Err(error) => {
            close(thread, first)?;
            return Err(error);
        }
    };
    if let Err(error) = uaccess::write(&thread.memory(), to, &(first | second << 32).to_le_bytes()) {
        close(thread, first)?;
        close(thread, second)?;
        return Err(error);
    }
    Ok(0)
}

/// Implements `close`.
pub fn close(thread: &Thread, fd: u64) -> Answer {
    let number = u32::try_from(fd).map_err(|_| Errno::EBADF)?;
    let removed = thread.files().table.lock().remove(number);
    removed.map(|slot| {
        files::closed(thread.process.pid, &slot.open);
        0
    })
}

/// Implements `close_range`.
pub fn close_range(thread: &Thread, first: u64, last: u64, flags: u64) -> Answer {
    const UNSHARE: u64 = 2;
    const ON_EXEC: u64 = 4;
    if first > last || flags & !(UNSHARE | ON_EXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & UNSHARE != 0 {
        let files = Arc::new(thread.files().copy()?);
        // The process's descriptors are those of its only thread.
        if thread.process.threads.lock().len() == 1 {
            *thread.process.files.lock() = Some(files.clone());
        }
        // SAFETY: a system call runs in the thread's own future.
        unsafe { thread.context() }.files = files;
    }
    let files = thread.files();
    let range = (first.min(u32::MAX.into()) as u32, last.min(u32::MAX.into()) as u32);
    if flags & ON_EXEC != 0 {
        files.table.lock().set_range_close_on_exec(range);
        return Ok(0);
    }
    loop {
        let removed = files.table.lock().remove_next(range, false);
        let Some(slot) = removed else { return Ok(0) };
        files::closed(thread.process.pid, &slot.open);
    }
}

/// Implements `dup`.
pub fn dup(thread: &Thread, fd: u64) -> Answer {
    add(thread, open_of(thread, fd)?, 0)
}

/// Implements `dup2` and `dup3`.
pub fn dup_to(thread: &Thread, from: u64, to: u64, flags: Option<u64>) -> Answer {
    let (from, to) = (from as u32, to as u32);
    let files = thread.files();
    match flags {
        Some(flags) if from == to || flags as u32 & !abi::O_CLOEXEC != 0 => return Err(Errno::EINVAL),
        None if from == to => return files.table.lock().get(from).map(|_| to.into()),
        _ => {}
    }
    let close_on_exec = flags.is_some_and(|flags| flags as u32 & abi::O_CLOEXEC != 0);
    let replaced = files.table.lock().replace(from, to, close_on_exec, limit(thread));
    replaced.map(|slot| {
        if let Some(slot) = slot {
            files::closed(thread.process.pid, &slot.open);
        }
        to.into()
    })
}

/// The `fcntl` command that returns whether two descriptors are of one open file description, which
/// the crate lacks.
const F_DUPFD_QUERY: u32 = 1027;

/// Implements `fcntl`.
pub async fn fcntl(thread: &Arc<Thread>, fd: u64, command: u64, argument: u64) -> Answer {
    let files = thread.files();
    let open = files.open(fd)?;
    let number = fd as u32;
    match command as u32 {
        abi::F_DUPFD | abi::F_DUPFD_CLOEXEC => {
            let close_on_exec = command as u32 == abi::F_DUPFD_CLOEXEC;
            let lowest = u32::try_from(argument).map_err(|_| Errno::EINVAL)?;
            let limit = limit(thread);
            let added = files.table.lock().add(Slot { open, close_on_exec }, lowest, limit);
            added.map(u64::from)
        }
        abi::F_GETFD => Ok(files.table.lock().slot(number)?.close_on_exec.into()),
        abi::F_SETFD => {
            files.table.lock().set_close_on_exec(number, argument as u32 & abi::FD_CLOEXEC != 0)?;
            Ok(0)
        }
        abi::F_GETFL => Ok(u64::from(open.flags()) | u64::from(abi::O_LARGEFILE)),
        abi::F_SETFL => {
            let hides = argument as u32 & !open.flags() & abi::O_NOATIME != 0;
            if hides && !thread.credentials().file_credentials().owns(&open.inode().meta()) {
                return Err(Errno::EPERM);
            }
            // A pipe has another use for the flag.
            let may_be_direct =
                || open.inode().kind() == Kind::Fifo || open.file().is_ok_and(|file| file.permits_direct());
            if argument as u32 & abi::O_DIRECT != 0 && !may_be_direct() {
                return Err(Errno::EINVAL);
            }
            open.set_flags(argument as u32);
            Ok(0)
        }
        abi::F_SETOWN | abi::F_SETSIG | abi::F_GETOWN | abi::F_GETSIG => Ok(0),
        // The size is an unsigned number of 32 bits.
        abi::F_SETPIPE_SZ => {
            let rights = anon_inode::rights_to_pipes(&thread.credentials());
            pipe::set_size(&**open.file().map_err(|_| Errno::EBADF)?, argument & 0xffff_ffff, rights)
        }
        abi::F_GETPIPE_SZ if open.inode().kind() != Kind::Fifo => Err(Errno::EBADF),
        abi::F_ADD_SEALS => open.writable().map_err(|_| Errno::EPERM)?.control(abi::F_ADD_SEALS, argument),
        command if lock::is_command(command) => lock::fcntl(thread, &open, command, argument).await,
        F_DUPFD_QUERY => Ok(files.open(argument).is_ok_and(|other| Arc::ptr_eq(&other, &open)).into()),
        _ if open.inode().kind() == Kind::Directory && open.flags() & abi::O_PATH == 0 => Err(Errno::EINVAL),
        _ => open.file()?.control(command as u32, argument),
    }
}

/// Implements `lseek`. A file's holes are known once what was written to them has its blocks.
pub async fn lseek(thread: &Arc<Thread>, fd: u64, offset: u64, whence: u64) -> Answer {
    let open = open_of(thread, fd)?;
    if matches!(whence as u32, abi::SEEK_DATA | abi::SEEK_HOLE) {
        write_pages(thread, &open, 0..u64::MAX).await?;
    }
    open.seek(offset as i64, whence as u32)
}

/// The requests that clone blocks of files, which no file system here shares.
const FICLONE: u32 = 0x4004_9409;
const FICLONERANGE: u32 = 0x4020_940d;

/// Implements `ioctl`: the requests that every file has, and those of its kind.
pub fn ioctl(thread: &Arc<Thread>, fd: u64, request: u64, argument: u64) -> Answer {
    let open = open_of(thread, fd)?;
    let set_close_on_exec = |on| thread.files().table.lock().set_close_on_exec(fd as u32, on).map(|()| 0);
    match request as u32 {
        ioctl::FIONREAD => {
            let unread = i32::try_from(open.unread()?).unwrap_or(i32::MAX);
            uaccess::write(&thread.memory(), argument, &unread.to_le_bytes()).map(|()| 0)
        }
        ioctl::TIOCOUTQ if socket_of(&open).is_ok() => {
            let unsent = i32::try_from(socket_of(&open)?.transport().unsent()?).unwrap_or(i32::MAX);
            uaccess::write(&thread.memory(), argument, &unsent.to_le_bytes()).map(|()| 0)
        }
        ioctl::SIOCGIFCONF if socket_of(&open).is_ok() => interface::list(thread, argument),
        other if is_request(other) && socket_of(&open).is_ok() => interface::describe(thread, other, argument),
        ioctl::FIONBIO => {
            let mut on = [0; 4];
            uaccess::read(&thread.memory(), argument, &mut on)?;
            let others = open.flags() & !abi::O_NONBLOCK;
            open.set_flags(others | if on == [0; 4] { 0 } else { abi::O_NONBLOCK });
            Ok(0)
        }
        // No file sends SIGIO.
        ioctl::FIOASYNC => uaccess::read(&thread.memory(), argument, &mut [0; 4]).map(|()| 0),
        ioctl::FIOCLEX => set_close_on_exec(true),
        ioctl::FIONCLEX => set_close_on_exec(false),
        other => match terminal::end_of(&open) {
            Some(end) => terminal::ioctl(thread, &end, other, argument),
            None if open.flags() & abi::O_PATH != 0 => Err(Errno::EBADF),
            None if matches!(other, FICLONE | FICLONERANGE) && open.inode().kind() == Kind::Regular => {
                Err(Errno::EOPNOTSUPP)
            }
            // A directory has no requests.
            None => open.file().map_err(|_| Errno::ENOTTY)?.request(other, argument),
        },
    }
}

/// Implements `getdents64`.
pub fn getdents(thread: &Thread, fd: u64, to: u64, len: u64) -> Answer {
    let mut bytes = UserBytes::one(thread, to, len);
    let open = open_of(thread, fd)?;
    let listed = open.entries(&mut bytes)?;
    open.notify(abi::IN_ACCESS);
    Ok(listed as u64)
}

/// Implements `cachestat`: counts the pages of a file range that are in memory, by their states.
pub fn cachestat(thread: &Arc<Thread>, fd: u64, range: u64, to: u64, flags: u64) -> Answer {
    let open = open_of(thread, fd)?;
    let memory = thread.memory();
    let mut bytes = [0; 16];
    uaccess::read(&memory, range, &mut bytes)?;
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let both = u128::from_le_bytes(bytes);
    let (start, len) = (both as u64, (both >> 64) as u64);
    let end = if len == 0 { u64::MAX } else { start.saturating_add(len) };
    if open.file().is_err_and(|error| error == Errno::EBADF) {
        return Err(Errno::EBADF);
    }
    // A directory has no pages, and so none in memory.
    let count = |object| PageCounts::of(&object, start / FRAME_SIZE..end.div_ceil(FRAME_SIZE));
    let counts = object_of(&open).map(count).unwrap_or_default();
    // Of pages that were dropped, those that the swap has are known.
    let found = abi::cachestat {
        nr_cache: counts.resident,
        nr_dirty: counts.dirty,
        nr_writeback: counts.writing,
        nr_evicted: counts.swapped,
        nr_recently_evicted: 0,
    };
    uaccess::write(&memory, to, uaccess::bytes_of(&found))?;
    Ok(0)
}
