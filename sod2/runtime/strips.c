/* Strips: see strips.h. */
#include "strips.h"

#include "tile.h"
#include "tuning.h"

enum {
  SHARED_FLOATS = (SOD2_STRIP_KIB << 10) / 4,
  OWN_FLOATS = (SOD2_STRIP_OWN_KIB << 10) / 4,
  MIN_FLOATS = (64 << 10) / 4, /* of a thread, taken even where that raises the peak */
  MIN_COLUMNS = 256,
  MAX_LINES = 8,         /* of windows that are not as wide as the output */
  OWN_WINDOWS = 4,       /* for each thread, at least */
  MIN_PIXELS = 192,      /* of an own window, for each reads all weights */
  MIN_LIGHT_PIXELS = 32, /* and where those stay in L2 */
  LIGHT_WEIGHTS = (384 << 10) / 4
};
static const double CYCLES_PER_FLOAT = 0.4; /* measured */

SOD2_INLINE int64_t panels_of(int64_t pixels) { return (pixels + SOD2_NR - 1) / SOD2_NR; }

/* Of phase `f` of an axis: how far behind the first output's place the last tap reads, -1 if none reads the phase. */
static int64_t reach(int64_t f, int64_t taps, int64_t dilation, int64_t stride) {
  if (stride == 1) return (taps - 1) * dilation; /* plans are made for every new shape */
  int64_t far = -1;
  for (int64_t k = 0; k < taps; k++)
    if (k * dilation % stride == f) far = k * dilation / stride;
  return far;
}

static int is_read(int64_t f, int64_t taps, int64_t dilation, int64_t stride) {
  return reach(f, taps, dilation, stride) >= 0;
}

/* Phases below `f` that are read: the place of phase f. */
static int64_t phases_below(int64_t f, int64_t taps, int64_t dilation, int64_t stride) {
  int64_t count = 0;
  for (int64_t i = 0; i < f; i++) count += is_read(i, taps, dilation, stride);
  return count;
}

/* The stride that splits an axis: one that a kernel cannot step by, or that leaves out phases which no tap reads. */
static int64_t split_by(int64_t taps, int64_t dilation, int64_t stride, int64_t steps) {
  return stride > steps || phases_below(stride, taps, dilation, stride) < stride ? stride : 1;
}

/* Lines of row phase `f`, in the strip of a channel of a window of `lines`; and of all phases below it together. */
static int64_t phase_lines(const sod2_conv *c, const sod2_strips *s, int64_t f, int64_t lines) {
  return (lines - 1) * s->step_y + 1 + reach(f, c->kh, c->dh, s->sh);
}

static int64_t lines_below(const sod2_conv *c, const sod2_strips *s, int64_t f, int64_t lines) {
  int64_t count = 0;
  for (int64_t i = 0; i < f; i++)
    if (is_read(i, c->kh, c->dh, s->sh)) count += phase_lines(c, s, i, lines);
  return count;
}

/* Floats of the strip of a channel up to row phase `f`. Lines are filled by vectors, beyond the end of the last. */
static int64_t floats_below(const sod2_conv *c, const sod2_strips *s, int64_t f) {
  return s->column_phases *
         (lines_below(c, s, f, s->lines) * s->width + phases_below(f, c->kh, c->dh, s->sh) * SOD2_VL);
}

int sod2_strips_in_place(const sod2_conv *c) {
  return c->kh == 1 && c->kw == 1 && c->sh == 1 && c->sw == 1 && c->pt == 0 && c->pl == 0 && c->oh == c->ih &&
         c->ow == c->iw && c->ic * c->ih * c->iw < INT32_MAX;
}

/* Pieces of at most `most` that `size` is cut into: of owners each has the same number, and several. */
static int64_t pieces_of(int64_t size, int64_t most, int64_t owners) {
  const int64_t least = owners > 1 ? OWN_WINDOWS : 1, each = (size + most * owners - 1) / (most * owners);
  return sod2_imin(size, sod2_imax(least, each) * owners);
}

