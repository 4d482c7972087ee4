/* What a generated model.c gives to the runtime: constant tables and three functions. The runtime owns memory, threads
   and the plan (model.h); generated code only computes sizes and calls kernels. */
#ifndef SOD2_PROGRAM_H
#define SOD2_PROGRAM_H
#include <stdlib.h>

#include "kernel.h"
#include "sod2.h"

/* weights.bin is a header of SOD2_WEIGHTS_HEADER bytes, then the payload that sod2_state.weights points at:
     0   8 bytes   SOD2_WEIGHTS_MAGIC, without its terminating 0
     8   int64     bytes of the payload, little endian
     16  32 bytes  digest of the payload: the first 32 hexadecimal characters of its SHA-256
     48  16 bytes  zero
   The digest ties the file to the generated code; at load it is compared, not computed again (files are large). */
#define SOD2_WEIGHTS_MAGIC "SOD2WTS1"
#define SOD2_WEIGHTS_HEADER 64
#define SOD2_DIGEST_LENGTH 32

/* A buffer lives from the first step that writes it to the last one that reads it, both included. Scratch of a step
   has first == last. Buffers that overlap in time never share bytes; all start at multiples of SOD2_ALIGN. */
#define SOD2_ALIGN 64
typedef struct sod2_range {
    int32_t first, last;
} sod2_range;

/* Memory outside the arena that grows while a loop runs (blocks.c). */
typedef struct sod2_block {
    char *data;
    int64_t capacity, needed;  /* bytes: mapped, and the most that the last run asked for */
} sod2_block;

typedef struct sod2_state {
    const int64_t *sym;        /* bound symbols of the shapes, then minted ones */
    int64_t *minted;           /* the minted symbols, for the steps that learn them */
    sod2_model *model;         /* for sod2_stage */
    const void *const *input;  /* the caller's inputs */
    const char *weights;       /* payload of weights.bin, mapped read-only; NULL without weights */
    char *const *buffer;       /* arena address of every buffer at the bound shape */
    sod2_block *block;         /* of loops whose sizes differ from trip to trip */
    const int64_t *plan;       /* per-bind choices of kernel versions, filled by `choose` */
    sod2_pool *pool;
    int64_t *step_ns;          /* NULL unless profiling */
} sod2_state;

typedef struct sod2_io {
    const char *name;
    int32_t dtype, rank;
    const int64_t *dims;       /* declared; -1 where symbolic */
} sod2_io;

typedef struct sod2_program {
    const char *name;
    int64_t weight_bytes;                        /* of the payload; 0 = no weights, weights.bin is a header alone */
    const char *weight_digest;                   /* 32 hexadecimal characters, those in the header of weights.bin */
    int32_t inputs, outputs, symbols, choices, buffers, steps;
    const sod2_io *input, *output;
    const char *const *step_name;
    const sod2_range *range;                     /* [buffers] */
    int32_t peak_first;                          /* placement at bind: 1 = what lives where most is used first (DMP), 0 = best fit in order of first use */
    /* Reads the symbols out of the concatenated input dims and checks every guard. Returns 0, or writes a sentence. */
    int (*bind)(const int64_t *dims, int64_t *sym, char *message, int64_t capacity);
    /* Fills `plan` (kernel versions) and bytes of every buffer; `weights` is the payload, to see which layouts exist; *overflow becomes 1 when a size exceeds 2^62. */
    void (*sizes)(const int64_t *sym, const char *weights, int threads, int64_t *plan, int64_t *bytes, int *overflow);
    /* NULL, or what is not accepted: a requirement of a branch that is taken but not met, or what a step that learns
       symbols or its stage refuses. Nothing after it ran. */
    const char *(*run)(const sod2_state *state);
    /* Address, rank and dims of an output of the run that ended. */
    void (*result)(const sod2_state *state, int index, sod2_tensor *tensor);
    /* Of a model with branches; 0 and NULL without. The depth of a buffer is the least number of branches around a step
       that touches it (sod2/depth.py); a run maps the arena as far as the depths need that it enters. */
    int32_t deepest;
    const uint8_t *depth_of;                     /* [buffers] */
    /* Of a model whose execution mints symbols; 0 and NULL without. Stage 0 is where a shape is bound; every step that
       learns symbols begins one. `stage_of` tells at which one each buffer's size is known. `stage` checks what is
       required of the symbols learnt (1: a sentence was written), then does what `sizes` does at bind. */
    int32_t minted, blocks;
    const int32_t *stage_of;                     /* [buffers] */
    int (*stage)(int number, const int64_t *sym, const char *weights, int threads, int64_t *plan, int64_t *bytes,
                 int *overflow, char *message, int64_t capacity);
    /* Of a model with a memory budget; 0 and NULL without. Bytes of the arena that no run may exceed, and the next table:
       a plan of the same function with less memory and more work (sod2/rematerialize.py). A shape gets the first that
       fits. Inputs, outputs, symbols, minted symbols, blocks and weights are those of sod2_main. */
    int64_t budget;
    const struct sod2_program *leaner;
} sod2_program;

