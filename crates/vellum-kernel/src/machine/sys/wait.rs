//! Implements `wait4` and `waitid`.

use super::{Answer, misc, pidfd};
use crate::mem::uaccess;
use crate::task::life::Life;
use crate::task::process::{self, TasklistLock};
use crate::task::signal::Info;
use crate::task::trace;
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

/// A state change of a child or of a traced thread.
struct Change {
    /// The number of the process or thread.
    number: u32,
    /// The process.
    process: Arc<Process>,
    /// The status in `wait4`'s encoding.
    status: u32,
    /// The `CLD_` code, and the status that goes with it.
    code: u32,
    value: u32,
}

impl Change {
    /// Describes a change to the state `life`.
    fn of(number: u32, process: &Arc<Process>, life: Life) -> Self {
        let (code, value) = life.child_status();
        Self { number, process: process.clone(), status: life.status(), code, value }
    }
}

/// Finds a selected thread that the process traces with a stop or an end to report. Without `keep`
/// it is consumed. Returns `None` if no thread is selected.
fn find_traced(own: &Process, pid: i64, ended: bool, keep: bool) -> Option<Option<Change>> {
    let mut any = false;
    let mut tracees = own.tracees.lock();
    let mut found = None;
    for (number, thread) in tracees.iter() {
        let process = &thread.process;
        if !(if pid > 0 { i64::from(*number) == pid } else { is_wanted(process, pid, own) }) {
            continue;
        }
        any = true;
        let mut trace = thread.trace.lock();
        if let Some(life) = trace.ended.filter(|_| ended) {
            found = Some((Change::of(*number, process, life), true));
            break;
        }
        if let Some(halt) = trace.halted().filter(|halt| !halt.is_reported) {
            halt.is_reported = !keep;
            let (status, value) = (halt.stop.wait_status(), halt.stop.status);
            let change = Change { number: *number, process: process.clone(), status, code: abi::CLD_TRAPPED, value };
            found = Some((change, false));
            break;
        }
    }
    let gone = match &found {
        Some((change, true)) if !keep => tracees.remove(&change.number),
        _ => None,
    };
    drop(tracees);
    if let Some(thread) = gone {
        *thread.counted.lock() = None;
    }
    any.then(|| found.map(|(change, _)| change))
}

/// Finds a selected child or traced thread with a state change to report. Without `keep` the change
/// is consumed, and an exited child is reaped. Returns `ECHILD` if none is selected.
fn find_change(own: &Process, pid: i64, options: u32, ended: bool, keep: bool) -> Option<Result<Change, Errno>> {
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
            Some(Change::of(child.pid, &child, life))
        });
        if let Some(change) = change {
            return Some(Ok(change));
        }
        match last {
            Some(last) if most > 1 => from = last + 1,
            _ => {
                return match find_traced(own, pid, ended, keep) {
                    Some(change) => change.map(Ok),
                    None => (!any).then_some(Err(Errno::ECHILD)),
                };
            }
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
        // Of a child that it traces the parent is told as its tracer.
        Life::Stopped(_, told) => !told && options & abi::WUNTRACED != 0 && !trace::is_traced_by(child, own),
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
    let Some(change) = wait(thread, pid, options, true, false).await? else { return Ok(0) };
    if to != 0 {
        uaccess::write(&thread.memory(), to, &change.status.to_le_bytes())?;
    }
    if usage != 0 {
        uaccess::write(&thread.memory(), usage, &misc::usage_of(&change.process))?;
    }
    Ok(change.number.into())
}

async fn wait(thread: &Arc<Thread>, pid: i64, options: u32, ended: bool, keep: bool) -> Result<Option<Change>, Errno> {
    let own = &thread.process;
    let look = || find_change(own, pid, options, ended, keep);
    if options & abi::WNOHANG != 0 {
        return look().transpose();
    }
    thread.interruptible(own.child_changed.wait_until(look), None).await?.map(Some)
}

/// Implements `waitid`.
pub async fn waitid(thread: &Arc<Thread>, [kind, id, to, options, usage, _]: [u64; 6]) -> Answer {
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
    if let Some(change) = found.as_ref().filter(|_| usage != 0) {
        uaccess::write(&thread.memory(), usage, &misc::usage_of(&change.process))?;
    }
    if to != 0 {
        let bytes = found.map_or([0; 128], |Change { number, code, value, .. }| {
            let fields = [number.into(), value.into(), 0, 0];
            Info { signal: abi::SIGCHLD, errno: 0, code: code as i32, fields }.bytes()
        });
        uaccess::write(&thread.memory(), to, &bytes)?;
    }
    Ok(0)
}
