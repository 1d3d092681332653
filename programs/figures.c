// figures: what /proc, /sys and cgroups report of memory agrees with itself and with what was done.
// Prints a row for each rule; the status is 1 if one is broken. Counts that a kernel keeps per CPU
// may lag a little.
#include "common.h"
#include <inttypes.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { LAG = 1024, MIB = 1024 }; // KiB

// Sums an smaps row over the VMAs that overlap a range, or, without a name, the VMAs' sizes. Counts
// the VMAs.
static long mappings(const char *path, const char *name, uintptr_t from, uintptr_t to, long *count) {
    FILE *file = fopen(path, "re");
    char line[512];
    long sum = 0;
    bool inside = false;
    *count = 0;
    while (file && fgets(line, sizeof line, file)) {
        uintptr_t start, end;
        char rights[5];
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &start, &end, rights) == 3) {
            // The vsyscall page belongs to no process, and lies above the user addresses.
            inside = start < to && end > from && end <= (uintptr_t)1 << 56;
            *count += inside;
            sum += inside && !name ? (long)((end - start) / 1024) : 0;
        } else if (inside && name && !strncmp(line, name, strlen(name)) && line[strlen(name)] == ':') {
            sum += atol(line + strlen(name) + 1);
        }
    }
    if (file)
        fclose(file);
    return sum;
}

static long smaps(const char *name, const void *from, size_t size) {
    long count;
    return mappings("/proc/self/smaps", name, (uintptr_t)from, (uintptr_t)from + size, &count);
}

static bool near(long one, long other, long difference) {
    return one >= 0 && other >= 0 && labs(one - other) <= difference;
}

static char *map(size_t size, int flags) {
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    return memory;
}

static bool vmas_add_up(void) {
    static const char *const rows[] = {"Rss",           "Pss",        "Shared_Clean", "Shared_Dirty", "Private_Clean",
                                       "Private_Dirty", "Referenced", "Anonymous",    "Swap",         "Locked"};
    bool good = true;
    // The first round maps the pages of code and data that the second one uses.
    for (int round = 0; round < 2; round++) {
        good = true;
        for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
            long count, parts = mappings("/proc/self/smaps", rows[row], 0, UINTPTR_MAX, &count);
            // Each VMA's share is rounded down to whole KiB.
            good &= near(parts, figure("/proc/self/smaps_rollup", rows[row]), count);
        }
    }
    return good;
}

static bool kinds_of_pages_add_up(void) {
    const char *rollup = "/proc/self/smaps_rollup";
    long rss = figure(rollup, "Rss"), kinds = 0;
    kinds += figure(rollup, "Shared_Clean") + figure(rollup, "Shared_Dirty");
    kinds += figure(rollup, "Private_Clean") + figure(rollup, "Private_Dirty");
    long parts = figure(rollup, "Pss_Anon") + figure(rollup, "Pss_File") + figure(rollup, "Pss_Shmem");
    return near(rss, kinds, 0) && near(figure(rollup, "Pss"), parts, 3) && figure(rollup, "Pss") <= rss;
}

static bool all_files_agree(void) {
    const char *status = "/proc/self/status";
    long count, size = mappings("/proc/self/maps", NULL, 0, UINTPTR_MAX, &count);
    bool good = near(size, smaps("Size", NULL, UINTPTR_MAX), 0) && near(size, figure(status, "VmSize"), 0);
    long rss = figure(status, "VmRSS"), pages, resident;
    good &= rss == figure(status, "RssAnon") + figure(status, "RssFile") + figure(status, "RssShmem");
    good &= figure(status, "VmHWM") >= rss && figure(status, "VmPeak") >= size;
    good &= near(rss, figure("/proc/self/smaps_rollup", "Rss"), LAG);
    FILE *file = fopen("/proc/self/statm", "re");
    good &= file && fscanf(file, "%ld %ld", &pages, &resident) == 2;
    if (file)
        fclose(file);
    good &= near(pages * 4, size, 0) && near(resident * 4, rss, LAG);
    char line[1024];
    if (!read_line("/proc/self/stat", line, sizeof line))
        return false;
    // After the name, the sizes are the 21st and 22nd fields.
    char *word = strrchr(line, ')'), *rest = NULL;
    word = word ? strtok_r(word, " ", &rest) : NULL;
    for (int skipped = 0; word && skipped < 21; skipped++)
        word = strtok_r(NULL, " ", &rest);
    good &= word && near(atol(word) / 1024, size, 0);
    word = word ? strtok_r(NULL, " ", &rest) : NULL;
    return good && word && near(atol(word) * 4, rss, LAG);
}

