// core: files with the memory of processes that a signal has ended. Prints a row for each rule; the
// status is 1 if one is broken. The rules hold on Linux. Writes to the present folder.
#include "common.h"
#include <elf.h>
#include <pthread.h>
#include <sys/procfs.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { SPARSE = 64 << 20 };

static char *core;
static size_t core_size;

// The memory of the child that ends.
static char *kept, *secret, *shared, *sparse;
static volatile char *volatile nowhere = (char *)8;

static void write_file(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, text, strlen(text)) < 0)
        die("%s", path);
    close(file);
}

// Ends a child by a signal, and reads its core. Returns the child's status.
static int end_child(int signal, rlim_t limit, const char *filter) {
    int status = -1;
    pid_t child = fork();
    if (!child) {
        struct rlimit limits = {limit, RLIM_INFINITY};
        if (setrlimit(RLIMIT_CORE, &limits))
            _exit(1);
        if (filter)
            write_file("/proc/self/coredump_filter", filter);
        memset(kept, 'k', PAGE);
        memset(secret, 's', PAGE);
        memset(shared, 'h', PAGE);
        *sparse = 'f';
        if (signal == SIGSEGV)
            *nowhere = 1;
        raise(signal);
        _exit(0);
    }
    free(core);
    core = NULL;
    core_size = 0;
    if (waitpid(child, &status, 0) != child)
        return -1;
    char path[32];
    snprintf(path, sizeof path, "core.%d", child);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat found;
    if (file >= 0 && !fstat(file, &found)) {
        core_size = (size_t)found.st_size;
        core = malloc(core_size);
        if (!core || pread(file, core, core_size, 0) != (ssize_t)core_size)
            die("%s", path);
        close(file);
        unlink(path);
    }
    return status;
}

static const Elf64_Phdr *segment(Elf64_Word type, uintptr_t address) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)core;
    const Elf64_Phdr *segments = (const Elf64_Phdr *)(core + header->e_phoff);
    for (int i = 0; i < header->e_phnum; i++)
        if (segments[i].p_type == type &&
            (type != PT_LOAD || address - segments[i].p_vaddr < segments[i].p_memsz))
            return &segments[i];
    return NULL;
}

// Returns the bytes that the core has for an address, or NULL.
static const char *at(const char *address) {
    const Elf64_Phdr *found = segment(PT_LOAD, (uintptr_t)address);
    size_t offset = found ? (uintptr_t)address - found->p_vaddr : 0;
    return found && offset < found->p_filesz ? core + found->p_offset + offset : NULL;
}

static const void *note(Elf64_Word type) {
    const Elf64_Phdr *notes = segment(PT_NOTE, 0);
    for (size_t i = 0; notes && i < notes->p_filesz;) {
        const Elf64_Nhdr *found = (const Elf64_Nhdr *)(core + notes->p_offset + i);
        size_t name = (found->n_namesz + 3) & ~3u, contents = (found->n_descsz + 3) & ~3u;
        if (found->n_type == type)
            return (const char *)(found + 1) + name;
        i += sizeof *found + name + contents;
    }
    return NULL;
}

static bool is_core(void) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)core;
    return core && core_size > sizeof *header && !memcmp(header->e_ident, ELFMAG, SELFMAG) && header->e_type == ET_CORE;
}

static bool signals_write_cores(void) {
    int status = end_child(SIGABRT, RLIM_INFINITY, NULL);
    bool good = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && WCOREDUMP(status) && is_core();
    if (!good)
        return false;
    const char *bytes = at(kept);
    good &= bytes && bytes[0] == 'k' && bytes[PAGE - 1] == 'k';
    bytes = at(shared);
    good &= bytes && *bytes == 'h';
    // Pages that were never touched read as zeros.
    bytes = at(sparse);
    good &= bytes && *bytes == 'f' && at(sparse + SPARSE - 1) && !*at(sparse + SPARSE - 1);
    const struct elf_prstatus *registers = note(NT_PRSTATUS);
    good &= registers && registers->pr_cursig == SIGABRT && registers->pr_ppid == getpid();
    const struct elf_prpsinfo *process = note(NT_PRPSINFO);
    good &= process && process->pr_ppid == getpid() && !strcmp(process->pr_fname, "core");
    good &= note(NT_AUXV) && note(NT_FILE) && *(const long *)note(NT_FILE) > 0 && note(NT_FPREGSET);
    return good;
}

