// TCP and UDP within one machine, over IPv4 and IPv6. Prints a row for each rule; the status is 1 if one
// is broken. The rules hold on Linux.
#include "answers.h"
#include "common.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

static struct sockaddr_in four(const char *address, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, address, &to.sin_addr);
    return to;
}

static struct sockaddr_in6 six(const char *address, int port) {
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    inet_pton(AF_INET6, address, &to.sin6_addr);
    return to;
}

static int make(int domain, int type) {
    int one = socket(domain, type, 0);
    if (one < 0)
        die("socket");
    return one;
}

static int bind4(int socket, const char *address, int port) {
    struct sockaddr_in to = four(address, port);
    errno = 0;
    return bind(socket, (struct sockaddr *)&to, sizeof to);
}

static int connect4(int socket, const char *address, int port) {
    struct sockaddr_in to = four(address, port);
    errno = 0;
    return connect(socket, (struct sockaddr *)&to, sizeof to);
}

static int bind6(int socket, const char *address, int port) {
    struct sockaddr_in6 to = six(address, port);
    errno = 0;
    return bind(socket, (struct sockaddr *)&to, sizeof to);
}

static int connect6(int socket, const char *address, int port) {
    struct sockaddr_in6 to = six(address, port);
    errno = 0;
    return connect(socket, (struct sockaddr *)&to, sizeof to);
}

static int port_of(int socket) {
    struct sockaddr_in6 name;
    socklen_t length = sizeof name;
    return getsockname(socket, (struct sockaddr *)&name, &length) ? -1 : ntohs(name.sin6_port);
}

// Returns a socket that listens at a port of the kernel's choice.
static int listener(int backlog) {
    int one = make(AF_INET, SOCK_STREAM);
    if (bind4(one, "127.0.0.1", 0) || listen(one, backlog))
        die("a socket that listens");
    return one;
}

static short events(int file) {
    struct pollfd one = {file, POLLIN | POLLOUT | POLLRDHUP, 0};
    return poll(&one, 1, 0) < 0 ? -1 : one.revents;
}

static bool is(long result, int error) {
    bool good = result == -1 && errno == error;
    errno = 0;
    return good;
}

// Connects a pair: [0] is the client's, [1] the server's.
static bool pair_of(int server, int *pair) {
    pair[0] = make(AF_INET, SOCK_STREAM);
    bool good = !connect4(pair[0], "127.0.0.1", port_of(server));
    pair[1] = accept(server, NULL, NULL);
    return good && pair[1] >= 0;
}

// A client connects to a port. Both ends know both addresses, and bytes go both ways.
static bool connections_carry_bytes(void) {
    int server = listener(5), pair[2] = {-1, -1}, port = port_of(server);
    struct sockaddr_in name, other;
    socklen_t length = sizeof name, others = sizeof other;
    char bytes[100];
    bool good = port >= 1024 && pair_of(server, pair) && is(connect4(pair[0], "127.0.0.1", port), EISCONN);
    good &= !getpeername(pair[0], (struct sockaddr *)&name, &length) && length == 16 && ntohs(name.sin_port) == port;
    good &= !getsockname(pair[0], (struct sockaddr *)&name, &length) && name.sin_addr.s_addr == htonl(INADDR_LOOPBACK);
    good &= !getpeername(pair[1], (struct sockaddr *)&other, &others) && !memcmp(&name, &other, sizeof name);
    good &= port_of(pair[1]) == port && events(pair[1]) == POLLOUT;
    good &= write(pair[0], "question", 8) == 8 && recv(pair[1], bytes, sizeof bytes, MSG_PEEK) == 8;
    int waiting = 0;
    good &= !ioctl(pair[1], FIONREAD, &waiting) && waiting == 8 && read(pair[1], bytes, sizeof bytes) == 8;
    good &= send(pair[1], "answer", 6, 0) == 6 && recv(pair[0], bytes, 100, 0) == 6 && !memcmp(bytes, "answer", 6);
    good &= is(recv(pair[0], bytes, 1, MSG_DONTWAIT), EAGAIN);
    good &= recvfrom(pair[0], bytes, 0, MSG_DONTWAIT, NULL, NULL) <= 0;
    return good & !close(server) & !close(pair[0]) & !close(pair[1]);
}

