// files [MIB [FILE [IMAGE]]]: measures reads, writes, mappings and reclaim of a file that a disk has, in
// nanoseconds a page of 4 KiB. Under a clock that counts instructions these are instructions.
//
// write     pwrite of 64 KiB at a time, of pages that are not in memory
// fsync     and the writes to the disk
// read      read of 64 KiB at a time, of pages that are not in memory
// again     the same, of pages that are in memory
// random    pread of 4 KiB at a time in random order, of pages that are not in memory
// touch     a read of each page through a new mapping, of pages that are not in memory
// map       the same, of pages that are in memory
// unmap     munmap of these
// pageout   MADV_PAGEOUT of clean pages that are mapped, after a sequential read: they are unmapped
//           and dropped
// single    the same after a random read, by which pages come in folios of 4 KiB
// dirty     a write to each page through a mapping
// msync     and the writes to the disk
//
// FILE is overwritten. By default it is the block device /dev/ram0, that of `vellum run --ram-disk`.
// With IMAGE, a file of an ext4 file system, that is first written to /dev/ram0 and mounted at /mnt,
// where FILE may be.
// A disk in memory copies each page that is read or written once more. Checks all contents.
#include "common.h"
#include <inttypes.h>
#include <sys/mount.h>
#include <sys/stat.h>

enum { CHUNK = 64 << 10 };

static size_t length;
static int fd;
static char buffer[CHUNK];

static double per_page(uint64_t count) {
    return (double)count / (double)(length / PAGE);
}

static uint64_t word_of(size_t at, uint64_t round) {
    return at * 0x9e3779b97f4a7c15 + round;
}

// Has the file's pages dropped.
static void forget(void) {
    if (fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
        die("fsync");
}

static char *map(void) {
    char *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        die("mmap");
    return at;
}

static double write_all(uint64_t round) {
    uint64_t spent = 0;
    for (size_t at = 0; at < length; at += CHUNK) {
        for (size_t page = 0; page < CHUNK; page += PAGE)
            *(uint64_t *)(buffer + page) = word_of(at + page, round);
        uint64_t start = now_ns();
        if (pwrite(fd, buffer, CHUNK, (off_t)at) != CHUNK)
            die("pwrite");
        spent += now_ns() - start;
    }
    return per_page(spent);
}

// Reads the whole file. Returns the time of the reads alone.
static double read_all(uint64_t round) {
    uint64_t spent = 0;
    if (lseek(fd, 0, SEEK_SET))
        die("lseek");
    for (size_t at = 0; at < length; at += CHUNK) {
        uint64_t start = now_ns();
        if (read(fd, buffer, CHUNK) != CHUNK)
            die("read");
        spent += now_ns() - start;
        for (size_t page = 0; page < CHUNK; page += PAGE)
            if (*(uint64_t *)(buffer + page) != word_of(at + page, round))
                errno = 0, die("other contents at %zu", at + page);
    }
    return per_page(spent);
}

static double read_randomly(uint64_t round) {
    uint64_t spent = 0;
    size_t pages = length / PAGE;
    if (posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM))
        die("fadvise");
    for (size_t i = 0; i < pages; i++) {
        // An odd factor visits each page of a power of two once.
        size_t at = (i * 0x9e3779b1) % pages * PAGE;
        uint64_t start = now_ns();
        if (pread(fd, buffer, PAGE, (off_t)at) != PAGE)
            die("pread");
        spent += now_ns() - start;
        if (*(uint64_t *)buffer != word_of(at, round))
            errno = 0, die("other contents at %zu", at);
    }
    if (posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL))
        die("fadvise");
    return per_page(spent);
}

static double touch_all(char *at) {
    uint64_t start = now_ns();
    for (size_t page = 0; page < length; page += PAGE)
        (void)*(volatile char *)(at + page);
    return per_page(now_ns() - start);
}

static double sync_mapped(char *at) {
    uint64_t start = now_ns();
    if (msync(at, length, MS_SYNC))
        die("msync");
    return per_page(now_ns() - start);
}

// Maps the file, whose pages are in memory, and has them paged out. Some kernels leave pages that are
// in use at that moment, so it tries again.
static double page_out(void) {
    static unsigned char present[1 << 20];
    char *at = map();
    touch_all(at);
    uint64_t spent = 0;
    size_t left = length / PAGE;
    for (int tries = 0; tries < 8 && left; tries++) {
        uint64_t start = now_ns();
        if (madvise(at, length, MADV_PAGEOUT))
            die("MADV_PAGEOUT");
        spent += now_ns() - start;
        if (mincore(at, length, present))
            die("mincore");
        left = 0;
        for (size_t page = 0; page < length / PAGE; page++)
            left += present[page] & 1;
    }
    munmap(at, length);
    errno = 0;
    if (left > length / PAGE / 10)
        die("%zu pages were not paged out", left);
    return per_page(spent);
}

static void row(const char *name, double figure) {
    printf("{\"operation\":\"%s\",\"instructions\":%.2f}\n", name, figure);
    fflush(stdout);
}

// Writes the image of a file system to the disk in memory, and mounts it.
static void mount_image(const char *path) {
    int image = open(path, O_RDONLY), disk = open("/dev/ram0", O_WRONLY);
    if (image < 0 || disk < 0)
        die("%s, /dev/ram0", path);
    for (ssize_t count; (count = read(image, buffer, CHUNK)) != 0;)
        if (count < 0 || write(disk, buffer, (size_t)count) != count)
            die("copying %s", path);
    if (fsync(disk) || close(disk) || close(image))
        die("/dev/ram0");
    // As far as Vellum reads ahead; Linux's own default is 128 KiB.
    int window = open("/sys/block/ram0/queue/read_ahead_kb", O_WRONLY);
    if (window >= 0 && write(window, "512", 3) != 3)
        die("read_ahead_kb");
    close(window);
    errno = 0;
    mkdir("/mnt", 0755);
    if (mount("/dev/ram0", "/mnt", "ext4", 0, ""))
        die("mount");
}

int main(int argc, char **argv) {
    if (argc > 4)
        die("usage: %s [MIB [FILE [IMAGE]]]", argv[0]);
    if (argc > 3)
        mount_image(argv[3]);
    length = (size_t)argument(argc, argv, 1, 64) << 20;
    errno = 0;
    if (length & (length - 1) || length / PAGE > 1 << 20)
        die("not a power of two of at most 4 GiB");
    const char *device = argc > 2 ? argv[2] : "/dev/ram0";
    fd = open(device, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        die("%s", device);
    // The disk in memory gets its memory with the first writes.
    write_all(1);
    forget();
    row("write", write_all(2));
    uint64_t start = now_ns();
    if (fsync(fd))
        die("fsync");
    row("fsync", per_page(now_ns() - start));
    forget();
    row("read", read_all(2));
    row("again", read_all(2));
    forget();
    row("random", read_randomly(2));
    forget();
    char *at = map();
    row("touch", touch_all(at));
    munmap(at, length);
    at = map();
    row("map", touch_all(at));
    start = now_ns();
    munmap(at, length);
    row("unmap", per_page(now_ns() - start));
    forget();
    read_all(2);
    row("pageout", page_out());
    read_randomly(2);
    row("single", page_out());
    at = map();
    touch_all(at);
    start = now_ns();
    for (size_t page = 0; page < length; page += PAGE)
        *(volatile uint64_t *)(at + page) = word_of(page, 3);
    row("dirty", per_page(now_ns() - start));
    row("msync", sync_mapped(at));
    munmap(at, length);
    forget();
    read_all(3);
    return 0;
}
