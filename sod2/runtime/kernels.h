/* Kernels that work along rows: attention (attention.c), softmax, normalisations and reductions (rows.c), pooling
   (pool.c) and LSTM (lstm.c). Dense float32 tensors, but for rows_double.c and lstm_double.c; every size may be 0.
   Softmax and normalisations may work in place (y == x). Bits do not depend on the number of threads. */
#ifndef SOD2_KERNELS_H
#define SOD2_KERNELS_H

#include "kernel.h"

/* ---- attention.c ------------------------------------------------------------------------------------------------ */

/* O = softmax(scale * Q K^T + mask) V for every batch and head; q, o: [sq, d], [sq, dv]; k, v: [sk, d], [sk, dv].
   Strides are in floats, the last dimension has stride 1; mask may be NULL, mask strides of 0 broadcast.
   Scores below -1e30 count as -1e30: where a mask hides every key of a row (with -infinity or the lowest float) the
   result is the mean of V, as with a finite mask. sk == 0 gives zeros. NaN gives NaN in its row. */
typedef struct sod2_attention {
    int64_t batch, heads, sq, sk, d, dv;
    const float *q, *k, *v;
    float *o;
    int64_t q_batch, q_head, q_row;
    int64_t k_batch, k_head, k_row;
    int64_t v_batch, v_head, v_row;
    int64_t o_batch, o_head, o_row;
    float scale;
    const float *mask;
    int64_t mask_batch, mask_head, mask_row, mask_col;
    /* With columns > 0 two terms instead of a mask: keys are cells of a map, row by row; down[batch, heads, sq, sk /
       columns] is added by a key's row, across[batch, heads, sq, columns] by its column. */
    const float *down, *across;
    int64_t columns;
    /* If relative, sk == sq and relative positions are added to Q K^T before the scale: of query i and key j
       place[i] . distances[j - i + sq - 1], with place [sq, d] and distances [2 sq - 1, d]. */
    int relative;
    const float *place, *distances;
    int64_t place_batch, place_head, place_row;
    int64_t distances_batch, distances_head, distances_row;
    /* Scores become `fill` where `hidden` is true, or where it is not if hides is 0. */
    const uint8_t *hidden;
    int64_t hidden_batch, hidden_head, hidden_row, hidden_col;
    int hides;
    float fill;
} sod2_attention;

/* Bytes of scratch for a run on `threads` threads: about 0.2 MB a thread for heads of 64, whatever the lengths. */
int64_t sod2_attention_scratch(const sod2_attention *a, int threads);
/* scratch: that many bytes, aligned to 64, for the threads of the pool. */
void sod2_attention_run(const sod2_attention *a, void *scratch, sod2_pool *pool);

/* ---- rows.c: tensors are [outer, n, inner], and the axis of length n is the one worked along -------------------- */

void sod2_softmax(const float *x, float *y, int64_t outer, int64_t n, int64_t inner, sod2_pool *pool);
void sod2_log_softmax(const float *x, float *y, int64_t outer, int64_t n, int64_t inner, sod2_pool *pool);

/* y = (x - mean) / sqrt(variance + epsilon) * scale + bias over rows of [outer, n]; scale and bias have n elements or
   are NULL (1 and 0). mean and inv_std, [outer], receive the statistics unless NULL. Normalisations and reductions hand
   their result to an epilogue unless that is NULL: row = outer, col along n, or inner of a reduction; of a group
   normalisation batch = image, row = channel, col = spatial. */
void sod2_layer_norm(const float *x, const float *scale, const float *bias, float *y, float *mean, float *inv_std,
                     int64_t outer, int64_t n, float epsilon, sod2_epilogue epilogue, const void *args,
                     sod2_pool *pool);
/* y = x / sqrt(mean of squares + epsilon) * scale. */
void sod2_rms_norm(const float *x, const float *scale, float *y, int64_t outer, int64_t n, float epsilon,
                   sod2_epilogue epilogue, const void *args, sod2_pool *pool);

