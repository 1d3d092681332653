// watch: another thread resolves the faults and writes of registered memory (userfaultfd), and a
// scan finds the pages written since they were protected (PAGEMAP_SCAN). Prints a row for each
// rule; each has new memory and a thread that resolves its events.
#include "common.h"
#include <linux/types.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

// As in linux/userfaultfd.h and linux/fs.h, which are older on some systems.
enum { PAGES = 16, MISSING = 1, WRITES = 2, FAULT = 18, DONT_WAKE = 1, PROTECT = 2 };
enum { FLAG_WRITE = 1, FLAG_WP = 2 };
enum { WP = 1 << 0, THREAD = 1 << 8, UNPOPULATED = 1 << 13, POISONS = 1 << 14, ASYNC = 1 << 15 };
enum { IS_WRITTEN = 2, IS_PRESENT = 8, IS_SWAPPED = 16 };
struct message {
    uint8_t event, reserved[7];
    uint64_t flags, address;
    uint32_t thread, more;
};
struct range {
    uint64_t start, length;
};
struct api {
    uint64_t api, features, requests;
};
struct use {
    struct range range;
    uint64_t mode;
    int64_t answer;
};
struct copy {
    uint64_t to, from, length, mode;
    int64_t answer;
};
struct protection {
    struct range range;
    uint64_t mode;
};
struct scan {
    uint64_t size, flags, start, end, walk_end, regions, room, pages, inverted, all, any, shown;
};
struct region {
    uint64_t start, end, is;
};
#define REQUEST(number, type) _IOWR(0xaa, number, type)
#define API REQUEST(0x3f, struct api)
#define REGISTER REQUEST(0, struct use)
#define UNREGISTER _IOR(0xaa, 1, struct range)
#define WAKE _IOR(0xaa, 2, struct range)
#define COPY REQUEST(3, struct copy)
#define ZEROS REQUEST(4, struct use)
#define WRITE_PROTECT REQUEST(6, struct protection)
#define POISON REQUEST(8, struct use)
#define SCAN _IOWR('f', 16, struct scan)

static int file;
static char *memory;
static uint64_t size;
static volatile uint64_t event_flags[PAGES], event_thread;
static volatile int received;

static uint64_t word(int page) {
    return *(volatile uint64_t *)(memory + page * PAGE);
}

static void set(int page, uint64_t value) {
    *(volatile uint64_t *)(memory + page * PAGE) = value;
}

static struct range pages(int first, int count) {
    return (struct range){(uint64_t)(uintptr_t)memory + (uint64_t)first * PAGE, (uint64_t)count * PAGE};
}

// Maps new memory, and registers it in `modes` with a new userfaultfd of these features.
static bool set_up(uint64_t features, uint64_t modes) {
    file = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct api api = {0xaa, features, 0};
    size = PAGES * PAGE;
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (file < 0 || memory == MAP_FAILED || ioctl(file, API, &api) || (api.features & features) != features)
        die("userfaultfd with features %#lx", (unsigned long)features);
    struct use use = {pages(0, PAGES), modes, 0};
    received = 0;
    memset((void *)event_flags, 0, sizeof event_flags);
    return !modes || !ioctl(file, REGISTER, &use);
}

static void tear_down(void) {
    close(file);
    munmap(memory, size);
}

// Returns the contents of page number `page`.
static const char *contents(int page) {
    static __thread uint64_t words[PAGE / 8];
    for (int i = 0; i < PAGE / 8; i++)
        words[i] = 1000 + (uint64_t)page;
    return (const char *)words;
}

static long copy(int page, uint64_t mode) {
    struct range to = pages(page, 1);
    struct copy copy = {to.start, (uint64_t)(uintptr_t)contents(page), PAGE, mode, 0};
    return ioctl(file, COPY, &copy) ? -errno : copy.answer;
}

static int protect(int first, int count, uint64_t mode) {
    struct protection protection = {pages(first, count), mode};
    return ioctl(file, WRITE_PROTECT, &protection) ? -errno : 0;
}

// What the resolving thread does: `resolve` for each message, until it has received `messages`.
struct work {
    int messages;
    void (*resolve)(int page, uint64_t flags);
};

