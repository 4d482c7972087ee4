/* onnxruntime's runner where there is no Python: `ort_runner SETTINGS SAMPLES THREADS`, beside model.onnx.

   Does what ort_runner.py does, through the C interface: the model is loaded twice, the first time without an arena, to
   tell what the model itself keeps live; inputs are handed over without a copy, outputs are allocated by onnxruntime.
   SETTINGS are letters: `a` for the arena and memory patterns, `o` for graph optimisations; `-` is none of them. Uses
   what has one binary interface in all C libraries, so that it can be built without Android's headers (android.py). */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "npy.h"
#include "onnxruntime_c_api.h"
#include "protocol.h"

int64_t sod2_hook_live(void); /* memhook.c */
int64_t sod2_hook_peak(void);
void sod2_hook_reset(void);

#define CAPACITY 8192

typedef struct runner {
  const OrtApi *api;
  OrtEnv *environment;
  OrtSession *session;
  OrtMemoryInfo *memory;
  const char *samples;
  size_t inputs, outputs;
  char **names;        /* [inputs + outputs] */
  sod2_tensor *arrays; /* [inputs] the staged sample, and */
  OrtValue **values;   /* [inputs + outputs] what onnxruntime sees of it, and its last outputs */
  int staged;          /* the sample, -1 before the first */
  int64_t loaded;      /* live bytes without any sample and without room in the arena */
  int64_t base;        /* and with the staged inputs */
} runner;

static void check(const runner *r, OrtStatus *status) {
  if (status != NULL) sod2_fail("%s", r->api->GetErrorMessage(status));
}

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void *allocate(size_t count, size_t size) {
  void *block = calloc(count + 1, size);
  if (block == NULL) sod2_fail("no memory for the tables of the runner");
  return block;
}

static int thread_count(void) {
  DIR *folder = opendir("/proc/self/task");
  int count = 0;
  if (folder == NULL) sod2_fail("cannot read /proc/self/task, the threads of this process");
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;) count += entry->d_name[0] != '.';
  closedir(folder);
  return count;
}

static OrtSession *open_session(const runner *r, int threads, int arena, int optimise) {
  const OrtApi *api = r->api;
  OrtSessionOptions *options;
  OrtSession *session;
  check(r, api->CreateSessionOptions(&options));
  check(r, api->SetIntraOpNumThreads(options, threads));
  check(r, api->SetInterOpNumThreads(options, 1));
  check(r, api->SetSessionExecutionMode(options, ORT_SEQUENTIAL));
  check(r, arena ? api->EnableCpuMemArena(options) : api->DisableCpuMemArena(options));
  check(r, arena ? api->EnableMemPattern(options) : api->DisableMemPattern(options));
  check(r, api->SetSessionGraphOptimizationLevel(options, optimise ? ORT_ENABLE_ALL : ORT_DISABLE_ALL));
  check(r, api->CreateSession(r->environment, "model.onnx", options, &session));
  api->ReleaseSessionOptions(options);
  return session;
}

static void find_names(runner *r) {
  OrtAllocator *allocator;
  check(r, r->api->GetAllocatorWithDefaultOptions(&allocator));
  check(r, r->api->SessionGetInputCount(r->session, &r->inputs));
  check(r, r->api->SessionGetOutputCount(r->session, &r->outputs));
  r->names = allocate(r->inputs + r->outputs, sizeof *r->names);
  r->values = allocate(r->inputs + r->outputs, sizeof *r->values);
  r->arrays = allocate(r->inputs, sizeof *r->arrays);
  for (size_t i = 0; i < r->inputs; i++) check(r, r->api->SessionGetInputName(r->session, i, allocator, &r->names[i]));
  for (size_t i = 0; i < r->outputs; i++)
    check(r, r->api->SessionGetOutputName(r->session, i, allocator, &r->names[r->inputs + i]));
}

static void start(runner *r, const char *settings, const char *samples, int threads) {
  int arena = strchr(settings, 'a') != NULL, optimise = strchr(settings, 'o') != NULL;
  r->api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (r->api == NULL) sod2_fail("the onnxruntime beside this runner is older than the headers it was built with");
  r->samples = samples;
  check(r, r->api->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "runner", &r->environment));
  check(r, r->api->DisableTelemetryEvents(r->environment));
  check(r, r->api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &r->memory));
  r->session = open_session(r, threads, 0, optimise);
  find_names(r);
  r->loaded = sod2_hook_live();
  r->api->ReleaseSession(r->session);
  int64_t weight_bytes = r->loaded - sod2_hook_live(), started = now_ns();
  int before = thread_count();
  r->session = open_session(r, threads, arena, optimise);
  int64_t load_ns = now_ns() - started;
  int working = 1 + thread_count() - before; /* the caller works too */
  char version[128];
  snprintf(version, sizeof version, "%s%s", OrtGetApiBase()->GetVersionString(), ANDROID_NOTE);
  sod2_print_ready("onnxruntime", version, working, weight_bytes, load_ns);
}

