/* Group normalisation of x [batch][channels][spatial]: statistics over channels / groups * spatial elements, scale and
   bias by channel (NULL: 1 and 0). groups == channels is instance normalisation. groups must divide channels. */
#ifndef SOD2_GROUP_NORM_H
#define SOD2_GROUP_NORM_H
#include "kernel.h"

typedef struct sod2_affine {
  float shift, factor, offset; /* (x - shift) * factor + offset */
} sod2_affine;

/* Computes `lines` lines of a result from those of x, which are `step` floats apart, for each another sod2_affine. */
typedef void (*sod2_norm_lines)(const float *x, int64_t step, const sod2_affine *affine, int64_t lines, int64_t count,
                              float *y, int64_t ld);

typedef struct sod2_norm {
  const float *x, *scale, *bias;
  int64_t batch, channels, groups, spatial;
  float epsilon;
  sod2_affine *affine;    /* of a result that is computed where it is read: [batch][channels], its statistics, */
  sod2_norm_lines lines;  /* and the code, with what else each element goes through */
} sod2_norm;

/* The whole result, to y or to the epilogue: batch = image, row = channel, col = linear pixel. */
void sod2_group_norm(const sod2_norm *norm, float *y, sod2_epilogue epilogue, const void *args, sod2_pool *pool);

/* The statistics; then any part of the result, as the prologue of a convolution. Up to VL - 1 floats behind each line of
   dst are overwritten. */
void sod2_norm_prepare(const sod2_norm *norm, sod2_pool *pool);
void sod2_norm_load(const void *norm, float *dst, int64_t ld, int64_t image, int64_t channel, int64_t channels,
                    int64_t pixel, int64_t count);
#endif
