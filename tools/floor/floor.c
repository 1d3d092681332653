// floor [MIB [FOLIO_KIB [ARM [RUNS]]]]: the least work of an munmap, independent of Vellum's code.
//
// A bare loop over the page-table entries of MIB of memory (1024), in folios of FOLIO_KIB (4): it
// clears the entries, subtracts them from the counts in a descriptor of 32 bytes a folio, and sets
// the folio's bit in a bitmap of free ones when none remain. It prefetches descriptors, or first
// collects the folios in the bitmap, which sorts them. Nothing else: no locks, no atomic operations,
// no TLB flushes, no lists. ARM is the order in which the folios got their frames: "ascending", or
// "random".
//
// Prints the fastest of RUNS (30) as a row of JSON: nanoseconds for which the thread ran; the
// number of folios freed; and a checksum of the frames of all freed folios, in the order of
// addresses.
//
// Compiles alone: cc -O2 -o floor floor.c
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, HUGE = 2 << 20, ENTRIES = 512, CACHE_LINE = 64, SORTED = -1 };

// The frame number of the first frame, and an entry's flags: present, writable, user, accessed,
// dirty, no-execute.
#define FIRST_FRAME UINT64_C(0x100000)
#define FLAGS (UINT64_C(1) << 63 | 0x67)
#define FRAME UINT64_C(0x000ffffffffff000)
// Bytes that are written before a run, so that the caches have nothing of the last one: several
// times the size of a CPU's caches. The largest last-level cache that a virtual machine is known to
// report is 260 MiB (Intel Xeon, family 6, model 207).
#define EVICTING ((size_t)1 << 30)

struct descriptor {
    uint32_t references, maps;
    uint64_t rest[3];
};
_Static_assert(sizeof(struct descriptor) == 32, "half a cache line");

static uint64_t *entries, *elsewhere, *bitmap;
static struct descriptor *descriptors;
static size_t *heads; // The first frame of each folio, in the order of addresses.
static size_t pages, per_folio, folios;

static void die(const char *message) {
    fprintf(stderr, "floor: %s\n", message);
    exit(2);
}

