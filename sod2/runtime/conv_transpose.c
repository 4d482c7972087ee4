/* Transposed convolution: each input pixel adds its channels times the kernel to kh * kw output pixels.

   A piece of work is a few output channels of one image and group, whose planes are summed in scratch. Input pixels are
   taken NR at a time, in place; a tile kernel gives the products for all taps of a block of channels, and these are
   added where they belong, in the order of the pixels and taps; or in the frequent case that each output is a single
   product, stored there. Weights: [group][channel block][row block of (channel, ky, kx)][input channel][rows], with as
   many channels in a block as fit a tile. */
#include "conv.h"
#include "tile.h"

enum {
  PLANE_BYTES = 256 << 10,
  MIN_PIECES = 8 /* of a group, so that no thread waits long for another */
};

typedef struct transpose_plan {
  int64_t depth, channels, taps; /* input and output channels of a group */
  int64_t blocks;                /* channel blocks of a group */
  int64_t pieces;                /* that they are shared out in */
  int64_t panel, planes, tile;   /* floats of the parts of a thread's scratch */
} transpose_plan;

typedef struct transpose_job {
  const sod2_conv *c;
  transpose_plan plan;
  float *scratch;
} transpose_job;

static int64_t block_start(const transpose_plan *p, int64_t block) { return p->channels * block / p->blocks; }

static transpose_plan plan_of(const sod2_conv *c) {
  transpose_plan p = {.depth = c->ic / c->groups, .channels = c->oc / c->groups, .taps = c->kh * c->kw};
  const int64_t height = sod2_imax(1, SOD2_MR / p.taps); /* channels of a block */
  p.blocks = (p.channels + height - 1) / height;
  const int64_t fit = sod2_imax(1, PLANE_BYTES / 4 / (c->oh * c->ow) / height); /* blocks of a piece */
  p.pieces = sod2_imax(sod2_imin(p.blocks, MIN_PIECES), (p.blocks + fit - 1) / fit);
  const int64_t most = (p.blocks + p.pieces - 1) / p.pieces * height;
  p.panel = p.depth * SOD2_NR;
  p.planes = sod2_line(sod2_imin(most, p.channels) * c->oh * c->ow);
  p.tile = sod2_line(height * p.taps * SOD2_NR + SOD2_VL); /* vectors read beyond the end */
  return p;
}

int64_t sod2_conv_transpose_scratch(const sod2_conv *c, int threads) {
  if (sod2_conv_is_empty(c)) return 0;
  const transpose_plan p = plan_of(c);
  return threads * (p.panel + p.planes + p.tile) * (int64_t)sizeof(float);
}

#if SOD2_VL == 16
#define ZIP_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ZIP_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif SOD2_VL == 8
#define ZIP_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define ZIP_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define ZIP_LOW 0, 4, 1, 5
#define ZIP_HIGH 2, 6, 3, 7
#endif

/* 2x2 of stride 2 without padding: each output is one product, of whole lines. */
SOD2_INLINE int is_interleaved(const sod2_conv *c) {
  return c->kh == 2 && c->kw == 2 && c->sh == 2 && c->sw == 2 && c->dh == 1 && c->dw == 1 && c->pt == 0 && c->pl == 0 &&
         c->oh == 2 * c->ih && c->ow == 2 * c->iw;
}

/* out[2 * i] = a[i], out[2 * i + 1] = b[i]; up to VL - 1 floats behind a and b are read. */
static void interleave(const float *a, const float *b, int64_t n, float *out) {
  for (; n > 0; n -= SOD2_VL, a += SOD2_VL, b += SOD2_VL, out += 2 * SOD2_VL) {
    const vf x = vf_load(a), y = vf_load(b);
    const vf low = __builtin_shufflevector(x, y, ZIP_LOW), high = __builtin_shufflevector(x, y, ZIP_HIGH);
    vf_store_partial(out, low, sod2_imin(2 * n, SOD2_VL));
    vf_store_partial(out + SOD2_VL, high, sod2_imax(0, sod2_imin(2 * n - SOD2_VL, SOD2_VL)));
  }
}

/* Adds the products of `n` consecutive pixels of input row iy with one row of the kernel, [kx][NR], to a plane. */
static void add_row(const sod2_conv *c, const float *values, int64_t iy, int64_t ix, int64_t n, int64_t ky,
                    float *plane) {
  const int64_t oy = iy * c->sh - c->pt + ky * c->dh, x0 = ix * c->sw - c->pl;
  if (oy < 0 || oy >= c->oh) return;
  float *row = plane + oy * c->ow;
  for (int64_t kx = 0; kx < c->kw; kx++, values += SOD2_NR) {
    const int64_t ox = x0 + kx * c->dw, lo = ox >= 0 ? 0 : (-ox + c->sw - 1) / c->sw;
    const int64_t hi = ox >= c->ow ? 0 : sod2_imin(n, (c->ow - 1 - ox) / c->sw + 1);
    for (int64_t i = lo; i < hi; i++) row[ox + i * c->sw] += values[i];
  }
}

