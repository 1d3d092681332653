// timerfd: timers that are files. Prints a row for each rule; the status is 1 if one is broken. The
// rules hold on Linux.
#include "common.h"
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>

enum { MS = 1000000 };

static int timer;

static int set(int flags, long first_ms, long interval_ms) {
    struct itimerspec wanted = {{interval_ms / 1000, interval_ms % 1000 * MS}, {first_ms / 1000, first_ms % 1000 * MS}};
    errno = 0;
    return timerfd_settime(timer, flags, &wanted, NULL);
}

// Returns the number of expirations, or −errno.
static int64_t take(void) {
    uint64_t count = 0;
    errno = 0;
    return read(timer, &count, sizeof count) == sizeof count ? (int64_t)count : -errno;
}

static double now_in(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

// A read waits for the first expiration, and returns how many there were since the last.
static bool expirations_are_counted(void) {
    double begin = now_in(CLOCK_MONOTONIC);
    timer = timerfd_create(CLOCK_MONOTONIC, 0);
    bool good = !set(0, 60, 20) && take() >= 1;
    double waited = now_in(CLOCK_MONOTONIC) - begin;
    good &= waited >= 60;
    usleep(110000);
    int64_t count = take();
    double all = now_in(CLOCK_MONOTONIC) - begin;
    good &= count >= 5 && (double)count <= (all - 60) / 20 + 1;
    good &= !set(0, 0, 0) && !close(timer);
    return good;
}

// A timer without an interval expires once. It tells the time that is left until then.
static bool a_timer_expires_once(void) {
    struct itimerspec left, wanted = {{0, 0}, {500, 0}};
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    bool good = take() == -EAGAIN && !timerfd_gettime(timer, &left) && !left.it_value.tv_sec && !left.it_value.tv_nsec;
    good &= !set(0, 400000, 7000) && !timerfd_gettime(timer, &left) && left.it_interval.tv_sec == 7;
    good &= left.it_value.tv_sec >= 390 && left.it_value.tv_sec <= 400;
    good &= !timerfd_settime(timer, 0, &wanted, &left) && left.it_interval.tv_sec == 7 && left.it_value.tv_sec >= 390;
    good &= take() == -EAGAIN && !set(0, 20, 0);
    usleep(40000);
    good &= !timerfd_gettime(timer, &left) && !left.it_value.tv_sec && !left.it_value.tv_nsec;
    good &= take() == 1 && take() == -EAGAIN && !close(timer);
    return good;
}

// A time may be absolute, by either clock. What has passed expires at once.
static bool times_may_be_absolute(void) {
    static const clockid_t clocks[] = {CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME};
    bool good = true;
    for (int i = 0; i < 3; i++) {
        timer = timerfd_create(clocks[i], 0);
        double end = now_in(clocks[i]) + 50;
        good &= !set(TFD_TIMER_ABSTIME, (long)end + 1, 0) && take() == 1 && now_in(clocks[i]) >= end;
        good &= !set(TFD_TIMER_ABSTIME, 1, 0) && take() == 1;
        close(timer);
    }
    return good;
}

// A set of files reports a timer at each expiration after a read.
static bool a_set_reports_timers(void) {
    int files = epoll_create1(0);
    bool good = true;
    for (int kind = 0; kind < 2; kind++) {
        struct epoll_event event = {.events = EPOLLIN | (kind ? EPOLLET : 0)}, found;
        timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
        good &= !epoll_ctl(files, EPOLL_CTL_ADD, timer, &event) && epoll_wait(files, &found, 1, 0) == 0;
        good &= !set(0, 20, 20);
        for (int i = 0; i < 4; i++)
            good &= epoll_wait(files, &found, 1, 10000) == 1 && found.events == EPOLLIN && take() >= 1;
        good &= !set(0, 0, 0) && epoll_wait(files, &found, 1, 50) == 0;
        close(timer);
    }
    return good && !close(files);
}

static bool wrong_requests_are_refused(void) {
    struct itimerspec wanted = {{0, 0}, {0, 1000 * MS}};
    errno = 0;
    bool good = timerfd_create(99, 0) == -1 && errno == EINVAL;
    errno = 0;
    good &= timerfd_create(CLOCK_MONOTONIC, 1) == -1 && errno == EINVAL;
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    errno = 0;
    good &= timerfd_settime(timer, 0, &wanted, NULL) == -1 && errno == EINVAL;
    good &= set(64, 1, 1) == -1 && errno == EINVAL;
    errno = 0;
    good &= timerfd_gettime(0, &wanted) == -1 && errno == EINVAL;
    char few[4];
    errno = 0;
    good &= read(timer, few, sizeof few) == -1 && errno == EINVAL;
    errno = 0;
    good &= write(timer, "12345678", 8) == -1 && errno == EINVAL;
    return good && !close(timer);
}

static const struct rule rules[] = {
    {"expirations are counted", expirations_are_counted},
    {"a timer expires once", a_timer_expires_once},
    {"times may be absolute", times_may_be_absolute},
    {"a set reports timers", a_set_reports_timers},
    {"wrong requests are refused", wrong_requests_are_refused},
};

int main(void) {
    return check_rules(rules, sizeof rules / sizeof *rules);
}
