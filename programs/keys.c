// Protection keys. Prints a row for each rule; the status is 1 if one is broken. The rules hold on
// Linux. Where the machine has no keys, only the rules for that hold.
#include "common.h"
#include <pthread.h>
#include <setjmp.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { NO_ACCESS = 1, NO_WRITE = 2, SOME = 16 };

static sigjmp_buf back;
static siginfo_t seen;
static char *memory;

static void caught(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    seen = *info;
    siglongjmp(back, 1);
}

static int allocate(unsigned denied) {
    errno = 0;
    return (int)syscall(SYS_pkey_alloc, 0, denied);
}

static bool give(void *at, size_t length, int prot, int key) {
    errno = 0;
    return !syscall(SYS_pkey_mprotect, at, length, prot, key);
}

static bool release(int key) {
    errno = 0;
    return !syscall(SYS_pkey_free, key);
}

// Returns the `ProtectionKey` of the mapping at an address, or -1 if smaps has none.
static long key_of(const void *at) {
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[512];
    long key = -1;
    bool inside = false;
    while (fgets(line, sizeof line, file)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            inside = start <= (uintptr_t)at && (uintptr_t)at < end;
        else if (inside && !strncmp(line, "ProtectionKey:", 14))
            key = atol(line + 14);
    }
    fclose(file);
    return key;
}

