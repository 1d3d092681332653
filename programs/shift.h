// Rules of FALLOC_FL_COLLAPSE_RANGE and FALLOC_FL_INSERT_RANGE on a file system of a disk, for
// `ext4 DEVICE shift`.
#ifndef SHIFT_H
#define SHIFT_H

#include "direct.h"

#ifndef FALLOC_FL_COLLAPSE_RANGE
#define FALLOC_FL_COLLAPSE_RANGE 8
#endif
#ifndef FALLOC_FL_INSERT_RANGE
#define FALLOC_FL_INSERT_RANGE 32
#endif

static bool has_size(size_t size) {
    struct stat found;
    return !fstat(cached, &found) && (size_t)found.st_size == size;
}

// The bytes of a block of the file system.
static size_t block = PAGE;

static bool a_removed_range_is_closed(void) {
    new_file(0);
    size_t size = FILE_SIZE - 100;
    // Some pages on the disk alone, some clean, some dirty, some mapped.
    bool good = put(cached, 0, size, 1) && !fsync(cached) && !posix_fadvise(cached, 0, 0, POSIX_FADV_DONTNEED);
    fill_with(file_map + 6 * PAGE, 6 * PAGE, 4 * PAGE, 1);
    good &= reads(cached, 20 * PAGE, 4 * PAGE, 1) && has_bytes(file_map, 0, 8 * PAGE, 1);
    good &= !fallocate(cached, FALLOC_FL_COLLAPSE_RANGE, 4 * PAGE, 3 * PAGE) && has_size(size - 3 * PAGE);
    good &= reads(cached, 0, 4 * PAGE, 1) && pread(cached, buffer, FILE_SIZE, 4 * PAGE) == (ssize_t)size - 7 * PAGE;
    good &= has_bytes(buffer, 7 * PAGE, size - 7 * PAGE, 1);
    good &= has_bytes(file_map + 4 * PAGE, 7 * PAGE, size - 7 * PAGE, 1);
    good &= pread(direct, buffer, FILE_SIZE, 4 * PAGE) == (ssize_t)size - 7 * PAGE;
    good &= has_bytes(buffer, 7 * PAGE, size - 7 * PAGE, 1);
    // What is written then goes to the new place.
    file_map[5 * PAGE] ^= 1;
    good &= !fsync(cached) && pread(direct, buffer, PAGE, 5 * PAGE) == PAGE && buffer[0] == (byte_of(8 * PAGE, 1) ^ 1);
    end_file();
    return good;
}

static bool an_inserted_range_is_a_hole(void) {
    new_file(0);
    size_t size = 20 * PAGE + 100;
    bool good = put(cached, 0, size, 1) && has_bytes(file_map, 0, size, 1);
    good &= !fallocate(cached, FALLOC_FL_INSERT_RANGE, 4 * PAGE, 3 * PAGE) && has_size(size + 3 * PAGE);
    good &= reads(cached, 0, 4 * PAGE, 1) && are_zeros(file_map + 4 * PAGE, 3 * PAGE);
    good &= has_bytes(file_map + 7 * PAGE, 4 * PAGE, size - 4 * PAGE, 1);
    good &= pread(direct, buffer, FILE_SIZE, 4 * PAGE) == (ssize_t)size - PAGE && are_zeros(buffer, 3 * PAGE);
    good &= has_bytes(buffer + 3 * PAGE, 4 * PAGE, size - 4 * PAGE, 1);
    good &= lseek(cached, 0, SEEK_SET) == 0 && put(cached, 5 * PAGE, PAGE, 2) && reads(direct, 5 * PAGE, PAGE, 2);
    // And closed again.
    good &= !fallocate(cached, FALLOC_FL_COLLAPSE_RANGE, 4 * PAGE, 3 * PAGE) && has_size(size);
    good &= has_bytes(file_map, 0, size, 1) && reads(cached, 0, size, 1);
    end_file();
    return good;
}

