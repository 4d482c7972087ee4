/* Gaps: where a buffer fits among the placed ones that live at the same time. See placing.h.

   Most buffers need no search. Of each step it is known how far what is placed there reaches, `top`, and where the first
   gap begins, `full`, and ends: no buffer lies below the largest `full` of its steps, and most fit right there. */
#include "placing.h"

void sod2_list_depths(sod2_placing *p, const uint8_t *depth_of, int32_t depths) {
  int32_t listed = 0;
  for (int32_t depth = 0; depth < depths; depth++) {
    p->depth_at[depth] = listed;
    for (int32_t i = 0; i < p->buffers; i++)
      if ((depth_of == NULL ? 0 : depth_of[i]) == depth) p->by_depth[listed++] = i;
  }
  p->depth_at[depths] = listed;
}

/* Numbers of the buffers by step: counts at [step + 1] become places, which are then filled. */
void sod2_list_overlaps(sod2_placing *p) {
  int32_t *first_at = p->first_at, *older_at = p->older_at;
  memset(first_at, 0, sizeof *first_at * ((size_t)p->steps + 2));
  memset(older_at, 0, sizeof *older_at * ((size_t)p->steps + 2));
  for (int32_t i = 0; i < p->buffers; i++) {
    first_at[p->range[i].first + 1]++;
    for (int32_t step = p->range[i].first + 1; step <= p->range[i].last; step++) older_at[step + 1]++;
  }
  for (int32_t step = 0; step < p->steps; step++) {
    first_at[step + 1] += first_at[step];
    older_at[step + 1] += older_at[step];
  }
  for (int32_t i = 0; i < p->buffers; i++) p->by_first[first_at[p->range[i].first]++] = i;
  for (int32_t j = 0; j < p->buffers; j++) {
    int32_t i = p->by_first[j];
    for (int32_t step = p->range[i].first + 1; step <= p->range[i].last; step++) p->older[older_at[step]++] = i;
  }
  for (int32_t step = p->steps; step > 0; step--) { /* each place has moved to where the next step's begin */
    first_at[step] = first_at[step - 1];
    older_at[step] = older_at[step - 1];
  }
  first_at[0] = older_at[0] = 0;
  p->overlaps = 0;
  for (int32_t i = 0; i < p->buffers; i++) {
    const sod2_range live = p->range[i];
    p->overlaps += older_at[live.first + 1] - older_at[live.first];
    p->overlaps += first_at[live.last + 1] - first_at[live.first];
  }
}

/* Fills p->near with the places of the buffers that overlap one in time, wherever they end: more of them are looked at
   than need be, but no branch is mispredicted. Behind them stands what is in nobody's way, for whole vectors. Returns
   their number. */
static int32_t gather(sod2_placing *p, int32_t buffer, const sod2_slot *slots) {
  const sod2_range live = p->range[buffer];
  int64_t *begins = p->near.begin, *ends = p->near.end;
  int32_t found = 0;
  const int32_t *begin[2] = {p->older + p->older_at[live.first], p->by_first + p->first_at[live.first]};
  const int32_t *end[2] = {p->older + p->older_at[live.first + 1], p->by_first + p->first_at[live.last + 1]};
  for (int part = 0; part < 2; part++)
    for (const int32_t *other = begin[part]; other < end[part]; other++, found++) {
      begins[found] = slots[*other].begin;
      ends[found] = slots[*other].end;
    }
  for (int k = 0; k < SOD2_AT_ONCE; k++) begins[found + k] = ends[found + k] = -1;
  return found;
}

/* The lowest gap of so many bytes from `begin` on among the near buffers. Again and again all are looked at, which vector
   units do faster than sorting: what lies in the way ends before every later begin. */
