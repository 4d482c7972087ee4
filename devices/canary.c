/* The canary: a fixed piece of work that takes tens of milliseconds, timed before and after a measurement. A device that
   does it more slowly than before has lost speed, whatever its counters say.

     canary CPU    runs on that CPU alone and prints the nanoseconds of the fastest of five rounds; of fewer, but two at
                   least, where half a second is over before

   A round multiplies 192 x 192 matrices, which fit a small core's caches: it feels the clock, not the memory. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SIZE 192
#define ROUNDS 5
#define ENOUGH 2
#define ENOUGH_NS INT64_C(500000000)
#define PRODUCTS 16

static float a[SIZE][SIZE], b[SIZE][SIZE], c[SIZE][SIZE];

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void multiply(void) {
  for (int i = 0; i < SIZE; i++)
    for (int k = 0; k < SIZE; k++)
      for (int j = 0; j < SIZE; j++) c[i][j] += a[i][k] * b[k][j];
}

int main(int argc, char **argv) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (argc == 2) CPU_SET(atoi(argv[1]), &cpus);
  if (argc != 2 || sched_setaffinity(0, sizeof cpus, &cpus) != 0) {
    fprintf(stderr, "usage: canary CPU, a CPU that is online\n");
    return 2;
  }
  for (int i = 0; i < SIZE; i++)
    for (int j = 0; j < SIZE; j++) a[i][j] = b[i][j] = 1.0f / (float)(i + j + 1);
  int64_t best = INT64_MAX, start = now_ns();
  for (int round = 0; round < ROUNDS && (round < ENOUGH || now_ns() - start < ENOUGH_NS); round++) {
    int64_t begin = now_ns();
    for (int product = 0; product < PRODUCTS; product++) multiply();
    int64_t took = now_ns() - begin;
    if (took < best) best = took;
  }
  fprintf(stderr, "sum %g\n", (double)c[SIZE / 2][SIZE / 2]); /* the work must not be optimised away */
  printf("%lld\n", (long long)best);
  return 0;
}
