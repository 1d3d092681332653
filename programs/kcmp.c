// kcmp: what two processes share. Also the interfaces of the network, and the personality. Prints a
// row for each rule; the status is 1 if one is broken. The rules hold on Linux.
#include "common.h"
#include <arpa/inet.h>
#include <linux/kcmp.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static long compare(pid_t first, pid_t second, int kind, unsigned long first_fd, unsigned long second_fd) {
    errno = 0;
    return syscall(SYS_kcmp, first, second, kind, first_fd, second_fd);
}

static bool fails(int error, long result) {
    return result == -1 && errno == error;
}

// Descriptors of one open file are equal, and others have an order.
static bool descriptors_are_compared(void) {
    int ends[2], status = -1;
    if (pipe(ends))
        return false;
    int copy = dup(ends[0]);
    pid_t own = getpid();
    bool good = compare(own, own, KCMP_FILE, (unsigned long)ends[0], (unsigned long)copy) == 0;
    long order = compare(own, own, KCMP_FILE, (unsigned long)ends[0], (unsigned long)ends[1]);
    long other = compare(own, own, KCMP_FILE, (unsigned long)ends[1], (unsigned long)ends[0]);
    good &= (order == 1 && other == 2) || (order == 2 && other == 1);
    good &= fails(EBADF, compare(own, own, KCMP_FILE, 999, (unsigned long)ends[0]));
    pid_t child = fork();
    if (!child) {
        // The parent's open file is the child's, too.
        bool same = compare(own, getpid(), KCMP_FILE, (unsigned long)ends[0], (unsigned long)copy) == 0;
        same &= compare(own, getpid(), KCMP_VM, 0, 0) > 0 && compare(own, getpid(), KCMP_FILES, 0, 0) > 0;
        same &= compare(own, getpid(), KCMP_SIGHAND, 0, 0) > 0;
        _exit(!same);
    }
    good &= waitpid(child, &status, 0) == child && status == 0;
    close(ends[0]), close(ends[1]), close(copy);
    return good;
}

static bool processes_are_compared(void) {
    pid_t own = getpid();
    bool good = !compare(own, own, KCMP_VM, 0, 0) && !compare(own, own, KCMP_FILES, 0, 0);
    good &= !compare(own, own, KCMP_FS, 0, 0) && !compare(own, own, KCMP_SIGHAND, 0, 0);
    good &= !compare(own, own, KCMP_IO, 0, 0) && !compare(own, own, KCMP_SYSVSEM, 0, 0);
    good &= fails(EINVAL, compare(own, own, 99, 0, 0)) && fails(ESRCH, compare(own, 4000000, KCMP_VM, 0, 0));
    return good;
}

// The loopback interface is described, and no other name is known.
static bool the_loopback_interface_is_described(void) {
    struct ifreq request = {.ifr_name = "lo"}, list[16];
    struct ifconf all = {.ifc_len = sizeof list, .ifc_buf = (char *)list};
    int file = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool good = !ioctl(file, SIOCGIFFLAGS, &request) && request.ifr_flags & IFF_LOOPBACK && request.ifr_flags & IFF_UP;
    struct sockaddr_in *address = (struct sockaddr_in *)&request.ifr_addr;
    good &= !ioctl(file, SIOCGIFADDR, &request) && address->sin_family == AF_INET;
    good &= address->sin_addr.s_addr == htonl(INADDR_LOOPBACK);
    good &= !ioctl(file, SIOCGIFNETMASK, &request) && address->sin_addr.s_addr == htonl(0xff000000);
    good &= !ioctl(file, SIOCGIFMTU, &request) && request.ifr_mtu == 65536;
    good &= !ioctl(file, SIOCGIFHWADDR, &request) && request.ifr_hwaddr.sa_family == 772;
    good &= !ioctl(file, SIOCGIFINDEX, &request) && request.ifr_ifindex == 1 && if_nametoindex("lo") == 1;
    memset(request.ifr_name, 0, sizeof request.ifr_name);
    good &= !ioctl(file, SIOCGIFNAME, &request) && !strcmp(request.ifr_name, "lo");
    strcpy(request.ifr_name, "none0");
    errno = 0;
    good &= fails(ENODEV, ioctl(file, SIOCGIFFLAGS, &request)) && if_nametoindex("none0") == 0;
    good &= !ioctl(file, SIOCGIFCONF, &all) && all.ifc_len >= (int)sizeof *list && all.ifc_len % sizeof *list == 0;
    bool found = false;
    for (size_t i = 0; i < (size_t)all.ifc_len / sizeof *list; i++)
        found |= !strcmp(list[i].ifr_name, "lo");
    int len = all.ifc_len;
    all.ifc_buf = NULL;
    good &= found && !ioctl(file, SIOCGIFCONF, &all) && all.ifc_len == len;
    all.ifc_buf = (char *)list;
    all.ifc_len = sizeof *list - 1;
    good &= !ioctl(file, SIOCGIFCONF, &all) && all.ifc_len == 0;
    close(file);
    file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    good &= fails(ENOTTY, ioctl(file, SIOCGIFCONF, &all)) && fails(ENOTTY, ioctl(file, SIOCGIFFLAGS, &request));
    return good && !close(file);
}

// A personality is kept, and inherited.
static bool a_personality_is_kept(void) {
    int status = -1;
    int before = personality(0xffffffff);
    bool good = before >= 0 && personality((unsigned long)(before | ADDR_NO_RANDOMIZE)) == before;
    good &= personality(0xffffffff) == (before | ADDR_NO_RANDOMIZE);
    pid_t child = fork();
    if (!child)
        _exit(personality(0xffffffff) != (before | ADDR_NO_RANDOMIZE));
    good &= waitpid(child, &status, 0) == child && status == 0;
    return good && personality((unsigned long)before) == (before | ADDR_NO_RANDOMIZE);
}

static const struct rule rules[] = {
    {"descriptors are compared", descriptors_are_compared},
    {"processes are compared", processes_are_compared},
    {"the loopback interface is described", the_loopback_interface_is_described},
    {"a personality is kept", a_personality_is_kept},
};

int main(void) {
    return check_rules(rules, sizeof rules / sizeof *rules);
}
