/* One-dimensional Winograd transforms F(m, 3), m = 2, 4, 6, and F(3, 4) on vectors of channels or of columns.

   n = m + 2 inputs, 6 of F(3, 4), d[0], d[step], .. The matrices are those of Cook-Toom at the points 0, +-p, ..,
   infinity, with the factors 1/N_j put on the weights (sod2/packing.py holds the same points):
     m = 2: 1;  m = 3, 4: 5/8, 3/2, with the same inputs;  m = 6: 1, 2, 1/2.
   A pair of points +-p shares its even and odd part, which halves the multiplications. The points of m = 4 were
   searched: their rounding error is 3-5 times below that of the usual 1, 2 at the same cost. For m = 6 no other
   multiples of 1/16 have a smaller root mean square. */
#ifndef SOD2_WINOGRAD_TRANSFORM_H
#define SOD2_WINOGRAD_TRANSFORM_H

#include "kernel.h"

SOD2_INLINE void winograd_input2(const vf *d, int64_t s, vf *o, int64_t t) {
  const vf d0 = d[0], d1 = d[s], d2 = d[2 * s], d3 = d[3 * s];
  o[0] = d2 - d0;
  o[t] = d2 + d1;
  o[2 * t] = d2 - d1;
  o[3 * t] = d3 - d1;
}

SOD2_INLINE void winograd_output2(const vf *d, int64_t s, vf *o, int64_t t) {
  const vf a = d[s], b = d[2 * s];
  o[0] = d[0] + a + b;
  o[t] = d[3 * s] + a - b;
}

SOD2_INLINE void winograd_input4(const vf *d, int64_t s, vf *o, int64_t t) {
  const vf d0 = d[0], d1 = d[s], d2 = d[2 * s], d3 = d[3 * s], d4 = d[4 * s], d5 = d[5 * s];
  o[0] = d4 + 0.87890625f * d0 - 2.640625f * d2;
  vf even = d4 - 2.25f * d2, odd = d3 - 2.25f * d1;
  o[t] = even + 0.625f * odd;
  o[2 * t] = even - 0.625f * odd;
  even = d4 - 0.390625f * d2, odd = d3 - 0.390625f * d1;
  o[3 * t] = even + 1.5f * odd;
  o[4 * t] = even - 1.5f * odd;
  o[5 * t] = d5 + 0.87890625f * d1 - 2.640625f * d3;
}

SOD2_INLINE void winograd_output3(const vf *d, int64_t s, vf *o, int64_t t) {
  const vf s0 = d[s] + d[2 * s], q0 = d[s] - d[2 * s], s1 = d[3 * s] + d[4 * s], q1 = d[3 * s] - d[4 * s];
  o[0] = d[0] + s0 + s1;
  o[t] = 0.625f * q0 + 1.5f * q1;
  o[2 * t] = d[5 * s] + 0.390625f * s0 + 2.25f * s1;
}

SOD2_INLINE void winograd_output4(const vf *d, int64_t s, vf *o, int64_t t) {
  const vf s0 = d[s] + d[2 * s], q0 = d[s] - d[2 * s], s1 = d[3 * s] + d[4 * s], q1 = d[3 * s] - d[4 * s];
  o[0] = d[0] + s0 + s1;
  o[t] = 0.625f * q0 + 1.5f * q1;
  o[2 * t] = 0.390625f * s0 + 2.25f * s1;
  o[3 * t] = d[5 * s] + 0.244140625f * q0 + 3.375f * q1;
}

SOD2_INLINE void winograd_input6(const vf *d, int64_t s, vf *o, int64_t t) {
  const vf d1 = d[s], d2 = d[2 * s], d3 = d[3 * s], d4 = d[4 * s], d5 = d[5 * s], d6 = d[6 * s];
  o[0] = d6 - d[0] + 5.25f * (d2 - d4);
  o[7 * t] = d[7 * s] - d1 + 5.25f * (d3 - d5);
  vf even = d2 + d6 - 4.25f * d4, odd = d1 + d5 - 4.25f * d3;
  o[t] = even + odd;
  o[2 * t] = even - odd;
  even = d6 + 0.25f * d2 - 1.25f * d4, odd = d5 + 0.25f * d1 - 1.25f * d3;
  o[3 * t] = even + 2.0f * odd;
  o[4 * t] = even - 2.0f * odd;
  even = d6 + 4.0f * d2 - 5.0f * d4, odd = d5 + 4.0f * d1 - 5.0f * d3;
  o[5 * t] = even + 0.5f * odd;
  o[6 * t] = even - 0.5f * odd;
}

SOD2_INLINE void winograd_output6(const vf *d, int64_t s, vf *o, int64_t t) {
  const vf s0 = d[s] + d[2 * s], q0 = d[s] - d[2 * s], s1 = d[3 * s] + d[4 * s], q1 = d[3 * s] - d[4 * s];
  const vf s2 = d[5 * s] + d[6 * s], q2 = d[5 * s] - d[6 * s];
  o[0] = d[0] + s0 + s1 + s2;
  o[t] = q0 + 2.0f * q1 + 0.5f * q2;
  o[2 * t] = s0 + 4.0f * s1 + 0.25f * s2;
  o[3 * t] = q0 + 8.0f * q1 + 0.125f * q2;
  o[4 * t] = s0 + 16.0f * s1 + 0.0625f * s2;
  o[5 * t] = d[7 * s] + q0 + 32.0f * q1 + 0.03125f * q2;
}

/* n */
SOD2_INLINE int winograd_inputs(int m) { return m == 3 ? 6 : m + 2; }

/* m is a constant wherever these are inlined. */
SOD2_INLINE void winograd_input(int m, const vf *d, int64_t s, vf *o, int64_t t) {
  if (m == 2)
    winograd_input2(d, s, o, t);
  else if (m == 3 || m == 4)
    winograd_input4(d, s, o, t);
  else
    winograd_input6(d, s, o, t);
}

SOD2_INLINE void winograd_output(int m, const vf *d, int64_t s, vf *o, int64_t t) {
  if (m == 2)
    winograd_output2(d, s, o, t);
  else if (m == 3)
    winograd_output3(d, s, o, t);
  else if (m == 4)
    winograd_output4(d, s, o, t);
  else
    winograd_output6(d, s, o, t);
}

#endif
