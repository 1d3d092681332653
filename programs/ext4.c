// ext4 DEVICE mixed [PROCESSES] [STEPS] [SEED]
// ext4 DEVICE direct
// ext4 DEVICE shift [BLOCK]
// ext4 DEVICE holes
// ext4 DEVICE full
// ext4 DEVICE load [SEED]
// ext4 DEVICE check FILE...
//
// What programs may expect of the ext4 file system on DEVICE, which is mounted at /ext4.
//
// mixed  PROCESSES (4) processes each do STEPS (2000) random operations on a file of their own, by
//        calls and by mappings, and compare the file with what it must have; so does the program
//        after the file system was unmounted and mounted again. Prints a row; the status is 1 if a
//        byte was wrong.
// direct checks rules of O_DIRECT (direct.h), and prints a row for each
// shift  checks rules of FALLOC_FL_COLLAPSE_RANGE and FALLOC_FL_INSERT_RANGE (shift.h) likewise,
//        on a file system with blocks of BLOCK bytes (4096)
// holes  checks rules of holes, and of writes that fail or are killed (holes.h), likewise
// full   fills the disk: writes fail with ENOSPC, and what they took before that is kept
// load   writes files for ever, and prints a line with name, size and number of each once it was
//        synchronised: for a machine that is to lose its power. Cuts other files off, and lets
//        them grow
// check  reads lines that `load` has printed, and checks that the disk has what they name, and that
//        no file has what was cut off it. The status is 1 if that is not so. Prints a line for each
//        file with what it has, which belongs before those that `load` prints next
#include "common.h"
#include "holes.h"
#include "random.h"
#include "shift.h"
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

enum { LONGEST = 512 * PAGE, LONGEST_LOADED = 64 * PAGE };

static const char *device;
static const char DIRECTORY[] = "/ext4";

static void mount_device(void) {
    mkdir(DIRECTORY, 0755);
    if (mount(device, DIRECTORY, "ext4", 0, ""))
        die("mount of %s", device);
}

static void unmount(void) {
    if (umount(DIRECTORY))
        die("umount of %s", DIRECTORY);
}

// A file, with what it must have.
struct file {
    char path[64];
    int fd, direct;
    unsigned char *mapped;
    size_t size;
    unsigned char bytes[LONGEST];
};

// The last operations of this process.
enum { REMEMBERED = 24 };
static struct {
    const char *what;
    size_t at, count, size;
} last[REMEMBERED];
static size_t operations;

static void fail(const struct file *file, const char *what, size_t at) {
    fprintf(stderr, "%s: %s: the byte at %zu of %zu is wrong\n", file->path, what, at, file->size);
    for (size_t i = operations > REMEMBERED ? operations - REMEMBERED : 0; i < operations; i++)
        fprintf(stderr, "%s: %s at %zu, %zu bytes, of a file of %zu\n", file->path, last[i % REMEMBERED].what,
                last[i % REMEMBERED].at, last[i % REMEMBERED].count, last[i % REMEMBERED].size);
    exit(1);
}

// Compares bytes that were read with what they must be.
static void compare(const struct file *file, const char *what, const unsigned char *bytes, size_t at, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != file->bytes[at + i])
            fail(file, what, at + i);
}

