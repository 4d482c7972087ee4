/* ScatterElements and ScatterND: updates combined into a copy of the data. */
#ifndef SOD2_SCATTER_H
#define SOD2_SCATTER_H
#include "kernel.h"
#include "sod2.h"

typedef enum sod2_combination {
  SOD2_COMBINE_REPLACE,
  SOD2_COMBINE_ADD,
  SOD2_COMBINE_MUL,
  SOD2_COMBINE_MAX,
  SOD2_COMBINE_MIN
} sod2_combination;

/* `to` and `from` are `count` elements of a dtype: to[i] = to[i] combined with from[i]. */
void sod2_combine(void *to, const void *from, int64_t count, int32_t dtype, sod2_combination how);

/* out [dims] = data, and then for every position of `indices` [index_dims], of the same rank: the element whose index
   along `axis` is the one there (from the end when it is negative) is combined with the update at that position. Indices
   outside the axis are skipped. index_bytes: 4 or 8. In order: the last of several updates of one element wins. */
typedef struct sod2_scatter {
  const void *data, *updates, *indices;
  void *out;
  int32_t dtype;
  int item, index_bytes, rank, index_rank; /* bytes of an element and of an index */
  const int64_t *dims, *index_dims;
  sod2_combination how;
} sod2_scatter;
void sod2_scatter_elements(const sod2_scatter *s, int axis, sod2_pool *pool);

/* ScatterND: indices [index_dims, depth] are positions in the first `depth` dims of the data; the update of each is a slice
   over the other dims. */
void sod2_scatter_nd(const sod2_scatter *s, int64_t depth, sod2_pool *pool);
#endif
