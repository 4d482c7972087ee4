/* GEMM over packed B.

   A piece of work is one panel of NR columns times up to MAX_ROWS rows, and follows the one of the panel before: the
   rows stay in L2 and B streams by. The sum over k is cut into pieces of KC, so that KC rows of the panel stay near
   while the row blocks pass over them; partial sums wait in a tile of the stack. A row block that is finished goes to
   the epilogue at once: the core stores it while it multiplies the next block.

   Each pass over KC rows of the panel fetches its share of the next ones: all of them at once would be waited for.

   A is read in place: packing it gained nothing when its columns are contiguous; otherwise KC columns of a row block
   are copied to the stack first. Where the distance of rows puts them all into one set of L1, blocks have no more rows
   than the set has lines.

   One kernel serves all shapes: a matrix-vector product is bound by the stream of B, which a tile of one row reads at
   the speed of the caches. */
#include "gemm.h"

#include "tile.h"
#include "tuning.h"

enum {
  KC = SOD2_GEMM_DEPTH,
  MAX_ROWS = SOD2_GEMM_ROWS * SOD2_MR,
  LINE = 16,       /* floats */
  SAME_SET = 1024, /* floats: what lies so far apart is in the same set of L1, */
  WAYS = 12        /* which has so many lines */
};

typedef struct gemm_job {
  const sod2_gemm *g;
  int64_t panels, groups; /* per matrix; groups of row blocks */
} gemm_job;

/* Rows [0, rows) of columns [k0, k0 + k) of A to [k][rows]. */
static void pack_a(const sod2_gemm *g, const float *a, int64_t rows, int64_t k, float *packed) {
  for (int64_t p = 0; p < k; p++)
    for (int64_t i = 0; i < rows; i++) packed[p * rows + i] = a[i * g->lda + p * g->a_col];
}

/* A part of the result: rows of one matrix, and the columns of one panel. */
typedef struct gemm_part {
  int64_t batch, row, rows, col, cols;
} gemm_part;

/* Fetches the lines of the result that the next rows of the part will touch, into L2, while those are multiplied. That
   is needed where all rows lie in one set of L1, in which few stores can wait for memory; elsewhere it does not pay. */
static void fetch(const sod2_gemm *g, const gemm_part *p) {
  if (g->ldo % SAME_SET != 0) return;
  for (int t = 0; t < 2 && g->touched[t]; t++) {
    const float *line = g->touched[t] + p->batch * g->out_batch + p->row * g->ldo + p->col;
    for (int64_t i = 0; i < p->rows; i++, line += g->ldo)
      for (int64_t j = 0; j < p->cols; j += LINE) {
        __builtin_prefetch(line + j, 0, 2);
        __asm__ volatile(""); /* GCC removes a loop that does nothing but fetch */
      }
  }
}

static void store(const sod2_gemm *g, const gemm_part *p, const float *tile) {
  if (g->epilogue) {
    g->epilogue(g->epilogue_args, tile, SOD2_NR, p->batch, p->row, p->rows, p->col, p->cols);
    return;
  }
  float *out = g->out + p->batch * g->out_batch + p->row * g->ldo + p->col;
  for (int64_t i = 0; i < p->rows; i++, out += g->ldo, tile += SOD2_NR) {
    if (p->cols < SOD2_NR)
      memcpy(out, tile, (size_t)p->cols * sizeof *out);
    else
      for (int j = 0; j < SOD2_NR; j += SOD2_VL) vf_store(out + j, vf_load(tile + j));
  }
}

