// Sockets of one machine (AF_UNIX). Prints a row for each rule; the status is 1 if one is broken. The
// rules hold on Linux.
#include "answers.h"
#include "common.h"
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <linux/sockios.h>

static char folder[] = "/tmp/socketsXXXXXX";

// Sets `to` to the path of a name in the folder, or to an abstract name if it begins with '@'. Returns
// the length of the address.
static socklen_t address(struct sockaddr_un *to, const char *name) {
    memset(to, 0, sizeof *to);
    to->sun_family = AF_UNIX;
    if (*name == '@') {
        strcpy(to->sun_path + 1, name + 1);
        return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
    }
    snprintf(to->sun_path, sizeof to->sun_path, "%s/%s", folder, name);
    return sizeof *to;
}

static int name_it(int socket, const char *name) {
    struct sockaddr_un to;
    socklen_t length = address(&to, name);
    errno = 0;
    return bind(socket, (struct sockaddr *)&to, length);
}

static int reach(int socket, const char *name) {
    struct sockaddr_un to;
    socklen_t length = address(&to, name);
    errno = 0;
    return connect(socket, (struct sockaddr *)&to, length);
}

static int listener(int type, const char *name, int backlog) {
    int one = socket(AF_UNIX, type, 0);
    if (one < 0 || name_it(one, name) || listen(one, backlog))
        die("a socket that listens at %s", name);
    return one;
}

static int make(int type) {
    int one = socket(AF_UNIX, type, 0);
    if (one < 0)
        die("socket");
    return one;
}

static short events(int file) {
    struct pollfd one = {file, POLLIN | POLLOUT | POLLRDHUP, 0};
    return poll(&one, 1, 0) < 0 ? -1 : one.revents;
}

// Returns true if the last call failed with this error.
static bool is(long result, int error) {
    bool good = result == -1 && errno == error;
    errno = 0;
    return good;
}

// Sends a byte with descriptors.
static ssize_t send_files(int to, const int *files, size_t count, int flags) {
    char control[CMSG_SPACE(sizeof(int) * 300)] = {0};
    struct iovec piece = {"x", 1};
    struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control};
    header.msg_controllen = CMSG_SPACE(sizeof(int) * count);
    struct cmsghdr *first = CMSG_FIRSTHDR(&header);
    *first = (struct cmsghdr){CMSG_LEN(sizeof(int) * count), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(first), files, sizeof(int) * count);
    return sendmsg(to, &header, flags);
}

// Receives up to `length` bytes, and up to `*count` descriptors. Sets `flags` to those of the message.
static ssize_t take_files(int from, int *files, size_t *count, char *bytes, size_t length, int *flags) {
    char control[CMSG_SPACE(sizeof(int) * 300)];
    struct iovec piece = {bytes, length};
    struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control};
    header.msg_controllen = *count ? CMSG_LEN(sizeof(int) * *count) : 0;
    ssize_t got = recvmsg(from, &header, *flags);
    *flags = header.msg_flags;
    size_t found = 0;
    for (struct cmsghdr *one = CMSG_FIRSTHDR(&header); got >= 0 && one; one = CMSG_NXTHDR(&header, one)) {
        if (one->cmsg_level == SOL_SOCKET && one->cmsg_type == SCM_RIGHTS) {
            found = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            memcpy(files, CMSG_DATA(one), found * sizeof(int));
        }
    }
    *count = found;
    return got;
}

// A pair is two connected sockets without names. What is written to one is read from the other.
static bool pairs_are_streams(void) {
    int pair[2];
    char bytes[100];
    struct sockaddr_un name;
    socklen_t length = sizeof name;
    bool good = !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair);
    good &= write(pair[0], "hello ", 6) == 6 && send(pair[0], "world", 5, 0) == 5 && events(pair[1]) == (POLLIN | POLLOUT);
    int waiting = 0;
    good &= !ioctl(pair[1], FIONREAD, &waiting) && waiting == 11;
    good &= recv(pair[1], bytes, 3, MSG_PEEK) == 3 && !memcmp(bytes, "hel", 3);
    good &= read(pair[1], bytes, sizeof bytes) == 11 && !memcmp(bytes, "hello world", 11);
    good &= is(recv(pair[1], bytes, 1, MSG_DONTWAIT), EAGAIN) && events(pair[1]) == POLLOUT;
    good &= !getpeername(pair[0], (struct sockaddr *)&name, &length) && length == 2 && name.sun_family == AF_UNIX;
    good &= write(pair[1], "bye", 3) == 3 && !close(pair[1]);
    good &= events(pair[0]) == (POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
    good &= read(pair[0], bytes, sizeof bytes) == 3 && !read(pair[0], bytes, sizeof bytes);
    good &= is(send(pair[0], "x", 1, MSG_NOSIGNAL), EPIPE) && is(lseek(pair[0], 0, SEEK_SET), ESPIPE);
    struct stat stat;
    good &= !fstat(pair[0], &stat) && S_ISSOCK(stat.st_mode);
    char link[64] = {0}, path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", pair[0]);
    good &= readlink(path, link, sizeof link - 1) > 8 && !strncmp(link, "socket:[", 8);
    return good & !close(pair[0]);
}

