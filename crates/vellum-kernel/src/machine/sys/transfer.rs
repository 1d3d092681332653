//! Implements the system calls that move bytes: reads and writes, and copies from file to file.

use super::Answer;
use super::file::open_of;
use super::pieces::may_go_on;
use super::sync::{self, make_room, write_range};
use super::{message, socket, terminal};
use crate::files::user::{MOST, UserBytes};
use crate::mem::thread::BlockedOn;
use crate::mem::{payer, uaccess};
use crate::task::Thread;
use crate::task::blocked::throttle;
use crate::task::signal;
use alloc::sync::Arc;
use core::future::Future;
use core::pin::{Pin, pin};
use linux_raw_sys::general as abi;
use vellum_kernel::credentials::id_index::REAL;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::io::{Limited, Waits};
use vellum_kernel::fs::tree::Node;
use vellum_kernel::fs::{Inode, Kind, Open, Sink, Source};
use vellum_kernel::net::socket_of;
use vellum_kernel::wait::yield_now;

/// The user memory of a read or write: one buffer, or an array of `struct iovec`.
#[derive(Clone, Copy)]
pub enum Memory {
    /// One buffer: address, length in bytes.
    One(u64, u64),
    /// An array of `struct iovec`: its address, the number of elements.
    Many(u64, u64),
}

impl Memory {
    fn bytes(self, thread: &Thread) -> Result<UserBytes, Errno> {
        match self {
            Memory::One(address, len) => Ok(UserBytes::one(thread, address, len)),
            Memory::Many(array, count) => UserBytes::many(thread, array, count),
        }
    }
}

/// The waits of a thread's read or write.
pub struct TransferWaits<'a>(pub &'a Arc<Thread>);

impl Waits for TransferWaits<'_> {
    async fn wait(&self) -> bool {
        let TransferWaits(thread) = self;
        let Some(on) = thread.mem.take_blocked() else { return false };
        // A program that resolves a fault may let the thread wait for ever, so a signal is
        // delivered first. The call is restarted after it, if nothing was transferred.
        let is_interruptible = matches!(on, BlockedOn::Uffd(..));
        let goes_on = on.wait(thread, true).await;
        if goes_on && is_interruptible && thread.is_interrupted() {
            thread.mem.block(BlockedOn::Signal);
            return false;
        }
        goes_on
    }

    async fn pause(&self) {
        if self.0.mem.dirtied.is_some() {
            throttle(self.0).await;
        }
        if !may_go_on(self.0) {
            yield_now().await;
        }
    }
}

/// Implements `read` and `readv`; with an offset, `pread64` and `preadv`.
pub async fn read(thread: &Arc<Thread>, fd: u64, to: Memory, at: Option<u64>) -> Answer {
    let open = open_of(thread, fd)?;
    let mut bytes = to.bytes(thread)?;
    read_to(thread, &open, &mut bytes, at).await.map(|n| n as u64)
}

/// Reads from the file's offset, or from another.
pub(super) async fn read_to(
    thread: &Arc<Thread>,
    open: &Open,
    to: &mut dyn Sink,
    at: Option<u64>,
) -> Result<usize, Errno> {
    if at.is_none() && !open.is_always_ready() {
        if socket_of(open).is_ok() {
            return message::receive(thread, open, to, 0).await.map(|received| received.count);
        }
        if let Some(read) = terminal::read(thread, open, to).await {
            return read;
        }
    }
    let (all, waits) = (to.room(), TransferWaits(thread));
    write_range(thread, open, at.unwrap_or_else(|| open.offset()), all).await?;
    let read = match at {
        Some(at) if at > i64::MAX as u64 => return Err(Errno::EINVAL),
        Some(at) => at_file(thread, open, pin!(open.read_at(at, to, &waits))).await,
        None => at_file(thread, open, pin!(open.read(to, &waits))).await,
    };
    let count = all - to.room();
    if count > 0 {
        open.notify(abi::IN_ACCESS);
    }
    match (read, count) {
        // Bytes that were read before the signal arrived must be reported: a pipe has lost them.
        (Err(Errno::EINTR), count @ 1..) => Ok(count),
        (read, _) => read?,
    }
}

/// Awaits a file operation, which stays in its place: it is large, and each function that took it
/// by value would have room for it twice. If the file can block, any signal interrupts it;
/// otherwise only a fatal signal does.
///
/// # Errors
///
/// `EINTR`.
async fn at_file<T>(thread: &Thread, open: &Open, what: Pin<&mut impl Future<Output = T>>) -> Result<T, Errno> {
    if open.is_always_ready() { thread.killable(what).await } else { thread.interruptible(what, None).await }
}

