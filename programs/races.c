// races [RULE]: that whatever one thread waits for reaches it, at whatever moment another brings it about; all rules, or one by its
// number. A rule that is broken ends with "no", or never. Needs two processors to tell much.
#include "common.h"
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>

enum { ROUNDS = 1000 };

static uint32_t seed = 1;

// Some time, that differs from round to round: up to some ten microseconds of computing.
static void idle(void) {
    seed = seed * 1664525 + 1013904223;
    for (uint32_t n = seed >> 20; n; n--)
        __asm__ volatile("");
}

static pid_t forked(void) {
    pid_t child = fork();
    if (child < 0)
        die("fork");
    return child;
}

static int status_of(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) != child)
        if (errno != EINTR)
            die("waitpid");
    return status;
}

static pthread_t started(void *(*what)(void *), void *with) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, what, with))
        die("pthread_create");
    return thread;
}

static void *shared_page(void) {
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        die("mmap");
    return page;
}

static void block(int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

// Whether it is pending; then it is taken.
static bool takes(int signal) {
    sigset_t set;
    struct timespec none = {0, 0};
    sigemptyset(&set);
    sigaddset(&set, signal);
    return sigtimedwait(&set, NULL, &none) == signal;
}

static void unblock(int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

// vfork whose child ends at once.
static bool vfork_returns(void) {
    for (int round = 0; round < 2 * ROUNDS; round++) {
        pid_t child = vfork();
        if (!child)
            _exit(0);
        status_of(child);
    }
    return true;
}

// A parent that a signal ends while its vfork's child goes on.
static bool vfork_is_killable(void) {
    const int fatal[] = {SIGKILL, SIGTERM};
    volatile pid_t *child = shared_page();
    bool good = true;
    for (int n = 0; n < 2; n++) {
        *child = 0;
        pid_t parent = forked();
        if (!parent) {
            pid_t own = vfork();
            if (own == 0) {
                *child = getpid();
                sleep(20);
                _exit(0);
            }
            _exit(1);
        }
        while (!*child)
            usleep(100);
        usleep(1000);
        kill(parent, fatal[n]);
        int status = status_of(parent);
        good = good && WIFSIGNALED(status) && WTERMSIG(status) == fatal[n] && kill(*child, SIGKILL) == 0;
    }
    return good;
}

// A FIFO is opened to read, and its writer, there before, goes as soon as it sees the reader.
static bool fifo_opens(void) {
    const char *path = "/tmp/races-fifo";
    unlink(path);
    if (mkfifo(path, 0600))
        die("mkfifo");
    volatile int *rounds = shared_page();
    pid_t reader = forked();
    if (!reader) {
        for (int round = 1; round <= 2 * ROUNDS; round++) {
            while (rounds[0] < round) {
            }
            int file = open(path, O_RDONLY | O_CLOEXEC);
            if (file < 0)
                _exit(1);
            close(file);
            rounds[1] = round;
        }
        _exit(0);
    }
    for (int round = 1; round <= 2 * ROUNDS; round++) {
        int other = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        struct pollfd file = {open(path, O_WRONLY | O_CLOEXEC), 0, POLLERR};
        if (other < 0 || file.fd < 0)
            die("open");
        close(other);
        rounds[0] = round;
        // There is an error as long as nothing reads.
        while (poll(&file, 1, 0) && rounds[1] < round) {
        }
        close(file.fd);
        while (rounds[1] < round) {
        }
    }
    unlink(path);
    return status_of(reader) == 0;
}

static int ends[2];
static volatile bool stop;
static volatile int zeros;
static bool selects;

static void *taker(void *unused) {
    (void)unused;
    while (!stop) {
        int ready;
        if (selects) {
            fd_set set;
            FD_ZERO(&set);
            FD_SET(ends[0], &set);
            ready = select(ends[0] + 1, &set, NULL, NULL, NULL);
        } else {
            struct pollfd file = {ends[0], POLLIN, 0};
            ready = poll(&file, 1, -1);
        }
        if (!ready)
            __atomic_fetch_add(&zeros, 1, __ATOMIC_SEQ_CST);
        char byte;
        if (ready > 0 && read(ends[0], &byte, 1) < 0 && errno != EAGAIN)
            die("read");
    }
    return NULL;
}

// Three threads that wait for the same bytes: one of them takes each.
static bool poll_reports(void) {
    for (int kind = 0; kind < 2; kind++) {
        selects = kind, stop = false;
        if (pipe2(ends, O_NONBLOCK | O_CLOEXEC))
            die("pipe2");
        pthread_t threads[3];
        for (int n = 0; n < 3; n++)
            threads[n] = started(taker, NULL);
        for (int round = 0; round < 5 * ROUNDS; round++) {
            if (write(ends[1], "a", 1) < 0 && errno != EAGAIN)
                die("write");
            if (round % 16 == 0)
                usleep(20);
        }
        stop = true;
        while (write(ends[1], "aaaa", 4) != 4)
            usleep(100);
        for (int n = 0; n < 3; n++)
            pthread_join(threads[n], NULL);
        close(ends[0]);
        close(ends[1]);
    }
    return zeros == 0;
}

// What wait says of a child's end, its signal says too, and the other way round; and what a pidfd says, wait says.
static bool child_signal_is_there(void) {
    bool good = true;
    block(SIGCHLD);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t child = forked();
        if (!child) {
            idle();
            _exit(0);
        }
        int status, pidfd;
        switch (round % 4) {
        case 0:
            status_of(child);
            good = takes(SIGCHLD) && good;
            break;
        case 1:
            while (waitpid(child, &status, WNOHANG) == 0)
                idle();
            good = takes(SIGCHLD) && good;
            break;
        case 2:
            while (!takes(SIGCHLD))
                idle();
            good = waitpid(child, &status, WNOHANG) == child && good;
            break;
        default:
            pidfd = (int)syscall(SYS_pidfd_open, child, 0);
            struct pollfd file = {pidfd, POLLIN, 0};
            while (poll(&file, 1, 0) == 0)
                idle();
            good = waitpid(child, &status, WNOHANG) == child && good;
            close(pidfd);
            while (!takes(SIGCHLD))
                idle();
        }
    }
    unblock(SIGCHLD);
    return good;
}

// What the signal says of a child that stops and goes on, wait says.
static bool stop_signal_is_there(void) {
    bool good = true;
    block(SIGCHLD);
    pid_t child = forked();
    if (!child)
        for (;;)
            pause();
    for (int round = 0; round < ROUNDS / 4; round++) {
        int status;
        kill(child, SIGSTOP);
        while (!takes(SIGCHLD))
            idle();
        good = waitpid(child, &status, WUNTRACED | WNOHANG) == child && WIFSTOPPED(status) && good;
        kill(child, SIGCONT);
        while (!takes(SIGCHLD))
            idle();
        good = waitpid(child, &status, WCONTINUED | WNOHANG) == child && WIFCONTINUED(status) && good;
    }
    kill(child, SIGKILL);
    status_of(child);
    unblock(SIGCHLD);
    return good;
}

// A process and its parent end at once: whoever adopts the child hears of it.
static bool orphans_are_told(void) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t child = forked();
        if (!child) {
            if (!forked()) {
                idle();
                _exit(0);
            }
            _exit(0);
        }
        int found = 0;
        while (wait(NULL) > 0)
            found++;
        if (found != 2)
            return false;
    }
    return true;
}

