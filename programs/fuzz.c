// fuzz [KEY=VALUE]...: random, mostly valid system calls by unprivileged processes, which the
// kernel must survive. Keys: seed, rounds, milliseconds (of a round, at most), workers, threads,
// calls (of each thread), pauses (audits in a round), keep (FROM-TO,...: only those operations),
// trace (1: prints each call before it is made; 2: makes none).
//
// A round has a number, its seed, which determines all that its threads do. Each worker forks
// processes that give up root's rights and do a number of operations each. A bystander repeats a
// few calls beside them. The supervisor stops all of them now and then and has the kernel audit its
// memory; at the end it kills all, and checks that all memory and swap is free again.
#include "fuzz_steps.h"
#include <dirent.h>
#include <grp.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const char AUDIT[] = "/sys/kernel/mm/audit", PLACE[] = "/tmp/fuzz";
// The time within which every call must end, in nanoseconds: far more than a slow one takes.
#define HANGS UINT64_C(60000000000)

__attribute__((noreturn, format(printf, 2, 3))) static void failed(uint64_t seed, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("fuzz: FAILED: ");
    vprintf(format, arguments);
    printf(" (seed %llu)\n", (unsigned long long)seed);
    fflush(stdout);
    exit(1);
}

// A fault ends the operation, and so does the signal to a thread that makes no progress.
static void leave_operation(int signal) {
    (void)signal;
    if (in_operation)
        siglongjmp(next_operation, 1);
}

static void ignore(int signal) {
    (void)signal;
}

static void handle(int signal, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaction(signal, &action, NULL);
}

static bool is_kept(uint64_t number) {
    for (size_t n = 0; n < plan.kept; n++)
        if (number >= plan.keep[n].from && number <= plan.keep[n].to)
            return true;
    return plan.kept == 0;
}

struct lot {
    uint64_t worker, thread, from;
    uint64_t seed;
};

static void run_operation(uint64_t seed, uint64_t number) {
    operation = number;
    random_state = mixed(seed * UINT64_C(0x100000001b3) ^ mixed(number));
    if (sigsetjmp(next_operation, 1) == 0) {
        in_operation = true;
        operate();
    }
    in_operation = false;
    if (depth > 0 && plan.makes_calls)
        syscall(SYS_exit_group, 0);
}

static void *run_lot(void *argument) {
    const struct lot *lot = argument;
    static __thread char signal_stack[32 << 10];
    stack_t stack = {.ss_sp = signal_stack, .ss_size = sizeof signal_stack};
    sigaltstack(&stack, NULL);
    own = &shared->threads[lot->worker][lot->thread];
    own->tid = plan.makes_calls ? (int)syscall(SYS_gettid) : 0;
    uint64_t first = (lot->worker * plan.threads + lot->thread) * plan.calls;
    for (uint64_t n = lot->from; n < lot->from + CHUNK && n < plan.calls && !shared->stop; n++) {
        if (is_kept(first + n))
            run_operation(lot->seed, first + n);
        atomic_fetch_add(&own->progress, 1);
    }
    own->tid = 0;
    return NULL;
}