/* Lines of all row phases together, in the strip of a channel of a window of `lines`; most lines of one of so many. */
SOD2_INLINE int64_t lines_of(const sod2_strips *s, int64_t lines) {
  return s->row_phases * ((lines - 1) * s->step_y + 1) + s->row_reach;
}
SOD2_INLINE int64_t lines_within(const sod2_strips *s, int64_t rows) {
  return ((rows - s->row_reach) / s->row_phases + s->step_y - 1) / s->step_y;
}

/* Floats of a line of a phase, of a window of `columns`; most columns of one of so many. */
SOD2_INLINE int64_t width_of(const sod2_conv *c, const sod2_strips *s, int64_t columns) {
  return (columns - 1) * s->step_x + 1 + (c->kw - 1) * c->dw / s->sw;
}
SOD2_INLINE int64_t columns_within(const sod2_conv *c, const sod2_strips *s, int64_t width) {
  return (width - (c->kw - 1) * c->dw / s->sw + s->step_x - 1) / s->step_x;
}

/* Expected cycles a pixel of windows of so many lines and columns, `count` beside each other: to fill, and in tiles. */
static double window_cycles(const sod2_conv *c, const sod2_strips *s, int64_t lines, int64_t columns, int64_t count) {
  const int64_t margin = (c->kw - 1) * c->dw / c->sw;
  const int64_t panels = count > 1 ? lines * panels_of(s->ow) : panels_of((lines - 1) * (columns + margin) + columns);
  const double rows = (double)(lines_of(s, lines) * s->column_phases * count);
  const double fill = CYCLES_PER_FLOAT * rows * (double)(width_of(c, s, columns) * (c->ic / c->groups));
  const double tiles = (double)(panels * s->depth) * sod2_block_cycles(c->oc / c->groups);
  return (fill + tiles) / (double)(lines * s->ow);
}

/* Panels of the widest piece of a line whose strips take so many floats a channel; at least those of MIN_COLUMNS. */
static int64_t widest_piece(const sod2_conv *c, const sod2_strips *s, int64_t area) {
  return sod2_imax(MIN_COLUMNS, columns_within(c, s, area / lines_of(s, 1))) / SOD2_NR;
}

/* Cuts the output into windows whose strips take at most `floats`, or those of a line or MIN_COLUMNS of it: as many whole
   lines as fit, or in a thread's own windows, where that is cheaper, one, two, .. lines as wide as they fit. A line is
   cut between panels. Strips that all threads share may take more by what lies between phases. */
static void cut(const sod2_conv *c, int64_t floats, int64_t owners, sod2_strips *s) {
  const int64_t between = owners > 1 ? s->row_phases * SOD2_VL : 0;
  const int64_t area = (floats - SOD2_NR) / sod2_imax(1, c->ic / c->groups * s->column_phases) - between;
  const int64_t panels = panels_of(s->ow), along = s->oh == 1 ? owners : 1;
  const int64_t whole = lines_within(s, area / width_of(c, s, s->ow));
  const int64_t widest = whole > 0 ? panels : widest_piece(c, s, area);
  const int64_t fewest = pieces_of(panels, widest, along);
  const int64_t most = owners > 1 && fewest < panels ? sod2_imin(s->oh, MAX_LINES) : 0;
  int64_t lines = sod2_imin(s->oh, sod2_imax(1, whole));
  double best = most > 0 && whole > 0 ? window_cycles(c, s, lines, s->ow, fewest) : INFINITY;
  s->owners = owners, s->windows_x = fewest;
  for (int64_t some = 1; some <= most; some++) {
    const int64_t fit = columns_within(c, s, area / lines_of(s, some)) / SOD2_NR;
    if (fit < 1) break;
    const int64_t count = pieces_of(panels, fit, along);
    if (count <= fewest) continue;
    const double cycles = window_cycles(c, s, some, (panels + count - 1) / count * SOD2_NR, count);
    if (cycles < best) best = cycles, lines = some, s->windows_x = count;
  }
  s->windows_y = pieces_of(s->oh, lines, owners);
  s->lines = (s->oh + s->windows_y - 1) / s->windows_y;
  s->width = width_of(c, s, sod2_imin(s->ow, (panels + s->windows_x - 1) / s->windows_x * SOD2_NR));
  s->channel = s->column_phases * (lines_of(s, s->lines) * s->width + s->row_phases * SOD2_VL);
  s->floats = sod2_line(c->ic / c->groups * s->channel + SOD2_NR); /* the last vectors read beyond the end */
}