static char state_of(pid_t process) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    char *name = strrchr(text, ')');
    return name ? name[2] : '?';
}

enum { SLEEPERS = 4 };
static struct {
    volatile bool ready;
    volatile int released;
} *sleepers;
static int own, handled;

static void computes(int signal) {
    (void)signal;
    for (handled++; sleepers[own].released < handled;) {
    }
}

// A process that a signal has woken runs, or wants to, until it sleeps again.
static bool woken_is_running(void) {
    pid_t children[SLEEPERS];
    bool good = true;
    sleepers = shared_page();
    for (own = 0; own < SLEEPERS; own++)
        if (!(children[own] = forked())) {
            signal(SIGUSR1, computes);
            sleepers[own].ready = true;
            for (;;)
                pause();
        }
    for (int round = 1; round <= 50; round++)
        for (int n = 0; n < SLEEPERS; n++) {
            while (!sleepers[n].ready || state_of(children[n]) != 'S')
                usleep(500);
            kill(children[n], SIGUSR1);
            good = state_of(children[n]) != 'S' && good;
            sleepers[n].released = round;
        }
    for (int n = 0; n < SLEEPERS; n++) {
        kill(children[n], SIGKILL);
        status_of(children[n]);
    }
    return good;
}

static uint32_t word;
static volatile long woken;

