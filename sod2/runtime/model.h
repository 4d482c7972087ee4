/* A loaded model, as the parts of the runtime that own it see it: model.c loads, runs and answers, plan.c decides what a
   shape needs, mapping.c owns the arena's memory, weights.c that of the weights. */
#ifndef SOD2_MODEL_H
#define SOD2_MODEL_H
#include "program.h"

#define SOD2_PLANS 16
#define SOD2_SENTENCE 512

/* What bind decides for one tuple of dims, and what each run adds from stage 1 on. The arrays lie in one block behind
   the struct, which has room for those of any table. */
typedef struct sod2_plan {
  const sod2_program *program; /* the table */
  int32_t table;               /* its number */
  int64_t *dims, *sym, *choice, *offset, *bytes;
  int64_t *needed; /* [deepest + 1] arena of a run that enters branches up to a depth */
  int64_t arena_bytes, live_bytes; /* of stage 0 */
} sod2_plan;

struct sod2_model {
  const sod2_program *program; /* of the bound plan; the plain one before */
  sod2_pool *pool;
  int32_t tables;
  sod2_planner **planner; /* [tables] */
  char *file; /* weights.bin, header included */
  int64_t file_bytes;
  char *arena;
  int64_t reserved; /* bytes of the arena that are mapped */
  int64_t space;    /* bytes of address space reserved for it, of an arena that grows while the model runs */
  int64_t arena_bytes, live_bytes; /* of the bound plan, and then of its last run */
  int32_t ranks; /* dims of all inputs together */
  int32_t plans;
  sod2_plan *plan[SOD2_PLANS + 1]; /* `plans` of dims, most recently used first, then spare ones, of which one always is */
  sod2_plan *bound;
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

/* ---- model.c ---- */
extern _Thread_local char sod2_sentence[SOD2_SENTENCE]; /* of the last failure */
/* Writes the sentence of a failure and returns its code. */
__attribute__((format(printf, 2, 3))) int sod2_refuse(int code, const char *format, ...);

/* ---- weights.c ---- */
/* Maps the weights with all pages present, so that the first run pays no page faults for them. */
int sod2_map_weights(sod2_model *model, const char *path);
void sod2_unmap_weights(sod2_model *model);
const char *sod2_payload(const sod2_model *model); /* NULL of a model without weights */

/* ---- plan.c ---- */
/* Memory for all plans. 0: there is not enough. */
int sod2_create_plans(sod2_model *model);
/* The index of the plan of these dims, computed unless it is remembered; of too many, the one that was not used for
   longest gives way. */
int sod2_find_plan(sod2_model *model, const int64_t *dims, int32_t *index);
/* Moves the plan at `index` to the front. */
sod2_plan *sod2_use_plan(sod2_model *model, int32_t index);
/* A run of a model with stages starts from the bound plan alone, whatever ran before. */
void sod2_restart(sod2_model *model);

/* ---- mapping.c ---- */
extern char sod2_nothing[SOD2_ALIGN]; /* where empty tensors are: no address that C may calculate with is NULL */
/* Bytes that are mapped for an arena of so many. */
int64_t sod2_mapped(int64_t bytes);
/* Makes the arena hold `bytes`. What was in it is lost when it grows, unless it may do so during a run. */
int sod2_reserve(sod2_model *model, int64_t bytes);
void sod2_unreserve(sod2_model *model);
/* Addresses of the buffers of the bound plan, of those that are not `given` (NULL: none is). Without an arena all are
   empty. */
void sod2_set_addresses(sod2_model *model, const uint8_t *given);
/* Says that there is no memory for so many bytes. */
int sod2_no_arena(const sod2_model *model, int64_t bytes);
#endif
