// store DEVICE [reads|writes]: what programs may expect of files whose contents a disk has: reads,
// writes, mappings and synchronisation agree with each other and with the disk. With `reads` or
// `writes`: of a disk whose reads or writes fail. DEVICE is a block device whose contents are
// overwritten. Prints a row for each rule; the status is 1 if one is broken.
#include "common.h"
#include <setjmp.h>
#include <sys/stat.h>
#include <sys/uio.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { PAGES = 256, SIZE = PAGES * PAGE };

static const char *device;
static int fd;

// The byte that belongs at an offset of the file in a round of writing.
static unsigned char byte_at(size_t at, unsigned round) {
    return (unsigned char)(at * 7 + at / PAGE * 13 + round * 31);
}

static void fill(unsigned char *to, size_t at, size_t count, unsigned round) {
    for (size_t i = 0; i < count; i++)
        to[i] = byte_at(at + i, round);
}

static bool is_filled(const unsigned char *bytes, size_t at, size_t count, unsigned round) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != byte_at(at + i, round))
            return false;
    return true;
}

static void write_range(size_t at, size_t count, unsigned round) {
    unsigned char *bytes = malloc(count);
    fill(bytes, at, count, round);
    if (pwrite(fd, bytes, count, (off_t)at) != (ssize_t)count)
        die("pwrite of %zu bytes at %zu", count, at);
    free(bytes);
}

static bool reads_back(size_t at, size_t count, unsigned round) {
    unsigned char *bytes = malloc(count);
    bool good = pread(fd, bytes, count, (off_t)at) == (ssize_t)count && is_filled(bytes, at, count, round);
    free(bytes);
    return good;
}

