/* Non-maximum suppression, one class of one image after the other: candidates by score, then the greedy choice. */
#include "nms.h"

#include "ordering.h"

typedef struct corners {
  float top, left, bottom, right;
} corners;

static corners corners_of(const sod2_nms *g, const float *box) {
  if (g->is_centered) {
    float height = box[3] / 2, width = box[2] / 2;
    return (corners){box[1] - height, box[0] - width, box[1] + height, box[0] + width};
  }
  return (corners){fminf(box[0], box[2]), fminf(box[1], box[3]), fmaxf(box[0], box[2]), fmaxf(box[1], box[3])};
}

static float area(corners c) { return (c.bottom - c.top) * (c.right - c.left); }

/* Whether two boxes overlap by more than the limit. */
static int overlap(const sod2_nms *g, const float *boxes, int64_t i, int64_t j) {
  corners a = corners_of(g, boxes + 4 * i), b = corners_of(g, boxes + 4 * j);
  float height = fminf(a.bottom, b.bottom) - fmaxf(a.top, b.top), width = fminf(a.right, b.right) - fmaxf(a.left, b.left);
  if (height <= 0 || width <= 0 || area(a) <= 0 || area(b) <= 0) return 0;
  float both = height * width, either = area(a) + area(b) - both;
  return either > 0 && both / either > g->overlap;
}

static int scores_more(const void *score, int64_t i, int64_t j) {
  return ((const float *)score)[i] > ((const float *)score)[j];
}

/* The kept boxes of one class, in `kept`; returns their number. */
static int64_t select_class(const sod2_nms *g, const float *boxes, const float *score, int64_t *scratch, int64_t *kept) {
  int64_t candidates = 0, count = 0;
  for (int64_t i = 0; i < g->n; i++)
    if (score[i] > g->score || g->score == -INFINITY) scratch[candidates++] = i;
  const int64_t *sorted = sod2_sort(candidates, scratch, scratch + g->n, scores_more, score);
  for (int64_t i = 0; i < candidates && count < g->most; i++) {
    int is_free = 1;
    for (int64_t j = 0; j < count && is_free; j++) is_free = !overlap(g, boxes, kept[j], sorted[i]);
    if (is_free) kept[count++] = sorted[i];
  }
  return count;
}

int64_t sod2_nms_run(const sod2_nms *g, int64_t *scratch, int64_t *selected) {
  int64_t total = 0, *kept = scratch + 2 * g->n;
  for (int64_t batch = 0; batch < g->batches; batch++)
    for (int64_t class = 0; class < g->classes; class++) {
      const float *score = g->scores + (batch * g->classes + class) * g->n;
      int64_t count = select_class(g, g->boxes + batch * g->n * 4, score, scratch, kept);
      for (int64_t i = 0; i < count && selected != NULL; i++) {
        int64_t *row = selected + 3 * (total + i);
        row[0] = batch, row[1] = class, row[2] = kept[i];
      }
      total += count;
    }
  return total;
}
