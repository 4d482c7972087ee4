/* Winograd convolution F(m x m, 3 x 3), m = 2, 4, 6: 3x3 kernels of stride 1 with any padding.

   The output is cut into tiles of m x m pixels, which need n^2 inputs each, n = m + 2, and as many multiplications a
   pair of channels instead of 9 m^2. Lanes are channels in all three stages, so both transforms are straight vector
   code for any image size:
     1. input:    a strip of n rows is transposed to [row][column][VL channels], padding as zeros; transformed
                  down its columns in place, once a column and not once a tile; then along the rows of each tile to
                  V[xi][channel block][tile][VL], xi < n^2.
     2. products: for each xi a GEMM of tiles by channels with the weights U[panel][xi][channel][NR], to
                  P[xi][vector of NR][tile][VL].
     3. output:   the inverse, transposed back to rows of pixels for the epilogue.
   Planes of V and P are padded by a cache line, or strides of 4 KB would put all xi into one set of L1.

   A 7x7 convolution of stride 2 is one of 4x4 and stride 1 over four times the channels: the phases of the image,
   every second line and column of it from line and column 0 or 1 on. For it m is 3 and n is 6; a first layer of three
   channels then has depth 12, enough for the products to outweigh the transforms.

   Work is a block of consecutive tiles. Where weights are small and tiles not too few, a thread takes a block through
   all stages, so that V stays on its core. Otherwise all threads share one block at a time: they divide the channel
   blocks of stage 1, then the panels of stages 2 and 3, so that each weight is read once. Channels are padded with
   zeros to whole vectors. */
#include "strips.h"
#include "tile.h"
#include "tuning.h"
#include "winograd_transform.h"

enum {
  INPUT_RUN = SOD2_WINOGRAD_COLUMNS, /* output columns whose inputs are transformed at once: a strip stays in L1 */
  OUTPUT_RUN = 48,                   /* and whose products are: whole lines */
  MAX_N = 8,
  PHASES = 4,      /* of a stride of 2 */
  LINES_LD = INPUT_RUN + 2 * SOD2_VL,
  OWN_TILES = SOD2_WINOGRAD_OWN_TILES, /* most tiles of a block of one thread, and of one that all share */
  SHARED_TILES = SOD2_WINOGRAD_TILES,
  STRIP = MAX_N * (INPUT_RUN + 3) * SOD2_VL + SOD2_VL * SOD2_VL, /* columns overlap by up to n - m = 3 */
  LINE = 6 * OUTPUT_RUN + SOD2_VL, /* m rows of a run */
  PAD = 16,
  OWN_V_BYTES = SOD2_WINOGRAD_OWN_KIB << 10,   /* V of one thread, V shared by all */
  SHARED_V_BYTES = SOD2_WINOGRAD_SHARED_KIB << 10,
  OWN_WEIGHT_BYTES = SOD2_WINOGRAD_WEIGHTS_KIB << 10, /* weights up to this size are read again for each block */
  FAR_WEIGHT_BYTES = 4 << 20, /* larger ones come from beyond L2 each time: blocks are twice as large, or shared */
#ifdef SOD2_FAR_CORES
  ROW_BLOCK = SOD2_MR, /* the most tiles of a block are whole row blocks: lower ones wait for weights */
  FETCH_WRITTEN = 0,   /* to fetch lines that are only written takes longer than to store them */
#else
  ROW_BLOCK = 1,
  FETCH_WRITTEN = 1,
#endif
  MIN_OWN_TILES = 8 /* of a thread: half of a shared V has to come from another core, maybe from another chip */
};
static const double BYTES_PER_CYCLE = 6;

typedef struct winograd_plan {
  int64_t tiles_x, tiles;         /* tiles of a row, of an image */
  int64_t channels, depth, panels; /* inputs; those padded to VL; panels of NR output channels */
  int64_t blocks, block_tiles;    /* blocks of tiles of an image, tiles of the largest */
  int64_t planes, v, products;    /* n^2; floats of V and of P */
  int shared;                     /* threads share a block */
} winograd_plan;

