//! Implements `wait4` and `waitid`.

use super::{Answer, misc, pidfd};
use crate::mem::uaccess;
use crate::task::life::Life;
use crate::task::process::{self, TasklistLock};
use crate::task::{Process, Thread};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;

/// Returns true if `pid` selects `child`: by PID, by process group, or any child.
fn is_wanted(child: &Process, pid: i64, own: &Process) -> bool {
    match pid {
        -1 => true,
        0 => child.group.load(Ordering::Relaxed) == own.group.load(Ordering::Relaxed),
        _ if pid < 0 => i64::from(child.group.load(Ordering::Relaxed)) == -pid,
        _ => i64::from(child.pid) == pid,
    }
}

/// Finds a selected child with a state change to report. Without `keep` the change is consumed, and
/// an exited child is reaped. Returns `ECHILD` if no child is selected.
fn find_change(
    own: &Process,
    pid: i64,
    options: u32,
    ended: bool,
    keep: bool,
) -> Option<Result<(Arc<Process>, Life), Errno>> {
    /// The number of children checked before the tasklist lock is dropped for others.
    const AT_ONCE: usize = 64;
    // A child selected by PID is looked up directly.
    let (mut from, most) = if pid > 0 { (pid as u32, 1) } else { (0, AT_ONCE) };
    let mut any = false;
    loop {
        let families = TasklistLock::lock();
        let mut children = process::walk(from, |from| process::first(&own.children.lock(), from)).take(most);
        let mut last = None;
        let change = children.find_map(|child| {
            last = Some(child.pid);
            if !is_wanted(&child, pid, own) {
                return None;
            }
            any = true;
            let life = take_change(&families, &child, own, options, ended, keep)?;
            Some((child, life))
        });
        if let Some(change) = change {
            return Some(Ok(change));
        }
        match last {
            Some(last) if most > 1 => from = last + 1,
            _ => return (!any).then_some(Err(Errno::ECHILD)),
        }
    }
}

/// Returns the child's state change to report, if any. Without `keep` the change is consumed, and
/// an exited child is reaped.
fn take_change(
    families: &TasklistLock,
    child: &Arc<Process>,
    own: &Process,
    options: u32,
    ended: bool,
    keep: bool,
) -> Option<Life> {
    let mut life = child.life.lock();
    let now = *life;
    let tells = match now {
        Life::Exited(_) | Life::Killed(_) => ended && child.has_ended(families),
        Life::Stopped(_, told) => !told && options & abi::WUNTRACED != 0,
        Life::Continued => options & abi::WCONTINUED != 0,
        Life::Running => false,
    };
    if !tells {
        return None;
    }
    if !keep {
        match now {
            Life::Stopped(signal, _) => *life = Life::Stopped(signal, true),
            Life::Continued => *life = Life::Running,
            _ => {}
        }
    }
    drop(life);
    if !keep && now.is_over() {
        own.reap(families, child);
    }
    Some(now)
}

/// Implements `wait4`.
pub async fn wait4(thread: &Arc<Thread>, pid: u64, to: u64, options: u64, usage: u64) -> Answer {
    let (pid, options) = (i64::from(pid as i32), options as u32);
    let known = abi::WNOHANG | abi::WUNTRACED | abi::WCONTINUED | abi::__WNOTHREAD | abi::__WCLONE | abi::__WALL;
    if options & !known != 0 {
        return Err(Errno::EINVAL);
    }
    if pid == i64::from(i32::MIN) {
        return Err(Errno::ESRCH);
    }
    let Some((child, life)) = wait(thread, pid, options, true, false).await? else { return Ok(0) };
    if to != 0 {
        uaccess::write(&thread.memory(), to, &life.status().to_le_bytes())?;
    }
    if usage != 0 {
        uaccess::write(&thread.memory(), usage, &misc::usage_of(&child))?;
    }
    Ok(child.pid.into())
}

async fn wait(
    thread: &Arc<Thread>,
    pid: i64,
    options: u32,
    ended: bool,
    keep: bool,
) -> Result<Option<(Arc<Process>, Life)>, Errno> {
    let own = &thread.process;
    let look = || find_change(own, pid, options, ended, keep);
    if options & abi::WNOHANG != 0 {
        return look().transpose();
    }
    thread.interruptible(own.child_changed.wait_until(look), None).await?.map(Some)
}

/// Implements `waitid`.
pub async fn waitid(thread: &Arc<Thread>, kind: u64, id: u64, to: u64, options: u64) -> Answer {
    let options = options as u32;
    let states = abi::WEXITED | abi::WSTOPPED | abi::WCONTINUED;
    if options & !(states | abi::WNOHANG | abi::WNOWAIT | abi::__WNOTHREAD | abi::__WCLONE | abi::__WALL) != 0
        || options & states == 0
    {
        return Err(Errno::EINVAL);
    }
    let mut at_once = false;
    let pid = match kind as u32 {
        abi::P_ALL => -1,
        abi::P_PIDFD if id as i32 >= 0 => {
            let (process, impatient) = pidfd::process_of(thread, id)?;
            at_once = impatient && options & abi::WNOHANG == 0;
            process.pid.into()
        }
        abi::P_PID if id as i32 > 0 => i64::from(id as i32),
        abi::P_PGID if id as i32 >= 0 => -i64::from(id as i32),
        _ => return Err(Errno::EINVAL),
    };
    let how = if at_once { options | abi::WNOHANG } else { options };
    let found = wait(thread, pid, how, options & abi::WEXITED != 0, options & abi::WNOWAIT != 0).await?;
    if at_once && found.is_none() {
        return Err(Errno::EAGAIN);
    }
    if to != 0 {
        let bytes = found.map_or([0; 128], |(child, life)| {
            let (code, status) = match life {
                Life::Exited(status) => (abi::CLD_EXITED, status.into()),
                Life::Killed(signal) => (abi::CLD_KILLED, signal),
                Life::Stopped(signal, _) => (abi::CLD_STOPPED, signal),
                Life::Continued | Life::Running => (abi::CLD_CONTINUED, abi::SIGCONT),
            };
            child.child_info(abi::SIGCHLD, code, status).bytes()
        });
        uaccess::write(&thread.memory(), to, &bytes)?;
    }
    Ok(0)
}
