//! Counts the instructions of a kernel that QEMU's translation (TCG) executes, by cause: system
//! calls by name, page faults, interrupts, kernel threads; the idle loop and the program's own
//! instructions are counted apart.
//!
//! The shared library is a plugin for QEMU. It needs no change of the kernel: QEMU executes
//! translated blocks of instructions, and the addresses at which blocks begin show what the kernel
//! does. The library's other form is for the command that starts QEMU: it writes [`roles::Roles`]
//! for the plugin to read, and reads a [`tally::Tally`].
//!
//! | module | contents |
//! |---|---|
//! | [`tally`] | the counts by cause, and their text form |
//! | [`profile`] | the counts by address, and their text form |
//! | [`roles`] | which addresses of a kernel mean what, and their text form |
//! | [`attribution`] | follows the CPUs, and charges instructions to causes |
//! | [`plugin`] | QEMU's plugin interface |

pub mod attribution;
pub mod plugin;
pub mod profile;
pub mod roles;
pub mod tally;
