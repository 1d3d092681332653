// Rules of files of a disk at their edges: where they have holes, and what becomes of writes that
// fail or are killed; for `ext4 DEVICE holes`.
#ifndef HOLES_H
#define HOLES_H

#include "direct.h"
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>

enum { SYS_CACHESTAT = 451 };

// The device with the file system.
static const char *disk;

static bool seeks(off_t from, int whence, off_t to) {
    off_t found = lseek(cached, from, whence);
    if (found != to)
        fprintf(stderr, "from %ld on, %s is at %ld\n", (long)from, whence == SEEK_DATA ? "data" : "a hole", (long)found);
    return found == to;
}

// Data is where something was written, whether it is in memory or not, and read bytes are none.
static bool holes_are_found(void) {
    new_file(30 * PAGE + 100);
    bool good = seeks(0, SEEK_HOLE, 0) && lseek(cached, 0, SEEK_DATA) == -1 && errno == ENXIO;
    good &= put(cached, 8 * PAGE, PAGE, 1) && put(cached, 20 * PAGE, 2 * PAGE, 1);
    file_map[25 * PAGE + 5] = 1;
    for (int kept = 1; kept >= 0; kept--) {
        good &= pread(cached, buffer, FILE_SIZE, 0) == 30 * PAGE + 100;
        if (!kept)
            good &= !fsync(cached) && !posix_fadvise(cached, 0, 0, POSIX_FADV_DONTNEED);
        good &= seeks(0, SEEK_DATA, 8 * PAGE) && seeks(8 * PAGE + 9, SEEK_DATA, 8 * PAGE + 9);
        good &= seeks(8 * PAGE, SEEK_HOLE, 9 * PAGE) && seeks(9 * PAGE, SEEK_DATA, 20 * PAGE);
        good &= seeks(20 * PAGE + 1, SEEK_HOLE, 22 * PAGE) && seeks(22 * PAGE, SEEK_DATA, 25 * PAGE);
        good &= seeks(25 * PAGE, SEEK_HOLE, 26 * PAGE);
        errno = 0;
        good &= lseek(cached, 26 * PAGE, SEEK_DATA) == -1 && errno == ENXIO;
    }
    good &= !fallocate(cached, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 20 * PAGE, PAGE);
    good &= seeks(9 * PAGE, SEEK_DATA, 21 * PAGE) && put(cached, 29 * PAGE, PAGE + 100, 1);
    good &= seeks(29 * PAGE, SEEK_HOLE, 30 * PAGE + 100);
    end_file();
    return good;
}

// cachestat counts the pages in memory, those of them that are dirty, and none that was dropped.
static bool cachestat_counts_pages_in_memory(void) {
    new_file(0);
    uint64_t range[2] = {0, 0}, found[5];
    bool good = put(cached, 4 * PAGE, 3 * PAGE, 1) && !syscall(SYS_CACHESTAT, cached, range, found, 0);
    good &= found[0] >= 3 && found[1] + found[2] == 3;
    good &= !fsync(cached) && !syscall(SYS_CACHESTAT, cached, range, found, 0) && found[1] == 0 && found[2] == 0;
    good &= !posix_fadvise(cached, 0, 0, POSIX_FADV_DONTNEED);
    good &= !syscall(SYS_CACHESTAT, cached, range, found, 0) && found[0] == in_memory() && found[0] == 0;
    good &= reads(cached, 5 * PAGE, 100, 1) && !syscall(SYS_CACHESTAT, cached, range, found, 0);
    good &= found[0] == in_memory() && found[0] > 0 && found[0] <= 7;
    int folder = open("/ext4", O_RDONLY | O_DIRECTORY | O_CLOEXEC), path = open("/ext4", O_PATH | O_CLOEXEC);
    good &= !syscall(SYS_CACHESTAT, folder, range, found, 0) && found[0] == 0;
    errno = 0;
    good &= syscall(SYS_CACHESTAT, path, range, found, 0) == -1 && errno == EBADF;
    close(folder);
    close(path);
    end_file();
    return good;
}

