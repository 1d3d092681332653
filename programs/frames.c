// frames: what pagemap, kpageflags and kpagecount say of frames, and smaps of mappings, agrees with what was done to the memory. A
// row a rule; the status is 1 if one is broken. For root, with nobody else at work on the machine.
#include "folios.h"
#include <inttypes.h>
#include <linux/kernel-page-flags.h>
#include <sched.h>

#define BIT(number) (UINT64_C(1) << (number))

enum { PAGES = 64, FOLIO = 16, AT_ONCE = 4096 };

static const uint64_t present = BIT(63), alone = BIT(56), number = BIT(55) - 1;
static const uint64_t ours = BIT(KPF_ANON) | BIT(KPF_MMAP) | BIT(KPF_SWAPBACKED) | BIT(KPF_UPTODATE);
static const uint64_t large = BIT(KPF_COMPOUND_HEAD) | BIT(KPF_COMPOUND_TAIL) | BIT(KPF_THP);

static int open_file(const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        die("%s", path);
    return file;
}

static uint64_t entry_of(const char *path, uint64_t index) {
    int file = open_file(path);
    uint64_t entry;
    if (pread(file, &entry, sizeof entry, (off_t)(index * sizeof entry)) != sizeof entry)
        die("%s, %ju", path, (uintmax_t)index);
    close(file);
    return entry;
}

// Linux lists new pages some time later. Here they are by now, for pages of this CPU.
static void list(void) {
    char *memory = map_aligned(HUGE);
    touch(memory, PAGE, 1);
    madvise(memory, PAGE, MADV_COLD);
    munmap(memory, HUGE);
}

static uint64_t page(const char *at) {
    return entry_of("/proc/self/pagemap", (uintptr_t)at / PAGE);
}

static uint64_t frame(const char *at) {
    uint64_t entry = page(at);
    return entry & present ? entry & number : 0;
}

static uint64_t flags(uint64_t pfn) {
    return entry_of("/proc/kpageflags", pfn);
}

static uint64_t count(uint64_t pfn) {
    return entry_of("/proc/kpagecount", pfn);
}

static bool is(uint64_t pfn, uint64_t with, uint64_t without) {
    uint64_t bits = pfn ? flags(pfn) : 0;
    return pfn && (bits & with) == with && !(bits & without);
}

// The sum of a row of smaps, of mappings that begin in a range, in bytes; -1 if no mapping there has one.
static long smaps(const char *name, const char *from, size_t size) {
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[512];
    long sum = -1;
    bool inside = false;
    size_t length = strlen(name);
    while (file && fgets(line, sizeof line, file)) {
        uintptr_t start, end;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &start, &end) == 2)
            inside = start >= (uintptr_t)from && start < (uintptr_t)from + size;
        else if (inside && !strncmp(line, name, length) && line[length] == ':')
            sum = (sum < 0 ? 0 : sum) + atol(line + length + 1) * 1024;
    }
    if (file)
        fclose(file);
    return sum;
}

static bool pages_are_single(void) {
    choose(0);
    char *memory = map_aligned(HUGE);
    touch(memory, PAGES * PAGE, 1);
    list();
    bool good = !(page(memory + PAGES * PAGE) & present);
    for (int i = 0; i < PAGES; i++) {
        uint64_t pfn = frame(memory + i * PAGE);
        good &= is(pfn, ours | BIT(KPF_LRU), large | BIT(KPF_BUDDY) | BIT(KPF_NOPAGE) | BIT(KPF_UNEVICTABLE)) && count(pfn) == 1;
        for (int other = 0; other < i; other++)
            good &= pfn != frame(memory + other * PAGE);
    }
    munmap(memory, HUGE);
    return good;
}

// In folios of so many pages, each in one piece and in its place, and all of its pages say where in it they are.
static bool in_folios(const char *memory, size_t size, uint64_t pages) {
    bool good = true;
    list();
    for (size_t i = 0; i < size / PAGE; i++) {
        uint64_t pfn = frame(memory + i * PAGE), first = frame(memory + i / pages * pages * PAGE);
        bool head = i % pages == 0;
        good &= pfn == first + i % pages && first % pages == 0 && count(pfn) == 1;
        good &= is(pfn, BIT(KPF_THP) | BIT(head ? KPF_COMPOUND_HEAD : KPF_COMPOUND_TAIL), BIT(head ? KPF_COMPOUND_TAIL : KPF_COMPOUND_HEAD));
        good &= !head || is(pfn, ours | BIT(KPF_LRU), 0);
    }
    return good;
}

static bool folios_are_compound(void) {
    if (!choose(4))
        return false;
    char *memory = map_aligned(HUGE);
    touch(memory, PAGES * PAGE, 1);
    bool good = in_folios(memory, PAGES * PAGE, FOLIO);
    munmap(memory, HUGE);
    return good;
}

