// Huge pages of the pool (hugetlb): private and shared mappings, memfds, segments and files of a
// hugetlbfs. Prints a row for each rule; the status is 1 if one is broken. The rules hold on Linux.
// As root; sets the size of the pool of 2 MiB pages, and restores it.
#include "common.h"
#include <setjmp.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 4U
#endif
#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif
#ifndef SHM_HUGETLB
#define SHM_HUGETLB 04000
#endif
enum { POOL = 6, RW = PROT_READ | PROT_WRITE, MAGIC = (int)0x958458f6 };

#define NR "/proc/sys/vm/nr_hugepages"
#define OVERCOMMIT "/proc/sys/vm/nr_overcommit_hugepages"

static sigjmp_buf trap;

static void on_signal(int signal) { siglongjmp(trap, signal); }

// Stores to an address. Returns the signal that this raises, or 0.
static int store(volatile char *at, char value) {
    int signal = sigsetjmp(trap, 1);
    if (!signal)
        *at = value;
    return signal;
}

static int load(volatile char *at) {
    int signal = sigsetjmp(trap, 1);
    if (!signal)
        (void)*at;
    return signal;
}

// Returns a number of a file whose line begins with a key; the first number without one.
static long number(const char *path, const char *key) {
    FILE *file = fopen(path, "re");
    char line[512];
    long found = -1;
    if (!file)
        return -1;
    while (found < 0 && fgets(line, sizeof line, file))
        if (!strncmp(line, key, strlen(key)))
            found = strtol(line + strlen(key), NULL, 10);
    fclose(file);
    return found;
}

static void set(const char *path, long value) {
    FILE *file = fopen(path, "we");
    if (!file || fprintf(file, "%ld\n", value) < 0 || fclose(file))
        die("%s", path);
}

// Returns true if the pool has these free and reserved pages.
static bool has(long free_pages, long reserved) {
    long found[2] = {number("/proc/meminfo", "HugePages_Free:"), number("/proc/meminfo", "HugePages_Rsvd:")};
    if (found[0] != free_pages || found[1] != reserved)
        fprintf(stderr, "free %ld, expected %ld; reserved %ld, expected %ld\n", found[0], free_pages, found[1], reserved);
    return found[0] == free_pages && found[1] == reserved;
}

static char *map(size_t pages, int flags) {
    errno = 0;
    return mmap(NULL, pages * HUGE, RW, flags | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
}

// Returns the result's error, or 0.
static int error_of(long result) { return result == -1 ? errno : 0; }

static int unmap(char *at, size_t length) { return error_of(munmap(at, length)); }

// Returns a number of smaps of the mapping that begins at an address.
static long smaps(const char *memory, const char *key) {
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[512], start[32];
    bool here = false;
    long found = -1;
    snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)memory);
    while (found < 0 && fgets(line, sizeof line, file)) {
        if (strchr(line, '-') && strspn(line, "0123456789abcdef") > 4)
            here = !strncmp(line, start, strlen(start));
        if (here && !strncmp(line, key, strlen(key)))
            found = strcmp(key, "VmFlags:") ? strtol(line + strlen(key), NULL, 10) : !!strstr(line, " ht ");
    }
    fclose(file);
    return found;
}

static bool mappings_reserve_pages(void) {
    char *large = map(POOL + 1, MAP_PRIVATE);
    bool good = large == MAP_FAILED && errno == ENOMEM && has(POOL, 0);
    char *memory = map(2, MAP_PRIVATE);
    good &= memory != MAP_FAILED && !((uintptr_t)memory % HUGE) && has(POOL, 2);
    good &= !store(memory + 5, 1) && has(POOL - 1, 1) && memory[4] == 0;
    good &= map(POOL - 1, MAP_SHARED) == MAP_FAILED && errno == ENOMEM;
    char *shared = map(2, MAP_SHARED);
    good &= shared != MAP_FAILED && has(POOL - 1, 3) && !load(shared) && has(POOL - 2, 2);
    return good & !unmap(memory, 2 * HUGE) && has(POOL - 1, 1) && !unmap(shared, 2 * HUGE) && has(POOL, 0);
}

