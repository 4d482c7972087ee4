/* Products of a few rows of a matrix with one vector, lanes along the rows. */
#ifndef SOD2_DOT_H
#define SOD2_DOT_H

#include "kernel.h"

/* z[i] += row i of m . x, 0 <= i < 4; rows are `ld` floats apart and n long. */
SOD2_INLINE void sod2_add_dots(float z[4], const float *m, int64_t ld, const float *x, int64_t n) {
  vf s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
  int64_t i = 0;
  for (; i + SOD2_VL <= n; i += SOD2_VL) {
    const vf v = vf_load(x + i);
    s0 += vf_load(m + i) * v;
    s1 += vf_load(m + ld + i) * v;
    s2 += vf_load(m + 2 * ld + i) * v;
    s3 += vf_load(m + 3 * ld + i) * v;
  }
  if (i < n) {
    const vf v = vf_load_partial(x + i, n - i, 0.0f);
    s0 += vf_load_partial(m + i, n - i, 0.0f) * v;
    s1 += vf_load_partial(m + ld + i, n - i, 0.0f) * v;
    s2 += vf_load_partial(m + 2 * ld + i, n - i, 0.0f) * v;
    s3 += vf_load_partial(m + 3 * ld + i, n - i, 0.0f) * v;
  }
  z[0] += vf_sum_lanes(s0);
  z[1] += vf_sum_lanes(s1);
  z[2] += vf_sum_lanes(s2);
  z[3] += vf_sum_lanes(s3);
}

#endif
