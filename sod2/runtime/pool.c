/* Max and average pooling. Both are separable: for a row of outputs, the input rows under the window are combined into
   one buffered line first, and windows then slide along it. That is kh + kw operations an output instead of kh * kw,
   with unit stride in the larger part. Columns outside the image hold the neutral element in the buffer, so that the
   sliding needs no test; a window that does not fit the buffer is taken in pieces. */
#include "kernels.h"

enum {
    LINE = 2048,  /* floats in the buffered line: 8 KB of stack */
    GRAIN = 32768 /* operations a chunk: some 4 us */
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

SOD2_INLINE float combine(int average, float a, float b) { return average ? a + b : sod2_maxf(a, b); }

/* line[0 .. width) = input columns from `column`, combined over the rows of the window that starts at row `top`. */
SOD2_INLINE void combine_rows(const sod2_pooling *p, int average, const float *plane, int64_t top, int64_t column,
                              int64_t width, float *line) {
    const float neutral = average ? 0.0f : -INFINITY;
    const int64_t begin = sod2_imin(sod2_imax(0, -column), width);
    const int64_t end = sod2_imax(begin, sod2_imin(width, p->iw - column));
    for (int64_t c = 0; c < width; c++) line[c] = neutral;
    for (int64_t k = 0; k < p->kh; k++) {
        int64_t row = top + k * p->dh;
        if (row < 0 || row >= p->ih) continue;
        const float *x = plane + row * p->iw + column;
        for (int64_t c = begin; c < end; c++) line[c] = combine(average, line[c], x[c]);
    }
}

/* y[i] combined with line[i * stride + k * dilation] for each k; inlined with constant strides 1 and 2. */
SOD2_INLINE void slide(int average, int64_t stride, const float *line, int64_t taps, int64_t dilation, float *y,
                       int64_t count) {
    for (int64_t k = 0; k < taps; k++)
        for (int64_t i = 0; i < count; i++) y[i] = combine(average, y[i], line[i * stride + k * dilation]);
}

/* Outputs first .. first+count-1 of a row; (count - 1) * sw < LINE. */
SOD2_INLINE void pool_tile(const sod2_pooling *p, int average, const float *plane, int64_t top, int64_t first,
                           int64_t count, float *y) {
    float line[LINE];
    const int64_t reach = (count - 1) * p->sw + 1; /* columns that one tap sees */
    const int64_t piece = sod2_imin(p->kw, (LINE - reach) / p->dw + 1);
    for (int64_t i = 0; i < count; i++) y[i] = average ? 0.0f : -INFINITY;
    for (int64_t k = 0, taps; k < p->kw; k += taps) {
        taps = sod2_imin(piece, p->kw - k);
        int64_t column = first * p->sw - p->pl + k * p->dw;
        combine_rows(p, average, plane, top, column, reach + (taps - 1) * p->dw, line);
        if (p->sw == 1)
            slide(average, 1, line, taps, p->dw, y, count);
        else if (p->sw == 2)
            slide(average, 2, line, taps, p->dw, y, count);
        else
            slide(average, p->sw, line, taps, p->dw, y, count);
    }
}

/* Sums to means. */
static void divide_row(const job *j, int64_t top, float *y) {
    const sod2_pooling *p = j->p;
    const int64_t above = j->include_pad ? -p->pt : 0, below = p->ih + (j->include_pad ? p->pb : 0);
    const int64_t left = j->include_pad ? -p->pl : 0, right = p->iw + (j->include_pad ? p->pr : 0);
    const int64_t rows = inside(top, p->dh, p->kh, above, below);
    for (int64_t o = 0; o < p->ow; o++) {
        int64_t start = o * p->sw - p->pl;
        int whole = start >= left && start + (p->kw - 1) * p->dw < right;
        int64_t count = rows * (whole ? p->kw : inside(start, p->dw, p->kw, left, right));
        y[o] = count == 0 ? 0.0f : y[o] / (float)count;
    }
}

static void run_chunk(void *arg, int64_t chunk, int thread) {
    const job *j = arg;
    const sod2_pooling *p = j->p;
    const int64_t rows = p->n * p->c * p->oh, end = sod2_imin(rows, (chunk + 1) * j->grain);
    const int64_t tile = sod2_imax(1, LINE / 2 / p->sw);
    (void)thread;
    for (int64_t row = chunk * j->grain; row < end; row++) {
        const float *plane = p->x + row / p->oh * p->ih * p->iw;
        const int64_t top = row % p->oh * p->sh - p->pt;
        float *y = p->y + row * p->ow;
        for (int64_t o = 0; o < p->ow; o += tile) {
            int64_t count = sod2_imin(tile, p->ow - o);
            if (j->average)
                pool_tile(p, 1, plane, top, o, count, y + o);
            else
                pool_tile(p, 0, plane, top, o, count, y + o);
        }
        if (j->average) divide_row(j, top, y);
    }
}

static void run(const sod2_pooling *p, int average, int include_pad, sod2_pool *pool) {
    const int64_t rows = p->n * p->c * p->oh;
    const int64_t cost = p->ow * (p->kh * p->sw + p->kw);
    if (rows == 0 || p->ow == 0) return;
    job j = {.p = p, .average = average, .include_pad = include_pad};
    j.grain = sod2_imax(1, GRAIN / sod2_imax(1, cost));
    sod2_parallel(pool, (rows + j.grain - 1) / j.grain, run_chunk, &j);
}

void sod2_max_pool(const sod2_pooling *p, sod2_pool *pool) { run(p, 0, 0, pool); }

void sod2_average_pool(const sod2_pooling *p, int count_include_pad, sod2_pool *pool) {
    run(p, 1, count_include_pad, pool);
}
