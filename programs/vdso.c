// vdso: the shared object by which programs read the clocks without a system call. Prints a row for
// each rule; the status is 1 if one is broken. The rules hold on Linux.
#include "common.h"
#include <elf.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>

#ifdef __x86_64__
#define NAME(call) "__vdso_" #call
#define VERSION "LINUX_2.6"
#else
#define NAME(call) "__kernel_" #call
#define VERSION "LINUX_2.6.39"
#endif

typedef int (*clock_call)(clockid_t, struct timespec *);

// The address at which the object lies.
static uintptr_t base;

// Returns the address of a function of the object, or NULL; dies where the object is malformed.
static void *find(const char *name) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)base;
    if (!base || memcmp(header->e_ident, ELFMAG, SELFMAG) || header->e_type != ET_DYN)
        die("AT_SYSINFO_EHDR is not the address of a shared object");
    const Elf64_Phdr *segments = (const Elf64_Phdr *)(base + header->e_phoff);
    const Elf64_Dyn *dynamic = NULL;
    uintptr_t bias = 0;
    for (int i = 0; i < header->e_phnum; i++) {
        if (segments[i].p_type == PT_LOAD)
            bias = base + segments[i].p_offset - segments[i].p_vaddr;
        if (segments[i].p_type == PT_DYNAMIC)
            dynamic = (const Elf64_Dyn *)(base + segments[i].p_offset);
    }
    const char *strings = NULL;
    const Elf64_Sym *symbols = NULL;
    const Elf64_Half *versions = NULL;
    const Elf64_Verdef *definitions = NULL;
    const uint32_t *hash = NULL, *gnu_hash = NULL;
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        const void *at = (const void *)(bias + dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_STRTAB)
            strings = at;
        else if (dynamic->d_tag == DT_SYMTAB)
            symbols = at;
        else if (dynamic->d_tag == DT_VERSYM)
            versions = at;
        else if (dynamic->d_tag == DT_VERDEF)
            definitions = at;
        else if (dynamic->d_tag == DT_HASH)
            hash = at;
        else if (dynamic->d_tag == DT_GNU_HASH)
            gnu_hash = at;
    }
    if (!strings || !symbols || !versions || !definitions || (!hash && !gnu_hash))
        die("a table is missing");
    // The symbols end where the strings begin, in the objects of both kernels.
    for (const Elf64_Sym *symbol = symbols; (const char *)symbol < strings; symbol++, versions++) {
        if (symbol->st_shndx == SHN_UNDEF || strcmp(strings + symbol->st_name, name))
            continue;
        const Elf64_Verdef *version = definitions;
        while ((version->vd_ndx & 0x7fff) != (*versions & 0x7fff) && version->vd_next)
            version = (const void *)((const char *)version + version->vd_next);
        const Elf64_Verdaux *named = (const void *)((const char *)version + version->vd_aux);
        if (strcmp(strings + named->vda_name, VERSION))
            die("%s has version %s", name, strings + named->vda_name);
        return (void *)(bias + symbol->st_value);
    }
    return NULL;
}

static int64_t ns_of(struct timespec time) {
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

// Each clock of the machine reads between two system calls that read it.
static bool clocks_agree_with_the_calls(void) {
    static const clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME, CLOCK_TAI};
    clock_call gettime = find(NAME(clock_gettime));
    bool good = gettime;
    for (unsigned i = 0; good && i < sizeof clocks / sizeof *clocks; i++)
        for (int times = 0; times < 1000; times++) {
            struct timespec before, now, after;
            good &= !syscall(SYS_clock_gettime, clocks[i], &before) && !gettime(clocks[i], &now);
            good &= !syscall(SYS_clock_gettime, clocks[i], &after) && now.tv_nsec >= 0 && now.tv_nsec < 1000000000;
            good &= ns_of(before) <= ns_of(now) && ns_of(now) <= ns_of(after);
        }
    struct timespec coarse, fine;
    good &= !gettime(CLOCK_MONOTONIC_COARSE, &coarse) && !gettime(CLOCK_MONOTONIC, &fine);
    good &= ns_of(coarse) <= ns_of(fine) && ns_of(fine) - ns_of(coarse) < 1000000000;
    return good;
}

