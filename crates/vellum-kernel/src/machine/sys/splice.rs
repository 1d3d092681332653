//! Implements `splice`, `tee` and `vmsplice`, which move bytes through pipes.

use super::Answer;
use super::file::open_of;
use super::message;
use super::transfer::{move_on, offset_at, read_to, signal_broken_pipe, write_from};
use crate::files::user::{MOST, UserBytes};
use crate::task::Thread;
use alloc::sync::Arc;
use core::future::Future;
use linux_raw_sys::general as abi;
use linux_raw_sys::net::MSG_DONTWAIT;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::device::AnonInode;
use vellum_kernel::fs::pipe::{Pipe, pipe_of};
use vellum_kernel::fs::{Kind, Open};
use vellum_kernel::net::socket_of;

/// The flag of the calls that wait for neither bytes nor room in a pipe.
const SPLICE_F_NONBLOCK: u64 = 2;
/// All flags: `SPLICE_F_MOVE`, `SPLICE_F_NONBLOCK`, `SPLICE_F_MORE`, `SPLICE_F_GIFT`. Three of them
/// permit what the kernel decides by itself.
const KNOWN: u64 = 15;

/// Checks the flags of a call.
fn check(flags: u64) -> Result<(), Errno> {
    if flags & !KNOWN == 0 { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Returns the pipe of an open file; `None` for other files.
fn pipe(open: &Open) -> Option<&Arc<Pipe>> {
    open.file().ok().and_then(|file| pipe_of(&**file))
}

/// Returns whether an open file is one between which and a pipe bytes are moved.
fn takes_part(open: &Open) -> bool {
    match open.inode().kind() {
        Kind::Directory => false,
        Kind::Socket => true,
        _ => !open.inode().as_any().is::<AnonInode>(),
    }
}

/// Returns whether one of two pipes' ends is not to be waited for.
fn are_nonblocking(ends: [&Open; 2]) -> bool {
    ends.iter().any(|open| open.flags() & abi::O_NONBLOCK != 0)
}

/// Calls `attempt` until it returns something other than `EAGAIN`, and awaits what `wait` returns
/// in between; calls it once unless `waits`.
async fn retry<T, W: Future<Output = ()>>(
    thread: &Thread,
    waits: bool,
    mut attempt: impl FnMut() -> Result<T, Errno>,
    wait: impl Fn() -> W,
) -> Result<T, Errno> {
    loop {
        match attempt() {
            Err(Errno::EAGAIN) if waits => thread.interruptible(wait(), None).await?,
            result => return result,
        }
    }
}

/// Moves or copies bytes from pipe to pipe.
async fn pass(
    thread: &Arc<Thread>,
    (from, to): (&Pipe, &Pipe),
    count: usize,
    keeps: bool,
    waits: bool,
) -> Result<usize, Errno> {
    let wait = || async {
        from.wait_for_bytes().await;
        to.wait_for_room().await;
    };
    let passed = retry(thread, waits, || from.pass(to, count, keeps), wait).await;
    signal_broken_pipe(thread, &passed);
    passed
}

/// Writes bytes of a pipe to a file at an offset, or at its own.
async fn empty(
    thread: &Arc<Thread>,
    (from, to): (&Pipe, &Open),
    at: Option<u64>,
    count: usize,
    waits: bool,
) -> Result<usize, Errno> {
    match retry(thread, waits, || from.lend(count), || from.wait_for_bytes()).await? {
        None => Ok(0),
        Some(mut lent) => {
            let written = write_from(thread, to, &mut lent, at).await;
            lent.finish(written.unwrap_or(0));
            written
        }
    }
}

/// Fills a pipe from a file at an offset, or at its own.
async fn fill(
    thread: &Arc<Thread>,
    (from, to): (&Open, &Pipe),
    at: Option<u64>,
    count: usize,
    waits: bool,
) -> Result<usize, Errno> {
    let room = retry(thread, waits, || to.reserve(count), || to.wait_for_room()).await;
    signal_broken_pipe(thread, &room);
    let mut room = room?;
    if !waits && socket_of(from).is_ok() {
        return message::receive(thread, from, &mut room, MSG_DONTWAIT).await.map(|received| received.count);
    }
    read_to(thread, from, &mut room, at).await
}

/// Implements `splice`.
pub async fn splice(thread: &Arc<Thread>, a: [u64; 6]) -> Answer {
    let [from, from_offset, to, to_offset, count, flags] = a;
    if count == 0 {
        return Ok(0);
    }
    check(flags)?;
    let (from, to) = (open_of(thread, from)?, open_of(thread, to)?);
    let (source, target) = (pipe(&from), pipe(&to));
    if source.is_some() && from_offset != 0 || target.is_some() && to_offset != 0 {
        return Err(Errno::ESPIPE);
    }
    let (at, to_at) = (offset_at(thread, from_offset)?, offset_at(thread, to_offset)?);
    if !takes_part(&from) || !takes_part(&to) {
        return Err(Errno::EINVAL);
    }
    let is_seekable = [from.readable()?.seekable(), to.writable()?.seekable()];
    if at.is_some() && !is_seekable[0] || to_at.is_some() && !is_seekable[1] {
        return Err(Errno::EINVAL);
    }
    let (count, may_wait) = (count.min(MOST) as usize, flags & SPLICE_F_NONBLOCK == 0);
    let waits = |ends| may_wait && !are_nonblocking(ends);
    let done = match (source, target) {
        (Some(source), Some(target)) => {
            pass(thread, (source, target), count, false, waits([&*from, &*to])).await? as u64
        }
        (Some(source), None) => {
            if to.flags() & abi::O_APPEND != 0 {
                return Err(Errno::EINVAL);
            }
            empty(thread, (source, &*to), to_at, count, waits([&*from, &*from])).await? as u64
        }
        (None, Some(target)) => fill(thread, (&*from, target), at, count, waits([&*to, &*to])).await? as u64,
        (None, None) => return Err(Errno::EINVAL),
    };
    if let Some(at) = at {
        move_on(thread, &from, from_offset, at + done)?;
    }
    if let Some(at) = to_at {
        move_on(thread, &to, to_offset, at + done)?;
    }
    Ok(done)
}

/// Implements `tee`.
pub async fn tee(thread: &Arc<Thread>, from: u64, to: u64, count: u64, flags: u64) -> Answer {
    check(flags)?;
    if count == 0 {
        return Ok(0);
    }
    let (from, to) = (open_of(thread, from)?, open_of(thread, to)?);
    from.readable()?;
    to.writable()?;
    let (Some(source), Some(target)) = (pipe(&from), pipe(&to)) else { return Err(Errno::EINVAL) };
    let waits = flags & SPLICE_F_NONBLOCK == 0 && !are_nonblocking([&*from, &*to]);
    Ok(pass(thread, (source, target), count.min(MOST) as usize, true, waits).await? as u64)
}

/// Implements `vmsplice`: copies from a pipe to memory or from memory to a pipe, as much as fits.
pub async fn vmsplice(thread: &Arc<Thread>, fd: u64, pieces: u64, count: u64, flags: u64) -> Answer {
    check(flags)?;
    let open = open_of(thread, fd)?;
    let mut bytes = UserBytes::many(thread, pieces, count)?;
    if open.inode().kind() != Kind::Fifo {
        return Err(Errno::EBADF);
    }
    let waits = flags & SPLICE_F_NONBLOCK == 0;
    let done = if open.flags() & abi::O_ACCMODE == abi::O_RDONLY {
        thread.interruptible(open.read_available(&mut bytes, waits), None).await?
    } else {
        thread.interruptible(open.write_available(&mut bytes, waits), None).await?
    };
    signal_broken_pipe(thread, &done);
    done.map(|n| n as u64)
}
