// Chooses the folio size that faults allocate, by the kernel's settings, and restores these when
// the program ends.
#ifndef FOLIOS_H
#define FOLIOS_H

#include "common.h"

#define THP "/sys/kernel/mm/transparent_hugepage/"

// The number of settings of folio sizes, and the index of the one that has faults compact memory.
enum { SIZES = 10, DEFRAG = SIZES, WORD = 64 };

// The settings at the start: index 0 is the one for all sizes, then one for each order from 1 on,
// then DEFRAG.
static char before[DEFRAG + 1][WORD];

static const char *setting(int order) {
    static char path[128];
    if (!order || order == DEFRAG)
        return order ? THP "defrag" : THP "enabled";
    snprintf(path, sizeof path, THP "hugepages-%dkB/enabled", 4 << order);
    return path;
}

// Reads the word in brackets of a line such as "always [madvise] never".
static bool read_setting(int order, char *word) {
    char line[128];
    if (!read_line(setting(order), line, sizeof line))
        return false;
    char *from = strchr(line, '['), *to = strchr(line, ']');
    if (!from || !to || to - from > WORD)
        return false;
    memcpy(word, from + 1, (size_t)(to - from - 1));
    word[to - from - 1] = 0;
    return true;
}

static pid_t owner;

static void restore(void) {
    for (int order = 0; owner == getpid() && order <= DEFRAG; order++)
        if (before[order][0])
            write_line(setting(order), before[order]);
}

static void end(int signal) {
    restore();
    _exit(128 + signal);
}

// The order of the folios that faults allocate.
static int chosen;

// Has faults allocate folios of this order only; returns false if the kernel has no such folios.
static bool choose(int order) {
    for (int other = 1; other < SIZES; other++)
        if (before[other][0] && !write_line(setting(other), other == order ? "always" : "never"))
            die("%s can't be written", setting(other));
    chosen = order;
    return !order || before[order][0];
}

// Saves the settings, and restores them at the end of the program, also if a signal ends it. Has
// faults use large folios, and compact memory where they find none.
static inline void save_settings(void) {
    for (int order = 0; order <= DEFRAG; order++)
        if (!read_setting(order, before[order]) && !order)
            fprintf(stderr, "%s can't be read: folio sizes are not controlled\n", setting(order));
    owner = getpid();
    atexit(restore);
    for (const int *signals = (const int[]){SIGHUP, SIGINT, SIGPIPE, SIGTERM, 0}; *signals; signals++)
        signal(*signals, end);
    if (before[0][0] && !write_line(setting(0), "always"))
        die("%s can't be written", setting(0));
    if (before[DEFRAG][0] && !write_line(setting(DEFRAG), "always"))
        die("%s can't be written", setting(DEFRAG));
}

// Whether folios of 2 MiB are to be mapped by 512 PTEs instead of one huge PTE.
static bool split;

// The size of the contiguous blocks of PTEs that AArch64 kernels form.
enum { BLOCK = 64 << 10 };

// Splits the huge PTEs of touched memory, if `split`. The mprotect covers a whole contiguous block:
// after one of a single page, Linux on AArch64 leaves the block's PTEs without the contiguous bit,
// no longer recognizes the folio as wholly mapped, and MADV_FREE and MADV_PAGEOUT split it.
static inline void split_entries(char *memory, size_t length) {
    for (size_t at = 0; split && at < length; at += HUGE) {
        int failed = mprotect(memory + at, BLOCK, PROT_READ);
        failed |= mprotect(memory + at, BLOCK, PROT_READ | PROT_WRITE);
        if (failed)
            die("mprotect");
    }
}

// Calls `row` for each folio size of the kernel, and twice for 2 MiB: by a huge PTE, then by PTEs.
static inline void each_folio(void (*row)(const char *folio)) {
    for (int order = 0; order <= SIZES; order++) {
        char folio[16];
        snprintf(folio, sizeof folio, "%d KiB", 4 << order);
        split = order == SIZES - 1;
        if (order == 1)
            continue;
        if (choose(order < SIZES ? order : SIZES - 1))
            row(order < SIZES - 1 ? folio : split ? "2 MiB" : "2 MiB, huge");
        else
            fprintf(stderr, "%s: this kernel has no such folios\n", folio);
    }
    split = false;
}

#endif
