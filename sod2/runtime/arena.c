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
   may need 1/DEPTH_COST of its live peak more for it, and less is not looked for; otherwise all are placed together.

   Sizes that only execution tells are placed while the model runs, around the buffers that are there (`given`): those
   stay at their offsets, and the others are placed as ever, in the gaps that they leave or behind them.

   A planner is made when a model is loaded. It lists which buffers overlap in time and holds all memory that placing
   takes: planning cannot fail.

   All is deterministic. Placing once takes time in proportion to the pairs of buffers that overlap in time, of which
   networks have few. WORK limits what is tried. The problem, dynamic storage allocation, is NP-hard, so nothing is
   exact. Callers guarantee 0 <= first <= last < steps, bytes >= 0, and that the sum of all rounded sizes fits int64_t.
   Buffers of 0 bytes get offset 0, unless given. */
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
  sod2_slots slots;
} attempt;

struct sod2_planner {
  sod2_placing placing;
  const sod2_range *range; /* of the program's buffers */
  int32_t depths;
  attempt tried[ORDERS];
  ranked *ranks, *spare; /* [buffers + 1] and [buffers]: merging looks at one weight behind the last */
  int32_t *last;         /* [buffers] what comes last in a tier */
  int64_t *trial;        /* [buffers] offsets of a second way */
};

static int64_t rounded(int64_t bytes) { return (bytes + SOD2_ALIGN - 1) & ~(int64_t)(SOD2_ALIGN - 1); }

/* ---- what is live when ------------------------------------------------------------------------------------------ */

/* Adds a buffer to the changes [steps + 1] of the live bytes from step to step. */
static void add_life(int64_t *change, sod2_range live, int64_t size) {
  change[live.first] += size;
  change[live.last + 1] -= size;
}

/* Sums the changes up to the bytes live at each step, and returns the largest. Both may be one array. */
static int64_t sum_up(const int64_t *change, int32_t steps, int64_t *usage) {
  int64_t live = 0, peak = 0;
  for (int32_t step = 0; step < steps; step++) {
    usage[step] = live += change[step];
    peak = sod2_imax(peak, live);
  }
  return peak;
}

static int32_t tier_of(const sod2_placing *p, int32_t buffer) {
  return p->depths == 1 ? 0 : p->tier_of[p->depth[buffer]];
}

/* The usage that the buffers at [begin, end) of by_depth see. */
static void fill_most(sod2_placing *p, int32_t begin, int32_t end, const int64_t *usage) {
  for (int32_t j = begin; j < end; j++) {
    const int32_t i = p->by_depth[j];
    const sod2_range live = p->range[i];
    int64_t most = sod2_imax(usage[live.first], usage[live.last]); /* most buffers live in no other step */
    for (int32_t step = live.first + 1; step < live.last; step++) most = sod2_imax(most, usage[step]);
    p->most[i] = most;
  }
}

/* Groups the depths into tiers; floors, and the usage that each buffer sees at the last depth of its tier. */
static void fill_tiers(sod2_placing *p) {
  int64_t outer = 0, *usage = p->usage, *before = p->usage_before;
  int32_t begin = 0, end = 0; /* of the tier's buffers */
  p->tiers = 0;
  memset(p->change, 0, sizeof *p->change * ((size_t)p->steps + 1));
  for (int32_t depth = 0; depth < p->depths; depth++) {
    const int32_t next = p->depths == 1 ? p->buffers : p->depth_at[depth + 1];
    for (int32_t j = end; j < next; j++) add_life(p->change, p->range[p->by_depth[j]], p->bytes[p->by_depth[j]]);
    const int64_t peak = sum_up(p->change, p->steps, usage);
    if (depth == 0 || peak >= DEPTH_GAIN * outer) {
      fill_most(p, begin, end, before);
      p->tiers++, outer = peak, begin = end;
    }
    p->tier_of[depth] = (uint8_t)(p->tiers - 1);
    p->floor[p->tiers - 1] = peak;
    int64_t *const summed = usage;
    usage = before, before = summed, end = next;
  }
  fill_most(p, begin, end, before);
}

/* ---- planners --------------------------------------------------------------------------------------------------- */

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

static sod2_slots take_slots(block *from, size_t count) {
  int64_t *begin = take(from, count, sizeof *begin);
  return (sod2_slots){begin, take(from, count, sizeof *begin)};
}

