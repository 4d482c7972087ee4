/* Branch-free float mathematics in plain C, included by kernel.h. Loops over these functions vectorise in gcc and clang
   (bit casts by memcpy, selects instead of branches). 2^n is built by adding n << 23 to the exponent field; rounding to
   an integer adds 1.5 * 2^23. Polynomials are weighted minimax fits (Lawson iteration on Chebyshev nodes).

   `ulp` is the largest error found by tests/test_rows.py against float64 over the whole range; results that would be
   subnormal are 0, subnormal arguments count as 0 where a comment says so. NaN gives NaN everywhere.

   The order of operands in sod2_pick_* matters: where a or b is NaN the result is b, as in one x86 instruction. */
#ifndef SOD2_VMATH_H
#define SOD2_VMATH_H

SOD2_INLINE float sod2_bits_to_float(int32_t i) {
    float f;
    memcpy(&f, &i, sizeof f);
    return f;
}
SOD2_INLINE int32_t sod2_float_to_bits(float f) {
    int32_t i;
    memcpy(&i, &f, sizeof i);
    return i;
}
SOD2_INLINE float sod2_pick_max(float a, float b) { return a > b ? a : b; }
SOD2_INLINE float sod2_pick_min(float a, float b) { return a < b ? a : b; }

/* ONNX Max and Min: NaN if either is NaN. */
SOD2_INLINE float sod2_maxf(float a, float b) { return a != a ? a : sod2_pick_max(a, b); }
SOD2_INLINE float sod2_minf(float a, float b) { return a != a ? a : sod2_pick_min(a, b); }
SOD2_INLINE float sod2_clampf(float x, float lo, float hi) { return sod2_pick_min(hi, sod2_pick_max(lo, x)); }
SOD2_INLINE float sod2_reluf(float x) { return sod2_pick_max(0.0f, x); }

/* Exact. */
SOD2_INLINE float sod2_absf(float x) { return __builtin_fabsf(x); }
SOD2_INLINE float sod2_sqrtf(float x) { return __builtin_sqrtf(x); }
SOD2_INLINE float sod2_floorf(float x) { return __builtin_floorf(x); }
SOD2_INLINE float sod2_ceilf(float x) { return __builtin_ceilf(x); }
SOD2_INLINE float sod2_truncf(float x) { return __builtin_truncf(x); }
SOD2_INLINE float sod2_roundevenf(float x) { return __builtin_rintf(x); } /* the rounding mode is never changed */
SOD2_INLINE float sod2_copysignf(float x, float sign) { return __builtin_copysignf(x, sign); }
SOD2_INLINE float sod2_signf(float x) { return x != x ? x : (float)((x > 0.0f) - (x < 0.0f)); }
/* 1.5 ulp. */
SOD2_INLINE float sod2_rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }

#define SOD2_ROUND 12582912.0f /* 1.5 * 2^23: adding it leaves round(x) in the low bits */
#define SOD2_LOG2E 1.44269504f
#define SOD2_LN2_HIGH 0.693145752f /* 16 bits, so that n * high is exact */
#define SOD2_LN2_LOW 1.42860677e-6f

/* x = n ln2 + r: the integer n in the low bits of *n_bits, and expm1(r) for |r| <= ln2/2. */
SOD2_INLINE float sod2_expm1_reduced(float x, int32_t *n_bits) {
    float t = x * SOD2_LOG2E + SOD2_ROUND;
    float n = t - SOD2_ROUND;
    float r = (x - n * SOD2_LN2_HIGH) - n * SOD2_LN2_LOW;
    float p = 0.0013814539f;
    p = p * r + 0.0083687454f;
    p = p * r + 0.0416683890f;
    p = p * r + 0.1666652113f;
    p = p * r + 0.4999999404f;
  *n_bits = sod2_float_to_bits(t);
    return p * r * r + r;
}
/* x * 2^n by the exponent field: no check of the range, x not NaN. */
SOD2_INLINE float sod2_scale_exponent(float x, int32_t n_bits) {
    return sod2_bits_to_float((int32_t)((uint32_t)sod2_float_to_bits(x) + ((uint32_t)n_bits << 23)));
}

/* e^x: 1.1 ulp; exact at 0, infinities and overflow; below -87.33654 it is 0. */
SOD2_INLINE float sod2_expf(float x) {
    int32_t n;
    float p = sod2_expm1_reduced(sod2_clampf(x, -87.33654f, 88.72283f), &n) + 1.0f;
    float y = sod2_scale_exponent(p, n);
    y = x < -87.33654f ? 0.0f : y;
    return x <= 88.72283f ? y : x + __builtin_inff(); /* the sum keeps NaN */
}

/* e^x - 1: 1.5 ulp, also around 0. */
SOD2_INLINE float sod2_expm1f(float x) {
    int32_t n;
    float p = sod2_expm1_reduced(sod2_clampf(x, -30.0f, 88.72283f), &n);
    float half = sod2_scale_exponent(0.5f, n); /* 2^(n-1), since 2^128 has no float */
    float y = 2.0f * (half * p + (half - 0.5f));
    y = x == 0.0f ? x : y;
    return x <= 88.72283f ? y : x + __builtin_inff();
}

