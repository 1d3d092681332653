// ptrace: processes that trace others. Prints a row for each rule; the status is 1 if one is broken.
// The rules hold on Linux.
#include "common.h"
#include <elf.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>

#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif
// `struct ptrace_syscall_info` of the kernel, of which the C library has other names.
struct call_info {
    uint8_t kind, reserved;
    uint16_t flags;
    uint32_t arch;
    uint64_t pc, sp, number, arguments[6];
    uint32_t data;
};
enum { NONE, ENTRY, EXIT };
#define GET_CALL_INFO 0x420e

#ifdef __x86_64__
typedef struct user_regs_struct registers;
#define PC(r) ((r).rip)
#define ANSWER(r) ((r).rax)
#define FLOATING struct user_fpregs_struct
#define BREAKPOINT "\xcc"
#define AFTER_BREAKPOINT 1
#else
typedef struct user_regs_struct registers;
#define PC(r) ((r).pc)
#define ANSWER(r) ((r).regs[0])
#define FLOATING struct user_fpsimd_struct
#define BREAKPOINT "\x00\x00\x20\xd4"
#define AFTER_BREAKPOINT 0
#endif

static long trace(long request, pid_t pid, uintptr_t address, uintptr_t data) {
    errno = 0;
    return syscall(SYS_ptrace, request, pid, address, data);
}

static bool fails(int error, long result) {
    return result == -1 && errno == error;
}

// Waits for a thread's next change. Returns the status, or −1.
static int next(pid_t pid) {
    int status = -1;
    return waitpid(pid, &status, __WALL) == pid ? status : -1;
}

static bool stopped_by(int status, int signal) {
    return WIFSTOPPED(status) && status >> 8 == signal;
}

static bool event(int status, int signal, int event) {
    return WIFSTOPPED(status) && status >> 8 == (signal | event << 8);
}

static bool exited(int status, int value) {
    return WIFEXITED(status) && WEXITSTATUS(status) == value;
}

static long get(pid_t pid, registers *into) {
    struct iovec set = {into, sizeof *into};
    return trace(PTRACE_GETREGSET, pid, NT_PRSTATUS, (uintptr_t)&set);
}

static long put(pid_t pid, registers *from) {
    struct iovec set = {from, sizeof *from};
    return trace(PTRACE_SETREGSET, pid, NT_PRSTATUS, (uintptr_t)&set);
}

// Starts a child that is traced from the beginning, and is stopped.
static pid_t start(void (*work)(void)) {
    pid_t child = fork();
    if (!child) {
        if (trace(PTRACE_TRACEME, 0, 0, 0))
            _exit(99);
        raise(SIGSTOP);
        work();
        _exit(7);
    }
    return stopped_by(next(child), SIGSTOP) ? child : -1;
}

static void nothing(void) {}

static void call_getppid(void) {
    syscall(SYS_getppid);
}

// Each call stops the thread where it begins and where it ends, and says which one it is.
static bool calls_are_seen(void) {
    struct call_info info;
    pid_t child = start(call_getppid);
    bool good = child > 0 && !trace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD);
    good &= trace(GET_CALL_INFO, child, sizeof info, (uintptr_t)&info) == 24 && info.kind == NONE;
    bool seen = false;
    for (int i = 0; i < 50 && good; i++) {
        unsigned long message = 0;
        good &= !trace(PTRACE_SYSCALL, child, 0, 0);
        int status = next(child);
        if (!stopped_by(status, SIGTRAP | 0x80)) {
            good &= WIFEXITED(status);
            break;
        }
        good &= trace(GET_CALL_INFO, child, sizeof info, (uintptr_t)&info) == 80 && info.kind == ENTRY;
        good &= !trace(PTRACE_GETEVENTMSG, child, 0, (uintptr_t)&message) && message == 1;
        if (info.number == SYS_exit_group) {
            good &= info.arguments[0] == 7 && !trace(PTRACE_SYSCALL, child, 0, 0) && exited(next(child), 7);
            return good && seen;
        }
        bool ours = info.number == SYS_getppid;
        registers r;
        good &= !get(child, &r) && PC(r) == info.pc;
        good &= !trace(PTRACE_SYSCALL, child, 0, 0) && stopped_by(next(child), SIGTRAP | 0x80);
        good &= trace(GET_CALL_INFO, child, sizeof info, (uintptr_t)&info) == 33 && info.kind == EXIT;
        good &= !trace(PTRACE_GETEVENTMSG, child, 0, (uintptr_t)&message) && message == 2;
        if (ours) {
            good &= info.number == (uint64_t)getpid() && !get(child, &r) && ANSWER(r) == (uint64_t)getpid();
            seen = true;
        }
    }
    return false;
}

