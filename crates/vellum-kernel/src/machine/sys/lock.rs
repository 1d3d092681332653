//! Implements file locks: `flock`, and the record locks of `fcntl`.

use super::Answer;
use super::file::open_of;
use crate::files;
use crate::mem::uaccess;
use crate::task::Thread;
use alloc::sync::Arc;
use core::ops::Range;
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Open;
use vellum_kernel::fs::lock::{Class, Lock, Owner};

/// The values of `l_type` in a `struct flock`.
const SHARED: u16 = abi::F_RDLCK as u16;
const EXCLUSIVE: u16 = abi::F_WRLCK as u16;
const NONE: u16 = abi::F_UNLCK as u16;

/// Returns true if `command` is one of `fcntl`'s lock commands.
pub fn is_command(command: u32) -> bool {
    let own = [abi::F_GETLK, abi::F_SETLK, abi::F_SETLKW];
    let of_open = [abi::F_OFD_GETLK, abi::F_OFD_SETLK, abi::F_OFD_SETLKW];
    own.contains(&command) || of_open.contains(&command)
}

/// A `struct flock` that a program passes in, with its range resolved to file offsets.
struct Asked {
    kind: u16,
    range: Range<u64>,
    pid: u32,
}

fn read(thread: &Thread, open: &Open, from: u64) -> Result<Asked, Errno> {
    let mut bytes = [0; 32];
    uaccess::read(&thread.memory(), from, &mut bytes)?;
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let word = |at: usize| i64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
    let base = match u32::from(half(2)) {
        abi::SEEK_SET => 0,
        abi::SEEK_CUR => open.offset(),
        abi::SEEK_END => open.inode().meta().size,
        _ => return Err(Errno::EINVAL),
    };
    let start = (base as i64).checked_add(word(8)).ok_or(Errno::EOVERFLOW)?;
    let length = word(16);
    // A negative length locks the range before `l_start` (POSIX).
    let end = start.checked_add(length).ok_or(Errno::EOVERFLOW)?;
    let (start, end) = if length < 0 { (end, start) } else { (start, end) };
    let start = u64::try_from(start).map_err(|_| Errno::EINVAL)?;
    let range = if length == 0 { start..u64::MAX } else { start..end as u64 };
    Ok(Asked { kind: half(0), range, pid: word(24) as u32 })
}

/// Implements `fcntl` for the lock commands.
pub async fn fcntl(thread: &Arc<Thread>, open: &Arc<Open>, command: u32, at: u64) -> Answer {
    let locks = files::locks();
    let asked = read(thread, open, at)?;
    let of_open = matches!(command, abi::F_OFD_GETLK | abi::F_OFD_SETLK | abi::F_OFD_SETLKW);
    if of_open && asked.pid != 0 {
        return Err(Errno::EINVAL);
    }
    open.file()?;
    let owner = if of_open { open.lock_owner(locks) } else { Owner::Process(thread.process.pid) };
    let subject = (open.inode().identity(), Class::Record);
    let lock = Lock { owner, exclusive: asked.kind == EXCLUSIVE, range: asked.range };
    match (command, asked.kind) {
        (abi::F_GETLK | abi::F_OFD_GETLK, SHARED | EXCLUSIVE) => answer(thread, at, locks.conflict(&subject, &lock)),
        (abi::F_GETLK | abi::F_OFD_GETLK, _) => Err(Errno::EINVAL),
        (_, NONE) => locks.release(&subject, owner, &lock.range).map(|()| 0),
        (_, SHARED) if open.readable().is_err() => Err(Errno::EBADF),
        (_, EXCLUSIVE) if open.writable().is_err() => Err(Errno::EBADF),
        (abi::F_SETLK | abi::F_OFD_SETLK, SHARED | EXCLUSIVE) => locks.take(&subject, &lock).map(|()| 0),
        (_, SHARED | EXCLUSIVE) => thread.interruptible(locks.wait(&subject, &lock), None).await?.map(|()| 0),
        _ => Err(Errno::EINVAL),
    }
}

/// Writes the conflicting lock to the program's `struct flock`, or `F_UNLCK` if there is none.
fn answer(thread: &Thread, at: u64, found: Option<Lock>) -> Answer {
    let memory = thread.memory();
    let Some(lock) = found else { return uaccess::write(&memory, at, &NONE.to_le_bytes()).map(|()| 0) };
    let mut bytes = [0; 32];
    let kind = if lock.exclusive { EXCLUSIVE } else { SHARED };
    let length = if lock.range.end == u64::MAX { 0 } else { lock.range.end - lock.range.start };
    let pid = match lock.owner {
        Owner::Process(pid) => pid as i32,
        Owner::Open(_) => -1,
    };
    bytes[0..2].copy_from_slice(&kind.to_le_bytes());
    bytes[8..16].copy_from_slice(&lock.range.start.to_le_bytes());
    bytes[16..24].copy_from_slice(&length.to_le_bytes());
    bytes[24..28].copy_from_slice(&pid.to_le_bytes());
    uaccess::write(&memory, at, &bytes).map(|()| 0)
}

/// Implements `flock`. A conversion between shared and exclusive is not atomic: the old lock is
/// released before the call waits for the new one, as on Linux.
pub async fn flock(thread: &Arc<Thread>, fd: u64, operation: u64) -> Answer {
    let (locks, open) = (files::locks(), open_of(thread, fd)?);
    if open.flags() & abi::O_PATH != 0 {
        return Err(Errno::EBADF);
    }
    let operation = operation as u32;
    let wait = operation & abi::LOCK_NB == 0;
    let owner = open.lock_owner(locks);
    let subject = (open.inode().identity(), Class::Flock);
    let range = 0..u64::MAX;
    let exclusive = match operation & !abi::LOCK_NB {
        abi::LOCK_UN => return locks.release(&subject, owner, &range).map(|()| 0),
        abi::LOCK_SH => false,
        abi::LOCK_EX => true,
        _ => return Err(Errno::EINVAL),
    };
    let lock = Lock { owner, exclusive, range };
    match locks.take(&subject, &lock) {
        Err(Errno::EAGAIN) if wait => {}
        Err(Errno::EAGAIN) => {
            locks.release(&subject, owner, &lock.range)?;
            return Err(Errno::EAGAIN);
        }
        other => return other.map(|()| 0),
    }
    locks.release(&subject, owner, &lock.range)?;
    thread.interruptible(locks.wait(&subject, &lock), None).await?.map(|()| 0)
}