static void *waiter(void *unused) {
    (void)unused;
    while (!stop) {
        struct timespec soon = {0, 50000};
        if (syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &soon, NULL, 0) == 0)
            __atomic_fetch_add(&woken, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

// Each wake that a waker counts ends a wait as woken, though its time is up as well.
static bool futex_wakes_count(void) {
    stop = false;
    pthread_t threads[3];
    for (int n = 0; n < 3; n++)
        threads[n] = started(waiter, NULL);
    long counted = 0;
    for (int round = 0; round < 20 * ROUNDS; round++) {
        counted += syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        idle();
    }
    stop = true;
    for (int n = 0; n < 3; n++)
        pthread_join(threads[n], NULL);
    return counted > 0 && counted == woken;
}

// A signal that comes as a thread begins to wait for it.
static bool awaited_signal_comes(void) {
    int there[2], back[2];
    if (pipe(there) || pipe(back))
        die("pipe");
    block(SIGUSR1);
    pid_t parent = getpid(), child = forked();
    char byte = 0;
    if (!child) {
        for (int round = 0; round < 3 * ROUNDS; round++) {
            if (read(there[0], &byte, 1) != 1)
                _exit(1);
            idle();
            kill(parent, SIGUSR1);
        }
        _exit(0);
    }
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    for (int round = 0; round < 3 * ROUNDS; round++) {
        if (write(there[1], &byte, 1) != 1)
            die("write");
        while (sigwaitinfo(&set, NULL) != SIGUSR1) {
        }
    }
    unblock(SIGUSR1);
    return status_of(child) == 0;
}

static void *sleeper(void *unused) {
    (void)unused;
    for (;;)
        pause();
    return NULL;
}

// Says that it is there, and ends the thread as soon as it may.
static void *leaver(void *flags) {
    volatile bool *there = flags, *go = there + 1;
    *there = true;
    while (!*go) {
    }
    idle();
    syscall(SYS_exit, 0);
    return NULL;
}

// A signal for a process one of whose threads ends just then: another takes it.
static bool signals_are_handed_on(void) {
    volatile bool *flags = shared_page();
    for (int round = 0; round < ROUNDS / 5; round++) {
        flags[0] = flags[1] = false;
        seed += (uint32_t)round;
        pid_t child = forked();
        if (!child) {
            // The first thread is asked first, and ends.
            started(sleeper, NULL);
            leaver((void *)flags);
        }
        while (!flags[0])
            sched_yield();
        flags[1] = true;
        idle();
        kill(child, SIGTERM);
        if (!WIFSIGNALED(status_of(child)))
            return false;
    }
    return true;
}

static void *maker(void *depth) {
    pthread_attr_t attributes;
    pthread_t next;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    while (pthread_create(&next, &attributes, maker, depth))
        usleep(10);
    return NULL;
}

static void *executor(void *name) {
    char *arguments[] = {name, "nothing", NULL};
    execv("/proc/self/exe", arguments);
    return NULL;
}

// A process ends, or executes a program, while its threads make threads; or two of them execute one.
static bool all_threads_end(void) {
    bool good = true;
    for (int round = 0; round < 60; round++) {
        pid_t child = forked();
        if (!child) {
            for (int n = 0; n < 2; n++)
                maker(NULL);
            usleep((useconds_t)(round % 10) * 20);
            if (round % 3 == 0)
                _exit(0);
            if (round % 3 == 1)
                started(executor, "races");
            executor("races");
            pause();
        }
        good = status_of(child) == 0 && good;
    }
    return good;
}

static void multiplies(void) {
    for (;;)
        if (fork() < 0)
            usleep(100);
}

// A signal for all of a group reaches children that are just being made.
static bool groups_end(void) {
    for (int round = 0; round < 20; round++) {
        struct rlimit most;
        int files[2];
        if (pipe(files) || getrlimit(RLIMIT_NPROC, &most))
            die("pipe");
        pid_t child = forked();
        if (!child) {
            setpgid(0, 0);
            close(files[0]);
            // Not root any more, whom no limit holds.
            most.rlim_cur = 40;
            if (setrlimit(RLIMIT_NPROC, &most) || (getuid() == 0 && setuid(12345)))
                _exit(1);
            multiplies();
        }
        close(files[1]);
        setpgid(child, child);
        usleep(2000 + (useconds_t)round * 300);
        kill(-child, SIGKILL);
        status_of(child);
        // All of them had the other end.
        char byte;
        if (read(files[0], &byte, 1) != 0)
            return false;
        close(files[0]);
    }
    return true;
}

// The files of a process whose threads end at once are closed.
static bool files_are_closed(void) {
    for (int round = 0; round < ROUNDS / 5; round++) {
        int files[2];
        if (pipe2(files, O_CLOEXEC))
            die("pipe2");
        pid_t child = forked();
        if (!child) {
            static volatile bool flags[2];
            started(leaver, (void *)flags);
            while (!flags[0])
                sched_yield();
            flags[1] = true;
            idle();
            syscall(SYS_exit, 0);
        }
        close(files[1]);
        char byte;
        // Not reaped yet.
        if (read(files[0], &byte, 1) != 0)
            return false;
        close(files[0]);
        status_of(child);
    }
    return true;
}

static void *keeper(void *unused) {
    (void)unused;
    struct rlimit limit;
    while (!stop) {
        if (getrlimit(RLIMIT_MSGQUEUE, &limit))
            die("getrlimit");
        // Refused if it was lowered meanwhile.
        setrlimit(RLIMIT_MSGQUEUE, &limit);
    }
    return NULL;
}

// A thread without rights lowers a hard limit again and again, while another sets what it last was: it never rises.
static bool limits_stay_low(void) {
    pid_t child = forked();
    if (!child) {
        struct rlimit limit = {1 << 20, 1 << 20}, found;
        if (setrlimit(RLIMIT_MSGQUEUE, &limit) || (getuid() == 0 && setuid(12345)))
            _exit(2);
        stop = false;
        pthread_t thread = started(keeper, NULL);
        bool good = true;
        for (int round = 0; round < 20 * ROUNDS; round++) {
            limit.rlim_cur = --limit.rlim_max;
            setrlimit(RLIMIT_MSGQUEUE, &limit);
            idle();
            getrlimit(RLIMIT_MSGQUEUE, &found);
            good = good && found.rlim_max <= limit.rlim_max;
        }
        stop = true;
        pthread_join(thread, NULL);
        _exit(!good);
    }
    return status_of(child) == 0;
}

// The first time comes soon, the second after all times that can be counted.
static bool longest_interval_fires(void) {
    pid_t child = forked();
    if (!child) {
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
        struct itimerspec when = {.it_value.tv_nsec = 1000000, .it_interval.tv_sec = LONG_MAX};
        struct timespec soon = {.tv_sec = 10};
        timer_t timer;
        sigset_t set;
        block(SIGUSR1);
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &when, NULL))
            _exit(1);
        _exit(sigtimedwait(&set, NULL, &soon) != SIGUSR1 || timer_gettime(timer, &when) || !when.it_value.tv_sec);
    }
    return status_of(child) == 0;
}