static void map_arena(void) {
    void *at = (void *)(ARENA + 2 * HUGE);
    if (mmap(at, ARENA_BYTES - 2 * HUGE, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != at)
        die("mmap");
}

static void map_shared_slot(uint64_t slot) {
    void *at = (void *)(ARENA + slot * HUGE);
    if (mmap(at, HUGE, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED | MAP_ANONYMOUS, -1, 0) != at)
        die("mmap");
}

// A process of a worker: its threads do an equal share each.
static void run_lots(uint64_t seed, uint64_t worker, uint64_t from) {
    struct lot lots[THREADS];
    pthread_t threads[THREADS];
    for (uint64_t n = 0; n < plan.threads; n++) {
        lots[n] = (struct lot){worker, n, from, seed};
        if (n > 0 && pthread_create(&threads[n], NULL, run_lot, &lots[n]))
            lots[n].seed = 0;
    }
    run_lot(&lots[0]);
    for (uint64_t n = 1; n < plan.threads; n++)
        if (lots[n].seed)
            pthread_join(threads[n], NULL);
}

static void give_up_rights(void) {
    struct rlimit most = {200, 200}, core = {0, 0};
    write_line("/proc/self/oom_score_adj", "500");
    setrlimit(RLIMIT_CORE, &core);
    if (setrlimit(RLIMIT_NPROC, &most))
        die("setrlimit");
    if (setgroups(0, NULL) || setresgid(USER, USER, USER) || setresuid(USER, USER, USER))
        die("setresuid");
}

// Waits until a child has ended, and interrupts those of its threads that make no progress.
static void supervise_child(pid_t child, uint64_t worker) {
    long before[THREADS] = {0};
    int still[THREADS] = {0};
    uint64_t last = now_ns();
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        usleep(5000);
        bool moves = false;
        for (uint64_t n = 0; n < plan.threads; n++) {
            struct thread_state *thread = &shared->threads[worker][n];
            long progress = thread->progress;
            still[n] = progress == before[n] ? still[n] + 1 : 0;
            moves |= progress != before[n];
            before[n] = progress;
            int tid = thread->tid;
            // First a signal that ends a wait, then one that ends the operation.
            if (tid > 0 && still[n] > 4)
                syscall(SYS_tgkill, child, tid, still[n] % 24 == 23 ? SIGUSR2 : SIGURG);
        }
        if (moves)
            last = now_ns();
        // The process may be stopped, or block all signals.
        if (now_ns() - last > 3 * UINT64_C(1000000000) || shared->stop)
            kill(child, SIGKILL);
    }
    show("worker %d: its process ends with %#x", (int)worker, status);
}

static void run_worker(uint64_t seed, uint64_t worker) {
    write_line("/proc/self/oom_score_adj", "-1000");
    map_shared_slot(1);
    map_arena();
    for (int n = 0; n < FILES; n++)
        files[n] = 1000 + n;
    if (plan.makes_calls) {
        files[0] = memfd_create("ours", MFD_ALLOW_SEALING);
        if (ftruncate(files[0], HUGE) || pipe2((int *)&files[1], O_NONBLOCK))
            die("files");
        files[3] = open("/tmp/fuzz/a", O_RDWR | O_CREAT, 0666);
    }
    for (uint64_t from = 0; from < plan.calls && !shared->stop; from += CHUNK) {
        pid_t child = fork();
        if (child == 0) {
            give_up_rights();
            setpgid(0, 0);
            int none = open("/dev/null", O_RDWR);
            for (int stream = 0; stream < (plan.prints ? 2 : 3); stream++)
                dup2(none, stream);
            close(none);
            const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGUSR2, SIGSYS};
            for (size_t n = 0; n < sizeof faults / sizeof *faults; n++)
                handle(faults[n], leave_operation);
            const int others[] = {SIGURG, SIGALRM, SIGUSR1, SIGVTALRM, SIGPROF, SIGPIPE};
            for (size_t n = 0; n < sizeof others / sizeof *others; n++)
                handle(others[n], ignore);
            run_lots(seed, worker, from);
            _exit(0);
        }
        if (child > 0)
            supervise_child(child, worker);
        else
            usleep(10000);
    }
    _exit(0);
}

static void start_bystander_call(int what) {
    shared->bystander_in = what;
    shared->bystander_since = now_ns();
}

static void end_bystander_call(void) {
    // A pause between the two reads resets the start, which is then the later one.
    uint64_t now = now_ns(), since = shared->bystander_since, took = now > since ? now - since : 0;
    shared->bystander_since = 0;
    if (took > shared->bystander_longest) {
        shared->bystander_longest = took;
        shared->bystander_longest_in = shared->bystander_in;
    }
}

static const char *const bystander_calls[] = {"nothing", "mmap, touch, munmap", "fork, wait", "ftruncate, write", "check of its memory"};

