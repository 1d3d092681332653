// userfaultfd: shared memory, minor faults, moves of pages, and events of changes of memory; the
// faults that a file does not resolve; and what /dev and /proc show of it. The rules hold on Linux.
// Prints a row for each rule.
#include "common.h"
#include <linux/types.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

// As in linux/userfaultfd.h, which is older on some systems.
enum { PAGES = 16, MISSING = 1, WRITES = 2, MINOR = 4, PROTECT = 2, HOLES = 2 };
enum { FAULT = 0x12, FORKED = 0x13, MOVED = 0x14, REMOVED = 0x15, UNMAPPED = 0x16 };
enum { FLAG_WRITE = 1, FLAG_WP = 2, FLAG_MINOR = 4 };
enum {
    FORKS = 1 << 1,
    REMAPS = 1 << 2,
    REMOVES = 1 << 3,
    UNMAPS = 1 << 6,
    BUS_ERRORS = 1 << 7,
    EXACT = 1 << 11,
    ALL = (1 << 17) - 1
};
struct message {
    uint8_t event, reserved[7];
    uint64_t words[3];
};
struct api {
    uint64_t api, features, requests;
};
struct use {
    uint64_t start, length, mode;
    int64_t answer;
};
struct copy {
    uint64_t to, from, length, mode;
    int64_t answer;
};
#define REQUEST(number, type) _IOWR(0xaa, number, type)
#define API REQUEST(0x3f, struct api)
#define REGISTER REQUEST(0, struct use)
#define UNREGISTER _IOR(0xaa, 1, uint64_t[2])
#define COPY REQUEST(3, struct copy)
#define ZEROS REQUEST(4, struct use)
#define MOVE REQUEST(5, struct copy)
#define WRITE_PROTECT REQUEST(6, uint64_t[3])
#define CONTINUE REQUEST(7, struct use)
#define POISON REQUEST(8, struct use)
#define NEW _IO(0xaa, 0)

static int file;
static long page;
static uint64_t features;

// Opens a userfaultfd with features. Returns false if the kernel does not have them.
static bool begin(uint64_t wanted) {
    page = sysconf(_SC_PAGESIZE);
    file = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct api api = {0xaa, wanted, 0};
    bool good = file >= 0 && !ioctl(file, API, &api) && (api.requests & 3) == 3;
    features = api.features;
    return good;
}

// Returns the requests that a registration reports, or −errno.
static int64_t use(void *at, long pages, uint64_t mode) {
    struct use request = {(uint64_t)at, (uint64_t)(pages * page), mode, 0};
    return ioctl(file, REGISTER, &request) ? -errno : request.answer;
}

// Fills pages, by a request with four words. Returns its answer, or 0 if errno has another error.
static int64_t fill(unsigned long request, void *at, long pages, uint64_t mode) {
    struct use wanted = {(uint64_t)at, (uint64_t)(pages * page), mode, 7};
    bool failed = ioctl(file, request, &wanted) == -1;
    return failed == (wanted.answer < 0) && (!failed || errno == -wanted.answer) ? wanted.answer : 0;
}

// Copies or moves pages.
static int64_t put(unsigned long request, void *to, void *from, long pages, uint64_t mode) {
    struct copy wanted = {(uint64_t)to, (uint64_t)from, (uint64_t)(pages * page), mode, 7};
    bool failed = ioctl(file, request, &wanted) == -1;
    if (failed && errno == EAGAIN && wanted.answer > 0)
        return wanted.answer;
    return failed == (wanted.answer < 0) && (!failed || errno == -wanted.answer) ? wanted.answer : -errno;
}

static int protect(void *at, long pages, uint64_t mode) {
    uint64_t request[3] = {(uint64_t)at, (uint64_t)(pages * page), mode};
    return ioctl(file, WRITE_PROTECT, request) ? -errno : 0;
}

// Waits for a message.
static struct message next(void) {
    struct message message = {0};
    struct pollfd ready = {file, POLLIN, 0};
    if (poll(&ready, 1, 10000) != 1 || read(file, &message, sizeof message) != sizeof message)
        message.event = 0;
    return message;
}

