/* Attention in one pass: scores, softmax and their product with V, without a matrix of all scores.

   An item of work is a range of queries of one head. Keys are taken in chunks whose transpose is packed into panels
   [key / NR][d][NR]. Against a chunk, blocks of at most MR queries are worked on while they are hot in L1: a tile
   kernel makes their scores, two passes over each row make the scaled, masked exponentials and their sum in place, and
   a second tile kernel multiplies them with rows of V where they lie. When keys need more than one chunk, maximum, sum
   and unnormalised output are carried from chunk to chunk and rescaled (online softmax). Q, V and O are used in place,
   through their strides; V is copied only when dv is no multiple of NR.

   Relative positions are a third product, of other queries with one row for each distance between query and key. What
   a block of queries needs of them is a band; it is made of the packed panels that the band touches, and every row adds
   it to its scores from where its own distances begin.

   Scratch is bounded per thread whatever the lengths: the packed chunk by KEY_FLOATS, the carried output by
   CARRY_FLOATS (more only where one panel or one block of queries is larger than that). With one chunk nothing is
   carried and a block needs just MR rows.

   The chunk depends on sizes alone and tile kernels give the same bits for any number of rows, so the result does not
   depend on the number of threads. */
#include "kernels.h"
#include "tile.h"

enum {
    KEY_FLOATS = 32768,   /* 128 KB: a chunk of 512 keys of 64 */
    CARRY_FLOATS = 28672, /* 112 KB: 56 queries of 512 */
    MAX_KEYS = 512,       /* scores of a block must stay in L1: 14 * 512 floats = 28 KB */
    MAX_BLOCKS = 8,       /* blocks of queries that share a packed chunk */
    PAD = 16              /* floats behind a row of scores: rows 2^k apart would fall into one L1 set */
};

#define LOWEST -1e30f /* of a masked score; its multiples by log2(e) and differences are finite */

typedef struct layout {
    int64_t keys, chunks;                        /* keys in a chunk, multiple of NR; number of chunks */
    int64_t queries;                             /* whose output is carried together */
    int64_t width;                               /* dv rounded up to NR */
    int64_t distances, band;                     /* packed, and of a row of a block; with relative positions only */
    /* Offsets in the scratch of a thread, in floats; K comes first. */
    int64_t v, scores, carry, max, sum, packed_distances, bands, total;
} layout;

typedef struct job {
    const sod2_attention *a;
    layout at;
    float *scratch;
    int64_t splits; /* items per head */
} job;

/* The part of a head that is being worked on, and the scratch of the thread. */
typedef struct part {
    const sod2_attention *a;
    const layout *at;
    const float *q, *k, *v, *mask, *down, *across, *place, *distances;
    const uint8_t *hidden;
    float *o;
    float *packed_k, *packed_v, *scores, *carry, *max, *sum, *packed_distances, *bands;
} part;

static int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

static layout plan(const sod2_attention *a, int64_t splits) {
    layout at = {0};
    int64_t keys = KEY_FLOATS / sod2_imax(a->d, 1) / SOD2_NR * SOD2_NR;
    keys = sod2_imin(sod2_imax(keys, SOD2_NR), MAX_KEYS);
    at.chunks = sod2_imax(1, (a->sk + keys - 1) / keys);
    at.keys = round_up((a->sk + at.chunks - 1) / at.chunks, SOD2_NR); /* chunks of equal length */
    at.width = round_up(a->dv, SOD2_NR);
    int64_t blocks = CARRY_FLOATS / sod2_imax(at.width, 1) / SOD2_MR;
    at.queries = at.chunks == 1 ? SOD2_MR : SOD2_MR * sod2_imin(sod2_imax(blocks, 1), MAX_BLOCKS);
    at.v = at.keys * a->d;
    at.scores = at.v + (at.width == a->dv ? 0 : at.keys * at.width);
    at.carry = at.scores + SOD2_MR * (at.keys + PAD);
    at.max = at.carry + at.queries * at.width;
    at.sum = at.max + at.queries;
    at.packed_distances = at.sum + at.queries;
    at.bands = at.packed_distances;
    if (a->relative) {
        at.distances = round_up(at.keys + (at.chunks == 1 ? (a->sq + splits - 1) / splits : at.queries), SOD2_NR);
        at.band = at.keys + SOD2_MR + 2 * SOD2_NR + PAD;
        at.bands += at.distances * a->d;
    }
    at.total = round_up(at.bands + SOD2_MR * at.band, 16); /* threads share no cache line */
    return at;
}

