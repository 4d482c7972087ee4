/* A loaded model: weights, arena, threads and bound plans. Implements sod2.h over the tables of program.h.

   - Weights are mapped read-only and shared between processes; the file's header must match the generated code.
   - The arena is one anonymous mapping of exactly what the largest bound shape needs. Nothing in it lives from one run
     to the next, so growing is unmap, then map: two arenas never exist at once and nothing is copied.
   - Of a model whose execution mints symbols (program.h: stages), the arena lies at the start of a reservation of address
     space, so that it grows in the middle of a run under live pointers. Offsets from stage 1 on are found anew in every
     run, from the bound plan and the symbols learnt alone.
   - A bound plan (symbols, choices, offsets) is kept for the last PLANS dims, most recently used first; binding dims
     that were seen costs a comparison. A bind that fails leaves the model bound as it was. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "program.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#define PLANS 32
#define MAX_THREADS 1024
#define MESSAGE_CAPACITY 512
/* From this size the arena asks for huge pages: the first touch of 20 MB then costs 0.5 ms where 4 KB pages cost 16. */
#define HUGE_PAGE ((int64_t)2 << 20)

/* Address space reserved for an arena that grows while the model runs; less where the system refuses that much. */
#define RESERVATION ((int64_t)64 << 30)

/* What bind decides for one tuple of dims, and what each run adds from stage 1 on. The arrays lie in one block behind
   the struct. */
typedef struct plan {
  int64_t *dims, *sym, *choice, *offset, *bytes;
  int64_t *needed; /* [deepest + 1] arena of a run that enters branches up to a depth */
  int64_t arena_bytes, live_bytes; /* of stage 0 */
} plan;

struct sod2_model {
  const sod2_program *program;
  sod2_pool *pool;
  char *file; /* weights.bin, header included */
  int64_t file_bytes;
  char *arena;
  int64_t reserved; /* bytes of the arena that are mapped */
  int64_t space;    /* bytes of address space reserved for it, of a model with stages */
  int64_t arena_bytes, live_bytes; /* of the bound plan, and then of its last run */
  int32_t ranks; /* dims of all inputs together */
  int32_t plans;
  plan *plan[PLANS]; /* most recently used first */
  plan *bound;
  int ran;            /* outputs are there */
  char **address;     /* [buffers] at the bound plan and the current arena */
  sod2_block *block;  /* [blocks] */
  const void **input; /* [inputs] of the last run: an output may be an input */
  uint8_t *given;     /* [buffers] placed before the stage that begins */
  int failure;        /* code of a stage that refused */
  int64_t *step_ns;   /* [steps] */
  int profiling;
  int64_t bind_ns;
};

static _Thread_local char message[MESSAGE_CAPACITY];

/* Writes the message of a failure and returns its code. */
__attribute__((format(printf, 2, 3))) static int fail(int code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return code;
}

const char *sod2_message(void) { return message; }

int64_t sod2_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- load and free ---------------------------------------------------------------------------------------------- */

/* Checks that an open weights file of `size` bytes is the one that the program was generated with. */
static int check_weights(const sod2_program *program, const char *path, int file, int64_t size) {
  char header[SOD2_WEIGHTS_HEADER];
  int64_t payload;
  if (pread(file, header, sizeof header, 0) != (ssize_t)sizeof header || memcmp(header, SOD2_WEIGHTS_MAGIC, 8) != 0)
    return fail(SOD2_ERROR_FILE, "%s is not a weights file: it does not start with %s", path, SOD2_WEIGHTS_MAGIC);
  memcpy(&payload, header + 8, sizeof payload);
  if (memcmp(header + 16, program->weight_digest, SOD2_DIGEST_LENGTH) != 0 || payload != program->weight_bytes)
    return fail(SOD2_ERROR_FILE, "%s belongs to another model: its digest is %.*s, model %s needs %s", path,
                SOD2_DIGEST_LENGTH, header + 16, program->name, program->weight_digest);
  if (size != SOD2_WEIGHTS_HEADER + payload)
    return fail(SOD2_ERROR_FILE, "%s has %lld bytes, its header says %lld", path, (long long)size,
                (long long)(SOD2_WEIGHTS_HEADER + payload));
  return SOD2_OK;
}

