/* Placement of buffers in the arena, done when their sizes are known. Twin of sod2/memory.py.

   A buffer occupies `bytes` (rounded up to SOD2_ALIGN) during the steps [first, last]; buffers that overlap in time may
   not overlap in space. Two functions of one signature:

   - sod2_place_best_fit is what engines do without a plan: walk through time, give each buffer at its first step the
     smallest free gap that holds it, free it after its last step.
   - sod2_place_peak_first is dynamic memory planning: buffers are placed outwards from the step of peak usage. Those
     live there come first, then the ones met when walking one step further in both directions, and so on; each takes
     the lowest gap among the placed buffers that overlap it in time. At the peak nothing is wasted, and what lies
     further away reuses the slots below. Only when the arena is then larger than the live peak, a lower bound, more is
     tried: the buffers that ended above the live peak move half way to the front, and all are placed again, a few
     rounds; the same from the order of their sizes; best fit. The smallest arena wins: never worse than best fit. Around
     buffers that are there already, each order is tried once.

   sod2_place_by_depth arranges a model with branches so that runs which enter few of them need little: what is touched
   outside branches first, then depth by depth what deeper branches touch besides. The longest path may need more for it,
   at most 1/DEPTH_COST more, where a run that enters no branch needs at most 1/DEPTH_GAIN; otherwise all are placed
   together.

   Sizes that only execution tells are placed while the model runs, around the buffers that are there (`given`): those
   stay at their offsets, and the others are placed as ever, in the gaps that they leave or behind them.

   Both are deterministic and O(n^2) for n buffers: tens of microseconds for 300, and 2 ROUNDS times that where the live
   peak is not reached; more rounds gain SegmentAnything 3 % and cost milliseconds. The problem, dynamic storage
   allocation, is NP-hard, so neither is exact. Callers guarantee 0 <= first <= last < steps, bytes >= 0, and that the sum
   of all rounded sizes fits int64_t. Buffers of 0 bytes get offset 0, unless given. */
#include <stdlib.h>

#include "program.h"

#define DEPTH_COST 8
#define DEPTH_GAIN 2
#define ROUNDS 4 /* orders derived from one, with up to FEW buffers; fewer in proportion with more */
#define FEW 256

typedef struct slot {
  int64_t begin, end;
  int32_t first, last;
} slot;

/* Sort key of a buffer: smaller `major` first, then larger `weight`, then the order of buffers. A weight is bytes or
   bytes * steps; it is a double because the product may exceed int64_t. */
typedef struct ranked {
  int64_t major;
  double weight;
  int32_t buffer;
} ranked;

typedef struct problem {
  const sod2_range *range;
  const uint8_t *given; /* NULL: none */
  int64_t *bytes; /* rounded up */
  int64_t *usage; /* [steps + 1] bytes live at each step */
  int64_t *trial; /* offsets of an order that is only tried */
  slot *placed;   /* sorted by begin */
  ranked *order;  /* the buffers to place: neither empty nor given */
  int32_t buffers, count;
  int32_t peak; /* first step of largest usage */
  int around;   /* some buffer is given */
} problem;

static int64_t rounded(int64_t bytes) { return (bytes + SOD2_ALIGN - 1) & ~(int64_t)(SOD2_ALIGN - 1); }

/* Fills usage[steps + 1] and returns the first step where it is largest. */
static int32_t fill_usage(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes, int64_t *usage) {
  memset(usage, 0, sizeof *usage * ((size_t)steps + 1));
  for (int32_t i = 0; i < count; i++) {
    usage[range[i].first] += rounded(bytes[i]);
    usage[range[i].last + 1] -= rounded(bytes[i]);
  }
  int32_t peak = 0;
  for (int32_t step = 1; step < steps; step++) {
    usage[step] += usage[step - 1];
    if (usage[step] > usage[peak]) peak = step;
  }
  return peak;
}

/* Whether a buffer has to be placed. */
static int is_open(const problem *p, int32_t buffer) {
  return p->bytes[buffer] > 0 && (p->given == NULL || !p->given[buffer]);
}

/* One block of memory, to be given to free(); NULL when there is none. Offsets of empty buffers are set here. */
static problem *describe(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes,
                         const uint8_t *given, int64_t *offset) {
  size_t n = (size_t)count, words = 2 * n + (size_t)steps + 1;
  problem *p = malloc(sizeof *p + words * sizeof(int64_t) + n * (sizeof(slot) + sizeof(ranked)));
  if (p == NULL) return NULL;
  p->range = range;
  p->given = given;
  p->bytes = (int64_t *)(p + 1);
  p->trial = p->bytes + n;
  p->usage = p->trial + n;
  p->placed = (slot *)(p->usage + steps + 1);
  p->order = (ranked *)(p->placed + n);
  p->buffers = count;
  p->count = p->around = 0;
  p->peak = fill_usage(count, steps, range, bytes, p->usage);
  for (int32_t i = 0; i < count; i++) {
    p->bytes[i] = rounded(bytes[i]);
    if (given == NULL || !given[i]) offset[i] = 0;
    p->trial[i] = offset[i];
    p->count += is_open(p, i);
    p->around |= given != NULL && given[i];
  }
  return p;
}

