// tty: pseudoterminals, their line discipline, and job control. `tty standard` is for a terminal as
// standard streams. Prints a row for each rule; the status is 1 if one is broken. The rules hold on
// Linux.
#include "common.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <termios.h>

enum { PATIENCE = 10000 };

static int master, slave;
static char name[64];

// Opens a new terminal; the slave too if `both`. Standard streams stay as they are.
static bool open_pair(bool both) {
    int number = -1, unlocked = 0;
    master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || ioctl(master, TIOCGPTN, &number) || ioctl(master, TIOCSPTLCK, &unlocked))
        return false;
    snprintf(name, sizeof name, "/dev/pts/%d", number);
    slave = both ? open(name, O_RDWR | O_NOCTTY | O_CLOEXEC) : -1;
    return !both || slave >= 0;
}

static bool close_pair(void) {
    bool good = !close(master);
    return good & (slave < 0 || !close(slave));
}

static void change(tcflag_t input, tcflag_t output, tcflag_t local, bool on) {
    struct termios now;
    tcgetattr(slave, &now);
    now.c_iflag = on ? now.c_iflag | input : now.c_iflag & ~input;
    now.c_oflag = on ? now.c_oflag | output : now.c_oflag & ~output;
    now.c_lflag = on ? now.c_lflag | local : now.c_lflag & ~local;
    tcsetattr(slave, TCSANOW, &now);
}

static void set_timing(cc_t least, cc_t time) {
    struct termios now;
    tcgetattr(slave, &now);
    now.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    now.c_cc[VMIN] = least;
    now.c_cc[VTIME] = time;
    tcsetattr(slave, TCSANOW, &now);
}

static bool type(const char *bytes) {
    return write(master, bytes, strlen(bytes)) == (ssize_t)strlen(bytes);
}

static short events(int fd) {
    struct pollfd wanted = {.fd = fd, .events = POLLIN | POLLOUT | POLLPRI};
    poll(&wanted, 1, 0);
    return wanted.revents;
}

static bool can_read(int fd, int timeout) {
    struct pollfd wanted = {.fd = fd, .events = POLLIN};
    return poll(&wanted, 1, timeout) == 1 && wanted.revents & POLLIN;
}

// Returns whether exactly these bytes come out, now or soon, in whatever pieces.
static bool gives(int fd, const char *expected, size_t length) {
    char bytes[256];
    size_t done = 0;
    while (done < length) {
        if (!can_read(fd, PATIENCE))
            return false;
        ssize_t got = read(fd, bytes + done, sizeof bytes - done);
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return done == length && !memcmp(bytes, expected, length) && !can_read(fd, 20);
}

static bool shows(const char *text) {
    return gives(master, text, strlen(text));
}

// Returns whether a read of a line returns this.
static bool reads(const char *line) {
    char bytes[256];
    if (!can_read(slave, PATIENCE))
        return false;
    return read(slave, bytes, sizeof bytes) == (ssize_t)strlen(line) && !memcmp(bytes, line, strlen(line));
}

// Returns errno of a call that failed, 0 of one that did not.
#define ERROR_OF(call) (errno = 0, (call) == -1 ? errno : 0)

// A new terminal has the usual settings, and a slave that must be unlocked. The slave has a name.
static bool terminals_are_new(void) {
    struct termios now;
    struct winsize window;
    struct stat stat;
    int number, locked = 0;
    char link[64], path[64];
    bool good = open_pair(false);
    int other = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    good &= !ioctl(other, TIOCGPTN, &number) && !ioctl(other, TIOCGPTLCK, &locked) && locked == 1;
    snprintf(path, sizeof path, "/dev/pts/%d", number);
    good &= ERROR_OF(open(path, O_RDWR | O_NOCTTY)) == EIO;
    good &= ERROR_OF(ioctl(other, TIOCGPTPEER, O_RDWR | O_NOCTTY)) == EIO && !close(other);
    good &= ERROR_OF(open(path, O_RDWR | O_NOCTTY)) == ENOENT;
    slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY);
    good &= slave >= 0 && !fstat(slave, &stat) && S_ISCHR(stat.st_mode) && major(stat.st_rdev) == 136;
    snprintf(link, sizeof link, "/proc/self/fd/%d", slave);
    ssize_t length = readlink(link, path, sizeof path);
    good &= length == (ssize_t)strlen(name) && !memcmp(path, name, strlen(name)) && isatty(slave) && isatty(master);
    good &= !tcgetattr(slave, &now) && now.c_iflag == (ICRNL | IXON) && now.c_oflag == (OPOST | ONLCR);
    good &= now.c_cflag == (B38400 | CS8 | CREAD) && now.c_cc[VINTR] == 3 && now.c_cc[VMIN] == 1;
    good &= now.c_lflag == (ISIG | ICANON | ECHO | ECHOE | ECHOK | ECHOCTL | ECHOKE | IEXTEN);
    good &= !ioctl(slave, TIOCGWINSZ, &window) && !window.ws_row && !window.ws_col;
    good &= events(master) == POLLOUT && events(slave) == POLLOUT;
    good &= ERROR_OF(lseek(slave, 0, SEEK_SET)) == ESPIPE && ERROR_OF(ioctl(slave, TIOCGPTN, &number)) == ENOTTY;
    return good & close_pair();
}

