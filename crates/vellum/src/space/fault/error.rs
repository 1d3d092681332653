//! The results of faults: accesses, errors, and events for a userfaultfd.

use crate::errno::Errno;
use crate::frame::TooManyReferences;
use crate::memcg::{Refused, may_be_refused};
use crate::page_cache::ObjectError;
use crate::vma::UffdId;

/// An access of user mode.
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
    /// It needed no input (`pgfault`, but not `pgmajfault`).
    Minor,
    /// It read contents from a swap device (`pgmajfault`).
    Major,
}

/// The reason why a fault can't be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// Nothing is mapped there (Linux: SIGSEGV, `SEGV_MAPERR`).
    Unmapped(u64),
    /// The VMA or a guard forbids the access (SIGSEGV, `SEGV_ACCERR`).
    Denied(u64),
    /// The object behind the VMA ends before that page (SIGBUS, `BUS_ADRERR`).
    BeyondEnd(u64),
    /// The contents were lost (SIGBUS).
    Poisoned(u64),
    /// The folio there has as many references and mappings as it may (SIGBUS).
    TooManyReferences(u64),
    /// The machine has no memory left.
    NoMemory(Refused),
    /// A userfaultfd is to be notified. When it has resolved the event, the access may be tried
    /// again.
    Uffd(UffdEvent),
}

impl FaultError {
    /// Returns the error of a system call whose argument points there.
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
            FaultError::Unmapped(addr) => write!(f, "nothing is mapped at {addr:#x}"),
            FaultError::Denied(addr) => write!(f, "access to {addr:#x} is not allowed"),
            FaultError::BeyondEnd(addr) => write!(f, "the object mapped at {addr:#x} ends before that address"),
            FaultError::Poisoned(addr) => write!(f, "the contents of {addr:#x} were lost"),
            FaultError::TooManyReferences(addr) => write!(f, "{addr:#x}: {TooManyReferences}"),
            FaultError::NoMemory(why) => why.fmt(f),
            FaultError::Uffd(watched) => write!(f, "{:#x} waits for a userfaultfd", watched.page),
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
            ObjectError::TooManyReferences => FaultError::TooManyReferences(addr),
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
    /// The access that faulted.
    pub access: Access,
    /// The reason why the access has to wait.
    pub mode: UffdMode,
}

/// The registration mode that an access has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UffdMode {
    /// The page is missing (`UFFDIO_REGISTER_MODE_MISSING`).
    Missing,
    /// The page is write-protected, and the access writes (`UFFDIO_REGISTER_MODE_WP`).
    Write,
}
