// Single calls, whose arguments are of the right kinds, or now and then hostile.
#ifndef FUZZ_CALLS_H
#define FUZZ_CALLS_H

#include "fuzz.h"

#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

struct call {
    long number;
    const char *name, *takes;
    bool forks;
};

// The kinds of arguments. a: address in the arena; l: length; d: file; p: protection; m: mmap
// flags; v: advice; b: memory to read or write; s: path; t: time; i: array of ranges; n: small
// number; o: offset; g: signal; P: process; c: clock; 0: zero; x: hostile; w: aligned word; k:
// mremap flags; z: 8, the size of a signal set; C: clone flags; u: request structure
static const struct call calls[] = {
#define C(name, takes) {SYS_##name, #name, takes, false}
    C(mmap, "alpmdo"), C(mmap, "alpmdo"), C(munmap, "al"), C(mprotect, "alp"), C(mremap, "allka"), C(mremap, "allka"),
    C(remap_file_pages, "al0o"), C(mlock, "al"), C(mlock2, "aln"), C(munlock, "al"), C(mlockall, "n"), C(munlockall, ""),
    C(mseal, "al0"), C(process_vm_readv, "PinIn0"), C(process_vm_writev, "PinIn0"), C(process_madvise, "dinv0"),
    C(madvise, "alv"), C(madvise, "alv"), C(mincore, "alb"), C(msync, "aln"), C(brk, "x"), C(get_mempolicy, "bbnan"),
    C(set_mempolicy, "nbn"), C(mbind, "alnbnn"), C(shmget, "nln"), C(shmat, "nan"), C(shmdt, "a"), C(shmctl, "nnb"),
    C(membarrier, "fn"), C(read, "dbl"), C(readv, "din"), C(pread64, "dblo"), C(preadv, "dino"), C(write, "dbl"),
    C(writev, "din"), C(pwrite64, "dblo"), C(pwritev, "dino"), C(close, "d"), C(close_range, "ddn"), C(dup, "d"),
    C(dup3, "dDn"), C(fcntl, "dnx"), C(flock, "dn"), C(lseek, "don"), C(ioctl, "dxu"), C(ioctl, "dqu"), C(ioctl, "dqu"),
    C(fsync, "d"), C(ftruncate, "do"), C(ftruncate, "do"), C(fallocate, "dnoo"), C(fallocate, "dnoo"), C(getdents64, "dbl"),
    C(pipe2, "bn"), C(pselect6, "nbbbtb"), C(fadvise64, "dooN"), C(ppoll, "bntbz"), C(cachestat, "dbb0"), C(userfaultfd, "x"),
    C(eventfd2, "nn"), C(vmsplice, "dinn"), C(memfd_create, "sn"), C(openat, "dsnn"), C(openat, "hsnn"), C(newfstatat, "hsbn"),
    C(fstat, "db"), C(statx, "hsnnb"), C(statfs, "sb"), C(fstatfs, "db"), C(faccessat, "hsn"), C(mkdirat, "hsn"),
    C(mknodat, "hsnn"), C(symlinkat, "shs"), C(linkat, "hshsn"), C(unlinkat, "hsn"), C(renameat2, "hshsn"),
    C(readlinkat, "hsbl"), C(truncate, "so"), C(fchmodat, "hsn"), C(fchmod, "dn"), C(fchownat, "hsnnn"), C(fchown, "dnn"),
    C(utimensat, "hsbn"), C(chdir, "s"), C(fchdir, "d"), C(getcwd, "bl"), C(mount, "sssxb"), C(umount2, "sn"), C(swapon, "sn"),
    C(swapoff, "s"), C(umask, "n"), C(wait4, "PbNb"), C(waitid, "nPbNb"), C(pidfd_open, "Pn"), C(pidfd_send_signal, "dgb0"),
    C(pidfd_getfd, "dn0"), C(process_mrelease, "d0"), C(getpgid, "P"), C(getsid, "P"), C(setpgid, "PP"), C(setsid, ""),
    C(setuid, "x"), C(setresuid, "xxx"), C(setgroups, "nb"), C(getgroups, "nb"), C(capget, "bb"), C(capset, "bb"),
    C(getpriority, "nP"), C(setpriority, "nPn"), C(rt_sigaction, "gbbz"), C(rt_sigprocmask, "nbbz"), C(rt_sigpending, "bz"),
    C(rt_sigsuspend, "bz"), C(rt_sigtimedwait, "bbtz"), C(rt_sigqueueinfo, "Pgb"), C(rt_tgsigqueueinfo, "PPgb"),
    C(sigaltstack, "bb"), C(kill, "Pg"), C(tkill, "Pg"), C(tgkill, "PPg"), C(futex, "wnntwn"), C(futex, "wfntwn"),
    C(futex_waitv, "bn0tc"), C(get_robust_list, "Pbb"), C(set_robust_list, "bn"), C(set_tid_address, "a"), C(sched_yield, ""),
    C(sched_getaffinity, "Plb"), C(sched_setaffinity, "Plb"), C(sched_setscheduler, "Pnb"), C(sched_getparam, "Pb"),
    C(clock_gettime, "cb"), C(clock_getres, "cb"), C(nanosleep, "tb"), C(clock_nanosleep, "cntb"), C(setitimer, "nbb"),
    C(getitimer, "nb"), C(timer_create, "cbb"), C(timer_settime, "nnbb"), C(timer_gettime, "nb"), C(timer_getoverrun, "n"),
    C(timer_delete, "n"), C(prctl, "fxxxx"), C(prctl, "fn000"), C(prlimit64, "Pnbb"), C(getrusage, "nb"), C(times, "b"),
    C(sysinfo, "b"), C(uname, "b"), C(getcpu, "bb0"), C(getrandom, "bln"), C(rt_sigreturn, ""), C(execve, "sbb"),
    C(execveat, "hsbbn"), {SYS_clone, "clone", "Cabbb", true}, {SYS_clone3, "clone3", "Kl", true},
#undef C
    // A call that does not exist, or one that is not in this table.
    {-1, "syscall", "xxxxxx", false},
};

