// The first process of a Linux kernel that `vellum run --kernel` boots: prepares what programs expect, runs the one
// that /.vellum names, carries its streams to the host, and turns the machine off.
//
// The host is at the other end of a serial port. A frame is a type, a length of two bytes (little endian),
// and so many bytes. The first byte sent, once, is 'V'; the host sends nothing before it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

enum frame { INPUT = 0, OUTPUT = 1, ERRORS = 2, EXIT = 3 };

// The serial port that the host listens to.
static int wire;

static _Noreturn void turn_off(void) {
    sync();
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}

// Without the frame that says how the program ended, the host shows the console, and this at the end of it.
static _Noreturn void die(const char *format, ...) {
    int error = errno, console = open("/dev/console", O_WRONLY);
    va_list arguments;

    va_start(arguments, format);
    dprintf(console, "init: ");
    vdprintf(console, format, arguments);
    dprintf(console, ": %s\n", strerror(error));
    va_end(arguments);
    tcdrain(console);
    turn_off();
}

static void write_all(int fd, const void *bytes, size_t count) {
    while (count > 0) {
        ssize_t written = write(fd, bytes, count);

        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            die("writing");
        bytes = (const char *)bytes + written;
        count -= (size_t)written;
    }
}

static void send_frame(enum frame kind, const void *bytes, size_t count) {
    unsigned char head[3] = { (unsigned char)kind, count & 0xff, (count >> 8) & 0xff };

    write_all(wire, head, sizeof head);
    write_all(wire, bytes, count);
}

// A file's bytes, and a zero behind them.
static char *contents(const char *path, size_t *size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat stat;
    char *bytes;
    size_t count = 0;
    ssize_t got = 0;

    if (fd < 0 || fstat(fd, &stat) != 0 || !(bytes = malloc((size_t)stat.st_size + 1)))
        die("%s", path);
    while ((got = read(fd, bytes + count, (size_t)stat.st_size - count)) > 0)
        count += (size_t)got;
    if (got < 0)
        die("%s", path);
    close(fd);
    bytes[count] = 0;
    *size = count;
    return bytes;
}

// The words of a file in which a zero byte ends each; a null pointer ends them.
static char **words(const char *path) {
    size_t size, count = 0;
    char *bytes = contents(path, &size), *word, **list;

    for (word = bytes; word < bytes + size; word += strlen(word) + 1)
        count++;
    if (!(list = calloc(count + 1, sizeof *list)))
        die("%s", path);
    count = 0;
    for (word = bytes; word < bytes + size; word += strlen(word) + 1)
        list[count++] = word;
    return list;
}

static void must_mount(const char *kind, const char *path) {
    mkdir(path, 0755);
    if (mount(kind, path, kind, 0, NULL) != 0)
        die("mounting %s on %s", kind, path);
}

static void load_module(const char *path) {
    size_t size;
    char *image = contents(path, &size);

    // There already: part of the kernel.
    if (syscall(SYS_init_module, image, size, "") != 0 && errno != EEXIST)
        die("loading %s", path);
    free(image);
    unlink(path);
}

// Takes a disk of so many bytes for swap.
static void swap_to(const char *path, uint64_t size, int flags) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    // What one begins with: after 1024 bytes for others a version and the last page's number …
    uint32_t version[2] = { 1, (uint32_t)(size / page - 1) };
    char *first = calloc(1, page);
    int fd = open(path, O_RDWR);

    if (fd < 0 || !first)
        die("%s", path);
    memcpy(first + 1024, version, sizeof version);
    // … and at the end of the first page its name.
    memcpy(first + page - 10, "SWAPSPACE2", 10);
    write_all(fd, first, page);
    fsync(fd);
    close(fd);
    free(first);
    if (swapon(path, flags) != 0)
        die("swapon %s", path);
}

// Swap of so many bytes in compressed memory, to be used before all other.
static void swap_to_memory(const char *bytes) {
    int fd = open("/sys/block/zram0/comp_algorithm", O_WRONLY);

    // The fastest, where the kernel has it; else what it has.
    if (fd >= 0 && (write(fd, "lz4", 3) == 3 || errno == EINVAL))
        close(fd);
    fd = open("/sys/block/zram0/disksize", O_WRONLY);
    if (fd < 0)
        die("/sys/block/zram0/disksize");
    write_all(fd, bytes, strlen(bytes));
    close(fd);
    swap_to("/dev/zram0", strtoull(bytes, NULL, 10), SWAP_FLAG_PREFER | 1);
}