static void answer_of_getppid(void) {
    _exit(syscall(SYS_getppid) == 42 ? 5 : 6);
}

// A tracer may change what a call returns.
static bool answers_may_be_changed(void) {
    struct call_info info;
    pid_t child = start(answer_of_getppid);
    bool good = child > 0 && !trace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD);
    for (int i = 0; i < 20 && good; i++) {
        good &= !trace(PTRACE_SYSCALL, child, 0, 0) && stopped_by(next(child), SIGTRAP | 0x80);
        good &= trace(GET_CALL_INFO, child, sizeof info, (uintptr_t)&info) == 80;
        if (info.number != SYS_getppid) {
            good &= !trace(PTRACE_SYSCALL, child, 0, 0) && stopped_by(next(child), SIGTRAP | 0x80);
            continue;
        }
        registers r;
        good &= !trace(PTRACE_SYSCALL, child, 0, 0) && stopped_by(next(child), SIGTRAP | 0x80) && !get(child, &r);
        ANSWER(r) = 42;
        return good && !put(child, &r) && !trace(PTRACE_CONT, child, 0, 0) && exited(next(child), 5);
    }
    return false;
}

static volatile sig_atomic_t handled;

static void on_signal(int signal) {
    handled = signal;
}

static void take_signals(void) {
    signal(SIGUSR1, on_signal);
    signal(SIGUSR2, on_signal);
    raise(SIGUSR1);
    int first = handled;
    handled = 0;
    raise(SIGUSR1);
    int second = handled;
    raise(SIGUSR1);
    _exit(first == SIGUSR1 && !second && handled == SIGUSR2 ? 3 : 4);
}

// A signal stops the thread before it is taken; the tracer passes it on, drops it, or sends another.
static bool signals_pass_the_tracer(void) {
    siginfo_t info;
    pid_t child = start(take_signals);
    bool good = child > 0 && !trace(PTRACE_CONT, child, 0, 0) && stopped_by(next(child), SIGUSR1);
    good &= !trace(PTRACE_GETSIGINFO, child, 0, (uintptr_t)&info) && info.si_signo == SIGUSR1;
    good &= info.si_pid == child && info.si_code == SI_TKILL;
    good &= !trace(PTRACE_CONT, child, 0, SIGUSR1) && stopped_by(next(child), SIGUSR1);
    good &= !trace(PTRACE_CONT, child, 0, 0) && stopped_by(next(child), SIGUSR1);
    good &= fails(EIO, trace(PTRACE_CONT, child, 0, 65));
    return good && !trace(PTRACE_CONT, child, 0, SIGUSR2) && exited(next(child), 3);
}

static volatile long word = 11;

static void read_word(void) {
    raise(SIGUSR1);
    _exit((int)word);
}

__attribute__((noinline)) static int seven(void) {
    __asm__ volatile("");
    return 7;
}

static int (*volatile call)(void) = seven;

static void call_seven(void) {
    _exit(call());
}

// A tracer reads and writes memory, also where the program itself can't.
static bool memory_is_read_and_written(void) {
    pid_t child = start(read_word);
    long seen = 0;
    bool good = child > 0 && !trace(PTRACE_PEEKDATA, child, (uintptr_t)&word, (uintptr_t)&seen) && seen == 11;
    good &= !trace(PTRACE_POKEDATA, child, (uintptr_t)&word, 12);
    good &= fails(EIO, trace(PTRACE_PEEKDATA, child, 8, (uintptr_t)&seen));
    good &= fails(EIO, trace(PTRACE_POKEDATA, child, 8, 0));
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", child);
    int memory = open(path, O_RDWR | O_CLOEXEC);
    long next_word = 13;
    good &= pread(memory, &seen, sizeof seen, (off_t)(uintptr_t)&word) == sizeof seen && seen == 12;
    good &= pwrite(memory, &next_word, sizeof next_word, (off_t)(uintptr_t)&word) == sizeof next_word;
    // The program's text is not writable.
    good &= pread(memory, &seen, sizeof seen, (off_t)(uintptr_t)seven) == sizeof seen;
    good &= !memcmp(&seen, (void *)(uintptr_t)seven, sizeof seen);
    good &= pwrite(memory, &seen, sizeof seen, (off_t)(uintptr_t)seven) == sizeof seen;
    close(memory);
    return good && !trace(PTRACE_CONT, child, 0, 0) && stopped_by(next(child), SIGUSR1) &&
           !trace(PTRACE_CONT, child, 0, 0) && exited(next(child), 13) && word == 11;
}

