/* Convolution of stride 1 with one output channel, such as the mask of a spatial gate.

   A register tile of one row is mostly padding. So taps are the rows: a 1x1 convolution of the image, read in place,
   gives the products [tap][pixel] of all of its pixels; those that belong to one output are then added up. */
#include "conv.h"

enum { COLUMNS = 256 /* of a piece of a line */, MOST_FLOATS = (64 << 10) / 4 /* of products, where others may do */ };
static const double ADD_CYCLES = 4; /* a vector of outputs and a tap */

/* The convolution that gives the products of one image. */
static sod2_conv products_of(const sod2_conv *c) {
  return (sod2_conv){.n = 1, .ic = c->ic, .ih = c->ih, .iw = c->iw, .oc = c->kh * c->kw, .oh = c->ih, .ow = c->iw,
                     .groups = 1, .kh = 1, .kw = 1, .sh = 1, .sw = 1, .dh = 1, .dw = 1, .x = c->x,
                     .w = {[SOD2_CONV_PANEL] = c->w[SOD2_CONV_TAPS]}, .scratch_limit = c->scratch_limit};
}

static int64_t product_floats(const sod2_conv *p) { return sod2_line(p->oc * p->ih * p->iw); }

static int64_t scratch(const sod2_conv *c, int threads) {
  const sod2_conv p = products_of(c);
  return sod2_conv_is_empty(c) ? 0 : product_floats(&p) + sod2_conv_panel.scratch(&p, threads);
}

/* line[i] = the output at (y, x + i), 0 <= i < count. */
static void add_up(const sod2_conv *c, const float *products, int64_t y, int64_t x, int64_t count, float *line) {
  memset(line, 0, (size_t)count * sizeof *line);
  for (int64_t ky = 0; ky < c->kh; ky++) {
    const int64_t iy = y - c->pt + ky * c->dh;
    if (iy < 0 || iy >= c->ih) continue;
    for (int64_t kx = 0; kx < c->kw; kx++) {
      const int64_t ix = x - c->pl + kx * c->dw, begin = sod2_imax(0, -ix), end = sod2_imin(count, c->iw - ix);
      const float *row = products + ((ky * c->kw + kx) * c->ih + iy) * c->iw + ix;
      for (int64_t i = begin; i < end; i++) line[i] += row[i];
    }
  }
}

static void run(const sod2_conv *c, float *scratch, sod2_pool *pool) {
  sod2_conv p = products_of(c);
  float line[COLUMNS];
  p.y = scratch;
  for (int64_t n = 0; n < c->n; n++, p.x += c->ic * c->ih * c->iw) {
    sod2_conv_panel.run(&p, scratch + product_floats(&p), pool);
    for (int64_t y = 0; y < c->oh; y++)
      for (int64_t x = 0; x < c->ow; x += COLUMNS) {
        const int64_t count = sod2_imin(COLUMNS, c->ow - x);
        add_up(c, scratch, y, x, count, line);
        sod2_conv_store(c, line, COLUMNS, n, 0, 1, y * c->ow + x, count);
      }
  }
}

static double cost(const sod2_conv *c) {
  const sod2_conv p = products_of(c);
  if (p.oc * p.ih * p.iw > MOST_FLOATS) return INFINITY;
  const double vectors = (double)(c->oh * ((c->ow + SOD2_VL - 1) / SOD2_VL));
  return (double)c->n * (sod2_conv_panel.cost(&p) + ADD_CYCLES * vectors * (double)p.oc);
}

const sod2_conv_kernel sod2_conv_taps = {cost, scratch, run};
