// slow DEVICE: what programs may expect of each other beside a slow disk. DEVICE is a block device
// of 16 MiB, which transfers some MiB a second; its contents are overwritten. Prints a row for each
// rule; the status is 1 if one is broken.
#include "common.h"

enum { MIB = 1 << 20 };

static int fd;

// Runs `work` in a child. Returns the number of system calls that this process makes meanwhile.
static uint64_t calls_beside(void (*work)(void)) {
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        work();
        _exit(0);
    }
    uint64_t calls = 0;
    int status;
    while (waitpid(child, &status, WNOHANG) == 0)
        calls++;
    if (status)
        die("the child failed");
    return calls;
}

static void read_on(void) {
    static unsigned char bytes[6 * MIB];
    if (pread(fd, bytes, sizeof bytes, 0) != sizeof bytes)
        die("pread");
}

static struct timespec span;

static void sleep_on(void) {
    nanosleep(&span, NULL);
}

static bool others_run_while_a_program_reads(void) {
    uint64_t start = now_ns(), beside_reader = calls_beside(read_on), ns = now_ns() - start;
    span = (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    uint64_t beside_sleeper = calls_beside(sleep_on);
    fprintf(stderr, "%llu calls beside a reader, %llu beside a sleeper\n", (unsigned long long)beside_reader,
            (unsigned long long)beside_sleeper);
    return beside_reader * 4 >= beside_sleeper;
}

// Returns the KiB of dirty pages and of those being written.
static long unwritten(void) {
    return figure("/proc/meminfo", "Dirty") + figure("/proc/meminfo", "Writeback");
}

// While all of 8 MiB waits to be written, a read waits for little of it.
static bool a_read_overtakes_writes(void) {
    static unsigned char bytes[8 * MIB];
    memset(bytes, 7, sizeof bytes);
    bool good = pwrite(fd, bytes, sizeof bytes, 0) == sizeof bytes;
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0)
        _exit(fsync(fd) != 0);
    // The child has begun to wait.
    nanosleep(&(struct timespec){0, 200000000}, NULL);
    long before = unwritten();
    good &= before > 4 << 10 && pread(fd, bytes, PAGE, 12 * MIB) == PAGE;
    long after = unwritten();
    fprintf(stderr, "%ld KiB were unwritten before a read, and %ld KiB after it\n", before, after);
    good &= after * 2 >= before;
    int status;
    return good & (waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
    if (argc != 2)
        die("usage: %s DEVICE", argv[0]);
    fd = open(argv[1], O_RDWR | O_CLOEXEC);
    if (fd < 0)
        die("%s", argv[1]);
    static const struct rule rules[] = {
        {"others run while a program reads", others_run_while_a_program_reads},
        {"a read overtakes writes", a_read_overtakes_writes},
    };
    return check_rules(rules, sizeof rules / sizeof *rules);
}