static void *resolve_events(void *argument) {
    const volatile struct work *work = argument;
    while (received < work->messages) {
        struct pollfd poll_for = {file, POLLIN, 0};
        struct message message;
        if (poll(&poll_for, 1, 10000) != 1 || read(file, &message, sizeof message) != sizeof message || message.event != FAULT)
            die("no message of a page fault");
        int page = (int)((message.address - (uint64_t)(uintptr_t)memory) / PAGE);
        event_flags[page] = message.flags | 16;
        event_thread = message.thread;
        received++;
        work->resolve(page, message.flags);
    }
    return NULL;
}

static pthread_t start_resolving(const struct work *work) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, resolve_events, (void *)work))
        die("pthread_create");
    return thread;
}

static void supply(int page, uint64_t flags) {
    (void)flags;
    if (copy(page, 0) != PAGE)
        die("page %d was not supplied", page);
}

static bool missing_pages_are_supplied(void) {
    static const struct work work = {3, supply};
    bool good = set_up(THREAD, MISSING);
    pthread_t thread = start_resolving(&work);
    good &= word(3) == 1003;
    set(5, word(5) + 1);
    good &= word(5) == 1006;
    set(7, 7);
    pthread_join(thread, NULL);
    good &= event_flags[3] == 16 && event_flags[5] == 16 && event_flags[7] == (16 | FLAG_WRITE);
    good &= word(7) == 7 && *(uint64_t *)(memory + 7 * PAGE + 8) == 1007;
    good &= event_thread == (uint64_t)syscall(SYS_gettid);
    tear_down();
    return good;
}

static bool system_calls_wait_too(void) {
    static const struct work work = {2, supply};
    int ends[2];
    uint64_t read_back[2] = {0, 0};
    bool good = set_up(0, MISSING) && !pipe(ends);
    pthread_t thread = start_resolving(&work);
    good &= write(ends[1], memory + PAGE, 8) == 8 && read(ends[0], read_back, 8) == 8 && read_back[0] == 1001;
    read_back[0] = 77;
    good &= write(ends[1], read_back, 8) == 8 && read(ends[0], memory + 2 * PAGE, 8) == 8;
    pthread_join(thread, NULL);
    good &= word(2) == 77 && *(uint64_t *)(memory + 2 * PAGE + 8) == 1002;
    close(ends[0]);
    close(ends[1]);
    tear_down();
    return good;
}

// Supplies a page and drops the one before it, unless the call has waited for a page twice.
static void supply_and_drop_previous(int page, uint64_t flags) {
    if (page && received <= PAGES && madvise(memory + (page - 1) * PAGE, PAGE, MADV_DONTNEED))
        die("page %d can't be dropped", page - 1);
    supply(page, flags);
}

// The call does not wait again for a page that it faulted in once, even if that page is gone again.
static bool a_call_continues_where_it_waited(void) {
    static struct work work = {PAGES + 1000, supply_and_drop_previous};
    bool good = set_up(0, MISSING);
    pthread_t thread = start_resolving(&work);
    good &= !madvise(memory, size, MADV_POPULATE_WRITE) && received == PAGES;
    // The thread waits for a last message.
    good &= !madvise(memory, size, MADV_DONTNEED);
    ((volatile struct work *)&work)->messages = received + 1;
    good &= word(0) == 1000;
    pthread_join(thread, NULL);
    tear_down();
    return good;
}

static bool a_page_is_supplied_once(void) {
    struct use use;
    bool good = set_up(0, MISSING) && copy(4, 0) == PAGE && copy(4, 0) == -EEXIST && word(4) == 1004;
    use = (struct use){pages(3, 3), 0, 0};
    good &= ioctl(file, ZEROS, &use) == -1 && errno == EAGAIN && use.answer == PAGE;
    good &= ioctl(file, ZEROS, &use) == -1 && errno == EEXIST && use.answer == -EEXIST;
    use = (struct use){pages(5, 2), 0, 0};
    good &= !ioctl(file, ZEROS, &use) && use.answer == 2 * PAGE && word(5) == 0;
    // A page supplied as zeros is present, also for a write.
    set(6, 6);
    good &= word(6) == 6 && word(5) == 0;
    struct range range = pages(0, PAGES);
    good &= !ioctl(file, UNREGISTER, &range) && word(9) == 0 && copy(9, 0) == -ENOENT;
    tear_down();
    return good;
}

static void unprotect(int page, uint64_t flags) {
    (void)flags;
    if (protect(page, 1, 0))
        die("page %d can't be written", page);
}