// The end of one direction is the end of file for the other side, and no hangup.
static bool directions_end_one_by_one(void) {
    int server = listener(5), pair[2];
    char byte;
    bool good = pair_of(server, pair) && write(pair[0], "x", 1) == 1 && !shutdown(pair[0], SHUT_WR);
    struct pollfd reader = {pair[1], POLLRDHUP, 0};
    good &= poll(&reader, 1, 2000) == 1 && events(pair[1]) == (POLLIN | POLLOUT | POLLRDHUP);
    good &= events(pair[0]) == POLLOUT && is(send(pair[0], "x", 1, MSG_NOSIGNAL), EPIPE);
    good &= read(pair[1], &byte, 1) == 1 && !read(pair[1], &byte, 1) && write(pair[1], "y", 1) == 1;
    good &= read(pair[0], &byte, 1) == 1 && byte == 'y' && !shutdown(pair[1], SHUT_WR) && !read(pair[0], &byte, 1);
    good &= events(pair[0]) == (POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
    int fresh = make(AF_INET, SOCK_STREAM);
    good &= is(recv(fresh, &byte, 1, 0), ENOTCONN) && is(send(fresh, "x", 1, MSG_NOSIGNAL), EPIPE);
    good &= events(fresh) == (POLLOUT | POLLHUP) && is(shutdown(fresh, SHUT_RDWR), ENOTCONN);
    good &= !recv(fresh, &byte, 1, 0) && events(fresh) & POLLRDHUP;
    return good & !close(server) & !close(pair[0]) & !close(pair[1]) & !close(fresh);
}

// What is written to a socket that was closed comes back as an error, after the first write.
static bool writes_to_a_closed_socket_fail_later(void) {
    int server = listener(5), pair[2], error = 0;
    socklen_t size = sizeof error;
    char byte;
    bool good = pair_of(server, pair) && !close(pair[1]);
    struct pollfd reader = {pair[0], POLLRDHUP, 0};
    good &= poll(&reader, 1, 2000) == 1 && events(pair[0]) == (POLLIN | POLLOUT | POLLRDHUP);
    good &= !read(pair[0], &byte, 1) && send(pair[0], "x", 1, MSG_NOSIGNAL) == 1;
    usleep(20000);
    good &= events(pair[0]) & POLLHUP && events(pair[0]) & POLLERR && is(send(pair[0], "x", 1, MSG_NOSIGNAL), EPIPE);
    // Unread bytes, or no time to linger, reset the other end.
    good &= !close(pair[0]) && pair_of(server, pair) && write(pair[0], "x", 1) == 1;
    struct pollfd other = {pair[1], POLLIN, 0};
    good &= poll(&other, 1, 2000) == 1 && !close(pair[1]);
    usleep(20000);
    good &= is(read(pair[0], &byte, 1), ECONNRESET) && !read(pair[0], &byte, 1) && !close(pair[0]);
    struct linger linger = {1, 0};
    good &= pair_of(server, pair) && !setsockopt(pair[0], SOL_SOCKET, SO_LINGER, &linger, sizeof linger) && !close(pair[0]);
    usleep(20000);
    good &= !getsockopt(pair[1], SOL_SOCKET, SO_ERROR, &error, &size) && error == ECONNRESET;
    return good & !close(server) & !close(pair[1]);
}

// The end of the stream comes before an error: a call that receives finds the end, and leaves the error.
static bool errors_follow_the_end(void) {
    int server = listener(5), pair[2], error = 0;
    socklen_t size = sizeof error;
    char byte;
    bool good = pair_of(server, pair) && write(pair[1], "x", 1) == 1 && !close(pair[1]);
    struct pollfd ended = {pair[0], POLLRDHUP, 0}, failed = {pair[0], 0, 0};
    good &= poll(&ended, 1, 2000) == 1 && send(pair[0], "y", 1, MSG_NOSIGNAL) == 1 && poll(&failed, 1, 2000) == 1;
    good &= read(pair[0], &byte, 1) == 1 && !read(pair[0], &byte, 1) && !read(pair[0], &byte, 1);
    good &= events(pair[0]) & POLLERR && is(send(pair[0], "z", 1, MSG_NOSIGNAL), EPIPE) && !close(pair[0]);
    // A reset after the end is no reset for this end.
    good &= pair_of(server, pair) && write(pair[0], "x", 1) == 1;
    struct pollfd reader = {pair[1], POLLIN, 0}, other = {pair[0], POLLRDHUP, 0}, reset = {pair[0], 0, 0};
    good &= poll(&reader, 1, 2000) == 1 && !shutdown(pair[1], SHUT_WR) && poll(&other, 1, 2000) == 1;
    good &= !close(pair[1]) && poll(&reset, 1, 2000) == 1 && !read(pair[0], &byte, 1);
    good &= !getsockopt(pair[0], SOL_SOCKET, SO_ERROR, &error, &size) && error == EPIPE;
    return good & !close(server) & !close(pair[0]);
}

// No socket listens at a port: a client that waits is refused, one that does not learns it later.
static bool clients_without_a_server_are_refused(void) {
    int server = listener(1), port = port_of(server), client = make(AF_INET, SOCK_STREAM), error = 0;
    socklen_t size = sizeof error;
    bool good = !close(server) && is(connect4(client, "127.0.0.1", port), ECONNREFUSED) && !close(client);
    client = make(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
    good &= is(connect4(client, "127.0.0.1", port), EINPROGRESS);
    struct pollfd writer = {client, POLLOUT, 0};
    good &= poll(&writer, 1, 2000) == 1 && writer.revents & POLLERR;
    good &= !getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &size) && error == ECONNREFUSED;
    good &= !getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &size) && !error;
    // A socket that is bound and does not listen refuses as well.
    server = make(AF_INET, SOCK_STREAM);
    good &= !bind4(server, "127.0.0.1", 0) && !close(client);
    client = make(AF_INET, SOCK_STREAM);
    good &= is(connect4(client, "127.0.0.1", port_of(server)), ECONNREFUSED) && !listen(server, 1);
    good &= !connect4(client, "127.0.0.1", port_of(server)) && !close(client) && !close(server);
    client = make(AF_INET, SOCK_STREAM);
    struct sockaddr_in6 wrong = six("::1", port);
    good &= is(connect(client, (struct sockaddr *)&wrong, sizeof wrong), EAFNOSUPPORT);
    good &= is(connect(client, (struct sockaddr *)&wrong, 1), EINVAL);
    return good & !close(client);
}

