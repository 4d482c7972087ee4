/* Strided lines of tensors of any dtype, read as double (floating point) or int64_t (integers and bool): lets the
   kernels of reduce_nd.c and scan.c be written once for all dtypes. */
#ifndef SOD2_LINES_H
#define SOD2_LINES_H

#include "kernel.h"
#include "sod2.h"

#define SOD2_LINE 256 /* elements handled at a time */

SOD2_INLINE int sod2_is_float(int32_t dtype) { return dtype == SOD2_FLOAT32 || dtype == SOD2_FLOAT64; }

#define SOD2_READ(type)                                              \
    {                                                                \
        const type *p = (const type *)x + start;                     \
        for (int64_t i = 0; i < n; i++) line[i] = p[i * stride];     \
        break;                                                       \
    }

/* line[i] = x[start + i * stride], 0 <= i < n <= SOD2_LINE. */
SOD2_INLINE void sod2_read_floats(int32_t dtype, const void *x, int64_t start, int64_t stride, int64_t n, double *line) {
    switch (dtype) {
        case SOD2_FLOAT32: SOD2_READ(float)
        default: SOD2_READ(double)
    }
}
SOD2_INLINE void sod2_read_ints(int32_t dtype, const void *x, int64_t start, int64_t stride, int64_t n, int64_t *line) {
    switch (dtype) {
        case SOD2_BOOL:
        case SOD2_UINT8: SOD2_READ(uint8_t)
        case SOD2_INT8: SOD2_READ(int8_t)
        case SOD2_INT16: SOD2_READ(int16_t)
        case SOD2_INT32: SOD2_READ(int32_t)
        case SOD2_UINT32: SOD2_READ(uint32_t)
        default: SOD2_READ(int64_t)
    }
}
#undef SOD2_READ

/* y[i] = value in the tensor's dtype; integers wrap. */
SOD2_INLINE void sod2_write_float(int32_t dtype, void *y, int64_t i, double value) {
    if (dtype == SOD2_FLOAT32)
        ((float *)y)[i] = (float)value;
    else
        ((double *)y)[i] = value;
}
SOD2_INLINE void sod2_write_int(int32_t dtype, void *y, int64_t i, int64_t value) {
    switch (dtype) {
        case SOD2_BOOL: ((uint8_t *)y)[i] = value != 0; break;
        case SOD2_UINT8: ((uint8_t *)y)[i] = (uint8_t)value; break;
        case SOD2_INT8: ((int8_t *)y)[i] = (int8_t)value; break;
        case SOD2_INT16: ((int16_t *)y)[i] = (int16_t)value; break;
        case SOD2_INT32: ((int32_t *)y)[i] = (int32_t)value; break;
        case SOD2_UINT32: ((uint32_t *)y)[i] = (uint32_t)value; break;
        default: ((int64_t *)y)[i] = value;
    }
}

#endif