// Zeros that reach beyond the end of a file make it longer, whether the page with the end is in
// memory or not.
static bool zeros_reach_beyond_the_end(void) {
    new_file(0);
    struct stat found;
    bool good = true;
    for (int dropped = 0; dropped < 2; dropped++) {
        good &= !ftruncate(cached, 10 * PAGE) && put(cached, 0, 10 * PAGE + 50, 1) && !fsync(cached);
        if (dropped)
            good &= !posix_fadvise(cached, 0, 0, POSIX_FADV_DONTNEED) && in_memory() == 0;
        good &= !fallocate(cached, FALLOC_FL_ZERO_RANGE, 5 * PAGE, 15 * PAGE);
        good &= !fstat(cached, &found) && found.st_size == 20 * PAGE && reads(cached, 0, 5 * PAGE, 1);
        good &= pread(cached, buffer, 15 * PAGE, 5 * PAGE) == 15 * PAGE && !buffer[0];
        good &= !memcmp(buffer, buffer + 1, 15 * PAGE - 1);
    }
    end_file();
    return good;
}

// A write through a shared mapping sets the times of a file, and does so again once the page was
// written back.
static bool mapped_writes_set_the_times(void) {
    new_file(3 * PAGE);
    struct stat before, after;
    bool good = put(cached, 0, 3 * PAGE, 1) && !fsync(cached);
    for (int round = 0; round < 3; round++) {
        good &= !fstat(cached, &before);
        usleep(30000);
        file_map[PAGE] = (char)round;
        usleep(30000);
        good &= !fstat(cached, &after) && after.st_mtim.tv_nsec != before.st_mtim.tv_nsec;
        good &= !memcmp(&after.st_mtim, &after.st_ctim, sizeof after.st_mtim);
        good &= !msync(file_map, 3 * PAGE, MS_SYNC);
    }
    end_file();
    return good;
}

// A write from memory that can't be read fails, and leaves the file as it was.
static bool a_write_from_nowhere_fails(void) {
    new_file(0);
    char *nowhere = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct stat found;
    bool good = true;
    for (size_t size = 0; size <= 2 * PAGE + 50; size += PAGE + 25) {
        good &= !ftruncate(cached, (off_t)size);
        for (size_t at = 0; at < 4 * PAGE; at += PAGE - 10) {
            errno = 0;
            ssize_t written = pwrite(cached, nowhere, 100, (off_t)at);
            if (written != -1 || errno != EFAULT || fstat(cached, &found) || (size_t)found.st_size != size) {
                fprintf(stderr, "%zd at %zu, %m; the size is %ld, and was %zu\n", written, at, (long)found.st_size, size);
                good = false;
            }
        }
    }
    munmap(nowhere, PAGE);
    end_file();
    return good;
}

// A process that is killed while it writes to a file without a name keeps neither the file nor the
// file system.
static bool a_killed_writer_keeps_nothing(void) {
    bool good = true;
    for (int round = 0; round < 6; round++) {
        pid_t writer = fork();
        if (!writer) {
            int file = open("/ext4/gone", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
            static char bytes[16 * PAGE];
            unlink("/ext4/gone");
            for (off_t at = 0;; at = (at + (off_t)sizeof bytes) % (8 << 20))
                if (pwrite(file, bytes, sizeof bytes, at) < 0 ||
                    sync_file_range(file, at, sizeof bytes, SYNC_FILE_RANGE_WRITE))
                    _exit(1);
        }
        usleep(20000 * (round + 1));
        kill(writer, SIGKILL);
        int status;
        good &= waitpid(writer, &status, 0) == writer && WIFSIGNALED(status);
        good &= !umount("/ext4") && !mount(disk, "/ext4", "ext4", 0, "");
    }
    return good;
}

static const struct rule hole_rules[] = {
    {"holes are found", holes_are_found},
    {"cachestat counts pages in memory", cachestat_counts_pages_in_memory},
    {"zeros reach beyond the end", zeros_reach_beyond_the_end},
    {"mapped writes set the times", mapped_writes_set_the_times},
    {"a write from nowhere fails", a_write_from_nowhere_fails},
    {"a killed writer keeps nothing", a_killed_writer_keeps_nothing},
};

#endif
