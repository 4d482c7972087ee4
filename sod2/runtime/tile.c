/* The tile kernels of tile.h, one function for each number of rows.

   Accumulators are named scalars c0_0, c0_1, ..: GCC does not split an array that is indexed by constants only after
   late unrolling, and an array costs a round trip through the stack at both ends of the loop. The macros below write
   those names out. Kernels of few rows unroll the loop over k four times, tall ones not at all: Clang would unroll and
   then spill. On Intel's servers GCC unrolls those of long chains twice: the end of a chain is foreseen if half as many
   branches come before it. */
#include "tile.h"

#include "transpose.h"

enum {
  CHAIN = 128,
  WINOGRAD_CHAIN = 32, /* the inverse transform amplifies the error of a sum, more than any other that is made there */
  FRACTION = 32,       /* bits of a row or line, of which a step fetches a part */
  AHEAD = 32,          /* floats, two lines */
  SOON = 6,            /* rows of B */
  LATER = 32,          /* and of weights */
  FEW = SOD2_MR / 3    /* rows: their panels stream by as fast as the hardware prefetcher brings them */
};

#if defined(__clang__)
#define PLAIN_LOOP _Pragma("clang loop unroll(disable)")
#define SHORT_LOOP _Pragma("clang loop unroll_count(4)")
#else
#define PLAIN_LOOP _Pragma("GCC unroll 1")
#define SHORT_LOOP _Pragma("GCC unroll 4")
#endif
#if defined(SOD2_FAR_CORES) && !defined(__clang__)
#define CHAIN_LOOP _Pragma("GCC unroll 2")
#else
#define CHAIN_LOOP PLAIN_LOOP
#endif

#if SOD2_NV == 2
#define HALF(F, i) F(i, 0)
#define COLUMNS(F, i) HALF(F, i) F(i, 1)
#else
#define HALF(F, i) F(i, 0) F(i, 1)
#define COLUMNS(F, i) HALF(F, i) F(i, 2) F(i, 3)
#endif

#define ROWS_1(F) F(0)
#define ROWS_2(F) ROWS_1(F) F(1)
#define ROWS_3(F) ROWS_2(F) F(2)
#define ROWS_4(F) ROWS_3(F) F(3)
#define ROWS_5(F) ROWS_4(F) F(4)
#define ROWS_6(F) ROWS_5(F) F(5)
#define ROWS_7(F) ROWS_6(F) F(6)
#define ROWS_8(F) ROWS_7(F) F(7)
#define ROWS_9(F) ROWS_8(F) F(8)
#define ROWS_10(F) ROWS_9(F) F(9)
#define ROWS_11(F) ROWS_10(F) F(10)
#define ROWS_12(F) ROWS_11(F) F(11)
#define ROWS_13(F) ROWS_12(F) F(12)
#define ROWS_14(F) ROWS_13(F) F(13)

/* Element (i, vector j) and row i of each phase of a kernel. */
#define ZERO(i, j) vf c##i##_##j = {0};
#define ADD(i, j) c##i##_##j += vf_load(row + j * SOD2_VL);
#define STORE(i, j) vf_store(row + j * SOD2_VL, c##i##_##j);
#define FINISH(i, j) vf_store(y + j * SOD2_VL, vf_max(least, c##i##_##j + addend));
#define ADD_LANES(i, j) c##i##_##j += vf_load(c + j * ldc + i * SOD2_VL);
#define STORE_LANES(i, j) vf_store(c + j * ldc + i * SOD2_VL, c##i##_##j);
#define MULTIPLY(i, j) c##i##_##j += x * b##j;
#define LOAD_B(i, j) vf b##j = vf_load(b + j * SOD2_VL);
#define COPY_B(i, j) vf_store(copy + j * SOD2_VL, b##j);

