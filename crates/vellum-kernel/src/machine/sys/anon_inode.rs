//! Implements the system calls that create files without a path: pipes, memfds, userfaultfds and
//! eventfds.

use super::Answer;
use super::file::{add, add_pair};
use crate::files::{self, proc, uffd};
use crate::task::Thread;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as abi;
use vellum_kernel::credentials::Credentials;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::event::Event;
use vellum_kernel::fs::open::Name;
use vellum_kernel::fs::pipe::limits::Rights;
use vellum_kernel::fs::{Inode, Open, device, pipe};

/// Implements `pipe` and `pipe2`.
pub fn pipe(thread: &Arc<Thread>, to: u64, flags: u64) -> Answer {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    let flags = flags as u32;
    if flags & !(abi::O_CLOEXEC | abi::O_NONBLOCK | abi::O_DIRECT) != 0 {
        return Err(Errno::EINVAL);
    }
    let own = thread.credentials();
    let (who, number) = (own.file_credentials(), NUMBERS.fetch_add(1, Ordering::Relaxed));
    let pipe::NewPipe { inode, reader, writer } =
        pipe::AnonymousPipe::create(number, (who.uid, who.gid), rights_to_pipes(&own))?;
    let inode: Arc<dyn Inode> = inode;
    let end = |file, mode| Arc::new(Open::new(inode.clone(), Some(file), mode | flags, None));
    add_pair(thread, to, [end(reader, abi::O_RDONLY), end(writer, abi::O_WRONLY)], flags)
}

/// Returns which limits of pipes hold for a program.
pub fn rights_to_pipes(own: &Credentials) -> Rights {
    let may_be_large = own.has(abi::CAP_SYS_RESOURCE);
    Rights { may_be_large, may_be_many: may_be_large || own.has(abi::CAP_SYS_ADMIN) }
}

/// Implements `memfd_create`.
pub fn memfd_create(thread: &Arc<Thread>, name: u64, flags: u64) -> Answer {
    let flags = flags as u32;
    let huge = flags & abi::MFD_HUGETLB != 0;
    let sizes = if huge { abi::MFD_HUGETLB | abi::MFD_HUGE_MASK << abi::MFD_HUGE_SHIFT } else { 0 };
    let known = sizes | abi::MFD_CLOEXEC | abi::MFD_ALLOW_SEALING | abi::MFD_NOEXEC_SEAL | abi::MFD_EXEC;
    if flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    let name = super::program::read_string(&thread.memory(), name, 250).map_err(|error| match error {
        Errno::ENAMETOOLONG => Errno::EINVAL,
        other => other,
    })?;
    if huge && !super::memory::is_huge_size(flags >> abi::MFD_HUGE_SHIFT) {
        return Err(Errno::ENODEV);
    }
    let shown = [b"/memfd:".as_slice(), &name, b" (deleted)"].concat();
    let who = thread.credentials().file_credentials();
    let node = files::memfd(&who, flags & (abi::MFD_ALLOW_SEALING | abi::MFD_NOEXEC_SEAL) != 0, huge)?;
    let file = node.clone().open(abi::O_RDWR)?;
    let open = Arc::new(Open::new(node, Some(file), abi::O_RDWR, Some(Name::Shown(shown.into()))));
    add(thread, open, if flags & abi::MFD_CLOEXEC != 0 { abi::O_CLOEXEC } else { 0 })
}

/// Implements `userfaultfd`.
pub fn userfaultfd(thread: &Thread, flags: u64) -> Answer {
    let flags = flags as u32;
    if flags & abi::UFFD_USER_MODE_ONLY == 0 && !proc::permits_userfaultfd() {
        thread.credentials().needs(abi::CAP_SYS_PTRACE)?;
    }
    uffd::create(thread, flags)
}

/// Implements `eventfd2`.
pub fn eventfd(thread: &Thread, count: u64, flags: u64) -> Answer {
    const SEMAPHORE: u32 = 1;
    let flags = flags as u32;
    if flags & !(SEMAPHORE | abi::O_CLOEXEC | abi::O_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let event = Arc::new(Event::new(count as u32, flags & SEMAPHORE != 0));
    add(thread, device::open(event, abi::O_RDWR | flags & abi::O_NONBLOCK), flags)
}