/* Channels of one: its own, or the phases of those. */
SOD2_INLINE int64_t channels_of(const sod2_conv *c, int m) { return m == 3 ? PHASES * c->ic : c->ic; }

static winograd_plan plan_of(const sod2_conv *c, int m, int threads) {
  const int64_t n = winograd_inputs(m);
  winograd_plan p = {.tiles_x = (c->ow + m - 1) / m, .planes = n * n};
  p.tiles = p.tiles_x * ((c->oh + m - 1) / m);
  p.channels = channels_of(c, m);
  p.depth = (p.channels + SOD2_VL - 1) / SOD2_VL * SOD2_VL;
  p.panels = (c->oc + SOD2_NR - 1) / SOD2_NR;
  const int64_t tile_bytes = p.planes * sod2_imax(p.depth, SOD2_VL) * 4, weights = tile_bytes * p.panels * SOD2_NR;
  const int64_t wanted = sod2_imin(4 * threads, p.tiles / SOD2_MR);
  const int64_t v = p.planes * p.depth * 4, products = p.planes * SOD2_NR * 4, own = threads * (v + products);
  const int far = weights > FAR_WEIGHT_BYTES;
  int64_t fit = sod2_imax(SOD2_MR, sod2_imin(OWN_TILES, (far ? 2 : 1) * OWN_V_BYTES / tile_bytes));
  p.shared = weights > OWN_WEIGHT_BYTES || p.tiles < threads * MIN_OWN_TILES ||
             (far && c->scratch_limit > 0 && c->scratch_limit < own * SOD2_MR);
  if (p.shared) fit = sod2_imax(SOD2_MR, sod2_imin(SHARED_TILES, SHARED_V_BYTES / tile_bytes));
  if (c->scratch_limit > 0) {
    const int64_t least = m == 6 ? SOD2_MR / 2 : SOD2_MR; /* of so many planes: no more scratch than F(4) needs */
    fit = sod2_imin(fit, c->scratch_limit / (p.shared ? v + threads * products : own));
    fit = sod2_imax(fit, least);
  }
  if (fit > ROW_BLOCK) fit -= fit % ROW_BLOCK;
  p.blocks = (p.tiles + fit - 1) / fit;
  if (!p.shared) p.blocks = sod2_ceildiv(sod2_imax(p.blocks, wanted), threads) * threads;
  p.block_tiles = (p.tiles + p.blocks - 1) / p.blocks;
  p.v = p.planes * (p.depth * p.block_tiles + PAD);
  p.products = p.planes * (SOD2_NR * p.block_tiles + PAD);
  return p;
}

typedef struct winograd_job {
  const sod2_conv *c;
  winograd_plan plan;
  const float *u;
  float *scratch;
  int64_t image, first, count; /* the shared block */
} winograd_job;

/* A piece of a row of tiles, as which a block of tiles is transformed: rows are cut where `columns` (INPUT_RUN or
   OUTPUT_RUN) of output are full, and where blocks meet. */
typedef struct winograd_run {
  int64_t ty, tx, count;
} winograd_run;

/* The run that starts with tile `at` and ends before `end`. */
SOD2_INLINE winograd_run run_at(int64_t at, int64_t end, int m, int64_t tiles_x, int columns) {
  const int64_t tx = at % tiles_x, most = columns / m;
  return (winograd_run){at / tiles_x, tx, sod2_imin(sod2_imin(end - at, tiles_x - tx), most - tx % most)};
}

/* ---- stage 1 ---------------------------------------------------------------------------------------------------- */

