/* Depthwise convolution along time that sees the past only, with the state that a decoder carries from call to call. */
#ifndef SOD2_CAUSAL_CONV_H
#define SOD2_CAUSAL_CONV_H
#include "kernel.h"

typedef struct sod2_causal_conv {
  int64_t batch, channels, length, taps;
  int silu;               /* y * sigmoid(y) at the end */
  const float *x;         /* [batch, channels, length] */
  const float *w, *bias;  /* [channels, taps], [channels] or NULL */
  const float *past;      /* [batch, channels, taps - 1]: what came before x; NULL: zeros */
  float *y, *present;     /* like x; like past: what comes before the next call's x; NULL: not wanted */
} sod2_causal_conv;

void sod2_causal_conv_run(const sod2_causal_conv *c, sod2_pool *pool);
#endif
