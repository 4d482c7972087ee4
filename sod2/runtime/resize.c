/* Separable interpolation. An item is some lines of the output, one for each (outer, row). A line is made in two steps:
   the lines of x that contribute to it are combined by whole vectors, then elements along the combined line, which is
   in L1 or L2. Weights depend on one axis alone, so that they are looked up. */
#include "resize.h"

enum {
  ALIGN_FLOATS = 16,
  ITEM_WORK = 16384 /* multiply-adds below which handing an item to another thread costs more than it saves */
};

typedef struct job {
  const sod2_resize *r;
  float *scratch;         /* of all threads */
  int64_t combined, line; /* floats of a thread: a combined line, and a line of the output for the epilogue */
  int64_t lines, lines_per_item;
} job;

static int64_t aligned(int64_t floats) { return (floats + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS; }

static int64_t table_floats(const sod2_resized *axis) { return aligned(2 * axis->taps * axis->m); }

static job plan(const sod2_resize *r) {
  job j = {.r = r, .lines = r->outer * r->rows.m};
  if (r->rows.taps && r->columns.taps) j.combined = aligned(r->columns.n * r->inner);
  if (r->epilogue) j.line = aligned(r->columns.m * r->inner);
  return j;
}

int64_t sod2_resize_scratch(const sod2_resize *r, int threads) {
  const job j = plan(r);
  const int64_t floats = table_floats(&r->rows) + table_floats(&r->columns) + threads * (j.combined + j.line);
  return floats * (int64_t)sizeof(float);
}

void sod2_resize_tables(sod2_resize *r, void *scratch) {
  float *free = scratch;
  for (int k = 0; k < 2; k++) {
    sod2_resized *axis = k == 0 ? &r->rows : &r->columns;
    axis->weight = free;
    axis->index = (int32_t *)(free + axis->taps * axis->m);
    free += table_floats(axis);
  }
}

/* y[0 .. count) = the sum over t of weight t times the line at x + index t * stride. */
SOD2_INLINE void combine_taps(const sod2_resized *axis, int taps, int64_t i, const float *x, int64_t stride, float *y,
                              int64_t count) {
  const float *line[4];
  float weight[4];
  for (int t = 0; t < taps; t++) {
    line[t] = x + axis->index[t * axis->m + i] * stride;
    weight[t] = axis->weight[t * axis->m + i];
  }
  int64_t c = 0;
  for (; c + SOD2_VL <= count; c += SOD2_VL) {
    vf sum = vf_load(line[0] + c) * weight[0];
    for (int t = 1; t < taps; t++) sum += vf_load(line[t] + c) * weight[t];
    vf_store(y + c, sum);
  }
  if (c == count) return;
  vf sum = vf_load_partial(line[0] + c, count - c, 0.0f) * weight[0];
  for (int t = 1; t < taps; t++) sum += vf_load_partial(line[t] + c, count - c, 0.0f) * weight[t];
  vf_store_partial(y + c, sum, count - c);
}

static void combine(const sod2_resized *axis, int64_t i, const float *x, int64_t stride, float *y, int64_t count) {
  if (axis->taps == 2)
    combine_taps(axis, 2, i, x, stride, y, count);
  else
    combine_taps(axis, 4, i, x, stride, y, count);
}

/* y[i] = the sum over t of weight[t][i] * x[index[t][i]]. */
SOD2_INLINE void pick_taps(const sod2_resized *axis, int taps, const float *restrict x, float *restrict y) {
  const int64_t m = axis->m;
  const float *restrict weight = axis->weight;
  const int32_t *restrict index = axis->index;
  for (int64_t i = 0; i < m; i++) {
    float sum = weight[i] * x[index[i]];
    for (int t = 1; t < taps; t++) sum += weight[t * m + i] * x[index[t * m + i]];
    y[i] = sum;
  }
}

static void along_line(const sod2_resized *axis, const float *x, int64_t inner, float *y) {
  if (inner == 1 && axis->taps == 2)
    pick_taps(axis, 2, x, y);
  else if (inner == 1)
    pick_taps(axis, 4, x, y);
  else
    for (int64_t i = 0; i < axis->m; i++) combine(axis, i, x, inner, y + i * inner, inner);
}

static void run_item(void *arg, int64_t item, int thread) {
  const job *j = arg;
  const sod2_resize *r = j->r;
  const int64_t width = r->columns.n * r->inner, length = r->columns.m * r->inner;
  float *scratch = j->scratch + thread * (j->combined + j->line);
  const int64_t first = item * j->lines_per_item, end = sod2_imin(first + j->lines_per_item, j->lines);
  for (int64_t l = first; l < end; l++) {
    const float *x = r->x + l / r->rows.m * r->rows.n * width;
    float *y = r->epilogue ? scratch + j->combined : r->y + l * length;
    if (r->rows.taps) {
      float *line = r->columns.taps ? scratch : y;
      combine(&r->rows, l % r->rows.m, x, width, line, width);
      x = line;
    }
    if (r->columns.taps) along_line(&r->columns, x, r->inner, y);
    if (r->epilogue) r->epilogue(r->args, y, length, 0, l, 1, 0, length);
  }
}

void sod2_resize_run(const sod2_resize *r, void *scratch, sod2_pool *pool) {
  job j = plan(r);
  const int64_t length = r->columns.m * r->inner;
  if (j.lines == 0 || length == 0) return;
  j.scratch = (float *)scratch + table_floats(&r->rows) + table_floats(&r->columns);
  const int64_t work = (r->rows.taps + r->columns.taps) * sod2_imax(length, r->columns.n * r->inner);
  const int64_t even = j.lines / (4 * sod2_pool_threads(pool)); /* so that all threads end together */
  j.lines_per_item = sod2_imax(sod2_imin(ITEM_WORK / work + 1, j.lines), even);
  sod2_parallel(pool, (j.lines + j.lines_per_item - 1) / j.lines_per_item, run_item, &j);
}
