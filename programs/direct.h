// Rules of O_DIRECT on a file system of a disk, for `ext4 DEVICE direct`.
#ifndef DIRECT_H
#define DIRECT_H

#include "common.h"
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#ifndef STATX_DIOALIGN
#define STATX_DIOALIGN 0x2000
#endif

enum { SECTOR = 512, FILE_PAGES = 32, FILE_SIZE = FILE_PAGES * PAGE };

static const char DIRECT_PATH[] = "/ext4/direct";
// Two openings of the file, the second with O_DIRECT, a mapping of it, and an aligned buffer.
static int cached, direct;
static unsigned char *file_map, *buffer;

static unsigned char byte_of(size_t at, int salt) { return (unsigned char)(at / 64 * 7 + at + (size_t)salt * 31); }

static void fill_with(unsigned char *to, size_t at, size_t count, int salt) {
    for (size_t i = 0; i < count; i++)
        to[i] = byte_of(at + i, salt);
}

static bool has_bytes(const unsigned char *bytes, size_t at, size_t count, int salt) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != byte_of(at + i, salt)) {
            fprintf(stderr, "the byte at %zu is wrong\n", at + i);
            return false;
        }
    return true;
}

static bool are_zeros(const unsigned char *bytes, size_t count) {
    size_t at = 0;
    while (at < count && !bytes[at])
        at++;
    return at == count;
}

// Opens a new file of zeros, of this size.
static void new_file(size_t size) {
    unlink(DIRECT_PATH);
    cached = open(DIRECT_PATH, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    direct = open(DIRECT_PATH, O_RDWR | O_DIRECT | O_CLOEXEC);
    file_map = mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, cached, 0);
    if (!buffer)
        buffer = mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (cached < 0 || direct < 0 || file_map == MAP_FAILED || buffer == MAP_FAILED || ftruncate(cached, (off_t)size))
        die("%s", DIRECT_PATH);
}

static void end_file(void) {
    munmap(file_map, FILE_SIZE);
    close(cached);
    close(direct);
}

// Writes bytes with this salt through one of the openings.
static bool put(int fd, size_t at, size_t count, int salt) {
    fill_with(buffer, at, count, salt);
    return pwrite(fd, buffer, count, (off_t)at) == (ssize_t)count;
}

// Reads through one of the openings, and compares.
static bool reads(int fd, size_t at, size_t count, int salt) {
    memset(buffer, 0xee, count);
    return pread(fd, buffer, count, (off_t)at) == (ssize_t)count && has_bytes(buffer, at, count, salt);
}

static size_t in_memory(void) {
    unsigned char present[FILE_PAGES];
    size_t found = 0;
    if (mincore(file_map, FILE_SIZE, present))
        die("mincore");
    for (size_t i = 0; i < FILE_PAGES; i++)
        found += present[i] & 1;
    return found;
}

static bool a_direct_read_has_what_was_written_before(void) {
    new_file(0);
    bool good = put(cached, 0, FILE_SIZE, 1) && reads(direct, 0, FILE_SIZE, 1);
    fill_with(file_map + 5 * PAGE, 5 * PAGE, PAGE, 2);
    good &= reads(direct, 5 * PAGE, PAGE, 2) && reads(direct, 4 * PAGE, PAGE, 1);
    end_file();
    return good;
}

static bool every_reader_has_what_was_written_directly(void) {
    new_file(0);
    // Clean pages in memory, mapped ones, and dirty ones.
    bool good = put(cached, 0, FILE_SIZE, 1) && !fsync(cached) && has_bytes(file_map, 0, 8 * PAGE, 1);
    file_map[20 * PAGE] ^= 1;
    good &= put(direct, 0, FILE_SIZE, 3) && reads(cached, 0, FILE_SIZE, 3) && has_bytes(file_map, 0, FILE_SIZE, 3);
    good &= reads(direct, 0, FILE_SIZE, 3);
    end_file();
    return good;
}

static bool no_page_stays_in_memory(void) {
    new_file(0);
    bool good = put(direct, 0, FILE_SIZE, 1) && in_memory() == 0 && reads(direct, 0, FILE_SIZE, 1) && in_memory() == 0;
    good &= reads(cached, 0, FILE_SIZE, 1) && in_memory() == FILE_PAGES;
    // A mapping holds the pages, too.
    good &= has_bytes(file_map, 0, FILE_SIZE, 1) && put(direct, 0, FILE_SIZE, 2) && in_memory() == 0;
    good &= has_bytes(file_map, 0, FILE_SIZE, 2);
    end_file();
    return good;
}

