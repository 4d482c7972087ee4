/* Depthwise convolution: every group has one input channel, and oc / groups output channels.

   A piece of work is a few input channels, each of one image. 3x3 kernels of stride 1 and 2 read the image itself: what
   lies under the three columns of a kernel is shuffled out of two or three vectors, and rows are shared by four lines.

   Of other kernels, the padded rows go to a strip, split by the column stride as in strips.h; a tap of VL output pixels
   is then one unaligned load, whatever stride and dilation, and four vectors of results share each weight. A single row
   of taps loads less: see DEFINE_ALONG. Weights are plain: [oc][kh][kw]. */
#include "strips.h"

enum { STRIP_BYTES = 64 << 10, TOGETHER = 4 /* channels of a piece, at most */ };

typedef struct depthwise_plan {
  int64_t lines, vectors; /* output lines of a strip; vectors of a line */
  int64_t width, phase;   /* floats of an input row, of all rows of a column phase */
  int64_t offsets;        /* floats of the table of taps, shared by all threads */
  int64_t strip, tile;    /* floats of a thread's scratch: of a channel, of an output channel */
  int64_t together;       /* most channels of a piece: their strips are filled first, since reading waits for writing */
} depthwise_plan;

static int64_t strip_rows(const sod2_conv *c, int64_t lines) { return (lines - 1) * c->sh + (c->kh - 1) * c->dh + 1; }

/* A single row of taps next to each other. */
static int is_row(const sod2_conv *c) { return c->kh == 1 && c->sw == 1 && c->dw == 1; }

/* 3x3 taps next to each other, of stride 1 or 2: from the image, without a strip. */
static int is_3x3(const sod2_conv *c) {
  return c->kh == 3 && c->kw == 3 && c->sh == c->sw && c->sw <= 2 && c->dh == 1 && c->dw == 1;
}

static depthwise_plan plan_of(const sod2_conv *c) {
  depthwise_plan p = {.vectors = (c->ow + SOD2_VL - 1) / SOD2_VL, .offsets = sod2_line(c->kh * c->kw)};
  if (is_row(c)) p.vectors = (p.vectors + 1) / 2 * 2;
  p.width = p.vectors * SOD2_VL + (c->kw - 1) * c->dw / c->sw;
  const int64_t fit = (STRIP_BYTES / 4 / (c->sw * p.width) - (c->kh - 1) * c->dh - 1) / c->sh + 1;
  p.lines = sod2_imax(1, sod2_imin(fit, c->oh));
  p.phase = strip_rows(c, p.lines) * p.width + SOD2_VL; /* rows are filled and read whole vectors at a time */
  p.strip = is_3x3(c) ? 0 : sod2_line(c->sw * p.phase);
  p.together = p.lines < c->oh ? 1 : sod2_imax(1, sod2_imin(TOGETHER, STRIP_BYTES / 4 / sod2_imax(1, p.strip)));
  p.tile = sod2_line((p.lines + 3) * c->ow + 2 * SOD2_VL); /* what groups of four have behind the last line */
  return p;
}

static int64_t scratch(const sod2_conv *c, int threads) {
  if (sod2_conv_is_empty(c)) return 0;
  const depthwise_plan p = plan_of(c);
  return p.offsets + threads * (p.together * p.strip + p.tile);
}

