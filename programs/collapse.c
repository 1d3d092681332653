// collapse: pages become huge pages by MADV_COLLAPSE and by khugepaged, and reclaim splits a huge
// page that is partially mapped. Prints a row for each rule. Needs root; creates a cgroup of its
// own.
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

static long huge_bytes(const char *memory) { return smaps_bytes(memory, "AnonHugePages"); }

// Maps memory and touches every third page by a small folio.
static char *touched_thirds(size_t length) {
    char *memory = map_aligned(length);
    if (madvise(memory, length, MADV_NOHUGEPAGE))
        die("MADV_NOHUGEPAGE");
    for (size_t page = 0; page < length / PAGE; page += 3)
        *(volatile uint64_t *)(memory + page * PAGE) = page + 1;
    if (huge_bytes(memory) || madvise(memory, length, MADV_HUGEPAGE))
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

static bool collapse_fills_with_zeros(void) {
    char *memory = touched_thirds(2 * HUGE);
    bool good = !madvise(memory, 2 * HUGE, MADV_COLLAPSE) && huge_bytes(memory) == 2 * HUGE && holds_thirds(memory, 2 * HUGE);
    memory[PAGE] = 1;
    good &= huge_bytes(memory) == 2 * HUGE && !madvise(memory, 2 * HUGE, MADV_COLLAPSE);
    munmap(memory, 2 * HUGE);
    return good;
}

static bool collapse_swaps_in(void) {
    char *memory = touched_thirds(HUGE);
    bool good = !madvise(memory, HUGE / 2, MADV_PAGEOUT) && !madvise(memory, HUGE, MADV_COLLAPSE);
    good &= huge_bytes(memory) == HUGE && holds_thirds(memory, HUGE);
    munmap(memory, HUGE);
    return good;
}

// A child that checks memory on request, and exits with the result.
struct child {
    pid_t pid;
    int request;
};

static struct child start_checking_child(const char *memory, bool (*check)(const char *)) {
    int to_child[2];
    char byte;
    if (pipe(to_child))
        die("pipe");
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (!pid) {
        close(to_child[1]);
        _exit(read(to_child[0], &byte, 1) != 1 || !check(memory));
    }
    close(to_child[0]);
    return (struct child){pid, to_child[1]};
}

static bool child_check_passes(struct child child) {
    int status;
    bool requested = write(child.request, "", 1) == 1;
    close(child.request);
    return waitpid(child.pid, &status, 0) == child.pid && requested && !status;
}

static bool holds_thirds_of_huge(const char *memory) { return holds_thirds(memory, HUGE); }

static bool child_keeps_its_pages(void) {
    char *memory = touched_thirds(HUGE);
    struct child child = start_checking_child(memory, holds_thirds_of_huge);
    bool good = !madvise(memory, HUGE, MADV_COLLAPSE) && huge_bytes(memory) == HUGE;
    memory[0] = 77;
    good &= child_check_passes(child);
    munmap(memory, HUGE);
    return good;
}

static bool second_half_is_huge(const char *memory) { return holds_thirds(memory, 2 * HUGE) && huge_bytes(memory) == HUGE; }

static bool process_madvise_collapses(void) {
    char *memory = touched_thirds(2 * HUGE);
    struct child child = start_checking_child(memory, second_half_is_huge);
    int process = (int)syscall(SYS_pidfd_open, child.pid, 0);
    struct iovec piece = {memory + HUGE, HUGE};
    bool good = syscall(SYS_process_madvise, process, &piece, 1, MADV_COLLAPSE, 0) == HUGE && !huge_bytes(memory);
    good &= child_check_passes(child);
    close(process);
    munmap(memory, 2 * HUGE);
    return good;
}

static bool split_huge_page_collapses(void) {
    char *memory = touched_thirds(HUGE);
    bool good = !madvise(memory, HUGE, MADV_COLLAPSE);
    split = true;
    split_entries(memory, HUGE);
    split = false;
    good &= !huge_bytes(memory) && !madvise(memory, HUGE, MADV_COLLAPSE) && huge_bytes(memory) == HUGE;
    good &= holds_thirds(memory, HUGE);
    munmap(memory, HUGE);
    return good;
}

static bool collapse_fails_where_no_huge_page_fits(void) {
    char *memory = map_aligned(2 * HUGE);
    bool good = refused(memory, HUGE, EINVAL) && !madvise(memory, HUGE, MADV_NOHUGEPAGE);
    memory[PAGE] = 1;
    good &= refused(memory, HUGE, EINVAL) && !madvise(memory, HUGE, MADV_HUGEPAGE);
    // A range without a whole huge page succeeds with no effect.
    good &= refused(memory + 1, HUGE, EINVAL) && !madvise(memory + PAGE, PAGE, MADV_COLLAPSE) && !huge_bytes(memory);
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

static bool khugepaged_keeps_its_limits(void) {
    char *memory = touched_thirds(HUGE), sleeps[32], none[32];
    if (!read_line(TASK "scan_sleep_millisecs", sleeps, sizeof sleeps) || !read_line(TASK "max_ptes_none", none, sizeof none))
        die(TASK);
    // Too many empty PTEs: no collapse.
    bool good = set("max_ptes_none", "100") && set("scan_sleep_millisecs", "10");
    char line[32];
    long rounds = read_line(TASK "full_scans", line, sizeof line) ? atol(line) : 0, tries;
    for (tries = 0; tries < 1000 && read_line(TASK "full_scans", line, sizeof line) && atol(line) < rounds + 3; tries++)
        usleep(10000);
    good &= tries < 1000 && !huge_bytes(memory);
    good &= set("max_ptes_none", none);
    for (tries = 0; tries < 1000 && huge_bytes(memory) != HUGE; tries++) {
        // khugepaged skips memory that no process has accessed lately.
        good &= holds_thirds(memory, HUGE / 2);
        usleep(10000);
    }
    good &= tries < 1000 && holds_thirds(memory, HUGE);
    set("scan_sleep_millisecs", sleeps);
    munmap(memory, HUGE);
    return good;
}

static long memcg_pages(void) {
    char line[64];
    return read_line(GROUP "memory.current", line, sizeof line) ? atol(line) / PAGE : -1;
}

static bool holds_first_pages(const char *memory) {
    bool good = true;
    for (size_t page = 0; page < PIECES * PAGES; page += PAGES)
        good &= *(volatile const uint64_t *)(memory + page * PAGE) == (page % 3 ? 0 : page + 1);
    return good;
}

// Turns all swap off, so that nothing can be swapped out.
static bool turn_swap_off(void) {
    FILE *file = fopen("/proc/swaps", "re");
    char line[256], name[128];
    bool good = file && fgets(line, sizeof line, file);
    while (good && fgets(line, sizeof line, file))
        good = sscanf(line, "%127s", name) == 1 && !swapoff(name);
    if (file)
        fclose(file);
    return good;
}

// Checks that reclaim frees the unmapped rest of huge pages whose first small page is still mapped,
// by this process and, if `forks`, by a child.
static bool unmapped_rest_is_freed(bool forks) {
    size_t length = PIECES * HUGE;
    write_line("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
    mkdir(GROUP, 0755);
    if (!write_line(GROUP "cgroup.procs", "0"))
        die(GROUP);
    char *memory = touched_thirds(length);
    bool good = turn_swap_off() && !madvise(memory, length, MADV_COLLAPSE) && huge_bytes(memory) == (long)length;
    for (size_t at = 0; at < length; at += HUGE)
        good &= !madvise(memory + at + PAGE, HUGE - PAGE, MADV_DONTNEED);
    struct child child = {0, 0};
    if (forks)
        child = start_checking_child(memory, holds_first_pages);
    long before = memcg_pages();
    good &= before >= PIECES * PAGES;
    for (int tries = 0; tries < 20 && memcg_pages() > before - PIECES * PAGES / 2; tries++)
        write_line(GROUP "memory.reclaim", "16777216");
    good &= memcg_pages() <= before - PIECES * PAGES / 2;
    good &= holds_first_pages(memory) && (!forks || child_check_passes(child));
    munmap(memory, length);
    write_line("/sys/fs/cgroup/cgroup.procs", "0");
    rmdir(GROUP);
    return good;
}

static bool unmapped_rest_of_one_process_is_freed(void) { return unmapped_rest_is_freed(false); }

static bool unmapped_rest_of_two_processes_is_freed(void) { return unmapped_rest_is_freed(true); }

static const struct rule rules[] = {
    {"MADV_COLLAPSE makes a huge page, with zeros for empty PTEs", collapse_fills_with_zeros},
    {"MADV_COLLAPSE swaps pages in", collapse_swaps_in},
    {"a child keeps its pages", child_keeps_its_pages},
    {"process_madvise collapses another process's pages", process_madvise_collapses},
    {"a split huge page can be collapsed again", split_huge_page_collapses},
    {"MADV_COLLAPSE fails where no huge page fits", collapse_fails_where_no_huge_page_fits},
    {"khugepaged collapses within its limits", khugepaged_keeps_its_limits},
    {"reclaim frees the unmapped rest of a huge page", unmapped_rest_of_one_process_is_freed},
    {"reclaim frees the unmapped rest of a huge page that two processes map", unmapped_rest_of_two_processes_is_freed},
};

int main(void) {
    save_settings();
    if (!choose(SIZES - 1))
        die("this kernel has no huge pages");
    return check_rules(rules, sizeof rules / sizeof *rules);
}
