/* Max and average pooling. Both are separable: for a row of outputs, the input rows under the window are combined into
   one buffered line first, and windows then slide along it. That is kh + kw operations an output instead of kh * kw,
   with unit stride in the larger part. Columns outside the image hold the neutral element in the buffer, so that the
   sliding needs no test; a window that does not fit the buffer is taken in pieces. Windows of stride and dilation 1
   have loops of their own, without what the general ones must find out for each row, and so have windows that tile the
   image: no gap lies between their lines, so that a vector holds outputs of several rows. */
#include "kernels.h"

enum {
    LINE = 1024,         /* floats in a buffered line */
    SLACK = 3 * SOD2_VL, /* behind them: the last windows of a vector of outputs end there */
    ROWS = 8,            /* lines: 34 KB of stack */
    AHEAD = 4096,        /* floats: rows to come are fetched early, since each line is a short stream of its own */
    GRAIN = 32768        /* operations a chunk: some 4 us */
};

typedef struct job {
    const sod2_pooling *p;
    int64_t grain; /* output rows a chunk */
    int average, include_pad;
} job;

/* Number of positions start, start + step, .. (count of them) inside [low, high). */
static int64_t inside(int64_t start, int64_t step, int64_t count, int64_t low, int64_t high) {
    int64_t first = start >= low ? 0 : (low - start + step - 1) / step;
    int64_t end = start >= high ? 0 : (high - start + step - 1) / step;
    return sod2_imax(0, sod2_imin(end, count) - first);
}

SOD2_INLINE vf neutral(int average) { return vf_splat(average ? 0.0f : -INFINITY); }
/* A long chain is faster where the total is x: it is `a` that is tested for NaN, and the next test need not wait. */
SOD2_INLINE vf combine(int average, vf a, vf x) { return average ? a + x : vf_max_nan(a, x); }
SOD2_INLINE vf load(int average, const float *p, int64_t count) {
    return count == SOD2_VL ? vf_load(p) : vf_load_partial(p, count, neutral(average)[0]);
}

/* VL columns combined over `taps` rows, `step` floats apart. */
SOD2_INLINE vf combine_column(int average, const float *x, int64_t taps, int64_t step, int64_t count) {
    vf total = neutral(average);
    for (int64_t k = 0; k < taps; k++) total = combine(average, total, load(average, x + k * step, count));
    __builtin_prefetch(x + AHEAD);
    __builtin_prefetch(x + AHEAD + step);
    return total;
}

/* line[0 .. width) = input columns from `column`, combined over the rows of the window that starts at row `top`. Whole
   vectors are stored: up to SLACK floats more are the neutral element. */
SOD2_INLINE void combine_rows(const sod2_pooling *p, int average, const float *plane, int64_t top, int64_t column,
                              int64_t width, float *line) {
    const int64_t begin = sod2_imin(sod2_imax(0, -column), width);
    const int64_t end = sod2_imax(begin, sod2_imin(width, p->iw - column));
    const int64_t first = top < 0 ? (-top + p->dh - 1) / p->dh : 0;
    const int64_t taps = inside(top, p->dh, p->kh, 0, p->ih), step = p->dh * p->iw;
    const float *x = plane + (top + first * p->dh) * p->iw + column; /* not read where taps is 0 */
    int64_t c = 0;
    for (; c < begin; c += SOD2_VL) vf_store(line + c, neutral(average));
    c = begin;
    if (taps == 3) /* the usual window, inside of the image: the loop over its rows unrolled */
        for (; c + SOD2_VL <= end; c += SOD2_VL) vf_store(line + c, combine_column(average, x + c, 3, step, SOD2_VL));
    for (; c + SOD2_VL <= end; c += SOD2_VL) vf_store(line + c, combine_column(average, x + c, taps, step, SOD2_VL));
    if (c < end) vf_store(line + c, combine_column(average, x + c, taps, step, end - c)), c += SOD2_VL;
    for (; c < width + SLACK - SOD2_VL; c += SOD2_VL) vf_store(line + c, neutral(average));
}

/* The elements line[0], line[stride], .. of VL windows' starts; stride 1 and 2 are constants where this is inlined. */
SOD2_INLINE vf load_strided(const float *line, int64_t stride) {
    if (stride == 1) return vf_load(line);
    if (stride == 2) return __builtin_shufflevector(vf_load(line), vf_load(line + SOD2_VL), SOD2_EVEN);
    float lanes[SOD2_VL];
    for (int64_t i = 0; i < SOD2_VL; i++) lanes[i] = line[i * stride];
    return vf_load(lanes);
}

