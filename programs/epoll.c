// epoll: waits on sets of pipes and event counters. Prints a row for each rule; the status is 1 if
// one is broken. The rules hold on Linux.
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { MOST = 8 };

static int set;
static struct epoll_event found[MOST];

static int control(int operation, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    errno = 0;
    return epoll_ctl(set, operation, fd, &event);
}

// Returns whether exactly one event is there within `timeout` ms, this one.
static bool gets(int timeout, uint32_t events, uint64_t data) {
    int count = epoll_wait(set, found, MOST, timeout);
    return count == 1 && found[0].events == events && found[0].data.u64 == data;
}

static bool gets_none(void) {
    return epoll_wait(set, found, MOST, 0) == 0;
}

static bool put_byte(int fd) {
    return write(fd, "x", 1) == 1;
}

static bool take_byte(int fd) {
    char byte;
    return read(fd, &byte, 1) == 1;
}

// A level-triggered file is reported as long as it has an event, an edge-triggered one with each new
// one, and a file of one shot once.
static bool events_are_reported_by_their_kind(void) {
    bool good = true;
    static const uint32_t kinds[] = {0, EPOLLET, EPOLLONESHOT};
    for (int i = 0; i < 3; i++) {
        int ends[2];
        good &= !pipe(ends) && !control(EPOLL_CTL_ADD, ends[0], EPOLLIN | kinds[i], 7 + (1ull << 40));
        good &= gets_none() && put_byte(ends[1]) && gets(0, EPOLLIN, 7 + (1ull << 40));
        good &= kinds[i] ? gets_none() : gets(0, EPOLLIN, 7 + (1ull << 40));
        good &= put_byte(ends[1]);
        good &= kinds[i] == EPOLLONESHOT ? gets_none() : gets(0, EPOLLIN, 7 + (1ull << 40));
        good &= !control(EPOLL_CTL_MOD, ends[0], EPOLLIN | kinds[i], 8) && gets(0, EPOLLIN, 8);
        good &= take_byte(ends[0]) && take_byte(ends[0]) && gets_none();
        close(ends[1]);
        good &= kinds[i] == EPOLLONESHOT ? gets_none() : gets(0, EPOLLHUP, 8);
        close(ends[0]);
        good &= gets_none();
    }
    return good;
}

// What can not be in a set, or is not, is refused.
static bool wrong_requests_are_refused(void) {
    static volatile uintptr_t nowhere = 8;
    int ends[2], file = memfd_create("file", 0), path = open("/", O_PATH);
    bool good = !pipe(ends) && control(EPOLL_CTL_ADD, file, EPOLLIN, 0) == -1 && errno == EPERM;
    good &= control(EPOLL_CTL_ADD, path, EPOLLIN, 0) == -1 && errno == EBADF;
    good &= control(EPOLL_CTL_ADD, 999, EPOLLIN, 0) == -1 && errno == EBADF;
    good &= control(EPOLL_CTL_ADD, set, EPOLLIN, 0) == -1 && errno == EINVAL;
    good &= control(EPOLL_CTL_MOD, ends[0], EPOLLIN, 0) == -1 && errno == ENOENT;
    good &= control(EPOLL_CTL_DEL, ends[0], EPOLLIN, 0) == -1 && errno == ENOENT;
    good &= control(9, ends[0], EPOLLIN, 0) == -1 && errno == EINVAL;
    good &= !control(EPOLL_CTL_ADD, ends[0], EPOLLIN, 0);
    good &= control(EPOLL_CTL_ADD, ends[0], EPOLLIN, 0) == -1 && errno == EEXIST;
    errno = 0;
    good &= epoll_wait(set, found, 0, 0) == -1 && errno == EINVAL;
    errno = 0;
    good &= epoll_wait(ends[0], found, 1, 0) == -1 && errno == EINVAL;
    errno = 0;
    good &= epoll_create(0) == -1 && errno == EINVAL;
    good &= put_byte(ends[1]);
    errno = 0;
    // No event is lost that could not be told.
    static const uint32_t kinds[] = {0, EPOLLET, EPOLLONESHOT};
    for (int i = 0; i < 3; i++) {
        good &= !control(EPOLL_CTL_MOD, ends[0], EPOLLIN | kinds[i], 0);
        errno = 0;
        good &= epoll_wait(set, (void *)nowhere, 1, 0) == -1 && errno == EFAULT && gets(0, EPOLLIN, 0);
    }
    close(ends[0]), close(ends[1]), close(file), close(path);
    return good;
}

