/* Convolution with pixels in the lanes: rows of a tile are output channels, columns are NR pixels of a line.

   Panels run over the strip, across the ends of its lines: what lies between the lines, the margin under the kernel, is
   computed too and squeezed out. Where padding each line to whole panels wastes less, panels begin anew with each line.
   Of the last panel of a run half suffices where there are no more pixels.

   A piece of work is a block of panels and a share of the row blocks. Weights are [group][row block][k][rows of the
   block], the row blocks of nearly equal height. The tile of one row block over all pixels goes to the epilogue. The
   last panel of an image that is read in place is copied first: its vectors would read beyond the image.

   The first row block fetches pixels ahead. So do the others, but where weights do not stay in L2: these fetch the row
   block that follows. Where there is room for dense copies of several panels, a block has no more, and the first of
   several row blocks leaves them for the others, those of the thread's next piece of the block, too: rows of a panel lie
   a channel apart, each on another page and perhaps all in one set of a cache. Each of the others fetches its share of
   the next block's panels. */
#include "strips.h"
#include "tile.h"
#include "tuning.h"

enum {
  TILE_LD = SOD2_PANEL_PIXELS * SOD2_NR + SOD2_NR + SOD2_VL, /* a panel is written and squeezed behind its last pixel */
  HALF = SOD2_NR / 2,  /* of a panel: the last one of a run may have no more positions */
  LINE = 16,           /* floats */
  COPIES = (SOD2_PANEL_COPIES_KIB << 10) / 4, /* floats of dense copies of a thread, */
  LEAST = 1 << 13,     /* which L1 holds, taken even where they raise the peak, */
  MANY = 3,            /* for so many row blocks or more */
  LARGE = 1 << 17,     /* floats of weights that do not stay in L2, */
  ROOM = 1 << 14,      /* and of a row block that it has room for beside pixels and the one at work */
  CHUNKS = 16,         /* a thread, where they are long enough: threads wait for the last one of each window */
  MIN_CYCLES = 1 << 15 /* of a chunk: some 10 us */
};
static const double STORE_CYCLES = 5.5, SLOWER_PER_TAP = 1.0 / 16384; /* rows of a panel are a channel apart; */
static const double SPLIT = 1.03; /* where they begin within a cache line, and L1 holds no dense copies */

typedef struct panel_plan {
  int64_t rows, row_blocks; /* output channels of a group */
  int64_t first, count;     /* row blocks of the window's share, */
  int64_t pieces;           /* that these are cut into */
  int64_t pitch;            /* positions from one line to the next; panels take NR positions each */
  int64_t runs;             /* pieces of a window that are contiguous in the output */
  int64_t positions, panels; /* of a run */
  int64_t blocks;           /* that the panels of a run are cut into */
  int64_t copies;           /* panels of a block, where these have dense copies, or 0 */
  int direct;               /* panels without gaps store their results themselves */
} panel_plan;

/* Dense copies of the panels of a block. */
typedef struct panel_copies {
  _Alignas(64) int64_t pixel; /* the block's first, counted over images and groups: no other's; -1: none is copied yet */
  _Alignas(64) float panels[];
} panel_copies;
enum { HEAD = sizeof(panel_copies) / sizeof(float) }; /* what lies before the panels */

/* Positions from one line of `columns` pixels to the next: the strip's own, or whole panels. */
static int64_t pitch_of(int64_t columns, int64_t margin) {
  return sod2_imin(columns + margin, (columns + SOD2_NR - 1) / SOD2_NR * SOD2_NR);
}

/* Floats of the copy of the last panel and of the table of its offsets. */
static int64_t tail_floats(const sod2_strips *s) {
  return s->in_place && s->ow % SOD2_NR ? s->depth * SOD2_NR + s->offsets : 0;
}

static int32_t *tail_offsets(const sod2_window *w) {
  return (int32_t *)(w->scratch + w->strips->depth * SOD2_NR);
}

/* Floats of scratch before the dense copies. */
static int64_t plain_floats(const sod2_strips *s) { return s->offsets + s->owners * s->floats + tail_floats(s); }