static volatile sig_atomic_t broken;

static void on_pipe(int signal) {
    (void)signal;
    broken++;
}

// A write to a socket without a peer raises SIGPIPE; one of messages does not.
static bool a_write_without_a_peer_raises_sigpipe(void) {
    int pair[2], messages[2];
    signal(SIGPIPE, on_pipe);
    broken = 0;
    bool good = !socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && !socketpair(AF_UNIX, SOCK_SEQPACKET, 0, messages);
    good &= !close(pair[1]) && is(write(pair[0], "x", 1), EPIPE) && broken == 1;
    good &= is(send(pair[0], "x", 1, MSG_NOSIGNAL), EPIPE) && broken == 1;
    good &= !close(messages[1]) && is(send(messages[0], "x", 1, 0), EPIPE) && broken == 1;
    return good & !close(pair[0]) & !close(messages[0]);
}

// A client connects by a path. Both ends know both names, and the process at the other end.
static bool servers_are_found_by_their_paths(void) {
    struct sockaddr_un name, expected;
    socklen_t length = sizeof name, expected_length = address(&expected, "server");
    umask(027);
    int server = listener(SOCK_STREAM, "server", 5), other = make(SOCK_STREAM), client = make(SOCK_STREAM);
    umask(022);
    struct stat stat_of;
    bool good = !stat(expected.sun_path, &stat_of) && stat_of.st_mode == (S_IFSOCK | 0750);
    good &= is(name_it(other, "server"), EADDRINUSE) && is(name_it(server, "again"), EINVAL);
    good &= is(open(expected.sun_path, O_RDWR), ENXIO) && is(reach(other, "missing"), ENOENT);
    good &= !reach(client, "server") && is(reach(client, "server"), EISCONN);
    good &= events(server) == POLLIN && is(listen(client, 1), EINVAL);
    int accepted = accept4(server, (struct sockaddr *)&name, &length, SOCK_CLOEXEC);
    good &= accepted >= 0 && length == 2 && fcntl(accepted, F_GETFD) == FD_CLOEXEC;
    length = sizeof name;
    good &= !getpeername(client, (struct sockaddr *)&name, &length);
    good &= length == offsetof(struct sockaddr_un, sun_path) + strlen(expected.sun_path) + 1;
    good &= !strcmp(name.sun_path, expected.sun_path) && expected_length;
    struct ucred peer;
    socklen_t size = sizeof peer;
    good &= !getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &size) && size == sizeof peer;
    good &= peer.pid == getpid() && peer.uid == geteuid() && peer.gid == getegid();
    char byte;
    good &= write(client, "q", 1) == 1 && read(accepted, &byte, 1) == 1 && byte == 'q';
    good &= is(accept4(server, NULL, NULL, 4), EINVAL) && !close(server);
    good &= is(reach(other, "server"), ECONNREFUSED) && !unlink(expected.sun_path);
    int file = open(expected.sun_path, O_CREAT | O_RDWR, 0600);
    good &= is(reach(other, "server"), ECONNREFUSED) && !close(file) && !unlink(expected.sun_path);
    return good & !close(other) & !close(client) & !close(accepted);
}

// Abstract names have no inode, and may contain any bytes. The kernel can choose one.
static bool names_without_paths(void) {
    int server = listener(SOCK_STREAM, "@vellum sockets", 5), client = make(SOCK_STREAM), other = make(SOCK_STREAM);
    bool good = is(name_it(other, "@vellum sockets"), EADDRINUSE) && !reach(client, "@vellum sockets");
    good &= is(reach(other, "@vellum socket"), ECONNREFUSED);
    struct sockaddr_un name = {AF_UNIX, ""};
    socklen_t length = sizeof name;
    good &= !bind(other, (struct sockaddr *)&name, sizeof(sa_family_t));
    good &= !getsockname(other, (struct sockaddr *)&name, &length) && length == 8 && !name.sun_path[0];
    good &= !close(server) && !close(client) && !name_it(server = make(SOCK_STREAM), "@vellum sockets");
    good &= is(bind(server, (struct sockaddr *)&name, 2), 0) || true;
    good &= is(bind(make(SOCK_STREAM), (struct sockaddr *)&name, 1), EINVAL);
    name.sun_family = AF_INET;
    good &= is(connect(make(SOCK_STREAM), (struct sockaddr *)&name, sizeof name), EINVAL);
    return good & !close(server) & !close(other);
}

