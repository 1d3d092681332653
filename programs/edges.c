// edges: what Linux answers at the edges of some system calls. Prints a row for each rule; the
// status is 1 if one is broken. The rules hold on Linux.
#include "common.h"
#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>

// Only a descriptor that may write adds seals.
static bool seals_need_the_right_to_write(void) {
    char path[64];
    int file = memfd_create("sealed", MFD_ALLOW_SEALING);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int reader = open(path, O_RDONLY);
    errno = 0;
    bool good = file >= 0 && reader >= 0 && fcntl(reader, F_ADD_SEALS, F_SEAL_SHRINK) == -1 && errno == EPERM;
    good &= fcntl(reader, F_GET_SEALS) == 0 && fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0;
    good &= fcntl(reader, F_GET_SEALS) == F_SEAL_SHRINK;
    close(reader);
    close(file);
    return good;
}

// A negative clock is the CPU time of a process or a thread, in one of three kinds.
static bool unknown_clocks_are_refused(void) {
    struct timespec time;
    bool good = true;
    for (int clock = -1; clock >= -13; clock -= 4) {
        errno = 0;
        good &= syscall(SYS_clock_gettime, clock, &time) == -1 && errno == EINVAL;
        errno = 0;
        good &= syscall(SYS_clock_getres, clock, &time) == -1 && errno == EINVAL;
    }
    // The calling process: ~0 above the three bits.
    for (int kind = 0; kind < 3; kind++)
        good &= syscall(SYS_clock_gettime, -8 + kind, &time) == 0;
    return good;
}

// There is no thread with a negative ID.
static bool affinity_is_of_threads(void) {
    unsigned long set[16];
    errno = 0;
    bool good = syscall(SYS_sched_getaffinity, -1, sizeof set, set) == -1 && errno == ESRCH;
    good &= syscall(SYS_sched_getaffinity, 0, sizeof set, set) > 0;
    errno = 0;
    good &= syscall(SYS_sched_setaffinity, -1, sizeof set, set) == -1 && errno == ESRCH;
    errno = 0;
    return good && syscall(SYS_sched_getaffinity, -1, 3, set) == -1 && errno == EINVAL;
}

// A program may ask for core files.
static bool core_files_have_no_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_CORE, &limit) || limit.rlim_max != RLIM_INFINITY)
        return false;
    struct rlimit raised = {RLIM_INFINITY, RLIM_INFINITY};
    return !setrlimit(RLIMIT_CORE, &raised) && !setrlimit(RLIMIT_CORE, &limit);
}

static volatile sig_atomic_t alarms[65];

static void count_alarm(int signal) {
    alarms[signal]++;
}

// Computes until `signal` has come, or for at most ten seconds of CPU time. Returns that time.
static double compute_until(int signal) {
    double begin = (double)clock() / CLOCKS_PER_SEC, now = begin;
    while (!alarms[signal] && now < begin + 10)
        now = (double)clock() / CLOCKS_PER_SEC;
    return now - begin;
}

// Timers of CPU time expire after that much of it, and not while the process sleeps.
static bool timers_count_cpu_time(void) {
    static const int kinds[][2] = {{ITIMER_VIRTUAL, SIGVTALRM}, {ITIMER_PROF, SIGPROF}};
    struct timespec pause = {0, 400000000};
    bool good = true;
    for (int i = 0; i < 2; i++) {
        int signal_number = kinds[i][1];
        struct itimerval in = {{0, 0}, {0, 300000}}, left;
        signal(signal_number, count_alarm);
        good &= !setitimer(kinds[i][0], &in, NULL);
        nanosleep(&pause, NULL);
        good &= alarms[signal_number] == 0 && !getitimer(kinds[i][0], &left);
        good &= left.it_value.tv_sec == 0 && left.it_value.tv_usec > 0 && left.it_value.tv_usec <= 320000;
        double used = compute_until(signal_number);
        good &= alarms[signal_number] == 1 && used > 0.2;
        good &= !getitimer(kinds[i][0], &left) && left.it_value.tv_sec == 0 && left.it_value.tv_usec == 0;
    }
    static const clockid_t clocks[] = {CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID};
    for (int i = 0; i < 2; i++) {
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + i};
        struct itimerspec in = {{0, 0}, {0, 300000000}};
        timer_t timer;
        signal(event.sigev_signo, count_alarm);
        good &= !timer_create(clocks[i], &event, &timer) && !timer_settime(timer, 0, &in, NULL);
        nanosleep(&pause, NULL);
        good &= alarms[event.sigev_signo] == 0;
        good &= compute_until(event.sigev_signo) > 0.2 && alarms[event.sigev_signo] == 1 && !timer_delete(timer);
    }
    return good;
}

