// races [RULE]: every event reaches the thread that waits for it, at whatever moment it occurs.
// Runs all rules, or the one of that number. A broken rule prints "no", or never ends. Finds little
// with one CPU.
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

// Computes for up to some ten microseconds, a different time in each round.
static void compute(void) {
    seed = seed * 1664525 + 1013904223;
    for (uint32_t n = seed >> 20; n; n--)
        __asm__ volatile("");
}

static pid_t fork_or_die(void) {
    pid_t child = fork();
    if (child < 0)
        die("fork");
    return child;
}

static int wait_for(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) != child)
        if (errno != EINTR)
            die("waitpid");
    return status;
}

static pthread_t start_thread(void *(*function)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, function, argument))
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

// Takes a pending signal; returns whether it was pending.
static bool take_signal(int signal) {
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

// A vfork whose child ends at once.
static bool vfork_returns(void) {
    for (int round = 0; round < 2 * ROUNDS; round++) {
        pid_t child = vfork();
        if (!child)
            _exit(0);
        wait_for(child);
    }
    return true;
}

// A fatal signal to a parent while its vfork's child runs.
static bool vfork_is_killable(void) {
    const int fatal[] = {SIGKILL, SIGTERM};
    volatile pid_t *child = shared_page();
    bool good = true;
    for (int n = 0; n < 2; n++) {
        *child = 0;
        pid_t parent = fork_or_die();
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
        int status = wait_for(parent);
        good = good && WIFSIGNALED(status) && WTERMSIG(status) == fatal[n] && kill(*child, SIGKILL) == 0;
    }
    return good;
}

// A FIFO is opened for reading, and its waiting writer closes it as soon as it has a reader.
static bool fifo_opens(void) {
    const char *path = "/tmp/races-fifo";
    unlink(path);
    if (mkfifo(path, 0600))
        die("mkfifo");
    volatile int *rounds = shared_page();
    pid_t reader = fork_or_die();
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
        // poll reports an error as long as the FIFO has no reader.
        while (poll(&file, 1, 0) && rounds[1] < round) {
        }
        close(file.fd);
        while (rounds[1] < round) {
        }
    }
    unlink(path);
    return wait_for(reader) == 0;
}

static int ends[2];
static volatile bool stop;
static volatile int zeros;
static bool selects;

