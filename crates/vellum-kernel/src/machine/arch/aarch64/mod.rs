//! AArch64, on QEMU's machine `virt`: GICv3, PSCI, generic timer, PL011. Besides the modules that
//! each architecture has:
//!
//! | file | contents |
//! |---|---|
//! | `boot/devicetree` | the machine's device tree |
//! | `memory` | moving and filling large values |
//! | `register` | access to system registers |
//! | `vectors` | the exception vectors |

#[macro_use]
mod register;

pub mod boot;
pub mod caches;
pub mod clock;
pub mod cpu;
pub mod cpuinfo;
pub mod devices;
pub mod entry;
pub mod entry_state;
pub mod exit;
pub mod interrupts;
pub mod irq;
pub mod layout;
pub mod manual;
mod memory;
pub mod paging;
pub mod ports;
pub mod trap;
mod user;
mod vectors;

pub use boot::secondary;
pub use user::{abi, extended_state, frame, keys, regset};
