/* GRU and RNN of ONNX, layout 0, of floats or doubles. One sequence of one direction is a unit of work; all of its steps run on one thread. */
#ifndef SOD2_RECURRENT_H
#define SOD2_RECURRENT_H
#include "kernel.h"

typedef enum sod2_activation {
  SOD2_ACT_SIGMOID,
  SOD2_ACT_TANH,
  SOD2_ACT_RELU,
  SOD2_ACT_AFFINE,
  SOD2_ACT_LEAKYRELU,
  SOD2_ACT_THRESHOLDEDRELU,
  SOD2_ACT_SCALEDTANH,
  SOD2_ACT_HARDSIGMOID,
  SOD2_ACT_ELU,
  SOD2_ACT_SOFTSIGN,
  SOD2_ACT_SOFTPLUS
} sod2_activation;

typedef struct sod2_act {
  sod2_activation kind;
  float alpha, beta;
} sod2_act;

typedef struct sod2_recurrent {
  int64_t steps, batch, input, hidden;
  int directions; /* 1 or 2 */
  int reverse;    /* of a single direction */
  int gru;        /* three gates z, r, h; else one */
  int linear_before_reset;
  float clip;              /* arguments of the activations are cut to [-clip, clip]; infinity for none */
  sod2_act act[4];         /* by direction: f, and for GRU g */
  const void *x;           /* [steps, batch, input] */
  const void *w, *r, *b;   /* [directions, gates hidden, input], [.., hidden], [directions, 2 gates hidden] or NULL */
  const void *h0;          /* [directions, batch, hidden]; NULL: 0 */
  const int32_t *lengths;  /* [batch] number of valid steps; NULL: all */
  void *y;                 /* [steps, directions, batch, hidden], 0 behind the end; NULL: not wanted */
  void *y_h;               /* [directions, batch, hidden]; NULL: not wanted */
} sod2_recurrent;

int64_t sod2_recurrent_scratch(const sod2_recurrent *l, int threads); /* bytes */
void sod2_recurrent_run(const sod2_recurrent *l, void *scratch, sod2_pool *pool);
int64_t sod2_recurrent_scratch_double(const sod2_recurrent *l, int threads);
void sod2_recurrent_run_double(const sod2_recurrent *l, void *scratch, sod2_pool *pool);
#endif