static bool writes_to_protected_pages_wait(void) {
    static const struct work work = {2, unprotect};
    bool good = set_up(WP, WRITES);
    for (int page = 0; page < PAGES; page++)
        set(page, (uint64_t)page);
    good &= !protect(4, 8, 1);
    pthread_t thread = start_resolving(&work);
    set(3, 33);
    set(4, 44);
    good &= word(5) == 5;
    set(11, 111);
    set(12, 122);
    pthread_join(thread, NULL);
    good &= event_flags[4] == (16 | FLAG_WRITE | FLAG_WP) && event_flags[11] == (16 | FLAG_WRITE | FLAG_WP);
    good &= !event_flags[3] && !event_flags[12] && word(4) == 44 && word(11) == 111;
    set(4, 45);
    good &= protect(0, PAGES, 0) == 0;
    set(6, 66);
    tear_down();
    return good;
}

static bool missing_pages_can_be_protected(void) {
    static const struct work work = {2, unprotect};
    bool good = set_up(WP | UNPOPULATED, WRITES) && !protect(0, PAGES, 1) && word(2) == 0;
    pthread_t thread = start_resolving(&work);
    set(2, 22);
    set(9, 99);
    pthread_join(thread, NULL);
    good &= (event_flags[2] & event_flags[9]) == (16 | FLAG_WRITE | FLAG_WP) && word(2) == 22 && word(9) == 99;
    tear_down();
    return good;
}

static bool supplied_pages_can_be_protected(void) {
    static const struct work work = {1, unprotect};
    bool good = set_up(WP, MISSING | WRITES) && copy(1, PROTECT) == PAGE && word(1) == 1001;
    pthread_t thread = start_resolving(&work);
    set(1, 11);
    pthread_join(thread, NULL);
    good &= event_flags[1] == (16 | FLAG_WRITE | FLAG_WP) && word(1) == 11;
    tear_down();
    return good;
}

static bool a_child_is_not_registered(void) {
    bool good = set_up(WP | UNPOPULATED, MISSING | WRITES) && copy(1, PROTECT) == PAGE;
    pid_t child = fork();
    if (!child) {
        bool alone = word(1) == 1001 && word(2) == 0;
        set(1, 1);
        set(2, 2);
        _exit(alone && word(1) == 1 ? 0 : 1);
    }
    int status;
    good &= waitpid(child, &status, 0) == child && status == 0 && word(1) == 1001;
    tear_down();
    return good;
}

static void *touch_page(void *argument) {
    (void)argument;
    return (void *)(uintptr_t)(word(3) + 1);
}

// Waits until the userfaultfd has a message.
static bool has_message(void) {
    struct pollfd poll_for = {file, POLLIN, 0};
    return poll(&poll_for, 1, 10000) == 1 && poll_for.revents == POLLIN;
}

static bool close_ends_the_waits(void) {
    pthread_t thread;
    void *result;
    bool good = set_up(0, MISSING) && !pthread_create(&thread, NULL, touch_page, NULL) && has_message();
    close(file);
    good &= !pthread_join(thread, &result) && (uintptr_t)result == 1;
    munmap(memory, size);
    return good;
}

static bool wake_retries_the_fault(void) {
    pthread_t thread;
    void *result;
    struct message message;
    struct range one = pages(3, 1);
    bool good = set_up(0, MISSING) && !pthread_create(&thread, NULL, touch_page, NULL) && has_message();
    one = pages(3, 1);
    good &= read(file, &message, sizeof message) == sizeof message && read(file, &message, sizeof message) == -1;
    good &= errno == EAGAIN;
    // Nothing was supplied: the same event is reported again.
    good &= !ioctl(file, WAKE, &one) && has_message() && read(file, &message, sizeof message) == sizeof message;
    good &= copy(3, DONT_WAKE) == PAGE && !ioctl(file, WAKE, &one);
    good &= !pthread_join(thread, &result) && (uintptr_t)result == 1004;
    tear_down();
    return good;
}

static bool a_blocking_file_is_not_polled(void) {
    int waits = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct api api = {0xaa, 0, 0};
    struct pollfd poll_for = {waits, POLLIN, 0};
    bool good = !ioctl(waits, API, &api) && poll(&poll_for, 1, 0) == 1 && poll_for.revents == POLLERR;
    good &= !fcntl(waits, F_SETFL, O_NONBLOCK) && poll(&poll_for, 1, 0) == 0;
    close(waits);
    return good;
}

static volatile uintptr_t handled_at;

static void record_stack(int signal) {
    handled_at = (uintptr_t)&signal;
}