/* Items per head: whole heads if they feed every thread four times, since each item packs its keys anew. */
static int64_t splits_of(const sod2_attention *a, int threads) {
    const int64_t heads = sod2_imax(a->batch * a->heads, 1);
    return threads == 1 ? 1 : sod2_imax(1, sod2_imin((4 * threads + heads - 1) / heads, sod2_blocks(a->sq)));
}

int64_t sod2_attention_scratch(const sod2_attention *a, int threads) {
    return plan(a, splits_of(a, threads)).total * (int64_t)sizeof(float) * threads;
}

/* Rows k[count][d] -> panels [count / NR][d][NR], zero behind the last one. */
static void pack_rows(const float *k, int64_t ld, int64_t count, int64_t d, float *packed) {
    for (int64_t first = 0; first < count; first += SOD2_VL) {
        float *panel = packed + first / SOD2_NR * SOD2_NR * d + first % SOD2_NR;
        int64_t keys = sod2_imin(SOD2_VL, count - first), done = 0;
        for (; keys == SOD2_VL && done + SOD2_VL <= d; done += SOD2_VL)
            sod2_transpose(k + first * ld + done, ld, panel + done * SOD2_NR, SOD2_NR);
        for (int64_t c = done; c < d; c++)
            for (int64_t i = 0; i < SOD2_VL; i++) panel[c * SOD2_NR + i] = i < keys ? k[(first + i) * ld + c] : 0.0f;
    }
    for (int64_t key = round_up(count, SOD2_VL); key < round_up(count, SOD2_NR); key++)
        for (int64_t c = 0; c < d; c++) packed[key / SOD2_NR * SOD2_NR * d + c * SOD2_NR + key % SOD2_NR] = 0.0f;
}

/* V[count][dv] -> [count][width], zero behind dv: a tile reads whole vectors. */
static void pack_values(const part *p, const float *v, int64_t count) {
    const int64_t width = p->at->width, dv = p->a->dv;
    for (int64_t i = 0; i < count; i++) {
        float *row = p->packed_v + i * width;
        memcpy(row, v + i * p->a->v_row, (size_t)dv * sizeof(float));
        memset(row + dv, 0, (size_t)(width - dv) * sizeof(float));
    }
}

/* Vector of mask values of keys n .. n + count - 1. */
SOD2_INLINE vf load_mask(const float *mask, int64_t stride, int64_t n, int64_t count) {
    if (stride == 0) return vf_splat(*mask);
    if (stride == 1) return count == SOD2_VL ? vf_load(mask + n) : vf_load_partial(mask + n, count, 0.0f);
    float lanes[SOD2_VL] = {0};
    for (int64_t i = 0; i < count; i++) lanes[i] = mask[(n + i) * stride];
    return vf_load(lanes);
}

/* s = scale * s + mask in place, -infinity behind `count`; returns the maximum. Inlined for each kind of mask. Values
   below LOWEST, -infinity among them, become LOWEST: a row that is masked altogether is then an ordinary one. */
SOD2_INLINE float scale_row(float *s, int64_t count, float scale, const float *mask, int64_t stride) {
    vf top = vf_splat(LOWEST);
    int64_t n = 0;
    for (; n + SOD2_VL <= count; n += SOD2_VL) {
        vf x = vf_load(s + n) * scale;
        if (mask != NULL) x = vf_max(vf_splat(LOWEST), x + load_mask(mask, stride, n, SOD2_VL));
        vf_store(s + n, x);
        top = vf_max(top, x);
    }
    if (n < count) {
        vf x = vf_load(s + n) * scale;
        if (mask != NULL) x = vf_max(vf_splat(LOWEST), x + load_mask(mask, stride, n, count - n));
        x = vf_select(vf_lane_below(count - n), x, vf_splat(-INFINITY));
        vf_store(s + n, x);
        top = vf_max(top, x);
    }
    return vf_max_lanes(top);
}

