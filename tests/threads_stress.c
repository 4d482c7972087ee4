/* Jobs of many sizes on pools of 1 to 8 threads, some threads slow: every chunk runs once, and no two at once with the
   same thread's number. test_threads.py builds this with ThreadSanitizer. */
#define _GNU_SOURCE
#include "kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 8, JOBS = 800, LONGEST = 3 * THREADS * UINT16_MAX };

static int runs[LONGEST];
static int inside[THREADS]; /* not atomic: two chunks at once are a race that the sanitizer reports */
static int slow = -1;

static void require(int condition, const char *what, int threads, int64_t chunks) {
    if (condition) return;
    fprintf(stderr, "%s: %d threads, %d chunks\n", what, threads, (int)chunks);
    exit(1);
}

static void count(void *arg, int64_t chunk, int thread) {
    require(thread < *(int *)arg && inside[thread]++ == 0, "a thread's number is taken", *(int *)arg, chunk);
    if (thread == slow && chunk % 8 == 0) usleep(20);
    runs[chunk]++;
    inside[thread]--;
}

static void run_once(sod2_pool *pool, int threads, int64_t chunks) {
    for (int64_t i = 0; i < chunks; i++) runs[i] = 0;
    sod2_parallel(pool, chunks, count, &threads);
    for (int64_t i = 0; i < chunks; i++) require(runs[i] == 1, "a chunk ran twice or never", threads, chunks);
}

int main(void) {
    srand(7);
    for (int threads = 1; threads <= THREADS; threads++) {
        sod2_pool *pool = sod2_pool_create(threads);
        for (int i = 0; i < JOBS; i++) {
            slow = i % 4 == 0 ? rand() % threads : -1;
            if (i % 100 == 0) usleep(500); /* workers sleep */
            run_once(pool, threads, rand() % 301);
        }
        slow = -1;
        run_once(pool, threads, 2 * threads * UINT16_MAX + 5); /* in pieces */
        sod2_pool_free(pool);
    }
    return 0;
}
