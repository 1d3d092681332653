//! AArch64, on QEMU's machine `virt`: GICv3, PSCI, generic timer, PL011. Beside what each architecture has:
//!
//! | file | story |
//! |---|---|
//! | [`devicetree`] | what the machine says of itself |
//! | [`memcpy`] | moves of large values |
//! | [`register`] | system registers |
//! | [`vectors`] | where exceptions begin |

#[macro_use]
mod register;

pub mod abi;
pub mod boot;
pub mod caches;
pub mod clock;
pub mod cpu;
pub mod cpuinfo;
pub mod devices;
mod devicetree;
pub mod entry;
pub mod entry_state;
pub mod exit;
pub mod frame;
pub mod held;
pub mod interrupts;
pub mod irq;
pub mod manual;
mod memcpy;
pub mod paging;
pub mod ports;
pub mod smp;
mod touch;
pub mod trap;
mod vectors;
