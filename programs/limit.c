// limit [MIB]: a group that may have so much memory keeps to it, by swapping as far as it may; who has too much then is killed, and
// nobody else. Needs swap, at least twice as much, such as that of `vellum run --swap`. For root; makes a control group of its own.
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

// A process, in the group or not, that says when it has filled so much memory, and when told to looks whether it is still there.
struct process {
    pid_t number;
    int said, told;
};

static struct process start(bool in_group, long length) {
    int said[2], told[2];
    if (pipe(said) || pipe(told))
        die("pipe");
    struct process process = {fork(), said[0], told[1]};
    if (process.number < 0)
        die("fork");
    if (!process.number) {
        char byte = 0;
        close(told[1]);
        if (in_group && !write_line(GROUP "/cgroup.procs", "0"))
            _exit(2);
        char *memory = filled(length);
        bool went_on = write(said[1], &byte, 1) == 1 && read(told[0], &byte, 1) == 1;
        _exit(!went_on || !holds(memory, length));
    }
    close(said[1]);
    close(told[0]);
    return process;
}

// Whether it has filled its memory, or is gone.
static bool is_ready(struct process process) {
    char byte;
    return read(process.said, &byte, 1) == 1;
}

// How it ends, once told to.
static int end(struct process process) {
    int status = -1;
    if (write(process.told, "", 1) != 1 && errno != EPIPE)
        die("write");
    waitpid(process.number, &status, 0);
    close(process.said);
    close(process.told);
    return status;
}

static bool was_killed(struct process process) {
    bool ready = is_ready(process);
    int status = end(process);
    return !ready && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static bool only_its_own(void) {
    if (!set("memory.max", mib << 20) || !set("memory.swap.max", 0))
        return false;
    struct process outside = start(false, mib << 20), small = start(true, (mib << 20) / 4);
    bool good = is_ready(outside) && is_ready(small);
    good &= was_killed(start(true, 2 * (mib << 20))) && kills() == 1;
    good &= end(outside) == 0;
    return end(small) == 0 && good;
}

static bool swaps_instead(void) {
    if (!set("memory.swap.max", -1))
        return false;
    struct process large = start(true, 2 * (mib << 20));
    bool good = is_ready(large) && get("memory.swap.current") >= (mib << 20) - (4 << 20);
    good &= get("memory.current") <= mib << 20;
    return end(large) == 0 && good && kills() == 1;
}

// What the group has in swap may be this much more than it should: what is written at a time, on each processor.
enum { SLACK = 2 << 20 };

static bool swaps_no_more_than_it_may(void) {
    long most = (mib << 20) / 4;
    if (!set("memory.swap.max", most))
        return false;
    struct process within = start(true, mib << 20);
    bool good = is_ready(within);
    // All of it, if that were possible.
    set("memory.reclaim", mib << 20);
    long swapped = get("memory.swap.current");
    good &= swapped > most / 2 && swapped <= most + SLACK;
    good &= end(within) == 0 && kills() == 1;
    return was_killed(start(true, 2 * (mib << 20))) && kills() == 2 && good;
}

// What was read since it was swapped out is in memory and in swap as well, until it is written. (Linux keeps nothing in swap that is there
// as compressed memory.)
static bool counts_what_is_in_both(void) {
    long length = (mib << 20) / 8;
    if (!set("memory.swap.max", -1) || !write_line(GROUP "/cgroup.procs", "0"))
        return false;
    char *memory = filled(length);
    // What is busy at the moment is passed over.
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

// Whether most of it is there: a little may have gone again for the rest.
static bool is_there(const char *memory, size_t length) {
    return pages_present(memory, length) >= length / PAGE / 4 * 3;
}

// Memory that is had at once, and not by the page, is reclaimed for as well.
static bool reclaims_for_what_is_had_at_once(void) {
    size_t length = (size_t)mib << 18, most = 2 * length;
    if (!write_line(GROUP "/cgroup.procs", "0"))
        return false;
    char *old = filled((long)(3 * length)), *advised = map_aligned(length), *locked = map_aligned(length);
    bool good = !madvise(advised, length, MADV_POPULATE_WRITE) && is_there(advised, length);
    good &= !mlock(locked, length) && pages_present(locked, length) == length / PAGE;
    munmap(locked, length);
    char *at_once = mmap(NULL, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    good &= at_once != MAP_FAILED && is_there(at_once, most) && holds(old, (long)(3 * length));
    munmap(old, 3 * length);
    munmap(advised, length);
    munmap(at_once, most);
    return write_line("/sys/fs/cgroup/cgroup.procs", "0") && good && kills() == 2;
}

static const struct rule rules[] = {
    {"a group with too much kills one of its own", only_its_own},
    {"it swaps, if it may", swaps_instead},
    {"it swaps no more than it may", swaps_no_more_than_it_may},
    {"it knows what of it is in memory and in swap", counts_what_is_in_both},
    {"it swaps for memory that is had at once", reclaims_for_what_is_had_at_once},
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
