// seccomp: filters of system calls. Prints a row for each rule; the status is 1 if one is broken.
// The rules hold on Linux.
#include "common.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <ucontext.h>

#ifdef __x86_64__
#define OWN_ARCH AUDIT_ARCH_X86_64
#else
#define OWN_ARCH AUDIT_ARCH_AARCH64
#endif

#define FIELD(name) offsetof(struct seccomp_data, name)
#define LOAD(name) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FIELD(name))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)
// Returns an action for one call, and permits the others.
#define ACTION_FOR(call, action) \
    LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), RETURN(action), RETURN(SECCOMP_RET_ALLOW)

static long install_of(unsigned flags, struct sock_filter *filter, size_t count) {
    struct sock_fprog program = {(unsigned short)count, filter};
    errno = 0;
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

#define INSTALL(flags, ...) \
    ({ \
        struct sock_filter filter_[] = {__VA_ARGS__}; \
        install_of(flags, filter_, sizeof filter_ / sizeof *filter_); \
    })

// Calls `body` in a child. Returns whether the child exits with status 0 or, if `signal` is not 0,
// is killed by that signal.
static bool in_child(bool (*body)(void), int signal) {
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        bool good = body();
        syscall(SYS_exit_group, good ? 0 : 1);
    }
    waitpid(child, &status, 0);
    return signal ? WIFSIGNALED(status) && WTERMSIG(status) == signal : WIFEXITED(status) && !WEXITSTATUS(status);
}

static bool fails_with(long call, int error) {
    errno = 0;
    return syscall(call, 0, 0, 0, 0, 0, 0) == -1 && errno == error;
}

static bool errors_body(void) {
    bool good = !INSTALL(0, ACTION_FOR(SYS_getppid, SECCOMP_RET_ERRNO | 77)) && fails_with(SYS_getppid, 77);
    // The strictest of several filters counts, and of equal ones the newest.
    good &= !INSTALL(0, ACTION_FOR(SYS_getppid, SECCOMP_RET_ERRNO | 78)) && fails_with(SYS_getppid, 78);
    good &= !INSTALL(0, ACTION_FOR(SYS_getppid, SECCOMP_RET_LOG)) && fails_with(SYS_getppid, 78);
    // An error of 0 is a success, and one that is too large the largest.
    good &= !INSTALL(0, ACTION_FOR(SYS_sched_yield, SECCOMP_RET_ERRNO)) && syscall(SYS_sched_yield) == 0;
    good &= !INSTALL(0, ACTION_FOR(SYS_getuid, SECCOMP_RET_ERRNO | 5000)) && fails_with(SYS_getuid, 4095);
    good &= !INSTALL(0, ACTION_FOR(SYS_geteuid, SECCOMP_RET_TRACE)) && fails_with(SYS_geteuid, ENOSYS);
    good &= !INSTALL(0, ACTION_FOR(SYS_getgid, SECCOMP_RET_ERRNO | EINTR)) && fails_with(SYS_getgid, EINTR);
    good &= !INSTALL(SECCOMP_FILTER_FLAG_LOG | SECCOMP_FILTER_FLAG_SPEC_ALLOW,
                     ACTION_FOR(SYS_getegid, SECCOMP_RET_LOG));
    good &= syscall(SYS_getegid) >= 0 && prctl(PR_GET_SECCOMP) == SECCOMP_MODE_FILTER;
    return good && figure("/proc/self/status", "Seccomp") == 2 && figure("/proc/self/status", "Seccomp_filters") == 8;
}

// A filter lets calls fail. The strictest of all filters counts.
static bool calls_fail_with_an_error(void) {
    return figure("/proc/self/status", "Seccomp") == 0 && prctl(PR_GET_SECCOMP) == 0 && in_child(errors_body, 0);
}

static bool arguments_body(void) {
    // Refuses getpriority(0x1_00000002, …), by both halves of the argument, and other architectures.
    bool good = !INSTALL(0, LOAD(arch), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OWN_ARCH, 1, 0), RETURN(SECCOMP_RET_KILL),
                         LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpriority, 0, 5), LOAD(args[1]),
                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 2, 0, 3),
                         BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FIELD(args[1]) + 4),
                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 1), RETURN(SECCOMP_RET_ERRNO | 99),
                         RETURN(SECCOMP_RET_ALLOW));
    errno = 0;
    good &= syscall(SYS_getpriority, 0, 0x100000002) == -1 && errno == 99;
    errno = 0;
    return good && syscall(SYS_getpriority, 99, 0x200000002) == -1 && errno == EINVAL;
}

static bool filters_read_arguments(void) {
    return in_child(arguments_body, 0);
}

