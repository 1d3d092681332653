// patterns: the contents of memory after fork, mprotect, mremap, madvise and munmap, and the signal
// that an access raises where it is not allowed. Prints a row for each rule; the status is 1 if one
// is broken.
#include "common.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const size_t length = 5 * HUGE + 3 * PAGE;

static sigjmp_buf back;
static volatile siginfo_t seen;

static void handle_signal(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    seen = *info;
    siglongjmp(back, 1);
}

// Returns the signal that an access raises, or 0; its address and code are in `seen`.
static int raises(volatile char *at, bool write) {
    if (sigsetjmp(back, 1))
        return seen.si_signo;
    if (write)
        *at = 1;
    else
        (void)*at;
    return 0;
}

static bool raised(volatile char *at, bool write, int signal, int code) {
    return raises(at, write) == signal && seen.si_addr == (void *)at && seen.si_code == code;
}

static char *map(size_t size, int flags) {
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    return memory;
}

// Checks that each page of a range holds what `touch` wrote.
static bool holds(const char *memory, size_t from, size_t to, uint64_t pattern) {
    for (size_t at = from; at < to; at += PAGE)
        if (*(const volatile uint64_t *)(memory + at) != pattern + at)
            return false;
    return true;
}

static bool is_zero(const char *memory, size_t size) {
    for (size_t at = 0; at < size; at += 8)
        if (*(const volatile uint64_t *)(memory + at))
            return false;
    return true;
}