// Clocks of threads, and wrong ones, are left to the system call.
static bool other_clocks_are_read_by_calls(void) {
    clock_call gettime = find(NAME(clock_gettime)), getres = find(NAME(clock_getres));
    struct timespec first, second, result;
    bool good = !gettime(CLOCK_THREAD_CPUTIME_ID, &first) && !gettime(CLOCK_PROCESS_CPUTIME_ID, &second);
    for (volatile int i = 0; i < 1000000; i++)
        ;
    good &= !gettime(CLOCK_THREAD_CPUTIME_ID, &second) && ns_of(second) > ns_of(first);
    good &= gettime(99, &result) == -EINVAL && getres(99, &result) == -EINVAL && getres(99, NULL) == -EINVAL;
    return good && !getres(CLOCK_MONOTONIC, NULL) && !getres(CLOCK_MONOTONIC, &result) && ns_of(result) == 1;
}

static bool the_time_of_day_is_the_wall_clock(void) {
    int (*gettimeofday_of)(struct timeval *, struct timezone *) = find(NAME(gettimeofday));
    struct timespec before, after;
    struct timeval now;
    struct timezone zone = {1, 1};
    clock_gettime(CLOCK_REALTIME, &before);
    bool good = gettimeofday_of && !gettimeofday_of(&now, &zone) && !gettimeofday_of(NULL, NULL);
    clock_gettime(CLOCK_REALTIME, &after);
    int64_t ns = now.tv_sec * 1000000000 + now.tv_usec * 1000;
    good &= ns_of(before) / 1000 * 1000 <= ns && ns <= ns_of(after) && !zone.tz_minuteswest && !zone.tz_dsttime;
#ifdef __x86_64__
    time_t (*time_of)(time_t *) = find(NAME(time)), stored = 0;
    time_t seconds = time_of(&stored);
    good &= seconds == stored && seconds >= before.tv_sec && seconds <= after.tv_sec + 1 && time_of(NULL) >= seconds;
#endif
    return good;
}

// The clock never goes back, whichever CPU a thread runs on.
static _Atomic int64_t latest;
static _Atomic bool went_back;

static void *read_clock(void *unused) {
    clock_call gettime = find(NAME(clock_gettime));
    for (int i = 0; i < 20000; i++) {
        int64_t seen = latest;
        struct timespec now;
        gettime(CLOCK_MONOTONIC, &now);
        if (ns_of(now) < seen)
            went_back = true;
        while (ns_of(now) > seen && !__atomic_compare_exchange_n(&latest, &seen, ns_of(now), false, 5, 5))
            ;
    }
    return unused;
}

static bool the_clock_is_monotonic_across_cpus(void) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        if (pthread_create(&threads[i], NULL, read_clock, NULL))
            return false;
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    return latest > 0 && !went_back;
}

#ifdef __x86_64__
// The CPU is one of the machine's, and its node is the one that the system call has.
static bool the_cpu_is_known(void) {
    int (*getcpu_of)(unsigned *, unsigned *, void *) = find(NAME(getcpu));
    bool same = false;
    for (int i = 0; i < 100 && !same; i++) {
        unsigned cpus[3], nodes[3];
        syscall(SYS_getcpu, &cpus[0], &nodes[0], NULL);
        if (!getcpu_of || getcpu_of(&cpus[1], &nodes[1], NULL) || getcpu_of(NULL, NULL, NULL))
            return false;
        syscall(SYS_getcpu, &cpus[2], &nodes[2], NULL);
        if (cpus[1] >= (unsigned)sysconf(_SC_NPROCESSORS_CONF))
            return false;
        // The thread may have moved in between.
        same = cpus[0] == cpus[1] && cpus[1] == cpus[2] && nodes[0] == nodes[1];
    }
    return same;
}

static volatile sig_atomic_t denied;

static void on_denial(int signal) {
    (void)signal;
    denied++;
    prctl(PR_SET_TSC, PR_TSC_ENABLE);
}

// A thread that may not read the counter can't read the clock so, either.
static bool a_denied_counter_denies_the_clock(void) {
    clock_call gettime = find(NAME(clock_gettime));
    struct timespec now;
    signal(SIGSEGV, on_denial);
    bool good = !prctl(PR_SET_TSC, PR_TSC_SIGSEGV) && !gettime(CLOCK_MONOTONIC, &now) && denied == 1;
    signal(SIGSEGV, SIG_DFL);
    return good && now.tv_nsec < 1000000000;
}
#endif

struct part {
    uintptr_t start, end;
};

