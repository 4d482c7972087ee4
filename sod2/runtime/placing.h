/* Between arena.c, which decides in which order buffers are placed, and placing.c, which places them. */
#ifndef SOD2_PLACING_H
#define SOD2_PLACING_H
#include "program.h"

#define SOD2_DEPTHS 256 /* of a uint8_t */

/* Where buffers begin and end; -1 while one is not placed. */
typedef struct sod2_slots {
  int64_t *begin, *end; /* [buffers] */
} sod2_slots;

/* Buffers are numbered by their first step here: what begins within some steps lies together. */
typedef struct sod2_placing {
  int32_t buffers, steps;
  /* Known before sizes are. */
  int32_t *number;     /* of each buffer in the program */
  sod2_range *range;
  uint8_t *depth;
  int32_t *by_depth;   /* the buffers by depth */
  int32_t *depth_at;   /* [depths + 1] where those of each depth begin */
  int32_t *first_at;   /* [steps + 1] the first buffer of each step */
  int32_t *older;      /* for each step, the buffers that live there and began before */
  int32_t *older_at;   /* [steps + 1] where those of each step begin */
  int64_t overlaps;    /* how often one buffer is looked at for another, when all are placed */
  /* Of one set of sizes. */
  const uint8_t *given; /* by number in the program; NULL: none */
  int32_t depths;      /* 1: those of the buffers do not count */
  int64_t *bytes;      /* rounded up */
  int64_t *most;       /* the largest usage while a buffer lives, of the buffers up to its tier */
  int64_t *change, *usage, *usage_before; /* [steps + 1] live bytes: from step to step, and up to two depths */
  int64_t *top, *full, *gap_end; /* [steps] of what is placed: the last end, and where the first gap begins and ends */
  sod2_slots near;     /* of buffers that overlap one in time */
  int32_t tiers, tier_end[SOD2_DEPTHS]; /* in an order */
  int64_t floor[SOD2_DEPTHS];           /* live peak of the tiers up to each */
  uint8_t tier_of[SOD2_DEPTHS];         /* of each depth */
} sod2_placing;

/* Fills number, range, depth and first_at; `depth_of` may be NULL. Then by_depth and depth_at. Then older, older_at and
   overlaps. */
void sod2_number(sod2_placing *p, const sod2_range *range, const uint8_t *depth_of);
void sod2_list_depths(sod2_placing *p, int32_t depths);
void sod2_list_overlaps(sod2_placing *p);

SOD2_INLINE int sod2_is_given(const sod2_placing *p, int32_t buffer) {
  return p->given != NULL && p->given[p->number[buffer]];
}

/* Whether a buffer is placed behind the others of its tier: with several tiers, what lives in a single step. Nothing
   misses the gaps that it leaves. */
SOD2_INLINE int sod2_comes_last(const sod2_placing *p, int32_t buffer) {
  return (p->tiers > 1) & (p->range[buffer].first == p->range[buffer].last);
}

/* Both place around what is given, which lies where `offset` says, until all is placed or the arena is not below
   `limit`, and return the arena's size: in an order, each at the lowest place; by first steps, each in the smallest gap. */
int64_t sod2_place_order(sod2_placing *p, const int32_t *order, const int64_t *offset, int64_t limit,
                         const sod2_slots *slots);
int64_t sod2_place_in_time(sod2_placing *p, const int64_t *offset, int64_t limit, const sod2_slots *slots);
#endif