static bool is_later(struct timespec a, struct timespec b) {
    return a.tv_sec > b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec > b.tv_nsec);
}

// The first write to a page through a shared mapping sets the times of a file in memory. A private
// mapping changes none, and no time that a program set since then changes.
static bool mapped_writes_set_the_times(void) {
    int file = memfd_create("times", 0);
    struct stat before, after;
    bool good = !ftruncate(file, 3 * PAGE);
    char *shared = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *private = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    good &= !fstat(file, &before);
    usleep(30000);
    private[0] = 1;
    good &= !fstat(file, &after) && !is_later(after.st_mtim, before.st_mtim);
    shared[PAGE] = 1;
    usleep(30000);
    good &= !fstat(file, &after) && is_later(after.st_mtim, before.st_mtim) && is_later(after.st_ctim, before.st_ctim);
    struct timespec set[2] = {{1000, 0}, {2000, 0}}, now;
    shared[2 * PAGE] = 1;
    good &= !futimens(file, set) && !fstat(file, &after) && after.st_mtim.tv_sec == 2000;
    good &= !clock_gettime(CLOCK_REALTIME, &now) && !is_later(after.st_ctim, now);
    munmap(shared, 3 * PAGE);
    munmap(private, 3 * PAGE);
    close(file);
    return good;
}

// A private write to a hole of a file in memory makes a page of the hole, which stays as it was.
static bool private_writes_fill_holes(void) {
    int file = memfd_create("hole", 0);
    struct stat before, after;
    char byte = 1;
    bool good = !ftruncate(file, 3 * PAGE) && !fstat(file, &before);
    char *private = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    private[2 * PAGE] = 5;
    good &= !fstat(file, &after) && after.st_blocks == before.st_blocks + (blkcnt_t)PAGE / 512;
    good &= lseek(file, 0, SEEK_DATA) == 2 * (off_t)PAGE && pread(file, &byte, 1, 2 * PAGE) == 1 && !byte;
    good &= private[2 * PAGE] == 5;
    munmap(private, 3 * PAGE);
    close(file);
    return good;
}

// A link that was opened itself is read by an empty path. Anything else is no link.
static bool opened_links_are_read(void) {
    char target[16] = "";
    unlink("/tmp/link");
    bool good = !symlink("target", "/tmp/link");
    int link = open("/tmp/link", O_PATH | O_NOFOLLOW), folder = open("/tmp", O_PATH);
    good &= readlinkat(link, "", target, sizeof target) == 6 && !memcmp(target, "target", 6);
    errno = 0;
    good &= readlinkat(folder, "", target, sizeof target) == -1 && errno == ENOENT;
    errno = 0;
    good &= readlinkat(AT_FDCWD, "", target, sizeof target) == -1 && errno == ENOENT;
    errno = 0;
    good &= syscall(SYS_readlinkat, link, NULL, target, sizeof target) == -1 && errno == EFAULT;
    close(link);
    close(folder);
    return good && !unlink("/tmp/link");
}

