/* A hand-written program, small enough to check by eye, in the shape of a generated model.c.

   Inputs x float32 [n, 3] and shift int64 [3]; output y = relu(x * w + shift) float32 [n, 3], w from weights.bin; output
   same = x, which is where the caller put it. n = 7 is refused, so that there is a guard. */
#include <stdio.h>

#include "program.h"

enum { SCALED, SCRATCH, Y, BUFFERS };

static const int64_t x_dims[] = {-1, 3}, shift_dims[] = {3};
static const sod2_io inputs[] = {{"x", SOD2_FLOAT32, 2, x_dims}, {"shift", SOD2_INT64, 1, shift_dims}};
static const sod2_io outputs[] = {{"y", SOD2_FLOAT32, 2, x_dims}, {"same", SOD2_FLOAT32, 2, x_dims}};
static const char *const step_names[] = {"scale", "relu"};
static const sod2_range ranges[BUFFERS] = {[SCALED] = {0, 1}, [SCRATCH] = {0, 0}, [Y] = {1, 1}};

static int bind(const int64_t *dims, int64_t *sym, char *message, int64_t capacity) {
  sym[0] = dims[0];
  if (sym[0] != 7) return 0;
  snprintf(message, (size_t)capacity, "input x: dim 0 is 7, accepted is anything else");
  return 1;
}

static void sizes(const int64_t *sym, const char *weights, int threads, int64_t *plan, int64_t *bytes, int *overflow) {
  (void)weights;
  int64_t matrix = sod2_mul(sod2_mul(sym[0], 3, overflow), 4, overflow);
  plan[0] = sym[0] > 100; /* a choice between two ways of the same result */
  bytes[SCALED] = bytes[Y] = matrix;
  bytes[SCRATCH] = sod2_mul(16, threads, overflow);
}

static const char *run(const sod2_state *state) {
  int64_t n = state->sym[0];
  const float *x = state->input[0], *w = (const float *)state->weights;
  const int64_t *shift = state->input[1];
  float *scaled = (float *)state->buffer[SCALED], *y = (float *)state->buffer[Y];
  {
    SOD2_STEP_BEGIN(state);
    memset(state->buffer[SCRATCH], 0xff, 16);
    for (int64_t i = 0; i < n * 3; i++) scaled[i] = x[i] * w[i % 3] + (float)shift[i % 3];
    SOD2_STEP_END(state, 0);
  }
  SOD2_STEP_BEGIN(state);
  if (state->plan[0]) {
    for (int64_t i = 0; i < n * 3; i++) y[i] = scaled[i] > 0 ? scaled[i] : 0;
  } else {
    for (int64_t i = n * 3 - 1; i >= 0; i--) y[i] = fmaxf(scaled[i], 0);
  }
  SOD2_STEP_END(state, 1);
  return NULL;
}

static void result(const sod2_state *state, int index, sod2_tensor *tensor) {
  tensor->dims[0] = state->sym[0];
  tensor->data = index == 0 ? (void *)state->buffer[Y] : (void *)(uintptr_t)state->input[0];
}

const sod2_program sod2_main = {
    .name = "tiny",
    .weight_bytes = 12,
    .weight_digest = "0123456789abcdef0123456789abcdef",
    .inputs = 2,
    .outputs = 2,
    .symbols = 1,
    .choices = 1,
    .buffers = BUFFERS,
    .steps = 2,
    .input = inputs,
    .output = outputs,
    .step_name = step_names,
    .range = ranges,
    .peak_first = 1,
    .bind = bind,
    .sizes = sizes,
    .run = run,
    .result = result,
};
