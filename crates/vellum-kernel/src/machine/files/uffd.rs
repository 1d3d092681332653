//! Implements the files of `userfaultfd`, by which a program resolves the missing, minor and
//! write-protect faults of its own memory, and is notified of changes of it.
//!
//! A thread that takes such a fault enqueues itself in the file's list of faults, and retries the
//! fault in the engine before it sleeps. So no wake-up is lost: if the program resolves the fault
//! before the thread is in the list, the retry succeeds; if after, the program's request finds the
//! thread there. A system call whose copy meets such a fault fails, waits in the same list, and is
//! retried (`task::blocked`).

use crate::files::descriptors;
use crate::mem::thread::{BlockedOn, current, failed};
use crate::mem::uffd::{Uffd, next_registered};
use crate::mem::{UserSpace, uaccess};
use crate::task::Thread;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general as abi;
use linux_raw_sys::ioctl;
use vellum::addr::VirtRange;
use vellum::memcg::MayBeRefused;
use vellum::space::{UffdFillError, UffdFillStopped, uffd_continue, uffd_move};
use vellum::vma::VmaFlags;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::inode::File;
use vellum_kernel::fs::{Open, Sink, device};
use vellum_kernel::wait::Queue;

/// The features of `UFFDIO_API`. Those of huge pages are among them, as on a Linux that has no huge
/// page either.
const FEATURES: u64 = (abi::UFFD_FEATURE_PAGEFAULT_FLAG_WP
    | abi::UFFD_FEATURE_EVENT_FORK
    | abi::UFFD_FEATURE_EVENT_REMAP
    | abi::UFFD_FEATURE_EVENT_REMOVE
    | abi::UFFD_FEATURE_MISSING_HUGETLBFS
    | abi::UFFD_FEATURE_MISSING_SHMEM
    | abi::UFFD_FEATURE_EVENT_UNMAP
    | abi::UFFD_FEATURE_SIGBUS
    | abi::UFFD_FEATURE_THREAD_ID
    | abi::UFFD_FEATURE_MINOR_HUGETLBFS
    | abi::UFFD_FEATURE_MINOR_SHMEM
    | abi::UFFD_FEATURE_EXACT_ADDRESS
    | abi::UFFD_FEATURE_WP_HUGETLBFS_SHMEM
    | abi::UFFD_FEATURE_WP_UNPOPULATED
    | abi::UFFD_FEATURE_POISON
    | abi::UFFD_FEATURE_WP_ASYNC
    | abi::UFFD_FEATURE_MOVE) as u64;
/// A flag in the file's features: `UFFDIO_API` has been called.
const AGREED: u64 = 1 << 31;
/// The requests of the file itself, as `UFFDIO_API` reports them.
const API_REQUESTS: u64 = 1 << abi::_UFFDIO_REGISTER | 1 << abi::_UFFDIO_UNREGISTER | 1 << abi::_UFFDIO_API;
/// The requests of a range in every mode.
const RANGE_REQUESTS: u64 = 1 << abi::_UFFDIO_WAKE
    | 1 << abi::_UFFDIO_COPY
    | 1 << abi::_UFFDIO_ZEROPAGE
    | 1 << abi::_UFFDIO_MOVE
    | 1 << abi::_UFFDIO_POISON;
/// `UFFDIO_POISON`, which the crate lacks.
const POISON: u32 = 0xc020_aa08;
/// `UFFDIO_MOVE`, which the crate lacks.
const MOVE: u32 = 0xc028_aa05;
/// `USERFAULTFD_IOC_NEW`, which the crate lacks.
const NEW: u32 = 0xaa00;
/// `UFFDIO_COPY_MODE_DONTWAKE` and its like: the request wakes no thread.
const DONT_WAKE: u64 = 1;
/// `UFFDIO_COPY_MODE_WP` and its like: the pages are write-protected.
const PROTECT: u64 = 2;

