// sharers [CHILDREN [MIB]]: a process with a page and a block of 2 MiB in swap forks any number of
// times, and a bystander stays in memory.
//
// The bystander, another user's, has MIB. Every child is alive when the last one is forked; then
// each reads what it shares in swap, and all see the contents. Needs swap, such as that of `vellum
// run --swap`, and root.
#include "common.h"
#include <sys/resource.h>

static long children, size;
static long forks, readers, fork_error;
static size_t resident_before;
static long swapped, resident_after;

static uint64_t word_of(size_t at) { return (at + 1) * 0x9e3779b97f4a7c15; }

static void fill(char *memory, size_t length) {
    for (size_t at = 0; at < length; at += sizeof(uint64_t))
        *(uint64_t *)(memory + at) = word_of(at);
}

static bool is_filled(const char *memory, size_t from, size_t to) {
    for (size_t at = from; at < to; at += PAGE)
        if (*(volatile const uint64_t *)(memory + at) != word_of(at))
            return false;
    return true;
}

static void become_user(uid_t user) {
    // No process limit but the machine's.
    struct rlimit processes = {RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_NPROC, &processes))
        die("RLIMIT_NPROC");
    if (setresuid(user, user, user))
        die("sharers must be run as root");
}

// Fills memory of its own, reports that, and sleeps.
__attribute__((noreturn)) static void stand_by(int ready) {
    become_user(12345);
    size_t length = (size_t)size << 20;
    fill(map_aligned(length), length);
    if (write(ready, "", 1) != 1)
        die("a pipe");
    for (;;)
        pause();
}

// Writes memory to swap. A call skips pages that are in use at that moment.
static void page_out(char *memory, size_t length) {
    for (int tries = 0; tries < 100 && pages_present(memory, length); tries++)
        if (madvise(memory, length, MADV_PAGEOUT))
            die("MADV_PAGEOUT");
    errno = 0;
    if (pages_present(memory, length))
        die("pages were not written to swap: is there any?");
}

// Forks the children and has them read all at once. Sends the number of children, the number that
// found their contents, and the error of a fork that failed.
__attribute__((noreturn)) static void share(int result) {
    become_user(12346);
    size_t length = HUGE + PAGE;
    char *memory = map_aligned(length);
    fill(memory, length);
    page_out(memory, length);
    int go[2];
    if (pipe(go))
        die("pipe");
    long counts[3] = {0};
    for (; counts[0] < children; counts[0]++) {
        pid_t child = fork();
        if (child < 0) {
            counts[2] = errno;
            break;
        }
        if (!child) {
            char end;
            close(go[1]);
            // The page, and a part of the block.
            bool good = read(go[0], &end, 1) == 0 && is_filled(memory, HUGE, length) && is_filled(memory, PAGE, 16 * PAGE);
            _exit(!good);
        }
    }
    close(go[1]);
    int status;
    while (wait(&status) > 0)
        counts[1] += WIFEXITED(status) && !WEXITSTATUS(status);
    if (!is_filled(memory, 0, length))
        counts[1] = -1;
    if (write(result, counts, sizeof counts) != sizeof counts)
        die("a pipe");
    _exit(0);
}

static long figure_of(pid_t process, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/status", process);
    return figure(path, name);
}

static bool all_forks_succeed(void) {
    if (forks != children)
        printf("{\"forked\":%ld,\"error\":\"%s\"}\n", forks, strerror((int)fork_error));
    return forks == children;
}

static bool all_read_their_contents(void) { return readers == children; }

static bool stays_resident(void) {
    if (swapped || (size_t)resident_after < resident_before)
        printf("{\"resident before\":%zu,\"after\":%ld,\"swapped\":%ld}\n", resident_before, resident_after, swapped);
    return !swapped && (size_t)resident_after >= resident_before;
}

int main(int argc, char **argv) {
    if (argc > 3)
        die("usage: %s [CHILDREN [MIB]]", argv[0]);
    children = argument(argc, argv, 1, 600);
    size = argument(argc, argv, 2, 48);
    int ready[2], result[2];
    if (pipe(ready) || pipe(result))
        die("pipe");
    pid_t bystander = fork();
    if (!bystander)
        stand_by(ready[1]);
    char byte;
    close(ready[1]);
    if (bystander < 0 || read(ready[0], &byte, 1) != 1)
        die("the bystander failed");
    resident_before = (size_t)figure_of(bystander, "VmRSS");
    pid_t sharer = fork();
    if (!sharer)
        share(result[1]);
    close(result[1]);
    long counts[3];
    if (sharer < 0 || read(result[0], counts, sizeof counts) != sizeof counts)
        die("the sharing process failed");
    forks = counts[0], readers = counts[1], fork_error = counts[2];
    swapped = figure_of(bystander, "VmSwap");
    resident_after = figure_of(bystander, "VmRSS");
    kill(bystander, SIGKILL);
    while (wait(NULL) > 0)
        ;
    static const struct rule rules[] = {
        {"fork shares swap slots with any number of children", all_forks_succeed},
        {"each child reads the contents that it shares", all_read_their_contents},
        {"a bystander stays in memory", stays_resident},
    };
    return check_rules(rules, sizeof rules / sizeof *rules);
}
