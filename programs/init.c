// The first process of a Linux kernel that `vellum run --kernel` boots: prepares what programs
// expect, runs the program that /.vellum names, carries its standard streams to the host, and
// powers off.
//
// The host is at the other end of a serial port. A frame is a type, a length of two bytes (little
// endian), and that many bytes. The first byte sent, once, is 'V'; the host sends nothing before
// it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

enum frame { INPUT = 0, OUTPUT = 1, ERRORS = 2, EXIT = 3 };

// The serial port to the host.
static int port_fd;

static _Noreturn void turn_off(void) {
    sync();
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}

// Without an exit frame the host shows the console, with this message at its end.
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

    write_all(port_fd, head, sizeof head);
    write_all(port_fd, bytes, count);
}

// Returns a file's bytes, with a zero byte appended.
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

// Returns the words of a file, each terminated by a zero byte, as a null-terminated array.
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

static void mount_or_die(const char *kind, const char *path) {
    mkdir(path, 0755);
    if (mount(kind, path, kind, 0, NULL) != 0)
        die("mounting %s on %s", kind, path);
}

// Loads the module of a line `PATH PARAMETERS`.
static void load_module(char *line) {
    size_t size;
    const char *path = strsep(&line, " ");
    char *image = contents(path, &size);

    // EEXIST: built into the kernel, or loaded already.
    if (syscall(SYS_init_module, image, size, line ? line : "") != 0 && errno != EEXIST)
        die("loading %s", path);
    free(image);
    unlink(path);
}

// Formats a disk of `size` bytes as swap, and attaches it.
static void attach_swap(const char *path, uint64_t size, int flags) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    // The header: after 1024 bytes a version and the last page's number,
    uint32_t version[2] = { 1, (uint32_t)(size / page - 1) };
    char *first = calloc(1, page);
    int fd = open(path, O_RDWR);

    if (fd < 0 || !first)
        die("%s", path);
    memcpy(first + 1024, version, sizeof version);
    // and a signature at the end of the first page.
    memcpy(first + page - 10, "SWAPSPACE2", 10);
    write_all(fd, first, page);
    fsync(fd);
    close(fd);
    free(first);
    if (swapon(path, flags) != 0)
        die("swapon %s", path);
}

// Writes a parameter of the kernel.
static void set_parameter(const char *path, const char *value) {
    int fd = open(path, O_WRONLY);

    if (fd < 0 || write(fd, value, strlen(value)) < 0)
        die("writing %s to %s", value, path);
    close(fd);
}

// Keeps swapped-out pages in memory, compressed by this algorithm, before any swap device.
static void enable_zswap(const char *algorithm) {
    set_parameter("/sys/module/zswap/parameters/compressor", algorithm);
    set_parameter("/sys/module/zswap/parameters/enabled", "Y");
}

// Attaches a zram device of so many bytes, with priority over other swap.
static void attach_zram(const char *bytes) {
    int fd = open("/sys/block/zram0/comp_algorithm", O_WRONLY);

    // lz4 is the fastest; a kernel without it uses its default.
    if (fd >= 0 && (write(fd, "lz4", 3) == 3 || errno == EINVAL))
        close(fd);
    fd = open("/sys/block/zram0/disksize", O_WRONLY);
    if (fd < 0)
        die("/sys/block/zram0/disksize");
    write_all(fd, bytes, strlen(bytes));
    close(fd);
    attach_swap("/dev/zram0", strtoull(bytes, NULL, 10), SWAP_FLAG_PREFER | 1);
}

// Waits until the driver has found a disk.
static void wait_for(const char *path) {
    for (int tries = 0; access(path, F_OK) != 0; tries++)
        if (tries == 1000)
            die("%s", path);
        else
            usleep(10000);
}

// Attaches the whole disk as swap.
static void attach_swap_disk(void) {
    size_t size;
    char *sectors;

    wait_for("/dev/vda");
    sectors = contents("/sys/block/vda/size", &size);
    attach_swap("/dev/vda", strtoull(sectors, NULL, 10) * 512, 0);
    free(sectors);
}

// The program's root directory.
static const char *root = "/";