// Returns zeroed memory on huge pages, where the machine has them, as a kernel's own memory is.
static void *memory(size_t bytes) {
    size_t length = (bytes + HUGE - 1) / HUGE * HUGE;
    char *start = mmap(NULL, length + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        die("no memory");
    start = (char *)(((uintptr_t)start + HUGE - 1) / HUGE * HUGE);
    madvise(start, length, MADV_HUGEPAGE);
    memset(start, 0, length);
    return start;
}

static uint64_t thread_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

// Gives the folio that is touched first the first frames. Random order is a shuffle (Fisher and
// Yates) by SplitMix64.
static void place(int random) {
    size_t *order = malloc(folios * sizeof *order);
    uint64_t state = UINT64_C(0x76656c6c756d00);
    if (!order)
        die("no memory");
    for (size_t i = 0; i < folios; i++)
        order[i] = i;
    for (size_t i = folios - 1; random && i > 0; i--) {
        uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        size_t j = (z ^ z >> 31) % (i + 1), other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
    for (size_t i = 0; i < folios; i++)
        heads[order[i]] = i * per_folio;
    free(order);
}

// Maps each folio once, in whole, and leaves none of it in the caches.
static void fill(void) {
    memset(bitmap, 0, (pages + 63) / 64 * sizeof *bitmap);
    memset(descriptors, 0, pages * sizeof *descriptors);
    for (size_t folio = 0; folio < folios; folio++) {
        for (size_t page = 0; page < per_folio; page++)
            entries[folio * per_folio + page] = (FIRST_FRAME + heads[folio] + page) << 12 | FLAGS;
        descriptors[heads[folio]].references = descriptors[heads[folio]].maps = (uint32_t)per_folio;
    }
    for (size_t at = 0; at < EVICTING / sizeof *elsewhere; at += CACHE_LINE / sizeof *elsewhere)
        elsewhere[at]++;
}

// Unmaps all folios of `count` pages, and prefetches the descriptors `ahead` folios ahead.
static inline __attribute__((always_inline)) void unmap_by(size_t count, size_t ahead) {
    for (size_t at = 0; at < pages; at += count) {
        uint64_t *folio = entries + at;
        if (at + ahead * count < pages)
            __builtin_prefetch(descriptors + ((folio[ahead * count] & FRAME) >> 12) - FIRST_FRAME, 1);
        // Hardware prefetches no entries of another page table.
        for (size_t line = 0; line < count; line += CACHE_LINE / sizeof *folio)
            __builtin_prefetch(folio + ENTRIES + line, 1);
        size_t head = ((folio[0] & FRAME) >> 12) - FIRST_FRAME;
        for (size_t page = 0; page < count; page++)
            folio[page] = 0;
        struct descriptor *descriptor = descriptors + head;
        descriptor->maps -= (uint32_t)count;
        descriptor->references -= (uint32_t)count;
        if (!descriptor->references)
            bitmap[head / 64] |= UINT64_C(1) << head % 64;
    }
}

// Unmaps all folios of `count` pages, and comes to their descriptors in the order of memory.
static inline __attribute__((always_inline)) void unmap_sorted_by(size_t count) {
    for (size_t at = 0; at < pages; at += count) {
        uint64_t *folio = entries + at;
        for (size_t line = 0; line < count; line += CACHE_LINE / sizeof *folio)
            __builtin_prefetch(folio + ENTRIES + line, 1);
        size_t head = ((folio[0] & FRAME) >> 12) - FIRST_FRAME;
        for (size_t page = 0; page < count; page++)
            folio[page] = 0;
        bitmap[head / 64] |= UINT64_C(1) << head % 64;
    }
    for (size_t word = 0; word < (pages + 63) / 64; word++) {
        for (uint64_t bits = bitmap[word]; bits; bits &= bits - 1) {
            size_t bit = (size_t)__builtin_ctzll(bits);
            struct descriptor *descriptor = descriptors + word * 64 + bit;
            descriptor->maps -= (uint32_t)count;
            descriptor->references -= (uint32_t)count;
            if (descriptor->references)
                bitmap[word] &= ~(UINT64_C(1) << bit);
        }
    }
}

// With a constant, the compiler stores the entries of a small folio without a call.
__attribute__((noinline)) static void unmap_all(size_t ahead) {
    if (ahead == (size_t)SORTED) {
        switch (per_folio) {
        case 1: return unmap_sorted_by(1);
        case 4: return unmap_sorted_by(4);
        case 16: return unmap_sorted_by(16);
        default: return unmap_sorted_by(per_folio);
        }
    }
    switch (per_folio) {
    case 1: return unmap_by(1, ahead);
    case 4: return unmap_by(4, ahead);
    case 16: return unmap_by(16, ahead);
    default: return unmap_by(per_folio, ahead);
    }
}

// Returns the folios that were freed, in whole and with no entry left, and a checksum (FNV-1a) of
// their frames.
static size_t check(uint64_t *checksum) {
    size_t freed = 0;
    *checksum = UINT64_C(0xcbf29ce484222325);
    for (size_t folio = 0; folio < folios; folio++) {
        size_t head = heads[folio];
        if (!(bitmap[head / 64] >> head % 64 & 1) || descriptors[head].maps || entries[folio * per_folio])
            continue;
        freed++;
        *checksum = (*checksum ^ head) * UINT64_C(0x100000001b3);
    }
    for (size_t page = 0; page < pages; page++)
        if (entries[page])
            die("an entry is left");
    return freed;
}

int main(int argc, char **argv) {
    static const size_t distances[] = {0, 8, 24, (size_t)SORTED};
    size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 1024, kib = argc > 2 ? strtoul(argv[2], NULL, 10) : 4;
    const char *arm = argc > 3 ? argv[3] : "ascending";
    unsigned long runs = argc > 4 ? strtoul(argv[4], NULL, 10) : 30;
    pages = mib << 8, per_folio = kib / 4;
    if (argc > 5 || !runs || !per_folio || !pages || pages % per_folio ||
        (strcmp(arm, "ascending") && strcmp(arm, "random")))
        die("usage: floor [MIB [FOLIO_KIB [ascending|random [RUNS]]]]");
    folios = pages / per_folio;
    // A page table more, as the loop prefetches its entries.
    entries = memory((pages + ENTRIES + per_folio) * sizeof *entries);
    descriptors = memory(pages * sizeof *descriptors);
    bitmap = memory((pages + 63) / 64 * sizeof *bitmap);
    elsewhere = memory(EVICTING);
    heads = memory(folios * sizeof *heads);
    place(!strcmp(arm, "random"));
    uint64_t fastest = UINT64_MAX, checksum = 0;
    size_t freed = 0;
    for (unsigned long run = 0; run < runs; run++) {
        fill();
        uint64_t start = thread_ns();
        unmap_all(distances[run % 4]);
        uint64_t ns = thread_ns() - start;
        fastest = ns < fastest ? ns : fastest;
        uint64_t sum;
        size_t folios_freed = check(&sum);
        if (run && (folios_freed != freed || sum != checksum))
            die("one way frees other folios than another");
        freed = folios_freed, checksum = sum;
    }
    printf("{\"arm\":\"%s\",\"folio_kib\":%zu,\"bytes\":%zu,\"floor_ns\":%llu,\"folios\":%zu,", arm, kib, mib << 20,
           (unsigned long long)fastest, freed);
    printf("\"checksum\":\"%016llx\"}\n", (unsigned long long)checksum);
    return 0;
}
