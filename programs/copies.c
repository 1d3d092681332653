// copies [FOLDER]: the system calls that copy from file to file, and those that read and write with
// flags, keep Linux's rules, in a folder (/tmp). Runs on any Linux.
#include "common.h"
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>

enum { SIZE = 300000 };

static char contents[SIZE], had[SIZE];
static const char *folder = "/tmp";

// Opens a file in the folder.
static int file(const char *name, int flags) {
    char path[256];
    snprintf(path, sizeof path, "%s/copies-%s", folder, name);
    int opened = open(path, flags, 0600);
    if (opened < 0)
        die(path);
    return opened;
}

// Returns a new file with the contents, at offset 0.
static int source(void) {
    int made = file("source", O_CREAT | O_TRUNC | O_RDWR);
    if (pwrite(made, contents, SIZE, 0) != SIZE)
        die("write");
    return made;
}

static int target(void) {
    return file("target", O_CREAT | O_TRUNC | O_RDWR);
}

static long offset_of(int of) {
    return lseek(of, 0, SEEK_CUR);
}

// Returns whether the file has exactly some of the contents.
static bool has(int of, size_t from, size_t count) {
    struct stat about;
    return fstat(of, &about) == 0 && (size_t)about.st_size == count &&
           pread(of, had, SIZE, 0) == (ssize_t)count && memcmp(had, contents + from, count) == 0;
}

static bool fails(long result, int with) {
    bool does = result == -1 && errno == with;
    if (!does)
        printf("copies: %ld (%s), expected %s\n", result, strerror(errno), strerror(with));
    return does;
}

static bool check_sendfile(void) {
    int from = source(), to = target();
    off_t at = 70000;
    bool good = sendfile(to, from, &at, 100000) == 100000 && at == 170000 && offset_of(from) == 0;
    good = good && offset_of(to) == 100000 && has(to, 70000, 100000);
    // Without an offset the file's own moves, and the copy ends at the end.
    to = target();
    good = good && lseek(from, 200000, SEEK_SET) == 200000 && sendfile(to, from, NULL, SIZE) == 100000;
    good = good && offset_of(from) == SIZE && has(to, 200000, 100000) && sendfile(to, from, NULL, 1) == 0;
    at = 0;
    return good && sendfile(to, from, &at, 0) == 0 && at == 0;
}

static bool check_sendfile_to_pipe(void) {
    int from = source(), ends[2];
    if (pipe2(ends, O_NONBLOCK))
        die("pipe2");
    off_t at = 1000;
    long sent = sendfile(ends[1], from, &at, SIZE);
    bool good = sent > 0 && sent < SIZE - 1000 && at == 1000 + sent;
    good = good && fails(sendfile(ends[1], from, &at, SIZE), EAGAIN) && at == 1000 + sent;
    for (long done = 0, got; good && done < sent; done += got) {
        got = read(ends[0], had, sizeof had);
        good = got > 0 && memcmp(had, contents + 1000 + done, got) == 0;
    }
    return good;
}

static bool check_sendfile_refuses(void) {
    int from = source(), to = target(), ends[2];
    if (pipe(ends))
        die("pipe");
    off_t at = 0, negative = -1;
    bool good = fails(sendfile(to, from, &negative, 1), EINVAL);
    good = good && fails(sendfile(to, ends[0], NULL, 1), EINVAL);
    good = good && fails(sendfile(to, ends[0], &at, 1), ESPIPE);
    good = good && fails(sendfile(file("target", O_WRONLY | O_APPEND), from, NULL, 1), EINVAL);
    good = good && fails(sendfile(to, file("source", O_WRONLY), NULL, 1), EBADF);
    good = good && fails(sendfile(file("target", O_RDONLY), from, NULL, 1), EBADF);
    good = good && fails(sendfile(to, from, (off_t *)16, 1), EFAULT);
    return good && fails(sendfile(to, 99, NULL, 1), EBADF) && has(to, 0, 0);
}

