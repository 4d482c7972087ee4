/* GRU and RNN, compiled for floats (recurrent.c) and for doubles (recurrent_double.c). */
#include "recurrent.h"

#include "real.h"

typedef struct run {
  const sod2_recurrent *l;
  real *scratch;
} run;

static real activated(sod2_act a, real x) {
  switch (a.kind) {
    case SOD2_ACT_SIGMOID: return real_sigmoid(x);
    case SOD2_ACT_TANH: return real_tanh(x);
    case SOD2_ACT_RELU: return 0 > x ? 0 : x;
    case SOD2_ACT_AFFINE: return a.alpha * x + a.beta;
    case SOD2_ACT_LEAKYRELU: return x < 0 ? a.alpha * x : x;
    case SOD2_ACT_THRESHOLDEDRELU: return x > a.alpha ? x : 0;
    case SOD2_ACT_SCALEDTANH: return a.alpha * real_tanh(a.beta * x);
    case SOD2_ACT_HARDSIGMOID: return real_clamp(a.alpha * x + a.beta, 0, 1);
    case SOD2_ACT_ELU: return x < 0 ? a.alpha * real_expm1(x) : x;
    case SOD2_ACT_SOFTSIGN: return x / (1 + real_abs(x));
    default: return real_softplus(x);
  }
}

/* out[i] = rows[i] . v + bias[i] + extra[i]; bias and extra may be NULL. */
static void affine(real *out, const real *rows, const real *v, int64_t n, int64_t count, const real *bias,
                   const real *extra) {
  for (int64_t i = 0; i < count; i++) {
    real total = (bias ? bias[i] : 0) + (extra ? extra[i] : 0);
    for (int64_t k = 0; k < n; k++) total += rows[i * n + k] * v[k];
    out[i] = total;
  }
}

static real clipped(const sod2_recurrent *l, real x) { return real_clamp(x, -l->clip, l->clip); }

/* One step: h becomes the next state. `gate` has room for four times `hidden`. */
static void step(const sod2_recurrent *l, int d, const real *x, real *h, real *gate) {
  const int64_t n = l->hidden, gates = l->gru ? 3 : 1;
  const real *w = (const real *)l->w + d * gates * n * l->input, *r = (const real *)l->r + d * gates * n * n;
  const real *wb = l->b ? (const real *)l->b + d * 2 * gates * n : NULL, *rb = wb ? wb + gates * n : NULL;
  const sod2_act f = l->act[l->gru ? 2 * d : d], g = l->act[l->gru ? 2 * d + 1 : d];
  real *part = gate + gates * n;
  affine(gate, w, x, l->input, gates * n, wb, NULL);
  if (!l->gru) {
    affine(part, r, h, n, n, rb, gate);
    for (int64_t i = 0; i < n; i++) h[i] = activated(f, clipped(l, part[i]));
    return;
  }
  real *z = gate, *reset = gate + n, *candidate = gate + 2 * n;
  for (int k = 0; k < 2; k++) {
    affine(part, r + k * n * n, h, n, n, rb ? rb + k * n : NULL, gate + k * n);
    for (int64_t i = 0; i < n; i++) gate[k * n + i] = activated(f, clipped(l, part[i]));
  }
  if (l->linear_before_reset) {
    affine(part, r + 2 * n * n, h, n, n, rb ? rb + 2 * n : NULL, NULL);
    for (int64_t i = 0; i < n; i++) candidate[i] += reset[i] * part[i];
  } else {
    for (int64_t i = 0; i < n; i++) reset[i] *= h[i];
    affine(part, r + 2 * n * n, reset, n, n, rb ? rb + 2 * n : NULL, candidate);
    memcpy(candidate, part, (size_t)n * sizeof *part);
  }
  for (int64_t i = 0; i < n; i++) h[i] = (1 - z[i]) * activated(g, clipped(l, candidate[i])) + z[i] * h[i];
}

static void sequence(void *arg, int64_t unit, int thread) {
  const run *u = arg;
  const sod2_recurrent *l = u->l;
  const int d = (int)(unit / l->batch);
  const int64_t item = unit % l->batch, n = l->hidden, length = l->lengths ? l->lengths[item] : l->steps;
  real *h = u->scratch + thread * 5 * n;
  if (l->h0)
    memcpy(h, (const real *)l->h0 + unit * n, (size_t)n * sizeof *h);
  else
    memset(h, 0, (size_t)n * sizeof *h);
  const int backwards = d == 1 || l->reverse;
  for (int64_t t = 0; t < l->steps; t++) {
    const int64_t at = backwards && t < length ? length - 1 - t : t;
    real *y = l->y ? (real *)l->y + ((at * l->directions + d) * l->batch + item) * n : NULL;
    if (t < length) step(l, d, (const real *)l->x + (at * l->batch + item) * l->input, h, h + n);
    if (!y) continue;
    if (t < length)
      memcpy(y, h, (size_t)n * sizeof *h);
    else
      memset(y, 0, (size_t)n * sizeof *h);
  }
  if (l->y_h) memcpy((real *)l->y_h + unit * n, h, (size_t)n * sizeof *h);
}

int64_t SOD2_REAL(sod2_recurrent_scratch)(const sod2_recurrent *l, int threads) {
  return threads * 5 * l->hidden * (int64_t)sizeof(real);
}

void SOD2_REAL(sod2_recurrent_run)(const sod2_recurrent *l, void *scratch, sod2_pool *pool) {
  run u = {l, scratch};
  sod2_parallel(pool, l->directions * l->batch, sequence, &u);
}