/* Maps the weights with all pages present, so that the first run pays no page faults for them. */
static int map_weights(sod2_model *model, const char *path) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return fail(SOD2_ERROR_FILE, "cannot open the weights %s: %s", path, strerror(errno));
  struct stat status;
  int code = SOD2_OK;
  if (fstat(file, &status) != 0) code = fail(SOD2_ERROR_FILE, "cannot read %s: %s", path, strerror(errno));
  if (code == SOD2_OK) code = check_weights(model->program, path, file, status.st_size);
  if (code == SOD2_OK) {
    void *mapped = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    if (mapped == MAP_FAILED) {
      code = fail(SOD2_ERROR_MEMORY, "cannot map %s: %s", path, strerror(errno));
    } else {
      model->file = mapped;
      model->file_bytes = status.st_size;
    }
  }
  close(file);
  return code;
}

/* calloc that never asks for 0 bytes, so that NULL always means no memory. */
static void *table(int64_t count, size_t size) { return calloc((size_t)count + 1, size); }

static int allocate_tables(sod2_model *model) {
  const sod2_program *program = model->program;
  for (int32_t i = 0; i < program->inputs; i++) model->ranks += program->input[i].rank;
  model->address = table(program->buffers, sizeof *model->address);
  model->input = table(program->inputs, sizeof *model->input);
  model->given = table(program->buffers, sizeof *model->given);
  model->block = table(program->blocks, sizeof *model->block);
  model->step_ns = table(program->steps, sizeof *model->step_ns);
  if (!model->address || !model->input || !model->given || !model->block || !model->step_ns)
    return fail(SOD2_ERROR_MEMORY, "no memory for the tables of model %s", program->name);
  return SOD2_OK;
}

int sod2_load(const char *weights_path, int threads, sod2_model **result) {
  *result = NULL;
  if (threads < 1 || threads > MAX_THREADS)
    return fail(SOD2_ERROR_INPUT, "threads is %d, accepted are 1 to %d", threads, MAX_THREADS);
  sod2_model *model = calloc(1, sizeof *model);
  if (model == NULL) return fail(SOD2_ERROR_MEMORY, "no memory for model %s", sod2_main.name);
  model->program = &sod2_main;
  int code = map_weights(model, weights_path);
  if (code == SOD2_OK) code = allocate_tables(model);
  if (code == SOD2_OK && (model->pool = sod2_pool_create(threads)) == NULL)
    code = fail(SOD2_ERROR_MEMORY, "cannot start %d threads", threads);
  if (code != SOD2_OK) {
    sod2_free(model);
    return code;
  }
  *result = model;
  return SOD2_OK;
}

void sod2_trim(sod2_model *model) {
#ifdef __SANITIZE_ADDRESS__
  if (model->arena != NULL) ASAN_UNPOISON_MEMORY_REGION(model->arena, (size_t)model->reserved);
#endif
  if (model->arena != NULL) munmap(model->arena, (size_t)(model->space > 0 ? model->space : model->reserved));
  if (model->block != NULL) sod2_blocks_free(model->block, model->program->blocks);
  model->arena = NULL;
  model->reserved = model->space = 0;
  model->ran = 0;
}

void sod2_free(sod2_model *model) {
  if (model == NULL) return;
  sod2_trim(model);
  if (model->file != NULL) munmap(model->file, (size_t)model->file_bytes);
  sod2_pool_free(model->pool);
  for (int32_t i = 0; i < model->plans; i++) free(model->plan[i]);
  free(model->address);
  free(model->input);
  free(model->given);
  free(model->block);
  free(model->step_ns);
  free(model);
}

/* ---- bind ------------------------------------------------------------------------------------------------------- */

/* Dims that no model of these declarations accepts; what the symbols allow is program->bind's to check. */
static int check_dims(const sod2_program *program, const int64_t *dims) {
  for (int32_t i = 0; i < program->inputs; i++) {
    const sod2_io *input = &program->input[i];
    for (int32_t axis = 0; axis < input->rank; axis++) {
      int64_t dim = *dims++, declared = input->dims[axis];
      if (dim < 0)
        return fail(SOD2_ERROR_INPUT, "input %s: dim %d is %lld, accepted is 0 or more", input->name, axis,
                    (long long)dim);
      if (declared >= 0 && dim != declared)
        return fail(SOD2_ERROR_INPUT, "input %s: dim %d is %lld, accepted is %lld", input->name, axis, (long long)dim,
                    (long long)declared);
    }
  }
  return SOD2_OK;
}

