#include "stream.h"

/* Bytes that a strip of the first result should take: it stays in L2 while the second convolution reads it. */
#define STRIP_BYTES ((int64_t)320 << 10)

static int64_t window(int64_t kernel, int64_t dilation) { return (kernel - 1) * dilation + 1; }

/* Input rows [*begin, *end) of a convolution that its output rows [row, row + rows) read; padding left out. */
static void input_rows(const sod2_conv *c, int64_t row, int64_t rows, int64_t *begin, int64_t *end) {
  *begin = sod2_imax(0, row * c->sh - c->pt);
  *end = sod2_imin(c->ih, (row + rows - 1) * c->sh - c->pt + window(c->kh, c->dh));
  *end = sod2_imax(*begin, *end);
}

/* Of the scratch that the step may take, a third is the strip, a third the kernels', the rest slack. */
static int64_t share(const sod2_conv *second) { return sod2_imax(1, second->scratch_limit / 3); }

static int64_t rows_per_strip(const sod2_conv *first, const sod2_conv *second) {
  int64_t row = sod2_imax(1, first->oc * first->ow) * (int64_t)sizeof(float);
  int64_t bytes = second->scratch_limit > 0 ? sod2_imin(STRIP_BYTES, share(second)) : STRIP_BYTES;
  int64_t rows = (bytes / row - window(second->kh, second->dh)) / second->sh + 1;
  return sod2_imin(second->oh, sod2_imax(2, rows));
}

static sod2_stream strip_at(const sod2_conv *first, const sod2_conv *second, int64_t row) {
  sod2_stream strip = {.row = row};
  strip.rows = sod2_imin(rows_per_strip(first, second), second->oh - row);
  if (strip.rows > 0) input_rows(second, row, strip.rows, &strip.begin, &strip.end);
  return strip;
}

sod2_stream sod2_stream_begin(const sod2_conv *first, const sod2_conv *second) { return strip_at(first, second, 0); }

sod2_stream sod2_stream_next(const sod2_conv *first, const sod2_conv *second, sod2_stream strip) {
  return strip_at(first, second, strip.row + strip.rows);
}

/* The part of a convolution that makes its output rows [row, row + rows) from a dense copy of the input rows they read. */
static sod2_conv part(const sod2_conv *c, int64_t row, int64_t rows) {
  sod2_conv p = *c;
  int64_t begin, end;
  input_rows(c, row, rows, &begin, &end);
  p.n = 1;
  p.ih = end - begin;
  p.oh = rows;
  p.pt = sod2_imax(0, c->pt - row * c->sh);
  p.touched[0] = NULL; /* those are tensors of all rows */
  return p;
}

static sod2_conv strip_of_first(const sod2_conv *first, const sod2_conv *second, sod2_stream strip) {
  sod2_conv p = part(first, strip.begin, strip.end - strip.begin);
  p.scratch_limit = second->scratch_limit > 0 ? share(second) : 0;
  return p;
}

static sod2_conv strip_of_second(const sod2_conv *second, sod2_stream strip) {
  sod2_conv p = part(second, strip.row, strip.rows);
  p.scratch_limit = second->scratch_limit > 0 ? share(second) : 0;
  return p;
}

/* Sizes of the largest strip: rows of the first result, rows of the first input. */
static void largest(const sod2_conv *first, const sod2_conv *second, sod2_conv *p1, sod2_conv *p2) {
  int64_t rows = rows_per_strip(first, second);
  int64_t middle = sod2_imin(first->oh, (rows - 1) * second->sh + window(second->kh, second->dh));
  *p1 = part(first, 0, middle);
  p1->scratch_limit = second->scratch_limit > 0 ? share(second) : 0;
  p1->ih = sod2_imin(first->ih, sod2_imax(0, (middle - 1) * first->sh + window(first->kh, first->dh)));
  *p2 = part(second, 0, rows);
  p2->scratch_limit = p1->scratch_limit;
  p2->ih = middle;
}

/* Scratch: the copied input rows, the strip, then the scratch of either kernel. Offsets in floats. */
static int64_t strip_offset(const sod2_conv *p1) { return sod2_line(p1->ic * p1->ih * p1->iw); }
static int64_t kernel_offset(const sod2_conv *p1) { return strip_offset(p1) + sod2_line(p1->oc * p1->oh * p1->ow); }

int sod2_stream_choose_first(const sod2_conv *first, const sod2_conv *second, int threads) {
  sod2_conv p1, p2;
  largest(first, second, &p1, &p2);
  return sod2_conv_choose(&p1, threads);
}

int sod2_stream_choose_second(const sod2_conv *first, const sod2_conv *second, int threads) {
  sod2_conv p1, p2;
  largest(first, second, &p1, &p2);
  return sod2_conv_choose(&p2, threads);
}

int64_t sod2_stream_scratch(const sod2_conv *first, const sod2_conv *second, int v1, int v2, int threads) {
  sod2_conv p1, p2;
  largest(first, second, &p1, &p2);
  int64_t kernels = 0; /* a kernel's scratch may be larger for fewer rows: it cuts them into equal blocks */
  for (sod2_stream t = strip_at(first, second, 0); t.rows > 0; t = sod2_stream_next(first, second, t)) {
    sod2_conv one = strip_of_first(first, second, t), two = strip_of_second(second, t);
    kernels = sod2_imax(kernels, sod2_conv_scratch(&one, v1, threads));
    kernels = sod2_imax(kernels, sod2_conv_scratch(&two, v2, threads));
  }
  return kernel_offset(&p1) * (int64_t)sizeof(float) + kernels;
}

float *sod2_stream_result(const sod2_conv *first, const sod2_conv *second, void *scratch) {
  sod2_conv p1, p2;
  largest(first, second, &p1, &p2);
  return (float *)scratch + strip_offset(&p1);
}

static void *kernel_scratch(const sod2_conv *first, const sod2_conv *second, void *scratch) {
  sod2_conv p1, p2;
  largest(first, second, &p1, &p2);
  return (float *)scratch + kernel_offset(&p1);
}

void sod2_stream_produce(const sod2_conv *first, const sod2_conv *second, int version, sod2_stream strip, int64_t image,
                        void *scratch, sod2_pool *pool) {
  int64_t begin, end, rows = strip.end - strip.begin;
  if (rows <= 0) return;
  input_rows(first, strip.begin, rows, &begin, &end);
  sod2_conv p = strip_of_first(first, second, strip);
  float *copied = scratch;
  for (int64_t c = 0; c < first->ic; c++)
    memcpy(copied + c * (end - begin) * first->iw, first->x + ((image * first->ic + c) * first->ih + begin) * first->iw,
           (size_t)((end - begin) * first->iw) * sizeof(float));
  p.x = copied;
  p.y = sod2_stream_result(first, second, scratch);
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
  p.x = sod2_stream_result(first, second, scratch);
  p.epilogue = store_shifted;
  p.epilogue_args = &z;
  sod2_conv_run(&p, version, kernel_scratch(first, second, scratch), pool);
}
