// packets: what control messages tell of the headers of packets, and change in them. Prints a row
// for each rule; the status is 1 if one is broken. The rules hold on Linux.
#include "common.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

enum { UDP_LITE = 136 };

// A control message of four bytes.
struct number {
    struct cmsghdr header;
    int value, padding;
};

// The control messages that came with the last message.
static union {
    char bytes[256];
    struct cmsghdr aligned;
} control;
static struct msghdr received;

// Returns the data of a control message, or NULL if there is none of this kind.
static unsigned char *told(int level, int kind, size_t length) {
    for (struct cmsghdr *one = CMSG_FIRSTHDR(&received); one; one = CMSG_NXTHDR(&received, one))
        if (one->cmsg_level == level && one->cmsg_type == kind && one->cmsg_len == CMSG_LEN(length))
            return CMSG_DATA(one);
    return NULL;
}

static bool tells_number(int level, int kind, int value) {
    unsigned char *data = told(level, kind, sizeof value);
    return data && !memcmp(data, &value, sizeof value);
}

static bool receive(int socket) {
    char byte;
    struct iovec bytes = {&byte, 1};
    received = (struct msghdr){.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = 256};
    return recvmsg(socket, &received, 0) == 1;
}

// Sends a byte to the other socket, with a number as a control message.
static ssize_t send_with(int from, int to, int level, int kind, int value) {
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (getsockname(to, (struct sockaddr *)&address, &length))
        return -1;
    struct iovec bytes = {"x", 1};
    struct number one = {{CMSG_LEN(sizeof value), level, kind}, value, 0};
    struct msghdr message = {&address, length, &bytes, 1, &one, sizeof one, 0};
    return sendmsg(from, &message, 0);
}

static int make(int domain) {
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int one = socket(domain, SOCK_DGRAM, 0);
    int failed = domain == AF_INET ? bind(one, (struct sockaddr *)&four, sizeof four)
                                   : bind(one, (struct sockaddr *)&six, sizeof six);
    if (one < 0 || failed)
        die("a socket");
    return one;
}

static bool switch_on(int socket, int level, int option, int value) {
    return !setsockopt(socket, level, option, &value, sizeof value);
}

// A receiver learns the address, the time to live and the type of service of a packet if it asks.
static bool headers_of_ipv4_are_told(void) {
    int to = make(AF_INET), from = make(AF_INET);
    bool good = send(from, "x", 1, 0) == -1 && send_with(from, to, IPPROTO_IP, IP_TTL, 9) == 1;
    good &= receive(to) && received.msg_controllen == 0;
    good &= switch_on(to, IPPROTO_IP, IP_PKTINFO, 1) && switch_on(to, IPPROTO_IP, IP_RECVTTL, 1);
    good &= switch_on(to, IPPROTO_IP, IP_RECVTOS, 1) && switch_on(from, IPPROTO_IP, IP_TTL, 33);
    good &= send_with(from, to, IPPROTO_IP, IP_TOS, 16) == 1 && receive(to);
    unsigned char *info = told(IPPROTO_IP, IP_PKTINFO, sizeof(struct in_pktinfo)), *class = told(IPPROTO_IP, IP_TOS, 1);
    struct in_pktinfo expected = {1, {htonl(INADDR_LOOPBACK)}, {htonl(INADDR_LOOPBACK)}};
    good &= info && !memcmp(info, &expected, sizeof expected) && class && *class == 16;
    good &= tells_number(IPPROTO_IP, IP_TTL, 33);
    good &= send_with(from, to, IPPROTO_IP, IP_TTL, 7) == 1 && receive(to) && tells_number(IPPROTO_IP, IP_TTL, 7);
    good &= fails_by(send_with(from, to, IPPROTO_IP, IP_TTL, 0), EINVAL);
    good &= fails_by(send_with(from, to, IPPROTO_IP, IP_TTL, 256), EINVAL);
    close(to), close(from);
    return good;
}

static bool headers_of_ipv6_are_told(void) {
    int to = make(AF_INET6), from = make(AF_INET6);
    bool good = switch_on(to, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1) && switch_on(to, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1);
    good &= switch_on(to, IPPROTO_IPV6, IPV6_RECVTCLASS, 1) && switch_on(from, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 40);
    good &= send_with(from, to, IPPROTO_IPV6, IPV6_TCLASS, 32) == 1 && receive(to);
    struct in6_pktinfo expected = {IN6ADDR_LOOPBACK_INIT, 1};
    unsigned char *info = told(IPPROTO_IPV6, IPV6_PKTINFO, sizeof expected);
    good &= info && !memcmp(info, &expected, sizeof expected) && tells_number(IPPROTO_IPV6, IPV6_HOPLIMIT, 40);
    good &= tells_number(IPPROTO_IPV6, IPV6_TCLASS, 32);
    good &= send_with(from, to, IPPROTO_IPV6, IPV6_HOPLIMIT, 3) == 1 && receive(to);
    good &= tells_number(IPPROTO_IPV6, IPV6_HOPLIMIT, 3) && tells_number(IPPROTO_IPV6, IPV6_TCLASS, 0);
    close(to), close(from);
    return good;
}

// A kernel without UDP-Lite knows no such protocol.
static bool udp_lite_is_there_or_refused(void) {
    int one = socket(AF_INET, SOCK_DGRAM, UDP_LITE);
    return one >= 0 ? !close(one) : errno == EPROTONOSUPPORT;
}

static const struct rule rules[] = {
    {"headers of IPv4 are told", headers_of_ipv4_are_told},
    {"headers of IPv6 are told", headers_of_ipv6_are_told},
    {"UDP-Lite is there or refused", udp_lite_is_there_or_refused},
};

int main(void) {
    return check_rules(rules, sizeof rules / sizeof *rules);
}
