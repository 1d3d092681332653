// tables [GIB]: a heap that touches much address space and gives the memory back: it writes 128 KiB
// of each 2 MiB, then drops them. Only page tables are left, unless the kernel frees them.
//
// One row drops each 2 MiB in one call, the other in pieces of 1 MiB, for which Linux's PT_RECLAIM
// frees no page table.
#include "common.h"

static void row(const char *name, size_t length, size_t piece) {
    int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *memory = mmap(NULL, length, prot, flags, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap of %zu bytes", length);
    long most = 0, steps = 64;
    for (size_t at = 0, step = 0; at + HUGE <= length; at += HUGE, step++) {
        touch(memory + at, 128 << 10, at);
        for (size_t done = 0; done < HUGE; done += piece)
            if (madvise(memory + at + done, piece, MADV_DONTNEED))
                die("madvise");
        long tables = step % (size_t)steps ? 0 : figure("/proc/self/status", "VmPTE");
        most = tables > most ? tables : most;
    }
    printf("{\"dontneed\":\"%s\",\"virtual_kib\":%ld,\"resident_kib\":%ld,\"tables_kib\":%ld,\"tables_most_kib\":%ld}\n", name,
           figure("/proc/self/status", "VmSize"), figure("/proc/self/status", "VmRSS"), figure("/proc/self/status", "VmPTE"), most);
    fflush(stdout);
    munmap(memory, length);
}

int main(int argc, char **argv) {
    if (argc > 2)
        die("usage: %s [GIB]", argv[0]);
    size_t length = (size_t)argument(argc, argv, 1, 50) << 30;
    row("2 MiB at once", length, HUGE);
    row("1 MiB at once", length, HUGE / 2);
    return 0;
}