#define ZERO_ROW(i) COLUMNS(ZERO, i)
#define ADD_ROW(i) COLUMNS(ADD, i) NEXT_ROW
#define STORE_ROW(i) COLUMNS(STORE, i) NEXT_ROW
#define UPDATE_ROW(i) COLUMNS(ADD, i) STORE_ROW(i)
#define FINISH_ROW(i) FINISH_LINE(COLUMNS, i)
#define ADD_LANES_ROW(i) COLUMNS(ADD_LANES, i)
#define STORE_LANES_ROW(i) COLUMNS(STORE_LANES, i)
#define ADD_LANES_HALF(i) HALF(ADD_LANES, i)
#define STORE_LANES_HALF(i) HALF(STORE_LANES, i)
#define ZERO_HALF(i) HALF(ZERO, i)
#define ADD_HALF(i) HALF(ADD, i) NEXT_ROW
#define STORE_HALF(i) HALF(STORE, i) NEXT_ROW
#define UPDATE_HALF(i) HALF(ADD, i) STORE_HALF(i)
#define FINISH_HALF(i) FINISH_LINE(HALF, i)
#define FINISH_LINE(PART, i) { const vf addend = vf_splat(bias[i]); PART(FINISH, i) y += end->ld; }
#define PACKED_HALF(i) { vf x = vf_splat(a[i]); HALF(MULTIPLY, i) }
#define PACKED_ROW(i) { vf x = vf_splat(a[i]); COLUMNS(MULTIPLY, i) }
#define GATHERED_ROW(i) { vf x = vf_splat(at[i * STEP]); COLUMNS(MULTIPLY, i) }
#define CHANNEL_ROW(i) { vf x = vf_splat(a[i * SOD2_VL]); COLUMNS(MULTIPLY, i) }
#define CHANNEL_HALF(i) { vf x = vf_splat(a[i * SOD2_VL]); HALF(MULTIPLY, i) }
/* One pointer walks down the rows of C: else GCC computes the address of each, before the first is stored. */
#define NEXT_ROW row += ldc; __asm__("" : "+r"(row));
/* Row i of a row-major A, addressed from every fourth row: base + {0, 1, 2, 3} * lda keeps pointers in registers. */
#define STRIDED_ROW(i) { vf x = vf_splat(a##i[0]); COLUMNS(MULTIPLY, i) }
#define a0 p0
#define a1 (p0 + lda)
#define a2 (p0 + 2 * lda)
#define a3 (p0 + 3 * lda)
#define a4 p4
#define a5 (p4 + lda)
#define a6 (p4 + 2 * lda)
#define a7 (p4 + 3 * lda)
#define a8 p8
#define a9 (p8 + lda)
#define a10 (p8 + 2 * lda)
#define a11 (p8 + 3 * lda)
#define a12 p12
#define a13 (p12 + lda)

/* One row of a panel, to L2: L1 has no room for a second panel. Of weights that is the panel that follows; of pixels
   the one after the next of the same line, which no hardware prefetcher finds, since each row is another stream. */
#define PREFETCH(p)                                                                                                   \
  __builtin_prefetch(p, 0, 2);                                                                                        \
  if (SOD2_NR > 16) __builtin_prefetch((p) + 16, 0, 2);

/* What Winograd's kernels fetch in a step: a row of the panel that follows, to L2; on Intel's servers a row that is soon
   needed, to L1, and a line of the tiles' next channels. There products take 0.83 to 0.92 of the time by it from 128
   channels on, 0.96 at 32 and 64. */
#ifdef SOD2_FAR_CORES
#define FETCH_WEIGHTS(column) __builtin_prefetch(b + LATER * SOD2_NR + column, 0, 3);
#define FETCH_TILES __builtin_prefetch(tiles, 0, 3);
#else
#define FETCH_WEIGHTS(column) __builtin_prefetch(b + following + column, 0, 2);
#define FETCH_TILES
#endif

/* To L1, where it would be waited for. FETCH_ROW: the next lines of A, one row in a step; where rows begin on a line,
   all of them enter the next one together. FETCH_PIXELS: a row of the panel that is being copied, each on another page;
   elsewhere of the panel after the next. FETCH_STEP: weights, and to L2 a step's share of the lines that the tile will be
   stored to, for all of them at once would keep the rest waiting; steps of few rows are too short. */
#ifdef SOD2_FAR_CORES
#define FETCH_ROW(R)                                                                                                  \
  __builtin_prefetch(p0 + ahead, 0, 3);                                                                               \
  ahead = ahead == AHEAD + (R - 1) * lda ? AHEAD : ahead + lda;