static char *anonymous(long pages) {
    return mmap(NULL, (size_t)(pages * page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// A thread that does something to memory, and what it found.
struct task {
    char *at, *to;
    int what, value;
};

static void *act(void *argument) {
    struct task *task = argument;
    size_t length = (size_t)page;
    switch (task->what) {
    case 'r': task->value = *(volatile char *)task->at; break;
    case 'w': *(volatile char *)task->at = (char)task->value; break;
    case 'd': task->value = madvise(task->at, length, MADV_DONTNEED); break;
    case 'p': task->value = madvise(task->at, length, MADV_REMOVE); break;
    case 'u': task->value = munmap(task->at, length); break;
    case 'f': task->value = mmap(task->at, length, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != task->at; break;
    case 'm': task->value = mremap(task->at, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, task->to) != task->to; break;
    }
    return NULL;
}

// The memory of a file, mapped twice.
static char *views[2];

static void map_file(int flags) {
    int shared = memfd_create("memory", MFD_CLOEXEC);
    size_t length = (size_t)(PAGES * page);
    if (ftruncate(shared, (off_t)length))
        _exit(2);
    views[0] = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, shared, 0);
    views[1] = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
    close(shared);
}

static bool finish(void) {
    for (int i = 0; i < 2; i++)
        if (views[i])
            munmap(views[i], (size_t)(PAGES * page));
    views[0] = views[1] = NULL;
    return !close(file);
}

// The file reports its features and requests; a wrong version or unknown features are refused.
static bool features_are_reported(void) {
    bool good = begin(0) && (features & ALL) == ALL;
    struct api again = {0xaa, 0, 0};
    good &= ioctl(file, API, &again) == -1 && errno == EINVAL && !again.api && !again.features;
    char *memory = anonymous(1);
    int64_t basic = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8;
    good &= use(memory, 1, MISSING) == basic && use(memory, 1, MISSING | WRITES) == (basic | 1 << 6);
    good &= use(memory, 1, MINOR) == -EINVAL && use(memory, 1, 16 << 4) == -EINVAL && use(memory, 1, 0) == -EINVAL;
    close(file);
    file = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct api wrong = {0xab, 0, 0}, unknown = {0xaa, 1ull << 63, 0};
    good &= ioctl(file, API, &wrong) == -1 && errno == EINVAL && ioctl(file, API, &unknown) == -1 && errno == EINVAL;
    good &= use(memory, 1, MISSING) == -EINVAL;
    munmap(memory, (size_t)page);
    return finish() && good;
}

// A page that a file in memory does not have is missing; the answer becomes a page of the file.
static bool shared_memory_has_missing_pages(void) {
    bool good = begin(0);
    char *source = anonymous(1);
    memset(source, 'a', (size_t)page);
    map_file(MAP_SHARED);
    good &= use(views[0], PAGES, MISSING) > 0;
    struct task reads = {views[0] + page, NULL, 'r', 0};
    pthread_t thread;
    pthread_create(&thread, NULL, act, &reads);
    struct message told = next();
    good &= told.event == FAULT && told.words[0] == 0 && told.words[1] == (uint64_t)views[0] + (uint64_t)page;
    good &= put(COPY, views[0] + page, source, 1, 0) == page && !pthread_join(thread, NULL) && reads.value == 'a';
    good &= views[1][page + 5] == 'a';
    views[1][2 * page] = 'b';
    good &= views[0][2 * page] == 'b' && put(COPY, views[0] + 2 * page, source, 1, 0) == -EEXIST;
    good &= fill(ZEROS, views[0] + 3 * page, 1, 0) == page && fill(ZEROS, views[0] + 3 * page, 1, 0) == -EEXIST;
    views[0][3 * page] = 'c';
    good &= views[1][3 * page] == 'c' && put(COPY, views[0], source, 1, PROTECT) == -EINVAL;
    good &= put(COPY, views[1], source, 1, 0) == -ENOENT;
    munmap(source, (size_t)page);
    return finish() && good;
}

// A private mapping of a file is filled by private copies.
static bool private_mappings_of_files_are_filled(void) {
    bool good = begin(0);
    char *source = anonymous(1);
    memset(source, 'a', (size_t)page);
    map_file(MAP_PRIVATE);
    good &= use(views[0], PAGES, MISSING) > 0 && put(COPY, views[0], source, 1, 0) == page && views[0][7] == 'a';
    good &= fill(ZEROS, views[0] + page, 1, 0) == page && views[1][0] == 0;
    views[1][page] = 'b';
    good &= views[0][page] == 0;
    views[0][page] = 'd';
    good &= views[0][page] == 'd' && views[1][page] == 'b' && views[0][page + 1] == 0;
    munmap(source, (size_t)page);
    return finish() && good;
}

// A page that the file has and that is not mapped is a minor fault.
static bool pages_of_the_file_are_minor_faults(void) {
    bool good = begin(EXACT);
    map_file(MAP_SHARED);
    good &= (use(views[0], PAGES, MINOR | WRITES) & (1 << 7 | 1 << 6)) == (1 << 7 | 1 << 6);
    memset(views[1], 'a', (size_t)(4 * page));
    struct task reads = {views[0] + page + 9, NULL, 'r', 0};
    pthread_t thread;
    pthread_create(&thread, NULL, act, &reads);
    struct message told = next();
    good &= told.event == FAULT && told.words[0] == FLAG_MINOR && told.words[1] == (uint64_t)views[0] + (uint64_t)page + 9;
    views[1][page + 9] = 'b';
    good &= fill(CONTINUE, views[0] + page, 1, PROTECT) == page && !pthread_join(thread, NULL) && reads.value == 'b';
    good &= fill(CONTINUE, views[0] + page, 1, 0) == -EEXIST && fill(CONTINUE, views[0] + 5 * page, 1, 0) == -EFAULT;
    struct task writes = {views[0] + page, NULL, 'w', 'c'};
    pthread_create(&thread, NULL, act, &writes);
    told = next();
    good &= told.event == FAULT && told.words[0] == (FLAG_WRITE | FLAG_WP);
    good &= !protect(views[0] + page, 1, 0) && !pthread_join(thread, NULL) && views[1][page] == 'c';
    good &= fill(CONTINUE, views[0] + 2 * page, 2, 0) == 2 * page && views[0][3 * page] == 'a';
    // Write protection stays when the pages are unmapped, but not the mapping.
    good &= !protect(views[0] + 2 * page, 1, 1) && !madvise(views[0] + 2 * page, (size_t)page, MADV_DONTNEED);
    good &= fill(CONTINUE, views[0] + 2 * page, 1, 0) == page;
    return finish() && good;
}

// Pages move to where they are missing, and leave holes.
static bool pages_move(void) {
    bool good = begin(0);
    char *from = anonymous(PAGES), *to = anonymous(PAGES);
    madvise(from, (size_t)(PAGES * page), MADV_DONTFORK);
    for (long i = 0; i < PAGES; i++)
        from[i * page] = (char)('a' + i);
    good &= put(MOVE, to, from, 1, 0) == -EINVAL && use(to, PAGES, MISSING) > 0;
    good &= put(MOVE, to, from, 4, 0) == 4 * page && to[3 * page] == 'd' && from[3 * page] == 0;
    good &= put(MOVE, to + 3 * page, from + 5 * page, 1, 0) == -EEXIST;
    madvise(from, (size_t)(5 * page), MADV_DONTNEED);
    good &= put(MOVE, to + 4 * page, from, 1, 0) == -ENOENT && put(MOVE, to + 4 * page, from + 3 * page, 4, 0) == -ENOENT;
    good &= put(MOVE, to + 4 * page, from + 4 * page, 4, HOLES) == 4 * page && to[5 * page] == 'f';
    good &= put(MOVE, to + 8 * page, from + 8 * page, 1, 4) == -EINVAL;
    good &= put(MOVE, to + 8 * page + 1, from + 8 * page, 1, 0) == -EINVAL;
    good &= put(MOVE, to + 15 * page, from + 8 * page, 2, 0) == -EINVAL;
    mprotect(from, (size_t)(PAGES * page), PROT_READ);
    good &= put(MOVE, to + 8 * page, from + 8 * page, 1, 0) == -EINVAL;
    munmap(from, (size_t)(PAGES * page));
    good &= put(MOVE, to + 8 * page, from, 1, 0) == -ENOENT;
    munmap(to, (size_t)(PAGES * page));
    return finish() && good;
}

// Runs a task in a thread that waits for a read of its event. Meanwhile nothing is filled.
static bool tells(struct task task, struct message expected) {
    pthread_t thread;
    pthread_create(&thread, NULL, act, &task);
    struct pollfd ready = {file, POLLIN, 0};
    bool good = poll(&ready, 1, 10000) == 1;
    struct use wanted = {(uint64_t)task.at, (uint64_t)page, 0, 7};
    good &= ioctl(file, ZEROS, &wanted) == -1 && errno == EAGAIN && wanted.answer == -EAGAIN;
    good &= protect(task.at, 1, 0) == -EAGAIN;
    struct message told = next();
    good &= !memcmp(&told, &expected, sizeof told) && !pthread_join(thread, NULL) && task.value == 0;
    return good;
}

// Each change of memory is reported, and waits until its event is read.
static bool changes_are_reported(void) {
    bool good = begin(REMAPS | REMOVES | UNMAPS);
    char *memory = anonymous(PAGES), *to = anonymous(1);
    uint64_t at = (uint64_t)memory, size = (uint64_t)page;
    good &= use(memory, PAGES, MISSING) > 0 && fill(ZEROS, memory, PAGES, 0) == PAGES * page;
    good &= tells((struct task){memory, NULL, 'd', 0}, (struct message){REMOVED, {0}, {at, at + size, 0}});
    good &= fill(ZEROS, memory, 1, 0) == page;
    good &= tells((struct task){memory + page, NULL, 'u', 0}, (struct message){UNMAPPED, {0}, {at + size, at + 2 * size, 0}});
    good &= tells((struct task){memory + 2 * page, NULL, 'f', 0},
                  (struct message){UNMAPPED, {0}, {at + 2 * size, at + 3 * size, 0}});
    munmap(memory + PAGES * page, 0);
    // A move is reported, and the memory stays registered; then the old addresses are unmapped.
    struct task moves = {memory + 3 * page, to, 'm', 0};
    pthread_t thread;
    pthread_create(&thread, NULL, act, &moves);
    struct message told = next();
    good &= told.event == MOVED && told.words[0] == at + 3 * size && told.words[1] == (uint64_t)to && told.words[2] == size;
    told = next();
    good &= told.event == UNMAPPED && told.words[0] == at + 3 * size && !pthread_join(thread, NULL) && moves.value == 0;
    good &= fill(ZEROS, to, 1, 0) == -EEXIST;
    // A thread that waits goes on when the file is closed.
    struct task drops = {memory + 4 * page, NULL, 'd', 0};
    pthread_create(&thread, NULL, act, &drops);
    struct pollfd ready = {file, POLLIN, 0};
    good &= poll(&ready, 1, 10000) == 1 && finish() && !pthread_join(thread, NULL) && drops.value == 0;
    munmap(memory, (size_t)page);
    munmap(memory + 2 * page, (size_t)page);
    munmap(memory + 4 * page, (size_t)((PAGES - 4) * page));
    munmap(to, (size_t)page);
    return good;
}

// Without the feature, memory that moves is not registered any more.
static bool moved_memory_is_unregistered(void) {
    bool good = begin(0);
    char *memory = anonymous(1), *to = anonymous(1);
    good &= use(memory, 1, MISSING) > 0;
    good &= mremap(memory, (size_t)page, (size_t)page, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to;
    good &= fill(ZEROS, to, 1, 0) == -ENOENT && to[0] == 0;
    munmap(to, (size_t)page);
    return finish() && good;
}

static void *serve(void *argument) {
    int *forked = argument;
    struct message told = next();
    *forked = told.event == FORKED ? (int)told.words[0] : -1;
    return NULL;
}

// The child's memory has a file of its own, which the parent gets.
static bool children_are_followed(void) {
    bool good = begin(FORKS);
    char *memory = anonymous(2), *source = anonymous(1);
    memset(source, 'a', (size_t)page);
    good &= use(memory, 2, MISSING | WRITES) > 0 && fill(ZEROS, memory + page, 1, 0) == page && !protect(memory + page, 1, 1);
    int forked = -1;
    pthread_t thread;
    pthread_create(&thread, NULL, serve, &forked);
    pid_t child = fork();
    if (!child) {
        memory[page] = 'b';
        _exit(memory[0] == 'a' && memory[page] == 'b' ? 0 : 1);
    }
    good &= !pthread_join(thread, NULL) && forked >= 0;
    int own = file;
    file = forked;
    fcntl(file, F_SETFL, O_NONBLOCK);
    struct message told = next();
    good &= told.event == FAULT && told.words[0] == (FLAG_WRITE | FLAG_WP) && !protect(memory + page, 1, 0);
    told = next();
    good &= told.event == FAULT && put(COPY, memory, source, 1, 0) == page;
    int status = 1;
    good &= waitpid(child, &status, 0) == child && status == 0;
    good &= put(COPY, memory, source, 1, 0) == -ESRCH && !close(file);
    file = own;
    munmap(memory, (size_t)(2 * page));
    munmap(source, (size_t)page);
    return finish() && good;
}

static sigjmp_buf back;

static void on_error(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    siglongjmp(back, info->si_code == BUS_ADRERR ? 1 : 2);
}

// With the feature a fault is an error, also where the kernel takes it.
static bool faults_may_be_errors(void) {
    bool good = begin(BUS_ERRORS);
    char *memory = anonymous(2);
    good &= use(memory, 2, MISSING | WRITES) > 0 && fill(ZEROS, memory + page, 1, 0) == page && !protect(memory + page, 1, 1);
    struct sigaction action = {.sa_sigaction = on_error, .sa_flags = SA_SIGINFO}, old;
    sigaction(SIGBUS, &action, &old);
    volatile int errors = 0;
    for (volatile int i = 0; i < 2; i++) {
        int code = sigsetjmp(back, 1);
        if (code == 0)
            *(volatile char *)(memory + i * page) = 1;
        else
            errors += code;
    }
    sigaction(SIGBUS, &old, NULL);
    int ends[2];
    good &= errors == 2 && !pipe(ends) && write(ends[1], memory, 1) == -1 && errno == EFAULT;
    close(ends[0]);
    close(ends[1]);
    munmap(memory, (size_t)(2 * page));
    return finish() && good;
}

// Another way to open the file, and what is known of it.
static bool files_show_it(void) {
    int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    bool good = device >= 0 && ioctl(device, NEW + 1, 0) == -1 && errno == EINVAL;
    good &= ioctl(device, NEW, 1 << 9) == -1 && errno == EINVAL;
    file = ioctl(device, NEW, O_CLOEXEC | O_NONBLOCK);
    good &= file >= 0 && (fcntl(file, F_GETFD) & FD_CLOEXEC) && !close(device);
    struct api api = {0xaa, 0, 0};
    struct pollfd ready = {file, POLLIN, 0};
    struct message message;
    good &= poll(&ready, 1, 0) == 1 && ready.revents == POLLERR;
    good &= read(file, &message, sizeof message) == -1 && errno == EINVAL && !ioctl(file, API, &api);
    good &= poll(&ready, 1, 0) == 0 && read(file, &message, 8) == -1 && errno == EINVAL;
    good &= read(file, &message, sizeof message) == -1 && errno == EAGAIN;
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", file);
    int shown = open(path, O_RDONLY);
    ssize_t length = read(shown, text, sizeof text - 1);
    text[length > 0 ? length : 0] = 0;
    good &= strstr(text, "pending:\t0\ntotal:\t0\nAPI:\taa:80000000:") && !close(shown);
    shown = open("/proc/sys/vm/unprivileged_userfaultfd", O_RDONLY);
    good &= read(shown, text, sizeof text) == 2 && text[0] == '0' && !close(shown);
    return finish() && good;
}

static const struct rule rules[] = {
    {"features are reported", features_are_reported},
    {"shared memory has missing pages", shared_memory_has_missing_pages},
    {"private mappings of files are filled", private_mappings_of_files_are_filled},
    {"pages of the file are minor faults", pages_of_the_file_are_minor_faults},
    {"pages move", pages_move},
    {"changes are reported", changes_are_reported},
    {"moved memory is unregistered", moved_memory_is_unregistered},
    {"children are followed", children_are_followed},
    {"faults may be errors", faults_may_be_errors},
    {"files show it", files_show_it},
};

int main(void) {
    return check_rules(rules, sizeof rules / sizeof *rules);
}
