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
     above the live peak has moved half way to the front. The smallest arena wins; best fit is tried too, so that it is
     never worse. Around buffers that are there already, each order is tried once.

   sod2_place_by_depth arranges a model with branches so that runs which enter few of them need little. Depths of
   branches form tiers: one ends where the live peak of the next depth is DEPTH_GAIN times that of its first. Outer
   tiers are placed first, as if there were nothing else; here the second order is the better one. The longest path may
   need 1/DEPTH_COST of its live peak more for it; otherwise all are placed together.

   Sizes that only execution tells are placed while the model runs, around the buffers that are there (`given`): those
   stay at their offsets, and the others are placed as ever, in the gaps that they leave or behind them.

   All is deterministic. Placing once takes time in proportion to the pairs of buffers that overlap in time, of which
   networks have few: 20 us for 500 buffers, 150 us for the 1200 of RANet. WORK limits what is tried. The problem,
   dynamic storage allocation, is NP-hard, so nothing is exact. Callers guarantee 0 <= first <= last < steps,
   bytes >= 0, and that the sum of all rounded sizes fits int64_t. Buffers of 0 bytes get offset 0, unless given. */
#include <stdlib.h>

#include "program.h"

#define DEPTH_COST 8
#define DEPTH_GAIN 2
#define DEPTHS 256 /* of a uint8_t */
#define ENOUGH 128
#define ROUNDS 4
#define FEW 16 /* near buffers that are sorted */
#define WORK 40000 /* overlaps looked at, behind which no further order is tried */

/* Larger weights come first. */
typedef struct ranked {
  double weight;
  int32_t buffer;
} ranked;

/* Where a buffer begins and ends; -1 while it is not placed. */
typedef struct slot {
  int64_t begin, end;
} slot;

/* An order in which buffers are placed, tier by tier, and where that has put them. */
enum { BY_PRODUCT, BY_USAGE, ORDERS };
typedef struct attempt {
  ranked *order;
  slot *slots; /* [buffers] */
} attempt;

typedef struct problem {
  const sod2_range *range;
  const uint8_t *given, *depth_of; /* NULL: none; all 0 */
  int32_t buffers, steps, depths;
  int64_t *bytes;      /* rounded up */
  int64_t *most;       /* the largest usage while a buffer lives, of the buffers up to its tier */
  int64_t *usage;      /* [steps + 1] */
  slot *near;          /* the placed buffers that overlap one in time */
  attempt tried[ORDERS];
  ranked *spare;       /* [2 * buffers] */
  int32_t *by_first;   /* the buffers that are not empty, by first step */
  int32_t *first_at;   /* [steps + 1] where those of each step begin */
  int32_t *older;      /* for each step, the buffers that live there and began before */
  int32_t *older_at;   /* [steps + 1] where those of each step begin */
  int32_t tiers, tier_end[DEPTHS]; /* in an order */
  int64_t floor[DEPTHS];           /* live peak of the tiers up to each */
  uint8_t tier_of[DEPTHS];         /* of each depth */
  int64_t work;
} problem;

static int64_t rounded(int64_t bytes) { return (bytes + SOD2_ALIGN - 1) & ~(int64_t)(SOD2_ALIGN - 1); }

/* ---- what is live when ------------------------------------------------------------------------------------------ */

/* Fills usage[steps + 1] with the bytes live at each step, of buffers up to a depth, and returns the largest. */
static int64_t fill_usage(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes,
                          const uint8_t *depth_of, int32_t depth, int64_t *usage) {
  memset(usage, 0, sizeof *usage * ((size_t)steps + 1));
  for (int32_t i = 0; i < count; i++) {
    if (depth_of != NULL && depth_of[i] > depth) continue;
    usage[range[i].first] += rounded(bytes[i]);
    usage[range[i].last + 1] -= rounded(bytes[i]);
  }
  int64_t live = 0, peak = 0;
  for (int32_t step = 0; step < steps; step++) {
    usage[step] = live += usage[step];
    peak = sod2_imax(peak, live);
  }
  return peak;
}

static int64_t fill_usage_to(problem *p, int32_t depth) {
  return fill_usage(p->buffers, p->steps, p->range, p->bytes, p->depth_of, depth, p->usage);
}

static int32_t tier_of(const problem *p, int32_t buffer) {
  return p->depth_of == NULL ? 0 : p->tier_of[p->depth_of[buffer]];
}

