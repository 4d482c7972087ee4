/* Depthwise convolution: every group has one input channel, and oc / groups output channels.

   A piece of work is one image and one input channel. Its padded rows go to a strip, split by the column stride, as the
   patches of conv_panel.c do; a tap of VL output pixels is then one unaligned load, whatever stride and dilation.
   Weights are plain: [oc][kh][kw]. */
#include "strips.h"

enum { STRIP_BYTES = 64 << 10, COLUMNS = 4 }; /* vectors of output pixels that share a loaded weight */

typedef struct depthwise_plan {
  int64_t lines;        /* output rows of a strip */
  int64_t width, phase; /* floats of an input row, of all rows of a column phase */
  int64_t strip, tile;  /* floats of a thread's scratch */
  int64_t tile_ld;
} depthwise_plan;

static int64_t strip_rows(const sod2_conv *c, int64_t lines) { return (lines - 1) * c->sh + (c->kh - 1) * c->dh + 1; }

static depthwise_plan plan_of(const sod2_conv *c) {
  depthwise_plan p = {.tile_ld = (c->ow + COLUMNS * SOD2_VL - 1) / (COLUMNS * SOD2_VL) * COLUMNS * SOD2_VL};
  p.width = p.tile_ld + (c->kw - 1) * c->dw / c->sw + SOD2_VL;
  const int64_t fit = (STRIP_BYTES / 4 / (c->sw * p.width) - (c->kh - 1) * c->dh - 1) / c->sh + 1;
  p.lines = sod2_imax(1, sod2_imin(fit, c->oh));
  p.phase = strip_rows(c, p.lines) * p.width;
  p.strip = sod2_line(c->sw * p.phase + SOD2_VL);
  p.tile = p.lines * p.tile_ld;
  return p;
}

static int64_t scratch(const sod2_conv *c, int threads) {
  if (sod2_conv_is_empty(c)) return 0;
  const depthwise_plan p = plan_of(c);
  return threads * (p.strip + p.tile);
}

/* COLUMNS vectors of output pixels from column x of the line whose first input row is `rows`. */
SOD2_INLINE void line_piece(const sod2_conv *c, const depthwise_plan *p, const float *w, const float *rows, int64_t x,
                            float *out) {
  vf s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
  for (int64_t ky = 0; ky < c->kh; ky++)
    for (int64_t kx = 0; kx < c->kw; kx++) {
      const float *tap = rows + ky * c->dh * p->width + kx * c->dw % c->sw * p->phase + kx * c->dw / c->sw + x;
      const vf weight = vf_splat(*w++);
      s0 += weight * vf_load(tap);
      s1 += weight * vf_load(tap + SOD2_VL);
      s2 += weight * vf_load(tap + 2 * SOD2_VL);
      s3 += weight * vf_load(tap + 3 * SOD2_VL);
    }
  vf_store(out, s0);
  vf_store(out + SOD2_VL, s1);
  vf_store(out + 2 * SOD2_VL, s2);
  vf_store(out + 3 * SOD2_VL, s3);
}

typedef struct depthwise_job {
  const sod2_conv *c;
  depthwise_plan plan;
  float *scratch;
} depthwise_job;

/* Output rows [y0, y0 + lines) of one output channel from the filled strip. */
static void compute(const depthwise_job *job, int64_t image, int64_t channel, int64_t y0, int64_t lines,
                    const float *strip, float *tile) {
  const sod2_conv *c = job->c;
  const depthwise_plan *p = &job->plan;
  const float *w = c->w[SOD2_CONV_DEPTHWISE] + channel * c->kh * c->kw;
  for (int64_t y = 0; y < lines; y++) {
    float *out = tile + y * c->ow; /* lines are contiguous: the surplus of one is overwritten by the next */
    for (int64_t x = 0; x < c->ow; x += COLUMNS * SOD2_VL) line_piece(c, p, w, strip + y * c->sh * p->width, x, out + x);
  }
  sod2_conv_store(c, tile, lines * c->ow, image, channel, 1, y0 * c->ow, lines * c->ow);
}

static void depthwise_chunk(void *arg, int64_t chunk, int thread) {
  const depthwise_job *job = arg;
  const sod2_conv *c = job->c;
  const depthwise_plan *p = &job->plan;
  const int64_t image = chunk / c->groups, group = chunk % c->groups, multiplier = c->oc / c->groups;
  float *strip = job->scratch + thread * (p->strip + p->tile), *tile = strip + p->strip;
  for (int64_t y0 = 0; y0 < c->oh; y0 += p->lines) {
    const int64_t lines = sod2_imin(p->lines, c->oh - y0);
    for (int64_t f = 0; f < c->sw; f++)
      sod2_strip_phase(c, c->x + chunk * c->ih * c->iw, y0 * c->sh - c->pt, 1, strip_rows(c, lines), f - c->pl, p->width,
                       strip + f * p->phase);
    for (int64_t i = 0; i < multiplier; i++) compute(job, image, group * multiplier + i, y0, lines, strip, tile);
  }
}

static void run(const sod2_conv *c, float *scratch, sod2_pool *pool) {
  if (sod2_conv_is_empty(c)) return;
  depthwise_job job = {.c = c, .plan = plan_of(c), .scratch = scratch};
  sod2_parallel(pool, c->n * c->groups, depthwise_chunk, &job);
}

/* A load and a multiply-add for each tap of a vector of results. */
static double cost(const sod2_conv *c) {
  const double vectors = (double)(c->n * c->oc * c->oh) * (double)((c->ow + SOD2_VL - 1) / SOD2_VL);
  return vectors * (0.6 * (double)(c->kh * c->kw) + 8);
}

const sod2_conv_kernel sod2_conv_depthwise = {cost, scratch, run};
