/* Convolution and transposed convolution, 2-D, float32, NCHW.

   Every version computes the same operator on differently packed weights (sod2/packing.py); which of them are
   kept is decided at compile time, which of those runs at run time by sod2_conv_choose. */
#ifndef SOD2_CONV_H
#define SOD2_CONV_H

#include "kernel.h"

enum {
  SOD2_CONV_PANEL,     /* implicit GEMM, lanes are pixels; any convolution */
  SOD2_CONV_PIXEL,     /* implicit GEMM, lanes are output channels; any convolution, meant for few pixels */
  SOD2_CONV_DOT,       /* lanes are taps; any convolution, meant for a single pixel */
  SOD2_CONV_WINO2,     /* Winograd F(2x2, 3x3): 3x3, stride 1, dilation 1, one group */
  SOD2_CONV_WINO3,     /* F(3x3, 4x4) over phases: 7x7, stride 2, dilation 1, one group */
  SOD2_CONV_WINO4,     /* F(4x4, 3x3) */
  SOD2_CONV_WINO6,     /* F(6x6, 3x3) */
  SOD2_CONV_DEPTHWISE, /* one input channel a group */
  SOD2_CONV_TAPS,      /* rows are taps: one output channel, stride 1, one group */
  SOD2_CONV_VERSIONS
};

/* Computes dst[i * ld + j] = x[image][channel + i][pixel + j] of an image x that is nowhere stored. Up to
   VL - 1 floats behind each line of dst are overwritten. */
typedef void (*sod2_prologue)(const void *args, float *dst, int64_t ld, int64_t image, int64_t channel,
                              int64_t channels, int64_t pixel, int64_t count);

typedef struct sod2_conv {
  int64_t n, ic, ih, iw, oc, oh, ow, groups, kh, kw;
  int64_t sh, sw, pt, pl, dh, dw;       /* strides, padding at top and left, dilations */
  const float *x;                       /* [n][ic][ih][iw] */
  sod2_prologue prologue;               /* computes x where it is read: stride 1, not 1x1, not depthwise, several oc; or NULL */
  const void *prologue_args;
  const float *w[SOD2_CONV_VERSIONS];   /* packed weights of each version, NULL where not kept */
  float *y;                             /* [n][oc][oh][ow]; written only where epilogue is NULL, with */
  const float *bias;                    /* [oc] or NULL added, */
  int rectified;                        /* and then a Relu */
  sod2_epilogue epilogue;               /* batch = image, row = output channel, col = oh * OW + ow */
  const void *epilogue_args;
  const float *touched[2];              /* [n][oc][oh][ow], what the epilogue reads or writes: fetched early; or NULL */
  int64_t scratch_limit;                /* bytes that scratch should not exceed where it can do with less; 0: as fast as can be */
} sod2_conv;

/* The version expected to be the fastest among those with weights. It depends on sizes alone, never on `threads`, so
   that the bits of a result do not either. -1 where no weights are given. */
int sod2_conv_choose(const sod2_conv *c, int threads);

/* Bytes of scratch that sod2_conv_run needs with a pool of `threads`. */
int64_t sod2_conv_scratch(const sod2_conv *c, int version, int threads);

/* Packs weights [oc][ic / groups][kh][kw] for SOD2_CONV_PANEL, into as many floats. */
void sod2_conv_pack_panel(const sod2_conv *c, const float *w, float *packed, sod2_pool *pool);

/* Any size may be 0. `scratch` is aligned to 64 bytes. */
void sod2_conv_run(const sod2_conv *c, int version, void *scratch, sod2_pool *pool);

/* Transposed convolution: oh, ow, pt, pl are those of ONNX's ConvTranspose, the only weights are w[0]. */
int64_t sod2_conv_transpose_scratch(const sod2_conv *c, int threads);
void sod2_conv_transpose_run(const sod2_conv *c, void *scratch, sod2_pool *pool);

/* ---- between the files of the convolution ----------------------------------------------------------------------- */

/* One version: its expected cycles on one core, its scratch in floats, its code. */
typedef struct sod2_conv_kernel {
  double (*cost)(const sod2_conv *c);
  int64_t (*scratch)(const sod2_conv *c, int threads);
  void (*run)(const sod2_conv *c, float *scratch, sod2_pool *pool);
} sod2_conv_kernel;

extern const sod2_conv_kernel sod2_conv_panel, sod2_conv_pixel, sod2_conv_dot, sod2_conv_wino2, sod2_conv_wino3,
    sod2_conv_wino4, sod2_conv_wino6, sod2_conv_depthwise, sod2_conv_taps;

/* Hands a tile of image n to the epilogue, or stores it. */
void sod2_conv_store(const sod2_conv *c, const float *tile, int64_t ld, int64_t n, int64_t row, int64_t rows,
                     int64_t col, int64_t cols);

/* Fetches the lines of a part of the output that an epilogue will soon touch. Rows of an output
   are short streams, which a hardware prefetcher finds too late. */
SOD2_INLINE void sod2_conv_fetch(const sod2_conv *c, int64_t n, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  for (int k = 0; k < 2 && c->touched[k]; k++) {
    const float *p = c->touched[k] + (n * c->oc + row) * c->oh * c->ow + col;
    for (int64_t i = 0; i < rows; i++, p += c->oh * c->ow)
      for (int64_t j = 0; j < cols; j += 16) __builtin_prefetch(p + j, 1, 2);
  }
}

/* The least result of a convolution without epilogue. */
SOD2_INLINE float sod2_conv_least(const sod2_conv *c) { return c->rectified ? 0.0f : -INFINITY; }

/* No output: nothing to do. */
SOD2_INLINE int sod2_conv_is_empty(const sod2_conv *c) { return c->n <= 0 || c->oc <= 0 || c->oh <= 0 || c->ow <= 0; }

/* Floats rounded up to a cache line, so that the parts of scratch stay aligned. */
SOD2_INLINE int64_t sod2_line(int64_t floats) { return (floats + 15) & ~(int64_t)15; }

#endif
