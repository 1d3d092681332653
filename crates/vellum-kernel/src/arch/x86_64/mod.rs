//! x86-64: all that another architecture replaces.
//!
//! | file | story |
//! |---|---|
//! | [`boot`] | from the first instruction to 64-bit code at the kernel's address |
//! | [`pvh`] | what the loader says: memory map, command line, first files |
//! | [`percpu`] | what a processor calls its own |
//! | [`cpu`] | segments, protections, access to user memory |
//! | [`smp`] | the other processors |
//! | [`paging`] | the kernel half of every address space |
//! | [`trap`] | exceptions and interrupts |
//! | [`entry`] | into user mode and back |
//! | [`frame`] | what a signal's handler finds on its stack |
//! | [`vector`] | the vector registers |
//! | [`apic`] | the timer, and interrupts between processors |
//! | [`ioapic`] | devices' interrupts |
//! | [`clock`] | time |
//! | [`serial`] | the console, and the wire to the host |
//! | [`mod@exit`] | how the machine stops |

pub mod apic;
pub mod boot;
pub mod clock;
pub mod cpu;
pub mod cpuinfo;
pub mod entry;
pub mod exit;
pub mod frame;
pub mod ioapic;
pub mod paging;
pub mod percpu;
pub mod pvh;
pub mod serial;
pub mod smp;
pub mod trap;
pub mod vector;
