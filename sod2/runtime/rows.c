/* Kernels along one axis of a tensor [outer, n, inner]: softmax, normalisations, reductions.

   With inner == 1 an item of work is a row, read as vectors; the passes after the first find it in L1 or L2. With
   inner > 1 an item is one outer index and a block of at most COLUMNS columns, worked on with one accumulator a column,
   so that memory is read in order. Items are handed to threads in chunks of about GRAIN elements; the cut depends on
   sizes alone. Sums run in several vectors and are folded in a fixed order. */
#include "rows.h"

#include "kernels.h"

enum {
    GRAIN = 16384, /* elements a chunk: some 2 us, several times the price of handing it out */
    COLUMNS = 256,
    TILE = 512, /* elements of a row that an epilogue gets at once: they stay in L1 beside what it reads */
    CHAIN = 32 /* rows of columns that are summed on their own: the error of a sum grows with its longest chain */
};

typedef struct job job;
struct job {
    const float *x, *scale, *bias;
    float *y, *mean, *inv_std;
    int64_t outer, n, inner, blocks;
    float epsilon;
    int op;
    sod2_epilogue epilogue;
    const void *epilogue_args;
    int64_t items, grain;
    void (*item)(const job *j, int64_t item);
};

static void run_chunk(void *arg, int64_t chunk, int thread) {
    const job *j = arg;
    const int64_t end = sod2_imin(j->items, (chunk + 1) * j->grain);
    (void)thread;
    for (int64_t item = chunk * j->grain; item < end; item++) j->item(j, item);
}

/* Runs all items; `cost` is the number of elements of one. */
static void run(job *j, int64_t items, int64_t cost, sod2_pool *pool) {
    j->items = items;
    j->grain = sod2_imax(1, GRAIN / sod2_imax(1, cost));
    sod2_parallel(pool, (items + j->grain - 1) / j->grain, run_chunk, j);
}

/* As run(), with `row` for inner == 1 and `columns` for blocks of columns. */
static void run_axis(job *j, void (*row)(const job *, int64_t), void (*columns)(const job *, int64_t),
                     sod2_pool *pool) {
    j->blocks = j->inner == 1 ? 1 : (j->inner + COLUMNS - 1) / COLUMNS;
    j->item = j->inner == 1 ? row : columns;
    run(j, j->outer * j->blocks, j->n * sod2_imin(j->inner, COLUMNS), pool);
}

/* The columns of an item: offset of the first one in x, in y (which lacks the axis if `reduced`), and their number. */
typedef struct span {
    int64_t x, y, count;
} span;
static span span_of(const job *j, int64_t item, int reduced) {
    int64_t outer = item / j->blocks, first = item % j->blocks * COLUMNS;
    int64_t x = outer * j->n * j->inner + first;
    return (span){x, reduced ? outer * j->inner + first : x, sod2_imin(COLUMNS, j->inner - first)};
}

/* ---- reductions ------------------------------------------------------------------------------------------------- */

/* What is accumulated; the rest of an operator is a function of the total. */
typedef enum accumulation { ADD, ADD_ABS, ADD_SQUARE, MULTIPLY, GREATEST, LEAST } accumulation;

static accumulation accumulation_of(int op) {
    switch (op) {
        case SOD2_REDUCE_MAX: return GREATEST;
        case SOD2_REDUCE_MIN: return LEAST;
        case SOD2_REDUCE_PROD: return MULTIPLY;
        case SOD2_REDUCE_L1: return ADD_ABS;
        case SOD2_REDUCE_L2:
        case SOD2_REDUCE_SUM_SQUARE: return ADD_SQUARE;
        default: return ADD; /* SUM, MEAN, LOG_SUM */
    }
}

static float finish(int op, float total, int64_t n) {
    switch (op) {
        case SOD2_REDUCE_MEAN: return total / (float)n;
        case SOD2_REDUCE_L2: return sod2_sqrtf(total);
        case SOD2_REDUCE_LOG_SUM: return sod2_logf(total);
        default: return total;
    }
}

