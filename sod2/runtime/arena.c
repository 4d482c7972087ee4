/* Placement of buffers in the arena, done when their sizes are known. Twin of sod2/memory.py.

   A buffer occupies `bytes` (rounded up to SOD2_ALIGN) during the steps [first, last]; buffers that overlap in time may
   not overlap in space. Two functions of one signature:

   - sod2_place_best_fit is what engines do without a plan: walk through time, give each buffer at its first step the
     smallest free gap that holds it, free it after its last step.
   - sod2_place_peak_first is dynamic memory planning: buffers that live where most is used come first, and each takes
     the lowest gap among the placed buffers that overlap it in time. At the peak little is wasted, and what lives where
     less is used fits into the slots below. There are two such orders: by the largest usage that a buffer sees times
     its size, and by that usage alone, then by its first step. While the arena is larger than the live peak, a lower
     bound, by more than 1/ENOUGH, the other order is tried, and then both again and again, in turns, after what ended
     above the live peak has moved half way to the front. An order is left as soon as it needs no less than another one.
     The smallest arena wins; best fit is tried too, so that it is never worse. Around buffers that are there already,
     each order is tried once.

   sod2_place_by_depth arranges a model with branches so that runs which enter few of them need little. Depths of
   branches form tiers: one ends where the live peak of the next depth is DEPTH_GAIN times that of its first. Outer
   tiers are placed first, as if there were nothing else, and in each what lives in one step comes last. The longest path
   may need 1/DEPTH_COST of its live peak more for it, half of which is enough; otherwise all are placed together.

   Sizes that only execution tells are placed while the model runs, around the buffers that are there (`given`): those
   stay at their offsets, and the others are placed as ever, in the gaps that they leave or behind them.

   All is deterministic. Placing once takes time in proportion to the pairs of buffers that overlap in time, of which
   networks have few: 20 us for 500 buffers, 70 us for the 1000 of RANet. WORK limits what is tried. The problem,
   dynamic storage allocation, is NP-hard, so nothing is exact. Callers guarantee 0 <= first <= last < steps,
   bytes >= 0, and that the sum of all rounded sizes fits int64_t. Buffers of 0 bytes get offset 0, unless given. */
#include <stdlib.h>

#include "placing.h"

#define DEPTH_COST 8
#define DEPTH_GAIN 2
#define ENOUGH 128
#define ROUNDS 8
#define WORK 80000 /* overlaps that all orders together look at, at most, but for the first one */

/* Larger weights come first. */
typedef struct ranked {
  double weight;
  int32_t buffer;
} ranked;

/* An order in which buffers are placed, tier by tier, and where that has put them. */
enum { BY_PRODUCT, BY_USAGE, ORDERS };
typedef struct attempt {
  int32_t *order;
  sod2_slot *slots; /* [buffers] */
} attempt;

typedef struct problem {
  sod2_placing placing;
  attempt tried[ORDERS];
  ranked *ranks, *spare; /* [buffers] */
} problem;

static int64_t rounded(int64_t bytes) { return (bytes + SOD2_ALIGN - 1) & ~(int64_t)(SOD2_ALIGN - 1); }

/* ---- what is live when ------------------------------------------------------------------------------------------ */

/* Fills usage[steps + 1] with the bytes live at each step, of buffers up to a depth, and returns the largest. */
static int64_t fill_usage(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes,
                          const uint8_t *depth_of, int32_t depth, int64_t *usage) {
  memset(usage, 0, sizeof *usage * ((size_t)steps + 1));
  for (int32_t i = 0; i < count; i++) {
    const int64_t size = depth_of == NULL || depth_of[i] <= depth ? rounded(bytes[i]) : 0;
    usage[range[i].first] += size;
    usage[range[i].last + 1] -= size;
  }
  int64_t live = 0, peak = 0;
  for (int32_t step = 0; step < steps; step++) {
    usage[step] = live += usage[step];
    peak = sod2_imax(peak, live);
  }
  return peak;
}

