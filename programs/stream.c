// stream DEVICE [HOT [STREAM]]: what is left of a working set beside a stream of file pages that
// are read once, on a machine whose memory holds the working set, but not the stream.
//
// A process reads each page of HOT MiB (96) in turn, again and again, while STREAM MiB (1024) of
// DEVICE are read, once, by calls. A round of the working set takes as long as two thirds of its
// size of the stream.
//
// file     the working set is a mapping of the device's first HOT MiB
// memory   it is anonymous memory
// calls    it is the device's first HOT MiB, read by calls
// alone    it is a mapping, in a cgroup of its own, without a stream
// groups   the same, while another process in another cgroup reads the stream, which begins after
//          two rounds of the working set
//
// Prints a row for each, with the part of the working set that is resident in the end, and the
// faults of the process with it. The status is 1 if less than 95 % are, or if "groups" has over 5 %
// more faults than "alone".
#include "common.h"
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { STEP = 1 << 20 };

static int device;
static size_t hot, length;
static bool good = true;

enum kind { FILE_MAPPING, MEMORY, CALLS };

static char *map_hot(enum kind kind) {
    char *at = kind != MEMORY ? mmap(NULL, hot, PROT_READ, MAP_SHARED, device, 0)
                       : mmap(NULL, hot, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        die("mmap");
    if (kind == MEMORY)
        touch(at, hot, 1);
    return at;
}

// Reads some pages of the working set, from `next` on, and returns where to go on.
static size_t serve(const char *at, size_t next, size_t bytes) {
    for (size_t done = 0; done < bytes; done += PAGE, next = (next + PAGE) % hot)
        (void)*(const volatile char *)(at + next);
    return next;
}

// Reads a step of the stream.
static void read_step(size_t at) {
    static char buffer[STEP];
    if (pread(device, buffer, STEP, (off_t)(hot + at)) != STEP)
        die("reading the stream at %zu", at);
}

static double resident(const char *at) {
    unsigned char *in = malloc(hot / PAGE);
    size_t count = 0;
    if (!in || mincore((void *)at, hot, in))
        die("mincore");
    for (size_t i = 0; i < hot / PAGE; i++)
        count += in[i] & 1;
    free(in);
    return 100.0 * (double)count / (double)(hot / PAGE);
}

static long faults(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_minflt + used.ru_majflt;
}

static void row(const char *name, double percent, long count) {
    printf("{\"case\": \"%s\", \"resident\": %.1f, \"faults\": %ld}\n", name, percent, count);
    good &= percent >= 95;
}

// Drops the pages of the device from memory.
static void forget(void) {
    if (posix_fadvise(device, 0, 0, POSIX_FADV_DONTNEED))
        die("fadvise");
}

// Reads a part of the working set by calls.
static size_t serve_by_calls(size_t next, size_t bytes) {
    static char buffer[STEP / 2];
    for (size_t done = 0; done < bytes; done += sizeof buffer, next = (next + sizeof buffer) % hot)
        if (pread(device, buffer, sizeof buffer, (off_t)next) != sizeof buffer)
            die("reading the working set at %zu", next);
    return next;
}

static void beside_own_stream(const char *name, enum kind kind) {
    long before = faults();
    char *at = map_hot(kind);
    size_t next = kind == CALLS ? serve_by_calls(0, 2 * hot) : serve(at, 0, 2 * hot);
    for (size_t done = 0; done < length; done += STEP) {
        read_step(done);
        next = kind == CALLS ? serve_by_calls(next, STEP * 3 / 2) : serve(at, next, STEP * 3 / 2);
    }
    row(name, resident(at), faults() - before);
    munmap(at, hot);
    forget();
}

// Moves this process to a new cgroup.
static void enter_group(const char *name) {
    char path[64], procs[80], number[16];
    mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, "");
    int all = open("/sys/fs/cgroup/cgroup.subtree_control", O_WRONLY);
    if (all < 0 || write(all, "+memory", 7) != 7)
        die("cgroup2 with a memory controller");
    close(all);
    snprintf(path, sizeof path, "/sys/fs/cgroup/%s", name);
    snprintf(procs, sizeof procs, "%s/cgroup.procs", path);
    mkdir(path, 0755);
    int file = open(procs, O_WRONLY);
    int count = snprintf(number, sizeof number, "%d", getpid());
    if (file < 0 || write(file, number, (size_t)count) != count)
        die("%s", procs);
    close(file);
}

// Serves rounds of the working set in a group until `stop` is readable or, if that is negative, for
// a number of rounds. Tells of the second round, and in the end the faults and the part that is
// resident.
static void server(int stop, int told) {
    enter_group("server");
    char *at = map_hot(FILE_MAPPING);
    long rounds = 0;
    for (char byte; rounds < 16 || (stop >= 0 && read(stop, &byte, 1) < 0); rounds++) {
        serve(at, 0, hot);
        sched_yield();
        if (rounds == 1 && write(told, &rounds, sizeof rounds) != sizeof rounds)
            die("the pipe");
    }
    long answer[2] = {faults(), (long)(resident(at) * 10)};
    if (write(told, answer, sizeof answer) != sizeof answer)
        die("the pipe");
    exit(0);
}

// Runs a server, with a stream beside it or without. Returns its faults, and the part of its
// working set that is resident.
static long run_server(bool with_stream, double *percent) {
    int stop[2], told[2], status;
    long answer[2];
    if (pipe2(stop, O_NONBLOCK) || pipe(told))
        die("pipe");
    pid_t child = fork();
    if (child == 0)
        server(with_stream ? stop[0] : -1, told[1]);
    if (read(told[0], answer, sizeof *answer) != sizeof *answer)
        die("the server");
    if (with_stream) {
        pid_t reader = fork();
        if (reader == 0) {
            enter_group("reader");
            for (size_t done = 0; done < length; done += STEP) {
                read_step(done);
                sched_yield();
            }
            exit(0);
        }
        waitpid(reader, &status, 0);
        if (status || write(stop[1], "", 1) != 1)
            die("the reader");
    }
    if (read(told[0], answer, sizeof answer) != sizeof answer || waitpid(child, &status, 0) != child || status)
        die("the server");
    close(stop[0]), close(stop[1]), close(told[0]), close(told[1]);
    forget();
    *percent = (double)answer[1] / 10;
    return answer[0];
}

int main(int argc, char **argv) {
    if (argc < 2)
        die("usage: %s DEVICE [HOT [STREAM]]", argv[0]);
    hot = (size_t)argument(argc, argv, 2, 96) << 20;
    length = (size_t)argument(argc, argv, 3, 1024) << 20;
    device = open(argv[1], O_RDONLY);
    if (device < 0)
        die("%s", argv[1]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    beside_own_stream("file", FILE_MAPPING);
    beside_own_stream("memory", MEMORY);
    beside_own_stream("calls", CALLS);
    double percent;
    long count = run_server(false, &percent);
    row("alone", percent, count);
    long beside = run_server(true, &percent);
    row("groups", percent, beside);
    good &= beside <= count + count / 20;
    return good ? 0 : 1;
}
