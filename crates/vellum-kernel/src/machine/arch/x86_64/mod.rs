//! x86-64, on a PC. Besides the modules that each architecture has:
//!
//! | file | contents |
//! |---|---|
//! | `boot/pvh` | the loader's information: memory map, command line, initial archive |
//! | `ioapic` | device interrupts |

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
mod ioapic;
pub mod irq;
pub mod layout;
pub mod manual;
pub mod paging;
pub mod ports;
pub mod trap;
mod user;

pub use boot::secondary;
pub use user::{abi, extended_state, frame, keys, regset};
