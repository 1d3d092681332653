// frames: pagemap, kpageflags, kpagecount and smaps agree with what was done to the memory. Prints
// a row for each rule; the status is 1 if one is broken. Needs root, and an otherwise idle machine.
#include "folios.h"
#include <inttypes.h>
#include <linux/kernel-page-flags.h>
#include <sched.h>

#define BIT(number) (UINT64_C(1) << (number))

enum { PAGES = 64, FOLIO = 16, AT_ONCE = 4096 };

static const uint64_t present = BIT(63), exclusive = BIT(56), number = BIT(55) - 1;
static const uint64_t anon_flags = BIT(KPF_ANON) | BIT(KPF_MMAP) | BIT(KPF_SWAPBACKED) | BIT(KPF_UPTODATE);
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

// Puts new pages of this CPU on the LRU lists, which Linux does lazily, by draining its per-CPU
// batch.
static void drain_lru_batch(void) {
    char *memory = map_aligned(HUGE);
    touch(memory, PAGE, 1);
    madvise(memory, PAGE, MADV_COLD);
    munmap(memory, HUGE);
}

static uint64_t pagemap_entry(const char *at) {
    return entry_of("/proc/self/pagemap", (uintptr_t)at / PAGE);
}

static uint64_t pfn_of(const char *at) {
    uint64_t entry = pagemap_entry(at);
    return entry & present ? entry & number : 0;
}

static uint64_t page_flags(uint64_t pfn) {
    return entry_of("/proc/kpageflags", pfn);
}

static uint64_t map_count(uint64_t pfn) {
    return entry_of("/proc/kpagecount", pfn);
}

static bool has_flags(uint64_t pfn, uint64_t with, uint64_t without) {
    uint64_t bits = pfn ? page_flags(pfn) : 0;
    return pfn && (bits & with) == with && !(bits & without);
}

// Returns the sum of an smaps row over the VMAs that begin in a range, in bytes, or -1 if no VMA
// there has the row.
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
    drain_lru_batch();
    bool good = !(pagemap_entry(memory + PAGES * PAGE) & present);
    for (int i = 0; i < PAGES; i++) {
        uint64_t pfn = pfn_of(memory + i * PAGE);
        good &= has_flags(pfn, anon_flags | BIT(KPF_LRU), large | BIT(KPF_BUDDY) | BIT(KPF_NOPAGE) | BIT(KPF_UNEVICTABLE)) && map_count(pfn) == 1;
        for (int other = 0; other < i; other++)
            good &= pfn != pfn_of(memory + other * PAGE);
    }
    munmap(memory, HUGE);
    return good;
}

