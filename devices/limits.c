/* What a device does at most (sod2/runtime/roofline.c).

     limits THREADS [MASK]    with so many threads on the CPUs of MASK (hexadecimal) prints floating-point operations a
                              second, cycles a second, then bytes read a second from sets of 64 KiB, 128 KiB and so on */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "sod2.h"

/* Whether this process runs on the CPUs of the mask alone from now on. */
static int keep_to(const char *text) {
  const unsigned long long mask = strtoull(text, NULL, 16);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (int cpu = 0; cpu < 64; cpu++)
    if (mask >> cpu & 1) CPU_SET(cpu, &cpus);
  return sched_setaffinity(0, sizeof cpus, &cpus) == 0;
}

int main(int argc, char **argv) {
  sod2_limits found;
  const int threads = argc >= 2 ? atoi(argv[1]) : 0;
  const int placed = argc <= 2 || keep_to(argv[2]);
  if (threads < 1 || !placed || sod2_measure_limits(threads, &found) != SOD2_OK) {
    fprintf(stderr, "usage: limits THREADS [MASK], with threads that can be started and CPUs that are online\n");
    return 2;
  }
  printf("%.0f %.0f", found.flops, found.clock);
  for (int set = 0; set < SOD2_SETS; set++) printf(" %.0f", found.bandwidth[set]);
  putchar('\n');
  return 0;
}