// A breakpoint in a program's text stops the thread, and is seen by no other process.
static bool breakpoints_are_private(void) {
    pid_t child = start(call_seven);
    uintptr_t at = (uintptr_t)seven;
    long before = 0, with = 0;
    registers r;
    siginfo_t info;
    bool good = child > 0 && !trace(PTRACE_PEEKTEXT, child, at, (uintptr_t)&before);
    with = before;
    memcpy(&with, BREAKPOINT, sizeof BREAKPOINT - 1);
    good &= !trace(PTRACE_POKETEXT, child, at, (uintptr_t)with) && seven() == 7;
    good &= !trace(PTRACE_CONT, child, 0, 0) && stopped_by(next(child), SIGTRAP) && !get(child, &r);
    good &= PC(r) == at + AFTER_BREAKPOINT && !trace(PTRACE_GETSIGINFO, child, 0, (uintptr_t)&info);
    good &= info.si_signo == SIGTRAP && info.si_code > 0;
    good &= !trace(PTRACE_POKETEXT, child, at, (uintptr_t)before);
    PC(r) = at;
    return good && !put(child, &r) && !trace(PTRACE_CONT, child, 0, 0) && exited(next(child), 7);
}

// A step executes one instruction, also one that makes a call.
static bool steps_are_single(void) {
    pid_t child = start(call_getppid);
    registers r;
    bool good = child > 0 && !get(child, &r);
    uint64_t last = PC(r);
    int count = 0, moved = 0;
    for (; good && count < 20; count++) {
        siginfo_t info;
        good &= !trace(PTRACE_SINGLESTEP, child, 0, 0) && stopped_by(next(child), SIGTRAP) && !get(child, &r);
        good &= !trace(PTRACE_GETSIGINFO, child, 0, (uintptr_t)&info);
        // At the end of a call the code depends on the architecture.
        good &= info.si_code == TRAP_TRACE || info.si_code == TRAP_BRKPT || info.si_code == SI_USER;
        moved += PC(r) != last;
        last = PC(r);
#ifdef __x86_64__
        good &= !(r.eflags & 0x100);
#endif
    }
    return good && count == moved && !trace(PTRACE_CONT, child, 0, 0) && exited(next(child), 7);
}

static void fork_and_wait(void) {
    int status;
    pid_t child = fork();
    if (!child)
        _exit(1);
    waitpid(child, &status, 0);
}

// A tracer that wants it traces the children, too, and is told of executed programs and of the end.
static bool events_are_told(void) {
    pid_t child = start(fork_and_wait);
    unsigned long message = 0;
    long options = PTRACE_O_TRACEFORK | PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL;
    bool good = child > 0 && !trace(PTRACE_SETOPTIONS, child, 0, (uintptr_t)options);
    good &= fails(EINVAL, trace(PTRACE_SETOPTIONS, child, 0, 0x1000));
    good &= !trace(PTRACE_CONT, child, 0, 0) && event(next(child), SIGTRAP, PTRACE_EVENT_FORK);
    good &= !trace(PTRACE_GETEVENTMSG, child, 0, (uintptr_t)&message);
    pid_t grandchild = (pid_t)message;
    good &= stopped_by(next(grandchild), SIGSTOP) && !trace(PTRACE_CONT, grandchild, 0, 0);
    good &= event(next(grandchild), SIGTRAP, PTRACE_EVENT_EXIT);
    good &= !trace(PTRACE_GETEVENTMSG, grandchild, 0, (uintptr_t)&message) && message == 1 << 8;
    good &= !trace(PTRACE_CONT, grandchild, 0, 0) && exited(next(grandchild), 1);
    good &= !trace(PTRACE_CONT, child, 0, 0);
    int status = next(child);
    if (stopped_by(status, SIGCHLD))
        good &= !trace(PTRACE_CONT, child, 0, SIGCHLD), status = next(child);
    good &= event(status, SIGTRAP, PTRACE_EVENT_EXIT);
    return good && !trace(PTRACE_CONT, child, 0, 0) && exited(next(child), 7);
}

