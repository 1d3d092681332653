//! The results of faults: accesses, errors, and events for a userfaultfd.

use crate::errno::Errno;
use crate::frame::TooManyReferences;
use crate::memcg::{Refused, may_be_refused};
use crate::page_cache::ObjectError;
use crate::platform::PendingPage;
use crate::vma::UffdId;

/// An access by user mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Execute.
    Exec,
}

/// The cost of a resolved fault, as Linux counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// It read nothing from a device (`pgfault`, but not `pgmajfault`).
    Minor,
    /// It read contents from a swap device (`pgmajfault`).
    Major,
}

/// The reason why a fault can't be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// There is no VMA at this address (Linux: SIGSEGV, `SEGV_MAPERR`).
    Unmapped(u64),
    /// The VMA, or a guard page, forbids the access to this address (SIGSEGV, `SEGV_ACCERR`).
    Denied(u64),
    /// The page-cache object behind the VMA ends before the page at this address (SIGBUS,
    /// `BUS_ADRERR`).
    BeyondEnd(u64),
    /// The pool of huge pages has none for the page at this address (SIGBUS, `BUS_ADRERR`).
    NoHugePage(u64),
    /// The contents of the page at this address were lost (SIGBUS).
    Poisoned(u64),
    /// The folio at this address has the maximum number of references (SIGBUS).
    TooManyReferences(u64),
    /// The machine is out of memory, or a memcg is at its limit.
    NoMemory(Refused),
    /// A userfaultfd must resolve this event; then the access may be tried again.
    Uffd(UffdEvent),
    /// The host is reading the page, or a page that this access needs first. The thread waits until
    /// the request with the page has ended
    /// ([`ReadRequest::has`](crate::platform::ReadRequest::has)); then the access may be tried
    /// again. If the page could not be read, the host ends the access (SIGBUS, `BUS_ADRERR`).
    Pending(PendingPage),
}

impl FaultError {
    /// Returns the error number of a system call that meets this fault at a pointer of its caller.
    pub const fn errno(&self) -> Errno {
        match self {
            FaultError::NoMemory(_) | FaultError::TooManyReferences(_) => Errno::ENOMEM,
            _ => Errno::EFAULT,
        }
    }
}

impl core::fmt::Display for FaultError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            FaultError::Unmapped(addr) => write!(f, "no VMA at {addr:#x}: map the address first"),
            FaultError::Denied(addr) => {
                write!(
                    f,
                    "the VMA or a guard page at {addr:#x} forbids the access: change its protection or remove the guard"
                )
            }
            FaultError::BeyondEnd(addr) => {
                write!(f, "the page-cache object mapped at {addr:#x} ends before that page: extend the object")
            }
            FaultError::NoHugePage(addr) => {
                write!(f, "the pool has no huge page for the page at {addr:#x}: raise vm.nr_hugepages")
            }
            FaultError::Poisoned(addr) => {
                write!(f, "the contents of the page at {addr:#x} were lost: unmap the page or map it anew")
            }
            FaultError::TooManyReferences(addr) => write!(f, "{addr:#x}: {TooManyReferences}"),
            FaultError::NoMemory(why) => why.fmt(f),
            FaultError::Uffd(event) => write!(
                f,
                "the page at {:#x} waits for a userfaultfd: retry the access once it has resolved the event",
                event.page
            ),
            FaultError::Pending(page) => page.fmt(f),
        }
    }
}

impl core::error::Error for FaultError {}

may_be_refused!(FaultError);

impl FaultError {
    /// Returns the error of a fault at `addr` for an error of the page-cache object there.
    pub(in crate::space) fn of_object(error: ObjectError, addr: u64) -> Self {
        match error {
            ObjectError::Lost => FaultError::Poisoned(addr),
            ObjectError::NoMemory(why) => FaultError::NoMemory(why),
            ObjectError::NoHugePage => FaultError::NoHugePage(addr),
            ObjectError::TooManyReferences => FaultError::TooManyReferences(addr),
            ObjectError::Pending(page) => FaultError::Pending(page),
            _ => FaultError::NoMemory(Refused::OutOfMemory),
        }
    }
}

/// An access that a userfaultfd is to be notified of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UffdEvent {
    /// The userfaultfd.
    pub uffd: UffdId,
    /// The address of the page.
    pub page: u64,
    /// The address of the access, in the page.
    pub addr: u64,
    /// The access that faulted.
    pub access: Access,
    /// The reason why the access has to wait.
    pub mode: UffdMode,
}

/// The mode of a userfaultfd registration that makes an access wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UffdMode {
    /// The page is missing (`UFFDIO_REGISTER_MODE_MISSING`).
    Missing,
    /// The page's object has it, and no PTE maps it (`UFFDIO_REGISTER_MODE_MINOR`).
    Minor,
    /// The page is write-protected, and the access writes (`UFFDIO_REGISTER_MODE_WP`).
    Write,
}
