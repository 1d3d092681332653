//! The system calls.
//!
//! | file | story |
//! |---|---|
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
pub mod timer;
pub mod wait;

use crate::arch;
use crate::println;
use crate::task::{Thread, executor};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use file::Memory;
use linux_raw_sys::general as nr;
use path::HERE;
use process::Wanted;
use vellum_kernel::calls;
use vellum_kernel::credentials::{Ids, place};
use vellum_kernel::errno::Errno;

/// What a system call answers.
pub type Answer = Result<u64, Errno>;

/// Carries out a system call.
pub async fn call(thread: &Arc<Thread>, number: u64, a: [u64; 6]) -> Answer {
    let process = &thread.process;
    match number as u32 {
        nr::__NR_mmap => memory::mmap(thread, a).await,
        nr::__NR_munmap => memory::munmap(thread, a[0], a[1]),
        nr::__NR_mprotect => memory::mprotect(thread, a[0], a[1], a[2]),
        nr::__NR_mremap => memory::mremap(thread, a),
        nr::__NR_remap_file_pages => memory::remap_file_pages(thread, a).await,
        nr::__NR_mlock => memory::mlock(thread, a[0], a[1], 0).await,
        nr::__NR_mlock2 => memory::mlock(thread, a[0], a[1], a[2]).await,
        nr::__NR_munlock => memory::munlock(thread, a[0], a[1]),
        nr::__NR_mlockall => memory::mlockall(thread, a[0]).await,
        nr::__NR_munlockall => memory::munlockall(thread),
        nr::__NR_mseal => memory::mseal(thread, a[0], a[1], a[2]),
        nr::__NR_process_vm_readv => remote::copy(thread, remote::Way::Read, a).await,
        nr::__NR_process_vm_writev => remote::copy(thread, remote::Way::Write, a).await,
        nr::__NR_process_madvise => remote::advise(thread, a).await,
        nr::__NR_madvise => memory::madvise(thread, a[0], a[1], a[2]).await,
        nr::__NR_mincore => memory::mincore(thread, a[0], a[1], a[2]).await,
        nr::__NR_msync => memory::msync(thread, a[0], a[1], a[2]),
        nr::__NR_brk => memory::brk(thread, a[0]).await,
        nr::__NR_get_mempolicy => policy::get(thread, [a[0], a[1], a[2], a[3], a[4]]),
        nr::__NR_set_mempolicy => policy::set(thread, a[0], a[1], a[2]),
        nr::__NR_mbind => policy::bind(thread, a),
        nr::__NR_shmget => shm::get(thread, a[0], a[1], a[2]),
        nr::__NR_shmat => shm::attach(thread, a[0], a[1], a[2]).await,
        nr::__NR_shmdt => shm::detach(thread, a[0]),
        nr::__NR_shmctl => shm::control(thread, a[0], a[1], a[2]),
        nr::__NR_membarrier => misc::membarrier(thread, a[0], a[1]),

        nr::__NR_read => file::read(thread, a[0], Memory::One(a[1], a[2]), None).await,
        nr::__NR_readv => file::read(thread, a[0], Memory::Many(a[1], a[2]), None).await,
        nr::__NR_pread64 => file::read(thread, a[0], Memory::One(a[1], a[2]), Some(a[3])).await,
        nr::__NR_preadv => file::read(thread, a[0], Memory::Many(a[1], a[2]), Some(a[3])).await,
        nr::__NR_write => file::write(thread, a[0], Memory::One(a[1], a[2]), None).await,
        nr::__NR_writev => file::write(thread, a[0], Memory::Many(a[1], a[2]), None).await,
        nr::__NR_pwrite64 => file::write(thread, a[0], Memory::One(a[1], a[2]), Some(a[3])).await,
        nr::__NR_pwritev => file::write(thread, a[0], Memory::Many(a[1], a[2]), Some(a[3])).await,
        nr::__NR_close => file::close(thread, a[0]),
        nr::__NR_close_range => file::close_range(thread, a[0], a[1], a[2]),
        nr::__NR_dup => file::dup(thread, a[0]),
        nr::__NR_dup3 => file::dup_to(thread, a[0], a[1], Some(a[2])),
        nr::__NR_fcntl => file::fcntl(thread, a[0], a[1], a[2]).await,
        nr::__NR_flock => lock::flock(thread, a[0], a[1]).await,
        nr::__NR_lseek => file::lseek(thread, a[0], a[1], a[2]),
        nr::__NR_ioctl => file::ioctl(thread, a[0], a[1], a[2]),
        nr::__NR_fsync => file::sync(thread, a[0]),
        nr::__NR_fdatasync => file::sync(thread, a[0]),
        nr::__NR_sync => Ok(0),
        nr::__NR_ftruncate => file::ftruncate(thread, a[0], a[1]),
        nr::__NR_fallocate => file::fallocate(thread, a[0], a[1], a[2], a[3]).await,
        nr::__NR_getdents64 => file::getdents(thread, a[0], a[1], a[2]),
        nr::__NR_pipe2 => nameless::pipe(thread, a[0], a[1]),
        nr::__NR_pselect6 => select::pselect(thread, a).await,
        nr::__NR_fadvise64 => file::advise(thread, a[0], a[2], a[3]),
        nr::__NR_ppoll => select::ppoll(thread, a).await,
        nr::__NR_cachestat => file::cachestat(thread, a[0], a[1], a[2], a[3]),
        nr::__NR_userfaultfd => nameless::userfaultfd(thread, a[0]),
        nr::__NR_eventfd2 => nameless::eventfd(thread, a[0], a[1]),
        nr::__NR_vmsplice => file::vmsplice(thread, a[0], a[1], a[2], a[3]).await,
        nr::__NR_memfd_create => nameless::memfd_create(thread, a[0], a[1]),

        nr::__NR_openat => path::open(thread, a[0], a[1], a[2], a[3]).await,
        nr::__NR_newfstatat => path::stat(thread, a[0], a[1], a[2], a[3]),
        nr::__NR_fstat => path::fstat(thread, a[0], a[1]),
        nr::__NR_statx => path::statx(thread, a),
        nr::__NR_statfs => path::statfs_at(thread, a[0], a[1]),
        nr::__NR_fstatfs => path::statfs(thread, file::open_of(thread, a[0])?.inode(), a[1]),
        nr::__NR_faccessat => path::access(thread, a[0], a[1], a[2], 0),
        nr::__NR_faccessat2 => path::access(thread, a[0], a[1], a[2], a[3]),
        nr::__NR_mkdirat => path::mkdir(thread, a[0], a[1], a[2]),
        nr::__NR_mknodat => path::mknod(thread, a[0], a[1], a[2], a[3]),
        nr::__NR_symlinkat => path::symlink(thread, a[0], a[1], a[2]),
        nr::__NR_linkat => path::link(thread, a),
        nr::__NR_unlinkat => path::unlink(thread, a[0], a[1], a[2]),
        nr::__NR_renameat => path::rename(thread, a[0], a[1], a[2], a[3], 0),
        nr::__NR_renameat2 => path::rename(thread, a[0], a[1], a[2], a[3], a[4]),
        nr::__NR_readlinkat => path::readlink(thread, a[0], a[1], a[2], a[3]),
        nr::__NR_truncate => path::truncate(thread, a[0], a[1]),
        nr::__NR_fchmodat => path::chmod(thread, a[0], a[1], a[2]),
        nr::__NR_fchmod => path::fchmod(thread, a[0], a[1]),
        nr::__NR_fchownat => path::chown(thread, a[0], a[1], a[2], a[3], a[4]),
        nr::__NR_fchown => path::fchown(thread, a[0], a[1], a[2]),
        nr::__NR_utimensat => path::utimensat(thread, a[0], a[1], a[2], a[3]),
        nr::__NR_chdir => path::chdir_to(thread, a[0]),
        nr::__NR_fchdir => path::chdir(thread, file::open_of(thread, a[0])?.inode().clone()),
        nr::__NR_getcwd => path::getcwd(thread, a[0], a[1]),
        nr::__NR_mount => mount::mount(thread, a),
        nr::__NR_umount2 => mount::unmount(thread, a[0], a[1]),
        nr::__NR_swapon => swap::on(thread, a[0], a[1]),
        nr::__NR_swapoff => swap::off(thread, a[0]),
        nr::__NR_umask => path::umask(thread, a[0]),

        nr::__NR_clone => {
            let [flags, stack, parent_tid, ..] = a;
            let [child_tid, tls] = arch::abi::child_and_thread_pointer(a);
            let exit_signal = flags as u32 & nr::CSIGNAL;
            let flags = flags & !u64::from(nr::CSIGNAL);
            let others = u64::from(nr::CLONE_PARENT_SETTID | nr::CLONE_DETACHED);
            if flags & u64::from(nr::CLONE_PIDFD) != 0 && flags & others != 0 {
                return Err(Errno::EINVAL);
            }
            let pidfd = parent_tid;
            process::clone(thread, Wanted { flags, exit_signal, stack, parent_tid, child_tid, tls, pidfd, group: None })
                .await
        }
        nr::__NR_clone3 => process::clone3(thread, a[0], a[1]).await,
        nr::__NR_execve => program::execve(thread, [HERE, a[0], a[1], a[2], 0]).await,
        nr::__NR_execveat => program::execve(thread, [a[0], a[1], a[2], a[3], a[4]]).await,
        nr::__NR_exit => process::exit(thread, a[0]),
        nr::__NR_exit_group => process::exit_group(thread, a[0]),
        nr::__NR_wait4 => wait::wait4(thread, a[0], a[1], a[2], a[3]).await,
        nr::__NR_waitid => wait::waitid(thread, a[0], a[1], a[2], a[3]).await,
        nr::__NR_pidfd_open => pidfd::pidfd_open(thread, a[0], a[1]),
        nr::__NR_pidfd_send_signal => pidfd::pidfd_send_signal(thread, a[0], a[1], a[2], a[3]),
        nr::__NR_pidfd_getfd => pidfd::pidfd_getfd(thread, a[0], a[1], a[2]),
        nr::__NR_process_mrelease => pidfd::process_mrelease(thread, a[0], a[1]).await,
        nr::__NR_getpid => Ok(process.pid.into()),
        nr::__NR_gettid => Ok(thread.tid.into()),
        nr::__NR_getppid => Ok(process.parent_pid().into()),
        nr::__NR_getpgid => Ok(process::process_of(thread, a[0])?.group.load(Ordering::Relaxed).into()),
        nr::__NR_getsid => Ok(process::process_of(thread, a[0])?.session.load(Ordering::Relaxed).into()),
        nr::__NR_setpgid => process::setpgid(thread, a[0], a[1]),
        nr::__NR_setsid => process::setsid(thread),

        nr::__NR_getuid => Ok(thread.credentials().uids[place::REAL].into()),
        nr::__NR_geteuid => Ok(thread.credentials().uids[place::EFFECTIVE].into()),
        nr::__NR_getgid => Ok(thread.credentials().gids[place::REAL].into()),
        nr::__NR_getegid => Ok(thread.credentials().gids[place::EFFECTIVE].into()),
        nr::__NR_getresuid => identity::get(thread, thread.credentials().uids, [a[0], a[1], a[2]]),
        nr::__NR_getresgid => identity::get(thread, thread.credentials().gids, [a[0], a[1], a[2]]),
        nr::__NR_setuid => identity::set_users(thread, Ids::All(a[0] as u32)),
        nr::__NR_setreuid => identity::set_users(thread, Ids::Two(a[0] as u32, a[1] as u32)),
        nr::__NR_setresuid => identity::set_users(thread, Ids::Three(a[0] as u32, a[1] as u32, a[2] as u32)),
        nr::__NR_setgid => identity::set_groups(thread, Ids::All(a[0] as u32)),
        nr::__NR_setregid => identity::set_groups(thread, Ids::Two(a[0] as u32, a[1] as u32)),
        nr::__NR_setresgid => identity::set_groups(thread, Ids::Three(a[0] as u32, a[1] as u32, a[2] as u32)),
        nr::__NR_setfsuid => identity::change(thread, |own| Ok(own.set_file_user(a[0] as u32).into())),
        nr::__NR_setfsgid => identity::change(thread, |own| Ok(own.set_file_group(a[0] as u32).into())),
        nr::__NR_getgroups => identity::getgroups(thread, a[0], a[1]),
        nr::__NR_setgroups => identity::setgroups(thread, a[0], a[1]),
        nr::__NR_capget => identity::capget(thread, a[0], a[1]),
        nr::__NR_capset => identity::capset(thread, a[0], a[1]),
        nr::__NR_getpriority => schedule::getpriority(thread, a[0], a[1]),
        nr::__NR_setpriority => schedule::setpriority(thread, a[0], a[1], a[2]),

        nr::__NR_rt_sigaction => signal::sigaction(thread, a[0], a[1], a[2], a[3]),
        nr::__NR_rt_sigprocmask => signal::sigprocmask(thread, a[0], a[1], a[2], a[3]),
        nr::__NR_rt_sigpending => signal::sigpending(thread, a[0], a[1]),
        nr::__NR_rt_sigsuspend => signal::sigsuspend(thread, a[0], a[1]).await,
        nr::__NR_rt_sigtimedwait => signal::sigtimedwait(thread, a[0], a[1], a[2], a[3]).await,
        nr::__NR_rt_sigreturn => signal::sigreturn(thread).await,
        nr::__NR_rt_sigqueueinfo => signal::sigqueueinfo(thread, a[0], None, a[1], a[2]),
        nr::__NR_rt_tgsigqueueinfo => signal::sigqueueinfo(thread, a[0], Some(a[1]), a[2], a[3]),
        nr::__NR_sigaltstack => signal::sigaltstack(thread, a[0], a[1]),
        nr::__NR_kill => signal::kill(thread, a[0], a[1]),
        nr::__NR_tkill => signal::tgkill(thread, None, a[0], a[1]),
        nr::__NR_tgkill => signal::tgkill(thread, Some(a[0]), a[1], a[2]),

        nr::__NR_futex => futex::futex(thread, a).await,
        nr::__NR_futex_waitv => futex::waitv(thread, a).await,
        nr::__NR_get_robust_list => misc::get_robust_list(thread, a[0], a[1], a[2]),
        nr::__NR_set_robust_list => misc::set_robust_list(thread, a[0], a[1]),
        nr::__NR_set_tid_address => misc::set_tid_address(thread, a[0]),
        nr::__NR_sched_yield => {
            executor::give_way().await;
            Ok(0)
        }
        nr::__NR_sched_getaffinity => schedule::getaffinity(thread, a[0], a[1], a[2]),
        nr::__NR_sched_setaffinity => schedule::setaffinity(thread, a[0], a[1], a[2]),
        nr::__NR_sched_setscheduler => schedule::setscheduler(thread, a[0], a[1], a[2]),
        nr::__NR_sched_getscheduler => schedule::getscheduler(thread, a[0]),
        nr::__NR_sched_setparam => schedule::setparam(thread, a[0], a[1]),
        nr::__NR_sched_getparam => schedule::getparam(thread, a[0], a[1]),
        nr::__NR_sched_rr_get_interval => schedule::interval(thread, a[0], a[1]),
        nr::__NR_sched_get_priority_max => schedule::priority_range(a[0], true),
        nr::__NR_sched_get_priority_min => schedule::priority_range(a[0], false),

        nr::__NR_clock_gettime => clock::gettime(thread, a[0], a[1]),
        nr::__NR_clock_getres => clock::getres(thread, a[0], a[1]),
        nr::__NR_gettimeofday => clock::gettimeofday(thread, a[0]),
        nr::__NR_nanosleep => clock::nanosleep(thread, a[0], a[1]).await,
        nr::__NR_clock_nanosleep => clock::clock_nanosleep(thread, a[0], a[1], a[2], a[3]).await,
        nr::__NR_setitimer => timer::setitimer(thread, a[0], a[1], a[2]),
        nr::__NR_getitimer => timer::getitimer(thread, a[0], a[1]),
        nr::__NR_timer_create => timer::create(thread, a[0], a[1], a[2]),
        nr::__NR_timer_settime => timer::settime(thread, a[0], a[1], a[2], a[3]),
        nr::__NR_timer_gettime => timer::gettime(thread, a[0], a[1]),
        nr::__NR_timer_getoverrun => timer::getoverrun(thread, a[0]),
        nr::__NR_timer_delete => timer::delete(thread, a[0]),

        nr::__NR_prctl => prctl::prctl(thread, [a[0], a[1], a[2], a[3], a[4]]),
        nr::__NR_prlimit64 => misc::prlimit(thread, a[0], a[1], a[2], a[3]),
        nr::__NR_getrlimit => misc::prlimit(thread, 0, a[0], 0, given(a[1])?),
        nr::__NR_setrlimit => misc::prlimit(thread, 0, a[0], given(a[1])?, 0),
        nr::__NR_getcpu => misc::getcpu(thread, a[0], a[1]),
        nr::__NR_getrusage => misc::getrusage(thread, a[0], a[1]),
        nr::__NR_times => misc::times(thread, a[0]),
        nr::__NR_sysinfo => misc::sysinfo(thread, a[0]),
        nr::__NR_uname => misc::uname(thread, a[0]),
        nr::__NR_getrandom => misc::getrandom(thread, a[0], a[1], a[2]).await,
        // A C library asks for these and is content without them.
        nr::__NR_rseq => Err(Errno::ENOSYS),
        other => match arch::calls::call(thread, other, a).await {
            Some(answer) => answer,
            None => absent(number),
        },
    }
}

/// An address that a call can't do without.
fn given(address: u64) -> Result<u64, Errno> {
    if address == 0 { Err(Errno::EFAULT) } else { Ok(address) }
}

/// Says once of each that there is no such system call.
#[cold]
fn absent(number: u64) -> Answer {
    static SAID: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
    if let Some(word) = SAID.get((number / 64) as usize)
        && word.fetch_or(1 << (number % 64), Ordering::Relaxed) >> (number % 64) & 1 == 0
    {
        println!("system call {number}, {}, is absent", calls::name(number));
    }
    Err(Errno::ENOSYS)
}
