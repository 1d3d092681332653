// inotify: events of files and directories. Prints a row for each rule; the status is 1 if one is
// broken. The rules hold on Linux. `inotify [DIRECTORY [DEVICE]]` works in a directory, /tmp without
// one, on which it first mounts the ext4 file system of a device, if one is named.
#include "common.h"
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static int notify;
static char text[8192];

static const struct {
    uint32_t bit;
    const char *name;
} names[] = {
    {IN_ACCESS, "ACCESS"},           {IN_MODIFY, "MODIFY"},     {IN_ATTRIB, "ATTRIB"},
    {IN_CLOSE_WRITE, "CLOSE_WRITE"}, {IN_CLOSE_NOWRITE, "CLOSE_NOWRITE"}, {IN_OPEN, "OPEN"},
    {IN_MOVED_FROM, "MOVED_FROM"},   {IN_MOVED_TO, "MOVED_TO"}, {IN_CREATE, "CREATE"},
    {IN_DELETE, "DELETE"},           {IN_DELETE_SELF, "DELETE_SELF"},     {IN_MOVE_SELF, "MOVE_SELF"},
    {IN_UNMOUNT, "UNMOUNT"},         {IN_Q_OVERFLOW, "Q_OVERFLOW"},       {IN_IGNORED, "IGNORED"},
    {IN_ISDIR, "ISDIR"},
};

// Adds the text of an event: the watch, the events, the name, and `=` for the cookie of the event
// before.
static void describe(const struct inotify_event *event, uint32_t *cookie) {
    char *end = text + strlen(text);
    end += sprintf(end, "%s%d", *text ? " " : "", event->wd);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (event->mask & names[i].bit)
            end += sprintf(end, "%c%s", names[i].bit == IN_ISDIR ? '|' : ':', names[i].name);
    if (event->len)
        end += sprintf(end, ":%s", event->name);
    if (event->cookie)
        strcpy(end, event->cookie == *cookie ? "=" : "+");
    *cookie = event->cookie;
}

// Returns whether these are the events that are there, or the others. If not, prints them.
static bool get_either(const char *wanted, const char *others) {
    static char buffer[1 << 16] __attribute__((aligned(8)));
    uint32_t cookie = 0;
    *text = 0;
    ssize_t length;
    while ((length = read(notify, buffer, sizeof buffer)) > 0)
        for (char *at = buffer; at < buffer + length;) {
            const struct inotify_event *event = (const void *)at;
            if (strlen(text) < sizeof text - 400)
                describe(event, &cookie);
            at += sizeof *event + event->len;
        }
    if (errno == EAGAIN && (!strcmp(text, wanted) || !strcmp(text, others)))
        return true;
    fprintf(stderr, "got    %s\nwanted %s\n", text, wanted);
    return false;
}

static bool get(const char *wanted) {
    return get_either(wanted, wanted);
}

static bool begin(void) {
    notify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    return notify >= 0;
}

static bool end(void) {
    return !close(notify);
}

static int watch(const char *path, uint32_t events) {
    return inotify_add_watch(notify, path, events);
}

static bool put(const char *path, const char *bytes) {
    int file = open(path, O_WRONLY | O_CREAT, 0600);
    return file >= 0 && write(file, bytes, strlen(bytes)) == (ssize_t)strlen(bytes) && !close(file);
}

