// splice, tee and vmsplice: between pipes, files and sockets. Prints a row for each rule; the status
// is 1 if one is broken. The rules hold on Linux.
#include "common.h"
#include <netinet/in.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

enum { PIPE = 65536 };

static bool fails(int error, long result) {
    return result == -1 && errno == error;
}

static unsigned char pattern(size_t at) {
    return (unsigned char)(at * 7 + at / 251);
}

// Writes `count` bytes of the pattern, which begins at `from`.
static bool put(int to, size_t from, size_t count) {
    static unsigned char bytes[4 * PIPE];
    for (size_t at = 0; at < count; at++)
        bytes[at] = pattern(from + at);
    return write(to, bytes, count) == (ssize_t)count;
}

// Reads `count` bytes, and compares them with the pattern.
static bool has(int from, size_t at, size_t count) {
    static unsigned char bytes[4 * PIPE];
    size_t got = 0;
    while (got < count) {
        ssize_t part = read(from, bytes + got, count - got);
        if (part <= 0)
            return false;
        got += (size_t)part;
    }
    for (size_t index = 0; index < count; index++)
        if (bytes[index] != pattern(at + index))
            return false;
    return true;
}

static int unread(int from) {
    int bytes = -1;
    return ioctl(from, FIONREAD, &bytes) ? -1 : bytes;
}

static int file_of(size_t count) {
    int file = memfd_create("splice", 0);
    return put(file, 0, count) ? file : -1;
}

static void close_all(const int *files, size_t count) {
    for (size_t at = 0; at < count; at++)
        close(files[at]);
}

static bool a_file_goes_to_a_pipe_and_back(void) {
    int ends[2], from = file_of(10000), to = memfd_create("to", 0);
    bool good = !pipe(ends);
    loff_t at = 100;
    good &= splice(from, &at, ends[1], NULL, 5000, 0) == 5000 && at == 5100 && lseek(from, 0, SEEK_CUR) == 10000;
    good &= unread(ends[0]) == 5000;
    at = 7;
    good &= splice(ends[0], NULL, to, &at, 3000, SPLICE_F_MOVE) == 3000 && at == 3007;
    good &= splice(ends[0], NULL, to, &at, 3000, SPLICE_F_MORE) == 2000 && at == 5007;
    good &= lseek(to, 0, SEEK_CUR) == 0 && lseek(to, 7, SEEK_SET) == 7 && has(to, 100, 5000);
    // Without an offset it is the file's own that moves.
    good &= lseek(from, 9000, SEEK_SET) == 9000 && splice(from, NULL, ends[1], NULL, 5000, 0) == 1000;
    good &= splice(from, NULL, ends[1], NULL, 5000, 0) == 0 && lseek(from, 0, SEEK_CUR) == 10000;
    good &= lseek(to, 0, SEEK_SET) == 0 && splice(ends[0], NULL, to, NULL, 999, 0) == 999;
    good &= lseek(to, 0, SEEK_CUR) == 999 && lseek(to, 0, SEEK_SET) == 0 && has(to, 9000, 999);
    close_all((int[]){ends[0], ends[1], from, to}, 4);
    return good;
}

static bool pipes_pass_bytes_on_in_order(void) {
    int one[2], two[2];
    char byte[2];
    bool good = !pipe(one) && !pipe(two);
    size_t sent = 0, got = 0;
    // Odd counts leave pages with holes at both ends.
    for (int round = 0; round < 200; round++) {
        size_t count = 1 + (size_t)round * 97 % 9000;
        good &= put(one[1], sent, count);
        sent += count;
        size_t part = count / 3 + 1;
        good &= splice(one[0], NULL, two[1], NULL, part, 0) > 0;
        while (splice(one[0], NULL, two[1], NULL, PIPE, SPLICE_F_NONBLOCK) > 0)
            ;
        size_t there = (size_t)unread(two[0]);
        good &= has(two[0], got, there);
        got += there;
    }
    good &= got == sent;
    // A full destination leaves the rest where it is.
    good &= put(one[1], 0, PIPE) && put(two[1], 0, PIPE - PAGE);
    good &= splice(one[0], NULL, two[1], NULL, PIPE, 0) == PAGE && unread(one[0]) == PIPE - PAGE;
    good &= fails(EAGAIN, splice(one[0], NULL, two[1], NULL, PIPE, SPLICE_F_NONBLOCK));
    good &= has(two[0], 0, PIPE - PAGE) && has(two[0], 0, PAGE) && has(one[0], PAGE, PIPE - PAGE);
    good &= fails(EAGAIN, splice(one[0], NULL, two[1], NULL, PIPE, SPLICE_F_NONBLOCK));
    good &= !fcntl(two[1], F_SETFL, O_NONBLOCK) && fails(EAGAIN, splice(one[0], NULL, two[1], NULL, PIPE, 0));
    // Without a writer the end is reached.
    close(one[1]);
    good &= splice(one[0], NULL, two[1], NULL, PIPE, 0) == 0 && tee(one[0], two[1], PIPE, 0) == 0;
    close(two[1]);
    good &= read(two[0], byte, 1) == 0;
    close(one[0]), close(two[0]);
    return good;
}