// The pool of huge pages is as large as no program has asked for yet.
static bool a_pool_of_huge_pages_is_shown(void) {
#define POOL "/sys/kernel/mm/hugepages/hugepages-2048kB/"
    bool good = has_text(POOL "nr_hugepages", "0\n") && has_text(POOL "free_hugepages", "0\n");
    good &= has_text(POOL "resv_hugepages", "0\n") && has_text(POOL "surplus_hugepages", "0\n");
    int file = open(POOL "nr_hugepages", O_WRONLY);
    good &= write(file, "0\n", 2) == 2;
    errno = 0;
    good &= write(file, "some\n", 5) == -1 && errno == EINVAL;
    return good && !close(file);
}

// The peak resident set of children is that of the largest that was waited for, and none of the
// parent's.
static bool peaks_of_children_are_those_waited_for(void) {
    struct rusage one, all;
    bool good = !getrusage(RUSAGE_CHILDREN, &all);
    long before = all.ru_maxrss;
    size_t length = 24 << 20;
    for (int round = 0; round < 2; round++) {
        // The second child is smaller.
        pid_t child = fork();
        if (!child) {
            char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            touch(memory, round ? length / 4 : length, 1);
            munmap(memory, length);
            _exit(0);
        }
        siginfo_t info;
        good &= !syscall(SYS_waitid, P_PID, child, &info, WEXITED | WNOWAIT, NULL);
        good &= !getrusage(RUSAGE_CHILDREN, &all) && (round || all.ru_maxrss == before);
        if (round)
            good &= wait4(child, NULL, 0, &one) == child;
        else
            good &= !syscall(SYS_waitid, P_PID, child, &info, WEXITED, &one);
        good &= !getrusage(RUSAGE_CHILDREN, &all) && all.ru_maxrss >= 24 << 10 && all.ru_maxrss < 200 << 10;
        good &= round ? one.ru_maxrss < 24 << 10 && one.ru_maxrss >= 6 << 10 : one.ru_maxrss == all.ru_maxrss;
    }
    return good && !getrusage(RUSAGE_SELF, &one) && one.ru_maxrss < 24 << 10;
}

// Fields that a kernel does not know must be zero.
static bool clone3_takes_longer_arguments(void) {
    uint64_t arguments[32] = {[4] = SIGCHLD};
    bool good = true;
    pid_t child = (pid_t)syscall(SYS_clone3, arguments, sizeof arguments);
    if (!child)
        _exit(7);
    int status = 0;
    good &= child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7;
    arguments[31] = 1;
    good &= fails_by(syscall(SYS_clone3, arguments, sizeof arguments), E2BIG);
    good &= fails_by(syscall(SYS_clone3, arguments, PAGE + 8), E2BIG);
    good &= fails_by(syscall(SYS_clone3, arguments, 56), EINVAL);
    char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages + PAGE, PAGE, PROT_NONE);
    memcpy(pages + PAGE - 64, arguments, 64);
    good &= fails_by(syscall(SYS_clone3, pages + PAGE - 64, 128), EFAULT);
    // Numbers for the child: an array and its length, both or neither.
    uint64_t numbers[11] = {[4] = SIGCHLD, [8] = (uintptr_t)&child};
    good &= fails_by(syscall(SYS_clone3, numbers, sizeof numbers), EINVAL);
    munmap(pages, 2 * PAGE);
    return good;
}

