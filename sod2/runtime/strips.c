/* Strips: see strips.h. */
#include "strips.h"

#include "tile.h"
#include "tuning.h"

enum {
  STRIP_FLOATS = (SOD2_STRIP_KIB << 10) / 4,
  MIN_STRIP_FLOATS = (64 << 10) / 4,
  MIN_COLUMNS = 256,
  OWN_WEIGHTS = (384 << 10) / 4, /* floats of a group: all threads read them, once for each window */
  OWN_ROWS = 16, /* least output channels of a group: for fewer, filling is most of the work, and faster by channels */
  OWN_PIXELS = 192, /* of a window that one thread computes: fewer waste the ends of panels */
  MIN_OWN_PIXELS = 64 /* where each thread has one, or strips of more lines would be too long */
};
static const double CYCLES_PER_FLOAT = 0.4; /* measured */

/* Is phase `f` of an axis read by a tap? */
static int is_read(int64_t f, int64_t taps, int64_t dilation, int64_t stride) {
  for (int64_t k = 0; k < taps; k++)
    if (k * dilation % stride == f) return 1;
  return 0;
}

/* Phases below `f` that are read: the place of phase f. */
static int64_t phases_below(int64_t f, int64_t taps, int64_t dilation, int64_t stride) {
  int64_t count = 0;
  for (int64_t i = 0; i < f; i++) count += is_read(i, taps, dilation, stride);
  return count;
}

static int is_in_place(const sod2_conv *c) {
  return c->kh == 1 && c->kw == 1 && c->sh == 1 && c->sw == 1 && c->pt == 0 && c->pl == 0 && c->oh == c->ih &&
         c->ow == c->iw && c->ic * c->ih * c->iw < INT32_MAX;
}

/* Windows of an image that threads compute each on their own: four a thread where pixels suffice, or one, or 0. */
static int64_t own_windows(const sod2_conv *c, int threads) {
  const int64_t rows = c->oc / c->groups, weights = rows * (c->ic / c->groups) * c->kh * c->kw;
  if (threads == 1 || rows < OWN_ROWS || weights > OWN_WEIGHTS) return 0;
  const int64_t images = c->n * c->groups, pixels = c->oh * c->ow, one = sod2_ceildiv(threads, images);
  const int64_t wanted = sod2_imax(sod2_imin(4 * one, pixels / OWN_PIXELS), sod2_imin(one, pixels / MIN_OWN_PIXELS));
  const int64_t windows = sod2_imin(c->oh, wanted);
  return images * windows >= threads ? windows : 0;
}

sod2_strips sod2_strips_plan(const sod2_conv *c, int threads) {
  sod2_strips s = {.in_place = is_in_place(c), .oh = c->oh, .ow = c->ow, .windows_y = 1, .windows_x = 1, .strips = 1};
  const int64_t channels = c->ic / c->groups;
  s.depth = channels * c->kh * c->kw;
  s.offsets = sod2_line(s.depth);
  if (s.in_place) {
    s.oh = 1, s.ow = c->oh * c->ow, s.channel = s.ow;
    return s;
  }
  s.row_phases = phases_below(c->sh, c->kh, c->dh, c->sh);
  s.column_phases = phases_below(c->sw, c->kw, c->dw, c->sw);
  const int64_t more_lines = (c->kh - 1) * c->dh / c->sh, more_columns = (c->kw - 1) * c->dw / c->sw;
  const int64_t own = own_windows(c, threads);
  if (own > 0) s.strips = threads;
  int64_t floats = STRIP_FLOATS;
  if (c->scratch_limit > 0) floats = sod2_imin(floats, sod2_imax(MIN_STRIP_FLOATS, c->scratch_limit / 4));
  floats /= s.strips;
  const int64_t area = floats / sod2_imax(1, channels * s.row_phases * s.column_phases); /* of a phase */
  int64_t columns = c->ow;
  if ((1 + more_lines) * (columns + more_columns) > area) /* one line is too long: cut it */
    columns = sod2_imin(columns, sod2_imax(MIN_COLUMNS, area / (1 + more_lines) - more_columns));
  s.windows_x = (c->ow + columns - 1) / columns;
  columns = (c->ow + s.windows_x - 1) / s.windows_x;
  int64_t lines = sod2_imin(c->oh, sod2_imax(1, area / (columns + more_columns) - more_lines));
  if (own > 0 && lines * columns < MIN_OWN_PIXELS) return sod2_strips_plan(c, 1);
  s.windows_y = sod2_imax(own, (c->oh + lines - 1) / lines);
  if (own > 0 && s.windows_y >= threads) s.windows_y = sod2_imin(c->oh, sod2_ceildiv(s.windows_y, threads) * threads);
  lines = (c->oh + s.windows_y - 1) / s.windows_y;
  s.width = columns + more_columns;
  s.lines = lines + more_lines;
  s.phase = s.lines * s.width + SOD2_VL; /* lines are filled upwards, a vector at a time */
  s.channel = s.row_phases * s.column_phases * s.phase;
  s.floats = sod2_line(channels * s.channel + SOD2_NR); /* the last vectors read beyond the end */
  return s;
}

