//! Implements the signal system calls.

use super::{Answer, clock};
use crate::mem::{now_ns, uaccess};
use crate::task::deliver::{self, is_on_signal_stack, read_set};
use crate::task::process::TasklistLock;
use crate::task::signal::{self, Action, COUNT, Info, UNSTOPPABLE, bit};
use crate::task::{Process, Thread, process};
use alloc::sync::Arc;
use core::future::pending;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as abi;
use vellum_kernel::credentials::Credentials;
use vellum_kernel::errno::Errno;

fn known(signal: u64) -> Result<u32, Errno> {
    if (1..=u64::from(COUNT)).contains(&signal) { Ok(signal as u32) } else { Err(Errno::EINVAL) }
}

/// Returns the signal number if it is valid or 0. Signal 0 only checks permission and existence.
pub fn known_or_none(signal: u64) -> Result<u32, Errno> {
    if signal as u32 <= COUNT { Ok(signal as u32) } else { Err(Errno::EINVAL) }
}

/// Reads the `siginfo_t` that a program passes for a signal that it sends.
pub fn read_info(thread: &Thread, from: u64) -> Result<Info, Errno> {
    let mut bytes = [0; 48];
    uaccess::read(&thread.memory(), from, &mut bytes)?;
    let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
    let fields = core::array::from_fn(|f| u64::from_le_bytes(core::array::from_fn(|i| bytes[16 + 8 * f + i])));
    Ok(Info { signal: word(0), errno: word(4) as i32, code: word(8) as i32, fields })
}

/// Implements `rt_sigaction`.
pub fn sigaction(thread: &Arc<Thread>, signal: u64, new: u64, old: u64, size: u64) -> Answer {
    let signal = known(signal)?;
    let memory = thread.memory();
    let wanted = if new != 0 {
        let mut words = [0; 32];
        uaccess::read(&memory, new, &mut words)?;
        let word = |i: usize| u64::from_le_bytes(core::array::from_fn(|k| words[8 * i + k]));
        Some(Action { handler: word(0), flags: word(1), restorer: word(2), mask: word(3) & !UNSTOPPABLE })
    } else {
        None
    };
    if size != 8 || (wanted.is_some() && UNSTOPPABLE & bit(signal) != 0) {
        return Err(Errno::EINVAL);
    }
    let before = {
        let mut signals = thread.process.signals.lock();
        let before = *signals.action(signal);
        if let Some(action) = wanted {
            *signals.action(signal) = action;
            if action.ignores(signal) {
                signals.pending.drop(bit(signal));
            }
        }
        before
    };
    if wanted.is_some_and(|action| action.ignores(signal)) {
        for thread in thread.process.threads.lock().values() {
            thread.pending.lock().drop(bit(signal));
        }
    }
    if old != 0 {
        let words = [before.handler, before.flags, before.restorer, before.mask];
        let bytes: [u8; 32] = core::array::from_fn(|i| words[i / 8].to_le_bytes()[i % 8]);
        uaccess::write(&memory, old, &bytes)?;
    }
    Ok(0)
}

/// Implements `rt_sigprocmask`.
pub fn sigprocmask(thread: &Arc<Thread>, how: u64, new: u64, old: u64, size: u64) -> Answer {
    let before = thread.mask.load(Ordering::Relaxed);
    if size != 8 {
        return Err(Errno::EINVAL);
    }
    if new != 0 {
        let set = read_set(thread, new, size)?;
        thread.set_mask(match how as u32 {
            abi::SIG_BLOCK => before | set,
            abi::SIG_UNBLOCK => before & !set,
            abi::SIG_SETMASK => set,
            _ => return Err(Errno::EINVAL),
        });
    }
    if old != 0 {
        uaccess::write(&thread.memory(), old, &before.to_le_bytes())?;
    }
    Ok(0)
}

/// Implements `rt_sigpending`.
pub fn sigpending(thread: &Arc<Thread>, to: u64, size: u64) -> Answer {
    if size > 8 {
        return Err(Errno::EINVAL);
    }
    let all = deliver::pending_signals(thread);
    let blocked = all & thread.mask.load(Ordering::Relaxed);
    uaccess::write(&thread.memory(), to, &blocked.to_le_bytes()[..size as usize]).map(|()| 0)
}

/// Implements `rt_sigsuspend`.
pub async fn sigsuspend(thread: &Arc<Thread>, mask: u64, size: u64) -> Answer {
    let mask = read_set(thread, mask, size)?;
    // SAFETY: a system call runs in the thread's own future.
    unsafe { thread.context() }.saved_mask = Some(thread.mask.load(Ordering::Relaxed));
    thread.set_mask(mask);
    pause(thread).await
}

/// Implements `pause`.
pub async fn pause(thread: &Arc<Thread>) -> Answer {
    thread.interruptible(pending::<()>(), None).await.map(|()| 0)
}

/// Implements `rt_sigtimedwait`.
pub async fn sigtimedwait(thread: &Arc<Thread>, set: u64, info: u64, timeout: u64, size: u64) -> Answer {
    let set = read_set(thread, set, size)? & !UNSTOPPABLE;
    let deadline = if timeout == 0 { None } else { Some(now_ns().saturating_add(clock::read_time(thread, timeout)?)) };
    let take = || deliver::take_pending(thread, set);
    let mut taken = take();
    if taken.is_none() {
        thread.set_awaited(set);
        let waited = thread.interruptible(pending::<()>(), deadline).await;
        thread.set_awaited(0);
        taken = take();
        if taken.is_none() {
            return match waited {
                Err(Errno::ETIMEDOUT) => Err(Errno::EAGAIN),
                _ => Err(Errno::EINTR),
            };
        }
    }
    let taken = taken.ok_or(Errno::EAGAIN)?;
    if info != 0 {
        uaccess::write(&thread.memory(), info, &taken.bytes())?;
    }
    Ok(taken.signal.into())
}

