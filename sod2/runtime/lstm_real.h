/* LSTM by steps. A unit's four gates are dot products of rows of W and R with the input and the last hidden state; they
   are computed together and turned into the new state at once, so no buffer of gates is needed. Both directions and all
   sequences of the batch advance in the same step. Within a step threads share blocks of units; small layers stay on
   one thread. Compiled for floats (lstm.c) and for doubles (lstm_double.c). */
#include "kernels.h"
#include "real.h"

enum { GRAIN = 32768 }; /* multiply-adds a chunk: some 2 us */

typedef struct job {
    const sod2_lstm *l;
    int64_t step, units, blocks; /* units a block, blocks a sequence */
    real *h_last, *h_next, *c;  /* [directions, batch, hidden] */
    real *h_read;               /* h_last as R sees it */
} job;

int64_t SOD2_REAL(sod2_lstm_scratch)(const sod2_lstm *l, int threads) {
    (void)threads;
    const int64_t state = l->directions * l->batch * l->hidden, rounded = state + l->steps * l->batch * l->input;
    return (3 * state + (l->quantised ? rounded : 0)) * (int64_t)sizeof(real);
}

/* Pre-activations i, o, f, c of unit u. */
static void gates(const sod2_lstm *l, int64_t direction, int64_t u, const real *x, const real *h, real z[4]) {
    const int64_t hidden = l->hidden;
    const real *w = l->w, *r = l->r, *b = l->b == NULL ? NULL : (const real *)l->b + direction * 8 * hidden + u;
    for (int64_t g = 0; g < 4; g++) z[g] = b == NULL ? 0 : b[g * hidden] + b[(4 + g) * hidden];
    real_add_dots(z, w + (direction * 4 * hidden + u) * l->input, hidden * l->input, x, l->input);
    real_add_dots(z, r + (direction * 4 * hidden + u) * hidden, hidden * hidden, h, hidden);
}

/* New cell and hidden state of unit u. */
static void advance_unit(const sod2_lstm *l, int64_t direction, int64_t u, const real *x, const real *h, real *c,
                         real *h_next) {
    const real *p = l->p == NULL ? NULL : (const real *)l->p + direction * 3 * l->hidden + u;
    const real before = *c, clip = l->clip;
    real z[4];
    gates(l, direction, u, x, h, z);
    if (p != NULL) {
        z[0] += p[0] * before;
        z[2] += p[2 * l->hidden] * before;
    }
    real input = real_sigmoid(real_clamp(z[0], -clip, clip));
    real forget = l->input_forget ? 1 - input : real_sigmoid(real_clamp(z[2], -clip, clip));
    *c = forget * before + input * real_tanh(real_clamp(z[3], -clip, clip));
    if (p != NULL) z[1] += p[l->hidden] * *c;
    *h_next = real_sigmoid(real_clamp(z[1], -clip, clip)) * real_tanh(*c);
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
    const real *h = j->h_read + sequence * l->hidden, *last = j->h_last + sequence * l->hidden;
    real *h_next = j->h_next + sequence * l->hidden;
    real *y = l->y == NULL ? NULL : (real *)l->y + ((time * l->directions + direction) * l->batch + item) * l->hidden;
    (void)thread;
    for (int64_t u = first; u < end; u++) {
        if (j->step < length)
            advance_unit(l, direction, u, (const real *)l->x + (time * l->batch + item) * l->input, h,
                         j->c + sequence * l->hidden + u, h_next + u);
        else
            h_next[u] = last[u];
        if (y != NULL) y[u] = j->step < length ? h_next[u] : 0;
    }
}

static void copy_state(real *to, const real *from, int64_t count) {
    if (from == NULL)
        memset(to, 0, (size_t)count * sizeof(real));
    else
        memcpy(to, from, (size_t)count * sizeof(real));
}

/* Numbers rounded as DynamicQuantizeLinear and DequantizeLinear round them. */
static void round_to_8_bits(const real *x, real *y, int64_t n) {
    real low = 0, high = 0;
    for (int64_t i = 0; i < n; i++) low = real_min(low, x[i]), high = real_max(high, x[i]);
    const real scale = high > low ? (high - low) / 255 : 1;
    const real zero = real_clamp(real_rint(-low / scale), 0, 255);
    for (int64_t i = 0; i < n; i++) {
        const real q = real_clamp(real_rint(x[i] / scale) + zero, 0, 255);
        y[i] = (q - zero) * scale;
    }
}

void SOD2_REAL(sod2_lstm_run)(const sod2_lstm *l, void *scratch, sod2_pool *pool) {
    const int64_t sequences = l->directions * l->batch, count = sequences * l->hidden;
    real *state = scratch, *rounded = state + 3 * count;
    sod2_lstm own = *l;
    job j = {.l = &own, .h_last = state, .h_next = state + count, .c = state + 2 * count};
    if (count == 0) return;
    j.units = sod2_imin(l->hidden, sod2_imax(1, GRAIN / (4 * (l->input + l->hidden))));
    j.blocks = (l->hidden + j.units - 1) / j.units;
    const int small = count * 4 * (l->input + l->hidden) <= GRAIN;
    copy_state(j.h_last, l->h0, count);
    copy_state(j.c, l->c0, count);
    if (l->quantised) {
        own.x = rounded + count;
        round_to_8_bits(l->x, rounded + count, l->steps * l->batch * l->input);
    }
    for (j.step = 0; j.step < l->steps; j.step++) {
        j.h_read = l->quantised ? rounded : j.h_last;
        for (int64_t d = 0, size = count / l->directions; l->quantised && d < l->directions; d++)
            round_to_8_bits(j.h_last + d * size, j.h_read + d * size, size);
        sod2_parallel(small ? NULL : pool, sequences * j.blocks, run_block, &j);
        real *swap = j.h_last;
        j.h_last = j.h_next;
        j.h_next = swap;
    }
    if (l->y_h != NULL) copy_state(l->y_h, j.h_last, count);
    if (l->y_c != NULL) copy_state(l->y_c, j.c, count);
}
