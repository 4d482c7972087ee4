/* The prologue of the kernel tests, below, and their epilogue: y = relu(tile + bias[row or column] + residual), where each part may be missing,
   and a count of how often each element was stored. */
#include "conv.h"
#include "tile.h"

typedef struct test_epilogue {
  float *y;
  const float *bias, *residual; /* NULL: none */
  int32_t *stores;              /* how often each element was written */
  int64_t rows, cols;           /* of a matrix of the output */
  int32_t bias_by_row, relu;
} test_epilogue;

void test_store(const void *args, const float *tile, int64_t ld, int64_t batch, int64_t row, int64_t rows, int64_t col,
                int64_t cols) {
  const test_epilogue *e = args;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) {
      const int64_t at = (batch * e->rows + row + i) * e->cols + col + j;
      float value = tile[i * ld + j];
      if (e->bias) value += e->bias[e->bias_by_row ? row + i : col + j];
      if (e->residual) value += e->residual[at];
      if (e->relu && !(value > 0)) value = 0;
      e->y[at] = value;
      e->stores[at]++;
    }
}

/* Lanes, rows and columns of the register tile these kernels were compiled for. */
const int32_t test_tile[5] = {SOD2_VL, SOD2_MR, SOD2_NR, SOD2_APART, SOD2_CROWDED};

double test_cost(const sod2_conv *c, int version) {
  const sod2_conv_kernel *kernels[SOD2_CONV_VERSIONS] = {&sod2_conv_panel, &sod2_conv_pixel, &sod2_conv_dot,
                                                         &sod2_conv_wino2, &sod2_conv_wino3, &sod2_conv_wino4,
                                                         &sod2_conv_wino6, &sod2_conv_depthwise, &sod2_conv_taps};
  return kernels[version]->cost(c);
}

typedef struct test_image {
  const float *x;
  int64_t channels, pixels;
} test_image;

/* A prologue that copies an image, and writes as much behind each line as one may. */
void test_prologue(const void *args, float *dst, int64_t ld, int64_t image, int64_t channel, int64_t channels,
                   int64_t pixel, int64_t count) {
  const test_image *from = args;
  for (int64_t i = 0; i < channels; i++) {
    const float *line = from->x + (image * from->channels + channel + i) * from->pixels + pixel;
    for (int64_t j = 0; j < count; j++) dst[i * ld + j] = line[j];
    for (int64_t j = count; j % SOD2_VL != 0; j++) dst[i * ld + j] = NAN;
  }
}