/* Begins a stage in the middle of a run: evaluates its sizes and places its buffers among those that are there, which
   stay where they are. A stage may begin again, in a loop: what was placed from it on is forgotten first. NULL, or the
   sentence with which the run ends. */
const char *sod2_stage(const sod2_state *state, int number);

/* Maps what a branch of this depth needs of the arena. NULL, or the sentence with which the run ends. */
const char *sod2_enter(const sod2_state *state, int depth);

/* The address of a block that has at least `bytes`, the first `keep` of them as they were; NULL when there is no memory,
   and then sod2_message() is the sentence with which the run ends. */
char *sod2_hold(const sod2_state *state, int32_t block, int64_t bytes, int64_t keep);
/* What a state has in the next trip: block + 1, to which it was written, and `block` change places. */
SOD2_INLINE void sod2_exchange(const sod2_state *state, int32_t block) {
  const sod2_block first = state->block[block];
  state->block[block] = state->block[block + 1];
  state->block[block + 1] = first;
}
int sod2_block_hold(sod2_block *block, int64_t bytes, int64_t keep); /* 0: no memory, nothing has changed */
void sod2_blocks_free(sod2_block *block, int32_t count);

extern const sod2_program sod2_main;

/* How generated code binds: each symbolic input dim is scale * symbol + base, each guard two expressions that must be
   equal. `bind` of a generated program is a call of sod2_bind_symbols (bind.c). */
typedef struct sod2_dim {
    int32_t position;          /* among the dims of all inputs */
    int32_t input, axis, symbol;
    int64_t scale, base;
    const char *text;          /* the declared dim, for messages */
} sod2_dim;

typedef struct sod2_rules {
    const sod2_io *input;
    int32_t symbols, dims, guards;
    const sod2_dim *dim;
    const char *const *guard;  /* what each guard says */
    void (*sides)(const int64_t *sym, int index, int64_t *left, int64_t *right, int *overflow);
} sod2_rules;

int sod2_bind_symbols(const sod2_rules *rules, const int64_t *dims, int64_t *sym, char *message, int64_t capacity);

/* Checks the guards [first, last). Returns 0, or writes a sentence about `what` ("input dims"). */
int sod2_check_guards(const sod2_rules *rules, int32_t first, int32_t last, const char *what, const int64_t *sym,
                      char *message, int64_t capacity);

/* Zeroed memory whose pages are all there: to bind a new shape touches no missing one, which would cost more than to
   plan. Compilers turn malloc and memset into calloc, which leaves pages to the first access. NULL: no memory. */
SOD2_INLINE void *sod2_present(size_t bytes) {
  void *data = NULL;
  return posix_memalign(&data, SOD2_ALIGN, bytes) == 0 ? memset(data, 0, bytes) : NULL;
}

/* Placement of a program's buffers once their sizes are known: byte offsets, and the arena's size. Buffers that are
   `given` (NULL: none) stay at their offsets. `depth_of` is NULL where `depths` is 1. A planner is NULL when there is
   no memory. arena.c; twin of sod2/memory.py. */
typedef struct sod2_planner sod2_planner;
sod2_planner *sod2_planner_create(int32_t count, int32_t steps, const sod2_range *range, const uint8_t *depth_of,
                                  int32_t depths);
void sod2_planner_free(sod2_planner *planner);
int64_t sod2_place_peak_first(sod2_planner *planner, const int64_t *bytes, const uint8_t *given, int64_t *offset);
int64_t sod2_place_best_fit(sod2_planner *planner, const int64_t *bytes, const uint8_t *given, int64_t *offset);
/* As sod2_place_peak_first, outer depths first where that costs the longest path little: needed[d] is the arena of a
   run that touches no buffer deeper than d, and the last one is returned. */
int64_t sod2_place_by_depth(sod2_planner *planner, const int64_t *bytes, int64_t *offset, int64_t *needed);
/* The live peak of what was placed last, given buffers included. */
int64_t sod2_live_peak(const sod2_planner *planner);
/* Bytes that each step leaves free below the peak of the buffers given (those without scratch): scratch of that size
   costs nothing. `allowance` has room for steps + 1. */
void sod2_allowances(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes, int64_t *allowance);

#define SOD2_STEP_BEGIN(state) int64_t sod2_started = (state)->step_ns ? sod2_now_ns() : 0
#define SOD2_STEP_END(state, index) \
    if ((state)->step_ns) (state)->step_ns[index] = sod2_now_ns() - sod2_started
int64_t sod2_now_ns(void);
#endif