static bool huge_pages_are_compound(void) {
    if (!choose(9))
        return false;
    char *memory = map_aligned(2 * HUGE);
    touch(memory, 2 * HUGE, 1);
    bool good = in_folios(memory, 2 * HUGE, HUGE / PAGE) && smaps("AnonHugePages", memory, 2 * HUGE) == 2 * HUGE;
    munmap(memory, 2 * HUGE);
    return good;
}

// A kernel may have more than one page of them.
static bool zeros_are_nobodys(void) {
    choose(0);
    char *memory = map_aligned(HUGE);
    bool good = !*(volatile char *)memory && !*(volatile char *)(memory + PAGE);
    uint64_t zeros[2] = {frame(memory), frame(memory + PAGE)};
    for (int i = 0; i < 2; i++)
        good &= is(zeros[i], BIT(KPF_ZERO_PAGE), BIT(KPF_ANON) | BIT(KPF_LRU)) && count(zeros[i]) == 0;
    good &= !(page(memory) & alone);
    touch(memory, PAGE, 1);
    good &= frame(memory) != zeros[0] && is(frame(memory), ours, BIT(KPF_ZERO_PAGE)) && frame(memory + PAGE) == zeros[1];
    munmap(memory, HUGE);
    return good;
}

static bool files_are_not_anonymous(void) {
    int file = memfd_create("frames", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, PAGES * PAGE))
        die("memfd_create");
    char *one = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *other = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (one == MAP_FAILED || other == MAP_FAILED)
        die("mmap");
    touch(one, PAGES * PAGE, 1);
    bool good = true;
    for (int i = 0; i < PAGES; i++)
        good &= ((volatile uint64_t *)(other + i * PAGE))[0] == 1 + (uint64_t)i * PAGE;
    list();
    uint64_t shared = frame(one + PAGE);
    good &= is(shared, BIT(KPF_MMAP) | BIT(KPF_SWAPBACKED) | BIT(KPF_LRU), BIT(KPF_ANON)) && count(shared) == 2;
    good &= frame(other + PAGE) == shared && page(one + PAGE) & BIT(61) && !(page(one + PAGE) & alone);
    touch(other, 2 * PAGE, 2);
    good &= frame(other + PAGE) != shared && is(frame(other + PAGE), ours, 0) && !(page(other + PAGE) & BIT(61));
    good &= count(shared) == 1 && page(one + PAGE) & alone && page(other + PAGE) & alone;
    munmap(one, PAGES * PAGE);
    munmap(other, PAGES * PAGE);
    close(file);
    return good;
}

// What a mapping's share of its pages is, by the counts, in bytes.
static long shares(const char *memory, size_t size) {
    double sum = 0;
    for (size_t at = 0; at < size; at += PAGE)
        if (page(memory + at) & present)
            sum += (double)PAGE / (double)count(frame(memory + at));
    return (long)sum;
}

static bool counts_follow(int order) {
    if (!choose(order))
        return false;
    size_t size = PAGES * PAGE;
    char *memory = map_aligned(HUGE);
    int told[2], go[2];
    if (pipe(told) || pipe(go))
        die("pipe");
    touch(memory, size, 1);
    bool good = page(memory) & alone;
    uint64_t before_fork[PAGES];
    for (int i = 0; i < PAGES; i++)
        before_fork[i] = frame(memory + i * PAGE);
    char word = 0;
    pid_t child = fork();
    if (!child) {
        bool same = true;
        for (int i = 0; i < PAGES; i++)
            same &= frame(memory + i * PAGE) == before_fork[i] && count(before_fork[i]) == 2 && !(page(memory + i * PAGE) & alone);
        // Whole folios become its own.
        touch(memory, size / 2, 2);
        for (int i = 0; i < PAGES / 2; i++) {
            uint64_t pfn = frame(memory + i * PAGE);
            same &= pfn != before_fork[i] && (i % FOLIO || is(pfn, ours, 0)) && count(pfn) == 1 && page(memory + i * PAGE) & alone;
        }
        same &= labs(shares(memory, size) - smaps("Pss", memory, HUGE)) < PAGE && shares(memory, size) == (long)size * 3 / 4;
        if (write(told[1], &word, 1) != 1 || read(go[0], &word, 1) != 1)
            same = false;
        _exit(!same);
    }
    good &= read(told[0], &word, 1) == 1;
    for (int i = 0; i < PAGES; i++) {
        good &= frame(memory + i * PAGE) == before_fork[i] && count(before_fork[i]) == (i < PAGES / 2 ? 1 : 2);
        good &= !(page(memory + i * PAGE) & alone) == (i >= PAGES / 2);
    }
    good &= labs(shares(memory, size) - smaps("Pss", memory, HUGE)) < PAGE;
    int status = 1;
    good &= write(go[1], &word, 1) == 1 && waitpid(child, &status, 0) == child && !status;
    good &= count(before_fork[PAGES - 1]) == 1 && page(memory + (PAGES - 1) * PAGE) & alone;
    for (int end = 0; end < 2; end++)
        close(told[end]), close(go[end]);
    munmap(memory, HUGE);
    return good;
}