/* As load_strided, for the first `count` windows only. */
SOD2_INLINE vf load_few(int average, const float *line, int64_t stride, int64_t count) {
    float lanes[SOD2_VL];
    vf_store(lanes, neutral(average));
    for (int64_t i = 0; i < count; i++) lanes[i] = line[i * stride];
    return vf_load(lanes);
}

/* y[i] = all of line[i * stride + k * dilation], 0 <= k < taps, combined, and with the old y[i] unless `first`. */
SOD2_INLINE void slide(int average, int64_t stride, const float *line, int64_t taps, int64_t dilation, int first,
                       float *y, int64_t count) {
    int64_t i = 0;
    for (; i + SOD2_VL <= count; i += SOD2_VL) {
        vf total = first ? neutral(average) : vf_load(y + i);
        for (int64_t k = 0; k < taps; k++)
            total = combine(average, total, load_strided(line + i * stride + k * dilation, stride));
        vf_store(y + i, total);
    }
    if (i < count) {
        vf total = first ? neutral(average) : load(average, y + i, count - i);
        for (int64_t k = 0; k < taps; k++) {
            const float *x = line + i * stride + k * dilation;
            vf step = stride <= 2 ? load_strided(x, stride) : load_few(average, x, stride, count - i);
            total = combine(average, total, step);
        }
        vf_store_partial(y + i, total, count - i);
    }
}

/* `count` outputs from column `first` of `rows` rows, whose first window starts at row `top`; (count - 1) * sw < LINE.
   All lines are made before windows slide over them: a load that spans two stores which are still under way stalls. */
SOD2_INLINE void pool_tile(const sod2_pooling *p, int average, const float *plane, int64_t top, int64_t rows,
                           int64_t first, int64_t count, float *y) {
    float line[ROWS * (LINE + SLACK)];
    const int64_t reach = (count - 1) * p->sw + 1; /* columns that one tap sees */
    const int64_t piece = sod2_imin(p->kw, (LINE - reach) / p->dw + 1);
    for (int64_t k = 0, taps; k < p->kw; k += taps) {
        taps = sod2_imin(piece, p->kw - k);
        const int64_t column = first * p->sw - p->pl + k * p->dw, width = reach + (taps - 1) * p->dw;
        const int64_t ld = width + SLACK;
        for (int64_t r = 0; r < rows; r++)
            combine_rows(p, average, plane, top + r * p->sh, column, width, line + r * ld);
        for (int64_t r = 0; r < rows; r++) {
            if (p->sw == 1)
                slide(average, 1, line + r * ld, taps, p->dw, k == 0, y + r * p->ow, count);
            else if (p->sw == 2)
                slide(average, 2, line + r * ld, taps, p->dw, k == 0, y + r * p->ow, count);
            else
                slide(average, p->sw, line + r * ld, taps, p->dw, k == 0, y + r * p->ow, count);
        }
    }
}

/* line[r * ld ..] = VL columns from `column`, combined over the kh rows from top + r, 0 <= r < rows; lanes [begin, end)
   are in the image, `whole`: all. */
SOD2_INLINE void combine_dense(const sod2_pooling *p, int average, int whole, int64_t kh, const float *x, int64_t begin,
                               int64_t end, int64_t top, int64_t rows, float *line, int64_t ld) {
    const int64_t ih = p->ih, iw = p->iw;
    const float fill = neutral(average)[0];
    x += top * iw;
    for (int64_t r = 0; r < rows; r++, top++, x += iw, line += ld) {
        vf total = neutral(average);
        if (top >= 0 && top + kh <= ih) {
            for (int64_t k = 0; k < kh; k++) {
                const vf row = whole ? vf_load(x + k * iw) : vf_load_between(x + k * iw, begin, end, fill);
                total = k == 0 ? row : combine(average, row, total);
            }
        } else {
            for (int64_t k = sod2_imax(0, -top); k < sod2_imin(kh, ih - top); k++)
                total = combine(average, vf_load_between(x + k * iw, begin, end, fill), total);
        }
        vf_store(line, total);
    }
}

