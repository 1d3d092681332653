//! The processor and the machine: all that another architecture replaces, and what is alike in all
//! of them.
//!
//! Each architecture has the same modules, from which the rest of the kernel uses the same names:
//!
//! | module | story |
//! |---|---|
//! | `boot` | from the first instruction to [`kernel_start`](crate::kernel_start), and what the loader says |
//! | `entry_state` | the entry code's part of the per-CPU record, and how a CPU finds that record |
//! | `cpu` | protections, access to user memory |
//! | `interrupts` | whether they come, and waiting for one |
//! | `irq` | the interrupt controller and the timer |
//! | `secondary` | starting the other processors |
//! | `layout` | where the kernel half has what |
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
//! [`access`], [`backtrace`], [`hooks`], [`kernel_map`], [`pci`], [`percpu`], [`random`],
//! [`serial`], [`smp`], [`stack`] and [`types`] are common to them.
//!
//! This is the lowest layer. What it needs of those above comes by a hook ([`hooks`]), by a trait
//! that they implement ([`types::UserMemory`]), or, for the first Rust code of the kernel, by the
//! symbol `kernel_start`.

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub mod access;
pub mod backtrace;
pub mod hooks;
pub mod kernel_map;
pub mod pci;
pub mod percpu;
pub mod random;
pub mod serial;
pub mod smp;
pub mod stack;
pub mod types;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use self::aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use self::x86_64::*;
