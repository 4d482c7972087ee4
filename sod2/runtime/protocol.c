#define _GNU_SOURCE
#include "protocol.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_CAPACITY 8192

/* `text` as a JSON string. */
static void print_string(const char *text) {
  putchar('"');
  for (; *text != 0; text++) {
    if (*text == '"' || *text == '\\')
      printf("\\%c", *text);
    else if ((unsigned char)*text < ' ')
      printf("\\u%04x", *text);
    else
      putchar(*text);
  }
  putchar('"');
}

static void print_error(const char *text) {
  printf("{\"error\": ");
  print_string(text);
  printf("}\n");
  fflush(stdout);
}

void sod2_fail(const char *format, ...) {
  char text[MESSAGE_CAPACITY];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  print_error(text);
  exit(EXIT_FAILURE);
}

void sod2_print_ready(const char *engine, const char *version, int threads, int64_t weight_bytes, int64_t load_ns) {
  printf(
      "{\"ready\": true, \"engine\": \"%s\", \"version\": \"%s\", \"threads\": %d, \"weight_bytes\": %lld, "
      "\"load_ns\": %lld}\n",
      engine, version, threads, (long long)weight_bytes, (long long)load_ns);
  fflush(stdout);
}

void sod2_print_inference(const sod2_inference *row) {
  char own[32] = "null";
  if (row->own_bytes >= 0) snprintf(own, sizeof own, "%lld", (long long)row->own_bytes);
  printf(
      "{\"sample\": %d, \"repeat\": %d, \"first\": %s, \"latency_ns\": %lld, \"copy_ns\": %lld, \"bind_ns\": %lld, "
      "\"peak_bytes\": %lld, \"own_bytes\": %s, \"hwm_bytes\": %lld}\n",
      row->sample, row->repeat, row->first ? "true" : "false", (long long)row->latency_ns, (long long)row->copy_ns,
      (long long)row->bind_ns, (long long)row->peak_bytes, own, (long long)row->hwm_bytes);
}

int sod2_thread_argument(const char *text) {
  char *end;
  long threads = strtol(text, &end, 10);
  if (*end != 0 || threads < 1 || threads > 1024) sod2_fail("THREADS is %s, accepted are 1 to 1024", text);
  return (int)threads;
}

/* Returns 0 when the process is to end. */
static int obey(void *engine, sod2_run_command *run, char *line) {
  int sample, count, parsed = 0;
  line[strcspn(line, "\r\n")] = 0;
  if (strcmp(line, "quit") == 0) return 0;
  if (sscanf(line, "run %d %d%n", &sample, &count, &parsed) == 2 && sample >= 0 && count >= 1 &&
      (line[parsed] == 0 || line[parsed] == ' ')) {
    char *folder = line + parsed + strspn(line + parsed, " ");
    run(engine, sample, count, *folder == 0 ? NULL : folder);
    fflush(stdout); /* not earlier: the reader would wake, and take a core, beside the next inference */
    return 1;
  }
  char text[MESSAGE_CAPACITY];
  snprintf(text, sizeof text, "unknown command '%s', accepted are: run SAMPLE COUNT [FOLDER], quit", line);
  print_error(text);
  return 1;
}

void sod2_serve(void *engine, sod2_run_command *run) {
  char *line = NULL;
  size_t capacity = 0;
  while (getline(&line, &capacity, stdin) >= 0 && obey(engine, run, line)) {
  }
  free(line);
}

int64_t sod2_resident_peak(void) {
  FILE *status = fopen("/proc/self/status", "r");
  long long kib = 0;
  char line[256];
  while (status != NULL && fgets(line, sizeof line, status) != NULL)
    if (sscanf(line, "VmHWM: %lld", &kib) == 1) break;
  if (status != NULL) fclose(status);
  return kib * 1024;
}

void sod2_reset_resident_peak(void) {
  FILE *file = fopen("/proc/self/clear_refs", "w");
  if (file == NULL) return;
  fputs("5", file);
  fclose(file);
}
