//! The types in which the architectures and the layers above tell each other why user mode was
//! left, and how a signal's handler begins.

use vellum::space::Access;
use vellum_kernel::errno::Errno;

/// Why user mode was left.
pub enum Trap {
    /// For a system call of this number.
    SystemCall(u64),
    /// A touch of this address.
    PageFault(u64, Access),
    /// Another exception.
    Exception(Raised),
    /// An interrupt, which has been served.
    Interrupt,
}

/// The signal that an exception is to a program.
#[derive(Clone, Copy, Debug)]
pub struct Raised {
    /// Its number.
    pub signal: u32,
    /// What `si_code` says.
    pub code: i32,
    /// What `si_addr` says.
    pub address: u64,
}

/// A program's memory, as `frame` reads and writes it.
pub trait UserMemory {
    /// Copies from user memory.
    ///
    /// # Errors
    ///
    /// `EFAULT`: not all of it may be read.
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Errno>;

    /// Copies to user memory.
    ///
    /// # Errors
    ///
    /// `EFAULT`: not all of it may be written.
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno>;
}

/// A signal's handler, and what its frame says.
pub struct Handler {
    /// The signal.
    pub signal: u32,
    /// Its `siginfo_t`.
    pub info: [u8; 128],
    /// The address of the handler.
    pub address: u64,
    /// Where the handler returns to, if the program has said so (`SA_RESTORER`).
    pub restorer: Option<u64>,
    /// The signals that are blocked again after the handler.
    pub mask: u64,
    /// The address below which the frame ends.
    pub top: u64,
    /// The alternate signal stack: address and length.
    pub signal_stack: [u64; 2],
    /// The `SS_` flags of that stack.
    pub stack_flags: u64,
    /// The address of the last page fault.
    pub fault_address: u64,
}
