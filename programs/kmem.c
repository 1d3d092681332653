// kmem: kernel memory allocated for a program is charged to its memcg. In a memcg with a limit of 1
// MiB, an unprivileged process creates kernel objects of one kind until the kernel refuses one or
// kills it. The memcg never exceeds its limit by more than a tenth, and the charge is returned
// afterwards. Needs root; creates cgroups of its own.
#include "common.h"
#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>

#define GROUP "/sys/fs/cgroup/kmem"
#define FOLDER "/tmp/kmem"

// The most objects of a kind that are created: each kind would take several times the limit.
enum { LIMIT = 1 << 20, TENTH = LIMIT / 10, LEFT = 32 << 10, MOST = 60000 };

static char pages[64 << 10];

// Creates one more object; returns false if the kernel refuses it.
typedef bool (*creator)(long number);

static bool a_full_pipe(long number) {
    (void)number;
    int ends[2];
    if (pipe2(ends, O_NONBLOCK))
        return false;
    ssize_t written = write(ends[1], pages, sizeof pages);
    return written == sizeof pages;
}

static bool a_descriptor(long number) {
    (void)number;
    return eventfd(0, 0) >= 0;
}

static bool a_memfd(long number) {
    (void)number;
    int file = memfd_create("a name that is of some length, as they go", 0);
    return file >= 0 && ftruncate(file, 1 << 20) == 0;
}

static bool a_name(long number) {
    char path[256];
    snprintf(path, sizeof path, FOLDER "/a-file-in-memory-with-quite-a-long-name-indeed-%ld", number);
    int file = open(path, O_CREAT | O_RDWR, 0600);
    return file >= 0 && close(file) == 0;
}

static bool a_link(long number) {
    char path[64], target[4000];
    snprintf(path, sizeof path, FOLDER "/link-%ld", number);
    memset(target, 'x', sizeof target);
    target[sizeof target - 1] = 0;
    return symlink(target, path) == 0;
}

static bool a_directory(long number) {
    (void)number;
    return mkdir("deeper", 0700) == 0 && chdir("deeper") == 0;
}

static bool a_timer(long number) {
    (void)number;
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_NONE};
    return timer_create(CLOCK_MONOTONIC, &event, &timer) == 0;
}

static bool a_signal(long number) {
    // Each process has a limit of pending signals, so a new process is forked after 3000.
    if (number % 3000 == 0) {
        pid_t child = fork();
        if (child < 0)
            return false;
        if (child) {
            waitpid(child, NULL, 0);
            _exit(0);
        }
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, NULL);
    }
    return sigqueue(getpid(), SIGRTMIN + 1, (union sigval){0}) == 0 || errno == EAGAIN;
}

static bool a_lock(long number) {
    static int file = -1;
    if (file < 0)
        file = memfd_create("locks", 0);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2 * number, .l_len = 1};
    return fcntl(file, F_SETLK, &lock) == 0;
}

static bool a_segment(long number) {
    (void)number;
    return shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600) >= 0;
}

static bool a_process(long number) {
    (void)number;
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    // If an earlier child was killed to make room, the limit is reached.
    return child > 0 && waitpid(-1, NULL, WNOHANG) <= 0;
}

static void *waits(void *of) {
    for (;;)
        pause();
    return of;
}

static bool a_thread(long number) {
    (void)number;
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    return pthread_create(&thread, &attributes, waits, NULL) == 0;
}

