// chaos [THREADS] [SECONDS] [SEED]: threads of one process map, write, protect, drop, move and
// unmap memory at random, and fork, and each checks that its memory holds what it wrote. The status
// is 1 if some did not.
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

enum { MOST = 64, REGIONS = 12, LARGEST = 700 };

// Pages that each hold what their thread last wrote, or zeros.
struct region {
    char *memory;
    size_t pages;
    bool writable;
    uint64_t words[LARGEST];
};

struct worker {
    pthread_t thread;
    uint64_t random, next, operations;
    struct region regions[REGIONS];
};

static atomic_bool stop;
static atomic_long errors;

static uint64_t dice(struct worker *worker, uint64_t sides) {
    // Marsaglia's xorshift.
    worker->random ^= worker->random << 13;
    worker->random ^= worker->random >> 7;
    worker->random ^= worker->random << 17;
    return worker->random % sides;
}

static void wrong(const char *call, const void *at, uint64_t found, uint64_t expected) {
    if (errors++ < 10)
        fprintf(stderr, "%s at %p: %llx, not %llx\n", call, at, (unsigned long long)found, (unsigned long long)expected);
}

static volatile uint64_t *word(struct region *region, size_t page) {
    return (volatile uint64_t *)(region->memory + page * PAGE + page % 500 * 8);
}

static void check(struct region *region) {
    for (size_t page = 0; page < region->pages; page++)
        if (*word(region, page) != region->words[page])
            wrong("a page", (void *)word(region, page), *word(region, page), region->words[page]);
}

static void expect(bool good, const char *call) {
    if (!good)
        wrong(call, NULL, (uint64_t)errno, 0);
}

static void write_some(struct worker *worker, struct region *region) {
    size_t from = dice(worker, region->pages), to = from + 1 + dice(worker, region->pages - from);
    if (!region->writable)
        expect(!mprotect(region->memory, region->pages * PAGE, PROT_READ | PROT_WRITE), "mprotect");
    region->writable = true;
    for (size_t page = from; page < to; page++)
        *word(region, page) = region->words[page] = ++worker->next;
}

static void discard_some(struct worker *worker, struct region *region) {
    size_t from = dice(worker, region->pages), pages = 1 + dice(worker, region->pages - from);
    expect(!madvise(region->memory + from * PAGE, pages * PAGE, MADV_DONTNEED), "madvise");
    memset(region->words + from, 0, pages * sizeof *region->words);
}

static void unmap(struct worker *worker, struct region *region) {
    size_t cut = dice(worker, region->pages + 1);
    expect(!munmap(region->memory + cut * PAGE, (region->pages - cut) * PAGE) || cut == region->pages, "munmap");
    if (dice(worker, 4) && cut) {
        region->pages = cut;
        return;
    }
    expect(!cut || !munmap(region->memory, cut * PAGE), "munmap");
    region->pages = 0;
}

static void map(struct worker *worker, struct region *region) {
    region->pages = 1 + dice(worker, dice(worker, 3) ? 40 : LARGEST);
    int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    region->memory = mmap(NULL, region->pages * PAGE, prot, flags, -1, 0);
    if (region->memory == MAP_FAILED)
        die("mmap");
    if (!dice(worker, 3))
        madvise(region->memory, region->pages * PAGE, MADV_HUGEPAGE);
    region->writable = true;
    memset(region->words, 0, sizeof region->words);
}

static void move(struct worker *worker, struct region *region) {
    size_t pages = 1 + dice(worker, LARGEST);
    char *memory = mremap(region->memory, region->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    if (memory == MAP_FAILED)
        return expect(false, "mremap");
    if (pages > region->pages)
        memset(region->words + region->pages, 0, (pages - region->pages) * sizeof *region->words);
    region->memory = memory;
    region->pages = pages;
}

// The child checks all of the thread's memory and writes to some; the parent must not see that.
static void fork_child(struct worker *worker) {
    pid_t child = fork();
    if (!child) {
        long before = errors;
        for (int region = 0; region < REGIONS; region++) {
            check(&worker->regions[region]);
            if (worker->regions[region].pages)
                write_some(worker, &worker->regions[region]);
            check(&worker->regions[region]);
        }
        _exit(errors > before);
    }
    int status;
    if (child < 0)
        return expect(errno == EAGAIN || errno == ENOMEM, "fork");
    expect(waitpid(child, &status, 0) == child && !status, "a child");
}

static void *work(void *argument) {
    struct worker *worker = argument;
    for (; !stop; worker->operations++) {
        struct region *region = &worker->regions[dice(worker, REGIONS)];
        if (!region->pages) {
            map(worker, region);
            continue;
        }
        switch (dice(worker, 40)) {
        case 0 ... 11:
            write_some(worker, region);
            break;
        case 12 ... 19:
            check(region);
            break;
        case 20 ... 25:
            region->writable = dice(worker, 2);
            expect(!mprotect(region->memory, region->pages * PAGE, PROT_READ | (region->writable ? PROT_WRITE : 0)), "mprotect");
            break;
        case 26 ... 30:
            discard_some(worker, region);
            break;
        case 31 ... 35:
            unmap(worker, region);
            break;
        case 36 ... 38:
            move(worker, region);
            break;
        default:
            if (!dice(worker, 20))
                fork_child(worker);
        }
    }
    for (int region = 0; region < REGIONS; region++) {
        check(&worker->regions[region]);
        if (worker->regions[region].pages)
            munmap(worker->regions[region].memory, worker->regions[region].pages * PAGE);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc > 4)
        die("usage: %s [THREADS] [SECONDS] [SEED]", argv[0]);
    long threads = argument(argc, argv, 1, 4), seconds = argument(argc, argv, 2, 10), seed = argument(argc, argv, 3, 1);
    if (threads > MOST)
        die("at most %d threads", MOST);
    static struct worker workers[MOST];
    for (long thread = 0; thread < threads; thread++) {
        workers[thread].random = (uint64_t)(seed * 1000003 + thread + 1) * UINT64_C(0x9e3779b97f4a7c15);
        workers[thread].next = (uint64_t)(thread + 1) << 48;
        if ((errno = pthread_create(&workers[thread].thread, NULL, work, &workers[thread])))
            die("pthread_create");
    }
    struct timespec length = {.tv_sec = seconds};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &length, NULL);
    stop = true;
    uint64_t operations = 0;
    for (long thread = 0; thread < threads; thread++) {
        pthread_join(workers[thread].thread, NULL);
        operations += workers[thread].operations;
    }
    printf("{\"threads\":\"%ld\",\"operations\":%llu,\"errors\":%ld}\n", threads, (unsigned long long)operations, (long)errors);
    return errors > 0;
}
