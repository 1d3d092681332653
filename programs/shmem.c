// shmem: shared memory has huge pages where the settings say so, they are mapped by huge PTEs, and
// what is done to a part of one leaves the others as they are. Prints a row for each rule; the
// status is 1 if one is broken. Needs root.
#include "common.h"
#include <sys/mount.h>
#include <sys/shm.h>
#include <sys/stat.h>

#define THP "/sys/kernel/mm/transparent_hugepage/"
#define MACHINE THP "shmem_enabled"
#define SIZE THP "hugepages-2048kB/shmem_enabled"
#define FOLDER "/tmp/shmem"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

enum { LENGTH = 2 * HUGE, PAGES = LENGTH / PAGE };

static void set(const char *path, const char *word) {
    if (!write_line(path, word))
        die("%s to %s", word, path);
}

// Maps shared memory of a file at a multiple of 2 MiB, in a VMA of its own.
static char *map_shared(int file, size_t length) {
    int fixed = MAP_FIXED | MAP_SHARED | (file < 0 ? MAP_ANONYMOUS : 0);
    char *around = mmap(NULL, length + 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (around == MAP_FAILED)
        die("mmap");
    char *at = (char *)(((uintptr_t)around + HUGE) & ~((uintptr_t)HUGE - 1));
    if (mmap(at, length, PROT_READ | PROT_WRITE, fixed, file, 0) == MAP_FAILED)
        die("mmap of shared memory");
    return at;
}

static int new_memfd(size_t length) {
    int file = memfd_create("shmem", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)length))
        die("memfd_create");
    return file;
}

static long mapped_huge(const char *memory) { return smaps_bytes(memory, "ShmemPmdMapped"); }

static bool holds_pattern(const char *memory, size_t from, size_t to) {
    for (size_t at = from; at < to; at += PAGE)
        if (*(volatile const uint64_t *)(memory + at) != at + 7)
            return false;
    return true;
}

// Returns the bytes that a huge PTE maps once a page of a new file of that length is touched.
static long after_touch(int file, size_t length, int advice) {
    char *memory = map_shared(file, length);
    if (advice)
        madvise(memory, length, advice);
    *(volatile char *)memory = 1;
    long found = mapped_huge(memory);
    munmap(memory, length);
    if (file >= 0)
        close(file);
    return found;
}

static bool settings_of_the_machine(void) {
    static const struct {
        const char *word;
        long plain, advised;
    } cases[] = {{"never", 0, 0}, {"advise", 0, HUGE}, {"within_size", HUGE, HUGE}, {"always", HUGE, HUGE},
                 {"deny", 0, 0}, {"force", HUGE, HUGE}};
    bool good = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set(MACHINE, cases[i].word);
        // The size inherits the setting.
        for (int anonymous = 0; anonymous < 2; anonymous++) {
            long plain = after_touch(anonymous ? -1 : new_memfd(LENGTH), LENGTH, 0);
            long advised = after_touch(anonymous ? -1 : new_memfd(LENGTH), LENGTH, MADV_HUGEPAGE);
            if (plain != cases[i].plain || advised != cases[i].advised) {
                printf("# %s, %s: %ld, advised %ld\n", cases[i].word, anonymous ? "anonymous" : "memfd", plain, advised);
                good = false;
            }
        }
    }
    set(MACHINE, "never");
    return good;
}

static bool settings_of_the_size(void) {
    static const struct {
        const char *word;
        long plain, advised;
    } cases[] = {{"never", 0, 0}, {"advise", 0, HUGE}, {"within_size", HUGE, HUGE}, {"always", HUGE, HUGE}};
    bool good = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set(SIZE, cases[i].word);
        good &= after_touch(-1, LENGTH, 0) == cases[i].plain && after_touch(-1, LENGTH, MADV_HUGEPAGE) == cases[i].advised;
        good &= after_touch(new_memfd(LENGTH), LENGTH, 0) == cases[i].plain;
    }
    set(SIZE, "inherit");
    return good;
}