/* The rows of a part times a panel. */
static void multiply(const sod2_gemm *g, const gemm_part *whole, const float *a, const float *panel) {
  const int64_t tallest = g->lda % SAME_SET == 0 ? sod2_imin(WAYS, SOD2_MR) : SOD2_MR;
  const int64_t blocks = (whole->rows + tallest - 1) / tallest, last = sod2_imax(g->k - 1, 0) / KC * KC;
  const int64_t share = (SOD2_NR + blocks - 1) / blocks; /* of a row of the B that follows, for each pass */
  float packed[KC * SOD2_MR], tile[MAX_ROWS * SOD2_NR];
  for (int64_t k0 = 0; k0 <= last; k0 += KC) {
    const int64_t k = sod2_imin(KC, g->k - k0);
    const float *b = panel + k0 * SOD2_NR, *next = b + k * SOD2_NR; /* the panel behind this one follows in memory */
    for (int64_t block = 0; block < blocks; block++) {
      const int64_t i = sod2_block_start(block, whole->rows, blocks);
      gemm_part part = *whole;
      part.row += i;
      part.rows = sod2_block_start(block + 1, whole->rows, blocks) - i;
      const float *source = a + part.row * g->lda + k0 * g->a_col;
      float *c = tile + i * SOD2_NR;
      if (k0 == last) fetch(g, &part);
      if (g->a_col == 1) {
        sod2_tile_rows[part.rows](k, source, g->lda, b, SOD2_NR, c, SOD2_NR, k0 > 0,
                                  next + sod2_imin(block * share, SOD2_NR - share) * k, share);
      } else {
        pack_a(g, source, part.rows, k, packed);
        sod2_tile_packed[part.rows](k, packed, part.rows, b, SOD2_NR, c, SOD2_NR, k0 > 0);
      }
      if (k0 == last) store(g, &part, c);
    }
  }
}

static void gemm_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const gemm_job *job = arg;
  const sod2_gemm *g = job->g;
  const int64_t panel = chunk % job->panels, group = chunk / job->panels % job->groups;
  gemm_part part = {.batch = chunk / (job->panels * job->groups), .col = panel * SOD2_NR};
  part.row = sod2_block_start(group, g->m, job->groups);
  part.rows = sod2_block_start(group + 1, g->m, job->groups) - part.row;
  part.cols = sod2_imin(SOD2_NR, g->n - part.col);
  const int64_t own = g->b_count ? part.batch % g->b_count : part.batch;
  multiply(g, &part, g->a + part.batch * g->a_batch, g->b + own * g->b_batch + part.col * g->k);
}

void sod2_gemm_run(const sod2_gemm *g, sod2_pool *pool) {
  if (g->batch <= 0 || g->m <= 0 || g->n <= 0) return;
  const int64_t panels = (g->n + SOD2_NR - 1) / SOD2_NR;
  int64_t groups = (g->m + MAX_ROWS - 1) / MAX_ROWS;
  const int64_t wanted = 4 * sod2_pool_threads(pool); /* few panels: cut the rows finer, down to one block each */
  if (g->batch * panels * groups < wanted)
    groups = sod2_imin(sod2_blocks(g->m), (wanted + g->batch * panels - 1) / (g->batch * panels));
  gemm_job job = {.g = g, .panels = panels, .groups = groups};
  sod2_parallel(pool, g->batch * panels * groups, gemm_chunk, &job);
}

int64_t sod2_gemm_packed_floats(int64_t k, int64_t n) { return (n + SOD2_NR - 1) / SOD2_NR * SOD2_NR * k; }

typedef struct pack_job {
  const float *b;
  int64_t k, n, ldk, ldn;
  float *packed;
} pack_job;

static void pack_panel(void *arg, int64_t panel, int thread) {
  (void)thread;
  const pack_job *job = arg;
  const int64_t col = panel * SOD2_NR, cols = sod2_imin(SOD2_NR, job->n - col);
  const float *b = job->b + col * job->ldn;
  float *out = job->packed + col * job->k;
  int64_t k = 0;
  if (job->ldk == 1 && cols == SOD2_NR) /* a transposed matrix: columns are contiguous */
    for (; k + SOD2_VL <= job->k; k += SOD2_VL)
      for (int64_t j = 0; j < SOD2_NR; j += SOD2_VL)
        sod2_transpose(b + k + j * job->ldn, job->ldn, out + k * SOD2_NR + j, SOD2_NR);
  for (; k < job->k; k++)
    for (int64_t j = 0; j < SOD2_NR; j++) out[k * SOD2_NR + j] = j < cols ? b[k * job->ldk + j * job->ldn] : 0.0f;
}

void sod2_gemm_pack_b(const float *b, int64_t k, int64_t n, int64_t ldk, int64_t ldn, float *packed, sod2_pool *pool) {
  pack_job job = {.b = b, .k = k, .n = n, .ldk = ldk, .ldn = ldn, .packed = packed};
  if (k > 0) sod2_parallel(pool, (n + SOD2_NR - 1) / SOD2_NR, pack_panel, &job);
}
