/* A loaded model: implements sod2.h over the tables of program.h. A bind that fails leaves the model bound as it was. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "model.h"

#define MAX_THREADS 1024

_Thread_local char sod2_sentence[SOD2_SENTENCE];

int sod2_refuse(int code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(sod2_sentence, sizeof sod2_sentence, format, arguments);
  va_end(arguments);
  return code;
}

const char *sod2_message(void) { return sod2_sentence; }

int64_t sod2_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- load and free ---------------------------------------------------------------------------------------------- */

/* Never of 0 bytes, so that NULL always means no memory. */
static void *table(int64_t count, size_t size) { return sod2_present(((size_t)count + 1) * size); }

static int no_memory(const sod2_program *program) {
  return sod2_refuse(SOD2_ERROR_MEMORY, "no memory for the tables of model %s", program->name);
}

static int allocate_tables(sod2_model *model) {
  const sod2_program *program = model->program;
  int32_t buffers = 0, steps = 0;
  for (const sod2_program *p = program; p != NULL; p = p->leaner) {
    if (p->buffers > buffers) buffers = p->buffers;
    if (p->steps > steps) steps = p->steps;
    model->tables++;
  }
  for (int32_t i = 0; i < program->inputs; i++) model->ranks += program->input[i].rank;
  model->address = table(buffers, sizeof *model->address);
  model->input = table(program->inputs, sizeof *model->input);
  model->given = table(buffers, sizeof *model->given);
  model->block = table(program->blocks, sizeof *model->block);
  model->step_ns = table(steps, sizeof *model->step_ns);
  model->planner = table(model->tables, sizeof(sod2_planner *));
  if (!model->address || !model->input || !model->given || !model->block || !model->step_ns || !model->planner)
    return no_memory(program);
  if (!sod2_create_plans(model)) return no_memory(program);
  for (int32_t k = 0; k < model->tables; k++, program = program->leaner) {
    model->planner[k] = sod2_planner_create(program->buffers, program->steps, program->range, program->depth_of,
                                            program->deepest + 1);
    if (model->planner[k] == NULL) return no_memory(program);
  }
  return SOD2_OK;
}

int sod2_load(const char *weights_path, int threads, sod2_model **result) {
  *result = NULL;
  if (threads < 1 || threads > MAX_THREADS)
    return sod2_refuse(SOD2_ERROR_INPUT, "threads is %d, accepted are 1 to %d", threads, MAX_THREADS);
  sod2_model *model = calloc(1, sizeof *model);
  if (model == NULL) return sod2_refuse(SOD2_ERROR_MEMORY, "no memory for model %s", sod2_main.name);
  model->program = &sod2_main;
  int code = sod2_map_weights(model, weights_path);
  if (code == SOD2_OK) code = allocate_tables(model);
  if (code == SOD2_OK && (model->pool = sod2_pool_create(threads)) == NULL)
    code = sod2_refuse(SOD2_ERROR_MEMORY, "cannot start %d threads", threads);
  if (code != SOD2_OK) {
    sod2_free(model);
    return code;
  }
  *result = model;
  return SOD2_OK;
}

void sod2_trim(sod2_model *model) {
  sod2_unreserve(model);
  if (model->block != NULL) sod2_blocks_free(model->block, model->program->blocks);
  model->ran = 0;
}

void sod2_free(sod2_model *model) {
  if (model == NULL) return;
  sod2_trim(model);
  sod2_unmap_weights(model);
  sod2_pool_free(model->pool);
  for (int i = 0; i <= SOD2_PLANS; i++) free(model->plan[i]);
  for (int32_t k = 0; k < model->tables && model->planner != NULL; k++) sod2_planner_free(model->planner[k]);
  free(model->planner);
  free(model->address);
  free(model->input);
  free(model->given);
  free(model->block);
  free(model->step_ns);
  free(model);
}

/* ---- bind and run ----------------------------------------------------------------------------------------------- */