static bool tee_leaves_what_it_copies(void) {
    int one[2], two[2], three[2];
    bool good = !pipe(one) && !pipe(two) && !pipe(three);
    good &= put(one[1], 0, 3 * PAGE + 5);
    good &= tee(one[0], two[1], 2 * PAGE, 0) == 2 * PAGE && tee(one[0], three[1], PIPE, 0) == 3 * PAGE + 5;
    good &= unread(one[0]) == 3 * PAGE + 5 && has(two[0], 0, 2 * PAGE) && has(three[0], 0, 3 * PAGE + 5);
    good &= has(one[0], 0, 3 * PAGE + 5);
    good &= fails(EAGAIN, tee(one[0], two[1], PIPE, SPLICE_F_NONBLOCK)) && tee(one[0], two[1], 0, 0) == 0;
    good &= fails(EINVAL, tee(one[0], one[1], PIPE, 0)) && fails(EBADF, tee(one[1], two[1], PIPE, 0));
    good &= fails(EBADF, tee(one[0], two[0], PIPE, 0)) && fails(EINVAL, tee(one[0], two[1], PIPE, 16));
    int file = file_of(PAGE);
    good &= fails(EINVAL, tee(file, two[1], PIPE, 0)) && fails(EINVAL, tee(one[0], file, PIPE, 0));
    close(two[0]);
    good &= put(one[1], 0, 1) && fails(EPIPE, tee(one[0], two[1], PIPE, 0)) && has(one[0], 0, 1);
    close_all((int[]){one[0], one[1], two[1], three[0], three[1], file}, 6);
    return good;
}

static bool wrong_arguments_have_their_errors(void) {
    int one[2], two[2], file = file_of(PAGE), event = eventfd(1, 0), none = open("/", O_RDONLY | O_DIRECTORY);
    loff_t at = 0, negative = -1;
    bool good = !pipe(one) && !pipe(two) && put(one[1], 0, 10);
    good &= fails(EINVAL, splice(file, NULL, file, NULL, 10, 0));
    good &= fails(EINVAL, splice(one[0], NULL, one[1], NULL, 10, 0));
    good &= fails(ESPIPE, splice(one[0], &at, file, NULL, 10, 0));
    good &= fails(ESPIPE, splice(file, NULL, one[1], &at, 10, 0));
    good &= fails(ESPIPE, splice(one[0], NULL, two[1], &at, 10, 0));
    good &= fails(ESPIPE, splice(one[0], &at, two[1], NULL, 10, 0));
    good &= fails(EBADF, splice(-1, NULL, one[1], NULL, 10, 0)) && fails(EBADF, splice(one[0], NULL, 999, NULL, 10, 0));
    good &= fails(EBADF, splice(one[1], NULL, two[1], NULL, 10, 0));
    good &= fails(EBADF, splice(one[0], NULL, two[0], NULL, 10, 0));
    good &= fails(EINVAL, splice(file, NULL, one[1], NULL, 10, 16)) && splice(-1, NULL, -1, NULL, 0, 16) == 0;
    good &= fails(EINVAL, splice(file, &negative, one[1], NULL, 10, 0));
    good &= fails(EFAULT, splice(file, (loff_t *)8, one[1], NULL, 10, 0));
    good &= fails(EINVAL, splice(event, NULL, one[1], NULL, 10, 0));
    good &= fails(EINVAL, splice(none, NULL, one[1], NULL, 10, 0));
    good &= fails(EINVAL, splice(one[0], NULL, event, NULL, 8, 0));
    good &= !fcntl(file, F_SETFL, O_APPEND) && fails(EINVAL, splice(one[0], NULL, file, NULL, 10, 0));
    int pair[2];
    good &= !socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    good &= fails(EINVAL, splice(one[0], NULL, pair[0], &at, 10, 0));
    good &= fails(EINVAL, splice(pair[0], &at, one[1], NULL, 10, 0));
    int locked = memfd_create("write", 0), reader = -1;
    char name[32];
    snprintf(name, sizeof name, "/proc/self/fd/%d", locked);
    reader = open(name, O_RDONLY);
    good &= reader >= 0 && fails(EBADF, splice(one[0], NULL, reader, NULL, 10, 0));
    good &= unread(one[0]) == 10 && has(one[0], 0, 10);
    close_all((int[]){one[0], one[1], two[0], two[1], file, event, none, pair[0], pair[1], locked, reader}, 11);
    return good;
}