static int by_rank(const void *left, const void *right) {
  const ranked *a = left, *b = right;
  if (a->major != b->major) return a->major < b->major ? -1 : 1;
  if (a->weight != b->weight) return a->weight > b->weight ? -1 : 1;
  return a->buffer < b->buffer ? -1 : a->buffer > b->buffer;
}

/* Steps between a buffer's life and the step of peak usage; 0 for the buffers live there. */
static int64_t distance(sod2_range live, int32_t peak) {
  return live.first > peak ? live.first - peak : live.last < peak ? peak - live.last : 0;
}

enum order { OUTWARDS, LARGEST_FIRST, FIRST_USE };

static void sort(problem *p, enum order by) {
  ranked *next = p->order;
  for (int32_t i = 0; i < p->buffers; i++) {
    if (!is_open(p, i)) continue;
    sod2_range live = p->range[i];
    double bytes = (double)p->bytes[i];
    if (by == OUTWARDS) *next++ = (ranked){distance(live, p->peak), bytes * (live.last - live.first + 1), i};
    if (by == LARGEST_FIRST) *next++ = (ranked){0, bytes, i};
    if (by == FIRST_USE) *next++ = (ranked){live.first, 0, i};
  }
  qsort(p->order, (size_t)p->count, sizeof *p->order, by_rank);
}

/* Puts a buffer at `begin`; `placed` stays sorted. Returns where it ends. */
static int64_t put(problem *p, int32_t placed, int32_t buffer, int64_t begin, int64_t *offset) {
  slot added = {begin, begin + p->bytes[buffer], p->range[buffer].first, p->range[buffer].last};
  int32_t at = 0;
  for (int32_t end = placed; at < end;) {
    int32_t middle = at + (end - at) / 2;
    if (p->placed[middle].begin > begin)
      end = middle;
    else
      at = middle + 1;
  }
  memmove(p->placed + at + 1, p->placed + at, sizeof added * (size_t)(placed - at));
  p->placed[at] = added;
  offset[buffer] = begin;
  return added.end;
}

/* Fills p->placed with the given buffers and returns their number; *arena becomes what they need. */
static int32_t put_given(problem *p, int64_t *offset, int64_t *arena) {
  int32_t placed = 0;
  *arena = 0;
  for (int32_t i = 0; p->given != NULL && i < p->buffers; i++)
    if (p->given[i] && p->bytes[i] > 0) *arena = sod2_imax(*arena, put(p, placed++, i, offset[i], offset));
  return placed;
}

/* Gives every buffer, in p->order, the lowest gap that holds it. Returns the size of the arena. */
static int64_t place_lowest(problem *p, int64_t *offset) {
  int64_t arena;
  int32_t given = put_given(p, offset, &arena);
  for (int32_t i = 0; i < p->count; i++) {
    int32_t buffer = p->order[i].buffer;
    sod2_range live = p->range[buffer];
    int64_t bytes = p->bytes[buffer], begin = 0;
    for (int32_t j = 0; j < given + i; j++) {
      slot other = p->placed[j];
      int meets = (other.last >= live.first) & (other.first <= live.last); /* no branch: it would be mispredicted */
      if (meets & (other.begin - begin >= bytes)) break;
      begin = sod2_imax(begin, meets ? other.end : 0);
    }
    arena = sod2_imax(arena, put(p, given + i, buffer, begin, offset));
  }
  return arena;
}

/* Gives every buffer, in order of first use, the smallest gap that holds it, the free bytes at the arena's end included;
   where none does, the arena grows. Buffers whose last step has passed are dropped from p->placed. */
static int64_t place_best_fit(problem *p, int64_t *offset) {
  int64_t arena;
  int32_t placed = put_given(p, offset, &arena);
  sort(p, FIRST_USE);
  for (int32_t i = 0; i < p->count; i++) {
    int32_t buffer = p->order[i].buffer, live = 0;
    int64_t bytes = p->bytes[buffer], end = 0, best = INT64_MAX, begin = 0;
    for (int32_t j = 0; j < placed; j++) {
      slot other = p->placed[j];
      if (other.last < p->range[buffer].first) continue;
      p->placed[live++] = other;
      if (other.first > p->range[buffer].last) continue; /* a given one, later */
      int64_t gap = other.begin - end;
      if (gap >= bytes && gap < best) best = gap, begin = end;
      end = sod2_imax(end, other.end);
    }
    if (best == INT64_MAX || (arena - end >= bytes && arena - end < best)) begin = end;
    placed = live + 1;
    arena = sod2_imax(arena, put(p, live, buffer, begin, offset));
  }
  return arena;
}