/* All products of a block of channels, tile[channel][tap][NR], for pixels [first, first + count). */
static void add_products(const sod2_conv *c, const float *tile, int64_t channels, int64_t first, int64_t count,
                         float *planes) {
  const int once = is_interleaved(c);
  int64_t iy = first / c->iw, ix = first % c->iw;
  for (int64_t i = 0, n; i < count; i += n, iy++, ix = 0) {
    const float *values = tile + i;
    n = sod2_imin(count - i, c->iw - ix);
    for (int64_t ch = 0; ch < channels; ch++)
      for (int64_t ky = 0; ky < c->kh; ky++, values += c->kw * SOD2_NR)
        if (once)
          interleave(values, values + SOD2_NR, n, planes + (ch * c->oh + iy * 2 + ky) * c->ow + ix * 2);
        else
          add_row(c, values, iy, ix, n, ky, planes + ch * c->oh * c->ow);
  }
}

/* tile[row][NR] = `rows` rows of weights times NR pixels, b[k * ldb + pixel]. */
static void multiply(int64_t depth, const float *w, int64_t rows, const float *b, int64_t ldb, float *tile) {
  const int64_t blocks = sod2_blocks(rows);
  for (int64_t i = 0; i < blocks; i++) {
    const int64_t row = sod2_block_start(i, rows, blocks), height = sod2_block_start(i + 1, rows, blocks) - row;
    sod2_tile_packed[height](depth, w + row * depth, height, b, ldb, tile + row * SOD2_NR, SOD2_NR, 0);
  }
}

/* Columns of pixels that are fewer than a panel: copied, because vectors would read beyond the image. */
static void copy_pixels(const float *x, int64_t depth, int64_t pixels, int64_t count, float *panel) {
  for (int64_t k = 0; k < depth; k++)
    for (int64_t i = 0; i < SOD2_NR; i += SOD2_VL) {
      const int64_t some = sod2_imax(0, sod2_imin(SOD2_VL, count - i));
      vf_store(panel + k * SOD2_NR + i, vf_load_partial(x + k * pixels + i, some, 0));
    }
}

static void transpose_chunk(void *arg, int64_t chunk, int thread) {
  const transpose_job *job = arg;
  const sod2_conv *c = job->c;
  const transpose_plan *p = &job->plan;
  const int64_t piece = chunk % p->pieces, group = chunk / p->pieces % c->groups, image = chunk / p->pieces / c->groups;
  const int64_t b0 = p->blocks * piece / p->pieces, b1 = p->blocks * (piece + 1) / p->pieces;
  const int64_t c0 = block_start(p, b0), channels = block_start(p, b1) - c0;
  const int64_t in = c->ih * c->iw, out = c->oh * c->ow, row = group * p->channels + c0;
  float *panel = job->scratch + thread * (p->panel + p->planes + p->tile), *planes = panel + p->panel;
  float *tile = planes + p->planes;
  const float *x = c->x + (image * c->ic + group * p->depth) * in;
  if (!is_interleaved(c)) memset(planes, 0, (size_t)(channels * out) * sizeof *planes);
  for (int64_t first = 0; first < in; first += SOD2_NR) {
    const int64_t count = sod2_imin(SOD2_NR, in - first);
    if (count < SOD2_NR) copy_pixels(x + first, p->depth, in, count, panel);
    const float *b_panel = count < SOD2_NR ? panel : x + first;
    const int64_t ldb = count < SOD2_NR ? SOD2_NR : in;
    for (int64_t b = b0; b < b1; b++) {
      const int64_t ch = block_start(p, b), height = block_start(p, b + 1) - ch;
      const float *w = c->w[0] + (group * p->channels + ch) * p->taps * p->depth;
      multiply(p->depth, w, height * p->taps, b_panel, ldb, tile);
      add_products(c, tile, height, first, count, planes + (ch - c0) * out);
    }
  }
  sod2_conv_store(c, planes, out, image, row, channels, 0, out);
}

void sod2_conv_transpose_run(const sod2_conv *c, void *scratch, sod2_pool *pool) {
  if (sod2_conv_is_empty(c)) return;
  transpose_job job = {.c = c, .plan = plan_of(c), .scratch = scratch};
  sod2_parallel(pool, c->n * c->groups * job.plan.pieces, transpose_chunk, &job);
}