static bool lines_are_edited(void) {
    static const struct {
        const char *typed, *echo, *line;
    } cases[] = {
        {"abc\x7f\x7fZ\n", "abc\b \b\b \bZ\r\n", "aZ\n"},
        {"a\tb\x7f\x7f\x7fX\r", "a\tb\b \b\b\b\b\b\b\b\b\b \bX\r\n", "X\n"},
        {"one two\x17three\n", "one two\b \b\b \b\b \bthree\r\n", "one three\n"},
        {"xx\x01\x7fy\x15k\n", "xx^A\b \b\b \by\b \b\b \b\b \bk\r\n", "k\n"},
        {"\x16\x03q\n", "^\b^Cq\r\n", "\x03q\n"},
        {"ab\x12" "c\n", "ab^R\r\nabc\r\n", "abc\n"},
        {"\xc3\xa9\x7f\n", "\xc3\xa9\b \b\r\n", "\xc3\n"},
    };
    bool good = open_pair(true);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        good &= type(cases[i].typed) && reads(cases[i].line) && shows(cases[i].echo);
    change(IUTF8, 0, 0, true);
    good &= type("\xc3\xa9\t\x7f\x7f\n") && reads("\n") && shows("\xc3\xa9\t\b\b\b\b\b\b\b\b \b\r\n");
    change(0, 0, ECHO, false);
    good &= type("secret\n") && reads("secret\n") && !can_read(master, 20);
    change(0, 0, ECHONL, true);
    good &= type("secret\n") && reads("secret\n") && shows("\r\n");
    return good & close_pair();
}

// A line has 4096 bytes at most. What does not fit is lost, but its end is not.
static bool lines_are_bounded(void) {
    static char bytes[5000];
    bool good = open_pair(true);
    memset(bytes, 'a', sizeof bytes);
    change(0, 0, ECHO, false);
    good &= write(master, bytes, sizeof bytes) == sizeof bytes && !can_read(slave, 20) && type("\n");
    good &= can_read(slave, PATIENCE) && read(slave, bytes, sizeof bytes) == 4096 && bytes[4095] == '\n';
    return good & close_pair();
}

