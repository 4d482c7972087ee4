/* Reductions over any set of axes. The output is cut into chunks; each of its elements walks its window line by line,
   a line being a piece of the innermost reduced axis. */
#include "reduce_nd.h"

#include <limits.h>

#include "lines.h"

typedef struct window {
    const void *x;
    void *y;
    int32_t dtype;
    sod2_reduction op;
    int kept, reduced;                                          /* number of axes */
    int64_t size[SOD2_MAX_RANK], stride[SOD2_MAX_RANK];         /* of the kept axes */
    int64_t r_size[SOD2_MAX_RANK], r_stride[SOD2_MAX_RANK];     /* of the reduced axes */
    int64_t outputs, members;                                   /* elements of y, elements of a window */
    int64_t chunk;                                              /* elements of y handled at a time */
} window;

/* What one pass over a window carries. `shift` is subtracted under the exponential. */
typedef struct total {
    double real, shift;
    int64_t integer;
} total;

static int64_t integer_limit(int32_t dtype, int lowest) {
    switch (dtype) {
        case SOD2_BOOL: return !lowest;
        case SOD2_UINT8: return lowest ? 0 : UINT8_MAX;
        case SOD2_INT8: return lowest ? INT8_MIN : INT8_MAX;
        case SOD2_INT16: return lowest ? INT16_MIN : INT16_MAX;
        case SOD2_INT32: return lowest ? INT32_MIN : INT32_MAX;
        case SOD2_UINT32: return lowest ? 0 : UINT32_MAX;
        default: return lowest ? INT64_MIN : INT64_MAX;
    }
}

static total start(int32_t dtype, sod2_reduction op) {
    total t = {0, 0, 0};
    if (op == SOD2_REDUCE_PROD) t.real = t.integer = 1;
    if (op == SOD2_REDUCE_MAX) t.real = -INFINITY, t.integer = integer_limit(dtype, 1);
    if (op == SOD2_REDUCE_MIN) t.real = INFINITY, t.integer = integer_limit(dtype, 0);
    return t;
}

static void add_floats(total *t, sod2_reduction op, const double *line, int64_t n) {
    double a = t->real;
    switch (op) {
        case SOD2_REDUCE_MAX:
            for (int64_t i = 0; i < n; i++) a = line[i] > a || line[i] != line[i] ? line[i] : a;
            break;
        case SOD2_REDUCE_MIN:
            for (int64_t i = 0; i < n; i++) a = line[i] < a || line[i] != line[i] ? line[i] : a;
            break;
        case SOD2_REDUCE_PROD:
            for (int64_t i = 0; i < n; i++) a *= line[i];
            break;
        case SOD2_REDUCE_L1:
            for (int64_t i = 0; i < n; i++) a += fabs(line[i]);
            break;
        case SOD2_REDUCE_L2:
        case SOD2_REDUCE_SUM_SQUARE:
            for (int64_t i = 0; i < n; i++) a += line[i] * line[i];
            break;
        case SOD2_REDUCE_LOG_SUM_EXP:
            for (int64_t i = 0; i < n; i++) a += exp(line[i] - t->shift);
            break;
        default: /* SUM, MEAN, LOG_SUM */
            for (int64_t i = 0; i < n; i++) a += line[i];
    }
    t->real = a;
}

static void add_ints(total *t, sod2_reduction op, const int64_t *line, int64_t n) {
    uint64_t a = (uint64_t)t->integer; /* wraps without undefined behaviour */
    switch (op) {
        case SOD2_REDUCE_MAX:
            for (int64_t i = 0; i < n; i++) a = line[i] > (int64_t)a ? (uint64_t)line[i] : a;
            break;
        case SOD2_REDUCE_MIN:
            for (int64_t i = 0; i < n; i++) a = line[i] < (int64_t)a ? (uint64_t)line[i] : a;
            break;
        case SOD2_REDUCE_PROD:
            for (int64_t i = 0; i < n; i++) a *= (uint64_t)line[i];
            break;
        case SOD2_REDUCE_L1:
            for (int64_t i = 0; i < n; i++) a += line[i] < 0 ? 0 - (uint64_t)line[i] : (uint64_t)line[i];
            break;
        case SOD2_REDUCE_L2:
        case SOD2_REDUCE_SUM_SQUARE:
            for (int64_t i = 0; i < n; i++) a += (uint64_t)line[i] * (uint64_t)line[i];
            break;
        case SOD2_REDUCE_LOG_SUM_EXP:
            for (int64_t i = 0; i < n; i++) t->real += exp((double)line[i] - t->shift);
            break;
        default:
            for (int64_t i = 0; i < n; i++) a += (uint64_t)line[i];
    }
    t->integer = (int64_t)a;
}