/* As pool_tile, for stride and dilation 1 and all taps at once; kh and kw are constants where this is inlined. */
SOD2_INLINE void pool_dense(const sod2_pooling *p, int average, int64_t kh, int64_t kw, const float *plane, int64_t top,
                            int64_t rows, int64_t first, int64_t count, float *y) {
    _Alignas(64) float line[ROWS * (LINE + SLACK)];
    const int64_t width = count + kw - 1, ow = p->ow;
    const int64_t ld = (width + SOD2_VL - 1) / SOD2_VL * SOD2_VL + SOD2_VL; /* the last vectors read behind */
    for (int64_t c = 0; c < width; c += SOD2_VL) {
        const int64_t column = first - p->pl + c, begin = sod2_imin(SOD2_VL, sod2_imax(0, -column));
        const int64_t end = sod2_imax(begin, sod2_imin(SOD2_VL, p->iw - column));
        if (end - begin == SOD2_VL)
            combine_dense(p, average, 1, kh, plane + column, begin, end, top, rows, line + c, ld);
        else
            combine_dense(p, average, 0, kh, plane + column, begin, end, top, rows, line + c, ld);
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < count; i += SOD2_VL) {
            const float *x = line + r * ld + i;
            vf total = vf_load(x);
            for (int64_t k = 1; k < kw; k++) total = combine(average, vf_load(x + k), total);
            vf_store_partial(y + r * ow + i, total, sod2_imin(SOD2_VL, count - i));
        }
}

/* Windows next to each other in every direction, which cover the image. */
static int tiles_image(const sod2_pooling *p) {
    return p->sh == p->kh && p->sw == p->kw && p->dh == 1 && p->dw == 1 && p->pt == 0 && p->pl == 0 &&
           p->oh * p->kh == p->ih && p->ow * p->kw == p->iw && p->iw <= LINE;
}

/* VL windows of 2, 4 or 8 neighbours. */
SOD2_INLINE vf combine_pairs(int average, vf low, vf high) {
    const vf even = __builtin_shufflevector(low, high, SOD2_EVEN), odd = __builtin_shufflevector(low, high, SOD2_ODD);
    return combine(average, even, odd);
}
SOD2_INLINE vf windows_2(int average, const float *x) {
    return combine_pairs(average, vf_load(x), vf_load(x + SOD2_VL));
}
SOD2_INLINE vf windows_4(int average, const float *x) {
    return combine_pairs(average, windows_2(average, x), windows_2(average, x + 2 * SOD2_VL));
}
SOD2_INLINE vf windows_8(int average, const float *x) {
    return combine_pairs(average, windows_4(average, x), windows_4(average, x + 4 * SOD2_VL));
}

/* VL windows of kw neighbours each, of which `count` are there. */
SOD2_INLINE vf windows(int average, const float *x, int64_t kw, int64_t count) {
    if (kw == 2) return windows_2(average, x);
    if (kw == 4) return windows_4(average, x);
    if (kw == 8) return windows_8(average, x);
    vf total = load_few(average, x, kw, count);
    for (int64_t k = 1; k < kw; k++) total = combine(average, total, load_few(average, x + k, kw, count));
    return total;
}

/* Whole rows of outputs, of one image or several, by windows that tile the image: all are one line. */
SOD2_INLINE void pool_tiles(const sod2_pooling *p, int average, int64_t row, int64_t rows) {
    float line[2 * LINE + 8 * SOD2_VL]; /* the last vectors read behind */
    const float *x = p->x + row * p->kh * p->iw;
    const float whole = average ? (float)(p->kh * p->kw) : 1.0f;
    float *y = p->y + row * p->ow;
    for (int64_t r = 0; r < rows; r++, x += p->kh * p->iw)
        for (int64_t c = 0; c < p->iw; c += SOD2_VL) {
            const int64_t count = sod2_imin(SOD2_VL, p->iw - c);
            vf total = load(average, x + c, count);
            for (int64_t k = 1; k < p->kh; k++) total = combine(average, total, load(average, x + c + k * p->iw, count));
            vf_store(line + r * p->iw + c, total);
        }
    for (int64_t i = 0; i < rows * p->ow; i += SOD2_VL) {
        const int64_t count = sod2_imin(SOD2_VL, rows * p->ow - i);
        vf_store_partial(y + i, windows(average, line + i * p->kw, p->kw, count) / whole, count);
    }
}

static void tiles_chunk(void *arg, int64_t chunk, int thread) {
    const job *j = arg;
    const sod2_pooling *p = j->p;
    const int64_t end = sod2_imin(p->n * p->c * p->oh, (chunk + 1) * j->grain), most = 2 * LINE / p->iw;
    (void)thread;
    for (int64_t row = chunk * j->grain; row < end; row += most) {
        if (j->average)
            pool_tiles(p, 1, row, sod2_imin(most, end - row));
        else
            pool_tiles(p, 0, row, sod2_imin(most, end - row));
    }
}