static bool a_part_of_a_page_leaves_the_rest(void) {
    bool good = true;
    for (int kind = 0; kind < 4; kind++) {
        // A hole, blocks on the disk, dirty pages in memory, dirty pages that are mapped.
        new_file(FILE_SIZE);
        unsigned char *old = file_map + 3 * PAGE;
        if (kind > 0)
            good &= put(cached, 0, FILE_SIZE, 1);
        if (kind == 1)
            good &= !fsync(cached) && !posix_fadvise(cached, 0, 0, POSIX_FADV_DONTNEED);
        if (kind == 3)
            fill_with(old, 3 * PAGE, PAGE, 1);
        good &= put(direct, 3 * PAGE + SECTOR, 2 * SECTOR, 2) && reads(cached, 3 * PAGE + SECTOR, 2 * SECTOR, 2);
        size_t rest = 3 * PAGE + 3 * SECTOR;
        if (kind == 0)
            good &= are_zeros(old, SECTOR) && are_zeros(file_map + rest, PAGE);
        else
            good &= reads(cached, 2 * PAGE, PAGE + SECTOR, 1) && reads(direct, rest, 2 * PAGE, 1);
        good &= has_bytes(old + SECTOR, 3 * PAGE + SECTOR, 2 * SECTOR, 2);
        end_file();
    }
    return good;
}

static bool what_is_not_aligned_is_refused(void) {
    new_file(0);
    bool good = put(cached, 0, 3 * PAGE + 100, 1);
    struct iovec pieces[2] = {{buffer, SECTOR}, {buffer + PAGE, SECTOR - 4}};
    // Linux 6.18 takes any memory.
    good &= pwrite(direct, buffer, SECTOR, 100) == -1 && errno == EINVAL;
    good &= pwrite(direct, buffer, SECTOR + 100, 0) == -1 && errno == EINVAL;
    good &= pwrite(direct, buffer + 4, SECTOR, 0) == -1 && errno == EINVAL;
    good &= pread(direct, buffer, SECTOR, 100) == -1 && errno == EINVAL;
    good &= pread(direct, buffer, SECTOR - 1, 0) == -1 && errno == EINVAL;
    good &= pread(direct, buffer + 4, SECTOR, 0) == -1 && errno == EINVAL;
    good &= preadv(direct, pieces, 2, 0) == -1 && errno == EINVAL;
    pieces[1].iov_len = SECTOR;
    good &= preadv(direct, pieces, 2, 0) == 2 * SECTOR && has_bytes(buffer, 0, SECTOR, 1);
    good &= has_bytes(buffer + PAGE, SECTOR, SECTOR, 1);
    good &= pwrite(direct, buffer, 0, 100) == 0 && pread(direct, buffer, 0, 100) == 0;
    good &= pread(direct, (void *)PAGE, SECTOR, 0) == -1 && errno == EFAULT;
    good &= pwrite(direct, (void *)PAGE, SECTOR, 0) == -1 && errno == EFAULT && reads(cached, 0, 3 * PAGE + 100, 1);
    struct statx found;
    good &= !syscall(SYS_statx, AT_FDCWD, DIRECT_PATH, 0, STATX_DIOALIGN, &found);
    // Two words behind stx_mnt_id.
    const uint32_t *alignments = (const uint32_t *)((const char *)&found + 152);
    good &= (found.stx_mask & STATX_DIOALIGN) && alignments[0] == SECTOR && alignments[1] == SECTOR;
    end_file();
    return good;
}

static bool a_direct_read_ends_at_the_end(void) {
    new_file(0);
    size_t size = 3 * PAGE + 100;
    bool good = put(cached, 0, size, 1);
    memset(buffer, 0xee, 2 * PAGE);
    good &= pread(direct, buffer, 2 * PAGE, 2 * PAGE) == PAGE + 100 && has_bytes(buffer, 2 * PAGE, PAGE + 100, 1);
    good &= pread(direct, buffer, PAGE, (off_t)size) == 0 && pread(direct, buffer, PAGE, 4 * PAGE) == 0;
    good &= lseek(direct, 2 * PAGE, SEEK_SET) == 2 * PAGE && read(direct, buffer, 2 * PAGE) == PAGE + 100;
    good &= lseek(direct, 0, SEEK_CUR) == (off_t)size && read(direct, buffer, 2 * PAGE) == 0;
    end_file();
    return good;
}