// A client that does not wait is connected in the background, and polls for it.
static bool connections_are_made_in_the_background(void) {
    int server = listener(5), client = make(AF_INET, SOCK_STREAM | SOCK_NONBLOCK), port = port_of(server), error = 1;
    socklen_t size = sizeof error;
    bool good = is(connect4(client, "127.0.0.1", port), EINPROGRESS);
    struct pollfd writer = {client, POLLOUT, 0};
    good &= poll(&writer, 1, 2000) == 1 && writer.revents == POLLOUT;
    good &= !getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &size) && !error;
    good &= !connect4(client, "127.0.0.1", port) && is(connect4(client, "127.0.0.1", port), EISCONN);
    int accepted = accept4(server, NULL, NULL, SOCK_NONBLOCK);
    good &= accepted >= 0 && fcntl(accepted, F_GETFL) & O_NONBLOCK;
    return good & !close(accepted) & !close(client) & !close(server);
}

// Many clients that do not wait connect to a server with a short backlog: all get through in the end.
static bool a_short_backlog_delays_clients(void) {
    enum { CLIENTS = 3 };
    int server = listener(1), port = port_of(server), clients[CLIENTS], done = 0;
    bool good = true;
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = make(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
        good &= is(connect4(clients[i], "127.0.0.1", port), EINPROGRESS);
    }
    for (int i = 0; i < CLIENTS; i++) {
        int one = accept(server, NULL, NULL);
        good &= one >= 0 && write(one, "w", 1) == 1;
        for (int j = 0; j < CLIENTS; j++)
            events(clients[j]);
    }
    for (int i = 0; i < CLIENTS; i++) {
        struct pollfd reader = {clients[i], POLLIN, 0};
        char byte;
        done += poll(&reader, 1, 5000) == 1 && read(clients[i], &byte, 1) == 1;
        good &= !close(clients[i]);
    }
    return good & (done == CLIENTS) & !close(server);
}