static bool touched_pages_are_resident(void) {
    size_t size = 8 * HUGE, half = size / 2;
    char *memory = map_aligned(size);
    madvise(memory, size, MADV_NOHUGEPAGE);
    touch(memory, half, 1);
    bool good = smaps("Rss", memory, size) == (long)half / 1024 && smaps("Anonymous", memory, size) == (long)half / 1024;
    int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    size_t present = 0;
    uint64_t entries[512];
    for (size_t at = 0; at < size / PAGE; at += 512) {
        off_t offset = (off_t)(((uintptr_t)memory / PAGE + at) * 8);
        good &= pread(file, entries, sizeof entries, offset) == sizeof entries;
        for (size_t i = 0; i < 512; i++) {
            present += entries[i] >> 63;
            good &= entries[i] >> 63 == (at + i < half / PAGE);
        }
    }
    close(file);
    good &= present == half / PAGE;
    munmap(memory, size);
    return good && smaps("Rss", memory, size) == 0;
}

static bool shared_pages_count_half(void) {
    size_t size = 4 * HUGE;
    char *memory = map_aligned(size);
    touch(memory, size, 1);
    long alone = smaps("Pss", memory, size);
    int ready[2], go[2];
    if (pipe(ready) || pipe(go))
        die("pipe");
    char byte = 0;
    pid_t child = fork();
    if (!child) {
        long share = smaps("Pss", memory, size);
        // The child copies a half.
        touch(memory, size / 2, 2);
        long own = smaps("Pss", memory, size);
        bool good = near(share, (long)size / 2048, 8) && near(own, (long)size / 4096 * 3, 8);
        good &= near(smaps("Private_Dirty", memory, size), (long)size / 2048, 8);
        if (write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 1)
            good = false;
        _exit(good ? 0 : 1);
    }
    bool good = read(ready[0], &byte, 1) == 1 && near(alone, (long)size / 1024, 0);
    // The parent alone has what the child has copied.
    good &= near(smaps("Pss", memory, size), (long)size / 4096 * 3, 8);
    good &= smaps("Rss", memory, size) == (long)size / 1024;
    int status = 1;
    good &= write(go[1], &byte, 1) == 1 && waitpid(child, &status, 0) == child && status == 0;
    good &= near(smaps("Pss", memory, size), (long)size / 1024, 0);
    for (int end = 0; end < 2; end++)
        close(ready[end]), close(go[end]);
    munmap(memory, size);
    return good;
}

static bool vmas_have_names(void) {
    char path[] = "/tmp/figures.XXXXXX", line[512], wanted[64];
    int file = mkstemp(path);
    if (file < 0 || ftruncate(file, 3 * PAGE))
        die("%s", path);
    char *memory = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, file, PAGE);
    close(file);
    void *heap = sbrk(PAGE);
    bool found[3] = {false};
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps)) {
        uintptr_t start, end, offset;
        char rights[5], name[256] = "";
        sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %" SCNxPTR " %*s %*s %255s", &start, &end, rights, &offset, name);
        if (start == (uintptr_t)memory)
            found[0] = !strcmp(name, path) && !strcmp(rights, "r--s") && offset == PAGE && end - start == 2 * PAGE;
        if (start <= (uintptr_t)heap && (uintptr_t)heap < end)
            found[1] = !strcmp(name, "[heap]");
        if (start <= (uintptr_t)&maps && (uintptr_t)&maps < end)
            found[2] = !strcmp(name, "[stack]");
    }
    if (maps)
        fclose(maps);
    unlink(path);
    snprintf(wanted, sizeof wanted, "%s (deleted)", path);
    bool deleted = false;
    maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps))
        deleted |= strstr(line, wanted) != NULL;
    if (maps)
        fclose(maps);
    munmap(memory, 2 * PAGE);
    return found[0] && found[1] && found[2] && deleted;
}

