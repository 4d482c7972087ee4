/* Public C interface of a compiled model. An artifact (a folder with weights.bin beside the generated code linked with
   this runtime) is loaded once, bound to the dims of its inputs, and run any number of times.

     sod2_model *model;
     if (sod2_load("model.sod2/weights.bin", 2, &model)) puts(sod2_message());
     sod2_bind(model, dims);            // dims of all inputs, one after the other; microseconds
     sod2_run(model, inputs);           // inputs[i]: the caller's dense buffer of input i
     sod2_tensor y = sod2_output(model, 0);   // valid until the next bind, run or free

   Every function that can fail returns 0 or one of the codes below; sod2_message() is then one sentence naming the
   offender, the value and what is accepted. A model is used by one thread at a time; its own threads are inside. */
#ifndef SOD2_H
#define SOD2_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SOD2_VERSION "0.1.0"
#define SOD2_MAX_RANK 8

enum sod2_status {
    SOD2_OK = 0, SOD2_ERROR_FILE = 1, SOD2_ERROR_INPUT = 2, SOD2_ERROR_MEMORY = 3,
    SOD2_ERROR_BUDGET = 4  /* a memory budget does not suffice */
};

/* Values are ONNX's TensorProto.DataType. */
enum sod2_dtype {
    SOD2_FLOAT32 = 1, SOD2_UINT8 = 2, SOD2_INT8 = 3, SOD2_UINT16 = 4, SOD2_INT16 = 5, SOD2_INT32 = 6, SOD2_INT64 = 7,
    SOD2_BOOL = 9, SOD2_FLOAT16 = 10, SOD2_FLOAT64 = 11, SOD2_UINT32 = 12, SOD2_UINT64 = 13, SOD2_BFLOAT16 = 16
};

typedef struct sod2_model sod2_model;

typedef struct sod2_tensor {
    const char *name;
    int32_t dtype;
    int32_t rank;
    int64_t dims[SOD2_MAX_RANK];
    void *data;
} sod2_tensor;

typedef struct sod2_stats {
    int64_t arena_bytes;   /* what the placement at the bound shape needs, scratch and outputs in; of a model with sizes
                              that only execution tells, what the last run needed, and before it what is known */
    int64_t live_bytes;    /* largest sum of live buffers over the steps: a lower bound of arena_bytes */
    int64_t reserved_bytes;/* high-water of the session: bytes of the arena mapped now */
    int64_t weight_bytes;  /* packed weights, mapped and shared between processes */
    int64_t bind_ns;       /* time of the last bind that was not answered from the plan cache */
    int32_t threads;       /* threads that run, the caller's included */
    int32_t table;         /* of a model with a memory budget: how lean the bound plan is, 0 for the plain one */
} sod2_stats;

int sod2_load(const char *weights_path, int threads, sod2_model **model);
int sod2_bind(sod2_model *model, const int64_t *dims); /* when it fails, also for a budget, all stays as it was */
int sod2_run(sod2_model *model, const void *const *inputs);
/* Gives the arena's memory back to the system; outputs are lost. The next bind or run maps what it needs again. */
void sod2_trim(sod2_model *model);
void sod2_free(sod2_model *model);

int sod2_input_count(const sod2_model *model);
int sod2_output_count(const sod2_model *model);
/* As declared: unknown dims are -1, as is the rank of an output that has one of several, and data is NULL. Without a run
   since the last bind an output is so too. An index that is out of range gives a tensor whose name is NULL. */
sod2_tensor sod2_input(const sod2_model *model, int index);
sod2_tensor sod2_output(const sod2_model *model, int index);
sod2_stats sod2_get_stats(const sod2_model *model);
const char *sod2_message(void); /* of the last failure in this thread */

/* The steps of the execution plan, in order; with a memory budget, of the plan that the bound shape got. */
int sod2_step_count(const sod2_model *model);
const char *sod2_step_name(const sod2_model *model, int step);
/* With profiling on, nanoseconds of each step in the last run, 0 for a step whose branch was not taken. */
void sod2_profile(sod2_model *model, int on);
const int64_t *sod2_step_ns(const sod2_model *model);

/* The buffers of the bound plan, scratch included: the steps first..last at which each is live, and its place in the
   arena. A buffer whose size only execution tells is that of the last run; without a bound plan all have 0 bytes. */
typedef struct sod2_buffer {
    int32_t first, last;
    int64_t bytes, offset;
} sod2_buffer;
int sod2_buffer_count(const sod2_model *model);
sod2_buffer sod2_get_buffer(const sod2_model *model, int index); /* 0 <= index < count */

/* What this machine does at most with so many threads (>= 1), measured now, in a fraction of a second: floating-point
   operations a second, cycles a second of a thread that does them, and bytes read a second from a set of
   SOD2_SMALLEST_SET << i bytes. Needs no model. */
#define SOD2_SMALLEST_SET 65536
#define SOD2_SETS 12
typedef struct sod2_limits {
    double flops, clock;
    double bandwidth[SOD2_SETS];
} sod2_limits;
int sod2_measure_limits(int threads, sod2_limits *limits); /* SOD2_ERROR_MEMORY where there is none; no message */

#ifdef __cplusplus
}
#endif
#endif
