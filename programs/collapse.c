// collapse: how pages become huge ones, because a program asks for it (MADV_COLLAPSE) or because the kernel has time (khugepaged), and how a
// huge page that is mapped in part becomes smaller ones when memory is short. A row a rule. For root; makes a control group of its own.
#include "folios.h"
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define GROUP "/sys/fs/cgroup/collapse/"
#define TASK THP "khugepaged/"

enum { PAGES = HUGE / PAGE, PIECES = 8 };

// What an area has in huge pages, in bytes; -1 if there is none that begins there.
static long huge_of(const char *memory) {
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[512], start[32];
    long kib, found = -1;
    bool here = false;
    snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)memory);
    while (file && found < 0 && fgets(line, sizeof line, file)) {
        if (strchr(line, '-') && strspn(line, "0123456789abcdef") > 4)
            here = !strncmp(line, start, strlen(start));
        if (here && sscanf(line, "AnonHugePages: %ld kB", &kib) == 1)
            found = kib << 10;
    }
    if (file)
        fclose(file);
    return found;
}

// Memory, of which every third page was touched when there were none but small ones.
static char *thirds(size_t length) {
    char *memory = map_aligned(length);
    if (madvise(memory, length, MADV_NOHUGEPAGE))
        die("MADV_NOHUGEPAGE");
    for (size_t page = 0; page < length / PAGE; page += 3)
        *(volatile uint64_t *)(memory + page * PAGE) = page + 1;
    if (huge_of(memory) || madvise(memory, length, MADV_HUGEPAGE))
        die("MADV_HUGEPAGE");
    return memory;
}

static bool holds_thirds(const char *memory, size_t length) {
    for (size_t page = 0; page < length / PAGE; page++)
        if (*(volatile const uint64_t *)(memory + page * PAGE) != (page % 3 ? 0 : page + 1))
            return false;
    return true;
}

static bool refused(char *memory, size_t length, int error) {
    errno = 0;
    return madvise(memory, length, MADV_COLLAPSE) && errno == error;
}

static bool pages_become_huge(void) {
    char *memory = thirds(2 * HUGE);
    bool good = !madvise(memory, 2 * HUGE, MADV_COLLAPSE) && huge_of(memory) == 2 * HUGE && holds_thirds(memory, 2 * HUGE);
    memory[PAGE] = 1;
    good &= huge_of(memory) == 2 * HUGE && !madvise(memory, 2 * HUGE, MADV_COLLAPSE);
    munmap(memory, 2 * HUGE);
    return good;
}

static bool what_was_swapped_out_comes_back(void) {
    char *memory = thirds(HUGE);
    bool good = !madvise(memory, HUGE / 2, MADV_PAGEOUT) && !madvise(memory, HUGE, MADV_COLLAPSE);
    good &= huge_of(memory) == HUGE && holds_thirds(memory, HUGE);
    munmap(memory, HUGE);
    return good;
}

// A child that looks at memory when it is told to, and ends with the answer.
struct child {
    pid_t pid;
    int tell;
};

static struct child child_that_looks(const char *memory, bool (*look)(const char *)) {
    int to_child[2];
    char byte;
    if (pipe(to_child))
        die("pipe");
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (!pid) {
        close(to_child[1]);
        _exit(read(to_child[0], &byte, 1) != 1 || !look(memory));
    }
    close(to_child[0]);
    return (struct child){pid, to_child[1]};
}

static bool sees_it(struct child child) {
    int status;
    bool told = write(child.tell, "", 1) == 1;
    close(child.tell);
    return waitpid(child.pid, &status, 0) == child.pid && told && !status;
}

static bool thirds_of_one(const char *memory) { return holds_thirds(memory, HUGE); }

static bool a_child_keeps_what_it_has(void) {
    char *memory = thirds(HUGE);
    struct child child = child_that_looks(memory, thirds_of_one);
    bool good = !madvise(memory, HUGE, MADV_COLLAPSE) && huge_of(memory) == HUGE;
    memory[0] = 77;
    good &= sees_it(child);
    munmap(memory, HUGE);
    return good;
}

static bool second_is_huge(const char *memory) { return holds_thirds(memory, 2 * HUGE) && huge_of(memory) == HUGE; }

static bool another_process_has_it_done(void) {
    char *memory = thirds(2 * HUGE);
    struct child child = child_that_looks(memory, second_is_huge);
    int process = (int)syscall(SYS_pidfd_open, child.pid, 0);
    struct iovec piece = {memory + HUGE, HUGE};
    bool good = syscall(SYS_process_madvise, process, &piece, 1, MADV_COLLAPSE, 0) == HUGE && !huge_of(memory);
    good &= sees_it(child);
    close(process);
    munmap(memory, 2 * HUGE);
    return good;
}

static bool what_was_split_is_one_again(void) {
    char *memory = thirds(HUGE);
    bool good = !madvise(memory, HUGE, MADV_COLLAPSE);
    split = true;
    split_entries(memory, HUGE);
    split = false;
    good &= !huge_of(memory) && !madvise(memory, HUGE, MADV_COLLAPSE) && huge_of(memory) == HUGE;
    good &= holds_thirds(memory, HUGE);
    munmap(memory, HUGE);
    return good;
}

