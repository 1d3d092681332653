// descriptors: what Linux answers for descriptors that are unlike files: devices, pipes, places.
// Prints a row for each rule; the status is 1 if one is broken. The rules hold on Linux.
#include "common.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/xattr.h>

// The offset of a device stays at 0, and that of a file that is no stream too.
static bool seeks_of_devices_are_ignored(void) {
    static const char *const devices[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"};
    sigset_t none;
    sigemptyset(&none);
    int files[] = {
        open(devices[0], O_RDONLY),
        open(devices[1], O_RDONLY),
        open(devices[2], O_RDONLY),
        open(devices[3], O_RDONLY),
        open(devices[4], O_RDONLY),
        eventfd(0, 0),
        timerfd_create(CLOCK_MONOTONIC, 0),
        signalfd(-1, &none, 0),
        epoll_create1(0),
        inotify_init(),
    };
    bool good = true;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char byte;
        for (int from = SEEK_SET; from <= SEEK_HOLE; from++)
            good &= lseek(files[i], 5, from) == 0 && lseek(files[i], -5, from) == 0;
        good &= fails_by(lseek(files[i], 0, SEEK_HOLE + 1), EINVAL);
        good &= i < 5 || fails_by(pread(files[i], &byte, 1, 0), ESPIPE);
        close(files[i]);
    }
    int place = open("/tmp", O_PATH), terminal = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    good &= fails_by(lseek(place, 0, 9), EBADF) && fails_by(lseek(terminal, 0, SEEK_CUR), ESPIPE);
    good &= fails_by(lseek(terminal, 0, 9), EINVAL);
    close(place);
    close(terminal);
    return good;
}

// Attributes are those of files that are open, and checks of names come before those of files.
static bool attributes_need_open_files(void) {
    enum { SET_AT = 463, GET_AT, LIST_AT, REMOVE_AT };
    char value[8];
    int place = open("/tmp", O_PATH), folder = open("/tmp", O_RDONLY);
    struct {
        uint64_t value;
        uint32_t size, flags;
        uint64_t unknown;
    } arguments = {(uintptr_t)value, sizeof value, 0, 0};
    bool good = fails_by(fgetxattr(place, "user.a", value, 8), EBADF);
    good &= fails_by(fsetxattr(place, "user.a", "", 0, 0), EBADF) && fails_by(flistxattr(place, value, 8), EBADF);
    good &= fails_by(fremovexattr(place, "user.a"), EBADF);
    good &= fails_by(getxattr("/none", "", value, 8), ERANGE);
    good &= fails_by(getxattr("/none", "user.a", value, 8), ENOENT);
    good &= fails_by(setxattr("/none", "user.a", "", 0, 4), EINVAL);
    good &= fails_by(syscall(SYS_setxattr, "/none", "user.a", value, 65537, 0), E2BIG);
    good &= fails_by(syscall(SYS_setxattr, "/none", "user.a", NULL, 8, 0), EFAULT);
    good &= fails_by(removexattr("/none", "user.a"), ENOENT);
    good &= fails_by(setxattr("/dev/null", "user.a", "", 0, 0), EPERM);
    good &= fails_by(getxattr("/dev/null", "user.a", value, 8), ENODATA);
    if (fails_by(syscall(GET_AT, -1, "", 0, "", NULL, 0), ENOSYS))
        return good;
    good &= fails_by(syscall(GET_AT, -1, "x", 0, "user.a", &arguments, 8), EINVAL);
    good &= fails_by(syscall(GET_AT, -1, "x", 0, "user.a", &arguments, PAGE + 8), E2BIG);
    good &= fails_by(syscall(GET_AT, -1, "x", 0, "user.a", &arguments, sizeof arguments), EBADF);
    good &= fails_by(syscall(GET_AT, -1, "x", 1, "user.a", &arguments, sizeof arguments), EINVAL);
    good &= fails_by(syscall(GET_AT, folder, "none", 0, "user.a", &arguments, sizeof arguments), ENOENT);
    good &= fails_by(syscall(GET_AT, place, "", AT_EMPTY_PATH, "user.a", &arguments, sizeof arguments), EBADF);
    good &= fails_by(syscall(GET_AT, AT_FDCWD, "/dev/null", 0, "user.a", &arguments, sizeof arguments), ENODATA);
    good &= fails_by(syscall(SET_AT, AT_FDCWD, "/dev/null", 0, "user.a", &arguments, sizeof arguments), EPERM);
    good &= fails_by(syscall(REMOVE_AT, AT_FDCWD, "/dev/null", 0, "user.a"), EPERM);
    good &= syscall(LIST_AT, folder, "", AT_EMPTY_PATH, NULL, 0) >= 0;
    good &= fails_by(syscall(LIST_AT, folder, "none", 0, NULL, 0), ENOENT);
    arguments.unknown = 1;
    good &= fails_by(syscall(GET_AT, -1, "x", 0, "user.a", &arguments, sizeof arguments), E2BIG);
    close(place);
    close(folder);
    return good;
}

