/* Depthwise convolution: every group has one input channel, and oc / groups output channels.

   A piece of work is one image and one input channel. Its padded rows go to a strip, split by the column stride as in
   strips.h; a tap of VL output pixels is then one unaligned load, whatever stride and dilation. Four vectors of
   results, along a line or of consecutive lines, share each weight. Weights are plain: [oc][kh][kw]. */
#include "strips.h"

enum { STRIP_BYTES = 64 << 10 };

typedef struct depthwise_plan {
  int64_t lines, vectors; /* output lines of a strip; vectors of a line */
  int64_t width, phase;   /* floats of an input row, of all rows of a column phase */
  int64_t offsets;        /* floats of the table of taps, shared by all threads */
  int64_t strip, tile;    /* floats of a thread's scratch */
} depthwise_plan;

static int64_t strip_rows(const sod2_conv *c, int64_t lines) { return (lines - 1) * c->sh + (c->kh - 1) * c->dh + 1; }

static depthwise_plan plan_of(const sod2_conv *c) {
  depthwise_plan p = {.vectors = (c->ow + SOD2_VL - 1) / SOD2_VL, .offsets = sod2_line(c->kh * c->kw)};
  p.width = p.vectors * SOD2_VL + (c->kw - 1) * c->dw / c->sw;
  const int64_t fit = (STRIP_BYTES / 4 / (c->sw * p.width) - (c->kh - 1) * c->dh - 1) / c->sh + 1;
  p.lines = sod2_imax(1, sod2_imin(fit, c->oh));
  p.phase = strip_rows(c, p.lines) * p.width;
  p.strip = sod2_line(c->sw * p.phase + SOD2_VL);
  p.tile = sod2_line(p.lines * c->ow + SOD2_VL);
  return p;
}

static int64_t scratch(const sod2_conv *c, int threads) {
  if (sod2_conv_is_empty(c)) return 0;
  const depthwise_plan p = plan_of(c);
  return p.offsets + threads * (p.strip + p.tile);
}

typedef struct depthwise_job {
  const sod2_conv *c;
  depthwise_plan plan;
  const int32_t *offset; /* of each tap in the strip */
  float *scratch;
} depthwise_job;

static void fill_offsets(const sod2_conv *c, const depthwise_plan *p, int32_t *offset) {
  for (int64_t ky = 0; ky < c->kh; ky++)
    for (int64_t kx = 0; kx < c->kw; kx++)
      *offset++ = (int32_t)(ky * c->dh * p->width + kx * c->dw % c->sw * p->phase + kx * c->dw / c->sw);
}

/* Four vectors of results, whose first taps are at in[0..3]. */
SOD2_INLINE void four_vectors(const float *const in[4], const float *w, const int32_t *offset, int64_t taps,
                              float *const out[4]) {
  vf s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
  const float *in0 = in[0], *in1 = in[1], *in2 = in[2], *in3 = in[3];
  for (int64_t tap = 0; tap < taps; tap++) {
    const vf weight = vf_splat(w[tap]);
    s0 += weight * vf_load(in0 + offset[tap]);
    s1 += weight * vf_load(in1 + offset[tap]);
    s2 += weight * vf_load(in2 + offset[tap]);
    s3 += weight * vf_load(in3 + offset[tap]);
  }
  vf_store(out[0], s0);
  vf_store(out[1], s1);
  vf_store(out[2], s2);
  vf_store(out[3], s3);
}

/* All taps, any kernel. Lines are contiguous in the tile: what a vector writes behind the end of one is overwritten by
   the next. A last group of fewer than four vectors repeats its last one. */
static void multiply(const depthwise_job *job, const float *w, int64_t lines, const float *strip, float *tile) {
  const sod2_conv *c = job->c;
  const depthwise_plan *p = &job->plan;
  const float *in[4];
  float *out[4];
  const int64_t last = lines * p->vectors - 1;
  for (int64_t i = 0, y = 0, x = 0; i <= last; i += 4) {
    for (int64_t j = 0; j < 4; j++) {
      in[j] = strip + y * c->sh * p->width + x;
      out[j] = tile + y * c->ow + x;
      if (i + j < last) x += SOD2_VL;
      if (x >= c->ow) x = 0, y++;
    }
    four_vectors(in, w, job->offset, c->kh * c->kw, out);
  }
}

/* A row of a 3x3 kernel, and a row of inputs under its three columns. */
typedef struct triple {
  vf left, middle, right;
} triple;

SOD2_INLINE triple weights_of(const float *w) { return (triple){vf_splat(w[0]), vf_splat(w[1]), vf_splat(w[2])}; }
SOD2_INLINE triple inputs_of(const float *x) { return (triple){vf_load(x), vf_load(x + 1), vf_load(x + 2)}; }
SOD2_INLINE vf add_row(vf sum, triple w, triple x) {
  sum += w.left * x.left;
  sum += w.middle * x.middle;
  sum += w.right * x.right;
  return sum;
}