static bool blocks_are_the_unit(void) {
    new_file(0);
    bool good = put(cached, 0, 8 * PAGE, 1);
    for (int which = 0; which < 2; which++) {
        int mode = which ? FALLOC_FL_INSERT_RANGE : FALLOC_FL_COLLAPSE_RANGE;
        good &= fallocate(cached, mode, (off_t)block / 2, (off_t)block) == -1 && errno == EINVAL;
        good &= fallocate(cached, mode, (off_t)block, (off_t)block / 2) == -1 && errno == EINVAL;
        good &= fallocate(cached, mode, 8 * PAGE, PAGE) == -1 && errno == EINVAL;
        good &= fallocate(cached, mode, 9 * PAGE, PAGE) == -1 && errno == EINVAL;
        good &= fallocate(cached, mode, 0, 0) == -1 && errno == EINVAL;
        good &= fallocate(cached, mode, -PAGE, PAGE) == -1 && errno == EINVAL;
        good &= fallocate(cached, mode | FALLOC_FL_KEEP_SIZE, 0, PAGE) == -1 && errno == EOPNOTSUPP;
        good &= fallocate(cached, mode | FALLOC_FL_PUNCH_HOLE, 0, PAGE) == -1 && errno == EOPNOTSUPP;
        good &= fallocate(cached, mode, PAGE, INT64_MAX) == -1 && errno == EFBIG;
        int reading = open(DIRECT_PATH, O_RDONLY);
        good &= fallocate(reading, mode, 0, PAGE) == -1 && errno == EBADF;
        close(reading);
        int memory = memfd_create("shift", 0);
        good &= !ftruncate(memory, 4 * PAGE) && fallocate(memory, mode, 0, PAGE) == -1 && errno == EOPNOTSUPP;
        close(memory);
    }
    // The range must end before the file does.
    good &= fallocate(cached, FALLOC_FL_COLLAPSE_RANGE, 4 * PAGE, 4 * PAGE) == -1 && errno == EINVAL;
    good &= fallocate(cached, FALLOC_FL_INSERT_RANGE, 0, (off_t)1 << 44) == -1 && errno == EFBIG;
    good &= has_size(8 * PAGE) && reads(cached, 0, 8 * PAGE, 1);
    // In the middle of a page, where blocks are smaller than that.
    good &= !fallocate(cached, FALLOC_FL_COLLAPSE_RANGE, PAGE + (off_t)block, (off_t)block);
    good &= has_size(8 * PAGE - block) && reads(cached, 0, PAGE + block, 1);
    good &= has_bytes(file_map + PAGE + block, PAGE + 2 * block, 7 * PAGE - 2 * block, 1);
    end_file();
    return good;
}

static bool private_copies_go_when_bytes_move(void) {
    new_file(0);
    bool good = put(cached, 0, 8 * PAGE, 1);
    unsigned char *own = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, cached, 0);
    fill_with(own, 0, PAGE, 2);
    fill_with(own + 4 * PAGE, 4 * PAGE, PAGE, 2);
    good &= has_bytes(own + PAGE, PAGE, 3 * PAGE, 1) && !fallocate(cached, FALLOC_FL_INSERT_RANGE, 2 * PAGE, PAGE);
    good &= has_bytes(own, 0, PAGE, 2) && has_bytes(own + PAGE, PAGE, PAGE, 1) && are_zeros(own + 2 * PAGE, PAGE);
    // As on truncation: of the pages before the range alone the copies stay.
    good &= has_bytes(own + 4 * PAGE, 3 * PAGE, PAGE, 1);
    munmap(own, 8 * PAGE);
    end_file();
    return good;
}

static bool the_times_change(void) {
    struct stat before, after;
    new_file(0);
    bool good = put(cached, 0, 8 * PAGE, 1) && !fstat(cached, &before);
    struct timespec pause = {0, 30000000};
    nanosleep(&pause, NULL);
    good &= !fallocate(cached, FALLOC_FL_COLLAPSE_RANGE, 0, PAGE) && !fstat(cached, &after);
    good &= after.st_mtim.tv_sec > before.st_mtim.tv_sec || after.st_mtim.tv_nsec > before.st_mtim.tv_nsec;
    good &= after.st_ctim.tv_sec > before.st_ctim.tv_sec || after.st_ctim.tv_nsec > before.st_ctim.tv_nsec;
    end_file();
    return good;
}