// A directory reports what happens to the files in it.
static bool a_directory_reports_its_files(void) {
    char bytes[8];
    bool good = begin() && !mkdir("d", 0700) && watch("d", IN_ALL_EVENTS) == 1;
    good &= put("d/a", "text") && get("1:CREATE:a 1:OPEN:a 1:MODIFY:a 1:CLOSE_WRITE:a");
    int file = open("d/a", O_RDWR);
    good &= get("1:OPEN:a") && read(file, bytes, 8) == 4 && read(file, bytes, 8) == 0 && get("1:ACCESS:a");
    good &= pwrite(file, "x", 1, 0) == 1 && pread(file, bytes, 1, 0) == 1 && !ftruncate(file, 100);
    good &= !fchmod(file, 0640);
    good &= get("1:MODIFY:a 1:ACCESS:a 1:MODIFY:a 1:ATTRIB:a") && write(file, "", 0) == 0 && get("");
    good &= !close(file) && get("1:CLOSE_WRITE:a");
    file = open("d/a", O_RDONLY);
    good &= !close(file) && get("1:OPEN:a 1:CLOSE_NOWRITE:a") && !chmod("d/a", 0600) && !truncate("d/a", 7);
    good &= get("1:ATTRIB:a 1:MODIFY:a") && !chown("d/a", 0, 0) && get("1:ATTRIB:a");
    file = open("d/a", O_WRONLY | O_TRUNC);
    good &= get("1:OPEN:a 1:MODIFY:a") && !fallocate(file, 0, 0, 4096) && get("1:MODIFY:a") && !close(file);
    good &= get("1:CLOSE_WRITE:a");
    struct timespec both[2] = {{1, 0}, {2, 0}}, first[2] = {{1, 0}, {0, UTIME_OMIT}};
    struct timespec second[2] = {{0, UTIME_OMIT}, {2, 0}};
    good &= !utimensat(AT_FDCWD, "d/a", both, 0) && !utimensat(AT_FDCWD, "d/a", first, 0);
    good &= !utimensat(AT_FDCWD, "d/a", second, 0) && get("1:ATTRIB:a 1:ACCESS:a 1:MODIFY:a");
    // A descriptor for a path alone is no opened file.
    file = open("d/a", O_PATH);
    good &= !close(file) && get("") && !link("d/a", "d/b") && get("1:CREATE:b") && !symlink("a", "d/l");
    good &= get("1:CREATE:l") && !mkdir("d/s", 0700) && get("1:CREATE|ISDIR:s") && !mkfifo("d/f", 0600);
    good &= get("1:CREATE:f") && !unlink("d/b") && !unlink("d/l") && !unlink("d/f") && !rmdir("d/s") && !unlink("d/a");
    good &= get("1:DELETE:b 1:DELETE:l 1:DELETE:f 1:DELETE|ISDIR:s 1:DELETE:a") && !rmdir("d");
    return good && get("1:DELETE_SELF 1:IGNORED") && end();
}

// A file reports what happens to it by any of its names, and its end once it is closed.
static bool a_file_reports_itself(void) {
    char bytes[8];
    bool good = begin() && put("a", "text") && !link("a", "b") && watch("a", IN_ALL_EVENTS) == 1;
    good &= watch("b", IN_ALL_EVENTS) == 1;
    int file = open("b", O_RDWR);
    good &= read(file, bytes, 1) == 1 && write(file, "y", 1) == 1 && get("1:OPEN 1:ACCESS 1:MODIFY");
    good &= !link("a", "c") && get("1:ATTRIB") && !unlink("a") && get("1:ATTRIB") && !rename("b", "d");
    good &= get("1:MOVE_SELF");
    good &= !unlink("c") && !unlink("d") && get("1:ATTRIB") && write(file, "z", 1) == 1 && get("1:MODIFY");
    good &= !close(file) && get("1:CLOSE_WRITE 1:DELETE_SELF 1:IGNORED");
    return good && end();
}

// A directory and a file in it report each event both, the directory first.
static bool a_file_and_its_directory_both_report(void) {
    bool good = begin() && !mkdir("d", 0700) && put("d/a", "1") && watch("d", IN_ALL_EVENTS) == 1;
    good &= watch("d/a", IN_ALL_EVENTS) == 2 && put("d/a", "2");
    good &= get("1:OPEN:a 2:OPEN 1:MODIFY:a 2:MODIFY 1:CLOSE_WRITE:a 2:CLOSE_WRITE");
    good &= !unlink("d/a") && get("2:ATTRIB 2:DELETE_SELF 2:IGNORED 1:DELETE:a") && !rmdir("d");
    return good && get("1:DELETE_SELF 1:IGNORED") && end();
}