/* Some columns of some rows: see pool_tile. */
SOD2_INLINE void pool_part(const sod2_pooling *p, int average, const float *plane, int64_t top, int64_t rows,
                           int64_t first, int64_t count, float *y) {
    if (p->sh != 1 || p->sw != 1 || p->dh != 1 || p->dw != 1 || p->kw > LINE / 2)
        pool_tile(p, average, plane, top, rows, first, count, y);
    else if (p->kh == 3 && p->kw == 3)
        pool_dense(p, average, 3, 3, plane, top, rows, first, count, y);
    else if (p->kh == 5 && p->kw == 5)
        pool_dense(p, average, 5, 5, plane, top, rows, first, count, y);
    else
        pool_dense(p, average, p->kh, p->kw, plane, top, rows, first, count, y);
}

/* Sums to means. Between the edges all windows count alike. */
static void divide_row(const job *j, int64_t top, float *y) {
    const sod2_pooling *p = j->p;
    const int64_t above = j->include_pad ? -p->pt : 0, below = p->ih + (j->include_pad ? p->pb : 0);
    const int64_t left = j->include_pad ? -p->pl : 0, right = p->iw + (j->include_pad ? p->pr : 0);
    const int64_t rows = inside(top, p->dh, p->kh, above, below), extent = (p->kw - 1) * p->dw;
    const int64_t begin = sod2_imin(p->ow, (left + p->pl + p->sw - 1) / p->sw);
    const int64_t end = inside(-p->pl, p->sw, p->ow, INT64_MIN, right - extent); /* windows that end inside */
    const float whole = (float)(rows * p->kw);
    for (int64_t o = 0; o < p->ow; o++) {
        if (o >= begin && o < end) {
            for (; o < end; o++) y[o] /= whole;
            if (o == p->ow) break;
        }
        int64_t count = rows * inside(o * p->sw - p->pl, p->dw, p->kw, left, right);
        y[o] = count == 0 ? 0.0f : y[o] / (float)count;
    }
}

/* Rows of one plane from output row `row`; y is that row. */
static void pool_rows(const job *j, const float *plane, int64_t row, int64_t rows, float *y) {
    const sod2_pooling *p = j->p;
    const int64_t tile = sod2_imax(1, LINE / 2 / p->sw), top = row * p->sh - p->pt;
    for (int64_t o = 0; o < p->ow; o += tile) {
        int64_t count = sod2_imin(tile, p->ow - o);
        if (j->average)
            pool_part(p, 1, plane, top, rows, o, count, y + o);
        else
            pool_part(p, 0, plane, top, rows, o, count, y + o);
    }
    if (j->average)
        for (int64_t r = 0; r < rows; r++) divide_row(j, top + r * p->sh, y + r * p->ow);
}

static void run_chunk(void *arg, int64_t chunk, int thread) {
    const job *j = arg;
    const sod2_pooling *p = j->p;
    const int64_t end = sod2_imin(p->n * p->c * p->oh, (chunk + 1) * j->grain);
    (void)thread;
    for (int64_t row = chunk * j->grain, rows; row < end; row += rows) {
        const int64_t plane = row / p->oh;
        rows = sod2_imin(ROWS, sod2_imin(end, (plane + 1) * p->oh) - row);
        pool_rows(j, p->x + plane * p->ih * p->iw, row % p->oh, rows, p->y + row * p->ow);
    }
}

static void run(const sod2_pooling *p, int average, int include_pad, sod2_pool *pool) {
    const int64_t rows = p->n * p->c * p->oh;
    const int64_t cost = p->ow * (p->kh * p->sw + p->kw);
    if (rows == 0 || p->ow == 0) return;
    job j = {.p = p, .average = average, .include_pad = include_pad};
    j.grain = sod2_imax(1, GRAIN / sod2_imax(1, cost));
    sod2_parallel(pool, (rows + j.grain - 1) / j.grain, tiles_image(p) ? tiles_chunk : run_chunk, &j);
}

void sod2_max_pool(const sod2_pooling *p, sod2_pool *pool) { run(p, 0, 0, pool); }

void sod2_average_pool(const sod2_pooling *p, int count_include_pad, sod2_pool *pool) {
    run(p, 1, count_include_pad, pool);
}
