/* A transpose of VL vectors in registers, in log2(VL) rounds, where the round of distance d exchanges lanes of vectors
   r and r + d. Rounds within the 128-bit parts of a vector interleave single lanes, those between parts take every
   second part: both are instructions without an operand of indices, of which a Zen 5 core starts four and two a cycle. */
#ifndef SOD2_TRANSPOSE_H
#define SOD2_TRANSPOSE_H

#include "kernel.h"

#if SOD2_VL == 16
#define SOD2_LOW_LANES 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define SOD2_HIGH_LANES 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define SOD2_EVEN_PARTS 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define SOD2_ODD_PARTS 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
#elif SOD2_VL == 8
#define SOD2_LOW_LANES 0, 8, 1, 9, 4, 12, 5, 13
#define SOD2_HIGH_LANES 2, 10, 3, 11, 6, 14, 7, 15
#define SOD2_EVEN_PARTS 0, 1, 2, 3, 8, 9, 10, 11
#define SOD2_ODD_PARTS 4, 5, 6, 7, 12, 13, 14, 15
#else
#define SOD2_LOW_LANES 0, 4, 1, 5
#define SOD2_HIGH_LANES 2, 6, 3, 7
#endif

#define SOD2_EXCHANGE(d, LOW, HIGH)                                                                                   \
  SOD2_UNROLL for (int i = 0; i < SOD2_VL; i++)                                                                       \
    if (!(i & d)) {                                                                                                   \
      const vf r = v[i], s = v[i + d];                                                                                \
      v[i] = __builtin_shufflevector(r, s, LOW), v[i + d] = __builtin_shufflevector(r, s, HIGH);                      \
    }

/* Lane i of v[j] becomes lane j of v[i]. v is a local array of the caller, which then stays in registers. */
SOD2_INLINE void sod2_transpose_vectors(vf *v) {
#if SOD2_VL >= 8
  SOD2_EXCHANGE(4, SOD2_EVEN_PARTS, SOD2_ODD_PARTS)
#endif
#if SOD2_VL == 16
  SOD2_EXCHANGE(8, SOD2_EVEN_PARTS, SOD2_ODD_PARTS)
#endif
  SOD2_EXCHANGE(2, SOD2_LOW_LANES, SOD2_HIGH_LANES)
  SOD2_EXCHANGE(1, SOD2_LOW_LANES, SOD2_HIGH_LANES)
}

#endif