static bool an_end_of_file_ends_a_line(void) {
    char bytes[16];
    int unread;
    bool good = open_pair(true);
    change(0, 0, ECHO, false);
    good &= type("\x04") && can_read(slave, PATIENCE) && read(slave, bytes, sizeof bytes) == 0;
    good &= type("abc\x04" "d\n") && can_read(slave, PATIENCE) && !ioctl(slave, FIONREAD, &unread) && unread == 5;
    good &= read(slave, bytes, 3) == 3 && reads("d\n");
    good &= type("abc\x04" "de");
    good &= can_read(slave, PATIENCE);
    usleep(50000);
    change(0, 0, ICANON, false);
    good &= read(slave, bytes, sizeof bytes) == 6 && !memcmp(bytes, "abc\0de", 6);
    good &= type("pq") && can_read(slave, PATIENCE);
    usleep(50000);
    change(0, 0, ICANON, true);
    good &= reads("pq") && !can_read(slave, 20);
    return good & close_pair();
}

static double now_ms(void) {
    return (double)now_ns() / 1e6;
}

// Writes bytes to the master after a while, from another process.
static pid_t type_later(int ms, const char *bytes) {
    pid_t child = fork();
    if (child == 0) {
        usleep((useconds_t)ms * 1000);
        _exit(!type(bytes));
    }
    return child;
}

// VMIN and VTIME say how long a read in raw mode waits.
static bool raw_reads_wait_as_they_should(void) {
    char bytes[16];
    int status;
    bool good = open_pair(true);
    set_timing(0, 0);
    good &= read(slave, bytes, sizeof bytes) == 0;
    set_timing(0, 2);
    double begin = now_ms();
    good &= read(slave, bytes, sizeof bytes) == 0 && now_ms() - begin >= 190;
    pid_t child = type_later(50, "x");
    set_timing(0, 100);
    good &= read(slave, bytes, sizeof bytes) == 1 && waitpid(child, &status, 0) == child;
    set_timing(3, 0);
    good &= type("ab") && !can_read(slave, 50);
    child = type_later(50, "c");
    good &= read(slave, bytes, sizeof bytes) == 3 && waitpid(child, &status, 0) == child;
    // The time begins with the first byte.
    set_timing(3, 2);
    child = type_later(400, "ab");
    begin = now_ms();
    good &= read(slave, bytes, sizeof bytes) == 2 && now_ms() - begin >= 400 && waitpid(child, &status, 0) == child;
    fcntl(slave, F_SETFL, O_RDWR | O_NONBLOCK);
    good &= ERROR_OF(read(slave, bytes, sizeof bytes)) == EAGAIN && type("z") && can_read(slave, PATIENCE);
    good &= read(slave, bytes, sizeof bytes) == 1;
    return good & close_pair();
}

static bool output_is_processed_and_stopped(void) {
    bool good = open_pair(true);
    good &= write(slave, "a\nb", 3) == 3 && shows("a\r\nb");
    change(0, TABDLY, 0, true);
    good &= write(slave, "\n\tb", 3) == 3 && shows("\r\n        b");
    change(0, OPOST, 0, false);
    good &= write(slave, "a\n", 2) == 2 && shows("a\n");
    fcntl(slave, F_SETFL, O_RDWR | O_NONBLOCK);
    good &= !tcflow(slave, TCOOFF) && ERROR_OF(write(slave, "x", 1)) == EAGAIN && !(events(slave) & POLLOUT);
    good &= !tcflow(slave, TCOON) && write(slave, "x", 1) == 1 && shows("x");
    good &= type("\x13");
    for (int tries = 0; events(slave) & POLLOUT && tries < 1000; tries++)
        usleep(1000);
    good &= ERROR_OF(write(slave, "x", 1)) == EAGAIN && type("ab") && !can_read(master, 30);
    good &= type("\x11") && shows("ab") && write(slave, "x", 1) == 1 && shows("x");
    return good & close_pair();
}

