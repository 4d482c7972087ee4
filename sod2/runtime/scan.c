/* Kernels that walk one axis of [outer, n, inner] in order: position of the extremum, running sums and products. Work is cut into
   rows of `inner` lines, which are walked side by side. */
#include "lines.h"
#include "reduce_nd.h"

typedef struct scan {
    const void *x;
    void *y;
    int32_t dtype;
    int smallest, last, product, exclusive, reverse;
    int64_t n, inner;
} scan;

/* Whether `a` replaces `best` as the extremum. */
SOD2_INLINE int better_float(const scan *s, double a, double best) {
    if (best != best) return s->last && a != a;
    return a != a || (s->smallest ? a < best : a > best) || (s->last && a == best);
}
SOD2_INLINE int better_int(const scan *s, int64_t a, int64_t best) {
    return (s->smallest ? a < best : a > best) || (s->last && a == best);
}

static void extremum_line(const scan *s, int64_t base, int64_t *y) {
    double real = 0;
    int64_t integer = 0, index = 0;
    for (int64_t i = 0; i < s->n; i += SOD2_LINE) {
        const int64_t n = sod2_imin(SOD2_LINE, s->n - i);
        if (sod2_is_float(s->dtype)) {
            double line[SOD2_LINE];
            sod2_read_floats(s->dtype, s->x, base + i * s->inner, s->inner, n, line);
            for (int64_t j = 0; j < n; j++)
                if (i + j == 0 || better_float(s, line[j], real)) real = line[j], index = i + j;
        } else {
            int64_t line[SOD2_LINE];
            sod2_read_ints(s->dtype, s->x, base + i * s->inner, s->inner, n, line);
            for (int64_t j = 0; j < n; j++)
                if (i + j == 0 || better_int(s, line[j], integer)) integer = line[j], index = i + j;
        }
    }
  *y = index;
}

static void extremum_row(void *arg, int64_t outer, int thread) {
    const scan *s = arg;
    (void)thread;
    for (int64_t i = 0; i < s->inner; i++)
        extremum_line(s, outer * s->n * s->inner + i, (int64_t *)s->y + outer * s->inner + i);
}

void sod2_arg_extremum(const void *x, int64_t *y, int32_t dtype, int smallest, int last, int64_t outer, int64_t n,
                       int64_t inner, sod2_pool *pool) {
    scan s = {.x = x, .y = y, .dtype = dtype, .smallest = smallest, .last = last, .n = n, .inner = inner};
    sod2_parallel(pool, outer, extremum_row, &s);
}

static void running_line(const scan *s, int64_t base) {
    double real = s->product;
    uint64_t integer = (uint64_t)s->product; /* wraps without undefined behaviour */
    for (int64_t i = 0; i < s->n; i++) {
        const int64_t at = base + (s->reverse ? s->n - 1 - i : i) * s->inner;
        if (sod2_is_float(s->dtype)) {
            double a;
            sod2_read_floats(s->dtype, s->x, at, 1, 1, &a);
            const double next = s->product ? real * a : real + a;
            sod2_write_float(s->dtype, s->y, at, s->exclusive ? real : next);
            real = next;
        } else {
            int64_t a;
            sod2_read_ints(s->dtype, s->x, at, 1, 1, &a);
            const uint64_t next = s->product ? integer * (uint64_t)a : integer + (uint64_t)a;
            sod2_write_int(s->dtype, s->y, at, (int64_t)(s->exclusive ? integer : next));
            integer = next;
        }
    }
}

static void running_row(void *arg, int64_t outer, int thread) {
    const scan *s = arg;
    (void)thread;
    for (int64_t i = 0; i < s->inner; i++) running_line(s, outer * s->n * s->inner + i);
}

void sod2_running(const void *x, void *y, int32_t dtype, const sod2_running_options *o, int rank, const int64_t *dims,
                  int64_t axis, sod2_pool *pool) {
    int64_t outer = 1, inner = 1;
    if (axis < 0) axis += rank;
    if (axis < 0 || axis >= rank) return;
    for (int64_t i = 0; i < axis; i++) outer *= dims[i];
    for (int64_t i = axis + 1; i < rank; i++) inner *= dims[i];
    scan s = {.x = x, .y = y, .dtype = dtype, .n = dims[axis], .inner = inner};
    s.product = o->product, s.exclusive = o->exclusive, s.reverse = o->reverse;
    sod2_parallel(pool, outer, running_row, &s);
}