static bool check_copy(void) {
    int from = source(), to = target();
    off_t at = 70000, to_at = 0;
    bool good = copy_file_range(from, &at, to, &to_at, 100000, 0) == 100000 && at == 170000 && to_at == 100000;
    good = good && offset_of(from) == 0 && offset_of(to) == 0 && has(to, 70000, 100000);
    // Without offsets the files' own move.
    to = target();
    good = good && lseek(from, 250000, SEEK_SET) == 250000 && copy_file_range(from, NULL, to, NULL, SIZE, 0) == 50000;
    good = good && offset_of(from) == SIZE && offset_of(to) == 50000 && has(to, 250000, 50000);
    at = SIZE + 1;
    good = good && copy_file_range(from, NULL, to, NULL, SIZE, 0) == 0;
    good = good && copy_file_range(from, &at, to, NULL, SIZE, 0) == 0 && at == SIZE + 1;
    // Within a file, to bytes that are not copied.
    at = 0;
    to_at = SIZE / 2;
    good = good && copy_file_range(from, &at, from, &to_at, SIZE / 2, 0) == SIZE / 2;
    return good && pread(from, had, SIZE, 0) == SIZE && memcmp(had, contents, SIZE / 2) == 0 &&
           memcmp(had + SIZE / 2, contents, SIZE / 2) == 0;
}

static bool check_copy_refuses(void) {
    int from = source(), to = target(), ends[2];
    if (pipe(ends))
        die("pipe");
    off_t at = 0, to_at = 1000, end = INT64_MAX;
    bool good = fails(copy_file_range(from, &at, from, &to_at, 1001, 0), EINVAL);
    good = good && copy_file_range(from, &at, from, &to_at, 1000, 0) == 1000;
    good = good && fails(copy_file_range(from, NULL, to, NULL, 1, 1), EINVAL);
    good = good && fails(copy_file_range(ends[0], NULL, to, NULL, 1, 0), EINVAL);
    good = good && fails(copy_file_range(open(folder, O_RDONLY), NULL, to, NULL, 1, 0), EISDIR);
    good = good && fails(copy_file_range(from, NULL, file("target", O_WRONLY | O_APPEND), NULL, 1, 0), EBADF);
    good = good && fails(copy_file_range(from, NULL, file("target", O_RDONLY), NULL, 1, 0), EBADF);
    good = good && fails(copy_file_range(file("source", O_WRONLY), NULL, to, NULL, 1, 0), EBADF);
    good = good && fails(copy_file_range(from, NULL, to, &end, 1, 0), EFBIG);
    good = good && fails(copy_file_range(from, NULL, to, &to_at, SIZE_MAX, 0), EOVERFLOW);
    return good && fails(copy_file_range(from, NULL, open("/proc/self/comm", O_RDWR), NULL, 1, 0), EXDEV);
}

static bool check_flags(void) {
    int of = source(), to = target();
    struct iovec one[2] = {{had, 10}, {had + 10, 20}};
    bool good = preadv2(of, one, 2, 1000, 0) == 30 && memcmp(had, contents + 1000, 30) == 0 && offset_of(of) == 0;
    good = good && preadv2(of, one, 2, -1, RWF_HIPRI) == 30 && memcmp(had, contents, 30) == 0 && offset_of(of) == 30;
    struct iovec bytes = {contents, 5000};
    good = good && pwritev2(to, &bytes, 1, 0, RWF_SYNC) == 5000 && offset_of(to) == 0 && has(to, 0, 5000);
    good = good && pwritev2(to, &bytes, 1, -1, RWF_DSYNC) == 5000 && offset_of(to) == 5000 && has(to, 0, 5000);
    int ends[2];
    good = good && !pipe(ends) && pwritev2(ends[1], &bytes, 1, -1, RWF_SYNC) == 5000;
    good = good && fails(preadv2(of, one, 2, 0, 1 << 30), EOPNOTSUPP);
    return good && fails(preadv2(of, one, 2, -2, 0), EINVAL);
}

static const struct rule rules[] = {
    {"sendfile copies and moves offsets", check_sendfile},
    {"sendfile fills a pipe", check_sendfile_to_pipe},
    {"sendfile checks its arguments", check_sendfile_refuses},
    {"copy_file_range copies and moves offsets", check_copy},
    {"copy_file_range checks its arguments", check_copy_refuses},
    {"reads and writes have flags", check_flags},
};

int main(int count, char **arguments) {
    if (count > 1)
        folder = arguments[1];
    for (int i = 0; i < SIZE; i++)
        contents[i] = (char)(i * 7 + i / 251);
    return check_rules(rules, sizeof rules / sizeof *rules);
}
