// holds [OPERATION]: the longest stretches in which the processor could do nothing else, for each operation on memory at its worst
// size. For a reference kernel that records them (feature `holds`), in a machine whose clock counts instructions, with 3 GiB of
// memory and 1 GiB of swap, as root: `vellum bench holds` sees to all that, and names what it finds.
//
// An operation's name, then what the kernel says: of each kind of stretch how long the longest was, and the calls at its end.
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

// Only operations that begin so are measured; all are done.
static const char *wanted = "";
// What the memory at hand is made of.
static const char *folio;

static void begin(void) {
    if (!write_line(LONGEST, "forget"))
        die("%s: is this a kernel with the feature `holds`?", LONGEST);
}

static void end_of(const char *operation) {
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

// Has faults bring folios of this order, up to 32 MiB, and no others.
static void bring(int order) {
    choose(order < SIZES ? order : 0);
    if (!write_line(setting(LARGEST), order == LARGEST ? "always" : "never"))
        die("%s can't be written", setting(LARGEST));
}

// Memory that begins at a multiple of 32 MiB, with nothing behind or before it.
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

// How the memory is made that operations are measured on.
struct kind {
    const char *name;
    size_t length;
    int order;
    // Mapped by single entries.
    bool split;
    // No two neighbours are neighbours in memory.
    bool scattered;
};

static const struct kind KINDS[] = {
    {"4 KiB pages in rows", 128 << 20, 0, false, false},
    {"4 KiB pages in no order", 128 << 20, 0, false, true},
    {"64 KiB folios", 128 << 20, 4, false, false},
    {"2 MiB folios in pieces", 256 << 20, 9, true, false},
    {"2 MiB folios", 1 << 30, 9, false, false},
    {"32 MiB folios", 1 << 30, LARGEST, false, false},
};

static char *make(const struct kind *kind) {
    bring(kind->order);
    char *memory = map(kind->length);
    if (kind->scattered) {
        // Every second page goes again.
        char *other = map(kind->length);
        for (size_t at = 0; at < kind->length; at += PAGE)
            memory[at] = other[at] = 1;
        munmap(other, kind->length);
    } else {
        touch(memory, kind->length, 1);
    }
    split = kind->split;
    split_entries(memory, kind->length);
    split = false;
    return memory;
}

static void check(int failed, const char *what) {
    if (failed)
        die("%s", what);
}

// A child that is there until its end is waited for.
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

static void advise(const struct kind *kind, int advice, const char *name) {
    char *memory = make(kind);
    begin();
    int failed = madvise(memory, kind->length, advice);
    end_of(name);
    check(failed && advice != MADV_COLLAPSE, name);
    munmap(memory, kind->length);
}

static void measure(const struct kind *kind) {
    folio = kind->name;
    size_t length = kind->length;
    bring(kind->order);
    char *memory = map(length);
    begin();
    *memory = 1;
    end_of("fault");
    munmap(memory, length);

    memory = map(length);
    begin();
    *(volatile char *)memory;
    end_of("fault that reads");
    begin();
    *memory = 1;
    end_of("fault that writes zeros");
    munmap(memory, length);

    memory = map(length);
    begin();
    check(madvise(memory, length, MADV_POPULATE_WRITE), "MADV_POPULATE_WRITE");
    end_of("MADV_POPULATE_WRITE");
    munmap(memory, length);

    memory = make(kind);
    begin();
    munmap(memory, length);
    end_of("munmap");

    memory = make(kind);
    begin();
    munmap(memory, length / 2 + PAGE);
    end_of("munmap of a part");
    munmap(memory, length);

    memory = make(kind);
    begin();
    check(mprotect(memory, length, PROT_READ), "mprotect");
    end_of("mprotect to read");
    begin();
    check(mprotect(memory, length, PROT_READ | PROT_WRITE), "mprotect");
    end_of("mprotect to write");
    begin();
    check(mprotect(memory + PAGE, PAGE, PROT_READ), "mprotect");
    end_of("mprotect of a page");
    munmap(memory, length);

    memory = make(kind);
    char *to = map(length + (PAGE << LARGEST));
    begin();
    check(mremap(memory, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to, "mremap");
    end_of("mremap");
    begin();
    check(mremap(to, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, memory + PAGE) != memory + PAGE, "mremap");
    end_of("mremap, by a page more");
    munmap(memory + PAGE, length);

    memory = make(kind);
    begin();
    pid_t pid = child();
    end_of("fork");
    begin();
    *memory = 2;
    end_of("write to what a child has too");
    begin();
    munmap(memory, length);
    end_of("munmap of what a child has too");
    begin();
    end_child(pid);
    end_of("exit");

    memory = make(kind);
    end_child(child());
    begin();
    *memory = 2;
    end_of("write to what a child had");
    munmap(memory, length);

    advise(kind, MADV_DONTNEED, "MADV_DONTNEED");
    advise(kind, MADV_FREE, "MADV_FREE");
    advise(kind, MADV_COLD, "MADV_COLD");
    advise(kind, MADV_COLLAPSE, "MADV_COLLAPSE");

    memory = make(kind);
    begin();
    check(mlock(memory, length), "mlock");
    end_of("mlock");
    begin();
    check(munlock(memory, length), "munlock");
    end_of("munlock");
    begin();
    pages_present(memory, length);
    end_of("/proc/self/pagemap");
    munmap(memory, length);

    memory = make(kind);
    begin();
    check(madvise(memory, length, MADV_PAGEOUT), "MADV_PAGEOUT");
    end_of("MADV_PAGEOUT");
    begin();
    *(volatile char *)memory;
    end_of("read of what was swapped out");
    begin();
    memory[(size_t)4 << 20] = 1;
    end_of("write to what was swapped out");
    begin();
    pid = child();
    end_of("fork of what was swapped out");
    end_child(pid);
    begin();
    munmap(memory, length);
    end_of("munmap of what was swapped out");

    memory = make(kind);
    check(madvise(memory, length, MADV_PAGEOUT), "MADV_PAGEOUT");
    begin();
    madvise(memory, length, MADV_COLLAPSE);
    end_of("MADV_COLLAPSE of what was swapped out");
    munmap(memory, length);
}

// With a group of its own, the folios that nobody has used for a while go.
static void reclaim(const struct kind *kind) {
    folio = kind->name;
    char *memory = make(kind);
    begin();
    check(!write_line(GROUP "memory.reclaim", "96M"), "memory.reclaim");
    end_of("memory.reclaim");
    munmap(memory, kind->length);

    memory = make(kind);
    check(madvise(memory, kind->length, MADV_FREE), "MADV_FREE");
    begin();
    check(!write_line(GROUP "memory.reclaim", "96M"), "memory.reclaim");
    end_of("memory.reclaim of lazily freed memory");
    munmap(memory, kind->length);
}

// What many processes have.
static void share(const struct kind *kind) {
    enum { CHILDREN = 300 };
    static pid_t pids[CHILDREN];
    static char name[64];
    snprintf(name, sizeof name, "%s, one piece in %d processes", kind->name, CHILDREN);
    folio = name;
    struct kind one = *kind;
    one.length = kind->order == LARGEST ? 32 * MIB : 2 * MIB;
    char *memory = make(&one);
    for (int i = 0; i < CHILDREN - 1; i++)
        pids[i] = child();
    begin();
    pids[CHILDREN - 1] = child();
    end_of("fork");
    begin();
    check(madvise(memory, one.length, MADV_PAGEOUT), "MADV_PAGEOUT");
    end_of("MADV_PAGEOUT");
    begin();
    write_line(GROUP "memory.reclaim", "32M");
    end_of("memory.reclaim");
    begin();
    *memory = 1;
    end_of("write");
    begin();
    munmap(memory, one.length);
    end_of("munmap");
    begin();
    for (int i = 0; i < CHILDREN; i++)
        end_child(pids[i]);
    end_of("exit of all");
}

// Files in memory.
static void files(void) {
    const size_t length = 256 * MIB;
    folio = "256 MiB";
    bring(0);
    int file = memfd_create("holds", 0);
    check(file < 0 || ftruncate(file, (off_t)length), "memfd");
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check(memory == MAP_FAILED, "mmap");
    begin();
    *memory = 1;
    end_of("fault on a file");
    static char some[4 << 20];
    begin();
    check(pwrite(file, some, sizeof some, 0) != sizeof some, "pwrite");
    end_of("write of 4 MiB to a file");
    begin();
    check(pread(file, some, sizeof some, 0) != sizeof some, "pread");
    end_of("read of 4 MiB from a file");
    begin();
    check(madvise(memory, length, MADV_POPULATE_WRITE), "MADV_POPULATE_WRITE");
    end_of("MADV_POPULATE_WRITE of a file");
    begin();
    pid_t pid = child();
    end_of("fork with a file");
    end_child(pid);
    begin();
    check(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)length / 2), "fallocate");
    end_of("hole of a half in a file");
    begin();
    check(madvise(memory, length, MADV_POPULATE_WRITE), "MADV_POPULATE_WRITE");
    check(madvise(memory, length, MADV_PAGEOUT), "MADV_PAGEOUT");
    end_of("MADV_PAGEOUT of a file");
    begin();
    write_line(GROUP "memory.reclaim", "64M");
    end_of("memory.reclaim of a file");
    begin();
    *(volatile char *)memory;
    end_of("read of a swapped out file");
    begin();
    check(ftruncate(file, 0), "ftruncate");
    end_of("ftruncate of a swapped out file");
    check(ftruncate(file, (off_t)length) || madvise(memory, length, MADV_POPULATE_WRITE), "MADV_POPULATE_WRITE");
    begin();
    check(ftruncate(file, 0), "ftruncate");
    end_of("ftruncate");
    check(ftruncate(file, (off_t)length) || madvise(memory, length, MADV_POPULATE_WRITE), "MADV_POPULATE_WRITE");
    begin();
    munmap(memory, length);
    end_of("munmap of a file");
    begin();
    close(file);
    end_of("close of the last descriptor of a file");
    // A private mapping, with copies and without.
    file = memfd_create("holds", 0);
    check(file < 0 || ftruncate(file, (off_t)length) || fallocate(file, 0, 0, (off_t)length), "memfd");
    memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    check(memory == MAP_FAILED || madvise(memory, length / 2, MADV_POPULATE_WRITE), "mmap");
    begin();
    check(ftruncate(file, 0), "ftruncate");
    end_of("ftruncate of a file with private copies");
    begin();
    munmap(memory, length);
    end_of("munmap of private copies");
    close(file);
}

