//! Implements the system calls that x86-64 has and newer architectures lack. Most have a successor
//! with more arguments.

use super::clock::{SECOND, read_pair, write_micro};
use super::process::Wanted;
use super::{Answer, epoll, select};
use crate::arch::extended_state::ExtendedState;
use crate::arch::paging::user_end;
use crate::mem::{now_ns, started_at, uaccess};
use crate::task::Thread;
use crate::task::timer::set_interval;
use alloc::sync::Arc;
use linux_raw_sys::general as nr;
use vellum_kernel::errno::Errno;

/// The `open` flags that `creat` stands for.
pub const CREAT: u64 = (nr::O_CREAT | nr::O_WRONLY | nr::O_TRUNC) as u64;

/// Returns the `clone` arguments of `fork` and `vfork`: the child shares only what `flags` names.
pub fn plain(flags: u32) -> Wanted {
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

/// Implements `epoll_create`, whose argument has had no use since Linux 2.6.8.
pub fn epoll_create(thread: &Thread, size: u64) -> Answer {
    if size as i32 <= 0 { Err(Errno::EINVAL) } else { epoll::create(thread, 0) }
}

/// Implements `select`. Stores the remaining time in the program's `timeval`.
pub async fn select(thread: &Arc<Thread>, [count, read, write, other, timeout, _]: [u64; 6]) -> Answer {
    let deadline = match timeout {
        0 => None,
        _ => Some(now_ns().saturating_add(read_micro(thread, timeout)?)),
    };
    let answer = select::wait(thread, count, [read, write, other], deadline).await;
    if let Some(deadline) = deadline {
        // A `timeval` that is not writable is not an error, as on Linux.
        let _ = write_micro(thread, timeout, deadline.saturating_sub(now_ns()));
    }
    answer
}

/// Reads the `struct timeval` of a duration and returns it in nanoseconds.
pub fn read_micro(thread: &Arc<Thread>, from: u64) -> Result<u64, Errno> {
    let [seconds, us] = read_pair(thread, from)?;
    if seconds > i64::MAX as u64 || us > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    Ok(seconds.saturating_mul(SECOND).saturating_add(us.saturating_mul(1000)))
}

/// Implements `alarm`.
pub fn alarm(thread: &Arc<Thread>, seconds: u64) -> Answer {
    let before = set_interval(&thread.process, 0, (seconds & 0xffff_ffff) * SECOND, 0)?;
    Ok(before.left(&thread.process).div_ceil(SECOND))
}

/// Implements `time`.
pub fn time(thread: &Arc<Thread>, to: u64) -> Answer {
    let now = (started_at() + now_ns()) / SECOND;
    if to != 0 {
        uaccess::write(&thread.memory(), to, &now.to_le_bytes())?;
    }
    Ok(now)
}

/// Implements `arch_prctl`.
pub fn arch_prctl(thread: &Arc<Thread>, code: u64, value: u64) -> Answer {
    const SET_GS: u64 = 0x1001;
    const SET_FS: u64 = 0x1002;
    const GET_FS: u64 = 0x1003;
    const GET_GS: u64 = 0x1004;
    let memory = thread.memory();
    // SAFETY: a system call runs in the thread's own future.
    let extended: &mut ExtendedState = &mut unsafe { thread.context() }.extended;
    match code {
        SET_FS | SET_GS if value >= user_end() => return Err(Errno::EPERM),
        SET_FS => extended.fs = value,
        SET_GS => extended.gs = value,
        GET_FS => return uaccess::write(&memory, value, &extended.fs.to_le_bytes()).map(|()| 0),
        GET_GS => return uaccess::write(&memory, value, &extended.gs.to_le_bytes()).map(|()| 0),
        _ => return Err(Errno::EINVAL),
    }
    extended.restore_bases();
    Ok(0)
}