struct waiting {
    const char *name;
    int socket;
    int result;
};

static void *connect_later(void *argument) {
    struct waiting *waiting = argument;
    waiting->result = reach(waiting->socket, waiting->name);
    return NULL;
}

// A backlog that is full refuses a client that does not wait, and has one that waits in when there is room.
static bool a_full_backlog_holds_clients_up(void) {
    int server = listener(SOCK_STREAM, "full", 0), first = make(SOCK_STREAM), second = make(SOCK_STREAM | SOCK_NONBLOCK);
    struct waiting waiting = {"full", make(SOCK_STREAM), -1};
    pthread_t thread;
    bool good = !reach(first, "full") && is(reach(second, "full"), EAGAIN);
    good &= !pthread_create(&thread, NULL, connect_later, &waiting);
    usleep(50000);
    int one = accept(server, NULL, NULL);
    good &= one >= 0 && !pthread_join(thread, NULL) && !waiting.result;
    int two = accept(server, NULL, NULL);
    good &= two >= 0 && write(two, "2", 1) == 1;
    char byte = 0;
    good &= read(waiting.socket, &byte, 1) == 1 && byte == '2';
    // The end of the server resets a client that waits in its backlog.
    good &= !reach(second, "full") && !close(server) && is(read(second, &byte, 1), ECONNRESET);
    return good & !close(one) & !close(two) & !close(first) & !close(second) & !close(waiting.socket);
}

// Messages stay whole, and tell the address of their sender.
static bool messages_are_whole_and_have_a_sender(void) {
    int server = make(SOCK_DGRAM), client = make(SOCK_DGRAM), pair[2];
    char bytes[100];
    struct sockaddr_un name, to;
    socklen_t length = sizeof name, to_length = address(&to, "post");
    bool good = !name_it(server, "post") && !name_it(client, "@sender");
    good &= is(send(client, "x", 1, 0), ENOTCONN) && is(listen(server, 1), EOPNOTSUPP);
    good &= sendto(client, "first", 5, 0, (struct sockaddr *)&to, to_length) == 5;
    good &= sendto(client, "", 0, 0, (struct sockaddr *)&to, to_length) == 0;
    good &= sendto(client, "third", 5, 0, (struct sockaddr *)&to, to_length) == 5;
    int waiting = 0;
    good &= !ioctl(server, FIONREAD, &waiting) && waiting == 5;
    good &= recvfrom(server, bytes, 3, MSG_PEEK | MSG_TRUNC, NULL, NULL) == 5;
    good &= recvfrom(server, bytes, sizeof bytes, 0, (struct sockaddr *)&name, &length) == 5;
    good &= length == 9 && !memcmp(name.sun_path + 1, "sender", 6) && !recv(server, bytes, sizeof bytes, 0);
    struct iovec piece = {bytes, 2};
    struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1};
    good &= recvmsg(server, &header, 0) == 2 && header.msg_flags == MSG_TRUNC && !memcmp(bytes, "th", 2);
    // A connected socket takes messages of its peer alone.
    good &= !reach(client, "post") && send(client, "1", 1, 0) == 1 && recv(server, bytes, 9, 0) == 1;
    good &= !reach(server, "@sender") && send(server, "2", 1, 0) == 1 && recv(client, bytes, 9, 0) == 1;
    int stranger = make(SOCK_DGRAM);
    good &= is(sendto(stranger, "x", 1, 0, (struct sockaddr *)&to, to_length), EPERM);
    good &= is(reach(stranger, "@sender"), EPERM) && is(reach(make(SOCK_STREAM), "post"), EPROTOTYPE);
    good &= !close(server) && is(send(client, "x", 1, 0), ECONNREFUSED) && is(send(client, "x", 1, 0), ENOTCONN);
    static char large[300000];
    good &= !socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) && is(send(pair[0], large, sizeof large, 0), EMSGSIZE);
    good &= send(pair[0], large, 100000, 0) == 100000 && recv(pair[1], large, sizeof large, 0) == 100000;
    return good & !close(client) & !close(stranger) & !close(pair[0]) & !close(pair[1]) & !unlink(to.sun_path);
}

