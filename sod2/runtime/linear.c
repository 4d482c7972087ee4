#include "linear.h"

/* Gaussian elimination with the largest pivot of each column; destroys a. */
static double determinant(double *a, int64_t n) {
  double result = 1;
  for (int64_t k = 0; k < n; k++) {
    int64_t pivot = k;
    for (int64_t i = k + 1; i < n; i++)
      if (fabs(a[i * n + k]) > fabs(a[pivot * n + k])) pivot = i;
    if (pivot != k) {
      result = -result;
      for (int64_t j = 0; j < n; j++) {
        const double held = a[k * n + j];
        a[k * n + j] = a[pivot * n + j];
        a[pivot * n + j] = held;
      }
    }
    if (a[k * n + k] == 0) return 0;
    result *= a[k * n + k];
    for (int64_t i = k + 1; i < n; i++) {
      const double factor = a[i * n + k] / a[k * n + k];
      for (int64_t j = k; j < n; j++) a[i * n + j] -= factor * a[k * n + j];
    }
  }
  return result;
}

void sod2_det(const void *x, void *y, int doubles, int64_t batch, int64_t n, void *scratch) {
  double *a = scratch;
  for (int64_t b = 0; b < batch; b++) {
    const int64_t first = b * n * n;
    for (int64_t i = 0; i < n * n; i++)
      a[i] = doubles ? ((const double *)x)[first + i] : (double)((const float *)x)[first + i];
    const double found = determinant(a, n);
    if (doubles)
      ((double *)y)[b] = found;
    else
      ((float *)y)[b] = (float)found;
  }
}
