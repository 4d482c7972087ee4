/* The thread pool: chunks of one job at a time, handed out by an atomic counter.

   A job is published by one 64-bit word, its ticket: epoch << 32 | chunks not yet claimed. A thread claims a chunk by
   compare-and-swap of the whole word, so a claim can only succeed for the job whose ticket was read: a worker that
   wakes late finds either nothing left or another epoch, and the caller need not wait for sleepers to check in.
   It waits for the chunks alone. The other fields of a job are written only while no chunk of it can be claimed.

   Of n chunks left, one of T threads claims n/T² at once, for every claim moves the ticket between cores, 0.4 us where
   they share no cache. Even on a core T times slower than the average these are done no later than the rest.

   Workers spin for SPIN_NANOSECONDS after their last look at a job, because the next operator of a network usually
   follows within microseconds and waking a sleeper costs 5-50 us; then they sleep on a condition variable.

   A scheduler tends to wake a thread on the core of its waker, where both then share one core for milliseconds while
   the caller works on. So before a job is published, every worker is bound to a core of its own that is not the
   caller's, unless it already is (Linux only, and only while the process may use as many cores as the pool has threads). */
#define _GNU_SOURCE
#include "kernel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { SPIN_NANOSECONDS = 100000, SPINS_PER_CLOCK = 32, CACHE_LINE = 64 };
static const int64_t MAX_CLAIMS = INT32_MAX; /* of one ticket; longer jobs are published in pieces */

typedef void (*job_body)(void *arg, int64_t chunk, int thread);

typedef struct worker {
    sod2_pool *pool;
    int thread;
    pthread_t handle;
} worker;

struct sod2_pool {
    _Alignas(CACHE_LINE) atomic_uint_least64_t ticket;
    _Alignas(CACHE_LINE) atomic_int_least64_t done; /* finished chunks of the current job */
    _Alignas(CACHE_LINE) _Atomic(job_body) body;
    _Atomic(void *) arg;
    atomic_int_least64_t end; /* chunk with k claims left is end - k */
    atomic_int sleepers;
    atomic_int stop;
    int threads;
    int caller_core; /* for which the workers were placed, -1 for none */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    worker workers[];
};

SOD2_INLINE void pause_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint32_t epoch_of(uint64_t ticket) { return (uint32_t)(ticket >> 32); }
static uint32_t left_of(uint64_t ticket) { return (uint32_t)ticket; }

/* Runs chunks of the current job until none is left to claim. */
static void work(sod2_pool *pool, int thread) {
    int64_t finished = 0;
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    while (left_of(ticket) > 0) {
        job_body body = atomic_load_explicit(&pool->body, memory_order_relaxed);
        void *arg = atomic_load_explicit(&pool->arg, memory_order_relaxed);
        int64_t chunk = atomic_load_explicit(&pool->end, memory_order_relaxed) - left_of(ticket);
        int64_t claims = sod2_imax(1, left_of(ticket) / ((int64_t)pool->threads * pool->threads));
        if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket - (uint64_t)claims,
                                               memory_order_acq_rel, memory_order_acquire))
            continue; /* `ticket` was reloaded */
        for (int64_t i = 0; i < claims; i++) body(arg, chunk + i, thread);
        finished += claims;
        ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    }
    if (finished > 0) atomic_fetch_add_explicit(&pool->done, finished, memory_order_release);
}

/* True when a ticket other than `seen` was published while spinning. */
static int spin_for_job(sod2_pool *pool, uint32_t seen) {
    int64_t deadline = nanoseconds() + SPIN_NANOSECONDS;
    do {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
            if (epoch_of(atomic_load_explicit(&pool->ticket, memory_order_acquire)) != seen) return 1;
            pause_cpu();
        }
    } while (nanoseconds() < deadline);
    return 0;
}

static void sleep_for_job(sod2_pool *pool, uint32_t seen) {
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1); /* before the look at the ticket, see publish() */
    while (epoch_of(atomic_load(&pool->ticket)) == seen) pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void *worker_main(void *arg) {
    const worker *self = arg;
    sod2_pool *pool = self->pool;
    uint32_t seen = 0;
    sod2_denormals_off();
    for (;;) {
        if (!spin_for_job(pool, seen)) sleep_for_job(pool, seen);
        /* The epoch first: stop is set before the last one is published. */
        seen = epoch_of(atomic_load_explicit(&pool->ticket, memory_order_acquire));
        if (atomic_load(&pool->stop)) return NULL;
        work(pool, self->thread);
    }
}

