/* What this machine does at most: multiply-adds a second, and bytes read a second from sets of different sizes.

   Arithmetic: chains of fused multiply-adds on enough registers to hide their latency, nothing else. Clock: what a
   chain of additions adds to that, which take a cycle each; multiply-adds of wide vectors lower the clock of some
   processors, so additions alone would tell another. Reading: every thread sums its own slice of a set, pass after
   pass, in four streams, so that a small set stays in the caches of its core and a large one comes from memory. Every
   time is the best of several trials of a fraction of a millisecond: whatever disturbs a trial makes it slower, never
   faster. */
#define _GNU_SOURCE
#include "kernel.h"
#include "sod2.h"

#include <stdlib.h>
#include <time.h>

enum {
#if SOD2_VL == 16 || defined(__aarch64__)
  CHAINS = 24, /* of 32 registers */
#else
  CHAINS = 12, /* of 16 */
#endif
  ADDITIONS = 10,
  STREAMS = 4,
  CHUNKS_PER_THREAD = 4,
  ARITHMETIC_TURNS = 5,
  ARITHMETIC_TRIALS = 6, /* in each */
  READING_TRIALS = 6,
  CACHE_LINE = 64
};
static const int64_t TRIAL_NANOSECONDS = 300000;

typedef struct probe {
  const float *data;
  int64_t floats; /* of a slice */
  int64_t rounds;
  float factor, addend;
  _Atomic(float) sink; /* what is computed must be seen to be used */
} probe;

static int64_t nanoseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void multiply_add(void *arg, int64_t chunk, int thread) {
  probe *p = arg;
  const vf factor = vf_splat(p->factor), addend = vf_splat(p->addend);
  vf chain[CHAINS], total = vf_splat(0);
  (void)thread;
  SOD2_UNROLL
  for (int i = 0; i < CHAINS; i++) chain[i] = vf_splat((float)(chunk + i));
  for (int64_t round = 0; round < p->rounds; round++) {
    SOD2_UNROLL
    for (int i = 0; i < CHAINS; i++) chain[i] = chain[i] * factor + addend;
  }
  SOD2_UNROLL
  for (int i = 0; i < CHAINS; i++) total += chain[i];
  p->sink = vf_sum_lanes(total);
}

static void multiply_add_and_count(void *arg, int64_t chunk, int thread) {
  const probe *p = arg;
  int64_t sum = chunk, one = 1;
  multiply_add(arg, chunk, thread);
  for (int64_t round = 0; round < p->rounds; round++) {
    SOD2_UNROLL
    for (int i = 0; i < ADDITIONS; i++) {
      sum += one;
      __asm__ volatile("" : "+r"(sum), "+r"(one)); /* else the chain is one multiplication */
    }
  }
}

static void read_slice(void *arg, int64_t chunk, int thread) {
  probe *p = arg;
  const int64_t stream = p->floats / STREAMS;
  vf sum[2 * STREAMS] = {0}, total = vf_splat(0);
  (void)thread;
  for (int64_t round = 0; round < p->rounds; round++) {
    const float *data = p->data + chunk * p->floats;
    for (int64_t i = 0; i < stream; i += 2 * SOD2_VL, data += 2 * SOD2_VL) {
      SOD2_UNROLL
      for (int s = 0; s < STREAMS; s++) {
        sum[2 * s] += vf_load(data + s * stream);
        sum[2 * s + 1] += vf_load(data + s * stream + SOD2_VL);
      }
    }
  }
  SOD2_UNROLL
  for (int i = 0; i < 2 * STREAMS; i++) total += sum[i];
  p->sink = vf_sum_lanes(total);
}

/* The shortest nanoseconds a round of some trials, each with as many rounds as fill its time. */
static double best_round(sod2_pool *pool, int64_t chunks, void (*body)(void *, int64_t, int), probe *p, int trials) {
  double best = 0;
  p->rounds = 1;
  for (int trial = 0; trial < trials;) {
    const int64_t started = nanoseconds();
    sod2_parallel(pool, chunks, body, p);
    const int64_t elapsed = sod2_imax(nanoseconds() - started, 1);
    const double round = (double)elapsed / (double)p->rounds;
    if (elapsed < TRIAL_NANOSECONDS)
      p->rounds *= 2; /* too short to be told from the clock and the hand-over to other threads */
    else if (trial++ == 0 || round < best)
      best = round;
  }
  return best;
}

/* With and without additions in turns, so that a time of disturbance does not meet one of them alone. */
static void find_arithmetic(sod2_pool *pool, probe *p, sod2_limits *limits) {
  const int64_t chunks = (int64_t)sod2_pool_threads(pool) * CHUNKS_PER_THREAD;
  double plain = INFINITY, counted = INFINITY;
  for (int turn = 0; turn < ARITHMETIC_TURNS; turn++) {
    plain = fmin(plain, best_round(pool, chunks, multiply_add, p, ARITHMETIC_TRIALS));
    counted = fmin(counted, best_round(pool, chunks, multiply_add_and_count, p, ARITHMETIC_TRIALS));
  }
  limits->flops = 2e9 * CHAINS * SOD2_VL * (double)chunks / plain;
  limits->clock = 1e9 * ADDITIONS * CHUNKS_PER_THREAD / (counted - plain);
}

static void find_reading(sod2_pool *pool, probe *p, sod2_limits *limits) {
  const int64_t threads = sod2_pool_threads(pool), step = 2 * SOD2_VL * STREAMS;
  for (int set = 0; set < SOD2_SETS; set++) {
    const int64_t floats = ((int64_t)SOD2_SMALLEST_SET << set) / (int64_t)sizeof *p->data;
    p->floats = floats / threads / step * step;
    const double pass = best_round(pool, threads, read_slice, p, READING_TRIALS);
    limits->bandwidth[set] = 1e9 * (double)(p->floats * threads) * sizeof *p->data / pass;
  }
}

int sod2_measure_limits(int threads, sod2_limits *limits) {
  const size_t largest = (size_t)SOD2_SMALLEST_SET << (SOD2_SETS - 1);
  probe p = {.factor = 0.5f, .addend = 1.0f};
  float *data = aligned_alloc(CACHE_LINE, largest);
  sod2_pool *pool = sod2_pool_create(threads);
  const int ready = data != NULL && pool != NULL;
  if (ready) {
    memset(data, 0, largest); /* pages that were never written are all one page of zeros */
    p.data = data;
    find_arithmetic(pool, &p, limits);
    find_reading(pool, &p, limits);
  }
  sod2_pool_free(pool);
  free(data);
  return ready ? SOD2_OK : SOD2_ERROR_MEMORY;
}
