/* Lines of a strip: rows of an image, padded and split by the column stride into phases. Whole vectors are written, up
   to VL - 1 floats behind a line: what the next line overwrites. */
#include "strips.h"

/* VL columns of a row of `iw` from `column` on, 0 outside of it; `whole`: none is outside. */
SOD2_INLINE vf load_columns(int whole, const float *row, int64_t column, int64_t iw) {
  if (whole) return vf_load(row + column);
  const int64_t first = sod2_imin(SOD2_VL, sod2_imax(0, -column));
  return vf_load_between(row + column, first, sod2_imax(first, sod2_imin(SOD2_VL, iw - column)), 0);
}

/* VL columns of each phase, from `column` on. The same place in the next channel, `ahead` floats on, is fetched: rows
   of a window are short streams with gaps, which a hardware prefetcher does not follow. */
SOD2_INLINE void copy_vector(int stride, int pair, int whole, const float *row, int64_t column, int64_t iw,
                             int64_t ahead, float *even, float *odd) {
  const vf low = load_columns(whole, row, column, iw);
  __builtin_prefetch(row + column + ahead);
  if (stride == 1) {
    vf_store(even, low);
    return;
  }
  const vf high = load_columns(whole, row, column + SOD2_VL, iw);
  __builtin_prefetch(row + column + ahead + SOD2_VL);
  vf_store(even, __builtin_shufflevector(low, high, SOD2_EVEN));
  if (pair) vf_store(odd, __builtin_shufflevector(low, high, SOD2_ODD));
}

/* Rows of the image, `row_step` apart. Short ones are copied a column of vectors after the other, the last one first:
   what is written behind a row is the beginning of the next. */
SOD2_INLINE void copy_rows(int stride, int pair, const sod2_conv *c, const float *x, int64_t row_step, int64_t rows,
                           int64_t shift, int64_t width, float *even, float *odd) {
  const int64_t iw = c->iw, step = row_step * iw, ahead = c->ih * iw;
  if (width <= 4 * SOD2_VL) {
    for (int64_t j = (width - 1) / SOD2_VL * SOD2_VL; j >= 0; j -= SOD2_VL) {
      const int64_t column = shift + stride * j;
      const int whole = column >= 0 && column + stride * SOD2_VL <= iw;
      for (int64_t i = 0; i < rows; i++)
        copy_vector(stride, pair, whole, x + i * step, column, iw, ahead, even + i * width + j, odd + i * width + j);
    }
    return;
  }
  for (; rows > 0; rows--, x += step, even += width, odd += width) {
    int64_t j = 0;
    for (; j < width && shift + stride * j < 0; j += SOD2_VL)
      copy_vector(stride, pair, 0, x, shift + stride * j, iw, ahead, even + j, odd + j);
    for (; j < width && shift + stride * (j + SOD2_VL) <= iw; j += SOD2_VL)
      copy_vector(stride, pair, 1, x, shift + stride * j, iw, ahead, even + j, odd + j);
    for (; j < width; j += SOD2_VL)
      copy_vector(stride, pair, 0, x, shift + stride * j, iw, ahead, even + j, odd + j);
  }
}

/* As copy_rows, one phase of any column stride. */
static void copy_strided(const sod2_conv *c, const float *x, int64_t row_step, int64_t rows, int64_t shift,
                         int64_t step, int64_t width, float *dst) {
  const int64_t iw = c->iw, lo = sod2_imin(width, shift >= 0 ? 0 : (-shift + step - 1) / step);
  const int64_t hi = sod2_imax(lo, sod2_imin(width, iw <= shift ? 0 : (iw - shift + step - 1) / step));
  for (; rows > 0; rows--, x += row_step * iw, dst += width) {
    for (int64_t j = 0; j < lo; j++) dst[j] = 0;
    for (int64_t j = lo; j < hi; j++) dst[j] = x[shift + j * step];
    for (int64_t j = hi; j < width; j++) dst[j] = 0;
  }
}

/* Of `lines` rows from iy on, `row_step` apart: [above, end) lie in the image. */
static void rows_inside(const sod2_conv *c, int64_t iy, int64_t row_step, int64_t lines, int64_t *above, int64_t *end) {
  *above = 0, *end = lines;
  while (*above < lines && iy + *above * row_step < 0) ++*above;
  while (*end > *above && iy + (*end - 1) * row_step >= c->ih) --*end;
}

void sod2_strip_phase(const sod2_conv *c, const float *x, int64_t iy, int64_t row_step, int64_t lines, int64_t shift,
                      int64_t step, int64_t width, float *dst) {
  int64_t above, end;
  rows_inside(c, iy, row_step, lines, &above, &end);
  sod2_strip_zero(dst, above * width);
  x += (iy + above * row_step) * c->iw;
  float *inside = dst + above * width;
  if (step == 1)
    copy_rows(1, 0, c, x, row_step, end - above, shift, width, inside, inside);
  else if (step == 2)
    copy_rows(2, 0, c, x, row_step, end - above, shift, width, inside, inside);
  else
    copy_strided(c, x, row_step, end - above, shift, step, width, inside);
  sod2_strip_zero(dst + end * width, (lines - end) * width);
}

void sod2_strip_pair(const sod2_conv *c, const float *x, int64_t iy, int64_t row_step, int64_t lines, int64_t shift,
                     int64_t width, float *even, float *odd) {
  int64_t above, end;
  rows_inside(c, iy, row_step, lines, &above, &end);
  sod2_strip_zero(even, above * width), sod2_strip_zero(odd, above * width);
  copy_rows(2, 1, c, x + (iy + above * row_step) * c->iw, row_step, end - above, shift, width, even + above * width,
            odd + above * width);
  sod2_strip_zero(even + end * width, (lines - end) * width), sod2_strip_zero(odd + end * width, (lines - end) * width);
}