enum { CALLS = sizeof calls / sizeof *calls };

static const char *const paths[] = {
    "/tmp/fuzz/a", "/tmp/fuzz/b", "/tmp/fuzz/c", "/tmp/fuzz/d", "/tmp/fuzz/a/e", "/tmp/fuzz", "/tmp", "/", "", ".", "..",
    "/proc/self/maps", "/proc/self/smaps", "/proc/self/smaps_rollup", "/proc/self/pagemap", "/proc/self/clear_refs",
    "/proc/self/status", "/proc/self/stat", "/proc/self/mem", "/proc/self/fd", "/proc/self/fd/3", "/proc/self/fd/5",
    "/proc/self/task", "/proc/self/oom_score_adj", "/proc/self/exe", "/proc/self/cgroup", "/proc/self/limits",
    "/proc/self/map_files", "/proc/thread-self/comm", "/proc/1/maps", "/proc/1/mem", "/proc/1/pagemap", "/proc/meminfo", "/proc/vmstat",
    "/proc/kpagecount", "/proc/kpageflags", "/proc/swaps", "/proc/stat", "/proc/loadavg", "/proc/buddyinfo",
    "/proc/sysvipc/shm", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/drop_caches", "/proc/sys/vm/max_map_count",
    "/sys/fs/cgroup", "/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory.reclaim", "/sys/fs/cgroup/cgroup.procs",
    "/sys/fs/cgroup/x", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/devices/system/node/node0/meminfo",
    "/sys/devices/system/node/node0/reclaim", "/sys/kernel/mm/audit", "/dev/null", "/dev/zero", "/dev/full", "/dev/urandom",
    "/dev/shm/a", "/dev/userfaultfd",
};

// Returns a process number: the caller's, one nearby, or one that does not exist.
static uint64_t some_process(void) {
    int worker = (int)dice(plan.workers), thread = (int)dice(plan.threads);
    switch (dice(10)) {
    case 0 ... 2:
        return plan.makes_calls ? (uint64_t)getpid() : 0;
    case 3 ... 5:
        return (uint64_t)shared->threads[worker][thread].tid;
    case 6:
        return 0;
    case 7:
        return 1 + dice(4);
    default:
        return ONE_OF(100000, 0xffff8000, 2, 3, 0x80000000, 0);
    }
}

static void set_word(uint64_t at, int index, uint64_t word) {
    if (plan.makes_calls)
        ((volatile uint64_t *)at)[index] = word;
}

// Fills bytes that may pass for a structure: small numbers, addresses, lengths and hostile values.
static uint64_t some_bytes(void) {
    uint64_t at = ARENA + HUGE + dice(64) * 8 + dice(400) * PAGE;
    if (one_in(6))
        return at + PAGE - dice(64); // Crosses a page boundary.
    if (one_in(5))
        return arena_page() + dice(PAGE);
    for (int n = 0; n < 16; n++) {
        const uint64_t word[] = {arena_page(), some_length(), dice(64), 0, hostile(), some_file() | dice(4) << 32};
        set_word(at, n, word[dice(6)]);
    }
    return at;
}

static uint64_t some_ranges(void) {
    uint64_t at = ARENA + HUGE + dice(500) * PAGE;
    for (int n = 0; n < 16; n += 2) {
        set_word(at, n, one_in(12) ? hostile() : arena_page() + (one_in(2) ? dice(PAGE) : 0));
        set_word(at, n + 1, one_in(12) ? hostile() : one_in(3) ? some_length() : dice(2 * PAGE));
    }
    return at;
}

static uint64_t some_time(void) {
    uint64_t at = ARENA + HUGE + dice(500) * PAGE + 256;
    set_word(at, 0, one_in(10) ? hostile() : 0);
    set_word(at, 1, one_in(10) ? hostile() : dice(2000000));
    return at;
}

static uint64_t some_path(void) {
    const char *path = paths[dice(sizeof paths / sizeof *paths)];
    show("\"%s\" is at %#llx", path, (unsigned long long)(uintptr_t)path);
    return (uint64_t)(uintptr_t)path;
}

