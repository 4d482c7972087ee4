/* Interpolation of one or two neighbouring axes of x[outer, rows.n, columns.n, inner], each on its own (resize.c). */
#ifndef SOD2_RESIZE_H
#define SOD2_RESIZE_H
#include "kernel.h"

/* An axis of n elements that becomes one of m: element i is the sum over t of weight[t * m + i] times element
   index[t * m + i]. 0 taps: the axis stays, n == m. */
typedef struct sod2_resized {
  int64_t n, m;
  int taps;
  int32_t *index;
  float *weight;
} sod2_resized;

/* inner == 1 where columns have taps and rows none. */
typedef struct sod2_resize {
  int64_t outer, inner;
  sod2_resized rows, columns;
  const float *x;
  float *y;
  sod2_epilogue epilogue; /* NULL, or called by lines of the output: row = [outer, rows.m], col = [columns.m, inner] */
  const void *args;
} sod2_resize;

int64_t sod2_resize_scratch(const sod2_resize *r, int threads); /* bytes */
/* Points the tables of both axes into the scratch; the caller fills them. */
void sod2_resize_tables(sod2_resize *r, void *scratch);
void sod2_resize_run(const sod2_resize *r, void *scratch, sod2_pool *pool);
#endif