static int64_t lowest_gap(const sod2_placing *p, int32_t count, int64_t bytes, int64_t begin) {
  const int64_t *begins = p->near.begin, *ends = p->near.end;
  for (int64_t next = begin;; begin = next) {
    int64_t most[SOD2_AT_ONCE] = {0};
    for (int32_t j = 0; j < count; j += SOD2_AT_ONCE)
      for (int k = 0; k < SOD2_AT_ONCE; k++) {
        const int meets = (begins[j + k] < begin + bytes) & (ends[j + k] > begin);
        most[k] = sod2_imax(most[k], meets ? ends[j + k] : 0);
      }
    for (int k = 0; k < SOD2_AT_ONCE; k++) next = sod2_imax(next, most[k]);
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

/* The smallest gap among the near buffers, the free bytes at the arena's end included; where none is large enough, the
   place behind them. */
static int64_t smallest_gap(sod2_placing *p, int32_t count, int64_t bytes, int64_t arena) {
  const int64_t *begins = p->near.begin, *ends = p->near.end;
  count = sort_near(p, count);
  int64_t end = 0, best = INT64_MAX, begin = 0;
  for (int32_t j = 0; j < count; j++) {
    int64_t gap = begins[j] - end;
    if (gap >= bytes && gap < best) best = gap, begin = end;
    end = sod2_imax(end, ends[j]);
  }
  return best == INT64_MAX || (arena - end >= bytes && arena - end < best) ? end : begin;
}

/* Where a gap ends that begins at the largest `full` of some steps: of those at which not all lies below it, the lowest
   end of a first gap. */
static int64_t common_gap_end(const sod2_placing *p, sod2_range live, int64_t full) {
  int64_t end = INT64_MAX;
  for (int32_t step = live.first; step <= live.last; step++)
    end = sod2_imin(end, p->top[step] <= full ? INT64_MAX : p->gap_end[step]);
  return end;
}

/* The lowest place of a buffer; of one that comes last, on top of the others if that is below the tier's live peak. */
static int64_t lowest(sod2_placing *p, int32_t buffer, int32_t tier, const sod2_slot *slots) {
  const sod2_range live = p->range[buffer];
  const int64_t bytes = p->bytes[buffer];
  int64_t top = sod2_imax(p->top[live.first], p->top[live.last]);
  int64_t full = sod2_imax(p->full[live.first], p->full[live.last]);
  for (int32_t step = live.first + 1; step < live.last; step++) {
    top = sod2_imax(top, p->top[step]);
    full = sod2_imax(full, p->full[step]);
  }
  if (sod2_comes_last(p, buffer) && top + bytes <= p->floor[tier]) return top;
  if (full + bytes <= common_gap_end(p, live, full)) return full;
  return lowest_gap(p, gather(p, buffer, slots), bytes, full);
}

/* Puts a buffer somewhere. Returns where it ends. */
static int64_t put(sod2_placing *p, int32_t buffer, int64_t begin, sod2_slot *slots) {
  const sod2_range live = p->range[buffer];
  const int64_t end = begin + p->bytes[buffer];
  slots[buffer] = (sod2_slot){begin, end};
  for (int32_t step = live.first; step <= live.last; step++) {
    const int64_t full = p->full[step];
    p->top[step] = sod2_imax(p->top[step], end);
    p->full[step] = full < begin ? full : sod2_imax(full, end);
    p->gap_end[step] = full < begin ? sod2_imin(p->gap_end[step], begin) : p->gap_end[step];
  }
  return end;
}

/* Only what is given lies somewhere; what is empty is at 0, in nobody's way. Returns the arena that this needs. */
static int64_t clear(sod2_placing *p, const int64_t *offset, sod2_slot *slots) {
  int64_t arena = 0;
  memset(p->top, 0, sizeof *p->top * (size_t)p->steps);
  memset(p->full, 0, sizeof *p->full * (size_t)p->steps);
  for (int32_t step = 0; step < p->steps; step++) p->gap_end[step] = INT64_MAX;
  for (int32_t i = 0; i < p->buffers; i++) {
    slots[i].begin = slots[i].end = p->bytes[i] == 0 ? 0 : -1;
    if (sod2_is_given(p, i) && p->bytes[i] > 0) arena = sod2_imax(arena, put(p, i, offset[i], slots));
  }
  return arena;
}

int64_t sod2_place_order(sod2_placing *p, const int32_t *order, const int64_t *offset, int64_t limit,
                         sod2_slot *slots) {
  int64_t arena = clear(p, offset, slots);
  for (int32_t tier = 0, i = 0; tier < p->tiers; tier++)
    for (; i < p->tier_end[tier] && arena < limit; i++)
      arena = sod2_imax(arena, put(p, order[i], lowest(p, order[i], tier, slots), slots));
  return arena;
}

int64_t sod2_place_in_time(sod2_placing *p, const int64_t *offset, int64_t limit, sod2_slot *slots) {
  int64_t arena = clear(p, offset, slots);
  for (int32_t j = 0; j < p->buffers && arena < limit; j++) {
    const int32_t i = p->by_first[j];
    if (slots[i].begin >= 0) continue; /* given, or empty */
    const int64_t begin = smallest_gap(p, gather(p, i, slots), p->bytes[i], arena);
    arena = sod2_imax(arena, put(p, i, begin, slots));
  }
  return arena;
}
