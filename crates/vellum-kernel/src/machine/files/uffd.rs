//! Implements the files of `userfaultfd`, by which a program resolves the missing-page and
//! write-protect faults of its own memory.
//!
//! A thread that takes such a fault enqueues itself in the file's list of faults, and retries the
//! fault in the engine before it sleeps. So no wake-up is lost: if the program resolves the fault
//! before the thread is in the list, the retry succeeds; if after, the program's request finds the
//! thread there. A system call whose copy meets such a fault fails, waits in the same list, and is
//! retried (`task::blocked`).

use crate::mem::thread::failed;
use crate::mem::uffd::Uffd;
use crate::mem::{UserSpace, uaccess};
use crate::task::Thread;
use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general as abi;
use linux_raw_sys::ioctl;
use vellum::addr::VirtRange;
use vellum::memcg::MayBeRefused;
use vellum::space::UffdFillStopped;
use vellum::vma::VmaFlags;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::inode::File;
use vellum_kernel::fs::{Open, Sink, device};
use vellum_kernel::wait::Queue;

const FEATURES: u64 = (abi::UFFD_FEATURE_PAGEFAULT_FLAG_WP
    | abi::UFFD_FEATURE_THREAD_ID
    | abi::UFFD_FEATURE_WP_UNPOPULATED
    | abi::UFFD_FEATURE_POISON
    | abi::UFFD_FEATURE_WP_ASYNC) as u64;
/// A flag in the file's features: `UFFDIO_API` has been called.
const AGREED: u64 = 1 << 63;
/// `UFFDIO_POISON`, which the crate lacks.
const POISON: u32 = 0xc020_aa08;
/// `UFFDIO_COPY_MODE_DONTWAKE` and its like: the request wakes no thread.
const DONT_WAKE: u64 = 1;

/// Opens a userfaultfd for a thread's memory.
///
/// # Errors
///
/// `ENOMEM`: there are too many.
pub fn open(thread: &Thread, flags: u32) -> Result<Arc<Open>, Errno> {
    let file = Uffd::new(&thread.memory(), flags & abi::UFFD_USER_MODE_ONLY != 0)?;
    Ok(device::open(file, abi::O_RDWR | flags & abi::O_NONBLOCK))
}

/// Reads the words of a request's struct.
fn words<const N: usize>(thread: &Thread, at: u64) -> Result<[u64; N], Errno> {
    let mut words = [0; N];
    for (n, word) in words.iter_mut().enumerate() {
        let mut bytes = [0; 8];
        uaccess::read(&thread.memory(), at.wrapping_add(8 * n as u64), &mut bytes)?;
        *word = u64::from_le_bytes(bytes);
    }
    Ok(words)
}

fn set_word(thread: &Thread, at: u64, index: u64, word: u64) -> Result<(), Errno> {
    uaccess::write(&thread.memory(), at.wrapping_add(8 * index), &word.to_le_bytes())
}

/// Checks the range of a request.
fn range(start: u64, len: u64) -> Result<VirtRange, Errno> {
    let end = start.checked_add(len).filter(|end| *end <= crate::arch::paging::user_end());
    let whole = (start | len) & (vellum::addr::FRAME_SIZE - 1) == 0;
    end.filter(|_| whole && len > 0).map(|end| VirtRange { start, end }).ok_or(Errno::EINVAL)
}

impl Uffd {
    /// Implements `UFFDIO_API`.
    fn agree(&self, thread: &Thread, at: u64) -> Result<(), Errno> {
        let [version, wanted, _] = words(thread, at)?;
        let known = version == u64::from(abi::UFFD_API) && wanted & !FEATURES == 0;
        if !known || self.features.compare_exchange(0, wanted | AGREED, Relaxed, Relaxed).is_err() {
            (0..3).try_for_each(|n| set_word(thread, at, n, 0))?;
            return Err(Errno::EINVAL);
        }
        let requests = 1 << abi::_UFFDIO_REGISTER | 1 << abi::_UFFDIO_UNREGISTER | 1 << abi::_UFFDIO_API;
        set_word(thread, at, 1, FEATURES)?;
        set_word(thread, at, 2, requests)
    }

    /// Implements `UFFDIO_REGISTER`.
    fn register(&self, thread: &Thread, memory: &UserSpace, at: u64) -> Result<(), Errno> {
        const MODE_MISSING: u64 = 1;
        const MODE_WP: u64 = 2;
        let [start, len, mode, _] = words(thread, at)?;
        let range = range(start, len)?;
        if mode == 0 || mode & !(MODE_MISSING | MODE_WP) != 0 {
            return Err(Errno::EINVAL);
        }
        let mut what = VmaFlags::empty();
        what.set(VmaFlags::UFFD_MISSING, mode & MODE_MISSING != 0);
        what.set(VmaFlags::UFFD_WP, mode & MODE_WP != 0);
        what.set(VmaFlags::UFFD_WP_ASYNC, mode & MODE_WP != 0 && self.has(abi::UFFD_FEATURE_WP_ASYNC));
        memory
            .engine
            .uffd_register(range, self.number, what)
            .map_err(|error| failed(error.refused(), error.errno()))?;
        let mut requests = 1 << abi::_UFFDIO_WAKE | 1 << abi::_UFFDIO_COPY | 1 << abi::_UFFDIO_ZEROPAGE;
        requests |= 1 << abi::_UFFDIO_POISON;
        requests |= if mode & MODE_WP != 0 { 1 << abi::_UFFDIO_WRITEPROTECT } else { 0 };
        set_word(thread, at, 3, requests)
    }