static float scale_row_any(float *s, int64_t count, float scale, const float *mask, int64_t stride) {
    if (mask == NULL) return scale_row(s, count, scale, NULL, 0);
    if (stride == 1) return scale_row(s, count, scale, mask, 1);
    return scale_row(s, count, scale, mask, stride);
}

/* s = e^(s - top) in place, `top` given as top * log2(e); returns the sum. `count` is rounded up to whole vectors,
   where -infinity adds 2^-126 at most. The rounding of top * log2(e) is a factor common to sum and output. */
static float exponential_row(float *s, int64_t count, float top) {
    vf sum0 = {0}, sum1 = {0};
    int64_t n = 0;
    for (; n + SOD2_VL < count; n += 2 * SOD2_VL) {
        vf e0 = vf_exp2_negative(vf_load(s + n) * SOD2_LOG2E - top);
        vf e1 = vf_exp2_negative(vf_load(s + n + SOD2_VL) * SOD2_LOG2E - top);
        vf_store(s + n, e0);
        vf_store(s + n + SOD2_VL, e1);
        sum0 += e0;
        sum1 += e1;
    }
    for (; n < count; n += SOD2_VL) {
        vf e = vf_exp2_negative(vf_load(s + n) * SOD2_LOG2E - top);
        vf_store(s + n, e);
        sum0 += e;
    }
    return vf_sum_lanes(sum0 + sum1);
}

/* As scale_row, for keys key .. key + count - 1 with the terms of a map, line by line; a chunk may begin or end within
   one. Vectors are stored as a whole where two of them reach as far: what is behind a line's end was loaded before. */
static float scale_map_row(const part *p, float *s, int64_t query, int64_t key, int64_t count) {
    const int64_t columns = p->a->columns, lines = p->a->sk / columns;
    const float *down = p->down + query * lines + key / columns, *across = p->across + query * columns;
    const float scale = p->a->scale;
    vf x = vf_load(s), top = vf_splat(LOWEST);
    for (int64_t done = 0, column = key % columns; done < count;) {
        const int64_t n = sod2_imin(sod2_imin(columns - column, count - done), SOD2_VL);
        const vf term = vf_load_partial(across + column, n, 0.0f) + *down;
        const vf next = vf_load(s + done + n);
        x = vf_max(vf_splat(LOWEST), x * scale + term);
        x = vf_select(vf_lane_below(n), x, vf_splat(LOWEST)); /* nobody wrote what is behind the last vector */
        if (2 * n >= SOD2_VL)
            vf_store(s + done, x);
        else
            vf_store_partial(s + done, x, n);
        top = vf_max(x, top);
        x = next;
        done += n;
        column += n;
        if (column == columns) column = 0, down++;
    }
    if (count % SOD2_VL) vf_store(s + count, vf_splat(-INFINITY));
    return vf_max_lanes(top);
}

/* Adds relative positions to the scores of `rows` queries from `query` against keys that begin with the chunk's. The
   packed distances begin with that of the chunk's first key from query `last`. */
static void add_distances(const part *p, int64_t query, int64_t rows, int64_t last, int64_t count) {
    const sod2_attention *a = p->a;
    const int64_t ld = p->at->keys + PAD, band = p->at->band;
    const int64_t first = (last - (query + rows - 1)) / SOD2_NR * SOD2_NR, end = last - query + count;
    const float *place = p->place + query * a->place_row;
    for (int64_t c = first; c < end; c += SOD2_NR)
        sod2_tile_rows[rows](a->d, place, a->place_row, p->packed_distances + c * a->d, SOD2_NR, p->bands + c - first,
                             band, 0, p->packed_distances + (c + SOD2_NR) * a->d, SOD2_NR);
    for (int64_t i = 0; i < rows; i++) {
        float *s = p->scores + i * ld;
        const float *own = p->bands + i * band + (last - (query + i) - first);
        for (int64_t n = 0; n < count; n += SOD2_VL) vf_store(s + n, vf_load(s + n) + vf_load(own + n));
    }
}