/* `how` is a constant wherever these are inlined. */
SOD2_INLINE float neutral(accumulation how) {
    return how == MULTIPLY ? 1.0f : how == GREATEST ? -INFINITY : how == LEAST ? INFINITY : 0.0f;
}
SOD2_INLINE float accumulate(accumulation how, float total, float x) {
    switch (how) {
        case ADD: return total + x;
        case ADD_ABS: return total + sod2_absf(x);
        case ADD_SQUARE: return total + x * x;
        case MULTIPLY: return total * x;
        case GREATEST: return sod2_maxf(total, x);
        default: return sod2_minf(total, x);
    }
}
SOD2_INLINE vf accumulate_lanes(accumulation how, vf total, vf x) {
    switch (how) {
        case ADD: return total + x;
        case ADD_ABS: return total + (vf)((vi)x & 0x7fffffff);
        case ADD_SQUARE: return total + x * x;
        case MULTIPLY: return total * x;
        case GREATEST: return vf_max_nan(total, x);
        default: return vf_select((vi)(total != total), total, vf_min(total, x));
    }
}

SOD2_INLINE float reduce_row(accumulation how, const float *x, int64_t n) {
    const vf start = vf_splat(neutral(how));
    vf t0 = start, t1 = start, t2 = start, t3 = start;
    int64_t i = 0;
    for (; i + 4 * SOD2_VL <= n; i += 4 * SOD2_VL) {
        t0 = accumulate_lanes(how, t0, vf_load(x + i));
        t1 = accumulate_lanes(how, t1, vf_load(x + i + SOD2_VL));
        t2 = accumulate_lanes(how, t2, vf_load(x + i + 2 * SOD2_VL));
        t3 = accumulate_lanes(how, t3, vf_load(x + i + 3 * SOD2_VL));
    }
    for (; i + SOD2_VL <= n; i += SOD2_VL) t0 = accumulate_lanes(how, t0, vf_load(x + i));
    if (i < n) t1 = accumulate_lanes(how, t1, vf_load_partial(x + i, n - i, neutral(how)));
    if (how == ADD || how == ADD_ABS || how == ADD_SQUARE) return vf_sum_lanes((t0 + t1) + (t2 + t3));
    t0 = accumulate_lanes(how, accumulate_lanes(how, t0, t1), accumulate_lanes(how, t2, t3));
    if (how == MULTIPLY) {
        float total = t0[0];
        for (int lane = 1; lane < SOD2_VL; lane++) total *= t0[lane];
        return total;
    }
    if (vf_sum_lanes((vf)((vi)vf_splat(1.0f) & (vi)(t0 != t0))) > 0.0f) return NAN;
    return how == GREATEST ? vf_max_lanes(t0) : vf_min_lanes(t0);
}

/* The total of two parts. */
SOD2_INLINE float join(accumulation how, float a, float b) {
    return how == ADD_SQUARE ? a + b : accumulate(how, a, b);
}

SOD2_INLINE void reduce_columns(accumulation how, const float *x, int64_t n, int64_t stride, float *total,
                                int64_t count) {
    float chain[COLUMNS];
    for (int64_t c = 0; c < count; c++) total[c] = neutral(how);
    for (int64_t first = 0; first < n; first += CHAIN) {
        const int64_t end = sod2_imin(n, first + CHAIN);
        for (int64_t c = 0; c < count; c++) chain[c] = neutral(how);
        for (int64_t i = first; i < end; i++)
            for (int64_t c = 0; c < count; c++) chain[c] = accumulate(how, chain[c], x[i * stride + c]);
        for (int64_t c = 0; c < count; c++) total[c] = join(how, total[c], chain[c]);
    }
}

/* Calls an inlined function with `how` as a constant. */
#define WITH_CONSTANT(how, call)                   \
    switch (how) {                                 \
        case ADD: call(ADD); break;                \
        case ADD_ABS: call(ADD_ABS); break;        \
        case ADD_SQUARE: call(ADD_SQUARE); break;  \
        case MULTIPLY: call(MULTIPLY); break;      \
        case GREATEST: call(GREATEST); break;      \
        case LEAST: call(LEAST); break;            \
    }

/* `count` results from column `col` of row `row` on, to y or to the epilogue. */
static void reduced(const job *j, const float *result, int64_t row, int64_t col, int64_t count) {
    if (j->epilogue != NULL) {
        j->epilogue(j->epilogue_args, result, count, 0, row, 1, col, count);
        return;
    }
    for (int64_t c = 0; c < count; c++) j->y[row * j->inner + col + c] = result[c];
}

static void reduce_row_item(const job *j, int64_t item) {
    const float *x = j->x + item * j->n;
    float total = 0.0f;
#define CALL(how) total = reduce_row(how, x, j->n)
    WITH_CONSTANT(accumulation_of(j->op), CALL)
#undef CALL
    total = finish(j->op, total, j->n);
    reduced(j, &total, item, 0, 1);
}

