#include "stream.h"

/* Bytes that a strip of the first result should take. A second convolution reads it many times, and it stays in L2; a
   pooling reads it once, and less is computed twice in a larger strip. */
enum {
  STRIP_BYTES = 320 << 10,
  POOLED_BYTES = 5 << 18,
  OWN_SHARE = 4 /* a thread's own strips compute at most one row of so many twice */
};

static int64_t window(int64_t kernel, int64_t dilation) { return (kernel - 1) * dilation + 1; }

/* Input rows [*begin, *end) of a convolution that its output rows [row, row + rows) read; padding left out. */
static void input_rows(const sod2_conv *c, int64_t row, int64_t rows, int64_t *begin, int64_t *end) {
  *begin = sod2_imax(0, row * c->sh - c->pt);
  *end = sod2_imin(c->ih, (row + rows - 1) * c->sh - c->pt + window(c->kh, c->dh));
  *end = sod2_imax(*begin, *end);
}

/* Rows that a convolution computes together: those of a tile. A strip begins with a tile of the whole, so that its bits
   are those of the whole. */
static int64_t tile_rows(int version) {
  switch (version) {
    case SOD2_CONV_WINO2: return 2;
    case SOD2_CONV_WINO3: return 3;
    case SOD2_CONV_WINO4: return 4;
    case SOD2_CONV_WINO6: return 6;
    default: return 1;
  }
}

sod2_conv sod2_stream_windows(const sod2_conv *first, const sod2_pooling *p) {
  return (sod2_conv){.n = p->n,
                     .ic = p->c,
                     .ih = p->ih,
                     .iw = p->iw,
                     .oc = p->c,
                     .oh = p->oh,
                     .ow = p->ow,
                     .groups = p->c,
                     .kh = p->kh,
                     .kw = p->kw,
                     .sh = p->sh,
                     .sw = p->sw,
                     .pt = p->pt,
                     .pl = p->pl,
                     .dh = p->dh,
                     .dw = p->dw,
                     .scratch_limit = first->scratch_limit};
}

/* ---- how rows are cut into strips ------------------------------------------------------------------------------- */

typedef struct cutting {
  int64_t unit, units; /* rows of the second that no seam divides, of an image; then all strips compute as many tiles */
  int64_t strips;      /* of an image */
  int64_t owners;      /* threads with strips of their own; 1: all share one */
} cutting;

/* Of the scratch that the step may take, two fifths are strips and the rest the kernels', of which the second copies the
   strip. */
static int64_t strip_limit(const sod2_stream *z) { return z->first.scratch_limit * 2 / 5; }

static int64_t strips_of(const sod2_stream *z, int64_t unit, int64_t units, int64_t owners, int64_t twice) {
  const int64_t row = sod2_imax(1, z->first.oc * z->first.ow) * (int64_t)sizeof(float);
  int64_t bytes = z->pooling ? POOLED_BYTES : STRIP_BYTES;
  if (z->first.scratch_limit > 0) bytes = sod2_imin(bytes, strip_limit(z) / owners);
  const int64_t rows = sod2_imax(2, (bytes / row - twice) / z->second.sh);
  const int64_t strips = sod2_ceildiv(units, sod2_imax(1, rows / unit));
  return sod2_imin(units, sod2_ceildiv(strips, owners) * owners);
}

static cutting cut(const sod2_stream *z, int threads) {
  const sod2_conv *second = &z->second;
  const int64_t tile1 = tile_rows(z->version1), tile2 = tile_rows(z->version2);
  /* Rows of the first that two neighbouring strips compute, those included by which one begins before it has to. */
  const int64_t before = (tile1 - second->pt % tile1) % tile1;
  const int64_t twice = sod2_imax(0, window(second->kh, second->dh) - second->sh) + before;
  cutting k = {.unit = tile2, .owners = threads};
  while (k.unit * second->sh % tile1) k.unit += tile2;
  k.units = sod2_ceildiv(second->oh, k.unit);
  k.strips = strips_of(z, k.unit, k.units, threads, twice);
  if (k.strips < threads || k.strips * twice * OWN_SHARE > z->first.oh)
    k.owners = 1, k.strips = strips_of(z, k.unit, k.units, 1, twice);
  return k;
}

static sod2_stream_strip strip_of(const sod2_stream *z, const cutting *k, int64_t index) {
  const int64_t i = index % k->strips, first = k->units * i / k->strips, last = k->units * (i + 1) / k->strips;
  sod2_stream_strip t = {.image = index / k->strips, .row = first * k->unit};
  t.rows = sod2_imin(z->second.oh, last * k->unit) - t.row;
  input_rows(&z->second, t.row, t.rows, &t.begin, &t.end);
  t.begin -= t.begin % tile_rows(z->version1);
  return t;
}

/* ---- the parts of both that make a strip ------------------------------------------------------------------------ */

/* The part of a convolution that makes `rows` of its output rows. At the least, both kernels have scratch for two rows
   of the second. */
static sod2_conv part(const sod2_stream *z, const sod2_conv *c, int64_t rows, int64_t owners) {
  const sod2_conv *second = &z->second;
  const int64_t two_rows = second->ic * second->iw * (second->sh + window(second->kh, second->dh));
  const int64_t left = (z->first.scratch_limit - strip_limit(z)) / owners;
  sod2_conv p = *c;
  p.n = 1;
  p.oh = rows;
  if (p.scratch_limit > 0) p.scratch_limit = sod2_imax(left, 2 * two_rows * (int64_t)sizeof(float));
  p.touched[0] = NULL; /* those are tensors of all rows */
  return p;
}

