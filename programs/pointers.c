// pointers: passes invalid addresses as every pointer argument of every system call. The kernel
// returns EFAULT where it accesses the memory, and both it and the program survive. Prints a row
// for each argument; the status is 1 if a call returned something else.
#include "common.h"
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>

// Missing in the headers of older systems.
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif

// The kind of an argument. Numbers below 1 << 62 are values.
enum {
    Reads = 1ull << 62, // the call reads it: EFAULT for a bad address
    Writes,             // the call writes it
    MayRead,            // as Reads, but a null pointer is allowed
    MayWrite,           // as Writes, but a null pointer is allowed
    Any,                // the call may ignore it: no result is wrong
    Good,               // readable and writable memory full of zeros
    Path,               // the path of an existing file
    Program,            // the path of this program
    File,               // a descriptor of a file that is not empty
    PipeOut,            // the reading end of an empty non-blocking pipe
    PipeIn,             // the writing end of that pipe
    Directory,          // a descriptor of a directory
    Own,                // this process's number
    Vector,             // one struct iovec of good memory
    Late,               // a time of 0 s
};

#define CALL(name, ...) {#name, SYS_##name, {__VA_ARGS__}}
static const struct call {
    const char *name;
    long number;
    uint64_t arguments[6];
} calls[] = {
#ifdef SYS_open // newer architectures lack these
    CALL(open, Reads, 0), CALL(stat, Reads, Good), CALL(stat, Path, Writes), CALL(lstat, Reads, Good), CALL(lstat, Path, Writes),
    CALL(poll, Reads, 1, 0), CALL(access, Reads, 0), CALL(pipe, Writes), CALL(select, 8, MayRead, 0, 0, Late),
    CALL(select, 8, 0, MayRead, 0, Late), CALL(select, 8, 0, 0, MayRead, Late), CALL(select, 0, 0, 0, 0, MayRead),
    CALL(rename, Reads, Path), CALL(rename, Path, Reads), CALL(mkdir, Reads, 0), CALL(rmdir, Reads), CALL(creat, Reads, 0),
    CALL(link, Reads, Path), CALL(link, Path, Reads), CALL(unlink, Reads), CALL(symlink, Reads, Path), CALL(symlink, Path, Reads),
    CALL(readlink, Reads, Good, 64), CALL(chmod, Reads, 0), CALL(chown, Reads, 0, 0), CALL(lchown, Reads, 0, 0),
    CALL(mknod, Reads, S_IFREG, 0), CALL(arch_prctl, 0x1003, Writes), CALL(arch_prctl, 0x1002, 1ull << 50), CALL(time, MayWrite),
    CALL(utimes, Reads, 0), CALL(utimes, Path, MayRead),
#endif
    CALL(read, File, Writes, 64), CALL(write, PipeIn, Reads, 64), CALL(fstat, File, Writes),
    CALL(rt_sigaction, SIGUSR2, MayRead, 0, 8), CALL(rt_sigaction, SIGUSR2, 0, MayWrite, 8),
    CALL(rt_sigprocmask, SIG_BLOCK, MayRead, 0, 8), CALL(rt_sigprocmask, SIG_BLOCK, 0, MayWrite, 8),
    CALL(pread64, File, Writes, 64, 0), CALL(pwrite64, File, Reads, 64, 0), CALL(readv, File, Reads, 1),
    CALL(writev, PipeIn, Reads, 1), CALL(mremap, Any, PAGE, PAGE, 0), CALL(msync, Any, PAGE, MS_SYNC),
    CALL(mincore, Good, PAGE, Writes), CALL(mincore, Any, PAGE, Good), CALL(madvise, Any, PAGE, MADV_NORMAL),
    CALL(shmat, 99999, Any, 0), CALL(shmdt, Any), CALL(shmctl, 0, 3, Writes), CALL(nanosleep, Reads, 0), CALL(nanosleep, Late, Any),
    CALL(getitimer, 0, Writes), CALL(setitimer, 1, 0, MayWrite), CALL(sendfile, PipeIn, File, MayRead, 0), CALL(uname, Writes),
    CALL(fcntl, File, F_GETLK, Reads), CALL(truncate, Reads, 9), CALL(getdents64, Directory, Writes, 512),
    CALL(getcwd, Writes, 512), CALL(chdir, Reads), CALL(gettimeofday, MayWrite, 0), CALL(gettimeofday, 0, Any),
    CALL(getrlimit, RLIMIT_CORE, Writes), CALL(setrlimit, RLIMIT_CORE, Reads), CALL(getrusage, 0, Writes), CALL(sysinfo, Writes),
    CALL(times, MayWrite), CALL(getgroups, 99, Any), CALL(setgroups, 4, Reads), CALL(getresuid, Writes, Good, Good),
    CALL(getresuid, Good, Writes, Good), CALL(getresuid, Good, Good, Writes), CALL(getresgid, Writes, Good, Good),
    CALL(getresgid, Good, Writes, Good), CALL(getresgid, Good, Good, Writes), CALL(capget, Reads, Good), CALL(capset, Reads, Good),
    CALL(rt_sigpending, Writes, 8), CALL(rt_sigtimedwait, Reads, 0, Late, 8), CALL(rt_sigtimedwait, Good, 0, MayRead, 8),
    CALL(rt_sigtimedwait, Good, Any, Late, 8), CALL(rt_sigqueueinfo, Own, 0, Reads), CALL(rt_sigsuspend, Reads, 8),
    CALL(sigaltstack, MayRead, 0), CALL(sigaltstack, 0, MayWrite), CALL(statfs, Reads, Good), CALL(statfs, Path, Writes),
    CALL(fstatfs, File, Writes), CALL(sched_setparam, 0, Any), CALL(sched_getparam, 0, Any), CALL(sched_setscheduler, 0, 0, Any),
    CALL(sched_rr_get_interval, 0, Writes), CALL(mlock, Any, PAGE), CALL(munlock, Any, PAGE), CALL(prctl, 15, Reads),
    CALL(prctl, 16, Writes), CALL(prctl, 2, Writes), CALL(prctl, 37, Writes), CALL(mount, Any, Reads, Path, 0, 0),
    CALL(mount, 0, Path, MayRead, 0, 0), CALL(umount2, Reads, 0), CALL(sethostname, Any, 4), CALL(futex, Any, 0, 1, Late),
    CALL(futex, Good, 0, 0, MayRead), CALL(futex, Good, 3, 1, 1, Any), CALL(sched_setaffinity, 0, 8, Reads),
    CALL(sched_getaffinity, 0, 8, Writes), CALL(timer_create, 0, MayRead, Good), CALL(timer_create, 0, 0, Writes),
    CALL(clock_gettime, 0, Writes), CALL(clock_getres, 0, MayWrite), CALL(clock_nanosleep, 0, 0, Reads, 0),
    CALL(get_mempolicy, Any, 0, 0, 0, 0), CALL(set_mempolicy, 2, Any, 64), CALL(mbind, Good, PAGE, 2, Any, 64, 0),
    CALL(waitid, P_ALL, 0, Any, WEXITED | WNOHANG, 0), CALL(wait4, -1, Any, WNOHANG, 0), CALL(wait4, -1, 0, WNOHANG, Any),
    CALL(openat, AT_FDCWD, Reads, 0), CALL(mkdirat, AT_FDCWD, Reads, 0), CALL(mknodat, AT_FDCWD, Reads, S_IFREG, 0),
    CALL(fchownat, AT_FDCWD, Reads, 0, 0, 0), CALL(newfstatat, AT_FDCWD, Reads, Good, 0),
    CALL(newfstatat, AT_FDCWD, Path, Writes, 0), CALL(unlinkat, AT_FDCWD, Reads, 0),
    CALL(renameat, AT_FDCWD, Reads, AT_FDCWD, Path), CALL(renameat2, AT_FDCWD, Path, AT_FDCWD, Reads, 0),
    CALL(linkat, AT_FDCWD, Reads, AT_FDCWD, Path, 0), CALL(linkat, AT_FDCWD, Path, AT_FDCWD, Reads, 0),
    CALL(symlinkat, Reads, AT_FDCWD, Path), CALL(symlinkat, Path, AT_FDCWD, Reads), CALL(readlinkat, AT_FDCWD, Reads, Good, 64),
    CALL(fchmodat, AT_FDCWD, Reads, 0), CALL(faccessat, AT_FDCWD, Reads, 0), CALL(faccessat2, AT_FDCWD, Reads, 0, 0),
    CALL(pselect6, 8, MayRead, 0, 0, Late, 0), CALL(pselect6, 0, 0, 0, 0, Late, Any), CALL(ppoll, Reads, 1, Late, 0, 8),
    CALL(ppoll, Good, 0, MayRead, 0, 8), CALL(ppoll, Good, 0, Late, MayRead, 8), CALL(set_robust_list, Any, 24),
    CALL(get_robust_list, 0, Writes, Good), CALL(get_robust_list, 0, Good, Writes), CALL(splice, File, Any, PipeIn, 0, 8, 0),
    CALL(vmsplice, PipeIn, Reads, 1, 0), CALL(move_pages, 0, 1, Reads, 0, Good, 0), CALL(utimensat, AT_FDCWD, Reads, 0, 0),
    CALL(utimensat, AT_FDCWD, Path, MayRead, 0), CALL(eventfd2, 0, 0), CALL(pipe2, Writes, 0), CALL(preadv, File, Reads, 1, 0),
    CALL(pwritev, File, Reads, 1, 0), CALL(rt_tgsigqueueinfo, Own, Own, 0, Reads), CALL(prlimit64, 0, RLIMIT_CORE, MayRead, 0),
    CALL(prlimit64, 0, RLIMIT_CORE, 0, MayWrite), CALL(process_vm_readv, Own, Reads, 1, Vector, 1, 0),
    CALL(process_vm_readv, Own, Vector, 1, Reads, 1, 0), CALL(process_vm_writev, Own, Reads, 1, Vector, 1, 0),
    CALL(getcpu, MayWrite, 0, 0), CALL(getcpu, 0, MayWrite, 0), CALL(getrandom, Writes, 64, 0), CALL(memfd_create, Reads, 0),
    CALL(execve, Reads, 0, 0), CALL(execve, Program, MayRead, 0), CALL(execve, Program, 0, MayRead),
    CALL(execveat, AT_FDCWD, Reads, 0, 0, 0), CALL(copy_file_range, File, MayRead, File, 0, 8, 0),
    CALL(preadv2, File, Reads, 1, 0, 0, 0), CALL(pwritev2, PipeIn, Reads, 1, -1, 0, 0), CALL(statx, AT_FDCWD, Reads, 0, 0, Good),
    CALL(statx, AT_FDCWD, Path, 0, 0, Writes), CALL(clone3, Reads, 88), CALL(clone, CLONE_PARENT_SETTID, 0, Any, 0, 0),
    CALL(set_tid_address, Any), CALL(timer_settime, 0, 0, MayRead, 0), CALL(timer_settime, 0, 0, Good, MayWrite),
    CALL(timer_gettime, 0, Writes), CALL(ioctl, File, FIONREAD, Writes), CALL(ioctl, File, FIONBIO, Reads),
    CALL(rseq, Any, 32, 0, 0), CALL(mlock2, Any, PAGE, 1), CALL(remap_file_pages, Any, PAGE, 0, 0, 0),
    CALL(cachestat, File, Reads, Good, 0), CALL(cachestat, File, Good, Writes, 0), CALL(futex_waitv, MayRead, 1, 0, 0, 0),
    CALL(futex_waitv, Good, 1, 0, MayRead, 0), CALL(mseal, Any, PAGE, 0), CALL(munmap, Any, PAGE),
    CALL(mprotect, Any, PAGE, PROT_READ), CALL(brk, Any), CALL(mmap, Any, PAGE, PROT_READ, 0x100022, -1, 0),
};

