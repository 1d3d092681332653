// beside [TIMES]: measures a program's calls beside another program's load, in nanoseconds.
//
// One process has three threads that each mprotect memory of their own in a loop, or only compute.
// Beside it
//
// ftruncate  another process cuts a page off its private memfd, TIMES (200)
// fork       the process with the threads forks, a tenth as often; "alone" has their memory, but
//            not the threads
//
// all of it beside 1, 100 and 1,000 other processes, which sleep. Prints medians, means and maxima.
#include "common.h"
#include <pthread.h>
#include <sys/resource.h>

enum { THREADS = 3, LENGTH = 16 << 20 };

static long times;

static void *compute(void *memory) {
    for (volatile uint64_t i = 0;; i++)
        continue;
    return memory;
}

static void *protect(void *memory) {
    for (;;)
        if (mprotect(memory, LENGTH, PROT_READ) || mprotect(memory, LENGTH, PROT_READ | PROT_WRITE))
            die("mprotect");
    return memory;
}

static void start_threads(void *(*work)(void *)) {
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        // Each case has the same memory: a fork costs by the memory.
        char *memory = map_aligned(LENGTH);
        touch(memory, LENGTH, 1);
        if (work && pthread_create(&thread, NULL, work, memory))
            die("a thread");
    }
    usleep(500000);
}

static uint64_t measure_ftruncate(void) {
    static int file = -1;
    if (file < 0 && (file = memfd_create("beside", 0)) < 0)
        die("memfd_create");
    if (ftruncate(file, 2 * PAGE) || pwrite(file, "", 1, PAGE) != 1)
        die("a page of the file");
    uint64_t start = now_ns();
    if (ftruncate(file, PAGE))
        die("ftruncate");
    return now_ns() - start;
}

static uint64_t measure_fork(void) {
    uint64_t start = now_ns();
    pid_t child = fork();
    uint64_t end = now_ns();
    if (!child)
        _exit(0);
    if (child < 0 || waitpid(child, NULL, 0) != child)
        die("fork");
    return end - start;
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void report(const char *call, const char *threads, long others, uint64_t (*measure)(void), long count) {
    uint64_t *took = calloc((size_t)count, sizeof *took), sum = 0;
    if (!took)
        die("memory for the times");
    for (long i = 0; i < count; i++)
        sum += took[i] = measure();
    qsort(took, (size_t)count, sizeof *took, ascending);
    printf("{\"call\":\"%s\",\"threads\":\"%s\",\"others\":%ld,\"median\":%llu,\"mean\":%llu,\"worst\":%llu}\n", call, threads,
           others, (unsigned long long)took[count / 2], (unsigned long long)(sum / (uint64_t)count),
           (unsigned long long)took[count - 1]);
    fflush(stdout);
    free(took);
}

static pid_t start_process(void *(*work)(void *), int go[2]) {
    pid_t process = fork();
    if (process < 0)
        die("fork");
    if (process)
        return process;
    start_threads(work);
    if (write(go[1], "", 1) != 1)
        die("a pipe");
    for (;;)
        pause();
}

static void beside(void *(*work)(void *), const char *threads, long others) {
    int go[2];
    char byte;
    if (pipe(go))
        die("pipe");
    pid_t process = start_process(work, go);
    if (read(go[0], &byte, 1) != 1)
        die("the process with the threads");
    report("ftruncate", threads, others, measure_ftruncate, times);
    kill(process, SIGKILL);
    waitpid(process, NULL, 0);
    close(go[0]);
    close(go[1]);
}

static void fork_beside(void *(*work)(void *), const char *threads, long others) {
    pid_t process = fork();
    if (process < 0)
        die("fork");
    if (!process) {
        start_threads(work);
        report("fork", threads, others, measure_fork, times > 10 ? times / 10 : 1);
        _exit(0);
    }
    int status;
    if (waitpid(process, &status, 0) != process || status)
        die("the process that forks");
}

static void sleep_beside(long count) {
    while (count--) {
        pid_t child = fork();
        if (child < 0)
            die("the other processes");
        if (!child)
            signal(SIGTERM, SIG_DFL);
        for (; !child;)
            pause();
    }
}

int main(int argc, char **argv) {
    static const long others[] = {1, 100, 1000};
    times = argument(argc, argv, 1, 200);
    // One signal to the group ends the processes that sleep.
    setpgid(0, 0);
    signal(SIGTERM, SIG_IGN);
    long asleep = 0;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        sleep_beside(others[i] - asleep);
        asleep = others[i];
        beside(compute, "compute", others[i]);
        beside(protect, "mprotect", others[i]);
        fork_beside(NULL, "alone", others[i]);
        fork_beside(compute, "compute", others[i]);
        fork_beside(protect, "mprotect", others[i]);
    }
    kill(0, SIGTERM);
    while (wait(NULL) > 0)
        continue;
    return 0;
}
