//! Implements files from which signals are read (`signalfd`).

use super::{Answer, file};
use crate::task::Thread;
use crate::task::deliver::{self, read_set};
use crate::task::signal::{Set, UNSTOPPABLE};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::poll::signalfd::SignalFd;
use vellum_kernel::fs::{File, Sink, device};
use vellum_kernel::siginfo::SIGNALFD_SIZE;
use vellum_kernel::wait::Queue;

/// An open signalfd.
struct OpenSignalFd(Arc<SignalFd>);

impl OpenSignalFd {
    /// Returns the running thread, whose process lists the descriptor from now on: the caller looks
    /// for pending signals only afterwards, so that it misses none.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn listed_by_thread(&self) -> Result<Arc<Thread>, Errno> {
        let thread = Thread::current().ok_or(Errno::EINVAL)?;
        thread.process.signalfds.add(&self.0, thread.process.pid)?;
        Ok(thread)
    }
}

impl File for OpenSignalFd {
    fn ignores_seeks(&self) -> bool {
        true
    }

    fn read(&self, _at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        if to.room() < SIGNALFD_SIZE {
            return Err(Errno::EINVAL);
        }
        let thread = self.listed_by_thread()?;
        let mut done = 0;
        while to.room() >= SIGNALFD_SIZE
            && let Some(info) = deliver::take_pending(&thread, self.0.mask())
        {
            if to.put(&info.signalfd_bytes())? < SIGNALFD_SIZE {
                return if done > 0 { Ok(done) } else { Err(Errno::EFAULT) };
            }
            done += SIGNALFD_SIZE;
        }
        if done > 0 { Ok(done) } else { Err(Errno::EAGAIN) }
    }

    fn ready(&self) -> u32 {
        match self.listed_by_thread() {
            Ok(thread) if deliver::pending_signals(&thread) & self.0.mask() != 0 => abi::POLLIN,
            Ok(_) => 0,
            // A task that waited would not be woken.
            Err(_) => abi::POLLERR,
        }
    }

    fn queue(&self) -> Option<&Queue> {
        Some(&self.0.arrived)
    }

    fn facts(&self) -> Vec<u8> {
        format!("sigmask:\t{:016x}\n", self.0.mask()).into_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Implements `signalfd4`, and `signalfd` without `flags`: creates a file, or changes the signals
/// that the file of descriptor `fd` reports.
pub fn signalfd(thread: &Thread, fd: u64, mask: u64, size: u64, flags: u64) -> Answer {
    let mask: Set = read_set(thread, mask, size)? & !UNSTOPPABLE;
    let flags = flags as u32;
    if flags & !(abi::O_CLOEXEC | abi::O_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    if fd as i32 == -1 {
        let opened = Arc::new(OpenSignalFd(SignalFd::new(mask)));
        return file::add(thread, device::open(opened, abi::O_RDWR | flags & abi::O_NONBLOCK), flags);
    }
    let open = file::open_of(thread, u64::from(fd as u32))?;
    let file = open.file()?;
    let OpenSignalFd(descriptor) = file.as_any().downcast_ref().ok_or(Errno::EINVAL)?;
    descriptor.set_mask(mask);
    Ok(u64::from(fd as u32))
}
