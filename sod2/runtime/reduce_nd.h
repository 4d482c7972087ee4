/* Reductions and scans of dense tensors of any dtype but uint64 and 16-bit floats (sod2.h names the dtypes), for the
   cases that the float32 row kernels of kernels.h do not take. Floats are computed in double, integers in int64_t
   (wrapping). Every size may be 0. Bits do not depend on the number of threads. */
#ifndef SOD2_REDUCE_ND_H
#define SOD2_REDUCE_ND_H

#include "kernels.h"
#include "sod2.h"

/* y = x reduced over the axes whose bit in `reduced` is set; the kept axes stay in order. 0 <= rank <= SOD2_MAX_RANK.
   An empty set gives 0, 1 (PROD), NaN (MEAN; 0 for integers), the lowest (MAX) or highest (MIN) value of the dtype,
   -infinity (LOG_SUM, LOG_SUM_EXP). Integer means, roots and logarithms are truncated towards 0. */
void sod2_reduce_nd(const void *x, void *y, int32_t dtype, sod2_reduction op, int rank, const int64_t *dims,
                    uint32_t reduced, sod2_pool *pool);

/* y[outer, inner] = index along the middle axis of x[outer, n, inner] of its largest (or smallest) element: the first
   such, or the last. NaN counts as the extremum. */
void sod2_arg_extremum(const void *x, int64_t *y, int32_t dtype, int smallest, int last, int64_t outer, int64_t n,
                       int64_t inner, sod2_pool *pool);

/* y[.., i, ..] = sum (or product) of x[.., j, ..] over j <= i along `axis` of a tensor of these dims, which may count from
   the end; exclusive: j < i; reverse: from the end. */
typedef struct sod2_running_options {
    int product, exclusive, reverse;
} sod2_running_options;
void sod2_running(const void *x, void *y, int32_t dtype, const sod2_running_options *o, int rank, const int64_t *dims,
                  int64_t axis, sod2_pool *pool);

#endif