// As many areas as there may be, but for some.
static void areas(void) {
    enum { AREAS = 32000 };
    folio = "32000 areas";
    bring(0);
    char *memory = map((size_t)2 * AREAS * PAGE);
    for (size_t i = 0; i < AREAS; i++) {
        memory[2 * i * PAGE] = 1;
        check(mprotect(memory + 2 * i * PAGE, PAGE, PROT_READ), "mprotect");
    }
    begin();
    pid_t pid = child();
    end_of("fork");
    begin();
    end_child(pid);
    end_of("exit");
    begin();
    check(mprotect(memory, (size_t)2 * AREAS * PAGE, PROT_READ), "mprotect");
    end_of("mprotect");
    begin();
    munmap(memory, (size_t)2 * AREAS * PAGE);
    end_of("munmap");
}

// Nothing but tables: a page in each of many stretches of 2 MiB.
static void tables(void) {
    folio = "8 GiB with a page in each 2 MiB";
    bring(0);
    const size_t length = 8 * GIB;
    char *memory = map(length);
    for (size_t at = 0; at < length; at += HUGE)
        memory[at] = 1;
    begin();
    pid_t pid = child();
    end_of("fork");
    end_child(pid);
    begin();
    check(mprotect(memory, length, PROT_READ), "mprotect");
    end_of("mprotect");
    char *to = map(length);
    begin();
    check(mremap(memory, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to, "mremap");
    end_of("mremap");
    begin();
    munmap(to, length);
    end_of("munmap");
}

int main(int argc, char **argv) {
    if (argc > 1)
        wanted = argv[1];
    keep_settings();
    // The kernel's own task would do as it likes.
    check(!write_line(THP "khugepaged/scan_sleep_millisecs", "1000000000"), "khugepaged");
    check(mkdir(GROUP, 0755) || !write_line(GROUP "cgroup.procs", "0"), GROUP);
    folio = "";
    begin();
    end_of("nothing");
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        measure(&KINDS[i]);
        reclaim(&KINDS[i]);
    }
    for (size_t i = 3; i < sizeof KINDS / sizeof *KINDS; i++)
        share(&KINDS[i]);
    files();
    areas();
    tables();
    return 0;
}