static plan *create_plan(const sod2_model *model) {
  const sod2_program *program = model->program;
  size_t words = (size_t)model->ranks + (size_t)program->symbols + (size_t)program->minted + (size_t)program->choices +
                 2 * (size_t)program->buffers + (size_t)program->deepest + 1;
  plan *created = calloc(1, sizeof *created + words * sizeof(int64_t));
  if (created == NULL) return NULL;
  created->dims = (int64_t *)(created + 1);
  created->sym = created->dims + model->ranks;
  created->choice = created->sym + program->symbols + program->minted;
  created->offset = created->choice + program->choices;
  created->bytes = created->offset + program->buffers;
  created->needed = created->bytes + program->buffers;
  return created;
}

/* Whether all buffers together, rounded up, fit 62 bits: then no sum that the placement makes can overflow. */
static int sizes_fit(const int64_t *bytes, int32_t count) {
  int64_t total = 0;
  for (int32_t i = 0; i < count; i++)
    if (__builtin_add_overflow(total, bytes[i], &total) || __builtin_add_overflow(total, SOD2_ALIGN, &total)) return 0;
  return total <= (int64_t)1 << 62;
}

static const char *payload(const sod2_model *model) {
  return model->program->weight_bytes > 0 ? model->file + SOD2_WEIGHTS_HEADER : NULL;
}

/* Offsets of the buffers that have none yet: those not `given` (NULL: none is). Returns the arena's size, -1 without
   memory for planning. Under the address sanitizer every buffer is alone, between red zones, so that no kernel can write
   behind its own unnoticed: the arena is one mapping, of which the sanitizer knows nothing else. */
static int64_t place(const sod2_program *program, const uint8_t *given, plan *placed) {
#ifdef __SANITIZE_ADDRESS__
  int64_t end = SOD2_ALIGN;
  for (int pass = 0; pass < 2; pass++)
    for (int32_t i = 0; i < program->buffers; i++) {
      int is_given = given != NULL && given[i];
      if (is_given != (pass == 0)) continue;
      if (!is_given) placed->offset[i] = end;
      end = sod2_imax(end, placed->offset[i] + (placed->bytes[i] + 2 * SOD2_ALIGN - 1) / SOD2_ALIGN * SOD2_ALIGN);
    }
  return end;
#else
  return (program->peak_first ? sod2_place_peak_first : sod2_place_best_fit)(
      program->buffers, program->steps, program->range, placed->bytes, given, placed->offset);
#endif
}

/* Places everything that is known when a shape is bound, and tells the arena that each depth of branches needs. */
static int64_t place_bound(const sod2_program *program, plan *placed) {
#ifndef __SANITIZE_ADDRESS__
  if (program->deepest > 0 && program->peak_first)
    return sod2_place_by_depth(program->buffers, program->steps, program->range, placed->bytes, program->depth_of,
                               program->deepest + 1, placed->offset, placed->needed);
#endif
  int64_t arena = place(program, NULL, placed);
  for (int32_t depth = 0; depth <= program->deepest; depth++) placed->needed[depth] = arena;
  return arena;
}

static int64_t live_peak(const sod2_program *program, const plan *placed) {
  return sod2_live_peak(program->buffers, program->steps, program->range, placed->bytes);
}

/* Symbols, kernel versions, sizes and offsets for `dims`. */
static int fill_plan(sod2_model *model, const int64_t *dims, plan *filled) {
  const sod2_program *program = model->program;
  int overflow = 0;
  memcpy(filled->dims, dims, sizeof *dims * (size_t)model->ranks);
  if (program->bind(dims, filled->sym, message, sizeof message) != 0) return SOD2_ERROR_INPUT;
  program->sizes(filled->sym, payload(model), sod2_pool_threads(model->pool), filled->choice, filled->bytes, &overflow);
  if (overflow || !sizes_fit(filled->bytes, program->buffers))
    return fail(SOD2_ERROR_MEMORY, "model %s needs more than 2^62 bytes at these input dims", program->name);
  filled->live_bytes = live_peak(program, filled);
  filled->arena_bytes = place_bound(program, filled);
  if (filled->live_bytes < 0 || filled->arena_bytes < 0)
    return fail(SOD2_ERROR_MEMORY, "no memory for planning the arena of model %s", program->name);
  return SOD2_OK;
}

