// short [SECONDS]: calls for which the kernel needs as much memory as a program says, while another takes all there is. Each is
// answered or refused for want of memory, and the kernel goes on. A row a rule; the status is 1 if one is broken.
#include "common.h"
#include <poll.h>
#include <sys/resource.h>
#include <sys/uio.h>

static long seconds;
static pid_t eater;

// Takes memory until it is killed for it, over and over.
static void keep_memory_short(void) {
    if (eater > 0 && waitpid(eater, NULL, WNOHANG) == 0)
        return;
    eater = fork();
    if (eater == 0) {
        write_line("/proc/self/oom_score_adj", "1000");
        for (;;)
            touch(map_aligned(HUGE), HUGE, 1);
    }
}

// Whether all calls until the time is up answer `right`, or find no memory; and some that were answered.
static bool answers(long (*call)(void), long right) {
    long answered = 0, others = 0;
    int other = 0;
    for (uint64_t began = now_ns(); now_ns() - began < (uint64_t)seconds * 1000000000;) {
        keep_memory_short();
        long found = call();
        answered += found == right;
        if (found != right && !(found < 0 && (errno == ENOMEM || errno == EAGAIN)))
            others++, other = found < 0 ? errno : 0;
    }
    if (!answered || others)
        fprintf(stderr, "%ld answered, %ld others, the last with error %d\n", answered, others, other);
    return answered > 0 && others == 0;
}

static struct pollfd *polled;
static rlim_t most;

static long poll_all(void) {
    return poll(polled, most, 0);
}

// As many files as a process may have, and none of them open.
static bool poll_is_refused(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    most = limit.rlim_max < 1 << 18 ? limit.rlim_max : 1 << 18;
    limit.rlim_cur = most;
    setrlimit(RLIMIT_NOFILE, &limit);
    polled = (struct pollfd *)map_aligned(most * sizeof *polled);
    for (rlim_t n = 0; n < most; n++)
        polled[n] = (struct pollfd){(int)most - 1, POLLIN, 0};
    return answers(poll_all, (long)most);
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
    return answers(read_maps, 1);
}

static long write_many(void) {
    static struct iovec pieces[1024];
    static char byte;
    int file = open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (int n = 0; n < 1024; n++)
        pieces[n] = (struct iovec){&byte, 1};
    long length = file < 0 ? -1 : writev(file, pieces, 1024);
    int error = errno;
    if (file >= 0)
        close(file);
    errno = error;
    return length;
}

static bool pieces_are_refused(void) {
    return answers(write_many, 1024);
}

// A process that has sealed memory ends, and a descriptor of its memory is still open.
static bool ended_memory_is_free(void) {
    enum { BYTES = 16 << 20 };
    int ends[2];
    char byte = 0;
    if (pipe(ends))
        die("pipe");
    kill(eater, SIGKILL);
    waitpid(eater, NULL, 0);
    long before = figure("/proc/meminfo", "MemFree");
    pid_t child = fork();
    if (child == 0) {
        char *memory = map_aligned(BYTES);
        touch(memory, BYTES, 1);
        syscall(462 /* mseal */, memory, PAGE, 0);
        int file = open("/proc/self/mem", O_RDONLY);
        // Its child keeps the descriptor, and nothing else of it.
        if (file >= 0 && fork() == 0) {
            char *const arguments[] = {"short", "wait", NULL};
            dup2(ends[0], 0);
            execv("/proc/self/exe", arguments);
        }
        _exit(file < 0);
    }
    int status;
    waitpid(child, &status, 0);
    long after = 0;
    for (int tries = 0; tries < 100 && after < before - BYTES / 2048; tries++) {
        usleep(10000);
        after = figure("/proc/meminfo", "MemFree");
    }
    close(ends[0]);
    if (write(ends[1], &byte, 1) != 1)
        die("write");
    wait(NULL);
    return status == 0 && after >= before - BYTES / 2048;
}

int main(int argc, char **argv) {
    char byte;
    if (argc > 1 && !strcmp(argv[1], "wait"))
        return read(0, &byte, 1) != 1;
    const struct rule rules[] = {
        {"poll of more files than there is memory for is refused", poll_is_refused},
        {"a file of /proc that finds no memory is refused", maps_are_refused},
        {"the memory of a process that ended is free, though sealed, and open as a file", ended_memory_is_free},
        {"writev of more pieces than there is memory for is refused", pieces_are_refused},
    };
    seconds = argument(argc, argv, 1, 3);
    write_line("/proc/self/oom_score_adj", "-1000");
    int status = check_rules(rules, sizeof rules / sizeof *rules);
    kill(eater, SIGKILL);
    return status;
}
