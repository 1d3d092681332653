// fuzz [KEY=VALUE]...: random and valid system calls by processes without rights, on a kernel that must not mind. Keys: seed, rounds,
// milliseconds (of a round, at most), workers, threads, calls (of each thread), pauses (audits in a round), keep (FROM-TO,...: only
// those operations), trace (1: print each call before it is made; 2: and make none).
//
// A round has a number, its seed, from which all that its threads do follows. Each worker forks processes that give up root's rights,
// and do so many operations each. Beside them a bystander does the same few things over and over. The supervisor stops all now
// and then, and has the kernel audit its memory; at the end it kills all, and looks whether everything is back.
#include "fuzz_steps.h"
#include <dirent.h>
#include <grp.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const char AUDIT[] = "/sys/kernel/mm/audit", PLACE[] = "/tmp/fuzz";
// What must be done within so many nanoseconds. Much more than what is slow, but less than for ever.
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

// A fault ends the operation; a thread that goes on with none for long is told to leave it too.
static void leave(int signal) {
    (void)signal;
    if (in_operation)
        siglongjmp(next_operation, 1);
}

static void nothing(int signal) {
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

static void do_one(uint64_t seed, uint64_t number) {
    operation = number;
    chances = mixed(seed * UINT64_C(0x100000001b3) ^ mixed(number));
    if (sigsetjmp(next_operation, 1) == 0) {
        in_operation = true;
        operate();
    }
    in_operation = false;
    if (depth > 0 && plan.does)
        syscall(SYS_exit_group, 0);
}

static void *do_lot(void *argument) {
    const struct lot *lot = argument;
    static __thread char signal_stack[32 << 10];
    stack_t stack = {.ss_sp = signal_stack, .ss_size = sizeof signal_stack};
    sigaltstack(&stack, NULL);
    own = &shared->threads[lot->worker][lot->thread];
    own->tid = plan.does ? (int)syscall(SYS_gettid) : 0;
    uint64_t first = (lot->worker * plan.threads + lot->thread) * plan.calls;
    for (uint64_t n = lot->from; n < lot->from + CHUNK && n < plan.calls && !shared->stop; n++) {
        if (is_kept(first + n))
            do_one(lot->seed, first + n);
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

// A process of a worker: threads that do an equal share, without rights.
static void do_lots(uint64_t seed, uint64_t worker, uint64_t from) {
    struct lot lots[THREADS];
    pthread_t threads[THREADS];
    for (uint64_t n = 0; n < plan.threads; n++) {
        lots[n] = (struct lot){worker, n, from, seed};
        if (n > 0 && pthread_create(&threads[n], NULL, do_lot, &lots[n]))
            lots[n].seed = 0;
    }
    do_lot(&lots[0]);
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

// Waits until a child has ended, and nudges those of its threads that get no further.
static void attend(pid_t child, uint64_t worker) {
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
            // First what ends a wait, then what ends the operation.
            if (tid > 0 && still[n] > 4)
                syscall(SYS_tgkill, child, tid, still[n] % 24 == 23 ? SIGUSR2 : SIGURG);
        }
        if (moves)
            last = now_ns();
        // It may be stopped, or have blocked all signals.
        if (now_ns() - last > 3 * UINT64_C(1000000000) || shared->stop)
            kill(child, SIGKILL);
    }
    show("worker %d: its process ends with %#x", (int)worker, status);
}

static void work(uint64_t seed, uint64_t worker) {
    write_line("/proc/self/oom_score_adj", "-1000");
    map_shared_slot(1);
    map_arena();
    for (int n = 0; n < FILES; n++)
        files[n] = 1000 + n;
    if (plan.does) {
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
                handle(faults[n], leave);
            const int others[] = {SIGURG, SIGALRM, SIGUSR1, SIGVTALRM, SIGPROF, SIGPIPE};
            for (size_t n = 0; n < sizeof others / sizeof *others; n++)
                handle(others[n], nothing);
            do_lots(seed, worker, from);
            _exit(0);
        }
        if (child > 0)
            attend(child, worker);
        else
            usleep(10000);
    }
    _exit(0);
}

static void bystander_enters(int what) {
    shared->bystander_in = what;
    shared->bystander_since = now_ns();
}

static void bystander_leaves(void) {
    // A pause between the two, which has it begin anew, makes the beginning the later one.
    uint64_t now = now_ns(), since = shared->bystander_since, took = now > since ? now - since : 0;
    shared->bystander_since = 0;
    if (took > shared->bystander_longest) {
        shared->bystander_longest = took;
        shared->bystander_longest_in = shared->bystander_in;
    }
}

static const char *const bystander_does[] = {"nothing", "mmap, touch, munmap", "fork, wait", "ftruncate, write", "a look at its memory"};

// Its own memory, and a few calls, over and over. Calls may be refused for want of memory; they may not fail otherwise.
static void stand_by(void) {
    enum { PAGES = 256 };
    write_line("/proc/self/oom_score_adj", "-1000");
    volatile uint64_t *own_memory = (volatile uint64_t *)map_aligned(HUGE);
    int file = memfd_create("bystander", 0);
    for (uint64_t round = 1; !shared->stop; round++) {
        bystander_enters(4);
        for (uint64_t page = 0; page < PAGES; page++) {
            if (round > 1 && own_memory[page * 512 + page] != mixed(page ^ (round - 1)))
                _exit(3);
            own_memory[page * 512 + page] = mixed(page ^ round);
        }
        bystander_leaves();
        bystander_enters(1);
        char *memory = mmap(NULL, 32 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory != MAP_FAILED) {
            touch(memory, 32 * PAGE, round);
            if (munmap(memory, 32 * PAGE))
                _exit(4);
        } else if (errno != ENOMEM)
            _exit(5);
        bystander_leaves();
        bystander_enters(2);
        pid_t child = fork();
        if (child == 0)
            _exit(own_memory[512 + 1] == mixed(1 ^ round) ? 0 : 7);
        int status = 0;
        if (child < 0)
            shared->bystander_refused++;
        else if (waitpid(child, &status, 0) != child || (status && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)))
            _exit(6);
        bystander_leaves();
        bystander_enters(3);
        uint64_t said = round, heard = 0;
        if (ftruncate(file, PAGE * (off_t)(1 + round % 32)) && errno != ENOMEM)
            _exit(8);
        if (pwrite(file, &said, 8, 16) == 8 && (pread(file, &heard, 8, 16) != 8 || heard != said))
            _exit(9);
        bystander_leaves();
        shared->bystander_rounds++;
        usleep(2000);
    }
    _exit(0);
}

