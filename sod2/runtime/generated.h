/* Prelude of a generated model.c: every kernel of the runtime, and the loop nests of element kernels. */
#ifndef SOD2_GENERATED_H
#define SOD2_GENERATED_H
#include "conv.h"
#include "gemm.h"
#include "kernels.h"
#include "movement.h"
#include "nest.h"
#include "program.h"
#include "reduce_nd.h"
#include "stream.h"
#include "tile.h"

#define SOD2_RUN(index, step)                             \
  do {                                                    \
    int64_t started = s->step_ns ? sod2_now_ns() : 0;     \
    step(s);                                              \
    if (s->step_ns) s->step_ns[index] = sod2_now_ns() - started; \
  } while (0)
#endif
