/* The bench executable of an artifact: `bench SAMPLES_DIR THREADS`, the process that the harness measures. It lies beside
   weights.bin, reads one command a line from stdin and prints one JSON object a line to stdout:

     (start)             {"ready": true, ...}
     run I N [OUTDIR]    N inferences of sample I, read from SAMPLES_DIR/I.K.npy for every input K; a line for each. With
                         OUTDIR the last outputs are written to OUTDIR/I.K.npy before the last line.
     quit

   latency_ns is bind + run: the inputs lie in memory already, the outputs are read where they are, so nothing is copied.
   peak_bytes is the largest live heap and anonymous memory during the inference over what was live before the sample
   was bound; hwm_bytes, the largest resident size of the process meanwhile, is a cross-check. Each `run` starts without
   an arena (sod2_trim): what an earlier, larger sample left mapped would otherwise hide what this one needs. A failure
   prints {"error": ...} and ends the process with status 1. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "npy.h"
#include "program.h"

int64_t sod2_hook_live(void); /* memhook.c */
int64_t sod2_hook_peak(void);
void sod2_hook_reset(void);

#define PATH_CAPACITY 4096
#define MESSAGE_CAPACITY 8192

typedef struct bench {
  sod2_model *model;
  const char *samples;
  int inputs, outputs;
  sod2_tensor *input; /* [inputs] the staged sample */
  const void **data;  /* [inputs] */
  int64_t *dims;      /* of all inputs, one after the other */
  int32_t *seen;      /* samples that ran in this process */
  int64_t seen_count;
  int staged;         /* the sample in `input`, -1 before the first */
  int64_t before;     /* live bytes when it was staged: the state before bind */
} bench;

typedef struct row {
  int64_t latency_ns, bind_ns, peak_bytes, hwm_bytes;
} row;

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

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
  char text[MESSAGE_CAPACITY];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  print_error(text);
  exit(EXIT_FAILURE);
}

static void check(int status) {
  if (status != SOD2_OK) fail("%s", sod2_message());
}

static void *allocate(int64_t count, size_t size) {
  void *block = calloc((size_t)count + 1, size);
  if (block == NULL) fail("no memory for the tables of the bench");
  return block;
}

/* weights.bin in the folder of this executable. */
static void find_weights(char path[PATH_CAPACITY]) {
  static const char name[] = "weights.bin";
  ssize_t length = readlink("/proc/self/exe", path, PATH_CAPACITY - sizeof name);
  if (length < 0) fail("cannot read /proc/self/exe, the place of this executable");
  path[length] = 0;
  strcpy(strrchr(path, '/') + 1, name);
}

static void start(bench *b, const char *samples, const char *threads_text) {
  char path[PATH_CAPACITY], *end;
  long threads = strtol(threads_text, &end, 10);
  if (*end != 0 || threads < 1 || threads > 1024) fail("THREADS is %s, accepted are 1 to 1024", threads_text);
  find_weights(path);
  int64_t started = sod2_now_ns();
  check(sod2_load(path, (int)threads, &b->model));
  int64_t load_ns = sod2_now_ns() - started, ranks = 0;
  b->samples = samples;
  b->inputs = sod2_input_count(b->model);
  b->outputs = sod2_output_count(b->model);
  for (int i = 0; i < b->inputs; i++) ranks += sod2_input(b->model, i).rank;
  b->input = allocate(b->inputs, sizeof *b->input);
  b->data = allocate(b->inputs, sizeof *b->data);
  b->dims = allocate(ranks, sizeof *b->dims);
  sod2_stats stats = sod2_get_stats(b->model);
  printf(
      "{\"ready\": true, \"engine\": \"sod2\", \"version\": \"%s\", \"threads\": %d, \"weight_bytes\": %lld, "
      "\"load_ns\": %lld}\n",
      SOD2_VERSION, stats.threads, (long long)stats.weight_bytes, (long long)load_ns);
  fflush(stdout);
}

static void finish(bench *b) {
  for (int i = 0; i < b->inputs; i++) free(b->input[i].data);
  free(b->input);
  free(b->data);
  free(b->dims);
  free(b->seen);
  sod2_free(b->model);
}

/* Reads the inputs of a sample; the previous sample's are freed. */
static void stage(bench *b, int sample) {
  char path[PATH_CAPACITY], message[MESSAGE_CAPACITY];
  int64_t *dim = b->dims;
  for (int i = 0; i < b->inputs; i++) {
    sod2_tensor wanted = sod2_input(b->model, i);
    free(b->input[i].data);
    snprintf(path, sizeof path, "%s/%d.%d.npy", b->samples, sample, i);
    if (sod2_npy_read(path, &b->input[i], message, sizeof message) != 0) fail("%s", message);
    if (b->input[i].dtype != wanted.dtype || b->input[i].rank != wanted.rank)
      fail("%s is %s of rank %d, input %s is %s of rank %d", path, sod2_dtype_name(b->input[i].dtype), b->input[i].rank,
           wanted.name, sod2_dtype_name(wanted.dtype), wanted.rank);
    b->data[i] = b->input[i].data;
    memcpy(dim, b->input[i].dims, sizeof *dim * (size_t)wanted.rank);
    dim += wanted.rank;
  }
}

