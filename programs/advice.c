// Kinds of memory: droppable, mergeable, soft-dirty and poisoned. Prints a row for each rule; the
// status is 1 if one is broken. The rules hold on Linux; those of a kind that the kernel lacks are
// left out.
#include "common.h"
#include <setjmp.h>

#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 8
#endif
enum { PAGES = 64, LENGTH = PAGES * PAGE, RW = PROT_READ | PROT_WRITE, SOFT_OFFLINE = 101 };

static char *map(int flags) {
    errno = 0;
    return mmap(NULL, LENGTH, RW, flags | MAP_ANONYMOUS, -1, 0);
}

static bool is_refused(char *mapped, int error) { return mapped == MAP_FAILED && errno == error; }

// Returns madvise's error, or 0.
static int advise(char *at, size_t length, int advice) {
    errno = 0;
    return madvise(at, length, advice) ? errno : 0;
}

// Returns true if smaps shows a flag of the mapping that begins at an address.
static bool has_flag(const char *memory, const char *flag) {
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[512], start[32], wanted[8];
    bool here = false, found = false;
    snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)memory);
    snprintf(wanted, sizeof wanted, " %s ", flag);
    while (fgets(line, sizeof line, file)) {
        if (strchr(line, '-') && strspn(line, "0123456789abcdef") > 4)
            here = !strncmp(line, start, strlen(start));
        found |= here && !strncmp(line, "VmFlags:", 8) && strstr(line, wanted);
    }
    fclose(file);
    return found;
}

static bool are_all(const char *memory, char value) {
    for (size_t at = 0; at < LENGTH; at += PAGE)
        if (memory[at] != value)
            return false;
    return true;
}

// Reclaim drops written pages, in a machine without swap too. Other users of a page may keep it for
// a moment.
static bool droppable_pages_are_dropped(void) {
    char *memory = map(MAP_DROPPABLE);
    bool good = memory != MAP_FAILED && has_flag(memory, "dp");
    for (int round = 0; round < 3; round++) {
        bool dropped = false;
        memset(memory, 'a', LENGTH);
        good &= are_all(memory, 'a');
        for (int i = 0; i < 100 && !dropped; i++) {
            good &= !advise(memory, LENGTH, MADV_PAGEOUT);
            dropped = are_all(memory, 0);
            if (!dropped)
                usleep(10000);
        }
        good &= dropped;
    }
    return good && !munmap(memory, LENGTH);
}

static bool droppable_memory_is_never_locked(void) {
    char *memory = map(MAP_DROPPABLE);
    bool good = !mlock(memory, LENGTH) && !has_flag(memory, "lo");
    good &= !mlockall(MCL_CURRENT) && !has_flag(memory, "lo") && !munlockall();
    static const int excluded[] = {MAP_LOCKED, MAP_GROWSDOWN, MAP_HUGETLB};
    for (int i = 0; i < 3; i++)
        good &= is_refused(map(MAP_DROPPABLE | excluded[i]), EINVAL);
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    errno = 0;
    good &= is_refused(mmap(NULL, PAGE, PROT_READ, MAP_DROPPABLE, file, 0), EINVAL);
    close(file);
    return good && !munmap(memory, LENGTH);
}

static bool droppable_memory_is_not_inherited(void) {
    char *memory = map(MAP_DROPPABLE);
    int status;
    memset(memory, 'a', LENGTH);
    bool good = has_flag(memory, "wf") && has_flag(memory, "dd") && has_flag(memory, "nr");
    good &= advise(memory, PAGE, MADV_KEEPONFORK) == EINVAL && advise(memory, PAGE, MADV_DODUMP) == EINVAL;
    good &= !advise(memory, PAGE, MADV_WIPEONFORK) && !advise(memory, PAGE, MADV_DONTDUMP);
    pid_t child = fork();
    if (!child)
        _exit(!(are_all(memory, 0) && has_flag(memory, "dp")));
    good &= waitpid(child, &status, 0) == child && status == 0;
    return good && !munmap(memory, LENGTH);
}

// Private memory may be merged; shared memory ignores the advice.
static bool memory_may_be_mergeable(void) {
    char *own = map(MAP_PRIVATE), *shared = map(MAP_SHARED);
    bool good = !has_flag(own, "mg") && !advise(own, LENGTH, MADV_MERGEABLE) && has_flag(own, "mg");
    good &= !advise(shared, LENGTH, MADV_MERGEABLE) && !has_flag(shared, "mg");
    memset(own, 'a', LENGTH);
    good &= are_all(own, 'a') && !advise(own + PAGE, PAGE, MADV_UNMERGEABLE) && has_flag(own, "mg");
    good &= !has_flag(own + PAGE, "mg") && has_flag(own + 2 * PAGE, "mg");
    good &= !advise(own, LENGTH, MADV_UNMERGEABLE) && !has_flag(own, "mg") && are_all(own, 'a');
    good &= !munmap(own + PAGE, PAGE) && advise(own, LENGTH, MADV_MERGEABLE) == ENOMEM && has_flag(own, "mg");
    munmap(own, LENGTH), munmap(shared, LENGTH);
    return good;
}

