/* Strips: see strips.h. */
#include "strips.h"

#include "tile.h"
#include "tuning.h"

enum { STRIP_FLOATS = (SOD2_STRIP_KIB << 10) / 4, MIN_STRIP_FLOATS = (64 << 10) / 4, MIN_COLUMNS = 256 };
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

sod2_strips sod2_strips_plan(const sod2_conv *c) {
  sod2_strips s = {.in_place = is_in_place(c), .oh = c->oh, .ow = c->ow, .windows_y = 1, .windows_x = 1};
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
  int64_t floats = STRIP_FLOATS;
  if (c->scratch_limit > 0) floats = sod2_imin(floats, sod2_imax(MIN_STRIP_FLOATS, c->scratch_limit / 4));
  const int64_t area = floats / sod2_imax(1, channels * s.row_phases * s.column_phases); /* of a phase */
  int64_t columns = c->ow;
  if ((1 + more_lines) * (columns + more_columns) > area) /* one line is too long: cut it */
    columns = sod2_imin(columns, sod2_imax(MIN_COLUMNS, area / (1 + more_lines) - more_columns));
  s.windows_x = (c->ow + columns - 1) / columns;
  columns = (c->ow + s.windows_x - 1) / s.windows_x;
  int64_t lines = sod2_imin(c->oh, sod2_imax(1, area / (columns + more_columns) - more_lines));
  s.windows_y = (c->oh + lines - 1) / lines;
  lines = (c->oh + s.windows_y - 1) / s.windows_y;
  s.width = columns + more_columns;
  s.lines = lines + more_lines;
  s.channel = s.row_phases * s.column_phases * s.lines * s.width + SOD2_VL; /* channels are filled by several threads */
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
        const int64_t line = (fy * s->column_phases + fx) * s->lines + ky * c->dh / c->sh;
        *offset++ = (int32_t)(ch * s->channel + line * s->width + kx * c->dw / c->sw);
      }
}

#if SOD2_VL == 16
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif SOD2_VL == 8
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD 1, 3, 5, 7, 9, 11, 13, 15
#else
#define EVEN 0, 2, 4, 6
#define ODD 1, 3, 5, 7
#endif

/* Vectors below write up to VL - 1 floats too much; strips are written upwards, so the next row overwrites them. */
SOD2_INLINE void fill_zero(float *dst, int64_t n) {
  for (int64_t i = 0; i < n; i += SOD2_VL) vf_store(dst + i, (vf){0});
}

/* dst[i] = x[i * stride]; `readable` floats of x may be read. The same line of the next channel, `ahead` floats on, is
   fetched: rows of a window are short streams with gaps, which a hardware prefetcher does not follow. */
SOD2_INLINE void copy_strided(const float *x, int64_t readable, int64_t ahead, int64_t stride, int64_t n, float *dst) {
  int64_t i = 0;
  if (stride == 1)
    for (; i < n && i + SOD2_VL <= readable; i += SOD2_VL) {
      __builtin_prefetch(x + i + ahead);
      vf_store(dst + i, vf_load(x + i));
    }
  if (stride == 2)
    for (; i < n && 2 * (i + SOD2_VL) <= readable; i += SOD2_VL) {
      __builtin_prefetch(x + 2 * i + ahead);
      __builtin_prefetch(x + 2 * i + SOD2_VL + ahead);
      vf_store(dst + i, __builtin_shufflevector(vf_load(x + 2 * i), vf_load(x + 2 * i + SOD2_VL), EVEN));
    }
  for (; i < n; i++) dst[i] = x[i * stride];
}

void sod2_strip_phase(const sod2_conv *c, const float *x, int64_t iy, int64_t row_step, int64_t lines, int64_t shift,
                      int64_t width, float *dst) {
  int64_t lo = shift >= 0 ? 0 : (-shift + c->sw - 1) / c->sw;
  int64_t hi = c->iw <= shift ? 0 : (c->iw - shift + c->sw - 1) / c->sw;
  lo = sod2_imin(lo, width);
  hi = sod2_imax(lo, sod2_imin(hi, width));
  const int64_t first = shift + lo * c->sw, readable = c->x + c->n * c->ic * c->ih * c->iw - x;
  for (int64_t i = 0; i < lines; i++, iy += row_step, dst += width) {
    if (iy < 0 || iy >= c->ih || lo == hi) {
      fill_zero(dst, width);
      continue;
    }
    fill_zero(dst, lo);
    copy_strided(x + iy * c->iw + first, readable - iy * c->iw - first, c->ih * c->iw, c->sw, hi - lo, dst + lo);
    fill_zero(dst + hi, width - hi);
  }
}

/* dst[0 .. n) = 0, and nothing behind. */
SOD2_INLINE void clear(float *dst, int64_t n) {
  for (int64_t i = 0; i < n; i += SOD2_VL) vf_store_partial(dst + i, (vf){0}, sod2_imin(SOD2_VL, n - i));
}