static void drop(runner *r, size_t from, size_t to) {
  for (size_t i = from; i < to; i++) {
    if (r->values[i] != NULL) r->api->ReleaseValue(r->values[i]);
    r->values[i] = NULL;
  }
}

/* Reads the inputs of a sample; the previous sample's arrays are freed. */
static void stage(runner *r, int sample) {
  char path[CAPACITY], message[CAPACITY];
  drop(r, 0, r->inputs + r->outputs);
  for (size_t i = 0; i < r->inputs; i++) {
    free(r->arrays[i].data);
    r->arrays[i].data = NULL;
  }
  int64_t before = sod2_hook_live();
  for (size_t i = 0; i < r->inputs; i++) {
    sod2_tensor *array = &r->arrays[i];
    snprintf(path, sizeof path, "%s/%d.%zu.npy", r->samples, sample, i);
    if (sod2_npy_read(path, array, message, sizeof message) != 0) sod2_fail("%s", message);
    size_t bytes = (size_t)sod2_dtype_bytes(array->dtype);
    for (int32_t axis = 0; axis < array->rank; axis++) bytes *= (size_t)array->dims[axis];
    /* Both use ONNX's numbers of element types. */
    check(r, r->api->CreateTensorWithDataAsOrtValue(r->memory, array->data, bytes, array->dims, (size_t)array->rank,
                                                    (ONNXTensorElementDataType)array->dtype, &r->values[i]));
  }
  r->base = r->loaded + sod2_hook_live() - before;
  r->staged = sample;
}

static sod2_inference infer(runner *r) {
  drop(r, r->inputs, r->inputs + r->outputs);
  sod2_reset_resident_peak();
  sod2_hook_reset();
  int64_t started = now_ns();
  check(r, r->api->Run(r->session, NULL, (const char *const *)r->names, (const OrtValue *const *)r->values, r->inputs,
                       (const char *const *)r->names + r->inputs, r->outputs, r->values + r->inputs));
  return (sod2_inference){.latency_ns = now_ns() - started,
                          .peak_bytes = sod2_hook_peak() - r->base,
                          .own_bytes = -1,
                          .hwm_bytes = sod2_resident_peak()};
}

static void write_outputs(const runner *r, int sample, const char *folder) {
  char path[CAPACITY], message[CAPACITY];
  for (size_t i = 0; i < r->outputs; i++) {
    sod2_tensor output = {0};
    OrtTensorTypeAndShapeInfo *info;
    ONNXTensorElementDataType type;
    size_t rank;
    check(r, r->api->GetTensorTypeAndShape(r->values[r->inputs + i], &info));
    check(r, r->api->GetTensorElementType(info, &type));
    check(r, r->api->GetDimensionsCount(info, &rank));
    if (rank > SOD2_MAX_RANK) sod2_fail("output %zu has rank %zu, up to %d can be written", i, rank, SOD2_MAX_RANK);
    check(r, r->api->GetDimensions(info, output.dims, rank));
    check(r, r->api->GetTensorMutableData(r->values[r->inputs + i], &output.data));
    r->api->ReleaseTensorTypeAndShapeInfo(info);
    output.dtype = (int32_t)type;
    output.rank = (int32_t)rank;
    snprintf(path, sizeof path, "%s/%d.%zu.npy", folder, sample, i);
    if (sod2_npy_write(path, &output, message, sizeof message) != 0) sod2_fail("%s", message);
  }
}

static void run(void *engine, int sample, int count, const char *folder) {
  runner *r = engine;
  int first = sample != r->staged;
  if (first) stage(r, sample);
  for (int repeat = 0; repeat < count; repeat++) {
    sod2_inference row = infer(r);
    row.sample = sample;
    row.repeat = repeat;
    row.first = first && repeat == 0;
    if (repeat == count - 1 && folder != NULL) write_outputs(r, sample, folder);
    sod2_print_inference(&row);
  }
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s SETTINGS SAMPLES THREADS\n", argv[0]);
    return 2;
  }
  runner r = {.staged = -1};
  start(&r, argv[1], argv[2], sod2_thread_argument(argv[3]));
  sod2_serve(&r, run);
  return 0; /* the process ends: what it holds goes with it */
}