/* It reads the whole image; a negative padding leaves the rows above out. */
static sod2_conv part_of_first(const sod2_stream *z, const sod2_stream_strip *t, int64_t owners) {
  sod2_conv p = part(z, &z->first, t->end - t->begin, owners);
  p.pt = z->first.pt - t->begin * z->first.sh;
  return p;
}

/* It reads a dense strip, which may begin with rows that it leaves out. */
static sod2_conv part_of_second(const sod2_stream *z, const sod2_stream_strip *t, int64_t owners) {
  sod2_conv p = part(z, &z->second, t->rows, owners);
  p.ih = t->end - t->begin;
  p.pt = z->second.pt - t->row * z->second.sh + t->begin;
  return p;
}

/* Scratch of a strip: the first one's result, then that of either kernel. In floats. */
static int64_t middle_floats(const sod2_stream *z, const sod2_stream_strip *t) {
  return sod2_line(z->first.oc * (t->end - t->begin) * z->first.ow);
}

int64_t sod2_stream_scratch(const sod2_stream *z, int threads) {
  const cutting k = cut(z, threads);
  const int each = k.owners > 1 ? 1 : threads;
  int64_t floats = 0;
  for (int64_t i = 0; i < k.strips; i++) {
    const sod2_stream_strip t = strip_of(z, &k, i);
    const sod2_conv one = part_of_first(z, &t, k.owners), two = part_of_second(z, &t, k.owners);
    int64_t kernels = sod2_conv_scratch(&one, z->version1, each);
    if (!z->pooling) kernels = sod2_imax(kernels, sod2_conv_scratch(&two, z->version2, each));
    floats = sod2_imax(floats, middle_floats(z, &t) + kernels / (int64_t)sizeof(float));
  }
  return sod2_line(floats) * (int64_t)sizeof(float);
}

int64_t sod2_stream_owners(const sod2_stream *z, int threads) { return cut(z, threads).owners; }

/* ---- running ---------------------------------------------------------------------------------------------------- */

void sod2_stream_run(sod2_stream *z, void (*body)(void *stream, int64_t index, int thread)) {
  const cutting k = cut(z, sod2_pool_threads(z->pool));
  sod2_parallel(k.owners > 1 ? z->pool : NULL, z->first.n * k.strips, body, z);
}

sod2_stream_strip sod2_stream_strip_at(const sod2_stream *z, int64_t index, int thread) {
  const cutting k = cut(z, sod2_pool_threads(z->pool));
  sod2_stream_strip t = strip_of(z, &k, index);
  t.owners = k.owners;
  t.pool = k.owners > 1 ? NULL : z->pool;
  t.middle = (float *)(z->scratch + thread * z->bytes);
  return t;
}

static void run_part(const sod2_conv *p, int version, const sod2_stream *z, const sod2_stream_strip *t) {
  sod2_conv_run(p, version, t->middle + middle_floats(z, t), t->pool);
}

void sod2_stream_produce(const sod2_stream *z, const sod2_stream_strip *t, const void *epilogue_args) {
  if (t->end <= t->begin) return;
  sod2_conv p = part_of_first(z, t, t->owners);
  p.x = z->first.x + t->image * p.ic * p.ih * p.iw;
  p.y = t->middle;
  p.touched[0] = t->middle; /* other work has been there since */
  p.epilogue_args = epilogue_args;
  run_part(&p, z->version1, z, t);
}

/* An epilogue that stands for a strip: its tiles are rows of a larger image. */
typedef struct shifted {
  sod2_epilogue epilogue;
  const void *args;
  int64_t image, first_pixel;
} shifted;

static void store_shifted(const void *args, const float *tile, int64_t ld, int64_t batch, int64_t row, int64_t rows,
                          int64_t col, int64_t cols) {
  const shifted *z = args;
  z->epilogue(z->args, tile, ld, batch + z->image, row, rows, col + z->first_pixel, cols);
}

static void store_plain(const void *args, const float *tile, int64_t ld, int64_t batch, int64_t row, int64_t rows,
                        int64_t col, int64_t cols) {
  sod2_conv_store(args, tile, ld, batch, row, rows, col, cols);
}

/* One plane after the other: those of a strip lie closer together than those of the result. */
typedef struct planes {
  sod2_pooling first;
  int64_t step; /* floats from a plane of the result to the next */
} planes;

static void pool_plane(void *arg, int64_t plane, int thread) {
  (void)thread;
  const planes *job = arg;
  sod2_pooling p = job->first;
  p.x += plane * p.ih * p.iw;
  p.y += plane * job->step;
  sod2_max_pool(&p, NULL);
}

static void max_pool(const sod2_stream *z, const sod2_stream_strip *t, const sod2_conv *part) {
  const sod2_pooling *p = z->pooling;
  planes job = {.first = *p, .step = p->oh * p->ow};
  job.first.n = job.first.c = 1;
  job.first.ih = part->ih, job.first.oh = part->oh, job.first.pt = part->pt;
  job.first.x = t->middle;
  job.first.y = p->y + t->image * p->c * job.step + t->row * p->ow;
  sod2_parallel(t->pool, p->c, pool_plane, &job);
}

void sod2_stream_consume(const sod2_stream *z, const sod2_stream_strip *t) {
  const sod2_conv *second = &z->second;
  sod2_conv p = part_of_second(z, t, t->owners);
  if (z->pooling) {
    max_pool(z, t, &p);
    return;
  }
  shifted s = {second->epilogue, second->epilogue_args, t->image, t->row * second->ow};
  if (second->epilogue == NULL) s.epilogue = store_plain, s.args = second;
  p.x = t->middle;
  p.epilogue = store_shifted;
  p.epilogue_args = &s;
  run_part(&p, z->version2, z, t);
}
