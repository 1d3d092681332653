//! Which system calls there are, and how much of each.
//!
//! The numbers are each architecture's own, and so are some names: those of x86-64 are all that there are.
//!
//! What is not listed is absent: it answers `ENOSYS`, and the console names it once.

use syscalls::x86_64::Sysno;

/// How much of a system call there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// What Linux does, as far as programs without other parts of Linux can tell.
    Full,
    /// All but this.
    Partial(&'static str),
}

use Support::{Full, Partial};

/// The system calls there are, in the order of their names.
pub const CALLS: &[(Sysno, Support)] = &[
    (Sysno::access, Full),
    (Sysno::alarm, Full),
    (Sysno::arch_prctl, Partial("segment bases only")),
    (Sysno::brk, Full),
    (Sysno::cachestat, Partial("files in memory, of which nothing is written back or evicted")),
    (Sysno::capget, Full),
    (Sysno::capset, Full),
    (Sysno::chdir, Full),
    (Sysno::chmod, Full),
    (Sysno::chown, Full),
    (Sysno::clock_getres, Full),
    (Sysno::clock_gettime, Full),
    (Sysno::clock_nanosleep, Full),
    (Sysno::clone, Partial("no namespaces, no ptrace")),
    (Sysno::clone3, Partial("as clone; no choice of number")),
    (Sysno::close, Full),
    (Sysno::close_range, Partial("CLOSE_RANGE_UNSHARE is ignored")),
    (Sysno::creat, Full),
    (Sysno::dup, Full),
    (Sysno::dup2, Full),
    (Sysno::dup3, Full),
    (Sysno::eventfd, Partial("as eventfd2")),
    (Sysno::eventfd2, Partial("a write that does not fit may answer EINVAL instead of waiting")),
    (Sysno::execve, Partial("no dynamic programs yet")),
    (Sysno::execveat, Partial("as execve")),
    (Sysno::exit, Full),
    (Sysno::exit_group, Full),
    (Sysno::faccessat, Full),
    (Sysno::faccessat2, Full),
    (Sysno::fadvise64, Full),
    (Sysno::fallocate, Full),
    (Sysno::fchdir, Full),
    (Sysno::fchmod, Full),
    (Sysno::fchmodat, Full),
    (Sysno::fchown, Full),
    (Sysno::fchownat, Full),
    (Sysno::fcntl, Partial("no leases, no signals")),
    (Sysno::fdatasync, Full),
    (Sysno::flock, Full),
    (Sysno::fork, Full),
    (Sysno::fstat, Full),
    (Sysno::fstatfs, Full),
    (Sysno::fsync, Full),
    (Sysno::ftruncate, Full),
    (Sysno::futex, Partial("no priorities to inherit, and no moving of those who wait to such locks")),
    (Sysno::futex_waitv, Full),
    (Sysno::get_mempolicy, Partial("one node; VMAs have no policy of their own")),
    (Sysno::get_robust_list, Full),
    (Sysno::getcpu, Full),
    (Sysno::getcwd, Full),
    (Sysno::getdents64, Full),
    (Sysno::getegid, Full),
    (Sysno::geteuid, Full),
    (Sysno::getgid, Full),
    (Sysno::getgroups, Full),
    (Sysno::getitimer, Partial("real time only")),
    (Sysno::getpgid, Full),
    (Sysno::getpgrp, Full),
    (Sysno::getpid, Full),
    (Sysno::getppid, Full),
    (Sysno::getpriority, Full),
    (Sysno::getrandom, Partial("not fit for secrets")),
    (Sysno::getresgid, Full),
    (Sysno::getresuid, Full),
    (Sysno::getrlimit, Full),
    (Sysno::getrusage, Partial("time, and the most that was resident; the kernel's work counts as the program's")),
    (Sysno::getsid, Full),
    (Sysno::gettid, Full),
    (Sysno::gettimeofday, Full),
    (Sysno::getuid, Full),
    (Sysno::ioctl, Partial("nothing is a terminal")),
    (Sysno::kill, Full),
    (Sysno::lchown, Full),
    (Sysno::link, Full),
    (Sysno::linkat, Full),
    (Sysno::lseek, Full),
    (Sysno::lstat, Full),
    (Sysno::madvise, Partial("no merging of pages, and collapsing of private memory only")),
    (Sysno::mbind, Partial("checked, to no effect: one node")),
    (Sysno::membarrier, Partial("no MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ")),
    (Sysno::memfd_create, Partial("no huge pages")),
    (Sysno::mincore, Full),
    (Sysno::mkdir, Full),
    (Sysno::mkdirat, Full),
    (Sysno::mknod, Partial("no block devices")),
    (Sysno::mknodat, Partial("no block devices")),
    (Sysno::mlock, Full),
    (Sysno::mlock2, Full),
    (Sysno::mlockall, Full),
    (Sysno::mmap, Partial("no huge pages asked for by MAP_HUGETLB")),
    (Sysno::mount, Partial("proc, sysfs, cgroup2 and tmpfs, and these read-only; nothing is bound or moved")),
    (Sysno::mprotect, Partial("no PROT_GROWSDOWN, no protection keys")),
    (Sysno::mremap, Full),
    (Sysno::mseal, Full),
    (Sysno::msync, Full),
    (Sysno::munlock, Full),
    (Sysno::munlockall, Full),
    (Sysno::munmap, Full),
    (Sysno::nanosleep, Full),
    (Sysno::newfstatat, Full),
    (Sysno::open, Partial("no O_ASYNC, no O_DIRECT")),
    (Sysno::openat, Partial("no O_ASYNC, no O_DIRECT")),
    (Sysno::pause, Full),
    (Sysno::pidfd_getfd, Full),
    (Sysno::pidfd_open, Partial("of processes, not of single threads")),
    (Sysno::pidfd_send_signal, Partial("to processes; no descriptors of /proc/PID")),
    (Sysno::pipe, Full),
    (Sysno::pipe2, Full),
    (Sysno::poll, Full),
    (Sysno::ppoll, Full),
    (
        Sysno::prctl,
        Partial(
            "no filters of system calls, no names of VMAs, no speculation, no huge pages; PR_SET_MDWE lets programs begin as they are",
        ),
    ),
    (Sysno::pread64, Full),
    (Sysno::preadv, Full),
    (Sysno::prlimit64, Partial("limits of memory, descriptors and signals have effect")),
    (Sysno::process_madvise, Partial("as madvise")),
    (Sysno::process_mrelease, Partial("waits until the process has given up its memory")),
    (Sysno::process_vm_readv, Full),
    (Sysno::process_vm_writev, Full),
    (Sysno::pselect6, Full),
    (Sysno::pwrite64, Full),
    (Sysno::pwritev, Full),
    (Sysno::read, Partial("standard input is empty")),
    (Sysno::readlink, Full),
    (Sysno::readlinkat, Full),
    (Sysno::readv, Full),
    (Sysno::remap_file_pages, Full),
    (Sysno::rename, Full),
    (Sysno::renameat, Full),
    (Sysno::renameat2, Full),
    (Sysno::rmdir, Full),
    (Sysno::rt_sigaction, Full),
    (Sysno::rt_sigpending, Full),
    (Sysno::rt_sigprocmask, Full),
    (Sysno::rt_sigqueueinfo, Full),
    (Sysno::rt_sigreturn, Full),
    (Sysno::rt_sigsuspend, Full),
    (Sysno::rt_sigtimedwait, Full),
    (Sysno::rt_tgsigqueueinfo, Full),
    (Sysno::sched_get_priority_max, Full),
    (Sysno::sched_get_priority_min, Full),
    (Sysno::sched_getaffinity, Partial("always every processor")),
    (Sysno::sched_getparam, Full),
    (Sysno::sched_getscheduler, Full),
    (Sysno::sched_rr_get_interval, Full),
    (Sysno::sched_setaffinity, Partial("to no effect")),
    (Sysno::sched_setparam, Partial("remembered, to no effect; no deadlines")),
    (Sysno::sched_setscheduler, Partial("remembered, to no effect; no deadlines")),
    (Sysno::sched_yield, Full),
    (Sysno::select, Full),
    (Sysno::set_mempolicy, Partial("one node")),
    (Sysno::set_robust_list, Full),
    (Sysno::set_tid_address, Full),
    (Sysno::setfsgid, Full),
    (Sysno::setfsuid, Full),
    (Sysno::setgid, Full),
    (Sysno::setgroups, Full),
    (Sysno::setitimer, Partial("real time only")),
    (Sysno::setpgid, Full),
    (Sysno::setpriority, Partial("remembered, to no effect")),
    (Sysno::setregid, Full),
    (Sysno::setresgid, Full),
    (Sysno::setresuid, Full),
    (Sysno::setreuid, Full),
    (Sysno::setrlimit, Partial("as prlimit64")),
    (Sysno::setsid, Full),
    (Sysno::setuid, Full),
    (Sysno::shmat, Full),
    (Sysno::shmctl, Full),
    (Sysno::shmdt, Full),
    (Sysno::shmget, Full),
    (Sysno::sigaltstack, Partial("no SS_AUTODISARM")),
    (Sysno::stat, Full),
    (Sysno::statfs, Full),
    (Sysno::statx, Partial("every field, whatever the mask")),
    (Sysno::swapoff, Partial("of the one device that there may be")),
    (Sysno::swapon, Partial("of the one device that there may be")),
    (Sysno::symlink, Full),
    (Sysno::symlinkat, Full),
    (Sysno::sync, Full),
    (Sysno::sysinfo, Partial("no load")),
    (Sysno::tgkill, Full),
    (Sysno::time, Full),
    (Sysno::timer_create, Partial("not of clocks of processor time")),
    (Sysno::timer_delete, Full),
    (Sysno::timer_getoverrun, Full),
    (Sysno::timer_gettime, Full),
    (Sysno::timer_settime, Full),
    (Sysno::times, Partial("the kernel's work counts as the program's")),
    (Sysno::tkill, Full),
    (Sysno::truncate, Full),
    (Sysno::umask, Full),
    (Sysno::umount2, Partial("nothing expires")),
    (Sysno::uname, Full),
    (Sysno::unlink, Full),
    (Sysno::unlinkat, Full),
    (Sysno::userfaultfd, Partial("private anonymous memory; no events but faults, no minor faults, no UFFDIO_MOVE")),
    (Sysno::utimensat, Full),
    (Sysno::vfork, Full),
    (Sysno::vmsplice, Partial("bytes are copied, never given")),
    (Sysno::wait4, Partial("of the usage of resources only the time")),
    (Sysno::waitid, Partial("no resource usage")),
    (Sysno::write, Full),
    (Sysno::writev, Full),
];

/// A system call's name.
pub fn name(number: u64) -> &'static str {
    usize::try_from(number).ok().and_then(syscalls::Sysno::new).map_or("of no name", |call| call.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::string::String;

    /// What the kernel looks for: the names of the numbers in its table of calls. Those that it knows of only to refuse
    /// them stand behind a line that says so.
    fn handled() -> BTreeSet<String> {
        let everywhere = include_str!("../machine/sys/mod.rs");
        let (everywhere, _) = everywhere.split_once("is content without them").expect("the line that says so");
        let here = include_str!("../machine/arch/x86_64/calls.rs");
        let names = [everywhere, here].into_iter().flat_map(|source| source.split("nr::__NR_").skip(1));
        names.map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("").into()).collect()
    }

    #[test]
    fn the_list_says_what_the_kernel_does() {
        let listed: BTreeSet<String> = CALLS.iter().map(|(call, _)| call.name().into()).collect();
        assert_eq!(listed, handled());
    }

    #[test]
    fn the_list_is_in_order_and_says_what_is_missing() {
        assert!(CALLS.windows(2).all(|pair| pair[0].0.name() < pair[1].0.name()));
        assert!(CALLS.iter().all(|(_, support)| *support != Partial("")));
    }
}