/// Implements `write` and `writev`; with an offset, `pwrite64` and `pwritev`.
pub async fn write(thread: &Arc<Thread>, fd: u64, from: Memory, at: Option<u64>) -> Answer {
    let open = open_of(thread, fd)?;
    let mut bytes = from.bytes(thread)?;
    write_from(thread, &open, &mut bytes, at).await.map(|n| n as u64)
}

/// Writes at the file's offset, or at another.
pub(super) async fn write_from(
    thread: &Arc<Thread>,
    open: &Open,
    from: &mut dyn Source,
    at: Option<u64>,
) -> Result<usize, Errno> {
    if at.is_none() && !open.is_always_ready() && socket_of(open).is_ok() {
        let with = message::plain(socket::identity(thread, REAL));
        return message::send(thread, open, from, with, 0).await;
    }
    let start = match at {
        _ if open.flags() & abi::O_APPEND != 0 => open.inode().meta().size,
        Some(at) => at,
        None => open.offset(),
    };
    let mut most = from.left();
    if let Some(end) = longest(thread, &**open.inode())
        && most > 0
    {
        may_reach(thread, end, start.saturating_add(1))?;
        most = most.min(usize::try_from(end - start).unwrap_or(usize::MAX));
    }
    let (mut from, waits) = (Limited(from, most), TransferWaits(thread));
    make_room(thread, open, start, most).await?;
    write_range(thread, open, start, most).await?;
    let written = match at {
        Some(at) if at > i64::MAX as u64 => return Err(Errno::EINVAL),
        Some(at) => at_file(thread, open, pin!(open.write_at(at, &mut from, &waits))).await,
        None => at_file(thread, open, pin!(open.write(&mut from, &waits))).await,
    };
    let done = match written {
        // Bytes that were written before the signal arrived are reported.
        Err(Errno::EINTR) if from.left() < most => Ok(most - from.left()),
        other => other?,
    };
    if matches!(done, Ok(1..)) {
        open.notify(abi::IN_MODIFY);
    }
    signal_broken_pipe(thread, &done);
    done
}

/// Sends `SIGPIPE` if a write failed with `EPIPE`.
pub(super) fn signal_broken_pipe<T>(thread: &Arc<Thread>, written: &Result<T, Errno>) {
    if matches!(written, Err(Errno::EPIPE)) {
        signal::send_to(thread, signal::info_from(abi::SIGPIPE, abi::SI_USER as i32, thread));
    }
}

/// Checks the flags of `preadv2` and `pwritev2`, and returns the offset that `at` means: −1 is that
/// of the file.
fn offset(at: u64, flags: u64) -> Result<Option<u64>, Errno> {
    // No file is polled (`RWF_HIPRI`); a read has nothing to synchronise.
    const KNOWN: u32 = abi::RWF_HIPRI | abi::RWF_DSYNC | abi::RWF_SYNC;
    if flags as u32 & !KNOWN != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok((at != u64::MAX).then_some(at))
}

/// Implements `preadv2`.
pub async fn preadv2(thread: &Arc<Thread>, fd: u64, to: Memory, at: u64, flags: u64) -> Answer {
    read(thread, fd, to, offset(at, flags)?).await
}

/// Implements `pwritev2`.
pub async fn pwritev2(thread: &Arc<Thread>, fd: u64, from: Memory, at: u64, flags: u64) -> Answer {
    let written = write(thread, fd, from, offset(at, flags)?).await?;
    let is_kept = matches!(open_of(thread, fd)?.inode().kind(), Kind::Regular | Kind::Block);
    if is_kept && flags as u32 & (abi::RWF_DSYNC | abi::RWF_SYNC) != 0 {
        sync::fsync(thread, fd).await?;
    }
    Ok(written)
}

/// The most bytes that one step of a copy from file to file moves.
const COPY_CHUNK: u64 = 64 << 10;

