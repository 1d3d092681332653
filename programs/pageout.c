// pageout [MIB]: measures swap-out and swap-in of private memory, by folio size and by contents, in
// nanoseconds a page of 4 KiB. Under a clock that counts instructions these are instructions.
//
// out       madvise(MADV_PAGEOUT)
// in        a read of each page, in order
// left      pages, of a thousand, that were not written out
//
// Pages repeat one word, another one in each ("same-filled"), or are a third noise and two thirds
// text ("compressible"). Checks all contents afterwards. Needs swap, such as that of `vellum run
// --swap`.
#include "contents.h"
#include "folios.h"
#include <inttypes.h>

enum { MOST = 8 };

static size_t length;

static const struct {
    const char *name;
    Contents *of;
} kinds[] = {{"same-filled", same_filled}, {"compressible", compressible}};

static double per_page(uint64_t count) {
    return (double)count / (double)(length / PAGE);
}

static void measure(const char *folio, const char *data, Contents *contents) {
    uint64_t words[WORDS], wrong = 0;
    char *memory = map_aligned(length);
    for (size_t at = 0; at < length; at += PAGE)
        contents((uint64_t *)(memory + at), at / PAGE);
    split_entries(memory, length);
    uint64_t spent = 0;
    double left = 1000;
    // A call skips pages that are in use at that moment.
    for (int tries = 0; tries < MOST && left > 0; tries++) {
        uint64_t start = now_ns();
        if (madvise(memory, length, MADV_PAGEOUT))
            die("MADV_PAGEOUT");
        spent += now_ns() - start;
        left = 1000 * per_page(pages_present(memory, length));
    }
    uint64_t start = now_ns();
    for (size_t at = 0; at < length; at += PAGE)
        (void)*(volatile char *)(memory + at);
    double in = per_page(now_ns() - start);
    for (size_t at = 0; at < length; at += PAGE) {
        contents(words, at / PAGE);
        wrong += memcmp(words, memory + at, PAGE) != 0;
    }
    errno = 0;
    if (wrong)
        die("%" PRIu64 " pages came back with other contents", wrong);
    if (left > 500)
        die("%s, %s: more than half of the pages were not written out: is there enough swap?", folio, data);
    printf("{\"folio\":\"%s\",\"data\":\"%s\",\"out\":%.2f,\"in\":%.2f,\"left\":%.2f}\n", folio, data, per_page(spent), in, left);
    fflush(stdout);
    munmap(memory, length);
}

static void row(const char *folio) {
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        measure(folio, kinds[kind].name, kinds[kind].of);
}

int main(int argc, char **argv) {
    if (argc > 2)
        die("usage: %s [MIB]", argv[0]);
    length = (size_t)argument(argc, argv, 1, 256) << 20;
    if (length % HUGE)
        die("not a multiple of 2 MiB");
    save_settings();
    each_folio(row);
    return 0;
}
