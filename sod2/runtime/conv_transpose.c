/* Transposed convolution: each input pixel adds its channels times the kernel to kh * kw output pixels.

   A piece of work is a few output channels of one image and group, whose planes are summed in scratch. Input pixels are
   taken NR at a time: their channels are packed, a tile kernel gives the products of all taps of a channel, and these
   are added where they belong. Weights: [group][output channel][row block of (ky, kx)][channel][rows]. */
#include "conv.h"
#include "tile.h"

enum { PLANE_BYTES = 256 << 10, MAX_CHANNELS = 8 };

typedef struct transpose_plan {
  int64_t depth, channels, taps; /* input and output channels of a group */
  int64_t pieces, piece;         /* pieces of a group's output channels, channels of the largest */
  int64_t panel, planes, tile;   /* floats of the parts of a thread's scratch */
} transpose_plan;

typedef struct transpose_job {
  const sod2_conv *c;
  transpose_plan plan;
  float *scratch;
} transpose_job;

static transpose_plan plan_of(const sod2_conv *c) {
  transpose_plan p = {.depth = c->ic / c->groups, .channels = c->oc / c->groups, .taps = c->kh * c->kw};
  const int64_t fit = sod2_imax(1, sod2_imin(MAX_CHANNELS, PLANE_BYTES / 4 / (c->oh * c->ow)));
  p.pieces = (p.channels + fit - 1) / fit;
  p.piece = (p.channels + p.pieces - 1) / p.pieces;
  p.panel = p.depth * SOD2_NR;
  p.planes = sod2_line(p.piece * c->oh * c->ow);
  p.tile = sod2_line(p.taps * SOD2_NR);
  return p;
}

int64_t sod2_conv_transpose_scratch(const sod2_conv *c, int threads) {
  if (sod2_conv_is_empty(c)) return 0;
  const transpose_plan p = plan_of(c);
  return threads * (p.panel + p.planes + p.tile) * (int64_t)sizeof(float);
}

static void pack_pixels(const float *x, int64_t depth, int64_t pixels, int64_t count, float *panel) {
  for (int64_t k = 0; k < depth; k++) memcpy(panel + k * SOD2_NR, x + k * pixels, (size_t)count * sizeof *panel);
}

/* Adds one tap of `n` consecutive pixels of input row iy to the plane. */
static void add_tap(const sod2_conv *c, const float *values, int64_t iy, int64_t ix, int64_t n, int64_t tap,
                    float *plane) {
  const int64_t oy = iy * c->sh - c->pt + tap / c->kw * c->dh;
  if (oy < 0 || oy >= c->oh) return;
  const int64_t ox = ix * c->sw - c->pl + tap % c->kw * c->dw;
  const int64_t lo = ox >= 0 ? 0 : (-ox + c->sw - 1) / c->sw;
  const int64_t hi = ox >= c->ow ? 0 : sod2_imin(n, (c->ow - 1 - ox) / c->sw + 1);
  float *out = plane + oy * c->ow + ox;
  for (int64_t i = lo; i < hi; i++) out[i * c->sw] += values[i];
}

/* One channel: products of `count` pixels from `first` on, [tap][NR], added to its plane. */
static void add_channel(const sod2_conv *c, const transpose_plan *p, const float *w, const float *panel, int64_t first,
                        int64_t count, float *tile, float *plane) {
  const int64_t blocks = sod2_blocks(p->taps);
  for (int64_t b = 0; b < blocks; b++) {
    const int64_t tap = sod2_block_start(b, p->taps, blocks), height = sod2_block_start(b + 1, p->taps, blocks) - tap;
    sod2_tile_packed[height](p->depth, w + tap * p->depth, height, panel, SOD2_NR, tile + tap * SOD2_NR, SOD2_NR, 0);
  }
  for (int64_t tap = 0; tap < p->taps; tap++)
    for (int64_t i = 0; i < count;) {
      const int64_t ix = (first + i) % c->iw, n = sod2_imin(count - i, c->iw - ix);
      add_tap(c, tile + tap * SOD2_NR + i, (first + i) / c->iw, ix, n, tap, plane);
      i += n;
    }
}

static void transpose_chunk(void *arg, int64_t chunk, int thread) {
  const transpose_job *job = arg;
  const sod2_conv *c = job->c;
  const transpose_plan *p = &job->plan;
  const int64_t piece = chunk % p->pieces, group = chunk / p->pieces % c->groups, image = chunk / p->pieces / c->groups;
  const int64_t c0 = p->channels * piece / p->pieces, c1 = p->channels * (piece + 1) / p->pieces;
  const int64_t in = c->ih * c->iw, out = c->oh * c->ow, row = group * p->channels + c0;
  float *panel = job->scratch + thread * (p->panel + p->planes + p->tile), *planes = panel + p->panel;
  const float *x = c->x + (image * c->ic + group * p->depth) * in;
  memset(panel, 0, (size_t)p->panel * sizeof *panel);
  memset(planes, 0, (size_t)((c1 - c0) * out) * sizeof *planes);
  for (int64_t first = 0; first < in; first += SOD2_NR) {
    const int64_t count = sod2_imin(SOD2_NR, in - first);
    pack_pixels(x + first, p->depth, in, count, panel);
    for (int64_t ch = c0; ch < c1; ch++)
      add_channel(c, p, c->w[0] + (group * p->channels + ch) * p->taps * p->depth, panel, first, count,
                  planes + p->planes, planes + (ch - c0) * out);
  }
  sod2_conv_store(c, planes, out, image, row, c1 - c0, 0, out);
}

void sod2_conv_transpose_run(const sod2_conv *c, void *scratch, sod2_pool *pool) {
  if (sod2_conv_is_empty(c)) return;
  transpose_job job = {.c = c, .plan = plan_of(c), .scratch = scratch};
  sod2_parallel(pool, c->n * c->groups * job.plan.pieces, transpose_chunk, &job);
}