static void execute(void) {
    execl("/proc/self/exe", "ptrace", "exit", NULL);
}

static bool executed_programs_are_told(void) {
    pid_t child = start(execute);
    bool good = child > 0 && !trace(PTRACE_CONT, child, 0, 0) && stopped_by(next(child), SIGTRAP);
    good &= !trace(PTRACE_CONT, child, 0, 0) && exited(next(child), 9);
    child = start(execute);
    unsigned long message = 0;
    good &= !trace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACEEXEC) && !trace(PTRACE_CONT, child, 0, 0);
    good &= event(next(child), SIGTRAP, PTRACE_EVENT_EXEC);
    good &= !trace(PTRACE_GETEVENTMSG, child, 0, (uintptr_t)&message) && message == (unsigned long)child;
    return good && !trace(PTRACE_CONT, child, 0, 0) && exited(next(child), 9);
}

static void *in_thread(void *tid) {
    *(pid_t *)tid = (pid_t)syscall(SYS_gettid);
    return NULL;
}

static void make_thread(void) {
    pid_t tid = 0;
    pthread_t thread;
    if (!pthread_create(&thread, NULL, in_thread, &tid))
        pthread_join(thread, NULL);
    _exit(tid > 0 ? 8 : 9);
}

// A thread is traced like a process, and its end is told.
static bool threads_are_traced(void) {
    pid_t child = start(make_thread);
    unsigned long message = 0;
    bool good = child > 0 && !trace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACECLONE);
    good &= !trace(PTRACE_CONT, child, 0, 0) && event(next(child), SIGTRAP, PTRACE_EVENT_CLONE);
    good &= !trace(PTRACE_GETEVENTMSG, child, 0, (uintptr_t)&message);
    pid_t thread = (pid_t)message;
    good &= thread > 0 && thread != child && stopped_by(next(thread), SIGSTOP);
    good &= !trace(PTRACE_CONT, child, 0, 0) && !trace(PTRACE_CONT, thread, 0, 0);
    // The whole process may end first.
    int status = next(thread);
    good &= (exited(status, 0) || exited(status, 8)) && fails(ESRCH, trace(PTRACE_CONT, thread, 0, 0));
    return good && exited(next(child), 8);
}

static void spin(void) {
    for (;;)
        pause();
}

static char state_of(pid_t pid) {
    char path[64], line[256], state = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "State: %c", &state);
    if (file)
        fclose(file);
    return state;
}

static long tracer_of(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    return figure(path, "TracerPid");
}

static pid_t start_untraced(void (*work)(void)) {
    pid_t child = fork();
    if (!child) {
        work();
        _exit(7);
    }
    return child;
}

