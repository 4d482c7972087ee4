/* The bench executable of an artifact: `bench SAMPLES_DIR THREADS`, the process that the harness measures. It lies beside
   weights.bin, reads one command a line from stdin and prints one JSON object a line to stdout:

     (start)             {"ready": true, ...}
     run I N [OUTDIR]    N inferences of sample I, read from SAMPLES_DIR/I.K.npy for every input K; a line for each. With
                         OUTDIR the last outputs are written to OUTDIR/I.K.npy before the last line.
     quit

   latency_ns is bind + run: the inputs lie in memory already, the outputs are read where they are, so nothing is copied.
   peak_bytes is the largest live heap and anonymous memory during the inference over what was live before the sample
   was bound, when the memory in which binding plans is there already; hwm_bytes, the largest resident size of the process meanwhile, is a cross-check. A sample whose inputs are
   as large as any before it starts without an arena (sod2_trim): what an earlier one left mapped, on a longer path of
   branches, would otherwise hide what this one needs. A smaller one meets what the session holds, as in an application.
   A failure prints {"error": ...} and ends the process with status 1. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "npy.h"
#include "program.h"
#include "protocol.h"

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
  int64_t largest;    /* elements of the inputs of the largest sample so far */
  int64_t before;     /* live bytes when it was staged, without the arena */
} bench;

static void check(int status) {
  if (status != SOD2_OK) sod2_fail("%s", sod2_message());
}

static void *allocate(int64_t count, size_t size) {
  void *block = calloc((size_t)count + 1, size);
  if (block == NULL) sod2_fail("no memory for the tables of the bench");
  return block;
}

/* weights.bin in the folder of this executable. */
static void find_weights(char path[PATH_CAPACITY]) {
  static const char name[] = "weights.bin";
  ssize_t length = readlink("/proc/self/exe", path, PATH_CAPACITY - sizeof name);
  if (length < 0) sod2_fail("cannot read /proc/self/exe, the place of this executable");
  path[length] = 0;
  strcpy(strrchr(path, '/') + 1, name);
}

static void start(bench *b, const char *samples, const char *threads_text) {
  char path[PATH_CAPACITY];
  int threads = sod2_thread_argument(threads_text);
  find_weights(path);
  int64_t started = sod2_now_ns();
  check(sod2_load(path, threads, &b->model));
  int64_t load_ns = sod2_now_ns() - started, ranks = 0;
  b->samples = samples;
  b->inputs = sod2_input_count(b->model);
  b->outputs = sod2_output_count(b->model);
  for (int i = 0; i < b->inputs; i++) ranks += sod2_input(b->model, i).rank;
  b->input = allocate(b->inputs, sizeof *b->input);
  b->data = allocate(b->inputs, sizeof *b->data);
  b->dims = allocate(ranks, sizeof *b->dims);
  sod2_stats stats = sod2_get_stats(b->model);
  sod2_print_ready("sod2", SOD2_VERSION, stats.threads, stats.weight_bytes, load_ns);
}

static void finish(bench *b) {
  for (int i = 0; i < b->inputs; i++) free(b->input[i].data);
  free(b->input);
  free(b->data);
  free(b->dims);
  free(b->seen);
  sod2_free(b->model);
}

/* Reads the inputs of a sample and returns the number of their elements; the previous sample's are freed. */
static int64_t stage(bench *b, int sample) {
  char path[PATH_CAPACITY], message[MESSAGE_CAPACITY];
  int64_t *dim = b->dims, elements = 0;
  for (int i = 0; i < b->inputs; i++) {
    sod2_tensor wanted = sod2_input(b->model, i);
    free(b->input[i].data);
    snprintf(path, sizeof path, "%s/%d.%d.npy", b->samples, sample, i);
    if (sod2_npy_read(path, &b->input[i], message, sizeof message) != 0) sod2_fail("%s", message);
    if (b->input[i].dtype != wanted.dtype || b->input[i].rank != wanted.rank)
      sod2_fail("%s is %s of rank %d, input %s is %s of rank %d", path, sod2_dtype_name(b->input[i].dtype),
                b->input[i].rank, wanted.name, sod2_dtype_name(wanted.dtype), wanted.rank);
    b->data[i] = b->input[i].data;
    int64_t size = 1;
    for (int axis = 0; axis < wanted.rank; axis++) size *= *dim++ = b->input[i].dims[axis];
    elements += size;
  }
  return elements;
}

/* One inference of the staged sample; `before` = live bytes before its arena was there. */
static sod2_inference infer(bench *b, int64_t before) {
  sod2_reset_resident_peak();
  sod2_hook_reset();
  int64_t started = sod2_now_ns();
  check(sod2_bind(b->model, b->dims));
  int64_t bound = sod2_now_ns();
  check(sod2_run(b->model, b->data));
  int64_t ended = sod2_now_ns();
  return (sod2_inference){.latency_ns = ended - started,
                          .bind_ns = bound - started,
                          .peak_bytes = sod2_hook_peak() - before,
                          .own_bytes = sod2_get_stats(b->model).arena_bytes,
                          .hwm_bytes = sod2_resident_peak()};
}

static void write_outputs(const bench *b, int sample, const char *folder) {
  char path[PATH_CAPACITY], message[MESSAGE_CAPACITY];
  for (int i = 0; i < b->outputs; i++) {
    sod2_tensor output = sod2_output(b->model, i);
    snprintf(path, sizeof path, "%s/%d.%d.npy", folder, sample, i);
    if (sod2_npy_write(path, &output, message, sizeof message) != 0) sod2_fail("%s", message);
  }
}

/* Whether the sample never ran before in this process; it has from now on. */
static int first_time(bench *b, int32_t sample) {
  for (int64_t i = 0; i < b->seen_count; i++)
    if (b->seen[i] == sample) return 0;
  int32_t *grown = realloc(b->seen, sizeof *grown * (size_t)(b->seen_count + 1));
  if (grown == NULL) sod2_fail("no memory for the list of samples");
  b->seen = grown;
  b->seen[b->seen_count++] = sample;
  return 1;
}

static void run(void *engine, int sample, int count, const char *folder) {
  bench *b = engine;
  if (sample != b->staged) {
    const int64_t elements = stage(b, sample);
    if (elements >= b->largest) sod2_trim(b->model), b->largest = elements;
    b->staged = sample;
    b->before = sod2_hook_live() - sod2_get_stats(b->model).reserved_bytes;
  }
  int first = first_time(b, sample);
  for (int repeat = 0; repeat < count; repeat++) {
    sod2_inference row = infer(b, b->before);
    row.sample = sample;
    row.repeat = repeat;
    row.first = first && repeat == 0;
    if (repeat == count - 1 && folder != NULL) write_outputs(b, sample, folder);
    sod2_print_inference(&row);
  }
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s SAMPLES_DIR THREADS\n", argv[0]);
    return 2;
  }
  bench b = {.staged = -1};
  start(&b, argv[1], argv[2]);
  sod2_serve(&b, run);
  finish(&b);
  return EXIT_SUCCESS;
}