static void reduce_columns_item(const job *j, int64_t item) {
    const span s = span_of(j, item, 1);
    float total[COLUMNS];
#define CALL(how) reduce_columns(how, j->x + s.x, j->n, j->inner, total, s.count)
    WITH_CONSTANT(accumulation_of(j->op), CALL)
#undef CALL
    for (int64_t c = 0; c < s.count; c++) total[c] = finish(j->op, total[c], j->n);
    reduced(j, total, item / j->blocks, item % j->blocks * COLUMNS, s.count);
}

/* ---- softmax ---------------------------------------------------------------------------------------------------- */

/* e^x for x <= 0, or NaN; exactly 0 where it is below 2^-126. */
SOD2_INLINE vf exponential(vf x) {
    vf c = x * SOD2_LOG2E;
    return (vf)((vi)vf_exp2_negative(c) & ~(vi)(c < -126.0f));
}

/* A row cut into whole vectors and a last, partial one, which is read once: stored and read back, it would stall. */
typedef struct tail {
    int64_t whole, count; /* elements in whole vectors; in the partial one, 0 .. VL-1 */
    vf x;                 /* -infinity in the other lanes */
} tail;
SOD2_INLINE tail tail_of(const float *x, int64_t n) {
    int64_t whole = n / SOD2_VL * SOD2_VL;
    return (tail){whole, n - whole, vf_load_partial(x + whole, n - whole, -INFINITY)};
}

/* Maximum, in which NaN may be lost: what is made of it has NaN from the exponentials. */
SOD2_INLINE float top_of(const float *x, const tail *t) {
    vf top0 = t->x, top1 = t->x;
    int64_t i = 0;
    for (; i + 2 * SOD2_VL <= t->whole; i += 2 * SOD2_VL) {
        top0 = vf_max(top0, vf_load(x + i));
        top1 = vf_max(top1, vf_load(x + i + SOD2_VL));
    }
    if (i < t->whole) top0 = vf_max(top0, vf_load(x + i));
    return vf_max_lanes(vf_max(top0, top1));
}

/* e^(x - top) in the lanes of the tail, 0 in the others (where -infinity - -infinity would be NaN). */
SOD2_INLINE vf exponential_tail(const tail *t, float top) {
    return (vf)((vi)exponential(t->x - top) & vf_lane_below(t->count));
}

/* Sum of e^(x - top); the exponentials of whole vectors are stored in y unless it is NULL. */
SOD2_INLINE float exponentials(const float *x, const tail *t, vf last, float *y, float top) {
    vf sum0 = last, sum1 = {0};
    int64_t i = 0;
    for (; i + 2 * SOD2_VL <= t->whole; i += 2 * SOD2_VL) {
        vf e0 = exponential(vf_load(x + i) - top), e1 = exponential(vf_load(x + i + SOD2_VL) - top);
        if (y != NULL) vf_store(y + i, e0);
        if (y != NULL) vf_store(y + i + SOD2_VL, e1);
        sum0 += e0;
        sum1 += e1;
    }
    if (i < t->whole) {
        vf e = exponential(vf_load(x + i) - top);
        if (y != NULL) vf_store(y + i, e);
        sum1 += e;
    }
    return vf_sum_lanes(sum0 + sum1);
}

/* y = (x - shift) * factor + offset. */
static void softmax_item(const job *j, int64_t item) {
    const float *x = j->x + item * j->n;
    float *y = j->y + item * j->n;
    const tail t = tail_of(x, j->n);
    float top = top_of(x, &t);
    vf last = exponential_tail(&t, top);
    float factor = 1.0f / exponentials(x, &t, last, y, top);
    for (int64_t i = 0; i < t.whole; i += SOD2_VL) vf_store(y + i, vf_load(y + i) * factor);
    if (t.count > 0) vf_store_partial(y + t.whole, last * factor, t.count);
}

/* log of the sum of e^(x - top). */
static float log_sum(const float *x, const tail *t, float top) {
    return sod2_logf(exponentials(x, t, exponential_tail(t, top), NULL, top));
}

static void log_softmax_item(const job *j, int64_t item) {
    const float *x = j->x + item * j->n;
    const tail t = tail_of(x, j->n);
    float top = top_of(x, &t);
    sod2_affine_row(x, j->y + item * j->n, j->n, top, 1.0f, -log_sum(x, &t, top));
}

