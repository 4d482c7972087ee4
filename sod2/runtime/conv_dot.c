/* Convolution with taps in the lanes: a result is the dot product of a row of weights with the inputs under its window.

   For a pixel or two (gates, squeeze-and-excite) and few output channels, where the other versions are mostly padding
   and read padded weights. These are plain, [oc][ic / groups][kh][kw], and read once for each pixel. A piece of work is
   one pixel and a share of the output channels, computed four at a time. */
#include "dot.h"
#include "strips.h"

enum { ROWS = 64, MIN_WORK = 1 << 16 /* multiply-adds of a chunk: it is the stream of weights that takes time */ };
static const double ROW_CYCLES = 10, GATHER_CYCLES = 1; /* a row of one pixel, an input of one pixel */

typedef struct dot_plan {
  int64_t rows, pieces; /* output channels of a group; pieces that they are cut into */
} dot_plan;

static int64_t scratch(const sod2_conv *c, int threads) {
  if (sod2_conv_is_empty(c)) return 0;
  sod2_strips s;
  sod2_strips_plan(c, 1, 1, &s);
  return s.offsets + s.floats + threads * sod2_line(s.depth);
}

/* The inputs under one window, contiguous: where they are, or copied to `copy`. */
static const float *inputs_at(const sod2_window *w, const float *base, float *copy) {
  const sod2_strips *s = w->strips;
  if (s->in_place && s->channel == 1) return base;
  for (int64_t k = 0; k < s->depth; k++) copy[k] = base[w->offset[k]];
  return copy;
}

/* z[i] = row i of the weights . x. The rows that are left behind the last four overlap them, or come one by one. */
static void multiply(const float *weights, int64_t rows, const float *x, int64_t depth, float *z) {
  if (rows < 4) {
    for (int64_t i = 0; i < rows; i++) {
      float four[4] = {0};
      sod2_add_dots(four, weights + i * depth, 0, x, depth);
      z[i] = four[0];
    }
    return;
  }
  for (int64_t group = 0; group < rows; group += 4) {
    const int64_t i = sod2_imin(group, rows - 4);
    float four[4] = {0};
    sod2_add_dots(four, weights + i * depth, depth, x, depth);
    memcpy(z + i, four, sizeof four);
  }
}

static int64_t chunks(const sod2_window *w) {
  return w->lines * w->columns * ((const dot_plan *)w->plan)->pieces;
}

static void compute(const sod2_window *w, int64_t chunk, int thread) {
  const dot_plan *p = w->plan;
  const int64_t depth = w->strips->depth, pixel = chunk / p->pieces, piece = chunk % p->pieces;
  const int64_t y = pixel / w->columns, x = pixel % w->columns;
  const float *in = inputs_at(w, w->base + y * w->strips->width + x, w->scratch + thread * sod2_line(depth));
  const int64_t first = p->rows * piece / p->pieces, count = p->rows * (piece + 1) / p->pieces - first;
  const int64_t row = w->group * p->rows + first;
  float tile[ROWS];
  multiply(w->c->w[SOD2_CONV_DOT] + row * depth, count, in, depth, tile);
  sod2_conv_store(w->c, tile, 1, w->image, row, count, (w->y0 + y) * w->strips->ow + w->x0 + x, 1);
}

static void run(const sod2_conv *c, float *scratch, sod2_pool *pool) {
  if (sod2_conv_is_empty(c)) return;
  sod2_strips s;
  sod2_strips_plan(c, 1, 1, &s);
  dot_plan p = {.rows = c->oc / c->groups};
  p.pieces = sod2_imax((p.rows + ROWS - 1) / ROWS, sod2_imin(p.rows / 4, p.rows * s.depth / MIN_WORK));
  sod2_strips_run(c, &s, &p, scratch, pool, &(sod2_window_kernel){.chunks = chunks, .compute = compute});
}

/* Weights and inputs are loads, half a cycle a vector; measured are the sum of a row's lanes and copying an input. */
static double cost(const sod2_conv *c) {
  const double pixels = (double)sod2_strips_lines(c) * (double)sod2_strips_pixels(c);
  const double depth = (double)sod2_strips_depth(c);
  const int is_vector = sod2_strips_in_place(c) && c->oh * c->ow == 1;
  const double row = ROW_CYCLES + depth / SOD2_VL, gather = is_vector ? 0 : GATHER_CYCLES * depth;
  return pixels * ((double)c->oc * row + (double)c->groups * gather) + sod2_strips_cost(c);
}

const sod2_conv_kernel sod2_conv_dot = {cost, scratch, run};
