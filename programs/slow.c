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

static unsigned char bytes[8 * MIB];

static void read_on(void) {
    if (pread(fd, bytes, 3 * MIB, 0) != 3 * MIB)
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
    memset(bytes, 7, sizeof bytes);
    bool good = pwrite(fd, bytes, sizeof bytes, 0) == sizeof bytes;
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0)
        _exit(fsync(fd) != 0);
    while (figure("/proc/meminfo", "Writeback") == 0 && waitpid(child, NULL, WNOHANG) == 0)
        sched_yield();
    long before = unwritten();
    good &= before > 0 && pread(fd, bytes, PAGE, 12 * MIB) == PAGE;
    long after = unwritten();
    fprintf(stderr, "%ld KiB were unwritten before a read, and %ld KiB after it\n", before, after);
    good &= after * 2 >= before;
    int status;
    return good & (waitpid(child, &status, 0) == child && status == 0);
}

static uint64_t sum(const volatile uint64_t *counts, int len) {
    uint64_t sum = 0;
    for (int nth = 0; nth < len; nth++)
        sum += counts[nth];
    return sum;
}

// While more programs read on and on than the disk takes at a time, a write waits for few reads.
static bool reads_hold_no_write_up(void) {
    enum { READERS = 12, STEP = 128 << 10 };
    volatile uint64_t *steps = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t readers[READERS];
    // The disk carries each read out, alone: none finds what the rules before have left in the
    // cache, or what another has read ahead.
    bool good = !posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) && !posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    for (int nth = 0; nth < READERS; nth++) {
        readers[nth] = fork();
        if (readers[nth] < 0)
            die("fork");
        for (off_t at = 0; readers[nth] == 0; at = (at + STEP) % MIB) {
            off_t place = nth * MIB + at;
            if (pread(fd, bytes, STEP, place) != STEP || posix_fadvise(fd, place, STEP, POSIX_FADV_DONTNEED))
                _exit(1);
            steps[nth]++;
        }
    }
    for (int nth = 0; nth < READERS; nth++)
        while (!steps[nth])
            sched_yield();
    uint64_t before = sum(steps, READERS);
    good &= pwrite(fd, bytes, 16 * PAGE, 14 * MIB) == 16 * PAGE && !fsync(fd);
    uint64_t during = sum(steps, READERS) - before;
    fprintf(stderr, "%llu reads of 128 KiB during a write\n", (unsigned long long)during);
    for (int nth = 0; nth < READERS; nth++)
        good &= !kill(readers[nth], SIGKILL) && waitpid(readers[nth], NULL, 0) == readers[nth];
    munmap((void *)steps, PAGE);
    return good && during <= 64;
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
        {"reads hold no write up", reads_hold_no_write_up},
    };
    return check_rules(rules, sizeof rules / sizeof *rules);
}