// The memory is checked before the process, and the process before the advice.
static bool process_madvise_checks_in_order(void) {
    enum { BAD_ADVICE = 999 };
    struct iovec one = {NULL, 0};
    pid_t child = fork();
    if (!child)
        for (;;)
            pause();
    int status, process = (int)syscall(SYS_pidfd_open, child, 0), own = (int)syscall(SYS_pidfd_open, getpid(), 0);
    bool good = fails_by(syscall(SYS_process_madvise, -1, 8, 1, BAD_ADVICE, 1), EINVAL);
    good &= fails_by(syscall(SYS_process_madvise, -1, 8, 1, BAD_ADVICE, 0), EFAULT);
    good &= fails_by(syscall(SYS_process_madvise, -1, &one, 2000, BAD_ADVICE, 0), EINVAL);
    good &= fails_by(syscall(SYS_process_madvise, -1, &one, 1, BAD_ADVICE, 0), EBADF);
    good &= fails_by(syscall(SYS_process_madvise, process, &one, 1, MADV_DONTNEED, 0), EINVAL);
    good &= syscall(SYS_process_madvise, process, &one, 1, MADV_COLD, 0) == 0;
    good &= syscall(SYS_process_madvise, own, &one, 1, MADV_COLD, 0) == 0;
    // A user without rights is refused before unfit advice.
    pid_t other = fork();
    if (!other)
        _exit(!(!setuid(65534) && fails_by(syscall(SYS_process_madvise, process, &one, 1, MADV_DONTNEED, 0), EACCES)));
    good &= waitpid(other, &status, 0) == other && status == 0;
    kill(child, SIGKILL);
    good &= waitpid(child, NULL, 0) == child;
    good &= fails_by(syscall(SYS_process_madvise, process, &one, 1, MADV_COLD, 0), ESRCH);
    close(process);
    close(own);
    return good;
}

// A signal goes to the process whose directory in /proc the descriptor is of.
static bool directories_of_processes_stand_for_them(void) {
    char path[32];
    pid_t child = fork();
    if (!child)
        for (;;)
            pause();
    snprintf(path, sizeof path, "/proc/%d", child);
    int status, folder = open(path, O_RDONLY | O_DIRECTORY), place = open(path, O_PATH);
    snprintf(path, sizeof path, "/proc/%d/task", child);
    int inside = open(path, O_RDONLY | O_DIRECTORY), all = open("/proc", O_RDONLY | O_DIRECTORY);
    bool good = syscall(SYS_pidfd_send_signal, folder, 0, NULL, 0) == 0;
    good &= fails_by(syscall(SYS_pidfd_send_signal, place, 0, NULL, 0), EBADF);
    good &= fails_by(syscall(SYS_pidfd_send_signal, inside, 0, NULL, 0), EBADF);
    good &= fails_by(syscall(SYS_pidfd_send_signal, all, 0, NULL, 0), EBADF);
    good &= syscall(SYS_pidfd_send_signal, folder, SIGTERM, NULL, 0) == 0;
    good &= waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
    good &= fails_by(syscall(SYS_pidfd_send_signal, folder, 0, NULL, 0), ESRCH);
    close(folder), close(place), close(inside), close(all);
    return good;
}

// Children that are not waited for leave nothing behind: their parent ignores them.
static bool ignored_children_do_not_count(void) {
    struct rusage before, after;
    bool good = !getrusage(RUSAGE_CHILDREN, &before) && signal(SIGCHLD, SIG_IGN) != SIG_ERR;
    pid_t child = fork();
    if (!child) {
        char *memory = mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        touch(memory, 64 << 20, 1);
        _exit(0);
    }
    good &= fails_by(waitpid(child, NULL, 0), ECHILD) && !getrusage(RUSAGE_CHILDREN, &after);
    return good && after.ru_maxrss == before.ru_maxrss && signal(SIGCHLD, SIG_DFL) != SIG_ERR;
}

static void once(int signal) {
    (void)signal;
}

// A handler for one signal is gone after it, and its flags stay.
static bool handlers_for_one_signal_keep_their_flags(void) {
    struct sigaction action = {.sa_handler = once, .sa_flags = (int)(SA_RESETHAND | SA_SIGINFO)}, found;
    bool good = !sigaction(SIGUSR1, &action, NULL) && !raise(SIGUSR1) && !sigaction(SIGUSR1, NULL, &found);
    return good && found.sa_handler == SIG_DFL && found.sa_flags & SA_SIGINFO && found.sa_flags & (int)SA_RESETHAND;
}