static bool free_memory_drops(void) {
    const long size = 64 * MIB;
    const char *info = "/proc/meminfo", *stat = "/proc/vmstat";
    long free_before = figure(info, "MemFree"), anon_before = figure(info, "AnonPages");
    long tables_before = figure(info, "PageTables"), pages_before = figure(stat, "nr_free_pages");
    bool good = true;
    // Twice: after the first round a CPU may keep freed frames, which some kernels do not count as
    // free.
    for (int round = 0; round < 2; round++) {
        char *memory = map((size_t)size * 1024, MAP_PRIVATE);
        madvise(memory, (size_t)size * 1024, MADV_NOHUGEPAGE);
        touch(memory, (size_t)size * 1024, 1);
        good &= near(figure(info, "AnonPages") - anon_before, size, 2 * LAG);
        good &= near(free_before - figure(info, "MemFree"), size, 4 * LAG);
        good &= near(4 * (pages_before - figure(stat, "nr_free_pages")), size, 4 * LAG);
        good &= near(figure(info, "PageTables") - tables_before, size / 512, LAG);
        munmap(memory, (size_t)size * 1024);
        good &= near(figure(info, "AnonPages"), anon_before, 2 * LAG);
    }
    return good;
}

static bool folios_are_counted(void) {
    const char *base = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/", *count = "stats/anon_fault_alloc";
    char knob[128], path[128], line[128], before[32] = "never";
    snprintf(knob, sizeof knob, "%senabled", base);
    snprintf(path, sizeof path, "%s%s", base, count);
    if (!read_line(knob, line, sizeof line) || !strchr(line, '['))
        return false;
    sscanf(strchr(line, '[') + 1, "%31[a-z]", before);
    bool good = write_line(knob, "always") && read_line(knob, line, sizeof line) && strstr(line, "[always]");
    // Too small for a huge page.
    size_t size = HUGE / 2;
    char *memory = map_aligned(size);
    long first = read_line(path, line, sizeof line) ? atol(line) : -1;
    touch(memory, size, 1);
    long then = read_line(path, line, sizeof line) ? atol(line) : -1;
    // The C library's own faults are counted too.
    good &= first >= 0 && near(then - first, (long)size >> 16, 4);
    munmap(memory, size);
    return write_line(knob, before) && good && !write_line(knob, "sometimes");
}

static const char *const CGROUP = "/sys/fs/cgroup/figures";

static long read_memcg(const char *file, const char *name) {
    char path[128], line[64];
    snprintf(path, sizeof path, "%s/%s", CGROUP, file);
    if (name)
        return figure(path, name);
    return read_line(path, line, sizeof line) ? atol(line) : -1;
}

// Runs a child in the cgroup that touches memory, and returns its wait status.
static int run_in_cgroup(long touched, bool check) {
    char path[128], number[32];
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child) {
        int status;
        return waitpid(child, &status, 0) == child ? status : -1;
    }
    snprintf(path, sizeof path, "%s/cgroup.procs", CGROUP);
    snprintf(number, sizeof number, "%d", getpid());
    if (!write_line(path, number))
        _exit(2);
    char *memory = map((size_t)touched << 20, MAP_PRIVATE);
    touch(memory, (size_t)touched << 20, 1);
    if (!check)
        _exit(0);
    long bytes = touched << 20, slack = 4 << 20, current = read_memcg("memory.current", NULL);
    bool good = read_memcg("cgroup.procs", NULL) == getpid() && near(current, bytes, slack);
    good &= near(read_memcg("memory.stat", "anon"), bytes, slack) && read_memcg("memory.peak", NULL) >= current - slack;
    long parts = read_memcg("memory.stat", "anon") + read_memcg("memory.stat", "file") + read_memcg("memory.stat", "kernel");
    good &= near(parts, read_memcg("memory.current", NULL), 1 << 20);
    _exit(good ? 0 : 1);
}