static void *take_one(void *argument) {
    char byte;
    usleep(50000);
    return recv(*(int *)argument, &byte, 1, 0) == 1 ? argument : NULL;
}

// A socket holds a number of messages of others. Their senders wait, and are woken.
static bool a_full_inbox_holds_senders_up(void) {
    int server = make(SOCK_DGRAM), client = make(SOCK_DGRAM | SOCK_NONBLOCK), count = 0;
    bool good = !name_it(server, "@inbox") && !reach(client, "@inbox");
    while (count < 5000 && send(client, "x", 1, 0) == 1)
        count++;
    good &= errno == EAGAIN && count > 5 && count < 5000 && !(events(client) & POLLOUT);
    int set = epoll_create1(0);
    struct epoll_event event = {EPOLLOUT | EPOLLET, {0}};
    good &= !epoll_ctl(set, EPOLL_CTL_ADD, client, &event) && !epoll_wait(set, &event, 1, 0);
    pthread_t thread;
    void *taken = NULL;
    good &= !pthread_create(&thread, NULL, take_one, &server) && epoll_wait(set, &event, 1, 5000) == 1;
    good &= !pthread_join(thread, &taken) && taken && events(client) & POLLOUT && send(client, "x", 1, 0) == 1;
    good &= !fcntl(client, F_SETFL, 0) && !pthread_create(&thread, NULL, take_one, &server);
    good &= send(client, "y", 1, 0) == 1 && !pthread_join(thread, &taken) && taken;
    return good & !close(set) & !close(server) & !close(client);
}

// SOCK_SEQPACKET: connections of messages.
static bool connections_of_messages(void) {
    int server = listener(SOCK_SEQPACKET, "packets", 5), client = make(SOCK_SEQPACKET);
    char bytes[10];
    bool good = is(send(client, "x", 1, 0), ENOTCONN) && is(recv(client, bytes, 1, 0), ENOTCONN);
    good &= !reach(client, "packets");
    int accepted = accept(server, NULL, NULL);
    good &= send(client, "one", 3, 0) == 3 && send(client, "two", 3, 0) == 3 && recv(accepted, bytes, 1, 0) == 1;
    good &= recv(accepted, bytes, sizeof bytes, MSG_WAITALL) == 3 && !memcmp(bytes, "two", 3);
    good &= write(client, "three", 5) == 5 && read(accepted, bytes, sizeof bytes) == 5;
    good &= !shutdown(client, SHUT_WR) && !recv(accepted, bytes, 1, 0) && send(accepted, "x", 1, 0) == 1;
    return good & !close(server) & !close(client) & !close(accepted);
}

// Descriptors are passed. They are a barrier in a stream, and those without room are closed.
static bool descriptors_are_passed(void) {
    int pair[2], pipes[2], files[300], flags = 0;
    char bytes[100];
    size_t count = 10;
    bool good = !socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && !pipe(pipes);
    good &= write(pair[0], "ab", 2) == 2 && send_files(pair[0], pipes + 1, 1, 0) == 1 && write(pair[0], "cd", 2) == 2;
    good &= !close(pipes[1]) && take_files(pair[1], files, &count, bytes, sizeof bytes, &flags) == 3 && count == 1;
    good &= !memcmp(bytes, "abx", 3) && !flags && !(fcntl(files[0], F_GETFD) & FD_CLOEXEC);
    good &= write(files[0], "p", 1) == 1 && read(pipes[0], bytes, 9) == 1 && !close(files[0]);
    good &= !read(pipes[0], bytes, 9) && read(pair[1], bytes, 9) == 2 && !memcmp(bytes, "cd", 2);
    // Two without room for the second; their ends are closed with the message.
    int two[2] = {pipes[0], pipes[0]};
    good &= send_files(pair[0], two, 2, 0) == 1;
    count = 1, flags = MSG_CMSG_CLOEXEC;
    good &= take_files(pair[1], files, &count, bytes, 9, &flags) == 1 && count == 1;
    good &= flags & MSG_CTRUNC && fcntl(files[0], F_GETFD) == FD_CLOEXEC && !close(files[0]);
    good &= send_files(pair[0], two, 2, 0) == 1;
    count = 0, flags = 0;
    good &= take_files(pair[1], files, &count, bytes, 9, &flags) == 1 && flags & MSG_CTRUNC;
    // A peek leaves them there.
    good &= send_files(pair[0], two, 2, 0) == 1;
    count = 2, flags = MSG_PEEK;
    good &= take_files(pair[1], files, &count, bytes, 9, &flags) == 1 && count == 2;
    good &= !close(files[0]) && !close(files[1]);
    count = 2, flags = 0;
    good &= take_files(pair[1], files, &count, bytes, 9, &flags) == 1 && count == 2;
    good &= !close(files[0]) && !close(files[1]);
    int bad[2] = {pipes[0], 999};
    good &= is(send_files(pair[0], bad, 2, 0), EBADF);
    for (int i = 0; i < 254; i++)
        files[i] = pipes[0];
    good &= is(send_files(pair[0], files, 254, 0), EINVAL) && send_files(pair[0], files, 253, 0) == 1;
    return good & !close(pair[0]) & !close(pair[1]) & !close(pipes[0]);
}