static int64_t fill_usage_to(sod2_placing *p, int32_t depth) {
  return fill_usage(p->buffers, p->steps, p->range, p->bytes, p->depth_of, depth, p->usage);
}

static int32_t tier_of(const sod2_placing *p, int32_t buffer) {
  return p->depth_of == NULL ? 0 : p->tier_of[p->depth_of[buffer]];
}

/* Groups the depths into tiers; floors, and the usage that each buffer sees. */
static void fill_tiers(sod2_placing *p) {
  int64_t outer = 0;
  p->tiers = 0;
  for (int32_t depth = 0; depth < p->depths; depth++) {
    int64_t peak = fill_usage_to(p, depth);
    if (depth == 0 || peak >= DEPTH_GAIN * outer) p->tiers++, outer = peak;
    p->tier_of[depth] = (uint8_t)(p->tiers - 1);
    p->floor[p->tiers - 1] = peak;
  }
  for (int32_t depth = p->depths - 1, tier = p->tiers; depth >= 0; depth--) {
    if (p->tier_of[depth] == tier) continue;
    tier = p->tier_of[depth];
    if (depth + 1 < p->depths) fill_usage_to(p, depth); /* usage is that of the deepest */
    for (int32_t i = 0; i < p->buffers; i++) {
      if (tier_of(p, i) != tier) continue;
      p->most[i] = 0;
      for (int32_t step = p->range[i].first; step <= p->range[i].last; step++)
        p->most[i] = sod2_imax(p->most[i], p->usage[step]);
    }
  }
}

/* A block of memory, of which arrays are taken one after the other; without `data` they are only counted. */
typedef struct block {
  char *data;
  size_t bytes;
} block;

static void *take(block *from, size_t count, size_t size) {
  void *begin = from->data != NULL ? from->data + from->bytes : NULL;
  from->bytes += (count * size + SOD2_ALIGN - 1) / SOD2_ALIGN * SOD2_ALIGN;
  return begin;
}

/* The arrays of a problem; `lives` is the sum of last - first. */
static void take_arrays(problem *q, size_t lives, block *from) {
  sod2_placing *p = &q->placing;
  const size_t n = (size_t)p->buffers, s = (size_t)p->steps + 2;
  p->bytes = take(from, n, sizeof *p->bytes);
  p->most = take(from, n, sizeof *p->most);
  p->usage = take(from, s, sizeof *p->usage);
  p->top = take(from, s, sizeof *p->top);
  p->full = take(from, s, sizeof *p->full);
  p->by_first = take(from, n, sizeof *p->by_first);
  p->first_at = take(from, s, sizeof *p->first_at);
  p->older_at = take(from, s, sizeof *p->older_at);
  p->older = take(from, lives, sizeof *p->older);
  for (int k = 0; k < ORDERS; k++) {
    q->tried[k].order = take(from, n, sizeof *q->tried[k].order);
    q->tried[k].slots = take(from, n, sizeof *q->tried[k].slots);
  }
  q->ranks = take(from, n, sizeof *q->ranks);
  q->spare = take(from, n, sizeof *q->spare);
  p->near = take(from, n, sizeof *p->near);
}

/* One block of memory, to be given to free(); NULL when there is none. */
static problem *describe(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes,
                         const uint8_t *given, const uint8_t *depth_of, int32_t depths) {
  problem described = {.placing = {.range = range, .given = given, .depth_of = depth_of, .depths = depths}};
  block memory = {0};
  size_t lives = 0;
  described.placing.buffers = count;
  described.placing.steps = steps;
  for (int32_t i = 0; i < count; i++) lives += bytes[i] > 0 ? (size_t)(range[i].last - range[i].first) : 0;
  take(&memory, 1, sizeof described);
  take_arrays(&described, lives, &memory);
  problem *q = malloc(memory.bytes);
  if (q == NULL) return NULL;
  memory = (block){(char *)q, 0};
  take(&memory, 1, sizeof described);
  take_arrays(&described, lives, &memory);
  *q = described;
  for (int32_t i = 0; i < count; i++) q->placing.bytes[i] = rounded(bytes[i]);
  fill_tiers(&q->placing);
  sod2_list_overlaps(&q->placing);
  return q;
}

