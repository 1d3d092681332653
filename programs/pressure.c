// pressure [MIB [ROUNDS [READS]]]: uses more memory than the machine has, and checks that every
// page holds what was last written to it. Needs swap, such as that of `vellum run --mem 256M --swap
// 1G`.
//
// Each round writes a part of all pages, in an order that defeats readahead, beside a child that
// does the same to a quarter of its own copy. Most pages repeat one word; one in eight compresses
// to a half.
//
// With READS, every page compresses to a half, and parent and child each read all of them READS
// times: pages that both share and neither writes must take no more memory and swap than those of
// one process.
#include "contents.h"

static char *memory;
static uint64_t pages;
// The number of times that each page was written.
static uint16_t *written;
static uint64_t reads;

static void fill(uint64_t *words, uint64_t page) {
    (page % 8 && !reads ? same_filled : compressible)(words, page << 16 | written[page]);
}

static void write_page(uint64_t page) {
    written[page]++;
    fill((uint64_t *)(memory + page * PAGE), page);
}

static void check(const char *process, uint64_t first) {
    uint64_t words[WORDS];
    for (uint64_t page = 0; page < first; page++) {
        fill(words, page);
        if (memcmp(words, memory + page * PAGE, PAGE)) {
            errno = 0;
            die("%s: page %llu has other contents", process, (unsigned long long)page);
        }
    }
}

// Writes an eighth of the first `first` pages.
static void work(uint64_t noise, uint64_t first) {
    for (uint64_t i = 0; i < first / 8; i++) {
        noise = noise * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        write_page((noise >> 33) % first);
    }
}

int main(int argc, char **argv) {
    if (argc > 4)
        die("usage: %s [MIB [ROUNDS [READS]]]", argv[0]);
    size_t length = (size_t)argument(argc, argv, 1, 600) << 20;
    uint64_t rounds = (uint64_t)argument(argc, argv, 2, 2);
    reads = (uint64_t)argument(argc, argv, 3, 0);
    pages = length / PAGE;
    memory = map_aligned(length);
    written = calloc(pages, sizeof *written);
    if (!written)
        die("calloc");
    for (uint64_t page = 0; page < pages; page++)
        write_page(page);
    check("the first", pages);
    for (uint64_t round = 0; round < rounds; round++) {
        pid_t child = fork();
        if (child < 0)
            die("fork");
        if (!reads)
            work(2 * round + !child, child ? pages : pages / 4);
        for (uint64_t read = 0; read < (reads ? reads : 1); read++)
            check(child ? "a parent" : "a child", child || reads ? pages : pages / 4);
        if (!child)
            _exit(0);
        int status;
        if (waitpid(child, &status, 0) != child)
            die("waitpid");
        errno = 0;
        if (status)
            die("a child ended with status %#x", status);
    }
    long out = figure("/proc/vmstat", "pswpout"), in = figure("/proc/vmstat", "pswpin");
    long freed = figure("/proc/vmstat", "pgsteal_kswapd") + figure("/proc/vmstat", "pgsteal_direct");
    long scanned = figure("/proc/vmstat", "pgscan_kswapd") + figure("/proc/vmstat", "pgscan_direct");
    if (freed > scanned || (out > 0 && freed <= 0))
        die("pgsteal is %ld, and pgscan %ld: expected no more freed than scanned", freed, scanned);
    printf("{\"mib\":%zu,\"rounds\":%d,\"out\":%ld,\"in\":%ld}\n", length >> 20, (int)rounds, out, in);
    return 0;
}
