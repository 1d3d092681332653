// over FILE [PRESSURE]: changes a file of a root file system that is not to be changed (`vellum run
// --root`), by calls and by a mapping, and finds its changes again after PRESSURE MiB (0) of
// anonymous memory have pushed the file out of memory.
//
// The file has lines of 15 digits, with the lines' numbers from 0 on, and at least 64 pages of them.
#include "common.h"
#include <sys/stat.h>

enum { LINE = 16, STEP = 3 };

static const char MARK[] = "changed by `over`";

// Fails unless the file is as it was, but that every third page begins with the mark if `marked`.
static void check(int fd, size_t bytes, bool marked, const char *when) {
    static char page[PAGE];

    for (size_t at = 0; at < bytes; at += PAGE) {
        size_t got = bytes - at < PAGE ? bytes - at : PAGE, from = 0;

        if (pread(fd, page, got, (off_t)at) != (ssize_t)got)
            die("%s: reading at %zu", when, at);
        if (marked && at / PAGE % STEP == 0) {
            if (memcmp(page, MARK, sizeof MARK - 1) != 0)
                errno = 0, die("%s: the change at %zu is lost", when, at);
            from = 2 * LINE;
        }
        for (; from + LINE <= got; from += LINE) {
            char expected[24];

            snprintf(expected, sizeof expected, "%015zu\n", (at + from) / LINE);
            if (memcmp(page + from, expected, LINE) != 0)
                errno = 0, die("%s: wrong contents at %zu", when, at + from);
        }
    }
}

// Uses so much anonymous memory, in a process of its own.
static void press(size_t mib) {
    size_t bytes = mib << 20;
    int status;
    pid_t child = fork();

    if (child == 0) {
        char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (at == MAP_FAILED)
            die("mmap");
        for (int round = 0; round < 2; round++)
            touch(at, bytes, 1);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        die("pressure");
}

static bool is_zero(const char *at, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (at[i])
            return false;
    return true;
}

int main(int argc, char **argv) {
    size_t pressure = argc > 2 ? strtoul(argv[2], NULL, 10) : 0, bytes, half;
    const char *path = argv[1];
    char other[4096], *map;
    struct stat stat;
    int fd = argc > 1 ? open(path, O_RDWR) : (errno = EINVAL, -1), reader;

    if (fd < 0 || fstat(fd, &stat) != 0 || (reader = open(path, O_RDONLY)) < 0)
        die("over FILE [PRESSURE]: %s", path ? path : "no file");
    bytes = (size_t)stat.st_size;
    half = bytes / 2 / PAGE * PAGE + 100;
    if (bytes < 64 * PAGE || bytes % LINE)
        errno = 0, die("%s is too small, or has no lines of %d bytes", path, LINE);
    check(fd, bytes, false, "in the beginning");

    // Half of the changes by calls, and half by a mapping.
    map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        die("mmap");
    for (size_t at = 0; at < bytes; at += STEP * PAGE) {
        if (at / PAGE % 2)
            memcpy(map + at, MARK, sizeof MARK - 1);
        else if (pwrite(fd, MARK, sizeof MARK - 1, (off_t)at) != sizeof MARK - 1)
            die("writing");
    }
    check(reader, bytes, true, "after the changes");
    if (fsync(fd) != 0 || msync(map, bytes, MS_SYNC) != 0)
        die("synchronising");
    sync();
    if (pressure)
        press(pressure);
    check(reader, bytes, true, "after pressure");

    // A hole is punched, as on Linux, or refused, and then nothing is lost.
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)half, (off_t)(bytes - half)) != 0)
        check(reader, bytes, true, "after the refusal of a hole");
    else if (!is_zero(map + half, bytes - half))
        errno = 0, die("there are bytes in the hole");

    // After a cut the file has zeros there, also when it grows again.
    if (ftruncate(fd, (off_t)half) != 0 || ftruncate(fd, (off_t)bytes) != 0)
        die("truncating");
    check(reader, half / LINE * LINE, true, "before the cut");
    if (!is_zero(map + half, bytes - half))
        errno = 0, die("there are bytes behind the cut");
    if (pressure)
        press(pressure);
    if (!is_zero(map + half, bytes - half))
        errno = 0, die("there are bytes behind the cut after pressure");
    if (pwrite(fd, MARK, sizeof MARK - 1, (off_t)(bytes + PAGE)) != sizeof MARK - 1 || map[bytes - 1] != 0)
        die("writing behind the end");

    // Names: the file goes under another, and a new one takes its place.
    snprintf(other, sizeof other, "%s.other", path);
    if (rename(path, other) != 0)
        die("renaming");
    fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || write(fd, MARK, sizeof MARK) != sizeof MARK || unlink(other) != 0 || access(other, F_OK) == 0)
        die("names");
    check(reader, half / LINE * LINE, true, "without a name");
    if (open(path, O_RDONLY | O_TRUNC) < 0 || fstat(fd, &stat) != 0 || stat.st_size != 0)
        die("truncating by open");
    printf("over: %zu pages: all changes were there\n", bytes / PAGE);
    return 0;
}
