// The machine's network interfaces, their addresses and routes, by NETLINK_ROUTE. Prints a row for each
// rule; the status is 1 if one is broken. The rules hold on Linux.
#include "common.h"
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/if.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static bool fails(int error, long result) {
    return result == -1 && errno == error;
}

static int ask(void) {
    int route = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (route < 0)
        die("socket");
    return route;
}

struct request {
    struct nlmsghdr header;
    struct ifinfomsg body;
    char attributes[32];
};

static bool send_request(int route, int kind, int flags, unsigned char family, const char *name) {
    struct request request = {.header = {.nlmsg_len = NLMSG_LENGTH(sizeof request.body), .nlmsg_type = (uint16_t)kind}};
    request.header.nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags);
    request.header.nlmsg_seq = 42;
    request.body.ifi_family = family;
    if (name) {
        struct rtattr attribute = {.rta_len = (uint16_t)RTA_LENGTH(strlen(name) + 1), .rta_type = IFLA_IFNAME};
        memcpy(request.attributes, &attribute, sizeof attribute);
        memcpy(request.attributes + RTA_LENGTH(0), name, strlen(name) + 1);
        request.header.nlmsg_len = NLMSG_ALIGN(request.header.nlmsg_len) + RTA_ALIGN(attribute.rta_len);
    }
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    return sendto(route, &request, request.header.nlmsg_len, 0, (struct sockaddr *)&kernel, sizeof kernel) ==
           (ssize_t)request.header.nlmsg_len;
}

static unsigned own_port(int route) {
    struct sockaddr_nl own = {0};
    socklen_t size = sizeof own;
    return getsockname(route, (struct sockaddr *)&own, &size) || size != sizeof own ? 0 : own.nl_pid;
}

// Calls `look` for each answer, up to the last. Returns how many there were; -1 if one is malformed.
static int each(int route, void (*look)(const struct nlmsghdr *, void *), void *with) {
    _Alignas(8) static char bytes[32768];
    unsigned port = own_port(route);
    for (int count = 0;;) {
        struct sockaddr_nl from = {.nl_pid = 7};
        socklen_t size = sizeof from;
        ssize_t length = recvfrom(route, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &size);
        if (length <= 0 || size != sizeof from || from.nl_family != AF_NETLINK || from.nl_pid)
            return -1;
        int left = (int)length;
        for (struct nlmsghdr *one = (void *)bytes; NLMSG_OK(one, left); one = NLMSG_NEXT(one, left)) {
            if (one->nlmsg_seq != 42 || one->nlmsg_pid != port)
                return -1;
            if (one->nlmsg_type == NLMSG_DONE)
                return count;
            look(one, with);
            count++;
            if (!(one->nlmsg_flags & NLM_F_MULTI))
                return count;
        }
    }
}

// Returns the value of an attribute of at least `size` bytes.
static const void *attribute(const struct nlmsghdr *message, size_t body, int kind, size_t size) {
    struct rtattr *one = (void *)((char *)NLMSG_DATA(message) + NLMSG_ALIGN(body));
    int left = (int)NLMSG_PAYLOAD(message, body);
    for (; RTA_OK(one, left); one = RTA_NEXT(one, left))
        if (one->rta_type == kind && RTA_PAYLOAD(one) >= size)
            return RTA_DATA(one);
    return NULL;
}

static void look_for_lo(const struct nlmsghdr *message, void *found) {
    const struct ifinfomsg *body = NLMSG_DATA(message);
    const char *name = attribute(message, sizeof *body, IFLA_IFNAME, 1);
    const unsigned *size = attribute(message, sizeof *body, IFLA_MTU, sizeof *size);
    const char *address = attribute(message, sizeof *body, IFLA_ADDRESS, 6);
    bool is = message->nlmsg_type == RTM_NEWLINK && body->ifi_index == 1 && body->ifi_type == 772 && name &&
              !strcmp(name, "lo") && size && *size == 65536 && address && !memcmp(address, "\0\0\0\0\0", 6) &&
              body->ifi_flags & IFF_UP && body->ifi_flags & IFF_LOOPBACK &&
              attribute(message, sizeof *body, IFLA_STATS64, 24 * 8);
    *(int *)found += is;
}