static bool settings_of_a_file_system(void) {
    static const char *const options[] = {"huge=never", "huge=advise", "huge=within_size", "huge=always"};
    mkdir(FOLDER, 0755);
    bool good = mount("shmem", FOLDER, "tmpfs", 0, "huge=sometimes") && errno == EINVAL;
    for (int i = 0; i < 4; i++) {
        if (mount("shmem", FOLDER, "tmpfs", 0, options[i]))
            die("mount with %s", options[i]);
        int file = open(FOLDER "/file", O_RDWR | O_CREAT, 0600);
        if (file < 0 || ftruncate(file, LENGTH))
            die(FOLDER "/file");
        good &= after_touch(dup(file), LENGTH, 0) == (i > 1 ? HUGE : 0);
        ftruncate(file, 0);
        ftruncate(file, LENGTH);
        good &= after_touch(dup(file), LENGTH, MADV_HUGEPAGE) == (i > 0 ? HUGE : 0);
        // A file of a page: its first write allocates a huge page only where each does.
        struct stat found;
        ftruncate(file, 0);
        good &= write(file, "x", 1) == 1 && !fstat(file, &found) && found.st_blocks * 512 == (i == 3 ? HUGE : PAGE);
        close(file);
        if (umount(FOLDER))
            die("umount");
    }
    rmdir(FOLDER);
    return good;
}

// Shared memory that a huge PTE maps, filled with the pattern.
static char *filled(int *file) {
    *file = new_memfd(LENGTH);
    char *memory = map_shared(*file, LENGTH);
    touch(memory, LENGTH, 7);
    if (mapped_huge(memory) != LENGTH)
        die("a memfd of %d bytes is mapped by huge PTEs for %ld", LENGTH, mapped_huge(memory));
    return memory;
}

static bool a_part_is_unmapped(void) {
    int file;
    char *memory = filled(&file);
    if (munmap(memory + HUGE / 2, PAGE) || mprotect(memory + HUGE, PAGE, PROT_READ))
        die("munmap");
    bool good = holds_pattern(memory, 0, HUGE / 2) && holds_pattern(memory, HUGE / 2 + PAGE, LENGTH);
    char *other = map_shared(file, LENGTH);
    good &= holds_pattern(other, 0, LENGTH) && mapped_huge(other) == LENGTH;
    munmap(other, LENGTH);
    munmap(memory, LENGTH);
    close(file);
    return good;
}

static bool a_hole_is_punched(void) {
    int file;
    char *memory = filled(&file);
    if (fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, HUGE / 2, PAGE) || ftruncate(file, HUGE + PAGE))
        die("fallocate");
    bool good = holds_pattern(memory, 0, HUGE / 2) && holds_pattern(memory, HUGE / 2 + PAGE, HUGE + PAGE);
    good &= *(volatile uint64_t *)(memory + HUGE / 2) == 0;
    pid_t child = fork();
    if (!child) {
        *(volatile char *)(memory + HUGE + PAGE) = 1;
        _exit(0);
    }
    int status;
    good &= waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS;
    munmap(memory, LENGTH);
    close(file);
    return good;
}

static bool a_private_copy_is_a_page(void) {
    int file;
    char *memory = filled(&file);
    char *copy = map_shared(file, LENGTH);
    if (mmap(copy, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) != copy)
        die("mmap");
    bool good = holds_pattern(copy, 0, LENGTH);
    *(volatile uint64_t *)(copy + PAGE) = 1;
    *(volatile uint64_t *)(memory + 2 * PAGE) = 2;
    good &= *(volatile uint64_t *)(memory + PAGE) == PAGE + 7 && *(volatile uint64_t *)(copy + PAGE) == 1;
    good &= *(volatile uint64_t *)(copy + 2 * PAGE) == 2 && smaps_bytes(copy, "Anonymous") == PAGE;
    munmap(copy, LENGTH);
    munmap(memory, LENGTH);
    close(file);
    return good;
}

