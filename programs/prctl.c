// prctl: what a process sets for itself. Prints a row for each rule; the status is 1 if one is
// broken. The rules hold on Linux.
#include "common.h"
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef PR_THP_DISABLE_EXCEPT_ADVISED
#define PR_THP_DISABLE_EXCEPT_ADVISED 2
#endif

static bool fails(int error, long result) {
    return result == -1 && errno == error;
}

// Returns the memory that one store to a huge page's worth of new memory takes.
static long bytes_of_a_store(int advice) {
    char *memory = map_aligned(2 * HUGE);
    if (madvise(memory, 2 * HUGE, advice))
        die("madvise");
    *(volatile char *)memory = 1;
    long bytes = (long)pages_present(memory, HUGE) * PAGE;
    munmap(memory, 2 * HUGE);
    return bytes;
}

static bool thp_body(void) {
    bool good = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 0 && figure("/proc/self/status", "THP_enabled") == 1;
    long huge = bytes_of_a_store(MADV_HUGEPAGE);
    good &= !prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) && prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1;
    good &= figure("/proc/self/status", "THP_enabled") == 0 && bytes_of_a_store(MADV_HUGEPAGE) == PAGE;
    pid_t child = fork();
    if (!child)
        execl("/proc/self/exe", "prctl", "thp", NULL);
    int status = -1;
    good &= waitpid(child, &status, 0) == child && status == 0;
    good &= !prctl(PR_SET_THP_DISABLE, 1, PR_THP_DISABLE_EXCEPT_ADVISED, 0, 0);
    good &= prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 3 && bytes_of_a_store(MADV_HUGEPAGE) == huge;
    good &= figure("/proc/self/status", "THP_enabled") == 1 && bytes_of_a_store(MADV_NORMAL) == PAGE;
    good &= !prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0) && prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 0;
    return good && bytes_of_a_store(MADV_HUGEPAGE) == huge;
}

// A process has no huge pages, or only where it asks for them. Its children and programs inherit that.
static bool huge_pages_are_disabled(void) {
    errno = 0;
    bool good = fails(EINVAL, prctl(PR_SET_THP_DISABLE, 1, 1, 0, 0));
    good &= fails(EINVAL, prctl(PR_SET_THP_DISABLE, 0, PR_THP_DISABLE_EXCEPT_ADVISED, 0, 0));
    good &= fails(EINVAL, prctl(PR_SET_THP_DISABLE, 1, 0, 1, 0));
    good &= fails(EINVAL, prctl(PR_GET_THP_DISABLE, 1, 0, 0, 0));
    return good && thp_body();
}

// Returns whether the VMA that begins at `memory` has this name in `maps`.
static bool has_name(const char *memory, const char *name) {
    FILE *file = fopen("/proc/self/maps", "re");
    char line[512], start[32];
    bool found = false;
    snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)memory);
    while (file && fgets(line, sizeof line, file)) {
        const char *end = strrchr(line, name[0] ? name[0] : ' ');
        if (!strncmp(line, start, strlen(start)))
            found = end && (name[0] ? !strncmp(end, name, strlen(name)) : !strchr(line, '['));
    }
    if (file)
        fclose(file);
    return found;
}

static long name_it(const void *memory, size_t length, const char *name) {
    errno = 0;
    return prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, memory, length, name);
}

