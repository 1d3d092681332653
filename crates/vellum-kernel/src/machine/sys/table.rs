//! Dispatches system calls. Each call has one row in the table: its number, its support level, its
//! restart rule after a signal, and its handler.
//!
//! A call without a row returns `ENOSYS`, and the kernel logs its name once to the console.

#[cfg(target_arch = "x86_64")]
use super::legacy;
use super::path::HERE;
use super::process::Wanted;
use super::transfer::Memory;
use super::xattr::Of;
use super::{
    Answer, anon_inode, clock, epoll, file, futex, identity, inotify, kcmp, keys, lock, memory, message, misc, mount,
    path, pidfd, policy, prctl, process, program, ptrace, remote, schedule, seccomp, select, shm, signal, signalfd,
    size, socket, splice, swap, sync, terminal, timer, timerfd, transfer, wait, xattr,
};
use crate::arch;
use crate::arch::serial::println;
use crate::task::run::Restart;
use crate::task::trace;
use crate::task::{Thread, executor};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as nr;
use vellum_kernel::credentials::{Ids, id_index};
use vellum_kernel::errno::Errno;

/// The support level of a system call.
#[allow(dead_code, reason = "the table's column is for its reader")]
pub enum Support {
    /// Everything that Linux does, except effects that a program can observe only through parts of
    /// Linux that this kernel lacks.
    Full,
    /// Everything except what the text names.
    Partial(&'static str),
    /// Nothing. The C library probes for the call and works without it, so the console does not log
    /// it.
    Absent,
}

use Support::{Absent, Full, Partial};

/// Generates the dispatch function and the restart function from the table. A row is
/// `number: support, restart => call;`. Without `restart` the rule is [`Restart::AfterStops`].
macro_rules! system_calls {
    (
        ($thread:ident, $arguments:ident);
        everywhere { $($number:ident: $support:expr $(, $restart:ident)? => $call:expr;)* }
        x86_64 { $($own:ident: $own_support:expr $(, $own_restart:ident)? => $own_call:expr;)* }
    ) => {
        const _: &[Support] = &[$($support,)* $($own_support,)*];

        /// Runs the system call `number` and returns its result; `ENOSYS` if the table has no row
        /// for it.
        pub async fn call($thread: &Arc<Thread>, number: u64, $arguments: [u64; 6]) -> Answer {
            match number as u32 {
                $(nr::$number => $call,)*
                $(#[cfg(target_arch = "x86_64")] nr::$own => $own_call,)*
                _ => absent(number),
            }
        }

        /// Returns the rule by which a call that a signal interrupted is restarted.
        pub fn restarts(number: u64) -> Restart {
            match number as u32 {
                $($(nr::$number => Restart::$restart,)?)*
                $($(#[cfg(target_arch = "x86_64")] nr::$own => Restart::$own_restart,)?)*
                _ => Restart::AfterStops,
            }
        }
    };
}

system_calls! {
    (thread, a);
    everywhere {
        __NR_mmap: Full => memory::mmap(thread, a).await;
        __NR_munmap: Full => memory::munmap(thread, a[0], a[1]).await;
        __NR_mprotect: Partial("no PROT_GROWSDOWN") => keys::protect(thread, [a[0], a[1], a[2]], -1);
        __NR_pkey_mprotect: Partial("no PROT_GROWSDOWN") => keys::protect(thread, [a[0], a[1], a[2]], a[3] as i32);
        __NR_pkey_alloc: Full => keys::allocate(thread, a[0], a[1]);
        __NR_pkey_free: Full => keys::free(thread, a[0]);
        __NR_mremap: Full => memory::mremap(thread, a).await;
        __NR_remap_file_pages: Full => memory::remap_file_pages(thread, a).await;
        __NR_mlock: Full => memory::mlock(thread, a[0], a[1], 0).await;
        __NR_mlock2: Full => memory::mlock(thread, a[0], a[1], a[2]).await;
        __NR_munlock: Full => memory::munlock(thread, a[0], a[1]);
        __NR_mlockall: Full => memory::mlockall(thread, a[0]).await;
        __NR_munlockall: Full => memory::munlockall(thread);
        __NR_mseal: Full => memory::mseal(thread, a[0], a[1], a[2]);
        __NR_process_vm_readv: Full => remote::copy(thread, remote::Way::Read, a).await;
        __NR_process_vm_writev: Full => remote::copy(thread, remote::Way::Write, a).await;
        __NR_process_madvise: Partial("as madvise") => remote::advise(thread, a).await;
        __NR_madvise: Partial("no KSM; MADV_COLLAPSE of memory and files in memory only; \
            MADV_HWPOISON of the caller's memory only")
            => memory::madvise(thread, a[0], a[1], a[2]).await;
        __NR_mincore: Full => memory::mincore(thread, a[0], a[1], a[2]).await;
        __NR_msync: Full => memory::msync(thread, a[0], a[1], a[2]).await;
        __NR_brk: Full => memory::brk(thread, a[0]).await;
        __NR_get_mempolicy: Partial("one node; VMAs have no policy of their own")
            => policy::get(thread, [a[0], a[1], a[2], a[3], a[4]]);
        __NR_set_mempolicy: Partial("one node") => policy::set(thread, a[0], a[1], a[2]);
        __NR_mbind: Partial("validated without effect: one node") => policy::bind(thread, a);
        __NR_shmget: Full => shm::get(thread, a[0], a[1], a[2]);
        __NR_shmat: Full => shm::attach(thread, a[0], a[1], a[2]).await;
        __NR_shmdt: Full => shm::detach(thread, a[0]);
        __NR_shmctl: Full => shm::control(thread, a[0], a[1], a[2]);
        __NR_membarrier: Partial("no MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ") => misc::membarrier(thread, a[0], a[1]);

        __NR_read: Full, AfterHandlers => transfer::read(thread, a[0], Memory::One(a[1], a[2]), None).await;
        __NR_readv: Full, AfterHandlers => transfer::read(thread, a[0], Memory::Many(a[1], a[2]), None).await;
        __NR_pread64: Full => transfer::read(thread, a[0], Memory::One(a[1], a[2]), Some(a[3])).await;
        __NR_preadv: Full => transfer::read(thread, a[0], Memory::Many(a[1], a[2]), Some(a[3])).await;
        __NR_write: Full, AfterHandlers => transfer::write(thread, a[0], Memory::One(a[1], a[2]), None).await;
        __NR_writev: Full, AfterHandlers => transfer::write(thread, a[0], Memory::Many(a[1], a[2]), None).await;
        __NR_pwrite64: Full => transfer::write(thread, a[0], Memory::One(a[1], a[2]), Some(a[3])).await;
        __NR_pwritev: Full => transfer::write(thread, a[0], Memory::Many(a[1], a[2]), Some(a[3])).await;
        __NR_preadv2: Partial("RWF_HIPRI, RWF_DSYNC and RWF_SYNC")
            => transfer::preadv2(thread, a[0], Memory::Many(a[1], a[2]), a[3], a[5]).await;
        __NR_pwritev2: Partial("RWF_HIPRI, RWF_DSYNC and RWF_SYNC")
            => transfer::pwritev2(thread, a[0], Memory::Many(a[1], a[2]), a[3], a[5]).await;
        __NR_sendfile: Full => transfer::sendfile(thread, a[0], a[1], a[2], a[3]).await;
        __NR_copy_file_range: Partial("copies; no blocks are shared") => transfer::copy_file_range(thread, a).await;
        __NR_close: Full => file::close(thread, a[0]);
        __NR_close_range: Full => file::close_range(thread, a[0], a[1], a[2]);
        __NR_dup: Full => file::dup(thread, a[0]);
        __NR_dup3: Full => file::dup_to(thread, a[0], a[1], Some(a[2]));
        __NR_fcntl: Partial("no leases; no file sends signals"), AfterHandlers
            => file::fcntl(thread, a[0], a[1], a[2]).await;
        __NR_flock: Full, AfterHandlers => lock::flock(thread, a[0], a[1]).await;
        __NR_lseek: Full => file::lseek(thread, a[0], a[1], a[2]).await;
        __NR_ioctl: Partial("of terminals none of modems"), AfterHandlers => file::ioctl(thread, a[0], a[1], a[2]);
        __NR_fsync: Full => sync::fsync(thread, a[0]).await;
        __NR_fdatasync: Full => sync::fsync(thread, a[0]).await;
        __NR_sync_file_range: Full => sync::range(thread, a[0], a[1], a[2], a[3]).await;
        __NR_syncfs: Full => sync::syncfs(thread, a[0]).await;
        __NR_readahead: Full => sync::readahead(thread, a[0], a[1], a[2]);
        __NR_sync: Full => sync::all(thread).await;
        __NR_ftruncate: Full => size::ftruncate(thread, a[0], a[1]).await;
        __NR_fallocate: Full => size::fallocate(thread, a[0], a[1], a[2], a[3]).await;
        __NR_getdents64: Full => file::getdents(thread, a[0], a[1], a[2]);
        __NR_pipe2: Full => anon_inode::pipe(thread, a[0], a[1]);
        __NR_pselect6: Full => select::pselect(thread, a).await;
        __NR_fadvise64: Full => sync::advise(thread, a[0], a[1], a[2], a[3]).await;
        __NR_ppoll: Full => select::ppoll(thread, a).await;
        __NR_timerfd_create: Full => timerfd::create(thread, a[0], a[1]);
        __NR_timerfd_settime: Full => timerfd::settime(thread, a[0], a[1], a[2], a[3]);
        __NR_timerfd_gettime: Full => timerfd::gettime(thread, a[0], a[1]);
        __NR_inotify_init1: Partial("nothing from the kernel's own file systems, from execution, or for what is mapped")
            => inotify::init(thread, a[0]);
        __NR_inotify_add_watch: Full => inotify::add_watch(thread, a[0], a[1], a[2]);
        __NR_inotify_rm_watch: Full => inotify::remove_watch(thread, a[0], a[1]);
        __NR_signalfd4: Full => signalfd::signalfd(thread, a[0], a[1], a[2], a[3]);
        __NR_epoll_create1: Full => epoll::create(thread, a[0]);
        __NR_epoll_ctl: Full => epoll::control(thread, a);
        __NR_epoll_pwait: Full
            => epoll::wait(thread, [a[0], a[1], a[2]], select::deadline_in(a[3]), [a[4], a[5]]).await;
        __NR_epoll_pwait2: Full
            => epoll::wait(thread, [a[0], a[1], a[2]], select::deadline_at(thread, a[3])?, [a[4], a[5]]).await;
        __NR_cachestat: Partial("files in memory; no counts of writeback or of recently evicted pages")
            => file::cachestat(thread, a[0], a[1], a[2], a[3]);
        __NR_userfaultfd: Partial("no read-write protection (UFFD_FEATURE_RWP), no huge pages")
            => anon_inode::userfaultfd(thread, a[0]);
        __NR_eventfd2: Partial("a write that does not fit may answer EINVAL instead of waiting")
            => anon_inode::eventfd(thread, a[0], a[1]);
        __NR_splice: Partial("copies, except from pipe to pipe") => splice::splice(thread, a).await;
        __NR_tee: Partial("copies") => splice::tee(thread, a[0], a[1], a[2], a[3]).await;
        __NR_vmsplice: Partial("copies; no gifted pages") => splice::vmsplice(thread, a[0], a[1], a[2], a[3]).await;
        __NR_memfd_create: Partial("no huge pages") => anon_inode::memfd_create(thread, a[0], a[1]);

        __NR_socket: Partial("AF_UNIX; TCP and UDP, within the machine; NETLINK_ROUTE")
            => socket::socket(thread, a[0], a[1], a[2]);
        __NR_socketpair: Full => socket::pair(thread, a);
        __NR_bind: Full => socket::bind(thread, a[0], a[1], a[2]);
        __NR_listen: Full => socket::listen(thread, a[0], a[1]);
        __NR_connect: Full, AfterHandlers => socket::connect(thread, a[0], a[1], a[2]).await;
        __NR_accept: Full, AfterHandlers => socket::accept(thread, a[0], a[1], a[2], 0).await;
        __NR_accept4: Full, AfterHandlers => socket::accept(thread, a[0], a[1], a[2], a[3]).await;
        __NR_shutdown: Full => socket::shutdown(thread, a[0], a[1]);
        __NR_getsockname: Full => socket::name(thread, a[0], a[1], a[2], false);
        __NR_getpeername: Full => socket::name(thread, a[0], a[1], a[2], true);
        __NR_setsockopt: Partial("no filters, no timestamps") => socket::set_option(thread, a);
        __NR_getsockopt: Partial("as setsockopt") => socket::option(thread, a);
        __NR_sendto: Partial("no MSG_OOB"), AfterHandlers => message::sendto(thread, a).await;
        __NR_sendmsg: Partial("no MSG_OOB"), AfterHandlers => message::sendmsg(thread, a[0], a[1], a[2]).await;
        __NR_sendmmsg: Partial("as sendmsg"), AfterHandlers
            => message::sendmmsg(thread, a[0], a[1], a[2], a[3]).await;
        __NR_recvfrom: Partial("no MSG_OOB"), AfterHandlers => message::recvfrom(thread, a).await;
        __NR_recvmsg: Partial("no MSG_OOB"), AfterHandlers => message::recvmsg(thread, a[0], a[1], a[2]).await;
        __NR_recvmmsg: Partial("as recvmsg"), AfterHandlers => message::recvmmsg(thread, a).await;

        __NR_openat: Partial("no O_ASYNC"), AfterHandlers
            => path::open(thread, a[0], a[1], a[2], a[3]).await;
        __NR_newfstatat: Full => path::stat(thread, a[0], a[1], a[2], a[3]);
        __NR_fstat: Full => path::fstat(thread, a[0], a[1]);
        __NR_statx: Partial("every field, whatever the mask") => path::statx(thread, a);
        __NR_statfs: Full => path::statfs_at(thread, a[0], a[1]);
        __NR_fstatfs: Full => path::statfs(thread, file::open_of(thread, a[0])?.inode(), a[1]);
        __NR_faccessat: Full => path::access(thread, a[0], a[1], a[2], 0);
        __NR_faccessat2: Full => path::access(thread, a[0], a[1], a[2], a[3]);
        __NR_mkdirat: Full => path::mkdir(thread, a[0], a[1], a[2]);
        __NR_mknodat: Partial("no block devices") => path::mknod(thread, a[0], a[1], a[2], a[3]);
        __NR_symlinkat: Full => path::symlink(thread, a[0], a[1], a[2]);
        __NR_linkat: Full => path::link(thread, a);
        __NR_unlinkat: Full => path::unlink(thread, a[0], a[1], a[2]);
        __NR_renameat: Full => path::rename(thread, a[0], a[1], a[2], a[3], 0);
        __NR_renameat2: Full => path::rename(thread, a[0], a[1], a[2], a[3], a[4]);
        __NR_readlinkat: Full => path::readlink(thread, a[0], a[1], a[2], a[3]);
        __NR_getxattr: Partial("no file has attributes") => xattr::get(thread, Of::path(a[0], false), a[1]);
        __NR_lgetxattr: Partial("as getxattr") => xattr::get(thread, Of::path(a[0], true), a[1]);
        __NR_fgetxattr: Partial("as getxattr") => xattr::get(thread, Of::Descriptor(a[0]), a[1]);
        __NR_getxattrat: Partial("as getxattr") => xattr::get_at(thread, a);
        __NR_setxattr: Partial("as getxattr") => xattr::set(thread, Of::path(a[0], false), a[1], a[2], a[3], a[4]);
        __NR_lsetxattr: Partial("as getxattr") => xattr::set(thread, Of::path(a[0], true), a[1], a[2], a[3], a[4]);
        __NR_fsetxattr: Partial("as getxattr") => xattr::set(thread, Of::Descriptor(a[0]), a[1], a[2], a[3], a[4]);
        __NR_setxattrat: Partial("as getxattr") => xattr::set_at(thread, a);
        __NR_listxattr: Partial("as getxattr") => xattr::list(thread, Of::path(a[0], false));
        __NR_llistxattr: Partial("as getxattr") => xattr::list(thread, Of::path(a[0], true));
        __NR_flistxattr: Partial("as getxattr") => xattr::list(thread, Of::Descriptor(a[0]));
        __NR_listxattrat: Partial("as getxattr") => xattr::list(thread, Of::Path(a[0], a[1], a[2]));
        __NR_removexattr: Partial("as getxattr") => xattr::remove(thread, Of::path(a[0], false), a[1]);
        __NR_lremovexattr: Partial("as getxattr") => xattr::remove(thread, Of::path(a[0], true), a[1]);
        __NR_fremovexattr: Partial("as getxattr") => xattr::remove(thread, Of::Descriptor(a[0]), a[1]);
        __NR_removexattrat: Partial("as getxattr") => xattr::remove(thread, Of::Path(a[0], a[1], a[2]), a[3]);
        __NR_truncate: Full => size::truncate(thread, a[0], a[1]).await;
        __NR_fchmodat: Full => path::chmod(thread, a[0], a[1], a[2], 0);
        __NR_fchmodat2: Full => path::chmod(thread, a[0], a[1], a[2], a[3]);
        __NR_fchmod: Full => path::fchmod(thread, a[0], a[1]);
        __NR_fchownat: Full => path::chown(thread, a[0], a[1], a[2], a[3], a[4]);
        __NR_fchown: Full => path::fchown(thread, a[0], a[1], a[2]);
        __NR_utimensat: Full => path::utimensat(thread, a[0], a[1], a[2], a[3]);
        __NR_chdir: Full => path::chdir_to(thread, a[0]);
        __NR_fchdir: Full => path::chdir(thread, file::open_of(thread, a[0])?.inode().clone());
        __NR_getcwd: Full => path::getcwd(thread, a[0], a[1]);
        __NR_mount: Partial("proc, sysfs, cgroup2, tmpfs and ext4, and these read-only; nothing is bound or moved")
            => mount::mount(thread, a).await;
        __NR_umount2: Partial("nothing expires") => mount::unmount(thread, a[0], a[1]).await;
        __NR_swapon: Partial("one swap device at most") => swap::on(thread, a[0], a[1]);
        __NR_swapoff: Partial("one swap device at most") => swap::off(thread, a[0]);
        __NR_umask: Full => path::umask(thread, a[0]);

        __NR_clone: Partial("no namespaces") => {
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
        };
        __NR_clone3: Partial("as clone; no choice of number") => process::clone3(thread, a[0], a[1]).await;
        __NR_execve: Partial("no dynamic programs yet") => program::execve(thread, [HERE, a[0], a[1], a[2], 0]).await;
        __NR_execveat: Partial("as execve") => program::execve(thread, [a[0], a[1], a[2], a[3], a[4]]).await;
        __NR_exit: Full => {
            trace::ends(thread, (a[0] as u32 & 0xff) << 8).await;
            process::exit(thread, a[0])
        };
        __NR_exit_group: Full => {
            trace::ends(thread, (a[0] as u32 & 0xff) << 8).await;
            process::exit_group(thread, a[0])
        };
        __NR_wait4: Partial("of the usage of resources the time, faults and peak RSS"), AfterHandlers
            => wait::wait4(thread, a[0], a[1], a[2], a[3]).await;
        __NR_waitid: Partial("as wait4"), AfterHandlers => wait::waitid(thread, a).await;
        __NR_pidfd_open: Partial("of processes, not of single threads") => pidfd::pidfd_open(thread, a[0], a[1]);
        __NR_pidfd_send_signal: Partial("to processes")
            => pidfd::pidfd_send_signal(thread, a[0], a[1], a[2], a[3]);
        __NR_pidfd_getfd: Full => pidfd::pidfd_getfd(thread, a[0], a[1], a[2]);
        __NR_kcmp: Partial("no KCMP_EPOLL_TFD") => kcmp::kcmp(thread, [a[0], a[1], a[2], a[3], a[4]]);
        __NR_process_mrelease: Partial("waits until the process has given up its memory")
            => pidfd::process_mrelease(thread, a[0], a[1]).await;
        __NR_getpid: Full => Ok(thread.process.pid.into());
        __NR_gettid: Full => Ok(thread.tid.into());
        __NR_getppid: Full => Ok(thread.process.parent_pid().into());
        __NR_getpgid: Full => Ok(process::process_of(thread, a[0])?.group.load(Ordering::Relaxed).into());
        __NR_getsid: Full => Ok(process::process_of(thread, a[0])?.session.load(Ordering::Relaxed).into());
        __NR_setpgid: Full => process::setpgid(thread, a[0], a[1]);
        __NR_setsid: Full => process::setsid(thread);
        __NR_vhangup: Full => terminal::vhangup(thread);

        __NR_getuid: Full => Ok(thread.credentials().uids[id_index::REAL].into());
        __NR_geteuid: Full => Ok(thread.credentials().uids[id_index::EFFECTIVE].into());
        __NR_getgid: Full => Ok(thread.credentials().gids[id_index::REAL].into());
        __NR_getegid: Full => Ok(thread.credentials().gids[id_index::EFFECTIVE].into());
        __NR_getresuid: Full => identity::get(thread, thread.credentials().uids, [a[0], a[1], a[2]]);
        __NR_getresgid: Full => identity::get(thread, thread.credentials().gids, [a[0], a[1], a[2]]);
        __NR_setuid: Full => identity::set_users(thread, Ids::All(a[0] as u32));
        __NR_setreuid: Full => identity::set_users(thread, Ids::Two(a[0] as u32, a[1] as u32));
        __NR_setresuid: Full => identity::set_users(thread, Ids::Three(a[0] as u32, a[1] as u32, a[2] as u32));
        __NR_setgid: Full => identity::set_groups(thread, Ids::All(a[0] as u32));
        __NR_setregid: Full => identity::set_groups(thread, Ids::Two(a[0] as u32, a[1] as u32));
        __NR_setresgid: Full => identity::set_groups(thread, Ids::Three(a[0] as u32, a[1] as u32, a[2] as u32));
        __NR_setfsuid: Full => identity::change(thread, |own| Ok(own.set_fsuid(a[0] as u32).into()));
        __NR_setfsgid: Full => identity::change(thread, |own| Ok(own.set_fsgid(a[0] as u32).into()));
        __NR_getgroups: Full => identity::getgroups(thread, a[0], a[1]);
        __NR_setgroups: Full => identity::setgroups(thread, a[0], a[1]);
        __NR_capget: Full => identity::capget(thread, a[0], a[1]);
        __NR_capset: Full => identity::capset(thread, a[0], a[1]);
        __NR_getpriority: Full => schedule::getpriority(thread, a[0], a[1]);
        __NR_setpriority: Partial("remembered, to no effect") => schedule::setpriority(thread, a[0], a[1], a[2]);

        __NR_rt_sigaction: Full => signal::sigaction(thread, a[0], a[1], a[2], a[3]);
        __NR_rt_sigprocmask: Full => signal::sigprocmask(thread, a[0], a[1], a[2], a[3]);
        __NR_rt_sigpending: Full => signal::sigpending(thread, a[0], a[1]);
        __NR_rt_sigsuspend: Full => signal::sigsuspend(thread, a[0], a[1]).await;
        __NR_rt_sigtimedwait: Full, Never => signal::sigtimedwait(thread, a[0], a[1], a[2], a[3]).await;
        __NR_rt_sigreturn: Full => signal::sigreturn(thread).await;
        __NR_rt_sigqueueinfo: Full => signal::sigqueueinfo(thread, a[0], None, a[1], a[2]);
        __NR_rt_tgsigqueueinfo: Full => signal::sigqueueinfo(thread, a[0], Some(a[1]), a[2], a[3]);
        __NR_sigaltstack: Partial("no SS_AUTODISARM") => signal::sigaltstack(thread, a[0], a[1]);
        __NR_kill: Full => signal::kill(thread, a[0], a[1]);
        __NR_tkill: Full => signal::tgkill(thread, None, a[0], a[1]);
        __NR_tgkill: Full => signal::tgkill(thread, Some(a[0]), a[1], a[2]);

        __NR_futex: Partial("no priority inheritance, no FUTEX_CMP_REQUEUE_PI"), AfterHandlers
            => futex::futex(thread, a).await;
        __NR_futex_waitv: Full => futex::waitv(thread, a).await;
        __NR_get_robust_list: Full => misc::get_robust_list(thread, a[0], a[1], a[2]);
        __NR_set_robust_list: Full => misc::set_robust_list(thread, a[0], a[1]);
        __NR_set_tid_address: Full => misc::set_tid_address(thread, a[0]);
        __NR_sched_yield: Full => {
            executor::yield_now().await;
            Ok(0)
        };
        __NR_sched_getaffinity: Partial("always all CPUs") => schedule::getaffinity(thread, a[0], a[1], a[2]);
        __NR_sched_setaffinity: Partial("no effect") => schedule::setaffinity(thread, a[0], a[1], a[2]);
        __NR_sched_setscheduler: Partial("stored without effect; no SCHED_DEADLINE")
            => schedule::setscheduler(thread, a[0], a[1], a[2]);
        __NR_sched_getscheduler: Full => schedule::getscheduler(thread, a[0]);
        __NR_sched_setparam: Partial("stored without effect; no SCHED_DEADLINE")
            => schedule::setparam(thread, a[0], a[1]);
        __NR_sched_getparam: Full => schedule::getparam(thread, a[0], a[1]);
        __NR_sched_rr_get_interval: Full => schedule::interval(thread, a[0], a[1]);
        __NR_sched_get_priority_max: Full => schedule::priority_range(a[0], true);
        __NR_sched_get_priority_min: Full => schedule::priority_range(a[0], false);

        __NR_clock_gettime: Full => clock::gettime(thread, a[0], a[1]);
        __NR_clock_getres: Full => clock::getres(thread, a[0], a[1]);
        __NR_gettimeofday: Full => clock::gettimeofday(thread, a[0], a[1]);
        __NR_nanosleep: Full => clock::nanosleep(thread, a[0], a[1]).await;
        __NR_clock_nanosleep: Full => clock::clock_nanosleep(thread, a[0], a[1], a[2], a[3]).await;
        __NR_setitimer: Partial("no user time apart") => timer::setitimer(thread, a[0], a[1], a[2]);
        __NR_getitimer: Partial("no user time apart") => timer::getitimer(thread, a[0], a[1]);
        __NR_timer_create: Partial("no CPU-time clocks of other processes") => timer::create(thread, a[0], a[1], a[2]);
        __NR_timer_settime: Full => timer::settime(thread, a[0], a[1], a[2], a[3]);
        __NR_timer_gettime: Full => timer::gettime(thread, a[0], a[1]);
        __NR_timer_getoverrun: Full => timer::getoverrun(thread, a[0]);
        __NR_timer_delete: Full => timer::delete(thread, a[0]);

        __NR_ptrace: Partial("no PTRACE_SYSEMU, PTRACE_PEEKSIGINFO, breakpoints of the processor")
            => ptrace::ptrace(thread, [a[0], a[1], a[2], a[3]]);
        __NR_prctl: Partial("no mitigation of speculation; no PR_TSC_SIGSEGV on AArch64; PR_SET_MDWE \
            lets programs begin as they are")
            => prctl::prctl(thread, [a[0], a[1], a[2], a[3], a[4]]);
        __NR_seccomp: Partial("no notifications; of what is logged, a filter's first")
            => seccomp::seccomp(thread, a[0], a[1], a[2]);
        __NR_personality: Partial("stored without effect") => misc::personality(thread, a[0]);
        __NR_prlimit64: Partial("limits of memory, descriptors and signals have effect")
            => misc::prlimit(thread, a[0], a[1], a[2], a[3]);
        __NR_getrlimit: Full => misc::prlimit(thread, 0, a[0], 0, given(a[1])?);
        __NR_setrlimit: Partial("as prlimit64") => misc::prlimit(thread, 0, a[0], given(a[1])?, 0);
        __NR_getcpu: Full => misc::getcpu(thread, a[0], a[1]);
        __NR_getrusage: Partial("CPU time and peak RSS; system time counts as user time")
            => misc::getrusage(thread, a[0], a[1]);
        __NR_times: Partial("system time counts as user time") => misc::times(thread, a[0]);
        __NR_sysinfo: Partial("no load") => misc::sysinfo(thread, a[0]);
        __NR_uname: Full => misc::uname(thread, a[0]);
        __NR_getrandom: Partial("not fit for secrets"), AfterHandlers
            => misc::getrandom(thread, a[0], a[1], a[2]).await;
        // The C library probes for these calls and works without them.
        __NR_rseq: Absent => Err(Errno::ENOSYS);
    }
    x86_64 {
        __NR_access: Full => path::access(thread, HERE, a[0], a[1], 0);
        __NR_alarm: Full => legacy::alarm(thread, a[0]);
        __NR_arch_prctl: Partial("segment bases only") => legacy::arch_prctl(thread, a[0], a[1]);
        __NR_chmod: Full => path::chmod(thread, HERE, a[0], a[1], 0);
        __NR_chown: Full => path::chown(thread, HERE, a[0], a[1], a[2], 0);
        __NR_creat: Full => path::open(thread, HERE, a[0], legacy::CREAT, a[1]).await;
        __NR_dup2: Full => file::dup_to(thread, a[0], a[1], None);
        __NR_epoll_create: Full => legacy::epoll_create(thread, a[0]);
        __NR_epoll_wait: Full
            => epoll::wait(thread, [a[0], a[1], a[2]], select::deadline_in(a[3]), [0, 0]).await;
        __NR_eventfd: Partial("as eventfd2") => anon_inode::eventfd(thread, a[0], 0);
        __NR_fork: Full => process::clone(thread, legacy::plain(0)).await;
        __NR_getpgrp: Full => Ok(thread.process.group.load(Ordering::Relaxed).into());
        __NR_inotify_init: Partial("as inotify_init1") => inotify::init(thread, 0);
        __NR_lchown: Full => path::chown(thread, HERE, a[0], a[1], a[2], nr::AT_SYMLINK_NOFOLLOW.into());
        __NR_link: Full => path::link(thread, [HERE, a[0], HERE, a[1], 0, 0]);
        __NR_lstat: Full => path::stat(thread, HERE, a[0], a[1], nr::AT_SYMLINK_NOFOLLOW.into());
        __NR_mkdir: Full => path::mkdir(thread, HERE, a[0], a[1]);
        __NR_mknod: Partial("no block devices") => path::mknod(thread, HERE, a[0], a[1], a[2]);
        __NR_open: Partial("no O_ASYNC"), AfterHandlers
            => path::open(thread, HERE, a[0], a[1], a[2]).await;
        __NR_pause: Full => signal::pause(thread).await;
        __NR_pipe: Full => anon_inode::pipe(thread, a[0], 0);
        __NR_poll: Full => select::poll(thread, a[0], a[1], select::deadline_in(a[2])).await;
        __NR_readlink: Full => path::readlink(thread, HERE, a[0], a[1], a[2]);
        __NR_rename: Full => path::rename(thread, HERE, a[0], HERE, a[1], 0);
        __NR_rmdir: Full => path::unlink(thread, HERE, a[0], nr::AT_REMOVEDIR.into());
        __NR_select: Full => legacy::select(thread, a).await;
        __NR_signalfd: Full => signalfd::signalfd(thread, a[0], a[1], a[2], 0);
        __NR_stat: Full => path::stat(thread, HERE, a[0], a[1], 0);
        __NR_symlink: Full => path::symlink(thread, a[0], HERE, a[1]);
        __NR_time: Full => legacy::time(thread, a[0]);
        __NR_unlink: Full => path::unlink(thread, HERE, a[0], 0);
        __NR_vfork: Full => process::clone(thread, legacy::plain(nr::CLONE_VFORK | nr::CLONE_VM)).await;
    }
}

/// Returns `address`, or `EFAULT` if it is null: for calls whose pointer argument is mandatory.
fn given(address: u64) -> Result<u64, Errno> {
    if address == 0 { Err(Errno::EFAULT) } else { Ok(address) }
}

/// Logs a system call that the table lacks, once per number, and returns `ENOSYS`.
#[cold]
fn absent(number: u64) -> Answer {
    static SAID: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
    if let Some(word) = SAID.get((number / 64) as usize)
        && word.fetch_or(1 << (number % 64), Ordering::Relaxed) >> (number % 64) & 1 == 0
    {
        // Each architecture numbers its calls differently. `Sysno` has the names of the
        // architecture that the kernel is compiled for, and so finds the call that the program
        // made.
        let name = usize::try_from(number).ok().and_then(syscalls::Sysno::new).map_or("of no name", |call| call.name());
        println!("system call {number}, {name}, is absent");
    }
    Err(Errno::ENOSYS)
}