void sod2_strips_plan(const sod2_conv *c, int threads, int64_t steps, sod2_strips *s) {
  *s = (sod2_strips){.oh = c->oh, .ow = c->ow, .windows_y = 1, .windows_x = 1, .owners = 1, .together = 1};
  s->in_place = sod2_strips_in_place(c);
  s->depth = sod2_strips_depth(c);
  s->offsets = sod2_line(s->depth);
  if (sod2_strips_flat(c)) s->oh = 1, s->ow = c->oh * c->ow;
  if (s->in_place) {
    s->sh = s->sw = s->step_y = s->step_x = 1;
    s->channel = s->ow;
    return;
  }
  s->sh = split_by(c->kh, c->dh, c->sh, steps), s->sw = split_by(c->kw, c->dw, c->sw, steps);
  s->step_y = c->sh / s->sh, s->step_x = c->sw / s->sw;
  s->row_phases = phases_below(s->sh, c->kh, c->dh, s->sh);
  s->column_phases = phases_below(s->sw, c->kw, c->dw, s->sw);
  s->row_reach = lines_below(c, s, s->sh, 1) - s->row_phases;
  const int64_t allowed = c->scratch_limit > 0 ? c->scratch_limit / 4 : INT64_MAX;
  const int64_t limit = sod2_imax(MIN_FLOATS * threads, allowed), own = limit / threads;
  const int64_t rows = c->oc / c->groups;
  const int64_t pixels = s->depth * rows > LIGHT_WEIGHTS ? MIN_PIXELS : MIN_LIGHT_PIXELS;
  /* Own windows are never fewer than this: if even those are too small, none are cut. */
  if (threads > 1 && s->oh * s->ow >= pixels * sod2_imin(s->oh, OWN_WINDOWS * threads)) {
    cut(c, sod2_imin(OWN_FLOATS, own), threads, s);
    const int64_t windows = s->windows_y * s->windows_x, all = c->n * c->groups * windows;
    s->together = all < OWN_WINDOWS * threads || s->oh * s->ow < pixels * windows || s->floats > own;
  }
  if (!s->together) return;
  const int copies = threads > 1 && rows >= SOD2_NR * threads && !c->prologue;
  cut(c, copies ? sod2_imin(OWN_FLOATS, own) : sod2_imin(SHARED_FLOATS, limit), 1, s);
  if (copies) s->owners = threads;
}

double sod2_strips_cost(const sod2_conv *c) {
  if (sod2_strips_in_place(c)) return 0;
  const int64_t phases = phases_below(c->sh, c->kh, c->dh, c->sh) * phases_below(c->sw, c->kw, c->dw, c->sw);
  const double used = (double)phases / (double)(c->sh * c->sw);
  return CYCLES_PER_FLOAT * (double)c->n * (double)(c->ic * c->ih * c->iw) * used;
}

/* Of the first channel's taps; the others are a channel further on. */
static void fill_offsets(const sod2_conv *c, const sod2_strips *s, int32_t *offset) {
  const int64_t taps = sod2_imin(c->kh * c->kw, s->depth); /* there may be no channel */
  for (int64_t tap = 0; tap < taps; tap++) {
    const int64_t y = tap / c->kw * c->dh, x = tap % c->kw * c->dw;
    const int64_t fx = phases_below(x % s->sw, c->kw, c->dw, s->sw);
    const int64_t size = phase_lines(c, s, y % s->sh, s->lines) * s->width + SOD2_VL;
    const int64_t phase = floats_below(c, s, y % s->sh) + fx * size;
    offset[tap] = (int32_t)(phase + y / s->sh * s->width + x / s->sw);
  }
  for (int64_t tap = taps; tap < s->depth; tap++) offset[tap] = offset[tap - taps] + (int32_t)s->channel;
}

/* ---- a run over windows ----------------------------------------------------------------------------------------- */