/* Groups the depths into tiers; floors, and the usage that each buffer sees. */
static void fill_tiers(problem *p) {
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

/* Numbers of the buffers that are not empty, by step: counts at [step + 1] become places, which are then filled. */
static void fill_lists(problem *p) {
  int32_t *first_at = p->first_at, *older_at = p->older_at;
  for (int32_t i = 0; i < p->buffers; i++) {
    if (p->bytes[i] == 0) continue;
    first_at[p->range[i].first + 1]++;
    for (int32_t step = p->range[i].first + 1; step <= p->range[i].last; step++) older_at[step + 1]++;
  }
  for (int32_t step = 0; step < p->steps; step++) {
    first_at[step + 1] += first_at[step];
    older_at[step + 1] += older_at[step];
  }
  for (int32_t i = 0; i < p->buffers; i++)
    if (p->bytes[i] > 0) p->by_first[first_at[p->range[i].first]++] = i;
  for (int32_t j = 0; j < first_at[p->steps]; j++) {
    int32_t i = p->by_first[j];
    for (int32_t step = p->range[i].first + 1; step <= p->range[i].last; step++) p->older[older_at[step]++] = i;
  }
  for (int32_t step = p->steps; step > 0; step--) { /* each place has moved to where the next step's begin */
    first_at[step] = first_at[step - 1];
    older_at[step] = older_at[step - 1];
  }
  first_at[0] = older_at[0] = 0;
}

/* One block of memory, to be given to free(); NULL when there is none. */
static problem *describe(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes,
                         const uint8_t *given, const uint8_t *depth_of, int32_t depths) {
  size_t n = (size_t)count, s = (size_t)steps + 2, lives = 0;
  for (int32_t i = 0; i < count; i++) lives += bytes[i] > 0 ? (size_t)(range[i].last - range[i].first) : 0;
  size_t words = 2 * n + s, slots = (1 + ORDERS) * n, ranks = (2 + ORDERS) * n, numbers = n + 2 * s + lives;
  problem *p = malloc(sizeof *p + words * sizeof(int64_t) + slots * sizeof(slot) + ranks * sizeof(ranked) +
                      numbers * sizeof(int32_t));
  if (p == NULL) return NULL;
  *p = (problem){.range = range, .given = given, .depth_of = depth_of, .depths = depths};
  p->buffers = count;
  p->steps = steps;
  p->bytes = (int64_t *)(p + 1);
  p->most = p->bytes + n;
  p->usage = p->most + n;
  p->near = (slot *)(p->usage + s);
  ranked *orders = (ranked *)(p->near + (1 + ORDERS) * n);
  for (size_t k = 0; k < ORDERS; k++) p->tried[k] = (attempt){orders + k * n, p->near + (1 + k) * n};
  p->spare = orders + ORDERS * n;
  p->by_first = (int32_t *)(p->spare + 2 * n);
  p->first_at = p->by_first + n;
  p->older_at = p->first_at + s;
  p->older = p->older_at + s;
  memset(p->first_at, 0, 2 * s * sizeof *p->first_at);
  for (int32_t i = 0; i < count; i++) p->bytes[i] = rounded(bytes[i]);
  fill_tiers(p);
  fill_lists(p);
  return p;
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
static void rank(problem *p, int by) {
  ranked *order = p->tried[by].order;
  int32_t count = 0;
  for (int32_t tier = 0; tier < p->tiers; tier++) {
    int32_t begin = count;
    for (int32_t j = 0; j < p->first_at[p->steps]; j++) {
      int32_t i = p->by_first[j];
      if (tier_of(p, i) != tier || (p->given != NULL && p->given[i])) continue;
      order[count++] = (ranked){(double)p->most[i] * (by == BY_PRODUCT ? (double)p->bytes[i] : 1), i};
    }
    sort(order + begin, p->spare, count - begin);
    p->tier_end[tier] = count;
  }
}

/* Moves what ended above the live peak of its tier half way to the front of it. */
static void advance(problem *p, attempt tried) {
  for (int32_t tier = 0, begin = 0; tier < p->tiers; begin = p->tier_end[tier++]) {
    int32_t count = p->tier_end[tier] - begin, late = 0, kept = 0;
    ranked *order = tried.order + begin, *moved = p->spare, *stays = p->spare + count;
    for (int32_t i = 0; i < count; i++) {
      int32_t buffer = order[i].buffer;
      int is_late = tried.slots[buffer].end > p->floor[tier];
      if (is_late)
        moved[late++] = (ranked){i / 2, buffer};
      else
        stays[kept++] = (ranked){i, buffer};
    }
    for (int32_t i = 0, j = 0; i + j < count;)
      *order++ = j < late && (i == kept || moved[j].weight <= stays[i].weight) ? moved[j++] : stays[i++];
  }
}

/* ---- placing ---------------------------------------------------------------------------------------------------- */

/* Fills p->near and returns their number. */
static int32_t gather(problem *p, int32_t buffer, const slot *slots) {
  sod2_range live = p->range[buffer];
  int32_t found = 0;
  const int32_t *begin[2] = {p->older + p->older_at[live.first], p->by_first + p->first_at[live.first]};
  const int32_t *end[2] = {p->older + p->older_at[live.first + 1], p->by_first + p->first_at[live.last + 1]};
  for (int part = 0; part < 2; part++) {
    p->work += end[part] - begin[part];
    for (const int32_t *other = begin[part]; other < end[part]; other++) {
      p->near[found] = slots[*other];
      found += slots[*other].begin >= 0; /* no branch: it would be mispredicted */
    }
  }
  return found;
}

/* Sorts the near buffers by insertion: they are few. */
static void sort_near(problem *p, int32_t count) {
  for (int32_t i = 1; i < count; i++) {
    slot moved = p->near[i];
    int32_t j = i;
    for (; j > 0 && p->near[j - 1].begin > moved.begin; j--) p->near[j] = p->near[j - 1];
    p->near[j] = moved;
  }
}

/* The lowest gap of so many bytes among the near buffers. Where they are many, again and again all are looked at, which
   vector units do faster than sorting: what lies in the way ends before every later begin. */
static int64_t lowest(problem *p, int32_t count, int64_t bytes) {
  int64_t begin = 0;
  if (count <= FEW) {
    sort_near(p, count);
    for (int32_t j = 0; j < count && p->near[j].begin - begin < bytes; j++) begin = sod2_imax(begin, p->near[j].end);
    return begin;
  }
  for (int64_t next = 0;; begin = next) {
    for (int32_t j = 0; j < count; j++) {
      slot other = p->near[j];
      int meets = (other.begin < begin + bytes) & (other.end > begin);
      next = sod2_imax(next, meets ? other.end : 0);
    }
    if (next == begin) return begin;
  }
}

/* The smallest gap among the near buffers, the free bytes at the arena's end included; where none is large enough, the
   place behind them. */
static int64_t best_fit(problem *p, int32_t count, int64_t bytes, int64_t arena) {
  sort_near(p, count);
  int64_t end = 0, best = INT64_MAX, begin = 0;
  for (int32_t j = 0; j < count; j++) {
    int64_t gap = p->near[j].begin - end;
    if (gap >= bytes && gap < best) best = gap, begin = end;
    end = sod2_imax(end, p->near[j].end);
  }
  return best == INT64_MAX || (arena - end >= bytes && arena - end < best) ? end : begin;
}

/* Begins a placement: only what is given lies somewhere, where `offset` says. Returns the arena that it needs. */
static int64_t clear(const problem *p, const int64_t *offset, slot *slots) {
  int64_t arena = 0;
  for (int32_t i = 0; i < p->buffers; i++) {
    int64_t begin = p->given != NULL && p->given[i] ? offset[i] : p->bytes[i] > 0 ? -1 : 0;
    slots[i] = (slot){begin, begin + p->bytes[i]};
    if (begin >= 0 && p->bytes[i] > 0) arena = sod2_imax(arena, slots[i].end);
  }
  return arena;
}

/* Both return the arena's size. */
static int64_t place_lowest(problem *p, attempt tried, const int64_t *offset) {
  int64_t arena = clear(p, offset, tried.slots);
  for (int32_t i = 0; i < p->tier_end[p->tiers - 1]; i++) {
    int32_t buffer = tried.order[i].buffer;
    int64_t begin = lowest(p, gather(p, buffer, tried.slots), p->bytes[buffer]), end = begin + p->bytes[buffer];
    tried.slots[buffer] = (slot){begin, end};
    arena = sod2_imax(arena, end);
  }
  return arena;
}

static int64_t place_best_fit(problem *p, slot *slots, const int64_t *offset) {
  int64_t arena = clear(p, offset, slots);
  for (int32_t i = 0; i < p->first_at[p->steps]; i++) {
    int32_t buffer = p->by_first[i];
    if (slots[buffer].begin >= 0) continue; /* given */
    int64_t begin = best_fit(p, gather(p, buffer, slots), p->bytes[buffer], arena), end = begin + p->bytes[buffer];
    slots[buffer] = (slot){begin, end};
    arena = sod2_imax(arena, end);
  }
  return arena;
}

/* Keeps the offsets of a placement when it needs less than `arena`. Returns the smaller size. */
static int64_t keep_smaller(const problem *p, const slot *slots, int64_t needed, int64_t arena, int64_t *offset) {
  for (int32_t i = 0; i < p->buffers && needed < arena; i++) offset[i] = slots[i].begin;
  return sod2_imin(needed, arena);
}

/* Tries the orders in turns. Returns the smallest arena, whose offsets are kept. */
static int64_t search(problem *p, int64_t *offset) {
  const int64_t peak = p->floor[p->tiers - 1];
  const int begin = p->tiers > 1 ? BY_USAGE : BY_PRODUCT;
  int64_t arena = INT64_MAX;
  for (int k = 0; k < ORDERS * (p->given != NULL ? 1 : ROUNDS); k++) {
    const int by = (begin + k) % ORDERS;
    const attempt tried = p->tried[by];
    if (k < ORDERS)
      rank(p, by);
    else
      advance(p, tried);
    arena = keep_smaller(p, tried.slots, place_lowest(p, tried, offset), arena, offset);
    if (arena <= peak + peak / ENOUGH || p->work > WORK) break;
  }
  return arena;
}

/* The search, and best fit where that does not reach the live peak. */
static int64_t place_together(problem *p, int64_t *offset) {
  int64_t arena = search(p, offset);
  slot *slots = p->tried[0].slots;
  if (arena <= p->floor[0]) return arena;
  return keep_smaller(p, slots, place_best_fit(p, slots, offset), arena, offset);
}

/* All return -1 when there is no memory for planning. */
int64_t sod2_place_peak_first(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes,
                              const uint8_t *given, int64_t *offset) {
  problem *p = describe(count, steps, range, bytes, given, NULL, 1);
  int64_t arena = p != NULL ? place_together(p, offset) : -1;
  free(p);
  return arena;
}

int64_t sod2_place_best_fit(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes,
                            const uint8_t *given, int64_t *offset) {
  problem *p = describe(count, steps, range, bytes, given, NULL, 1);
  if (p == NULL) return -1;
  slot *slots = p->tried[0].slots;
  int64_t arena = keep_smaller(p, slots, place_best_fit(p, slots, offset), INT64_MAX, offset);
  free(p);
  return arena;
}

/* The arena up to each depth. */
static void fill_needed(const problem *p, const int64_t *offset, int64_t *needed) {
  memset(needed, 0, sizeof *needed * (size_t)p->depths);
  for (int32_t i = 0; i < p->buffers; i++) {
    int64_t *end = needed + p->depth_of[i];
    if (p->bytes[i] > 0) *end = sod2_imax(*end, offset[i] + p->bytes[i]);
  }
  for (int32_t depth = 1; depth < p->depths; depth++) needed[depth] = sod2_imax(needed[depth], needed[depth - 1]);
}

int64_t sod2_place_by_depth(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes,
                            const uint8_t *depth_of, int32_t depths, int64_t *offset, int64_t *needed) {
  problem *p = describe(count, steps, range, bytes, NULL, depth_of, depths);
  if (p == NULL) return -1;
  const int64_t peak = p->floor[p->tiers - 1];
  int64_t arena = p->tiers > 1 ? search(p, offset) : place_together(p, offset);
  if (p->tiers > 1 && arena > peak + peak / DEPTH_COST) {
    int64_t *trial = p->most, together = sod2_place_peak_first(count, steps, range, bytes, NULL, trial);
    if (together < arena) memcpy(offset, trial, sizeof *offset * (size_t)count); /* if it is -1, nothing counts */
    arena = sod2_imin(arena, together);
  }
  fill_needed(p, offset, needed);
  free(p);
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