/* Scores that are hidden become a number, which the scale then multiplies. */
static void hide(const sod2_attention *a, const uint8_t *hidden, float *s, int64_t count) {
    const float fill = a->fill / a->scale;
    for (int64_t n = 0; n < count; n++) s[n] = (hidden[n * a->hidden_col] != 0) == a->hides ? fill : s[n];
}

/* The scores of one query against keys key .. key + count - 1 as softmax takes them; returns the maximum. */
static float finish_row(const part *p, float *s, int64_t query, int64_t key, int64_t count) {
    const sod2_attention *a = p->a;
    if (a->hidden) hide(a, p->hidden + query * a->hidden_row + key * a->hidden_col, s, count);
    if (a->columns) return scale_map_row(p, s, query, key, count);
    const float *mask = p->mask == NULL ? NULL : p->mask + query * a->mask_row + key * a->mask_col;
    return scale_row_any(s, count, a->scale, mask, a->mask_col);
}

/* Softmax of one row with its maximum against one chunk; rescales what earlier chunks left of its output. */
static void softmax_row(const part *p, float *s, int64_t count, float top, int64_t row, int first) {
    top *= SOD2_LOG2E;
    if (first) {
        p->max[row] = top;
        p->sum[row] = exponential_row(s, count, top);
        return;
    }
    float before = p->max[row];
    top = top < before ? before : top;
    float sum = exponential_row(s, count, top);
    float factor = vf_exp2_negative(vf_splat(before - top))[0];
    float *out = p->carry + row * p->at->width;
    p->max[row] = top;
    p->sum[row] = p->sum[row] * factor + sum;
    if (factor == 1.0f) return; /* exactly 1 where the maximum stayed, as it mostly does */
    for (int64_t c = 0; c < p->at->width; c += SOD2_VL) vf_store(out + c, vf_load(out + c) * factor);
}

/* Queries from `query` of the head, from row `row` of the carried ones, against keys key .. key + count - 1; `last` is
   the query whose distances are packed first. */
static void attend_block(const part *p, int64_t query, int64_t row, int64_t rows, int64_t last, int64_t key,
                         int64_t count) {
    const sod2_attention *a = p->a;
    const int64_t ld = p->at->keys + PAD, width = p->at->width;
    const float *q = p->q + query * a->q_row;
    for (int64_t n = 0; n < count; n += SOD2_NR)
        sod2_tile_rows[rows](a->d, q, a->q_row, p->packed_k + n * a->d, SOD2_NR, p->scores + n, ld, 0,
                             p->packed_k + (n + SOD2_NR) * a->d, SOD2_NR);
    if (a->relative) add_distances(p, query, rows, last, count);
    float top[SOD2_MR]; /* of all rows first: what a row's last stores hold is not yet to be read as other vectors */
    for (int64_t i = 0; i < rows; i++) top[i] = finish_row(p, p->scores + i * ld, query + i, key, count);
    for (int64_t i = 0; i < rows; i++) softmax_row(p, p->scores + i * ld, count, top[i], row + i, key == 0);
    const int in_place = width == a->dv;
    const float *v = in_place ? p->v + key * a->v_row : p->packed_v;
    const int64_t ldv = in_place ? a->v_row : width;
    for (int64_t c = 0; c < width; c += SOD2_NR)
        sod2_tile_rows[rows](count, p->scores, ld, v + c, ldv, p->carry + row * width + c, width, key != 0,
                             v + c + count * ldv, ldv);
}

/* o = carried / sum for `rows` queries from `query`. */
static void store_rows(const part *p, int64_t query, int64_t rows) {
    const int64_t dv = p->a->dv;
    for (int64_t i = 0; i < rows; i++) {
        const float *in = p->carry + i * p->at->width;
        float *out = p->o + (query + i) * p->a->o_row;
        float factor = 1.0f / p->sum[i];
        for (int64_t c = 0; c < dv; c++) out[c] = in[c] * factor;
    }
}