// Each page begins with its number, and the page behind them is empty. A child adds to a counter
// behind the number of the last page, without a pause, which is at one of two places, while a page
// comes and goes before it, and two others store to all pages that move. No addition is lost.
static bool stores_follow_their_bytes(void) {
    enum { NUMBERED = 12, ROUNDS = 20, OTHERS = 2 };
    new_file(0);
    memset(buffer, 0, FILE_SIZE);
    for (uint32_t page = 0; page < NUMBERED; page++)
        memcpy(buffer + page * PAGE, &page, sizeof page);
    bool good = pwrite(cached, buffer, (NUMBERED + 1) * PAGE, 0) == (NUMBERED + 1) * PAGE;
    uint32_t *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t storing = fork();
    if (storing == 0) {
        while (!__atomic_load_n(shared, __ATOMIC_RELAXED))
            for (uint32_t place = NUMBERED - 1; place <= NUMBERED; place++) {
                uint64_t *at = (uint64_t *)(file_map + place * PAGE), found = __atomic_load_n(at, __ATOMIC_RELAXED);
                if ((uint32_t)found == NUMBERED - 1 && __atomic_compare_exchange_n(at, &found, found + (1ull << 32), false,
                                                                                  __ATOMIC_RELAXED, __ATOMIC_RELAXED))
                    __atomic_fetch_add(&shared[1], 1, __ATOMIC_RELAXED);
            }
        _exit(0);
    }
    pid_t others[OTHERS];
    for (int nth = 0; nth < OTHERS; nth++) {
        others[nth] = fork();
        for (size_t page = 1; others[nth] == 0; page = page % (NUMBERED - 1) + 1)
            ((volatile unsigned char *)file_map)[page * PAGE + PAGE / 2]++;
    }
    for (int round = 0; round < ROUNDS && good; round++) {
        // The child is at work, however busy the machine is.
        uint32_t before = __atomic_load_n(&shared[1], __ATOMIC_RELAXED);
        while (__atomic_load_n(&shared[1], __ATOMIC_RELAXED) == before)
            sched_yield();
        good &= !fallocate(cached, FALLOC_FL_INSERT_RANGE, PAGE, PAGE) && has_size((NUMBERED + 2) * PAGE);
        good &= !fallocate(cached, FALLOC_FL_COLLAPSE_RANGE, PAGE, PAGE) && has_size((NUMBERED + 1) * PAGE);
    }
    __atomic_store_n(shared, 1, __ATOMIC_RELAXED);
    int status;
    good &= waitpid(storing, &status, 0) == storing && status == 0;
    for (int nth = 0; nth < OTHERS; nth++)
        good &= !kill(others[nth], SIGKILL) && waitpid(others[nth], &status, 0) == others[nth] && WIFSIGNALED(status);
    uint64_t last = *(uint64_t *)(file_map + (NUMBERED - 1) * PAGE);
    if ((uint32_t)last != NUMBERED - 1 || last >> 32 != shared[1])
        fprintf(stderr, "%u additions, and %u in page %u\n", shared[1], (unsigned)(last >> 32), (unsigned)last);
    good &= (uint32_t)last == NUMBERED - 1 && last >> 32 == shared[1];
    munmap(shared, PAGE);
    end_file();
    return good;
}

static const struct rule shift_rules[] = {
    {"a removed range is closed", a_removed_range_is_closed},
    {"an inserted range is a hole", an_inserted_range_is_a_hole},
    {"blocks are the unit", blocks_are_the_unit},
    {"private copies go when bytes move", private_copies_go_when_bytes_move},
    {"the times change", the_times_change},
    {"stores follow their bytes", stores_follow_their_bytes},
};

#endif