/* The arrays of a planner; `lives` is the sum of last - first. */
static void take_arrays(sod2_planner *q, size_t lives, block *from) {
  sod2_placing *p = &q->placing;
  const size_t n = (size_t)p->buffers, s = (size_t)p->steps + 2;
  p->number = take(from, n, sizeof *p->number);
  p->range = take(from, n, sizeof *p->range);
  p->depth = take(from, n, sizeof *p->depth);
  p->bytes = take(from, n, sizeof *p->bytes);
  p->most = take(from, n, sizeof *p->most);
  p->change = take(from, s, sizeof *p->change);
  p->usage = take(from, s, sizeof *p->usage);
  p->usage_before = take(from, s, sizeof *p->usage_before);
  p->top = take(from, s, sizeof *p->top);
  p->full = take(from, s, sizeof *p->full);
  p->gap_end = take(from, s, sizeof *p->gap_end);
  p->by_depth = take(from, n, sizeof *p->by_depth);
  p->depth_at = take(from, (size_t)q->depths + 2, sizeof *p->depth_at);
  p->first_at = take(from, s, sizeof *p->first_at);
  p->older_at = take(from, s, sizeof *p->older_at);
  p->older = take(from, lives, sizeof *p->older);
  for (int k = 0; k < ORDERS; k++) {
    q->tried[k].order = take(from, n, sizeof *q->tried[k].order);
    q->tried[k].slots = take_slots(from, n);
  }
  q->ranks = take(from, n + 1, sizeof *q->ranks);
  q->spare = take(from, n, sizeof *q->spare);
  q->last = take(from, n, sizeof *q->last);
  q->trial = take(from, n, sizeof *q->trial);
  p->near = take_slots(from, n);
}

sod2_planner *sod2_planner_create(int32_t count, int32_t steps, const sod2_range *range, const uint8_t *depth_of,
                                  int32_t depths) {
  sod2_planner described = {.range = range, .depths = depths};
  described.placing = (sod2_placing){.buffers = count, .steps = steps};
  block memory = {0};
  size_t lives = 0;
  for (int32_t i = 0; i < count; i++) lives += (size_t)(range[i].last - range[i].first);
  take(&memory, 1, sizeof described);
  take_arrays(&described, lives, &memory);
  sod2_planner *q = sod2_present(memory.bytes); /* counts start at 0 */
  if (q == NULL) return NULL;
  memory = (block){(char *)q, 0};
  take(&memory, 1, sizeof described);
  take_arrays(&described, lives, &memory);
  *q = described;
  sod2_number(&q->placing, range, depth_of);
  sod2_list_depths(&q->placing, depths);
  sod2_list_overlaps(&q->placing);
  return q;
}

void sod2_planner_free(sod2_planner *planner) { free(planner); }

/* Sizes of the buffers, those that have a place (NULL: none), and whether depths of branches count. */
static void begin(sod2_planner *q, const int64_t *bytes, const uint8_t *given, int by_depth) {
  sod2_placing *p = &q->placing;
  p->given = given;
  p->depths = by_depth ? q->depths : 1;
  for (int32_t i = 0; i < p->buffers; i++) p->bytes[i] = rounded(bytes[p->number[i]]);
  fill_tiers(p);
}

/* ---- orders ----------------------------------------------------------------------------------------------------- */

/* Stable. Most orders are nearly sorted: runs that are need no merging. */
static void sort(ranked *a, ranked *spare, int32_t count) {
  for (int32_t width = 1; width < count; width *= 2)
    for (int32_t low = 0; low + width < count; low += 2 * width) {
      int32_t middle = low + width, end = (int32_t)sod2_imin(middle + width, count);
      if (a[middle - 1].weight >= a[middle].weight) continue;
      memcpy(spare, a + low, sizeof *a * (size_t)width);
      for (int32_t i = 0, j = middle, k = low; i < width;) { /* no branch on weights: it would be mispredicted */
        const int later = (j < end) & (a[j].weight > spare[i].weight);
        a[k++] = *(later ? &a[j] : &spare[i]);
        j += later;
        i += !later;
      }
    }
}

/* Fills an order with the buffers that have to be placed; in ties the one that begins earlier is first. */
static void rank(sod2_planner *q, int by) {
  sod2_placing *p = &q->placing;
  int32_t *order = q->tried[by].order;
  for (int32_t tier = 0, end = 0; tier < p->tiers; tier++) {
    int32_t count = 0, last = 0;
    for (int32_t i = 0; i < p->buffers; i++) {
      if (p->bytes[i] == 0 || tier_of(p, i) != tier || sod2_is_given(p, i)) continue;
      if (sod2_comes_last(p, i))
        q->last[last++] = i;
      else
        q->ranks[count++] = (ranked){(double)p->most[i] * (by == BY_PRODUCT ? (double)p->bytes[i] : 1), i};
    }
    sort(q->ranks, q->spare, count);
    for (int32_t i = 0; i < count; i++) order[end++] = q->ranks[i].buffer;
    memcpy(order + end, q->last, sizeof *order * (size_t)last);
    p->tier_end[tier] = end += last;
  }
}