double sod2_strips_cost(const sod2_conv *c, const sod2_strips *s) {
  const double used = (double)(s->row_phases * s->column_phases) / (double)(c->sh * c->sw);
  return s->in_place ? 0 : CYCLES_PER_FLOAT * (double)c->n * (double)(c->ic * c->ih * c->iw) * used;
}

static void fill_offsets(const sod2_conv *c, const sod2_strips *s, int32_t *offset) {
  for (int64_t ch = 0; ch < c->ic / c->groups; ch++)
    for (int64_t ky = 0; ky < c->kh; ky++)
      for (int64_t kx = 0; kx < c->kw; kx++) {
        const int64_t fy = phases_below(ky * c->dh % c->sh, c->kh, c->dh, c->sh);
        const int64_t fx = phases_below(kx * c->dw % c->sw, c->kw, c->dw, c->sw);
        const int64_t phase = ch * s->channel + (fy * s->column_phases + fx) * s->phase;
        *offset++ = (int32_t)(phase + ky * c->dh / c->sh * s->width + kx * c->dw / c->sw);
      }
}

/* Vectors below write up to VL - 1 floats too much: of a line, what the next one overwrites. */
SOD2_INLINE void fill_zero(float *dst, int64_t n) {
  for (int64_t i = 0; i < n; i += SOD2_VL) vf_store(dst + i, (vf){0});
}

/* VL columns of a row of `iw` from `column` on, 0 outside of it; `whole`: none is outside. */
SOD2_INLINE vf load_columns(int whole, const float *row, int64_t column, int64_t iw) {
  if (whole) return vf_load(row + column);
  const int64_t first = sod2_imin(SOD2_VL, sod2_imax(0, -column));
  return vf_load_between(row + column, first, sod2_imax(first, sod2_imin(SOD2_VL, iw - column)), 0);
}

/* VL columns of each phase, from `column` on. The same place in the next channel, `ahead` floats on, is fetched: rows
   of a window are short streams with gaps, which a hardware prefetcher does not follow. */
SOD2_INLINE void copy_vector(int stride, int pair, int whole, const float *row, int64_t column, int64_t iw,
                             int64_t ahead, float *even, float *odd) {
  const vf low = load_columns(whole, row, column, iw);
  __builtin_prefetch(row + column + ahead);
  if (stride == 1) {
    vf_store(even, low);
    return;
  }
  const vf high = load_columns(whole, row, column + SOD2_VL, iw);
  __builtin_prefetch(row + column + ahead + SOD2_VL);
  vf_store(even, __builtin_shufflevector(low, high, SOD2_EVEN));
  if (pair) vf_store(odd, __builtin_shufflevector(low, high, SOD2_ODD));
}

/* Rows of the image, `row_step` apart. Short ones are copied a column of vectors after the other, the last one first:
   what is written behind a row is the beginning of the next. */
SOD2_INLINE void copy_rows(int stride, int pair, const sod2_conv *c, const float *x, int64_t row_step, int64_t rows,
                           int64_t shift, int64_t width, float *even, float *odd) {
  const int64_t iw = c->iw, step = row_step * iw, ahead = c->ih * iw;
  if (width <= 4 * SOD2_VL) {
    for (int64_t j = (width - 1) / SOD2_VL * SOD2_VL; j >= 0; j -= SOD2_VL) {
      const int64_t column = shift + stride * j;
      const int whole = column >= 0 && column + stride * SOD2_VL <= iw;
      for (int64_t i = 0; i < rows; i++)
        copy_vector(stride, pair, whole, x + i * step, column, iw, ahead, even + i * width + j, odd + i * width + j);
    }
    return;
  }
  for (; rows > 0; rows--, x += step, even += width, odd += width) {
    int64_t j = 0;
    for (; j < width && shift + stride * j < 0; j += SOD2_VL)
      copy_vector(stride, pair, 0, x, shift + stride * j, iw, ahead, even + j, odd + j);
    for (; j < width && shift + stride * (j + SOD2_VL) <= iw; j += SOD2_VL)
      copy_vector(stride, pair, 1, x, shift + stride * j, iw, ahead, even + j, odd + j);
    for (; j < width; j += SOD2_VL)
      copy_vector(stride, pair, 0, x, shift + stride * j, iw, ahead, even + j, odd + j);
  }
}