static char *good, *unmapped, *forbidden, *constant, *edge;
static int file, ends[2], directory;
static const char path[] = "/tmp/pointers-file";
static struct iovec vector;

static uint64_t value(uint64_t argument) {
    switch (argument) {
    case Good: return (uint64_t)good;
    case Path: return (uint64_t)path;
    case Program: return (uint64_t)"/proc/self/exe";
    case File: return (uint64_t)file;
    case PipeOut: return (uint64_t)ends[0];
    case PipeIn: return (uint64_t)ends[1];
    case Directory: return (uint64_t)directory;
    case Own: return (uint64_t)getpid();
    case Vector: return (uint64_t)&vector;
    case Late: return (uint64_t)good + 2048;
    default: return argument;
    }
}

// Calls with each invalid address as argument `place`. Returns the number of wrong results.
static int wrong(const struct call *call, int place, int *tried) {
    uint64_t kind = call->arguments[place];
    const uint64_t invalid[] = {
        0, 1, PAGE, (uint64_t)unmapped, (uint64_t)forbidden, (uint64_t)edge, 0x7ffffffff000, 0x7fffffffffff, 0x800000000000,
        1ull << 62, 0xffff7fffffffffff, 0xffff800000000000, 0xffffffff80000000, 0xfffffffffffff000, 0xffffffffffffffff,
        (uint64_t)constant,
    };
    int count = 0, last = sizeof invalid / sizeof *invalid - (kind == Reads || kind == MayRead);
    for (int i = kind == MayRead || kind == MayWrite; i < last; i++) {
        uint64_t a[6];
        for (int k = 0; k < 6; k++)
            a[k] = k == place ? invalid[i] : value(call->arguments[k]);
        errno = 0;
        long result = syscall(call->number, a[0], a[1], a[2], a[3], a[4], a[5]);
        bool refused = result == -1 && (errno == EFAULT || errno == ENOSYS);
        // At the edge the call may access the last valid byte alone, and count it as a success.
        bool open = kind == Any || invalid[i] == (uint64_t)edge;
        if (!refused && !open) {
            fprintf(stderr, "%s, argument %d: %#lx: %ld, %s\n", call->name, place, (long)invalid[i], result, strerror(errno));
            count++;
        }
        if (result == 0 && (call->number == SYS_clone || call->number == SYS_clone3))
            _exit(0);
        ++*tried;
    }
    return count;
}