static void note(int signal) {
    (void)signal;
}

// A wait ends at its time, and with a signal, which a mask may hold back.
static bool waits_end(void) {
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    bool good = epoll_wait(set, found, MOST, 50) == 0;
    clock_gettime(CLOCK_MONOTONIC, &after);
    good &= (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >= 50;
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval soon = {{0, 0}, {0, 50000}};
    setitimer(ITIMER_REAL, &soon, NULL);
    errno = 0;
    good &= epoll_wait(set, found, MOST, -1) == -1 && errno == EINTR;
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGALRM);
    setitimer(ITIMER_REAL, &soon, NULL);
    return good && epoll_pwait(set, found, MOST, 150, &mask) == 0;
}

// A set is a file that has an event if one of its files has.
static bool sets_nest(void) {
    int inner = epoll_create1(EPOLL_CLOEXEC), ends[2];
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1};
    bool good = !pipe(ends) && !epoll_ctl(inner, EPOLL_CTL_ADD, ends[0], &event);
    good &= !control(EPOLL_CTL_ADD, inner, EPOLLIN, 2) && gets_none();
    event.data.u64 = 3;
    errno = 0;
    good &= epoll_ctl(inner, EPOLL_CTL_ADD, set, &event) == -1 && errno == ELOOP;
    good &= put_byte(ends[1]) && gets(1000, EPOLLIN, 2) && take_byte(ends[0]) && gets_none();
    good &= fcntl(inner, F_GETFD) == FD_CLOEXEC;
    close(inner), close(ends[0]), close(ends[1]);
    return good && gets_none();
}

enum { THREADS = 4, EACH = 500 };

static int counters[THREADS];

static void *count_up(void *number) {
    uint64_t one = 1;
    for (int i = 0; i < EACH; i++)
        if (write(counters[(uintptr_t)number], &one, sizeof one) != sizeof one)
            die("write");
    return NULL;
}

// No event is lost that comes while the set is waited on, changed and read.
static bool no_event_is_lost(void) {
    pthread_t threads[THREADS];
    uint64_t total = 0, count;
    for (uintptr_t i = 0; i < THREADS; i++) {
        counters[i] = eventfd(0, EFD_NONBLOCK);
        if (control(EPOLL_CTL_ADD, counters[i], EPOLLIN | (i % 2 ? EPOLLET : 0), i))
            return false;
        pthread_create(threads + i, NULL, count_up, (void *)i);
    }
    while (total < THREADS * EACH) {
        int ready = epoll_wait(set, found, 2, 10000);
        if (ready <= 0)
            break;
        for (int i = 0; i < ready; i++)
            if (read(counters[found[i].data.u64], &count, sizeof count) == sizeof count)
                total += count;
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL), close(counters[i]);
    return total == THREADS * EACH && gets_none();
}

// A child waits on its parent's set, whose files it may have closed.
static bool a_child_has_the_set(void) {
    int ends[2];
    bool good = !pipe(ends) && !control(EPOLL_CTL_ADD, ends[0], EPOLLIN, 5);
    pid_t child = fork();
    if (!child) {
        close(ends[0]);
        _exit(!gets(10000, EPOLLIN, 5));
    }
    int status;
    good &= put_byte(ends[1]) && waitpid(child, &status, 0) == child && !status && gets(0, EPOLLIN, 5);
    close(ends[0]), close(ends[1]);
    return good && gets_none();
}

static const struct rule rules[] = {
    {"events are reported by their kind", events_are_reported_by_their_kind},
    {"wrong requests are refused", wrong_requests_are_refused},
    {"waits end", waits_end},
    {"sets nest", sets_nest},
    {"no event is lost", no_event_is_lost},
    {"a child has the set", a_child_has_the_set},
};

int main(void) {
    set = epoll_create1(0);
    if (set < 0)
        die("epoll_create1");
    return check_rules(rules, sizeof rules / sizeof *rules);
}