/* dst[column][VL] = `width` columns from `ix` on of one row of `channels` (<= VL) planes; zero outside of the image. */
static void load_row(const sod2_conv *c, const float *row, int64_t channels, int64_t ix, int64_t width, float *dst) {
  const int64_t plane = c->ih * c->iw, lo = sod2_imin(width, sod2_imax(0, -ix));
  const int64_t hi = sod2_imax(lo, sod2_imin(width, c->iw - ix));
  const float *end = c->x + c->n * c->ic * plane;
  for (int64_t i = 0; i < lo * SOD2_VL; i++) dst[i] = 0.0f;
  for (int64_t i = lo; i < hi; i += SOD2_VL) {
    const float *src = row + ix + i;
    if (channels == SOD2_VL && src + (SOD2_VL - 1) * plane + SOD2_VL <= end) {
      sod2_transpose(src, plane, dst + i * SOD2_VL, SOD2_VL); /* what is too much is overwritten */
    } else {
      for (int64_t j = 0; j < sod2_imin(SOD2_VL, hi - i); j++)
        for (int64_t lane = 0; lane < SOD2_VL; lane++)
          dst[(i + j) * SOD2_VL + lane] = lane < channels ? src[lane * plane + j] : 0.0f;
    }
  }
  for (int64_t i = hi * SOD2_VL; i < width * SOD2_VL; i++) dst[i] = 0.0f;
}

/* The same of row `iy` of an image that is computed, `channels` from `channel` on. */
static void compute_row(const sod2_conv *c, int64_t image, int64_t channel, int64_t channels, int64_t iy, int64_t ix,
                        int64_t width, float *dst) {
  const int64_t lo = sod2_imin(width, sod2_imax(0, -ix)), hi = sod2_imax(lo, sod2_imin(width, c->iw - ix));
  float lines[SOD2_VL * LINES_LD], *line = lines;
  c->prologue(c->prologue_args, lines + lo, LINES_LD, image, channel, channels, iy * c->iw + ix + lo, hi - lo);
  for (int64_t i = 0; i < channels; i++, line += LINES_LD) {
    memset(line, 0, (size_t)lo * sizeof *line);
    memset(line + hi, 0, (size_t)(width - hi) * sizeof *line);
  }
  memset(line, 0, (size_t)(lines + SOD2_VL * LINES_LD - line) * sizeof *line);
  for (int64_t i = 0; i < width; i += SOD2_VL) sod2_transpose(lines + i, LINES_LD, dst + i * SOD2_VL, SOD2_VL);
}

/* The same of one row of the phases of `channels` (<= VL / 4) planes of an image; x is the first of them. */
static void load_phases(const sod2_conv *c, const float *x, int64_t channels, int64_t iy, int64_t ix, int64_t width,
                        float *dst) {
  float lines[SOD2_VL * LINES_LD], *line = lines;
  for (int64_t i = 0; i < 2 * channels; i++, line += 2 * LINES_LD)
    sod2_strip_pair(c, x + i / 2 * c->ih * c->iw, 2 * iy + i % 2 - c->pt, 0, 1, 2 * ix - c->pl, width, line,
                    line + LINES_LD);
  memset(line, 0, (size_t)(lines + SOD2_VL * LINES_LD - line) * sizeof *line);
  for (int64_t i = 0; i < width; i += SOD2_VL) sod2_transpose(lines + i, LINES_LD, dst + i * SOD2_VL, SOD2_VL);
}

/* Fetches what the run behind this one reads of the image and this one does not, or the next row of tiles: short pieces
   of many lines, which a hardware prefetcher does not follow. */
SOD2_INLINE void fetch_phases(const sod2_conv *c, const float *x, int64_t channels, winograd_run run, int64_t tiles_x) {
  const int m = 3, n = winograd_inputs(m), last = run.tx + run.count >= tiles_x;
  const int64_t y = 2 * run.ty * m - c->pt + (last ? 2 * n : 0), top = sod2_imax(0, y);
  const int64_t bottom = sod2_imin(c->ih, y + 2 * (last ? m : n));
  const int64_t column = (last ? 0 : 2 * ((run.tx + run.count - 1) * m + n)) - c->pl, left = sod2_imax(0, column);
  const int64_t right = sod2_imin(c->iw, column + 2 * INPUT_RUN);
  for (int64_t i = 0; i < channels; i++, x += c->ih * c->iw)
    for (int64_t line = top; line < bottom; line++)
      for (int64_t j = left; j < right; j += 16) __builtin_prefetch(x + line * c->iw + j);
}