static bool a_direct_write_extends_the_file(void) {
    struct stat found;
    new_file(0);
    bool good = put(cached, 0, PAGE + 100, 1);
    // The page with the old end is in memory, mapped, with something behind the end, which Linux
    // shows then.
    memset(file_map + PAGE + 100, 0xee, PAGE - 100);
    good &= put(direct, 5 * PAGE, SECTOR, 2) && !fstat(direct, &found) && found.st_size == 5 * PAGE + SECTOR;
    good &= reads(cached, 0, PAGE + 100, 1) && are_zeros(file_map + PAGE + 100, 4 * PAGE - 100);
    good &= pread(direct, buffer, 4 * PAGE, PAGE) == 4 * PAGE && are_zeros(buffer + 100, 4 * PAGE - 100);
    // Over the page with the end.
    good &= put(direct, 5 * PAGE, 2 * PAGE, 3) && !fstat(direct, &found) && found.st_size == 7 * PAGE;
    good &= reads(cached, 5 * PAGE, 2 * PAGE, 3);
    good &= ftruncate(cached, 6 * PAGE + 100) == 0 && has_bytes(file_map + 6 * PAGE, 6 * PAGE, 100, 3);
    good &= put(direct, 6 * PAGE + SECTOR, SECTOR, 4) && !fstat(direct, &found) && found.st_size == 6 * PAGE + 2 * SECTOR;
    good &= reads(cached, 6 * PAGE, 100, 3) && are_zeros(file_map + 6 * PAGE + 100, SECTOR - 100);
    good &= has_bytes(file_map + 6 * PAGE + SECTOR, 6 * PAGE + SECTOR, SECTOR, 4);
    // At the end, wherever the offset is.
    good &= !fcntl(direct, F_SETFL, O_DIRECT | O_APPEND) && ftruncate(cached, PAGE) == 0;
    fill_with(buffer, PAGE, 2 * PAGE, 5);
    good &= write(direct, buffer, 2 * PAGE) == 2 * PAGE && reads(cached, PAGE, 2 * PAGE, 5);
    good &= ftruncate(cached, PAGE + 1) == 0 && write(direct, buffer, PAGE) == -1 && errno == EINVAL;
    end_file();
    return good;
}

static bool holes_are_read_as_zeros(void) {
    new_file(FILE_SIZE);
    bool good = put(direct, 8 * PAGE, PAGE, 1);
    memset(buffer, 0xee, FILE_SIZE);
    good &= pread(direct, buffer, FILE_SIZE, 0) == FILE_SIZE && are_zeros(buffer, 8 * PAGE);
    good &= has_bytes(buffer + 8 * PAGE, 8 * PAGE, PAGE, 1) && are_zeros(buffer + 9 * PAGE, FILE_SIZE - 9 * PAGE);
    good &= !fallocate(cached, 0, 16 * PAGE, 4 * PAGE) && put(direct, 17 * PAGE + SECTOR, SECTOR, 2);
    good &= pread(direct, buffer, 4 * PAGE, 16 * PAGE) == 4 * PAGE && are_zeros(buffer, PAGE + SECTOR);
    good &= has_bytes(buffer + PAGE + SECTOR, 17 * PAGE + SECTOR, SECTOR, 2);
    good &= are_zeros(buffer + PAGE + 2 * SECTOR, 2 * PAGE);
    end_file();
    return good;
}

static bool private_copies_stay(void) {
    new_file(0);
    bool good = put(cached, 0, 4 * PAGE, 1);
    unsigned char *own = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, cached, 0);
    fill_with(own + PAGE, PAGE, PAGE, 2);
    good &= has_bytes(own, 0, PAGE, 1) && put(direct, 0, 4 * PAGE, 3);
    good &= has_bytes(own, 0, PAGE, 3) && has_bytes(own + PAGE, PAGE, PAGE, 2);
    munmap(own, 4 * PAGE);
    end_file();
    return good;
}

