// edges: what Linux answers at the edges of some system calls. Prints a row for each rule; the
// status is 1 if one is broken. The rules hold on Linux.
#include "common.h"
#include <sys/resource.h>
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

static const struct rule rules[] = {
    {"seals need the right to write", seals_need_the_right_to_write},
    {"unknown clocks are refused", unknown_clocks_are_refused},
    {"affinity is of threads", affinity_is_of_threads},
    {"core files have no limit", core_files_have_no_limit},
    {"timers count CPU time", timers_count_cpu_time},
};

int main(void) {
    return check_rules(rules, sizeof rules / sizeof *rules);
}