// Checks that memory is in folios of `pages` pages: contiguous, naturally aligned, with the head
// and tail flags in place.
static bool in_folios(const char *memory, size_t size, uint64_t pages) {
    bool good = true;
    drain_lru_batch();
    for (size_t i = 0; i < size / PAGE; i++) {
        uint64_t pfn = pfn_of(memory + i * PAGE), first = pfn_of(memory + i / pages * pages * PAGE);
        bool head = i % pages == 0;
        good &= pfn == first + i % pages && first % pages == 0 && map_count(pfn) == 1;
        good &= has_flags(pfn, BIT(KPF_THP) | BIT(head ? KPF_COMPOUND_HEAD : KPF_COMPOUND_TAIL), BIT(head ? KPF_COMPOUND_TAIL : KPF_COMPOUND_HEAD));
        good &= !head || has_flags(pfn, anon_flags | BIT(KPF_LRU), 0);
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

// A kernel may have several zero pages.
static bool zero_pages_are_not_counted(void) {
    choose(0);
    char *memory = map_aligned(HUGE);
    bool good = !*(volatile char *)memory && !*(volatile char *)(memory + PAGE);
    uint64_t zeros[2] = {pfn_of(memory), pfn_of(memory + PAGE)};
    for (int i = 0; i < 2; i++)
        good &= has_flags(zeros[i], BIT(KPF_ZERO_PAGE), BIT(KPF_ANON) | BIT(KPF_LRU)) && map_count(zeros[i]) == 0;
    good &= !(pagemap_entry(memory) & exclusive);
    touch(memory, PAGE, 1);
    good &= pfn_of(memory) != zeros[0] && has_flags(pfn_of(memory), anon_flags, BIT(KPF_ZERO_PAGE)) && pfn_of(memory + PAGE) == zeros[1];
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
    drain_lru_batch();
    uint64_t shared = pfn_of(one + PAGE);
    good &= has_flags(shared, BIT(KPF_MMAP) | BIT(KPF_SWAPBACKED) | BIT(KPF_LRU), BIT(KPF_ANON)) && map_count(shared) == 2;
    good &= pfn_of(other + PAGE) == shared && pagemap_entry(one + PAGE) & BIT(61) && !(pagemap_entry(one + PAGE) & exclusive);
    touch(other, 2 * PAGE, 2);
    good &= pfn_of(other + PAGE) != shared && has_flags(pfn_of(other + PAGE), anon_flags, 0) && !(pagemap_entry(other + PAGE) & BIT(61));
    good &= map_count(shared) == 1 && pagemap_entry(one + PAGE) & exclusive && pagemap_entry(other + PAGE) & exclusive;
    munmap(one, PAGES * PAGE);
    munmap(other, PAGES * PAGE);
    close(file);
    return good;
}

// Returns the memory's proportional set size by the map counts, in bytes.
static long proportional_size(const char *memory, size_t size) {
    double sum = 0;
    for (size_t at = 0; at < size; at += PAGE)
        if (pagemap_entry(memory + at) & present)
            sum += (double)PAGE / (double)map_count(pfn_of(memory + at));
    return (long)sum;
}

static bool counts_follow_fork_and_copies(int order) {
    if (!choose(order))
        return false;
    size_t size = PAGES * PAGE;
    char *memory = map_aligned(HUGE);
    int ready[2], go[2];
    if (pipe(ready) || pipe(go))
        die("pipe");
    touch(memory, size, 1);
    bool good = pagemap_entry(memory) & exclusive;
    uint64_t before_fork[PAGES];
    for (int i = 0; i < PAGES; i++)
        before_fork[i] = pfn_of(memory + i * PAGE);
    char word = 0;
    pid_t child = fork();
    if (!child) {
        bool same = true;
        for (int i = 0; i < PAGES; i++)
            same &= pfn_of(memory + i * PAGE) == before_fork[i] && map_count(before_fork[i]) == 2 && !(pagemap_entry(memory + i * PAGE) & exclusive);
        // The child copies whole folios.
        touch(memory, size / 2, 2);
        for (int i = 0; i < PAGES / 2; i++) {
            uint64_t pfn = pfn_of(memory + i * PAGE);
            same &= pfn != before_fork[i] && (i % FOLIO || has_flags(pfn, anon_flags, 0)) && map_count(pfn) == 1 && pagemap_entry(memory + i * PAGE) & exclusive;
        }
        same &= labs(proportional_size(memory, size) - smaps("Pss", memory, HUGE)) < PAGE && proportional_size(memory, size) == (long)size * 3 / 4;
        if (write(ready[1], &word, 1) != 1 || read(go[0], &word, 1) != 1)
            same = false;
        _exit(!same);
    }
    good &= read(ready[0], &word, 1) == 1;
    for (int i = 0; i < PAGES; i++) {
        good &= pfn_of(memory + i * PAGE) == before_fork[i] && map_count(before_fork[i]) == (i < PAGES / 2 ? 1 : 2);
        good &= !(pagemap_entry(memory + i * PAGE) & exclusive) == (i >= PAGES / 2);
    }
    good &= labs(proportional_size(memory, size) - smaps("Pss", memory, HUGE)) < PAGE;
    int status = 1;
    good &= write(go[1], &word, 1) == 1 && waitpid(child, &status, 0) == child && !status;
    good &= map_count(before_fork[PAGES - 1]) == 1 && pagemap_entry(memory + (PAGES - 1) * PAGE) & exclusive;
    for (int end = 0; end < 2; end++)
        close(ready[end]), close(go[end]);
    munmap(memory, HUGE);
    return good;
}

static bool pages_are_counted(void) {
    return counts_follow_fork_and_copies(0);
}

static bool folios_are_counted(void) {
    return counts_follow_fork_and_copies(4);
}

static bool locked_is_unevictable(void) {
    choose(0);
    char *memory = map_aligned(HUGE);
    bool good = !mlock(memory, PAGE);
    drain_lru_batch();
    good &= has_flags(pfn_of(memory), anon_flags | BIT(KPF_UNEVICTABLE), 0) && smaps("Locked", memory, HUGE) == PAGE;
    good &= !munlock(memory, PAGE) && smaps("Locked", memory, HUGE) <= 0;
    munmap(memory, HUGE);
    return good;
}

static bool unmapped_is_not_mapped(void) {
    choose(0);
    char *memory = map_aligned(HUGE);
    touch(memory, PAGES * PAGE, 1);
    uint64_t pfns[PAGES];
    for (int i = 0; i < PAGES; i++)
        pfns[i] = pfn_of(memory + i * PAGE);
    munmap(memory, HUGE);
    int free = 0;
    for (int i = 0; i < PAGES; i++)
        free += map_count(pfns[i]) == 0 && !(page_flags(pfns[i]) & (BIT(KPF_ANON) | BIT(KPF_MMAP)));
    // Others may have allocated some of the frames since.
    return free >= PAGES / 2;
}

// Returns the number of frames of the machine that have a flag.
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
    long added = frames_with(KPF_PGTABLE) - first;
    munmap(memory, (size_t)TABLES * HUGE);
    return added >= TABLES - 4 && added < TABLES + 16;
}

// Free frames change a little between the two reads.
static bool free_frames_are_counted(void) {
    long reported = figure("/proc/vmstat", "nr_free_pages"), found = frames_with(KPF_BUDDY);
    return reported > 0 && labs(reported - found) < reported / 100;
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

// Checks the `Contiguous-64kB` row, where the kernel has one.
static bool contiguous_mappings_are_reported(void) {
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
    {"small pages are single frames", pages_are_single},
    {"folios are compound", folios_are_compound},
    {"huge pages are compound", huge_pages_are_compound},
    {"zero pages have no map count", zero_pages_are_not_counted},
    {"a file's pages are not anonymous", files_are_not_anonymous},
    {"map counts of pages follow fork and copies", pages_are_counted},
    {"map counts of folios follow fork and copies", folios_are_counted},
    {"locked pages are unevictable", locked_is_unevictable},
    {"unmapped frames are not mapped", unmapped_is_not_mapped},
    {"page tables are frames with their flag", tables_are_frames},
    {"free frames are counted as free", free_frames_are_counted},
    {"the files end, and are read by whole entries", files_end},
    {"smaps has the contiguous mappings", contiguous_mappings_are_reported},
};

int main(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    if (sched_setaffinity(0, sizeof one, &one))
        die("sched_setaffinity");
    save_settings();
    return check_rules(rules, sizeof rules / sizeof *rules);
}