/* even[i] = x[2 i] and odd[i] = x[2 i + 1], i < n, and nothing behind; `readable` and `ahead` as for copy_strided. */
SOD2_INLINE void copy_pairs(const float *x, int64_t readable, int64_t ahead, int64_t n, float *even, float *odd) {
  int64_t i = 0;
  for (; i < n && 2 * (i + SOD2_VL) <= readable; i += SOD2_VL) {
    const vf low = vf_load(x + 2 * i), high = vf_load(x + 2 * i + SOD2_VL);
    const vf first = __builtin_shufflevector(low, high, EVEN), second = __builtin_shufflevector(low, high, ODD);
    __builtin_prefetch(x + 2 * i + ahead);
    __builtin_prefetch(x + 2 * i + SOD2_VL + ahead);
    if (n - i >= SOD2_VL) {
      vf_store(even + i, first), vf_store(odd + i, second);
    } else {
      vf_store_partial(even + i, first, n - i), vf_store_partial(odd + i, second, n - i);
    }
  }
  for (; i < n; i++) even[i] = x[2 * i], odd[i] = x[2 * i + 1];
}

void sod2_strip_pair(const sod2_conv *c, const float *x, int64_t iy, int64_t row_step, int64_t lines, int64_t shift,
                     int64_t width, float *even, float *odd) {
  const int64_t begin = sod2_imin(width, sod2_imax(0, (1 - shift) / 2)); /* columns shift + 2 j >= 0 */
  const int64_t before = sod2_imin(begin, sod2_imax(0, -shift / 2));     /* shift + 1 + 2 j >= 0 */
  const int64_t end = sod2_imax(begin, sod2_imin(width, (c->iw - shift) / 2)); /* shift + 1 + 2 j < iw */
  const int64_t last = sod2_imax(begin, sod2_imin(width, (c->iw - shift + 1) / 2)); /* shift + 2 j < iw */
  const int64_t readable = c->x + c->n * c->ic * c->ih * c->iw - x;
  for (int64_t i = 0; i < lines; i++, iy += row_step, even += width, odd += width) {
    if (iy < 0 || iy >= c->ih || shift >= c->iw) {
      clear(even, width), clear(odd, width);
      continue;
    }
    const int64_t at = iy * c->iw + shift;
    clear(even, begin), clear(odd, before);
    if (before < begin) odd[before] = shift + 1 + 2 * before < c->iw ? x[at + 1 + 2 * before] : 0.0f;
    copy_pairs(x + at + 2 * begin, readable - at - 2 * begin, c->ih * c->iw, end - begin, even + begin, odd + begin);
    if (end < last) even[end] = x[at + 2 * end];
    clear(even + last, width - last), clear(odd + end, width - end);
  }
}

/* ---- a run over windows ----------------------------------------------------------------------------------------- */

typedef struct fill_job {
  const sod2_window *w;
  float *strips;
  int64_t pieces; /* of the channels */
} fill_job;

static void fill_channel(const sod2_window *w, const float *x, float *strip) {
  const sod2_conv *c = w->c;
  const int64_t lines = w->lines + (c->kh - 1) * c->dh / c->sh, size = w->strips->lines * w->strips->width;
  const int64_t width = w->strips->width, shift = w->x0 * c->sw - c->pl;
  for (int64_t fy = 0; fy < c->sh; fy++) {
    if (!is_read(fy, c->kh, c->dh, c->sh)) continue;
    const int64_t iy = w->y0 * c->sh + fy - c->pt;
    if (c->sw == 2 && w->strips->column_phases == 2) {
      sod2_strip_pair(c, x, iy, c->sh, lines, shift, width, strip, strip + size);
      strip += 2 * size;
      continue;
    }
    for (int64_t fx = 0; fx < c->sw; fx++) {
      if (!is_read(fx, c->kw, c->dw, c->sw)) continue;
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

void sod2_strips_run(const sod2_conv *c, const sod2_strips *s, const void *plan, float *scratch, sod2_pool *pool,
                     void (*compute)(const sod2_window *w, sod2_pool *pool)) {
  int32_t *offset = (int32_t *)scratch;
  float *strips = scratch + s->offsets;
  fill_offsets(c, s, offset);
  const int64_t channels = c->ic / c->groups, windows = s->windows_y * s->windows_x;
  for (int64_t i = 0; i < c->n * c->groups * windows; i++) {
    const int64_t wy = i / s->windows_x % s->windows_y, wx = i % s->windows_x;
    sod2_window w = {.c = c, .strips = s, .offset = offset, .base = strips, .plan = plan};
    w.scratch = strips + s->floats;
    w.image = i / windows / c->groups, w.group = i / windows % c->groups;
    w.y0 = s->oh * wy / s->windows_y, w.lines = s->oh * (wy + 1) / s->windows_y - w.y0;
    w.x0 = s->ow * wx / s->windows_x, w.columns = s->ow * (wx + 1) / s->windows_x - w.x0;
    if (s->in_place) {
      w.base = c->x + (w.image * c->ic + w.group * channels) * s->channel;
    } else {
      fill_job job = {.w = &w, .strips = strips, .pieces = sod2_imin(channels, 4 * sod2_pool_threads(pool))};
      sod2_parallel(pool, job.pieces, fill_piece, &job);
    }
    if (sod2_strips_flat(c)) /* of several lines only where they are whole */
      w.x0 += w.y0 * s->ow, w.columns *= w.lines, w.y0 = 0, w.lines = 1;
    compute(&w, pool);
  }
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