static bool a_handlers_frame_waits_for_its_stack(void) {
    static const struct work work = {PAGES, supply};
    struct sigaction action = {.sa_handler = record_stack, .sa_flags = SA_ONSTACK};
    stack_t none = {.ss_flags = SS_DISABLE};
    bool good = set_up(0, MISSING) && !sigaction(SIGUSR1, &action, NULL);
    stack_t stack = {.ss_sp = memory, .ss_size = size};
    pthread_t thread = start_resolving(&work);
    good &= !sigaltstack(&stack, NULL) && !raise(SIGUSR1) && handled_at - (uintptr_t)memory < size && received > 0;
    good &= !pthread_cancel(thread) && !pthread_join(thread, NULL) && !sigaltstack(&none, NULL);
    tear_down();
    return good;
}

// Returns from a signal handler with a frame that is not where the kernel put it. FRAME is its
// length, BEFORE the bytes of it before its context.
#ifdef __x86_64__
enum { FRAME = 600, BEFORE = 0 };
#define RETURN(frame) __asm__ volatile("mov %0, %%rsp\n mov $15, %%eax\n syscall" : : "r"(frame) : "memory")
#else
enum { FRAME = 4688, BEFORE = 128 };
#define RETURN(frame) __asm__ volatile("mov sp, %0\n mov x8, #139\n svc #0" : : "r"(frame) : "memory")
#endif
enum { FRAME_PAGE = 4, FRAME_OFFSET = 256 };

static char frame[2 * PAGE] __attribute__((aligned(4096)));

static void supply_frame(int page, uint64_t flags) {
    (void)flags;
    struct range to = pages(page, 1);
    struct copy copy = {to.start, (uint64_t)(uintptr_t)frame + (uint64_t)(page - FRAME_PAGE) * PAGE, PAGE, 0, 0};
    if (ioctl(file, COPY, &copy))
        die("the frame was not supplied");
}

static void returns_from_elsewhere(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    memcpy(frame + FRAME_OFFSET, (char *)context - BEFORE, FRAME);
    RETURN(memory + FRAME_PAGE * PAGE + FRAME_OFFSET);
}

static bool a_handlers_return_waits_for_its_frame(void) {
    static const struct work work = {PAGES, supply_frame};
    struct sigaction action = {.sa_sigaction = returns_from_elsewhere, .sa_flags = SA_SIGINFO};
    bool good = set_up(0, MISSING) && !sigaction(SIGUSR1, &action, NULL);
    pthread_t thread = start_resolving(&work);
    good &= !raise(SIGUSR1) && received > 0;
    good &= !pthread_cancel(thread) && !pthread_join(thread, NULL);
    tear_down();
    return good;
}

static sigjmp_buf back;
static volatile int bus_code;

static void handle_bus_error(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    bus_code = info->si_code;
    siglongjmp(back, 1);
}