// Seldom a signal that stops or ends whole process groups: it would end the round and find nothing.
static uint64_t some_signal(void) {
    return one_in(40) ? ONE_OF(SIGTERM, SIGKILL, SIGSTOP) : ONE_OF(0, SIGUSR1, SIGALRM, SIGCHLD, SIGCONT, SIGURG, SIGWINCH, 34, 40, 64);
}

static uint64_t clone_flags(bool shares) {
    uint64_t flags = any() & 0xffffff00 & ~(uint64_t)(0x00000100 | 0x00010000 | 0x00000800);
    if (!one_in(3))
        flags &= ONE_OF(0, 0x400, 0x200, 0x600, 0x1000, 0x01000000, 0x00100000, 0x200000);
    return flags | (shares ? 0x4100 : 0) | (one_in(4) ? some_signal() : SIGCHLD);
}

static uint64_t clone_request(void) {
    uint64_t at = ARENA + HUGE + dice(500) * PAGE + 512;
    for (int n = 0; n < 11; n++)
        set_word(at, n, n > 0 && one_in(8) ? hostile() : 0);
    set_word(at, 0, clone_flags(one_in(4)) & -(uint64_t)0x100);
    set_word(at, 4, one_in(4) ? hostile() : SIGCHLD);
    return at;
}

static uint64_t argument_of(char kind) {
    if (kind != 'C' && kind != 'K' && one_in(14))
        return hostile();
    switch (kind) {
    case 'a':
        return arena_page() + (one_in(20) ? dice(PAGE) : 0);
    case 'l':
        return some_length();
    case 'd':
        return some_file();
    case 'D':
        return 3 + dice(60);
    case 'p':
        return one_in(8) ? any() & 0xf : ONE_OF(3, 3, 3, 1, 0, 5, 7);
    case 'm':
        return ONE_OF(0x10, 0x10, 0x10, 0x100000, 0) | ONE_OF(1, 2, 2, 3) | (one_in(2) ? 0x20 : 0) |
               (one_in(3) ? any() & (0x8000 | 0x4000 | 0x2000 | 0x100 | 0x20000 | 0x10000 | 0x40) : 0);
    case 'v':
        return one_in(10) ? dice(110) : ONE_OF(0, 3, 4, 8, 9, 10, 11, 14, 15, 18, 19, 20, 21, 22, 23, 24, 25, 102, 103);
    case 'b':
    case 'u':
        return one_in(12) ? 0 : some_bytes();
    case 'i':
    case 'I':
        return some_ranges();
    case 's':
        return some_path();
    case 't':
        return some_time();
    case 'n':
        return one_in(6) ? dice(1 << 16) : dice(8);
    case 'N':
        return dice(8) | 1;
    case 'f':
        return ONE_OF(1, 2, 4, 8, 16, 32, 64, 128) + dice(8);
    case 'o':
        return one_in(8) ? hostile() : dice(1024) * PAGE + (one_in(4) ? dice(PAGE) : 0);
    case 'g':
        return some_signal();
    case 'P':
        return some_process();
    case 'c':
        return dice(12);
    case 'w':
        return ARENA + dice(4) * HUGE + dice(8) * 4;
    case 'k':
        return dice(8);
    case 'z':
        return 8;
    case 'h':
        return (uint64_t)-100;
    case 'q': // Requests of userfaultfd and of pagemap.
        return ONE_OF(0xc018aa3f, 0xc020aa00, 0x8010aa01, 0x8010aa02, 0xc028aa03, 0xc020aa04, 0xc028aa05, 0xc018aa06, 0xc020aa07,
                      0xc020aa08, 0xc0606610, 0x541b, 0x5421);
    case 'C':
        return clone_flags(false);
    case 'K':
        return clone_request();
    case 'x':
        return hostile();
    default:
        return 0;
    }
}

static void single_call(void) {
    const struct call *call = &calls[dice(CALLS)];
    uint64_t a[6] = {0};
    for (int n = 0; n < 6 && call->takes[n]; n++)
        a[n] = argument_of(call->takes[n]);
    long number = call->number;
    if (number < 0) {
        number = one_in(4) ? (long)hostile() : (long)dice(480);
        // Not a call that ends the process, nor one that creates a process which would continue
        // here.
        if (number == SYS_exit || number == SYS_exit_group || number == SYS_clone || number == SYS_clone3)
            return;
#ifdef SYS_fork
        if (number == SYS_fork || number == SYS_vfork)
            return;
#endif
    }
    // A child that shares memory but no stack would continue here, too.
    if (number == SYS_clone3)
        a[1] = one_in(5) ? a[1] : 64 + 8 * dice(4);
    long result = make_call(number, call->name, a, call->forks);
    if (number == SYS_openat || number == SYS_memfd_create || number == SYS_userfaultfd || number == SYS_eventfd2 || number == SYS_dup ||
        number == SYS_pidfd_open)
        keep_file(result);
}

#endif
