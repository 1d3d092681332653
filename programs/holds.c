// holds [OPERATION]: the longest sections that are not preemptible, for each operation on memory at
// its worst size. Needs a reference kernel that records them (feature `holds`), in a machine whose
// clock counts instructions, with 3 GiB of memory and 1 GiB of swap, as root: `vellum bench holds`
// provides these, and names the recorded calls.
//
// Prints an operation's name, then the kernel's report: the longest section of each kind, and the
// calls at its end.
#include "folios.h"
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>

#ifndef MADV_PAGEOUT
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define LONGEST "/sys/kernel/mm/holds"
#define GROUP "/sys/fs/cgroup/holds/"

static const size_t MIB = 1 << 20, GIB = 1 << 30;
enum { LARGEST = 13 };

// Reports only operations whose names begin with this; all are run.
static const char *wanted = "";
// The layout of the memory under test, as a suffix of the operation's name.
static const char *folio;

static void start_recording(void) {
    if (!write_line(LONGEST, "forget"))
        die("%s: is this a kernel with the feature `holds`?", LONGEST);
}

static void report(const char *operation) {
    static char text[8192];
    int file = open(LONGEST, O_RDONLY | O_CLOEXEC);
    ssize_t length = read(file, text, sizeof text - 1);
    if (length <= 0)
        die("%s can't be read", LONGEST);
    close(file);
    text[length] = 0;
    if (strncmp(operation, wanted, strlen(wanted)))
        return;
    printf("operation %s%s%s\n%s", operation, *folio ? ", " : "", folio, text);
    fflush(stdout);
}

// Has faults allocate folios of this order only, up to 32 MiB.
static void choose_order(int order) {
    choose(order < SIZES ? order : 0);
    if (!write_line(setting(LARGEST), order == LARGEST ? "always" : "never"))
        die("%s can't be written", setting(LARGEST));
}