static void fill_channel(const sod2_window *w, const float *x, float *strip) {
  const sod2_conv *c = w->c;
  const sod2_strips *s = w->strips;
  const int64_t width = s->width, shift = w->x0 * c->sw - c->pl;
  const int all_columns = s->column_phases == s->sw;
  for (int64_t fy = 0; fy < s->sh; fy++) {
    if (!is_read(fy, c->kh, c->dh, s->sh)) continue;
    const int64_t iy = w->y0 * c->sh + fy - c->pt, lines = phase_lines(c, s, fy, w->lines);
    const int64_t size = phase_lines(c, s, fy, s->lines) * width + SOD2_VL;
    if (s->sw == 2 && all_columns) {
      sod2_strip_pair(c, x, iy, s->sh, lines, shift, width, strip, strip + size);
      strip += 2 * size;
      continue;
    }
    for (int64_t fx = 0; fx < s->sw; fx++) {
      if (!all_columns && !is_read(fx, c->kw, c->dw, s->sw)) continue;
      sod2_strip_phase(c, x, iy, s->sh, lines, shift + fx, s->sw, width, strip);
      strip += size;
    }
  }
}

/* The same of an image that is computed: of stride 1, one phase. */
static void compute_channel(const sod2_window *w, int64_t channel, float *strip) {
  const sod2_conv *c = w->c;
  const int64_t lines = w->lines + (c->kh - 1) * c->dh, width = w->strips->width, ix = w->x0 - c->pl;
  const int64_t lo = sod2_imin(width, sod2_imax(0, -ix)), hi = sod2_imax(lo, sod2_imin(width, c->iw - ix));
  for (int64_t i = 0; i < lines; i++, strip += width) {
    const int64_t iy = w->y0 - c->pt + i;
    const int inside = iy >= 0 && iy < c->ih;
    sod2_strip_zero(strip, inside ? lo : width);
    if (!inside) continue;
    c->prologue(c->prologue_args, strip + lo, 0, w->image, channel, 1, iy * c->iw + ix + lo, hi - lo);
    sod2_strip_zero(strip + hi, width - hi);
  }
}

/* Of a single tap: the rest of a line, whole lines, the beginning of one. */
static void fill_flat(const sod2_window *w, const float *x, float *strip) {
  const sod2_conv *c = w->c;
  for (int64_t left = w->columns, at = w->x0; left > 0;) {
    const int64_t line = at / c->ow, column = at % c->ow, width = sod2_imin(c->ow - column, left);
    const int64_t lines = width == c->ow ? left / width : 1;
    sod2_strip_phase(c, x, line * c->sh - c->pt, c->sh, lines, column * c->sw - c->pl, c->sw, width, strip);
    strip += lines * width, at += lines * width, left -= lines * width;
  }
}

/* Piece `piece` of `pieces` of the channels. */
static void fill_piece(const sod2_window *w, int64_t piece, int64_t pieces) {
  const sod2_conv *c = w->c;
  const int64_t channels = c->ic / c->groups, end = channels * (piece + 1) / pieces;
  const int64_t plane = c->ih * c->iw, first = w->group * channels;
  void (*const fill)(const sod2_window *, const float *, float *) = sod2_strips_flat(c) ? fill_flat : fill_channel;
  for (int64_t ch = channels * piece / pieces; ch < end; ch++) {
    float *strip = w->strip + ch * w->strips->channel;
    if (c->prologue)
      compute_channel(w, first + ch, strip);
    else
      fill(w, c->x + (w->image * c->ic + first + ch) * plane, strip);
  }
}

/* First column of a window: a line is cut between panels. */
static int64_t window_start(const sod2_strips *s, int64_t window) {
  return sod2_imin(s->ow, panels_of(s->ow) * window / s->windows_x * SOD2_NR);
}

typedef struct strips_job {
  const sod2_conv *c;
  const sod2_strips *strips;
  const void *plan;
  float *scratch;
  const sod2_window_kernel *kernel;
  int64_t threads;        /* for each strips */
  int64_t window, pieces; /* at which all threads are; that its strips are filled in */
} strips_job;