/* The offsets of `trial` when they need less than `arena`, else those already in `offset`. */
static int64_t keep_smaller(const problem *p, int64_t trial, int64_t arena, int64_t *offset) {
  if (trial >= arena) return arena;
  memcpy(offset, p->trial, sizeof *offset * (size_t)p->buffers);
  return trial;
}

/* Moves every buffer of p->order that the trial lets end above the live peak half way to the front. */
static void advance(problem *p) {
  for (int32_t i = 0; i < p->count; i++) {
    ranked late = p->order[i];
    if (p->trial[late.buffer] + p->bytes[late.buffer] <= p->usage[p->peak]) continue;
    memmove(p->order + i / 2 + 1, p->order + i / 2, sizeof late * (size_t)(i - i / 2));
    p->order[i / 2] = late;
  }
}

/* Places in an order, and then again and again in orders in which what came to lie above the live peak is earlier,
   until nothing does. Returns the smallest arena, whose offsets are kept. */
static int64_t improve(problem *p, enum order by, int64_t arena, int64_t *offset) {
  int32_t rounds = p->around ? 1 : (int32_t)sod2_imax(1, ROUNDS * (int64_t)FEW / sod2_imax(FEW, p->count));
  sort(p, by);
  for (int32_t round = 0; round < rounds && arena > p->usage[p->peak]; round++) {
    if (round > 0) advance(p);
    arena = keep_smaller(p, place_lowest(p, p->trial), arena, offset);
  }
  return arena;
}

/* All return -1 when there is no memory for planning. */
int64_t sod2_place_peak_first(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes,
                              const uint8_t *given, int64_t *offset) {
  problem *p = describe(count, steps, range, bytes, given, offset);
  if (p == NULL) return -1;
  int64_t arena = improve(p, OUTWARDS, INT64_MAX, offset);
  arena = improve(p, LARGEST_FIRST, arena, offset);
  if (arena > p->usage[p->peak]) arena = keep_smaller(p, place_best_fit(p, p->trial), arena, offset);
  free(p);
  return arena;
}

int64_t sod2_place_best_fit(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes,
                            const uint8_t *given, int64_t *offset) {
  problem *p = describe(count, steps, range, bytes, given, offset);
  if (p == NULL) return -1;
  int64_t arena = place_best_fit(p, offset);
  free(p);
  return arena;
}

int64_t sod2_place_by_depth(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes,
                            const uint8_t *depth_of, int32_t depths, int64_t *offset, int64_t *needed) {
  const int64_t together = sod2_place_peak_first(count, steps, range, bytes, NULL, offset);
  for (int32_t depth = 0; depth < depths; depth++) needed[depth] = together;
  size_t n = (size_t)count;
  int64_t *known = malloc((2 * n + (size_t)depths) * sizeof *known + n);
  if (known == NULL || together < 0) {
    free(known);
    return -1;
  }
  int64_t *apart = known + n, *ends = apart + n, end = 0;
  uint8_t *given = (uint8_t *)(ends + depths);
  for (int32_t depth = 0; depth < depths && end >= 0; depth++) {
    for (int32_t i = 0; i < count; i++) {
      known[i] = depth_of[i] <= depth ? bytes[i] : 0;
      given[i] = depth_of[i] < depth;
    }
    ends[depth] = end = sod2_place_peak_first(count, steps, range, known, given, apart);
  }
  if (end >= 0 && (end <= together || (end <= together + together / DEPTH_COST && ends[0] <= together / DEPTH_GAIN))) {
    memcpy(offset, apart, n * sizeof *offset);
    memcpy(needed, ends, (size_t)depths * sizeof *needed);
  }
  free(known);
  return end < 0 ? -1 : needed[depths - 1];
}

void sod2_allowances(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes, int64_t *allowance) {
  const int32_t step_of_peak = fill_usage(count, steps, range, bytes, allowance);
  const int64_t peak = allowance[step_of_peak];
  for (int32_t step = 0; step < steps; step++) allowance[step] = peak - allowance[step];
}

int64_t sod2_live_peak(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes) {
  int64_t *usage = malloc(sizeof *usage * ((size_t)steps + 1));
  if (usage == NULL) return -1;
  int64_t peak = usage[fill_usage(count, steps, range, bytes, usage)];
  free(usage);
  return peak;
}
