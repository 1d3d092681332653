//! Accesses other processes' memory, page by page: pins a page of the target and copies it to or
//! from the caller's memory.

use super::Answer;
use super::process::process_of;
use super::{memory, pidfd};
use crate::files::user::UserBytes;
use crate::mem::thread::{self, BlockedOn};
use crate::mem::{UserSpace, payer};
use crate::task::{Process, Thread};
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general::{CAP_SYS_NICE, CAP_SYS_PTRACE, MADV_COLD, MADV_COLLAPSE, MADV_PAGEOUT, MADV_WILLNEED};
use vellum::addr::FRAME_SIZE;
use vellum::space::Access;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::{Sink, Source};
use vellum_kernel::wait::yield_now;

const PAGE: usize = FRAME_SIZE as usize;

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// `process_vm_readv`.
    Read,
    /// `process_vm_writev`.
    Write,
}

/// Implements `process_vm_readv` and `process_vm_writev`: copies up to the first byte that is not
/// accessible on either side, and returns the number of bytes copied.
pub async fn copy(thread: &Arc<Thread>, way: Way, [pid, local, locals, remote, remotes, flags]: [u64; 6]) -> Answer {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let mut mine = UserBytes::many(thread, local, locals)?;
    let theirs = UserBytes::many(thread, remote, remotes)?;
    let process = if pid as i32 > 0 { process_of(thread, pid)? } else { return Err(Errno::ESRCH) };
    may_look_into(thread, &process)?;
    let memory = process.memory().ok_or(Errno::ESRCH)?;
    thread.killable(copy_all(&memory, way, &mut mine, &theirs)).await?
}

/// Copies until the first inaccessible byte. Other tasks run after each 64 KiB.
async fn copy_all(memory: &Arc<UserSpace>, way: Way, mine: &mut UserBytes, theirs: &UserBytes) -> Answer {
    const PIECE: u64 = 64 << 10;
    let (mut done, mut rest) = (0, PIECE);
    for &(address, len) in theirs.pieces() {
        let mut at = 0;
        while at < len && mine.left() > 0 {
            let most = (len - at).min(FRAME_SIZE - (address.wrapping_add(at) & (FRAME_SIZE - 1)));
            match copy_in_page(memory, way, address.wrapping_add(at), most as usize, mine) {
                Ok(0) => return Ok(done),
                Ok(n) => {
                    (at, done) = (at + n as u64, done + n as u64);
                    if done >= rest {
                        rest = done + PIECE;
                        yield_now().await;
                    }
                }
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(done)
}

/// Implements `process_madvise`: returns the number of bytes advised before the first failure.
pub async fn advise(thread: &Arc<Thread>, [fd, array, count, advice, flags, _]: [u64; 6]) -> Answer {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let pieces = UserBytes::many(thread, array, count)?;
    let (process, _) = pidfd::process_of(thread, fd)?;
    let memory = process.memory().ok_or(Errno::ESRCH)?;
    may_look_into(thread, &process).map_err(|_| Errno::EACCES)?;
    if !Arc::ptr_eq(&memory, &thread.memory()) {
        // Advice that changes another process's contents is refused (Linux:
        // `process_madvise_remote_valid`).
        if !matches!(advice as u32, MADV_COLD | MADV_COLLAPSE | MADV_PAGEOUT | MADV_WILLNEED) {
            return Err(Errno::EINVAL);
        }
        thread.credentials().needs(CAP_SYS_NICE)?;
    }
    let mut done = 0;
    for &(address, len) in pieces.pieces() {
        match memory::advise(thread, &memory, address, len, advice).await {
            Ok(_) => done += len,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Checks that the thread may access another process's memory (Linux: `ptrace_may_access`).
///
/// # Errors
///
/// `EPERM`.
pub fn may_look_into(thread: &Thread, process: &Process) -> Result<(), Errno> {
    let (own, other) = (thread.credentials(), process.credentials());
    let is_kept_secret = process.dumpable.load(Relaxed) != 1 || other.is_some_and(|other| !own.matches(&other));
    if process.pid != thread.process.pid && is_kept_secret {
        own.needs(CAP_SYS_PTRACE)?;
    }
    Ok(())
}

/// Copies bytes within one page of the target. Returns the number of bytes copied.
fn copy_in_page(
    memory: &Arc<UserSpace>,
    way: Way,
    address: u64,
    most: usize,
    mine: &mut UserBytes,
) -> Result<usize, Errno> {
    let access = if way == Way::Read { Access::Read } else { Access::Write };
    let page = memory.engine.pin(address, access).map_err(|error| {
        if let Some(on) = BlockedOn::of(error, memory) {
            thread::current(|thread| thread.block(on));
        }
        Errno::EFAULT
    })?;
    let inside = address as usize & (PAGE - 1);
    // The bytes go through a kernel buffer, because the caller's buffer may be the pinned page
    // itself: a fault in it must not leave the page half copied.
    let mut bytes = payer::zeros(most.min(mine.left()))?;
    match way {
        Way::Read => {
            let count = page.read(inside, &mut bytes);
            mine.put(&bytes[..count])
        }
        Way::Write => {
            let count = mine.take(&mut bytes)?;
            Ok(page.write(inside, &bytes[..count]))
        }
    }
}