// Maps memory aligned to 32 MiB, with unmapped space on both sides.
static char *map(size_t length) {
    const size_t align = PAGE << LARGEST;
    char *memory = mmap(NULL, length + 2 * align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    char *aligned = (char *)(((uintptr_t)memory + align) & ~((uintptr_t)align - 1));
    if (mprotect(aligned, length, PROT_READ | PROT_WRITE))
        die("mprotect");
    return aligned;
}

// A layout of the memory that operations are measured on.
struct layout {
    const char *name;
    size_t length;
    int order;
    // Mapped by PTEs of the lowest level.
    bool split;
    // No two neighbouring pages are in neighbouring frames.
    bool scattered;
};

static const struct layout LAYOUTS[] = {
    {"contiguous 4 KiB pages", 128 << 20, 0, false, false},
    {"scattered 4 KiB pages", 128 << 20, 0, false, true},
    {"64 KiB folios", 128 << 20, 4, false, false},
    {"2 MiB folios by PTEs", 256 << 20, 9, true, false},
    {"2 MiB folios", 1 << 30, 9, false, false},
    {"32 MiB folios", 1 << 30, LARGEST, false, false},
};

static char *make(const struct layout *layout) {
    choose_order(layout->order);
    char *memory = map(layout->length);
    if (layout->scattered) {
        // Every second frame is freed again.
        char *other = map(layout->length);
        for (size_t at = 0; at < layout->length; at += PAGE)
            memory[at] = other[at] = 1;
        munmap(other, layout->length);
    } else {
        touch(memory, layout->length, 1);
    }
    split = layout->split;
    split_entries(memory, layout->length);
    split = false;
    return memory;
}

static void check(int failed, const char *what) {
    if (failed)
        die("%s", what);
}

// Forks a child that waits until it is killed.
static pid_t child(void) {
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (!pid) {
        pause();
        _exit(0);
    }
    return pid;
}

static void end_child(pid_t pid) {
    int status;
    kill(pid, SIGKILL);
    if (waitpid(pid, &status, 0) != pid)
        die("waitpid");
}

static void advise(const struct layout *layout, int advice, const char *name) {
    char *memory = make(layout);
    start_recording();
    int failed = madvise(memory, layout->length, advice);
    report(name);
    check(failed && advice != MADV_COLLAPSE, name);
    munmap(memory, layout->length);
}

static void measure(const struct layout *layout) {
    folio = layout->name;
    size_t length = layout->length;
    choose_order(layout->order);
    char *memory = map(length);
    start_recording();
    *memory = 1;
    report("fault");
    munmap(memory, length);

    memory = map(length);
    start_recording();
    *(volatile char *)memory;
    report("read fault");
    start_recording();
    *memory = 1;
    report("write fault on a zero page");
    munmap(memory, length);

    memory = map(length);
    start_recording();
    check(madvise(memory, length, MADV_POPULATE_WRITE), "MADV_POPULATE_WRITE");
    report("MADV_POPULATE_WRITE");
    munmap(memory, length);

    memory = make(layout);
    start_recording();
    munmap(memory, length);
    report("munmap");

    memory = make(layout);
    start_recording();
    munmap(memory, length / 2 + PAGE);
    report("munmap of a part");
    munmap(memory, length);

    memory = make(layout);
    start_recording();
    check(mprotect(memory, length, PROT_READ), "mprotect");
    report("mprotect to read");
    start_recording();
    check(mprotect(memory, length, PROT_READ | PROT_WRITE), "mprotect");
    report("mprotect to write");
    start_recording();
    check(mprotect(memory + PAGE, PAGE, PROT_READ), "mprotect");
    report("mprotect of a page");
    munmap(memory, length);

    memory = make(layout);
    char *to = map(length + (PAGE << LARGEST));
    start_recording();
    check(mremap(memory, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to, "mremap");
    report("mremap");
    start_recording();
    check(mremap(to, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, memory + PAGE) != memory + PAGE, "mremap");
    report("mremap, by a page more");
    munmap(memory + PAGE, length);

    memory = make(layout);
    start_recording();
    pid_t pid = child();
    report("fork");
    start_recording();
    *memory = 2;
    report("write to memory shared with a child");
    start_recording();
    munmap(memory, length);
    report("munmap of memory shared with a child");
    start_recording();
    end_child(pid);
    report("exit");

    memory = make(layout);
    end_child(child());
    start_recording();
    *memory = 2;
    report("write to memory that a child shared");
    munmap(memory, length);

    advise(layout, MADV_DONTNEED, "MADV_DONTNEED");
    advise(layout, MADV_FREE, "MADV_FREE");
    advise(layout, MADV_COLD, "MADV_COLD");
    advise(layout, MADV_COLLAPSE, "MADV_COLLAPSE");

    memory = make(layout);
    start_recording();
    check(mlock(memory, length), "mlock");
    report("mlock");
    start_recording();
    check(munlock(memory, length), "munlock");
    report("munlock");
    start_recording();
    pages_present(memory, length);
    report("/proc/self/pagemap");
    munmap(memory, length);

    memory = make(layout);
    start_recording();
    check(madvise(memory, length, MADV_PAGEOUT), "MADV_PAGEOUT");
    report("MADV_PAGEOUT");
    start_recording();
    *(volatile char *)memory;
    report("read of swapped-out memory");
    start_recording();
    memory[(size_t)4 << 20] = 1;
    report("write to swapped-out memory");
    start_recording();
    pid = child();
    report("fork of swapped-out memory");
    end_child(pid);
    start_recording();
    munmap(memory, length);
    report("munmap of swapped-out memory");

    memory = make(layout);
    check(madvise(memory, length, MADV_PAGEOUT), "MADV_PAGEOUT");
    start_recording();
    madvise(memory, length, MADV_COLLAPSE);
    report("MADV_COLLAPSE of swapped-out memory");
    munmap(memory, length);
}

// Measures reclaim, which takes the folios of the memcg that were not used lately.
static void measure_reclaim(const struct layout *layout) {
    folio = layout->name;
    char *memory = make(layout);
    start_recording();
    check(!write_line(GROUP "memory.reclaim", "96M"), "memory.reclaim");
    report("memory.reclaim");
    munmap(memory, layout->length);

    memory = make(layout);
    check(madvise(memory, layout->length, MADV_FREE), "MADV_FREE");
    start_recording();
    check(!write_line(GROUP "memory.reclaim", "96M"), "memory.reclaim");
    report("memory.reclaim of lazyfree memory");
    munmap(memory, layout->length);
}

// Measures operations on folios that many processes share.
static void measure_shared(const struct layout *layout) {
    enum { CHILDREN = 300 };
    static pid_t pids[CHILDREN];
    static char name[64];
    snprintf(name, sizeof name, "%s, shared by %d processes", layout->name, CHILDREN);
    folio = name;
    struct layout one = *layout;
    one.length = layout->order == LARGEST ? 32 * MIB : 2 * MIB;
    char *memory = make(&one);
    for (int i = 0; i < CHILDREN - 1; i++)
        pids[i] = child();
    start_recording();
    pids[CHILDREN - 1] = child();
    report("fork");
    start_recording();
    check(madvise(memory, one.length, MADV_PAGEOUT), "MADV_PAGEOUT");
    report("MADV_PAGEOUT");
    start_recording();
    write_line(GROUP "memory.reclaim", "32M");
    report("memory.reclaim");
    start_recording();
    *memory = 1;
    report("write");
    start_recording();
    munmap(memory, one.length);
    report("munmap");
    start_recording();
    for (int i = 0; i < CHILDREN; i++)
        end_child(pids[i]);
    report("exit of all");
}

// Measures files in memory.
static void measure_files(void) {
    const size_t length = 256 * MIB;
    folio = "256 MiB";
    choose_order(0);
    int file = memfd_create("holds", 0);
    check(file < 0 || ftruncate(file, (off_t)length), "memfd");
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check(memory == MAP_FAILED, "mmap");
    start_recording();
    *memory = 1;
    report("fault on a file");
    static char buffer[4 << 20];
    start_recording();
    check(pwrite(file, buffer, sizeof buffer, 0) != sizeof buffer, "pwrite");
    report("write of 4 MiB to a file");
    start_recording();
    check(pread(file, buffer, sizeof buffer, 0) != sizeof buffer, "pread");
    report("read of 4 MiB from a file");
    start_recording();
    check(madvise(memory, length, MADV_POPULATE_WRITE), "MADV_POPULATE_WRITE");
    report("MADV_POPULATE_WRITE of a file");
    start_recording();
    pid_t pid = child();
    report("fork with a file");
    end_child(pid);
    start_recording();
    check(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)length / 2), "fallocate");
    report("hole punching of half a file");
    start_recording();
    check(madvise(memory, length, MADV_POPULATE_WRITE), "MADV_POPULATE_WRITE");
    check(madvise(memory, length, MADV_PAGEOUT), "MADV_PAGEOUT");
    report("MADV_PAGEOUT of a file");
    start_recording();
    write_line(GROUP "memory.reclaim", "64M");
    report("memory.reclaim of a file");
    start_recording();
    *(volatile char *)memory;
    report("read of a swapped-out file");
    start_recording();
    check(ftruncate(file, 0), "ftruncate");
    report("ftruncate of a swapped-out file");
    check(ftruncate(file, (off_t)length) || madvise(memory, length, MADV_POPULATE_WRITE), "MADV_POPULATE_WRITE");
    start_recording();
    check(ftruncate(file, 0), "ftruncate");
    report("ftruncate");
    check(ftruncate(file, (off_t)length) || madvise(memory, length, MADV_POPULATE_WRITE), "MADV_POPULATE_WRITE");
    start_recording();
    munmap(memory, length);
    report("munmap of a file");
    start_recording();
    close(file);
    report("close of the last descriptor of a file");
    // A private mapping, half of it copied.
    file = memfd_create("holds", 0);
    check(file < 0 || ftruncate(file, (off_t)length) || fallocate(file, 0, 0, (off_t)length), "memfd");
    memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    check(memory == MAP_FAILED || madvise(memory, length / 2, MADV_POPULATE_WRITE), "mmap");
    start_recording();
    check(ftruncate(file, 0), "ftruncate");
    report("ftruncate of a file with private copies");
    start_recording();
    munmap(memory, length);
    report("munmap of private copies");
    close(file);
}