typedef struct depthwise_job {
  const sod2_conv *c;
  depthwise_plan plan;
  int64_t together;      /* channels of a piece */
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
SOD2_INLINE vf add_row(vf sum, triple w, triple x) {
  sum += w.left * x.left;
  sum += w.middle * x.middle;
  sum += w.right * x.right;
  return sum;
}

/* The columns under the taps of VL windows, as three vectors: lanes [first, last) of each are in the image. */
typedef struct columns {
  int64_t start, first[3], last[3];
} columns;

static columns columns_from(int64_t start, int64_t iw) {
  columns found = {.start = start};
  for (int64_t i = 0; i < 3; i++, start += SOD2_VL) {
    found.first[i] = sod2_imin(SOD2_VL, sod2_imax(0, -start));
    found.last[i] = sod2_imax(found.first[i], sod2_imin(SOD2_VL, iw - start));
  }
  return found;
}

/* Row iy of the image under these columns, of windows `stride` (1 or 2) apart; 0 outside of it. `inside`: all columns
   are in the image. */
SOD2_INLINE triple inputs_at(int stride, int inside, const sod2_conv *c, const float *x, int64_t iy, columns at) {
  if (iy < 0 || iy >= c->ih) return (triple){{0}, {0}, {0}};
  const float *p = x + iy * c->iw + at.start;
  const vf low = inside ? vf_load(p) : vf_load_between(p, at.first[0], at.last[0], 0);
  const vf high = inside ? vf_load(p + SOD2_VL) : vf_load_between(p + SOD2_VL, at.first[1], at.last[1], 0);
  const vf second = __builtin_shufflevector(low, high, SOD2_FROM_1);
  if (stride == 1) return (triple){low, second, __builtin_shufflevector(low, high, SOD2_FROM_2)};
  const vf next = inside ? vf_load(p + 2 * SOD2_VL) : vf_load_between(p + 2 * SOD2_VL, at.first[2], at.last[2], 0);
  const vf left = __builtin_shufflevector(low, high, SOD2_EVEN);
  return (triple){left, __builtin_shufflevector(low, high, SOD2_ODD), __builtin_shufflevector(left, next, SOD2_FROM_1)};
}

/* `count` results of each of four consecutive lines, whose windows begin with row iy. */
SOD2_INLINE void four_lines(int stride, int inside, const sod2_conv *c, const float *x, const float *w, int64_t iy,
                            columns at, float *out, int64_t count) {
  const triple top = weights_of(w), middle = weights_of(w + 3), bottom = weights_of(w + 6);
  triple above = inputs_at(stride, inside, c, x, iy, at), within = inputs_at(stride, inside, c, x, iy + 1, at);
  SOD2_UNROLL for (int64_t i = 0; i < 4; i++) {
    const triple below = inputs_at(stride, inside, c, x, iy + 2, at);
    const vf sum = add_row(add_row(add_row((vf){0}, top, above), middle, within), bottom, below);
    if (count == SOD2_VL)
      vf_store(out + i * c->ow, sum);
    else
      vf_store_partial(out + i * c->ow, sum, count);
    above = stride == 1 ? within : below;
    iy += stride;
    within = stride == 1 ? below : inputs_at(stride, inside, c, x, iy + 1, at);
  }
}

/* 3x3 of stride 1 or 2, from the image. The last group of four lines may end behind `lines`. */
SOD2_INLINE void multiply_3x3(int stride, const sod2_conv *c, const float *w, const float *x, int64_t y0, int64_t lines,
                              float *tile) {
  for (int64_t ox = 0; ox < c->ow; ox += SOD2_VL) {
    const columns at = columns_from(stride * ox - c->pl, c->iw);
    const int64_t count = sod2_imin(SOD2_VL, c->ow - ox);
    for (int64_t y = 0; y < lines; y += 4) {
      const int64_t iy = stride * (y0 + y) - c->pt;
      if (at.start >= 0 && at.start + (stride + 1) * SOD2_VL <= c->iw)
        four_lines(stride, 1, c, x, w, iy, at, tile + y * c->ow + ox, count);
      else
        four_lines(stride, 0, c, x, w, iy, at, tile + y * c->ow + ox, count);
    }
  }
}

/* Several vectors of results of a row of taps: F(i, i + 1) for each. Taps VL apart share inputs: what is under one of a
   vector is under the other of the vector before. A load that crosses a cache line takes as long as two multiply-adds,
   so each is made once, at the end of the tap before: compilers would repeat one made where it is used. */
#define VECTORS_2(F) F(0, 1) F(1, 2)
#define VECTORS_4(F) VECTORS_2(F) F(2, 3) F(3, 4)
#define VECTORS_8(F) VECTORS_4(F) F(4, 5) F(5, 6) F(6, 7) F(7, 8)
#define ZERO_SUM(i, next) vf s##i = {0}, t##i = {0};
#define DECLARE_INPUT(i, next) vf x##i = vf_load(x + i * SOD2_VL);
#define LOAD_INPUT(i, next) x##i = vf_load(x + i * SOD2_VL);
#define ADD_NEAR(i, next) s##i += near * x##i;
#define ADD_FAR(i, next) t##i += far * x##next;
#define STORE_SUM(i, next) vf_store(out + i * SOD2_VL, s##i + t##i);
#define DEFINE_ALONG(N)                                                                                               \
  static void along_##N(const float *in, const float *w, int64_t taps, float *out) {                                  \
    VECTORS_##N(ZERO_SUM)                                                                                             \
    for (int64_t first = 0; first < taps; first += 2 * SOD2_VL) {                                                     \
      const int64_t end = sod2_imin(first + SOD2_VL, taps), shared = sod2_imin(end, taps - SOD2_VL);                  \
      const float *x = in + first;                                                                                    \
      int64_t tap = first;                                                                                            \
      VECTORS_##N(DECLARE_INPUT)                                                                                      \
      if (tap < shared) {                                                                                             \
        DECLARE_INPUT(N, N)                                                                                           \
        for (; tap < shared; tap++) {                                                                                 \
          const vf near = vf_splat(w[tap]), far = vf_splat(w[tap + SOD2_VL]);                                         \
          VECTORS_##N(ADD_NEAR)                                                                                       \
          VECTORS_##N(ADD_FAR)                                                                                        \
          x++;                                                                                                        \
          VECTORS_##N(LOAD_INPUT)                                                                                     \
          LOAD_INPUT(N, N)                                                                                            \
        }                                                                                                             \
      }                                                                                                               \
      for (; tap < end; tap++) {                                                                                      \
        const vf near = vf_splat(w[tap]);                                                                             \
        VECTORS_##N(ADD_NEAR)                                                                                         \
        x++;                                                                                                          \
        VECTORS_##N(LOAD_INPUT)                                                                                       \
      }                                                                                                               \
    }                                                                                                                 \
    VECTORS_##N(STORE_SUM)                                                                                            \
  }