// Directories report their listings, and what happens to directories in them.
static bool directories_are_opened_and_listed(void) {
    char entries[1024];
    bool good = begin() && !mkdir("d", 0700) && !mkdir("d/s", 0700) && watch("d", IN_ALL_EVENTS) == 1;
    int inner = open("d/s", O_RDONLY | O_DIRECTORY);
    good &= get("1:OPEN|ISDIR:s") && syscall(SYS_getdents64, inner, entries, sizeof entries) > 0;
    good &= get("1:ACCESS|ISDIR:s") && !fchmod(inner, 0750) && get("1:ATTRIB|ISDIR:s") && !close(inner);
    good &= get("1:CLOSE_NOWRITE|ISDIR:s") && watch("d/s", IN_ALL_EVENTS) == 2;
    inner = open("d/s", O_RDONLY | O_DIRECTORY);
    good &= get("1:OPEN|ISDIR:s 2:OPEN|ISDIR") && !close(inner) && get("1:CLOSE_NOWRITE|ISDIR:s 2:CLOSE_NOWRITE|ISDIR");
    good &= !rename("d/s", "d/t") && get("1:MOVED_FROM|ISDIR:s+ 1:MOVED_TO|ISDIR:t= 2:MOVE_SELF");
    good &= !chmod("d/t", 0700) && get("1:ATTRIB|ISDIR:t 2:ATTRIB|ISDIR");
    good &= !rmdir("d/t") && get("2:DELETE_SELF 2:IGNORED 1:DELETE|ISDIR:t") && !rmdir("d");
    return good && get("1:DELETE_SELF 1:IGNORED") && end();
}

// The two events of a move have the same cookie. A file that is replaced ends.
static bool moves_have_cookies(void) {
    bool good = begin() && !mkdir("d", 0700) && !mkdir("e", 0700) && put("d/a", "1") && put("e/old", "2");
    good &= watch("d", IN_ALL_EVENTS) == 1 && watch("e", IN_ALL_EVENTS) == 2;
    good &= watch("d/a", IN_ALL_EVENTS) == 3;
    good &= watch("e/old", IN_ALL_EVENTS) == 4;
    good &= !rename("d/a", "d/b") && get("1:MOVED_FROM:a+ 1:MOVED_TO:b= 3:MOVE_SELF");
    good &= !rename("d/b", "e/old");
    good &= get("1:MOVED_FROM:b+ 2:MOVED_TO:old= 4:ATTRIB 3:MOVE_SELF 4:DELETE_SELF 4:IGNORED");
    good &= put("d/c", "3") && get("1:CREATE:c 1:OPEN:c 1:MODIFY:c 1:CLOSE_WRITE:c");
    good &= !syscall(SYS_renameat2, AT_FDCWD, "d/c", AT_FDCWD, "e/old", 2 /* RENAME_EXCHANGE */);
    good &= get("1:MOVED_FROM:c+ 2:MOVED_TO:old= 2:MOVED_FROM:old+ 1:MOVED_TO:c= 3:MOVE_SELF");
    // A file that is moved reports by its name of now, also to files that were opened before.
    int file = open("d/c", O_RDWR);
    good &= get("1:OPEN:c 3:OPEN") && !rename("d/c", "e/d") && get("1:MOVED_FROM:c+ 2:MOVED_TO:d= 3:MOVE_SELF");
    good &= write(file, "x", 1) == 1 && get("2:MODIFY:d 3:MODIFY") && !close(file);
    good &= get("2:CLOSE_WRITE:d 3:CLOSE_WRITE");
    good &= !unlink("e/d") && !unlink("e/old") && !rmdir("d") && !rmdir("e");
    good &= get("3:ATTRIB 3:DELETE_SELF 3:IGNORED 2:DELETE:d 2:DELETE:old 1:DELETE_SELF 1:IGNORED "
                "2:DELETE_SELF 2:IGNORED");
    return good && end();
}

// Events that are equal to the last one that was not read are one.
static bool equal_events_are_merged(void) {
    bool good = begin() && put("a", "") && put("b", "") && watch("a", IN_MODIFY) == 1;
    good &= watch("b", IN_MODIFY) == 2;
    int file = open("a", O_WRONLY), other = open("b", O_WRONLY), unread = -1;
    for (int i = 0; i < 3; i++)
        good &= write(file, "x", 1) == 1;
    good &= !ioctl(notify, FIONREAD, &unread) && unread == (int)sizeof(struct inotify_event);
    good &= write(other, "x", 1) == 1 && write(file, "x", 1) == 1 && get("1:MODIFY 2:MODIFY 1:MODIFY");
    good &= write(file, "x", 1) == 1 && get("1:MODIFY") && !close(file) && !close(other);
    good &= !unlink("a") && !unlink("b");
    return good && get("1:IGNORED 2:IGNORED") && end();
}