/* Panels of which a thread has dense copies. */
static int64_t copied_panels(const sod2_conv *c, const sod2_strips *s, int threads) {
  if (sod2_blocks(c->oc / c->groups) < MANY) return 0;
  const int64_t allowed = c->scratch_limit > 0 ? (c->scratch_limit / 4 - plain_floats(s)) / threads - HEAD : COPIES;
  const int64_t floats = sod2_imin(COPIES, sod2_imax(LEAST, allowed));
  const int64_t panels = sod2_imin(SOD2_PANEL_PIXELS, floats / sod2_imax(1, s->depth * SOD2_NR));
  return panels > 1 ? panels : 0;
}

/* Floats of the dense copies of a thread. */
static int64_t copies_floats(const sod2_strips *s, int64_t panels) {
  return panels > 0 ? HEAD + panels * s->depth * SOD2_NR : 0;
}

/* Those of a thread, of which the first has them at `scratch`. */
static panel_copies *copies_of(const sod2_strips *s, int64_t panels, float *scratch, int64_t thread) {
  return (panel_copies *)(scratch + thread * copies_floats(s, panels));
}

static int64_t scratch(const sod2_conv *c, int threads) {
  if (sod2_conv_is_empty(c)) return 0;
  sod2_strips s;
  sod2_strips_plan(c, threads, 1, &s);
  return plain_floats(&s) + threads * copies_floats(&s, copied_panels(c, &s, threads));
}

/* Pixels before a position of lines of `columns` pixels. */
SOD2_INLINE int64_t pixels_before(int64_t position, int64_t pitch, int64_t columns) {
  return position / pitch * columns + sod2_imin(position % pitch, columns);
}

/* Closes the gaps between lines in a panel that begins with column x of one. */
static void squeeze(float *tile, int64_t height, int64_t x, int64_t pitch, int64_t columns) {
  int64_t at = sod2_imax(0, columns - x), gap = sod2_imin(pitch - x, pitch - columns);
  for (; at + gap < SOD2_NR; at += columns, gap = pitch - columns)
    for (int64_t i = 0; i < height; i++) {
      float *to = tile + i * TILE_LD + at;
      for (int64_t j = 0; j < SOD2_NR - at - gap; j += SOD2_VL) vf_store(to + j, vf_load(to + j + gap));
    }
}

/* A row block over panels of a run. */
typedef struct panel_block {
  int64_t line;             /* the first of the run */
  int64_t first, last;      /* panels */
  int64_t row, height;      /* output channels */
  const float *weights;
  sod2_tile_panel kernel;
  float *copies;            /* dense panels, NULL where there are none; */
  int copied;               /* 0: they are still to be made */
  int64_t share, rows;      /* where they are made: rows of the panels of the next block, to be fetched */
} panel_block;

/* tile[row][pixel]. What a panel has behind its last pixel is overwritten by the next panel. Returns how many pixels
   went to the output instead. */
static int64_t multiply(const sod2_window *w, const panel_plan *p, const panel_block *b, float *tile) {
  const sod2_conv *conv = w->c;
  const sod2_strips *s = w->strips;
  const int64_t begin = pixels_before(b->first * SOD2_NR, p->pitch, w->columns), plane = conv->oh * conv->ow;
  sod2_tile_end end = {.ld = plane, .bias = conv->bias ? conv->bias + b->row : NULL, .least = sod2_conv_least(conv)};
  float *copy = b->copies;
  int64_t stored = 0, line = b->first * SOD2_NR / p->pitch, x = b->first * SOD2_NR % p->pitch;
  for (int64_t panel = b->first; panel < b->last; panel++) {
    const int64_t pixel = line * w->columns + sod2_imin(x, w->columns), left = p->positions - panel * SOD2_NR;
    const int64_t place = (w->y0 + b->line) * s->ow + w->x0 + pixel, width = left <= HALF ? HALF : SOD2_NR;
    const float *base = w->base + (b->line + line) * s->width + x;
    const int32_t *offset = w->offset;
    const int direct = p->direct && left >= width;
    if (direct)
      end.y = conv->y + (w->image * conv->oc + b->row) * plane + place, stored += width;
    else
      sod2_conv_fetch(conv, w->image, b->row, b->height, place, SOD2_NR);
    if (s->in_place && x + SOD2_NR > s->ow) base = w->scratch, offset = tail_offsets(w);
    sod2_tile_panel kernel = width == HALF ? sod2_tile_half_b[b->height] : b->kernel;
    if (copy && width != HALF) {
      kernel = (b->copied ? sod2_tile_dense_b : sod2_tile_copy_b)[b->height];
      if (b->copied) base += (b->last - b->first) * SOD2_NR, offset += b->share;
    }
    kernel(s->depth, b->weights, base, offset, tile + pixel - begin, TILE_LD, direct ? &end : NULL, copy, b->rows);
    if (copy) copy += s->depth * SOD2_NR;
    if (x + SOD2_NR > p->pitch) squeeze(tile + pixel - begin, b->height, x, p->pitch, w->columns);
    for (x += SOD2_NR; x >= p->pitch; x -= p->pitch) line++; /* a division for each panel is 1 % of the shortest */
  }
  return stored;
}

