#include "stream.h"

/* Bytes that a strip of the first result should take. A second convolution reads it many times, and it stays in L2; a
   pooling reads it once, and less is computed twice in a larger strip. */
enum { STRIP_BYTES = 320 << 10, POOLED_BYTES = 5 << 19 };

static int64_t window(int64_t kernel, int64_t dilation) { return (kernel - 1) * dilation + 1; }

/* Input rows [*begin, *end) of a convolution that its output rows [row, row + rows) read; padding left out. */
static void input_rows(const sod2_conv *c, int64_t row, int64_t rows, int64_t *begin, int64_t *end) {
  *begin = sod2_imax(0, row * c->sh - c->pt);
  *end = sod2_imin(c->ih, (row + rows - 1) * c->sh - c->pt + window(c->kh, c->dh));
  *end = sod2_imax(*begin, *end);
}

/* Of the scratch that the step may take, two fifths are the strip and the rest the kernels', of which the second copies
   the strip. At the least, both have enough for two rows of the second. */
static int64_t strip_limit(const sod2_conv *second) { return second->scratch_limit * 2 / 5; }

static int64_t kernel_limit(const sod2_conv *second) {
  const int64_t two_rows = second->ic * second->iw * (second->sh + window(second->kh, second->dh));
  if (second->scratch_limit <= 0) return 0;
  return sod2_imax(second->scratch_limit - strip_limit(second), 2 * two_rows * (int64_t)sizeof(float));
}

static int is_pooling(const sod2_conv *second) {
  for (int v = 0; v < SOD2_CONV_VERSIONS; v++)
    if (second->w[v]) return 0;
  return 1;
}

/* Rows that a convolution computes together: those of a tile, of all versions that it has. A strip begins with a tile of
   the whole, so that its bits are those of the whole. */
static int64_t tile_rows(const sod2_conv *c) {
  static const int64_t of_version[SOD2_CONV_VERSIONS] = {
      [SOD2_CONV_WINO2] = 2, [SOD2_CONV_WINO3] = 3, [SOD2_CONV_WINO4] = 4};
  int64_t rows = 1;
  for (int v = 0; v < SOD2_CONV_VERSIONS; v++)
    for (const int64_t before = rows; c->w[v] && of_version[v] && rows % of_version[v];) rows += before;
  return rows;
}

/* Rows of the first result that a strip has at most for `rows` rows of the second. */
static int64_t middle_rows(const sod2_conv *first, const sod2_conv *second, int64_t rows) {
  return sod2_imin(first->oh, (rows - 1) * second->sh + window(second->kh, second->dh) + tile_rows(first) - 1);
}

