/* What is decided when dims are bound: symbols, kernel versions, sizes and offsets of the buffers. And what each run
   of a model whose execution mints symbols (program.h: stages) decides from stage 1 on, from the bound plan and the
   symbols learnt alone.

   Plans of the last SOD2_PLANS dims are kept; binding dims that were seen costs a comparison. With a memory budget a
   model has several tables, and a plan is that of the first whose arena fits. */
#include <stdio.h>

#include "model.h"

/* Dims that no model of these declarations accepts; what the symbols allow is program->bind's to check. */
static int check_dims(const sod2_program *program, const int64_t *dims) {
  for (int32_t i = 0; i < program->inputs; i++) {
    const sod2_io *input = &program->input[i];
    for (int32_t axis = 0; axis < input->rank; axis++) {
      int64_t dim = *dims++, declared = input->dims[axis];
      if (dim < 0)
        return sod2_refuse(SOD2_ERROR_INPUT, "input %s: dim %d is %lld, accepted is 0 or more", input->name, axis,
                           (long long)dim);
      if (declared >= 0 && dim != declared)
        return sod2_refuse(SOD2_ERROR_INPUT, "input %s: dim %d is %lld, accepted is %lld", input->name, axis,
                           (long long)dim, (long long)declared);
    }
  }
  return SOD2_OK;
}

/* Words behind a plan of a table. */
static size_t words_of(const sod2_model *model, const sod2_program *program) {
  return (size_t)model->ranks + (size_t)program->symbols + (size_t)program->minted + (size_t)program->choices +
         2 * (size_t)program->buffers + (size_t)program->deepest + 1;
}

int sod2_create_plans(sod2_model *model) {
  size_t words = 0;
  for (const sod2_program *program = &sod2_main; program != NULL; program = program->leaner)
    if (words_of(model, program) > words) words = words_of(model, program);
  for (int i = 0; i <= SOD2_PLANS; i++)
    if ((model->plan[i] = sod2_present(sizeof(sod2_plan) + words * sizeof(int64_t))) == NULL) return 0;
  return 1;
}

/* An empty plan of a table. */
static void clear_plan(const sod2_model *model, const sod2_program *program, int32_t table, sod2_plan *cleared) {
  *cleared = (sod2_plan){.program = program, .table = table, .dims = (int64_t *)(cleared + 1)};
  memset(cleared->dims, 0, words_of(model, program) * sizeof(int64_t));
  cleared->sym = cleared->dims + model->ranks;
  cleared->choice = cleared->sym + program->symbols + program->minted;
  cleared->offset = cleared->choice + program->choices;
  cleared->bytes = cleared->offset + program->buffers;
  cleared->needed = cleared->bytes + program->buffers;
}

/* Whether all buffers together, rounded up, fit 62 bits: then no sum that the placement makes can overflow. */
static int sizes_fit(const int64_t *bytes, int32_t count) {
  int64_t total = 0;
  for (int32_t i = 0; i < count; i++)
    if (__builtin_add_overflow(total, bytes[i], &total) || __builtin_add_overflow(total, SOD2_ALIGN, &total)) return 0;
  return total <= (int64_t)1 << 62;
}

/* Offsets of the buffers that have none yet: those not `given` (NULL: none is). Returns the arena's size. Under the
   address sanitizer every buffer is alone then, between red zones, so that no kernel can write behind its own unnoticed:
   the arena is one mapping, of which the sanitizer knows nothing else. */
static int64_t place(const sod2_model *model, const uint8_t *given, sod2_plan *placed) {
  const sod2_program *program = placed->program;
  int64_t end = (program->peak_first ? sod2_place_peak_first : sod2_place_best_fit)(
      model->planner[placed->table], placed->bytes, given, placed->offset);
#ifdef __SANITIZE_ADDRESS__
  end = SOD2_ALIGN;
  for (int pass = 0; pass < 2; pass++)
    for (int32_t i = 0; i < program->buffers; i++) {
      int is_given = given != NULL && given[i];
      if (is_given != (pass == 0)) continue;
      if (!is_given) placed->offset[i] = end;
      end = sod2_imax(end, placed->offset[i] + (placed->bytes[i] + 2 * SOD2_ALIGN - 1) / SOD2_ALIGN * SOD2_ALIGN);
    }
#endif
  return end;
}

/* Places everything that is known when a shape is bound, and tells the arena that each depth of branches needs. */
static int64_t place_bound(const sod2_model *model, sod2_plan *placed) {
  const sod2_program *program = placed->program;
#ifndef __SANITIZE_ADDRESS__
  if (program->deepest > 0 && program->peak_first)
    return sod2_place_by_depth(model->planner[placed->table], placed->bytes, placed->offset, placed->needed);
#endif
  int64_t arena = place(model, NULL, placed);
  for (int32_t depth = 0; depth <= program->deepest; depth++) placed->needed[depth] = arena;
  return arena;
}

/* Symbols, kernel versions, sizes and offsets for `dims`. */
static int fill_plan(sod2_model *model, const int64_t *dims, sod2_plan *filled) {
  const sod2_program *program = filled->program;
  int overflow = 0;
  memcpy(filled->dims, dims, sizeof *dims * (size_t)model->ranks);
  if (program->bind(dims, filled->sym, sod2_sentence, sizeof sod2_sentence) != 0) return SOD2_ERROR_INPUT;
  program->sizes(filled->sym, sod2_payload(model), sod2_pool_threads(model->pool), filled->choice, filled->bytes,
                 &overflow);
  if (overflow || !sizes_fit(filled->bytes, program->buffers))
    return sod2_refuse(SOD2_ERROR_MEMORY, "model %s needs more than 2^62 bytes at these input dims", program->name);
  filled->arena_bytes = place_bound(model, filled);
  filled->live_bytes = sod2_live_peak(model->planner[filled->table]);
  return SOD2_OK;
}

