/* Prelude of every kernel and of all generated C: vectors, scalar mathematics, sizes, threads, the epilogue contract.

   Vectors are GCC/Clang vector extensions, so one source serves AVX-512, AVX2, NEON and plain C. Generated code needs
   no vector type at all: it writes `for` loops over the scalar functions of vmath.h, which have no branches and no
   calls, and the compiler vectorises them at -O3 -fno-math-errno -fno-trapping-math. -ffast-math must never be used: it
   removes the rounding by 1.5*2^23 on which the exponentials rest, and NaN with it. */
#ifndef SOD2_KERNEL_H
#define SOD2_KERNEL_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SOD2_INLINE static inline __attribute__((always_inline))

/* ---- vectors ---------------------------------------------------------------------------------------------------- */

#if defined(__AVX512F__)
#define SOD2_VL 16
#elif defined(__AVX2__)
#define SOD2_VL 8
#else
#define SOD2_VL 4
#endif

/* Intel's servers (SSE4A is AMD's): L2 is large, but what lies beyond it or in another core's is far away. */
#if defined(__AVX512F__) && !defined(__SSE4A__)
#define SOD2_FAR_CORES
#endif

typedef float vf __attribute__((vector_size(SOD2_VL * 4)));
typedef int32_t vi __attribute__((vector_size(SOD2_VL * 4)));
typedef float vf_unaligned __attribute__((vector_size(SOD2_VL * 4), aligned(4), may_alias));

/* Unroll a loop of constant trip count completely (register tiles, transposes). */
#if defined(__clang__)
#define SOD2_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SOD2_UNROLL _Pragma("GCC unroll 64")
#endif

SOD2_INLINE vf vf_load(const float *p) { return (vf) * (const vf_unaligned *)p; }
SOD2_INLINE void vf_store(float *p, vf x) { *(vf_unaligned *)p = (vf_unaligned)x; }
SOD2_INLINE vf vf_splat(float s) { return s - (vf){0}; } /* -0.0f stays -0.0f; folds into a broadcast */
SOD2_INLINE vf vf_select(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }

/* Larger and smaller of two; where either is NaN the result is b. clang makes one instruction of the selection, gcc 12
   three, therefore it is given the instruction where it has a name. */
#if defined(__AVX512F__) && !defined(__clang__)
SOD2_INLINE vf vf_max(vf a, vf b) { return __builtin_ia32_maxps512_mask(a, b, a, -1, 4 /* current rounding */); }
SOD2_INLINE vf vf_min(vf a, vf b) { return __builtin_ia32_minps512_mask(a, b, a, -1, 4); }
#elif defined(__AVX2__) && !defined(__clang__)
SOD2_INLINE vf vf_max(vf a, vf b) { return __builtin_ia32_maxps256(a, b); }
SOD2_INLINE vf vf_min(vf a, vf b) { return __builtin_ia32_minps256(a, b); }
#else
SOD2_INLINE vf vf_max(vf a, vf b) { return vf_select((vi)(a > b), a, b); }
SOD2_INLINE vf vf_min(vf a, vf b) { return vf_select((vi)(a < b), a, b); }
#endif

/* The larger of two; NaN where either is. */
#if defined(__AVX512F__) && !defined(__clang__)
SOD2_INLINE vf vf_max_nan(vf a, vf b) {
    return __builtin_ia32_maxps512_mask(a, b, a, __builtin_ia32_cmpps512_mask(a, a, 7 /* ordered */, -1, 4), 4);
}
#elif defined(__AVX2__) && !defined(__clang__)
SOD2_INLINE vf vf_max_nan(vf a, vf b) { return __builtin_ia32_blendvps256(vf_max(a, b), a, (vf)(a != a)); }
#else
SOD2_INLINE vf vf_max_nan(vf a, vf b) { return vf_select((vi)(a != a), a, vf_max(a, b)); }
#endif

