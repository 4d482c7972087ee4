/* Ordering elements: a stable sort, TopK and Unique. sod2.h names the dtypes; 16-bit floats are not taken. NaN counts as
   the largest number and equals itself. */
#ifndef SOD2_ORDERING_H
#define SOD2_ORDERING_H
#include "kernel.h"
#include "sod2.h"

/* Sorts n items stably: whatever precedes something comes before it. The sorted items are in the returned one of the two
   arrays of n. */
int64_t *sod2_sort(int64_t n, int64_t *items, int64_t *spare, int (*precedes)(const void *context, int64_t, int64_t),
                   const void *context);

/* values, indices [outer, k, inner] = the k largest (or smallest) elements of x [outer, n, inner] along the middle axis,
   the best first; of equal ones the one of lower index. 0 <= k <= n. */
void sod2_top_k(const void *x, void *values, int64_t *indices, int32_t dtype, int smallest, int64_t outer, int64_t n,
                int64_t k, int64_t inner, sod2_pool *pool);

/* The slices x[:, i, :] of x [outer, n, inner], each distinct one once: in increasing order of their elements, or
   (sorted 0) in the order of their first appearance. */
typedef struct sod2_unique {
  const void *x;
  int32_t dtype;
  int sorted;
  int64_t outer, n, inner;
} sod2_unique;

/* int64_t numbers of scratch that both functions need. */
SOD2_INLINE int64_t sod2_unique_scratch(const sod2_unique *g) { return 3 * g->n; }
/* How many distinct slices there are. */
int64_t sod2_unique_count(const sod2_unique *g, int64_t *scratch);
/* y [outer, count, inner] the slices, first [count] the position of the first of each, inverse [n] the number of the
   slice that position i holds, counts [count] how often each occurs; NULL for a result that nobody reads. */
void sod2_unique_run(const sod2_unique *g, int64_t count, int64_t *scratch, void *y, int64_t *first, int64_t *inverse,
                     int64_t *counts);

#endif
