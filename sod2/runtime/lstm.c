/* LSTM by steps. A unit's four gates are dot products of rows of W and R with the input and the last hidden state; they
   are computed together and turned into the new state at once, so no buffer of gates is needed. Both directions and all
   sequences of the batch advance in the same step. Within a step threads share blocks of units; small layers stay on
   one thread. */
#include "kernels.h"

enum { GRAIN = 32768 }; /* multiply-adds a chunk: some 2 us */

typedef struct job {
    const sod2_lstm *l;
    int64_t step, units, blocks; /* units a block, blocks a sequence */
    float *h_last, *h_next, *c;  /* [directions, batch, hidden] */
} job;

int64_t sod2_lstm_scratch(const sod2_lstm *l, int threads) {
    (void)threads;
    return 3 * l->directions * l->batch * l->hidden * (int64_t)sizeof(float);
}

/* z[g] += row g of m . x; rows are `ld` floats apart. */
SOD2_INLINE void add_products(float z[4], const float *m, int64_t ld, const float *x, int64_t n) {
    vf s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    int64_t i = 0;
    for (; i + SOD2_VL <= n; i += SOD2_VL) {
        vf v = vf_load(x + i);
        s0 += vf_load(m + i) * v;
        s1 += vf_load(m + ld + i) * v;
        s2 += vf_load(m + 2 * ld + i) * v;
        s3 += vf_load(m + 3 * ld + i) * v;
    }
    if (i < n) {
        vf v = vf_load_partial(x + i, n - i, 0.0f);
        s0 += vf_load_partial(m + i, n - i, 0.0f) * v;
        s1 += vf_load_partial(m + ld + i, n - i, 0.0f) * v;
        s2 += vf_load_partial(m + 2 * ld + i, n - i, 0.0f) * v;
        s3 += vf_load_partial(m + 3 * ld + i, n - i, 0.0f) * v;
    }
    z[0] += vf_sum_lanes(s0);
    z[1] += vf_sum_lanes(s1);
    z[2] += vf_sum_lanes(s2);
    z[3] += vf_sum_lanes(s3);
}

/* Pre-activations i, o, f, c of unit u. */
static void gates(const sod2_lstm *l, int64_t direction, int64_t u, const float *x, const float *h, float z[4]) {
    const int64_t hidden = l->hidden;
    const float *b = l->b == NULL ? NULL : l->b + direction * 8 * hidden + u;
    for (int64_t g = 0; g < 4; g++) z[g] = b == NULL ? 0.0f : b[g * hidden] + b[(4 + g) * hidden];
    add_products(z, l->w + (direction * 4 * hidden + u) * l->input, hidden * l->input, x, l->input);
    add_products(z, l->r + (direction * 4 * hidden + u) * hidden, hidden * hidden, h, hidden);
}

/* New cell and hidden state of unit u. */
static void advance_unit(const sod2_lstm *l, int64_t direction, int64_t u, const float *x, const float *h, float *c,
                         float *h_next) {
    const float *p = l->p == NULL ? NULL : l->p + direction * 3 * l->hidden + u;
    const float before = *c, clip = l->clip;
    float z[4];
    gates(l, direction, u, x, h, z);
    if (p != NULL) {
        z[0] += p[0] * before;
        z[2] += p[2 * l->hidden] * before;
    }
    float input = sod2_sigmoidf(sod2_clampf(z[0], -clip, clip));
    float forget = l->input_forget ? 1.0f - input : sod2_sigmoidf(sod2_clampf(z[2], -clip, clip));
    *c = forget * before + input * sod2_tanhf(sod2_clampf(z[3], -clip, clip));
    if (p != NULL) z[1] += p[l->hidden] * *c;
    *h_next = sod2_sigmoidf(sod2_clampf(z[1], -clip, clip)) * sod2_tanhf(*c);
}

/* A block of units of one sequence in one direction. */
static void run_block(void *arg, int64_t chunk, int thread) {
    const job *j = arg;
    const sod2_lstm *l = j->l;
    const int64_t sequence = chunk / j->blocks, direction = sequence / l->batch, item = sequence % l->batch;
    const int64_t first = chunk % j->blocks * j->units, end = sod2_imin(l->hidden, first + j->units);
    const int64_t length = l->lengths == NULL ? l->steps : l->lengths[item];
    const int backwards = l->directions == 2 ? direction == 1 : l->reverse;
    const int64_t time = backwards && j->step < length ? length - 1 - j->step : j->step;
    const float *h = j->h_last + sequence * l->hidden;
    float *h_next = j->h_next + sequence * l->hidden;
    float *y = l->y == NULL ? NULL : l->y + ((time * l->directions + direction) * l->batch + item) * l->hidden;
    (void)thread;
    for (int64_t u = first; u < end; u++) {
        if (j->step < length)
            advance_unit(l, direction, u, l->x + (time * l->batch + item) * l->input, h,
                         j->c + sequence * l->hidden + u, h_next + u);
        else
            h_next[u] = h[u];
        if (y != NULL) y[u] = j->step < length ? h_next[u] : 0.0f;
    }
}

static void copy_state(float *to, const float *from, int64_t count) {
    if (from == NULL)
        memset(to, 0, (size_t)count * sizeof(float));
    else
        memcpy(to, from, (size_t)count * sizeof(float));
}

void sod2_lstm_run(const sod2_lstm *l, void *scratch, sod2_pool *pool) {
    const int64_t sequences = l->directions * l->batch, count = sequences * l->hidden;
    float *state = scratch;
    job j = {.l = l, .h_last = state, .h_next = state + count, .c = state + 2 * count};
    if (count == 0) return;
    j.units = sod2_imin(l->hidden, sod2_imax(1, GRAIN / (4 * (l->input + l->hidden))));
    j.blocks = (l->hidden + j.units - 1) / j.units;
    const int small = count * 4 * (l->input + l->hidden) <= GRAIN;
    copy_state(j.h_last, l->h0, count);
    copy_state(j.c, l->c0, count);
    for (j.step = 0; j.step < l->steps; j.step++) {
        sod2_parallel(small ? NULL : pool, sequences * j.blocks, run_block, &j);
        float *swap = j.h_last;
        j.h_last = j.h_next;
        j.h_next = swap;
    }
    if (l->y_h != NULL) copy_state(l->y_h, j.h_last, count);
    if (l->y_c != NULL) copy_state(l->y_c, j.c, count);
}