/* As copy_rows, one phase of any column stride. */
static void copy_strided(const sod2_conv *c, const float *x, int64_t row_step, int64_t rows, int64_t shift,
                         int64_t width, float *dst) {
  const int64_t iw = c->iw, sw = c->sw, lo = sod2_imin(width, shift >= 0 ? 0 : (-shift + sw - 1) / sw);
  const int64_t hi = sod2_imax(lo, sod2_imin(width, iw <= shift ? 0 : (iw - shift + sw - 1) / sw));
  for (; rows > 0; rows--, x += row_step * iw, dst += width) {
    for (int64_t j = 0; j < lo; j++) dst[j] = 0;
    for (int64_t j = lo; j < hi; j++) dst[j] = x[shift + j * sw];
    for (int64_t j = hi; j < width; j++) dst[j] = 0;
  }
}

/* Of `lines` rows from iy on, `row_step` apart: [above, end) lie in the image. */
static void rows_inside(const sod2_conv *c, int64_t iy, int64_t row_step, int64_t lines, int64_t *above, int64_t *end) {
  *above = 0, *end = lines;
  while (*above < lines && iy + *above * row_step < 0) ++*above;
  while (*end > *above && iy + (*end - 1) * row_step >= c->ih) --*end;
}

void sod2_strip_phase(const sod2_conv *c, const float *x, int64_t iy, int64_t row_step, int64_t lines, int64_t shift,
                      int64_t width, float *dst) {
  int64_t above, end;
  rows_inside(c, iy, row_step, lines, &above, &end);
  fill_zero(dst, above * width);
  x += (iy + above * row_step) * c->iw;
  float *inside = dst + above * width;
  if (c->sw == 1)
    copy_rows(1, 0, c, x, row_step, end - above, shift, width, inside, inside);
  else if (c->sw == 2)
    copy_rows(2, 0, c, x, row_step, end - above, shift, width, inside, inside);
  else
    copy_strided(c, x, row_step, end - above, shift, width, inside);
  fill_zero(dst + end * width, (lines - end) * width);
}

void sod2_strip_pair(const sod2_conv *c, const float *x, int64_t iy, int64_t row_step, int64_t lines, int64_t shift,
                     int64_t width, float *even, float *odd) {
  int64_t above, end;
  rows_inside(c, iy, row_step, lines, &above, &end);
  fill_zero(even, above * width), fill_zero(odd, above * width);
  copy_rows(2, 1, c, x + (iy + above * row_step) * c->iw, row_step, end - above, shift, width, even + above * width,
            odd + above * width);
  fill_zero(even + end * width, (lines - end) * width), fill_zero(odd + end * width, (lines - end) * width);
}

/* ---- a run over windows ----------------------------------------------------------------------------------------- */

typedef struct fill_job {
  const sod2_window *w;
  float *strips;
  int64_t pieces; /* of the channels */
} fill_job;

static void fill_channel(const sod2_window *w, const float *x, float *strip) {
  const sod2_conv *c = w->c;
  const int64_t lines = w->lines + (c->kh - 1) * c->dh / c->sh, size = w->strips->phase;
  const int64_t width = w->strips->width, shift = w->x0 * c->sw - c->pl;
  const int all_rows = w->strips->row_phases == c->sh, all_columns = w->strips->column_phases == c->sw;
  for (int64_t fy = 0; fy < c->sh; fy++) {
    if (!all_rows && !is_read(fy, c->kh, c->dh, c->sh)) continue;
    const int64_t iy = w->y0 * c->sh + fy - c->pt;
    if (c->sw == 2 && all_columns) {
      sod2_strip_pair(c, x, iy, c->sh, lines, shift, width, strip, strip + size);
      strip += 2 * size;
      continue;
    }
    for (int64_t fx = 0; fx < c->sw; fx++) {
      if (!all_columns && !is_read(fx, c->kw, c->dw, c->sw)) continue;
      sod2_strip_phase(c, x, iy, c->sh, lines, shift + fx, width, strip);
      strip += size;
    }
  }
}