/* Queries first .. end-1 of a head. The packed chunk stays valid over all of them if it is the only one. */
static void attend(const part *p, int64_t first, int64_t end) {
    const sod2_attention *a = p->a;
    const int64_t keys = p->at->keys;
    const int once = p->at->chunks == 1;
    for (int64_t query = first, group; query < end; query += group) {
        group = sod2_imin(p->at->queries, end - query);
        if (once) { /* blocks of equal height rather than MR, MR, .., 1 */
            int64_t left = sod2_blocks(end - query);
            group = (end - query + left - 1) / left;
        }
        for (int64_t key = 0; key < a->sk; key += keys) {
            const int64_t count = sod2_imin(keys, a->sk - key), blocks = sod2_blocks(group);
            const int64_t last = (once ? end : query + group) - 1;
            if (!once || query == first) {
                pack_rows(p->k + key * a->k_row, a->k_row, count, a->d, p->packed_k);
                if (p->at->width != a->dv) pack_values(p, p->v + key * a->v_row, count);
                if (a->relative)
                    pack_rows(p->distances + (a->sq - 1 + key - last) * a->distances_row, a->distances_row,
                              count + last - query, a->d, p->packed_distances);
            }
            for (int64_t b = 0; b < blocks; b++) {
                int64_t row = sod2_block_start(b, group, blocks);
                attend_block(p, query + row, row, sod2_block_start(b + 1, group, blocks) - row, last, key, count);
            }
        }
        store_rows(p, query, group);
    }
}

static void zero_rows(const sod2_attention *a, float *o, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) memset(o + i * a->o_row, 0, (size_t)a->dv * sizeof(float));
}

static void run_item(void *arg, int64_t item, int thread) {
    const job *j = arg;
    const sod2_attention *a = j->a;
    const int64_t head = item / j->splits % a->heads, batch = item / j->splits / a->heads, split = item % j->splits;
    const int64_t first = a->sq * split / j->splits, end = a->sq * (split + 1) / j->splits;
    float *scratch = j->scratch + j->at.total * thread;
    float *o = a->o + batch * a->o_batch + head * a->o_head;
    if (a->sk == 0) {
        zero_rows(a, o, first, end);
        return;
    }
    part p = {
        .a = a,
        .at = &j->at,
        .q = a->q + batch * a->q_batch + head * a->q_head,
        .k = a->k + batch * a->k_batch + head * a->k_head,
        .v = a->v + batch * a->v_batch + head * a->v_head,
        .mask = a->mask == NULL ? NULL : a->mask + batch * a->mask_batch + head * a->mask_head,
        .down = a->columns == 0 ? NULL : a->down + item / j->splits * a->sq * (a->sk / a->columns),
        .across = a->columns == 0 ? NULL : a->across + item / j->splits * a->sq * a->columns,
        .place = !a->relative ? NULL : a->place + batch * a->place_batch + head * a->place_head,
        .distances = !a->relative ? NULL : a->distances + batch * a->distances_batch + head * a->distances_head,
        .hidden = a->hidden == NULL ? NULL : a->hidden + batch * a->hidden_batch + head * a->hidden_head,
        .o = o,
        .packed_k = scratch,
        .packed_v = scratch + j->at.v,
        .scores = scratch + j->at.scores,
        .carry = scratch + j->at.carry,
        .max = scratch + j->at.max,
        .sum = scratch + j->at.sum,
        .packed_distances = scratch + j->at.packed_distances,
        .bands = scratch + j->at.bands,
    };
    attend(&p, first, end);
}

void sod2_attention_run(const sod2_attention *a, void *scratch, sod2_pool *pool) {
    const int64_t heads = a->batch * a->heads;
    if (heads == 0 || a->sq == 0 || a->dv == 0) return;
    const int64_t splits = splits_of(a, sod2_pool_threads(pool));
    job j = {.a = a, .at = plan(a, splits), .scratch = scratch, .splits = splits};
    sod2_parallel(pool, heads * splits, run_item, &j);
}
