/* Softmax and normalisations of doubles, an item of work after the other in plain C: what rows.c does for floats. */
#include "kernels.h"

enum { GRAIN = 8192 }; /* elements a chunk */

typedef struct softmax {
    const double *x;
    double *y;
    int logarithm;
    int64_t items, n, inner, grain;
} softmax;

static void softmax_item(const softmax *s, int64_t item) {
    const int64_t first = item / s->inner * s->n * s->inner + item % s->inner;
    const double *x = s->x + first;
    double *y = s->y + first, top = -INFINITY, total = 0;
    for (int64_t i = 0; i < s->n; i++) {
        const double value = x[i * s->inner];
        top = value > top || value != value ? value : top;
    }
    for (int64_t i = 0; i < s->n; i++) {
        const double shifted = x[i * s->inner] - top, power = exp(shifted);
        total += power;
        y[i * s->inner] = s->logarithm ? shifted : power;
    }
    const double rest = log(total);
    for (int64_t i = 0; i < s->n; i++) {
        double *value = y + i * s->inner;
        *value = s->logarithm ? *value - rest : *value / total;
    }
}

static void softmax_chunk(void *arg, int64_t chunk, int thread) {
    const softmax *s = arg;
    (void)thread;
    for (int64_t i = chunk * s->grain; i < sod2_imin(s->items, (chunk + 1) * s->grain); i++) softmax_item(s, i);
}

void sod2_softmax_double(const double *x, double *y, int logarithm, int64_t outer, int64_t n, int64_t inner,
                         sod2_pool *pool) {
    softmax s = {x, y, logarithm, outer * inner, n, inner, sod2_imax(1, GRAIN / sod2_imax(1, n))};
    sod2_parallel(pool, sod2_ceildiv(s.items, s.grain), softmax_chunk, &s);
}

static void normalise_row(const sod2_normalisation_double *p, int64_t row) {
    const double *x = p->x + row * p->n;
    double *y = p->y + row * p->n, mean = 0, square = 0;
    if (p->centred) {
        for (int64_t i = 0; i < p->n; i++) mean += x[i];
        mean /= (double)p->n;
    }
    for (int64_t i = 0; i < p->n; i++) square += (x[i] - mean) * (x[i] - mean);
    const double inverse = 1 / sqrt(square / (double)p->n + p->epsilon);
    const int64_t first = row % p->period * p->step;
    for (int64_t i = 0; i < p->n; i++) {
        const int64_t at = first + i / p->span;
        y[i] = (x[i] - mean) * inverse * p->scale[at] + (p->bias ? p->bias[at] : 0);
    }
    if (p->mean) p->mean[row] = (float)mean;
    if (p->inv_std) p->inv_std[row] = (float)inverse;
}

static void normalise_chunk(void *arg, int64_t chunk, int thread) {
    const sod2_normalisation_double *p = arg;
    const int64_t grain = sod2_imax(1, GRAIN / sod2_imax(1, p->n));
    (void)thread;
    for (int64_t row = chunk * grain; row < sod2_imin(p->rows, (chunk + 1) * grain); row++) normalise_row(p, row);
}

void sod2_normalise_double(sod2_normalisation_double *p, sod2_pool *pool) {
    const int64_t grain = sod2_imax(1, GRAIN / sod2_imax(1, p->n));
    sod2_parallel(pool, sod2_ceildiv(p->rows, grain), normalise_chunk, p);
}