// The receiver learns which process sent a message. No process can name another without privilege.
static bool credentials_are_passed(void) {
    int pair[2], on = 1;
    bool good = !socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
    good &= !setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    pid_t child = fork();
    if (!child) {
        struct ucred own = {getpid(), 0, 0};
        char control[CMSG_SPACE(sizeof own)] = {0};
        struct iovec piece = {"c", 1};
        struct msghdr header = {NULL, 0, &piece, 1, control, sizeof control, 0};
        struct cmsghdr *first = CMSG_FIRSTHDR(&header);
        *first = (struct cmsghdr){CMSG_LEN(sizeof own), SOL_SOCKET, SCM_CREDENTIALS};
        bool bad = setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534);
        memcpy(CMSG_DATA(first), &own, sizeof own);
        bad |= !is(sendmsg(pair[0], &header, 0), EPERM);
        own = (struct ucred){getppid(), 65534, 65534};
        memcpy(CMSG_DATA(first), &own, sizeof own);
        bad |= !is(sendmsg(pair[0], &header, 0), EPERM);
        _exit(bad || send(pair[0], "x", 1, 0) != 1);
    }
    char bytes[10], control[CMSG_SPACE(sizeof(struct ucred))];
    struct iovec piece = {bytes, sizeof bytes};
    struct msghdr header = {NULL, 0, &piece, 1, control, sizeof control, 0};
    good &= recvmsg(pair[1], &header, 0) == 1;
    struct cmsghdr *first = CMSG_FIRSTHDR(&header);
    struct ucred who = {0, 0, 0};
    if (first && first->cmsg_type == SCM_CREDENTIALS && first->cmsg_len == CMSG_LEN(sizeof who))
        memcpy(&who, CMSG_DATA(first), sizeof who);
    int status;
    good &= who.pid == child && who.uid == 65534 && who.gid == 65534;
    good &= waitpid(child, &status, 0) == child && !status;
    return good & !close(pair[0]) & !close(pair[1]);
}

// Each direction ends by itself, and poll tells.
static bool directions_end_one_by_one(void) {
    int pair[2];
    char byte;
    bool good = !socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    good &= write(pair[0], "x", 1) == 1 && !shutdown(pair[0], SHUT_WR);
    good &= events(pair[1]) == (POLLIN | POLLOUT | POLLRDHUP) && events(pair[0]) == POLLOUT;
    good &= read(pair[1], &byte, 1) == 1 && !read(pair[1], &byte, 1) && is(send(pair[0], "x", 1, MSG_NOSIGNAL), EPIPE);
    good &= write(pair[1], "y", 1) == 1 && !shutdown(pair[0], SHUT_RD);
    good &= events(pair[0]) == (POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
    good &= read(pair[0], &byte, 1) == 1 && !read(pair[0], &byte, 1);
    good &= is(send(pair[1], "x", 1, MSG_NOSIGNAL), EPIPE) && is(shutdown(pair[0], 3), EINVAL);
    int fresh = make(SOCK_STREAM);
    good &= events(fresh) == (POLLOUT | POLLHUP) && is(recv(fresh, &byte, 1, 0), EINVAL);
    good &= is(send(fresh, "x", 1, 0), ENOTCONN) && is(accept(fresh, NULL, NULL), EINVAL);
    return good & !close(pair[0]) & !close(pair[1]) & !close(fresh);
}

// The end of a socket with unread bytes resets its peer.
static bool unread_bytes_reset_the_peer(void) {
    int pair[2], error = 0;
    socklen_t size = sizeof error;
    char byte;
    bool good = !socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && write(pair[0], "x", 1) == 1 && !close(pair[1]);
    good &= events(pair[0]) & POLLERR && is(read(pair[0], &byte, 1), ECONNRESET) && !read(pair[0], &byte, 1);
    good &= !close(pair[0]) && !socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && write(pair[0], "x", 1) == 1;
    good &= !close(pair[1]) && !getsockopt(pair[0], SOL_SOCKET, SO_ERROR, &error, &size) && error == ECONNRESET;
    good &= !getsockopt(pair[0], SOL_SOCKET, SO_ERROR, &error, &size) && !error;
    return good & !close(pair[0]);
}

// A message of a socket without a name comes with no address, not with one that is empty.
static bool unnamed_senders_have_no_address(void) {
    static const int kinds[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
    bool good = true;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct sockaddr_un from = {.sun_family = 0x7777};
        socklen_t length = sizeof from, peer = sizeof from;
        char byte;
        struct iovec piece = {&byte, 1};
        struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &piece, .msg_iovlen = 1};
        int pair[2];
        good &= !socketpair(AF_UNIX, kinds[i], 0, pair) && write(pair[0], "x", 1) == 1 && write(pair[0], "y", 1) == 1;
        good &= recvfrom(pair[1], &byte, 1, 0, (struct sockaddr *)&from, &length) == 1 && !length;
        good &= recvmsg(pair[1], &message, 0) == 1 && !message.msg_namelen && from.sun_family == 0x7777;
        good &= !getpeername(pair[1], (struct sockaddr *)&from, &peer) && peer == sizeof from.sun_family;
        good &= !close(pair[0]) & !close(pair[1]);
    }
    return good;
}