static bool an_empty_pool_is_a_bus_error(void) {
    char *all = map(POOL - 1, MAP_PRIVATE), *more = map(2, MAP_PRIVATE | MAP_NORESERVE);
    bool good = all != MAP_FAILED && more != MAP_FAILED && has(POOL, POOL - 1);
    good &= !store(more, 1) && store(more + HUGE, 1) == SIGBUS && load(more + HUGE) == SIGBUS;
    good &= !store(all + (POOL - 2) * HUGE, 1);
    return good & !unmap(all, (POOL - 1) * HUGE) & !unmap(more, 2 * HUGE) & has(POOL, 0);
}

static bool pages_overcommit(void) {
    set(OVERCOMMIT, 2);
    char *memory = map(POOL + 1, MAP_PRIVATE);
    bool good = memory != MAP_FAILED && has(POOL + 1, POOL + 1);
    good &= number("/proc/meminfo", "HugePages_Surp:") == 1 && number(NR, "") == POOL;
    good &= map(2, MAP_PRIVATE) == MAP_FAILED && errno == ENOMEM;
    good &= !unmap(memory, (POOL + 1) * HUGE) && has(POOL, 0);
    set(OVERCOMMIT, 0);
    return good;
}

static bool a_child_copies_whole_pages(void) {
    char *memory = map(2, MAP_PRIVATE), *shared = map(1, MAP_SHARED);
    bool good = memory != MAP_FAILED && shared != MAP_FAILED;
    memset(memory, 'a', HUGE);
    pid_t child = fork();
    if (!child) {
        bool fine = memory[HUGE - 1] == 'a' && !store(memory, 'b') && memory[HUGE - 1] == 'a';
        fine &= !store(shared, 's') && !store(memory + HUGE, 'c');
        _exit(!fine);
    }
    int status = 1;
    good &= waitpid(child, &status, 0) == child && !status;
    good &= memory[0] == 'a' && shared[0] == 's' && memory[HUGE] == 0;
    good &= has(POOL - 3, 0);
    return good & !unmap(memory, 2 * HUGE) & !unmap(shared, HUGE) & has(POOL, 0);
}