static void log_sum_exp_item(const job *j, int64_t item) {
    const float *x = j->x + item * j->n;
    const tail t = tail_of(x, j->n);
    float top = reduce_row(GREATEST, x, j->n);
    const float result = sod2_absf(top) == INFINITY ? top : top + log_sum(x, &t, top); /* an empty or infinite row */
    reduced(j, &result, item, 0, 1);
}

/* Maximum and sum of e^(x - maximum) of each column; the exponentials are stored in y unless y is NULL. */
SOD2_INLINE void exponential_columns(const job *j, const span *s, float *y, float *top, float *sum) {
    const float *x = j->x + s->x;
    reduce_columns(GREATEST, x, j->n, j->inner, top, s->count);
    for (int64_t c = 0; c < s->count; c++) sum[c] = 0.0f;
    for (int64_t i = 0; i < j->n; i++)
        for (int64_t c = 0; c < s->count; c++) {
            float e = sod2_expf(x[i * j->inner + c] - top[c]);
            if (y != NULL) y[i * j->inner + c] = e;
            sum[c] += e;
        }
}

static void softmax_columns_item(const job *j, int64_t item) {
    const span s = span_of(j, item, 0);
    float *y = j->y + s.y, top[COLUMNS], sum[COLUMNS];
    exponential_columns(j, &s, y, top, sum);
    for (int64_t c = 0; c < s.count; c++) sum[c] = 1.0f / sum[c];
    for (int64_t i = 0; i < j->n; i++)
        for (int64_t c = 0; c < s.count; c++) y[i * j->inner + c] *= sum[c];
}

static void log_softmax_columns_item(const job *j, int64_t item) {
    const span s = span_of(j, item, 0);
    const float *x = j->x + s.x;
    float *y = j->y + s.y, top[COLUMNS], sum[COLUMNS];
    exponential_columns(j, &s, NULL, top, sum);
    for (int64_t c = 0; c < s.count; c++) sum[c] = sod2_logf(sum[c]);
    for (int64_t i = 0; i < j->n; i++)
        for (int64_t c = 0; c < s.count; c++) y[i * j->inner + c] = (x[i * j->inner + c] - top[c]) - sum[c];
}

static void log_sum_exp_columns_item(const job *j, int64_t item) {
    const span s = span_of(j, item, 1);
    float top[COLUMNS], sum[COLUMNS];
    exponential_columns(j, &s, NULL, top, sum);
    for (int64_t c = 0; c < s.count; c++)
        if (sod2_absf(top[c]) != INFINITY) top[c] += sod2_logf(sum[c]);
    reduced(j, top, item / j->blocks, item % j->blocks * COLUMNS, s.count);
}

/* ---- normalisations --------------------------------------------------------------------------------------------- */

/* Sum of (x - mean)^2: a second pass, because E[x^2] - E[x]^2 cancels. */
static float squared_deviations(const float *x, int64_t n, float mean) {
    vf sum0 = {0}, sum1 = {0};
    int64_t i = 0;
    for (; i + 2 * SOD2_VL <= n; i += 2 * SOD2_VL) {
        vf a = vf_load(x + i) - mean, b = vf_load(x + i + SOD2_VL) - mean;
        sum0 += a * a;
        sum1 += b * b;
    }
    for (; i < n; i += SOD2_VL) {
        vf a = vf_load_partial(x + i, sod2_imin(SOD2_VL, n - i), mean) - mean;
        sum0 += a * a;
    }
    return vf_sum_lanes(sum0 + sum1);
}

sod2_moments sod2_row_moments(const float *x, int64_t n, float epsilon) {
    const float mean = reduce_row(ADD, x, n) / (float)n;
    return (sod2_moments){mean, sod2_rsqrtf(squared_deviations(x, n, mean) / (float)n + epsilon)};
}

SOD2_INLINE vf load_or(const float *p, int64_t i, int64_t count, float otherwise) {
    if (p == NULL) return vf_splat(otherwise);
    return count == SOD2_VL ? vf_load(p + i) : vf_load_partial(p + i, count, 0.0f);
}