// A stream takes as many bytes as its buffer has room for, and its writer waits for more.
static bool a_full_stream_holds_its_writer_up(void) {
    int pair[2], size = 8192, unsent = 0;
    socklen_t length = sizeof size;
    static char bytes[1 << 20];
    bool good = !socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair);
    good &= !setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    good &= !getsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, &length) && size == 16384;
    ssize_t sent = send(pair[0], bytes, sizeof bytes, 0);
    good &= sent >= 4096 && sent <= 32768 && is(send(pair[0], bytes, 1, 0), EAGAIN) && !(events(pair[0]) & POLLOUT);
    good &= !ioctl(pair[0], SIOCOUTQ, &unsent) && unsent >= sent;
    good &= recv(pair[1], bytes, sizeof bytes, 0) == sent && events(pair[0]) == POLLOUT;
    // A reader that wants all gets all, in whatever pieces they come.
    good &= !fcntl(pair[0], F_SETFL, 0) && !fcntl(pair[1], F_SETFL, 0);
    pid_t child = fork();
    if (!child) {
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (char)(i % 251);
        _exit(send(pair[0], bytes, sizeof bytes, 0) != sizeof bytes);
    }
    good &= recv(pair[1], bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes;
    for (size_t i = 0; i < sizeof bytes; i++)
        good &= bytes[i] == (char)(i % 251);
    int status;
    good &= waitpid(child, &status, 0) == child && !status;
    return good & !close(pair[0]) & !close(pair[1]);
}

// A call waits no longer than the socket's timeout.
static bool calls_end_at_the_timeout(void) {
    int pair[2], server = listener(SOCK_STREAM, "@timeout", 1);
    struct timeval time = {0, 60000}, read_back = {0, 0};
    socklen_t size = sizeof read_back;
    char byte;
    bool good = !socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    good &= !setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    good &= !setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    good &= !getsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &read_back, &size) && read_back.tv_usec == 60000;
    uint64_t begin = now_ns();
    good &= is(read(pair[0], &byte, 1), EAGAIN) && now_ns() - begin >= 60000000;
    begin = now_ns();
    good &= is(accept(server, NULL, NULL), EAGAIN) && now_ns() - begin >= 60000000;
    time.tv_usec = 1000000;
    good &= is(setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time), EDOM);
    return good & !close(pair[0]) & !close(pair[1]) & !close(server);
}