// A second watch of a file changes the first. A watch of one shot ends with its event.
static bool watches_change(void) {
    bool good = begin() && put("a", "") && watch("a", IN_OPEN) == 1;
    good &= watch("a", IN_MODIFY) == 1 && put("a", "x") && get("1:MODIFY");
    good &= watch("a", IN_OPEN | IN_MASK_ADD) == 1 && put("a", "x") && get("1:OPEN 1:MODIFY");
    errno = 0;
    good &= watch("a", IN_OPEN | IN_MASK_CREATE) == -1 && errno == EEXIST;
    good &= !inotify_rm_watch(notify, 1) && get("1:IGNORED") && put("a", "x") && get("");
    errno = 0;
    good &= inotify_rm_watch(notify, 1) == -1 && errno == EINVAL;
    good &= watch("a", IN_OPEN | IN_ONESHOT | IN_MASK_CREATE) == 2 && put("a", "x");
    good &= get("2:OPEN 2:IGNORED") && watch("a", IN_OPEN) == 3 && !unlink("a");
    return good && get("3:IGNORED") && end();
}

// What happens to a file without a name is reported to its directory, unless the watch says not.
static bool removed_files_can_be_excluded(void) {
    bool good = true;
    for (int excluded = 0; excluded < 2; excluded++) {
        good &= begin() && !mkdir("d", 0700) && put("d/a", "");
        good &= watch("d", IN_MODIFY | IN_CLOSE | (excluded ? IN_EXCL_UNLINK : 0)) == 1;
        int file = open("d/a", O_WRONLY);
        good &= write(file, "x", 1) == 1 && get("1:MODIFY:a") && !unlink("d/a");
        good &= write(file, "x", 1) == 1 && !close(file);
        good &= get(excluded ? "" : "1:MODIFY:a 1:CLOSE_WRITE:a") && !rmdir("d") && get("1:IGNORED") && end();
    }
    return good;
}

static bool links_are_followed_or_not(void) {
    bool good = begin() && put("a", "") && !symlink("a", "l") && !mkdir("d", 0700);
    good &= watch("l", IN_OPEN) == 1 && watch("a", IN_OPEN) == 1;
    good &= watch("l", IN_DELETE_SELF | IN_DONT_FOLLOW) == 2 && !unlink("l");
    good &= get("2:DELETE_SELF 2:IGNORED");
    errno = 0;
    good &= watch("a", IN_OPEN | IN_ONLYDIR) == -1 && errno == ENOTDIR;
    good &= watch("d", IN_OPEN | IN_ONLYDIR) == 3 && !unlink("a") && !rmdir("d");
    return good && get("1:IGNORED 3:IGNORED") && end();
}

// A file system that is unmounted ends its watches.
static bool unmounts_are_reported(void) {
    bool good = begin() && !mkdir("m", 0700);
    if (mount("none", "m", "tmpfs", 0, "mode=700"))
        return good && errno == EPERM && !rmdir("m") && end();
    good &= put("m/a", "") && watch("m/a", IN_OPEN) == 1 && watch("m", IN_OPEN) == 2;
    good &= !umount("m") && get_either("1:UNMOUNT 1:IGNORED 2:UNMOUNT|ISDIR 2:IGNORED",
                                        "2:UNMOUNT|ISDIR 2:IGNORED 1:UNMOUNT 1:IGNORED");
    return good && !rmdir("m") && end();
}

// A queue that is full loses events, and reports that once.
static bool a_full_queue_reports_that(void) {
    static const char *setting = "/proc/sys/fs/inotify/max_queued_events";
    char before[32], name[64];
    bool good = read_line(setting, before, sizeof before) && write_line(setting, "4") && begin();
    good &= write_line(setting, before);
    good &= !mkdir("d", 0700) && watch("d", IN_CREATE | IN_DELETE) == 1;
    for (int i = 0; i < 8; i++)
        sprintf(name, "d/%d", i), good &= put(name, "");
    int unread;
    good &= !ioctl(notify, FIONREAD, &unread) && unread == 5 * (int)sizeof(struct inotify_event) + 4 * 16;
    good &= get("1:CREATE:0 1:CREATE:1 1:CREATE:2 1:CREATE:3 -1:Q_OVERFLOW") && !unlink("d/0") && get("1:DELETE:0");
    for (int i = 1; i < 8; i++)
        sprintf(name, "d/%d", i), good &= !unlink(name);
    good &= get("1:DELETE:1 1:DELETE:2 1:DELETE:3 1:DELETE:4 -1:Q_OVERFLOW") && !rmdir("d") && get("1:IGNORED");
    return good && end();
}