static bool mappings_change_by_whole_pages(void) {
    char *memory = map(3, MAP_PRIVATE);
    bool good = memory != MAP_FAILED && !store(memory + HUGE, 1);
    good &= unmap(memory, PAGE) == EINVAL && unmap(memory + PAGE, HUGE - PAGE) == EINVAL;
    good &= error_of(mprotect(memory, PAGE, PROT_READ)) == EINVAL;
    good &= error_of(mprotect(memory + HUGE, HUGE, PROT_READ)) == 0 && store(memory + HUGE, 1) == SIGSEGV;
    good &= mmap(memory + PAGE, PAGE, RW, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL;
    good &= mmap(memory + PAGE, HUGE, RW, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0) == MAP_FAILED
        && errno == EINVAL;
    good &= mremap(memory, HUGE, 2 * HUGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL;
    good &= !mlock(memory, PAGE) && smaps(memory, "VmFlags:") == 1;
    good &= !unmap(memory, HUGE) && !unmap(memory + HUGE, 2 * HUGE) && has(POOL, 0);
    char *odd = mmap(NULL, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    good &= odd != MAP_FAILED && has(POOL, 1) && !store(odd + HUGE - 1, 1) && !unmap(odd, HUGE);
    return good && has(POOL, 0);
}

static bool advice_is_by_whole_pages(void) {
    char *memory = map(2, MAP_PRIVATE);
    bool good = memory != MAP_FAILED && !store(memory, 1) && !store(memory + HUGE, 2) && has(POOL - 2, 0);
    good &= error_of(madvise(memory, HUGE, MADV_FREE)) == EINVAL;
    good &= error_of(madvise(memory, HUGE, 20)) == EINVAL && error_of(madvise(memory, HUGE, 21)) == EINVAL;
    good &= error_of(madvise(memory + PAGE, HUGE, MADV_DONTNEED)) == EINVAL;
    good &= error_of(madvise(memory, HUGE - PAGE, MADV_DONTNEED)) == 0 && memory[0] == 1;
    good &= error_of(madvise(memory, HUGE + PAGE, MADV_DONTNEED)) == 0 && memory[HUGE] == 2 && has(POOL - 1, 1);
    good &= memory[0] == 0 && has(POOL - 2, 0);
    unsigned char resident[HUGE / PAGE];
    good &= !mincore(memory, HUGE, resident) && resident[0] == 1 && resident[HUGE / PAGE - 1] == 1;
    return good & !unmap(memory, 2 * HUGE) & has(POOL, 0);
}

static bool pages_are_shown(void) {
    char *memory = map(2, MAP_PRIVATE);
    bool good = memory != MAP_FAILED && !store(memory, 1);
    good &= smaps(memory, "Private_Hugetlb:") == HUGE >> 10 && smaps(memory, "Shared_Hugetlb:") == 0;
    good &= smaps(memory, "Rss:") == 0 && smaps(memory, "KernelPageSize:") == HUGE >> 10;
    good &= smaps(memory, "MMUPageSize:") == HUGE >> 10 && smaps(memory, "VmFlags:") == 1;
    good &= number("/proc/self/status", "HugetlbPages:") == HUGE >> 10;
    good &= number("/proc/meminfo", "HugePages_Total:") == POOL;
#define SYS "/sys/kernel/mm/hugepages/hugepages-2048kB/"
    good &= number(SYS "nr_hugepages", "") == POOL && number(SYS "free_hugepages", "") == POOL - 1;
    good &= number(SYS "resv_hugepages", "") == 1 && number(SYS "surplus_hugepages", "") == 0;
    return good & !unmap(memory, 2 * HUGE);
}

// What memfds and files of a hugetlbfs have in common. The file is empty.
static bool file_works(int file) {
    struct statfs in;
    char buffer[8] = "12345678";
    bool good = !fstatfs(file, &in) && (int)in.f_type == MAGIC && in.f_bsize == HUGE;
    good &= error_of(write(file, buffer, 8)) == EINVAL;
    good &= error_of(ftruncate(file, PAGE)) == EINVAL && !ftruncate(file, 3 * HUGE);
    good &= mmap(NULL, HUGE, RW, MAP_SHARED, file, PAGE) == MAP_FAILED && errno == EINVAL;
    char *memory = mmap(NULL, 3 * HUGE, RW, MAP_SHARED, file, 0);
    char *own = mmap(NULL, HUGE, RW, MAP_PRIVATE | MAP_NORESERVE, file, HUGE);
    good &= memory != MAP_FAILED && own != MAP_FAILED && has(POOL, 3);
    good &= !store(memory + HUGE, 'x') && own[0] == 'x' && !store(own, 'y') && memory[HUGE] == 'x' && own[0] == 'y';
    good &= pread(file, buffer, 8, HUGE) == 8 && buffer[0] == 'x' && buffer[1] == 0;
    good &= has(POOL - 2, 2);
    good &= !fallocate(file, 0, 0, 2 * HUGE) && has(POOL - 3, 1);
    good &= !fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, HUGE, HUGE) && has(POOL - 1, 1);
    good &= !madvise(memory, HUGE, MADV_REMOVE) && has(POOL, 1);
    good &= !ftruncate(file, HUGE) && has(POOL, 0) && load(memory + HUGE) == SIGBUS;
    return good & !unmap(memory, 3 * HUGE) & !unmap(own, HUGE);
}

static int memfd(unsigned flags) { return (int)syscall(SYS_memfd_create, "huge", MFD_HUGETLB | flags); }

// A mapping that may be written makes an empty file as long as itself.
static bool a_mapping_makes_room(int file) {
    struct stat status;
    char *seen = mmap(NULL, HUGE, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, file, 0);
    bool good = seen != MAP_FAILED && !fstat(file, &status) && status.st_size == 0;
    char *own = mmap(NULL, HUGE, RW, MAP_PRIVATE, file, HUGE);
    good &= own != MAP_FAILED && !fstat(file, &status) && status.st_size == 2 * HUGE;
    good = good && (own[0] = 'x') == own[0] && seen[0] == 0;
    return good & !unmap(seen, HUGE) & !unmap(own, HUGE);
}

static bool memfds_have_huge_pages(void) {
    int file = memfd(21U << MAP_HUGE_SHIFT);
    bool good = file >= 0 && a_mapping_makes_room(file) && !ftruncate(file, 0) && file_works(file);
    good &= !close(file) && has(POOL, 0);
    return good && memfd(20U << MAP_HUGE_SHIFT) == -1 && errno == ENODEV;
}

static bool a_hugetlbfs_has_huge_pages(void) {
    char folder[] = "/tmp/hugetlb.XXXXXX", name[64];
    if (!mkdtemp(folder))
        die("mkdtemp");
    bool good = error_of(mount("none", folder, "hugetlbfs", 0, "pagesize=4k")) == EINVAL;
    if (mount("none", folder, "hugetlbfs", 0, "mode=0700,uid=7,gid=8,pagesize=2M"))
        die("mount of a hugetlbfs");
    struct stat root;
    good &= !stat(folder, &root) && (root.st_mode & 07777) == 0700 && root.st_uid == 7 && root.st_gid == 8;
    snprintf(name, sizeof name, "%s/file", folder);
    int file = open(name, O_CREAT | O_RDWR, 0600);
    good &= file >= 0 && file_works(file);
    good &= !close(file) & !unlink(name);
    return good & !umount(folder) & !rmdir(folder) & has(POOL, 0);
}

static bool segments_have_huge_pages(void) {
    int large = shmget(IPC_PRIVATE, (POOL + 1) * HUGE, SHM_HUGETLB | IPC_CREAT | 0600);
    bool good = large == -1 && errno == ENOMEM;
    int segment = shmget(IPC_PRIVATE, 2 * HUGE, SHM_HUGETLB | IPC_CREAT | 0600);
    good &= segment >= 0 && has(POOL, 2);
    char *memory = shmat(segment, NULL, 0);
    good &= memory != (void *)-1 && !((uintptr_t)memory % HUGE) && !store(memory + HUGE, 7) && has(POOL - 1, 1);
    good &= !shmdt(memory) && has(POOL - 1, 1);
    return good & !shmctl(segment, IPC_RMID, NULL) & has(POOL, 0);
}

int main(void) {
    static const struct {
        const char *rule;
        bool (*holds)(void);
    } rules[] = {
        {"mappings reserve pages", mappings_reserve_pages},
        {"an empty pool is a bus error", an_empty_pool_is_a_bus_error},
        {"pages overcommit", pages_overcommit},
        {"a child copies whole pages", a_child_copies_whole_pages},
        {"mappings change by whole pages", mappings_change_by_whole_pages},
        {"advice is by whole pages", advice_is_by_whole_pages},
        {"pages are shown", pages_are_shown},
        {"memfds have huge pages", memfds_have_huge_pages},
        {"a hugetlbfs has huge pages", a_hugetlbfs_has_huge_pages},
        {"segments have huge pages", segments_have_huge_pages},
    };
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGSEGV, &action, NULL);
    long before = number(NR, ""), overcommit = number(OVERCOMMIT, "");
    set(NR, POOL);
    set(OVERCOMMIT, 0);
    if (number(NR, "") != POOL || !has(POOL, 0))
        die("there are no %d free huge pages", POOL);
    int broken = 0;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        errno = 0;
        bool good = rules[i].holds();
        printf("{\"rule\": \"%s\", \"holds\": %s}\n", rules[i].rule, good ? "true" : "false");
        broken |= !good;
    }
    set(NR, before);
    set(OVERCOMMIT, overcommit);
    if (number(NR, "") != before)
        die("the pool was not restored");
    return broken;
}