// What lies only in the inboxes of sockets that no process can reach is closed, when another socket is.
static bool sockets_in_their_own_inbox_are_closed(void) {
    int pair[2], pipes[2], other[2];
    char byte;
    bool good = !socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && !pipe(pipes);
    int files[3] = {pair[0], pair[1], pipes[1]};
    good &= send_files(pair[0], files, 3, 0) == 1 && send_files(pair[1], files, 3, 0) == 1;
    good &= !close(pair[0]) && !close(pair[1]) && !close(pipes[1]);
    struct pollfd reader = {pipes[0], POLLIN, 0};
    for (int i = 0; i < 100 && poll(&reader, 1, 50) == 0; i++)
        good &= !socketpair(AF_UNIX, SOCK_STREAM, 0, other) && !close(other[0]) && !close(other[1]);
    good &= reader.revents == POLLHUP && !read(pipes[0], &byte, 1);
    // A socket that waits in the backlog of a socket that lies in its inbox.
    int server = listener(SOCK_STREAM, "@loop", 1), client = make(SOCK_STREAM);
    good &= !close(pipes[0]) && !pipe(pipes) && !reach(client, "@loop");
    int loop[3] = {server, client, pipes[1]};
    good &= send_files(client, loop, 3, 0) == 1 && !close(server) && !close(client) && !close(pipes[1]);
    reader = (struct pollfd){pipes[0], POLLIN, 0};
    for (int i = 0; i < 100 && poll(&reader, 1, 50) == 0; i++)
        good &= !socketpair(AF_UNIX, SOCK_STREAM, 0, other) && !close(other[0]) && !close(other[1]);
    good &= reader.revents == POLLHUP;
    // Those that a process can reach through others are kept.
    int outer[2];
    good &= !close(pipes[0]) && !pipe(pipes);
    good &= !socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && !socketpair(AF_UNIX, SOCK_STREAM, 0, outer);
    good &= send_files(pair[0], pipes + 1, 1, 0) == 1 && send_files(outer[0], pair + 1, 1, 0) == 1;
    good &= !close(pair[0]) && !close(pair[1]) && !close(pipes[1]);
    good &= !socketpair(AF_UNIX, SOCK_STREAM, 0, other) && !close(other[0]) && !close(other[1]);
    int got[3], flags = 0;
    size_t count = 3;
    good &= take_files(outer[1], got, &count, &byte, 1, &flags) == 1 && count == 1;
    int inner = got[0];
    count = 3, flags = 0;
    good &= take_files(inner, got, &count, &byte, 1, &flags) == 1 && count == 1 && write(got[0], "k", 1) == 1;
    good &= read(pipes[0], &byte, 1) == 1 && !close(got[0]) && !close(inner);
    return good & !close(outer[0]) & !close(outer[1]) & !close(pipes[0]);
}

// Each of many sockets lies in the inbox of the next. The end of the last ends all of them.
static bool sockets_within_sockets_are_closed(void) {
    int pipes[2], inner[2], outer[2];
    char byte;
    bool good = !pipe(pipes) && !socketpair(AF_UNIX, SOCK_STREAM, 0, inner);
    good &= send_files(inner[0], pipes + 1, 1, 0) == 1 && !close(pipes[1]);
    for (int depth = 0; good && depth < 3000; depth++) {
        good &= !socketpair(AF_UNIX, SOCK_STREAM, 0, outer) && send_files(outer[0], inner, 2, 0) == 1;
        good &= !close(inner[0]) && !close(inner[1]);
        inner[0] = outer[0], inner[1] = outer[1];
    }
    good &= !close(inner[0]) && !close(inner[1]) && !read(pipes[0], &byte, 1);
    return good & !close(pipes[0]);
}

// A user has as many descriptors in flight as it may have open.
static bool descriptors_in_flight_are_limited(void) {
    int status;
    pid_t child = fork();
    if (!child) {
        struct rlimit limit = {40, 40};
        int pair[2], sent = 0;
        bool bad = setrlimit(RLIMIT_NOFILE, &limit) || setresgid(65533, 65533, 65533) || setresuid(65533, 65533, 65533);
        bad |= socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
        int files[10] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
        while (sent < 100 && send_files(pair[0], files, 10, MSG_DONTWAIT) == 1)
            sent++;
        _exit(bad || errno != ETOOMANYREFS || sent < 4 || sent > 6);
    }
    return waitpid(child, &status, 0) == child && !status;
}

enum { CLIENTS = 6, REQUESTS = 300 };

static void *client(void *argument) {
    long number = (long)argument;
    bool good = true;
    for (long i = 0; i < REQUESTS && good; i++) {
        int socket = make(SOCK_STREAM);
        good = !reach(socket, "busy") && ask(socket, number, i);
        close(socket);
    }
    return (void *)(long)good;
}

// Servers in processes share a socket, clients in threads connect at the same time: each gets its answer.
static bool many_connect_at_once(void) {
    int server = listener(SOCK_STREAM, "busy", 2);
    pid_t servers[SERVERS];
    serve(server, servers);
    pthread_t threads[CLIENTS];
    bool good = true;
    for (long i = 0; i < CLIENTS; i++)
        good &= !pthread_create(&threads[i], NULL, client, (void *)i);
    for (int i = 0; i < CLIENTS; i++) {
        void *result = NULL;
        good &= !pthread_join(threads[i], &result) && result;
    }
    good &= end_servers(servers);
    return good & !close(server);
}