/* tanh x = e / (e + 2) with e = expm1(2x): 2.5 ulp; -0 gives 0. */
SOD2_INLINE float sod2_tanhf(float x) {
    int32_t n;
    float p = sod2_expm1_reduced(2.0f * sod2_clampf(x, -9.02f, 9.02f), &n);
    float s = sod2_scale_exponent(1.0f, n);
    float e = s * p + (s - 1.0f);
    return e / (e + 2.0f);
}

/* 1 / (1 + e^-x): 2.5 ulp; about 1.2e-38 below -87. */
SOD2_INLINE float sod2_sigmoidf(float x) {
    int32_t n;
    float p = sod2_expm1_reduced(sod2_clampf(-x, -87.3f, 88.0f), &n) + 1.0f;
    return 1.0f / (1.0f + sod2_scale_exponent(1.0f, n) * p);
}

/* 2^x for x <= 0, the exponential of softmax: 2.1 ulp, exactly 1 at 0; 2^-126 instead of less. NaN stays NaN, which
   is why the end is a product and not a sum of exponents. */
SOD2_INLINE vf vf_exp2_negative(vf x) {
    vf c = vf_max(vf_splat(-126.0f), x);
    vf t = c + SOD2_ROUND;
    vf r = c - (t - SOD2_ROUND);
    vf p = r * 0.0013264589f + 0.00967161913f;
    p = p * r + 0.0555073504f;
    p = p * r + 0.240222405f;
    p = p * r + 0.693146976f;
    p = p * r + 1.0f;
    return (vf)((vi)vf_splat(1.0f) + ((vi)t << 23)) * p;
}

/* Error function: 5 ulp. An odd rational function; beyond 3.9192 the sign. */
SOD2_INLINE float sod2_erff(float x) {
    float u = x * x;
    float p = 2.05073206e-06f;
    p = p * u + 0.000284890179f;
    p = p * u + 0.00376455113f;
    p = p * u + 0.0527455658f;
    p = p * u + 0.190377489f;
    p = p * u + 1.12837911f;
    float q = 3.80987549e-05f;
    q = q * u + 0.00116233481f;
    q = q * u + 0.0149670672f;
    q = q * u + 0.114097752f;
    q = q * u + 0.5020504f;
    q = q * u + 1.0f;
    float y = x * p / q;
    return sod2_absf(x) < 3.9192f ? y : x != x ? x : sod2_copysignf(1.0f, x);
}

/* Natural logarithm: 1 ulp. x = m 2^e with m in [sqrt(1/2), sqrt(2)); 0 and subnormals give -infinity, x < 0 NaN. */
SOD2_INLINE float sod2_logf(float x) {
    int32_t bits = sod2_float_to_bits(x);
    int32_t e = (int32_t)((uint32_t)bits - 0x3f3504f3u) >> 23; /* exponent relative to sqrt(1/2) */
    float m = sod2_bits_to_float((int32_t)((uint32_t)bits - ((uint32_t)e << 23)));
    float r = m - 1.0f;
    float n = (float)e;
    float p = -0.0763446014f;
    p = p * r + 0.127615625f;
    p = p * r - 0.131601893f;
    p = p * r + 0.142017604f;
    p = p * r - 0.166233569f;
    p = p * r + 0.200012268f;
    p = p * r - 0.25000821f;
    p = p * r + 0.333333317f;
    float y = n * SOD2_LN2_LOW + (p * r * r * r - 0.5f * r * r);
    y = n * SOD2_LN2_HIGH + (r + y);
    y = x < 1.17549435e-38f ? -__builtin_inff() : y;
    y = x < 0.0f ? __builtin_nanf("") : y;
    return x < __builtin_inff() ? y : x; /* +infinity and NaN */
}

/* log(1 + x): 2.5 ulp. The rounding of u = 1 + x is undone by the factor x / (u - 1). */
SOD2_INLINE float sod2_log1pf(float x) {
    float u = 1.0f + x;
    float y = sod2_logf(u) * (x / (u - 1.0f));
    y = u == 1.0f ? x : y;
    return u < __builtin_inff() && u > 0.0f ? y : sod2_logf(u);
}

/* log(1 + e^x) = max(x, 0) + log1p(e^-|x|): 3 ulp. */
SOD2_INLINE float sod2_softplusf(float x) {
    return sod2_reluf(x) + sod2_log1pf(sod2_expf(-sod2_absf(x)));
}

/* x/2 (1 + erf(x / sqrt 2)): 1.3e-6 absolute; the sum cancels below -5, as in the definition. -infinity gives NaN. */
SOD2_INLINE float sod2_geluf(float x) { return 0.5f * x * (1.0f + sod2_erff(x * 0.707106781f)); }
/* ONNX Gelu with approximate="tanh". */
SOD2_INLINE float sod2_gelu_tanhf(float x) {
    return 0.5f * x * (1.0f + sod2_tanhf(0.797884561f * (x + 0.044715f * x * x * x)));
}

/* No short polynomial is good over the whole range: libm, about 1 ulp, not vectorised. */
SOD2_INLINE float sod2_powf(float x, float y) { return powf(x, y); }
SOD2_INLINE float sod2_sinf(float x) { return sinf(x); }
SOD2_INLINE float sod2_cosf(float x) { return cosf(x); }

#endif