static volatile sig_atomic_t pipes_broken;

static void on_pipe(int signal) {
    pipes_broken += signal == SIGPIPE;
}

static bool a_pipe_without_a_reader_breaks(void) {
    int ends[2], one[2], file = file_of(PAGE);
    signal(SIGPIPE, on_pipe);
    bool good = !pipe(ends) && !pipe(one) && put(one[1], 0, 10);
    close(ends[0]);
    good &= fails(EPIPE, splice(file, NULL, ends[1], NULL, PAGE, 0)) && pipes_broken == 1;
    good &= fails(EPIPE, splice(one[0], NULL, ends[1], NULL, PAGE, 0)) && pipes_broken == 2;
    struct iovec piece = {(char[]){"none"}, 4};
    good &= fails(EPIPE, vmsplice(ends[1], &piece, 1, 0)) && pipes_broken == 3;
    int pair[2];
    good &= !socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    close(pair[1]);
    good &= fails(EPIPE, splice(one[0], NULL, pair[0], NULL, PAGE, 0)) && has(one[0], 0, 10);
    signal(SIGPIPE, SIG_IGN);
    close_all((int[]){ends[1], one[0], one[1], file, pair[0]}, 5);
    return good;
}

static bool sockets_take_part(void) {
    int pair[2], one[2];
    bool good = !socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && !pipe(one);
    good &= put(one[1], 0, 9000) && splice(one[0], NULL, pair[0], NULL, PIPE, SPLICE_F_MORE) == 9000;
    good &= splice(pair[1], NULL, one[1], NULL, 4000, 0) == 4000 && has(one[0], 0, 4000) && has(pair[1], 4000, 5000);
    good &= fails(EAGAIN, splice(pair[1], NULL, one[1], NULL, 10, SPLICE_F_NONBLOCK));
    good &= !shutdown(pair[0], SHUT_WR) && splice(pair[1], NULL, one[1], NULL, 10, 0) == 0;
    close(pair[0]), close(pair[1]);
    // The same by TCP.
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    good &= !bind(listener, (struct sockaddr *)&address, size) && !listen(listener, 1);
    good &= !getsockname(listener, (struct sockaddr *)&address, &size);
    good &= !connect(client, (struct sockaddr *)&address, size);
    int server = accept(listener, NULL, NULL);
    good &= put(one[1], 0, 5000) && splice(one[0], NULL, client, NULL, 5000, 0) == 5000;
    for (size_t got = 0; good && got < 5000;) {
        ssize_t part = splice(server, NULL, one[1], NULL, PIPE, 0);
        good &= part > 0 && has(one[0], got, (size_t)part);
        got += part > 0 ? (size_t)part : 0;
    }
    close_all((int[]){listener, client, server, one[0], one[1]}, 5);
    return good;
}

static int waiting[2][2];

static void *late_writer(void *unused) {
    (void)unused;
    usleep(20000);
    put(waiting[0][1], 0, 100);
    return NULL;
}

static void *late_reader(void *unused) {
    (void)unused;
    usleep(20000);
    return (void *)(long)has(waiting[1][0], 0, PIPE);
}

static void on_alarm(int signal) {
    (void)signal;
}