// A process attaches to another, which it stops by a signal, and detaches.
static bool processes_are_attached(void) {
    pid_t child = start_untraced(spin);
    bool good = fails(ESRCH, trace(PTRACE_CONT, child, 0, 0)) && tracer_of(child) == 0;
    good &= fails(EPERM, trace(PTRACE_ATTACH, getpid(), 0, 0)) && fails(ESRCH, trace(PTRACE_ATTACH, 4000000, 0, 0));
    good &= !trace(PTRACE_ATTACH, child, 0, 0) && fails(EPERM, trace(PTRACE_ATTACH, child, 0, 0));
    good &= stopped_by(next(child), SIGSTOP) && state_of(child) == 't' && tracer_of(child) == getpid();
    good &= !trace(PTRACE_DETACH, child, 0, 0) && tracer_of(child) == 0;
    good &= fails(ESRCH, trace(PTRACE_CONT, child, 0, 0)) && !kill(child, 0) && state_of(child) != 't';
    int status = 0;
    kill(child, SIGKILL);
    return good && waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

// A seized process goes on until it is interrupted; that leaves no signal behind.
static bool processes_are_seized(void) {
    pid_t child = start_untraced(spin);
    siginfo_t info;
    bool good = fails(EIO, trace(PTRACE_SEIZE, child, 1, 0)) && fails(EIO, trace(PTRACE_SEIZE, child, 0, 0x1000));
    good &= !trace(PTRACE_SEIZE, child, 0, PTRACE_O_TRACESYSGOOD);
    good &= waitpid(child, NULL, WNOHANG | __WALL) == 0 && fails(ESRCH, trace(PTRACE_CONT, child, 0, 0));
    good &= !trace(PTRACE_INTERRUPT, child, 0, 0) && event(next(child), SIGTRAP, PTRACE_EVENT_STOP);
    good &= !trace(PTRACE_GETSIGINFO, child, 0, (uintptr_t)&info) && info.si_code == (SIGTRAP | PTRACE_EVENT_STOP << 8);
    good &= !trace(PTRACE_CONT, child, 0, 0);
    // A signal that stops the process is told first as a signal, then as a stop.
    kill(child, SIGSTOP);
    good &= stopped_by(next(child), SIGSTOP) && !trace(PTRACE_CONT, child, 0, SIGSTOP);
    good &= event(next(child), SIGSTOP, PTRACE_EVENT_STOP) && !trace(PTRACE_LISTEN, child, 0, 0);
    good &= waitpid(child, NULL, WNOHANG | __WALL) == 0 && fails(ESRCH, trace(PTRACE_GETSIGINFO, child, 0, (uintptr_t)&info));
    kill(child, SIGCONT);
    good &= event(next(child), SIGTRAP, PTRACE_EVENT_STOP) && !trace(PTRACE_CONT, child, 0, 0);
    good &= stopped_by(next(child), SIGCONT) && !trace(PTRACE_CONT, child, 0, SIGCONT);
    kill(child, SIGKILL);
    int status = next(child);
    return good && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

// A stop ends when the process is killed.
static bool stops_are_killable(void) {
    pid_t child = start(nothing);
    bool good = child > 0 && !kill(child, SIGKILL);
    int status = next(child);
    good &= WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    child = start(nothing);
    good &= child > 0 && !trace(PTRACE_KILL, child, 0, 0);
    status = next(child);
    return good && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

// Processes whose tracer ends go on, or are killed where it asked for that.
static bool the_end_of_a_tracer_frees(void) {
    bool good = true;
    for (int kills = 0; kills < 2; kills++) {
        int status = 0;
        pid_t child = start_untraced(spin);
        pid_t tracer = fork();
        if (!tracer) {
            long options = kills ? PTRACE_O_EXITKILL : 0;
            if (trace(PTRACE_SEIZE, child, 0, (uintptr_t)options) || trace(PTRACE_INTERRUPT, child, 0, 0))
                _exit(1);
            _exit(!event(next(child), SIGTRAP, PTRACE_EVENT_STOP));
        }
        good &= exited(next(tracer), 0);
        if (!kills) {
            for (int i = 0; i < 1000 && state_of(child) != 'S'; i++)
                usleep(1000);
            good &= state_of(child) == 'S' && tracer_of(child) == 0;
            kill(child, SIGTERM);
        }
        good &= waitpid(child, &status, 0) == child && WIFSIGNALED(status);
        good &= WTERMSIG(status) == (kills ? SIGKILL : SIGTERM);
    }
    return good;
}

// Sleeps so long that the stops of the rule come before the end on a busy machine, too.
static void sleep_for_stops(void) {
    struct timespec time = {2, 0};
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    int result = nanosleep(&time, NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ms = (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) / 1e6;
    _exit(result == 0 && ms >= 1999 ? 2 : 3);
}

// A call that a stop interrupts goes on afterwards.
static bool interrupted_calls_go_on(void) {
    pid_t child = start_untraced(sleep_for_stops);
    bool good = !trace(PTRACE_SEIZE, child, 0, 0);
    for (int i = 0; i < 5 && good; i++) {
        usleep(5000);
        good &= !trace(PTRACE_INTERRUPT, child, 0, 0) && event(next(child), SIGTRAP, PTRACE_EVENT_STOP);
        good &= !trace(PTRACE_CONT, child, 0, 0);
    }
    return good && exited(next(child), 2);
}

// Floating-point registers are read and written.
static double set_by_tracer(void) {
    double value = 0;
#ifdef __x86_64__
    register double first __asm__("xmm0") = 1.5;
    __asm__ volatile("int3" : "+x"(first));
#else
    register double first __asm__("v0") = 1.5;
    __asm__ volatile("brk #0" : "+w"(first));
#endif
    value = first;
    return value;
}

static void check_double(void) {
    _exit(set_by_tracer() == 2.5 ? 6 : 5);
}

static bool vector_registers_are_seen(void) {
    pid_t child = start(check_double);
    FLOATING values;
    struct iovec set = {&values, sizeof values};
    double seen = 0, wanted = 2.5;
    registers r;
    bool good = child > 0 && !trace(PTRACE_CONT, child, 0, 0) && stopped_by(next(child), SIGTRAP);
    good &= !trace(PTRACE_GETREGSET, child, NT_PRFPREG, (uintptr_t)&set) && set.iov_len == sizeof values;
#ifdef __x86_64__
    void *place = values.xmm_space;
#else
    void *place = values.vregs;
    good &= !get(child, &r);
    PC(r) += 4;
    good &= !put(child, &r);
#endif
    (void)r;
    memcpy(&seen, place, sizeof seen);
    memcpy(place, &wanted, sizeof wanted);
    good &= seen == 1.5 && !trace(PTRACE_SETREGSET, child, NT_PRFPREG, (uintptr_t)&set);
    good &= fails(EINVAL, trace(PTRACE_GETREGSET, child, 0x7777, (uintptr_t)&set));
    return good && !trace(PTRACE_CONT, child, 0, 0) && exited(next(child), 6);
}

static void vfork_once(void) {
    pid_t child = vfork();
    if (!child)
        _exit(0);
}

static bool vforks_are_told(void) {
    pid_t child = start(vfork_once);
    bool good = child > 0;
    good &= !trace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACEVFORK | PTRACE_O_TRACEVFORKDONE);
    unsigned long message = 0;
    good &= !trace(PTRACE_CONT, child, 0, 0) && event(next(child), SIGTRAP, PTRACE_EVENT_VFORK);
    good &= !trace(PTRACE_GETEVENTMSG, child, 0, (uintptr_t)&message);
    pid_t grandchild = (pid_t)message;
    good &= stopped_by(next(grandchild), SIGSTOP) && !trace(PTRACE_CONT, child, 0, 0);
    good &= waitpid(child, NULL, WNOHANG | __WALL) == 0 && !trace(PTRACE_DETACH, grandchild, 0, 0);
    int status = next(child);
    good &= event(status, SIGTRAP, PTRACE_EVENT_VFORK_DONE) && !trace(PTRACE_CONT, child, 0, 0);
    status = next(child);
    if (stopped_by(status, SIGCHLD))
        good &= !trace(PTRACE_CONT, child, 0, SIGCHLD), status = next(child);
    return good && exited(status, 7);
}

// `waitid` tells a stop as one of a traced child.
static bool waitid_tells_stops(void) {
    pid_t child = start(read_word);
    siginfo_t info = {0};
    bool good = child > 0 && !trace(PTRACE_CONT, child, 0, 0);
    good &= !waitid(P_PID, (id_t)child, &info, WSTOPPED | WNOWAIT) && info.si_code == CLD_TRAPPED;
    good &= info.si_status == SIGUSR1 && info.si_pid == child && info.si_signo == SIGCHLD;
    good &= !waitid(P_ALL, 0, &info, WSTOPPED | WEXITED) && info.si_code == CLD_TRAPPED;
    return good && !trace(PTRACE_CONT, child, 0, 0) && exited(next(child), 11);
}

static const struct rule rules[] = {
    {"calls are seen", calls_are_seen},
    {"answers may be changed", answers_may_be_changed},
    {"signals pass the tracer", signals_pass_the_tracer},
    {"memory is read and written", memory_is_read_and_written},
    {"breakpoints are private", breakpoints_are_private},
    {"steps are single", steps_are_single},
    {"vector registers are seen", vector_registers_are_seen},
    {"events are told", events_are_told},
    {"executed programs are told", executed_programs_are_told},
    {"vforks are told", vforks_are_told},
    {"threads are traced", threads_are_traced},
    {"processes are attached", processes_are_attached},
    {"processes are seized", processes_are_seized},
    {"interrupted calls go on", interrupted_calls_go_on},
    {"waitid tells stops", waitid_tells_stops},
    {"stops are killable", stops_are_killable},
    {"the end of a tracer frees", the_end_of_a_tracer_frees},
};

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "exit"))
        _exit(9);
    return check_rules(rules, sizeof rules / sizeof *rules);
}