/* One block of channels of a run; v is the place of the first tile in plane 0. */
SOD2_INLINE void input_run(const winograd_job *job, int m, int64_t image, winograd_run run, int64_t block, float *v,
                           int64_t plane_step) {
  const sod2_conv *c = job->c;
  const int n = winograd_inputs(m), lanes = m == 3 ? SOD2_VL / PHASES : SOD2_VL; /* channels of a block */
  const int64_t width = run.count * m + n - m, channels = sod2_imin(lanes, c->ic - block * lanes);
  const float *x = c->x + (image * c->ic + block * lanes) * c->ih * c->iw;
  _Alignas(64) float strip[STRIP];
  if (m == 3) fetch_phases(c, x, channels, run, job->plan.tiles_x);
  for (int r = 0; r < n; r++) {
    const int64_t iy = run.ty * m - c->pt + r;
    float *row = strip + r * width * SOD2_VL;
    if (m == 3)
      load_phases(c, x, channels, run.ty * m + r, run.tx * m, width, row);
    else if (iy >= 0 && iy < c->ih && c->prologue)
      compute_row(c, image, block * lanes, channels, iy, run.tx * m - c->pl, width, row);
    else if (iy >= 0 && iy < c->ih)
      load_row(c, x + iy * c->iw, channels, run.tx * m - c->pl, width, row);
    else
      memset(row, 0, (size_t)(width * SOD2_VL) * sizeof *row);
  }
  vf *s = (vf *)strip;
  for (int64_t j = 0; j < width; j++) winograd_input(m, s + j, width, s + j, width);
  for (int i = 0; i < n; i++) /* few planes at a time, in which tiles are neighbours */
    for (int64_t t = 0; t < run.count; t++)
      winograd_input(m, s + i * width + t * m, 1, (vf *)(v + i * n * plane_step + t * SOD2_VL), plane_step / SOD2_VL);
}

SOD2_INLINE void input_stage(const winograd_job *job, int m, int64_t image, int64_t first, int64_t count, int64_t block,
                             float *v) {
  const int64_t plane_step = job->plan.depth * count + PAD;
  for (int64_t at = 0; at < count;) {
    const winograd_run run = run_at(first + at, first + count, m, job->plan.tiles_x, INPUT_RUN);
    input_run(job, m, image, run, block, v + (block * count + at) * SOD2_VL, plane_step);
    at += run.count;
  }
}

/* ---- stage 2 ---------------------------------------------------------------------------------------------------- */

static void product_stage(const winograd_job *job, int64_t count, int64_t panel, const float *v, float *products) {
  const winograd_plan *p = &job->plan;
  const int64_t blocks = sod2_blocks(count), step = p->depth * SOD2_NR;
  const float *u = job->u + panel * p->planes * step;
  const int half = job->c->oc - panel * SOD2_NR <= SOD2_NR / 2; /* the rest of the last panel is padding */
  const sod2_tile_lanes *kernels = half ? sod2_tile_half_channels : sod2_tile_channels;
  for (int64_t xi = 0; xi < p->planes; xi++, u += step, v += p->depth * count + PAD, products += SOD2_NR * count + PAD)
    for (int64_t b = 0; b < blocks; b++) {
      const int64_t t = sod2_block_start(b, count, blocks), height = sod2_block_start(b + 1, count, blocks) - t;
      kernels[height](p->channels, v + t * SOD2_VL, count * SOD2_VL, u, products + t * SOD2_VL, count * SOD2_VL);
    }
}

/* ---- stage 3 ---------------------------------------------------------------------------------------------------- */