// What must be again at the end of a round as it was at its beginning.
struct figures {
    long free, heap, shmem, swap_used, processes;
};

// The numbers that are names in a folder; `turn`, 0 or 1, keeps two such lists apart.
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

// Whether each thread of other processes is in one of these states.
static bool all_are(const char *states, bool tells) {
    bool rest = true;
    for (const char *const *process = names_in("/proc", 0); *process; process++) {
        char path[300], line[600];
        if (atoi(*process) == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/%s/task", *process);
        for (const char *const *thread = names_in(path, 1); *thread; thread++) {
            snprintf(path, sizeof path, "/proc/%s/task/%s/stat", *process, *thread);
            char *state = read_line(path, line, sizeof line) ? strrchr(line, ')') : NULL;
            if (tells && state)
                printf("%.100s\n", line);
            rest &= !state || strchr(states, state[2]);
        }
    }
    return rest;
}

static struct figures look(void) {
    const char *meminfo = "/proc/meminfo";
    // What the supervisor itself has in swap comes back; it may keep its slots, as copies.
    mlockall(MCL_CURRENT);
    munlockall();
    long swapped = figure(meminfo, "SwapTotal") - figure(meminfo, "SwapFree") - figure(meminfo, "SwapCached");
    return (struct figures){figure(meminfo, "MemFree"), figure(meminfo, "SUnreclaim"), figure(meminfo, "Shmem"),
                            swapped, count_processes()};
}

// What the kernel says of its memory, as a text; false: it can't say.
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
    // A thread of a stopped process may be on its way to stop, and the kernel itself in the middle of something: then a difference
    // goes. One that is an error stays, as nothing runs.
    for (int tries = 0; tries < 400 && !sound; tries++) {
        if (tries)
            usleep(50000);
        sound = !read_audit(text, sizeof text) || !strncmp(text, "sound", 5);
    }
    if (!sound) {
        printf("%s", text);
        all_are("", true);
        failed(seed, "audit: %.*s", (int)strcspn(text, "\n"), text);
    }
}