/* A piece of the row blocks over the panels of `b`. */
static void compute_piece(const sod2_window *w, const panel_plan *p, panel_block b, int64_t piece) {
  const int64_t depth = w->strips->depth, copied = b.copied;
  const int64_t first = p->first + p->count * piece / p->pieces, last = p->first + p->count * (piece + 1) / p->pieces;
  const int64_t pixel = pixels_before(b.first * SOD2_NR, p->pitch, w->columns);
  const int64_t end = sod2_imin(w->lines * w->columns / p->runs, pixels_before(b.last * SOD2_NR, p->pitch, w->columns));
  const float *weights = w->c->w[SOD2_CONV_PANEL] + w->group * p->rows * depth;
  const int streamed = p->rows * depth > LARGE && SOD2_MR * depth < ROOM;
  float tile[SOD2_MR * TILE_LD];
  for (int64_t i = first; i < last; i++) {
    const int64_t row = sod2_block_start(i, p->rows, p->row_blocks);
    b.row = w->group * p->rows + row, b.height = sod2_block_start(i + 1, p->rows, p->row_blocks) - row;
    b.weights = weights + row * depth;
    b.kernel = (streamed && i > first ? sod2_tile_stream_a : sod2_tile_gather_b)[b.height];
    b.copied = copied || i > first;
    if (b.copied) { /* these share what is to be fetched */
      const int64_t sharing = last - first - !copied, at = i - first - !copied;
      b.share = depth * at / sharing;
      b.rows = depth * (at + 1) / sharing - b.share;
    }
    const int64_t stored = multiply(w, p, &b, tile), next = pixel + stored;
    if (next < end)
      sod2_conv_store(w->c, tile + stored, TILE_LD, w->image, b.row, b.height,
                      (w->y0 + b.line) * w->strips->ow + w->x0 + next, end - next);
  }
}

/* Whole lines are one run: they follow each other in the output. */
static panel_plan plan_of(const sod2_window *w) {
  const int64_t copies = *(const int64_t *)w->plan;
  panel_plan p = {.rows = w->c->oc / w->c->groups, .row_blocks = sod2_blocks(w->c->oc / w->c->groups)};
  p.first = sod2_window_share(w, w->share, p.row_blocks);
  p.count = sod2_window_share(w, w->share + 1, p.row_blocks) - p.first;
  p.runs = w->columns == w->strips->ow ? 1 : w->lines;
  p.pitch = pitch_of(w->columns, p.runs == w->lines ? SOD2_NR : w->strips->width - w->columns);
  p.positions = (w->lines / p.runs - 1) * p.pitch + w->columns;
  p.panels = (p.positions + SOD2_NR - 1) / SOD2_NR;
  const double cycles = (double)(p.runs * p.panels * w->strips->depth) * sod2_block_cycles(p.rows) / (double)w->shares;
  const int64_t wanted = sod2_imin(CHUNKS * w->threads, (int64_t)(cycles / MIN_CYCLES));
  p.copies = p.count >= MANY ? copies : 0;
  const int64_t most = p.copies ? p.copies : SOD2_PANEL_PIXELS;
  p.blocks = (p.panels + most - 1) / most;
  if (p.count == 1) /* the panels alone are what can be shared */
    p.blocks = sod2_imax(p.blocks, sod2_imin(p.panels, wanted / p.runs));
  const int64_t blocks = p.runs * p.blocks;
  p.pieces = p.copies ? sod2_imin(p.count / SOD2_PANEL_ROWS, wanted / blocks)
                      : sod2_imin(p.count, (wanted + blocks - 1) / blocks);
  p.pieces = sod2_imax(1, p.pieces); /* a thread that takes several of a block in turn makes the copies once */
  if (p.copies || p.pieces == 1) /* as many for each thread */
    p.blocks = sod2_imin(p.panels, (p.blocks + w->threads - 1) / w->threads * w->threads);
  p.direct = !w->c->epilogue && p.positions == w->lines / p.runs * w->columns;
  return p;
}