// Checks its memory and repeats a few calls. A call may fail for lack of memory, and not otherwise.
static void run_bystander(void) {
    enum { PAGES = 256 };
    write_line("/proc/self/oom_score_adj", "-1000");
    volatile uint64_t *memory_under_test = (volatile uint64_t *)map_aligned(HUGE);
    int file = memfd_create("bystander", 0);
    for (uint64_t round = 1; !shared->stop; round++) {
        start_bystander_call(4);
        for (uint64_t page = 0; page < PAGES; page++) {
            if (round > 1 && memory_under_test[page * 512 + page] != mixed(page ^ (round - 1)))
                _exit(3);
            memory_under_test[page * 512 + page] = mixed(page ^ round);
        }
        end_bystander_call();
        start_bystander_call(1);
        char *memory = mmap(NULL, 32 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory != MAP_FAILED) {
            touch(memory, 32 * PAGE, round);
            if (munmap(memory, 32 * PAGE))
                _exit(4);
        } else if (errno != ENOMEM)
            _exit(5);
        end_bystander_call();
        start_bystander_call(2);
        pid_t child = fork();
        if (child == 0)
            _exit(memory_under_test[512 + 1] == mixed(1 ^ round) ? 0 : 7);
        int status = 0;
        if (child < 0)
            shared->bystander_refused++;
        else if (waitpid(child, &status, 0) != child || (status && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)))
            _exit(6);
        end_bystander_call();
        start_bystander_call(3);
        uint64_t written_word = round, read_word = 0;
        if (ftruncate(file, PAGE * (off_t)(1 + round % 32)) && errno != ENOMEM)
            _exit(8);
        if (pwrite(file, &written_word, 8, 16) == 8 && (pread(file, &read_word, 8, 16) != 8 || read_word != written_word))
            _exit(9);
        end_bystander_call();
        shared->bystander_rounds++;
        usleep(2000);
    }
    _exit(0);
}

// The amounts that must be the same at the end of a round as at its beginning.
struct figures {
    long free, heap, shmem, swap_used, processes;
};

// Returns the names in a folder that are numbers. `turn`, 0 or 1, selects one of two buffers.
static const char *const *names_in(const char *path, int turn) {
    static char names[2][1024][12];
    static const char *list[2][1025];
    DIR *folder = opendir(path);
    struct dirent *entry;
    int count = 0;
    while (folder && count < 1024 && (entry = readdir(folder)))
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9') {
            snprintf(names[turn][count], sizeof names[turn][count], "%.11s", entry->d_name);
            list[turn][count] = names[turn][count];
            count++;
        }
    if (folder)
        closedir(folder);
    list[turn][count] = NULL;
    return list[turn];
}

static long count_processes(void) {
    long count = 0;
    for (const char *const *name = names_in("/proc", 0); *name; name++)
        count++;
    return count;
}

// Checks that each thread of all other processes is in one of these states.
static bool all_threads_are_in(const char *states, bool prints) {
    bool at_rest = true;
    for (const char *const *process = names_in("/proc", 0); *process; process++) {
        char path[300], line[600];
        if (atoi(*process) == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/%s/task", *process);
        for (const char *const *thread = names_in(path, 1); *thread; thread++) {
            snprintf(path, sizeof path, "/proc/%s/task/%s/stat", *process, *thread);
            char *state = read_line(path, line, sizeof line) ? strrchr(line, ')') : NULL;
            if (prints && state)
                printf("%.100s\n", line);
            at_rest &= !state || strchr(states, state[2]);
        }
    }
    return at_rest;
}

static struct figures read_figures(void) {
    const char *meminfo = "/proc/meminfo";
    // Swaps in the supervisor's own memory; the slots may stay, with swap-cache pages.
    mlockall(MCL_CURRENT);
    munlockall();
    long swapped = figure(meminfo, "SwapTotal") - figure(meminfo, "SwapFree") - figure(meminfo, "SwapCached");
    return (struct figures){figure(meminfo, "MemFree"), figure(meminfo, "SUnreclaim"), figure(meminfo, "Shmem"),
                            swapped, count_processes()};
}

// Reads the kernel's audit as text; returns false if it can't be made now.
static bool read_audit(char *text, size_t size) {
    int file = open(AUDIT, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, size - 1);
    if (file >= 0)
        close(file);
    text[length > 0 ? length : 0] = 0;
    return length >= 0;
}

static void audit(uint64_t seed) {
    static char text[8192];
    bool sound = false;
    // A thread of a stopped process may still be on its way to stop, and the kernel in the middle
    // of an operation: such a difference vanishes. An error stays, as nothing runs.
    for (int tries = 0; tries < 400 && !sound; tries++) {
        if (tries)
            usleep(50000);
        sound = !read_audit(text, sizeof text) || !strncmp(text, "sound", 5);
    }
    if (!sound) {
        printf("%s", text);
        all_threads_are_in("", true);
        failed(seed, "audit: %.*s", (int)strcspn(text, "\n"), text);
    }
}

// Stops all other processes for an audit.
static void pause_all(uint64_t seed) {
    uint64_t began = now_ns(), took = 0;
    bool at_rest = false;
    for (; !at_rest && took < HANGS; took = now_ns() - began) {
        // Repeated, for processes that were being created.
        kill(-1, SIGSTOP);
        usleep(5000);
        // A process that waits for a vfork's child, which is stopped, does not stop.
        at_rest = all_threads_are_in(took < HANGS / 30 ? "TZX" : "TZXSD", false);
    }
    if (!at_rest) {
        all_threads_are_in("", true);
        failed(seed, "a process does not stop");
    }
    audit(seed);
    // The pause does not count as the bystander's time.
    if (shared->bystander_since)
        shared->bystander_since = now_ns();
    kill(-1, SIGCONT);
}

// Removes the files that outlive processes.
static void clean_up(const char *path) {
    DIR *folder = opendir(path);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        char name[512];
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        struct stat stat;
        if (!lstat(name, &stat) && S_ISDIR(stat.st_mode)) {
            clean_up(name);
            rmdir(name);
        } else
            unlink(name);
    }
    if (folder)
        closedir(folder);
}

