/* The lines between the harness and a process that it measures (baselines/engine.py states them), for engines whose
   runner is written in C: the bench executable of an artifact, and onnxruntime's on Android. */
#ifndef SOD2_PROTOCOL_H
#define SOD2_PROTOCOL_H
#include <stdint.h>

/* One inference as its line tells it; own_bytes < 0 where the engine does not report its own peak. */
typedef struct sod2_inference {
  int sample, repeat, first;
  int64_t latency_ns, bind_ns, copy_ns, peak_bytes, own_bytes, hwm_bytes;
} sod2_inference;

void sod2_print_ready(const char *engine, const char *version, int threads, int64_t weight_bytes, int64_t load_ns);
void sod2_print_inference(const sod2_inference *row);

/* Prints {"error": ...} and ends the process with status 1. */
__attribute__((noreturn, format(printf, 1, 2))) void sod2_fail(const char *format, ...);

/* The number of threads that an argument says; fails where it is none. */
int sod2_thread_argument(const char *text);

/* Runs a sample `count` times and prints a line for each; `folder` for the last outputs is NULL when none are wanted. */
typedef void sod2_run_command(void *engine, int sample, int count, const char *folder);

/* Obeys the lines of standard input until `quit` or their end. */
void sod2_serve(void *engine, sod2_run_command *run);

/* The largest resident size since the last reset, VmHWM of proc(5); 0 where the kernel does not tell. */
int64_t sod2_resident_peak(void);
void sod2_reset_resident_peak(void);
#endif
