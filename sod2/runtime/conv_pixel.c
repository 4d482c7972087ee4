/* Convolution with output channels in the lanes: rows of a tile are pixels of a line, columns are NR output channels.

   Exact for any number of pixels in a line, where panels of NR pixels would be part padding. A piece of work is one
   panel of weights, [group][oc panel][k][NR], over a block of pixels. Some rows of the panel (tuning.h) stay near while
   the pixels pass, and each pass fetches its share of the rows that follow: of few pixels, weights take as long to
   arrive as to be multiplied, and all at once they would be waited for. Near is L1, or a fast L2 where a row meets 14
   pixels at a time and is not needed more often than every 14 cycles. The finished tile is transposed to rows of pixels
   for the epilogue. */
#include "strips.h"
#include "tile.h"
#include "transpose.h"
#include "tuning.h"

enum {
  MAX_PIXELS = SOD2_PIXEL_BLOCK / SOD2_MR * SOD2_MR,
  TILE_LD = (MAX_PIXELS + SOD2_VL - 1) / SOD2_VL * SOD2_VL
};
static const double STORE_CYCLES = 8, PAGE = 1024; /* floats */

typedef struct pixel_plan {
  int64_t rows, panels; /* output channels of a group */
} pixel_plan;

static int64_t scratch(const sod2_conv *c, int threads) {
  if (sod2_conv_is_empty(c)) return 0;
  sod2_strips s;
  sod2_strips_plan(c, threads, SOD2_TILE_STEPS, &s);
  return s.offsets + s.owners * s.floats;
}

/* tile[pixel][NR] of one panel of weights: of the output channels from `row` on. */
static void multiply(const sod2_window *w, const sod2_block *b, int64_t row, int64_t rows, const float *weights,
                     float *tile) {
  const sod2_strips *s = w->strips;
  const int64_t pieces = sod2_blocks(b->columns), passes = b->lines * pieces, stride = SOD2_NR / passes;
  for (int64_t k0 = 0; k0 == 0 || k0 < s->depth; k0 += SOD2_PIXEL_DEPTH) {
    const int64_t depth = sod2_imin(SOD2_PIXEL_DEPTH, s->depth - k0);
    const float *part = weights + k0 * SOD2_NR, *next = part + depth * SOD2_NR;
    for (int64_t pass = 0; pass < passes; pass++, next += depth * stride) {
      const int64_t y = pass / pieces, i = pass % pieces, x = sod2_block_start(i, b->columns, pieces);
      const int64_t height = sod2_block_start(i + 1, b->columns, pieces) - x;
      if (k0 == 0) sod2_conv_fetch(w->c, w->image, row, rows, b->first + y * b->columns + x, height);
      const float *first = w->base + (b->y + y) * s->step_y * s->width + (b->x + x) * s->step_x;
      sod2_tile_gather_a[s->step_x - 1][height](depth, first, part, w->offset + k0,
                                                tile + (y * b->columns + x) * SOD2_NR, SOD2_NR, k0 > 0, next, stride);
    }
  }
}

/* Bias, Relu and the transpose of a tile in one pass, where no epilogue follows. */
static void finish(const sod2_conv *c, const float *tile, int64_t image, int64_t row, int64_t rows, int64_t pixel,
                   int64_t count) {
  const int64_t plane = c->oh * c->ow;
  const vf least = vf_splat(sod2_conv_least(c));
  for (int64_t j = 0; j < rows; j += SOD2_VL) {
    const int64_t channels = sod2_imin(SOD2_VL, rows - j);
    const vf bias = c->bias ? vf_load_partial(c->bias + row + j, channels, 0) : (vf){0};
    float *y = c->y + (image * c->oc + row + j) * plane + pixel;
    for (int64_t i = 0; i < count; i += SOD2_VL, y += SOD2_VL) {
      vf v[SOD2_VL];
      SOD2_UNROLL for (int l = 0; l < SOD2_VL; l++) v[l] = vf_max(least, vf_load(tile + (i + l) * SOD2_NR + j) + bias);
      sod2_transpose_vectors(v);
      if (channels == SOD2_VL && i + SOD2_VL <= count) {
        SOD2_UNROLL for (int l = 0; l < SOD2_VL; l++) vf_store(y + l * plane, v[l]);
      } else {
        SOD2_UNROLL for (int l = 0; l < SOD2_VL; l++)
          if (l < channels) vf_store_partial(y + l * plane, v[l], sod2_imin(SOD2_VL, count - i));
      }
    }
  }
}

static int64_t first_panel(const sod2_window *w, int64_t share) {
  return sod2_window_share(w, share, ((const pixel_plan *)w->plan)->panels);
}

static int64_t chunks(const sod2_window *w) {
  return sod2_window_blocks(w, MAX_PIXELS) * (first_panel(w, w->share + 1) - first_panel(w, w->share));
}

static void compute(const sod2_window *w, int64_t chunk, int thread) {
  (void)thread;
  const pixel_plan *p = w->plan;
  const int64_t blocks = sod2_window_blocks(w, MAX_PIXELS);
  const int64_t panel = first_panel(w, w->share) + chunk / blocks, row = panel * SOD2_NR;
  const sod2_block b = sod2_window_block(w, blocks, SOD2_MR, chunk % blocks);
  float tile[TILE_LD * SOD2_NR], channels[SOD2_NR * TILE_LD];
  const int64_t first = w->group * p->rows + row, rows = sod2_imin(SOD2_NR, p->rows - row);
  const float *weights = w->c->w[SOD2_CONV_PIXEL] + (w->group * p->panels + panel) * w->strips->depth * SOD2_NR;
  multiply(w, &b, first, rows, weights, tile);
  if (!w->c->epilogue) {
    finish(w->c, tile, w->image, first, rows, b.first, b.count);
    return;
  }
  for (int64_t i = 0; i < b.count; i += SOD2_VL)
    for (int64_t j = 0; j < SOD2_NR; j += SOD2_VL)
      sod2_transpose(tile + i * SOD2_NR + j, SOD2_NR, channels + j * TILE_LD + i, TILE_LD);
  sod2_conv_store(w->c, channels, TILE_LD, w->image, first, rows, b.first, b.count);
}

static void run(const sod2_conv *c, float *scratch, sod2_pool *pool) {
  if (sod2_conv_is_empty(c)) return;
  sod2_strips s;
  sod2_strips_plan(c, sod2_pool_threads(pool), SOD2_TILE_STEPS, &s);
  const pixel_plan p = {.rows = c->oc / c->groups, .panels = (c->oc / c->groups + SOD2_NR - 1) / SOD2_NR};
  sod2_strips_run(c, &s, &p, scratch, pool, &(sod2_window_kernel){.chunks = chunks, .compute = compute});
}

/* The tile steps, then what transpose and epilogue cost a vector of results: measured. */
static double cost(const sod2_conv *c) {
  const double panels = (double)(c->groups * ((c->oc / c->groups + SOD2_NR - 1) / SOD2_NR));
  const int64_t pixels = sod2_strips_pixels(c);
  const double lines = (double)sod2_strips_lines(c);
  const double share = fmin(1, (double)pixels / PAGE); /* of a page that a channel fills */
  const double apart = sod2_strips_in_place(c) ? share * share * SOD2_APART / 100 : 0;
  const double tiles = lines * sod2_block_cycles(pixels) * panels * (double)sod2_strips_depth(c) * (1 + apart);
  return tiles + STORE_CYCLES * lines * (double)pixels * panels * SOD2_NR / SOD2_VL + sod2_strips_cost(c);
}

const sod2_conv_kernel sod2_conv_pixel = {cost, scratch, run};