static void *take_bytes(void *unused) {
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

// Three threads wait for the same bytes: one of them takes each.
static bool poll_reports_events(void) {
    for (int kind = 0; kind < 2; kind++) {
        selects = kind, stop = false;
        if (pipe2(ends, O_NONBLOCK | O_CLOEXEC))
            die("pipe2");
        pthread_t threads[3];
        for (int n = 0; n < 3; n++)
            threads[n] = start_thread(take_bytes, NULL);
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

// After wait reports a child's end its signal is pending, and the other way round; likewise for a
// pidfd.
static bool child_end_is_signalled(void) {
    bool good = true;
    block(SIGCHLD);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t child = fork_or_die();
        if (!child) {
            compute();
            _exit(0);
        }
        int status, pidfd;
        switch (round % 4) {
        case 0:
            wait_for(child);
            good = take_signal(SIGCHLD) && good;
            break;
        case 1:
            while (waitpid(child, &status, WNOHANG) == 0)
                compute();
            good = take_signal(SIGCHLD) && good;
            break;
        case 2:
            while (!take_signal(SIGCHLD))
                compute();
            good = waitpid(child, &status, WNOHANG) == child && good;
            break;
        default:
            pidfd = (int)syscall(SYS_pidfd_open, child, 0);
            struct pollfd file = {pidfd, POLLIN, 0};
            while (poll(&file, 1, 0) == 0)
                compute();
            good = waitpid(child, &status, WNOHANG) == child && good;
            close(pidfd);
            while (!take_signal(SIGCHLD))
                compute();
        }
    }
    unblock(SIGCHLD);
    return good;
}

// When the signal of a child that stops or continues is pending, wait reports it.
static bool child_stop_is_signalled(void) {
    bool good = true;
    block(SIGCHLD);
    pid_t child = fork_or_die();
    if (!child)
        for (;;)
            pause();
    for (int round = 0; round < ROUNDS / 4; round++) {
        int status;
        kill(child, SIGSTOP);
        while (!take_signal(SIGCHLD))
            compute();
        good = waitpid(child, &status, WUNTRACED | WNOHANG) == child && WIFSTOPPED(status) && good;
        kill(child, SIGCONT);
        while (!take_signal(SIGCHLD))
            compute();
        good = waitpid(child, &status, WCONTINUED | WNOHANG) == child && WIFCONTINUED(status) && good;
    }
    kill(child, SIGKILL);
    wait_for(child);
    unblock(SIGCHLD);
    return good;
}

// A process and its parent end at once: the subreaper is notified of the child.
static bool subreapers_are_notified(void) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t child = fork_or_die();
        if (!child) {
            if (!fork_or_die()) {
                compute();
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

static void compute_until_released(int signal) {
    (void)signal;
    for (handled++; sleepers[own].released < handled;) {
    }
}

// A process that a signal has woken runs, or is runnable, until it sleeps again.
static bool woken_is_running(void) {
    pid_t children[SLEEPERS];
    bool good = true;
    sleepers = shared_page();
    for (own = 0; own < SLEEPERS; own++)
        if (!(children[own] = fork_or_die())) {
            signal(SIGUSR1, compute_until_released);
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
        wait_for(children[n]);
    }
    return good;
}

static uint32_t word;
static volatile long woken;

static void *wait_on_futex(void *unused) {
    (void)unused;
    while (!stop) {
        struct timespec soon = {0, 50000};
        if (syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &soon, NULL, 0) == 0)
            __atomic_fetch_add(&woken, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

// A wake that the waker counts ends a wait as woken, even if its timeout expires too.
static bool futex_wakes_count(void) {
    stop = false;
    pthread_t threads[3];
    for (int n = 0; n < 3; n++)
        threads[n] = start_thread(wait_on_futex, NULL);
    long counted = 0;
    for (int round = 0; round < 20 * ROUNDS; round++) {
        counted += syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        compute();
    }
    stop = true;
    for (int n = 0; n < 3; n++)
        pthread_join(threads[n], NULL);
    return counted > 0 && counted == woken;
}

// A signal arrives as a thread begins to wait for it.
static bool awaited_signal_comes(void) {
    int there[2], back[2];
    if (pipe(there) || pipe(back))
        die("pipe");
    block(SIGUSR1);
    pid_t parent = getpid(), child = fork_or_die();
    char byte = 0;
    if (!child) {
        for (int round = 0; round < 3 * ROUNDS; round++) {
            if (read(there[0], &byte, 1) != 1)
                _exit(1);
            compute();
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
    return wait_for(child) == 0;
}

static void *sleep_forever(void *unused) {
    (void)unused;
    for (;;)
        pause();
    return NULL;
}

// Reports that it runs, and ends the thread when the second flag is set.
static void *exit_when_flagged(void *flags) {
    volatile bool *there = flags, *go = there + 1;
    *there = true;
    while (!*go) {
    }
    compute();
    syscall(SYS_exit, 0);
    return NULL;
}

// One thread of a process ends as the process is signalled: another thread takes the signal.
static bool signals_reach_another_thread(void) {
    volatile bool *flags = shared_page();
    for (int round = 0; round < ROUNDS / 5; round++) {
        flags[0] = flags[1] = false;
        seed += (uint32_t)round;
        pid_t child = fork_or_die();
        if (!child) {
            // The first thread is the kernel's first choice, and ends.
            start_thread(sleep_forever, NULL);
            exit_when_flagged((void *)flags);
        }
        while (!flags[0])
            sched_yield();
        flags[1] = true;
        compute();
        kill(child, SIGTERM);
        if (!WIFSIGNALED(wait_for(child)))
            return false;
    }
    return true;
}

static void *create_threads(void *depth) {
    pthread_attr_t attributes;
    pthread_t next;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    while (pthread_create(&next, &attributes, create_threads, depth))
        usleep(10);
    return NULL;
}

static void *execute(void *name) {
    char *arguments[] = {name, "nothing", NULL};
    execv("/proc/self/exe", arguments);
    return NULL;
}

// A process ends, or executes a program, while its threads create threads; or two threads execute
// one.
static bool all_threads_end(void) {
    bool good = true;
    for (int round = 0; round < 60; round++) {
        pid_t child = fork_or_die();
        if (!child) {
            for (int n = 0; n < 2; n++)
                create_threads(NULL);
            usleep((useconds_t)(round % 10) * 20);
            if (round % 3 == 0)
                _exit(0);
            if (round % 3 == 1)
                start_thread(execute, "races");
            execute("races");
            pause();
        }
        good = wait_for(child) == 0 && good;
    }
    return good;
}

static void fork_forever(void) {
    for (;;)
        if (fork() < 0)
            usleep(100);
}

// A signal to a process group reaches children that are being created.
static bool groups_end(void) {
    for (int round = 0; round < 20; round++) {
        struct rlimit most;
        int files[2];
        if (pipe(files) || getrlimit(RLIMIT_NPROC, &most))
            die("pipe");
        pid_t child = fork_or_die();
        if (!child) {
            setpgid(0, 0);
            close(files[0]);
            // Without root's rights, so that RLIMIT_NPROC holds.
            most.rlim_cur = 40;
            if (setrlimit(RLIMIT_NPROC, &most) || (getuid() == 0 && setuid(12345)))
                _exit(1);
            fork_forever();
        }
        close(files[1]);
        setpgid(child, child);
        usleep(2000 + (useconds_t)round * 300);
        kill(-child, SIGKILL);
        wait_for(child);
        // All of the group's processes had the other end.
        char byte;
        if (read(files[0], &byte, 1) != 0)
            return false;
        close(files[0]);
    }
    return true;
}

// The files of a process whose threads all end at once are closed.
static bool files_are_closed(void) {
    for (int round = 0; round < ROUNDS / 5; round++) {
        int files[2];
        if (pipe2(files, O_CLOEXEC))
            die("pipe2");
        pid_t child = fork_or_die();
        if (!child) {
            static volatile bool flags[2];
            start_thread(exit_when_flagged, (void *)flags);
            while (!flags[0])
                sched_yield();
            flags[1] = true;
            compute();
            syscall(SYS_exit, 0);
        }
        close(files[1]);
        char byte;
        // Not reaped yet.
        if (read(files[0], &byte, 1) != 0)
            return false;
        close(files[0]);
        wait_for(child);
    }
    return true;
}

static void *restore_limit(void *unused) {
    (void)unused;
    struct rlimit limit;
    while (!stop) {
        if (getrlimit(RLIMIT_MSGQUEUE, &limit))
            die("getrlimit");
        // Fails if the hard limit was lowered meanwhile.
        setrlimit(RLIMIT_MSGQUEUE, &limit);
    }
    return NULL;
}

// An unprivileged thread lowers a hard limit again and again, while another sets the value that it
// just read: the limit must never rise.
static bool limits_stay_low(void) {
    pid_t child = fork_or_die();
    if (!child) {
        struct rlimit limit = {1 << 20, 1 << 20}, found;
        if (setrlimit(RLIMIT_MSGQUEUE, &limit) || (getuid() == 0 && setuid(12345)))
            _exit(2);
        stop = false;
        pthread_t thread = start_thread(restore_limit, NULL);
        bool good = true;
        for (int round = 0; round < 20 * ROUNDS; round++) {
            limit.rlim_cur = --limit.rlim_max;
            setrlimit(RLIMIT_MSGQUEUE, &limit);
            compute();
            getrlimit(RLIMIT_MSGQUEUE, &found);
            good = good && found.rlim_max <= limit.rlim_max;
        }
        stop = true;
        pthread_join(thread, NULL);
        _exit(!good);
    }
    return wait_for(child) == 0;
}

// A timer whose first expiry is soon, and whose interval is the longest.
static bool longest_interval_fires(void) {
    pid_t child = fork_or_die();
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
    return wait_for(child) == 0;
}

static void ignore(int signal) {
    (void)signal;
}

// Signals interrupt reads of a full pipe: each byte is read once.
static bool interrupted_reads_lose_nothing(void) {
    enum { MIB = 1 << 20, TIMES = 40 };
    static char memory[1 << 20];
    int ends[2];
    if (pipe(ends) || fcntl(ends[1], F_SETPIPE_SZ, MIB) != MIB)
        return false;
    pid_t child = fork_or_die();
    if (!child) {
        struct itimerval often = {{0, 200}, {0, 200}};
        struct sigaction action = {.sa_handler = ignore};
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
    return wait_for(child) == 0;
}

enum { LONG = 1 << 30, FILES = 256 << 20, MOST = 64, STACK = 16 << 10 };

// The subject of a long call: 1 GiB of addresses, or a file, with its part of FILES bytes.
static struct work {
    char *memory;
    int file;
    off_t size;
} works[MOST];
static volatile int began;

static int populate(void *of) {
    struct work *work = of;
    __atomic_fetch_add(&began, 1, __ATOMIC_SEQ_CST);
    return madvise(work->memory, LONG, MADV_POPULATE_READ);
}

static int lock(void *of) {
    struct work *work = of;
    __atomic_fetch_add(&began, 1, __ATOMIC_SEQ_CST);
    return mlock(work->memory, LONG);
}

static int lock_all(void *unused) {
    (void)unused;
    __atomic_fetch_add(&began, 1, __ATOMIC_SEQ_CST);
    return mlockall(MCL_CURRENT);
}

static int advise(void *of) {
    enum { PARTS = 1024 };
    static struct iovec parts[PARTS];
    struct work *work = of;
    for (int n = 0; n < PARTS; n++)
        parts[n] = (struct iovec){work->memory + n * (LONG / PARTS), LONG / PARTS};
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    __atomic_fetch_add(&began, 1, __ATOMIC_SEQ_CST);
    return syscall(SYS_process_madvise, self, parts, PARTS, MADV_POPULATE_READ, 0) < 0;
}

static int allocate(void *of) {
    struct work *work = of;
    __atomic_fetch_add(&began, 1, __ATOMIC_SEQ_CST);
    return fallocate(work->file, 0, 0, work->size);
}

// Returns whether a call is complete: the last page is present, or the file has its size.
static bool is_complete(const struct work *work) {
    struct stat file;
    if (fstat(work->file, &file))
        die("fstat");
    return file.st_size || pages_present(work->memory + LONG - PAGE, PAGE);
}

// As many processes as CPUs make a long call. Another process must run before one of the calls is
// complete, and must kill them before that.
static bool gives_way(int (*call)(void *)) {
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    pid_t children[MOST];
    if (count < 1 || count > MOST)
        die("%ld processors", count);
    // Each page is a read fault of its own, so the calls take memory for page tables alone.
    char *memory = mmap(NULL, LONG, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *stacks = map_aligned(MOST * STACK);
    if (memory == MAP_FAILED || madvise(memory, LONG, MADV_NOHUGEPAGE))
        die("mmap");
    began = 0;
    // The processes share their memory, so that their progress is visible after their end.
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
        good = !is_complete(works + n) && good;
    for (long n = 0; n < count; n++)
        kill(children[n], SIGKILL);
    for (long n = 0; n < count; n++) {
        int status = wait_for(children[n]);
        good = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !is_complete(works + n) && good;
    }
    for (long n = 0; n < count; n++)
        close(works[n].file);
    munlockall();
    munmap(stacks, MOST * STACK);
    munmap(memory, LONG);
    return good;
}

static bool populate_gives_way(void) {
    return gives_way(populate);
}

static bool lock_gives_way(void) {
    return gives_way(lock);
}

static bool lock_all_gives_way(void) {
    return gives_way(lock_all);
}

static bool advice_gives_way(void) {
    return gives_way(advise);
}

static bool allocation_gives_way(void) {
    return gives_way(allocate);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "nothing"))
        return 0;
    const struct rule rules[] = {
        {"vfork returns even if its child ends at once", vfork_returns},
        {"a fatal signal ends a vfork's wait", vfork_is_killable},
        {"a FIFO opens even if its other end is closed at once", fifo_opens},
        {"poll and select without a timeout report an event", poll_reports_events},
        {"a child's end is waitable when its signal is pending, and conversely", child_end_is_signalled},
        {"a child's stop is waitable when its signal is pending", child_stop_is_signalled},
        {"a subreaper is notified of an orphan's end", subreapers_are_notified},
        {"a woken process is runnable", woken_is_running},
        {"a counted futex wake ends a wait as woken", futex_wakes_count},
        {"a signal ends the wait for it", awaited_signal_comes},
        {"a signal that an ending thread does not take reaches another", signals_reach_another_thread},
        {"no thread outlives its process", all_threads_end},
        {"a signal to a process group reaches all of it", groups_end},
        {"files are closed when the last thread ends", files_are_closed},
        {"a hard limit that was lowered does not rise", limits_stay_low},
        {"a timer with the longest interval fires", longest_interval_fires},
        {"a signal during a read loses no bytes", interrupted_reads_lose_nothing},
        {"other processes run beside MADV_POPULATE_READ, and a signal ends it", populate_gives_way},
        {"other processes run beside mlock, and a signal ends it", lock_gives_way},
        {"other processes run beside mlockall, and a signal ends it", lock_all_gives_way},
        {"other processes run beside process_madvise, and a signal ends it", advice_gives_way},
        {"other processes run beside fallocate, and a signal ends it", allocation_gives_way},
    };
    long number = argument(argc, argv, 1, 0);
    if (number > (long)(sizeof rules / sizeof *rules))
        die("no rule %ld", number);
    return number ? check_rules(rules + number - 1, 1) : check_rules(rules, sizeof rules / sizeof *rules);
}
