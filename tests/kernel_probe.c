/* Gives the inline functions of kernel.h and vmath.h a name that ctypes can call. */
#include "kernel.h"

#define UNARY(name)                                                \
    void probe_##name(const float *x, float *y, int64_t n) {       \
        for (int64_t i = 0; i < n; i++) y[i] = sod2_##name(x[i]);  \
    }
UNARY(expf) UNARY(expm1f) UNARY(logf) UNARY(log1pf) UNARY(tanhf) UNARY(sigmoidf) UNARY(erff) UNARY(softplusf)
UNARY(sqrtf) UNARY(rsqrtf) UNARY(floorf) UNARY(ceilf) UNARY(truncf) UNARY(roundevenf) UNARY(absf) UNARY(signf)
UNARY(reluf) UNARY(sinf) UNARY(cosf) UNARY(geluf) UNARY(gelu_tanhf)

#define BINARY(name)                                                        \
    void probe_##name(const float *a, const float *b, float *y, int64_t n) { \
        for (int64_t i = 0; i < n; i++) y[i] = sod2_##name(a[i], b[i]);      \
    }
BINARY(maxf) BINARY(minf) BINARY(powf)

#define INTEGER(name) \
    int64_t probe_##name(int64_t a, int64_t b) { return sod2_##name(a, b); }
INTEGER(truncdiv) INTEGER(truncmod) INTEGER(floordiv) INTEGER(floormod) INTEGER(ceildiv)

#define CHECKED(name) \
    int64_t probe_##name(int64_t a, int64_t b, int *overflow) { return sod2_##name(a, b, overflow); }
CHECKED(add) CHECKED(sub) CHECKED(mul) CHECKED(div) CHECKED(mod)

void probe_exp2_negative(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i += SOD2_VL) vf_store(y + i, vf_exp2_negative(vf_load(x + i)));
}

void probe_partial(const float *x, float *y, int64_t n) { vf_store_partial(y, vf_load_partial(x, n, 7.0f), n); }

void probe_lanes(const float *x, float *y) {
    vf v = vf_load(x);
    y[0] = vf_sum_lanes(v);
    y[1] = vf_max_lanes(v);
    y[2] = vf_min_lanes(v);
}

typedef struct marks {
    int *seen, *thread;
} marks;
static void mark(void *arg, int64_t chunk, int thread) {
    marks *m = arg;
    m->seen[chunk]++;
    m->thread[chunk] = thread;
}
void probe_parallel(sod2_pool *pool, int64_t chunks, int *seen, int *thread) {
    marks m = {seen, thread};
    sod2_parallel(pool, chunks, mark, &m);
}

/* Half of x, in this thread's floating-point mode. */
float probe_half(float x) {
    volatile float y = x;
    return y * 0.5f;
}
