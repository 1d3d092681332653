//! Implements Linux's system calls: one module per subject, and one table that dispatches to them.
//!
//! | file | subject |
//! |---|---|
//! | `table` | the system-call table: numbers, support level, restart rule, handler |
//! | `legacy` | calls that only x86-64 has |
//! | [`memory`] | `mmap`, `mremap`, `madvise`, `mlock`, `mincore`, `brk` |
//! | [`keys`] | `mprotect`, protection keys |
//! | [`poison`] | `MADV_HWPOISON` |
//! | [`remote`] | `process_vm_readv`, `process_vm_writev`, `process_madvise` |
//! | [`pieces`] | long calls that run piece by piece |
//! | [`transfer`] | reads and writes, and copies from file to file |
//! | [`splice`] | `splice`, `tee`, `vmsplice`: bytes through pipes |
//! | [`mod@file`] | file descriptors: `fcntl`, `close` and the like |
//! | [`size`] | sizes and storage of files: `truncate`, `fallocate` |
//! | [`anon_inode`] | files without a path: pipes, memfds, userfaultfds, eventfds |
//! | [`mod@select`] | `select` and `poll` |
//! | [`epoll`] | `epoll` |
//! | [`inotify`] | `inotify` |
//! | [`terminal`] | terminals |
//! | [`mod@lock`] | `flock` and record locks |
//! | [`socket`] | sockets: names, connections, options |
//! | [`interface`] | network interfaces |
//! | [`message`] | sending and receiving |
//! | [`path`] | calls that take a path |
//! | [`xattr`] | extended attributes |
//! | [`mod@mount`] | `mount` and `umount2` |
//! | [`swap`] | `swapon` and `swapoff` |
//! | [`program`] | program loading and `execve` |
//! | [`process`] | `clone`, `exit`, process groups and sessions |
//! | `dump` | core files |
//! | [`wait`] | `wait4` and `waitid` |
//! | [`pidfd`] | pidfds |
//! | [`mod@kcmp`] | `kcmp` |
//! | [`identity`] | user IDs, group IDs, capabilities |
//! | [`schedule`] | scheduling class, priority, affinity |
//! | [`shm`] | System V shared memory |
//! | [`signal`] | signals |
//! | [`futex`] | futexes |
//! | [`pi`] | priority-inheritance futexes |
//! | [`clock`] | clocks and sleeping |
//! | [`timer`] | interval timers and POSIX timers |
//! | [`signalfd`] | files from which signals are read |
//! | [`timerfd`] | timers that are files |
//! | [`policy`] | NUMA memory policy |
//! | [`prctl`] | `prctl` |
//! | [`seccomp`] | filters of system calls |
//! | [`mod@ptrace`] | tracing |
//! | [`misc`] | `uname`, `prlimit64`, `getrusage`, `membarrier`, `getrandom` and the like |

pub mod anon_inode;
pub mod clock;
mod dump;
pub mod epoll;
pub mod file;
pub mod futex;
pub mod identity;
pub mod inotify;
pub mod interface;
pub mod kcmp;
pub mod keys;
#[cfg(target_arch = "x86_64")]
mod legacy;
pub mod lock;
pub mod memory;
pub mod message;
pub mod misc;
pub mod mount;
pub mod path;
pub mod pi;
pub mod pidfd;
pub mod pieces;
pub mod poison;
pub mod policy;
pub mod prctl;
pub mod process;
pub mod program;
pub mod ptrace;
pub mod remote;
pub mod schedule;
pub mod seccomp;
pub mod select;
pub mod shm;
pub mod signal;
pub mod signalfd;
pub mod size;
pub mod socket;
pub mod splice;
pub mod swap;
pub mod sync;
mod table;
pub mod terminal;
pub mod timer;
pub mod timerfd;
pub mod transfer;
pub mod wait;
pub mod xattr;

use crate::task::Thread;
use crate::task::run::{Restart, SystemCalls};
use crate::task::trace;
use alloc::boxed::Box;
use alloc::sync::Arc;
use vellum_kernel::errno::Errno;
use vellum_kernel::siginfo::Info;

/// The result of a system call: the value for the return register, or the error number.
pub type Answer = Result<u64, Errno>;

/// The system calls, as the task layer dispatches them.
pub struct Calls;

impl SystemCalls for Calls {
    fn call(thread: &Arc<Thread>, number: u64, arguments: [u64; 6]) -> impl Future<Output = Answer> + Send {
        table::call(thread, number, arguments)
    }

    async fn check(thread: &Arc<Thread>, number: u64) -> Option<u64> {
        let number = if thread.is_traced() { trace::call_begins(thread, number).await? } else { number };
        seccomp::permits(thread, number).await
    }

    async fn dump_core(thread: &Arc<Thread>, info: &Info) -> bool {
        // Few threads do this, so its future is no part of theirs.
        Box::pin(dump::dump_core(thread, info)).await
    }

    fn restarts(number: u64) -> Restart {
        table::restarts(number)
    }

    fn thread_ends(thread: &Arc<Thread>) {
        process::thread_ends(thread);
    }
}
