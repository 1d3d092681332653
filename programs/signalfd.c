// signalfd: files from which signals are read. Prints a row for each rule; the status is 1 if one
// is broken. The rules hold on Linux.
#include "common.h"
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>

static struct signalfd_siginfo got[4];

static sigset_t set_of(int first, int second) {
    sigset_t set;
    sigemptyset(&set);
    if (first)
        sigaddset(&set, first);
    if (second)
        sigaddset(&set, second);
    return set;
}

// Blocks the signals, and returns a file for them.
static int file_of(int first, int second, int flags) {
    sigset_t set = set_of(first, second);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, flags);
}

// Returns the number of signals that a read takes, or −errno.
static int take(int file, size_t most) {
    memset(got, 0xff, sizeof got);
    errno = 0;
    ssize_t count = read(file, got, most * sizeof *got);
    return count < 0 ? -errno : count % (ssize_t)sizeof *got ? -1 : (int)(count / (ssize_t)sizeof *got);
}

static int events_of(int file) {
    struct pollfd one = {.fd = file, .events = POLLIN};
    return poll(&one, 1, 0) == 1 ? one.revents : 0;
}

// A file reports pending signals, the lowest numbers first, and a read takes them.
static bool pending_signals_are_read(void) {
    int file = file_of(SIGUSR1, SIGUSR2, SFD_NONBLOCK);
    bool good = take(file, 4) == -EAGAIN && !events_of(file) && !kill(getpid(), SIGUSR2) && events_of(file) == POLLIN;
    // Of a standard signal one is pending, and those of the thread come before those of the process.
    good &= !kill(getpid(), SIGUSR2) && !kill(getpid(), SIGUSR1) && take(file, 4) == 2;
    good &= got[0].ssi_signo == SIGUSR1 && got[1].ssi_signo == SIGUSR2 && take(file, 4) == -EAGAIN;
    good &= !kill(getpid(), SIGUSR1) && !syscall(SYS_tgkill, getpid(), gettid(), SIGUSR2) && take(file, 1) == 1;
    good &= got[0].ssi_signo == SIGUSR2 && got[0].ssi_code == SI_TKILL && take(file, 1) == 1;
    good &= got[0].ssi_signo == SIGUSR1 && got[0].ssi_code == SI_USER && !events_of(file);
    sigset_t pending;
    good &= !sigpending(&pending) && !sigismember(&pending, SIGUSR1) && !sigismember(&pending, SIGUSR2);
    return good && !close(file);
}

// The sender and its value, a child and its end, a timer, and an address come with the signals.
static bool signals_are_described(void) {
    int file = file_of(SIGUSR1, SIGCHLD, 0), real = file_of(SIGRTMIN + 1, 0, 0);
    union sigval value = {.sival_ptr = (void *)0x123456789abull};
    bool good = !kill(getpid(), SIGUSR1) && take(file, 1) == 1 && got[0].ssi_pid == (uint32_t)getpid();
    good &= got[0].ssi_uid == getuid() && got[0].ssi_errno == 0 && got[0].ssi_ptr == 0 && got[0].ssi_status == 0;
    for (const char *byte = (const char *)(&got[0].ssi_arch + 1); byte < (const char *)&got[1]; byte++)
        good &= *byte == 0;
    good &= !sigqueue(getpid(), SIGRTMIN + 1, value) && !sigqueue(getpid(), SIGRTMIN + 1, value) && take(real, 4) == 2;
    good &= got[1].ssi_code == SI_QUEUE && got[1].ssi_ptr == 0x123456789abull && got[1].ssi_int == 0x456789ab;
    good &= got[1].ssi_pid == (uint32_t)getpid();
    pid_t child = fork();
    if (!child)
        _exit(7);
    good &= take(file, 1) == 1 && got[0].ssi_signo == SIGCHLD && got[0].ssi_code == CLD_EXITED;
    good &= got[0].ssi_pid == (uint32_t)child && got[0].ssi_status == 7 && waitpid(child, NULL, 0) == child;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 1, .sigev_value.sival_int = 77};
    struct itimerspec soon = {{0, 0}, {0, 1000000}};
    timer_t timer;
    good &= !timer_create(CLOCK_MONOTONIC, &event, &timer) && !timer_settime(timer, 0, &soon, NULL);
    good &= take(real, 1) == 1 && got[0].ssi_code == SI_TIMER && got[0].ssi_int == 77 && got[0].ssi_overrun == 0;
    good &= got[0].ssi_pid == 0 && !timer_delete(timer);
    return good && !close(file) && !close(real);
}

// The call with an existing file changes the signals that it reports.
static bool masks_change(void) {
    int file = file_of(SIGUSR1, 0, SFD_NONBLOCK);
    sigset_t other = set_of(SIGUSR2, SIGKILL);
    sigprocmask(SIG_BLOCK, &other, NULL);
    bool good = !kill(getpid(), SIGUSR2) && take(file, 1) == -EAGAIN && signalfd(file, &other, 0) == file;
    good &= events_of(file) == POLLIN && !kill(getpid(), SIGUSR1) && take(file, 4) == 1 && got[0].ssi_signo == SIGUSR2;
    char path[64], line[64] = "";
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", file);
    FILE *facts = fopen(path, "re");
    while (facts && fgets(line, sizeof line, facts) && strncmp(line, "sigmask:", 8))
        ;
    good &= facts && !strcmp(line, "sigmask:\t0000000000000800\n") && !fclose(facts);
    sigset_t first = set_of(SIGUSR1, 0);
    good &= signalfd(file, &first, 0) == file && take(file, 4) == 1 && got[0].ssi_signo == SIGUSR1;
    return good && !close(file);
}