// Swap on the disk, all of it.
static void swap_to_disk(void) {
    size_t size;
    char *sectors;

    // It may take its time to show up.
    for (int tries = 0; access("/dev/vda", F_OK) != 0 && tries < 1000; tries++)
        usleep(10000);
    sectors = contents("/sys/block/vda/size", &size);
    swap_to("/dev/vda", strtoull(sectors, NULL, 10) * 512, 0);
    free(sectors);
}

// Lines `key=value`: modules to load, in this order, and swap to have after that.
static void follow_options(void) {
    size_t size;
    char *text = contents("/.vellum/options", &size), *line, *rest = text;

    while ((line = strsep(&rest, "\n"))) {
        if (strncmp(line, "module=", 7) == 0)
            load_module(line + 7);
        else if (strncmp(line, "swap=", 5) == 0)
            swap_to_memory(line + 5);
        else if (strcmp(line, "swap-disk=") == 0)
            swap_to_disk();
        else if (*line)
            errno = EINVAL, die("the option %s", line);
    }
    free(text);
}

static void prepare(void) {
    umask(0);
    must_mount("devtmpfs", "/dev");
    must_mount("proc", "/proc");
    must_mount("sysfs", "/sys");
    must_mount("cgroup2", "/sys/fs/cgroup");
    must_mount("devpts", "/dev/pts");
    must_mount("tmpfs", "/dev/shm");
    chmod("/dev/shm", 01777);
    chmod("/tmp", 01777);
    symlink("/proc/self/fd", "/dev/fd");
    symlink("/proc/self/fd/0", "/dev/stdin");
    symlink("/proc/self/fd/1", "/dev/stdout");
    symlink("/proc/self/fd/2", "/dev/stderr");
    umask(022);
    follow_options();
}

static void open_wire(void) {
    struct termios raw;
    const char *port = getenv("WIRE"); // which the kernel has from its command line

    if (!port)
        port = "/dev/ttyS1";
    wire = open(port, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (wire < 0 || tcgetattr(wire, &raw) != 0)
        die("%s", port);
    cfmakeraw(&raw);
    cfsetspeed(&raw, B115200);
    raw.c_cflag |= CLOCAL;
    if (tcsetattr(wire, TCSANOW, &raw) != 0)
        die("%s", port);
}

static pid_t start(char **words, char **environment, int input[2], int output[2], int errors[2], const sigset_t *mask) {
    pid_t child;

    if (pipe2(input, O_CLOEXEC) != 0 || pipe2(output, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0)
        die("pipe");
    child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        setsid();
        signal(SIGPIPE, SIG_DFL);
        sigprocmask(SIG_SETMASK, mask, NULL);
        dup2(input[0], 0);
        dup2(output[1], 1);
        dup2(errors[1], 2);
        execve(words[0], words + 1, environment);
        dprintf(2, "%s: %s\n", words[0], strerror(errno));
        _exit(errno == ENOENT ? 127 : 126);
    }
    close(input[0]);
    close(output[1]);
    close(errors[1]);
    return child;
}

// What the host has sent and the program has not read.
static struct {
    char *bytes;
    size_t first, end, size;
    int ended;
} pending;

static void keep(const char *bytes, size_t count) {
    if (pending.end + count > pending.size) {
        memmove(pending.bytes, pending.bytes + pending.first, pending.end - pending.first);
        pending.end -= pending.first;
        pending.first = 0;
        while (pending.end + count > pending.size)
            pending.size = pending.size ? 2 * pending.size : 65536;
        pending.bytes = realloc(pending.bytes, pending.size);
        if (!pending.bytes)
            die("standard input");
    }
    memcpy(pending.bytes + pending.end, bytes, count);
    pending.end += count;
}

// Takes what is on the wire, whether or not the program wants it: the serial port's driver drops what finds its
// buffer full.
static void take_input(void) {
    static unsigned char head[3];
    static size_t have, left;
    char bytes[4096], *at = bytes;
    ssize_t count = read(wire, bytes, sizeof bytes);

    if (count < 0 && errno != EINTR)
        die("reading");
    while (count > 0) {
        size_t taken;

        if (left == 0) {
            head[have++] = (unsigned char)*at++;
            count--;
            if (have < sizeof head)
                continue;
            have = 0;
            left = head[1] | (size_t)head[2] << 8;
            pending.ended |= head[0] == INPUT && left == 0;
            continue;
        }
        taken = left < (size_t)count ? left : (size_t)count;
        if (head[0] == INPUT)
            keep(at, taken);
        at += taken;
        count -= (ssize_t)taken;
        left -= taken;
    }
}

// Gives the program's input what its pipe takes. Closes it at the end, or when nobody reads it.
static void give_input(int *to) {
    ssize_t written = write(*to, pending.bytes + pending.first, pending.end - pending.first);

    if (written > 0)
        pending.first += (size_t)written;
    if ((written < 0 && errno == EPIPE) || (pending.first == pending.end && pending.ended)) {
        close(*to);
        *to = -1;
    }
}

// Sends what is in a pipe, once; whether there was anything.
static int pass_on(enum frame kind, int *from) {
    char bytes[4096];
    ssize_t count;

    if (*from < 0)
        return 0;
    count = read(*from, bytes, sizeof bytes);
    if (count > 0) {
        send_frame(kind, bytes, (size_t)count);
    } else if (count == 0) {
        close(*from);
        *from = -1;
    }
    return count > 0;
}

// Whether the program has ended, and how, as a shell would say it. All orphans come here, too.
static int has_ended(pid_t child, uint32_t *status) {
    int how, ended = 0;
    pid_t who;

    while ((who = waitpid(-1, &how, WNOHANG)) > 0) {
        if (who == child) {
            *status = (uint32_t)(WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how));
            ended = 1;
        }
    }
    return ended;
}