static bool pages_are_counted(void) {
    return counts_follow(0);
}

static bool folios_are_counted(void) {
    return counts_follow(4);
}

static bool locked_is_unevictable(void) {
    choose(0);
    char *memory = map_aligned(HUGE);
    bool good = !mlock(memory, PAGE);
    list();
    good &= is(frame(memory), ours | BIT(KPF_UNEVICTABLE), 0) && smaps("Locked", memory, HUGE) == PAGE;
    good &= !munlock(memory, PAGE) && smaps("Locked", memory, HUGE) <= 0;
    munmap(memory, HUGE);
    return good;
}

static bool unmapped_is_not_mapped(void) {
    choose(0);
    char *memory = map_aligned(HUGE);
    touch(memory, PAGES * PAGE, 1);
    uint64_t was[PAGES];
    for (int i = 0; i < PAGES; i++)
        was[i] = frame(memory + i * PAGE);
    munmap(memory, HUGE);
    int free = 0;
    for (int i = 0; i < PAGES; i++)
        free += count(was[i]) == 0 && !(flags(was[i]) & (BIT(KPF_ANON) | BIT(KPF_MMAP)));
    // Some may be somebody else's by now.
    return free >= PAGES / 2;
}

// How many of the machine's frames have this bit.
static long frames_with(int bit) {
    static uint64_t some[AT_ONCE];
    int file = open_file("/proc/kpageflags");
    long found = 0;
    for (ssize_t bytes; (bytes = read(file, some, sizeof some)) > 0;)
        for (size_t i = 0; i < (size_t)bytes / sizeof *some; i++)
            found += some[i] >> bit & 1;
    close(file);
    return found;
}

static bool tables_are_frames(void) {
    enum { TABLES = 200 };
    choose(0);
    char *memory = map_aligned((size_t)TABLES * HUGE);
    long first = frames_with(KPF_PGTABLE);
    for (int i = 0; i < TABLES; i++)
        touch(memory + (size_t)i * HUGE, PAGE, 1);
    long more = frames_with(KPF_PGTABLE) - first;
    munmap(memory, (size_t)TABLES * HUGE);
    return more >= TABLES - 4 && more < TABLES + 16;
}

// But for what comes and goes meanwhile.
static bool free_is_free(void) {
    long told = figure("/proc/vmstat", "nr_free_pages"), found = frames_with(KPF_BUDDY);
    return told > 0 && labs(told - found) < told / 100;
}

static bool files_end(void) {
    static const char *const paths[] = {"/proc/kpageflags", "/proc/kpagecount"};
    uint64_t entry[2];
    bool good = true;
    for (int i = 0; i < 2; i++) {
        int file = open_file(paths[i]);
        good &= pread(file, entry, sizeof entry, (off_t)1 << 50) == 0;
        good &= pread(file, entry, 8, 4) == -1 && errno == EINVAL;
        good &= pread(file, entry, 12, 0) == -1 && errno == EINVAL;
        close(file);
    }
    return good;
}

// Where the kernel says so at all.
static bool contiguous_is_told(void) {
    if (!choose(4))
        return false;
    char *memory = map_aligned(HUGE);
    touch(memory, HUGE, 1);
    const char *row = "Contiguous-64kB";
    long all = smaps(row, memory, HUGE), block = FOLIO * PAGE;
    bool good = all < 0 || all == HUGE;
    if (all > 0) {
        good &= !madvise(memory + 5 * PAGE, PAGE, MADV_DONTNEED) && smaps(row, memory, HUGE) == HUGE - block;
        good &= !mprotect(memory + 2 * block, block + PAGE, PROT_READ) && smaps(row, memory, HUGE) == HUGE - 2 * block;
        good &= !mprotect(memory + 2 * block, block + PAGE, PROT_READ | PROT_WRITE) && smaps(row, memory, HUGE) == HUGE - block;
    }
    munmap(memory, HUGE);
    return good;
}

static const struct rule rules[] = {
    {"small pages are pages", pages_are_single},
    {"folios are compound", folios_are_compound},
    {"huge pages are compound", huge_pages_are_compound},
    {"what was never written is nobody's", zeros_are_nobodys},
    {"a file's pages are not anonymous", files_are_not_anonymous},
    {"counts of pages follow fork and copies", pages_are_counted},
    {"counts of folios follow fork and copies", folios_are_counted},
    {"what is locked is unevictable", locked_is_unevictable},
    {"what is unmapped is nobody's", unmapped_is_not_mapped},
    {"page tables are frames", tables_are_frames},
    {"what is free is nobody's", free_is_free},
    {"the files end, and have whole entries", files_end},
    {"what is mapped contiguously is told", contiguous_is_told},
};

int main(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    if (sched_setaffinity(0, sizeof one, &one))
        die("sched_setaffinity");
    keep_settings();
    return check_rules(rules, sizeof rules / sizeof *rules);
}
