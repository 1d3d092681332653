//! The system calls that this architecture has and newer ones don't: mostly others with less to say.

use crate::arch::abi;
use crate::sys::path::HERE;
use crate::sys::process::Wanted;
use crate::sys::{Answer, clock, file, path, process, select, signal, timer};
use crate::task::Thread;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as nr;

/// The flags of an `open` that `creat` is.
const CREAT: u64 = (nr::O_CREAT | nr::O_WRONLY | nr::O_TRUNC) as u64;

/// Those for which the kernel keeps something for the program after the call, in memory of its own.
pub const COSTLY: &[u32] = &[
    nr::__NR_fork,
    nr::__NR_vfork,
    nr::__NR_open,
    nr::__NR_creat,
    nr::__NR_pipe,
    nr::__NR_dup2,
    nr::__NR_mkdir,
    nr::__NR_mknod,
    nr::__NR_symlink,
    nr::__NR_link,
    nr::__NR_rename,
];

/// Whether a system call is made again even after a handler, where that wants it.
pub fn outlasts_handlers(number: u32) -> bool {
    number == nr::__NR_open
}

/// Carries out a system call, if it is one of these.
pub async fn call(thread: &Arc<Thread>, number: u32, a: [u64; 6]) -> Option<Answer> {
    Some(match number {
        nr::__NR_access => path::access(thread, HERE, a[0], a[1], 0),
        nr::__NR_alarm => timer::alarm(thread, a[0]),
        nr::__NR_arch_prctl => abi::arch_prctl(thread, a[0], a[1]),
        nr::__NR_chmod => path::chmod(thread, HERE, a[0], a[1]),
        nr::__NR_chown => path::chown(thread, HERE, a[0], a[1], a[2], 0),
        nr::__NR_creat => path::open(thread, HERE, a[0], CREAT, a[1]).await,
        nr::__NR_dup2 => file::dup_to(thread, a[0], a[1], None),
        nr::__NR_eventfd => file::eventfd(thread, a[0], 0),
        nr::__NR_fork => process::clone(thread, plain(0)).await,
        nr::__NR_getpgrp => Ok(thread.process.group.load(Ordering::Relaxed).into()),
        nr::__NR_lchown => path::chown(thread, HERE, a[0], a[1], a[2], nr::AT_SYMLINK_NOFOLLOW.into()),
        nr::__NR_link => path::link(thread, [HERE, a[0], HERE, a[1], 0, 0]),
        nr::__NR_lstat => path::stat(thread, HERE, a[0], a[1], nr::AT_SYMLINK_NOFOLLOW.into()),
        nr::__NR_mkdir => path::mkdir(thread, HERE, a[0], a[1]),
        nr::__NR_mknod => path::mknod(thread, HERE, a[0], a[1], a[2]),
        nr::__NR_open => path::open(thread, HERE, a[0], a[1], a[2]).await,
        nr::__NR_pause => signal::pause(thread).await,
        nr::__NR_pipe => file::pipe(thread, a[0], 0),
        nr::__NR_poll => file::poll(thread, a[0], a[1], file::poll_deadline(a[2])).await,
        nr::__NR_readlink => path::readlink(thread, HERE, a[0], a[1], a[2]),
        nr::__NR_rename => path::rename(thread, HERE, a[0], HERE, a[1], 0),
        nr::__NR_rmdir => path::unlink(thread, HERE, a[0], nr::AT_REMOVEDIR.into()),
        nr::__NR_select => select::select(thread, a).await,
        nr::__NR_stat => path::stat(thread, HERE, a[0], a[1], 0),
        nr::__NR_symlink => path::symlink(thread, a[0], HERE, a[1]),
        nr::__NR_time => clock::seconds(thread, a[0]),
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