static void look_for_addresses(const struct nlmsghdr *message, void *found) {
    const struct ifaddrmsg *body = NLMSG_DATA(message);
    const void *address = attribute(message, sizeof *body, IFA_ADDRESS, body->ifa_family == AF_INET ? 4 : 16);
    if (message->nlmsg_type != RTM_NEWADDR || body->ifa_index != 1 || !address || body->ifa_scope != RT_SCOPE_HOST)
        return;
    const char *label = attribute(message, sizeof *body, IFA_LABEL, 1);
    bool four = body->ifa_family == AF_INET && body->ifa_prefixlen == 8 && !memcmp(address, "\x7f\0\0\x01", 4);
    bool six = body->ifa_family == AF_INET6 && body->ifa_prefixlen == 128 && !memcmp(address, &in6addr_loopback, 16);
    *(int *)found += four && label && !strcmp(label, "lo") ? 1 : six ? 16 : 0;
}

static void look_for_routes(const struct nlmsghdr *message, void *found) {
    const struct rtmsg *body = NLMSG_DATA(message);
    const unsigned *interface = attribute(message, sizeof *body, RTA_OIF, sizeof *interface);
    const unsigned char *to = attribute(message, sizeof *body, RTA_DST, 4);
    if (message->nlmsg_type == RTM_NEWROUTE && body->rtm_family == AF_INET && body->rtm_table == RT_TABLE_LOCAL &&
        interface && *interface == 1 && to && to[0] == 127 && body->rtm_type == RTN_LOCAL)
        *(int *)found += body->rtm_dst_len == 8 ? 1 : body->rtm_dst_len == 32 ? 16 : 0;
}

static void keep(const struct nlmsghdr *message, void *to) {
    memcpy(to, message, message->nlmsg_len < 512 ? message->nlmsg_len : 512);
}

static bool interfaces_are_listed(void) {
    int route = ask(), found = 0;
    bool good = send_request(route, RTM_GETLINK, NLM_F_DUMP, AF_UNSPEC, NULL);
    good &= each(route, look_for_lo, &found) >= 1 && found == 1;
    found = 0;
    good &= send_request(route, RTM_GETLINK, 0, AF_UNSPEC, "lo") && each(route, look_for_lo, &found) == 1 && found == 1;
    close(route);
    return good;
}

static bool addresses_are_listed(void) {
    int route = ask(), found = 0;
    bool good = send_request(route, RTM_GETADDR, NLM_F_DUMP, AF_UNSPEC, NULL);
    good &= each(route, look_for_addresses, &found) >= 2 && found == 17;
    found = 0;
    good &= send_request(route, RTM_GETADDR, NLM_F_DUMP, AF_INET, NULL);
    good &= each(route, look_for_addresses, &found) >= 1 && found == 1;
    found = 0;
    good &= send_request(route, RTM_GETADDR, NLM_F_DUMP, AF_INET6, NULL);
    good &= each(route, look_for_addresses, &found) >= 1 && found == 16;
    close(route);
    return good;
}

static bool routes_are_listed(void) {
    int route = ask(), found = 0;
    bool good = send_request(route, RTM_GETROUTE, NLM_F_DUMP, AF_INET, NULL);
    good &= each(route, look_for_routes, &found) >= 2 && found == 17;
    close(route);
    return good;
}

static bool the_library_finds_all(void) {
    struct ifaddrs *all = NULL;
    int found = 0;
    if (getifaddrs(&all))
        return false;
    for (struct ifaddrs *one = all; one; one = one->ifa_next) {
        if (strcmp(one->ifa_name, "lo") || !one->ifa_addr || !(one->ifa_flags & IFF_LOOPBACK))
            continue;
        struct sockaddr_in *four = (void *)one->ifa_addr;
        struct sockaddr_in6 *six = (void *)one->ifa_addr;
        if (four->sin_family == AF_INET)
            found += four->sin_addr.s_addr == htonl(INADDR_LOOPBACK) &&
                     ((struct sockaddr_in *)(void *)one->ifa_netmask)->sin_addr.s_addr == htonl(0xff000000);
        else if (six->sin6_family == AF_INET6)
            found += memcmp(&six->sin6_addr, &in6addr_loopback, 16) ? 0 : 16;
        else
            found += four->sin_family == AF_PACKET ? 256 : 0;
    }
    freeifaddrs(all);
    return found == 256 + 16 + 1;
}