/* ---- orders ----------------------------------------------------------------------------------------------------- */

/* Stable. Most orders are nearly sorted: runs that are need no merging. */
static void sort(ranked *a, ranked *spare, int32_t count) {
  for (int32_t width = 1; width < count; width *= 2)
    for (int32_t low = 0; low + width < count; low += 2 * width) {
      int32_t middle = low + width, end = (int32_t)sod2_imin(middle + width, count);
      if (a[middle - 1].weight >= a[middle].weight) continue;
      memcpy(spare, a + low, sizeof *a * (size_t)width);
      for (int32_t i = 0, j = middle, k = low; i < width;)
        a[k++] = j < end && a[j].weight > spare[i].weight ? a[j++] : spare[i++];
    }
}

/* Fills an order with the buffers that have to be placed; in ties the one that begins earlier is first. */
static void rank(problem *q, int by) {
  sod2_placing *p = &q->placing;
  int32_t count = 0;
  for (int32_t tier = 0; tier < p->tiers; tier++) {
    const int32_t begin = count;
    for (int32_t j = 0; j < p->first_at[p->steps]; j++) {
      const int32_t i = p->by_first[j];
      if (tier_of(p, i) != tier || (p->given != NULL && p->given[i])) continue;
      const double weight = (double)p->most[i] * (by == BY_PRODUCT ? (double)p->bytes[i] : 1);
      q->ranks[count++] = (ranked){sod2_comes_last(p, i) ? 0 : weight, i};
    }
    sort(q->ranks + begin, q->spare, count - begin);
    p->tier_end[tier] = count;
  }
  for (int32_t i = 0; i < count; i++) q->tried[by].order[i] = q->ranks[i].buffer;
}

/* Moves what ended above the live peak of its tier half way to the front of it. */
static void advance(problem *q, attempt tried) {
  const sod2_placing *p = &q->placing;
  for (int32_t tier = 0, begin = 0; tier < p->tiers; begin = p->tier_end[tier++]) {
    int32_t count = p->tier_end[tier] - begin, late = 0, kept = 0;
    int32_t *order = tried.order + begin;
    ranked *moved = q->ranks, *stays = q->spare;
    for (int32_t i = 0; i < count; i++) {
      if (tried.slots[order[i]].end > p->floor[tier])
        moved[late++] = (ranked){i / 2, order[i]};
      else
        stays[kept++] = (ranked){i, order[i]};
    }
    for (int32_t i = 0, j = 0; i + j < count;)
      *order++ = j < late && (i == kept || moved[j].weight <= stays[i].weight) ? moved[j++].buffer : stays[i++].buffer;
  }
}

/* Keeps the offsets of a placement when it needs less than `arena`. Returns the smaller size. */
static int64_t keep_smaller(const problem *q, const sod2_slot *slots, int64_t needed, int64_t arena, int64_t *offset) {
  for (int32_t i = 0; i < q->placing.buffers && needed < arena; i++) offset[i] = slots[i].begin;
  return sod2_imin(needed, arena);
}