static bool flushes_drop_bytes(void) {
    int unread = -1;
    bool good = open_pair(true);
    change(0, 0, ECHO, false);
    good &= type("abc\n") && can_read(slave, PATIENCE) && !tcflush(slave, TCIFLUSH);
    good &= !ioctl(slave, FIONREAD, &unread) && unread == 0 && !can_read(slave, 20);
    good &= type("abc\n") && can_read(slave, PATIENCE);
    struct termios now;
    tcgetattr(slave, &now);
    good &= !tcsetattr(slave, TCSAFLUSH, &now) && !can_read(slave, 20);
    // What came to the master is its own.
    good &= write(slave, "out", 3) == 3 && can_read(master, PATIENCE);
    usleep(20000);
    good &= !tcflush(slave, TCOFLUSH) && shows("out");
    good &= ERROR_OF(tcflush(slave, 9)) == EINVAL && ERROR_OF(tcflow(slave, 9)) == EINVAL;
    return good & close_pair();
}

// A master in packet mode reads a status before its bytes.
static bool packets_tell_what_happened(void) {
    int on = 1;
    bool good = open_pair(true) && !ioctl(master, TIOCPKT, &on);
    good &= write(slave, "hi", 2) == 2 && gives(master, "\0hi", 3) && !(events(master) & POLLPRI);
    good &= !tcflow(slave, TCOOFF) && events(master) & POLLPRI && shows("\x04");
    good &= !tcflow(slave, TCOON) && shows("\x08");
    good &= !tcflush(slave, TCIOFLUSH) && shows("\x03");
    change(IXON, 0, 0, false);
    good &= shows("\x10");
    change(IXON, 0, 0, true);
    good &= shows("\x20");
    return good & close_pair();
}

// Each end sees that the other one was closed.
static bool ends_see_each_others_ends(void) {
    char bytes[16];
    bool good = open_pair(true);
    good &= write(slave, "last", 4) == 4 && !close(slave) && events(master) & POLLHUP;
    good &= read(master, bytes, sizeof bytes) == 4 && ERROR_OF(read(master, bytes, sizeof bytes)) == EIO;
    slave = open(name, O_RDWR | O_NOCTTY);
    good &= slave >= 0 && !(events(master) & POLLHUP);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN}, found;
    good &= !epoll_ctl(set, EPOLL_CTL_ADD, slave, &event) && epoll_wait(set, &found, 1, 0) == 0;
    good &= !close(master) && epoll_wait(set, &found, 1, PATIENCE) == 1 && found.events & EPOLLHUP;
    good &= events(slave) == (POLLIN | POLLOUT | POLLERR | POLLHUP);
    good &= read(slave, bytes, sizeof bytes) == 0 && ERROR_OF(write(slave, "x", 1)) == EIO;
    good &= ERROR_OF(tcgetattr(slave, &(struct termios){0})) == EIO && ERROR_OF(open(name, O_RDWR)) == ENOENT;
    return good & !close(slave) & !close(set);
}

// Runs a rule in a session of its own without a terminal. What it prints is lost with the process
// unless it is true.
static bool in_session(bool (*rule)(void)) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        setsid();
        alarm(60);
        _exit(!rule());
    }
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status);
}

static bool stat_of(pid_t pid, char *state, int *terminal, int *foreground) {
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!read_line(path, line, sizeof line))
        return false;
    return sscanf(strrchr(line, ')') + 2, "%c %*d %*d %*d %d %d", state, terminal, foreground) == 3;
}