static void nothing(int signal) {
    (void)signal;
}

// Reads of a full pipe, in pieces, and signals that come between them: each byte is read once.
static bool interrupted_reads_lose_nothing(void) {
    enum { MIB = 1 << 20, TIMES = 40 };
    static char memory[1 << 20];
    int ends[2];
    if (pipe(ends) || fcntl(ends[1], F_SETPIPE_SZ, MIB) != MIB)
        return false;
    pid_t child = forked();
    if (!child) {
        struct itimerval often = {{0, 200}, {0, 200}};
        struct sigaction action = {.sa_handler = nothing};
        sigaction(SIGALRM, &action, NULL);
        setitimer(ITIMER_REAL, &often, NULL);
        close(ends[1]);
        long sum = 0;
        ssize_t count;
        while ((count = read(ends[0], memory, sizeof memory)) > 0 || (count < 0 && errno == EINTR))
            sum += count > 0 ? count : 0;
        _exit(sum != (long)TIMES * MIB);
    }
    close(ends[0]);
    for (int time = 0; time < TIMES; time++)
        if (write(ends[1], memory, sizeof memory) != MIB)
            break;
    close(ends[1]);
    return status_of(child) == 0;
}

enum { LONG = 1 << 30, FILES = 256 << 20, MOST = 64, STACK = 16 << 10 };

// What a process works on in a call that takes long: a GiB of addresses, or a file, its part of FILES bytes.
static struct work {
    char *memory;
    int file;
    off_t size;
} works[MOST];
static volatile int began;

static int populates(void *of) {
    struct work *work = of;
    __atomic_fetch_add(&began, 1, __ATOMIC_SEQ_CST);
    return madvise(work->memory, LONG, MADV_POPULATE_READ);
}

static int locks(void *of) {
    struct work *work = of;
    __atomic_fetch_add(&began, 1, __ATOMIC_SEQ_CST);
    return mlock(work->memory, LONG);
}

static int locks_all(void *unused) {
    (void)unused;
    __atomic_fetch_add(&began, 1, __ATOMIC_SEQ_CST);
    return mlockall(MCL_CURRENT);
}

