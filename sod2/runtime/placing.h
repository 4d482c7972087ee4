/* Between arena.c, which decides in which order buffers are placed, and placing.c, which places them. */
#ifndef SOD2_PLACING_H
#define SOD2_PLACING_H
#include "program.h"

#define SOD2_DEPTHS 256 /* of a uint8_t */
#define SOD2_AT_ONCE 8  /* near buffers: a multiple of what a vector holds */

/* Where a buffer begins and ends; -1 while it is not placed. */
typedef struct sod2_slot {
  int64_t begin, end;
} sod2_slot;

typedef struct sod2_placing {
  const sod2_range *range;
  int32_t buffers, steps;
  /* Known before sizes are. */
  int32_t *by_depth;   /* the buffers by depth */
  int32_t *depth_at;   /* [depths + 1] where those of each depth begin */
  int32_t *by_first;   /* the buffers by first step */
  int32_t *first_at;   /* [steps + 1] where those of each step begin */
  int32_t *older;      /* for each step, the buffers that live there and began before */
  int32_t *older_at;   /* [steps + 1] where those of each step begin */
  int64_t overlaps;    /* how often one buffer is looked at for another, when all are placed */
  /* Of one set of sizes. */
  const uint8_t *given, *depth_of; /* NULL: none; all 0 */
  int32_t depths;
  int64_t *bytes;      /* rounded up */
  int64_t *most;       /* the largest usage while a buffer lives, of the buffers up to its tier */
  int64_t *change, *usage, *usage_before; /* [steps + 1] live bytes: from step to step, and up to two depths */
  int64_t *top, *full, *gap_end; /* [steps] of what is placed: the last end, and where the first gap begins and ends */
  struct {
    int64_t *begin, *end; /* [buffers + SOD2_AT_ONCE] */
  } near;              /* buffers that overlap one in time */
  int32_t tiers, tier_end[SOD2_DEPTHS]; /* in an order */
  int64_t floor[SOD2_DEPTHS];           /* live peak of the tiers up to each */
  uint8_t tier_of[SOD2_DEPTHS];         /* of each depth */
} sod2_placing;

/* Fills by_depth and depth_at; `depth_of` may be NULL. */
void sod2_list_depths(sod2_placing *p, const uint8_t *depth_of, int32_t depths);
/* Fills by_first, first_at, older, older_at and overlaps. */
void sod2_list_overlaps(sod2_placing *p);

SOD2_INLINE int sod2_is_given(const sod2_placing *p, int32_t buffer) { return p->given != NULL && p->given[buffer]; }

/* Whether a buffer is placed behind the others of its tier: with several tiers, what lives in a single step. Nothing
   misses the gaps that it leaves. */
SOD2_INLINE int sod2_comes_last(const sod2_placing *p, int32_t buffer) {
  return p->tiers > 1 && p->range[buffer].first == p->range[buffer].last;
}

/* Both place around what is given, which lies where `offset` says, until all is placed or the arena is not below
   `limit`, and return the arena's size: in an order, each at the lowest place; by first steps, each in the smallest gap. */
int64_t sod2_place_order(sod2_placing *p, const int32_t *order, const int64_t *offset, int64_t limit, sod2_slot *slots);
int64_t sod2_place_in_time(sod2_placing *p, const int64_t *offset, int64_t limit, sod2_slot *slots);
#endif