static bool session_gets_a_terminal(void) {
    char state;
    int terminal, foreground, tty;
    struct stat stat;
    pid_t group;
    bool good = open_pair(true);
    good &= ERROR_OF(open("/dev/tty", O_RDWR)) == ENXIO && ERROR_OF(tcgetpgrp(slave)) == ENOTTY;
    good &= stat_of(getpid(), &state, &terminal, &foreground) && terminal == 0 && foreground == -1;
    good &= !ioctl(master, TIOCGPGRP, &group) && group == 0;
    int other = open(name, O_RDWR);
    good &= other >= 0 && tcgetpgrp(slave) == getpid() && tcgetsid(slave) == getpid();
    good &= (tty = open("/dev/tty", O_RDWR)) >= 0 && isatty(tty) && tcgetpgrp(tty) == getpid();
    good &= !fstat(slave, &stat) && stat_of(getpid(), &state, &terminal, &foreground);
    good &= terminal == (int)stat.st_rdev && foreground == getpid();
    good &= !ioctl(master, TIOCGPGRP, &group) && group == getpid() && ERROR_OF(tcsetpgrp(slave, 999999)) == ESRCH;
    good &= ERROR_OF(tcsetpgrp(slave, getpgid(getppid()))) == EPERM;
    good &= !ioctl(slave, TIOCSCTTY, 0);
    signal(SIGHUP, SIG_IGN);
    good &= !ioctl(slave, TIOCNOTTY) && ERROR_OF(open("/dev/tty", O_RDWR)) == ENXIO;
    good &= ERROR_OF(ioctl(slave, TIOCNOTTY)) == ENOTTY && !ioctl(slave, TIOCSCTTY, 0);
    good &= tcgetpgrp(slave) == getpid();
    return good;
}

static bool a_session_leader_gets_a_terminal(void) {
    return in_session(session_gets_a_terminal);
}

// Makes the terminal control this session.
static bool control(void) {
    return open_pair(true) && !ioctl(slave, TIOCSCTTY, 0);
}

// Starts a child in a group of its own, in the foreground if asked, that runs `work`.
static pid_t job(bool in_foreground, int (*work)(void)) {
    int ready[2];
    char byte;
    if (pipe(ready))
        return -1;
    pid_t child = fork();
    if (child == 0) {
        setpgid(0, 0);
        signal(SIGTTOU, SIG_IGN);
        if (in_foreground)
            tcsetpgrp(slave, getpid());
        signal(SIGTTOU, SIG_DFL);
        close(ready[0]);
        if (write(ready[1], "x", 1) != 1)
            _exit(99);
        close(ready[1]);
        _exit(work());
    }
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1)
        child = -1;
    close(ready[0]);
    return child;
}

static int sleeps(void) {
    while (pause())
        ;
    return 0;
}

static bool signals_go_to_foreground(void) {
    static const struct {
        const char *typed;
        int signal;
    } cases[] = {{"\x03", SIGINT}, {"\x1c", SIGQUIT}};
    int status;
    bool good = control();
    signal(SIGTTOU, SIG_IGN);
    for (int i = 0; i < 2; i++) {
        pid_t child = job(true, sleeps);
        good &= tcgetpgrp(slave) == child && type(cases[i].typed) && waitpid(child, &status, 0) == child;
        good &= WIFSIGNALED(status) && WTERMSIG(status) == cases[i].signal;
    }
    good &= shows("^C^\\");
    pid_t child = job(true, sleeps);
    char state;
    int terminal, foreground;
    for (int i = 0; i < 2; i++) {
        good &= type("\x1a") && waitpid(child, &status, WUNTRACED) == child;
        good &= WIFSTOPPED(status) && WSTOPSIG(status) == SIGTSTP;
        good &= stat_of(child, &state, &terminal, &foreground) && state == 'T' && foreground == child;
        good &= waitpid(child, &status, WUNTRACED | WNOHANG) == 0 && !kill(-child, SIGCONT);
        good &= waitpid(child, &status, WCONTINUED) == child && WIFCONTINUED(status);
    }
    // A stopped process takes a signal that ends it once it is continued.
    siginfo_t info;
    good &= !kill(child, SIGSTOP) && !waitid(P_PID, (id_t)child, &info, WSTOPPED) && info.si_code == CLD_STOPPED;
    good &= info.si_status == SIGSTOP && !kill(child, SIGTERM) && !waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG);
    usleep(20000);
    good &= waitpid(child, &status, WNOHANG) == 0 && !kill(child, SIGCONT) && waitpid(child, &status, 0) == child;
    good &= WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
    return good;
}

static bool signals_go_to_the_foreground_group(void) {
    return in_session(signals_go_to_foreground);
}