static void remove_segments(void) {
    char line[400];
    FILE *list = fopen("/proc/sysvipc/shm", "re");
    while (list && fgets(line, sizeof line, list)) {
        int key, id;
        if (sscanf(line, "%d %d", &key, &id) == 2)
            shmctl(id, IPC_RMID, NULL);
    }
    if (list)
        fclose(list);
}

static void end_all(uint64_t seed) {
    uint64_t began = now_ns();
    shared->stop = true;
    pid_t found;
    kill(-1, SIGKILL);
    do {
        found = waitpid(-1, NULL, WNOHANG);
        if (found == 0) {
            usleep(1000);
            kill(-1, SIGKILL);
        }
        if (now_ns() - began > HANGS)
            failed(seed, "a process does not end");
    } while (found >= 0);
    munmap((void *)ARENA, HUGE);
    remove_segments();
    clean_up(PLACE);
    clean_up("/dev/shm");
}

static void start_round(void) {
    struct thread_state *all = &shared->threads[0][0];
    for (int n = 0; n < WORKERS * THREADS; n++)
        all[n] = (struct thread_state){0};
    shared->stop = false;
    shared->bystander_since = shared->bystander_longest = shared->bystander_rounds = shared->bystander_refused = 0;
}

static void watch_bystander(uint64_t seed, pid_t bystander) {
    uint64_t since = shared->bystander_since;
    int status;
    if (since && now_ns() - since > HANGS)
        failed(seed, "the bystander's %s takes more than a minute", bystander_calls[shared->bystander_in]);
    if (waitpid(bystander, &status, WNOHANG) == bystander)
        failed(seed, "the bystander ended with %#x", status);
}

static void run_round(uint64_t seed) {
    start_round();
    map_shared_slot(0);
    printf("fuzz: begins %llu\n", (unsigned long long)seed);
    fflush(stdout);
    pid_t bystander = fork(), workers[WORKERS];
    if (bystander == 0)
        run_bystander();
    for (uint64_t n = 0; n < plan.workers; n++)
        if ((workers[n] = fork()) == 0)
            run_worker(seed, n);
    uint64_t began = now_ns(), left = plan.workers, pauses = 0;
    while (left > 0 && now_ns() - began < plan.milliseconds * 1000000) {
        usleep(5000);
        watch_bystander(seed, bystander);
        for (uint64_t n = 0; n < plan.workers; n++)
            if (workers[n] > 0 && waitpid(workers[n], NULL, WNOHANG) == workers[n])
                workers[n] = 0, left--;
        if (pauses < plan.pauses && now_ns() - began > (pauses + 1) * 700000000)
            pause_all(seed), pauses++;
    }
    // Once more, with the workers that are left.
    watch_bystander(seed, bystander);
    if (plan.pauses)
        pause_all(seed);
    end_all(seed);
}

