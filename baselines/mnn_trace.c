/* Looks into the stock MNN 3.6.1 wheel: where the time of a re-initialisation goes, and how many bytes are weights.

     gcc -O2 -fPIC -shared -o libmnn_trace.so mnn_trace.c; LD_PRELOAD=./libmnn_trace.so:./libmemhook.so python ...

   MNN reports neither. Its library exports its C++ functions and calls them through the dynamic linker, so functions of
   the same (mangled) names that are preloaded are called first; each passes its arguments on and counts

     0 resize   Session::resize, the whole re-initialisation for new shapes
     1 shapes   shape inference, constant folding and the decomposition of operators by their geometry
     2 create   making the operators' kernels: packing weights, choosing tiles; the bytes that this keeps are weights
     3 alloc    the planning allocators and the aligned heap, inside a resize only
     4 run      Session::run

   Times are inclusive: what a resize spends in neither shapes nor alloc is the paper's ST (schedule, tuning). The names
   are those of version 3.6.1; with another one a function that was renamed is not counted, so a user sees to it
   that the calls of what it needs are not zero. x86-64 and AArch64: arguments are passed on as 14 words, enough for all of them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum category { RESIZE, SHAPES, CREATE, ALLOC, RUN, CATEGORIES };

static int64_t spent_ns[CATEGORIES], calls[CATEGORIES], alloc_in_shapes_ns, weight_bytes;
static __thread int depth[CATEGORIES];

int64_t sod2_hook_live(void) __attribute__((weak)); /* of libmemhook.so */

int64_t sod2_mnn_ns(int category) { return spent_ns[category]; }
int64_t sod2_mnn_calls(int category) { return calls[category]; }
int64_t sod2_mnn_alloc_in_shapes_ns(void) { return alloc_in_shapes_ns; }
int64_t sod2_mnn_weight_bytes(void) { return weight_bytes; }
void sod2_mnn_reset(void) { /* of times, never of weights */
  memset(spent_ns, 0, sizeof spent_ns);
  memset(calls, 0, sizeof calls);
  alloc_in_shapes_ns = 0;
}

typedef unsigned __int128 result; /* two registers: whatever a function returns by value */
typedef uint64_t word;
#define PARAMETERS                                                                                                     \
  word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k, word l, word m, word n
#define ARGUMENTS a, b, c, d, e, f, g, h, i, j, k, l, m, n
typedef result function(PARAMETERS);

static int is_engine(struct dl_phdr_info *library, size_t size, void *path) {
  (void)size;
  if (library->dlpi_name == NULL || strstr(library->dlpi_name, "_mnncengine") == NULL) return 0;
  *(const char **)path = library->dlpi_name;
  return 1;
}

/* The engine's own function of a name; Python loads the engine privately, so RTLD_NEXT does not reach it. */
static function *original(const char *name) {
  static void *engine;
  if (engine == NULL) {
    const char *path = NULL;
    dl_iterate_phdr(is_engine, &path);
    engine = path == NULL ? RTLD_NEXT : dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  }
  void *address = dlsym(engine, name);
  if (address == NULL) abort();
  function *typed;
  memcpy(&typed, &address, sizeof typed); /* ISO C has no cast from object to function pointers */
  return typed;
}

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static int64_t live(void) { return sod2_hook_live == NULL ? 0 : sod2_hook_live(); }

static void add(int64_t *sum, int64_t value) { __atomic_fetch_add(sum, value, __ATOMIC_RELAXED); }

static result counted(function *call, enum category category, PARAMETERS) {
  int outside = category == ALLOC && depth[RESIZE] == 0;
  if (outside || depth[category] > 0) return call(ARGUMENTS);
  depth[category]++;
  int64_t before = live(), start = now();
  result value = call(ARGUMENTS);
  int64_t time = now() - start;
  depth[category]--;
  if (category == CREATE) add(&weight_bytes, live() - before);
  if (category == ALLOC && depth[SHAPES] > 0) add(&alloc_in_shapes_ns, time);
  add(&spent_ns[category], time);
  add(&calls[category], 1);
  return value;
}

#define COUNT(category, name)                                                                                          \
  result name(PARAMETERS) {                                                                                            \
    static function *call;                                                                                             \
    if (call == NULL) call = original(#name);                                                                          \
    return counted(call, category, ARGUMENTS);                                                                         \
  }

COUNT(RESIZE, _ZN3MNN7Session6resizeEv)
COUNT(RUN, _ZNK3MNN7Session3runEv)
COUNT(SHAPES,
      _ZN3MNN21GeometryComputerUtils32shapeComputeAndGeometryTransformEPKNS_7RuntimeEPNS_10FileLoaderERSt6vectorINS_8Schedule11OpCacheInfoESaIS8_EERNS_16GeometryComputer7ContextESt10shared_ptrINS_7BackendEENS1_12CompilerTypeEbb)
COUNT(CREATE,
      _ZN3MNN13OpCommonUtils27createExecutionWithExternalEPNS_7BackendERKSt6vectorIPNS_6TensorESaIS5_EES9_PKNS_2OpEPNS_10FileLoaderERSt10shared_ptrINS_13BufferStorageEE)
#ifdef __x86_64__ /* return an object, on AArch64 by a register that C cannot pass on: there their time counts as ST */
COUNT(ALLOC, _ZN3MNN20EagerBufferAllocator5allocEmbm)
COUNT(ALLOC, _ZN3MNN20DeferBufferAllocator5allocEmbm)
#endif
COUNT(ALLOC, _ZN3MNN20EagerBufferAllocator4freeENS_8MemChunkE)
COUNT(ALLOC, _ZN3MNN20EagerBufferAllocator7releaseEb)
COUNT(ALLOC, _ZN3MNN20DeferBufferAllocator4freeENS_8MemChunkE)
COUNT(ALLOC, _ZN3MNN20DeferBufferAllocator7releaseEb)
COUNT(ALLOC, _ZN3MNN20DeferBufferAllocator5resetEv)
COUNT(ALLOC, _ZN3MNN20DeferBufferAllocator7computeEv)
COUNT(ALLOC, _ZN3MNN20DeferBufferAllocator5applyEv)
COUNT(ALLOC, MNNMemoryAllocAlign)
COUNT(ALLOC, MNNMemoryFreeAlign)
