// lazyfree [MIB]: measures MADV_FREE and the reclaim of lazyfree memory, by folio size, in
// nanoseconds a page of 4 KiB. Under a clock that counts instructions these are instructions.
//
// free      madvise(MADV_FREE)
// reclaim   as much as possible, by a write to the memcg's memory.reclaim (cgroup v1:
//           memory.force_empty)
// kept      pages, of a thousand, that are still present
//
// In one row the memory is not written again; in the other every tenth block of 2 MiB is, and must
// be kept with its contents. The rest may read as zeros only where it was reclaimed. Needs root;
// creates a cgroup of its own.
#include "folios.h"
#include <inttypes.h>
#include <sys/stat.h>

enum { MOST = 8 };

// The paths of both cgroup versions, and the version that the kernel has.
static const struct groups {
    const char *root, *group, *reclaim;
} versions[] = {
    {"/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/lazyfree", "memory.reclaim"},
    {"/sys/fs/cgroup/memory/cgroup.procs", "/sys/fs/cgroup/memory/lazyfree", "memory.force_empty"},
}, *groups;

static size_t length;

static const char *of_group(const char *file) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", groups->group, file);
    return path;
}

static void leave_cgroup(void) {
    if (owner != getpid())
        return;
    write_line(groups->root, "0");
    rmdir(groups->group);
}

static bool written_again(size_t at) {
    return at / HUGE % 10 == 3;
}

static double per_page(uint64_t count) {
    return (double)count / (double)(length / PAGE);
}

static void measure(const char *folio, bool again) {
    char *memory = map_aligned(length), bytes[32];
    touch(memory, length, 1);
    split_entries(memory, length);
    uint64_t start = now_ns();
    if (madvise(memory, length, MADV_FREE))
        die("MADV_FREE");
    double freed = per_page(now_ns() - start);
    size_t wanted = 0;
    for (size_t at = 0; again && at < length; at += HUGE)
        if (written_again(at)) {
            touch(memory + at, HUGE, 2 + at);
            wanted += HUGE / PAGE;
        }
    uint64_t spent = 0;
    size_t kept = length / PAGE;
    for (int tries = 0; tries < MOST && kept > wanted; tries++) {
        snprintf(bytes, sizeof bytes, "%zu", (kept - wanted) * PAGE);
        start = now_ns();
        // The write fails with EAGAIN if less was reclaimed than requested.
        if (!write_line(of_group(groups->reclaim), bytes) && errno != EAGAIN)
            die("%s", of_group(groups->reclaim));
        spent += now_ns() - start;
        kept = pages_present(memory, length);
    }
    uint64_t lost = 0, wrong = 0;
    for (size_t at = 0; at < length; at += PAGE) {
        uint64_t word = *(volatile uint64_t *)(memory + at), first = at / HUGE * HUGE;
        if (again && written_again(at))
            lost += word != 2 + first + (at - first);
        else
            wrong += word != 0 && word != 1 + at;
    }
    errno = 0;
    if (lost || wrong)
        die("%s: %" PRIu64 " rewritten pages lost their contents, %" PRIu64 " have contents that were never written", folio, lost, wrong);
    printf("{\"folio\":\"%s\",\"written\":\"%s\",\"free\":%.2f,\"reclaim\":%.2f,\"kept\":%.2f}\n", folio,
           again ? "every tenth" : "none", freed, per_page(spent), 1000 * per_page(kept));
    fflush(stdout);
    munmap(memory, length);
}

static void row(const char *folio) {
    measure(folio, false);
    measure(folio, true);
}

int main(int argc, char **argv) {
    if (argc > 2)
        die("usage: %s [MIB]", argv[0]);
    length = (size_t)argument(argc, argv, 1, 256) << 20;
    if (length % HUGE)
        die("not a multiple of 2 MiB");
    save_settings();
    groups = versions + (access(versions[0].root, F_OK) != 0);
    write_line("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
    if (mkdir(groups->group, 0755) || !write_line(of_group("cgroup.procs"), "0"))
        die("%s", groups->group);
    atexit(leave_cgroup);
    each_folio(row);
    return 0;
}