/* Adds all elements of the window that starts at `base`. */
static void walk(const window *w, int64_t base, sod2_reduction op, total *t) {
    const int inner = w->reduced - 1; /* the line; -1 when no axis is reduced */
    const int64_t length = inner < 0 ? 1 : w->r_size[inner], stride = inner < 0 ? 1 : w->r_stride[inner];
    int64_t position[SOD2_MAX_RANK] = {0};
    if (w->members == 0) return;
    for (;;) {
        for (int64_t i = 0; i < length; i += SOD2_LINE) {
            const int64_t n = sod2_imin(SOD2_LINE, length - i);
            if (sod2_is_float(w->dtype)) {
                double line[SOD2_LINE];
                sod2_read_floats(w->dtype, w->x, base + i * stride, stride, n, line);
                add_floats(t, op, line, n);
            } else {
                int64_t line[SOD2_LINE];
                sod2_read_ints(w->dtype, w->x, base + i * stride, stride, n, line);
                add_ints(t, op, line, n);
            }
        }
        int axis = inner - 1;
        while (axis >= 0 && ++position[axis] == w->r_size[axis]) {
            base -= (w->r_size[axis] - 1) * w->r_stride[axis];
            position[axis--] = 0;
        }
        if (axis < 0) return;
        base += w->r_stride[axis];
    }
}

/* The largest element when it is finite, else 0: keeps the exponentials in range. */
static double shift_of(const window *w, int64_t base) {
    total t = start(w->dtype, SOD2_REDUCE_MAX);
    if (w->members == 0) return 0;
    walk(w, base, SOD2_REDUCE_MAX, &t);
    const double top = sod2_is_float(w->dtype) ? t.real : (double)t.integer;
    return isfinite(top) ? top : 0;
}

static double finish(const window *w, double a, double shift) {
    switch (w->op) {
        case SOD2_REDUCE_MEAN: return a / (double)w->members;
        case SOD2_REDUCE_L2: return sqrt(a);
        case SOD2_REDUCE_LOG_SUM: return log(a);
        case SOD2_REDUCE_LOG_SUM_EXP: return log(a) + shift;
        default: return a;
    }
}

static void store(const window *w, int64_t i, total t) {
    if (sod2_is_float(w->dtype)) {
        sod2_write_float(w->dtype, w->y, i, finish(w, t.real, t.shift));
        return;
    }
    double real = 0;
    switch (w->op) {
        case SOD2_REDUCE_MEAN: t.integer = sod2_truncdiv(t.integer, w->members); break;
        case SOD2_REDUCE_L2:
        case SOD2_REDUCE_LOG_SUM: real = finish(w, (double)t.integer, 0); break;
        case SOD2_REDUCE_LOG_SUM_EXP: real = finish(w, t.real, t.shift); break;
        default: break;
    }
    if (w->op == SOD2_REDUCE_L2 || w->op == SOD2_REDUCE_LOG_SUM || w->op == SOD2_REDUCE_LOG_SUM_EXP)
        t.integer = real > -9.2e18 && real < 9.2e18 ? (int64_t)real : INT64_MIN;
    sod2_write_int(w->dtype, w->y, i, t.integer);
}

static void reduce_chunk(void *arg, int64_t chunk, int thread) {
    const window *w = arg;
    (void)thread;
    const int64_t end = sod2_imin(w->outputs, (chunk + 1) * w->chunk);
    for (int64_t i = chunk * w->chunk; i < end; i++) {
        int64_t base = 0;
        for (int64_t axis = w->kept - 1, rest = i; axis >= 0; rest /= w->size[axis--])
            base += rest % w->size[axis] * w->stride[axis];
        total t = start(w->dtype, w->op);
        if (w->op == SOD2_REDUCE_LOG_SUM_EXP) t.shift = shift_of(w, base);
        walk(w, base, w->op, &t);
        store(w, i, t);
    }
}

void sod2_reduce_nd(const void *x, void *y, int32_t dtype, sod2_reduction op, int rank, const int64_t *dims,
                    uint32_t reduced, sod2_pool *pool) {
    window w = {.x = x, .y = y, .dtype = dtype, .op = op, .outputs = 1, .members = 1};
    int64_t stride[SOD2_MAX_RANK];
    for (int64_t axis = rank - 1, step = 1; axis >= 0; step *= dims[axis--]) stride[axis] = step;
    for (int axis = 0; axis < rank; axis++) {
        if (reduced >> axis & 1) {
            w.members *= dims[axis];
            w.r_size[w.reduced] = dims[axis];
            w.r_stride[w.reduced++] = stride[axis];
        } else {
            w.outputs *= dims[axis];
            w.size[w.kept] = dims[axis];
            w.stride[w.kept++] = stride[axis];
        }
    }
    w.chunk = sod2_imax(1, 4096 / sod2_imax(1, w.members));
    sod2_parallel(pool, sod2_ceildiv(w.outputs, w.chunk), reduce_chunk, &w);
}
