// unmap [MIB [ARM]]: measures operations on private memory, by folio size, in nanoseconds a page of
// 4 KiB. Under a clock that counts instructions these are instructions.
//
// ARM is the order in which the folios are touched, and so, on a kernel that gives out free memory
// in ascending order, the order of their frames: "ascending", or "random"; both by default.
//
// touch     the page faults, each page written once
// fork      a child of a process with the memory
// protect   mprotect to read-only
// dontneed  madvise(MADV_DONTNEED)
// munmap
// exit      from the last instruction of a process with the memory until its parent reaped it
//
// Folios of 2 MiB are measured twice: mapped by a huge PTE each ("huge"), and by 512 PTEs, after an
// mprotect of their first 64 KiB and back.
#include "folios.h"

static size_t length;
// The order of touches: the index of each folio, or NULL for ascending order.
static size_t *order;

// Shuffles the indexes of the region's folios (Fisher and Yates; SplitMix64).
static void shuffle(size_t folios) {
    uint64_t state = 0x76656c6c756d00;
    for (size_t i = 0; i < folios; i++)
        order[i] = i;
    for (size_t i = folios - 1; i > 0; i--) {
        uint64_t z = state += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        size_t j = (z ^ (z >> 31)) % (i + 1), other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
}

static char *map(void) {
    return map_aligned(length);
}

static void touch_all(char *memory) {
    size_t folio = PAGE << chosen;
    for (size_t i = 0; i < length / folio; i++)
        touch(memory + (order ? order[i] : i) * folio, folio, 1);
}

static void fill(char *memory) {
    touch_all(memory);
    split_entries(memory, length);
}

static double per_page(uint64_t start) {
    return (double)(now_ns() - start) / (double)(length / PAGE);
}

static double measure_fork(void) {
    char *memory = map();
    fill(memory);
    uint64_t start = now_ns();
    pid_t child = fork();
    if (!child) {
        // The child's exit must not be counted: it may run before the parent continues.
        pause();
        _exit(0);
    }
    double cost = per_page(start);
    kill(child, SIGKILL);
    if (child < 0 || waitpid(child, NULL, 0) != child)
        die("fork");
    munmap(memory, length);
    return cost;
}

static double measure_exit(void) {
    uint64_t *start = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        die("mmap");
    pid_t child = fork();
    if (!child) {
        fill(map());
        *start = now_ns();
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status)
        die("a child failed");
    double cost = per_page(*start);
    munmap(start, PAGE);
    return cost;
}

static void row(const char *folio) {
    if (order)
        shuffle(length / (PAGE << chosen));
    char *memory = map();
    uint64_t start = now_ns();
    touch_all(memory);
    double touched = per_page(start);
    fill(memory);
    start = now_ns();
    int failed = mprotect(memory, length, PROT_READ);
    double protect = per_page(start);
    failed |= mprotect(memory, length, PROT_READ | PROT_WRITE);
    start = now_ns();
    failed |= madvise(memory, length, MADV_DONTNEED);
    double dontneed = per_page(start);
    fill(memory);
    start = now_ns();
    failed |= munmap(memory, length);
    double unmap = per_page(start);
    if (failed)
        die("mprotect, madvise or munmap");
    double fork = measure_fork(), exit = measure_exit();
    printf("{\"arm\":\"%s\",\"folio\":\"%s\",\"touch\":%.2f,\"fork\":%.2f,\"protect\":%.2f,\"dontneed\":%.2f,\"munmap\":%.2f,\"exit\":%.2f}\n",
           order ? "random" : "ascending", folio, touched, fork, protect, dontneed, unmap, exit);
    fflush(stdout);
}

int main(int argc, char **argv) {
    const char *arm = argc > 2 ? argv[2] : "both";
    bool ascending = strcmp(arm, "random"), random = strcmp(arm, "ascending");
    if (argc > 3 || (ascending && random && strcmp(arm, "both")))
        die("usage: %s [MIB [ascending|random]]", argv[0]);
    length = (size_t)argument(argc, argv, 1, 256) << 20;
    if (length % HUGE)
        die("not a multiple of 2 MiB");
    save_settings();
    // A kernel has deferred work just after boot, and its first use of memory may cost more.
    choose(0);
    char *first = map();
    fill(first);
    munmap(first, length);
    if (ascending)
        each_folio(row);
    if (random) {
        // Touched before anything is measured.
        order = calloc(length / PAGE, sizeof *order);
        if (!order)
            die("no memory");
        shuffle(length / PAGE);
        each_folio(row);
    }
    return 0;
}
