#include "scatter.h"

#include "half.h"
#include "nest.h"

#define SAME(x) (x)
#define COMBINE(type, load, store)                                                               \
  {                                                                                              \
    type *a = to;                                                                                \
    const type *b = from;                                                                        \
    for (int64_t i = 0; i < count; i++) {                                                        \
      if (how == SOD2_COMBINE_ADD) a[i] = store(load(a[i]) + load(b[i]));                        \
      else if (how == SOD2_COMBINE_MUL) a[i] = store(load(a[i]) * load(b[i]));                   \
      else if (how == SOD2_COMBINE_MAX) a[i] = load(a[i]) < load(b[i]) ? b[i] : a[i];            \
      else if (how == SOD2_COMBINE_MIN) a[i] = load(b[i]) < load(a[i]) ? b[i] : a[i];            \
      else a[i] = b[i];                                                                          \
    }                                                                                            \
    break;                                                                                       \
  }
#define WIDE(x) ((uint64_t)(x)) /* sums and products of integers wrap */
#define INTEGER(type)                                                                            \
  {                                                                                              \
    type *a = to;                                                                                \
    const type *b = from;                                                                        \
    for (int64_t i = 0; i < count; i++) {                                                        \
      if (how == SOD2_COMBINE_ADD) a[i] = (type)(WIDE(a[i]) + WIDE(b[i]));                       \
      else if (how == SOD2_COMBINE_MUL) a[i] = (type)(WIDE(a[i]) * WIDE(b[i]));                  \
      else if (how == SOD2_COMBINE_MAX) a[i] = a[i] < b[i] ? b[i] : a[i];                        \
      else if (how == SOD2_COMBINE_MIN) a[i] = b[i] < a[i] ? b[i] : a[i];                        \
      else a[i] = b[i];                                                                          \
    }                                                                                            \
    break;                                                                                       \
  }

void sod2_combine(void *to, const void *from, int64_t count, int32_t dtype, sod2_combination how) {
  switch (dtype) {
    case SOD2_FLOAT32: COMBINE(float, SAME, SAME)
    case SOD2_FLOAT64: COMBINE(double, SAME, SAME)
    case SOD2_FLOAT16: COMBINE(sod2_f16, (float), (sod2_f16))
    case SOD2_BFLOAT16: COMBINE(sod2_bf16, sod2_from_bf16, sod2_to_bf16)
    case SOD2_BOOL:
    case SOD2_UINT8: INTEGER(uint8_t)
    case SOD2_INT8: INTEGER(int8_t)
    case SOD2_UINT16: INTEGER(uint16_t)
    case SOD2_INT16: INTEGER(int16_t)
    case SOD2_UINT32: INTEGER(uint32_t)
    case SOD2_INT32: INTEGER(int32_t)
    case SOD2_UINT64: INTEGER(uint64_t)
    default: INTEGER(int64_t)
  }
}

static int64_t count_of(const int64_t *dims, int64_t begin, int64_t end) {
  int64_t total = 1;
  for (int64_t i = begin; i < end; i++) total *= dims[i];
  return total;
}

static int64_t index_at(const sod2_scatter *s, int64_t position, int64_t size) {
  const int64_t index =
      s->index_bytes == 8 ? ((const int64_t *)s->indices)[position] : ((const int32_t *)s->indices)[position];
  return index < 0 ? index + size : index;
}

static void copy_data(const sod2_scatter *s, sod2_pool *pool) {
  if (s->out != s->data) sod2_copy(s->out, s->data, count_of(s->dims, 0, s->rank) * s->item, pool);
}

void sod2_scatter_elements(const sod2_scatter *s, int axis, sod2_pool *pool) {
  copy_data(s, pool);
  const int64_t total = count_of(s->index_dims, 0, s->rank);
  for (int64_t u = 0; u < total; u++) {
    const int64_t target = index_at(s, u, s->dims[axis]);
    if (target < 0 || target >= s->dims[axis]) continue;
    int64_t rest = u, offset = 0, stride = 1;
    for (int i = s->rank - 1; i >= 0; i--) {
      offset += (i == axis ? target : rest % s->index_dims[i]) * stride;
      rest /= s->index_dims[i];
      stride *= s->dims[i];
    }
    sod2_combine((char *)s->out + offset * s->item, (const char *)s->updates + u * s->item, 1, s->dtype, s->how);
  }
}

void sod2_scatter_nd(const sod2_scatter *s, int64_t depth, sod2_pool *pool) {
  copy_data(s, pool);
  const int64_t slice = count_of(s->dims, depth, s->rank), total = count_of(s->index_dims, 0, s->index_rank);
  for (int64_t u = 0; u < total; u++) {
    int64_t offset = 0, inside = 1;
    for (int64_t i = 0; i < depth; i++) {
      const int64_t index = index_at(s, u * depth + i, s->dims[i]);
      inside &= index >= 0 && index < s->dims[i];
      offset = offset * s->dims[i] + index;
    }
    if (!inside) continue;
    sod2_combine((char *)s->out + offset * slice * s->item, (const char *)s->updates + u * slice * s->item, slice,
                 s->dtype, s->how);
  }
}