/* Tries the orders in turns. Returns the smallest arena, whose offsets are kept. */
static int64_t search(problem *q, int64_t *offset) {
  sod2_placing *p = &q->placing;
  const int64_t peak = p->floor[p->tiers - 1], enough = peak + peak / (p->tiers > 1 ? 2 * DEPTH_COST : ENOUGH);
  const int64_t most = sod2_imin(ORDERS * ROUNDS, 1 + WORK / sod2_imax(1, sod2_overlaps(p)));
  int64_t arena = INT64_MAX;
  for (int k = 0; k < (p->given != NULL ? ORDERS : most) && arena > enough; k++) {
    const attempt tried = q->tried[k % ORDERS];
    if (k < ORDERS)
      rank(q, k);
    else
      advance(q, tried);
    const int64_t needed = sod2_place_order(p, tried.order, offset, arena, tried.slots);
    arena = keep_smaller(q, tried.slots, needed, arena, offset);
  }
  return arena;
}

/* Best fit, unless it needs `arena` or more. Returns the smaller size. */
static int64_t try_best_fit(problem *q, int64_t arena, int64_t *offset) {
  sod2_slot *slots = q->tried[0].slots;
  return keep_smaller(q, slots, sod2_place_in_time(&q->placing, offset, arena, slots), arena, offset);
}

/* The search, and best fit where that does not reach the live peak. */
static int64_t place_together(problem *q, int64_t *offset) {
  const int64_t arena = search(q, offset);
  return arena <= q->placing.floor[0] ? arena : try_best_fit(q, arena, offset);
}

/* ---- what program.h declares ------------------------------------------------------------------------------------ */

/* All return -1 when there is no memory for planning. */
int64_t sod2_place_peak_first(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes,
                              const uint8_t *given, int64_t *offset) {
  problem *q = describe(count, steps, range, bytes, given, NULL, 1);
  int64_t arena = q != NULL ? place_together(q, offset) : -1;
  free(q);
  return arena;
}

int64_t sod2_place_best_fit(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes,
                            const uint8_t *given, int64_t *offset) {
  problem *q = describe(count, steps, range, bytes, given, NULL, 1);
  int64_t arena = q != NULL ? try_best_fit(q, INT64_MAX, offset) : -1;
  free(q);
  return arena;
}

/* The arena up to each depth. */
static void fill_needed(const sod2_placing *p, const int64_t *offset, int64_t *needed) {
  memset(needed, 0, sizeof *needed * (size_t)p->depths);
  for (int32_t i = 0; i < p->buffers; i++) {
    int64_t *end = needed + p->depth_of[i];
    if (p->bytes[i] > 0) *end = sod2_imax(*end, offset[i] + p->bytes[i]);
  }
  for (int32_t depth = 1; depth < p->depths; depth++) needed[depth] = sod2_imax(needed[depth], needed[depth - 1]);
}

int64_t sod2_place_by_depth(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes,
                            const uint8_t *depth_of, int32_t depths, int64_t *offset, int64_t *needed) {
  problem *q = describe(count, steps, range, bytes, NULL, depth_of, depths);
  if (q == NULL) return -1;
  const int32_t tiers = q->placing.tiers;
  const int64_t peak = q->placing.floor[tiers - 1];
  int64_t arena = tiers > 1 ? search(q, offset) : place_together(q, offset);
  if (tiers > 1 && arena > peak + peak / DEPTH_COST) {
    int64_t *trial = q->placing.most, together = sod2_place_peak_first(count, steps, range, bytes, NULL, trial);
    if (together < arena) memcpy(offset, trial, sizeof *offset * (size_t)count); /* if it is -1, nothing counts */
    arena = sod2_imin(arena, together);
  }
  fill_needed(&q->placing, offset, needed);
  free(q);
  return arena;
}

void sod2_allowances(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes, int64_t *allowance) {
  const int64_t peak = fill_usage(count, steps, range, bytes, NULL, 0, allowance);
  for (int32_t step = 0; step < steps; step++) allowance[step] = peak - allowance[step];
}

int64_t sod2_live_peak(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes) {
  int64_t *usage = malloc(sizeof *usage * ((size_t)steps + 1));
  if (usage == NULL) return -1;
  int64_t peak = fill_usage(count, steps, range, bytes, NULL, 0, usage);
  free(usage);
  return peak;
}