static int fits(const sod2_program *program, int64_t arena) {
  return program->budget == 0 || sod2_mapped(arena) <= program->budget;
}

/* Says that no table fits the budget. */
static int over_budget(const sod2_program *program, const int64_t *dims, int64_t least) {
  char shapes[SOD2_SENTENCE / 2] = "";
  size_t length = 0;
  for (int32_t i = 0; i < program->inputs; i++)
    for (int32_t axis = 0; axis < program->input[i].rank && length < sizeof shapes - 1; axis++) {
      const char *before = axis > 0 ? "x" : length > 0 ? " and " : " at input dims ";
      int written = snprintf(shapes + length, sizeof shapes - length, "%s%lld", before, (long long)*dims++);
      length = length + (size_t)written < sizeof shapes ? length + (size_t)written : sizeof shapes - 1;
    }
  return sod2_refuse(SOD2_ERROR_BUDGET, "model %s needs at least %lld bytes%s; the budget is %lld", program->name,
                     (long long)sod2_mapped(least), shapes, (long long)program->budget);
}

/* Fills a plan of the first table that fits; all are tried before anything is mapped. */
static int choose_plan(sod2_model *model, const int64_t *dims, sod2_plan *chosen) {
  int64_t least = INT64_MAX / 2;
  int32_t table = 0;
  for (const sod2_program *program = &sod2_main; program != NULL; program = program->leaner, table++) {
    clear_plan(model, program, table, chosen);
    int code = fill_plan(model, dims, chosen);
    if (code != SOD2_OK || fits(program, chosen->arena_bytes)) return code;
    least = sod2_imin(least, chosen->arena_bytes);
  }
  return over_budget(&sod2_main, dims, least);
}

/* Computes the plan of new dims and remembers it, in place of the one that was not used for longest. */
static int add_plan(sod2_model *model, const int64_t *dims) {
  int64_t started = sod2_now_ns();
  int code = check_dims(model->program, dims);
  if (code != SOD2_OK) return code;
  sod2_plan **spare = model->plan + model->plans, *chosen = *spare;
  code = choose_plan(model, dims, chosen);
  if (code != SOD2_OK) return code;
  if (model->plans < SOD2_PLANS)
    model->plans++;
  else
    spare[0] = spare[-1], spare[-1] = chosen;
  model->bind_ns = sod2_now_ns() - started;
  return SOD2_OK;
}

int sod2_find_plan(sod2_model *model, const int64_t *dims, int32_t *index) {
  for (*index = 0; *index < model->plans; ++*index)
    if (memcmp(model->plan[*index]->dims, dims, sizeof *dims * (size_t)model->ranks) == 0) return SOD2_OK;
  int code = add_plan(model, dims);
  *index = model->plans - 1;
  return code;
}

sod2_plan *sod2_use_plan(sod2_model *model, int32_t index) {
  sod2_plan *used = model->plan[index];
  memmove(model->plan + 1, model->plan, sizeof used * (size_t)index);
  return model->plan[0] = used;
}

/* Forgets what was placed from a stage on. */
static void forget(sod2_model *model, int stage) {
  for (int32_t i = 0; i < model->program->buffers; i++) {
    model->given[i] = model->program->stage_of[i] < stage;
    if (!model->given[i]) model->bound->bytes[i] = 0;
  }
}

void sod2_restart(sod2_model *model) {
  forget(model, 1);
  for (int32_t i = 0; i < model->program->blocks; i++) model->block[i].needed = 0;
  model->arena_bytes = model->bound->arena_bytes;
  model->live_bytes = model->bound->live_bytes;
  sod2_set_addresses(model, NULL);
}

/* Sizes and offsets of the buffers of a stage. */
static int place_stage(sod2_model *model, int number) {
  const sod2_program *program = model->program;
  sod2_plan *bound = model->bound;
  int overflow = 0;
  forget(model, number);
  if (program->stage(number, bound->sym, sod2_payload(model), sod2_pool_threads(model->pool), bound->choice,
                     bound->bytes, &overflow, sod2_sentence, sizeof sod2_sentence) != 0)
    return SOD2_ERROR_INPUT;
  for (int32_t i = 0; i < program->buffers; i++) /* of a branch that checks its sizes when it is taken */
    bound->bytes[i] = sod2_imax(bound->bytes[i], 0);
  if (overflow || !sizes_fit(bound->bytes, program->buffers))
    return sod2_refuse(SOD2_ERROR_MEMORY, "model %s needs more than 2^62 bytes for these inputs", program->name);
  const int64_t arena = place(model, model->given, bound), live = sod2_live_peak(model->planner[bound->table]);
  if (!fits(program, arena))
    return sod2_refuse(SOD2_ERROR_BUDGET, "model %s needs %lld bytes for these inputs; the budget is %lld",
                       program->name, (long long)sod2_mapped(arena), (long long)program->budget);
  model->arena_bytes = sod2_imax(model->arena_bytes, arena);
  model->live_bytes = sod2_imax(model->live_bytes, live);
  return sod2_reserve(model, arena);
}

const char *sod2_stage(const sod2_state *state, int number) {
  sod2_model *model = state->model;
  model->failure = place_stage(model, number);
  if (model->failure != SOD2_OK) return sod2_sentence;
  sod2_set_addresses(model, model->given);
  return NULL;
}