// Stops all others for an audit.
static void pause_all(uint64_t seed) {
    uint64_t began = now_ns(), took = 0;
    bool rest = false;
    for (; !rest && took < HANGS; took = now_ns() - began) {
        // Again and again, for those that were being made.
        kill(-1, SIGSTOP);
        usleep(5000);
        // One that waits for a vfork's child, which is stopped, does not stop.
        rest = all_are(took < HANGS / 30 ? "TZX" : "TZXSD", false);
    }
    if (!rest) {
        all_are("", true);
        failed(seed, "a process does not stop");
    }
    audit(seed);
    // The bystander was not slow in this time.
    if (shared->bystander_since)
        shared->bystander_since = now_ns();
    kill(-1, SIGCONT);
}

// Removes what outlives processes.
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
        failed(seed, "the bystander's %s takes for ever", bystander_does[shared->bystander_in]);
    if (waitpid(bystander, &status, WNOHANG) == bystander)
        failed(seed, "the bystander ended with %#x", status);
}

static void play(uint64_t seed) {
    start_round();
    map_shared_slot(0);
    printf("fuzz: begins %llu\n", (unsigned long long)seed);
    fflush(stdout);
    pid_t bystander = fork(), workers[WORKERS];
    if (bystander == 0)
        stand_by();
    for (uint64_t n = 0; n < plan.workers; n++)
        if ((workers[n] = fork()) == 0)
            work(seed, n);
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
    // Once more, with what is left of them.
    watch_bystander(seed, bystander);
    if (plan.pauses)
        pause_all(seed);
    end_all(seed);
}

// Whether all is back, but for so much: what CPUs keep at hand.
static void compare(uint64_t seed, struct figures before) {
    enum { SLACK = 1024 };
    struct figures after = look();
    for (int tries = 0; tries < 50 &&
         (after.free < before.free - SLACK || after.shmem + after.swap_used > before.shmem + before.swap_used || after.processes != before.processes); tries++) {
        usleep(20000);
        after = look();
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
           shared->bystander_longest / 1000, bystander_does[shared->bystander_longest_in], before.free, after.free, before.heap, after.heap);
    fflush(stdout);
    if (after.processes != before.processes)
        failed(seed, "processes: %ld, not %ld", after.processes, before.processes);
    // Files that were there before may be in swap now, and the other way round.
    if (after.shmem + after.swap_used > before.shmem + before.swap_used)
        failed(seed, "files and swap: %ld kB more than before", after.shmem + after.swap_used - before.shmem - before.swap_used);
    if (after.free < before.free - SLACK)
        failed(seed, "memory: %ld kB less are free than before", before.free - after.free);
}

static void read_keep(char *ranges) {
    for (char *range = strtok(ranges, ","); range; range = strtok(NULL, ",")) {
        unsigned long long from, to;
        int count = sscanf(range, "%llu-%llu", &from, &to);
        if (count < 1 || plan.kept == RANGES)
            die("%s is no range", range);
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
            plan.prints = true, plan.does = atoi(value) < 2;
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
    // An operation executed it.
    if (getuid() == USER)
        return 0;
    read_arguments(argc, argv);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("mmap");
    if (!plan.does) {
        for (uint64_t worker = 0; worker < plan.workers; worker++)
            for (uint64_t from = 0; from < plan.calls; from += CHUNK)
                for (uint64_t thread = 0; thread < plan.threads; thread++)
                    do_lot(&(struct lot){worker, thread, from, plan.seed});
        return 0;
    }
    // It kills all that it may, which is no good idea elsewhere.
    if (getpid() != 1 && access(AUDIT, F_OK))
        die("not a machine of its own");
    mkdir(PLACE, 0777);
    chmod(PLACE, 0777);
    // What is allocated once, and kept.
    audit(0);
    look();
    for (uint64_t round = 0; round < plan.rounds; round++) {
        struct figures before = look();
        play(plan.seed + round);
        compare(plan.seed + round, before);
    }
    return 0;
}