static bool arithmetic_body(void) {
    // Errors that a program computes: by its memory and X, and 0 for a division by X = 0.
    bool good = !INSTALL(0, LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 1, 0), RETURN(SECCOMP_RET_ALLOW),
                         LOAD(args[0]), BPF_STMT(BPF_ST, 15), BPF_STMT(BPF_LDX | BPF_W | BPF_IMM, 7),
                         BPF_STMT(BPF_ALU | BPF_MUL | BPF_X, 0), BPF_STMT(BPF_MISC | BPF_TAX, 0),
                         BPF_STMT(BPF_LD | BPF_MEM, 15), BPF_STMT(BPF_ALU | BPF_ADD | BPF_X, 0),
                         BPF_STMT(BPF_ALU | BPF_OR | BPF_K, SECCOMP_RET_ERRNO), BPF_STMT(BPF_RET | BPF_A, 0));
    errno = 0;
    good &= syscall(SYS_getppid, 3) == -1 && errno == 24;
    errno = 0;
    return good && syscall(SYS_getppid, 5) == -1 && errno == 40;
}

static bool division_body(void) {
    INSTALL(0, LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 1, 0), RETURN(SECCOMP_RET_ALLOW),
            BPF_STMT(BPF_LDX | BPF_W | BPF_IMM, 0), BPF_STMT(BPF_ALU | BPF_DIV | BPF_X, 0), RETURN(SECCOMP_RET_ALLOW));
    syscall(SYS_getppid);
    return false;
}

static bool filters_compute(void) {
    return in_child(arithmetic_body, 0) && in_child(division_body, SIGSYS);
}

static volatile sig_atomic_t trapped;
static siginfo_t caught;
static long before_handler;

static void on_trap(int signal, siginfo_t *info, void *context) {
    ucontext_t *at = context;
    trapped += signal;
    caught = *info;
#ifdef __x86_64__
    before_handler = at->uc_mcontext.gregs[REG_RAX];
    at->uc_mcontext.gregs[REG_RAX] = 1234;
#else
    before_handler = (long)at->uc_mcontext.regs[8];
    at->uc_mcontext.regs[0] = 1234;
#endif
}

static bool trap_body(void) {
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &action, NULL);
    bool good = !INSTALL(0, ACTION_FOR(SYS_getppid, SECCOMP_RET_TRAP | 55)) && syscall(SYS_getppid) == 1234;
    good &= trapped == SIGSYS && caught.si_signo == SIGSYS && caught.si_code == 1 && caught.si_errno == 55;
    good &= caught.si_syscall == SYS_getppid && caught.si_arch == OWN_ARCH && before_handler == SYS_getppid;
    // The address is that behind the instruction.
    const unsigned char *behind = caught.si_call_addr;
#ifdef __x86_64__
    good &= behind[-2] == 0x0f && behind[-1] == 0x05;
#else
    good &= behind[-4] == 0x01 && behind[-1] == 0xd4;
#endif
    return good;
}

static bool blocked_trap_body(void) {
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &action, NULL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGSYS);
    sigprocmask(SIG_BLOCK, &set, NULL);
    INSTALL(0, ACTION_FOR(SYS_getppid, SECCOMP_RET_TRAP));
    syscall(SYS_getppid);
    return false;
}

static bool unhandled_trap_body(void) {
    INSTALL(0, ACTION_FOR(SYS_getppid, SECCOMP_RET_TRAP));
    syscall(SYS_getppid);
    return false;
}

static bool traps_are_signals(void) {
    return in_child(trap_body, 0) && in_child(blocked_trap_body, SIGSYS) && in_child(unhandled_trap_body, SIGSYS);
}

static void *calls_getppid(void *unused) {
    (void)unused;
    syscall(SYS_getppid);
    return NULL;
}

static void *kills_itself(void *unused) {
    (void)unused;
    INSTALL(0, ACTION_FOR(SYS_getppid, SECCOMP_RET_KILL_THREAD));
    syscall(SYS_getppid);
    syscall(SYS_exit_group, 9);
    return NULL;
}

static bool kill_thread_body(void) {
    pthread_t other;
    // The main thread goes on, without a filter.
    bool good = !pthread_create(&other, NULL, kills_itself, NULL);
    for (int i = 0; i < 1000 && figure("/proc/self/status", "Threads") > 1; i++)
        usleep(5000);
    return good && figure("/proc/self/status", "Threads") == 1 && prctl(PR_GET_SECCOMP) == 0;
}

static bool kill_last_thread_body(void) {
    INSTALL(0, ACTION_FOR(SYS_getppid, SECCOMP_RET_KILL_THREAD));
    syscall(SYS_getppid);
    return false;
}

static bool kill_process_body(void) {
    pthread_t other;
    INSTALL(0, ACTION_FOR(SYS_getppid, SECCOMP_RET_KILL_PROCESS));
    pthread_create(&other, NULL, calls_getppid, NULL);
    pthread_join(other, NULL);
    return false;
}