// The settings of pipes hold for those without rights.
static bool pipes_have_limits(void) {
#define PIPES "/proc/sys/fs/pipe-"
    int ends[2], other, status;
    bool good = has_text(PIPES "max-size", "1048576\n") && has_text(PIPES "user-pages-soft", "16384\n");
    good &= has_text(PIPES "user-pages-hard", "0\n") && !pipe(ends);
    good &= write_line(PIPES "max-size", "70000\n") && has_text(PIPES "max-size", "131072\n");
    good &= fcntl(ends[0], F_SETPIPE_SZ, 1 << 20) == 1 << 20 && fcntl(ends[1], F_GETPIPE_SZ) == 1 << 20;
    good &= fails_by(fcntl(ends[0], F_SETPIPE_SZ, -1), EINVAL) && fcntl(ends[0], F_SETPIPE_SZ, 0) == PAGE;
    good &= fails_by(fcntl(other = open("/tmp", O_RDONLY), F_SETPIPE_SZ, PAGE), EBADF);
    good &= fails_by(fcntl(other, F_GETPIPE_SZ), EBADF) && !close(other);
    good &= write_line(PIPES "user-pages-soft", "40\n");
    pid_t child = fork();
    if (!child) {
        int pipes[3][2];
        bool holds = !setgid(60001) && !setuid(60001) && fails_by(fcntl(ends[0], F_SETPIPE_SZ, 1 << 20), EPERM);
        for (int i = 0; i < 3; i++)
            holds &= !pipe(pipes[i]) && fcntl(pipes[i][0], F_GETPIPE_SZ) == (i < 2 ? 16 : 2) * PAGE;
        holds &= fails_by(fcntl(pipes[2][0], F_SETPIPE_SZ, 16 * PAGE), EPERM);
        holds &= fcntl(pipes[0][0], F_SETPIPE_SZ, PAGE) == PAGE;
        _exit(!(holds && fcntl(pipes[2][0], F_SETPIPE_SZ, 16 * PAGE) == 16 * PAGE));
    }
    good &= waitpid(child, &status, 0) == child && status == 0;
    good &= write_line(PIPES "user-pages-hard", "20\n");
    child = fork();
    if (!child) {
        bool holds = !setgid(60002) && !setuid(60002) && !pipe(ends);
        _exit(!(holds && fails_by(fcntl(ends[0], F_SETPIPE_SZ, 32 * PAGE), EPERM)));
    }
    good &= waitpid(child, &status, 0) == child && status == 0;
    good &= write_line(PIPES "user-pages-hard", "0\n") && write_line(PIPES "user-pages-soft", "16384\n");
    good &= write_line(PIPES "max-size", "1048576\n");
    close(ends[0]), close(ends[1]);
    return good;
}

