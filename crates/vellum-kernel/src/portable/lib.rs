//! The portable half of the reference kernel: what a kernel for Linux programs needs besides the
//! engine and a machine. Its tests run on the host (`cargo test -p vellum-kernel --lib`); the
//! program in `src/machine/main.rs` ties it to the machine.
//!
//! To block is to await: a function that may block is asynchronous, or returns
//! [`errno::Errno::EAGAIN`] and names the [`wait::Queue`] to wait on. No spin lock is held across
//! an await; a lock that has to be is a [`sleeplock::SleepLock`].

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
#[cfg(test)]
mod layers;
pub mod nodes;
pub mod parse;
pub mod proc;
pub mod pvh;
pub mod sleeplock;
pub mod stdio;
pub mod tags;
#[cfg(any(test, fuzzing))]
#[cfg_attr(not(test), allow(dead_code, reason = "a fuzz target needs a part of it"))]
mod testing;
pub mod uname;
pub mod wait;