// Puts the path of the disk with the serial number `root` into `path`.
static bool find_root(char *path, size_t size) {
    glob_t serials;
    bool found = false;

    if (glob("/sys/block/*/serial", 0, NULL, &serials) != 0)
        return false;
    for (size_t i = 0; i < serials.gl_pathc && !found; i++) {
        char serial[32] = "", name[32];
        int fd = open(serials.gl_pathv[i], O_RDONLY | O_CLOEXEC);

        found = fd >= 0 && read(fd, serial, sizeof serial - 1) >= 0 && strcmp(serial, "root") == 0;
        if (found && sscanf(serials.gl_pathv[i], "/sys/block/%31[^/]", name) == 1)
            snprintf(path, size, "/dev/%s", name);
        if (fd >= 0)
            close(fd);
    }
    globfree(&serials);
    return found;
}

// Lays the archive's files, and a tmpfs that takes all changes, over the file system of the disk
// with the serial number `root`, which becomes the program's root.
static void open_root(void) {
    static const char *const folders[] = { "files", "lower", "upper", "root" };
    static const char *const shared[] = { "dev", "proc", "sys" };
    char disk[64], path[64];

    for (int tries = 0; !find_root(disk, sizeof disk); tries++) {
        if (tries == 1000)
            die("the disk of the root file system");
        usleep(10000);
    }
    wait_for(disk);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "/.vellum/%s", folders[i]);
        mkdir(path, 0755);
    }
    if (mount(disk, "/.vellum/lower", "ext4", MS_RDONLY, NULL) != 0)
        die("mounting %s", disk);
    mount_or_die("tmpfs", "/.vellum/upper");
    mkdir("/.vellum/upper/changes", 0755);
    mkdir("/.vellum/upper/work", 0755);
    root = "/.vellum/root";
    if (mount("overlay", root, "overlay", 0,
              "lowerdir=/.vellum/files:/.vellum/lower,upperdir=/.vellum/upper/changes,workdir=/.vellum/upper/work") != 0)
        die("mounting overlay");
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        char from[16];

        snprintf(from, sizeof from, "/%s", shared[i]);
        snprintf(path, sizeof path, "%s/%s", root, shared[i]);
        mkdir(path, 0755);
        if (mount(from, path, NULL, MS_BIND | MS_REC, NULL) != 0)
            die("mounting %s", path);
    }
    snprintf(path, sizeof path, "%s/tmp", root);
    mkdir(path, 0755);
    chmod(path, 01777);
}

// Follows lines `key=value`: modules to load, in this order, then zswap to
// enable, swap to attach, disks to wait for, and the root file system.
static void follow_options(void) {
    size_t size;
    char *text = contents("/.vellum/options", &size), *line, *rest = text;

    while ((line = strsep(&rest, "\n"))) {
        if (strncmp(line, "module=", 7) == 0)
            load_module(line + 7);
        else if (strncmp(line, "zswap=", 6) == 0)
            enable_zswap(line + 6);
        else if (strncmp(line, "swap=", 5) == 0)
            attach_zram(line + 5);
        else if (strcmp(line, "swap-disk=") == 0)
            attach_swap_disk();
        else if (strcmp(line, "disk=") == 0)
            wait_for(access("/sys/block/vdb", F_OK) == 0 ? "/dev/vdb" : "/dev/vda");
        else if (strcmp(line, "root=disk") == 0)
            open_root();
        else if (strncmp(line, "ram-disk=", 9) == 0)
            wait_for("/dev/ram0");
        else if (*line)
            errno = EINVAL, die("the option %s", line);
    }
    free(text);
}

// Takes the interface for connections within the machine into use, if the kernel has one.
static void raise_loopback(void) {
    struct ifreq lo = { .ifr_name = "lo" };
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return;
    if (ioctl(fd, SIOCGIFFLAGS, &lo) == 0) {
        lo.ifr_flags |= IFF_UP;
        if (ioctl(fd, SIOCSIFFLAGS, &lo) != 0)
            die("the interface lo");
    }
    close(fd);
}