typedef enum sod2_reduction {
    SOD2_REDUCE_SUM,
    SOD2_REDUCE_MEAN, /* NaN when n == 0 */
    SOD2_REDUCE_MAX,  /* -infinity when n == 0; NaN if any element is */
    SOD2_REDUCE_MIN,
    SOD2_REDUCE_PROD,
    SOD2_REDUCE_L1,
    SOD2_REDUCE_L2,
    SOD2_REDUCE_SUM_SQUARE,
    SOD2_REDUCE_LOG_SUM,
    SOD2_REDUCE_LOG_SUM_EXP
} sod2_reduction;
/* y[outer, inner] from x[outer, n, inner]. */
void sod2_reduce(const float *x, float *y, sod2_reduction op, int64_t outer, int64_t n, int64_t inner,
                 sod2_epilogue epilogue, const void *args, sod2_pool *pool);

/* ---- rows_double.c: in double, without epilogues ----------------------------------------------------------------- */

/* Softmax, or its logarithm, along the middle axis. */
void sod2_softmax_double(const double *x, double *y, int logarithm, int64_t outer, int64_t n, int64_t inner,
                         sod2_pool *pool);

/* Rows of n elements divided by their deviation, from the mean if `centred`, else from 0. Element i of row r is scaled
   by number r % period * step + i / span of `scale` and of `bias`, which may be NULL. */
typedef struct sod2_normalisation_double {
    int64_t rows, n, period, step, span;
    int centred;
    double epsilon;
    const double *x, *scale, *bias;
    double *y;
    float *mean, *inv_std; /* [rows]; NULL: not wanted */
} sod2_normalisation_double;
void sod2_normalise_double(sod2_normalisation_double *p, sod2_pool *pool);

/* ---- pool.c ----------------------------------------------------------------------------------------------------- */

/* 2-D pooling of x[n, c, ih, iw] to y[n, c, oh, ow]. The output size is given (ceil_mode is the caller's), and windows
   may reach behind the padding. 1-D pooling has ih == kh == 1. */
typedef struct sod2_pooling {
    int64_t n, c, ih, iw, oh, ow;
    int64_t kh, kw, sh, sw, dh, dw; /* kernel, stride, dilation: >= 1 */
    int64_t pt, pl, pb, pr;         /* padding: top, left, bottom, right */
    const float *x;
    float *y;
} sod2_pooling;

/* -infinity where a window holds padding only; NaN if any element is. */
void sod2_max_pool(const sod2_pooling *p, sod2_pool *pool);
/* Mean over the elements of the window inside the tensor, or inside the padded tensor with count_include_pad; 0 where
   there is none. */
void sod2_average_pool(const sod2_pooling *p, int count_include_pad, sod2_pool *pool);

/* ---- lstm.c ----------------------------------------------------------------------------------------------------- */

/* ONNX LSTM, layout 0, default activations, gates in the order i, o, f, c; all tensors are of floats or of doubles. */
typedef struct sod2_lstm {
    int64_t steps, batch, input, hidden;
    int directions; /* 1 or 2 */
    int reverse;    /* of a single direction */
    int input_forget;
    int quantised; /* W sees x, and R the state of each step and direction, rounded to 8 bits on a scale of its own */
    float clip;              /* arguments of the gates, not the cell, are clipped to [-clip, clip]; infinity for none */
    const void *x;           /* [steps, batch, input] */
    const void *w, *r;       /* [directions, 4 hidden, input], [directions, 4 hidden, hidden] */
    const void *b, *p;       /* [directions, 8 hidden], peepholes [directions, 3 hidden] (i, o, f); NULL: 0 */
    const void *h0, *c0;     /* [directions, batch, hidden]; NULL: 0 */
    const int32_t *lengths;  /* [batch] number of valid steps, 0..steps; NULL: all */
    void *y;                 /* [steps, directions, batch, hidden], 0 behind the end of a sequence; NULL: not wanted */
    void *y_h, *y_c;         /* [directions, batch, hidden], after the last valid step; NULL: not wanted */
} sod2_lstm;

int64_t sod2_lstm_scratch(const sod2_lstm *l, int threads); /* bytes */
void sod2_lstm_run(const sod2_lstm *l, void *scratch, sod2_pool *pool);
int64_t sod2_lstm_scratch_double(const sod2_lstm *l, int threads);
void sod2_lstm_run_double(const sod2_lstm *l, void *scratch, sod2_pool *pool);

#endif
