// shared [MIB]: fills more shared memory, and then a larger file in memory, than the machine has,
// and checks that all contents return, that the kernel's counts of it add up, and that no slot
// stays in use. Needs swap, such as that of `vellum run --mem 256M --swap 1G`.
#include "contents.h"
#include <inttypes.h>
#include <sys/stat.h>

static size_t length;

static long meminfo(const char *name) {
    return figure("/proc/meminfo", name);
}

// Returns the swap in use, in KiB.
static long swapped(void) {
    return meminfo("SwapTotal") - meminfo("SwapFree");
}

// Reports the broken part of a rule.
static bool check(bool good, const char *what) {
    if (!good)
        fprintf(stderr, "broken: %s\n", what);
    return good;
}

// Waits until released memory has left swap. Reclaim that was about to write some of it finishes
// first, which takes as long as the disk does: no timeout would be right.
static void wait_until_swap_is_free(void) {
    while (swapped() > (long)(length / 1024 / 16))
        usleep(1000);
}

static void fill(uint64_t *words, uint64_t page) {
    (page % 4 ? same_filled : compressible)(words, page + 1);
}

static void compare(const uint64_t *found, uint64_t page, const char *where) {
    uint64_t words[WORDS];
    fill(words, page);
    errno = 0;
    if (memcmp(words, found, PAGE))
        die("%s: page %" PRIu64 " has other contents", where, page);
}

static char *map_shared(int file) {
    int flags = file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, file, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    return memory;
}

// Checks that the `Swap` row of the VMA in `smaps` agrees with the pages that `mincore` reports
// absent.
static bool smaps_agrees_with_mincore(char *memory) {
    unsigned char *present = malloc(length / PAGE);
    if (!present || mincore(memory, length, present))
        die("mincore");
    size_t absent = 0;
    for (size_t page = 0; page < length / PAGE; page++)
        absent += !(present[page] & 1);
    free(present);
    char line[512], start[32];
    snprintf(start, sizeof start, "%lx-", (unsigned long)memory);
    FILE *file = fopen("/proc/self/smaps", "re");
    long kilobytes = -1;
    bool ours = false;
    while (file && fgets(line, sizeof line, file)) {
        if (strchr(line, '-') && strspn(line, "0123456789abcdef") >= 8)
            ours = !strncmp(line, start, strlen(start));
        if (ours && !strncmp(line, "Swap:", 5))
            kilobytes = atol(line + 5);
    }
    if (file)
        fclose(file);
    size_t slack = length / PAGE / 4;
    size_t reported = (size_t)kilobytes / 4;
    return kilobytes > 0 && reported <= absent + slack && absent <= reported + slack;
}

// Parent and child see the same contents, written by either, before and after they were in swap.
static bool shared_memory_is_shared(void) {
    char *memory = map_shared(-1);
    for (size_t page = 0; page < length / PAGE; page++)
        fill((uint64_t *)(memory + page * PAGE), page + 1);
    bool good = check(swapped() > 0, "some of it is in swap");
    good = check(smaps_agrees_with_mincore(memory), "smaps and mincore agree") && good;
    good = check(meminfo("Shmem") < meminfo("MemTotal"), "Shmem is less than MemTotal") && good;
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (!child) {
        for (size_t page = 0; page < length / PAGE; page++) {
            compare((uint64_t *)(memory + page * PAGE), page + 1, "a child");
            fill((uint64_t *)(memory + page * PAGE), page + 2);
        }
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status)
        die("the child failed");
    for (size_t page = 0; page < length / PAGE; page++)
        compare((uint64_t *)(memory + page * PAGE), page + 2, "its parent");
    munmap(memory, length);
    wait_until_swap_is_free();
    return good;
}

// Checks that a file's block count, in memory and in swap together, stays the same while its pages
// are read back.
static bool keeps_its_blocks(int file) {
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (!child) {
        uint64_t words[WORDS];
        for (size_t page = 0; page < length / PAGE; page++)
            if (pread(file, words, PAGE, (off_t)(page * PAGE)) != PAGE)
                die("pread");
        _exit(0);
    }
    bool good = true;
    int status;
    pid_t ended;
    do {
        struct stat meta;
        ended = waitpid(child, &status, WNOHANG);
        good = !fstat(file, &meta) && (size_t)meta.st_blocks == length / 512 && good;
    } while (!ended);
    return ended == child && !status && good;
}

// A read, by file or by mapping, returns what was written; truncated and punched pages leave swap.
static bool file_keeps_its_contents(void) {
    int file = open("/tmp/larger", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0)
        die("/tmp/larger");
    unlink("/tmp/larger");
    uint64_t words[WORDS];
    for (size_t page = 0; page < length / PAGE; page++) {
        fill(words, page);
        if (write(file, words, PAGE) != PAGE)
            die("write");
    }
    bool good = check(swapped() > 0, "some of it is in swap");
    good = check(keeps_its_blocks(file), "st_blocks counts all pages") && good;
    for (size_t page = 0; page < length / PAGE; page++) {
        if (pread(file, words, PAGE, (off_t)(page * PAGE)) != PAGE)
            die("pread");
        compare(words, page, "a file");
    }
    char *memory = map_shared(file);
    for (size_t page = 0; page < length / PAGE; page += 2)
        compare((uint64_t *)(memory + page * PAGE), page, "a mapping");
    if (ftruncate(file, (off_t)(length / 2 + 100)))
        die("ftruncate");
    good = check(pread(file, words, PAGE, (off_t)(length / 2)) == 100, "the file ends where it was truncated") && good;
    munmap(memory, length);
    close(file);
    wait_until_swap_is_free();
    return good;
}

int main(int argc, char **argv) {
    length = (size_t)argument(argc, argv, 1, 400) << 20;
    const struct rule rules[] = {
        {"shared memory larger than the machine's keeps its contents", shared_memory_is_shared},
        {"a file larger than the machine's memory keeps its contents", file_keeps_its_contents},
    };
    return check_rules(rules, sizeof rules / sizeof *rules);
}