/* Lanes i and i ^ 8, i ^ 4, i ^ 2, i ^ 1 combined in turn: every lane ends with the sum or extremum of all. */
#if SOD2_VL == 16
#define SOD2_SWAP8(x) __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define SOD2_SWAP4(x) __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define SOD2_SWAP2(x) __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define SOD2_SWAP1(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#elif SOD2_VL == 8
#define SOD2_SWAP4(x) __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3)
#define SOD2_SWAP2(x) __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5)
#define SOD2_SWAP1(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6)
#else
#define SOD2_SWAP2(x) __builtin_shufflevector(x, x, 2, 3, 0, 1)
#define SOD2_SWAP1(x) __builtin_shufflevector(x, x, 1, 0, 3, 2)
#endif
SOD2_INLINE float vf_sum_lanes(vf x) {
#if SOD2_VL >= 16
    x += SOD2_SWAP8(x);
#endif
#if SOD2_VL >= 8
    x += SOD2_SWAP4(x);
#endif
    x += SOD2_SWAP2(x);
    x += SOD2_SWAP1(x);
    return x[0];
}
/* Lanes must not be NaN. */
SOD2_INLINE float vf_max_lanes(vf x) {
#if SOD2_VL >= 16
    x = vf_max(x, SOD2_SWAP8(x));
#endif
#if SOD2_VL >= 8
    x = vf_max(x, SOD2_SWAP4(x));
#endif
    x = vf_max(x, SOD2_SWAP2(x));
    return vf_max(x, SOD2_SWAP1(x))[0];
}
SOD2_INLINE float vf_min_lanes(vf x) { return -vf_max_lanes(-x); }

/* Lanes of two vectors, for __builtin_shufflevector: every second one, and VL of them from the first or second on. */
#if SOD2_VL == 16
#define SOD2_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define SOD2_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define SOD2_FROM_1 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16
#define SOD2_FROM_2 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17
#elif SOD2_VL == 8
#define SOD2_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define SOD2_ODD 1, 3, 5, 7, 9, 11, 13, 15
#define SOD2_FROM_1 1, 2, 3, 4, 5, 6, 7, 8
#define SOD2_FROM_2 2, 3, 4, 5, 6, 7, 8, 9
#else
#define SOD2_EVEN 0, 2, 4, 6
#define SOD2_ODD 1, 3, 5, 7
#define SOD2_FROM_1 1, 2, 3, 4
#define SOD2_FROM_2 2, 3, 4, 5
#endif

/* All bits set in the first n (0..SOD2_VL) lanes. */
SOD2_INLINE vi vf_lane_below(int64_t n) {
    vi lane;
    for (int i = 0; i < SOD2_VL; i++) lane[i] = i;
    return lane < (int32_t)n - (vi){0};
}

/* The first n (0..SOD2_VL) floats at p, the other lanes `fill`; memory behind them is not touched. By masked
   instructions where the machine has them: compilers find them in a loop over lanes only now and then. */
SOD2_INLINE vf vf_load_partial(const float *p, int64_t n, float fill) {
#if defined(__AVX512F__)
    return __builtin_ia32_loadups512_mask(p, vf_splat(fill), (uint16_t)((1u << n) - 1));
#elif defined(__AVX2__)
    vi mask = vf_lane_below(n);
    return vf_select(mask, __builtin_ia32_maskloadps256((const vf *)p, mask), vf_splat(fill));
#else
    vf x = vf_splat(fill);
    for (int i = 0; i < SOD2_VL; i++)
        if (i < n) x[i] = p[i];
    return x;
#endif
}
/* Lanes [first, last) of the floats at p, the others `fill`; memory outside of them is not touched. */
SOD2_INLINE vf vf_load_between(const float *p, int64_t first, int64_t last, float fill) {
#if defined(__AVX512F__)
    const uint32_t below_last = (1u << last) - 1, below_first = (1u << first) - 1;
    return __builtin_ia32_loadups512_mask(p, vf_splat(fill), (uint16_t)(below_last & ~below_first));
#elif defined(__AVX2__)
    const vi mask = vf_lane_below(last) & ~vf_lane_below(first);
    return vf_select(mask, __builtin_ia32_maskloadps256((const vf *)p, mask), vf_splat(fill));
#else
    vf x = vf_splat(fill);
    for (int i = 0; i < SOD2_VL; i++)
        if (i >= first && i < last) x[i] = p[i];
    return x;
#endif
}
SOD2_INLINE void vf_store_partial(float *p, vf x, int64_t n) {
#if defined(__AVX512F__)
    __builtin_ia32_storeups512_mask(p, x, (uint16_t)((1u << n) - 1));
#elif defined(__AVX2__)
    __builtin_ia32_maskstoreps256((vf *)p, vf_lane_below(n), x);
#else
    for (int i = 0; i < SOD2_VL; i++)
        if (i < n) p[i] = x[i];
#endif
}

#include "vmath.h"

/* ---- sizes and integer tensors ---------------------------------------------------------------------------------- */

