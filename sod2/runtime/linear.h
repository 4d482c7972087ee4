/* Linear algebra on small matrices. */
#ifndef SOD2_LINEAR_H
#define SOD2_LINEAR_H
#include "kernel.h"

/* y[i] = determinant of the i-th of `batch` matrices [n, n]; of doubles or floats; scratch: n * n doubles. */
void sod2_det(const void *x, void *y, int doubles, int64_t batch, int64_t n, void *scratch);
#endif
