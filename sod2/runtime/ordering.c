/* A merge sort; TopK by a heap of the k best of each line; Unique by sorting the slices' positions. Elements are compared
   by a function of their dtype. */
#include "ordering.h"

int64_t *sod2_sort(int64_t n, int64_t *items, int64_t *spare, int (*precedes)(const void *context, int64_t, int64_t),
                   const void *context) {
  for (int64_t run = 1; run < n; run *= 2) {
    for (int64_t begin = 0; begin < n; begin += 2 * run) {
      int64_t middle = sod2_imin(begin + run, n), end = sod2_imin(begin + 2 * run, n);
      for (int64_t a = begin, b = middle, at = begin; at < end; at++) {
        int from_b = a >= middle || (b < end && precedes(context, items[b], items[a]));
        spare[at] = items[from_b ? b++ : a++];
      }
    }
    int64_t *swap = items;
    items = spare;
    spare = swap;
  }
  return items;
}

/* Sign of a - b, NaN above everything. */
#define COMPARE(name, type)                                                     \
  static int compare_##name(const void *x, int64_t i, int64_t j) {              \
    const type a = ((const type *)x)[i], b = ((const type *)x)[j];              \
    if (a != a || b != b) return (a != a) - (b != b);                           \
    return (a > b) - (a < b);                                                   \
  }
COMPARE(float32, float)
COMPARE(float64, double)
COMPARE(int8, int8_t)
COMPARE(uint8, uint8_t)
COMPARE(int16, int16_t)
COMPARE(uint16, uint16_t)
COMPARE(int32, int32_t)
COMPARE(uint32, uint32_t)
COMPARE(int64, int64_t)
COMPARE(uint64, uint64_t)

typedef int (*comparison)(const void *x, int64_t i, int64_t j);

/* The comparison of a dtype, and the bytes of an element. */
static comparison comparison_of(int32_t dtype, int64_t *size) {
  switch (dtype) {
    case SOD2_FLOAT64: *size = 8; return compare_float64;
    case SOD2_INT8: *size = 1; return compare_int8;
    case SOD2_UINT8: case SOD2_BOOL: *size = 1; return compare_uint8;
    case SOD2_INT16: *size = 2; return compare_int16;
    case SOD2_UINT16: *size = 2; return compare_uint16;
    case SOD2_INT32: *size = 4; return compare_int32;
    case SOD2_UINT32: *size = 4; return compare_uint32;
    case SOD2_INT64: *size = 8; return compare_int64;
    case SOD2_UINT64: *size = 8; return compare_uint64;
    default: *size = 4; return compare_float32;
  }
}

/* ---- TopK ------------------------------------------------------------------------------------------------------- */

typedef struct top_k {
  const void *x;
  char *values;
  int64_t *indices;
  comparison compare;
  int64_t size, n, k, inner, chunk, lines;
  int smallest;
} top_k;

/* One line: element i is at first + i * inner; its best so far are positions in best[0], best[inner], ... */
typedef struct line {
  const top_k *g;
  int64_t first;
  int64_t *best;
} line;

/* Whether position a is taken before position b. */
static int precedes(const line *l, int64_t a, int64_t b) {
  int order = l->g->compare(l->g->x, l->first + a * l->g->inner, l->first + b * l->g->inner);
  if (order == 0) return a < b;
  return l->g->smallest ? order < 0 : order > 0;
}

/* Sinks the root of the heap best[at..end): a parent never precedes a child, so that the worst is on top. */
static void sink(const line *l, int64_t at, int64_t end) {
  int64_t *best = l->best, inner = l->g->inner, moved = best[at * inner];
  for (int64_t child; (child = 2 * at + 1) < end; at = child) {
    if (child + 1 < end && precedes(l, best[child * inner], best[(child + 1) * inner])) child++;
    if (!precedes(l, moved, best[child * inner])) break;
    best[at * inner] = best[child * inner];
  }
  best[at * inner] = moved;
}

static void select_line(const line *l) {
  const top_k *g = l->g;
  int64_t *best = l->best, k = g->k, inner = g->inner;
  for (int64_t i = 0; i < k; i++) best[i * inner] = i;
  for (int64_t i = k / 2 - 1; i >= 0; i--) sink(l, i, k);
  for (int64_t i = k; i < g->n; i++)
    if (precedes(l, i, best[0])) {
      best[0] = i;
      sink(l, 0, k);
    }
  for (int64_t end = k - 1; end > 0; end--) { /* the worst of the heap goes to its end */
    int64_t worst = best[0];
    best[0] = best[end * inner];
    sink(l, 0, end);
    best[end * inner] = worst;
  }
}

