// edges: what Linux answers at the edges of some system calls. Prints a row for each rule; the
// status is 1 if one is broken. The rules hold on Linux.
#include "common.h"
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>

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

static bool has_text(const char *path, const char *text) {
    char found[32] = "";
    int file = open(path, O_RDONLY);
    ssize_t count = read(file, found, sizeof found - 1);
    close(file);
    return count == (ssize_t)strlen(text) && !strcmp(found, text);
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
};

int main(void) {
    return check_rules(rules, sizeof rules / sizeof *rules);
}