// Memory that was mapped since the last clearing counts as written.
static bool new_memory_is_soft_dirty(void) {
    char *old = map(MAP_PRIVATE | MAP_NORESERVE);
    bool good = has_flag(old, "sd") && write_line("/proc/self/clear_refs", "4") && !has_flag(old, "sd");
    char *new = map(MAP_SHARED);
    good &= has_flag(new, "sd") && !has_flag(old, "sd");
    munmap(old, LENGTH), munmap(new, LENGTH);
    return good;
}

// A block of 2 MiB with a guard page does not become one page, and memory beside it does.
static bool guard_pages_prevent_collapses(void) {
    enum { COLLAPSE = 25, INSTALL = 102, REMOVE = 103 };
    bool good = true;
    for (int shared = 0; shared < 2; shared++) {
        int kind = MAP_FIXED | MAP_ANONYMOUS | (shared ? MAP_SHARED : MAP_PRIVATE);
        char *memory = mmap(map_aligned(2 * HUGE), 2 * HUGE, PROT_READ | PROT_WRITE, kind, -1, 0);
        memset(memory, 'a', 2 * HUGE);
        good &= !advise(memory + 5 * PAGE, PAGE, INSTALL) && advise(memory, HUGE, COLLAPSE) == EINVAL;
        good &= advise(memory, 2 * HUGE, COLLAPSE) == EINVAL && !advise(memory + HUGE, HUGE, COLLAPSE);
        good &= !advise(memory + 5 * PAGE, PAGE, REMOVE) && !advise(memory, HUGE, COLLAPSE);
        good &= memory[0] == 'a' && memory[5 * PAGE] == (shared ? 'a' : 0) && memory[2 * HUGE - 1] == 'a';
        munmap(memory, 2 * HUGE);
    }
    return good;
}

static sigjmp_buf back;
static siginfo_t seen;

static void caught(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    seen = *info;
    siglongjmp(back, 1);
}

static bool ends_by_bus_error(char *at, bool poison) {
    memset(&seen, 0, sizeof seen);
    if (sigsetjmp(back, 1) == 0) {
        if (poison)
            (void)!madvise(at, PAGE, MADV_HWPOISON);
        else
            (void)*(volatile char *)at;
        return false;
    }
    return seen.si_signo == SIGBUS && seen.si_code == BUS_MCEERR_AR && seen.si_addr == at;
}

// A page that fails is lost. A program that has written to it is told at once, others at the next
// access.
static bool poisoned_pages_are_lost(void) {
    struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO};
    char *own = map(MAP_PRIVATE), *shared = map(MAP_SHARED);
    bool good = !sigaction(SIGBUS, &action, NULL);
    own[0] = own[PAGE] = own[2 * PAGE] = 'a';
    good &= ends_by_bus_error(own + PAGE, true) && seen.si_addr_lsb == 12;
    good &= ends_by_bus_error(own + PAGE, false) && ends_by_bus_error(own + PAGE, false);
    good &= own[0] == 'a' && own[2 * PAGE] == 'a';
    good &= !advise(shared, PAGE, MADV_HWPOISON) && ends_by_bus_error(shared, false) && !shared[PAGE];
    good &= !advise(own, PAGE, SOFT_OFFLINE) && own[0] == 'a';
    // A new page takes the place of one that is dropped.
    good &= !advise(own + PAGE, PAGE, MADV_DONTNEED) && !own[PAGE];
    good &= advise(own + 1, PAGE, MADV_HWPOISON) == EINVAL && !munmap(own, PAGE);
    good &= advise(own, PAGE, MADV_HWPOISON) == EFAULT;
    munmap(own, LENGTH), munmap(shared, LENGTH);
    return good && signal(SIGBUS, SIG_DFL) != SIG_ERR;
}

static bool has_soft_dirty(void) {
    char *memory = map(MAP_PRIVATE | MAP_NORESERVE);
    bool has = has_flag(memory, "sd");
    munmap(memory, LENGTH);
    return has;
}

static bool has_poison(void) {
    char *memory = map(MAP_PRIVATE);
    (void)*(volatile char *)memory;
    int error = advise(memory, PAGE, MADV_HWPOISON);
    munmap(memory, LENGTH);
    return error != EINVAL && error != EPERM;
}

static const struct rule rules[] = {
    {"droppable pages are dropped", droppable_pages_are_dropped},
    {"droppable memory is never locked", droppable_memory_is_never_locked},
    {"droppable memory is not inherited", droppable_memory_is_not_inherited},
    {"memory may be mergeable", memory_may_be_mergeable},
    {"guard pages prevent collapses", guard_pages_prevent_collapses},
};
static const struct rule soft_dirty[] = {{"new memory is soft-dirty", new_memory_is_soft_dirty}};
static const struct rule poison[] = {{"poisoned pages are lost", poisoned_pages_are_lost}};

int main(void) {
    if (map(MAP_DROPPABLE) == MAP_FAILED)
        die("mmap with MAP_DROPPABLE");
    int broken = check_rules(rules, sizeof rules / sizeof *rules);
    if (has_soft_dirty())
        broken += check_rules(soft_dirty, 1);
    if (has_poison())
        broken += check_rules(poison, 1);
    return broken > 0;
}