int sod2_bind(sod2_model *model, const int64_t *dims) {
  int32_t index;
  int code = sod2_find_plan(model, dims, &index);
  if (code == SOD2_OK) code = sod2_reserve(model, model->plan[index]->needed[0]);
  if (code != SOD2_OK) return code;
  model->bound = sod2_use_plan(model, index);
  model->program = model->bound->program;
  model->arena_bytes = model->bound->arena_bytes;
  model->live_bytes = model->bound->live_bytes;
  model->ran = 0;
  sod2_set_addresses(model, NULL);
  return SOD2_OK;
}

/* Remembers where the inputs are. Only one without elements may be NULL. */
static int take_inputs(sod2_model *model, const void *const *inputs) {
  const int64_t *dims = model->bound->dims;
  for (int32_t i = 0; i < model->program->inputs; i++) {
    const sod2_io *input = &model->program->input[i];
    int empty = 0;
    for (int32_t axis = 0; axis < input->rank; axis++) empty |= *dims++ == 0;
    if (inputs[i] == NULL && !empty)
      return sod2_refuse(SOD2_ERROR_INPUT, "input %s is NULL, accepted is the address of its elements", input->name);
    model->input[i] = empty ? sod2_nothing : inputs[i]; /* element 0 of an empty tensor may be read and discarded */
  }
  return SOD2_OK;
}

static sod2_state state_of(sod2_model *model) {
  return (sod2_state){
      .sym = model->bound->sym,
      .minted = model->bound->sym + model->program->symbols,
      .model = model,
      .input = model->input,
      .weights = sod2_payload(model),
      .buffer = model->address,
      .block = model->block,
      .plan = model->bound->choice,
      .pool = model->pool,
      .step_ns = model->profiling ? model->step_ns : NULL,
  };
}

const char *sod2_enter(const sod2_state *state, int depth) {
  sod2_model *model = state->model;
  if (model->bound->needed[depth] <= model->reserved) return NULL;
  model->failure = sod2_reserve(model, model->bound->needed[depth]);
  return model->failure == SOD2_OK ? NULL : sod2_sentence;
}

char *sod2_hold(const sod2_state *state, int32_t block, int64_t bytes, int64_t keep) {
  sod2_model *model = state->model;
  if (sod2_block_hold(&model->block[block], bytes, keep)) return model->block[block].data;
  model->failure = sod2_no_arena(model, bytes);
  return NULL;
}

int sod2_run(sod2_model *model, const void *const *inputs) {
  if (model->bound == NULL)
    return sod2_refuse(SOD2_ERROR_INPUT, "model %s is not bound: sod2_bind comes before sod2_run",
                       model->program->name);
  int code = take_inputs(model, inputs);
  if (code != SOD2_OK) return code;
  if (model->reserved < model->bound->needed[0]) { /* after sod2_trim, or a bind that found no memory */
    code = sod2_reserve(model, model->bound->needed[0]);
    if (code != SOD2_OK) return code;
    sod2_set_addresses(model, NULL);
  }
  model->ran = 0;
  if (model->program->minted > 0) sod2_restart(model);
  memset(model->step_ns, 0, sizeof *model->step_ns * (size_t)model->program->steps);
  sod2_state state = state_of(model);
  uint64_t floating = sod2_denormals_off();
  const char *refusal = model->program->run(&state);
  sod2_denormals_restore(floating);
  if (refusal == sod2_sentence) return model->failure;
  if (refusal != NULL) return sod2_refuse(SOD2_ERROR_INPUT, "these inputs are not accepted: %s", refusal);
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
      .table = model->bound == NULL ? 0 : model->bound->table,
  };
}

int sod2_step_count(const sod2_model *model) { return model->program->steps; }
const char *sod2_step_name(const sod2_model *model, int step) {
  return step < 0 || step >= model->program->steps ? NULL : model->program->step_name[step];
}
void sod2_profile(sod2_model *model, int on) { model->profiling = on; }
const int64_t *sod2_step_ns(const sod2_model *model) { return model->step_ns; }

int sod2_buffer_count(const sod2_model *model) { return model->program->buffers; }
sod2_buffer sod2_get_buffer(const sod2_model *model, int index) {
  sod2_range range = model->program->range[index];
  sod2_buffer buffer = {.first = range.first, .last = range.last};
  if (model->bound != NULL) buffer.bytes = model->bound->bytes[index], buffer.offset = model->bound->offset[index];
  return buffer;
}