// Two sockets share a port if both say so, or if their addresses are different.
static bool ports_are_shared_as_wanted(void) {
    int on = 1, off = 0, one = make(AF_INET, SOCK_STREAM), two = make(AF_INET, SOCK_STREAM);
    bool good = !bind4(one, "127.0.0.1", 0);
    int port = port_of(one);
    good &= is(bind4(two, "127.0.0.1", port), EADDRINUSE) && is(bind4(two, "0.0.0.0", port), EADDRINUSE);
    good &= !bind4(two, "127.0.0.2", port) && is(bind4(two, "127.0.0.3", port), EINVAL);
    int three = make(AF_INET, SOCK_STREAM);
    good &= is(bind4(three, "192.0.2.1", 0), EADDRNOTAVAIL) && !close(one) && !close(two);
    one = make(AF_INET, SOCK_STREAM), two = make(AF_INET, SOCK_STREAM);
    setsockopt(one, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(two, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    good &= !bind4(one, "0.0.0.0", 0) && !bind4(two, "127.0.0.1", port_of(one));
    good &= !listen(one, 1) && is(listen(two, 1), EADDRINUSE) && !close(one) && !close(two);
    // Both listen, and share the connections.
    one = make(AF_INET, SOCK_STREAM | SOCK_NONBLOCK), two = make(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
    setsockopt(one, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    setsockopt(two, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    good &= !bind4(one, "127.0.0.1", 0) && !bind4(two, "127.0.0.1", port = port_of(one));
    good &= !listen(one, 50) && !listen(two, 50);
    int counts[2] = {0, 0};
    for (int i = 0; i < 40; i++) {
        int client = make(AF_INET, SOCK_STREAM);
        good &= !connect4(client, "127.0.0.1", port) && !close(client);
        for (int j = 0; j < 2; j++) {
            int accepted = accept(j ? two : one, NULL, NULL);
            counts[j] += accepted >= 0 && !close(accepted);
        }
    }
    good &= counts[0] + counts[1] == 40 && counts[0] > 4 && counts[1] > 4 && !close(one) && !close(two);
    // A port below 1024 is for privileged programs; IPv6 is apart if it says so.
    one = make(AF_INET6, SOCK_STREAM), two = make(AF_INET, SOCK_STREAM);
    good &= !bind6(one, "::", 0) && is(bind4(two, "127.0.0.1", port_of(one)), EADDRINUSE) && !close(one);
    one = make(AF_INET6, SOCK_STREAM);
    good &= !setsockopt(one, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) && !bind6(one, "::", 0);
    good &= !bind4(two, "127.0.0.1", port_of(one)) && off == 0;
    return good & !close(one) & !close(two) & !close(three);
}

// A server of IPv6 serves clients of IPv4 too, whose addresses it sees in mapped form.
static bool servers_of_ipv6_serve_both(void) {
    int server = make(AF_INET6, SOCK_STREAM), four_client = make(AF_INET, SOCK_STREAM), six_client = make(AF_INET6, SOCK_STREAM);
    struct sockaddr_in6 name;
    socklen_t length = sizeof name;
    char text[64];
    bool good = !listen(server, 5) && port_of(server) >= 1024;
    good &= !connect4(four_client, "127.0.0.1", port_of(server)) && !connect6(six_client, "::1", port_of(server));
    int one = accept(server, (struct sockaddr *)&name, &length);
    good &= one >= 0 && length == 28 && inet_ntop(AF_INET6, &name.sin6_addr, text, sizeof text);
    good &= !strcmp(text, "::ffff:127.0.0.1") && ntohs(name.sin6_port) == port_of(four_client);
    int two = accept(server, (struct sockaddr *)&name, &length);
    good &= two >= 0 && inet_ntop(AF_INET6, &name.sin6_addr, text, sizeof text) && !strcmp(text, "::1");
    int mapped = make(AF_INET6, SOCK_STREAM);
    good &= !connect6(mapped, "::ffff:127.0.0.1", port_of(server)) && !close(mapped);
    good &= write(four_client, "4", 1) == 1 && read(one, text, 9) == 1 && text[0] == '4';
    return good & !close(server) & !close(four_client) & !close(six_client) & !close(one) & !close(two);
}

// Datagrams arrive whole, with the address to answer to; those that no socket takes get lost.
static bool datagrams_arrive_or_get_lost(void) {
    int server = make(AF_INET, SOCK_DGRAM), client = make(AF_INET, SOCK_DGRAM);
    char bytes[70000];
    struct sockaddr_in name, to;
    socklen_t length = sizeof name;
    bool good = !bind4(server, "0.0.0.0", 0);
    int port = port_of(server);
    to = four("127.0.0.1", port);
    good &= is(send(client, "x", 1, 0), EDESTADDRREQ);
    good &= sendto(client, "hello", 5, 0, (struct sockaddr *)&to, sizeof to) == 5 && port_of(client) >= 1024;
    good &= sendto(client, "", 0, 0, (struct sockaddr *)&to, sizeof to) == 0;
    good &= recvfrom(server, bytes, 2, MSG_TRUNC, (struct sockaddr *)&name, &length) == 5 && length == 16;
    good &= name.sin_addr.s_addr == htonl(INADDR_LOOPBACK) && ntohs(name.sin_port) == port_of(client);
    good &= recv(server, bytes, 9, 0) == 0 && sendto(server, "back", 4, 0, (struct sockaddr *)&name, length) == 4;
    good &= recv(client, bytes, 9, 0) == 4;
    good &= sendto(client, bytes, 65507, 0, (struct sockaddr *)&to, sizeof to) == 65507;
    good &= recv(server, bytes, sizeof bytes, 0) == 65507;
    good &= is(sendto(client, bytes, 65508, 0, (struct sockaddr *)&to, sizeof to), EMSGSIZE);
    // A connected socket receives from its peer alone, and learns that its peer is gone.
    int stranger = make(AF_INET, SOCK_DGRAM);
    good &= !connect4(client, "127.0.0.1", port) && send(client, "c", 1, 0) == 1 && recv(server, bytes, 9, 0) == 1;
    to = four("127.0.0.1", port_of(client));
    good &= sendto(stranger, "s", 1, 0, (struct sockaddr *)&to, sizeof to) == 1;
    good &= sendto(server, "p", 1, 0, (struct sockaddr *)&to, sizeof to) == 1;
    good &= recv(client, bytes, 9, 0) == 1 && bytes[0] == 'p' && is(recv(client, bytes, 9, MSG_DONTWAIT), EAGAIN);
    good &= !close(server) && send(client, "x", 1, 0) == 1;
    usleep(20000);
    good &= is(send(client, "x", 1, 0), ECONNREFUSED) && send(client, "x", 1, 0) == 1;
    usleep(20000);
    good &= is(recv(client, bytes, 1, 0), ECONNREFUSED);
    // One that is full loses what comes, and its sender does not wait.
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    good &= !connect(client, &none, sizeof none) && is(send(client, "x", 1, 0), EDESTADDRREQ);
    to = four("127.0.0.1", port_of(client));
    int got = 0;
    for (int i = 0; i < 3000; i++)
        good &= sendto(stranger, bytes, 1000, 0, (struct sockaddr *)&to, sizeof to) == 1000;
    while (recv(client, bytes, 9, MSG_DONTWAIT) > 0)
        got++;
    return good & (got > 20) & (got < 3000) & !close(client) & !close(stranger);
}

enum { TOTAL = 8 << 20 };

static void *send_all(void *argument) {
    int to = *(int *)argument;
    static char bytes[100000];
    size_t sent = 0;
    while (sent < TOTAL) {
        size_t wanted = TOTAL - sent < sizeof bytes ? TOTAL - sent : sizeof bytes;
        for (size_t i = 0; i < wanted; i++)
            bytes[i] = (char)((sent + i) % 249);
        ssize_t now = send(to, bytes, wanted, 0);
        if (now <= 0)
            return NULL;
        sent += (size_t)now;
    }
    return shutdown(to, SHUT_WR) ? NULL : argument;
}

// A stream larger than any buffer arrives whole, read by epoll with edges.
static bool long_streams_arrive_whole(void) {
    int server = listener(5), pair[2], set = epoll_create1(0);
    bool good = pair_of(server, pair) && !fcntl(pair[1], F_SETFL, O_NONBLOCK);
    struct epoll_event event = {EPOLLIN | EPOLLET | EPOLLRDHUP, {0}};
    good &= !epoll_ctl(set, EPOLL_CTL_ADD, pair[1], &event);
    pthread_t thread;
    good &= !pthread_create(&thread, NULL, send_all, &pair[0]);
    static char bytes[30000];
    size_t got = 0;
    for (bool ended = false; good && !ended;) {
        good &= epoll_wait(set, &event, 1, 10000) == 1;
        for (;;) {
            ssize_t now = recv(pair[1], bytes, sizeof bytes, 0);
            if (now <= 0) {
                ended = now == 0;
                good &= now == 0 || errno == EAGAIN;
                break;
            }
            for (ssize_t i = 0; i < now; i++)
                good &= bytes[i] == (char)((got + (size_t)i) % 249);
            got += (size_t)now;
        }
    }
    void *result = NULL;
    good &= got == TOTAL && !pthread_join(thread, &result) && result;
    return good & !close(set) & !close(server) & !close(pair[0]) & !close(pair[1]);
}

enum { CLIENTS = 6, REQUESTS = 200 };

struct client {
    long number;
    int port;
};

static void *client(void *argument) {
    struct client *own = argument;
    for (long i = 0; i < REQUESTS; i++) {
        int socket = make(AF_INET, SOCK_STREAM);
        bool good = !connect4(socket, "127.0.0.1", own->port) && ask(socket, own->number, i);
        close(socket);
        if (!good)
            return NULL;
    }
    return argument;
}

// Servers in processes share a socket, clients in threads connect at the same time: each gets its answer.
static bool many_connect_at_once(void) {
    int server = listener(128);
    pid_t servers[SERVERS];
    serve(server, servers);
    pthread_t threads[CLIENTS];
    struct client clients[CLIENTS];
    bool good = true;
    for (long i = 0; i < CLIENTS; i++) {
        clients[i] = (struct client){i, port_of(server)};
        good &= !pthread_create(&threads[i], NULL, client, &clients[i]);
    }
    for (int i = 0; i < CLIENTS; i++) {
        void *result = NULL;
        good &= !pthread_join(threads[i], &result) && result;
    }
    good &= end_servers(servers);
    return good & !close(server);
}

// Options are kept, also by connections of a server that has them.
static bool options_are_kept(void) {
    int server = listener(5), pair[2], on = 1, value = 0;
    socklen_t size = sizeof value;
    bool good = !setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    good &= !setsockopt(server, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) && pair_of(server, pair);
    good &= !getsockopt(pair[1], IPPROTO_TCP, TCP_NODELAY, &value, &size) && value == 1;
    good &= !getsockopt(pair[1], SOL_SOCKET, SO_KEEPALIVE, &value, &size) && value == 1;
    good &= !getsockopt(pair[0], IPPROTO_TCP, TCP_NODELAY, &value, &size) && !value;
    good &= !getsockopt(pair[0], SOL_SOCKET, SO_DOMAIN, &value, &size) && value == AF_INET;
    good &= !getsockopt(pair[0], SOL_SOCKET, SO_PROTOCOL, &value, &size) && value == IPPROTO_TCP;
    char name[16] = "";
    size = sizeof name;
    good &= !getsockopt(pair[0], IPPROTO_TCP, TCP_CONGESTION, name, &size) && strlen(name) > 2;
    good &= is(getsockopt(pair[0], IPPROTO_TCP, 12345, &value, &size), ENOPROTOOPT);
    good &= is(setsockopt(pair[0], 500, 1, &value, sizeof value), ENOPROTOOPT);
    good &= is(setsockopt(pair[0], IPPROTO_UDP, 1, &value, sizeof value), ENOPROTOOPT);
    good &= is(recv(pair[0], name, 1, MSG_ERRQUEUE), EAGAIN);
    good &= is(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
    int sockets[2];
    good &= is(socketpair(AF_INET, SOCK_STREAM, 0, sockets), EOPNOTSUPP);
    return good & !close(server) & !close(pair[0]) & !close(pair[1]);
}

int main(void) {
    struct {
        const char *rule;
        bool (*holds)(void);
    } rules[] = {
        {"connections carry bytes", connections_carry_bytes},
        {"directions end one by one", directions_end_one_by_one},
        {"writes to a closed socket fail later", writes_to_a_closed_socket_fail_later},
        {"errors follow the end of the stream", errors_follow_the_end},
        {"clients without a server are refused", clients_without_a_server_are_refused},
        {"connections are made in the background", connections_are_made_in_the_background},
        {"a short backlog delays clients", a_short_backlog_delays_clients},
        {"ports are shared as wanted", ports_are_shared_as_wanted},
        {"servers of IPv6 serve both", servers_of_ipv6_serve_both},
        {"datagrams arrive or get lost", datagrams_arrive_or_get_lost},
        {"long streams arrive whole", long_streams_arrive_whole},
        {"many connect at once", many_connect_at_once},
        {"options are kept", options_are_kept},
    };
    signal(SIGPIPE, SIG_IGN);
    bool all = true;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        bool good = rules[i].holds();
        printf("{\"rule\": \"%s\", \"holds\": %s}\n", rules[i].rule, good ? "true" : "false");
        fflush(stdout);
        all &= good;
    }
    return !all;
}