    /// Implements `UFFDIO_WRITEPROTECT`.
    fn protect(&self, thread: &Thread, memory: &UserSpace, at: u64) -> Result<(), Errno> {
        let [start, len, mode] = words(thread, at)?;
        let range = range(start, len)?;
        let changed = match mode {
            1 => memory
                .engine
                .uffd_write_protect(range, self.has(abi::UFFD_FEATURE_WP_UNPOPULATED | abi::UFFD_FEATURE_WP_ASYNC)),
            0 | 2 => memory.engine.uffd_write_unprotect(range),
            _ => return Err(Errno::EINVAL),
        };
        changed.map_err(|error| failed(error.refused(), error.errno()))?;
        if mode == 0 {
            self.faults.wake(range.start..range.end);
        }
        Ok(())
    }

    /// Stores the number of bytes filled (or the error) in word `index` of the request, and wakes
    /// the threads that wait for that range, unless the request has `DONTWAKE`.
    fn answer(
        &self,
        thread: &Thread,
        (at, index): (u64, u64),
        range: VirtRange,
        wakes: bool,
        supplied: Result<(), UffdFillStopped>,
    ) -> Result<(), Errno> {
        let (done, answer) = match supplied {
            Ok(()) => (range.len(), Ok(())),
            Err(UffdFillStopped { done: 0, error }) => (0, Err(failed(error.refused(), error.errno()))),
            Err(UffdFillStopped { done, .. }) => (done, Err(Errno::EAGAIN)),
        };
        let told =
            if let (0, Err(error)) = (done, answer) { (error.number() as i64).wrapping_neg() as u64 } else { done };
        set_word(thread, at, index, told)?;
        if wakes && done > 0 {
            self.faults.wake(range.start..range.start + done);
        }
        answer
    }

    /// Implements `UFFDIO_COPY`.
    fn copy(&self, thread: &Thread, memory: &UserSpace, at: u64) -> Result<(), Errno> {
        const PROTECT: u64 = 2;
        let [to, from, len, mode, _] = words(thread, at)?;
        let range = range(to, len)?;
        if mode & !(DONT_WAKE | PROTECT) != 0 || from.checked_add(len).is_none() {
            return Err(Errno::EINVAL);
        }
        let supplied = memory.engine.uffd_copy(range, mode & PROTECT != 0, |offset, bytes| {
            uaccess::read(&thread.memory(), from + offset, bytes).map_err(|_| ())
        });
        self.answer(thread, (at, 4), range, mode & DONT_WAKE == 0, supplied)
    }

    /// Implements `UFFDIO_ZEROPAGE` and `UFFDIO_POISON`.
    fn fill(
        &self,
        thread: &Thread,
        at: u64,
        fill: impl FnOnce(VirtRange) -> Result<(), UffdFillStopped>,
    ) -> Result<(), Errno> {
        let [start, len, mode, _] = words(thread, at)?;
        let range = range(start, len)?;
        if mode & !DONT_WAKE != 0 {
            return Err(Errno::EINVAL);
        }
        self.answer(thread, (at, 3), range, mode & DONT_WAKE == 0, fill(range))
    }

    /// Implements `UFFDIO_UNREGISTER` and `UFFDIO_WAKE`.
    fn release(&self, thread: &Thread, memory: &UserSpace, at: u64, unregister: bool) -> Result<(), Errno> {
        let [start, len] = words(thread, at)?;
        let range = range(start, len)?;
        if unregister {
            memory
                .engine
                .uffd_unregister(range, self.number)
                .map_err(|error| failed(error.refused(), error.errno()))?;
        }
        self.faults.wake(range.start..range.end);
        Ok(())
    }
}

impl File for Uffd {
    fn read(&self, _at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        if self.features.load(Relaxed) == 0 {
            return Err(Errno::EINVAL);
        }
        self.faults.read(to)
    }

    fn ready(&self) -> u32 {
        match self.faults.is_ready() {
            _ if self.features.load(Relaxed) == 0 => abi::POLLERR,
            true => abi::POLLIN,
            false => 0,
        }
    }

    // userfaultfd(2): poll on a blocking userfaultfd always reports `POLLERR`.
    fn poll_requires_nonblock(&self) -> bool {
        true
    }

    fn queue(&self) -> Option<&Queue> {
        Some(&self.faults.readers)
    }

    fn request(&self, request: u32, at: u64) -> Result<u64, Errno> {
        let thread = Thread::current().ok_or(Errno::EINVAL)?;
        let thread = &*thread;
        if request == ioctl::UFFDIO_API {
            return self.agree(thread, at).map(|()| 0);
        }
        if self.features.load(Relaxed) == 0 {
            return Err(Errno::EINVAL);
        }
        let memory = &*self.memory.upgrade().ok_or(Errno::ESRCH)?;
        let done = match request {
            ioctl::UFFDIO_REGISTER => self.register(thread, memory, at),
            ioctl::UFFDIO_UNREGISTER => self.release(thread, memory, at, true),
            ioctl::UFFDIO_WAKE => self.release(thread, memory, at, false),
            ioctl::UFFDIO_COPY => self.copy(thread, memory, at),
            ioctl::UFFDIO_ZEROPAGE => self.fill(thread, at, |range| memory.engine.uffd_zeropage(range)),
            POISON => self.fill(thread, at, |range| memory.engine.uffd_poison(range)),
            ioctl::UFFDIO_WRITEPROTECT => self.protect(thread, memory, at),
            _ => Err(Errno::EINVAL),
        };
        done.map(|()| 0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
