/* Choice among the versions of a convolution, and the few lines they share. */
#include "conv.h"
#include "nest.h"
#include "tile.h"

static const sod2_conv_kernel *const KERNELS[SOD2_CONV_VERSIONS] = {
    [SOD2_CONV_PANEL] = &sod2_conv_panel, [SOD2_CONV_PIXEL] = &sod2_conv_pixel, [SOD2_CONV_DOT] = &sod2_conv_dot,
    [SOD2_CONV_WINO2] = &sod2_conv_wino2, [SOD2_CONV_WINO3] = &sod2_conv_wino3, [SOD2_CONV_WINO4] = &sod2_conv_wino4,
    [SOD2_CONV_WINO6] = &sod2_conv_wino6, [SOD2_CONV_DEPTHWISE] = &sod2_conv_depthwise, [SOD2_CONV_TAPS] = &sod2_conv_taps};

/* Whether there is nothing to compute: also at a shape whose sizes make no sense, because this branch is not taken. */
static int is_empty(const sod2_conv *c) {
  return c->n <= 0 || c->oh <= 0 || c->ow <= 0;
}

/* The first version from `v` on of which there are weights. */
static int next_kept(const sod2_conv *c, int v) {
  while (v < SOD2_CONV_VERSIONS && !c->w[v]) v++;
  return v;
}

int sod2_conv_choose(const sod2_conv *c, int threads) {
  (void)threads;
  int best = next_kept(c, 0), other = next_kept(c, best + 1);
  if (best == SOD2_CONV_VERSIONS) return -1;
  if (other >= SOD2_CONV_VERSIONS || is_empty(c)) return best; /* plans are made for every new shape */
  double best_cost = KERNELS[best]->cost(c);
  for (; other < SOD2_CONV_VERSIONS; other = next_kept(c, other + 1)) {
    const double cost = KERNELS[other]->cost(c);
    if (cost < best_cost) best = other, best_cost = cost;
  }
  return best;
}

int64_t sod2_conv_scratch(const sod2_conv *c, int version, int threads) {
  return is_empty(c) ? 0 : KERNELS[version]->scratch(c, threads) * (int64_t)sizeof(float);
}

void sod2_conv_run(const sod2_conv *c, int version, void *scratch, sod2_pool *pool) {
  if (!is_empty(c)) KERNELS[version]->run(c, scratch, pool);
}

/* Rows of a tile as an epilogue would end them. */
SOD2_INLINE void end_rows(const sod2_conv *c, const float *tile, int64_t ld, int64_t row, int64_t rows, float *y,
                          int64_t cols) {
  const int64_t pixels = c->oh * c->ow;
  const float least = sod2_conv_least(c), *bias = c->bias;
  for (int64_t i = 0; i < rows; i++, y += pixels, tile += ld) {
    const float addend = bias ? bias[row + i] : 0.0f;
    SOD2_INDEPENDENT
    for (int64_t j = 0; j < cols; j++) y[j] = sod2_pick_max(least, tile[j] + addend);
  }
}

void sod2_conv_store(const sod2_conv *c, const float *tile, int64_t ld, int64_t n, int64_t row, int64_t rows,
                     int64_t col, int64_t cols) {
  if (c->epilogue) {
    c->epilogue(c->epilogue_args, tile, ld, n, row, rows, col, cols);
    return;
  }
  float *y = c->y + (n * c->oc + row) * c->oh * c->ow + col;
  if (cols == SOD2_NR) /* the compiler knows the trip count */
    end_rows(c, tile, ld, row, rows, y, SOD2_NR);
  else
    end_rows(c, tile, ld, row, rows, y, cols);
}
