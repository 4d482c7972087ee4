/* Loop nests of generated element kernels: rows of the innermost axis, cut into items, handed to the threads in chunks. */
#ifndef SOD2_NEST_H
#define SOD2_NEST_H
#include "kernel.h"

/* Iterations do not depend on each other: stores go to positions that only the same iteration reads (in-place results). */
#if defined(__clang__)
#define SOD2_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define SOD2_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Pointers p0, p1, ... and dims n0, n1, ... of a generated kernel. */
typedef struct sod2_operands {
  void *const *p;
  const int64_t *n;
} sod2_operands;

/* One launch: rows x inner elements. A row is cut into `blocks` blocks of `block` elements; an item is one block. */
typedef struct sod2_nest {
  void *const *p;
  const int64_t *n;
  int64_t inner, block, blocks, items, items_per_chunk;
} sod2_nest;

SOD2_INLINE int64_t sod2_nest_first(const sod2_nest *z, int64_t chunk) { return chunk * z->items_per_chunk; }
SOD2_INLINE int64_t sod2_nest_last(const sod2_nest *z, int64_t chunk) {
  return sod2_imin(z->items, (chunk + 1) * z->items_per_chunk);
}
SOD2_INLINE int64_t sod2_nest_row(const sod2_nest *z, int64_t item) { return item / z->blocks; }
SOD2_INLINE int64_t sod2_nest_begin(const sod2_nest *z, int64_t item) { return item % z->blocks * z->block; }
SOD2_INLINE int64_t sod2_nest_end(const sod2_nest *z, int64_t begin) { return sod2_imin(z->inner, begin + z->block); }

/* Runs a generated kernel over rows x inner elements; `cost` is roughly its scalar operations per element. */
void sod2_nest_run(void (*kernel)(void *arg, int64_t chunk, int thread), void *const *p, const int64_t *n, int64_t rows,
                   int64_t inner, int64_t cost, sod2_pool *pool);

/* memcpy by all threads. */
void sod2_copy(void *target, const void *source, int64_t bytes, sod2_pool *pool);
#endif
