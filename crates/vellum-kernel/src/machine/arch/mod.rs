//! The processor and the machine: all that another architecture replaces, and what is alike in all of them.
//!
//! Each architecture has the same modules, from which the rest of the kernel uses the same names:
//!
//! | module | story |
//! |---|---|
//! | `boot` | from the first instruction to [`crate::start`], and what the loader says |
//! | `entry_state` | the entry code's part of the per-CPU record, and how a CPU finds that record |
//! | `cpu` | protections, access to user memory |
//! | `interrupts` | whether they come, and waiting for one |
//! | `irq` | the interrupt controller and the timer |
//! | `smp` | the other processors |
//! | `caches` | zeroing and copying memory; instructions that were written |
//! | `paging` | the kernel half of every address space; dropping translations; the format of the user half |
//! | `manual` | entries of page tables, by the processor's manual |
//! | `trap` | exceptions and interrupts |
//! | `touch` | the instructions that touch user memory |
//! | `entry` | into user mode and back |
//! | `frame` | the frame that a signal's handler finds on its stack |
//! | `held` | what a processor holds of a thread beside the general registers |
//! | `clock` | time |
//! | `ports` | the serial ports |
//! | `devices` | where the machine has other devices |
//! | `mod@exit` | how the machine stops |
//! | `cpuinfo` | what the processor says of itself |
//! | `abi` | names and numbers that programs know the architecture by |
//!
//! [`access`], [`backtrace`], [`hooks`], [`pci`], [`percpu`], [`random`], [`serial`] and [`stack`] are common to them.
//!
//! This is the lowest layer. What it needs of those above comes by a hook ([`hooks`]), by a trait that they implement
//! ([`UserMemory`]), or, for the first Rust code of the kernel, by the symbol `kernel_start`.

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub mod access;
pub mod backtrace;
pub mod hooks;
pub mod pci;
pub mod percpu;
pub mod random;
pub mod serial;
pub mod stack;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use self::aarch64::*;
use self::entry::Registers;
use self::held::Held;
#[cfg(target_arch = "x86_64")]
pub use self::x86_64::*;
use vellum::space::Access;
use vellum_kernel::errno::Errno;

unsafe extern "C" {
    /// The kernel's first Rust code, which `main` defines. `boot` calls it once, on the boot CPU's stack with interrupts
    /// off, with what the loader handed over.
    fn kernel_start(handed_over: u64) -> !;
}

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

/// A thread that is to continue in a signal's handler.
pub struct Interrupted<'a> {
    /// Its general registers.
    pub registers: &'a mut Registers,
    /// Its other registers, as saved.
    pub held: &'a Held,
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
