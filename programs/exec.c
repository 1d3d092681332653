// exec [TIMES [PROGRAM]]: measures fork, exec, exit and wait of a program, in nanoseconds, and the
// page faults of the child. Under a clock that counts instructions these are instructions.
//
// PROGRAM is this program itself, unless another is named: a static one of 2 MB, which ends at once
// when its first argument is "-".
#include "common.h"
#include <sys/resource.h>

// Makes the file as large as programs are. The program reads one byte of it.
static const char rest[1 << 20] = {1};

static long faults_of_children(void) {
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    return used.ru_minflt + used.ru_majflt;
}

static void run(const char *program) {
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (!child) {
        execl(program, program, "-", (char *)NULL);
        _exit(127);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status))
        die("%s: status %#x", program, status);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "-"))
        return *(volatile const char *)rest != 1;
    if (argc > 3)
        die("usage: %s [TIMES [PROGRAM]]", argv[0]);
    long times = argument(argc, argv, 1, 300);
    const char *program = argc > 2 ? argv[2] : "/proc/self/exe";
    run(program);
    long faults = faults_of_children();
    uint64_t start = now_ns();
    for (long i = 0; i < times; i++)
        run(program);
    uint64_t spent = now_ns() - start;
    printf("{\"program\":\"%s\",\"fork+exec+exit\":%.0f,\"faults\":%.1f}\n", argc > 2 ? program : "static",
           (double)spent / (double)times, (double)(faults_of_children() - faults) / (double)times);
    return 0;
}