#define FETCH_PIXELS                                                                                                  \
  const float *soon = b0 + offset[sod2_imin(SOON, k + step - 2)];                                                     \
  __builtin_prefetch(soon, 0, 3), __builtin_prefetch(soon + 16, 0, 3);
#define FETCH_STEP(R)                                                                                                 \
  if (R > 2 * FEW) {                                                                                                  \
    __builtin_prefetch(a + LATER * R, 0, 3);                                                                          \
    __builtin_prefetch(results + (line >> (FRACTION + 1)) * distance + (line >> FRACTION & 1) * 16, 0, 2);            \
    line += 2 * R * share;                                                                                            \
  }
#else
#define FETCH_ROW(R)
#define FETCH_PIXELS PREFETCH(b + 2 * SOD2_NR)
#define FETCH_STEP(R)
#endif

#define NOINLINE static __attribute__((noinline))

/* C += A B, or C = A B, in chains of CHAIN steps: a chain begins at 0 and is added to C when it ends. The rounding
   error of a sum grows with its longest chain; this one halves it, for 1 % of the time. */
#define SUM(R, LOOP, ...) SUM_OF(ROW, R, LOOP, STORE_TILE, __VA_ARGS__)
#define SUM_OF(PART, R, LOOP, LAST, ...)                                                                              \
  do {                                                                                                                \
    int64_t step = sod2_imin(CHAIN, k);                                                                               \
    k -= step;                                                                                                        \
    ROWS_##R(ZERO_##PART)                                                                                             \
    LOOP for (; step > 0; step--) { __VA_ARGS__ }                                                                     \
    float *row = c;                                                                                                   \
    LAST(PART, R)                                                                                                     \
    accumulate = 1;                                                                                                   \
  } while (k > 0);