static void *sends_later(void *signal) {
    usleep(50000);
    kill(getpid(), (int)(intptr_t)signal);
    return NULL;
}

// Reads, polls and sets of files wait until a signal arrives.
static bool waits_end_with_a_signal(void) {
    int file = file_of(SIGUSR1, SIGUSR2, 0), files = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET}, found;
    struct pollfd one = {.fd = file, .events = POLLIN};
    pthread_t other;
    pthread_create(&other, NULL, sends_later, (void *)(intptr_t)SIGUSR1);
    bool good = take(file, 1) == 1 && got[0].ssi_signo == SIGUSR1;
    pthread_join(other, NULL);
    pthread_create(&other, NULL, sends_later, (void *)(intptr_t)SIGUSR2);
    good &= poll(&one, 1, 10000) == 1 && one.revents == POLLIN;
    pthread_join(other, NULL);
    good &= take(file, 1) == 1 && !epoll_ctl(files, EPOLL_CTL_ADD, file, &event);
    good &= epoll_wait(files, &found, 1, 0) == 0;
    for (int i = 0; i < 3; i++) {
        pthread_create(&other, NULL, sends_later, (void *)(intptr_t)(i & 1 ? SIGUSR1 : SIGUSR2));
        good &= epoll_wait(files, &found, 1, 10000) == 1 && found.events == EPOLLIN;
        pthread_join(other, NULL);
        good &= epoll_wait(files, &found, 1, 0) == 0 && take(file, 1) == 1;
    }
    return good && !close(file) && !close(files);
}

// A child reads its own signals from a file that it inherits, and waits for them.
static bool a_child_reads_its_own_signals(void) {
    int file = file_of(SIGUSR1, 0, 0), ready[2];
    bool good = !pipe(ready) && !kill(getpid(), SIGUSR1) && events_of(file) == POLLIN;
    pid_t child = fork();
    if (!child) {
        bool none = !events_of(file) && write(ready[1], "x", 1) == 1;
        _exit(none && take(file, 1) == 1 && got[0].ssi_pid == (uint32_t)getppid() && !events_of(file) ? 0 : 1);
    }
    char byte;
    int status = -1;
    good &= read(ready[0], &byte, 1) == 1;
    usleep(50000);
    good &= !kill(child, SIGUSR1) && waitpid(child, &status, 0) == child && status == 0;
    good &= events_of(file) == POLLIN && take(file, 1) == 1;
    close(ready[0]), close(ready[1]);
    return good && !close(file);
}

static int other_file;

static void *other_thread(void *unused) {
    (void)unused;
    return (void *)(intptr_t)events_of(other_file);
}

// A signal for one thread is not reported to another.
static bool threads_read_their_own_signals(void) {
    pthread_t other;
    void *seen;
    other_file = file_of(SIGUSR1, 0, 0);
    bool good = !syscall(SYS_tgkill, getpid(), gettid(), SIGUSR1);
    good &= !pthread_create(&other, NULL, other_thread, NULL) && !pthread_join(other, &seen) && !seen;
    good &= take(other_file, 1) == 1 && !kill(getpid(), SIGUSR1);
    good &= !pthread_create(&other, NULL, other_thread, NULL) && !pthread_join(other, &seen);
    good &= (intptr_t)seen == POLLIN && take(other_file, 1) == 1;
    return good && !close(other_file);
}

static bool wrong_requests_are_refused(void) {
    static volatile uintptr_t nowhere = 8;
    sigset_t set = set_of(SIGUSR1, 0);
    int file = file_of(SIGUSR1, 0, 0), ends[2];
    char few[100];
    errno = 0;
    bool good = !pipe(ends) && signalfd(ends[0], &set, 0) == -1 && errno == EINVAL;
    errno = 0;
    good &= signalfd(999, &set, 0) == -1 && errno == EBADF;
    errno = 0;
    good &= signalfd(-1, &set, 1) == -1 && errno == EINVAL;
    errno = 0;
    good &= syscall(SYS_signalfd4, -1, &set, 4, 0) == -1 && errno == EINVAL;
    errno = 0;
    good &= syscall(SYS_signalfd4, -1, (void *)nowhere, 8, 0) == -1 && errno == EFAULT;
    errno = 0;
    good &= read(file, few, sizeof few) == -1 && errno == EINVAL;
    errno = 0;
    good &= write(file, few, sizeof few) == -1 && errno == EINVAL;
    errno = 0;
    good &= pread(file, few, sizeof few, 0) == -1 && errno == ESPIPE;
    int own = file_of(SIGUSR1, 0, SFD_CLOEXEC | SFD_NONBLOCK);
    good &= fcntl(own, F_GETFD) == FD_CLOEXEC;
    good &= (fcntl(own, F_GETFL) & (O_ACCMODE | O_NONBLOCK)) == (O_RDWR | O_NONBLOCK);
    close(ends[0]), close(ends[1]), close(own);
    return good && !close(file);
}

static const struct rule rules[] = {
    {"pending signals are read", pending_signals_are_read},
    {"signals are described", signals_are_described},
    {"masks change", masks_change},
    {"waits end with a signal", waits_end_with_a_signal},
    {"a child reads its own signals", a_child_reads_its_own_signals},
    {"threads read their own signals", threads_read_their_own_signals},
    {"wrong requests are refused", wrong_requests_are_refused},
};

int main(void) {
    return check_rules(rules, sizeof rules / sizeof *rules);
}
