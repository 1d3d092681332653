// limit [MIB]: a memcg keeps to its limit by swapping as far as its swap limit allows; then only a
// process of the memcg is killed. Needs root, and swap of at least twice MIB, such as that of
// `vellum run --swap`. Creates a cgroup of its own.
#include "contents.h"
#include <sys/stat.h>

#define GROUP "/sys/fs/cgroup/limit"

static long mib;

static bool set(const char *file, long bytes) {
    char path[128], value[32];
    snprintf(path, sizeof path, GROUP "/%s", file);
    snprintf(value, sizeof value, "%ld", bytes);
    return write_line(path, bytes < 0 ? "max" : value);
}

static long get(const char *file) {
    char path[128], line[64];
    snprintf(path, sizeof path, GROUP "/%s", file);
    return read_line(path, line, sizeof line) ? atol(line) : -1;
}

static long kills(void) {
    return figure(GROUP "/memory.events", "oom_kill");
}

static char *filled(long length) {
    char *memory = map_aligned((size_t)length);
    for (long page = 0; page < length / PAGE; page++)
        (page % 8 ? same_filled : compressible)((uint64_t *)(memory + page * PAGE), (uint64_t)page);
    return memory;
}

static bool holds(const char *memory, long length) {
    uint64_t words[WORDS];
    for (long page = 0; page < length / PAGE; page++) {
        (page % 8 ? same_filled : compressible)(words, (uint64_t)page);
        if (memcmp(words, memory + page * PAGE, PAGE))
            return false;
    }
    return true;
}

// A process, in the memcg or not, that fills memory and reports that, and checks it on request.
struct process {
    pid_t number;
    int ready, request;
};

static struct process start(bool in_group, long length) {
    int ready[2], request[2];
    if (pipe(ready) || pipe(request))
        die("pipe");
    struct process process = {fork(), ready[0], request[1]};
    if (process.number < 0)
        die("fork");
    if (!process.number) {
        char byte = 0;
        close(request[1]);
        if (in_group && !write_line(GROUP "/cgroup.procs", "0"))
            _exit(2);
        char *memory = filled(length);
        bool requested = write(ready[1], &byte, 1) == 1 && read(request[0], &byte, 1) == 1;
        _exit(!requested || !holds(memory, length));
    }
    close(ready[1]);
    close(request[0]);
    return process;
}

// Returns true when the process has filled its memory, false if it is gone.
static bool is_ready(struct process process) {
    char byte;
    return read(process.ready, &byte, 1) == 1;
}

// Requests the check, and returns the process's wait status.
static int end(struct process process) {
    int status = -1;
    if (write(process.request, "", 1) != 1 && errno != EPIPE)
        die("write");
    waitpid(process.number, &status, 0);
    close(process.ready);
    close(process.request);
    return status;
}

static bool is_killed(struct process process) {
    bool ready = is_ready(process);
    int status = end(process);
    return !ready && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static bool oom_kills_in_memcg_only(void) {
    if (!set("memory.max", mib << 20) || !set("memory.swap.max", 0))
        return false;
    struct process outside = start(false, mib << 20), small = start(true, (mib << 20) / 4);
    bool good = is_ready(outside) && is_ready(small);
    good &= is_killed(start(true, 2 * (mib << 20))) && kills() == 1;
    good &= end(outside) == 0;
    return end(small) == 0 && good;
}

static bool swaps_before_it_kills(void) {
    if (!set("memory.swap.max", -1))
        return false;
    struct process large = start(true, 2 * (mib << 20));
    bool good = is_ready(large) && get("memory.swap.current") >= (mib << 20) - (4 << 20);
    good &= get("memory.current") <= mib << 20;
    return end(large) == 0 && good && kills() == 1;
}

// The memcg's swap may exceed its limit by what each CPU writes at a time.
enum { SLACK = 2 << 20 };

static bool keeps_swap_limit(void) {
    long limit = (mib << 20) / 4;
    if (!set("memory.swap.max", limit))
        return false;
    struct process within = start(true, mib << 20);
    bool good = is_ready(within);
    // Requests more than can be reclaimed.
    set("memory.reclaim", mib << 20);
    long swapped = get("memory.swap.current");
    good &= swapped > limit / 2 && swapped <= limit + SLACK;
    good &= end(within) == 0 && kills() == 1;
    return is_killed(start(true, 2 * (mib << 20))) && kills() == 2 && good;
}

// A page that was read since it was swapped out is in memory and in swap as well, until it is
// written. (Linux frees the slot of zram at once.)
static bool counts_swap_cache(void) {
    long length = (mib << 20) / 8;
    if (!set("memory.swap.max", -1) || !write_line(GROUP "/cgroup.procs", "0"))
        return false;
    char *memory = filled(length);
    // A call skips pages that are in use at that moment.
    for (int tries = 0; tries < 8; tries++)
        if (madvise(memory, (size_t)length, MADV_PAGEOUT))
            die("MADV_PAGEOUT");
    bool good = pages_present(memory, (size_t)length) == 0 && holds(memory, length);
    good &= figure(GROUP "/memory.stat", "swapcached") == length;
    good &= figure("/sys/fs/cgroup/memory.stat", "swapcached") >= length;
    touch(memory, (size_t)length, 1);
    good &= figure(GROUP "/memory.stat", "swapcached") == 0;
    munmap(memory, (size_t)length);
    return write_line("/sys/fs/cgroup/cgroup.procs", "0") && good;
}

// Checks that at least three quarters are present: later allocations may have reclaimed a little.
static bool is_mostly_present(const char *memory, size_t length) {
    return pages_present(memory, length) >= length / PAGE / 4 * 3;
}

// Allocations of many pages in one call reclaim as single faults do.
static bool reclaims_for_bulk_allocations(void) {
    size_t length = (size_t)mib << 18, populated = 2 * length;
    if (!write_line(GROUP "/cgroup.procs", "0"))
        return false;
    char *old = filled((long)(3 * length)), *advised = map_aligned(length), *locked = map_aligned(length);
    bool good = !madvise(advised, length, MADV_POPULATE_WRITE) && is_mostly_present(advised, length);
    good &= !mlock(locked, length) && pages_present(locked, length) == length / PAGE;
    munmap(locked, length);
    char *at_once = mmap(NULL, populated, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    good &= at_once != MAP_FAILED && is_mostly_present(at_once, populated) && holds(old, (long)(3 * length));
    munmap(old, 3 * length);
    munmap(advised, length);
    munmap(at_once, populated);
    return write_line("/sys/fs/cgroup/cgroup.procs", "0") && good && kills() == 2;
}

static const struct rule rules[] = {
    {"a memcg above its limit has only its own processes killed", oom_kills_in_memcg_only},
    {"a memcg at its limit swaps first", swaps_before_it_kills},
    {"a memcg keeps to its swap limit", keeps_swap_limit},
    {"swapcached counts pages that are in memory and in swap", counts_swap_cache},
    {"populating, mlock and MAP_POPULATE reclaim at the limit", reclaims_for_bulk_allocations},
};

int main(int argc, char **argv) {
    mib = argument(argc, argv, 1, 64);
    signal(SIGPIPE, SIG_IGN);
    write_line("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
    if (mkdir(GROUP, 0755))
        die(GROUP);
    int broken = check_rules(rules, sizeof rules / sizeof *rules);
    if (rmdir(GROUP))
        die(GROUP);
    return broken;
}