static int reads_a_byte(void) {
    char bytes[16];
    return read(slave, bytes, sizeof bytes) == 2 && bytes[0] == 'y' ? 0 : errno;
}

static int writes_a_byte(void) {
    return write(slave, "w", 1) == 1 ? 0 : errno;
}

static int ignores_and_reads(void) {
    char byte;
    signal(SIGTTIN, SIG_IGN);
    return read(slave, &byte, 1) == -1 ? errno : 99;
}

static int ignores_and_writes(void) {
    signal(SIGTTOU, SIG_IGN);
    return write(slave, "v", 1) == 1 ? 0 : errno;
}

static int changes_the_settings(void) {
    struct termios now;
    return tcgetattr(slave, &now) || tcsetattr(slave, TCSANOW, &now) ? errno : 0;
}

static int takes_the_foreground(void) {
    return tcsetpgrp(slave, getpid()) ? errno : 0;
}

// Returns whether a job in the background stops with this signal, and ends well once it is in the
// foreground.
static bool stops(int (*work)(void), int signal) {
    int status;
    pid_t child = job(false, work);
    bool good = waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status) && WSTOPSIG(status) == signal;
    good &= !tcsetpgrp(slave, child);
    good &= !kill(-child, SIGCONT) && waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status);
    return good & !tcsetpgrp(slave, getpid());
}

static bool ends_with(pid_t child, int expected) {
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == expected;
}

static bool background_stops(void) {
    bool good = control();
    change(0, 0, ECHO, false);
    signal(SIGTTOU, SIG_IGN);
    good &= type("y\n") && stops(reads_a_byte, SIGTTIN);
    good &= ends_with(job(false, writes_a_byte), 0) && shows("w");
    change(0, 0, TOSTOP, true);
    good &= stops(writes_a_byte, SIGTTOU) && shows("w");
    change(0, 0, TOSTOP, false);
    good &= stops(changes_the_settings, SIGTTOU) && stops(takes_the_foreground, SIGTTOU);
    good &= ends_with(job(false, ignores_and_reads), EIO);
    change(0, 0, TOSTOP, true);
    good &= ends_with(job(false, ignores_and_writes), 0) && shows("v");
    return good;
}

static bool jobs_in_the_background_stop(void) {
    return in_session(background_stops);
}

static int has_an_orphan(void) {
    // The child's group has no parent in another group of the session, once this process is gone.
    if (fork() == 0) {
        char byte;
        setpgid(0, 0);
        while (getppid() != 1)
            usleep(1000);
        signal(SIGTSTP, SIG_DFL);
        raise(SIGTSTP);
        char text[] = {read(slave, &byte, 1) == -1 && errno == EIO ? 'y' : 'n', '\n'};
        _exit(write(slave, text, 2) != 2);
    }
    return 0;
}

// An orphaned group is not stopped by its terminal: a read fails.
static bool orphans_do_not_stop(void) {
    bool good = control();
    change(0, OPOST, ECHO, false);
    good &= ends_with(job(false, has_an_orphan), 0);
    return good & shows("y\n");
}

static bool orphaned_jobs_do_not_stop(void) {
    return in_session(orphans_do_not_stop);
}

static int hang_up_pipe[2];

static void note(int signal) {
    char byte = signal == SIGHUP ? 'H' : 'C';
    if (write(hang_up_pipe[1], &byte, 1) != 1)
        _exit(98);
}

static int leaves_a_stopped_child(void) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGHUP, note);
        signal(SIGCONT, note);
        setpgid(0, 0);
        kill(getpid(), SIGSTOP);
        usleep(100000);
        _exit(0);
    }
    return waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status) ? 0 : 1;
}

