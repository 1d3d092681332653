// dirty DEVICE [groups]: the limits of dirty pages (vm.dirty_bytes) hold for writes and for
// mappings, and two programs that write side by side both get on. With `groups`: also in a cgroup
// with a limit, of which a tenth may be dirty, and beside it. DEVICE is a block device of at least
// 64 MiB whose contents are overwritten. Prints a row for each rule; the status is 1 if one is
// broken.
#include "common.h"
#include <sys/mount.h>
#include <sys/stat.h>

enum { MIB = 1 << 20, LENGTH = 24 * MIB, PIECE = 64 << 10, SLACK = MIB / 2 };

static const char *device;
static int fd;
static size_t most;

static size_t number(const char *path, const char *name) {
    long found = figure(path, name);
    if (found < 0)
        die("%s has no %s", path, name);
    return (size_t)found;
}

static void set(const char *path, const char *value) {
    if (!write_line(path, value))
        die("%s to %s", value, path);
}

// Returns the number in the row `NAME value` of a file's text.
static size_t in_text(const char *text, const char *name) {
    const char *row = strstr(text, name);
    if (!row)
        die("there is no %s", name);
    return (size_t)atol(row + strlen(name));
}

// Returns the sum of two rows of a file, read at once: what the disk gets between two reads would
// count in both.
static size_t sum(const char *path, const char *dirty, const char *writing) {
    static char text[16 << 10];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = read(file, text, sizeof text - 1);
    if (length <= 0)
        die("%s", path);
    close(file);
    text[length] = 0;
    return in_text(text, dirty) + in_text(text, writing);
}

// Returns whether the machine has no more dirty pages than it may.
static bool is_within_limit(void) {
    size_t dirty = sum("/proc/vmstat", "\nnr_dirty ", "\nnr_writeback ");
    most = dirty * PAGE > most ? dirty * PAGE : most;
    return dirty * PAGE <= number("/proc/vmstat", "nr_dirty_threshold") * PAGE + SLACK;
}

static void write_piece(size_t at) {
    static char bytes[PIECE];
    memset(bytes, (int)(at / PIECE), PIECE);
    if (pwrite(fd, bytes, PIECE, (off_t)at) != PIECE)
        die("pwrite at %zu", at);
}

static void settle(void) {
    if (fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
        die("fsync");
    most = 0;
}

static bool writes_keep_the_limit(void) {
    bool good = true;
    for (size_t at = 0; at < LENGTH; at += PIECE) {
        write_piece(at);
        good &= is_within_limit();
    }
    return good;
}

static bool mappings_keep_the_limit(void) {
    char *at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        die("mmap");
    bool good = true;
    for (size_t i = 0; i < LENGTH; i += PAGE) {
        at[i] = 1;
        if (i % PIECE == 0)
            good &= is_within_limit();
    }
    munmap(at, LENGTH);
    return good;
}

// Two programs write side by side, one of them in small pieces. When one has written all, the other
// has written a quarter at least.
static bool writers_share_the_disk(void) {
    volatile size_t *done = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        if (children[i])
            continue;
        size_t step = i ? PIECE : 4 * PAGE;
        static char bytes[PIECE];
        for (size_t at = 0; at < LENGTH; at += step) {
            if (pwrite(fd, bytes, step, (off_t)((size_t)i * LENGTH + at)) != (ssize_t)step)
                die("pwrite at %zu", at);
            done[i] = at;
            if (done[!i] + step >= LENGTH)
                break;
        }
        exit(0);
    }
    int status, failed = 0;
    for (int i = 0; i < 2; i++)
        failed |= waitpid(children[i], &status, 0) != children[i] || status;
    size_t least = done[0] < done[1] ? done[0] : done[1];
    most = least;
    munmap((void *)done, PAGE);
    return !failed && least >= LENGTH / 4;
}

// A program in a cgroup of 16 MiB writes more than fits, and ends. A tenth of what the cgroup may
// use is dirty at most.
static bool a_group_keeps_its_limit(void) {
    mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, "");
    set("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
    mkdir("/sys/fs/cgroup/writer", 0755);
    set("/sys/fs/cgroup/writer/memory.max", "16M");
    set("/proc/sys/vm/dirty_ratio", "10");
    set("/proc/sys/vm/dirty_background_ratio", "5");
    volatile size_t *dirty = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (!child) {
        char own[16];
        snprintf(own, sizeof own, "%d", getpid());
        set("/sys/fs/cgroup/writer/cgroup.procs", own);
        for (size_t at = 0; at < LENGTH; at += PIECE) {
            write_piece(at);
            size_t now = sum("/sys/fs/cgroup/writer/memory.stat", "\nfile_dirty ", "\nfile_writeback ");
            *dirty = now > *dirty ? now : *dirty;
        }
        exit(0);
    }
    int status;
    bool good = waitpid(child, &status, 0) == child && status == 0;
    most = *dirty;
    good &= most > 0 && most <= 16 * MIB / 10 + SLACK;
    munmap((void *)dirty, PAGE);
    return good;
}

static bool run(const char *name, bool (*rule)(void)) {
    fflush(stdout);
    settle();
    bool good = rule();
    printf("{\"rule\": \"%s\", \"holds\": \"%s\", \"bytes\": %zu}\n", name, good ? "yes" : "no", most);
    return good;
}

int main(int count, char **arguments) {
    if (count < 2)
        die("usage: dirty DEVICE [groups]");
    device = arguments[1];
    fd = open(device, O_RDWR);
    if (fd < 0)
        die("%s", device);
    set("/proc/sys/vm/dirty_background_bytes", "2097152");
    set("/proc/sys/vm/dirty_bytes", "4194304");
    bool good = run("writes keep the limit", writes_keep_the_limit);
    good &= run("mappings keep the limit", mappings_keep_the_limit);
    good &= run("two writers share the disk", writers_share_the_disk);
    if (count > 2)
        good &= run("a cgroup keeps its limit", a_group_keeps_its_limit);
    return !good;
}