SOD2_INLINE int64_t sod2_imin(int64_t a, int64_t b) { return a < b ? a : b; }
SOD2_INLINE int64_t sod2_imax(int64_t a, int64_t b) { return a > b ? a : b; }

/* Integer division of tensors. ONNX leaves division by zero open; here the quotient and the remainder are 0, and
   INT64_MIN / -1 wraps, so that no input can raise a signal. */
SOD2_INLINE int64_t sod2_truncdiv(int64_t a, int64_t b) {
    return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}
SOD2_INLINE int64_t sod2_truncmod(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
SOD2_INLINE int64_t sod2_floordiv(int64_t a, int64_t b) {
    int64_t r = sod2_truncmod(a, b);
    return sod2_truncdiv(a, b) - (r != 0 && (r < 0) != (b < 0));
}
SOD2_INLINE int64_t sod2_floormod(int64_t a, int64_t b) {
    int64_t r = sod2_truncmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
SOD2_INLINE int64_t sod2_ceildiv(int64_t a, int64_t b) { return -sod2_floordiv(-a, b); }

/* Size expressions: as above, but an overflow or a division by zero sets *overflow (it is never cleared), so that a
   chain of operations needs one test at its end. The value is then meaningless. */
SOD2_INLINE int64_t sod2_add(int64_t a, int64_t b, int *overflow) {
    int64_t r;
  *overflow |= __builtin_add_overflow(a, b, &r);
    return r;
}
SOD2_INLINE int64_t sod2_sub(int64_t a, int64_t b, int *overflow) {
    int64_t r;
  *overflow |= __builtin_sub_overflow(a, b, &r);
    return r;
}
SOD2_INLINE int64_t sod2_mul(int64_t a, int64_t b, int *overflow) {
    int64_t r;
  *overflow |= __builtin_mul_overflow(a, b, &r);
    return r;
}
SOD2_INLINE int64_t sod2_div(int64_t a, int64_t b, int *overflow) {
  *overflow |= b == 0 || (a == INT64_MIN && b == -1);
    return sod2_floordiv(a, b);
}
SOD2_INLINE int64_t sod2_mod(int64_t a, int64_t b, int *overflow) {
  *overflow |= b == 0;
    return sod2_floormod(a, b);
}

/* ---- threads (threads.c) ---------------------------------------------------------------------------------------- */

typedef struct sod2_pool sod2_pool;

/* A pool of `threads` (>= 1) threads, the calling one included. NULL when a thread could not be started. */
sod2_pool *sod2_pool_create(int threads);
void sod2_pool_free(sod2_pool *pool);             /* NULL is allowed */
int sod2_pool_threads(const sod2_pool *pool);     /* 1 for NULL */

/* Calls body(arg, chunk, thread) once for every chunk in [0, chunks), chunks in increasing order of start, and returns
   when all are done. 0 <= thread < sod2_pool_threads(pool); no two chunks run at once with the same number, so scratch
   may be indexed by it. What body computes must depend on the chunk alone: then bits do not depend on scheduling.
   A NULL pool, one thread or one chunk run inline. One call at a time: none from inside a body, none from elsewhere. */
void sod2_parallel(sod2_pool *pool, int64_t chunks, void (*body)(void *arg, int64_t chunk, int thread), void *arg);

/* Arithmetic on subnormal numbers costs x86 cores 100 and more cycles an instruction, and networks do produce them
   (decaying states, saturated softmax). Workers of a pool flush them to zero for good; a run brackets the calling
   thread, whose floating-point state belongs to the application:
       uint64_t state = sod2_denormals_off(); ... sod2_denormals_restore(state);
   Results change by less than 1.2e-38, the smallest normal number. */
uint64_t sod2_denormals_off(void);
void sod2_denormals_restore(uint64_t state);

/* ---- epilogue: what is fused behind a GEMM, a convolution or a normalisation ------------------------------------- */

/* Receives a tile of a kernel's result while it is hot in L1 and stores it, after applying the fused consumers.
   Element (i, j) of the tile, tile[i * ld + j], is element (row + i, col + j) of matrix `batch` of the output.
   Convolution: batch = image, row = output channel, col = linear pixel. GEMM: those of C. Normalisation: kernels.h.
   A kernel calls it exactly once for each element, and neither reads nor writes the output itself: the epilogue may
   store in place over a residual which it reads at the same position. NULL stands for a plain store. */
typedef void (*sod2_epilogue)(const void *args, const float *tile, int64_t ld, int64_t batch, int64_t row, int64_t rows,
                              int64_t col, int64_t cols);

#endif
