/* Gaps: where a buffer fits among the placed ones that live at the same time. See placing.h.

   Most buffers need no search. Of each step it is known how far what is placed there reaches, `top`, and where the first
   gap begins, `full`, and ends: no buffer lies below the largest `full` of its steps, and most fit right there. */
#include "placing.h"

/* Counts at [step + 1] become places, which are then filled; each place has moved to where the next step's begin. */
static void places_of(int32_t *count, int32_t steps) {
  for (int32_t step = 0; step < steps; step++) count[step + 1] += count[step];
}
static void move_back(int32_t *place, int32_t steps) {
  memmove(place + 1, place, sizeof *place * (size_t)steps);
  place[0] = 0;
}

void sod2_number(sod2_placing *p, const sod2_range *range, const uint8_t *depth_of) {
  for (int32_t k = 0; k < p->buffers; k++) p->first_at[range[k].first + 1]++;
  places_of(p->first_at, p->steps);
  for (int32_t k = 0; k < p->buffers; k++) {
    const int32_t i = p->first_at[range[k].first]++;
    p->number[i] = k;
    p->range[i] = range[k];
    p->depth[i] = depth_of == NULL ? 0 : depth_of[k];
  }
  move_back(p->first_at, p->steps);
}

void sod2_list_depths(sod2_placing *p, int32_t depths) {
  int32_t listed = 0;
  for (int32_t depth = 0; depth < depths; depth++) {
    p->depth_at[depth] = listed;
    for (int32_t i = 0; i < p->buffers; i++)
      if (p->depth[i] == depth) p->by_depth[listed++] = i;
  }
  p->depth_at[depths] = listed;
}

void sod2_list_overlaps(sod2_placing *p) {
  int32_t *at = p->older_at;
  for (int32_t i = 0; i < p->buffers; i++)
    for (int32_t step = p->range[i].first + 1; step <= p->range[i].last; step++) at[step + 1]++;
  places_of(at, p->steps);
  for (int32_t i = 0; i < p->buffers; i++)
    for (int32_t step = p->range[i].first + 1; step <= p->range[i].last; step++) p->older[at[step]++] = i;
  move_back(at, p->steps);
  for (int32_t i = 0; i < p->buffers; i++) {
    const sod2_range live = p->range[i];
    p->overlaps += at[live.first + 1] - at[live.first] + p->first_at[live.last + 1] - p->first_at[live.first];
  }
}

/* Fills p->near with the places of the buffers that live when one begins and began before. Returns their number. */
static int32_t gather(sod2_placing *p, int32_t buffer, const sod2_slots *slots) {
  const int32_t first = p->range[buffer].first, count = p->older_at[first + 1] - p->older_at[first];
  const int32_t *older = p->older + p->older_at[first];
  for (int32_t j = 0; j < count; j++) {
    p->near.begin[j] = slots->begin[older[j]];
    p->near.end[j] = slots->end[older[j]];
  }
  return count;
}

/* The buffers that begin while one lives, from the first of its own first step on. */
static int32_t younger(const sod2_placing *p, int32_t buffer, const sod2_slots *slots, sod2_slots *places) {
  const int32_t first = p->first_at[p->range[buffer].first];
  *places = (sod2_slots){slots->begin + first, slots->end + first};
  return p->first_at[p->range[buffer].last + 1] - first;
}

/* The last end of what meets the bytes from `begin` to `end`; `begin` if nothing does. */
static int64_t last_end(const sod2_slots *places, int64_t count, int64_t begin, int64_t end) {
  const int64_t *begins = places->begin, *ends = places->end;
  int64_t last = begin;
  for (int64_t j = 0; j < count; j++) {
    const int meets = (begins[j] < end) & (ends[j] > begin);
    last = sod2_imax(last, meets ? ends[j] : begin);
  }
  return last;
}

/* The lowest gap for a buffer from `begin` on. Again and again all that overlap it in time are looked at, placed or not,
   which vector units do faster than sorting, and no branch is mispredicted: what lies in the way ends before every later
   begin. */
static int64_t lowest_gap(sod2_placing *p, int32_t buffer, int64_t begin, const sod2_slots *slots) {
  sod2_slots later;
  const int32_t older = gather(p, buffer, slots), count = younger(p, buffer, slots, &later);
  for (int64_t next;; begin = next) {
    const int64_t end = begin + p->bytes[buffer];
    next = sod2_imax(last_end(&p->near, older, begin, end), last_end(&later, count, begin, end));
    if (next == begin) return begin;
  }
}

/* Sorts the near buffers that end above 0 by insertion; they are few. Returns their number. */
static int32_t sort_near(sod2_placing *p, int32_t count) {
  int64_t *begins = p->near.begin, *ends = p->near.end;
  int32_t kept = 0;
  for (int32_t i = 0; i < count; i++) {
    const int64_t begin = begins[i], end = ends[i];
    if (end <= 0) continue;
    int32_t j = kept++;
    for (; j > 0 && begins[j - 1] > begin; j--) begins[j] = begins[j - 1], ends[j] = ends[j - 1];
    begins[j] = begin, ends[j] = end;
  }
  return kept;
}