static bool a_vma(long number) {
    // Neighbours with different protection do not merge.
    static char *at;
    if (!at)
        at = mmap(NULL, (size_t)MOST * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return mprotect(at + 4096 * number, 4096, number % 2 ? PROT_READ : PROT_READ | PROT_WRITE) == 0;
}

static bool an_argument(long number) {
    // All arguments at once: the program is replaced, or the call fails.
    (void)number;
    static char *arguments[16000];
    for (size_t i = 0; i + 1 < sizeof arguments / sizeof *arguments; i++)
        arguments[i] = "an argument of a hundred bytes, or somewhat less, so that the heap has a "
                       "block of that for each of them";
    execv("/proc/self/exe", arguments);
    return false;
}

static long read_memcg(const char *file) {
    char path[128], line[64];
    snprintf(path, sizeof path, GROUP "/%s", file);
    return read_line(path, line, sizeof line) ? atol(line) : -1;
}

static int create_until_refused(creator create_one) {
    struct rlimit most = {4096, 4096};
    setrlimit(RLIMIT_NOFILE, &most);
    bool in_memcg = write_line(GROUP "/cgroup.procs", "0") && !chdir(FOLDER);
    if (!in_memcg || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
        _exit(2);
    for (long number = 0; number < MOST; number++)
        if (!create_one(number))
            _exit(0);
    _exit(0);
}

// Removes the files in the folder, or the chain of directories.
static void clean(void) {
    if (chdir(FOLDER))
        die(FOLDER);
    struct dirent *entry;
    DIR *folder = opendir(".");
    while (folder && (entry = readdir(folder)))
        unlink(entry->d_name);
    closedir(folder);
    while (chdir("deeper") == 0)
        ;
    while (rmdir("deeper"), chdir("..") == 0 && rmdir("deeper") == 0)
        ;
    if (chdir("/") || rmdir(FOLDER))
        die(FOLDER);
}

// Kills all processes of the cgroup, and waits for their end.
static void end_all(void) {
    write_line(GROUP "/cgroup.kill", "1");
    for (int tries = 0; tries < 1000 && figure(GROUP "/cgroup.events", "populated") > 0; tries++)
        usleep(1000);
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

static bool keeps_to_limit(creator create_one) {
    if (mkdir(GROUP, 0755) || mkdir(FOLDER, 0777) || chmod(FOLDER, 0777))
        die("mkdir");
    char limit[32];
    snprintf(limit, sizeof limit, "%d", LIMIT);
    write_line(GROUP "/memory.max", limit);
    pid_t child = fork();
    if (child == 0)
        create_until_refused(create_one);
    int status = 0;
    waitpid(child, &status, 0);
    bool entered = !(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    end_all();
    long peak = read_memcg("memory.peak");
    clean();
    // Shared memory segments stay charged until they are removed.
    struct shmid_ds info;
    for (int index = 0, id; index < 4096; index++)
        if ((id = shmctl(index, SHM_STAT, &info)) >= 0)
            shmctl(id, IPC_RMID, NULL);
    // The CPUs' stocks drain, and the last exits finish.
    long left = LIMIT;
    for (int tries = 0; tries < 5000 && left > LEFT; tries++) {
        write_line(GROUP "/memory.max", "max");
        left = read_memcg("memory.current");
        usleep(1000);
    }
    bool good = entered && peak > LIMIT / 2 && peak <= LIMIT + TENTH && left <= LEFT;
    if (!good)
        printf("kmem: entered the memcg: %d, peak %ld, left %ld\n", entered, peak, left);
    if (rmdir(GROUP))
        die(GROUP);
    return good;
}

// Sets timers and the limit of CPU time again and again, each time to years from now, and has children that
// do so and end.
static void set_far_timers(void) {
    enum { SETTINGS = 20000, CHILDREN = 2000 };
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_NONE};
    struct itimerspec far = {{0, 0}, {INT_MAX, 0}};
    struct rlimit limit = {INT_MAX, INT_MAX};
    if (!write_line(GROUP "/cgroup.procs", "0") || timer_create(CLOCK_MONOTONIC, &event, &timer))
        _exit(2);
    for (int i = 0; i < SETTINGS; i++) {
        alarm(INT_MAX);
        if (timer_settime(timer, 0, &far, NULL))
            _exit(3);
    }
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(INT_MAX);
            _exit(setrlimit(RLIMIT_CPU, &limit));
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status)
            _exit(4);
    }
    _exit(0);
}

// A timer takes memory once, however often it is set, and none after its process.
static bool settings_of_timers_take_none(void) {
    if (mkdir(GROUP, 0755))
        die("mkdir");
    char limit[32];
    snprintf(limit, sizeof limit, "%d", 4 * LIMIT);
    write_line(GROUP "/memory.max", limit);
    pid_t child = fork();
    if (child == 0)
        set_far_timers();
    int status = 0;
    waitpid(child, &status, 0);
    end_all();
    if (status)
        printf("kmem: the process that sets timers ended with status %x\n", status);
    if (rmdir(GROUP))
        die(GROUP);
    return status == 0;
}

#define RULE(kind)                   \
    static bool check_##kind(void) { \
        return keeps_to_limit(kind);    \
    }

RULE(a_full_pipe)
RULE(a_descriptor)
RULE(a_memfd)
RULE(a_name)
RULE(a_link)
RULE(a_directory)
RULE(a_timer)
RULE(a_signal)
RULE(a_lock)
RULE(a_segment)
RULE(a_process)
RULE(a_thread)
RULE(a_vma)
RULE(an_argument)

static const struct rule rules[] = {
    {"pipes with data", check_a_full_pipe},
    {"descriptors", check_a_descriptor},
    {"memfds", check_a_memfd},
    {"directory entries", check_a_name},
    {"symbolic links", check_a_link},
    {"nested directories", check_a_directory},
    {"timers", check_a_timer},
    {"settings of timers", settings_of_timers_take_none},
    {"pending signals", check_a_signal},
    {"record locks", check_a_lock},
    {"shared memory segments", check_a_segment},
    {"processes", check_a_process},
    {"threads", check_a_thread},
    {"VMAs", check_a_vma},
    {"program arguments", check_an_argument},
};

int main(void) {
    write_line("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
    return check_rules(rules, sizeof rules / sizeof *rules);
}
