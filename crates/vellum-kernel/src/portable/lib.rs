//! The portable half of the reference kernel: what a kernel for Linux programs needs besides the
//! engine and a machine. Its tests run on the host (`cargo test -p vellum-kernel --lib`); the
//! program in `src/machine/main.rs` ties it to the machine.
//!
//! To block is to await: a function that may block is asynchronous, or returns
//! [`errno::Errno::EAGAIN`] and names the [`wait::Queue`] to wait on. No spin lock is held across
//! an await; a lock that has to be is a [`sleeplock::SleepLock`].
//!
//! A module imports only from modules above it in this table:
//!
//! | module | contents |
//! |---|---|
//! | [`errno`] | Linux's error numbers |
//! | [`capabilities`] | the superuser's privileges, one by one |
//! | [`uname`] | the names that the system reports for itself |
//! | [`tags`] | TLB tags (PCID, ASID): which translations a TLB keeps |
//! | [`wait`] | wait queues |
//! | [`seccomp`] | filters of system calls |
//! | [`siginfo`] | the information that comes with a signal |
//! | [`ptrace`] | what a tracer asks for and is told |
//! | [`sleeplock`] | a lock that is held across awaits (Linux: `struct mutex`) |
//! | [`stdio`] | the stdio channel to the host |
//! | [`sectors`] | transfers of a disk's sectors |
//! | [`nodes`] | NUMA nodes |
//! | [`boot`] | boot information: memory, command line, initramfs |
//! | [`acpi`], [`devicetree`], [`pvh`] | the loaders' forms of the boot information |
//! | [`fs`] | VFS, tmpfs, pseudo file systems, special files |
//! | [`net`] | sockets |
//! | [`parse`] | texts that programs write to `/proc`, `/sys` and mount options |
//! | [`credentials`] | users, groups and capabilities of a thread |
//! | [`ipc`] | System V IPC objects |
//! | [`keys`] | the protection keys of an address space |
//! | [`exec`] | ELF segments, and the initial stack |
//! | [`proc`] | the texts of `/proc` and `/sys` |
//! | `fuzz` | fuzz targets for the parsers |

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, fuzzing))]
extern crate std;

pub mod acpi;
pub mod boot;
pub mod capabilities;
pub mod credentials;
pub mod devicetree;
pub mod errno;
pub mod exec;
pub mod fs;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod ipc;
pub mod keys;
pub mod net;
pub mod nodes;
pub mod parse;
pub mod proc;
pub mod ptrace;
pub mod pvh;
pub mod seccomp;
pub mod sectors;
pub mod siginfo;
pub mod sleeplock;
pub mod stdio;
pub mod tags;
#[cfg(any(test, fuzzing))]
#[cfg_attr(not(test), allow(dead_code, reason = "a fuzz target needs a part of it"))]
mod testing;
pub mod uname;
pub mod wait;