/* Inverse of one tile to strip[row][column][VL], `width` columns a row; what lies between stays in registers. */
SOD2_INLINE void output_tile(int m, const float *products, int64_t plane_step, vf *strip, int64_t width) {
  const int n = winograd_inputs(m);
  vf half[MAX_N * MAX_N];
  SOD2_UNROLL for (int j = 0; j < n; j++)
    winograd_output(m, (const vf *)(products + j * plane_step), n * plane_step / SOD2_VL, half + j, n);
  SOD2_UNROLL for (int i = 0; i < m; i++) winograd_output(m, half + i * n, 1, strip + i * width, 1);
}

/* VL output channels from `row` on of a run. */
SOD2_INLINE void output_run(const winograd_job *job, int m, int64_t image, winograd_run run, int64_t row,
                            const float *products, int64_t plane_step) {
  const sod2_conv *c = job->c;
  const int64_t width = run.count * m, x = run.tx * m, y = run.ty * m, cols = sod2_imin(width, c->ow - x);
  const int64_t lines = sod2_imin(m, c->oh - y), channels = sod2_imin(SOD2_VL, c->oc - row);
  _Alignas(64) float strip[6 * OUTPUT_RUN * SOD2_VL + SOD2_VL * SOD2_VL], out[SOD2_VL * LINE];
  if (FETCH_WRITTEN || c->epilogue)
    for (int64_t i = 0; i < lines; i++) sod2_conv_fetch(c, image, row, channels, (y + i) * c->ow + x, cols);
  for (int64_t t = 0; t < run.count; t++)
    output_tile(m, products + t * SOD2_VL, plane_step, (vf *)strip + t * m, width);
  const int whole = run.count == job->plan.tiles_x; /* then its lines are contiguous in the output */
  for (int64_t i = 0; i < lines; i++) {
    float *line = out + (whole ? i * cols : 0);
    for (int64_t j = 0; j < cols; j += SOD2_VL)
      sod2_transpose(strip + (i * width + j) * SOD2_VL, SOD2_VL, line + j, LINE);
    if (!whole) sod2_conv_store(c, out, LINE, image, row, channels, (y + i) * c->ow + x, cols);
  }
  if (whole) sod2_conv_store(c, out, LINE, image, row, channels, y * c->ow, lines * cols);
}

SOD2_INLINE void output_stage(const winograd_job *job, int m, int64_t image, int64_t first, int64_t count,
                              int64_t panel, const float *products) {
  const int64_t plane_step = SOD2_NR * count + PAD;
  for (int64_t j = 0; j < SOD2_NV && panel * SOD2_NR + j * SOD2_VL < job->c->oc; j++)
    for (int64_t at = 0; at < count;) {
      const winograd_run run = run_at(first + at, first + count, m, job->plan.tiles_x, OUTPUT_RUN);
      output_run(job, m, image, run, panel * SOD2_NR + j * SOD2_VL, products + (j * count + at) * SOD2_VL, plane_step);
      at += run.count;
    }
}

/* ---- division among threads ------------------------------------------------------------------------------------- */

SOD2_INLINE void own_chunk(const winograd_job *job, int m, int64_t chunk, int thread) {
  const winograd_plan *p = &job->plan;
  const int64_t image = chunk / p->blocks, block = chunk % p->blocks;
  const int64_t first = p->tiles * block / p->blocks, count = p->tiles * (block + 1) / p->blocks - first;
  float *v = job->scratch + thread * (p->v + p->products), *products = v + p->v;
  for (int64_t b = 0; b < p->depth / SOD2_VL; b++) input_stage(job, m, image, first, count, b, v);
  for (int64_t panel = 0; panel < p->panels; panel++) {
    product_stage(job, count, panel, v, products);
    output_stage(job, m, image, first, count, panel, products);
  }
}

SOD2_INLINE void panel_chunk(const winograd_job *job, int m, int64_t panel, int thread) {
  float *products = job->scratch + job->plan.v + thread * job->plan.products;
  product_stage(job, job->count, panel, job->scratch, products);
  output_stage(job, m, job->image, job->first, job->count, panel, products);
}

