// shared [MIB]: has more in shared memory, and then in a file in memory, than there is memory; and sees that all of it comes back, that
// what the kernel says of it adds up, and that nothing is left in swap. Needs swap, such as that of `vellum run --mem 256M --swap 1G`.
#include "contents.h"
#include <inttypes.h>
#include <sys/stat.h>

static size_t length;

static long meminfo(const char *name) {
    return figure("/proc/meminfo", name);
}

// Kilobytes in swap.
static long swapped(void) {
    return meminfo("SwapTotal") - meminfo("SwapFree");
}

// Says which part of a rule is broken, if one is.
static bool is_so(bool good, const char *what) {
    if (!good)
        fprintf(stderr, "not so: %s\n", what);
    return good;
}

// Returns when what was given up has left swap. Reclaim that was about to write some of it there finishes first, which takes as
// long as the disk does: there is no time after which it would be wrong.
static void wait_until_left(void) {
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
        die("%s: page %" PRIu64 " holds something else", where, page);
}

static char *map_shared(int file) {
    int flags = file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, file, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    return memory;
}

// What `smaps` says that an area has in swap, and how many pages `mincore` says are not in memory.
static bool adds_up(char *memory) {
    unsigned char *present = malloc(length / PAGE);
    if (!present || mincore(memory, length, present))
        die("mincore");
    size_t away = 0;
    for (size_t page = 0; page < length / PAGE; page++)
        away += !(present[page] & 1);
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
    size_t said = (size_t)kilobytes / 4;
    return kilobytes > 0 && said <= away + slack && away <= said + slack;
}

// Parent and child see the same, whoever of them wrote it, and wherever it has been since.
static bool memory_is_shared(void) {
    char *memory = map_shared(-1);
    for (size_t page = 0; page < length / PAGE; page++)
        fill((uint64_t *)(memory + page * PAGE), page + 1);
    bool good = is_so(swapped() > 0, "some is in swap");
    good = is_so(adds_up(memory), "smaps and mincore agree") && good;
    good = is_so(meminfo("Shmem") < meminfo("MemTotal"), "Shmem is less than there is memory") && good;
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
        die("the child fails");
    for (size_t page = 0; page < length / PAGE; page++)
        compare((uint64_t *)(memory + page * PAGE), page + 2, "its parent");
    munmap(memory, length);
    wait_until_left();
    return good;
}

// Whether a file has as much, in memory and in swap together, while its pages go there and come back.
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

// What was written is read, mapped or not; what is cut off and punched leaves swap.
static bool a_file_is_kept(void) {
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
    bool good = is_so(swapped() > 0, "some is in swap");
    good = is_so(keeps_its_blocks(file), "st_blocks counts all") && good;
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
    good = is_so(pread(file, words, PAGE, (off_t)(length / 2)) == 100, "the rest ends where it was cut") && good;
    munmap(memory, length);
    close(file);
    wait_until_left();
    return good;
}

int main(int argc, char **argv) {
    length = (size_t)argument(argc, argv, 1, 400) << 20;
    const struct rule rules[] = {
        {"shared memory larger than memory", memory_is_shared},
        {"a file larger than memory", a_file_is_kept},
    };
    return check_rules(rules, sizeof rules / sizeof *rules);
}