#define STORE_TILE(PART, R)                                                                                           \
  if (accumulate) { ROWS_##R(UPDATE_##PART) } else { ROWS_##R(STORE_##PART) }

/* The finished sums go to the end, where there is one. */
#define END_TILE(PART, R)                                                                                             \
  if (end && k <= 0) {                                                                                                \
    static const float none[R];                                                                                       \
    const float *bias = end->bias ? end->bias : none;                                                                 \
    const vf least = vf_splat(end->least);                                                                            \
    float *y = end->y;                                                                                                \
    if (accumulate) { ROWS_##R(ADD_##PART) }                                                                          \
    ROWS_##R(FINISH_##PART)                                                                                           \
  } else {                                                                                                            \
    STORE_TILE(PART, R)                                                                                               \
  }

/* What sod2_tile_panel does with the part of row k of B that it takes. */
#define DEFINE_PANEL(name, PART, R, LOOP, ...)                                                                        \
  NOINLINE void name(int64_t k, const float *a, const float *b0, const int32_t *offset, float *c, int64_t ldc,        \
                     const sod2_tile_end *end, float *copy, int64_t rows) {                                           \
    const int64_t following = k * R, share = ((int64_t)1 << FRACTION) / sod2_imax(1, k), rate = rows * share;         \
    const float *const results = end ? end->y : c;                                                                    \
    const int64_t distance = end ? end->ld : 0;                                                                       \
    int64_t ahead = 0, line = 0;                                                                                      \
    int accumulate = 0;                                                                                               \
    (void)following, (void)rate, (void)results, (void)distance, (void)ahead, (void)line, (void)offset, (void)copy;    \
    SUM_OF(PART, R, LOOP, END_TILE,                                                                                   \
        __VA_ARGS__                                                                                                   \
        FETCH_STEP(R)                                                                                                 \
        ROWS_##R(PACKED_##PART)                                                                                       \
        a += R;)                                                                                                      \
  }
#define FIND_B const float *b = b0 + *offset++;

/* The kernels for Winograd: what they do with the part of a row of B that they take, in each step. */
#define DEFINE_CHANNELS(name, PART, R, LOOP, ...)                                                                     \
  NOINLINE void name(int64_t k, const float *a, int64_t lda, const float *b, float *c, int64_t ldc) {                 \
    const int64_t following = (k + SOD2_VL - 1) / SOD2_VL * SOD2_VL * SOD2_NR; /* padded as tiles are */              \
    (void)following;                                                                                                  \
    for (int accumulate = 0; !accumulate || k > 0; accumulate = 1) {                                                  \
      ROWS_##R(ZERO_##PART)                                                                                           \
      for (int64_t left = sod2_imin(WINOGRAD_CHAIN, k); left > 0; left -= SOD2_VL) {                                  \
        const float *tiles = a + lda;                                                                                 \
        LOOP for (int64_t lane = sod2_imin(SOD2_VL, left); lane > 0; lane--) {                                        \
          __VA_ARGS__                                                                                                 \
          FETCH_TILES                                                                                                 \
          tiles += SOD2_VL;                                                                                           \
          ROWS_##R(CHANNEL_##PART)                                                                                    \
          a++;                                                                                                        \
          b += SOD2_NR;                                                                                               \
        }                                                                                                             \
        a += lda - SOD2_VL;                                                                                           \
      }                                                                                                               \
      k -= WINOGRAD_CHAIN;                                                                                            \
      __asm__("" : "+r"(ldc)); /* else GCC computes all addresses before the loop, and spills them */                 \
      if (accumulate) { ROWS_##R(ADD_LANES_##PART) }                                                                  \
      ROWS_##R(STORE_LANES_##PART)                                                                                    \
    }                                                                                                                 \
  }

/* Steps are constants: to compute the address of each row would cost multiply-adds their ports. In steps of 2 the loop
   is slower unrolled: measured. */
#define DEFINE_GATHER(name, step, R, LOOP)                                                                            \
  NOINLINE void name(int64_t k, const float *a, const float *b, const int32_t *offset, float *c, int64_t ldc,         \
                     int accumulate, const float *next, int64_t stride) {                                             \
    enum { STEP = step };                                                                                             \
    SUM(R, LOOP,                                                                                                      \
        const float *at = a + *offset++;                                                                              \
        PREFETCH(next)                                                                                                \
        next += stride;                                                                                               \
        __builtin_prefetch(at + 32, 0, 2);                                                                            \
        COLUMNS(LOAD_B, 0)                                                                                            \
        ROWS_##R(GATHERED_ROW)                                                                                        \
        b += SOD2_NR;)                                                                                                \
  }

#define DEFINE_TILE(R, LOOP, LONG_LOOP)                                                                               \
  NOINLINE void packed_##R(int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc,\
                           int accumulate) {                                                                          \
    SUM(R, LONG_LOOP,                                                                                                 \
        COLUMNS(LOAD_B, 0)                                                                                            \
        ROWS_##R(PACKED_ROW)                                                                                          \
        a += lda;                                                                                                     \
        b += ldb;)                                                                                                    \
  }                                                                                                                   \
  NOINLINE void rows_##R(int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc,  \
                         int accumulate, const float *next, int64_t stride) {                                         \
    const float *p0 = a, *p4 = a + 4 * lda, *p8 = a + 8 * lda, *p12 = a + 12 * lda;                                   \
    int64_t ahead = AHEAD;                                                                                            \
    (void)p4, (void)p8, (void)p12, (void)next, (void)stride, (void)ahead;                                             \
    SUM(R, LONG_LOOP,                                                                                                 \
        if (R > FEW) {                                                                                                \
          PREFETCH(next)                                                                                              \
          next += stride;                                                                                             \
          FETCH_ROW(R)                                                                                                \
        }                                                                                                             \
        COLUMNS(LOAD_B, 0)                                                                                            \
        ROWS_##R(STRIDED_ROW)                                                                                         \
        p0++, p4++, p8++, p12++;                                                                                      \
        b += ldb;)                                                                                                    \
  }                                                                                                                   \
  DEFINE_GATHER(gather_a_##R, 1, R, LONG_LOOP)                                                                        \
  DEFINE_GATHER(step_a_##R, 2, R, LOOP)                                                                               \
  DEFINE_PANEL(gather_b_##R, ROW, R, LONG_LOOP, FIND_B PREFETCH(b + 2 * SOD2_NR) COLUMNS(LOAD_B, 0))                  \
  DEFINE_PANEL(stream_a_##R, ROW, R, LONG_LOOP, FIND_B PREFETCH(a + following) COLUMNS(LOAD_B, 0))                    \
  DEFINE_PANEL(half_b_##R, HALF, R, LONG_LOOP, FIND_B HALF(LOAD_B, 0))                                                \
  DEFINE_PANEL(dense_b_##R, ROW, R, LONG_LOOP,                                                                        \
        const float *b = copy, *next = b0 + offset[ahead >> FRACTION];                                                \
        PREFETCH(next)                                                                                                \
        ahead += rate;                                                                                                \
        COLUMNS(LOAD_B, 0)                                                                                            \
        copy += SOD2_NR;)                                                                                             \
  DEFINE_PANEL(copy_b_##R, ROW, R, LONG_LOOP,                                                                         \
        FIND_B FETCH_PIXELS                                                                                           \
        COLUMNS(LOAD_B, 0)                                                                                            \
        COLUMNS(COPY_B, 0)                                                                                            \
        copy += SOD2_NR;)                                                                                             \
  DEFINE_CHANNELS(channels_##R, ROW, R, LOOP, COLUMNS(LOAD_B, 0) FETCH_WEIGHTS(0) if (SOD2_NR > 16) FETCH_WEIGHTS(16)) \
  DEFINE_CHANNELS(half_channels_##R, HALF, R, LOOP, HALF(LOAD_B, 0) FETCH_WEIGHTS(0))

DEFINE_TILE(1, SHORT_LOOP, SHORT_LOOP)
DEFINE_TILE(2, SHORT_LOOP, SHORT_LOOP)
DEFINE_TILE(3, SHORT_LOOP, SHORT_LOOP)
DEFINE_TILE(4, SHORT_LOOP, SHORT_LOOP)
DEFINE_TILE(5, PLAIN_LOOP, CHAIN_LOOP)
DEFINE_TILE(6, PLAIN_LOOP, CHAIN_LOOP)
#if SOD2_MR > 6
DEFINE_TILE(7, PLAIN_LOOP, CHAIN_LOOP)
DEFINE_TILE(8, PLAIN_LOOP, CHAIN_LOOP)
DEFINE_TILE(9, PLAIN_LOOP, CHAIN_LOOP)
DEFINE_TILE(10, PLAIN_LOOP, CHAIN_LOOP)
DEFINE_TILE(11, PLAIN_LOOP, CHAIN_LOOP)
DEFINE_TILE(12, PLAIN_LOOP, CHAIN_LOOP)
DEFINE_TILE(13, PLAIN_LOOP, CHAIN_LOOP)
DEFINE_TILE(14, PLAIN_LOOP, CHAIN_LOOP)
#define TABLE(name)                                                                                                   \
  { 0, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8, name##_9, name##_10, name##_11, \
    name##_12, name##_13, name##_14 }
#else
#define TABLE(name)                                                                                                   \
  { 0, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6 }
#endif

const sod2_tile sod2_tile_packed[SOD2_MR + 1] = TABLE(packed);
const sod2_tile_stream sod2_tile_rows[SOD2_MR + 1] = TABLE(rows);
const sod2_tile_gather_stream sod2_tile_gather_a[SOD2_TILE_STEPS][SOD2_MR + 1] = {TABLE(gather_a), TABLE(step_a)};
const sod2_tile_panel sod2_tile_gather_b[SOD2_MR + 1] = TABLE(gather_b);
const sod2_tile_panel sod2_tile_half_b[SOD2_MR + 1] = TABLE(half_b);
const sod2_tile_panel sod2_tile_stream_a[SOD2_MR + 1] = TABLE(stream_a);
const sod2_tile_panel sod2_tile_copy_b[SOD2_MR + 1] = TABLE(copy_b);
const sod2_tile_panel sod2_tile_dense_b[SOD2_MR + 1] = TABLE(dense_b);
const sod2_tile_lanes sod2_tile_channels[SOD2_MR + 1] = TABLE(channels);
const sod2_tile_lanes sod2_tile_half_channels[SOD2_MR + 1] = TABLE(half_channels);

void sod2_transpose(const float *src, int64_t lds, float *dst, int64_t ldd) {
  vf v[SOD2_VL];
  SOD2_UNROLL for (int i = 0; i < SOD2_VL; i++) v[i] = vf_load(src + i * lds);
  sod2_transpose_vectors(v);
  SOD2_UNROLL for (int i = 0; i < SOD2_VL; i++) vf_store(dst + i * ldd, v[i]);
}