// What all processors have done so far, in hundredths of a second: user, nice, system, idle, waiting, interrupts.
static long busy_ticks(void) {
    long ticks[7], busy = 0;
    FILE *stat = fopen("/proc/stat", "re");
    int found = stat ? fscanf(stat, "cpu %ld %ld %ld %ld %ld %ld %ld", &ticks[0], &ticks[1], &ticks[2], &ticks[3], &ticks[4],
                              &ticks[5], &ticks[6])
                     : 0;

    if (stat)
        fclose(stat);
    for (int which = 0; which < found; which++)
        busy += which == 3 || which == 4 ? 0 : ticks[which];
    return busy;
}

// Linux goes on booting while the first process runs: for a second or two its workers take half of the time, which would be
// counted as the program's. So the program waits for a moment with nothing to do, but not for ever.
static void wait_for_idleness(void) {
    enum { TRIES = 50, TICKS = 20 };

    for (int try = 0; try < TRIES; try++) {
        long before = busy_ticks();

        usleep(TICKS * 10000);
        if (busy_ticks() - before <= TICKS / 10)
            return;
    }
}

int main(void) {
    int input[2], output[2], errors[2], deaths;
    char **program, **environment;
    sigset_t chld, before;
    uint32_t status = 0;
    pid_t child;

    prepare();
    program = words("/.vellum/argv");
    environment = words("/.vellum/env");
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    sigprocmask(SIG_BLOCK, &chld, &before);
    deaths = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
    if (deaths < 0)
        die("signalfd");
    wait_for_idleness();
    open_wire();
    write_all(wire, "V", 1);
    child = start(program, environment, input, output, errors, &before);
    fcntl(input[1], F_SETFL, O_NONBLOCK);
    fcntl(output[0], F_SETFL, O_NONBLOCK);
    fcntl(errors[0], F_SETFL, O_NONBLOCK);
    do {
        int wanted = pending.first < pending.end || pending.ended;
        struct pollfd polled[5] = {
            { .fd = wire, .events = POLLIN },
            { .fd = wanted ? input[1] : -1, .events = POLLOUT },
            { .fd = output[0], .events = POLLIN },
            { .fd = errors[0], .events = POLLIN },
            { .fd = deaths, .events = POLLIN },
        };
        struct signalfd_siginfo death;

        if (poll(polled, 5, -1) < 0 && errno != EINTR)
            die("poll");
        if (polled[0].revents)
            take_input();
        if (polled[1].revents)
            give_input(&input[1]);
        if (polled[2].revents)
            pass_on(OUTPUT, &output[0]);
        if (polled[3].revents)
            pass_on(ERRORS, &errors[0]);
        while (read(deaths, &death, sizeof death) > 0)
            ;
    } while (!has_ended(child, &status));
    while (pass_on(OUTPUT, &output[0]) | pass_on(ERRORS, &errors[0]))
        ;
    status = htole32(status);
    send_frame(EXIT, &status, sizeof status);
    tcdrain(wire);
    turn_off();
}