static void prepare(void) {
    umask(0);
    mount_or_die("devtmpfs", "/dev");
    mount_or_die("proc", "/proc");
    mount_or_die("sysfs", "/sys");
    mount_or_die("cgroup2", "/sys/fs/cgroup");
    mount_or_die("devpts", "/dev/pts");
    mount_or_die("tmpfs", "/dev/shm");
    chmod("/dev/shm", 01777);
    chmod("/tmp", 01777);
    symlink("/proc/self/fd", "/dev/fd");
    symlink("/proc/self/fd/0", "/dev/stdin");
    symlink("/proc/self/fd/1", "/dev/stdout");
    symlink("/proc/self/fd/2", "/dev/stderr");
    umask(022);
    raise_loopback();
    follow_options();
}

static void open_port(void) {
    struct termios raw;
    const char *port = getenv("WIRE"); // set from the kernel's command line

    if (!port)
        port = "/dev/ttyS1";
    port_fd = open(port, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (port_fd < 0 || tcgetattr(port_fd, &raw) != 0)
        die("%s", port);
    cfmakeraw(&raw);
    cfsetspeed(&raw, B115200);
    raw.c_cflag |= CLOCAL;
    if (tcsetattr(port_fd, TCSANOW, &raw) != 0)
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
        if (chroot(root) == 0 && chdir("/") == 0)
            execve(words[0], words + 1, environment);
        dprintf(2, "%s: %s\n", words[0], strerror(errno));
        _exit(errno == ENOENT ? 127 : 126);
    }
    close(input[0]);
    close(output[1]);
    close(errors[1]);
    return child;
}

// Bytes that the host has sent and the program has not read.
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

// Reads the serial port even if the program does not read its input: the port's driver drops bytes
// when its buffer is full.
static void take_input(void) {
    static unsigned char head[3];
    static size_t have, left;
    char bytes[4096], *at = bytes;
    ssize_t count = read(port_fd, bytes, sizeof bytes);

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

// Writes to the program's input what its pipe takes. Closes it at the end of input, or if the
// program has closed its end.
static void feed_input(int *to) {
    ssize_t written = write(*to, pending.bytes + pending.first, pending.end - pending.first);

    if (written > 0)
        pending.first += (size_t)written;
    if ((written < 0 && errno == EPIPE) || (pending.first == pending.end && pending.ended)) {
        close(*to);
        *to = -1;
    }
}

// Sends the contents of a pipe, once. Returns whether it had any.
static int forward(enum frame kind, int *from) {
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

// Returns whether the program has ended, with its status as a shell would report it. Reaps orphans,
// too.
static int has_ended(pid_t child, uint32_t *status) {
    int wait_status, ended = 0;
    pid_t pid;

    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
        if (pid == child) {
            *status = (uint32_t)(WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status));
            ended = 1;
        }
    }
    return ended;
}

// Returns the busy time of all CPUs since boot, in hundredths of a second: the fields are user,
// nice, system, idle, iowait, irq, softirq.
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

// Linux continues booting while the first process runs: its workers take half of the time for a
// second or two, which would be counted as the program's. So waits for an idle moment, but not
// without bound.
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
    open_port();
    write_all(port_fd, "V", 1);
    child = start(program, environment, input, output, errors, &before);
    fcntl(input[1], F_SETFL, O_NONBLOCK);
    fcntl(output[0], F_SETFL, O_NONBLOCK);
    fcntl(errors[0], F_SETFL, O_NONBLOCK);
    do {
        int has_input = pending.first < pending.end || pending.ended;
        struct pollfd polled[5] = {
            { .fd = port_fd, .events = POLLIN },
            { .fd = has_input ? input[1] : -1, .events = POLLOUT },
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
            feed_input(&input[1]);
        if (polled[2].revents)
            forward(OUTPUT, &output[0]);
        if (polled[3].revents)
            forward(ERRORS, &errors[0]);
        while (read(deaths, &death, sizeof death) > 0)
            ;
    } while (!has_ended(child, &status));
    // By this call, which it makes nowhere else, `vellum run --kernel-work` knows of the program's end.
    getppid();
    while (forward(OUTPUT, &output[0]) | forward(ERRORS, &errors[0]))
        ;
    status = htole32(status);
    send_frame(EXIT, &status, sizeof status);
    tcdrain(port_fd);
    turn_off();
}