struct handler { // the kernel's layout
    uint64_t function, flags, restorer, mask;
};

// Delivers a signal to a handler whose code, restorer or stack is at an invalid address.
static void handle(int part, uint64_t invalid) {
    enum { FUNCTION, RESTORER, STACK, LENGTH, RESTORER_FLAG = 0x4000000 };
    struct handler handler = {(uint64_t)good, RESTORER_FLAG | SA_ONSTACK, (uint64_t)good, 0};
    stack_t stack = {good, 0, PAGE};
    if (part == FUNCTION)
        handler.function = invalid;
    if (part == RESTORER)
        handler.restorer = invalid;
    if (part == STACK)
        stack.ss_sp = (void *)invalid;
    if (part == LENGTH)
        stack.ss_sp = (void *)invalid, stack.ss_size = -invalid;
    signal(SIGSEGV, SIG_DFL);
    sigaltstack(&stack, NULL);
    syscall(SYS_rt_sigaction, SIGUSR1, &handler, NULL, 8);
    // The page is not executable, so a signal delivered correctly ends in a fault as well.
    raise(SIGUSR1);
    _exit(0);
}

// Returns the number of children that did not die of SIGSEGV or SIGBUS.
static int survivors(int part, int *tried) {
    int count = 0;
    for (int bit = 1; bit <= 64; bit++) {
        int status;
        pid_t child = fork();
        if (!child)
            handle(part, bit == 64 ? ~0ull : -(1ull << bit) ^ (bit & 1 ? 0 : ~0ull));
        waitpid(child, &status, 0);
        count += !WIFSIGNALED(status) || (WTERMSIG(status) != SIGSEGV && WTERMSIG(status) != SIGBUS);
        ++*tried;
    }
    return count;
}