static bool what_cannot_be_huge_is_refused(void) {
    char *memory = map_aligned(2 * HUGE);
    bool good = refused(memory, HUGE, EINVAL) && !madvise(memory, HUGE, MADV_NOHUGEPAGE);
    memory[PAGE] = 1;
    good &= refused(memory, HUGE, EINVAL) && !madvise(memory, HUGE, MADV_HUGEPAGE);
    // Where no whole one is asked for, there is nothing to do.
    good &= refused(memory + 1, HUGE, EINVAL) && !madvise(memory + PAGE, PAGE, MADV_COLLAPSE) && !huge_of(memory);
    munmap(memory + HUGE, HUGE);
    good &= refused(memory + HUGE, HUGE, ENOMEM);
    munmap(memory, HUGE);
    return good;
}

static bool set(const char *name, const char *value) {
    char path[128];
    snprintf(path, sizeof path, TASK "%s", name);
    return write_line(path, value);
}

static bool the_kernel_has_time(void) {
    char *memory = thirds(HUGE), sleeps[32], none[32];
    if (!read_line(TASK "scan_sleep_millisecs", sleeps, sizeof sleeps) || !read_line(TASK "max_ptes_none", none, sizeof none))
        die(TASK);
    // As long as too much is missing, nothing happens.
    bool good = set("max_ptes_none", "100") && set("scan_sleep_millisecs", "10");
    char line[32];
    long rounds = read_line(TASK "full_scans", line, sizeof line) ? atol(line) : 0, tries;
    for (tries = 0; tries < 1000 && read_line(TASK "full_scans", line, sizeof line) && atol(line) < rounds + 3; tries++)
        usleep(10000);
    good &= tries < 1000 && !huge_of(memory);
    good &= set("max_ptes_none", none);
    for (tries = 0; tries < 1000 && huge_of(memory) != HUGE; tries++) {
        // What nobody uses is not worth it.
        good &= holds_thirds(memory, HUGE / 2);
        usleep(10000);
    }
    good &= tries < 1000 && holds_thirds(memory, HUGE);
    set("scan_sleep_millisecs", sleeps);
    munmap(memory, HUGE);
    return good;
}

static long in_group(void) {
    char line[64];
    return read_line(GROUP "memory.current", line, sizeof line) ? atol(line) / PAGE : -1;
}

static bool holds_first_pages(const char *memory) {
    bool good = true;
    for (size_t page = 0; page < PIECES * PAGES; page += PAGES)
        good &= *(volatile const uint64_t *)(memory + page * PAGE) == (page % 3 ? 0 : page + 1);
    return good;
}

// Nothing can be swapped out any more.
static bool swap_is_off(void) {
    FILE *file = fopen("/proc/swaps", "re");
    char line[256], name[128];
    bool good = file && fgets(line, sizeof line, file);
    while (good && fgets(line, sizeof line, file))
        good = sscanf(line, "%127s", name) == 1 && !swapoff(name);
    if (file)
        fclose(file);
    return good;
}

// Of huge pages only the first small one is mapped still, by this process and perhaps by a child.
static bool rest_is_freed(bool forks) {
    size_t length = PIECES * HUGE;
    write_line("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
    mkdir(GROUP, 0755);
    if (!write_line(GROUP "cgroup.procs", "0"))
        die(GROUP);
    char *memory = thirds(length);
    bool good = swap_is_off() && !madvise(memory, length, MADV_COLLAPSE) && huge_of(memory) == (long)length;
    for (size_t at = 0; at < length; at += HUGE)
        good &= !madvise(memory + at + PAGE, HUGE - PAGE, MADV_DONTNEED);
    struct child child = {0, 0};
    if (forks)
        child = child_that_looks(memory, holds_first_pages);
    long before = in_group();
    good &= before >= PIECES * PAGES;
    for (int tries = 0; tries < 20 && in_group() > before - PIECES * PAGES / 2; tries++)
        write_line(GROUP "memory.reclaim", "16777216");
    good &= in_group() <= before - PIECES * PAGES / 2;
    good &= holds_first_pages(memory) && (!forks || sees_it(child));
    munmap(memory, length);
    write_line("/sys/fs/cgroup/cgroup.procs", "0");
    rmdir(GROUP);
    return good;
}

static bool what_is_not_mapped_is_freed(void) { return rest_is_freed(false); }

static bool what_two_map_in_part_is_freed(void) { return rest_is_freed(true); }

static const struct rule rules[] = {
    {"pages become huge ones, and what was missing zeros", pages_become_huge},
    {"what was swapped out comes back for that", what_was_swapped_out_comes_back},
    {"a child keeps what it has", a_child_keeps_what_it_has},
    {"another process may have it done", another_process_has_it_done},
    {"what was split is one again", what_was_split_is_one_again},
    {"what can't be a huge page is refused", what_cannot_be_huge_is_refused},
    {"the kernel does it by itself, within its limits", the_kernel_has_time},
    {"what is not mapped of a huge page is freed", what_is_not_mapped_is_freed},
    {"and if a child maps the rest too", what_two_map_in_part_is_freed},
};

int main(void) {
    keep_settings();
    if (!choose(SIZES - 1))
        die("there are no huge pages here");
    return check_rules(rules, sizeof rules / sizeof *rules);
}
