// Sequences of valid calls, which reach states that single calls seldom do.
#ifndef FUZZ_STEPS_H
#define FUZZ_STEPS_H

#include "fuzz_calls.h"
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/time.h>
#include <sys/uio.h>

static void operate(void);

// Reads or writes a byte of each page; a page that can't be accessed ends the operation by a
// signal.
static void touch_pages(uint64_t at, uint64_t length, bool writes) {
    show("%s %#llx, %#llx bytes", writes ? "write" : "read", (unsigned long long)at, (unsigned long long)length);
    if (!plan.makes_calls)
        return;
    for (uint64_t page = at; page < at + length; page += PAGE) {
        volatile uint64_t *word = (volatile uint64_t *)(page & ~UINT64_C(7));
        if (writes)
            *word = page ^ operation;
        else
            (void)*word;
    }
}

static uint64_t slot_address(void) {
    return ARENA + dice(SLOTS) * HUGE;
}

static void map_memory(void) {
    uint64_t at = one_in(3) ? arena_page() : slot_address();
    uint64_t flags = MAP_FIXED | (one_in(4) ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS;
    uint64_t length = at % HUGE ? (some_length() & -(uint64_t)PAGE) : HUGE;
    CALL(mmap, at, length ? length : PAGE, PROT_READ | PROT_WRITE, flags | (one_in(6) ? MAP_POPULATE : 0), (uint64_t)-1, 0);
    if (one_in(2))
        CALL(madvise, at, length, ONE_OF(MADV_HUGEPAGE, MADV_NOHUGEPAGE));
    touch_pages(at, one_in(2) ? length : PAGE, !one_in(4));
}

static void map_file(void) {
    uint64_t at = one_in(3) ? arena_page() : slot_address();
    uint64_t length = (some_length() & -(uint64_t)PAGE), writable = PROT_READ | PROT_WRITE;
    CALL(mmap, at, length ? length : PAGE, writable, MAP_FIXED | (one_in(2) ? MAP_SHARED : MAP_PRIVATE), some_file(), dice(64) * PAGE);
    touch_pages(at, length, one_in(2));
}

static void advise_parts(void) {
    uint64_t at = slot_address() + dice(64) * PAGE * (one_in(2) ? 1 : 8);
    uint64_t length = (1 + dice(one_in(2) ? 16 : 512)) * PAGE;
    touch_pages(at, length, true);
    for (uint64_t n = 1 + dice(3); n; n--) {
        uint64_t from = at + dice(length / PAGE) * PAGE;
        uint64_t advice = ONE_OF(MADV_PAGEOUT, MADV_PAGEOUT, MADV_PAGEOUT, MADV_COLD, MADV_FREE, MADV_DONTNEED, 25 /* COLLAPSE */,
                                 102 /* GUARD_INSTALL */, 103, MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_WIPEONFORK,
                                 MADV_KEEPONFORK, MADV_DONTFORK, MADV_DOFORK, MADV_WILLNEED, MADV_REMOVE, 24);
        CALL(madvise, from, at + length - from, advice);
    }
    touch_pages(at, length, one_in(2));
}

static void move_memory(void) {
    uint64_t from = one_in(2) ? slot_address() : arena_page(), to = one_in(2) ? slot_address() : arena_page();
    uint64_t length = (1 + dice(one_in(2) ? 8 : 512)) * PAGE;
    touch_pages(from, length, true);
    if (one_in(3))
        CALL(madvise, from, length, MADV_PAGEOUT);
    uint64_t flags = ONE_OF(MREMAP_MAYMOVE | MREMAP_FIXED, 7, 5, 1, 0, 3);
    CALL(mremap, from, length, one_in(2) ? length : some_length(), flags, to);
    touch_pages(to, length, one_in(2));
}

static void protect_parts(void) {
    uint64_t at = arena_page(), length = (1 + dice(64)) * PAGE;
    CALL(mprotect, at, length, ONE_OF(PROT_READ, PROT_NONE, PROT_READ | PROT_WRITE));
    if (one_in(2))
        touch_pages(at, length, one_in(2));
    CALL(mprotect, at, length, PROT_READ | PROT_WRITE);
}

static void lock_parts(void) {
    uint64_t at = arena_page(), length = (1 + dice(16)) * PAGE;
    CALL(mlock2, at, length, dice(2));
    if (one_in(2))
        CALL(madvise, at, length, ONE_OF(MADV_PAGEOUT, MADV_DONTNEED, 24, MADV_FREE));
    if (!one_in(4))
        CALL(munlock, at, length);
    if (one_in(10))
        CALL(mlockall, 1 + dice(7));
    CALL(munlockall, 0);
}

static void wait_for(long child) {
    uint64_t status = one_in(8) ? ARENA + HUGE + dice(500) * PAGE : 0;
    if (!plan.makes_calls || child <= 0)
        return;
    // For a bounded time: the child may be stopped, or wait itself.
    for (int tries = 0; tries < 200; tries++) {
        long found = CALL(wait4, (uint64_t)child, status, WNOHANG, 0);
        if (found)
            return;
        usleep(500);
    }
    CALL(kill, (uint64_t)child, SIGKILL);
    CALL(wait4, (uint64_t)child, 0, 0, 0);
}

// A child that does operations of its own beside its parent.
static void fork_child(void) {
    if (depth >= 2)
        return;
    uint64_t child_state = any();
    long child = make_call(SYS_clone, "clone", (const uint64_t[6]){SIGCHLD}, false);
    if (child == 0) {
        uint64_t parent_state = random_state;
        depth++;
        random_state = child_state;
        if (one_in(8))
            CALL(setsid, 0);
        for (uint64_t n = 1 + dice(6); n; n--)
            operate();
        if (one_in(10))
            CALL(kill, (uint64_t)(plan.makes_calls ? getpid() : 0), SIGKILL);
        if (plan.makes_calls)
            syscall(SYS_exit_group, 0);
        depth--;
        random_state = parent_state;
    }
    touch_pages(slot_address(), (1 + dice(32)) * PAGE, true);
    if (!one_in(6))
        wait_for(child);
}

static void execute(void) {
    static const char *const words[] = {"fuzz", "nothing", NULL};
    const char *path = one_in(6) ? "/tmp/fuzz/a" : "/proc/self/exe";
    uint64_t array = one_in(6) ? some_bytes() : (uint64_t)(uintptr_t)words;
    uint64_t variables = one_in(3) ? some_bytes() : (uint64_t)(uintptr_t)&words[2];
    long child = make_call(SYS_clone, "clone", (const uint64_t[6]){one_in(3) ? SIGCHLD | 0x4000 : SIGCHLD}, false);
    if (child == 0) {
        show("execve(\"%s\", %#llx, %#llx)", path, (unsigned long long)array, (unsigned long long)variables);
        if (!plan.makes_calls)
            return;
        syscall(SYS_execve, path, array, variables);
        syscall(SYS_exit_group, 0);
    }
    wait_for(child);
}

static void use_userfaultfd(void) {
    uint64_t at = slot_address() + dice(8) * PAGE, length = (1 + dice(64)) * PAGE;
    long file = CALL(userfaultfd, 1 | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return;
    struct uffdio_api api = {.api = UFFD_API, .features = one_in(2) ? 0 : ONE_OF(1, 1 << 15, 1 << 13, 0x100)};
    CALL(ioctl, (uint64_t)file, UFFDIO_API, (uintptr_t)&api);
    if (one_in(2))
        touch_pages(at, length, true);
    struct uffdio_register registration = {.range = {at, length}, .mode = 1 + dice(3)};
    CALL(ioctl, (uint64_t)file, UFFDIO_REGISTER, (uintptr_t)&registration);
    keep_file(file);
    for (uint64_t n = 1 + dice(5); n; n--) {
        uint64_t part = at + dice(length / PAGE) * PAGE, bytes = (1 + dice(4)) * PAGE;
        struct uffdio_copy copy = {.dst = part, .src = arena_page(), .len = bytes, .mode = dice(4)};
        struct uffdio_zeropage zero = {.range = {part, bytes}, .mode = dice(2)};
        struct uffdio_writeprotect protect = {.range = {part, bytes}, .mode = dice(4)};
        uint64_t poison[4] = {part, bytes, dice(2), 0}, range[2] = {part, bytes};
        switch (dice(8)) {
        case 0 ... 1:
            CALL(ioctl, (uint64_t)file, UFFDIO_COPY, (uintptr_t)&copy);
            break;
        case 2:
            CALL(ioctl, (uint64_t)file, UFFDIO_ZEROPAGE, (uintptr_t)&zero);
            break;
        case 3:
            CALL(ioctl, (uint64_t)file, UFFDIO_WRITEPROTECT, (uintptr_t)&protect);
            break;
        case 4:
            CALL(ioctl, (uint64_t)file, 0xc020aa08, (uintptr_t)poison);
            break;
        case 5:
            CALL(madvise, part, bytes, ONE_OF(MADV_PAGEOUT, MADV_DONTNEED, MADV_FREE));
            break;
        case 6:
            CALL(mremap, part, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, arena_page());
            break;
        default:
            CALL(ioctl, (uint64_t)file, UFFDIO_WAKE, (uintptr_t)range);
        }
    }
    if (one_in(2))
        touch_pages(at, length, one_in(2));
    struct uffdio_range range = {at, length};
    if (!one_in(3))
        CALL(ioctl, (uint64_t)file, UFFDIO_UNREGISTER, (uintptr_t)&range);
    if (!one_in(3))
        CALL(close, (uint64_t)file);
}

static void use_memfd(void) {
    long file = CALL(memfd_create, (uintptr_t)"fuzz", dice(4));
    if (file < 0)
        return;
    uint64_t pages = 1 + dice(one_in(3) ? 600 : 32), at = slot_address();
    CALL(ftruncate, (uint64_t)file, pages * PAGE);
    keep_file(file);
    bool shared_mapping = !one_in(3);
    CALL(mmap, at, pages * PAGE, PROT_READ | PROT_WRITE, MAP_FIXED | (shared_mapping ? MAP_SHARED : MAP_PRIVATE), (uint64_t)file, 0);
    touch_pages(at, (pages < 64 ? pages : 64) * PAGE, !one_in(4));
    for (uint64_t n = dice(5); n; n--)
        switch (dice(8)) {
        case 0:
            CALL(ftruncate, (uint64_t)file, dice(2 * pages) * PAGE + (one_in(3) ? dice(PAGE) : 0));
            break;
        case 1:
            CALL(fallocate, (uint64_t)file, 3, dice(pages) * PAGE, (1 + dice(pages)) * PAGE);
            break;
        case 2:
            CALL(fallocate, (uint64_t)file, dice(2), dice(pages) * PAGE, (1 + dice(16)) * PAGE);
            break;
        case 3:
            CALL(madvise, at, pages * PAGE, ONE_OF(MADV_PAGEOUT, MADV_REMOVE, MADV_DONTNEED, MADV_COLD));
            break;
        case 4:
            CALL(pwrite64, (uint64_t)file, arena_page() + dice(PAGE), 1 + dice(4 * PAGE), dice(pages * PAGE));
            break;
        case 5:
            CALL(pread64, (uint64_t)file, arena_page() + dice(PAGE), 1 + dice(4 * PAGE), dice(pages * PAGE));
            break;
        case 6:
            CALL(fcntl, (uint64_t)file, 1033 /* F_ADD_SEALS */, dice(32));
            break;
        default:
            // The file, from a mapping of itself.
            CALL(pwrite64, (uint64_t)file, at + dice(pages * PAGE), 1 + dice(2 * PAGE), dice(pages * PAGE));
        }
    if (one_in(2))
        CALL(close, (uint64_t)file);
}

static void use_pipe(void) {
    int ends[2] = {-1, -1};
    if (CALL(pipe2, (uintptr_t)ends, O_NONBLOCK | O_CLOEXEC) < 0)
        return;
    keep_file(ends[0]);
    keep_file(ends[1]);
    for (uint64_t n = 1 + dice(6); n; n--)
        switch (dice(4)) {
        case 0:
            CALL(write, (uint64_t)ends[1], arena_page() + dice(PAGE), dice(20 * PAGE));
            break;
        case 1:
            CALL(vmsplice, (uint64_t)ends[one_in(5) ? 0 : 1], some_ranges(), dice(8), dice(16));
            break;
        case 2:
            CALL(fcntl, (uint64_t)ends[0], 1031 /* F_SETPIPE_SZ */, dice(32) * PAGE);
            break;
        default:
            CALL(read, (uint64_t)ends[0], arena_page() + dice(PAGE), dice(20 * PAGE));
        }
    if (one_in(2))
        CALL(close, (uint64_t)ends[0]);
    if (one_in(2))
        CALL(close, (uint64_t)ends[1]);
}

static void use_futex(void) {
    uint64_t word = argument_of('w'), other = argument_of('w');
    struct timespec timeout = {0, (long)dice(2000000)}, at = {(long)dice(3), 0};
    uint64_t shares = one_in(2) ? FUTEX_PRIVATE_FLAG : 0;
    uint32_t now = 0;
    if (plan.makes_calls)
        now = *(volatile uint32_t *)word;
    for (uint64_t n = 1 + dice(3); n; n--)
        switch (dice(8)) {
        case 0 ... 1:
            CALL(futex, word, FUTEX_WAIT | shares, now, (uintptr_t)&timeout, 0, 0);
            break;
        case 2:
            CALL(futex, word, FUTEX_WAKE | shares, dice(3), 0, 0, 0);
            break;
        case 3:
            CALL(futex, word, (one_in(2) ? FUTEX_CMP_REQUEUE : FUTEX_REQUEUE) | shares, dice(3), dice(3), other, now);
            break;
        case 4:
            CALL(futex, word, FUTEX_LOCK_PI | shares, 0, (uintptr_t)&at, 0, 0);
            break;
        case 5:
            CALL(futex, word, ONE_OF(FUTEX_UNLOCK_PI, FUTEX_TRYLOCK_PI) | shares, 0, 0, 0, 0);
            break;
        case 6:
            CALL(futex, word, FUTEX_WAKE_OP | shares, dice(3), dice(3), other, any() & 0xffffffff);
            break;
        default:
            CALL(futex, word, FUTEX_WAIT_REQUEUE_PI | shares, now, (uintptr_t)&at, other, 0);
        }
}

static void use_segment(void) {
    long id = CALL(shmget, one_in(3) ? dice(3) + 1 : 0, (1 + dice(300)) * PAGE, IPC_CREAT | 0600);
    if (id < 0)
        return;
    uint64_t at = slot_address();
    CALL(shmat, (uint64_t)id, at, SHM_REMAP);
    touch_pages(at, (1 + dice(8)) * PAGE, true);
    if (one_in(2))
        CALL(madvise, at, HUGE, MADV_PAGEOUT);
    if (!one_in(4))
        CALL(shmctl, (uint64_t)id, IPC_RMID, 0);
    if (one_in(2))
        CALL(shmdt, at);
}

static void access_other_process(void) {
    uint64_t ranges = some_ranges();
    if (one_in(3)) {
        long file = CALL(pidfd_open, some_process(), 0);
        if (file > 0) {
            CALL(process_madvise, (uint64_t)file, ranges, 1 + dice(4), ONE_OF(MADV_PAGEOUT, MADV_COLD, 25, MADV_WILLNEED), 0);
            keep_file(file);
        }
    } else if (one_in(2))
        CALL(process_vm_readv, some_process(), ranges, 1 + dice(6), some_ranges(), 1 + dice(6), 0);
    else
        CALL(process_vm_writev, some_process(), ranges, 1 + dice(6), some_ranges(), 1 + dice(6), 0);
}

static void read_proc_files(void) {
    static const char *const some[] = {
        "/proc/self/maps", "/proc/self/smaps", "/proc/self/smaps_rollup", "/proc/self/pagemap", "/proc/self/mem", "/proc/self/status",
        "/proc/meminfo", "/proc/self/clear_refs", "/proc/vmstat", "/proc/self/fd", "/proc/self/map_files", "/proc/self/environ",
    };
    const char *path = some[dice(sizeof some / sizeof *some)];
    show("openat(\"%s\")", path);
    long file = CALL(openat, (uint64_t)-100, (uintptr_t)path, ONE_OF(O_RDONLY, O_RDONLY, O_RDWR, O_WRONLY), 0);
    if (file < 0)
        return;
    static const char digits[] = "123450";
    CALL(pread64, (uint64_t)file, arena_page() + dice(PAGE), some_length(), one_in(2) ? dice(64) * 8 : (ARENA >> 12) * 8);
    CALL(pread64, (uint64_t)file, arena_page(), PAGE, arena_page());
    if (one_in(3))
        CALL(write, (uint64_t)file, (uintptr_t)digits + dice(5), 1);
    uint64_t scan[12] = {96, dice(4), arena_page(), ARENA + ARENA_BYTES, 0, some_bytes(), dice(32), dice(32),
                         any() & 0xff, any() & 0xff, any() & 0xff, any() & 0xff};
    if (one_in(2))
        CALL(ioctl, (uint64_t)file, 0xc0606610, (uintptr_t)scan);
    if (one_in(2))
        CALL(close, (uint64_t)file);
    else
        keep_file(file);
}

static void use_signals(void) {
    struct itimerval timeout = {{0, 0}, {0, (long)dice(3000)}};
    uint64_t set = any() & ~(UINT64_C(1) << (SIGUSR2 - 1) | UINT64_C(1) << (SIGSEGV - 1) | UINT64_C(1) << (SIGBUS - 1));
    struct timespec none = {0, 1000};
    switch (dice(5)) {
    case 0:
        CALL(setitimer, 0, (uintptr_t)&timeout, 0);
        break;
    case 1:
        CALL(rt_sigprocmask, dice(3), (uintptr_t)&set, 0, 8);
        break;
    case 2:
        CALL(rt_sigtimedwait, (uintptr_t)&set, 0, (uintptr_t)&none, 8);
        break;
    case 3:
        CALL(tgkill, (uint64_t)(plan.makes_calls ? getpid() : 0), some_process(), SIGUSR1);
        break;
    default:
        CALL(kill, (uint64_t)(plan.makes_calls ? getpid() : 0), ONE_OF(SIGUSR1, SIGALRM, SIGURG, SIGCHLD));
    }
}

// Exhausts memory for a moment.
static void exhaust_memory(void) {
    for (uint64_t n = 1 + dice(6); n; n--)
        touch_pages(slot_address(), HUGE, true);
    if (one_in(2))
        CALL(madvise, slot_address(), 2 * HUGE, MADV_PAGEOUT);
}

static void set_attributes(void) {
    CALL(prctl, PR_SET_VMA, 0, arena_page(), some_length(), (uintptr_t)"fuzz");
    CALL(prctl, ONE_OF(PR_SET_THP_DISABLE, PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_GET_NAME, PR_SET_NAME), dice(2), 0,
         0, 0);
    if (one_in(3))
        CALL(mseal, arena_page(), (1 + dice(4)) * PAGE, 0);
}

static const struct {
    void (*step)(void);
    int weight;
} steps[] = {
    {single_call, 40}, {map_memory, 12}, {map_file, 8}, {advise_parts, 14}, {move_memory, 10}, {protect_parts, 5}, {lock_parts, 4},
    {fork_child, 6}, {execute, 1}, {use_userfaultfd, 8}, {use_memfd, 10}, {use_pipe, 5}, {use_futex, 5}, {use_segment, 4},
    {access_other_process, 6}, {read_proc_files, 5}, {use_signals, 4}, {exhaust_memory, 2}, {set_attributes, 2},
};

// Does one operation, chosen by the random state.
static void operate(void) {
    int sum = 0;
    for (size_t n = 0; n < sizeof steps / sizeof *steps; n++)
        sum += steps[n].weight;
    int drawn = (int)dice((uint64_t)sum);
    for (size_t n = 0; n < sizeof steps / sizeof *steps; n++)
        if ((drawn -= steps[n].weight) < 0)
            return steps[n].step();
}

#endif