/// Creates a userfaultfd for a thread's memory, and returns its descriptor.
///
/// # Errors
///
/// `EINVAL`: unknown flags. `ENOMEM`: there are too many. `EMFILE`.
pub fn create(thread: &Thread, flags: u32) -> Result<u64, Errno> {
    if flags & !(abi::UFFD_USER_MODE_ONLY | abi::O_CLOEXEC | abi::O_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    install(thread, Uffd::new(&thread.memory(), flags)?)
}

/// Adds a descriptor for a userfaultfd.
fn install(thread: &Thread, uffd: Arc<Uffd>) -> Result<u64, Errno> {
    let flags = uffd.flags;
    let open = open(uffd);
    descriptors::add(thread, open, flags)
}

fn open(uffd: Arc<Uffd>) -> Arc<Open> {
    let flags = abi::O_RDONLY | uffd.flags & abi::O_NONBLOCK;
    device::open(uffd, flags)
}

/// `/dev/userfaultfd`: a request creates a userfaultfd.
pub struct Factory;

impl File for Factory {
    fn request(&self, request: u32, flags: u64) -> Result<u64, Errno> {
        let thread = Thread::current().filter(|_| request == NEW).ok_or(Errno::EINVAL)?;
        create(&thread, flags as u32)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
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
    let range = unaligned_range(start, len)?;
    if start & (vellum::addr::FRAME_SIZE - 1) == 0 { Ok(range) } else { Err(Errno::EINVAL) }
}

/// Checks a range of whole pages in length.
fn unaligned_range(start: u64, len: u64) -> Result<VirtRange, Errno> {
    let end = start.checked_add(len).filter(|end| *end <= crate::arch::paging::user_end());
    let whole = len & (vellum::addr::FRAME_SIZE - 1) == 0;
    end.filter(|_| whole && len > 0).map(|end| VirtRange { start, end }).ok_or(Errno::EINVAL)
}

/// Returns a mode without unknown bits.
fn mode(mode: u64, known: u64) -> Result<u64, Errno> {
    if mode & !known == 0 { Ok(mode) } else { Err(Errno::EINVAL) }
}

/// A request that fills pages: the address of its struct, and the index of the word for the result.
#[derive(Clone, Copy)]
struct Filling {
    at: u64,
    result: u64,
}

impl Uffd {
    /// Implements `UFFDIO_API`.
    fn agree(&self, thread: &Thread, at: u64) -> Result<(), Errno> {
        let [version, wanted, _] = words(thread, at)?;
        let agreed = if version != u64::from(abi::UFFD_API) {
            Err(Errno::EINVAL)
        } else if wanted & u64::from(abi::UFFD_FEATURE_EVENT_FORK) != 0
            && thread.credentials().needs(abi::CAP_SYS_PTRACE).is_err()
        {
            Err(Errno::EPERM)
        } else if wanted & !FEATURES != 0 {
            Err(Errno::EINVAL)
        } else {
            set_word(thread, at, 1, FEATURES)?;
            set_word(thread, at, 2, API_REQUESTS)?;
            let is_async = wanted & u64::from(abi::UFFD_FEATURE_WP_ASYNC) != 0;
            let implied = if is_async { u64::from(abi::UFFD_FEATURE_WP_UNPOPULATED) } else { 0 };
            if self.enable(wanted | implied | AGREED) { Ok(()) } else { Err(Errno::EINVAL) }
        };
        if agreed.is_err() {
            (0..3).try_for_each(|n| set_word(thread, at, n, 0))?;
        }
        agreed
    }

    /// Implements `UFFDIO_REGISTER`.
    fn register(&self, thread: &Thread, memory: &UserSpace, at: u64) -> Result<(), Errno> {
        const MODE_MISSING: u64 = 1;
        const MODE_WP: u64 = 2;
        const MODE_MINOR: u64 = 4;
        let [start, len, mode] = words(thread, at)?;
        if mode == 0 || mode & !(MODE_MISSING | MODE_WP | MODE_MINOR) != 0 {
            return Err(Errno::EINVAL);
        }
        let range = range(start, len)?;
        let mut what = VmaFlags::empty();
        what.set(VmaFlags::UFFD_MISSING, mode & MODE_MISSING != 0);
        what.set(VmaFlags::UFFD_MINOR, mode & MODE_MINOR != 0);
        what.set(VmaFlags::UFFD_WP, mode & MODE_WP != 0);
        what.set(VmaFlags::UFFD_WP_ASYNC, mode & MODE_WP != 0 && self.has(abi::UFFD_FEATURE_WP_ASYNC));
        memory
            .engine
            .uffd_register(range, self.number, what)
            .map_err(|error| failed(error.refused(), error.errno()))?;
        let mut requests = RANGE_REQUESTS;
        requests |= if mode & MODE_WP != 0 { 1 << abi::_UFFDIO_WRITEPROTECT } else { 0 };
        requests |= if mode & MODE_MINOR != 0 { 1 << abi::_UFFDIO_CONTINUE } else { 0 };
        set_word(thread, at, 3, requests)
    }

    /// Implements `UFFDIO_UNREGISTER`.
    fn unregister(&self, thread: &Thread, memory: &UserSpace, at: u64) -> Result<(), Errno> {
        let [start, len] = words(thread, at)?;
        let range = range(start, len)?;
        let mut is_mapped = false;
        memory.engine.vmas(range.start, |vma| {
            is_mapped = vma.range.start < range.end;
            false
        });
        let mut rest = range.start;
        while let Some((number, part)) = next_registered(memory, rest, range.end) {
            if number != self.number {
                return Err(Errno::EINVAL);
            }
            rest = part.end;
        }
        if !is_mapped {
            return Err(Errno::EINVAL);
        }
        memory.engine.uffd_unregister(range, self.number).map_err(|error| failed(error.refused(), error.errno()))?;
        self.messages.wake(range.start..range.end);
        Ok(())
    }

    /// Implements `UFFDIO_WAKE`.
    fn wake(&self, thread: &Thread, at: u64) -> Result<(), Errno> {
        let [start, len] = words(thread, at)?;
        let range = range(start, len)?;
        self.messages.wake(range.start..range.end);
        Ok(())
    }

    /// Implements `UFFDIO_WRITEPROTECT`.
    fn protect(&self, thread: &Thread, memory: &UserSpace, at: u64) -> Result<(), Errno> {
        if self.messages.is_changing() {
            return Err(Errno::EAGAIN);
        }
        let [start, len, mode] = words(thread, at)?;
        let range = range(start, len)?;
        let changed = match mode {
            1 => memory.engine.uffd_write_protect(range, self.has(abi::UFFD_FEATURE_WP_UNPOPULATED)),
            0 | 2 => memory.engine.uffd_write_unprotect(range),
            _ => return Err(Errno::EINVAL),
        };
        changed.map_err(|error| failed(error.refused(), error.errno()))?;
        if mode == 0 {
            self.messages.wake(range.start..range.end);
        }
        Ok(())
    }

    /// Checks that pages may be filled now.
    ///
    /// # Errors
    ///
    /// `EAGAIN`, which is also stored as the result: the address space is changing.
    fn begin_filling(&self, thread: &Thread, filling: Filling) -> Result<(), Errno> {
        if self.messages.is_changing() {
            set_word(thread, filling.at, filling.result, stored(Errno::EAGAIN))?;
            return Err(Errno::EAGAIN);
        }
        Ok(())
    }

    /// Stores the number of bytes filled (or the error) as the result of the request, and wakes the
    /// threads that wait for that range, unless the request has `DONTWAKE`.
    fn answer(
        &self,
        thread: &Thread,
        filling: Filling,
        range: VirtRange,
        wakes: bool,
        filled: Result<(), UffdFillStopped>,
    ) -> Result<(), Errno> {
        let (done, answer) = match filled {
            Ok(()) => (range.len(), Ok(())),
            Err(UffdFillStopped { done: 0, error }) => {
                if let UffdFillError::Pending(page) = error {
                    // The request is made again once the page is there.
                    current(|thread| thread.block(BlockedOn::Pending(page)));
                }
                (0, Err(failed(error.refused(), error.errno())))
            }
            Err(UffdFillStopped { done, .. }) => (done, Err(Errno::EAGAIN)),
        };
        let result = if let (0, Err(error)) = (done, answer) { stored(error) } else { done };
        set_word(thread, filling.at, filling.result, result)?;
        if wakes && done > 0 {
            self.messages.wake(range.start..range.start + done);
        }
        answer
    }

    /// Implements `UFFDIO_COPY`.
    fn copy(&self, thread: &Thread, memory: &UserSpace, at: u64) -> Result<(), Errno> {
        let filling = Filling { at, result: 4 };
        self.begin_filling(thread, filling)?;
        let [to, from, len, wanted] = words(thread, at)?;
        unaligned_range(from, len)?;
        let (range, mode) = (range(to, len)?, mode(wanted, DONT_WAKE | PROTECT)?);
        let filled = memory.engine.uffd_copy(range, mode & PROTECT != 0, |offset, bytes| {
            uaccess::read(&thread.memory(), from + offset, bytes).map_err(|_| ())
        });
        self.answer(thread, filling, range, mode & DONT_WAKE == 0, filled)
    }

    /// Implements `UFFDIO_ZEROPAGE`, `UFFDIO_POISON` and `UFFDIO_CONTINUE`, of which the mode may
    /// have the bits `known`. `fill` gets the range and whether to write-protect.
    fn fill(
        &self,
        thread: &Thread,
        at: u64,
        known: u64,
        fill: impl FnOnce(VirtRange, bool) -> Result<(), UffdFillStopped>,
    ) -> Result<(), Errno> {
        let filling = Filling { at, result: 3 };
        self.begin_filling(thread, filling)?;
        let [start, len, wanted] = words(thread, at)?;
        let (range, mode) = (range(start, len)?, mode(wanted, known)?);
        self.answer(thread, filling, range, mode & DONT_WAKE == 0, fill(range, mode & PROTECT != 0))
    }

    /// Implements `UFFDIO_MOVE`.
    fn relocate(&self, thread: &Thread, memory: &Arc<UserSpace>, at: u64) -> Result<(), Errno> {
        const ALLOW_HOLES: u64 = 2;
        let filling = Filling { at, result: 4 };
        self.begin_filling(thread, filling)?;
        let [to, from, len, wanted] = words(thread, at)?;
        // Only the memory's own program may move its pages.
        if !Arc::ptr_eq(memory, &thread.memory()) {
            return Err(Errno::EINVAL);
        }
        let (to, from) = (range(to, len)?, range(from, len)?);
        let mode = mode(wanted, DONT_WAKE | ALLOW_HOLES)?;
        let moved = uffd_move(&memory.engine, self.number, [to, from], mode & ALLOW_HOLES != 0);
        self.answer(thread, filling, to, mode & DONT_WAKE == 0, moved)
    }
}

/// Returns an error as the result of a request.
fn stored(error: Errno) -> u64 {
    (error.number() as i64).wrapping_neg() as u64
}

impl File for Uffd {
    fn ignores_seeks(&self) -> bool {
        true
    }

    fn read(&self, _at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        if self.features.load(Relaxed) == 0 {
            return Err(Errno::EINVAL);
        }
        let give = |forked: &Arc<Uffd>| {
            let thread = Thread::current().ok_or(Errno::EINVAL)?;
            install(&thread, forked.clone()).map(|number| number as u32)
        };
        self.messages.read(to, give)
    }

    fn ready(&self) -> u32 {
        match self.messages.is_ready() {
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
        Some(&self.messages.readers)
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
        if request == ioctl::UFFDIO_WAKE {
            return self.wake(thread, at).map(|()| 0);
        }
        let registers = matches!(request, ioctl::UFFDIO_REGISTER | ioctl::UFFDIO_UNREGISTER);
        let gone = if registers { Errno::ENOMEM } else { Errno::ESRCH };
        let memory = &self.memory.upgrade().filter(|memory| memory.is_used()).ok_or(gone)?;
        let done = match request {
            ioctl::UFFDIO_REGISTER => self.register(thread, memory, at),
            ioctl::UFFDIO_UNREGISTER => self.unregister(thread, memory, at),
            ioctl::UFFDIO_COPY => self.copy(thread, memory, at),
            ioctl::UFFDIO_ZEROPAGE => self.fill(thread, at, DONT_WAKE, |range, _| memory.engine.uffd_zeropage(range)),
            POISON => self.fill(thread, at, DONT_WAKE, |range, _| memory.engine.uffd_poison(range)),
            ioctl::UFFDIO_CONTINUE => {
                let known = DONT_WAKE | PROTECT;
                self.fill(thread, at, known, |range, protect| uffd_continue(&memory.engine, range, protect))
            }
            ioctl::UFFDIO_WRITEPROTECT => self.protect(thread, memory, at),
            MOVE => self.relocate(thread, memory, at),
            _ => Err(Errno::EINVAL),
        };
        done.map(|()| 0)
    }

    fn facts(&self) -> Vec<u8> {
        let (pending, all) = self.messages.counts();
        let (version, features) = (abi::UFFD_API, self.features.load(Relaxed));
        let requests = API_REQUESTS | RANGE_REQUESTS | 1 << abi::_UFFDIO_WRITEPROTECT | 1 << abi::_UFFDIO_CONTINUE;
        format!("pending:\t{pending}\ntotal:\t{all}\nAPI:\t{version:x}:{features:x}:{requests:x}\n").into_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