// Memory has a name, which splits it from other memory, and which a child inherits. A kernel may be
// without names.
static bool memory_has_names(void) {
    static char longest[82];
    char *memory = mmap(NULL, 8 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fails(EINVAL, name_it(memory, PAGE, "a name")))
        return !munmap(memory, 8 * PAGE);
    bool good = has_name(memory, "[anon:a name]\n") && has_name(memory + PAGE, "");
    good &= !name_it(memory + PAGE, 1, "a name") && !name_it(memory + 4 * PAGE, 2 * PAGE, "other");
    good &= has_name(memory, "[anon:a name]\n") && has_name(memory + 2 * PAGE, "") &&
            has_name(memory + 4 * PAGE, "[anon:other]\n");
    int status = -1;
    pid_t child = fork();
    if (!child)
        _exit(!has_name(memory + 4 * PAGE, "[anon:other]\n"));
    good &= waitpid(child, &status, 0) == child && status == 0;
    good &= !name_it(memory, 8 * PAGE, NULL) && has_name(memory, "") && !has_name(memory + 4 * PAGE, "");
    char *shared = mmap(NULL, PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    good &= !name_it(shared, PAGE, "shared") && has_name(shared, "[anon_shmem:shared]\n") && !munmap(shared, PAGE);
    memset(longest, 'x', 80);
    good &= fails(EINVAL, name_it(memory, PAGE, longest)) && fails(EINVAL, name_it(memory, PAGE, "a[b"));
    longest[79] = 0;
    good &= !name_it(memory, PAGE, longest) && fails(EINVAL, name_it(memory + 1, PAGE, "a")) && !name_it(memory, 0, "a");
    munmap(memory + PAGE, PAGE);
    good &= fails(ENOMEM, name_it(memory, 3 * PAGE, "both")) && has_name(memory, "[anon:both]\n");
    good &= has_name(memory + 2 * PAGE, "[anon:both]\n");
    // Names that no memory has any more take no room.
    for (int i = 0; i < 20000; i++) {
        char name[32];
        snprintf(name, sizeof name, "name %d", i);
        good &= !name_it(memory, PAGE, name);
    }
    return good && has_name(memory, "[anon:name 19999]\n") && !munmap(memory, 8 * PAGE);
}

// Speculation can be asked about. What is changed depends on the machine.
static bool speculation_is_reported(void) {
    errno = 0;
    bool good = prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0) >= 0;
    good &= fails(ENODEV, prctl(PR_GET_SPECULATION_CTRL, 99, 0, 0, 0));
    good &= fails(EINVAL, prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 1, 0, 0));
    good &= fails(ENODEV, prctl(PR_SET_SPECULATION_CTRL, 99, PR_SPEC_ENABLE, 0, 0));
    return good && fails(EINVAL, prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_ENABLE, 1, 0));
}

#ifdef __x86_64__
static volatile sig_atomic_t denied;

static void on_fault(int signal) {
    (void)signal;
    denied++;
    prctl(PR_SET_TSC, PR_TSC_ENABLE);
}

static uint64_t read_counter(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

// The time-stamp counter can't be read where a thread has forbidden that to itself, also after
// other threads had the CPU, in its children, and in the program that it runs.
static bool the_counter_is_denied(void) {
    int mode = 0, status = -1;
    errno = 0;
    bool good = fails(EINVAL, prctl(PR_SET_TSC, 3)) && !prctl(PR_GET_TSC, &mode) && mode == PR_TSC_ENABLE;
    good &= read_counter() != 0 && !prctl(PR_SET_TSC, PR_TSC_SIGSEGV) && !prctl(PR_GET_TSC, &mode);
    good &= mode == PR_TSC_SIGSEGV;
    signal(SIGSEGV, on_fault);
    good &= read_counter() != 0 && denied == 1 && read_counter() != 0 && denied == 1;
    good &= !prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
    pid_t child = fork();
    if (!child) {
        read_counter();
        if (denied != 2 || prctl(PR_SET_TSC, PR_TSC_SIGSEGV))
            _exit(1);
        execl("/proc/self/exe", "prctl", "tsc", NULL);
    }
    good &= waitpid(child, &status, 0) == child && status == 0;
    return good && read_counter() != 0 && denied == 2;
}
#else
static bool the_counter_is_denied(void) {
    return true;
}
#endif

static const struct rule rules[] = {
    {"huge pages are disabled", huge_pages_are_disabled},
    {"memory has names", memory_has_names},
    {"speculation is reported", speculation_is_reported},
    {"the counter is denied", the_counter_is_denied},
};

int main(int argc, char **argv) {
    int mode = 0;
    if (argc > 1 && !strcmp(argv[1], "thp"))
        return prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) != 1 || bytes_of_a_store(MADV_HUGEPAGE) != PAGE;
    if (argc > 1)
        return prctl(PR_GET_TSC, &mode) || mode != PR_TSC_SIGSEGV;
    return check_rules(rules, sizeof rules / sizeof *rules);
}