static bool memcg_is_charged(void) {
    write_line("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
    if (mkdir(CGROUP, 0755))
        return false;
    bool good = run_in_cgroup(32, true) == 0 && read_memcg("memory.events", "oom_kill") == 0;
    good &= near(read_memcg("memory.stat", "anon"), 0, 1 << 20);
    return rmdir(CGROUP) == 0 && good;
}

static bool memcg_limit_holds(void) {
    char path[128];
    if (mkdir(CGROUP, 0755))
        return false;
    snprintf(path, sizeof path, "%s/memory.max", CGROUP);
    bool good = write_line(path, "16M") && read_memcg("memory.max", NULL) == 16 << 20;
    snprintf(path, sizeof path, "%s/memory.swap.max", CGROUP);
    write_line(path, "0");
    int status = run_in_cgroup(64, false);
    good &= WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    good &= read_memcg("memory.events", "oom_kill") == 1 && read_memcg("memory.events", "max") > 0;
    good &= run_in_cgroup(4, false) == 0;
    return rmdir(CGROUP) == 0 && good;
}

// Returns a meminfo row of a node, in KiB, or -1 if there is no such node.
static long read_node(unsigned node, const char *name) {
    char path[64], row[64];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%u/meminfo", node);
    snprintf(row, sizeof row, "Node %u %s", node, name);
    return figure(path, row);
}

static unsigned node_here(void) {
    unsigned cpu, node;
    if (syscall(SYS_getcpu, &cpu, &node, NULL))
        die("getcpu");
    return node;
}

// Sums a row of a file by node, and counts the nodes.
static long sum_nodes(const char *path, const char *name, unsigned *nodes) {
    FILE *file = fopen(path, "re");
    char line[512], *rest = NULL;
    long sum = 0;
    *nodes = 0;
    while (file && fgets(line, sizeof line, file)) {
        char *word = strtok_r(line, " ", &rest);
        if (!word || strcmp(word, name))
            continue;
        while ((word = strtok_r(NULL, " ", &rest)) && strchr(word, '=')) {
            sum += atol(strchr(word, '=') + 1);
            ++*nodes;
        }
    }
    if (file)
        fclose(file);
    return sum;
}

// Checks that one node has so much more anonymous memory than before, and all others as much as
// before.
static bool nodes_have(const long *before, unsigned nodes, unsigned node, long more) {
    bool good = true;
    for (unsigned other = 0; other < nodes; other++)
        good &= near(read_node(other, "AnonPages") - before[other], other == node ? more : 0, 2 * LAG);
    return good;
}

static bool memory_is_of_the_cpus_node(void) {
    enum { MOST = 64, SIZE = 16 * MIB };
    char path[64];
    unsigned nodes = 0, listed;
    long total = 0, before[MOST];
    for (; nodes < MOST && read_node(nodes, "MemTotal") >= 0; nodes++) {
        total += read_node(nodes, "MemTotal");
        if (read_node(nodes, "MemTotal") != read_node(nodes, "MemFree") + read_node(nodes, "MemUsed"))
            return false;
    }
    // A kernel without NUMA has no nodes.
    if (!nodes)
        return true;
    bool good = total == figure("/proc/meminfo", "MemTotal"), stayed = false;
    sum_nodes("/sys/fs/cgroup/memory.numa_stat", "anon", &listed);
    good &= listed == 0 || listed == nodes;
    // A thread that stays on a node while it touches memory gets that node's memory.
    for (int tries = 0; good && !stayed && tries < 1000; tries++) {
        unsigned node = node_here();
        for (unsigned other = 0; other < nodes; other++)
            before[other] = read_node(other, "AnonPages");
        char *memory = map((size_t)SIZE * 1024, MAP_PRIVATE);
        madvise(memory, (size_t)SIZE * 1024, MADV_NOHUGEPAGE);
        stayed = node_here() == node;
        for (size_t at = 0; at < (size_t)SIZE * 1024; at += 16 * PAGE) {
            touch(memory + at, 16 * PAGE, 1);
            stayed &= node_here() == node;
        }
        good &= !stayed || nodes_have(before, nodes, node, SIZE);
        // Lazyfree memory is reclaimed from that node, where the kernel has the file.
        snprintf(path, sizeof path, "/sys/devices/system/node/node%u/reclaim", node);
        if (stayed && !access(path, W_OK) && !madvise(memory, (size_t)SIZE * 1024, MADV_FREE)) {
            // It may reclaim less.
            write_line(path, "16M");
            long left = read_node(node, "AnonPages") - before[node];
            good &= left < SIZE - 2 * LAG && nodes_have(before, nodes, node, left);
        }
        munmap(memory, (size_t)SIZE * 1024);
    }
    return good && stayed;
}

static const struct rule rules[] = {
    {"the VMAs add up to the process", vmas_add_up},
    {"kinds of pages add up", kinds_of_pages_add_up},
    {"all files of a process agree", all_files_agree},
    {"exactly the touched pages are resident", touched_pages_are_resident},
    {"a page of two processes counts half in each", shared_pages_count_half},
    {"VMAs have their names", vmas_have_names},
    {"a process's memory is not free in the machine", free_memory_drops},
    {"memory is of the CPU's node", memory_is_of_the_cpus_node},
    {"folios are counted by size", folios_are_counted},
    {"a memcg is charged", memcg_is_charged},
    {"a memcg's limit holds", memcg_limit_holds},
};

int main(void) {
    // Memory of every kind.
    char *shared = map(HUGE, MAP_SHARED), *locked = map(16 * PAGE, MAP_PRIVATE);
    touch(shared, HUGE, 1);
    if (mlock(locked, 16 * PAGE))
        die("mlock");
    return check_rules(rules, sizeof rules / sizeof *rules);
}