/* y = (x - mean) * inv_std * scale + bias, scale and bias by element or NULL. */
static void normalise_row(const float *x, const float *scale, const float *bias, float *y, int64_t n, float mean,
                          float inv_std) {
    int64_t i = 0;
    for (; i + SOD2_VL <= n; i += SOD2_VL) {
        vf z = (vf_load(x + i) - mean) * inv_std;
        vf_store(y + i, z * load_or(scale, i, SOD2_VL, 1.0f) + load_or(bias, i, SOD2_VL, 0.0f));
    }
    if (i < n) {
        vf z = (vf_load_partial(x + i, n - i, 0.0f) - mean) * inv_std;
        vf_store_partial(y + i, z * load_or(scale, i, n - i, 1.0f) + load_or(bias, i, n - i, 0.0f), n - i);
    }
}

/* Row `item` of the result, from x on, to y or to the epilogue. */
static void normalised(const job *j, const float *x, int64_t item, float mean, float inv_std) {
    if (j->epilogue == NULL) {
        normalise_row(x, j->scale, j->bias, j->y + item * j->n, j->n, mean, inv_std);
        return;
    }
    float tile[TILE];
    for (int64_t i = 0; i < j->n; i += TILE) {
        const float *scale = j->scale == NULL ? NULL : j->scale + i, *bias = j->bias == NULL ? NULL : j->bias + i;
        const int64_t count = sod2_imin(TILE, j->n - i);
        normalise_row(x + i, scale, bias, tile, count, mean, inv_std);
        j->epilogue(j->epilogue_args, tile, TILE, 0, item, 1, i, count);
    }
}

static void layer_norm_item(const job *j, int64_t item) {
    const float *x = j->x + item * j->n;
    const sod2_moments m = sod2_row_moments(x, j->n, j->epsilon);
    normalised(j, x, item, m.mean, m.inv_std);
    if (j->mean != NULL) j->mean[item] = m.mean;
    if (j->inv_std != NULL) j->inv_std[item] = m.inv_std;
}

static void rms_norm_item(const job *j, int64_t item) {
    const float *x = j->x + item * j->n;
    float inv = sod2_rsqrtf(reduce_row(ADD_SQUARE, x, j->n) / (float)j->n + j->epsilon);
    normalised(j, x, item, 0.0f, inv);
}

/* ---- entry points ----------------------------------------------------------------------------------------------- */

void sod2_softmax(const float *x, float *y, int64_t outer, int64_t n, int64_t inner, sod2_pool *pool) {
    job j = {.x = x, .y = y, .outer = outer, .n = n, .inner = inner};
    run_axis(&j, softmax_item, softmax_columns_item, pool);
}

void sod2_log_softmax(const float *x, float *y, int64_t outer, int64_t n, int64_t inner, sod2_pool *pool) {
    job j = {.x = x, .y = y, .outer = outer, .n = n, .inner = inner};
    run_axis(&j, log_softmax_item, log_softmax_columns_item, pool);
}

void sod2_reduce(const float *x, float *y, sod2_reduction op, int64_t outer, int64_t n, int64_t inner,
                 sod2_epilogue epilogue, const void *args, sod2_pool *pool) {
    job j = {.x = x, .y = y, .outer = outer, .n = n, .inner = inner, .op = op};
    j.epilogue = epilogue, j.epilogue_args = args;
    if (op == SOD2_REDUCE_LOG_SUM_EXP)
        run_axis(&j, log_sum_exp_item, log_sum_exp_columns_item, pool);
    else
        run_axis(&j, reduce_row_item, reduce_columns_item, pool);
}

void sod2_layer_norm(const float *x, const float *scale, const float *bias, float *y, float *mean, float *inv_std,
                     int64_t outer, int64_t n, float epsilon, sod2_epilogue epilogue, const void *args,
                     sod2_pool *pool) {
    job j = {.x = x, .scale = scale, .bias = bias, .y = y, .mean = mean, .inv_std = inv_std, .n = n};
    j.epsilon = epsilon, j.epilogue = epilogue, j.epilogue_args = args;
    j.item = layer_norm_item;
    run(&j, outer, n, pool);
}

void sod2_rms_norm(const float *x, const float *scale, float *y, int64_t outer, int64_t n, float epsilon,
                   sod2_epilogue epilogue, const void *args, sod2_pool *pool) {
    job j = {.x = x, .scale = scale, .y = y, .n = n, .epsilon = epsilon, .item = rms_norm_item};
    j.epilogue = epilogue, j.epilogue_args = args;
    run(&j, outer, n, pool);
}
