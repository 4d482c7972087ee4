/* Non-maximum suppression. */
#ifndef SOD2_NMS_H
#define SOD2_NMS_H
#include "kernel.h"

typedef struct sod2_nms {
  const float *boxes;  /* [batches, n, 4]: two opposite corners (y, x, y, x), or centre and size (x, y, width, height) */
  const float *scores; /* [batches, classes, n] */
  int64_t batches, classes, n, most; /* most: boxes kept of one class, at most */
  float overlap;                     /* a box is dropped when its intersection over union with a kept one is above */
  float score;                       /* only boxes of a higher score are candidates; -infinity: all */
  int is_centered;
} sod2_nms;

/* int64_t numbers of scratch. */
SOD2_INLINE int64_t sod2_nms_scratch(const sod2_nms *g) { return 3 * g->n; }
/* Writes (batch, class, box) of each kept box, of one class by decreasing score (of equal scores the lower box first),
   into selected [count, 3] unless that is NULL; returns the count. */
int64_t sod2_nms_run(const sod2_nms *g, int64_t *scratch, int64_t *selected);

#endif
