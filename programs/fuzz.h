// Shared by the parts of fuzz.c: the plan of a round, its random numbers, the memory and files that
// calls use, and the one way to make a call.
#ifndef FUZZ_H
#define FUZZ_H

#include "common.h"
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/syscall.h>

enum {
    WORKERS = 16,
    THREADS = 8,
    // The operations of one process, after which the worker forks another.
    CHUNK = 48,
    FILES = 16,
    SLOTS = 24,
    RANGES = 4096,
    USER = 65534,
};

// The memory that valid operations use: SLOTS of 2 MiB, of which the first is shared by all workers
// and the second by the processes of one worker.
#define ARENA UINT64_C(0x100000000000)
#define ARENA_BYTES ((uint64_t)SLOTS * HUGE)

// The plan of a round, from the program's arguments.
static struct {
    uint64_t seed, first_round, rounds, milliseconds, workers, threads, calls, pauses;
    // Ascending numbers of the operations to do; none: all.
    struct {
        uint64_t from, to;
    } keep[RANGES];
    size_t kept;
    bool prints, makes_calls;
} plan = {.seed = 1, .rounds = 1, .milliseconds = 20000, .workers = 4, .threads = 2, .calls = 96, .pauses = 1, .makes_calls = true};

// A thread's state, for its worker, in memory that no operation has the address of.
struct thread_state {
    atomic_long progress, made, refused;
    atomic_int tid;
    atomic_ulong digest;
};

static struct shared {
    struct thread_state threads[WORKERS][THREADS];
    atomic_bool stop;
    // The time at which the bystander's call began, or 0, and the number of that call.
    atomic_ulong bystander_since, bystander_longest, bystander_rounds, bystander_refused;
    atomic_int bystander_in, bystander_longest_in;
} *shared;

// The descriptors that operations use; others are opened and closed beside these.
static atomic_int files[FILES];
static __thread uint64_t random_state;
static __thread sigjmp_buf next_operation;
static __thread volatile bool in_operation;
static __thread struct thread_state *own;
static __thread uint64_t operation;
static __thread int depth;

static uint64_t mixed(uint64_t x) {
    // The finaliser of splitmix64.
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t any(void) {
    return mixed(random_state++);
}

static uint64_t dice(uint64_t sides) {
    return any() % sides;
}

static bool one_in(uint64_t sides) {
    return dice(sides) == 0;
}

#define ONE_OF(...) \
    ((const uint64_t[]){__VA_ARGS__}[dice(sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))])

static uint64_t arena_page(void) {
    uint64_t slot = dice(SLOTS), page = one_in(3) ? 0 : dice(512);
    return ARENA + slot * HUGE + page * PAGE;
}

static uint64_t some_length(void) {
    switch (dice(8)) {
    case 0 ... 3:
        return (1 + dice(16)) * PAGE;
    case 4 ... 5:
        return (1 + dice(512)) * PAGE;
    case 6:
        return HUGE << dice(2);
    default:
        return ONE_OF(1, PAGE - 1, PAGE + 1, 64 << 10, HUGE - PAGE, HUGE + PAGE);
    }
}

// Returns a value that no correct program passes.
static uint64_t hostile(void) {
    switch (dice(12)) {
    case 0:
        return ONE_OF(0, 1, 2, 7, 8, PAGE - 1, PAGE, PAGE + 1, UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - PAGE + 1);
    case 1: // Kernel addresses.
        return ONE_OF(0xffff800000000000, 0xffff888000000000, 0xffffffff80000000, 0xffff000000000000, 0xff00000000000000,
                      0xffffff8000000000) + dice(1 << 20) * PAGE;
    case 2: // Non-canonical addresses, and the ends of user memory.
        return ONE_OF(0x7ffffffff000, 0x7fffffffffff, 0x800000000000, 0x800000001000, 0xfffffffff000, 0x1000000000000,
                      0x00ffffffffffffff, 0x0100000000000000, 0x7fffffffffffffff, 0x8000000000000000, 0xffff7fffffffffff);
    case 3:
        return (UINT64_C(1) << dice(64)) - dice(3) + dice(3);
    case 4:
        return (UINT64_C(1) << dice(64)) + ONE_OF(PAGE, 2 * PAGE, 0) - ONE_OF(0, PAGE);
    case 5:
        return ONE_OF(INT32_MAX, UINT32_MAX, 0x80000000, 0x100000000, 0xfffff000, INT64_MAX);
    case 6: // Wraps around from the arena, or ends at its end.
        return ONE_OF(0 - ARENA, 0 - ARENA - PAGE, ARENA_BYTES, ARENA_BYTES + PAGE);
    case 7:
        return arena_page() + dice(PAGE);
    case 8:
        return (uint64_t)(uintptr_t)&files[0] + dice(4096) * 8;
    case 9:
        return (uint64_t)(uintptr_t)__builtin_frame_address(0) + dice(8 * PAGE) - 4 * PAGE;
    default:
        return any() >> dice(64);
    }
}