// A stopped group that is orphaned is hung up and continued.
static bool stopped_orphans_are_hung_up(void) {
    bool good = !pipe(hang_up_pipe) && control();
    good &= ends_with(job(false, leaves_a_stopped_child), 0);
    char bytes[2] = {0};
    good &= can_read(hang_up_pipe[0], PATIENCE) && read(hang_up_pipe[0], bytes, 1) == 1;
    good &= can_read(hang_up_pipe[0], PATIENCE) && read(hang_up_pipe[0], bytes + 1, 1) == 1;
    return good & (bytes[0] == 'H' ? bytes[1] == 'C' : bytes[0] == 'C' && bytes[1] == 'H');
}

static bool stopped_jobs_that_are_orphaned_are_hung_up(void) {
    return in_session(stopped_orphans_are_hung_up);
}

static int notes_signals(void) {
    signal(SIGHUP, note);
    signal(SIGCONT, note);
    pause();
    usleep(100000);
    return 0;
}

// The end of a session's leader hangs the foreground group up.
static bool the_end_of_a_leader_hangs_the_foreground_up(void) {
    char byte = 0;
    int status;
    bool good = !pipe(hang_up_pipe) && open_pair(false);
    pid_t leader = fork();
    if (leader == 0) {
        setsid();
        slave = open(name, O_RDWR);
        signal(SIGTTOU, SIG_IGN);
        pid_t child = job(true, notes_signals);
        usleep(50000);
        _exit(child < 0);
    }
    good &= waitpid(leader, &status, 0) == leader && status == 0;
    good &= can_read(hang_up_pipe[0], PATIENCE) && read(hang_up_pipe[0], &byte, 1) == 1 && byte == 'H';
    // Nothing else was sent: only a hang-up of the line continues the group.
    good &= !can_read(hang_up_pipe[0], 50);
    close(master);
    return good;
}

// The end of a master hangs the session's leader up, and takes its terminal away.
static bool the_end_of_a_master_hangs_the_leader_up(void) {
    char byte = 0;
    int status;
    bool good = !pipe(hang_up_pipe) && open_pair(false);
    pid_t leader = fork();
    if (leader == 0) {
        close(master);
        setsid();
        slave = open(name, O_RDWR);
        signal(SIGHUP, note);
        if (write(hang_up_pipe[1], "r", 1) != 1)
            _exit(97);
        while (open("/dev/tty", O_RDWR) >= 0 && usleep(1000) == 0)
            ;
        _exit(!(errno == ENXIO || errno == EINTR) || read(slave, &byte, 1) != 0);
    }
    good &= can_read(hang_up_pipe[0], PATIENCE) && read(hang_up_pipe[0], &byte, 1) == 1 && byte == 'r';
    good &= !close(master) && waitpid(leader, &status, 0) == leader && status == 0;
    good &= can_read(hang_up_pipe[0], PATIENCE) && read(hang_up_pipe[0], &byte, 1) == 1 && byte == 'H';
    return good;
}

static volatile int resized;

static void note_resize(int signal) {
    resized = signal;
}

static bool window_is_a_signal(void) {
    struct winsize window = {.ws_row = 30, .ws_col = 100}, found;
    bool good = control();
    signal(SIGWINCH, note_resize);
    good &= !ioctl(master, TIOCSWINSZ, &window) && resized == SIGWINCH;
    good &= !ioctl(slave, TIOCGWINSZ, &found) && found.ws_row == 30 && found.ws_col == 100;
    resized = 0;
    good &= !ioctl(slave, TIOCSWINSZ, &window) && resized == 0;
    return good;
}

static bool a_new_window_size_is_a_signal(void) {
    return in_session(window_is_a_signal);
}

static bool vhangup_ends_files(void) {
    char byte;
    bool good = control();
    signal(SIGHUP, SIG_IGN);
    good &= !vhangup() && read(slave, &byte, 1) == 0 && ERROR_OF(write(slave, "x", 1)) == EIO;
    good &= ERROR_OF(open("/dev/tty", O_RDWR)) == ENXIO;
    int other = open(name, O_RDWR | O_NOCTTY);
    return good & (other >= 0) & (write(other, "x", 1) == 1) & shows("x");
}

