#include "causal_conv.h"

#include "vmath.h"

/* Element t of past and x, one after the other. */
SOD2_INLINE float element(const sod2_causal_conv *c, const float *past, const float *x, int64_t t) {
  const int64_t before = c->taps - 1;
  return t >= before ? x[t - before] : past ? past[t] : 0;
}

static void line(void *arg, int64_t row, int thread) {
  const sod2_causal_conv *c = arg;
  const int64_t channel = row % c->channels, before = c->taps - 1;
  const float *x = c->x + row * c->length, *w = c->w + channel * c->taps;
  const float *past = c->past ? c->past + row * before : NULL;
  (void)thread;
  for (int64_t t = 0; c->y && t < c->length; t++) {
    float total = c->bias ? c->bias[channel] : 0;
    for (int64_t k = 0; k < c->taps; k++) total += w[k] * element(c, past, x, t + k);
    c->y[row * c->length + t] = c->silu ? total * sod2_sigmoidf(total) : total;
  }
  for (int64_t t = 0; c->present && t < before; t++) c->present[row * before + t] = element(c, past, x, c->length + t);
}

void sod2_causal_conv_run(const sod2_causal_conv *c, sod2_pool *pool) {
  sod2_parallel(pool, c->batch * c->channels, line, (void *)c);
}