static bool it_is_moved_and_inherited(void) {
    int file;
    char *memory = filled(&file);
    char *to = map_shared(-1, LENGTH + PAGE) + PAGE;
    // To an address that is no multiple of 2 MiB.
    if (mremap(memory, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
        die("mremap");
    bool good = holds_pattern(to, 0, LENGTH);
    pid_t child = fork();
    if (!child) {
        *(volatile uint64_t *)(to + PAGE) = 1;
        _exit(!holds_pattern(to, 2 * PAGE, LENGTH));
    }
    int status;
    good &= waitpid(child, &status, 0) == child && status == 0 && *(volatile uint64_t *)(to + PAGE) == 1;
    munmap(to - PAGE, LENGTH + PAGE);
    close(file);
    return good;
}

static bool it_is_paged_out(void) {
    int file;
    char *memory = filled(&file);
    if (madvise(memory, LENGTH, MADV_PAGEOUT))
        die("MADV_PAGEOUT");
    bool good = pages_present(memory, LENGTH) < PAGES / 8 && holds_pattern(memory, 0, LENGTH);
    munmap(memory, LENGTH);
    close(file);
    return good;
}

static bool a_segment_of_system_v(void) {
    int id = shmget(IPC_PRIVATE, LENGTH, IPC_CREAT | 0600);
    char *place = map_shared(-1, LENGTH);
    munmap(place, LENGTH);
    char *memory = id < 0 ? (char *)-1 : shmat(id, place, 0);
    if (memory != place || shmctl(id, IPC_RMID, NULL))
        die("shmat");
    touch(memory, LENGTH, 7);
    bool good = mapped_huge(memory) == LENGTH && holds_pattern(memory, 0, LENGTH);
    shmdt(memory);
    return good;
}

// Small pages of a memfd become a huge one by MADV_COLLAPSE, in each program that maps them, and a
// page that was never written reads as zeros.
static bool it_is_collapsed(void) {
    set(MACHINE, "never");
    int file = new_memfd(LENGTH);
    char *memory = map_shared(file, LENGTH), *other = map_shared(file, LENGTH);
    for (size_t at = 0; at < HUGE; at += 2 * PAGE)
        *(volatile uint64_t *)(memory + at) = at + 7;
    *(volatile uint64_t *)(other + PAGE) = PAGE + 7;
    bool good = mapped_huge(memory) == 0 && madvise(memory, HUGE, MADV_COLLAPSE) == 0;
    good &= mapped_huge(memory) == HUGE && holds_pattern(memory, 0, 2 * PAGE) && holds_pattern(other, 0, 2 * PAGE);
    for (size_t at = 2 * PAGE; at < HUGE; at += PAGE)
        good &= *(volatile uint64_t *)(other + at) == (at / PAGE % 2 ? 0 : at + 7);
    good &= mapped_huge(other) == HUGE;
    // Both can't collapse: memory without a page, and memory for which the program wants none.
    errno = 0;
    good &= madvise(memory + HUGE, HUGE, MADV_COLLAPSE) == -1 && errno == EINVAL;
    madvise(memory, HUGE, MADV_NOHUGEPAGE);
    errno = 0;
    good &= madvise(memory, HUGE, MADV_COLLAPSE) == -1 && errno == EINVAL;
    munmap(memory, LENGTH);
    munmap(other, LENGTH);
    close(file);
    set(MACHINE, "always");
    return good;
}

// khugepaged makes small pages of a memfd a huge one, which the next access maps.
static bool it_is_collapsed_in_time(void) {
    set(MACHINE, "never");
    int file = new_memfd(LENGTH);
    char *memory = map_shared(file, LENGTH);
    touch(memory, HUGE, 7);
    bool good = mapped_huge(memory) == 0;
    char sleep[16];
    if (!read_line(THP "khugepaged/scan_sleep_millisecs", sleep, sizeof sleep))
        die("khugepaged/scan_sleep_millisecs");
    set(MACHINE, "always");
    set(THP "khugepaged/scan_sleep_millisecs", "10");
    for (int tries = 0; tries < 3000 && mapped_huge(memory) < HUGE; tries++) {
        usleep(10000);
        *(volatile uint64_t *)(memory + PAGE) = PAGE + 7;
    }
    set(THP "khugepaged/scan_sleep_millisecs", sleep);
    good &= mapped_huge(memory) == HUGE && holds_pattern(memory, 0, HUGE);
    munmap(memory, LENGTH);
    close(file);
    return good;
}

int main(void) {
    static const struct rule settings[] = {
        {"the machine's setting", settings_of_the_machine},
        {"a size's setting", settings_of_the_size},
        {"a file system's setting", settings_of_a_file_system},
    };
    static const struct rule parts[] = {
        {"a part is unmapped", a_part_is_unmapped},
        {"a hole is punched", a_hole_is_punched},
        {"a private copy is a page", a_private_copy_is_a_page},
        {"it is moved and inherited", it_is_moved_and_inherited},
        {"it is paged out", it_is_paged_out},
        {"it is collapsed", it_is_collapsed},
        {"it is collapsed in time", it_is_collapsed_in_time},
        {"a segment of System V", a_segment_of_system_v},
    };
    int broken = check_rules(settings, sizeof settings / sizeof *settings);
    set(MACHINE, "always");
    broken |= check_rules(parts, sizeof parts / sizeof *parts);
    set(MACHINE, "never");
    return broken;
}