// Several messages by one call.
static bool several_messages_by_one_call(void) {
    int pair[2];
    char one[10], two[10];
    struct iovec pieces[2] = {{"first", 5}, {"second", 6}}, places[3] = {{one, 10}, {two, 10}, {one, 10}};
    struct mmsghdr sent[2] = {{{.msg_iov = &pieces[0], .msg_iovlen = 1}, 0}, {{.msg_iov = &pieces[1], .msg_iovlen = 1}, 0}};
    struct mmsghdr got[3] = {{{.msg_iov = &places[0], .msg_iovlen = 1}, 0},
                             {{.msg_iov = &places[1], .msg_iovlen = 1}, 0},
                             {{.msg_iov = &places[2], .msg_iovlen = 1}, 0}};
    bool good = !socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
    good &= sendmmsg(pair[0], sent, 2, 0) == 2 && sent[1].msg_len == 6;
    good &= recvmmsg(pair[1], got, 3, MSG_WAITFORONE, NULL) == 2 && got[0].msg_len == 5 && got[1].msg_len == 6;
    good &= !memcmp(one, "first", 5) && !memcmp(two, "second", 6);
    return good & !close(pair[0]) & !close(pair[1]);
}

// Options have the values of the socket, and what is no socket has none.
static bool options_tell_the_socket(void) {
    int one = make(SOCK_SEQPACKET), value = 0, pipes[2];
    socklen_t size = sizeof value;
    bool good = !getsockopt(one, SOL_SOCKET, SO_TYPE, &value, &size) && value == SOCK_SEQPACKET;
    good &= !getsockopt(one, SOL_SOCKET, SO_DOMAIN, &value, &size) && value == AF_UNIX;
    good &= !getsockopt(one, SOL_SOCKET, SO_ACCEPTCONN, &value, &size) && !value;
    good &= is(getsockopt(one, SOL_SOCKET, 12345, &value, &size), ENOPROTOOPT);
    good &= is(setsockopt(one, SOL_SOCKET, SO_SNDBUF, &value, 3), EINVAL);
    good &= !pipe(pipes) && is(listen(pipes[0], 1), ENOTSOCK) && is(send(pipes[1], "x", 1, 0), ENOTSOCK);
    good &= is(socket(AF_UNIX, 77, 0), EINVAL) && is(socket(AF_UNIX, SOCK_RDM, 0), ESOCKTNOSUPPORT);
    good &= is(socket(AF_UNIX, SOCK_STREAM, 17), EPROTONOSUPPORT) && is(socket(63, SOCK_STREAM, 0), EAFNOSUPPORT);
    return good & !close(one) & !close(pipes[0]) & !close(pipes[1]);
}

int main(void) {
    struct {
        const char *rule;
        bool (*holds)(void);
    } rules[] = {
        {"pairs are streams", pairs_are_streams},
        {"a write without a peer raises SIGPIPE", a_write_without_a_peer_raises_sigpipe},
        {"servers are found by their paths", servers_are_found_by_their_paths},
        {"names without paths", names_without_paths},
        {"a full backlog holds clients up", a_full_backlog_holds_clients_up},
        {"messages are whole and have a sender", messages_are_whole_and_have_a_sender},
        {"a full inbox holds senders up", a_full_inbox_holds_senders_up},
        {"connections of messages", connections_of_messages},
        {"descriptors are passed", descriptors_are_passed},
        {"credentials are passed", credentials_are_passed},
        {"directions end one by one", directions_end_one_by_one},
        {"unread bytes reset the peer", unread_bytes_reset_the_peer},
        {"unnamed senders have no address", unnamed_senders_have_no_address},
        {"a full stream holds its writer up", a_full_stream_holds_its_writer_up},
        {"calls end at the timeout", calls_end_at_the_timeout},
        {"sockets in their own inbox are closed", sockets_in_their_own_inbox_are_closed},
        {"sockets within sockets are closed", sockets_within_sockets_are_closed},
        {"descriptors in flight are limited", descriptors_in_flight_are_limited},
        {"many connect at once", many_connect_at_once},
        {"several messages by one call", several_messages_by_one_call},
        {"options tell the socket", options_tell_the_socket},
    };
    signal(SIGPIPE, on_pipe);
    if (!mkdtemp(folder))
        die("a folder in /tmp");
    bool all = true;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        bool good = rules[i].holds();
        printf("{\"rule\": \"%s\", \"holds\": %s}\n", rules[i].rule, good ? "true" : "false");
        fflush(stdout);
        all &= good;
    }
    const char *names[] = {"server", "full", "packets", "busy"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct sockaddr_un name;
        address(&name, names[i]);
        unlink(name.sun_path);
    }
    return !all || rmdir(folder);
}
