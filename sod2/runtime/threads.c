/* The thread pool: chunks of one job at a time, a contiguous range of them for each thread.

   Of n chunks thread t of T owns [t n/T, (t+1) n/T), so that layers cut alike touch the same rows on the same core. The
   owner claims from the front of its range; a thread that has nothing left steals from the back of another's. Either
   claims a T-th of what is left there: even on a core T times slower than the average these chunks are done no later
   than the rest.

   What a thread is told of a job, and what it tells, is one cache line, its seat: moving a line between cores takes
   0.1 us, or 0.4 us where they share no cache. The caller writes it for each job, the thread reads it and claims from
   it, and the caller reads there how many chunks that thread has finished. Claims move no line before something is
   stolen.

   A range is one 64-bit word, epoch << 32 | first place << 16 | end, and is claimed by compare-and-swap of the whole
   word, so a claim can only succeed for the job whose range was read: a worker that wakes late finds nothing left, or
   another epoch, and the caller need not wait for sleepers to check in. It waits for the chunks alone. The other fields
   of a job are written only while no chunk of it can be claimed.

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

enum {
    SPIN_NANOSECONDS = 100000,
    SPINS_PER_CLOCK = 32,
    CACHE_LINE = 64,
    MAX_RANGE = UINT16_MAX /* chunks; longer jobs are published in pieces */
};

typedef void (*job_body)(void *arg, int64_t chunk, int thread);

typedef struct seat {
    _Alignas(CACHE_LINE) atomic_uint_least64_t range;
    _Atomic(job_body) body;
    _Atomic(void *) arg;
    atomic_int_least64_t first; /* chunk at place 0 of the range */
    atomic_int_least64_t done;  /* chunks that this thread has finished since the pool exists */
    sod2_pool *pool;
    pthread_t handle;
    int thread;
} seat;
_Static_assert(sizeof(seat) == CACHE_LINE, "a seat is one line");

