/* Real arithmetic of element expressions that C's library lacks: a remainder, and positions between the elements of an
   axis: where a sample reads, with which weight, and what lies outside. */
#ifndef SOD2_SAMPLING_H
#define SOD2_SAMPLING_H
#include "kernel.h"

/* The remainder of a / b with the sign of b, as numpy's mod. */
SOD2_INLINE double sod2_real_mod(double a, double b) {
  const double r = fmod(a, b);
  return r == 0 ? copysign(0.0, b) : (r < 0) != (b < 0) ? r + b : r;
}

/* A grid coordinate from [-1, 1] in elements: -1 and 1 are the centres of the first and last element, or their edges. */
SOD2_INLINE double sod2_grid_position(double g, int64_t size, int align_corners) {
  return align_corners ? (g + 1) / 2 * (double)(size - 1) : ((g + 1) * (double)size - 1) / 2;
}

/* A position reflected between low and high until it lies inside. */
SOD2_INLINE double sod2_reflected(double x, double low, double high) {
  const double range = high - low;
  if (!(range > 0)) return low;
  const double offset = fabs(x - low);
  const double extra = fmod(offset, range);
  return fmod(floor(offset / range), 2) == 0 ? low + extra : high - extra;
}

/* A position outside the axis mapped into it: mode 1 takes the nearest element, 2 reflects; 0 leaves it. */
SOD2_INLINE double sod2_padded_position(double x, int64_t size, int mode, int align_corners) {
  if (mode == 1) return fmax(0, fmin(x, (double)(size - 1)));
  if (mode == 0) return x;
  const double low = align_corners ? 0 : -0.5, high = align_corners ? (double)(size - 1) : (double)size - 0.5;
  return x < low || x > high ? sod2_reflected(x, low, high) : x;
}

/* Weight of the element that lies `distance` away from the sample: linear, or cubic with coefficient -0.75. */
SOD2_INLINE double sod2_linear_weight(double distance) { return fmax(0, 1 - fabs(distance)); }
SOD2_INLINE double sod2_cubic_weight(double distance) {
  const double a = -0.75, x = fabs(distance);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

/* First element that a sample at x reads when it reads `taps` of them: 1 (nearest), 2 (linear) or 4 (cubic). */
SOD2_INLINE int64_t sod2_first_tap(double x, int taps) {
  if (!(fabs(x) < 1e15)) return -(INT64_C(1) << 40); /* NaN and infinity lie outside */
  return taps == 1 ? (int64_t)rint(x) : (int64_t)floor(x) - (taps / 2 - 1);
}
SOD2_INLINE double sod2_tap_weight(double distance, int taps) {
  return taps == 1 ? 1 : taps == 2 ? sod2_linear_weight(distance) : sod2_cubic_weight(distance);
}
#endif