static bool watches_and_instances_are_limited(void) {
    static const char *const settings[] = {"/proc/sys/fs/inotify/max_user_watches",
                                           "/proc/sys/fs/inotify/max_user_instances"};
    char before[2][32];
    bool good = begin() && put("a", "") && put("b", "") && read_line(settings[0], before[0], 32) &&
                read_line(settings[1], before[1], 32) && watch("a", IN_OPEN) == 1;
    good &= write_line(settings[0], "1") && write_line(settings[1], "1");
    errno = 0;
    good &= watch("b", IN_OPEN) == -1 && errno == ENOSPC && watch("a", IN_MODIFY) == 1;
    errno = 0;
    good &= inotify_init1(0) == -1 && errno == EMFILE;
    good &= write_line(settings[0], before[0]) && write_line(settings[1], before[1]);
    // Numbers are not used again at once, not even that of the watch that failed.
    good &= watch("b", IN_OPEN) == 3 && !unlink("a") && !unlink("b");
    return good && get("1:IGNORED 3:IGNORED") && end();
}

static void *writes_later(void *unused) {
    (void)unused;
    usleep(50000);
    put("a", "x");
    return NULL;
}

// Reads, polls and sets of files wait for events. A read takes whole events.
static bool waits_end_with_an_event(void) {
    char few[8], buffer[64] __attribute__((aligned(8)));
    pthread_t other;
    notify = inotify_init();
    struct pollfd one = {.fd = notify, .events = POLLIN};
    struct epoll_event event = {.events = EPOLLIN | EPOLLET}, found;
    int files = epoll_create1(0);
    bool good = put("a", "") && watch("a", IN_MODIFY) == 1 && poll(&one, 1, 0) == 0;
    pthread_create(&other, NULL, writes_later, NULL);
    good &= read(notify, buffer, sizeof buffer) == sizeof(struct inotify_event);
    pthread_join(other, NULL);
    pthread_create(&other, NULL, writes_later, NULL);
    good &= poll(&one, 1, 10000) == 1 && one.revents == POLLIN;
    pthread_join(other, NULL);
    errno = 0;
    good &= read(notify, few, sizeof few) == -1 && errno == EINVAL && poll(&one, 1, 0) == 1;
    good &= read(notify, buffer, 31) == sizeof(struct inotify_event) && poll(&one, 1, 0) == 0;
    good &= !epoll_ctl(files, EPOLL_CTL_ADD, notify, &event) && epoll_wait(files, &found, 1, 0) == 0;
    pthread_create(&other, NULL, writes_later, NULL);
    good &= epoll_wait(files, &found, 1, 10000) == 1 && found.events == EPOLLIN && epoll_wait(files, &found, 1, 0) == 0;
    pthread_join(other, NULL);
    return good && !unlink("a") && !close(files) && end();
}