// Runs a check in a child, and returns its result.
static bool in_child(bool (*check)(char *), char *memory) {
    pid_t child = fork();
    if (!child)
        _exit(check(memory) ? 0 : 1);
    int status;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static bool new_memory_is_zero(void) {
    char *memory = map(length, MAP_PRIVATE);
    bool good = is_zero(memory, length);
    touch(memory, length, 1);
    good &= holds(memory, 0, length, 1) && !munmap(memory, length);
    memory = map(length, MAP_PRIVATE);
    good &= is_zero(memory, length);
    return !munmap(memory, length) && good;
}

static bool child_changes(char *memory) {
    bool good = holds(memory, 0, length, 1);
    touch(memory, length / 2, 2);
    return good && holds(memory, 0, length / 2, 2);
}

static bool fork_copies(void) {
    char *memory = map(length, MAP_PRIVATE);
    touch(memory, length, 1);
    bool good = in_child(child_changes, memory) && holds(memory, 0, length, 1);
    // The parent writes, and the child must not see it.
    int ways[2];
    if (pipe(ways))
        die("pipe");
    pid_t child = fork();
    char word;
    if (!child)
        _exit(read(ways[0], &word, 1) == 1 && holds(memory, 0, length, 1) ? 0 : 1);
    touch(memory, length, 3);
    int status;
    good &= write(ways[1], "x", 1) == 1 && waitpid(child, &status, 0) == child && !status;
    close(ways[0]), close(ways[1]);
    good &= holds(memory, 0, length, 3);
    return !munmap(memory, length) && good;
}

static bool shared_is_shared(void) {
    char *memory = map(length, MAP_SHARED);
    touch(memory, length, 1);
    bool good = in_child(child_changes, memory);
    size_t middle = (length / 2 + PAGE - 1) & ~(size_t)(PAGE - 1);
    good &= holds(memory, 0, middle, 2) && holds(memory, middle, length, 1);
    return !munmap(memory, length) && good;
}

static bool grandchild(char *memory) {
    touch(memory, PAGE * 40, 7);
    return in_child(child_changes, memory) == false && holds(memory, 0, PAGE * 40, 7);
}

static bool grandchild_copies(void) {
    char *memory = map(length, MAP_PRIVATE);
    touch(memory, length, 1);
    // The grandchild finds another pattern than it expects, and so must fail.
    bool good = in_child(grandchild, memory) && holds(memory, 0, length, 1);
    return !munmap(memory, length) && good;
}

static bool protection_holds(void) {
    char *memory = map(length, MAP_PRIVATE);
    touch(memory, length, 1);
    bool good = !mprotect(memory + PAGE, HUGE, PROT_READ);
    good &= raised(memory + PAGE, true, SIGSEGV, SEGV_ACCERR) && raised(memory + HUGE, true, SIGSEGV, SEGV_ACCERR);
    good &= !raises(memory, true) && !raises(memory + PAGE + HUGE, true);
    good &= !mprotect(memory, length, PROT_NONE);
    good &= raised(memory + 5, false, SIGSEGV, SEGV_ACCERR);
    good &= !mprotect(memory, length, PROT_READ | PROT_WRITE);
    good &= holds(memory, PAGE, PAGE + HUGE, 1) && holds(memory, 2 * HUGE, length, 1);
    return !munmap(memory, length) && good;
}

static bool munmap_leaves_a_hole(void) {
    char *memory = map(length, MAP_PRIVATE);
    touch(memory, length, 1);
    bool good = !munmap(memory + 3 * PAGE, HUGE);
    good &= raised(memory + 3 * PAGE, false, SIGSEGV, SEGV_MAPERR);
    good &= raised(memory + 2 * PAGE + HUGE + 7, true, SIGSEGV, SEGV_MAPERR);
    good &= holds(memory, 0, 3 * PAGE, 1) && holds(memory, 3 * PAGE + HUGE, length, 1);
    return !munmap(memory, length) && good;
}

static bool dontneed_reads_as_zeros(void) {
    char *memory = map(length, MAP_PRIVATE);
    touch(memory, length, 1);
    bool good = !madvise(memory + 2 * PAGE, HUGE, MADV_DONTNEED);
    good &= is_zero(memory + 2 * PAGE, HUGE) && holds(memory, 0, 2 * PAGE, 1);
    good &= holds(memory, 2 * PAGE + HUGE, length, 1);
    touch(memory, length, 5);
    good &= holds(memory, 0, length, 5);
    return !munmap(memory, length) && good;
}

static bool mremap_moves(void) {
    char *memory = map(length, MAP_PRIVATE), *place = map(2 * length, MAP_PRIVATE);
    touch(memory, length, 1);
    char *now = mremap(memory, length, 2 * length, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    bool good = now == place && holds(now, 0, length, 1) && is_zero(now + length, length);
    good &= raised(memory, false, SIGSEGV, SEGV_MAPERR);
    good &= mremap(now, 2 * length, HUGE, 0) == now && holds(now, 0, HUGE, 1);
    good &= raised(now + HUGE, false, SIGSEGV, SEGV_MAPERR);
    return !munmap(now, HUGE) && good;
}

static bool file_mappings_are_the_file(void) {
    int file = memfd_create("patterns", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, HUGE + PAGE / 2))
        die("memfd_create");
    size_t size = HUGE + 2 * PAGE;
    char *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *own = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (shared == MAP_FAILED || own == MAP_FAILED)
        die("mmap");
    touch(shared, HUGE, 1);
    touch(own, HUGE / 2, 2);
    uint64_t word;
    bool good = holds(shared, 0, HUGE, 1) && holds(own, 0, HUGE / 2, 2) && holds(own, HUGE / 2, HUGE, 1);
    good &= pread(file, &word, 8, PAGE) == 8 && word == 1 + PAGE;
    good &= !raises(shared + HUGE + PAGE - 1, true) && raised(shared + HUGE + PAGE, true, SIGBUS, BUS_ADRERR);
    good &= raised(own + HUGE + PAGE, false, SIGBUS, BUS_ADRERR);
    good &= !ftruncate(file, PAGE) && raised(shared + PAGE, false, SIGBUS, BUS_ADRERR);
    good &= raised(own + PAGE, false, SIGBUS, BUS_ADRERR) && *(uint64_t *)own == 2;
    close(file);
    return !munmap(shared, size) && !munmap(own, size) && good;
}

// Executes a file in a child. Returns the error, or 0.
static int exec_error(const char *path) {
    pid_t child = fork();
    if (!child) {
        execl(path, path, "-", (char *)NULL);
        _exit(errno);
    }
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool no_mapping_writes_to_a_program(void) {
    static const char script[] = "#!/proc/self/exe -\n", *path = "/tmp/patterns-program";
    mkdir("/tmp", 0777);
    int file = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0755);
    if (file < 0 || write(file, script, sizeof script - 1) != sizeof script - 1)
        die("%s", path);
    char *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    bool good = shared != MAP_FAILED && exec_error(path) == ETXTBSY;
    close(file);
    good &= exec_error(path) == ETXTBSY;
    munmap(shared, PAGE);
    good &= exec_error(path) == 0;
    unlink(path);
    return good;
}

static bool kernel_addresses_fault(void) {
    bool good = raised((char *)0, false, SIGSEGV, SEGV_MAPERR);
    good &= raised((char *)PAGE, true, SIGSEGV, SEGV_MAPERR);
    good &= raises((char *)-PAGE, false) == SIGSEGV && raises((char *)(UINT64_C(1) << 62), true) == SIGSEGV;
    return good;
}

static int deep(int depth) {
    volatile char frame[PAGE];
    frame[0] = (char)depth;
    return depth ? deep(depth - 1) + frame[0] : 0;
}

static bool stack_grows_to_its_limit(void) {
    struct rlimit limit;
    volatile bool good = !getrlimit(RLIMIT_STACK, &limit);
    good &= deep(256) != -1;
    // Recursion without end: the handler runs on the alternate stack.
    if (!sigsetjmp(back, 1))
        return deep(1 << 20) == -1;
    return good && seen.si_signo == SIGSEGV;
}

// Reads the soft-dirty bit of a page.
static bool is_soft_dirty(int pagemap, const char *page) {
    uint64_t entry = 0;
    return pread(pagemap, &entry, sizeof entry, (off_t)((uintptr_t)page / PAGE * sizeof entry)) == sizeof entry && entry >> 55 & 1;
}

// Soft-dirty is exact to the page, whatever the hardware maps at once, and a child has bits of its
// own; where the kernel implements it.
static bool soft_dirty(void) {
    enum { PAGES = 64 };
    char *memory = map_aligned(HUGE);
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    madvise(memory, HUGE, MADV_NOHUGEPAGE);
    touch(memory, PAGES * PAGE, 1);
    bool good = pagemap >= 0;
    if (!is_soft_dirty(pagemap, memory)) { // the kernel does not implement it
        close(pagemap);
        munmap(memory, HUGE);
        return good;
    }
    good &= write_line("/proc/self/clear_refs", "4") && !is_soft_dirty(pagemap, memory);
    for (int page = 0; page < PAGES; page++) {
        if (page % 5 == 2)
            memory[page * PAGE + 9] = 7;
        good &= memory[page * PAGE] == (char)(1 + page * PAGE);
    }
    int status = 1;
    pid_t child = fork();
    if (!child) {
        int own = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
        memory[0] = 1;
        _exit(!is_soft_dirty(own, memory) || !is_soft_dirty(own, memory + 2 * PAGE) || is_soft_dirty(own, memory + PAGE));
    }
    good &= waitpid(child, &status, 0) == child && status == 0;
    for (int page = 0; page < PAGES; page++)
        good &= is_soft_dirty(pagemap, memory + page * PAGE) == (page % 5 == 2);
    close(pagemap);
    munmap(memory, HUGE);
    return good;
}

static const struct rule rules[] = {
    {"new memory is zero", new_memory_is_zero},
    {"fork copies what is written", fork_copies},
    {"shared memory is shared", shared_is_shared},
    {"a grandchild copies what it writes", grandchild_copies},
    {"protection holds, and SIGSEGV has the address", protection_holds},
    {"munmap removes its range and nothing else", munmap_leaves_a_hole},
    {"memory reads as zeros after MADV_DONTNEED", dontneed_reads_as_zeros},
    {"mremap moves contents", mremap_moves},
    {"a file mapping has the file's contents, and ends with it", file_mappings_are_the_file},
    {"no mapping writes to a program that runs", no_mapping_writes_to_a_program},
    {"an access to a kernel address raises SIGSEGV", kernel_addresses_fault},
    {"a stack grows to its limit", stack_grows_to_its_limit},
    {"written pages are soft-dirty", soft_dirty},
};

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "-"))
        return 0;
    static char handlers[64 << 10];
    stack_t stack = {.ss_sp = handlers, .ss_size = sizeof handlers};
    struct sigaction action = {.sa_sigaction = handle_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    if (sigaltstack(&stack, NULL) || sigaction(SIGSEGV, &action, NULL) || sigaction(SIGBUS, &action, NULL))
        die("sigaction");
    return check_rules(rules, sizeof rules / sizeof *rules);
}
