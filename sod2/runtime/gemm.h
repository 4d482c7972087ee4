/* Matrix product with packed B: C[b] = A[b] * B[b], float32. */
#ifndef SOD2_GEMM_H
#define SOD2_GEMM_H

#include "kernel.h"

typedef struct sod2_gemm {
  int64_t batch, m, n, k;
  const float *a; /* A(b, i, k) = a[b * a_batch + i * lda + k * a_col]; a_col == 1 is the fast case */
  int64_t lda, a_batch, a_col;
  const float *b; /* packed: [ceil(n / NR)][k][NR], columns beyond n are 0 */
  int64_t b_batch; /* floats from one B to the next; 0: one B for all */
  int64_t b_count; /* so many B, which batches take in turn; 0: each its own */
  float *out; /* dense rows of ldo floats, out_batch floats apart; written only where epilogue is NULL */
  int64_t ldo, out_batch; /* of out and touched */
  sod2_epilogue epilogue;
  const void *epilogue_args;
  const float *touched[2]; /* laid out as out, what is stored to or read by the epilogue: fetched early; or NULL */
} sod2_gemm;

/* Any size may be 0; k == 0 gives zeros. Bits do not depend on the pool, on m or on the other rows. */
void sod2_gemm_run(const sod2_gemm *g, sod2_pool *pool);

/* Packs B(k, n) = b[k * ldk + n * ldn] into sod2_gemm_packed_floats(k, n) floats. */
void sod2_gemm_pack_b(const float *b, int64_t k, int64_t n, int64_t ldk, int64_t ldn, float *packed, sod2_pool *pool);
int64_t sod2_gemm_packed_floats(int64_t k, int64_t n);

#endif