// A descriptor has no flags that the call does not know, and a directory has no requests.
static bool unknown_requests_are_refused(void) {
    enum { DUPFD_QUERY = 1027, CLONE = 0x40049409, FACCESSAT2 = 439 };
    char path[] = "/tmp/descriptors.XXXXXX";
    struct stat found;
    int folder = open("/tmp", O_RDONLY | O_DIRECTORY), again = dup(folder), other = open("/tmp", O_RDONLY);
    int place = open("/tmp", O_PATH), file = mkstemp(path);
    bool good = fails_by(fcntl(folder, 9999), EINVAL) && fails_by(ioctl(folder, 9999), ENOTTY);
    good &= fails_by(ioctl(place, 9999), EBADF) && fails_by(fcntl(place, 9999), EBADF);
    good &= fcntl(folder, DUPFD_QUERY, again) == 1 && fcntl(folder, DUPFD_QUERY, other) == 0;
    good &= fails_by(ioctl(file, CLONE, file), EOPNOTSUPP);
    good &= fails_by(fchownat(AT_FDCWD, path, 0, 0, 0x10000), EINVAL);
    good &= fails_by(linkat(AT_FDCWD, path, AT_FDCWD, "/tmp/none", 0x10000), EINVAL);
    good &= fails_by(syscall(SYS_newfstatat, AT_FDCWD, path, &found, 0x10000), EINVAL);
    good &= fails_by(syscall(SYS_utimensat, AT_FDCWD, path, NULL, 0x10000), EINVAL);
    good &= fails_by(syscall(FACCESSAT2, AT_FDCWD, path, R_OK, 0x10000), EINVAL);
    // The path is looked at before the directory.
    good &= fails_by(syscall(SYS_fchmodat, file, "", 0600), ENOENT);
    good &= fails_by(readahead(place, 0, PAGE), EBADF) && fails_by(readahead(folder, 0, PAGE), EINVAL);
    int event = eventfd(0, 0);
    good &= fails_by(readahead(event, 0, PAGE), EINVAL);
    close(folder), close(again), close(other), close(place), close(file), close(event);
    return good && !unlink(path);
}

// Of locks that conflict, the one with the lowest offset is told.
static bool the_first_lock_is_told(void) {
    char path[] = "/tmp/descriptors.XXXXXX";
    int file = mkstemp(path), status;
    struct flock high = {.l_type = F_WRLCK, .l_start = 10, .l_len = 5};
    struct flock low = {.l_type = F_RDLCK, .l_start = 1, .l_len = 5};
    bool good = !fcntl(file, F_SETLK, &high) && !fcntl(file, F_SETLK, &low);
    pid_t child = fork();
    if (!child) {
        struct flock asked = {.l_type = F_WRLCK};
        bool holds = !fcntl(file, F_GETLK, &asked) && asked.l_type == F_RDLCK && asked.l_start == 1;
        _exit(!(holds && asked.l_len == 5 && asked.l_pid == getppid()));
    }
    good &= waitpid(child, &status, 0) == child && status == 0;
    close(file);
    return good && !unlink(path);
}

static int shares_descriptors(void *of) {
    int file = *(int *)of;
    bool good = !syscall(SYS_close_range, file, file, 2) && fails_by(fcntl(file, F_GETFD), EBADF);
    return !good;
}

// `CLOSE_RANGE_UNSHARE` closes the caller's descriptors alone.
static bool descriptors_are_unshared(void) {
    static char stack[4 * PAGE] __attribute__((aligned(16)));
    int file = open("/", O_PATH), status;
    pid_t child = clone(shares_descriptors, stack + sizeof stack, CLONE_FILES | SIGCHLD, &file);
    bool good = waitpid(child, &status, 0) == child && status == 0;
    return good && fcntl(file, F_GETFD) == 0 && !close(file);
}

static const struct rule rules[] = {
    {"seeks of devices are ignored", seeks_of_devices_are_ignored},
    {"attributes need open files", attributes_need_open_files},
    {"pipes have limits", pipes_have_limits},
    {"unknown requests are refused", unknown_requests_are_refused},
    {"the first lock is told", the_first_lock_is_told},
    {"descriptors are unshared", descriptors_are_unshared},
};

int main(void) {
    return check_rules(rules, sizeof rules / sizeof *rules);
}
