//! Types shared by the architectures and the layers above: the reasons for leaving user mode, and
//! the parameters of a signal frame.

use vellum::space::Access;
use vellum_kernel::errno::Errno;

/// The reason for which user mode was left.
pub enum Trap {
    /// A system call with this number.
    SystemCall(u64),
    /// A page fault at this address.
    PageFault(u64, Access),
    /// Any other exception.
    Exception(Raised),
    /// An interrupt, which has already been served.
    Interrupt,
}

/// The signal that an exception raises in the program.
#[derive(Clone, Copy, Debug)]
pub struct Raised {
    /// The signal's number.
    pub signal: u32,
    /// The value of `si_code`.
    pub code: i32,
    /// The value of `si_addr`.
    pub address: u64,
}

/// The user memory that `frame` reads and writes.
pub trait UserMemory {
    /// Copies from user memory.
    ///
    /// # Errors
    ///
    /// `EFAULT`: part of the range is not readable.
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Errno>;

    /// Copies to user memory.
    ///
    /// # Errors
    ///
    /// `EFAULT`: part of the range is not writable.
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno>;
}

/// A signal handler and the contents of its frame.
pub struct Handler {
    /// The signal.
    pub signal: u32,
    /// Its `siginfo_t`.
    pub info: [u8; 128],
    /// The address of the handler.
    pub address: u64,
    /// The address to which the handler returns: the one that the program has set (`SA_RESTORER`),
    /// or that of the vDSO, if it has one.
    pub restorer: Option<u64>,
    /// The signal mask to restore after the handler.
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