static void top_k_chunk(void *argument, int64_t chunk, int thread) {
  const top_k *g = argument;
  (void)thread;
  for (int64_t i = chunk * g->chunk; i < sod2_imin(g->lines, (chunk + 1) * g->chunk); i++) {
    int64_t outer = i / g->inner, column = i % g->inner, begin = outer * g->k * g->inner + column;
    line l = {g, outer * g->n * g->inner + column, g->indices + begin};
    select_line(&l);
    for (int64_t j = 0; j < g->k && g->values != NULL; j++)
      memcpy(g->values + (begin + j * g->inner) * g->size,
             (const char *)g->x + (l.first + l.best[j * g->inner] * g->inner) * g->size, (size_t)g->size);
  }
}

void sod2_top_k(const void *x, void *values, int64_t *indices, int32_t dtype, int smallest, int64_t outer, int64_t n,
                int64_t k, int64_t inner, sod2_pool *pool) {
  top_k g = {.x = x, .values = values, .indices = indices, .n = n, .k = k, .inner = inner, .smallest = smallest};
  g.compare = comparison_of(dtype, &g.size);
  g.lines = outer * inner;
  g.chunk = sod2_imax(1, 16384 / sod2_imax(n, 1));
  if (k > 0) sod2_parallel(pool, (g.lines + g.chunk - 1) / g.chunk, top_k_chunk, &g);
}

/* ---- Unique ----------------------------------------------------------------------------------------------------- */

/* The slices of a Unique, and how their elements compare. */
typedef struct slices {
  const sod2_unique *g;
  comparison compare;
  int64_t size;
} slices;

static slices slices_of(const sod2_unique *g) {
  slices s = {.g = g};
  s.compare = comparison_of(g->dtype, &s.size);
  return s;
}

/* Sign of slice i - slice j, element by element. */
static int compare_slices(const slices *s, int64_t i, int64_t j) {
  const sod2_unique *g = s->g;
  for (int64_t o = 0; o < g->outer; o++)
    for (int64_t k = 0; k < g->inner; k++) {
      int64_t row = o * g->n;
      int order = s->compare(g->x, (row + i) * g->inner + k, (row + j) * g->inner + k);
      if (order != 0) return order;
    }
  return 0;
}

static int slice_precedes(const void *context, int64_t i, int64_t j) { return compare_slices(context, i, j) < 0; }

/* The positions 0..n, sorted by their slices and then by themselves, in a part of the scratch. */
static const int64_t *sorted_positions(const slices *s, int64_t *scratch) {
  for (int64_t i = 0; i < s->g->n; i++) scratch[i] = i;
  return sod2_sort(s->g->n, scratch, scratch + s->g->n, slice_precedes, s);
}

/* Whether a distinct slice begins at place `i` of the sorted positions. */
static int begins(const slices *s, const int64_t *sorted, int64_t i) {
  return i == 0 || compare_slices(s, sorted[i - 1], sorted[i]) != 0;
}

int64_t sod2_unique_count(const sod2_unique *g, int64_t *scratch) {
  slices s = slices_of(g);
  const int64_t *sorted = sorted_positions(&s, scratch);
  int64_t count = 0;
  for (int64_t i = 0; i < g->n; i++) count += begins(&s, sorted, i);
  return count;
}

/* number[p]: the place among the results of the distinct slice that appears first at position p, -1 for other p. */
static void number_slices(const slices *s, const int64_t *sorted, int64_t *number) {
  int64_t next = 0, n = s->g->n;
  for (int64_t i = 0; i < n; i++) number[i] = -1;
  for (int64_t i = 0; i < n; i++)
    if (begins(s, sorted, i)) number[sorted[i]] = s->g->sorted ? next++ : 0;
  for (int64_t p = 0; p < n && !s->g->sorted; p++)
    if (number[p] == 0) number[p] = next++;
}

void sod2_unique_run(const sod2_unique *g, int64_t count, int64_t *scratch, void *y, int64_t *first, int64_t *inverse,
                     int64_t *counts) {
  slices s = slices_of(g);
  const int64_t *sorted = sorted_positions(&s, scratch), bytes = g->inner * s.size;
  int64_t *number = scratch + 2 * g->n, at = 0;
  number_slices(&s, sorted, number);
  for (int64_t i = 0; i < count && counts != NULL; i++) counts[i] = 0;
  for (int64_t i = 0; i < g->n; i++) {
    int64_t position = sorted[i];
    int is_first = number[position] >= 0;
    if (is_first) at = number[position];
    if (inverse != NULL) inverse[position] = at;
    if (counts != NULL) counts[at]++;
    if (is_first && first != NULL) first[at] = position;
    for (int64_t o = 0; o < g->outer && is_first && y != NULL; o++)
      memcpy((char *)y + (o * count + at) * bytes, (const char *)g->x + (o * g->n + position) * bytes, (size_t)bytes);
  }
}
