// disk works|reads|writes|damaged: a disk to swap to does what it should; or every read of it fails, or every write (`vellum run --swap-disk
// SIZE [--swap-disk-fails reads|writes]`); or somebody else writes to it when told so on standard output, until told so on standard input
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

// How many pages are left in memory after all were asked to go.
static size_t push_out(void) {
    // What is busy at the moment is passed over.
    for (int tries = 0; tries < 8; tries++)
        if (madvise(memory, PAGES * PAGE, MADV_PAGEOUT))
            die("MADV_PAGEOUT");
    return pages_present(memory, PAGES * PAGE);
}

static bool comes_back(void) {
    fill();
    return push_out() == 0 && all_hold();
}

static bool empties(void) {
    fill();
    return push_out() == 0 && !swapoff(DISK) && pages_present(memory, PAGES * PAGE) == PAGES && all_hold();
}

static bool is_out_of_use(void) {
    return push_out() == PAGES && swapoff(DISK) == -1 && errno == EINVAL;
}

static bool is_used_again(void) {
    return !swapon(DISK, SWAP_FLAG_PREFER | 3) && swapon(DISK, 0) == -1 && errno == EBUSY && comes_back();
}

static bool stays(void) {
    long out = figure("/proc/vmstat", "pswpout");
    fill();
    return push_out() == PAGES && all_hold() && figure("/proc/vmstat", "pswpout") == out;
}

// Whether a child that reads what is lost is killed.
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
    return push_out() == 0 && kills_a_reader() && kills_a_reader();
}

static bool kills_who_reads_what_changed(void) {
    char line[8];
    fill();
    if (push_out() || puts("out") < 0 || fflush(stdout) || !fgets(line, sizeof line, stdin))
        return false;
    return kills_a_reader();
}

static bool is_not_forgotten(void) {
    return swapoff(DISK) == -1 && errno == EIO && kills_a_reader();
}

static bool is_forgotten(void) {
    // What nobody reads any more does no harm.
    return !munmap(memory, PAGES * PAGE) && !swapoff(DISK);
}

static const struct rule working[] = {
    {"what goes to the disk comes back", comes_back},
    {"what is there comes back before the disk goes out of use", empties},
    {"out of use, it is out of use", is_out_of_use},
    {"it is used again", is_used_again},
}, writes[] = {
    {"what can't be written stays", stays},
}, reads[] = {
    {"who reads what is lost is killed, and nobody else", kills_readers},
    {"the disk can't go out of use while somebody has what is lost there", is_not_forgotten},
    {"what is lost can be given up, and the disk with it", is_forgotten},
}, damaged[] = {
    {"who reads what somebody else wrote there is killed", kills_who_reads_what_changed},
    {"what is lost can be given up, and the disk with it", is_forgotten},
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
