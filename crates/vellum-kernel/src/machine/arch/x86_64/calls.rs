//! The system calls that this architecture has and newer ones don't: mostly others with less to say.

use crate::arch::abi;
use crate::mem::{now_ns, uaccess};
use crate::sys::clock::{EPOCH, SECOND, read_pair, write_micro};
use crate::sys::path::HERE;
use crate::sys::process::Wanted;
use crate::sys::{Answer, file, nameless, path, process, select, signal, timer};
use crate::task::Thread;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as nr;
use vellum_kernel::errno::Errno;

/// The flags of an `open` that `creat` is.
const CREAT: u64 = (nr::O_CREAT | nr::O_WRONLY | nr::O_TRUNC) as u64;

/// Whether a system call is made again even after a handler, where that wants it.
pub fn outlasts_handlers(number: u32) -> bool {
    number == nr::__NR_open
}

/// Carries out a system call, if it is one of these.
pub async fn call(thread: &Arc<Thread>, number: u32, a: [u64; 6]) -> Option<Answer> {
    Some(match number {
        nr::__NR_access => path::access(thread, HERE, a[0], a[1], 0),
        nr::__NR_alarm => alarm(thread, a[0]),
        nr::__NR_arch_prctl => abi::arch_prctl(thread, a[0], a[1]),
        nr::__NR_chmod => path::chmod(thread, HERE, a[0], a[1]),
        nr::__NR_chown => path::chown(thread, HERE, a[0], a[1], a[2], 0),
        nr::__NR_creat => path::open(thread, HERE, a[0], CREAT, a[1]).await,
        nr::__NR_dup2 => file::dup_to(thread, a[0], a[1], None),
        nr::__NR_eventfd => nameless::eventfd(thread, a[0], 0),
        nr::__NR_fork => process::clone(thread, plain(0)).await,
        nr::__NR_getpgrp => Ok(thread.process.group.load(Ordering::Relaxed).into()),
        nr::__NR_lchown => path::chown(thread, HERE, a[0], a[1], a[2], nr::AT_SYMLINK_NOFOLLOW.into()),
        nr::__NR_link => path::link(thread, [HERE, a[0], HERE, a[1], 0, 0]),
        nr::__NR_lstat => path::stat(thread, HERE, a[0], a[1], nr::AT_SYMLINK_NOFOLLOW.into()),
        nr::__NR_mkdir => path::mkdir(thread, HERE, a[0], a[1]),
        nr::__NR_mknod => path::mknod(thread, HERE, a[0], a[1], a[2]),
        nr::__NR_open => path::open(thread, HERE, a[0], a[1], a[2]).await,
        nr::__NR_pause => signal::pause(thread).await,
        nr::__NR_pipe => nameless::pipe(thread, a[0], 0),
        nr::__NR_poll => select::poll(thread, a[0], a[1], poll_deadline(a[2])).await,
        nr::__NR_readlink => path::readlink(thread, HERE, a[0], a[1], a[2]),
        nr::__NR_rename => path::rename(thread, HERE, a[0], HERE, a[1], 0),
        nr::__NR_rmdir => path::unlink(thread, HERE, a[0], nr::AT_REMOVEDIR.into()),
        nr::__NR_select => select(thread, a).await,
        nr::__NR_stat => path::stat(thread, HERE, a[0], a[1], 0),
        nr::__NR_symlink => path::symlink(thread, a[0], HERE, a[1]),
        nr::__NR_time => time(thread, a[0]),
        nr::__NR_unlink => path::unlink(thread, HERE, a[0], 0),
        nr::__NR_vfork => process::clone(thread, plain(nr::CLONE_VFORK | nr::CLONE_VM)).await,
        _ => return None,
    })
}

/// A child that shares nothing but what the flags say.
fn plain(flags: u32) -> Wanted {
    Wanted {
        flags: flags.into(),
        exit_signal: nr::SIGCHLD,
        stack: 0,
        parent_tid: 0,
        child_tid: 0,
        tls: 0,
        pidfd: 0,
        group: None,
    }
}

/// When a `poll` with this timeout in milliseconds gives up.
fn poll_deadline(ms: u64) -> Option<u64> {
    let ms = ms as i32;
    (ms >= 0).then(|| now_ns() + ms as u64 * 1_000_000)
}

/// `select`: what is left of the time is told.
async fn select(thread: &Arc<Thread>, [count, read, write, other, timeout, _]: [u64; 6]) -> Answer {
    let deadline = match timeout {
        0 => None,
        _ => Some(now_ns().saturating_add(read_micro(thread, timeout)?)),
    };
    let answer = select::wait(thread, count, [read, write, other], deadline).await;
    if let Some(deadline) = deadline {
        // Who gave the time in memory that can't be written is none the worse for it.
        let _ = write_micro(thread, timeout, deadline.saturating_sub(now_ns()));
    }
    answer
}

/// Copies a `struct timeval` of how long, in nanoseconds.
fn read_micro(thread: &Arc<Thread>, from: u64) -> Result<u64, Errno> {
    let [seconds, us] = read_pair(thread, from)?;
    if seconds > i64::MAX as u64 || us > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    Ok(seconds.saturating_mul(SECOND).saturating_add(us.saturating_mul(1000)))
}

/// `alarm`.
fn alarm(thread: &Arc<Thread>, seconds: u64) -> Answer {
    let before = timer::set_real(&thread.process, (seconds & 0xffff_ffff) * SECOND, 0)?;
    Ok(before.left().div_ceil(SECOND))
}

/// `time`.
fn time(thread: &Arc<Thread>, to: u64) -> Answer {
    let now = (EPOCH + now_ns()) / SECOND;
    if to != 0 {
        uaccess::write(&thread.memory(), to, &now.to_le_bytes())?;
    }
    Ok(now)
}