// Prints a call before it is made.
__attribute__((format(printf, 1, 2))) static void show(const char *format, ...) {
    char line[400];
    if (!plan.prints)
        return;
    int length = snprintf(line, sizeof line, "%*s[%llu] ", depth * 2, "", (unsigned long long)operation);
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
    va_end(arguments);
    length = length < (int)sizeof line - 1 ? length : (int)sizeof line - 2;
    line[length++] = '\n';
    if (write(2, line, (size_t)length) < 0)
        return;
}

// Makes a system call without the C library: a child that a call created exits at once, on whatever
// stack it runs.
static long enter(long number, const uint64_t a[6], bool forks) {
    long result;
#if defined __x86_64__
    register uint64_t r10 __asm__("r10") = a[3], r8 __asm__("r8") = a[4], r9 __asm__("r9") = a[5];
    __asm__ volatile("syscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\ttest %[forks], %[forks]\n\tjz 1f\n\t"
                     "mov $60, %%eax\n\txor %%edi, %%edi\n\tsyscall\n\tud2\n1:"
                     : "=a"(result)
                     : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9), [forks] "b"((long)forks)
                     : "rcx", "r11", "memory");
#elif defined __aarch64__
    register uint64_t x0 __asm__("x0") = a[0], x1 __asm__("x1") = a[1], x2 __asm__("x2") = a[2], x3 __asm__("x3") = a[3],
                      x4 __asm__("x4") = a[4], x5 __asm__("x5") = a[5], x8 __asm__("x8") = (uint64_t)number,
                      x19 __asm__("x19") = forks;
    __asm__ volatile("svc #0\n\tcbnz x0, 1f\n\tcbz x19, 1f\n\tmov x8, #93\n\tsvc #0\n\tbrk #0\n1:"
                     : "+r"(x0)
                     : "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5), "r"(x8), "r"(x19)
                     : "memory");
    result = (long)x0;
#else
#error "an architecture without the way to make a call"
#endif
    return result;
}

static long make_call(long number, const char *name, const uint64_t a[6], bool forks) {
    show("%s(%#llx, %#llx, %#llx, %#llx, %#llx, %#llx)", name, (unsigned long long)a[0], (unsigned long long)a[1],
         (unsigned long long)a[2], (unsigned long long)a[3], (unsigned long long)a[4], (unsigned long long)a[5]);
    if (!plan.makes_calls)
        return forks ? 2 : 0;
    long result = enter(number, a, forks);
    if (own && !depth) {
        atomic_fetch_add_explicit(&own->made, 1, memory_order_relaxed);
        if (result < 0 && result > -4096)
            atomic_fetch_add_explicit(&own->refused, 1, memory_order_relaxed);
        own->digest = mixed(own->digest ^ (uint64_t)number << 32 ^ (uint64_t)(result < 0 ? result : 0));
    }
    return result;
}

// CALL(mmap, ...): makes the call and returns its result, or a negative error number.
#define CALL(name, ...) make_call(SYS_##name, #name, (const uint64_t[6]){__VA_ARGS__}, false)

static void keep_file(long file) {
    if (file > 2)
        files[dice(FILES)] = (int)file;
}

static uint64_t some_file(void) {
    return (uint64_t)files[dice(FILES)];
}

#endif
