/* What the kernels of rows.c share with that of group normalisation. */
#ifndef SOD2_ROWS_H
#define SOD2_ROWS_H
#include "kernel.h"

typedef struct sod2_moments {
  float mean, inv_std; /* 1 / sqrt(variance + epsilon) */
} sod2_moments;

sod2_moments sod2_row_moments(const float *x, int64_t n, float epsilon);

/* y = (x - shift) * factor + offset. */
SOD2_INLINE void sod2_affine_row(const float *x, float *y, int64_t n, float shift, float factor, float offset) {
  int64_t i = 0;
  for (; i + SOD2_VL <= n; i += SOD2_VL) vf_store(y + i, (vf_load(x + i) - shift) * factor + offset);
  if (i < n) vf_store_partial(y + i, (vf_load_partial(x + i, n - i, 0.0f) - shift) * factor + offset, n - i);
}
#endif