/* Window `i` of all images and groups, whose strips are those of `owner`. */
static sod2_window window_at(const strips_job *job, int64_t i, int64_t owner) {
  const sod2_conv *c = job->c;
  const sod2_strips *s = job->strips;
  const int64_t windows = s->windows_y * s->windows_x, wy = i / s->windows_x % s->windows_y, wx = i % s->windows_x;
  float *strips = job->scratch + s->offsets;
  sod2_window w = {.c = c, .strips = s, .offset = (const int32_t *)job->scratch, .plan = job->plan, .shares = 1};
  w.threads = job->threads;
  if (s->together) w.share = owner, w.shares = s->owners;
  w.strip = strips + owner * s->floats, w.scratch = strips + s->owners * s->floats;
  w.image = i / windows / c->groups, w.group = i / windows % c->groups;
  w.y0 = s->oh * wy / s->windows_y, w.lines = s->oh * (wy + 1) / s->windows_y - w.y0;
  w.x0 = window_start(s, wx), w.columns = window_start(s, wx + 1) - w.x0;
  w.base = s->in_place ? c->x + (w.image * c->groups + w.group) * (c->ic / c->groups) * s->channel : w.strip;
  return w;
}

static void own_window(void *arg, int64_t window, int thread) {
  const strips_job *job = arg;
  const sod2_window w = window_at(job, window, thread);
  fill_piece(&w, 0, 1);
  const int64_t chunks = job->kernel->chunks(&w);
  for (int64_t chunk = 0; chunk < chunks; chunk++) job->kernel->compute(&w, chunk, thread);
}

static void fill_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const strips_job *job = arg;
  const sod2_window w = window_at(job, job->window, chunk / job->pieces);
  fill_piece(&w, chunk % job->pieces, job->pieces);
}

/* The shares of a window have their chunks one after the other. */
static void compute_chunk(void *arg, int64_t chunk, int thread) {
  const strips_job *job = arg;
  sod2_window w = window_at(job, job->window, 0);
  for (int64_t chunks; w.share + 1 < w.shares && chunk >= (chunks = job->kernel->chunks(&w)); chunk -= chunks)
    w = window_at(job, job->window, w.share + 1);
  job->kernel->compute(&w, chunk, thread);
}

static void compute_together(strips_job *job, sod2_pool *pool) {
  const sod2_strips *s = job->strips;
  int64_t chunks = 0;
  for (int64_t owner = 0; owner < s->owners; owner++) {
    const sod2_window w = window_at(job, job->window, owner);
    chunks += job->kernel->chunks(&w);
    if (s->in_place && job->kernel->prepare) job->kernel->prepare(&w);
  }
  if (!s->in_place) sod2_parallel(pool, s->owners * job->pieces, fill_chunk, job);
  sod2_parallel(pool, chunks, compute_chunk, job);
}

void sod2_strips_run(const sod2_conv *c, const sod2_strips *s, const void *plan, float *scratch, sod2_pool *pool,
                     const sod2_window_kernel *kernel) {
  const int64_t windows = c->n * c->groups * s->windows_y * s->windows_x;
  strips_job job = {.c = c, .strips = s, .plan = plan, .scratch = scratch, .kernel = kernel};
  job.threads = sod2_imax(1, sod2_pool_threads(pool) / s->owners);
  job.pieces = sod2_imin(c->ic / c->groups, 4 * job.threads);
  fill_offsets(c, s, (int32_t *)scratch);
  if (s->together)
    for (; job.window < windows; job.window++) compute_together(&job, pool);
  else
    sod2_parallel(pool, windows, own_window, &job);
}

int64_t sod2_window_blocks(const sod2_window *w, int64_t most) {
  if (w->columns > most) return w->lines * ((w->columns + most - 1) / most);
  const int64_t lines = w->columns == w->strips->ow ? most / w->columns : 1, blocks = (w->lines + lines - 1) / lines;
  for (int64_t equal = blocks; equal < 2 * blocks; equal++) /* few unequal blocks leave a thread waiting */
    if (w->lines % equal == 0) return equal;
  return blocks;
}

sod2_block sod2_window_block(const sod2_window *w, int64_t blocks, int64_t unit, int64_t index) {
  sod2_block b = {.lines = 1, .columns = w->columns};
  if (blocks > w->lines) {
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
