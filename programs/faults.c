// faults [THREADS] [SECONDS]: counts page faults a minute of threads that touch private memory of
// their own and release it. Zeroing and release are included.
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

enum { MOST = 256, LENGTH = 16 << 20 };

static atomic_bool stop;
static atomic_long faults;
static pthread_barrier_t ready;

static void *work(void *unused) {
    (void)unused;
    char *memory = map_aligned(LENGTH);
    madvise(memory, LENGTH, MADV_NOHUGEPAGE);
    pthread_barrier_wait(&ready);
    long count = 0;
    while (!stop) {
        // In small steps, so that little is counted after the end.
        for (size_t at = 0; at < LENGTH && !stop; at += 64 * PAGE) {
            touch(memory + at, 64 * PAGE, at);
            count += 64;
        }
        madvise(memory, LENGTH, MADV_DONTNEED);
    }
    faults += count;
    munmap(memory, LENGTH);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc > 3)
        die("usage: %s [THREADS] [SECONDS]", argv[0]);
    long threads = argument(argc, argv, 1, 1), seconds = argument(argc, argv, 2, 5);
    if (threads > MOST)
        die("at most %d threads", MOST);
    pthread_t all[MOST];
    pthread_barrier_init(&ready, NULL, (unsigned)threads + 1);
    for (long thread = 0; thread < threads; thread++)
        if ((errno = pthread_create(&all[thread], NULL, work, NULL)))
            die("pthread_create");
    pthread_barrier_wait(&ready);
    uint64_t start = now_ns();
    struct timespec length = {.tv_sec = seconds};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &length, NULL);
    stop = true;
    for (long thread = 0; thread < threads; thread++)
        pthread_join(all[thread], NULL);
    double minutes = (double)(now_ns() - start) / 60e9;
    printf("{\"threads\":\"%ld\",\"faults_a_minute\":%.0f}\n", threads, (double)faults / minutes);
    return 0;
}