// Returns the parts of the object, and of the pages that it reads, by ascending address.
static int parts_of(struct part *parts, int most, bool *executable) {
    FILE *file = fopen("/proc/self/maps", "re");
    char line[512];
    int count = 0;
    *executable = false;
    while (file && fgets(line, sizeof line, file)) {
        unsigned long start, end;
        char rights[5];
        bool code = strstr(line, "[vdso]");
        if ((!code && !strstr(line, "[vvar")) || sscanf(line, "%lx-%lx %4s", &start, &end, rights) != 3)
            continue;
        *executable |= code && start == base && !strcmp(rights, "r-xp");
        if (!code && strcmp(rights, "r--p"))
            die("the data has the rights %s", rights);
        if (count < most)
            parts[count++] = (struct part){start, end};
    }
    if (file)
        fclose(file);
    return count;
}

static bool maps_shows_both_parts(void) {
    struct part parts[8];
    bool executable;
    int count = parts_of(parts, 8, &executable);
    return count >= 2 && executable;
}

static volatile sig_atomic_t handled;

static void on_signal(int signal) {
    (void)signal;
    handled++;
}

// Registers a handler without the C library, which adds a restorer where the kernel wants one.
static bool handlers_return(void) {
#ifdef __aarch64__
    struct {
        void (*handler)(int);
        unsigned long flags;
        void *restorer;
        unsigned long mask;
    } action = {on_signal, 0, NULL, 0};
    if (syscall(SYS_rt_sigaction, SIGUSR1, &action, NULL, 8))
        return false;
#else
    signal(SIGUSR1, on_signal);
#endif
    int before = handled;
    for (int i = 0; i < 10; i++)
        raise(SIGUSR1);
    return handled == before + 10;
}

// The object works in a child, and where a program moves all of it.
static bool a_program_may_move_it(void) {
    int status = -1;
    pid_t child = fork();
    if (!child) {
        struct part parts[8];
        bool executable, good = clocks_agree_with_the_calls();
        int count = parts_of(parts, 8, &executable);
        if (count < 2)
            _exit(1);
        uintptr_t length = parts[count - 1].end - parts[0].start;
        char *room = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        uintptr_t moved = (uintptr_t)room - parts[0].start;
        for (int i = 0; i < count; i++) {
            size_t part = parts[i].end - parts[i].start;
            void *to = (void *)(parts[i].start + moved);
            void *at = (void *)syscall(SYS_mremap, parts[i].start, part, part, MREMAP_MAYMOVE | MREMAP_FIXED, to);
            good &= at == to;
        }
        base += moved;
        good &= parts_of(parts, 8, &executable) == count && executable && handlers_return();
        clock_call gettime = find(NAME(clock_gettime));
        for (int times = 0; times < 1000; times++) {
            struct timespec before, now, after;
            good &= !syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &before) && !gettime(CLOCK_MONOTONIC, &now);
            good &= !syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &after);
            good &= ns_of(before) <= ns_of(now) && ns_of(now) <= ns_of(after);
        }
        _exit(!good);
    }
    return handlers_return() && waitpid(child, &status, 0) == child && status == 0;
}

// A program may write to its own copy of the code, which others do not see.
static bool a_copy_is_private(void) {
    int status = -1;
    pid_t child = fork();
    if (!child) {
        unsigned char *last = (unsigned char *)base + PAGE - 1;
        struct part parts[8];
        bool executable;
        // Linux splits no part.
        size_t length = parts[parts_of(parts, 8, &executable) - 1].end - base;
        if (mprotect((void *)base, length, PROT_READ | PROT_WRITE | PROT_EXEC))
            _exit(1);
        unsigned char before = *last;
        *(volatile unsigned char *)last = (unsigned char)(before + 1);
        _exit(*(volatile unsigned char *)last == before);
    }
    unsigned char before = *((unsigned char *)base + PAGE - 1);
    bool good = waitpid(child, &status, 0) == child && status == 0;
    return good && *(volatile unsigned char *)(base + PAGE - 1) == before;
}

static const struct rule rules[] = {
    {"clocks agree with the calls", clocks_agree_with_the_calls},
    {"other clocks are read by calls", other_clocks_are_read_by_calls},
    {"the time of day is the wall clock", the_time_of_day_is_the_wall_clock},
    {"the clock is monotonic across CPUs", the_clock_is_monotonic_across_cpus},
#ifdef __x86_64__
    {"the CPU is known", the_cpu_is_known},
    {"a denied counter denies the clock", a_denied_counter_denies_the_clock},
#endif
    {"maps shows both parts", maps_shows_both_parts},
    {"a program may move it", a_program_may_move_it},
    {"a copy is private", a_copy_is_private},
};

int main(void) {
    base = getauxval(AT_SYSINFO_EHDR);
    return check_rules(rules, sizeof rules / sizeof *rules);
}