struct sod2_pool {
    _Alignas(CACHE_LINE) int64_t published; /* chunks since the pool exists; this line is the caller's alone */
    uint32_t epoch;
    int caller_core; /* for which the workers were placed, -1 for none */
    _Alignas(CACHE_LINE) int threads;
    atomic_int sleepers;
    atomic_int stop;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    seat seats[]; /* the caller's is the first */
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

static uint32_t epoch_of(uint64_t range) { return (uint32_t)(range >> 32); }

/* Claims chunks of a range, runs them and says how many there were, none when the range is empty. */
static int64_t run_some(seat *owner, seat *self) {
    uint64_t range = atomic_load_explicit(&owner->range, memory_order_acquire);
    for (;;) {
        const int64_t front = (uint16_t)(range >> 16), end = (uint16_t)range, left = end - front;
        if (left == 0) return 0;
        const job_body body = atomic_load_explicit(&owner->body, memory_order_relaxed);
        void *const arg = atomic_load_explicit(&owner->arg, memory_order_relaxed);
        const int64_t claims = sod2_imax(1, left / self->pool->threads);
        const int64_t chunk = atomic_load_explicit(&owner->first, memory_order_relaxed) +
                              (owner == self ? front : end - claims);
        const uint64_t rest = owner == self ? range + ((uint64_t)claims << 16) : range - (uint64_t)claims;
        if (!atomic_compare_exchange_weak_explicit(&owner->range, &range, rest, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue; /* `range` was reloaded */
        for (int64_t i = 0; i < claims; i++) body(arg, chunk + i, self->thread);
        return claims;
    }
}

/* Runs chunks of the current job, its own first, until none is left to claim. */
static void work(seat *self) {
    sod2_pool *pool = self->pool;
    for (int i = 0; i < pool->threads; i++) {
        seat *owner = &pool->seats[(self->thread + i) % pool->threads];
        for (int64_t count; (count = run_some(owner, self)) > 0;) {
            const int64_t done = atomic_load_explicit(&self->done, memory_order_relaxed);
            atomic_store_explicit(&self->done, done + count, memory_order_release);
        }
    }
}

/* True when a range of another epoch than `seen` was published while spinning. */
static int spin_for_job(seat *self, uint32_t seen) {
    int64_t deadline = nanoseconds() + SPIN_NANOSECONDS;
    do {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
            if (epoch_of(atomic_load_explicit(&self->range, memory_order_acquire)) != seen) return 1;
            pause_cpu();
        }
    } while (nanoseconds() < deadline);
    return 0;
}

static void sleep_for_job(seat *self, uint32_t seen) {
    sod2_pool *pool = self->pool;
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (epoch_of(atomic_load(&self->range)) == seen) pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void *worker_main(void *arg) {
    seat *self = arg;
    uint32_t seen = 0;
    sod2_denormals_off();
    for (;;) {
        if (!spin_for_job(self, seen)) sleep_for_job(self, seen);
        /* The epoch first: stop is set before the last one is published. */
        seen = epoch_of(atomic_load_explicit(&self->range, memory_order_acquire));
        if (atomic_load(&self->pool->stop)) return NULL;
        work(self);
    }
}

#if defined(__linux__)
/* Binds each worker to a core of its own, none to the caller's. A failure leaves the threads to the scheduler. */
static void place_workers(sod2_pool *pool) {
    cpu_set_t allowed;
    int core = sched_getcpu();
    if (core == pool->caller_core || core < 0) return;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < pool->threads) return;
    pool->caller_core = core;
    for (int cpu = 0, thread = 1; cpu < CPU_SETSIZE && thread < pool->threads; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || cpu == core) continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(pool->seats[thread++].handle, sizeof one, &one);
    }
}
#else
static void place_workers(sod2_pool *pool) { (void)pool; }
#endif

/* Publishes chunks [first, first + chunks); the workers learn of them before the caller begins. */
static void publish(sod2_pool *pool, job_body body, void *arg, int64_t first, int64_t chunks) {
    const uint64_t epoch = ++pool->epoch;
    pool->published += chunks;
    for (int thread = pool->threads - 1; thread >= 0; thread--) {
        seat *owner = &pool->seats[thread];
        const int64_t begin = sod2_ceildiv(thread * chunks, pool->threads);
        const int64_t end = sod2_ceildiv((thread + 1) * chunks, pool->threads);
        atomic_store_explicit(&owner->body, body, memory_order_relaxed);
        atomic_store_explicit(&owner->arg, arg, memory_order_relaxed);
        atomic_store_explicit(&owner->first, first + begin, memory_order_relaxed);
        atomic_store_explicit(&owner->range, epoch << 32 | (uint64_t)(end - begin), memory_order_release);
    }
}

static void wake_workers(sod2_pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

static int all_done(const sod2_pool *pool) {
    int64_t done = 0;
    for (int thread = 0; thread < pool->threads; thread++)
        done += atomic_load_explicit(&pool->seats[thread].done, memory_order_acquire);
    return done == pool->published;
}

/* Waits for the chunks that workers still hold; yields when that takes long (fewer cores than threads). */
static void await_done(sod2_pool *pool) {
    if (all_done(pool)) return;
    int64_t deadline = nanoseconds() + SPIN_NANOSECONDS;
    for (unsigned i = 1; !all_done(pool); i++) {
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
    const int64_t most = (int64_t)pool->threads * MAX_RANGE;
    place_workers(pool);
    for (int64_t first = 0; first < chunks; first += most) {
        publish(pool, body, arg, first, sod2_imin(most, chunks - first));
        /* Unfenced: a worker that falls asleep just now may miss the job, whose chunks the others then steal. */
        if (atomic_load_explicit(&pool->sleepers, memory_order_relaxed) > 0) wake_workers(pool);
        work(&pool->seats[0]);
        await_done(pool);
    }
}

int sod2_pool_threads(const sod2_pool *pool) { return pool == NULL ? 1 : pool->threads; }

void sod2_pool_free(sod2_pool *pool) {
    if (pool == NULL) return;
    atomic_store(&pool->stop, 1);
    publish(pool, NULL, NULL, 0, 0);
    wake_workers(pool);
    for (int thread = 1; thread < pool->threads; thread++) pthread_join(pool->seats[thread].handle, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

sod2_pool *sod2_pool_create(int threads) {
    threads = threads > 1 ? threads : 1;
    const size_t bytes = sizeof(sod2_pool) + (size_t)threads * sizeof(seat);
    sod2_pool *pool = aligned_alloc(CACHE_LINE, bytes);
    if (pool == NULL) return NULL;
    memset(pool, 0, bytes);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->caller_core = -1;
    pool->threads = 1;
    pool->seats[0].pool = pool;
    while (pool->threads < threads) {
        seat *worker = &pool->seats[pool->threads];
        worker->pool = pool;
        worker->thread = pool->threads;
        if (pthread_create(&worker->handle, NULL, worker_main, worker) != 0) {
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