static bool faults_write_cores(void) {
    int status = end_child(SIGSEGV, RLIM_INFINITY, NULL);
    bool good = WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV && WCOREDUMP(status) && is_core();
    const siginfo_t *info = good ? note(NT_SIGINFO) : NULL;
    return good && info && info->si_signo == SIGSEGV && info->si_addr == (void *)8 && info->si_code == SEGV_MAPERR;
}

static bool memory_may_be_left_out(void) {
    madvise(secret, PAGE, MADV_DONTDUMP);
    bool good = WCOREDUMP(end_child(SIGABRT, RLIM_INFINITY, NULL)) && is_core() && !at(secret) && at(kept);
    madvise(secret, PAGE, MADV_DODUMP);
    good &= WCOREDUMP(end_child(SIGABRT, RLIM_INFINITY, NULL)) && is_core() && at(secret) && *at(secret) == 's';
    good &= WCOREDUMP(end_child(SIGABRT, RLIM_INFINITY, "0x1")) && is_core() && at(kept) && !at(shared);
    return good && WCOREDUMP(end_child(SIGABRT, RLIM_INFINITY, "0x2")) && is_core() && !at(kept) && at(shared);
}

// A core ends with the last page that the limit permits. Holes do not count.
static bool limits_cut_cores(void) {
    bool good = true;
    size_t whole[2];
    for (int round = 0; round < 2; round++) {
        int status = end_child(SIGABRT, round ? 64 << 10 : RLIM_INFINITY, NULL);
        good &= WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && WCOREDUMP(status) && core;
        whole[round] = core_size;
    }
    good &= whole[1] < whole[0] && whole[1] > 32 << 10 && !memcmp(core, ELFMAG, SELFMAG);
    int status = end_child(SIGABRT, PAGE, NULL);
    return good && WCOREDUMP(status) && core && core_size <= PAGE;
}

static bool limits_forbid_cores(void) {
    int status = end_child(SIGABRT, PAGE - 1, NULL);
    bool good = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && !WCOREDUMP(status) && !core;
    status = end_child(SIGABRT, 0, NULL);
    good &= WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && !WCOREDUMP(status) && !core;
    status = end_child(SIGTERM, RLIM_INFINITY, NULL);
    return good && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM && !WCOREDUMP(status) && !core;
}

static void *wait_forever(void *unused) {
    pause();
    return unused;
}

static bool waitid_tells_cores(void) {
    siginfo_t info = {0};
    pid_t child = fork();
    if (!child) {
        struct rlimit limits = {RLIM_INFINITY, RLIM_INFINITY};
        pthread_t thread;
        setrlimit(RLIMIT_CORE, &limits);
        pthread_create(&thread, NULL, wait_forever, NULL);
        abort();
    }
    bool good = !waitid(P_PID, (id_t)child, &info, WEXITED) && info.si_code == CLD_DUMPED && info.si_status == SIGABRT;
    char path[32];
    snprintf(path, sizeof path, "core.%d", child);
    return !unlink(path) && good;
}

static const struct rule rules[] = {
    {"signals write cores", signals_write_cores},
    {"faults write cores", faults_write_cores},
    {"memory may be left out", memory_may_be_left_out},
    {"limits cut cores", limits_cut_cores},
    {"limits forbid cores", limits_forbid_cores},
    {"waitid tells cores", waitid_tells_cores},
};

int main(void) {
    char before[256] = {0};
    int file = open("/proc/sys/kernel/core_pattern", O_RDONLY | O_CLOEXEC);
    if (file < 0 || read(file, before, sizeof before - 1) < 0)
        die("core_pattern");
    close(file);
    write_file("/proc/sys/kernel/core_pattern", "core.%p");
    int prot = PROT_READ | PROT_WRITE;
    kept = mmap(NULL, PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    secret = mmap(NULL, PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    shared = mmap(NULL, PAGE, prot, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sparse = mmap(NULL, SPARSE, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    madvise(sparse, SPARSE, MADV_NOHUGEPAGE);
    int status = check_rules(rules, sizeof rules / sizeof *rules);
    write_file("/proc/sys/kernel/core_pattern", before);
    return status;
}