/// Implements `sigaltstack`.
pub fn sigaltstack(thread: &Arc<Thread>, new: u64, old: u64) -> Answer {
    const DISABLE: u64 = 2;
    const AUTODISARM: u64 = 1 << 31;
    let memory = thread.memory();
    // SAFETY: a system call runs in the thread's own future.
    let context = unsafe { thread.context() };
    let before = [context.signal_stack[0], deliver::stack_flags(context), context.signal_stack[1]];
    if new != 0 {
        let mut words = [0; 24];
        uaccess::read(&memory, new, &mut words)?;
        let word = |i: usize| u64::from_le_bytes(core::array::from_fn(|k| words[8 * i + k]));
        let flags = word(1) & 0xffff_ffff & !AUTODISARM;
        if is_on_signal_stack(context) {
            return Err(Errno::EPERM);
        }
        match flags {
            DISABLE => context.signal_stack = [0; 2],
            0 | 1 if word(2) < u64::from(abi::MINSIGSTKSZ) => return Err(Errno::ENOMEM),
            0 | 1 => context.signal_stack = [word(0), word(2)],
            _ => return Err(Errno::EINVAL),
        }
    }
    if old != 0 {
        let bytes: [u8; 24] = core::array::from_fn(|i| before[i / 8].to_le_bytes()[i % 8]);
        uaccess::write(&memory, old, &bytes)?;
    }
    Ok(0)
}

/// Implements `rt_sigreturn`.
pub async fn sigreturn(thread: &Arc<Thread>) -> Answer {
    deliver::return_from_handler(thread).await
}

/// Checks that the thread may send `signal` to the process `to`; `EPERM` if not.
pub fn allowed(thread: &Thread, to: &Process, signal: u32) -> Result<(), Errno> {
    let same_session = to.session.load(Ordering::Relaxed) == thread.process.session.load(Ordering::Relaxed);
    let goes_on = signal == abi::SIGCONT && same_session;
    // The root process has no thread to take credentials from; it belongs to root.
    let theirs = if to.pid == process::FIRST { Some(Arc::new(Credentials::root())) } else { to.credentials() };
    if goes_on || theirs.is_none_or(|other| thread.credentials().may_signal(&other)) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Implements `kill`.
pub fn kill(thread: &Arc<Thread>, pid: u64, signal: u64) -> Answer {
    let (pid, signal) = (pid as i32, known_or_none(signal)?);
    let own = thread.process.pid;
    let info = signal::info_from(signal, abi::SI_USER as i32, thread);
    let group = match pid {
        0 => Some(thread.process.group.load(Ordering::Relaxed)),
        -1 => None,
        i32::MIN => return Err(Errno::ESRCH),
        _ if pid < 0 => Some(pid.unsigned_abs()),
        _ => {
            let process = process::find_by_thread(pid as u32).ok_or(Errno::ESRCH)?;
            allowed(thread, &process, signal)?;
            if signal != 0 && process.pid != process::FIRST {
                signal::send(&process, info);
            }
            return Ok(0);
        }
    };
    let mut answer = Err(Errno::ESRCH);
    // The tasklist lock keeps new children out while the signal is sent. Once the lock is released,
    // a parent that the signal kills forks no more.
    let families = TasklistLock::lock();
    for process in process::all() {
        let wanted = match group {
            Some(group) => process.group.load(Ordering::Relaxed) == group,
            None => process.pid != own,
        };
        if !wanted || process.pid == process::FIRST {
            continue;
        }
        match allowed(thread, &process, signal) {
            Ok(()) => answer = Ok(0),
            Err(error) if answer != Ok(0) => answer = Err(error),
            Err(_) => {}
        }
        if signal != 0 && allowed(thread, &process, signal).is_ok() {
            signal::send_locked(&families, &process, info);
        }
    }
    answer
}

/// Implements `tgkill`, and `tkill` if `process` is `None`.
pub fn tgkill(thread: &Arc<Thread>, process: Option<u64>, tid: u64, signal: u64) -> Answer {
    let signal = known_or_none(signal)?;
    if (tid as i32) <= 0 || process.is_some_and(|pid| (pid as i32) <= 0) {
        return Err(Errno::EINVAL);
    }
    let target = process::find_thread(tid as u32).ok_or(Errno::ESRCH)?;
    if process.is_some_and(|pid| pid as u32 != target.process.pid) {
        return Err(Errno::ESRCH);
    }
    allowed(thread, &target.process, signal)?;
    if signal != 0 {
        signal::may_queue(&target.process, signal)?;
        signal::send_to(&target, signal::info_from(signal, abi::SI_TKILL, thread));
    }
    Ok(0)
}

/// Implements `rt_sigqueueinfo`, and `rt_tgsigqueueinfo` if `tid` is given.
pub fn sigqueueinfo(thread: &Arc<Thread>, pid: u64, tid: Option<u64>, signal: u64, from: u64) -> Answer {
    let said = read_info(thread, from)?;
    let signal = known_or_none(signal)?;
    let info = Info { signal, ..said };
    if info.is_from_kernel() && pid as u32 != thread.process.pid {
        return Err(Errno::EPERM);
    }
    let process = process::find_by_thread(pid as u32).ok_or(Errno::ESRCH)?;
    allowed(thread, &process, signal)?;
    signal::may_queue(&process, signal)?;
    match tid {
        _ if signal == 0 => {}
        None => signal::send(&process, info),
        Some(tid) => {
            let target = u32::try_from(tid).ok().and_then(|tid| process.threads.lock().get(&tid).cloned());
            signal::send_to(&target.ok_or(Errno::ESRCH)?, info);
        }
    }
    Ok(0)
}