/* Moves what ended above the live peak of its tier half way to the front of it. */
static void advance(sod2_planner *q, const attempt *tried) {
  const sod2_placing *p = &q->placing;
  for (int32_t tier = 0, begin = 0; tier < p->tiers; begin = p->tier_end[tier++]) {
    int32_t count = p->tier_end[tier] - begin, late = 0, kept = 0;
    int32_t *order = tried->order + begin;
    ranked *moved = q->ranks, *stays = q->spare;
    for (int32_t i = 0; i < count; i++) {
      if (tried->slots.end[order[i]] > p->floor[tier])
        moved[late++] = (ranked){i / 2, order[i]};
      else
        stays[kept++] = (ranked){i, order[i]};
    }
    for (int32_t i = 0, j = 0; i + j < count;)
      *order++ = j < late && (i == kept || moved[j].weight <= stays[i].weight) ? moved[j++].buffer : stays[i++].buffer;
  }
}

/* Keeps the offsets of a placement when it needs less than `arena`. Returns the smaller size. */
static int64_t keep_smaller(const sod2_placing *p, const sod2_slots *slots, int64_t needed, int64_t arena,
                            int64_t *offset) {
  for (int32_t i = 0; i < p->buffers && needed < arena; i++)
    if (!sod2_is_given(p, i)) offset[p->number[i]] = slots->begin[i];
  return sod2_imin(needed, arena);
}

/* Tries the orders in turns. Returns the smallest arena, whose offsets are kept. */
static int64_t search(sod2_planner *q, int64_t *offset) {
  sod2_placing *p = &q->placing;
  const int64_t peak = p->floor[p->tiers - 1], enough = peak + peak / (p->tiers > 1 ? DEPTH_COST : ENOUGH);
  const int64_t most = sod2_imin(ORDERS * ROUNDS, 1 + WORK / sod2_imax(1, p->overlaps));
  int64_t arena = INT64_MAX;
  for (int k = 0; k < (p->given != NULL ? ORDERS : most) && arena > enough; k++) {
    const attempt *tried = &q->tried[k % ORDERS];
    if (k < ORDERS)
      rank(q, k);
    else
      advance(q, tried);
    const int64_t needed = sod2_place_order(p, tried->order, offset, arena, &tried->slots);
    arena = keep_smaller(p, &tried->slots, needed, arena, offset);
  }
  return arena;
}

/* Best fit, unless it needs `arena` or more. Returns the smaller size. */
static int64_t try_best_fit(sod2_planner *q, int64_t arena, int64_t *offset) {
  const sod2_slots *slots = &q->tried[0].slots;
  return keep_smaller(&q->placing, slots, sod2_place_in_time(&q->placing, offset, arena, slots), arena, offset);
}

/* The search, and best fit where that does not reach the live peak. */
static int64_t place_together(sod2_planner *q, int64_t *offset) {
  const int64_t arena = search(q, offset);
  return arena <= q->placing.floor[0] ? arena : try_best_fit(q, arena, offset);
}

/* ---- what program.h declares ------------------------------------------------------------------------------------ */

int64_t sod2_place_peak_first(sod2_planner *q, const int64_t *bytes, const uint8_t *given, int64_t *offset) {
  begin(q, bytes, given, 0);
  return place_together(q, offset);
}

int64_t sod2_place_best_fit(sod2_planner *q, const int64_t *bytes, const uint8_t *given, int64_t *offset) {
  begin(q, bytes, given, 0);
  return try_best_fit(q, INT64_MAX, offset);
}

/* The arena up to each depth. */
static void fill_needed(const sod2_planner *q, const int64_t *offset, int64_t *needed) {
  const sod2_placing *p = &q->placing;
  int64_t end = 0;
  for (int32_t depth = 0; depth < q->depths; depth++) {
    for (int32_t j = p->depth_at[depth]; j < p->depth_at[depth + 1]; j++)
      end = sod2_imax(end, offset[p->number[p->by_depth[j]]] + p->bytes[p->by_depth[j]]);
    needed[depth] = end;
  }
}

int64_t sod2_place_by_depth(sod2_planner *q, const int64_t *bytes, int64_t *offset, int64_t *needed) {
  begin(q, bytes, NULL, 1);
  const int32_t tiers = q->placing.tiers;
  const int64_t peak = q->placing.floor[tiers - 1];
  int64_t arena = tiers > 1 ? search(q, offset) : place_together(q, offset);
  if (tiers > 1 && arena > peak + peak / DEPTH_COST) {
    const int64_t together = sod2_place_peak_first(q, bytes, NULL, q->trial);
    if (together < arena) memcpy(offset, q->trial, sizeof *offset * (size_t)q->placing.buffers);
    arena = sod2_imin(arena, together);
  }
  fill_needed(q, offset, needed);
  return arena;
}

int64_t sod2_live_peak(const sod2_planner *q) { return q->placing.floor[q->placing.tiers - 1]; }

void sod2_allowances(int32_t count, int32_t steps, const sod2_range *range, const int64_t *bytes, int64_t *allowance) {
  memset(allowance, 0, sizeof *allowance * ((size_t)steps + 1));
  for (int32_t i = 0; i < count; i++) add_life(allowance, range[i], rounded(bytes[i]));
  const int64_t peak = sum_up(allowance, steps, allowance);
  for (int32_t step = 0; step < steps; step++) allowance[step] = peak - allowance[step];
}
