//! The portable half of the reference kernel: what a kernel for Linux programs needs beside the
//! engine and a machine. It runs under the host's tests (`cargo test -p vellum-kernel --lib`); the
//! program (`src/machine/main.rs`) ties it to the machine.
//!
//! To block is to await: what may block here is either asynchronous, or answers
//! [`errno::Errno::EAGAIN`] and names the [`wait::Queue`] to wait at. No spin lock is held across
//! an await; what must be is a [`turns::Turn`].

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