DEFINE_ALONG(2)
DEFINE_ALONG(4)
DEFINE_ALONG(8)

static void multiply_row(const depthwise_job *job, const float *w, int64_t lines, const float *strip, float *tile) {
  const sod2_conv *c = job->c;
  const int64_t most = SOD2_VL == 8 ? 4 : 8; /* AVX2 has half the registers */
  for (int64_t y = 0; y < lines; y++) {
    const float *in = strip + y * c->sh * job->plan.width;
    float *out = tile + y * c->ow;
    for (int64_t left = job->plan.vectors, some; left > 0; left -= some, in += some * SOD2_VL, out += some * SOD2_VL) {
      some = left >= most ? most : left >= 4 ? 4 : 2;
      (some == 8 ? along_8 : some == 4 ? along_4 : along_2)(in, w, c->kw, out);
    }
  }
}

/* `lines` output lines from y0 on of one output channel, from its input channel x or the strip. */
static void compute(const depthwise_job *job, int64_t image, int64_t channel, const float *x, int64_t y0, int64_t lines,
                    const float *strip, float *tile) {
  const sod2_conv *c = job->c;
  const float *w = c->w[SOD2_CONV_DEPTHWISE] + channel * c->kh * c->kw;
  if (is_3x3(c) && c->sw == 1)
    multiply_3x3(1, c, w, x, y0, lines, tile);
  else if (is_3x3(c))
    multiply_3x3(2, c, w, x, y0, lines, tile);
  else if (is_row(c))
    multiply_row(job, w, lines, strip, tile);
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
    sod2_strip_phase(c, x, iy, 1, rows, f - c->pl, c->sw, p->width, strip + f * p->phase);
}

static void depthwise_chunk(void *arg, int64_t chunk, int thread) {
  const depthwise_job *job = arg;
  const sod2_conv *c = job->c;
  const depthwise_plan *p = &job->plan;
  const int64_t multiplier = c->oc / c->groups, plane = c->ih * c->iw, first = chunk * job->together;
  const int64_t end = sod2_imin(first + job->together, c->n * c->groups);
  float *strip = job->scratch + p->offsets + thread * (p->together * p->strip + p->tile);
  float *tile = strip + p->together * p->strip;
  for (int64_t y0 = 0; y0 < c->oh; y0 += p->lines) {
    const int64_t lines = sod2_imin(p->lines, c->oh - y0);
    for (int64_t i = first; i < end && p->strip > 0; i++)
      fill(c, p, c->x + i * plane, y0, lines, strip + (i - first) * p->strip);
    for (int64_t i = first; i < end; i++)
      for (int64_t k = 0; k < multiplier; k++)
        compute(job, i / c->groups, i % c->groups * multiplier + k, c->x + i * plane, y0, lines,
                strip + (i - first) * p->strip, tile);
  }
}

static void run(const sod2_conv *c, float *scratch, sod2_pool *pool) {
  if (sod2_conv_is_empty(c)) return;
  depthwise_job job = {.c = c, .plan = plan_of(c), .offset = (int32_t *)scratch, .scratch = scratch};
  const int64_t planes = c->n * c->groups, fair = planes / (4 * sod2_pool_threads(pool)); /* channels of a piece */
  job.together = sod2_imax(1, sod2_imin(job.plan.together, fair));
  fill_offsets(c, &job.plan, (int32_t *)scratch);
  sod2_parallel(pool, (planes + job.together - 1) / job.together, depthwise_chunk, &job);
}

/* A load and a multiply-add for each tap of a vector of results. */
static double cost(const sod2_conv *c) {
  const double vectors = (double)(c->n * c->oc * c->oh) * (double)((c->ow + SOD2_VL - 1) / SOD2_VL);
  return vectors * (0.6 * (double)(c->kh * c->kw) + 8);
}

const sod2_conv_kernel sod2_conv_depthwise = {cost, scratch, run};
