// Runs a churn in processes of its own, which hold what it leaves mapped until they end.
#ifndef AGED_H
#define AGED_H

#include "churn.h"
#include "folios.h"

// The address of the first slot.
static const uintptr_t SLOTS = (uintptr_t)1 << 40;

// A process of the churn, the pipe that takes its steps, and the one that reports each.
static struct helper {
    pid_t process;
    int steps, reports;
} helpers[SPACES];

static inline void free_piece(size_t at, size_t length, void *context) {
    const struct step *step = context;
    char *piece = (char *)(SLOTS + step->slot * (uintptr_t)2 * SLOT + at);
    bool failed = step->act == UNMAP     ? munmap(piece, length)
                  : step->act == DISCARD ? madvise(piece, length, MADV_DONTNEED)
                                         : madvise(piece, length, MADV_FREE) || madvise(piece, length, MADV_PAGEOUT);
    if (failed)
        die("munmap or madvise of a slot");
}

// Does the steps that come, until the pipe's other end is closed.
__attribute__((noreturn)) static inline void do_steps(int steps, int reports) {
    struct step step;
    while (read(steps, &step, sizeof step) == sizeof step) {
        if (step.act == FILL) {
            // Between slots lie as many unmapped addresses.
            int prot = PROT_READ | PROT_WRITE;
            int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
            char *slot = mmap((void *)(SLOTS + step.slot * (uintptr_t)2 * SLOT), SLOT, prot, flags, -1, 0);
            if (slot == MAP_FAILED)
                die("mmap of a slot");
            touch(slot, SLOT, 1);
        } else {
            each_piece(step, free_piece, &step);
        }
        if (write(reports, "", 1) != 1)
            break;
    }
    _exit(0);
}

static inline void start_helper(struct helper *helper) {
    int steps[2], reports[2];
    if (pipe(steps) || pipe(reports))
        die("pipe");
    helper->process = fork();
    if (helper->process < 0)
        die("fork");
    if (!helper->process) {
        close(steps[1]);
        close(reports[0]);
        do_steps(steps[0], reports[1]);
    }
    close(steps[0]);
    close(reports[1]);
    helper->steps = steps[1];
    helper->reports = reports[0];
}

// A size that the kernel lacks is base pages.
static inline void choose_kib(uint32_t kib) {
    choose(__builtin_ctz(kib / 4));
}

static inline void have_done(size_t space, struct step step) {
    char done;
    struct helper *helper = helpers + space;
    if (write(helper->steps, &step, sizeof step) != sizeof step || read(helper->reports, &done, 1) != 1)
        die("a process of the churn has ended");
}

// Leaves free memory in pieces, as after the churn before a region of this length.
static inline void age_memory(size_t length) {
    static const struct churner churner = {choose_kib, have_done};
    int order = chosen;
    for (size_t i = 0; i < SPACES; i++)
        start_helper(helpers + i);
    if (!run_churn(length, &churner))
        die("no memory");
    choose(order);
}

// Ends the processes of the churn, which frees their memory.
static inline void end_churn(void) {
    for (struct helper *helper = helpers; helper < helpers + SPACES; helper++) {
        close(helper->steps);
        close(helper->reports);
        kill(helper->process, SIGKILL);
        if (waitpid(helper->process, NULL, 0) != helper->process)
            die("waitpid");
    }
}

#endif
