// bomb [LIMIT [SECONDS]]: one user's processes fork as fast as they can, bounded by RLIMIT_NPROC
// alone, while a process of root forks too. Prints a row; the status is 1 if there were ever more
// processes than LIMIT, if root's forks failed, or if the bomb could not be killed.
#include "common.h"
#include <sched.h>
#include <sys/resource.h>

static struct counts {
    _Atomic long forks, refused, other;
} *counts;

__attribute__((noreturn)) static void burst(void) {
    for (;;) {
        pid_t child = fork();
        if (child == -1) {
            *(errno == EAGAIN ? &counts->refused : &counts->other) += 1;
            sched_yield();
        } else {
            counts->forks++;
        }
    }
}

int main(int argc, char **argv) {
    enum { USER = 12345 };
    long limit = argument(argc, argv, 1, 40), seconds = argument(argc, argv, 2, 2);
    if (geteuid())
        die("bomb must be run as root: the bomb is another user's");
    counts = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED)
        die("mmap");
    pid_t first = fork();
    if (!first) {
        struct rlimit most = {(rlim_t)limit, (rlim_t)limit};
        if (setpgid(0, 0) || setrlimit(RLIMIT_NPROC, &most) || setresuid(USER, USER, USER))
            _exit(2);
        burst();
    }
    // Root's process still forks, and its sleeps end about on time.
    long others = 0;
    for (long i = 0; i < 10 * seconds; i++) {
        struct timespec rest = {0, 100000000};
        nanosleep(&rest, NULL);
        pid_t child = fork();
        if (!child)
            _exit(0);
        others += child > 0 && waitpid(child, NULL, 0) == child;
    }
    long forks = counts->forks;
    // A fork under way may still add a process; a killed one adds none.
    while (!kill(-first, SIGKILL)) {
        struct timespec rest = {0, 10000000};
        nanosleep(&rest, NULL);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
    // Each successful fork returns twice, and no process ends by itself.
    long most = forks / 2 + 1;
    bool right = counts->refused > 0 && !counts->other && others == 10 * seconds && most <= limit;
    printf("{\"program\": \"bomb\", \"limit\": %ld, \"processes\": %ld, \"refused\": %s, \"others\": %ld, \"status\": %d}\n", limit,
           most, counts->refused > 0 ? "true" : "false", others, !right);
    return !right;
}