static bool waits_end_by_bytes_by_room_and_by_signals(void) {
    int *one = waiting[0], *two = waiting[1], file = memfd_create("waits", 0);
    pthread_t thread;
    void *result;
    bool good = !pipe(one) && !pipe(two);
    pthread_create(&thread, NULL, late_writer, NULL);
    good &= splice(one[0], NULL, two[1], NULL, PIPE, 0) == 100 && has(two[0], 0, 100);
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, late_writer, NULL);
    good &= tee(one[0], two[1], PIPE, 0) == 100 && has(two[0], 0, 100);
    pthread_join(thread, NULL);
    good &= has(one[0], 0, 100);
    pthread_create(&thread, NULL, late_writer, NULL);
    good &= splice(one[0], NULL, file, NULL, PIPE, 0) == 100;
    pthread_join(thread, NULL);
    good &= put(two[1], 0, PIPE);
    pthread_create(&thread, NULL, late_reader, NULL);
    good &= lseek(file, 0, SEEK_SET) == 0 && splice(file, NULL, two[1], NULL, PIPE, 0) == 100;
    pthread_join(thread, &result);
    good &= result != NULL && has(two[0], 0, 100);
    // Without SA_RESTART the wait fails.
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = {.it_value.tv_usec = 20000};
    setitimer(ITIMER_REAL, &timer, NULL);
    good &= fails(EINTR, splice(one[0], NULL, two[1], NULL, PIPE, 0));
    setitimer(ITIMER_REAL, &timer, NULL);
    good &= fails(EINTR, splice(one[0], NULL, file, NULL, PIPE, 0));
    close_all((int[]){one[0], one[1], two[0], two[1], file}, 5);
    return good;
}

static bool memory_goes_to_a_pipe_and_back(void) {
    static unsigned char bytes[3 * PAGE], back[3 * PAGE];
    int ends[2];
    bool good = !pipe(ends);
    for (size_t at = 0; at < sizeof bytes; at++)
        bytes[at] = pattern(at);
    struct iovec pieces[] = {{bytes, 100}, {bytes + 100, sizeof bytes - 100}}, to = {back, sizeof back};
    good &= vmsplice(ends[1], pieces, 2, SPLICE_F_GIFT) == sizeof bytes;
    good &= vmsplice(ends[0], &to, 1, 0) == sizeof bytes && !memcmp(bytes, back, sizeof bytes);
    good &= fails(EAGAIN, vmsplice(ends[0], &to, 1, SPLICE_F_NONBLOCK)) && fails(EINVAL, vmsplice(ends[1], &to, 1, 16));
    int file = file_of(1);
    good &= fails(EBADF, vmsplice(file, &to, 1, 0)) && fails(EBADF, vmsplice(-1, &to, 1, 0));
    good &= vmsplice(ends[1], NULL, 0, 0) == 0 && fails(EINVAL, vmsplice(ends[1], pieces, 1025, 0));
    close_all((int[]){ends[0], ends[1], file}, 3);
    return good;
}

// A chain of splices through two pipes passes on what a thread writes, as tee(1) with a pipe would.
static void *writes_much(void *unused) {
    (void)unused;
    bool good = true;
    for (size_t at = 0; at < 64 * 10007; at += 10007)
        good &= put(waiting[0][1], at, 10007);
    close(waiting[0][1]);
    return (void *)(long)good;
}

static bool a_chain_passes_everything(void) {
    int *one = waiting[0], *two = waiting[1], file = memfd_create("chain", 0);
    pthread_t thread;
    void *result;
    bool good = !pipe(one) && !pipe(two);
    pthread_create(&thread, NULL, writes_much, NULL);
    ssize_t part, saved;
    size_t all = 0;
    while ((part = splice(one[0], NULL, two[1], NULL, 30011, 0)) > 0)
        for (; part > 0; part -= saved, all += (size_t)saved)
            if ((saved = splice(two[0], NULL, file, NULL, (size_t)part, SPLICE_F_MOVE)) <= 0)
                return false;
    pthread_join(thread, &result);
    good &= part == 0 && result != NULL && all == 64 * 10007 && lseek(file, 0, SEEK_SET) == 0;
    for (size_t at = 0; good && at < all; at += 10007)
        good &= has(file, at, 10007);
    close_all((int[]){one[0], two[0], two[1], file}, 4);
    return good;
}

static const struct rule rules[] = {
    {"a file goes to a pipe and back", a_file_goes_to_a_pipe_and_back},
    {"pipes pass bytes on in order", pipes_pass_bytes_on_in_order},
    {"tee leaves what it copies", tee_leaves_what_it_copies},
    {"wrong arguments have their errors", wrong_arguments_have_their_errors},
    {"a pipe without a reader breaks", a_pipe_without_a_reader_breaks},
    {"sockets take part", sockets_take_part},
    {"waits end by bytes, by room and by signals", waits_end_by_bytes_by_room_and_by_signals},
    {"memory goes to a pipe and back", memory_goes_to_a_pipe_and_back},
    {"a chain passes everything", a_chain_passes_everything},
};

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    return check_rules(rules, sizeof rules / sizeof *rules);
}
