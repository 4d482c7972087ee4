/* 16-bit floats in memory: IEEE half precision and bfloat16, the upper half of a float. Both are computed in float. */
#ifndef SOD2_HALF_H
#define SOD2_HALF_H
#include "kernel.h"

typedef _Float16 sod2_f16;
typedef struct sod2_bf16 {
  uint16_t bits;
} sod2_bf16;

SOD2_INLINE float sod2_from_bf16(sod2_bf16 x) {
  uint32_t bits = (uint32_t)x.bits << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Rounds to the nearest, ties to even; NaN stays NaN. */
SOD2_INLINE sod2_bf16 sod2_to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return (sod2_bf16){(uint16_t)(x != x ? bits >> 16 | 0x40 : rounded)};
}
#endif
