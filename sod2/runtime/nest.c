#include "nest.h"

#define BLOCK 8192      /* elements of a row that one item covers: its operands stay in L1 and L2 */
#define CHUNK_WORK 16384 /* scalar operations below which handing a chunk to another thread costs more than it saves */

void sod2_nest_run(void (*kernel)(void *arg, int64_t chunk, int thread), void *const *p, const int64_t *n, int64_t rows,
                   int64_t inner, int64_t cost, sod2_pool *pool) {
  if (rows <= 0 || inner <= 0) return;
  sod2_nest nest = {.p = p, .n = n, .inner = inner};
  nest.block = sod2_imin(inner, BLOCK);
  nest.blocks = (inner + nest.block - 1) / nest.block;
  nest.items = rows * nest.blocks;
  int64_t wanted = CHUNK_WORK / (nest.block * sod2_imax(cost, 1)) + 1;
  int64_t even = nest.items / (4 * sod2_pool_threads(pool)); /* four chunks a thread and more, so that all end together */
  nest.items_per_chunk = sod2_imax(wanted, even);
  sod2_parallel(pool, (nest.items + nest.items_per_chunk - 1) / nest.items_per_chunk, kernel, &nest);
}

typedef struct copy {
  char *target;
  const char *source;
  int64_t bytes;
} copy;

#define COPY_CHUNK ((int64_t)1 << 18)

static void copy_chunk(void *arg, int64_t chunk, int thread) {
  const copy *c = arg;
  int64_t begin = chunk * COPY_CHUNK;
  (void)thread;
  memcpy(c->target + begin, c->source + begin, (size_t)sod2_imin(COPY_CHUNK, c->bytes - begin));
}

void sod2_copy(void *target, const void *source, int64_t bytes, sod2_pool *pool) {
  copy c = {target, source, bytes};
  if (bytes > 0) sod2_parallel(pool, (bytes + COPY_CHUNK - 1) / COPY_CHUNK, copy_chunk, &c);
}