static bool unknown_action_body(void) {
    INSTALL(0, ACTION_FOR(SYS_getppid, 0x00020000));
    syscall(SYS_getppid);
    return false;
}

// An action ends a thread or the whole process.
static bool threads_and_processes_are_killed(void) {
    return in_child(kill_thread_body, 0) && in_child(kill_last_thread_body, SIGSYS) &&
           in_child(kill_process_body, SIGSYS) && in_child(unknown_action_body, SIGSYS);
}

static bool strict_body(void) {
    char byte;
    int ends[2];
    bool good = !pipe(ends) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    good &= write(ends[1], "x", 1) == 1 && read(ends[0], &byte, 1) == 1;
    syscall(SYS_exit, good ? 0 : 1);
    return false;
}

static bool strict_call_body(void) {
    syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL);
    syscall(SYS_getppid);
    return false;
}

static bool strict_mode_permits_four_calls(void) {
    return in_child(strict_body, 0) && in_child(strict_call_body, SIGKILL);
}

static bool exec_body(void) {
    INSTALL(0, ACTION_FOR(SYS_getppid, SECCOMP_RET_ERRNO | 66));
    execl("/proc/self/exe", "seccomp", "getppid", NULL);
    return false;
}

static bool fork_body(void) {
    int status = -1;
    bool good = !INSTALL(0, ACTION_FOR(SYS_getppid, SECCOMP_RET_ERRNO | 67));
    pid_t child = fork();
    if (!child)
        syscall(SYS_exit_group, !fails_with(SYS_getppid, 67));
    return good && waitpid(child, &status, 0) == child && status == 0;
}

static bool filters_are_inherited_and_kept(void) {
    return in_child(fork_body, 0) && in_child(exec_body, 0);
}

static int turn;
static long seen[3];

static void wait_for(int wanted) {
    while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) < wanted)
        usleep(1000);
}

static void *waits_for_filter(void *at) {
    __atomic_add_fetch(&turn, 1, __ATOMIC_RELEASE);
    wait_for(3);
    errno = 0;
    *(long *)at = syscall(SYS_getppid) == -1 ? errno : 0;
    return NULL;
}

static void *has_its_own(void *unused) {
    INSTALL(0, ACTION_FOR(SYS_getpgid, SECCOMP_RET_ERRNO | 1));
    __atomic_store_n((pid_t *)unused, gettid(), __ATOMIC_RELEASE);
    wait_for(4);
    return NULL;
}

static bool synchronised_body(void) {
    pthread_t others[3];
    static pid_t number;
    bool good = true;
    for (int i = 0; i < 2; i++)
        good &= !pthread_create(&others[i], NULL, waits_for_filter, &seen[i]);
    wait_for(2);
    good &= !INSTALL(0, ACTION_FOR(SYS_getpgid, SECCOMP_RET_ERRNO | 2));
    good &= !INSTALL(SECCOMP_FILTER_FLAG_TSYNC, ACTION_FOR(SYS_getppid, SECCOMP_RET_ERRNO | 68));
    // A thread with a filter of its own can't follow, and nothing changes.
    good &= !pthread_create(&others[2], NULL, has_its_own, &number);
    while (!__atomic_load_n(&number, __ATOMIC_ACQUIRE))
        usleep(1000);
    good &= INSTALL(SECCOMP_FILTER_FLAG_TSYNC, ACTION_FOR(SYS_getppid, SECCOMP_RET_ERRNO | 70)) == number;
    good &= INSTALL(SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_TSYNC_ESRCH, RETURN(SECCOMP_RET_ALLOW)) == -1;
    good &= errno == ESRCH && figure("/proc/self/status", "Seccomp_filters") == 2;
    __atomic_store_n(&turn, 4, __ATOMIC_RELEASE);
    for (int i = 0; i < 3; i++)
        pthread_join(others[i], NULL);
    return good && seen[0] == 68 && seen[1] == 68 && fails_with(SYS_getppid, 68);
}

static bool threads_get_a_filter_together(void) {
    return in_child(synchronised_body, 0);
}

static bool privileges_body(void) {
    bool good = getuid() || !setuid(1000);
    good &= INSTALL(0, RETURN(SECCOMP_RET_ALLOW)) == -1 && errno == EACCES;
    errno = 0;
    struct sock_filter allow = RETURN(SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &allow};
    good &= prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == -1 && errno == EACCES;
    good &= !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    return good && figure("/proc/self/status", "NoNewPrivs") == 1;
}

static bool a_filter_needs_a_privilege_or_none_for_ever(void) {
    return in_child(privileges_body, 0);
}

static bool is_refused(struct sock_filter *filter, size_t count) {
    return install_of(0, filter, count) == -1 && errno == EINVAL;
}

