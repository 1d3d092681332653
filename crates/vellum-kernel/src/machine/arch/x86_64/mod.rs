//! x86-64, on a PC. Beside what each architecture has:
//!
//! | file | story |
//! |---|---|
//! | [`pvh`] | what the loader says: memory map, command line, first files |
//! | [`ioapic`] | devices' interrupts |

pub mod abi;
pub mod boot;
pub mod caches;
pub mod clock;
pub mod cpu;
pub mod cpuinfo;
pub mod devices;
pub mod entry;
pub mod entry_state;
pub mod exit;
pub mod frame;
pub mod held;
pub mod interrupts;
mod ioapic;
pub mod irq;
pub mod manual;
pub mod paging;
pub mod ports;
mod pvh;
pub mod smp;
mod touch;
pub mod trap;