static void fill_piece(void *arg, int64_t piece, int thread) {
  (void)thread;
  const fill_job *job = arg;
  const sod2_conv *c = job->w->c;
  const int64_t channels = c->ic / c->groups, end = channels * (piece + 1) / job->pieces;
  const float *x = c->x + (job->w->image * c->ic + job->w->group * channels) * c->ih * c->iw;
  for (int64_t ch = channels * piece / job->pieces; ch < end; ch++)
    fill_channel(job->w, x + ch * c->ih * c->iw, job->strips + ch * job->w->strips->channel);
}

typedef struct run_job {
  const sod2_conv *c;
  const sod2_strips *s;
  const void *plan;
  float *scratch;
  void (*compute)(const sod2_window *w, sod2_pool *pool);
  sod2_pool *pool; /* threads that share a window, NULL where each has its own */
} run_job;

static void run_window(void *arg, int64_t i, int thread) {
  const run_job *job = arg;
  const sod2_conv *c = job->c;
  const sod2_strips *s = job->s;
  const int64_t channels = c->ic / c->groups, windows = s->windows_y * s->windows_x;
  const int64_t wy = i / s->windows_x % s->windows_y, wx = i % s->windows_x;
  float *strip = job->scratch + s->offsets + (s->strips > 1 ? thread : 0) * s->floats;
  sod2_window w = {.c = c, .strips = s, .offset = (int32_t *)job->scratch, .base = strip, .plan = job->plan};
  w.scratch = job->scratch + s->offsets + s->strips * s->floats;
  w.image = i / windows / c->groups, w.group = i / windows % c->groups;
  w.y0 = s->oh * wy / s->windows_y, w.lines = s->oh * (wy + 1) / s->windows_y - w.y0;
  w.x0 = s->ow * wx / s->windows_x, w.columns = s->ow * (wx + 1) / s->windows_x - w.x0;
  if (s->in_place) {
    w.base = c->x + (w.image * c->ic + w.group * channels) * s->channel;
  } else {
    fill_job fill = {.w = &w, .strips = strip, .pieces = sod2_imin(channels, 4 * sod2_pool_threads(job->pool))};
    sod2_parallel(job->pool, fill.pieces, fill_piece, &fill);
  }
  if (sod2_strips_flat(c)) /* of several lines only where they are whole */
    w.x0 += w.y0 * s->ow, w.columns *= w.lines, w.y0 = 0, w.lines = 1;
  job->compute(&w, job->pool);
}

void sod2_strips_run(const sod2_conv *c, const sod2_strips *s, const void *plan, float *scratch, sod2_pool *pool,
                     void (*compute)(const sod2_window *w, sod2_pool *pool)) {
  const int own = s->strips > 1;
  run_job job = {.c = c, .s = s, .plan = plan, .scratch = scratch, .compute = compute, .pool = own ? NULL : pool};
  fill_offsets(c, s, (int32_t *)scratch);
  sod2_parallel(own ? pool : NULL, c->n * c->groups * s->windows_y * s->windows_x, run_window, &job);
}

int64_t sod2_window_blocks(const sod2_window *w, int64_t most) {
  if (w->columns > most) return w->lines * ((w->columns + most - 1) / most);
  const int64_t lines = w->columns == w->strips->ow ? most / w->columns : 1, blocks = (w->lines + lines - 1) / lines;
  for (int64_t equal = blocks; equal < 2 * blocks; equal++) /* few unequal blocks leave a thread waiting */
    if (w->lines % equal == 0) return equal;
  return blocks;
}

sod2_block sod2_window_block(const sod2_window *w, int64_t most, int64_t unit, int64_t index) {
  sod2_block b = {.lines = 1, .columns = w->columns};
  const int64_t blocks = sod2_window_blocks(w, most);
  if (w->columns > most) {
    const int64_t pieces = blocks / w->lines, units = (w->columns + unit - 1) / unit;
    b.y = index / pieces;
    b.x = units * (index % pieces) / pieces * unit;
    b.columns = sod2_imin(w->columns, units * (index % pieces + 1) / pieces * unit) - b.x;
  } else {
    b.y = w->lines * index / blocks;
    b.lines = w->lines * (index + 1) / blocks - b.y;
  }
  b.first = (w->y0 + b.y) * w->strips->ow + w->x0 + b.x;
  b.count = b.lines * b.columns;
  return b;
}
