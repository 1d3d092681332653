// Shared by the programs here: the clock, memory, the kernel's settings, and rows of JSON.
//
// A row is one line. Its strings name the case, its numbers are the figures.
#ifndef COMMON_H
#define COMMON_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, HUGE = 2 << 20 };

// Prints a message, with the text of `errno` unless that is 0, and ends the program with status 2.
__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...) {
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, error ? ": %s\n" : "\n", strerror(error));
    exit(2);
}

static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

// Returns the whole number at `index` of the command line, or `usual` if there are fewer arguments.
static inline long argument(int argc, char **argv, int index, long usual) {
    if (argc <= index)
        return usual;
    char *end;
    errno = 0;
    long value = strtol(argv[index], &end, 10);
    if (errno || *end || end == argv[index] || value <= 0)
        die("%s: expected a whole number above 0", argv[index]);
    return value;
}

// Maps private memory, aligned to 2 MiB. Release it by munmap of the same length.
static inline char *map_aligned(size_t length) {
    int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *memory = mmap(NULL, length + HUGE, prot, flags, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap of %zu bytes", length);
    char *aligned = (char *)(((uintptr_t)memory + HUGE - 1) & ~((uintptr_t)HUGE - 1));
    if (aligned > memory)
        munmap(memory, (size_t)(aligned - memory));
    munmap(aligned + length, (size_t)(memory + HUGE - aligned));
    return aligned;
}

// Writes a word to each page.
static inline void touch(char *memory, size_t length, uint64_t pattern) {
    for (size_t at = 0; at < length; at += PAGE)
        *(volatile uint64_t *)(memory + at) = pattern + at;
}

// Returns the number of pages of a range that are in memory.
static inline size_t pages_present(const char *memory, size_t length) {
    uint64_t entries[512];
    size_t found = 0, some;
    int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    for (size_t left = length / PAGE; left; left -= some, memory += some * PAGE) {
        some = left < 512 ? left : 512;
        if (pread(file, entries, some * 8, (off_t)((uintptr_t)memory / PAGE * 8)) != (ssize_t)some * 8)
            die("/proc/self/pagemap");
        for (size_t i = 0; i < some; i++)
            found += entries[i] >> 63;
    }
    close(file);
    return found;
}

// Reads the first line of a file; returns false if the file can't be read or is empty.
static inline bool read_line(const char *path, char *line, size_t size) {
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool found = fgets(line, (int)size, file) != NULL;
    fclose(file);
    return found;
}

static inline bool write_line(const char *path, const char *line) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    size_t length = strlen(line);
    bool written = write(file, line, length) == (ssize_t)length;
    close(file);
    return written;
}

// Returns true if a file has this text.
static inline bool has_text(const char *path, const char *text) {
    char found[32] = "";
    int file = open(path, O_RDONLY);
    ssize_t count = read(file, found, sizeof found - 1);
    close(file);
    return count == (ssize_t)strlen(text) && !strcmp(found, text);
}

// Returns true if a call failed by this error.
static inline bool fails_by(long answer, int error) {
    return answer == -1 && errno == error;
}

// Returns the number in the row `NAME value` or `NAME: value` of a file, or -1 if there is none.
static inline long figure(const char *path, const char *name) {
    FILE *file = fopen(path, "re");
    char line[512];
    long value = -1;
    size_t length = strlen(name);
    while (file && value < 0 && fgets(line, sizeof line, file)) {
        size_t end = strspn(line + length, ": \t");
        if (!strncmp(line, name, length) && end)
            value = atol(line + length + end);
    }
    if (file)
        fclose(file);
    return value;
}

// Returns the figure `name` of the VMA that begins at `memory`, in bytes, or -1 if there is none.
static inline long smaps_bytes(const char *memory, const char *name) {
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[512], start[32];
    long kib, found = -1;
    size_t length = strlen(name);
    bool here = false;
    snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)memory);
    while (file && found < 0 && fgets(line, sizeof line, file)) {
        if (strchr(line, '-') && strspn(line, "0123456789abcdef") > 4)
            here = !strncmp(line, start, strlen(start));
        if (here && !strncmp(line, name, length) && sscanf(line + length, ": %ld kB", &kib) == 1)
            found = kib << 10;
    }
    if (file)
        fclose(file);
    return found;
}

// A fact that must hold.
struct rule {
    const char *name;
    bool (*holds)(void);
};

// Prints a row for each rule. Returns the program's status: 1 if a rule is broken.
static inline int check_rules(const struct rule *rules, size_t count) {
    int broken = 0;
    for (const struct rule *rule = rules; rule < rules + count; rule++) {
        bool good = rule->holds();
        broken += !good;
        printf("{\"rule\":\"%s\",\"holds\":\"%s\"}\n", rule->name, good ? "yes" : "no");
        fflush(stdout);
    }
    return broken > 0;
}

#endif