#if defined(__linux__)
/* Binds each worker to a core of its own, none to the caller's. A failure leaves the threads to the scheduler. */
static void place_workers(sod2_pool *pool) {
    cpu_set_t allowed;
    int core = sched_getcpu(), worker_count = pool->threads - 1;
    if (core == pool->caller_core || core < 0) return;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < pool->threads) return;
    pool->caller_core = core;
    for (int cpu = 0, i = 0; cpu < CPU_SETSIZE && i < worker_count; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || cpu == core) continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(pool->workers[i++].handle, sizeof one, &one);
    }
}
#else
static void place_workers(sod2_pool *pool) { (void)pool; }
#endif

/* Publishes `claims` chunks. Sequentially consistent on both sides: either the caller sees the sleeper, or the sleeper
   sees the new epoch before it waits. */
static void publish(sod2_pool *pool, uint32_t claims) {
    place_workers(pool);
    uint64_t epoch = (uint64_t)epoch_of(atomic_load(&pool->ticket)) + 1;
    atomic_store(&pool->ticket, epoch << 32 | claims);
    if (atomic_load(&pool->sleepers) == 0) return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

/* Waits for the chunks that workers still hold; yields when that takes long (fewer cores than threads). */
static void await_done(sod2_pool *pool, int64_t claims) {
    int64_t deadline = nanoseconds() + SPIN_NANOSECONDS;
    for (unsigned i = 1; atomic_load_explicit(&pool->done, memory_order_acquire) != claims; i++) {
        if (i % SPINS_PER_CLOCK == 0 && nanoseconds() > deadline)
            sched_yield();
        else
            pause_cpu();
    }
}

void sod2_parallel(sod2_pool *pool, int64_t chunks, job_body body, void *arg) {
    if (pool == NULL || pool->threads == 1 || chunks <= 1) {
        for (int64_t chunk = 0; chunk < chunks; chunk++) body(arg, chunk, 0);
        return;
    }
    for (int64_t end, first = 0; first < chunks; first = end) {
        end = first + sod2_imin(chunks - first, MAX_CLAIMS);
        atomic_store_explicit(&pool->body, body, memory_order_relaxed);
        atomic_store_explicit(&pool->arg, arg, memory_order_relaxed);
        atomic_store_explicit(&pool->end, end, memory_order_relaxed);
        atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
        publish(pool, (uint32_t)(end - first));
        work(pool, 0);
        await_done(pool, end - first);
    }
}

int sod2_pool_threads(const sod2_pool *pool) { return pool == NULL ? 1 : pool->threads; }

void sod2_pool_free(sod2_pool *pool) {
    if (pool == NULL) return;
    atomic_store(&pool->stop, 1);
    publish(pool, 0);
    for (int i = 1; i < pool->threads; i++) pthread_join(pool->workers[i - 1].handle, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

sod2_pool *sod2_pool_create(int threads) {
    int workers = threads > 1 ? threads - 1 : 0;
    size_t bytes = sizeof(sod2_pool) + (size_t)workers * sizeof(worker);
    sod2_pool *pool = aligned_alloc(CACHE_LINE, (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
    if (pool == NULL) return NULL;
    memset(pool, 0, bytes);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->threads = 1;
    pool->caller_core = -1;
    for (int i = 0; i < workers; i++) {
        pool->workers[i] = (worker){.pool = pool, .thread = i + 1};
        if (pthread_create(&pool->workers[i].handle, NULL, worker_main, &pool->workers[i]) != 0) {
            sod2_pool_free(pool);
            return NULL;
        }
        pool->threads++;
    }
    return pool;
}

uint64_t sod2_denormals_off(void) {
#if defined(__SSE__)
    unsigned state = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(state | 0x8040u); /* flush to zero, denormals are zero */
    return state;
#elif defined(__aarch64__)
    uint64_t state;
    __asm__ volatile("mrs %0, fpcr" : "=r"(state));
    __asm__ volatile("msr fpcr, %0" ::"r"(state | UINT64_C(1) << 24)); /* FZ: both inputs and results */
    return state;
#else
    return 0; /* 32-bit NEON always flushes; other machines keep IEEE arithmetic */
#endif
}

void sod2_denormals_restore(uint64_t state) {
#if defined(__SSE__)
    __builtin_ia32_ldmxcsr((unsigned)state);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" ::"r"(state));
#else
    (void)state;
#endif
}