/* The smallest gap for a buffer, the free bytes at the arena's end included; where none is large enough, the place behind
   all that overlap it in time. */
static int64_t smallest_gap(sod2_placing *p, int32_t buffer, int64_t arena, const sod2_slots *slots) {
  const int64_t *begins = p->near.begin, *ends = p->near.end, bytes = p->bytes[buffer];
  sod2_slots later;
  int32_t older = gather(p, buffer, slots), count = younger(p, buffer, slots, &later);
  memcpy(p->near.begin + older, later.begin, sizeof *later.begin * (size_t)count);
  memcpy(p->near.end + older, later.end, sizeof *later.end * (size_t)count);
  count = sort_near(p, older + count);
  int64_t end = 0, best = INT64_MAX, begin = 0;
  for (int32_t j = 0; j < count; j++) {
    int64_t gap = begins[j] - end;
    if (gap >= bytes && gap < best) best = gap, begin = end;
    end = sod2_imax(end, ends[j]);
  }
  return best == INT64_MAX || (arena - end >= bytes && arena - end < best) ? end : begin;
}

/* Whether what lies at a step is in the way of the bytes from `begin`, not below its `full`, to `end`: not all lies below
   them, and the first gap does not hold them. */
SOD2_INLINE int meets(const sod2_placing *p, int32_t step, int64_t begin, int64_t end) {
  return (p->top[step] > begin) & (p->gap_end[step] < end);
}

/* Whether those bytes are free at some steps; most buffers live in no more than two. */
static int fits(const sod2_placing *p, sod2_range live, int64_t begin, int64_t end) {
  int64_t met = meets(p, live.first, begin, end) | meets(p, live.last, begin, end);
  for (int32_t step = live.first + 1; step < live.last; step++) met |= meets(p, step, begin, end);
  return !met;
}

/* The lowest place of a buffer; of one that comes last, on top of the others if that is below the tier's live peak. */
static int64_t lowest(sod2_placing *p, int32_t buffer, int32_t tier, const sod2_slots *slots) {
  const sod2_range live = p->range[buffer];
  const int64_t bytes = p->bytes[buffer], top = p->top[live.first];
  if (sod2_comes_last(p, buffer) && top + bytes <= p->floor[tier]) return top;
  int64_t full = sod2_imax(p->full[live.first], p->full[live.last]);
  for (int32_t step = live.first + 1; step < live.last; step++) full = sod2_imax(full, p->full[step]);
  return fits(p, live, full, full + bytes) ? full : lowest_gap(p, buffer, full, slots);
}

/* Puts a buffer somewhere. Returns where it ends. Of a first gap that is filled an empty one is left: to find the next
   would take a search. */
static int64_t put(sod2_placing *p, int32_t buffer, int64_t begin, const sod2_slots *slots) {
  const sod2_range live = p->range[buffer];
  const int64_t end = begin + p->bytes[buffer];
  slots->begin[buffer] = begin, slots->end[buffer] = end;
  for (int32_t step = live.first; step <= live.last; step++) {
    const int64_t full = p->full[step];
    p->top[step] = sod2_imax(p->top[step], end);
    p->full[step] = full < begin ? full : sod2_imax(full, end);
    p->gap_end[step] = full < begin ? sod2_imin(p->gap_end[step], begin) : p->gap_end[step];
  }
  return end;
}

/* Only what is given lies somewhere; what is empty is at 0, in nobody's way. Returns the arena that this needs. */
static int64_t clear(sod2_placing *p, const int64_t *offset, const sod2_slots *slots) {
  int64_t arena = 0;
  memset(p->top, 0, sizeof *p->top * (size_t)p->steps);
  memset(p->full, 0, sizeof *p->full * (size_t)p->steps);
  for (int32_t step = 0; step < p->steps; step++) p->gap_end[step] = INT64_MAX;
  for (int32_t i = 0; i < p->buffers; i++) {
    slots->begin[i] = slots->end[i] = p->bytes[i] == 0 ? 0 : -1;
    if (sod2_is_given(p, i) && p->bytes[i] > 0) arena = sod2_imax(arena, put(p, i, offset[p->number[i]], slots));
  }
  return arena;
}

int64_t sod2_place_order(sod2_placing *p, const int32_t *order, const int64_t *offset, int64_t limit,
                         const sod2_slots *slots) {
  int64_t arena = clear(p, offset, slots);
  for (int32_t tier = 0, i = 0; tier < p->tiers; tier++)
    for (; i < p->tier_end[tier] && arena < limit; i++)
      arena = sod2_imax(arena, put(p, order[i], lowest(p, order[i], tier, slots), slots));
  return arena;
}

int64_t sod2_place_in_time(sod2_placing *p, const int64_t *offset, int64_t limit, const sod2_slots *slots) {
  int64_t arena = clear(p, offset, slots);
  for (int32_t i = 0; i < p->buffers && arena < limit; i++) {
    if (slots->begin[i] >= 0) continue; /* given, or empty */
    arena = sod2_imax(arena, put(p, i, smallest_gap(p, i, arena, slots), slots));
  }
  return arena;
}