// Measures almost as many VMAs as the limit allows.
static void measure_vmas(void) {
    enum { VMAS = 32000 };
    folio = "32000 VMAs";
    choose_order(0);
    char *memory = map((size_t)2 * VMAS * PAGE);
    for (size_t i = 0; i < VMAS; i++) {
        memory[2 * i * PAGE] = 1;
        check(mprotect(memory + 2 * i * PAGE, PAGE, PROT_READ), "mprotect");
    }
    start_recording();
    pid_t pid = child();
    report("fork");
    start_recording();
    end_child(pid);
    report("exit");
    start_recording();
    check(mprotect(memory, (size_t)2 * VMAS * PAGE, PROT_READ), "mprotect");
    report("mprotect");
    start_recording();
    munmap(memory, (size_t)2 * VMAS * PAGE);
    report("munmap");
}

// Measures page tables: one page in each 2 MiB.
static void measure_tables(void) {
    folio = "8 GiB with a page in each 2 MiB";
    choose_order(0);
    const size_t length = 8 * GIB;
    char *memory = map(length);
    for (size_t at = 0; at < length; at += HUGE)
        memory[at] = 1;
    start_recording();
    pid_t pid = child();
    report("fork");
    end_child(pid);
    start_recording();
    check(mprotect(memory, length, PROT_READ), "mprotect");
    report("mprotect");
    char *to = map(length);
    start_recording();
    check(mremap(memory, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to, "mremap");
    report("mremap");
    start_recording();
    munmap(to, length);
    report("munmap");
}

int main(int argc, char **argv) {
    if (argc > 1)
        wanted = argv[1];
    save_settings();
    // khugepaged must not run meanwhile.
    check(!write_line(THP "khugepaged/scan_sleep_millisecs", "1000000000"), "khugepaged");
    check(mkdir(GROUP, 0755) || !write_line(GROUP "cgroup.procs", "0"), GROUP);
    folio = "";
    start_recording();
    report("nothing");
    for (size_t i = 0; i < sizeof LAYOUTS / sizeof *LAYOUTS; i++) {
        measure(&LAYOUTS[i]);
        measure_reclaim(&LAYOUTS[i]);
    }
    for (size_t i = 3; i < sizeof LAYOUTS / sizeof *LAYOUTS; i++)
        measure_shared(&LAYOUTS[i]);
    measure_files();
    measure_vmas();
    measure_tables();
    return 0;
}