static int64_t rows_per_strip(const sod2_conv *first, const sod2_conv *second) {
  int64_t row = sod2_imax(1, first->oc * first->ow) * (int64_t)sizeof(float);
  int64_t bytes = is_pooling(second) ? POOLED_BYTES : STRIP_BYTES;
  if (second->scratch_limit > 0) bytes = sod2_imin(bytes, strip_limit(second));
  const int64_t rows = sod2_imax(2, (bytes / row - window(second->kh, second->dh)) / second->sh + 1);
  const int64_t unit = tile_rows(first) * tile_rows(second); /* then all strips compute the same number of tiles */
  return sod2_imin(second->oh, sod2_imax(unit, rows / unit * unit));
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

static sod2_stream strip_at(const sod2_conv *first, const sod2_conv *second, int64_t row) {
  sod2_stream strip = {.row = row};
  strip.rows = sod2_imin(rows_per_strip(first, second), second->oh - row);
  if (strip.rows > 0) input_rows(second, row, strip.rows, &strip.begin, &strip.end);
  strip.begin -= strip.begin % tile_rows(first);
  return strip;
}

sod2_stream sod2_stream_begin(const sod2_conv *first, const sod2_conv *second) { return strip_at(first, second, 0); }

sod2_stream sod2_stream_next(const sod2_conv *first, const sod2_conv *second, sod2_stream strip) {
  return strip_at(first, second, strip.row + strip.rows);
}

/* The part of a convolution that makes `rows` of its output rows. */
static sod2_conv part(const sod2_conv *c, const sod2_conv *second, int64_t rows) {
  sod2_conv p = *c;
  p.n = 1;
  p.oh = rows;
  p.scratch_limit = kernel_limit(second);
  p.touched[0] = NULL; /* those are tensors of all rows */
  return p;
}

/* It reads the whole image; a negative padding leaves the rows above out. */
static sod2_conv strip_of_first(const sod2_conv *first, const sod2_conv *second, sod2_stream strip) {
  sod2_conv p = part(first, second, strip.end - strip.begin);
  p.pt = first->pt - strip.begin * first->sh;
  return p;
}

/* It reads a dense strip, which may begin with rows that it leaves out. */
static sod2_conv strip_of_second(const sod2_conv *second, sod2_stream strip) {
  sod2_conv p = part(second, second, strip.rows);
  p.ih = strip.end - strip.begin;
  p.pt = second->pt - strip.row * second->sh + strip.begin;
  return p;
}

/* Sizes of the largest strip. */
static void largest(const sod2_conv *first, const sod2_conv *second, sod2_conv *p1, sod2_conv *p2) {
  const int64_t rows = rows_per_strip(first, second), middle = middle_rows(first, second, rows);
  *p1 = part(first, second, middle);
  p1->ih = sod2_imin(first->ih, sod2_imax(0, (middle - 1) * first->sh + window(first->kh, first->dh)));
  *p2 = part(second, second, rows);
  p2->ih = middle;
}

/* Scratch: the strip, [oc][rows][ow], then that of either kernel. In floats. */
static int64_t kernel_offset(const sod2_conv *p1) { return sod2_line(p1->oc * p1->oh * p1->ow); }

int64_t sod2_stream_scratch(const sod2_conv *first, const sod2_conv *second, int v1, int v2, int threads) {
  sod2_conv p1, p2;
  largest(first, second, &p1, &p2);
  int64_t kernels = 0; /* a kernel's scratch may be larger for fewer rows: it cuts them into equal blocks */
  for (sod2_stream t = strip_at(first, second, 0); t.rows > 0; t = sod2_stream_next(first, second, t)) {
    sod2_conv one = strip_of_first(first, second, t), two = strip_of_second(second, t);
    kernels = sod2_imax(kernels, sod2_conv_scratch(&one, v1, threads));
    if (!is_pooling(second)) kernels = sod2_imax(kernels, sod2_conv_scratch(&two, v2, threads));
  }
  return kernel_offset(&p1) * (int64_t)sizeof(float) + kernels;
}

static void *kernel_scratch(const sod2_conv *first, const sod2_conv *second, void *scratch) {
  sod2_conv p1, p2;
  largest(first, second, &p1, &p2);
  return (float *)scratch + kernel_offset(&p1);
}

void sod2_stream_produce(const sod2_conv *first, const sod2_conv *second, int version, sod2_stream strip, int64_t image,
                        void *scratch, sod2_pool *pool) {
  if (strip.end <= strip.begin) return;
  sod2_conv p = strip_of_first(first, second, strip);
  p.x = first->x + image * first->ic * first->ih * first->iw;
  p.y = scratch;
  sod2_conv_run(&p, version, kernel_scratch(first, second, scratch), pool);
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

void sod2_stream_consume(const sod2_conv *first, const sod2_conv *second, int version, sod2_stream strip, int64_t image,
                        void *scratch, sod2_pool *pool) {
  shifted z = {second->epilogue, second->epilogue_args, image, strip.row * second->ow};
  if (second->epilogue == NULL) z.epilogue = store_plain, z.args = second;
  sod2_conv p = strip_of_second(second, strip);
  p.x = scratch;
  p.epilogue = store_shifted;
  p.epilogue_args = &z;
  sod2_conv_run(&p, version, kernel_scratch(first, second, scratch), pool);
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

void sod2_stream_max_pool(const sod2_conv *second, const sod2_pooling *p, sod2_stream strip, int64_t image,
                          const void *scratch, sod2_pool *pool) {
  const sod2_conv part = strip_of_second(second, strip);
  planes job = {.first = *p, .step = p->oh * p->ow};
  job.first.n = job.first.c = 1;
  job.first.ih = part.ih, job.first.oh = part.oh, job.first.pt = part.pt;
  job.first.x = scratch;
  job.first.y = p->y + image * p->c * job.step + strip.row * p->ow;
  sod2_parallel(pool, p->c, pool_plane, &job);
}
