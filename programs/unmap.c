// unmap [MIB [ARM]]: measures operations on private memory, by folio size, in nanoseconds a page of
// 4 KiB. Under a clock that counts instructions these are instructions.
//
// ARM is the order in which the folios are touched, and so, on a kernel that gives out free memory
// in ascending order, the order of their frames: "ascending", or "random"; both by default. "aged"
// is random order in memory that a churn of other programs left in pieces, which takes four times
// MIB: so much that, of the machine's memory, little else should be free.
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
#include "aged.h"

static size_t length;
static const char *arm;
// The order of touches: the index of each folio, or NULL for ascending order.
static size_t *order;

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
        shuffle(order, length / (PAGE << chosen));
    bool aged = !strcmp(arm, "aged");
    if (aged)
        age_memory(length);
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
           arm, folio, touched, fork, protect, dontneed, unmap, exit);
    fflush(stdout);
    if (aged)
        end_churn();
}

static void measure(const char *name) {
    arm = name;
    each_folio(row);
}

int main(int argc, char **argv) {
    const char *arms = argc > 2 ? argv[2] : "both";
    bool both = !strcmp(arms, "both"), ascending = both || !strcmp(arms, "ascending");
    bool random = both || !strcmp(arms, "random"), aged = !strcmp(arms, "aged");
    if (argc > 3 || !(ascending || random || aged))
        die("usage: %s [MIB [ascending|random|aged]]", argv[0]);
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
        measure("ascending");
    if (random || aged) {
        // Touched before anything is measured.
        order = calloc(length / PAGE, sizeof *order);
        if (!order)
            die("no memory");
        shuffle(order, length / PAGE);
        measure(aged ? "aged" : "random");
    }
    return 0;
}