/// Copies up to `count` bytes that begin at offset `at` of a file to another, at its own offset or
/// at `to_at`. Returns their number; an error only if there is none.
async fn copy(
    thread: &Arc<Thread>,
    (from, at): (&Open, u64),
    (to, to_at): (&Open, Option<u64>),
    count: u64,
) -> Result<u64, Errno> {
    let mut buffer = payer::zeros(count.min(COPY_CHUNK) as usize)?;
    let mut done = 0;
    while done < count {
        let wanted = (count - done).min(COPY_CHUNK) as usize;
        let read = read_to(thread, from, &mut &mut buffer[..wanted], Some(at + done)).await;
        let moved = match read {
            Ok(read) => write_from(thread, to, &mut &buffer[..read], to_at.map(|at| at + done)).await,
            Err(error) => Err(error),
        };
        match moved {
            Ok(moved) => done += moved as u64,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
        if moved != Ok(wanted) {
            break;
        }
        TransferWaits(thread).pause().await;
    }
    Ok(done)
}

/// Reads an offset that a call takes from memory, and that the call moves on; `None` without one.
pub(super) fn offset_at(thread: &Thread, address: u64) -> Result<Option<u64>, Errno> {
    if address == 0 {
        return Ok(None);
    }
    let mut bytes = [0; 8];
    uaccess::read(&thread.memory(), address, &mut bytes)?;
    let at = u64::from_le_bytes(bytes);
    if at > i64::MAX as u64 { Err(Errno::EINVAL) } else { Ok(Some(at)) }
}

/// Moves an offset on: that in memory at `address`, or else that of the file.
pub(super) fn move_on(thread: &Thread, open: &Open, address: u64, to: u64) -> Result<(), Errno> {
    match address {
        0 => open.seek(to as i64, abi::SEEK_SET).map(drop),
        _ => uaccess::write(&thread.memory(), address, &to.to_le_bytes()),
    }
}

/// Implements `sendfile`.
pub async fn sendfile(thread: &Arc<Thread>, to: u64, from: u64, offset: u64, count: u64) -> Answer {
    let own = offset_at(thread, offset)?;
    let from = open_of(thread, from)?;
    let is_seekable = from.readable()?.seekable();
    let to = open_of(thread, to)?;
    if own.is_some() && !is_seekable {
        return Err(Errno::ESPIPE);
    }
    let appends = to.writable()?.seekable() && to.flags() & abi::O_APPEND != 0;
    if !is_seekable || appends {
        return Err(Errno::EINVAL);
    }
    let at = own.unwrap_or_else(|| from.offset());
    let count = count.min(MOST).min(i64::MAX as u64 - at);
    let sent = copy(thread, (&from, at), (&to, None), count).await?;
    move_on(thread, &from, offset, at + sent)?;
    Ok(sent)
}

/// Implements `copy_file_range`.
pub async fn copy_file_range(thread: &Arc<Thread>, a: [u64; 6]) -> Answer {
    let [from, from_offset, to, to_offset, count, flags] = a;
    let (from, to) = (open_of(thread, from)?, open_of(thread, to)?);
    let (own, to_own) = (offset_at(thread, from_offset)?, offset_at(thread, to_offset)?);
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (meta, to_meta) = (from.inode().meta(), to.inode().meta());
    let kinds = [meta.kind, to_meta.kind];
    if kinds.contains(&Kind::Directory) {
        return Err(Errno::EISDIR);
    }
    if kinds != [Kind::Regular; 2] {
        return Err(Errno::EINVAL);
    }
    from.readable()?;
    to.writable()?;
    if to.flags() & abi::O_APPEND != 0 {
        return Err(Errno::EBADF);
    }
    if meta.device != to_meta.device {
        return Err(Errno::EXDEV);
    }
    let (at, to_at) = (own.unwrap_or_else(|| from.offset()), to_own.unwrap_or_else(|| to.offset()));
    if at.max(to_at).checked_add(count).is_none() {
        return Err(Errno::EOVERFLOW);
    }
    // A write behind the largest offset fails, or is short.
    let count = count.min(MOST).min(meta.size.saturating_sub(at));
    if meta.inode == to_meta.inode && at < to_at + count && to_at < at + count {
        return Err(Errno::EINVAL);
    }
    let copied = copy(thread, (&from, at), (&to, Some(to_at)), count).await?;
    move_on(thread, &from, from_offset, at + copied)?;
    move_on(thread, &to, to_offset, to_at + copied)?;
    Ok(copied)
}

/// Returns the size beyond which the thread must not extend the file (`RLIMIT_FSIZE`), if a limit
/// applies. Only files in memory are limited.
fn longest(thread: &Thread, inode: &dyn Inode) -> Option<u64> {
    let limit = thread.process.limits.lock()[abi::RLIMIT_FSIZE as usize][0];
    (limit != u64::MAX && inode.as_any().is::<Node>()).then_some(limit)
}

/// Returns `EFBIG` and sends `SIGXFSZ` if `end` lies beyond the limit `most`.
fn may_reach(thread: &Arc<Thread>, most: u64, end: u64) -> Result<(), Errno> {
    if end <= most {
        return Ok(());
    }
    signal::send_to(thread, signal::info_from(abi::SIGXFSZ, abi::SI_USER as i32, thread));
    Err(Errno::EFBIG)
}

/// Checks a new file size against `RLIMIT_FSIZE`.
///
/// # Errors
///
/// `EFBIG`; the thread also gets `SIGXFSZ`.
pub fn may_resize(thread: &Arc<Thread>, inode: &dyn Inode, size: u64) -> Result<(), Errno> {
    match longest(thread, inode) {
        Some(most) if size > inode.meta().size => may_reach(thread, most, size),
        _ => Ok(()),
    }
}