/* The largest resident size since the last reset, VmHWM of proc(5); 0 where the kernel does not tell. */
static int64_t resident_peak(void) {
  FILE *status = fopen("/proc/self/status", "r");
  long long kib = 0;
  char line[256];
  while (status != NULL && fgets(line, sizeof line, status) != NULL)
    if (sscanf(line, "VmHWM: %lld", &kib) == 1) break;
  if (status != NULL) fclose(status);
  return kib * 1024;
}

static void reset_resident_peak(void) {
  FILE *file = fopen("/proc/self/clear_refs", "w");
  if (file == NULL) return;
  fputs("5", file);
  fclose(file);
}

/* One inference of the staged sample; `before` = live bytes before its arena was there. */
static row infer(bench *b, int64_t before) {
  reset_resident_peak();
  sod2_hook_reset();
  int64_t started = sod2_now_ns();
  check(sod2_bind(b->model, b->dims));
  int64_t bound = sod2_now_ns();
  check(sod2_run(b->model, b->data));
  int64_t ended = sod2_now_ns();
  return (row){ended - started, bound - started, sod2_hook_peak() - before, resident_peak()};
}

static void write_outputs(const bench *b, int sample, const char *folder) {
  char path[PATH_CAPACITY], message[MESSAGE_CAPACITY];
  for (int i = 0; i < b->outputs; i++) {
    sod2_tensor output = sod2_output(b->model, i);
    snprintf(path, sizeof path, "%s/%d.%d.npy", folder, sample, i);
    if (sod2_npy_write(path, &output, message, sizeof message) != 0) fail("%s", message);
  }
}

/* Whether the sample never ran before in this process; it has from now on. */
static int first_time(bench *b, int32_t sample) {
  for (int64_t i = 0; i < b->seen_count; i++)
    if (b->seen[i] == sample) return 0;
  int32_t *grown = realloc(b->seen, sizeof *grown * (size_t)(b->seen_count + 1));
  if (grown == NULL) fail("no memory for the list of samples");
  b->seen = grown;
  b->seen[b->seen_count++] = sample;
  return 1;
}

/* `folder` is NULL when no outputs are wanted. */
static void run(bench *b, int sample, int count, const char *folder) {
  if (sample != b->staged) {
    stage(b, sample);
    sod2_trim(b->model);
    b->staged = sample;
    b->before = sod2_hook_live();
  }
  int first = first_time(b, sample);
  for (int repeat = 0; repeat < count; repeat++) {
    row r = infer(b, b->before);
    if (repeat == count - 1 && folder != NULL) write_outputs(b, sample, folder);
    printf(
        "{\"sample\": %d, \"repeat\": %d, \"first\": %s, \"latency_ns\": %lld, \"copy_ns\": 0, \"bind_ns\": %lld, "
        "\"peak_bytes\": %lld, \"own_bytes\": %lld, \"hwm_bytes\": %lld}\n",
        sample, repeat, first && repeat == 0 ? "true" : "false", (long long)r.latency_ns, (long long)r.bind_ns,
        (long long)r.peak_bytes, (long long)sod2_get_stats(b->model).arena_bytes, (long long)r.hwm_bytes);
    fflush(stdout);
  }
}

/* Returns 0 when the process is to end. */
static int obey(bench *b, char *line) {
  int sample, count, parsed = 0;
  line[strcspn(line, "\r\n")] = 0;
  if (strcmp(line, "quit") == 0) return 0;
  if (sscanf(line, "run %d %d%n", &sample, &count, &parsed) == 2 && sample >= 0 && count >= 1 &&
      (line[parsed] == 0 || line[parsed] == ' ')) {
    char *folder = line + parsed + strspn(line + parsed, " ");
    run(b, sample, count, *folder == 0 ? NULL : folder);
    return 1;
  }
  char text[MESSAGE_CAPACITY];
  snprintf(text, sizeof text, "unknown command '%s', accepted are: run SAMPLE COUNT [FOLDER], quit", line);
  print_error(text);
  return 1;
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s SAMPLES_DIR THREADS\n", argv[0]);
    return 2;
  }
  bench b = {.staged = -1};
  start(&b, argv[1], argv[2]);
  char *line = NULL;
  size_t capacity = 0;
  while (getline(&line, &capacity, stdin) >= 0 && obey(&b, line)) {
  }
  free(line);
  finish(&b);
  return EXIT_SUCCESS;
}
