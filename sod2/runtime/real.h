/* `real`, the type that a kernel of scalars computes in: double where the file that includes it defines SOD2_DOUBLE,
   else float. SOD2_REAL(f) is the name of its function f for that type, real_g a function g of such numbers. */
#ifndef SOD2_REAL_H
#define SOD2_REAL_H

#include "dot.h"
#include "vmath.h"

#ifdef SOD2_DOUBLE
typedef double real;
#define SOD2_REAL(name) name##_double
#define real_tanh tanh
#define real_expm1 expm1
#define real_abs fabs
#define real_rint rint
SOD2_INLINE real real_sigmoid(real x) { return 1 / (1 + exp(-x)); }
SOD2_INLINE real real_softplus(real x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }
SOD2_INLINE real real_min(real a, real b) { return a != a || a < b ? a : b; }
SOD2_INLINE real real_max(real a, real b) { return a != a || a > b ? a : b; }
SOD2_INLINE real real_clamp(real x, real lo, real hi) { return x < lo ? lo : x > hi ? hi : x; }
SOD2_INLINE void real_add_dots(real z[4], const real *m, int64_t ld, const real *x, int64_t n) {
  for (int64_t row = 0; row < 4; row++)
    for (int64_t i = 0; i < n; i++) z[row] += m[row * ld + i] * x[i];
}
#else
typedef float real;
#define SOD2_REAL(name) name
#define real_tanh sod2_tanhf
#define real_expm1 sod2_expm1f
#define real_abs sod2_absf
#define real_rint __builtin_rintf
#define real_sigmoid sod2_sigmoidf
#define real_softplus sod2_softplusf
#define real_min sod2_minf
#define real_max sod2_maxf
#define real_clamp sod2_clampf
#define real_add_dots sod2_add_dots
#endif

#endif
