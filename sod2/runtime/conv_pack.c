/* Packing of weights that are computed while the model runs, for the one version that takes any convolution. Twin of
   conv_panel of sod2/packing.py. */
#include "conv.h"
#include "tile.h"

typedef struct pack {
  const float *w;
  float *packed;
  int64_t rows, depth, blocks; /* of a group */
} pack;

/* One row block: [k][rows of the block]. */
static void pack_chunk(void *argument, int64_t chunk, int thread) {
  (void)thread;
  const pack *p = argument;
  const int64_t block = chunk % p->blocks, row = sod2_block_start(block, p->rows, p->blocks);
  const int64_t height = sod2_block_start(block + 1, p->rows, p->blocks) - row;
  const int64_t begin = (chunk / p->blocks * p->rows + row) * p->depth;
  for (int64_t k = 0; k < p->depth; k++)
    for (int64_t i = 0; i < height; i++) p->packed[begin + k * height + i] = p->w[begin + i * p->depth + k];
}

void sod2_conv_pack_panel(const sod2_conv *c, const float *w, float *packed, sod2_pool *pool) {
  pack p = {.w = w, .packed = packed, .rows = c->oc / c->groups, .depth = c->ic / c->groups * c->kh * c->kw};
  p.blocks = sod2_blocks(p.rows);
  sod2_parallel(pool, c->groups * p.blocks, pack_chunk, &p);
}
