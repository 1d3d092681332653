//! The hardware layer: the modules that each architecture implements, and those that all share.
//!
//! Each architecture has the same modules with the same public names:
//!
//! | module | contents |
//! |---|---|
//! | `boot` | from the first instruction to [`kernel_start`](crate::kernel_start); the loader's information |
//! | `entry_state` | the entry code's part of the per-CPU record, and the register that holds the record's address |
//! | `cpu` | CPU features and protections, access to user memory |
//! | `interrupts` | masking interrupts and waiting for one |
//! | `irq` | the interrupt controller and the timer |
//! | `secondary` | starting the other CPUs |
//! | `layout` | the addresses of the kernel half |
//! | `caches` | zeroing and copying memory; instruction cache synchronization |
//! | `paging` | the kernel half of every address space, TLB flushes, the page-table format of the user half |
//! | `manual` | decoding page-table entries independently of the engine, after the architecture manual |
//! | `trap` | exceptions and interrupts |
//! | `touch` | the instructions that access user memory |
//! | `entry` | entering user mode and returning |
//! | `frame` | the signal frame on the user stack |
//! | `regset` | the registers of a traced thread |
//! | `extended_state` | a thread's FPU, vector and TLS registers |
//! | `keys` | protection keys |
//! | `clock` | the clock |
//! | `ports` | the serial ports |
//! | `devices` | the addresses of other devices |
//! | `mod@exit` | stopping the machine |
//! | `cpuinfo` | the CPU's identification, for `/proc/cpuinfo` |
//! | `abi` | architecture names and constants of the user ABI |
//!
//! [`access`], [`backtrace`], [`cause`], [`hooks`], [`kernel_map`], [`pci`], [`percpu`],
//! [`random`], [`serial`], [`smp`], [`stack`], [`types`] and [`vmalloc`] are common to them.
//!
//! This is the lowest layer. It calls the layers above through hooks ([`hooks`]), through a trait
//! that they implement ([`types::UserMemory`]), and, for the kernel's first Rust code, through the
//! symbol `kernel_start`.

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub mod access;
pub mod backtrace;
pub mod cause;
pub mod hooks;
pub mod kernel_map;
pub mod pci;
pub mod percpu;
pub mod random;
pub mod serial;
pub mod smp;
pub mod stack;
pub mod types;
pub mod vmalloc;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use self::aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use self::x86_64::*;