static bool wrong_requests_are_refused(void) {
    bool good = begin() && put("a", ""), other = true;
    int ends[2];
    errno = 0;
    good &= inotify_init1(1) == -1 && errno == EINVAL;
    errno = 0;
    good &= watch("a", 0) == -1 && errno == EINVAL;
    errno = 0;
    good &= watch("a", 0x00100000) == -1 && errno == EINVAL;
    errno = 0;
    good &= watch("a", IN_OPEN | IN_MASK_ADD | IN_MASK_CREATE) == -1 && errno == EINVAL;
    errno = 0;
    good &= watch("none", IN_OPEN) == -1 && errno == ENOENT;
    errno = 0;
    good &= inotify_add_watch(999, "a", IN_OPEN) == -1 && errno == EBADF && !pipe(ends);
    errno = 0;
    good &= inotify_add_watch(ends[0], "a", IN_OPEN) == -1 && errno == EINVAL;
    errno = 0;
    good &= inotify_rm_watch(ends[0], 1) == -1 && errno == EINVAL;
    errno = 0;
    good &= write(notify, "x", 1) == -1 && errno == EBADF;
    errno = 0;
    good &= pread(notify, ends, 4, 0) == -1 && errno == ESPIPE;
    good &= (fcntl(notify, F_GETFL) & (O_ACCMODE | O_NONBLOCK)) == O_NONBLOCK && fcntl(notify, F_GETFD) == FD_CLOEXEC;
    close(ends[0]), close(ends[1]);
    // A watch needs the right to read.
    if (!getuid()) {
        int status = -1;
        chmod("a", 0200);
        pid_t child = fork();
        if (!child)
            _exit(setuid(1000) || watch("a", IN_OPEN) != -1 || errno != EACCES);
        other = waitpid(child, &status, 0) == child && status == 0;
    }
    return good && other && !unlink("a") && end();
}

static void *churns(void *path) {
    for (int i = 0; i < 300; i++) {
        char other[32];
        snprintf(other, sizeof other, "%s.new", (const char *)path);
        put(path, "x");
        rename(path, other);
        unlink(other);
    }
    return NULL;
}

// Watches come and go while other threads change the files. Each reports its end once.
static bool watches_end_beside_changes(void) {
    static char buffer[1 << 16] __attribute__((aligned(8)));
    pthread_t others[3];
    static char paths[3][8] = {"d/a", "d/b", "e"};
    int begun = 0, ended = 0, newest = 0;
    bool good = begin() && !mkdir("d", 0700);
    for (int i = 0; i < 3; i++)
        pthread_create(&others[i], NULL, churns, paths[i]);
    for (int i = 0; i < 500; i++) {
        int one = watch("d", IN_ALL_EVENTS);
        good &= one > newest;
        begun++, newest = one;
        for (int k = 0; k < 3; k++) {
            int other = watch(paths[k], IN_ALL_EVENTS);
            if (other > newest)
                begun++, newest = other;
        }
        good &= !inotify_rm_watch(notify, one);
        if (i == 499)
            for (int k = 0; k < 3; k++)
                pthread_join(others[k], NULL);
        ssize_t length;
        while ((length = read(notify, buffer, sizeof buffer)) > 0)
            for (char *at = buffer; at < buffer + length;) {
                const struct inotify_event *event = (const void *)at;
                ended += event->mask & IN_IGNORED ? 1 : 0;
                at += sizeof *event + event->len;
            }
    }
    return good && begun == ended && !rmdir("d") && end();
}

static const struct rule rules[] = {
    {"a directory reports its files", a_directory_reports_its_files},
    {"a file reports itself", a_file_reports_itself},
    {"a file and its directory both report", a_file_and_its_directory_both_report},
    {"directories are opened and listed", directories_are_opened_and_listed},
    {"moves have cookies", moves_have_cookies},
    {"equal events are merged", equal_events_are_merged},
    {"watches change", watches_change},
    {"removed files can be excluded", removed_files_can_be_excluded},
    {"links are followed or not", links_are_followed_or_not},
    {"unmounts are reported", unmounts_are_reported},
    {"a full queue reports that", a_full_queue_reports_that},
    {"watches and instances are limited", watches_and_instances_are_limited},
    {"waits end with an event", waits_end_with_an_event},
    {"wrong requests are refused", wrong_requests_are_refused},
    {"watches end beside changes", watches_end_beside_changes},
};

int main(int argc, char **argv) {
    char folder[256];
    snprintf(folder, sizeof folder, "%s/inotify.XXXXXX", argc > 1 ? argv[1] : "/tmp");
    if (argc > 2 && ((mkdir(argv[1], 0755) && errno != EEXIST) || mount(argv[2], argv[1], "ext4", 0, NULL)))
        die("mount %s", argv[2]);
    if (!mkdtemp(folder) || chdir(folder) || chmod(folder, 0755))
        die("%s", folder);
    int status = check_rules(rules, sizeof rules / sizeof *rules);
    if (chdir("/") || rmdir(folder))
        die("%s", folder);
    return status;
}
