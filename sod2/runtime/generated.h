/* Prelude of a generated model.c: every kernel of the runtime, and the loop nests of element kernels. */
#ifndef SOD2_GENERATED_H
#define SOD2_GENERATED_H
#include "causal_conv.h"
#include "conv.h"
#include "gemm.h"
#include "group_norm.h"
#include "half.h"
#include "kernels.h"
#include "linear.h"
#include "movement.h"
#include "nest.h"
#include "nms.h"
#include "ordering.h"
#include "program.h"
#include "recurrent.h"
#include "reduce_nd.h"
#include "resize.h"
#include "sampling.h"
#include "scatter.h"
#include "stream.h"
#include "tile.h"

/* What a step decides when its sizes are known: kernel versions, and bytes of scratch, of which `allowance` cost no peak.
   Steps that decide alike but for some numbers share the function. */
#define SOD2_DECIDE(name)                                                                                        \
  static void name(const int32_t *number, const int64_t *sym, const int64_t *plan, const char *weights, int threads, \
                   int64_t allowance, int64_t *choice, int64_t *scratch)
typedef void sod2_decide(const int32_t *number, const int64_t *sym, const int64_t *plan, const char *weights,
                         int threads, int64_t allowance, int64_t *choice, int64_t *scratch);
typedef struct sod2_decision {
  sod2_decide *decide;
  int32_t step, number, choice, scratch; /* the first of its numbers, choices and scratch buffers */
  int32_t back;                          /* so far before it is one of the same function, numbers and stage; 0: none */
  int32_t choices, scratches;            /* how many it has of them */
} sod2_decision;

/* Decides as another step did that had the same allowance. */
SOD2_INLINE void sod2_decide_like(const sod2_decision *d, const sod2_decision *like, int64_t *plan, int64_t *bytes) {
  for (int k = 0; k < d->choices; k++) plan[d->choice + k] = plan[like->choice + k];
  for (int k = 0; k < d->scratches; k++) bytes[d->scratch + k] = bytes[like->scratch + k];
}

/* The begin of a branch. */
#define SOD2_ENTER(depth)                      \
  do {                                         \
    const char *refusal = sod2_enter(s, depth); \
    if (refusal) return refusal;               \
  } while (0)

#define SOD2_RUN(index, step)                             \
  do {                                                    \
    int64_t started = s->step_ns ? sod2_now_ns() : 0;     \
    step(s);                                              \
    if (s->step_ns) s->step_ns[index] += sod2_now_ns() - started; /* a step of a loop runs many times */ \
  } while (0)

/* A step that fills blocks. */
#define SOD2_CARRY(index, step)                                   \
  do {                                                            \
    int64_t started = s->step_ns ? sod2_now_ns() : 0;             \
    const char *refusal = step(s);                                \
    if (refusal) return refusal;                                  \
    if (s->step_ns) s->step_ns[index] += sod2_now_ns() - started; \
  } while (0)

/* A step that learns symbols, and the stage that they begin. */
#define SOD2_MINT(index, step, number)                           \
  do {                                                           \
    int64_t started = s->step_ns ? sod2_now_ns() : 0;            \
    const char *refusal = step(s);                               \
    if (refusal == NULL) refusal = sod2_stage(s, number);        \
    if (refusal) return refusal;                                 \
    if (s->step_ns) s->step_ns[index] += sod2_now_ns() - started; \
  } while (0)
#endif
