//! The processor and the machine: all that another architecture replaces, and what is alike in all of them.
//!
//! Each architecture has the same modules, from which the rest of the kernel uses the same names:
//!
//! | module | story |
//! |---|---|
//! | `boot` | from the first instruction to [`crate::start`], and what the loader says |
//! | `percpu` | where a processor finds what is its own |
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
//! | `frame` | what a signal's handler finds on its stack |
//! | `held` | what a processor holds of a thread beside the general registers |
//! | `clock` | time |
//! | `ports` | the serial ports |
//! | `devices` | where the machine has other devices |
//! | `mod@exit` | how the machine stops |
//! | `cpuinfo` | what the processor says of itself |
//! | `calls` | the system calls that no other has |
//! | `abi` | names and numbers that programs know the architecture by |
//!
//! [`access`], [`hooks`], [`pci`], [`serial`] and [`stack`] are common to them.

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub mod access;
pub mod hooks;
pub mod pci;
pub mod serial;
pub mod stack;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use self::aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use self::x86_64::*;
use vellum::space::Access;

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