static void open_file(struct file *file, int flags) {
    file->fd = open(file->path, O_RDWR | flags, 0644);
    file->direct = open(file->path, O_RDWR | O_DIRECT);
    if (file->fd < 0 || file->direct < 0)
        die("open of %s", file->path);
    file->mapped = mmap(NULL, LONGEST, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
    if (file->mapped == MAP_FAILED)
        die("mmap of %s", file->path);
}

static void close_file(struct file *file) {
    munmap(file->mapped, LONGEST);
    close(file->fd);
    close(file->direct);
}

static void compare_all(const struct file *file) {
    unsigned char *bytes = malloc(LONGEST);
    struct stat found;
    if (fstat(file->fd, &found) || (size_t)found.st_size != file->size)
        fail(file, "the size", (size_t)found.st_size);
    ssize_t count = pread(file->fd, bytes, LONGEST, 0);
    if (count != (ssize_t)file->size)
        die("%s: read %zd of %zu bytes", file->path, count, file->size);
    compare(file, "a read of all", bytes, 0, file->size);
    free(bytes);
}

static void set_size(struct file *file, size_t size) {
    if (size < file->size)
        memset(file->bytes + size, 0, file->size - size);
    file->size = size;
}

// Notes that bytes were written, and extends the file if it ended before them.
static void note(struct file *file, size_t at, const unsigned char *bytes, size_t count) {
    memcpy(file->bytes + at, bytes, count);
    if (count && at + count > file->size)
        file->size = at + count;
}

// The random operations: the last two move bytes, and three before them are direct.
enum { FIRST_DIRECT = 16, FIRST_SHIFT = 19, OPERATIONS = 21 };

// Does a random operation on a file.
static void step(struct file *file, uint64_t *state) {
    static _Alignas(PAGE) unsigned char bytes[LONGEST];
    size_t at = below(LONGEST - 1, state), most = below(4, state) ? 9000 : LONGEST;
    size_t count = 1 + below((LONGEST - at < most ? LONGEST - at : most), state);
    // Often whole pages.
    if (below(3, state) == 0) {
        at = at / PAGE * PAGE;
        count = (count + PAGE - 1) / PAGE * PAGE;
        if (at + count > LONGEST)
            count = LONGEST - at;
    }
    uint64_t which = below(OPERATIONS, state);
    if (which >= FIRST_DIRECT) {
        size_t unit = which >= FIRST_SHIFT ? PAGE : SECTOR;
        at = at / unit * unit;
        count = (count + unit - 1) / unit * unit;
        if (at + count > LONGEST)
            count = LONGEST - at;
    }
    memset(bytes, (int)(1 + below(255, state)), count);
    bytes[0] ^= 0x55;
    bytes[count - 1] ^= 0xaa;
    size_t inside = file->size > at ? (file->size - at < count ? file->size - at : count) : 0;
    static const char *const names[OPERATIONS] = {
        "pwrite",    "pwrite", "pwrite", "a mapped write", "a mapped write", "a mapped read", "pread",   "ftruncate",
        "fallocate, a hole", "fallocate", "fsync",  "msync",          "fadvise",        "pageout",       "reopening", "renaming",
        "a direct pwrite", "a direct pwrite", "a direct pread", "a collapse", "an insertion",
    };
    int mode;
    last[operations % REMEMBERED].what = names[which];
    last[operations % REMEMBERED].at = at;
    last[operations % REMEMBERED].count = count;
    last[operations++ % REMEMBERED].size = file->size;
    switch (which) {
    case 0:
    case 1:
    case 2:
        if (pwrite(file->fd, bytes, count, (off_t)at) != (ssize_t)count)
            die("%s: pwrite of %zu bytes at %zu", file->path, count, at);
        note(file, at, bytes, count);
        break;
    case 3:
    case 4:
        memcpy(file->mapped + at, bytes, inside);
        note(file, at, bytes, inside);
        break;
    case 5:
        compare(file, "a mapping", file->mapped + at, at, inside);
        break;
    case 6:
    case 18: {
        ssize_t got = pread(which == 6 ? file->fd : file->direct, bytes, count, (off_t)at);
        if (got != (ssize_t)inside)
            die("%s: read %zd of %zu bytes at %zu", file->path, got, inside, at);
        compare(file, "a read", bytes, at, inside);
        break;
    }
    case 7:
        if (ftruncate(file->fd, (off_t)at))
            die("%s: ftruncate to %zu", file->path, at);
        set_size(file, at);
        break;
    case 8:
        // A hole, or zeros in its place: the same to a reader.
        mode = (below(2, state) ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_ZERO_RANGE) | FALLOC_FL_KEEP_SIZE;
        if (fallocate(file->fd, mode, (off_t)at, (off_t)count))
            die("%s: a hole of %zu bytes at %zu", file->path, count, at);
        memset(file->bytes + at, 0, inside);
        break;
    case 9:
        mode = (int[]){0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE}[below(3, state)];
        if (fallocate(file->fd, mode, (off_t)at, (off_t)count))
            die("%s: fallocate of %zu bytes at %zu", file->path, count, at);
        if (mode == FALLOC_FL_ZERO_RANGE)
            memset(file->bytes + at, 0, inside);
        struct stat found;
        fstat(file->fd, &found);
        if ((size_t)found.st_size != file->size && (size_t)found.st_size != at + count)
            fail(file, "the size after fallocate", (size_t)found.st_size);
        set_size(file, (size_t)found.st_size);
        break;
    case 10:
        if (fsync(file->fd))
            die("%s: fsync", file->path);
        break;
    case 11:
        if (msync(file->mapped, LONGEST, MS_SYNC))
            die("%s: msync", file->path);
        break;
    case 12:
        posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
        break;
    case 13:
        madvise(file->mapped, LONGEST, MADV_PAGEOUT);
        break;
    case 14:
        close_file(file);
        open_file(file, 0);
        break;
    case 16:
    case 17:
        if (pwrite(file->direct, bytes, count, (off_t)at) != (ssize_t)count)
            die("%s: a direct pwrite of %zu bytes at %zu", file->path, count, at);
        note(file, at, bytes, count);
        break;
    case 19: {
        bool refused = at + count >= file->size;
        if ((fallocate(file->fd, FALLOC_FL_COLLAPSE_RANGE, (off_t)at, (off_t)count) == 0) == refused)
            die("%s: a collapse of %zu bytes at %zu of %zu", file->path, count, at, file->size);
        if (!refused) {
            memmove(file->bytes + at, file->bytes + at + count, file->size - at - count);
            set_size(file, file->size - count);
        }
        break;
    }
    case 20: {
        bool refused = at >= file->size;
        if (!refused && file->size + count > LONGEST)
            break;
        if ((fallocate(file->fd, FALLOC_FL_INSERT_RANGE, (off_t)at, (off_t)count) == 0) == refused)
            die("%s: an insertion of %zu bytes at %zu of %zu", file->path, count, at, file->size);
        if (!refused) {
            memmove(file->bytes + at + count, file->bytes + at, file->size - at);
            memset(file->bytes + at, 0, count);
            file->size += count;
        }
        break;
    }
    case 15: {
        // The same by another name.
        char other[sizeof file->path + 1];
        snprintf(other, sizeof other, "%s~", file->path);
        if (rename(file->path, other) || link(other, file->path) || unlink(other))
            die("%s: rename", file->path);
        break;
    }
    }
}

static void start_file(struct file *file, long number) {
    memset(file, 0, sizeof *file);
    snprintf(file->path, sizeof file->path, "%s/mixed-%ld", DIRECTORY, number);
}

static int mixed(long processes, long steps, long seed) {
    // The last state of each file, for the check after the next mount.
    struct file *files = mmap(NULL, (size_t)processes * sizeof *files, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (files == MAP_FAILED)
        die("mmap");
    for (long i = 0; i < processes; i++) {
        start_file(&files[i], i);
        if (fork() == 0) {
            uint64_t state = (uint64_t)seed * 1000003 + (uint64_t)i;
            open_file(&files[i], O_CREAT | O_TRUNC);
            for (long done = 0; done < steps; done++) {
                step(&files[i], &state);
                if (done % 16 == 0)
                    compare_all(&files[i]);
            }
            compare_all(&files[i]);
            close_file(&files[i]);
            exit(0);
        }
    }
    int worst = 0, status;
    while (wait(&status) > 0)
        if (status)
            worst = WIFEXITED(status) ? WEXITSTATUS(status) : 2;
    if (worst)
        return worst;
    unmount();
    mount_device();
    for (long i = 0; i < processes; i++) {
        open_file(&files[i], 0);
        compare_all(&files[i]);
        close_file(&files[i]);
    }
    printf("{\"case\": \"mixed\", \"processes\": %ld, \"steps\": %ld}\n", processes, steps);
    return 0;
}

// Writes a file until the disk is full, and returns its size.
static size_t write_until_full(const char *path) {
    static unsigned char bytes[16 * PAGE];
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        die("%s", path);
    size_t size = 0;
    ssize_t written;
    do {
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = byte_of(size + i, 1);
        written = write(fd, bytes, sizeof bytes);
        if (written > 0)
            size += (size_t)written;
    } while (written > 0);
    if (written == 0 || errno != ENOSPC)
        die("%s: write after %zu bytes", path, size);
    if (fsync(fd))
        die("%s: fsync", path);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    for (size_t at = 0; at < size; at += sizeof bytes) {
        size_t count = size - at < sizeof bytes ? size - at : sizeof bytes;
        if (pread(fd, bytes, count, (off_t)at) != (ssize_t)count || !has_bytes(bytes, at, count, 1))
            die("%s: the bytes at %zu", path, at);
    }
    close(fd);
    return size;
}

static int full(void) {
    struct statvfs space;
    if (statvfs(DIRECTORY, &space))
        die("statvfs");
    size_t room = space.f_bavail * space.f_bsize, sizes[2];
    for (int i = 0; i < 2; i++) {
        sizes[i] = write_until_full("/ext4/full");
        if (unlink("/ext4/full"))
            die("unlink");
    }
    printf("{\"case\": \"full\", \"room\": %zu, \"first\": %zu, \"second\": %zu}\n", room, sizes[0], sizes[1]);
    return sizes[0] < room / 10 * 9 || sizes[1] < room / 10 * 9;
}

// The byte that belongs at an offset of the file with a number that `load` writes.
static unsigned char loaded(uint64_t number, size_t at) {
    return (unsigned char)(number * 29 + at / 512 * 3 + at);
}

// Prints what a file has. The end of the line tells it from one that was cut off with the power.
static void say(const char *word, const char *path, size_t size, uint64_t number) {
    printf("%s %s %zu %lu.\n", word, path, size, (unsigned long)number);
}

// What a file says of itself that `load` cuts off, and then makes longer than it was.
struct cut {
    uint64_t left, grown;
};

enum { CUT_FILES = 8, LONGEST_CUT = 5 * PAGE };

static int open_cut(uint64_t number, int flags) {
    char path[64];
    snprintf(path, sizeof path, "%s/cut-%lu", DIRECTORY, (unsigned long)number);
    return open(path, O_RDWR | O_CLOEXEC | flags, 0644);
}

// Cuts a file off, and lets it grow: what it loses must not return.
static void cut(uint64_t *state) {
    static unsigned char bytes[LONGEST_CUT];
    size_t whole = PAGE + below(LONGEST_CUT - PAGE, state);
    struct cut cut = {.left = sizeof cut + below(whole - sizeof cut, state)};
    cut.grown = whole + 1 + below(PAGE, state);
    memset(bytes, 0xa5, sizeof bytes);
    memcpy(bytes, &cut, sizeof cut);
    int fd = open_cut(below(CUT_FILES, state), O_CREAT | O_TRUNC);
    if (fd < 0 || write(fd, bytes, whole) != (ssize_t)whole || fsync(fd))
        die("write of %zu bytes", whole);
    if (ftruncate(fd, (off_t)cut.left) || ftruncate(fd, (off_t)cut.grown) || close(fd))
        die("ftruncate to %zu and %zu", (size_t)cut.left, (size_t)cut.grown);
}

// Returns the number of cut files that have what they had lost.
static int check_cuts(void) {
    static unsigned char bytes[LONGEST_CUT + PAGE + 1];
    int wrong = 0, grown = 0;
    for (int number = 0; number < CUT_FILES; number++) {
        int fd = open_cut((uint64_t)number, 0);
        if (fd < 0)
            continue;
        ssize_t count = read(fd, bytes, sizeof bytes);
        close(fd);
        struct cut cut;
        memcpy(&cut, bytes, sizeof cut);
        if (count < (ssize_t)sizeof cut || (uint64_t)count != cut.grown)
            continue;
        grown++;
        for (size_t at = sizeof cut; at < cut.grown; at++)
            if (bytes[at] != (at < cut.left ? 0xa5 : 0)) {
                printf("cut-%d has %#x at %zu, and was cut off at %zu\n", number, bytes[at], at, (size_t)cut.left);
                wrong++;
                break;
            }
    }
    printf("{\"case\": \"cut\", \"grown\": %d, \"wrong\": %d}\n", grown, wrong);
    return wrong;
}

static int load(long seed) {
    uint64_t state = (uint64_t)seed;
    static unsigned char bytes[LONGEST_LOADED];
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (uint64_t number = 1;; number++) {
        char path[64], other[64];
        uint64_t name = below(12, &state);
        size_t count = 1 + below(LONGEST_LOADED, &state);
        snprintf(path, sizeof path, "%s/load-%lu", DIRECTORY, (unsigned long)name);
        snprintf(other, sizeof other, "%s/new-%lu", DIRECTORY, (unsigned long)name);
        for (size_t i = 0; i < count; i++)
            bytes[i] = loaded(number, i);
        // As an editor saves: the new contents are there before they get the name.
        int fd = open(other, O_RDWR | O_CREAT | O_TRUNC, 0644);
        if (fd < 0)
            die("open of %s", other);
        if (below(2, &state)) {
            if (write(fd, bytes, count) != (ssize_t)count)
                die("write to %s", other);
        } else {
            if (ftruncate(fd, (off_t)count))
                die("ftruncate of %s", other);
            unsigned char *mapped = mmap(NULL, count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (mapped == MAP_FAILED)
                die("mmap of %s", other);
            memcpy(mapped, bytes, count);
            munmap(mapped, count);
        }
        if (fsync(fd) || close(fd))
            die("fsync of %s", other);
        say("begins", path, count, number);
        if (rename(other, path))
            die("rename to %s", path);
        int directory = open(DIRECTORY, O_RDONLY | O_DIRECTORY);
        if (directory < 0 || fsync(directory) || close(directory))
            die("fsync of %s", DIRECTORY);
        say("has", path, count, number);
        // Something that nothing waits for.
        if (below(3, &state) == 0) {
            snprintf(other, sizeof other, "%s/other-%lu", DIRECTORY, (unsigned long)below(20, &state));
            int extra = open(other, O_RDWR | O_CREAT, 0644);
            if (extra < 0 || pwrite(extra, bytes, count, (off_t)below(200000, &state)) != (ssize_t)count || close(extra))
                die("write to %s", other);
        } else if (below(3, &state) == 0) {
            snprintf(other, sizeof other, "%s/other-%lu", DIRECTORY, (unsigned long)below(20, &state));
            unlink(other);
        } else {
            cut(&state);
        }
    }
}

// Returns whether the file has the contents of a number.
static bool has(const char *path, size_t size, uint64_t number) {
    static unsigned char bytes[LONGEST_LOADED + 1];
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return false;
    ssize_t count = read(fd, bytes, sizeof bytes);
    close(fd);
    if (count != (ssize_t)size)
        return false;
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != loaded(number, i))
            return false;
    return true;
}

static int check(const char *name) {
    // The last state that each file has for sure, and the one that it may have instead.
    struct {
        char path[64];
        size_t size[2];
        unsigned long number[2];
    } files[12];
    int count = 0, wrong = 0;
    char line[128], word[16], path[64], end;
    size_t size;
    unsigned long number;
    FILE *lines = fopen(name, "r");
    if (!lines)
        die("%s", name);
    while (fgets(line, sizeof line, lines)) {
        if (sscanf(line, "%15s %63s %zu %lu%c", word, path, &size, &number, &end) != 5 || end != '.')
            continue;
        int at = 0;
        while (at < count && strcmp(files[at].path, path))
            at++;
        if (at == count) {
            memset(&files[count], 0, sizeof files[count]);
            strcpy(files[count++].path, path);
        }
        bool certain = strcmp(word, "begins") != 0;
        files[at].size[1] = size;
        files[at].number[1] = number;
        if (certain) {
            files[at].size[0] = size;
            files[at].number[0] = number;
        }
    }
    fclose(lines);
    for (int i = 0; i < count; i++) {
        const size_t *sizes = files[i].size;
        const unsigned long *numbers = files[i].number;
        int found = 1;
        while (found >= 0 && !(numbers[found] && has(files[i].path, sizes[found], numbers[found])))
            found--;
        bool good = found >= 0 || (!numbers[0] && access(files[i].path, F_OK) != 0);
        if (!good)
            printf("%s has neither %lu nor %lu\n", files[i].path, numbers[0], numbers[1]);
        // What the next check may take for certain.
        if (found >= 0)
            say("is", files[i].path, sizes[found], numbers[found]);
        wrong += !good;
    }
    printf("{\"case\": \"check\", \"files\": %d, \"wrong\": %d}\n", count, wrong);
    return wrong + check_cuts() ? 1 : 0;
}

int main(int argc, char **argv) {
    if (argc < 3)
        die("usage: %s DEVICE mixed [PROCESSES] [STEPS] [SEED] | direct | shift [BLOCK] | holes | full | load [SEED] | check FILE", argv[0]);
    device = disk = argv[1];
    mount_device();
    int status;
    if (!strcmp(argv[2], "mixed"))
        status = mixed(argument(argc, argv, 3, 4), argument(argc, argv, 4, 2000), argument(argc, argv, 5, 1));
    else if (!strcmp(argv[2], "direct"))
        status = check_rules(direct_rules, sizeof direct_rules / sizeof *direct_rules);
    else if (!strcmp(argv[2], "shift"))
        block = (size_t)argument(argc, argv, 3, PAGE), status = check_rules(shift_rules, sizeof shift_rules / sizeof *shift_rules);
    else if (!strcmp(argv[2], "holes"))
        status = check_rules(hole_rules, sizeof hole_rules / sizeof *hole_rules);
    else if (!strcmp(argv[2], "full"))
        status = full();
    else if (!strcmp(argv[2], "load"))
        status = load(argument(argc, argv, 3, 1));
    else if (!strcmp(argv[2], "check") && argc > 3)
        status = check(argv[3]);
    else
        die("%s: unknown mode", argv[2]);
    unmount();
    return status;
}