int main(void) {
    bool all_passed = true;
    good = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (good == MAP_FAILED)
        die("mmap");
    constant = good + 2 * PAGE, forbidden = good + 4 * PAGE, unmapped = good + 7 * PAGE, edge = unmapped - 1;
    mprotect(constant, PAGE, PROT_READ);
    mprotect(forbidden, PAGE, PROT_NONE);
    munmap(unmapped, PAGE);
    memset(good + 6 * PAGE, 'x', PAGE);
    vector = (struct iovec){good, 8};
    file = open(path, O_CREAT | O_RDWR | O_TRUNC, 0700), directory = open("/", O_RDONLY | O_DIRECTORY);
    if (file < 0 || directory < 0 || write(file, good, PAGE) != PAGE || pipe2(ends, O_NONBLOCK))
        die("creating the test files");
    signal(SIGALRM, SIG_DFL);
    fflush(stdout);
    for (const struct call *call = calls; call < calls + sizeof calls / sizeof *calls; call++)
        for (int place = 0; place < 6; place++) {
            uint64_t kind = call->arguments[place];
            if (kind < Reads || kind > Any)
                continue;
            int report[2], status, counts[2] = {0, 0};
            if (pipe(report))
                die("pipe");
            pid_t child = fork();
            if (!child) {
                alarm(30);
                lseek(file, 0, SEEK_SET);
                syscall(SYS_timer_create, 0, NULL, good); // timer 0
                counts[1] = wrong(call, place, &counts[0]);
                _exit(write(report[1], counts, sizeof counts) != sizeof counts);
            }
            waitpid(child, &status, 0);
            close(report[1]);
            bool reported = read(report[0], counts, sizeof counts) == sizeof counts;
            close(report[0]);
            // These calls may take away the program's own memory, and so end it.
            bool may_end_itself = call->number == SYS_munmap || call->number == SYS_mprotect || call->number == SYS_brk;
            bool passed = (reported && !counts[1] && status == 0) || may_end_itself;
            all_passed &= passed;
            printf("{\"program\": \"pointers\", \"call\": \"%s\", \"argument\": \"%d\", \"tried\": %d, \"wrong\": %d, \"status\": %d}\n",
                   call->name, place, counts[0], counts[1], passed ? 0 : status ? status : 1);
            fflush(stdout);
        }
    for (int part = 0; part < 4; part++) {
        int tried = 0, count = survivors(part, &tried);
        all_passed &= !count;
        printf("{\"program\": \"pointers\", \"call\": \"handler\", \"argument\": \"%d\", \"tried\": %d, \"wrong\": %d, \"status\": %d}\n", part, tried,
               count, !!count);
    }
    unlink(path);
    return all_passed ? 0 : 1;
}