/* A vector of each of four consecutive lines of a 3x3 kernel of stride 1: six rows of inputs, each loaded once. */
SOD2_INLINE void four_lines(const float *in, int64_t width, triple top, triple middle, triple bottom, float *out,
                            int64_t ldo, int64_t count) {
  const triple r0 = inputs_of(in), r1 = inputs_of(in + width), r2 = inputs_of(in + 2 * width);
  const vf s0 = add_row(add_row(add_row((vf){0}, top, r0), middle, r1), bottom, r2);
  const triple r3 = inputs_of(in + 3 * width);
  const vf s1 = add_row(add_row(add_row((vf){0}, top, r1), middle, r2), bottom, r3);
  const triple r4 = inputs_of(in + 4 * width);
  const vf s2 = add_row(add_row(add_row((vf){0}, top, r2), middle, r3), bottom, r4);
  const triple r5 = inputs_of(in + 5 * width);
  const vf s3 = add_row(add_row(add_row((vf){0}, top, r3), middle, r4), bottom, r5);
  if (count == SOD2_VL) {
    vf_store(out, s0), vf_store(out + ldo, s1), vf_store(out + 2 * ldo, s2), vf_store(out + 3 * ldo, s3);
  } else {
    vf_store_partial(out, s0, count), vf_store_partial(out + ldo, s1, count);
    vf_store_partial(out + 2 * ldo, s2, count), vf_store_partial(out + 3 * ldo, s3, count);
  }
}

/* 3x3, stride and dilation 1, at least four lines; the last group of four overlaps the one before. */
static void multiply_3x3(const depthwise_job *job, const float *w, int64_t lines, const float *strip, float *tile) {
  const int64_t ow = job->c->ow, width = job->plan.width;
  const triple top = weights_of(w), middle = weights_of(w + 3), bottom = weights_of(w + 6);
  for (int64_t group = 0; group < lines; group += 4) {
    const int64_t y = sod2_imin(group, lines - 4);
    for (int64_t x = 0; x < ow; x += SOD2_VL)
      four_lines(strip + y * width + x, width, top, middle, bottom, tile + y * ow + x, ow, sod2_imin(SOD2_VL, ow - x));
  }
}

/* `lines` output lines from y0 on of one output channel. */
static void compute(const depthwise_job *job, int64_t image, int64_t channel, int64_t y0, int64_t lines,
                    const float *strip, float *tile) {
  const sod2_conv *c = job->c;
  const float *w = c->w[SOD2_CONV_DEPTHWISE] + channel * c->kh * c->kw;
  const int dense = c->sh == 1 && c->sw == 1 && c->dh == 1 && c->dw == 1;
  if (c->kh == 3 && c->kw == 3 && dense && lines >= 4)
    multiply_3x3(job, w, lines, strip, tile);
  else
    multiply(job, w, lines, strip, tile);
  sod2_conv_store(c, tile, lines * c->ow, image, channel, 1, y0 * c->ow, lines * c->ow);
}

/* Input rows of `lines` output lines from y0 on, in all phases. */
static void fill(const sod2_conv *c, const depthwise_plan *p, const float *x, int64_t y0, int64_t lines, float *strip) {
  const int64_t iy = y0 * c->sh - c->pt, rows = strip_rows(c, lines);
  if (c->sw == 2) {
    sod2_strip_pair(c, x, iy, 1, rows, -c->pl, p->width, strip, strip + p->phase);
    return;
  }
  for (int64_t f = 0; f < c->sw; f++)
    sod2_strip_phase(c, x, iy, 1, rows, f - c->pl, p->width, strip + f * p->phase);
}

static void depthwise_chunk(void *arg, int64_t chunk, int thread) {
  const depthwise_job *job = arg;
  const sod2_conv *c = job->c;
  const depthwise_plan *p = &job->plan;
  const int64_t image = chunk / c->groups, group = chunk % c->groups, multiplier = c->oc / c->groups;
  float *strip = job->scratch + p->offsets + thread * (p->strip + p->tile), *tile = strip + p->strip;
  for (int64_t y0 = 0; y0 < c->oh; y0 += p->lines) {
    const int64_t lines = sod2_imin(p->lines, c->oh - y0);
    fill(c, p, c->x + chunk * c->ih * c->iw, y0, lines, strip);
    for (int64_t i = 0; i < multiplier; i++) compute(job, image, group * multiplier + i, y0, lines, strip, tile);
  }
}

static void run(const sod2_conv *c, float *scratch, sod2_pool *pool) {
  if (sod2_conv_is_empty(c)) return;
  depthwise_job job = {.c = c, .plan = plan_of(c), .offset = (int32_t *)scratch, .scratch = scratch};
  fill_offsets(c, &job.plan, (int32_t *)scratch);
  sod2_parallel(pool, c->n * c->groups, depthwise_chunk, &job);
}

/* A load and a multiply-add for each tap of a vector of results. */
static double cost(const sod2_conv *c) {
  const double vectors = (double)(c->n * c->oc * c->oh) * (double)((c->ow + SOD2_VL - 1) / SOD2_VL);
  return vectors * (0.6 * (double)(c->kh * c->kw) + 8);
}

const sod2_conv_kernel sod2_conv_depthwise = {cost, scratch, run};
