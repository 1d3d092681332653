//! AArch64, on QEMU's machine `virt`: GICv3, PSCI, generic timer, PL011. Beside what each architecture has:
//!
//! | file | story |
//! |---|---|
//! | `boot/devicetree` | what the machine says of itself |
//! | `memcpy` | moves of large values |
//! | `register` | system registers |
//! | `vectors` | where exceptions begin |

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
mod memcpy;
pub mod paging;
pub mod ports;
pub mod trap;
mod user;
mod vectors;

pub use boot::secondary;
pub use user::{abi, frame, held};