static int no_arena(const sod2_model *model, int64_t bytes) {
  return fail(SOD2_ERROR_MEMORY, "no memory for the %lld bytes that model %s needs at these input dims",
              (long long)bytes, model->program->name);
}

static void advise(void *begin, int64_t bytes) {
#ifdef MADV_HUGEPAGE
  if (bytes >= HUGE_PAGE) madvise(begin, (size_t)bytes, MADV_HUGEPAGE); /* advice: a refusal costs only time */
#else
  (void)begin, (void)bytes;
#endif
}

/* Maps more of the reservation, which is made first: nothing that is mapped moves or is lost. */
static int grow(sod2_model *model, int64_t wanted) {
  for (int64_t space = RESERVATION; model->arena == NULL; space /= 2) {
    if (space < wanted) return no_arena(model, wanted);
    void *reserved = mmap(NULL, (size_t)space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) continue;
    model->arena = reserved;
    model->space = space;
  }
  int64_t more = wanted - model->reserved;
  if (wanted > model->space || mmap(model->arena + model->reserved, (size_t)more, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
    return no_arena(model, wanted);
  advise(model->arena + model->reserved, more);
  model->reserved = wanted;
  return SOD2_OK;
}

/* Whether the arena may have to grow while the model runs. */
static int grows(const sod2_program *program) { return program->minted > 0 || program->deepest > 0; }

/* Makes the arena hold `bytes`. What was in it is lost when it grows, unless it may do so during a run. */
static int reserve(sod2_model *model, int64_t bytes) {
  int64_t page = sysconf(_SC_PAGESIZE);
  int64_t wanted = (bytes + SOD2_ALIGN + page - 1) / page * page; /* an empty tensor at the end has readable bytes too */
  if (grows(model->program)) return wanted <= model->reserved ? SOD2_OK : grow(model, wanted);
  if (bytes <= model->reserved) return SOD2_OK;
  sod2_trim(model);
  void *mapped = mmap(NULL, (size_t)wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return no_arena(model, bytes);
  advise(mapped, wanted);
  model->arena = mapped;
  model->reserved = wanted;
  return SOD2_OK;
}

static _Alignas(SOD2_ALIGN) char nothing[SOD2_ALIGN];

/* Addresses of the buffers of `bound`. Without an arena all buffers are empty: any address does but NULL, on which
   C allows no arithmetic. */
static void set_addresses(sod2_model *model, const plan *bound) {
  char *base = model->arena != NULL ? model->arena : nothing;
  for (int32_t i = 0; i < model->program->buffers; i++) model->address[i] = base + bound->offset[i];
#ifdef __SANITIZE_ADDRESS__
  if (model->arena != NULL) ASAN_POISON_MEMORY_REGION(model->arena, (size_t)model->reserved);
  for (int32_t i = 0; i < model->program->buffers; i++)
    ASAN_UNPOISON_MEMORY_REGION(model->address[i], (size_t)bound->bytes[i]);
#endif
}

/* Moves the plan at `index` to the front. */
static plan *use(sod2_model *model, int32_t index) {
  plan *used = model->plan[index];
  memmove(model->plan + 1, model->plan, sizeof used * (size_t)index);
  return model->plan[0] = used;
}

static int32_t find_plan(const sod2_model *model, const int64_t *dims) {
  for (int32_t i = 0; i < model->plans; i++)
    if (memcmp(model->plan[i]->dims, dims, sizeof *dims * (size_t)model->ranks) == 0) return i;
  return -1;
}

/* Computes the plan of new dims and remembers it, in place of the one that was not used for longest. */
static int add_plan(sod2_model *model, const int64_t *dims) {
  int64_t started = sod2_now_ns();
  int code = check_dims(model->program, dims);
  if (code != SOD2_OK) return code;
  plan *created = create_plan(model);
  if (created == NULL) return fail(SOD2_ERROR_MEMORY, "no memory for a plan of model %s", model->program->name);
  code = fill_plan(model, dims, created);
  if (code != SOD2_OK) {
    free(created);
    return code;
  }
  if (model->plans == PLANS) free(model->plan[--model->plans]);
  model->plan[model->plans++] = created;
  model->bind_ns = sod2_now_ns() - started;
  return SOD2_OK;
}

int sod2_bind(sod2_model *model, const int64_t *dims) {
  int32_t index = find_plan(model, dims);
  if (index < 0) {
    int code = add_plan(model, dims);
    if (code != SOD2_OK) return code;
    index = model->plans - 1;
  }
  int code = reserve(model, model->plan[index]->needed[0]);
  if (code != SOD2_OK) return code;
  model->bound = use(model, index);
  model->arena_bytes = model->bound->arena_bytes;
  model->live_bytes = model->bound->live_bytes;
  model->ran = 0;
  set_addresses(model, model->bound);
  return SOD2_OK;
}

/* ---- run -------------------------------------------------------------------------------------------------------- */

/* Remembers where the inputs are. Only one without elements may be NULL. */
static int take_inputs(sod2_model *model, const void *const *inputs) {
  const int64_t *dims = model->bound->dims;
  for (int32_t i = 0; i < model->program->inputs; i++) {
    const sod2_io *input = &model->program->input[i];
    int empty = 0;
    for (int32_t axis = 0; axis < input->rank; axis++) empty |= *dims++ == 0;
    if (inputs[i] == NULL && !empty)
      return fail(SOD2_ERROR_INPUT, "input %s is NULL, accepted is the address of its elements", input->name);
    model->input[i] = empty ? nothing : inputs[i]; /* element 0 of an empty tensor may be read and discarded */
  }
  return SOD2_OK;
}

static sod2_state state_of(sod2_model *model) {
  return (sod2_state){
      .sym = model->bound->sym,
      .minted = model->bound->sym + model->program->symbols,
      .model = model,
      .input = model->input,
      .weights = payload(model),
      .buffer = model->address,
      .block = model->block,
      .plan = model->bound->choice,
      .pool = model->pool,
      .step_ns = model->profiling ? model->step_ns : NULL,
  };
}

/* Forgets what was placed from a stage on. */
static void forget(sod2_model *model, int stage) {
  for (int32_t i = 0; i < model->program->buffers; i++) {
    model->given[i] = model->program->stage_of[i] < stage;
    if (!model->given[i]) model->bound->bytes[i] = 0;
  }
}

/* A run of a model with stages starts from the bound plan alone, whatever ran before. */
static void restart(sod2_model *model) {
  forget(model, 1);
  for (int32_t i = 0; i < model->program->blocks; i++) model->block[i].needed = 0;
  model->arena_bytes = model->bound->arena_bytes;
  model->live_bytes = model->bound->live_bytes;
  set_addresses(model, model->bound);
}

/* Sizes, offsets and addresses of the buffers of a stage. */
static int place_stage(sod2_model *model, int number) {
  const sod2_program *program = model->program;
  plan *bound = model->bound;
  int overflow = 0;
  forget(model, number);
  if (program->stage(number, bound->sym, payload(model), sod2_pool_threads(model->pool), bound->choice, bound->bytes,
                     &overflow, message, sizeof message) != 0)
    return SOD2_ERROR_INPUT;
  for (int32_t i = 0; i < program->buffers; i++) /* of a branch that checks its sizes when it is taken */
    bound->bytes[i] = sod2_imax(bound->bytes[i], 0);
  if (overflow || !sizes_fit(bound->bytes, program->buffers))
    return fail(SOD2_ERROR_MEMORY, "model %s needs more than 2^62 bytes for these inputs", program->name);
  int64_t arena = place(program, model->given, bound), live = live_peak(program, bound);
  if (arena < 0 || live < 0)
    return fail(SOD2_ERROR_MEMORY, "no memory for planning the arena of model %s", program->name);
  model->arena_bytes = sod2_imax(model->arena_bytes, arena);
  model->live_bytes = sod2_imax(model->live_bytes, live);
  return reserve(model, arena);
}

const char *sod2_stage(const sod2_state *state, int number) {
  sod2_model *model = state->model;
  model->failure = place_stage(model, number);
  if (model->failure != SOD2_OK) return message;
  for (int32_t i = 0; i < model->program->buffers; i++) {
    if (model->given[i]) continue;
    model->address[i] = model->arena + model->bound->offset[i];
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(model->address[i], (size_t)model->bound->bytes[i]);
#endif
  }
  return NULL;
}

const char *sod2_enter(const sod2_state *state, int depth) {
  sod2_model *model = state->model;
  if (model->bound->needed[depth] <= model->reserved) return NULL;
  model->failure = reserve(model, model->bound->needed[depth]);
  return model->failure == SOD2_OK ? NULL : message;
}

char *sod2_hold(const sod2_state *state, int32_t block, int64_t bytes, int64_t keep) {
  sod2_model *model = state->model;
  if (sod2_block_hold(&model->block[block], bytes, keep)) return model->block[block].data;
  model->failure = no_arena(model, bytes);
  return NULL;
}

int sod2_run(sod2_model *model, const void *const *inputs) {
  if (model->bound == NULL)
    return fail(SOD2_ERROR_INPUT, "model %s is not bound: sod2_bind comes before sod2_run", model->program->name);
  int code = take_inputs(model, inputs);
  if (code != SOD2_OK) return code;
  if (model->reserved < model->bound->needed[0]) { /* after sod2_trim, or a bind that found no memory */
    code = reserve(model, model->bound->needed[0]);
    if (code != SOD2_OK) return code;
    set_addresses(model, model->bound);
  }
  model->ran = 0;
  if (model->program->minted > 0) restart(model);
  memset(model->step_ns, 0, sizeof *model->step_ns * (size_t)model->program->steps);
  sod2_state state = state_of(model);
  uint64_t floating = sod2_denormals_off();
  const char *refusal = model->program->run(&state);
  sod2_denormals_restore(floating);
  if (refusal == message) return model->failure;
  if (refusal != NULL) return fail(SOD2_ERROR_INPUT, "these inputs are not accepted: %s", refusal);
  model->ran = 1;
  return SOD2_OK;
}

/* ---- what a model tells ----------------------------------------------------------------------------------------- */

int sod2_input_count(const sod2_model *model) { return model->program->inputs; }
int sod2_output_count(const sod2_model *model) { return model->program->outputs; }

static sod2_tensor declared(const sod2_io *io) {
  sod2_tensor tensor = {.name = io->name, .dtype = io->dtype, .rank = io->rank};
  if (io->rank > 0) memcpy(tensor.dims, io->dims, sizeof *io->dims * (size_t)io->rank);
  return tensor;
}

sod2_tensor sod2_input(const sod2_model *model, int index) {
  if (index < 0 || index >= model->program->inputs) return (sod2_tensor){0};
  return declared(&model->program->input[index]);
}

sod2_tensor sod2_output(const sod2_model *model, int index) {
  if (index < 0 || index >= model->program->outputs) return (sod2_tensor){0};
  sod2_tensor tensor = declared(&model->program->output[index]);
  if (model->ran) {
    sod2_state state = state_of((sod2_model *)model); /* result() only reads it */
    model->program->result(&state, index, &tensor);
  }
  return tensor;
}

sod2_stats sod2_get_stats(const sod2_model *model) {
  sod2_block blocks = {0}; /* all together */
  for (int32_t i = 0; i < model->program->blocks; i++) {
    blocks.capacity += model->block[i].capacity;
    blocks.needed += model->block[i].needed;
  }
  return (sod2_stats){
      .arena_bytes = model->arena_bytes + blocks.needed,
      .live_bytes = model->live_bytes + blocks.needed,
      .reserved_bytes = model->reserved + blocks.capacity,
      .weight_bytes = model->program->weight_bytes,
      .bind_ns = model->bind_ns,
      .threads = sod2_pool_threads(model->pool),
  };
}

int sod2_step_count(const sod2_model *model) { return model->program->steps; }
const char *sod2_step_name(const sod2_model *model, int step) {
  return step < 0 || step >= model->program->steps ? NULL : model->program->step_name[step];
}
void sod2_profile(sod2_model *model, int on) { model->profiling = on; }
const int64_t *sod2_step_ns(const sod2_model *model) { return model->step_ns; }
int64_t sod2_step_bytes(const sod2_model *model, int step) {
  if (model->bound == NULL || step < 0 || step >= model->program->steps) return -1;
  int64_t live = 0;
  for (int32_t i = 0; i < model->program->buffers; i++) {
    sod2_range range = model->program->range[i];
    if (range.first <= step && step <= range.last)
      live += (model->bound->bytes[i] + SOD2_ALIGN - 1) / SOD2_ALIGN * SOD2_ALIGN;
  }
  return live;
}