typedef void (*winograd_body)(void *arg, int64_t chunk, int thread);

static void run(const sod2_conv *c, int m, const float *u, float *scratch, sod2_pool *pool, winograd_body own,
                winograd_body input, winograd_body panel) {
  if (sod2_conv_is_empty(c)) return;
  winograd_job job = {.c = c, .plan = plan_of(c, m, sod2_pool_threads(pool)), .u = u, .scratch = scratch};
  const winograd_plan *p = &job.plan;
  if (!p->shared) {
    sod2_parallel(pool, c->n * p->blocks, own, &job);
    return;
  }
  for (int64_t i = 0; i < c->n * p->blocks; i++) {
    job.image = i / p->blocks;
    job.first = p->tiles * (i % p->blocks) / p->blocks;
    job.count = p->tiles * (i % p->blocks + 1) / p->blocks - job.first;
    sod2_parallel(pool, p->depth / SOD2_VL, input, &job);
    sod2_parallel(pool, p->panels, panel, &job);
  }
}

static int64_t scratch_of(const sod2_conv *c, int m, int threads) {
  if (sod2_conv_is_empty(c)) return 0;
  const winograd_plan p = plan_of(c, m, threads);
  return p.shared ? p.v + threads * p.products : threads * (p.v + p.products);
}

/* Products, slower where a row block crowds L2; or the stream of the weights from memory, with half of the bandwidth for
   each of two cores, where tiles are few; then both transforms, whose cost a tile and vector of channels was measured. */
static double cost_of(const sod2_conv *c, int m) {
  const winograd_plan p = plan_of(c, m, 1);
  const double transform = m == 2 ? 80 : m == 3 ? 230 : m == 4 ? 250 : 550, tiles = (double)(c->n * p.tiles);
  const double weights = (double)(p.planes * p.depth * p.panels * SOD2_NR);
  const double block = (double)(p.planes * p.depth * sod2_imin(SOD2_MR, p.tiles)) * sizeof(float) / (1 << 20); /* MiB */
  const double crowded = 1 + (block > 1 ? block - 1 : 0) * SOD2_CROWDED / 100;
  const double products = (double)(p.planes * p.channels * p.panels * c->n) * sod2_block_cycles(p.tiles) * crowded;
  const double stream = weights * (double)sizeof(float) / BYTES_PER_CYCLE;
  return (products > stream ? products : stream) +
         transform * tiles * ((double)p.depth / SOD2_VL + (double)((c->oc + SOD2_VL - 1) / SOD2_VL));
}

#define DEFINE_VERSION(m)                                                                                             \
  static void own##m(void *arg, int64_t chunk, int thread) { own_chunk(arg, m, chunk, thread); }                      \
  static void input##m(void *arg, int64_t block, int thread) {                                                        \
    (void)thread;                                                                                                     \
    const winograd_job *job = arg;                                                                                    \
    input_stage(job, m, job->image, job->first, job->count, block, job->scratch);                                     \
  }                                                                                                                   \
  static void panel##m(void *arg, int64_t panel, int thread) { panel_chunk(arg, m, panel, thread); }                  \
  static void run##m(const sod2_conv *c, float *scratch, sod2_pool *pool) {                                           \
    run(c, m, c->w[SOD2_CONV_WINO##m], scratch, pool, own##m, input##m, panel##m);                                    \
  }                                                                                                                   \
  static int64_t scratch##m(const sod2_conv *c, int threads) { return scratch_of(c, m, threads); }                    \
  static double cost##m(const sod2_conv *c) { return cost_of(c, m); }                                                 \
  const sod2_conv_kernel sod2_conv_wino##m = {cost##m, scratch##m, run##m};

DEFINE_VERSION(2)
DEFINE_VERSION(3)
DEFINE_VERSION(4)
DEFINE_VERSION(6)