static bool a_file_is_written_from_and_read_to_its_own_mapping(void) {
    new_file(0);
    bool good = put(cached, 0, FILE_SIZE, 1);
    // To other pages, and to the pages of the bytes themselves.
    good &= pwrite(direct, file_map + 8 * PAGE, 4 * PAGE, 0) == 4 * PAGE;
    good &= has_bytes(file_map, 8 * PAGE, 4 * PAGE, 1);
    good &= pwrite(direct, file_map + 16 * PAGE, 8 * PAGE, 17 * PAGE) == 8 * PAGE;
    good &= has_bytes(file_map + 17 * PAGE, 16 * PAGE, 8 * PAGE, 1);
    good &= pread(direct, file_map + 9 * PAGE, 4 * PAGE, 8 * PAGE) == 4 * PAGE;
    good &= has_bytes(file_map + 9 * PAGE, 8 * PAGE, 4 * PAGE, 1) && reads(direct, 8 * PAGE, PAGE, 1);
    end_file();
    return good;
}

static bool files_without_direct_reads_refuse_the_flag(void) {
    static const char *const refusing[] = {"/proc/self/stat", "/dev/null", "/ext4"};
    bool good = true;
    for (size_t i = 0; i < 3; i++)
        good &= open(refusing[i], O_RDONLY | O_DIRECT) == -1 && errno == EINVAL;
    int null = open("/dev/null", O_RDWR), directory = open("/ext4", O_RDONLY);
    good &= fcntl(null, F_SETFL, O_DIRECT) == -1 && errno == EINVAL && !fcntl(directory, F_SETFL, 0);
    // A file in memory has no alignment.
    int memory = open("/tmp/direct", O_RDWR | O_CREAT | O_DIRECT, 0644);
    char bytes[3] = "ab";
    good &= memory >= 0 && pwrite(memory, "xyz", 3, 1) == 3 && pread(memory, bytes, 3, 2) == 2 && bytes[0] == 'y';
    close(memory);
    close(null);
    close(directory);
    unlink("/tmp/direct");
    return good;
}

// One process stores into the first sector of each of some pages, and finds its last store each
// time. The other writes the next sector directly, and reads it back each time.
static bool stores_and_direct_writes_of_one_page_both_last(void) {
    enum { SHARED_PAGES = 4, ROUNDS = 400 };
    new_file(0);
    bool good = put(cached, 0, FILE_SIZE, 0);
    int *stop = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    volatile uint32_t *word = (volatile uint32_t *)file_map;
    for (size_t page = 0; page < SHARED_PAGES; page++)
        word[page * PAGE / 4] = 0;
    pid_t storing = fork();
    if (storing == 0) {
        uint32_t count = 0;
        for (; !__atomic_load_n(stop, __ATOMIC_RELAXED); count++)
            for (size_t page = 0; page < SHARED_PAGES; page++) {
                if (word[page * PAGE / 4] != count)
                    _exit(1);
                word[page * PAGE / 4] = count + 1;
            }
        _exit(0);
    }
    for (int round = 1; round <= ROUNDS && good; round++) {
        size_t at = (size_t)round % SHARED_PAGES * PAGE + SECTOR;
        good &= put(direct, at, 2 * SECTOR, round) && reads(round % 2 ? cached : direct, at, 2 * SECTOR, round);
        good &= has_bytes(file_map + at, at, 2 * SECTOR, round);
        if (round % 16 == 0)
            good &= put(direct, 8 * PAGE, 8 * PAGE, round) && reads(cached, 8 * PAGE, 8 * PAGE, round);
    }
    __atomic_store_n(stop, 1, __ATOMIC_RELAXED);
    int status;
    good &= waitpid(storing, &status, 0) == storing && status == 0;
    munmap(stop, PAGE);
    end_file();
    return good;
}

static const struct rule direct_rules[] = {
    {"a direct read has what was written before", a_direct_read_has_what_was_written_before},
    {"every reader has what was written directly", every_reader_has_what_was_written_directly},
    {"no page stays in memory", no_page_stays_in_memory},
    {"a part of a page leaves the rest", a_part_of_a_page_leaves_the_rest},
    {"what is not aligned is refused", what_is_not_aligned_is_refused},
    {"a direct read ends at the end", a_direct_read_ends_at_the_end},
    {"a direct write extends the file", a_direct_write_extends_the_file},
    {"holes are read as zeros", holes_are_read_as_zeros},
    {"private copies stay", private_copies_stay},
    {"a file is written from, and read to, its own mapping", a_file_is_written_from_and_read_to_its_own_mapping},
    {"files without direct reads refuse the flag", files_without_direct_reads_refuse_the_flag},
    {"stores and direct writes of one page both last", stores_and_direct_writes_of_one_page_both_last},
};

#endif
