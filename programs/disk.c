// disk works|reads|writes|damaged: a swap disk that works; one whose reads or writes all fail
// (`vellum run --swap-disk SIZE [--swap-disk-fails reads|writes]`); or one that another program
// overwrites between this program's line on standard output and a line on its standard input
// (`--swap-disk FILE --swap-disk-checksums`).
#include "contents.h"
#include <sys/swap.h>

#define DISK "/dev/vda"

enum { PAGES = 1024 };

static char *memory;

static void fill(void) {
    for (size_t page = 0; page < PAGES; page++)
        (page % 2 ? same_filled : compressible)((uint64_t *)(memory + page * PAGE), page);
}

static bool holds(size_t page) {
    uint64_t words[WORDS];
    (page % 2 ? same_filled : compressible)(words, page);
    return !memcmp(words, memory + page * PAGE, PAGE);
}

static bool all_hold(void) {
    for (size_t page = 0; page < PAGES; page++)
        if (!holds(page))
            return false;
    return true;
}

// Pages out all memory, and returns the number of pages that stay present.
static size_t page_out(void) {
    // A call skips pages that are in use at that moment.
    for (int tries = 0; tries < 8; tries++)
        if (madvise(memory, PAGES * PAGE, MADV_PAGEOUT))
            die("MADV_PAGEOUT");
    return pages_present(memory, PAGES * PAGE);
}

static bool pages_return(void) {
    fill();
    return page_out() == 0 && all_hold();
}

static bool swapoff_returns_pages(void) {
    fill();
    return page_out() == 0 && !swapoff(DISK) && pages_present(memory, PAGES * PAGE) == PAGES && all_hold();
}

static bool stays_off(void) {
    return page_out() == PAGES && swapoff(DISK) == -1 && errno == EINVAL;
}

static bool swapon_again(void) {
    return !swapon(DISK, SWAP_FLAG_PREFER | 3) && swapon(DISK, 0) == -1 && errno == EBUSY && pages_return();
}

static bool unwritable_pages_stay(void) {
    long out = figure("/proc/vmstat", "pswpout");
    fill();
    return page_out() == PAGES && all_hold() && figure("/proc/vmstat", "pswpout") == out;
}

// Checks that a child that reads a lost page is killed.
static bool kills_a_reader(void) {
    pid_t child = fork();
    if (!child)
        _exit(holds(0));
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS;
}

static bool kills_readers(void) {
    fill();
    return page_out() == 0 && kills_a_reader() && kills_a_reader();
}

static bool kills_readers_of_changed_pages(void) {
    char line[8];
    fill();
    if (page_out() || puts("out") < 0 || fflush(stdout) || !fgets(line, sizeof line, stdin))
        return false;
    return kills_a_reader();
}

static bool swapoff_fails(void) {
    return swapoff(DISK) == -1 && errno == EIO && kills_a_reader();
}

static bool unmap_drops_lost_pages(void) {
    // A lost page does no harm once no process maps it.
    return !munmap(memory, PAGES * PAGE) && !swapoff(DISK);
}

static const struct rule working[] = {
    {"pages return from the disk with their contents", pages_return},
    {"swapoff brings all pages back", swapoff_returns_pages},
    {"after swapoff nothing is written, and swapoff fails", stays_off},
    {"swapon attaches the disk again", swapon_again},
}, writes[] = {
    {"pages that can't be written stay in memory", unwritable_pages_stay},
}, reads[] = {
    {"only the process that reads a lost page is killed", kills_readers},
    {"swapoff fails with EIO while a lost page is mapped", swapoff_fails},
    {"after munmap of lost pages swapoff succeeds", unmap_drops_lost_pages},
}, damaged[] = {
    {"a process that reads an overwritten page is killed", kills_readers_of_changed_pages},
    {"after munmap of lost pages swapoff succeeds", unmap_drops_lost_pages},
};

int main(int argc, char **argv) {
    const char *how = argc == 2 ? argv[1] : "";
    memory = map_aligned(PAGES * PAGE);
    if (!strcmp(how, "works"))
        return check_rules(working, sizeof working / sizeof *working);
    if (!strcmp(how, "writes"))
        return check_rules(writes, sizeof writes / sizeof *writes);
    if (!strcmp(how, "reads"))
        return check_rules(reads, sizeof reads / sizeof *reads);
    if (!strcmp(how, "damaged"))
        return check_rules(damaged, sizeof damaged / sizeof *damaged);
    die("usage: %s works|reads|writes|damaged", argv[0]);
}