static int advises(void *of) {
    enum { PARTS = 1024 };
    static struct iovec parts[PARTS];
    struct work *work = of;
    for (int n = 0; n < PARTS; n++)
        parts[n] = (struct iovec){work->memory + n * (LONG / PARTS), LONG / PARTS};
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    __atomic_fetch_add(&began, 1, __ATOMIC_SEQ_CST);
    return syscall(SYS_process_madvise, self, parts, PARTS, MADV_POPULATE_READ, 0) < 0;
}

static int allocates(void *of) {
    struct work *work = of;
    __atomic_fetch_add(&began, 1, __ATOMIC_SEQ_CST);
    return fallocate(work->file, 0, 0, work->size);
}

// Whether a call has come to its end: the last page is there, which comes last, or the file has its size.
static bool is_done(const struct work *work) {
    struct stat file;
    if (fstat(work->file, &file))
        die("fstat");
    return file.st_size || pages_present(work->memory + LONG - PAGE, PAGE);
}

// As many processes as there are processors call something that takes long. Another process runs before one of the calls is
// done, and kills them before that.
static bool gives_way(int (*call)(void *)) {
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    pid_t children[MOST];
    if (count < 1 || count > MOST)
        die("%ld processors", count);
    // Each page is faulted in on its own, and only read: so it takes memory for page tables alone.
    char *memory = mmap(NULL, LONG, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *stacks = map_aligned(MOST * STACK);
    if (memory == MAP_FAILED || madvise(memory, LONG, MADV_NOHUGEPAGE))
        die("mmap");
    began = 0;
    // They have the same memory, so that it is seen how far they have come even when they have ended.
    for (long n = 0; n < count; n++) {
        works[n] = (struct work){memory, memfd_create("races", MFD_CLOEXEC), FILES / count};
        if (works[n].file < 0)
            die("memfd_create");
        if ((children[n] = clone(call, stacks + (n + 1) * STACK, CLONE_VM | SIGCHLD, works + n)) < 0)
            die("clone");
    }
    while (began < count)
        sched_yield();
    bool good = true;
    for (long n = 0; n < count; n++)
        good = !is_done(works + n) && good;
    for (long n = 0; n < count; n++)
        kill(children[n], SIGKILL);
    for (long n = 0; n < count; n++) {
        int status = status_of(children[n]);
        good = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !is_done(works + n) && good;
    }
    for (long n = 0; n < count; n++)
        close(works[n].file);
    munlockall();
    munmap(stacks, MOST * STACK);
    munmap(memory, LONG);
    return good;
}

static bool populate_gives_way(void) {
    return gives_way(populates);
}

static bool lock_gives_way(void) {
    return gives_way(locks);
}

static bool lock_all_gives_way(void) {
    return gives_way(locks_all);
}

static bool advice_gives_way(void) {
    return gives_way(advises);
}

static bool allocation_gives_way(void) {
    return gives_way(allocates);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "nothing"))
        return 0;
    const struct rule rules[] = {
        {"a vfork returns though its child ends at once", vfork_returns},
        {"a fatal signal ends a vfork's wait", vfork_is_killable},
        {"a FIFO opens though its other end is closed at once", fifo_opens},
        {"poll and select without a timeout report an event", poll_reports},
        {"a child's end and its signal come together", child_signal_is_there},
        {"a child's stop is there when its signal is", stop_signal_is_there},
        {"an orphan's end reaches the process that adopts it", orphans_are_told},
        {"a process that was woken does not sleep", woken_is_running},
        {"a futex wake that is counted is reported", futex_wakes_count},
        {"a signal ends the wait for it", awaited_signal_comes},
        {"a signal that a thread leaves reaches another", signals_are_handed_on},
        {"no thread outlives its process", all_threads_end},
        {"a signal for a group reaches all of it", groups_end},
        {"files are closed with the last thread", files_are_closed},
        {"a hard limit that was lowered does not rise", limits_stay_low},
        {"a timer with the longest interval fires", longest_interval_fires},
        {"a signal between the pieces of a read loses none", interrupted_reads_lose_nothing},
        {"others run beside MADV_POPULATE_READ, and a signal ends it", populate_gives_way},
        {"others run beside mlock, and a signal ends it", lock_gives_way},
        {"others run beside mlockall, and a signal ends it", lock_all_gives_way},
        {"others run beside process_madvise, and a signal ends it", advice_gives_way},
        {"others run beside fallocate, and a signal ends it", allocation_gives_way},
    };
    long one = argument(argc, argv, 1, 0);
    if (one > (long)(sizeof rules / sizeof *rules))
        die("no rule %ld", one);
    return one ? check_rules(rules + one - 1, 1) : check_rules(rules, sizeof rules / sizeof *rules);
}
