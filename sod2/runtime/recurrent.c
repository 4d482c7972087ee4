#include "recurrent.h"

#include "vmath.h"

typedef struct run {
  const sod2_recurrent *l;
  float *scratch;
} run;

static float activated(sod2_act a, float x) {
  switch (a.kind) {
    case SOD2_ACT_SIGMOID: return sod2_sigmoidf(x);
    case SOD2_ACT_TANH: return sod2_tanhf(x);
    case SOD2_ACT_RELU: return sod2_reluf(x);
    case SOD2_ACT_AFFINE: return a.alpha * x + a.beta;
    case SOD2_ACT_LEAKYRELU: return x < 0 ? a.alpha * x : x;
    case SOD2_ACT_THRESHOLDEDRELU: return x > a.alpha ? x : 0;
    case SOD2_ACT_SCALEDTANH: return a.alpha * sod2_tanhf(a.beta * x);
    case SOD2_ACT_HARDSIGMOID: return sod2_clampf(a.alpha * x + a.beta, 0, 1);
    case SOD2_ACT_ELU: return x < 0 ? a.alpha * sod2_expm1f(x) : x;
    case SOD2_ACT_SOFTSIGN: return x / (1 + sod2_absf(x));
    default: return sod2_softplusf(x);
  }
}

/* out[i] = rows[i] . v + bias[i] + extra[i]; bias and extra may be NULL. */
static void affine(float *out, const float *rows, const float *v, int64_t n, int64_t count, const float *bias,
                   const float *extra) {
  for (int64_t i = 0; i < count; i++) {
    float total = (bias ? bias[i] : 0) + (extra ? extra[i] : 0);
    for (int64_t k = 0; k < n; k++) total += rows[i * n + k] * v[k];
    out[i] = total;
  }
}

static float clipped(const sod2_recurrent *l, float x) { return sod2_clampf(x, -l->clip, l->clip); }

/* One step: h becomes the next state. `gate` has room for four times `hidden`. */
static void step(const sod2_recurrent *l, int d, const float *x, float *h, float *gate) {
  const int64_t n = l->hidden, gates = l->gru ? 3 : 1;
  const float *w = l->w + d * gates * n * l->input, *r = l->r + d * gates * n * n;
  const float *wb = l->b ? l->b + d * 2 * gates * n : NULL, *rb = wb ? wb + gates * n : NULL;
  const sod2_act f = l->act[l->gru ? 2 * d : d], g = l->act[l->gru ? 2 * d + 1 : d];
  float *part = gate + gates * n;
  affine(gate, w, x, l->input, gates * n, wb, NULL);
  if (!l->gru) {
    affine(part, r, h, n, n, rb, gate);
    for (int64_t i = 0; i < n; i++) h[i] = activated(f, clipped(l, part[i]));
    return;
  }
  float *z = gate, *reset = gate + n, *candidate = gate + 2 * n;
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
  float *h = u->scratch + thread * 5 * n;
  if (l->h0)
    memcpy(h, l->h0 + unit * n, (size_t)n * sizeof *h);
  else
    memset(h, 0, (size_t)n * sizeof *h);
  const int backwards = d == 1 || l->reverse;
  for (int64_t t = 0; t < l->steps; t++) {
    const int64_t at = backwards && t < length ? length - 1 - t : t;
    float *y = l->y ? l->y + ((at * l->directions + d) * l->batch + item) * n : NULL;
    if (t < length) step(l, d, l->x + (at * l->batch + item) * l->input, h, h + n);
    if (!y) continue;
    if (t < length)
      memcpy(y, h, (size_t)n * sizeof *h);
    else
      memset(y, 0, (size_t)n * sizeof *h);
  }
  if (l->y_h) memcpy(l->y_h + unit * n, h, (size_t)n * sizeof *h);
}

int64_t sod2_recurrent_scratch(const sod2_recurrent *l, int threads) {
  return threads * 5 * l->hidden * (int64_t)sizeof(float);
}

void sod2_recurrent_run(const sod2_recurrent *l, void *scratch, sod2_pool *pool) {
  run u = {l, scratch};
  sod2_parallel(pool, l->directions * l->batch, sequence, &u);
}
