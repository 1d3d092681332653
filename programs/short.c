// short: a system call that needs much kernel memory either succeeds or fails with ENOMEM, however
// little is free, and the kernel survives. Prints a row for each rule; the status is 1 if one is
// broken. Needs a machine without swap.
#include "common.h"

enum { STEP = 24 << 10, NEAR = 5 << 20 };

// Takes memory until little is left, then a step more for each byte on `steps`, until the OOM
// killer kills it.
__attribute__((noreturn)) static void eat(int steps, int done) {
    char byte;
    write_line("/proc/self/oom_score_adj", "1000");
    long most = figure("/proc/meminfo", "MemFree") * 1024 - NEAR;
    char *memory = map_aligned((size_t)most + 2 * NEAR + HUGE);
    madvise(memory, (size_t)most + 2 * NEAR + HUGE, MADV_NOHUGEPAGE);
    if (most > 0)
        touch(memory, (size_t)most, 1);
    for (char *at = memory + (most > 0 ? most : 0); write(done, "", 1) == 1 && read(steps, &byte, 1) == 1; at += STEP)
        touch(at, STEP, 1);
    _exit(1);
}

// Checks that a call returns `right` while memory is free, and then returns `right` or fails with
// ENOMEM at each amount that is left, and fails at one. How little suffices is no rule: it depends
// on the pieces in which the rest lies.
static bool fails_with_enomem_at_most(long (*call)(void), long right) {
    int steps[2], done[2];
    long succeeded = 0, refused = 0, failed = 0;
    char byte = 0;
    if (call() != right) {
        fprintf(stderr, "failed while memory was free\n");
        return false;
    }
    if (pipe2(steps, O_CLOEXEC) || pipe2(done, O_CLOEXEC))
        die("pipe2");
    pid_t eater = fork();
    if (eater == 0) {
        close(steps[1]);
        close(done[0]);
        eat(steps[0], done[1]);
    }
    close(done[1]);
    while (read(done[0], &byte, 1) == 1) {
        long found = call();
        if (found == right)
            succeeded++;
        else if (found < 0 && errno == ENOMEM)
            refused++;
        else
            failed++;
        if (write(steps[1], &byte, 1) != 1)
            break;
    }
    kill(eater, SIGKILL);
    waitpid(eater, NULL, 0);
    close(steps[0]);
    close(steps[1]);
    close(done[0]);
    if (!refused || failed)
        fprintf(stderr, "%ld succeeded, %ld failed with ENOMEM, %ld failed otherwise\n", succeeded, refused, failed);
    return refused && !failed;
}

static long read_maps(void) {
    static char text[1 << 20];
    int file = open("/proc/self/smaps", O_RDONLY | O_CLOEXEC);
    long length = file < 0 ? -1 : read(file, text, sizeof text);
    int error = errno;
    if (file >= 0)
        close(file);
    errno = error;
    return length > 0 ? 1 : length;
}

// A file of `/proc` whose text takes a megabyte.
static bool smaps_may_fail_with_enomem(void) {
    char *memory = map_aligned(2 * HUGE);
    for (int page = 0; page < 1024; page += 2)
        mprotect(memory + page * PAGE, PAGE, PROT_READ);
    return fails_with_enomem_at_most(read_maps, 1);
}

int main(void) {
    const struct rule rules[] = {
        {"a read of /proc/self/smaps succeeds, or fails with ENOMEM", smaps_may_fail_with_enomem},
    };
    signal(SIGPIPE, SIG_IGN);
    write_line("/proc/self/oom_score_adj", "-1000");
    return check_rules(rules, sizeof rules / sizeof *rules);
}