// Has the file's pages dropped, so that they are read from the disk again.
static void forget(void) {
    if (fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
        die("fsync");
}

static unsigned char *map(int prot, int flags) {
    unsigned char *at = mmap(NULL, SIZE, prot, flags, fd, 0);
    if (at == MAP_FAILED)
        die("mmap");
    return at;
}

static bool writes_are_read_back(void) {
    write_range(0, SIZE, 1);
    bool good = reads_back(0, SIZE, 1);
    forget();
    good &= reads_back(0, SIZE, 1);
    // Parts of pages, which have to be read first.
    forget();
    write_range(10, 5, 2);
    write_range(3 * PAGE - 100, 300, 2);
    write_range(9 * PAGE + 1, 3 * PAGE, 2);
    forget();
    good &= reads_back(0, 10, 1) && reads_back(10, 5, 2) && reads_back(15, 3 * PAGE - 115, 1);
    good &= reads_back(3 * PAGE - 100, 300, 2) && reads_back(9 * PAGE, 1, 1) && reads_back(9 * PAGE + 1, 3 * PAGE, 2);
    return good && reads_back(12 * PAGE + 1, SIZE - 12 * PAGE - 1, 1);
}

static bool mappings_and_writes_agree(void) {
    write_range(0, SIZE, 3);
    unsigned char *shared = map(PROT_READ | PROT_WRITE, MAP_SHARED);
    unsigned char *private = map(PROT_READ | PROT_WRITE, MAP_PRIVATE);
    bool good = is_filled(shared, 0, SIZE, 3) && is_filled(private, 0, SIZE, 3);
    fill(shared + 5 * PAGE, 5 * PAGE, PAGE, 4);
    private[6 * PAGE] = byte_at(6 * PAGE, 3) + 1;
    good &= reads_back(5 * PAGE, PAGE, 4) && reads_back(6 * PAGE, PAGE, 3);
    good &= is_filled(private + 5 * PAGE, 5 * PAGE, PAGE, 4);
    write_range(7 * PAGE, PAGE, 5);
    good &= is_filled(shared + 7 * PAGE, 7 * PAGE, PAGE, 5) && is_filled(private + 7 * PAGE, 7 * PAGE, PAGE, 5);
    // A write to a clean page after it was written is written again.
    good &= !msync(shared, SIZE, MS_SYNC);
    fill(shared + 5 * PAGE, 5 * PAGE, PAGE, 6);
    munmap(private, SIZE);
    munmap(shared, SIZE);
    forget();
    return good && reads_back(5 * PAGE, PAGE, 6) && reads_back(6 * PAGE, PAGE, 3) && reads_back(7 * PAGE, PAGE, 5);
}

// A write whose bytes lie in a mapping of the pages that it overwrites.
static bool a_file_is_written_from_its_own_mapping(void) {
    write_range(0, SIZE, 7);
    forget();
    unsigned char *shared = map(PROT_READ | PROT_WRITE, MAP_SHARED);
    bool good = pwrite(fd, shared, 8 * PAGE, 0) == 8 * PAGE && is_filled(shared, 0, SIZE, 7);
    // Moved by pages: what is read was not overwritten before.
    forget();
    good &= pwrite(fd, shared + 16 * PAGE, 8 * PAGE, 32 * PAGE) == 8 * PAGE;
    good &= !memcmp(shared + 16 * PAGE, shared + 32 * PAGE, 8 * PAGE) && is_filled(shared + 16 * PAGE, 16 * PAGE, 8 * PAGE, 7);
    munmap(shared, SIZE);
    return good;
}

// Bytes up to the end of readable memory are written, and those after them in the file stay.
static bool a_write_ends_where_memory_ends(void) {
    write_range(0, SIZE, 8);
    forget();
    unsigned char *memory = (unsigned char *)map_aligned(HUGE);
    fill(memory, 0, 4 * PAGE, 9);
    munmap(memory + 4 * PAGE, PAGE);
    ssize_t written = pwrite(fd, memory + PAGE / 2, 8 * PAGE, PAGE / 2);
    bool good = written > 0 && written <= 4 * PAGE - PAGE / 2;
    forget();
    good = good && reads_back(PAGE / 2, (size_t)written, 9) && reads_back(PAGE / 2 + (size_t)written, 16 * PAGE, 8);
    good &= pwrite(fd, memory + 4 * PAGE, PAGE, 0) < 0 && errno == EFAULT;
    munmap(memory, 4 * PAGE);
    munmap(memory + 5 * PAGE, HUGE - 5 * PAGE);
    return good;
}

static bool vectors_are_read_and_written(void) {
    write_range(0, SIZE, 10);
    forget();
    unsigned char *bytes = malloc(SIZE);
    struct iovec parts[] = {{bytes + 5000, 3000}, {bytes, 5000}, {bytes + 8000, 12000}};
    bool good = preadv(fd, parts, 3, 100) == 20000;
    good &= is_filled(bytes + 5000, 100, 3000, 10) && is_filled(bytes, 3100, 5000, 10);
    good &= is_filled(bytes + 8000, 8100, 12000, 10);
    good &= pwritev(fd, parts, 3, 50 * PAGE) == 20000;
    forget();
    unsigned char *copy = malloc(20000);
    good &= pread(fd, copy, 20000, 50 * PAGE) == 20000 && !memcmp(copy, bytes + 5000, 3000) &&
            !memcmp(copy + 3000, bytes, 5000) && !memcmp(copy + 8000, bytes + 8000, 12000);
    free(bytes);
    free(copy);
    return good;
}

// Calls that fault memory in wait for the disk.
static bool mappings_are_populated(void) {
    write_range(0, SIZE, 13);
    forget();
    unsigned char present[PAGES];
    unsigned char *at = map(PROT_READ, MAP_SHARED | MAP_POPULATE);
    bool good = pages_present((char *)at, SIZE) == PAGES && is_filled(at, 0, SIZE, 13);
    munmap(at, SIZE);
    forget();
    at = map(PROT_READ, MAP_PRIVATE);
    good &= !mincore(at, SIZE, present) && !(present[0] & 1) && !(present[PAGES - 1] & 1);
    good &= !madvise(at + 5 * PAGE, 20 * PAGE, MADV_POPULATE_READ) && pages_present((char *)at + 5 * PAGE, 20 * PAGE) == 20;
    good &= !mlock(at + 100 * PAGE, 9 * PAGE) && pages_present((char *)at + 100 * PAGE, 9 * PAGE) == 9;
    good &= !madvise(at, SIZE, MADV_WILLNEED) && is_filled(at, 0, SIZE, 13);
    good &= !mincore(at, SIZE, present) && (present[0] & 1) && (present[PAGES - 1] & 1);
    munmap(at, SIZE);
    return good;
}

static bool drop_caches_drops_clean_pages(void) {
    static unsigned char present[PAGES];
    int order = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
    unsigned char *kept = map(PROT_READ, MAP_SHARED), *at;
    bool good = order >= 0 && !fsync(fd) && is_filled(kept, 0, SIZE, 13);
    // Pages that are mapped, and those that are dirty, stay.
    munmap(kept + 10 * PAGE, SIZE - 10 * PAGE);
    write_range(40 * PAGE, PAGE, 14);
    good &= write(order, "1", 1) == 1;
    at = map(PROT_READ, MAP_SHARED);
    good &= !mincore(at, SIZE, present) && (present[9] & 1) && (present[40] & 1) && !(present[PAGES - 1] & 1);
    write_range(40 * PAGE, PAGE, 13);
    good &= is_filled(at, 0, SIZE, 13);
    munmap(at, SIZE);
    munmap(kept, 10 * PAGE);
    return good && !close(order);
}

// A huge page takes the place of small ones, once those that are missing are read, and not while any
// differs from the disk.
static bool pages_collapse(void) {
    enum { HUGE = 2 << 20, FROM = 2 * HUGE };
    write_range(FROM, HUGE, 15);
    forget();
    char *room = mmap(NULL, 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *wanted = room + (HUGE - (uintptr_t)room % HUGE) % HUGE;
    unsigned char *at = mmap(wanted, HUGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, FROM);
    if (room == MAP_FAILED || at == MAP_FAILED)
        die("mmap");
    bool good = !madvise(at, HUGE, MADV_COLLAPSE) && smaps_bytes((char *)at, "FilePmdMapped") == HUGE;
    good &= is_filled(at, FROM, HUGE, 15) && !madvise(at, HUGE, MADV_DONTNEED);
    forget();
    good &= reads_back(FROM + 5 * PAGE, 3 * PAGE, 15) && is_filled(at, FROM, PAGE, 15);
    write_range(FROM + 6 * PAGE, PAGE, 16);
    good &= smaps_bytes((char *)at, "FilePmdMapped") == 0;
    errno = 0;
    good &= madvise(at, HUGE, MADV_COLLAPSE) == -1 && errno == EAGAIN;
    good &= !fsync(fd) && !madvise(at, HUGE, MADV_COLLAPSE) && smaps_bytes((char *)at, "FilePmdMapped") == HUGE;
    good &= is_filled(at + 6 * PAGE, FROM + 6 * PAGE, PAGE, 16) && is_filled(at + 7 * PAGE, FROM + 7 * PAGE, PAGE, 15);
    munmap(room, 2 * HUGE);
    return good;
}

static bool a_read_ends_at_the_end(void) {
    off_t end = lseek(fd, 0, SEEK_END);
    unsigned char bytes[2 * PAGE];
    bool good = end > SIZE && end % PAGE == 0;
    good &= pread(fd, bytes, sizeof bytes, end - 100) == 100 && pread(fd, bytes, sizeof bytes, end) == 0;
    good &= pwrite(fd, bytes, 1, end) < 0 && errno == ENOSPC;
    unsigned char *last = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, end - PAGE);
    good &= last != MAP_FAILED && !memcmp(last + PAGE - 100, bytes, 100);
    munmap(last, PAGE);
    return good;
}

static bool a_forked_child_shares_the_mapping(void) {
    write_range(0, SIZE, 11);
    unsigned char *shared = map(PROT_READ | PROT_WRITE, MAP_SHARED);
    msync(shared, SIZE, MS_SYNC);
    pid_t child = fork();
    if (!child) {
        fill(shared + 3 * PAGE, 3 * PAGE, PAGE, 12);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    bool good = is_filled(shared + 3 * PAGE, 3 * PAGE, PAGE, 12);
    munmap(shared, SIZE);
    forget();
    return good && reads_back(3 * PAGE, PAGE, 12);
}

static bool calls_check_their_arguments(void) {
    int pipe_fds[2], file = open("/tmp/store", O_RDWR | O_CREAT, 0600);
    if (file < 0 || pipe(pipe_fds))
        die("/tmp/store");
    bool good = sync_file_range(fd, 0, 0, 8) < 0 && errno == EINVAL;
    good &= sync_file_range(fd, -1, 0, 0) < 0 && errno == EINVAL;
    good &= sync_file_range(pipe_fds[0], 0, 0, 2) < 0 && errno == ESPIPE;
    good &= !sync_file_range(fd, 0, 0, 7) && !sync_file_range(fd, PAGE, PAGE, 2) && !sync_file_range(file, 0, 0, 7);
    good &= readahead(pipe_fds[0], 0, PAGE) < 0 && errno == EINVAL;
    good &= readahead(pipe_fds[1], 0, PAGE) < 0 && errno == EBADF;
    good &= !readahead(fd, 0, SIZE) && posix_fadvise(fd, 0, 0, 6) == EINVAL;
    good &= posix_fadvise(pipe_fds[0], 0, 0, POSIX_FADV_NORMAL) == ESPIPE;
    good &= !posix_fadvise(fd, 0, SIZE, POSIX_FADV_WILLNEED) && !fdatasync(fd) && !syncfs(file);
    good &= fsync(pipe_fds[0]) < 0 && errno == EINVAL;
    sync();
    close(file);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    return good;
}

static sigjmp_buf refused;

static void on_signal(int number) {
    siglongjmp(refused, number);
}

// Returns the signal that reading a byte raises, or 0.
static int signal_of_read(const volatile unsigned char *at) {
    signal(SIGBUS, on_signal);
    int number = sigsetjmp(refused, 1);
    if (!number)
        (void)*at;
    return number;
}

static bool failed_reads_are_reported(void) {
    unsigned char bytes[3 * PAGE];
    bool good = pread(fd, bytes, 1, 0) < 0 && errno == EIO;
    good &= pread(fd, bytes, sizeof bytes, 40 * PAGE + 1) < 0 && errno == EIO;
    unsigned char *shared = map(PROT_READ | PROT_WRITE, MAP_SHARED);
    good &= signal_of_read(shared + 100 * PAGE) == SIGBUS && signal_of_read(shared + 100 * PAGE) == SIGBUS;
    // The kernel's access to such memory fails, too.
    int pipe_fds[2];
    if (pipe(pipe_fds))
        die("pipe");
    good &= write(pipe_fds[1], shared + 120 * PAGE, 1) < 0 && errno == EFAULT;
    // A part of a page can't be written, as the rest has to be read.
    good &= pwrite(fd, bytes, 1, 60 * PAGE) < 0 && errno == EIO;
    munmap(shared, SIZE);
    return good;
}

static bool whole_pages_are_written_unread(void) {
    write_range(8 * PAGE, 4 * PAGE, 1);
    return reads_back(8 * PAGE, 4 * PAGE, 1) && !fsync(fd);
}

static bool failed_writes_are_reported_once(void) {
    int other = open(device, O_RDWR | O_CLOEXEC);
    if (other < 0)
        die("%s", device);
    write_range(0, 4 * PAGE, 1);
    bool good = fsync(fd) < 0 && errno == EIO;
    good &= !fsync(fd) && fsync(other) < 0 && errno == EIO && !fsync(other);
    good &= reads_back(0, 4 * PAGE, 1);
    unsigned char *shared = map(PROT_READ | PROT_WRITE, MAP_SHARED);
    shared[PAGE] = 1;
    good &= msync(shared, SIZE, MS_SYNC) < 0 && errno == EIO;
    munmap(shared, SIZE);
    close(other);
    return good;
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3)
        die("usage: %s DEVICE [reads|writes]", argv[0]);
    device = argv[1];
    fd = open(device, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        die("%s", device);
    static const struct rule rules[] = {
        {"writes are read back", writes_are_read_back},
        {"mappings and writes agree", mappings_and_writes_agree},
        {"a file is written from its own mapping", a_file_is_written_from_its_own_mapping},
        {"a write ends where memory ends", a_write_ends_where_memory_ends},
        {"vectors are read and written", vectors_are_read_and_written},
        {"mappings are populated", mappings_are_populated},
        {"drop_caches drops clean pages", drop_caches_drops_clean_pages},
        {"pages collapse", pages_collapse},
        {"a read ends at the end", a_read_ends_at_the_end},
        {"a forked child shares the mapping", a_forked_child_shares_the_mapping},
        {"calls check their arguments", calls_check_their_arguments},
    };
    static const struct rule reads[] = {
        {"failed reads are reported", failed_reads_are_reported},
        {"whole pages are written unread", whole_pages_are_written_unread},
    };
    static const struct rule writes[] = {{"failed writes are reported once", failed_writes_are_reported_once}};
    if (argc == 2)
        return check_rules(rules, sizeof rules / sizeof *rules);
    if (!strcmp(argv[2], "reads"))
        return check_rules(reads, sizeof reads / sizeof *reads);
    return check_rules(writes, sizeof writes / sizeof *writes);
}