static bool errors_come_as_messages(void) {
    _Alignas(8) char bytes[512];
    struct nlmsghdr *answer = (void *)bytes;
    struct nlmsgerr *error = NLMSG_DATA(answer);
    int route = ask();
    bool good = send_request(route, RTM_GETLINK, 0, AF_UNSPEC, "none0") && each(route, keep, bytes) == 1;
    good &= answer->nlmsg_type == NLMSG_ERROR && error->error == -ENODEV && error->msg.nlmsg_type == RTM_GETLINK;
    // A message that only asks whether it arrives.
    good &= send_request(route, NLMSG_NOOP, NLM_F_ACK, AF_UNSPEC, NULL) && each(route, keep, bytes) == 1;
    good &= answer->nlmsg_type == NLMSG_ERROR && error->error == 0 && error->msg.nlmsg_seq == 42;
    good &= fails(EAGAIN, recv(route, bytes, sizeof bytes, MSG_DONTWAIT));
    close(route);
    return good;
}

static bool sockets_have_ports(void) {
    struct sockaddr_nl own = {.nl_family = AF_NETLINK};
    int one = ask(), other = ask();
    bool good = own_port(one) == 0 && !bind(one, (struct sockaddr *)&own, sizeof own);
    good &= own_port(one) == (unsigned)getpid();
    own.nl_pid = (unsigned)getpid();
    good &= fails(EADDRINUSE, bind(other, (struct sockaddr *)&own, sizeof own));
    own.nl_pid = 0;
    good &= !bind(other, (struct sockaddr *)&own, sizeof own) && own_port(other) && own_port(other) != own_port(one);
    own.nl_family = AF_INET;
    good &= fails(EINVAL, bind(other, (struct sockaddr *)&own, sizeof own));
    good &= fails(EPROTONOSUPPORT, socket(AF_NETLINK, SOCK_RAW, 31));
    good &= fails(ESOCKTNOSUPPORT, socket(AF_NETLINK, SOCK_STREAM, 0));
    int size = 1, pair[2];
    good &= !setsockopt(one, SOL_NETLINK, NETLINK_EXT_ACK, &size, sizeof size);
    good &= fails(ENOPROTOOPT, setsockopt(one, SOL_NETLINK, 77, &size, sizeof size));
    good &= fails(EOPNOTSUPP, socketpair(AF_NETLINK, SOCK_RAW, 0, pair)) && fails(EOPNOTSUPP, listen(one, 1));
    close(one), close(other);
    return good;
}

static bool answers_wait_to_be_received(void) {
    static char bytes[32768];
    int route = ask();
    struct pollfd ready = {.fd = route, .events = POLLIN | POLLOUT};
    bool good = poll(&ready, 1, 0) == 1 && ready.revents == POLLOUT;
    good &= send_request(route, RTM_GETLINK, 0, AF_UNSPEC, "lo") && poll(&ready, 1, 0) == 1;
    good &= ready.revents == (POLLIN | POLLOUT);
    ssize_t length = recv(route, NULL, 0, MSG_PEEK | MSG_TRUNC);
    good &= length > 100 && recv(route, bytes, 16, MSG_PEEK) == 16 && recv(route, bytes, sizeof bytes, 0) == length;
    good &= ((struct nlmsghdr *)(void *)bytes)->nlmsg_len == (unsigned)length;
    close(route);
    return good;
}

static const struct rule rules[] = {
    {"interfaces are listed", interfaces_are_listed},
    {"addresses are listed", addresses_are_listed},
    {"routes are listed", routes_are_listed},
    {"the library finds all", the_library_finds_all},
    {"errors come as messages", errors_come_as_messages},
    {"sockets have ports", sockets_have_ports},
    {"answers wait to be received", answers_wait_to_be_received},
};

int main(void) {
    return check_rules(rules, sizeof rules / sizeof *rules);
}
