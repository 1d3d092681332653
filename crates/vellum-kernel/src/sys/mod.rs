//! The system calls.
//!
//! | file | story |
//! |---|---|
//! | [`memory`] | `mmap` and its kin |
//! | [`mod@file`] | descriptors |
//! | [`process`] | programs begin, and end |
//! | [`misc`] | who and where a program is |

pub mod file;
pub mod memory;
pub mod misc;
pub mod process;

use crate::println;
use crate::task::Thread;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as nr;
use vellum_kernel::errno::Errno;

/// What a system call answers.
pub type Answer = Result<u64, Errno>;

/// Carries out a system call.
pub async fn call(thread: &Arc<Thread>, number: u64, a: [u64; 6]) -> Answer {
    match number as u32 {
        nr::__NR_mmap => memory::mmap(thread, a),
        nr::__NR_munmap => memory::munmap(thread, a[0], a[1]),
        nr::__NR_mprotect => memory::mprotect(thread, a[0], a[1], a[2]),
        nr::__NR_madvise => memory::madvise(thread, a[0], a[1], a[2]),
        nr::__NR_mincore => memory::mincore(thread, a[0], a[1], a[2]),
        nr::__NR_brk => memory::brk(thread, a[0]),
        nr::__NR_read => file::read(thread, a[0], a[1], a[2]).await,
        nr::__NR_write => file::write(thread, a[0], a[1], a[2]),
        nr::__NR_writev => file::writev(thread, a[0], a[1], a[2]),
        nr::__NR_ioctl => file::ioctl(a[0]),
        nr::__NR_exit => process::exit(thread, a[0]),
        nr::__NR_exit_group => process::exit_group_call(thread, a[0]),
        nr::__NR_arch_prctl => process::arch_prctl(thread, a[0], a[1]),
        nr::__NR_set_tid_address => process::set_tid_address(thread, a[0]),
        nr::__NR_getpid => Ok(thread.process.pid.into()),
        nr::__NR_gettid => Ok(thread.tid.into()),
        nr::__NR_getuid | nr::__NR_geteuid | nr::__NR_getgid | nr::__NR_getegid => Ok(0),
        nr::__NR_uname => misc::uname(thread, a[0]),
        nr::__NR_getrandom => misc::getrandom(thread, a[0], a[1]),
        nr::__NR_clock_gettime => misc::clock_gettime(thread, a[0], a[1]),
        nr::__NR_nanosleep => misc::nanosleep(thread, a[0]).await,
        nr::__NR_sched_yield => {
            crate::task::executor::give_way().await;
            Ok(0)
        }
        // A C library asks for these and is content without them.
        nr::__NR_rseq | nr::__NR_set_robust_list | nr::__NR_prlimit64 | nr::__NR_readlink => Err(Errno::ENOSYS),
        _ => absent(number),
    }
}

/// Says once of each that there is no such system call.
#[cold]
fn absent(number: u64) -> Answer {
    static SAID: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
    if let Some(word) = SAID.get((number / 64) as usize)
        && word.fetch_or(1 << (number % 64), Ordering::Relaxed) >> (number % 64) & 1 == 0
    {
        println!("system call {number} is absent");
    }
    Err(Errno::ENOSYS)
}