#ifdef __x86_64__
static unsigned rights(void) {
    unsigned low, high;
    __asm__ volatile("rdpkru" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static void set_rights(unsigned to) {
    __asm__ volatile("wrpkru" : : "a"(to), "c"(0), "d"(0) : "memory");
}
#else
static unsigned rights(void) { return 0; }
static void set_rights(unsigned to) { (void)to; }
#endif

static void deny(int key, unsigned what) {
    set_rights((rights() & ~(3u << (2 * key))) | what << (2 * key));
}

// Returns true if a load, or a store, is refused because of the key.
static bool refuses(char *at, bool store, int key) {
    unsigned own = rights();
    memset(&seen, 0, sizeof seen);
    if (sigsetjmp(back, 1) == 0) {
        if (store)
            *(volatile char *)at = 1;
        else
            (void)*(volatile char *)at;
        return false;
    }
    set_rights(own); // the handler has left without a return, which would have restored them
    return seen.si_signo == SIGSEGV && seen.si_code == SEGV_PKUERR && seen.si_addr == at && (int)seen.si_pkey == key;
}

static bool a_key_denies_what_its_thread_denies(void) {
    int key = allocate(0);
    bool good = key > 0 && give(memory, SOME * PAGE, PROT_READ | PROT_WRITE, key);
    unsigned usual = rights();
    for (int i = 0; i < 2; i++) { // untouched pages, then pages that are in memory
        deny(key, NO_WRITE);
        good &= !refuses(memory, false, key) && refuses(memory, true, key) && refuses(memory + PAGE, true, key);
        deny(key, NO_ACCESS);
        good &= refuses(memory, false, key) && refuses(memory + 2 * PAGE, true, key);
        set_rights(usual);
        for (int page = 0; page < 3; page++)
            good &= !refuses(memory + page * PAGE, true, key);
    }
    // The rights of the handler were its own.
    good &= rights() == usual;
    good &= give(memory, SOME * PAGE, PROT_READ | PROT_WRITE, 0) && release(key);
    return good;
}

// A mapping's key stays when its protection changes, and a part may have another.
static bool mappings_have_keys(void) {
    int one = allocate(0), two = allocate(NO_ACCESS);
    bool good = one > 0 && two > 0 && one != two && key_of(memory) == 0;
    good &= give(memory, SOME * PAGE, PROT_READ, one) && give(memory + PAGE, PAGE, PROT_READ, two);
    good &= key_of(memory) == one && key_of(memory + PAGE) == two && key_of(memory + 2 * PAGE) == one;
    good &= !mprotect(memory, SOME * PAGE, PROT_READ | PROT_WRITE);
    good &= key_of(memory) == one && key_of(memory + PAGE) == two && key_of(memory + 2 * PAGE) == one;
    good &= !refuses(memory, true, one) && refuses(memory + PAGE, true, two) && !refuses(memory + 2 * PAGE, true, one);
    good &= give(memory, SOME * PAGE, PROT_READ | PROT_WRITE, -1) && key_of(memory + PAGE) == two;
    // From one key to another, with pages in memory.
    good &= give(memory, SOME * PAGE, PROT_READ | PROT_WRITE, two) && refuses(memory, false, two);
    good &= give(memory, SOME * PAGE, PROT_READ | PROT_WRITE, one) && !refuses(memory + PAGE, false, two);
    char *moved = mremap(memory, SOME * PAGE, SOME * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, memory + SOME * PAGE);
    good &= moved == memory + SOME * PAGE && key_of(moved) == one;
    good &= mremap(moved, SOME * PAGE, SOME * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, memory) == memory;
    good &= give(memory, SOME * PAGE, PROT_READ | PROT_WRITE, 0) && release(one) && release(two);
    return good;
}

// The kernel obeys the key of the thread that it works for.
static bool system_calls_obey_keys(void) {
    int ends[2], key = allocate(0);
    bool good = !pipe(ends) && give(memory, SOME * PAGE, PROT_READ | PROT_WRITE, key);
    memory[0] = 'a';
    deny(key, NO_WRITE);
    good &= write(ends[1], memory, 1) == 1;
    errno = 0;
    good &= read(ends[0], memory, 1) == -1 && errno == EFAULT;
    deny(key, NO_ACCESS);
    errno = 0;
    good &= write(ends[1], memory, 1) == -1 && errno == EFAULT;
    // What other processes may look at has nothing to do with it.
    char byte = 0;
    int file = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    struct iovec to = {&byte, 1}, from = {memory, 1};
    good &= pread(file, &byte, 1, (off_t)(uintptr_t)memory) == 1 && byte == 'a';
    good &= process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
    close(file);
    deny(key, 0);
    good &= read(ends[0], memory, 1) == 1 && memory[0] == 'a';
    close(ends[0]), close(ends[1]);
    return good && give(memory, SOME * PAGE, PROT_READ | PROT_WRITE, 0) && release(key);
}

struct thread {
    int key;
    unsigned what;
    bool good;
};

static void *keeps_its_rights(void *argument) {
    struct thread *own = argument;
    unsigned found = rights() >> (2 * own->key) & 3;
    own->good = found == NO_WRITE; // the creator's
    deny(own->key, own->what);
    for (int i = 0; i < 200; i++) {
        sched_yield();
        if (i % 20 == 0)
            usleep(1000);
        own->good &= (rights() >> (2 * own->key) & 3) == own->what;
        char byte;
        struct iovec from = {memory, 1}, to = {&byte, 1};
        errno = 0;
        long copied = process_vm_writev(getpid(), &from, 1, &to, 1, 0);
        own->good &= own->what & NO_ACCESS ? copied == -1 && errno == EFAULT : copied == 1;
    }
    return NULL;
}

static bool threads_have_rights_of_their_own(void) {
    struct thread threads[6];
    pthread_t ids[6];
    int key = allocate(0);
    bool good = give(memory, SOME * PAGE, PROT_READ | PROT_WRITE, key);
    memory[0] = 1;
    deny(key, NO_WRITE);
    for (unsigned i = 0; i < 6; i++) {
        threads[i] = (struct thread){key, i % 3, false};
        good &= !pthread_create(&ids[i], NULL, keeps_its_rights, &threads[i]);
    }
    for (int i = 0; i < 6; i++)
        good &= !pthread_join(ids[i], NULL) && threads[i].good;
    good &= (rights() >> (2 * key) & 3) == NO_WRITE;
    deny(key, 0);
    return good && give(memory, SOME * PAGE, PROT_READ | PROT_WRITE, 0) && release(key);
}

// A child has the keys, the rights and the mappings of its parent.
static bool children_inherit_keys(void) {
    int key = allocate(NO_WRITE), status;
    bool good = give(memory, SOME * PAGE, PROT_READ | PROT_WRITE, key);
    pid_t child = fork();
    if (!child) {
        bool same = key_of(memory) == key && refuses(memory, true, key) && !refuses(memory, false, key);
        _exit(!(same && release(key) && !release(key)));
    }
    good &= waitpid(child, &status, 0) == child && status == 0;
    deny(key, 0);
    return good && give(memory, SOME * PAGE, PROT_READ | PROT_WRITE, 0) && release(key);
}

static unsigned in_handler;

static void notes_rights(int number) {
    (void)number;
    in_handler = rights();
    set_rights(0);
}

// A handler begins with the rights of a new program, and its own end with it.
static bool handlers_begin_with_usual_rights(void) {
    int key = allocate(0);
    unsigned before = rights();
    struct sigaction action = {.sa_handler = notes_rights};
    bool good = !sigaction(SIGUSR1, &action, NULL) && !raise(SIGUSR1);
    good &= in_handler == 0x55555554 && rights() == before && before != in_handler;
    return good && release(key);
}

// Memory that can be executed only can't be read, and has a key that is not the program's.
static bool executable_memory_is_not_readable(void) {
    bool good = !mprotect(memory, PAGE, PROT_READ | PROT_WRITE);
    memory[0] = (char)0xc3; // ret
    good &= !mprotect(memory, PAGE, PROT_EXEC);
    long key = key_of(memory);
    good &= key > 0 && refuses(memory, false, (int)key);
    ((void (*)(void))memory)();
    good &= !release((int)key) && errno == EINVAL && !give(memory + PAGE, PAGE, PROT_READ, (int)key) && errno == EINVAL;
    char *mapped = mmap(NULL, PAGE, PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    good &= key_of(mapped) == key && !munmap(mapped, PAGE);
    good &= !mprotect(memory, PAGE, PROT_READ | PROT_WRITE) && key_of(memory) == 0 && !refuses(memory, true, 0);
    return good;
}

static bool wrong_requests_are_refused(void) {
    errno = 0;
    bool good = syscall(SYS_pkey_alloc, 1, 0) == -1 && errno == EINVAL;
    good &= allocate(4) == -1 && errno == EINVAL;
    static const int wrong[] = {-2, 5, 16, 256};
    for (int i = 0; i < 4; i++)
        good &= !give(memory, PAGE, PROT_READ, wrong[i]) && errno == EINVAL && !release(wrong[i]) && errno == EINVAL;
    good &= give(memory, 0, PROT_READ, 99) && !give(memory + 1, PAGE, PROT_READ, -1) && errno == EINVAL;
    int keys[SOME], count = 0;
    while (count < SOME && (keys[count] = allocate(0)) > 0)
        count++;
    good &= errno == ENOSPC && count < SOME && count >= 13;
    while (count)
        good &= release(keys[--count]);
    return good;
}

static bool machines_without_keys_refuse_them(void) {
    bool good = give(memory, PAGE, PROT_READ, -1) && !give(memory, PAGE, PROT_READ, 1) && errno == EINVAL;
    return good && give(memory, PAGE, PROT_READ | PROT_WRITE, -1) && key_of(memory) == -1;
}

static const struct rule rules[] = {
    {"a key denies what its thread denies", a_key_denies_what_its_thread_denies},
    {"mappings have keys", mappings_have_keys},
    {"system calls obey keys", system_calls_obey_keys},
    {"threads have rights of their own", threads_have_rights_of_their_own},
    {"children inherit keys", children_inherit_keys},
    {"handlers begin with the usual rights", handlers_begin_with_usual_rights},
    {"executable memory is not readable", executable_memory_is_not_readable},
    {"wrong requests are refused", wrong_requests_are_refused},
};

static const struct rule without[] = {{"machines without keys refuse them", machines_without_keys_refuse_them}};

int main(void) {
    struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    memory = mmap(NULL, 2 * SOME * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int key = allocate(0);
    if (key < 0)
        return errno == ENOSPC ? check_rules(without, 1) : 1;
    release(key);
    return check_rules(rules, sizeof rules / sizeof *rules);
}