static bool poison_is_a_bus_error(void) {
    struct sigaction action = {.sa_sigaction = handle_bus_error, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
    volatile bool good = set_up(POISONS, MISSING);
    struct use use = {pages(2, 2), 0, 0};
    good &= !ioctl(file, POISON, &use) && use.answer == 2 * PAGE;
    for (int page = 2; page < 4; page++) {
        bus_code = 0;
        if (!sigsetjmp(back, 1))
            word(page);
        good &= bus_code == BUS_MCEERR_AR;
    }
    good &= ioctl(file, POISON, &use) == -1 && errno == EEXIST;
    good &= madvise(memory + 2 * PAGE, PAGE, MADV_DONTNEED) == 0 && copy(2, 0) == PAGE && word(2) == 1002;
    good &= copy(3, 0) == PAGE && word(3) == 1003;
    tear_down();
    return good;
}

// Returns the pages that were written since they were protected, as bits, and protects them again.
static unsigned written(int pagemap, uint64_t flags, uint64_t room) {
    struct region regions[PAGES];
    struct scan scan = {sizeof scan, flags, pages(0, 1).start, pages(PAGES, 0).start, 0, (uint64_t)(uintptr_t)regions,
                        room, 0, 0, IS_WRITTEN, 0, IS_WRITTEN};
    int found = ioctl(pagemap, SCAN, &scan);
    if (found < 0)
        return ~0u;
    unsigned set = 0;
    for (int i = 0; i < found; i++)
        for (uint64_t at = regions[i].start; at < regions[i].end; at += PAGE)
            set |= regions[i].is == IS_WRITTEN ? 1u << (at - (uint64_t)(uintptr_t)memory) / PAGE : ~0u;
    if (room >= PAGES && scan.walk_end != scan.end)
        return ~0u;
    return set;
}

static bool async_writes_are_found(void) {
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    bool good = set_up(WP | UNPOPULATED | ASYNC, WRITES) && pagemap >= 0;
    for (int page = 0; page < 8; page++)
        set(page, (uint64_t)page);
    good &= !protect(0, PAGES, 1);
    good &= written(pagemap, 3, PAGES) == 0;
    set(2, 22);
    set(3, 33);
    set(12, 112);
    good &= word(7) == 7 && word(14) == 0;
    good &= written(pagemap, 0, PAGES) == 0x100c;
    good &= written(pagemap, 3, 1) == 0xc && written(pagemap, 3, PAGES) == 0x1000 && written(pagemap, 3, PAGES) == 0;
    set(3, 34);
    good &= written(pagemap, 3, PAGES) == 8 && word(2) == 22 && word(3) == 34 && word(12) == 112;
    // A page that was dropped and written again counts as written.
    good &= !madvise(memory, 2 * PAGE, MADV_DONTNEED);
    set(0, 10);
    set(1, 11);
    good &= written(pagemap, 0, PAGES) == 3;
    // Without WP_ASYNC the scan is refused.
    struct range half = pages(8, 8);
    good &= !ioctl(file, UNREGISTER, &half) && written(pagemap, 3, PAGES) == ~0u && errno == EPERM;
    close(pagemap);
    tear_down();
    return good;
}

static bool mremap_unregisters(void) {
    bool good = set_up(WP, MISSING | WRITES) && copy(1, PROTECT) == PAGE;
    char *to = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    good &= mremap(memory, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to;
    memory = to;
    set(1, 1);
    good &= word(2) == 0 && word(1) == 1;
    tear_down();
    return good;
}

static bool invalid_registrations_are_refused(void) {
    struct api api = {0xab, 0, 0};
    bool good = set_up(0, 0);
    int other = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    good &= ioctl(other, API, &api) == -1 && errno == EINVAL;
    struct use use = {pages(0, 1), MISSING, 0};
    good &= ioctl(other, REGISTER, &use) == -1 && errno == EINVAL;
    api = (struct api){0xaa, 0, 0};
    good &= !ioctl(other, API, &api) && (api.features & ASYNC) && (api.requests & 3) == 3;
    good &= !ioctl(file, REGISTER, &use) && ioctl(other, REGISTER, &use) == -1 && errno == EBUSY;
    use = (struct use){pages(1, 1), 0, 0};
    good &= ioctl(file, REGISTER, &use) == -1 && errno == EINVAL;
    use = (struct use){pages(1, 0), MISSING, 0};
    good &= ioctl(file, REGISTER, &use) == -1 && errno == EINVAL;
    good &= protect(0, 1, 1) == -ENOENT && protect(0, 1, 3) == -EINVAL;
    good &= syscall(SYS_userfaultfd, 2) == -1 && errno == EINVAL;
    close(other);
    tear_down();
    return good;
}

int main(void) {
    static const struct rule rules[] = {
        {"missing pages are supplied", missing_pages_are_supplied},
        {"a system call's accesses wait too", system_calls_wait_too},
        {"a call continues where it waited", a_call_continues_where_it_waited},
        {"a page is supplied once", a_page_is_supplied_once},
        {"writes to protected pages wait", writes_to_protected_pages_wait},
        {"missing pages can be protected", missing_pages_can_be_protected},
        {"supplied pages can be protected", supplied_pages_can_be_protected},
        {"a child's memory is not registered", a_child_is_not_registered},
        {"closing the userfaultfd ends all waits", close_ends_the_waits},
        {"a woken thread retries its fault", wake_retries_the_fault},
        {"a blocking userfaultfd is not polled", a_blocking_file_is_not_polled},
        {"a handler's frame waits for its stack", a_handlers_frame_waits_for_its_stack},
        {"a handler's return waits for its frame", a_handlers_return_waits_for_its_frame},
        {"poison is a bus error", poison_is_a_bus_error},
        {"asynchronous writes are found", async_writes_are_found},
        {"mremap unregisters", mremap_unregisters},
        {"invalid registrations are refused", invalid_registrations_are_refused},
    };
    return check_rules(rules, sizeof rules / sizeof *rules);
}