static int64_t chunks(const sod2_window *w) {
  const panel_plan p = plan_of(w);
  return p.runs * p.blocks * p.pieces;
}

static void compute(const sod2_window *w, int64_t chunk, int thread) {
  const panel_plan p = plan_of(w);
  const int64_t piece = chunk % p.pieces, block = chunk / p.pieces % p.blocks;
  panel_block b = {.line = chunk / p.pieces / p.blocks};
  b.first = p.panels * block / p.blocks, b.last = p.panels * (block + 1) / p.blocks;
  if (p.copies) {
    panel_copies *own = copies_of(w->strips, p.copies, w->scratch + tail_floats(w->strips), thread);
    const int64_t line = (w->image * w->c->groups + w->group) * w->strips->oh + w->y0 + b.line;
    const int64_t pixel = line * w->strips->ow + w->x0 + pixels_before(b.first * SOD2_NR, p.pitch, w->columns);
    b.copies = own->panels, b.copied = own->pixel == pixel;
    own->pixel = pixel;
  }
  compute_piece(w, &p, b, piece);
}

static void copy_tail(const sod2_window *w) {
  const sod2_strips *s = w->strips;
  if (!tail_floats(s)) return;
  const int64_t count = s->ow % SOD2_NR, first = s->ow - count;
  int32_t *offset = tail_offsets(w);
  for (int64_t k = 0; k < s->depth; k++) {
    float *row = w->scratch + k * SOD2_NR;
    for (int64_t i = 0; i < SOD2_NR; i += SOD2_VL) {
      const int64_t some = sod2_imax(0, sod2_imin(SOD2_VL, count - i));
      vf_store(row + i, vf_load_partial(w->base + k * s->channel + first + i, some, 0.0f));
    }
    offset[k] = (int32_t)(k * SOD2_NR);
  }
}

static void run(const sod2_conv *c, float *scratch, sod2_pool *pool) {
  if (sod2_conv_is_empty(c)) return;
  sod2_strips s;
  sod2_strips_plan(c, sod2_pool_threads(pool), 1, &s);
  const int64_t copies = copied_panels(c, &s, sod2_pool_threads(pool));
  for (int thread = 0; copies > 0 && thread < sod2_pool_threads(pool); thread++)
    copies_of(&s, copies, scratch + plain_floats(&s), thread)->pixel = -1;
  sod2_strips_run(c, &s, &copies, scratch, pool, &(sod2_window_kernel){copy_tail, chunks, compute});
}

/* The tile steps, then what the epilogue costs a vector of results: measured. */
static double cost(const sod2_conv *c) {
  const int64_t pixels = sod2_strips_pixels(c), lines = sod2_strips_lines(c) / c->n; /* of one image */
  const int64_t positions = (lines - 1) * pitch_of(pixels, (c->kw - 1) * c->dw / c->sw) + pixels;
  const double panels = (double)(c->n * c->groups * ((positions + HALF - 1) / HALF)) / 2;
  const double depth = (double)sod2_strips_depth(c);
  const double tiles = panels * depth * sod2_block_cycles(c->oc / c->groups);
  const double store = STORE_CYCLES * (double)(c->n * lines * pixels * c->oc) / SOD2_VL;
  const int split = sod2_strips_in_place(c) && pixels % LINE != 0 && depth * SOD2_NR * 2 > LEAST;
  return tiles * (1 + SLOWER_PER_TAP * depth) * (split ? SPLIT : 1) + store + sod2_strips_cost(c);
}

const sod2_conv_kernel sod2_conv_panel = {cost, scratch, run};
