//! The system calls.
//!
//! | file | story |
//! |---|---|
//! | `table` | the table of all system calls: numbers, how much there is of each, what carries it out |
//! | `legacy` | those that x86-64 alone has |
//! | [`memory`] | `mmap` and its kin |
//! | [`remote`] | other processes' memory |
//! | [`pieces`] | calls that take long |
//! | [`mod@file`] | descriptors |
//! | [`nameless`] | files that are made without a name |
//! | [`mod@select`] | waiting for one of a set of files |
//! | [`mod@lock`] | locks on files |
//! | [`path`] | files by name |
//! | [`mod@mount`] | what is mounted where |
//! | [`swap`] | what swap is in use |
//! | [`program`] | programs: into memory, and `execve` |
//! | [`process`] | processes and threads |
//! | [`wait`] | waiting for children |
//! | [`pidfd`] | descriptors of processes |
//! | [`identity`] | users, groups, capabilities |
//! | [`schedule`] | who runs where and how soon, for those who ask |
//! | [`shm`] | System V shared memory |
//! | [`signal`] | signals |
//! | [`futex`] | waiting for a word of memory |
//! | [`pi`] | locks whose word names their owner |
//! | [`clock`] | clocks, and sleeping |
//! | [`timer`] | timers |
//! | [`policy`] | which node memory comes from |
//! | [`prctl`] | what a program says about itself |
//! | [`misc`] | who and what a program is, what it may have, and chance |

pub mod clock;
pub mod file;
pub mod futex;
pub mod identity;
#[cfg(target_arch = "x86_64")]
mod legacy;
pub mod lock;
pub mod memory;
pub mod misc;
pub mod mount;
pub mod nameless;
pub mod path;
pub mod pi;
pub mod pidfd;
pub mod pieces;
pub mod policy;
pub mod prctl;
pub mod process;
pub mod program;
pub mod remote;
pub mod schedule;
pub mod select;
pub mod shm;
pub mod signal;
pub mod swap;
mod table;
pub mod timer;
pub mod wait;

use crate::task::Thread;
use crate::task::run::{Restart, SystemCalls};
use alloc::sync::Arc;
use vellum_kernel::errno::Errno;

/// What a system call answers.
pub type Answer = Result<u64, Errno>;

/// The system calls, as the task layer makes them.
pub struct Calls;

impl SystemCalls for Calls {
    fn call(thread: &Arc<Thread>, number: u64, arguments: [u64; 6]) -> impl Future<Output = Answer> + Send {
        table::call(thread, number, arguments)
    }

    fn restarts(number: u64) -> Restart {
        table::restarts(number)
    }

    fn thread_ends(thread: &Arc<Thread>) {
        process::thread_ends(thread);
    }
}