static bool vhangup_ends_the_files_of_a_terminal(void) {
    return in_session(vhangup_ends_files);
}

// Groups are made in a session, of processes that have executed nothing else.
static bool groups_have_rules(void) {
    int status;
    bool good = ERROR_OF(setpgid(0, 0)) == EPERM && ERROR_OF(setsid()) == EPERM;
    pid_t child = fork();
    if (child == 0) {
        bool fine = !setpgid(0, 0) && ERROR_OF(setpgid(0, 999999)) == EPERM && ERROR_OF(setsid()) == EPERM;
        fine &= !setpgid(0, getppid()) && setsid() == getpid() && ERROR_OF(setpgid(0, 0)) == EPERM;
        _exit(!fine);
    }
    good &= waitpid(child, &status, 0) == child && status == 0 && ERROR_OF(setpgid(1, 1)) == ESRCH;
    int ready[2];
    char byte;
    good &= !pipe2(ready, O_CLOEXEC);
    child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "tty", "sleep", NULL);
        _exit(99);
    }
    close(ready[1]);
    // The pipe ends with the execution.
    good &= read(ready[0], &byte, 1) == 0 && ERROR_OF(setpgid(child, child)) == EACCES;
    good &= !kill(child, SIGKILL) && waitpid(child, &status, 0) == child && !close(ready[0]);
    return good;
}

static bool process_groups_have_rules(void) {
    return in_session(groups_have_rules);
}

static const struct rule rules[] = {
    {"terminals are new", terminals_are_new},
    {"lines are edited", lines_are_edited},
    {"lines are bounded", lines_are_bounded},
    {"an end of file ends a line", an_end_of_file_ends_a_line},
    {"raw reads wait as they should", raw_reads_wait_as_they_should},
    {"output is processed and stopped", output_is_processed_and_stopped},
    {"flushes drop bytes", flushes_drop_bytes},
    {"packets tell what happened", packets_tell_what_happened},
    {"ends see each other's ends", ends_see_each_others_ends},
    {"a session leader gets a terminal", a_session_leader_gets_a_terminal},
    {"signals go to the foreground group", signals_go_to_the_foreground_group},
    {"jobs in the background stop", jobs_in_the_background_stop},
    {"orphaned jobs do not stop", orphaned_jobs_do_not_stop},
    {"stopped jobs that are orphaned are hung up", stopped_jobs_that_are_orphaned_are_hung_up},
    {"the end of a leader hangs the foreground up", the_end_of_a_leader_hangs_the_foreground_up},
    {"the end of a master hangs the leader up", the_end_of_a_master_hangs_the_leader_up},
    {"a new window size is a signal", a_new_window_size_is_a_signal},
    {"vhangup ends the files of a terminal", vhangup_ends_the_files_of_a_terminal},
    {"process groups have rules", process_groups_have_rules},
};

// The standard streams are a terminal that controls this session. It types an end of file, as the
// host has no input.
static bool standard_streams_are_a_terminal(void) {
    struct winsize window;
    char byte;
    const char *path = ttyname(0);
    bool good = isatty(0) && isatty(1) && isatty(2) && path && !strncmp(path, "/dev/pts/", 9);
    good &= !ioctl(0, TIOCGWINSZ, &window) && window.ws_row && window.ws_col && getenv("TERM");
    good &= tcgetpgrp(0) == getpgrp() && tcgetsid(0) == getsid(0) && !close(open("/dev/tty", O_RDWR));
    return good & (read(0, &byte, 1) == 0);
}

static const struct rule standard[] = {{"standard streams are a terminal", standard_streams_are_a_terminal}};

int main(int argc, char **argv) {
    // A program for another rule.
    if (argc > 1 && !strcmp(argv[1], "sleep"))
        return sleeps();
    if (argc > 1 && !strcmp(argv[1], "standard"))
        return check_rules(standard, 1);
    return check_rules(rules, sizeof rules / sizeof *rules);
}