#define REFUSED(...) \
    ({ \
        struct sock_filter filter_[] = {__VA_ARGS__}; \
        is_refused(filter_, sizeof filter_ / sizeof *filter_); \
    })

// A program of another form, or that may go wrong, is refused.
static bool wrong_programs_are_refused(void) {
    static struct sock_filter many[4097];
    struct sock_filter end = RETURN(SECCOMP_RET_ALLOW);
    for (int i = 0; i < 4097; i++)
        many[i] = end;
    bool good = is_refused(many, 0) && is_refused(many, 4097);
    good &= REFUSED(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 64), end) && REFUSED(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 2), end);
    good &= REFUSED(BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 0), end) && REFUSED(BPF_STMT(BPF_LD | BPF_W | BPF_IND, 0), end);
    good &= REFUSED(BPF_STMT(BPF_ALU | BPF_DIV | BPF_K, 0), end);
    good &= REFUSED(BPF_STMT(BPF_ALU | BPF_LSH | BPF_K, 32), end);
    good &= REFUSED(BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, 3), end) && REFUSED(BPF_STMT(BPF_JMP | BPF_JA, 1), end);
    good &= REFUSED(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0), end) && REFUSED(BPF_STMT(BPF_MISC | BPF_TAX, 0));
    good &= REFUSED(BPF_STMT(BPF_LD | BPF_MEM, 0), end) && REFUSED(BPF_STMT(BPF_ST, 16), end);
    return good && REFUSED(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
                           BPF_STMT(BPF_ST, 0), BPF_STMT(BPF_LD | BPF_MEM, 0), end);
}

static bool long_chain_body(void) {
    static struct sock_filter many[4096];
    struct sock_filter end = RETURN(SECCOMP_RET_ALLOW);
    for (int i = 0; i < 4096; i++)
        many[i] = end;
    int installed = 0;
    while (!install_of(0, many, 4096))
        installed++;
    // Linux rewrites programs, so that they may become shorter or longer.
    return errno == ENOMEM && installed >= 3 && installed < 100;
}

static bool a_chain_ends_somewhere(void) {
    return in_child(long_chain_body, 0);
}

static bool wrong_requests_are_refused(void) {
    static volatile uintptr_t nowhere = 8;
    uint32_t actions[] = {SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_KILL_THREAD, SECCOMP_RET_TRAP, SECCOMP_RET_ERRNO,
                          SECCOMP_RET_TRACE, SECCOMP_RET_LOG, SECCOMP_RET_ALLOW};
    struct seccomp_notif_sizes sizes;
    bool good = !syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes) && sizes.seccomp_data == 64;
    good &= sizes.seccomp_notif == 80 && sizes.seccomp_notif_resp == 24;
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        good &= !syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &actions[i]);
    uint32_t unknown = 0x00020000;
    errno = 0;
    good &= syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &unknown) == -1 && errno == EOPNOTSUPP;
    errno = 0;
    good &= syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 1, &unknown) == -1 && errno == EINVAL;
    errno = 0;
    good &= syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, nowhere) == -1 && errno == EFAULT;
    errno = 0;
    good &= syscall(SYS_seccomp, 99, 0, 0) == -1 && errno == EINVAL;
    errno = 0;
    good &= syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, 0) == -1 && errno == EINVAL;
    errno = 0;
    good &= syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, &unknown) == -1 && errno == EINVAL;
    errno = 0;
    good &= syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0x8000, &unknown) == -1 && errno == EINVAL;
    errno = 0;
    good &= syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, nowhere) == -1 && errno == EFAULT;
    errno = 0;
    good &= install_of(0, (void *)nowhere, 1) == -1 && errno == EFAULT;
    errno = 0;
    return good && prctl(PR_SET_SECCOMP, 9, 0) == -1 && errno == EINVAL;
}

static const struct rule rules[] = {
    {"calls fail with an error", calls_fail_with_an_error},
    {"filters read arguments", filters_read_arguments},
    {"filters compute", filters_compute},
    {"traps are signals", traps_are_signals},
    {"threads and processes are killed", threads_and_processes_are_killed},
    {"strict mode permits four calls", strict_mode_permits_four_calls},
    {"filters are inherited and kept", filters_are_inherited_and_kept},
    {"threads get a filter together", threads_get_a_filter_together},
    {"a filter needs a privilege, or none for ever", a_filter_needs_a_privilege_or_none_for_ever},
    {"wrong programs are refused", wrong_programs_are_refused},
    {"a chain ends somewhere", a_chain_ends_somewhere},
    {"wrong requests are refused", wrong_requests_are_refused},
};

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "getppid"))
        return !fails_with(SYS_getppid, 66);
    return check_rules(rules, sizeof rules / sizeof *rules);
}
