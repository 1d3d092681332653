// short: a call for which the kernel needs much memory, while less and less is free. Each time it is answered or refused for want of
// memory, and the kernel goes on. A row a rule; the status is 1 if one is broken. Needs a machine without swap.
#include "common.h"

enum { STEP = 24 << 10, NEAR = 5 << 20 };

// Takes memory until little is left, and then a step more for each byte that it reads, until it is killed for it.
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

// Whether a call answers `right`, or finds no memory, however much is free, and both happen.
static bool is_refused(long (*call)(void), long right) {
    int steps[2], done[2];
    long answered = 0, refused = 0, others = 0;
    char byte = 0;
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
            answered++;
        else if (found < 0 && errno == ENOMEM)
            refused++;
        else
            others++;
        if (write(steps[1], &byte, 1) != 1)
            break;
    }
    kill(eater, SIGKILL);
    waitpid(eater, NULL, 0);
    close(steps[0]);
    close(steps[1]);
    close(done[0]);
    if (!answered || others)
        fprintf(stderr, "%ld answered, %ld refused, %ld others\n", answered, refused, others);
    return answered && !others;
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

// A file of `/proc` that takes a megabyte.
static bool maps_are_refused(void) {
    char *memory = map_aligned(2 * HUGE);
    for (int page = 0; page < 1024; page += 2)
        mprotect(memory + page * PAGE, PAGE, PROT_READ);
    return is_refused(read_maps, 1);
}

int main(void) {
    const struct rule rules[] = {
        {"a file of /proc that finds no memory is refused", maps_are_refused},
    };
    signal(SIGPIPE, SIG_IGN);
    write_line("/proc/self/oom_score_adj", "-1000");
    return check_rules(rules, sizeof rules / sizeof *rules);
}
