//! Implements pidfds. A pidfd keeps referring to its process even after the PID is reused.

use super::file::{add, open_of};
use super::signal::{allowed, known_or_none, read_info};
use super::{Answer, remote};
use crate::files::proc;
use crate::task::deliver::has_kill;
use crate::task::process::{self, FIRST, TasklistLock};
use crate::task::signal;
use crate::task::{Process, Thread};
use alloc::sync::Arc;
use core::any::Any;
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::inode::File;
use vellum_kernel::fs::{Open, device};
use vellum_kernel::wait::Queue;

/// The file behind a pidfd. It is readable once the process has exited.
struct Descriptor {
    process: Arc<Process>,
}

impl File for Descriptor {
    fn ready(&self) -> u32 {
        match (self.process.has_ended(&TasklistLock::lock()), self.process.is_reaped()) {
            (_, true) => abi::POLLIN | abi::POLLRDNORM | abi::POLLHUP,
            (true, false) => abi::POLLIN | abi::POLLRDNORM,
            (false, false) => 0,
        }
    }

    fn queue(&self) -> Option<&Queue> {
        Some(&self.process.changed)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Creates an open pidfd file for a process.
pub fn open(process: &Arc<Process>, flags: u32) -> Arc<Open> {
    let file = Arc::new(Descriptor { process: process.clone() });
    device::open(file, abi::O_RDWR | flags & abi::O_NONBLOCK)
}

/// Returns the process of a pidfd, and whether the pidfd is non-blocking.
///
/// # Errors
///
/// `EBADF`: `fd` is not open, or is not a pidfd.
pub fn process_of(thread: &Thread, fd: u64) -> Result<(Arc<Process>, bool), Errno> {
    let open = open_of(thread, u64::from(fd as u32))?;
    let file = open.file().map_err(|_| Errno::EBADF)?;
    let descriptor = file.as_any().downcast_ref::<Descriptor>().ok_or(Errno::EBADF)?;
    Ok((descriptor.process.clone(), open.flags() & abi::O_NONBLOCK != 0))
}

/// Implements `pidfd_open`.
pub fn pidfd_open(thread: &Thread, pid: u64, flags: u64) -> Answer {
    let (pid, flags) = (pid as i32, flags as u32);
    if pid <= 0 || flags & !abi::O_NONBLOCK != 0 {
        return Err(Errno::EINVAL);
    }
    let process = process::find(pid as u32).filter(|process| process.pid != FIRST);
    let process = process.ok_or_else(|| match process::find_thread(pid as u32) {
        Some(_) => Errno::ENOENT,
        None => Errno::ESRCH,
    })?;
    add(thread, open(&process, flags), abi::O_CLOEXEC)
}

/// Implements `pidfd_send_signal`.
pub fn pidfd_send_signal(thread: &Arc<Thread>, fd: u64, signal: u64, from: u64, flags: u64) -> Answer {
    const THREAD_GROUP: u64 = 1 << 1;
    let signal = known_or_none(signal)?;
    if flags & !THREAD_GROUP != 0 {
        return Err(Errno::EINVAL);
    }
    // The directory of a process in /proc stands for it too.
    let open = open_of(thread, u64::from(fd as u32))?;
    let named = if open.flags() & abi::O_PATH == 0 { proc::process_of(&**open.inode()) } else { None };
    let process = match named {
        Some(process) => process?,
        None => process_of(thread, fd)?.0,
    };
    let own = process.pid == thread.process.pid;
    let info = if from == 0 {
        signal::info_from(signal, abi::SI_USER as i32, thread)
    } else {
        let info = read_info(thread, from)?;
        if info.signal != signal {
            return Err(Errno::EINVAL);
        }
        if info.is_from_kernel() && !own {
            return Err(Errno::EPERM);
        }
        info
    };
    if process.is_reaped() {
        return Err(Errno::ESRCH);
    }
    allowed(thread, &process, signal)?;
    signal::may_queue(&process, signal)?;
    if signal != 0 {
        signal::send(&process, info);
    }
    Ok(0)
}

/// Implements `pidfd_getfd`: duplicates a descriptor of another process.
pub fn pidfd_getfd(thread: &Thread, fd: u64, theirs: u64, flags: u64) -> Answer {
    if flags as u32 != 0 {
        return Err(Errno::EINVAL);
    }
    let (process, _) = process_of(thread, fd)?;
    remote::may_look_into(thread, &process)?;
    let files = process.files.lock().clone().ok_or(Errno::ESRCH)?;
    add(thread, files.open(u64::from(theirs as u32))?, abi::O_CLOEXEC)
}

/// Implements `process_mrelease`: waits until a killed process has released its memory.
pub async fn process_mrelease(thread: &Arc<Thread>, fd: u64, flags: u64) -> Answer {
    if flags as u32 != 0 {
        return Err(Errno::EINVAL);
    }
    let (process, _) = process_of(thread, fd)?;
    if process.has_ended(&TasklistLock::lock()) {
        return Err(Errno::ESRCH);
    }
    let threads = process.threads.lock().clone();
    if !process.life.lock().is_over() && !threads.values().any(|thread| has_kill(thread)) {
        return Err(Errno::EINVAL);
    }
    let gone = || process.memory.lock().is_none().then_some(());
    thread.interruptible(process.changed.wait_until(gone), None).await.map(|()| 0)
}