// Clocks without a sleep, and the time zone.
static bool clocks_have_their_limits(void) {
    struct timespec time = {0, 1};
    struct timeval now;
    struct timezone zone = {1, 1};
    bool good = fails_by(syscall(SYS_clock_nanosleep, CLOCK_THREAD_CPUTIME_ID, 0, &time, NULL), EOPNOTSUPP);
    good &= !syscall(SYS_gettimeofday, &now, &zone) && !zone.tz_minuteswest && !zone.tz_dsttime;
    good &= fails_by(syscall(SYS_gettimeofday, NULL, 8), EFAULT);
    enum { DEADLINE = 6 };
    return good && !sched_get_priority_max(DEADLINE) && !sched_get_priority_min(DEADLINE);
}

// Memory below `mmap_min_addr` needs a right. An address that is only wished for is moved up.
static bool low_addresses_need_a_right(void) {
    int status, flags = MAP_PRIVATE | MAP_ANONYMOUS, prot = PROT_READ | PROT_WRITE;
    char *low = mmap((void *)PAGE, PAGE, prot, flags | MAP_FIXED, -1, 0);
    bool good = low == (void *)PAGE && !munmap(low, PAGE);
    char *hinted = mmap((void *)PAGE, PAGE, prot, flags, -1, 0);
    good &= hinted == (void *)65536 && !munmap(hinted, PAGE);
    pid_t child = fork();
    if (!child) {
        char *own = mmap(NULL, PAGE, prot, flags, -1, 0);
        int id = shmget(IPC_PRIVATE, PAGE, 0600);
        bool holds = !setuid(65534) && fails_by((long)mmap((void *)PAGE, PAGE, prot, flags | MAP_FIXED, -1, 0), EPERM);
        holds &= fails_by((long)mmap(NULL, PAGE, prot, flags | MAP_FIXED, -1, 0), EPERM);
        holds &= fails_by((long)mmap((void *)PAGE, PAGE, prot, flags | MAP_FIXED_NOREPLACE, -1, 0), EPERM);
        holds &= fails_by((long)mmap((void *)100, PAGE, prot, flags | MAP_FIXED, -1, 0), EINVAL);
        holds &= fails_by((long)mmap((void *)PAGE, 0, prot, flags | MAP_FIXED, -1, 0), EINVAL);
        int moves = MREMAP_MAYMOVE | MREMAP_FIXED;
        holds &= fails_by((long)mremap(own, PAGE, PAGE, moves, (void *)PAGE), EPERM);
        holds &= mmap((void *)65536, PAGE, prot, flags | MAP_FIXED, -1, 0) == (void *)65536;
        shmctl(id, IPC_RMID, NULL);
        _exit(!holds);
    }
    return good && waitpid(child, &status, 0) == child && status == 0;
}

static const struct rule rules[] = {
    {"seals need the right to write", seals_need_the_right_to_write},
    {"unknown clocks are refused", unknown_clocks_are_refused},
    {"affinity is of threads", affinity_is_of_threads},
    {"core files have no limit", core_files_have_no_limit},
    {"timers count CPU time", timers_count_cpu_time},
    {"mapped writes set the times", mapped_writes_set_the_times},
    {"private writes fill holes", private_writes_fill_holes},
    {"opened links are read", opened_links_are_read},
    {"a pool of huge pages is shown", a_pool_of_huge_pages_is_shown},
    {"peaks of children are those waited for", peaks_of_children_are_those_waited_for},
    {"clone3 takes longer arguments", clone3_takes_longer_arguments},
    {"process_madvise checks in order", process_madvise_checks_in_order},
    {"directories of processes stand for them", directories_of_processes_stand_for_them},
    {"low addresses need a right", low_addresses_need_a_right},
    {"ignored children do not count", ignored_children_do_not_count},
    {"handlers for one signal keep their flags", handlers_for_one_signal_keep_their_flags},
    {"clocks have their limits", clocks_have_their_limits},
};

int main(void) {
    return check_rules(rules, sizeof rules / sizeof *rules);
}
