/* Convolution with pixels in the lanes: rows of a tile are output channels, columns are NR pixels of a line.

   A piece of work is a block of pixels and a share of the row blocks. Weights are [group][row block][k][rows of the
   block], the row blocks of nearly equal height. The tile of one row block over all pixels goes to the epilogue. The
   last panel of an image that is read in place is copied first: its vectors would read beyond the image. */
#include "strips.h"
#include "tile.h"
#include "tuning.h"

enum {
  MAX_PIXELS = SOD2_PANEL_PIXELS * SOD2_NR,
  TILE_LD = MAX_PIXELS + SOD2_NR,
  CHUNKS = 16,       /* a thread, where they are long enough: threads wait for the last one of each window */
  MIN_WORK = 1 << 20 /* multiply-adds of a chunk: some 10 us */
};
static const double STORE_CYCLES = 5.5, SLOWER_PER_TAP = 1.0 / 16384; /* rows of a panel are a channel apart */

typedef struct panel_plan {
  int64_t rows, row_blocks; /* output channels of a group */
  int64_t shares;           /* pieces that the row blocks are cut into */
} panel_plan;

/* Floats of the copy of the last panel and of the table of its offsets. */
static int64_t tail_floats(const sod2_strips *s) {
  return s->in_place && s->ow % SOD2_NR ? s->depth * SOD2_NR + s->offsets : 0;
}

static int32_t *tail_offsets(const sod2_window *w) {
  return (int32_t *)(w->scratch + w->strips->depth * SOD2_NR);
}

static int64_t scratch(const sod2_conv *c, int threads) {
  (void)threads;
  if (sod2_conv_is_empty(c)) return 0;
  const sod2_strips s = sod2_strips_plan(c);
  return s.offsets + s.floats + tail_floats(&s);
}

/* A row block over the pixels of a block: tile[row][pixel]. What a panel writes behind the end of its line is
   overwritten by the next line. */
static void multiply(const sod2_window *w, const sod2_block *b, int64_t row, int64_t height, const float *weights,
                     float *tile) {
  const sod2_strips *s = w->strips;
  for (int64_t y = 0; y < b->lines; y++)
    for (int64_t x = 0; x < b->columns; x += SOD2_NR) {
      const float *base = w->base + (b->y + y) * s->width + b->x + x;
      const int32_t *offset = w->offset;
      sod2_conv_fetch(w->c, w->image, row, height, b->first + y * b->columns + x, SOD2_NR);
      if (s->in_place && b->x + x + SOD2_NR > s->ow) base = w->scratch, offset = tail_offsets(w);
      sod2_tile_gather_b[height](s->depth, weights, base, offset, tile + y * b->columns + x, TILE_LD, 0);
    }
}

static void panel_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const sod2_window *w = arg;
  const panel_plan *p = w->plan;
  const sod2_block b = sod2_window_block(w, MAX_PIXELS, SOD2_NR, chunk / p->shares);
  const int64_t share = chunk % p->shares, depth = w->strips->depth, last = p->row_blocks * (share + 1) / p->shares;
  const float *weights = w->c->w[SOD2_CONV_PANEL] + w->group * p->rows * depth;
  float tile[SOD2_MR * TILE_LD];
  for (int64_t i = p->row_blocks * share / p->shares; i < last; i++) {
    const int64_t row = sod2_block_start(i, p->rows, p->row_blocks);
    const int64_t height = sod2_block_start(i + 1, p->rows, p->row_blocks) - row;
    multiply(w, &b, w->group * p->rows + row, height, weights + row * depth, tile);
    sod2_conv_store(w->c, tile, TILE_LD, w->image, w->group * p->rows + row, height, b.first, b.count);
  }
}

static void copy_tail(const sod2_window *w) {
  const sod2_strips *s = w->strips;
  const int64_t count = s->ow % SOD2_NR, first = s->ow - count;
  int32_t *offset = tail_offsets(w);
  for (int64_t k = 0; k < s->depth; k++) {
    float *row = w->scratch + k * SOD2_NR;
    for (int64_t i = 0; i < SOD2_NR; i++) row[i] = i < count ? w->base[k * s->channel + first + i] : 0.0f;
    offset[k] = (int32_t)(k * SOD2_NR);
  }
}

static void compute(const sod2_window *w, sod2_pool *pool) {
  sod2_window window = *w;
  panel_plan p = *(const panel_plan *)w->plan;
  const int64_t blocks = sod2_window_blocks(w, MAX_PIXELS), work = p.rows * w->strips->depth * w->lines * w->columns;
  const int64_t wanted = sod2_imin(CHUNKS * sod2_pool_threads(pool), work / MIN_WORK);
  p.shares = sod2_imax(1, sod2_imin(p.row_blocks, (wanted + blocks - 1) / blocks));
  window.plan = &p;
  if (tail_floats(w->strips)) copy_tail(w);
  sod2_parallel(pool, blocks * p.shares, panel_chunk, &window);
}

static void run(const sod2_conv *c, float *scratch, sod2_pool *pool) {
  if (sod2_conv_is_empty(c)) return;
  const sod2_strips s = sod2_strips_plan(c);
  const panel_plan p = {.rows = c->oc / c->groups, .row_blocks = sod2_blocks(c->oc / c->groups)};
  sod2_strips_run(c, &s, &p, scratch, pool, compute);
}

/* The tile steps, then what the epilogue costs a vector of results: measured. */
static double cost(const sod2_conv *c) {
  const sod2_strips s = sod2_strips_plan(c);
  const int64_t pixels = sod2_strips_pixels(c);
  const double panels = (double)((pixels + SOD2_NR - 1) / SOD2_NR), lines = (double)sod2_strips_lines(c);
  const double tiles = lines * panels * (double)(c->groups * s.depth) * sod2_block_cycles(c->oc / c->groups);
  const double store = STORE_CYCLES * lines * (double)(pixels * c->oc) / SOD2_VL;
  return tiles * (1 + SLOWER_PER_TAP * (double)s.depth) + store + sod2_strips_cost(c, &s);
}

const sod2_conv_kernel sod2_conv_panel = {cost, scratch, run};