// Checks that all memory is free again, except for what CPUs keep in their caches.
static void compare(uint64_t seed, struct figures before) {
    enum { SLACK = 1024 };
    struct figures after = read_figures();
    for (int tries = 0; tries < 50 &&
         (after.free < before.free - SLACK || after.shmem + after.swap_used > before.shmem + before.swap_used || after.processes != before.processes); tries++) {
        usleep(20000);
        after = read_figures();
    }
    long made = 0, refused = 0;
    uint64_t digest = 0;
    for (int worker = 0; worker < WORKERS; worker++)
        for (int thread = 0; thread < THREADS; thread++) {
            struct thread_state *state = &shared->threads[worker][thread];
            made += state->made, refused += state->refused;
            digest = mixed(digest ^ state->digest);
        }
    printf("fuzz: seed %llu: %ld calls, %ld refused, digest %016llx; bystander %lu rounds, %lu forks refused, at most %lu us for %s; "
           "free %ld -> %ld kB, heap %ld -> %ld kB\n",
           (unsigned long long)seed, made, refused, (unsigned long long)digest, shared->bystander_rounds, shared->bystander_refused,
           shared->bystander_longest / 1000, bystander_calls[shared->bystander_longest_in], before.free, after.free, before.heap, after.heap);
    fflush(stdout);
    if (after.processes != before.processes)
        failed(seed, "processes: %ld, expected %ld", after.processes, before.processes);
    // Files that existed before the round may be in swap now, or in memory again.
    if (after.shmem + after.swap_used > before.shmem + before.swap_used)
        failed(seed, "files and swap: %ld kB more than before the round", after.shmem + after.swap_used - before.shmem - before.swap_used);
    if (after.free < before.free - SLACK)
        failed(seed, "free memory: %ld kB less than before the round", before.free - after.free);
}

static void read_keep(char *ranges) {
    for (char *range = strtok(ranges, ","); range; range = strtok(NULL, ",")) {
        unsigned long long from, to;
        int count = sscanf(range, "%llu-%llu", &from, &to);
        if (count < 1 || plan.kept == RANGES)
            die("%s: not a range FROM-TO", range);
        plan.keep[plan.kept].from = from;
        plan.keep[plan.kept++].to = count == 2 ? to : from;
    }
}

static void read_arguments(int argc, char **argv) {
    const struct {
        const char *name;
        uint64_t *value, most;
    } keys[] = {
        {"seed", &plan.seed, UINT64_MAX}, {"rounds", &plan.rounds, UINT64_MAX}, {"milliseconds", &plan.milliseconds, UINT64_MAX / 1000000},
        {"workers", &plan.workers, WORKERS}, {"threads", &plan.threads, THREADS}, {"calls", &plan.calls, UINT32_MAX},
        {"pauses", &plan.pauses, UINT32_MAX},
    };
    for (int n = 1; n < argc; n++) {
        char *value = strchr(argv[n], '=');
        if (!value)
            die("%s: not of the form KEY=VALUE", argv[n]);
        *value++ = 0;
        bool known = !strcmp(argv[n], "keep") || !strcmp(argv[n], "trace");
        if (!strcmp(argv[n], "keep"))
            read_keep(value);
        if (!strcmp(argv[n], "trace"))
            plan.prints = true, plan.makes_calls = atoi(value) < 2;
        for (size_t key = 0; key < sizeof keys / sizeof *keys; key++)
            if (!strcmp(argv[n], keys[key].name)) {
                *keys[key].value = strtoull(value, NULL, 10);
                known = *keys[key].value <= keys[key].most;
            }
        if (!known)
            die("%s=%s: no such key or value", argv[n], value);
    }
}

int main(int argc, char **argv) {
    // An operation executed this program.
    if (getuid() == USER)
        return 0;
    read_arguments(argc, argv);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("mmap");
    if (!plan.makes_calls) {
        for (uint64_t worker = 0; worker < plan.workers; worker++)
            for (uint64_t from = 0; from < plan.calls; from += CHUNK)
                for (uint64_t thread = 0; thread < plan.threads; thread++)
                    run_lot(&(struct lot){worker, thread, from, plan.seed});
        return 0;
    }
    // The program kills every process that it can, which must not happen on a normal system.
    if (getpid() != 1 && access(AUDIT, F_OK))
        die("fuzz kills every process: run it as the first process of a machine");
    mkdir(PLACE, 0777);
    chmod(PLACE, 0777);
    // First, the allocations that are made once and kept.
    audit(0);
    read_figures();
    for (uint64_t round = 0; round < plan.rounds; round++) {
        struct figures before = read_figures();
        run_round(plan.seed + round);
        compare(plan.seed + round, before);
    }
    return 0;
}
