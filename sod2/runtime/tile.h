/* Register tiles: the one inner loop under GEMM, convolution and Winograd.

   A tile kernel computes C[rows][SOD2_NR] (+)= A[rows][k] * B[k][SOD2_NR] with all of C in registers. Rows are
   broadcast scalars, columns are vectors. Which side is the weights is up to the caller: lanes may be pixels
   (conv_panel.c), output channels (conv_pixel.c, winograd.c) or columns of a matrix (gemm.c).

   Geometry: rows * columns/VL accumulators + the vectors of B + one broadcast must fit the vector registers: 32 of
   AVX-512 and NEON, 16 of AVX2. The sum over k runs upwards in every kernel and for every row count, one fused
   multiply-add a step, in chains of the same lengths, so a result does not depend on how a matrix is cut into tiles. */
#ifndef SOD2_TILE_H
#define SOD2_TILE_H

#include "kernel.h"

#if SOD2_VL == 16
#define SOD2_MR 14
#define SOD2_NR 32
#else
#define SOD2_MR 6
#define SOD2_NR 16
#endif
#define SOD2_NV (SOD2_NR / SOD2_VL)

/* Percent that tiles take longer whose rows of A lie on pages of their own, and are not copied; and Winograd's for each
   MiB beyond one that the transformed image of a row block takes: L2 has room for one beside weights. Measured. */
#ifdef SOD2_FAR_CORES
#define SOD2_APART 30
#define SOD2_CROWDED 60
#else
#define SOD2_APART 0
#define SOD2_CROWDED 0
#endif

/* c[i * ldc + j], 0 <= j < SOD2_NR; b[k * ldb + j]. The result is added to c where `accumulate` is not 0. A kernel
   through which B streams fetches it early: each step of k NR floats at `next`, which then moves on by `stride`. */
typedef void (*sod2_tile)(int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc,
                          int accumulate);
typedef void (*sod2_tile_stream)(int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                                 int64_t ldc, int accumulate, const float *next, int64_t stride);

/* Indexed by rows, 1 <= rows <= SOD2_MR. */
extern const sod2_tile sod2_tile_packed[SOD2_MR + 1];      /* A(i, k) = a[k * lda + i] */
extern const sod2_tile_stream sod2_tile_rows[SOD2_MR + 1]; /* A(i, k) = a[i * lda + k] */

/* As above, but A(i, k) = a[offset[k] + i * step], and B is dense and streams. Indexed by step - 1, too. */
enum { SOD2_TILE_STEPS = 2 };
typedef void (*sod2_tile_gather_stream)(int64_t k, const float *a, const float *b, const int32_t *offset, float *c,
                                        int64_t ldc, int accumulate, const float *next, int64_t stride);
extern const sod2_tile_gather_stream sod2_tile_gather_a[SOD2_TILE_STEPS][SOD2_MR + 1];

/* Where the rows of a finished tile may go instead of to C: y[i * ld + j] = max(C(i, j) + bias[i], least). To add and
   store in passing costs nothing, to read C again as much as 6 % of a sum of 64 products. */
typedef struct sod2_tile_end {
  float *y;
  int64_t ld;
  const float *bias; /* or NULL */
  float least;
} sod2_tile_end;

/* Panels of B, A(i, k) = a[k * rows + i]. C has room for partial sums where there is an `end`, which may be NULL. */
typedef void (*sod2_tile_panel)(int64_t k, const float *a, const float *b, const int32_t *offset, float *c, int64_t ldc,
                                const sod2_tile_end *end, float *copy, int64_t rows);
extern const sod2_tile_panel sod2_tile_gather_b[SOD2_MR + 1]; /* B(k, j) = b[offset[k] + j]; fetches panel after next */
extern const sod2_tile_panel sod2_tile_half_b[SOD2_MR + 1];   /* columns 0 to NR / 2 of it */
extern const sod2_tile_panel sod2_tile_stream_a[SOD2_MR + 1]; /* fetches the rows of A that follow instead */
extern const sod2_tile_panel sod2_tile_copy_b[SOD2_MR + 1];   /* leaves a dense panel at `copy` */
extern const sod2_tile_panel sod2_tile_dense_b[SOD2_MR + 1];  /* reads one there: B(k, j) = copy[k * NR + j], and
                                                                 fetches `rows` of b instead, evenly */

/* Winograd: A(i, k) = a[(k / VL) * lda + i * VL + k % VL], B dense; vector j of row i of C is at
   c[j * ldc + i * VL]. Lines of the panel of B that follows behind it are prefetched. */
typedef void (*sod2_tile_lanes)(int64_t k, const float *a, int64_t lda, const float *b, float *c, int64_t ldc);
extern const sod2_tile_lanes sod2_tile_channels[SOD2_MR + 1];
extern const sod2_tile_lanes sod2_tile_half_channels[SOD2_MR + 1]; /* columns 0 to NR / 2 of B and C */

/* `size` rows are cut into `sod2_blocks(size)` blocks of nearly equal height: 5 and 6 rather than 6, 6, .. and 1. */
SOD2_INLINE int64_t sod2_blocks(int64_t size) { return (size + SOD2_MR - 1) / SOD2_MR; }
SOD2_INLINE int64_t sod2_block_start(int64_t block, int64_t size, int64_t blocks) { return size * block / blocks; }

/* Cycles that a step of k costs for `size` rows in such blocks: two multiply-adds a cycle, but no less than their
   latency of 4 a block. */
SOD2_INLINE double sod2_block_cycles(int64_t size) {
  const double blocks = (double)sod2_blocks(size), cycles = (double)size * SOD2_NV / 2;
  return cycles > 4 * blocks ? cycles : 4 * blocks;
}

/* Transposes VL x VL floats: column i of src becomes row i of dst. */
void sod2_transpose(const float *src, int64_t lds, float *dst, int64_t ldd);

#endif
