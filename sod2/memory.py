"""The memory plan: which buffer lives when and how large it is, as expressions over the model's symbols.

A buffer lives from the first step that writes it to the last that reads it, both included. The plan's two figures:

- the live peak, the largest sum of live sizes over the steps, as one formula: a maximum of sums, from which those are
  dropped that another one is provably never below;
- the arena, what a placement needs once the sizes are known. Placing happens at run time in runtime/arena.c; here is
  its twin in Python for reports and tests, equal to the last byte.

`place_peak_first` is the paper's dynamic memory planning: from the step of peak usage outwards, each buffer into the
lowest gap among those that overlap it in time; more orders are tried when that is not optimal, best fit among them, so
that it is never worse. `place_best_fit` is what engines do without a plan: in order of first use, the smallest gap.
Both place around buffers that are `given`, as sizes become known that only execution tells.
Limits: the live peak counts bytes as they are, while the arena rounds every buffer up to ALIGN.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sod2.peak import undominated
from sod2.symbolic import Dim, compile_dims, constant, le, maximum

ALIGN = 64  # SOD2_ALIGN of runtime/program.h
DEPTH_COST, DEPTH_GAIN, ROUNDS, FEW = 8, 2, 4, 256  # of runtime/arena.c
Span = tuple[int, int]  # first and last step of a buffer
Given = Mapping[int, int]  # offsets of buffers that are placed already, by number
_NONE: Given = {}


@dataclass(frozen=True)
class LiveRange:
    """A buffer of `size` bytes (>= 0) that is live at the steps first..last. Scratch has first == last."""

    buffer: str
    first: int
    last: int
    size: Dim

    def __str__(self) -> str:
        return f"{self.buffer} {self.first}..{self.last}: {self.size}"


@dataclass(frozen=True)
class Placement:
    """Byte offset of every buffer, and the bytes of the arena that holds them all."""

    arena: int
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class MemoryPlan:
    """The live ranges of all buffers over `steps` steps. `peak_first` says how they are placed at run time."""

    ranges: tuple[LiveRange, ...]
    steps: int
    peak_first: bool = True

    @cached_property
    def live_peak(self) -> Dim:
        """Bytes live at the worst step, as an expression."""
        return maximum(0, *undominated(_maximal_sums(self.ranges)))

    def sizes(self, symbols: Mapping[str, int]) -> tuple[int, ...]:
        """Bytes of every buffer; KeyError for a symbol without a value."""
        return compile_dims(tuple(r.size for r in self.ranges))(symbols)

    def placement(self, symbols: Mapping[str, int]) -> Placement:
        """Where the run-time planner puts every buffer."""
        place = place_peak_first if self.peak_first else place_best_fit
        return place(_spans(self.ranges), self.sizes(symbols))

    def live_bytes(self, symbols: Mapping[str, int]) -> int:
        """Largest sum of live, rounded sizes: the least that any placement needs."""
        return max(live_usage(_spans(self.ranges), self.sizes(symbols)), default=0)

    def __str__(self) -> str:
        lines = (f"  {r}" for r in self.ranges)
        return "\n".join([f"{self.steps} steps, live peak {self.live_peak}", *lines])


def plan(ranges: Sequence[LiveRange], steps: int, peak_first: bool = True) -> MemoryPlan:
    """Check the ranges and make a plan of them; ValueError for a range outside the steps or a negative size."""
    for r in ranges:
        if not 0 <= r.first <= r.last < steps:
            raise ValueError(f"buffer {r.buffer!r} is live at {r.first}..{r.last}; the steps are 0..{steps - 1}")
        if le(0, r.size) is False:
            raise ValueError(f"buffer {r.buffer!r} has {r.size} bytes, which is never 0 or more")
    return MemoryPlan(tuple(ranges), steps, peak_first)


# ---- the live peak as a formula --------------------------------------------------------------------------------------


def _maximal_sums(ranges: Sequence[LiveRange]) -> list[Dim]:
    """Different sums of live sizes, one for each step whose live buffers are not all live at a neighbouring step.

    Between two steps the set of live buffers only shrinks when one ends and only grows when one begins: a set is
    maximal at the last step before an end that follows a beginning.
    """
    ends = sorted({r.last for r in ranges})
    sums: dict[Dim, None] = {}
    previous = -1
    for end in ends:
        if any(previous < r.first <= end for r in ranges):
            sums[sum((r.size for r in ranges if r.first <= end <= r.last), constant(0))] = None
        previous = end
    return list(sums)


# ---- placement: twin of runtime/arena.c ------------------------------------------------------------------------------


def live_usage(spans: Sequence[Span], sizes: Sequence[int]) -> list[int]:
    """Rounded bytes live at every step, up to the last one that a buffer is live at."""
    usage = [0] * (max((last for _, last in spans), default=-1) + 2)
    for (first, last), size in zip(spans, sizes, strict=True):
        usage[first] += _rounded(size)
        usage[last + 1] -= _rounded(size)
    for step in range(1, len(usage)):
        usage[step] += usage[step - 1]
    return usage[:-1]


def place_peak_first(spans: Sequence[Span], sizes: Sequence[int], given: Given = _NONE) -> Placement:
    """Offsets for buffers of known sizes in bytes, from the step of peak usage outwards; the given ones stay."""
    usage = live_usage(spans, sizes)
    floor = max(usage, default=0)
    peak = usage.index(floor) if usage else 0
    indices = [i for i, size in enumerate(sizes) if size > 0 and i not in given]

    def outwards(i: int) -> tuple[int, float]:
        first, last = spans[i]
        distance = first - peak if first > peak else max(peak - last, 0)
        return distance, -float(_rounded(sizes[i])) * (last - first + 1)

    def by_size(i: int) -> float:
        return -float(_rounded(sizes[i]))

    best = _improve(spans, sizes, sorted(indices, key=outwards), given, floor)
    if best.arena > floor:
        best = _smaller(best, _improve(spans, sizes, sorted(indices, key=by_size), given, floor))
    if best.arena > floor:
        best = _smaller(best, place_best_fit(spans, sizes, given))
    return best


def place_best_fit(spans: Sequence[Span], sizes: Sequence[int], given: Given = _NONE) -> Placement:
    """Offsets for buffers of known sizes in bytes, each at its first step into the smallest gap that holds it."""
    offsets, placed, arena = _given(spans, sizes, given)
    for i in sorted((i for i, size in enumerate(sizes) if size > 0 and i not in given), key=lambda i: spans[i][0]):
        first, last = spans[i]
        placed = [slot for slot in placed if slot.last >= first]
        live = [slot for slot in placed if slot.first <= last]
        size, end = _rounded(sizes[i]), max((slot.end for slot in live), default=0)
        begin = min(_gaps(live, arena, size), default=(0, end))[1]
        offsets[i] = begin
        arena = max(arena, begin + size)
        _insert(placed, _Slot(begin, begin + size, first, last))
    return Placement(arena, tuple(offsets))


def place_by_depth(
    spans: Sequence[Span], sizes: Sequence[int], depth_of: Sequence[int]
) -> tuple[Placement, tuple[int, ...]]:
    """From the outermost level of branches inwards, where that costs the longest path little and spares others much.

    Beside the placement, for each depth the arena of a run that touches no deeper buffer.
    """
    together, depths = place_peak_first(spans, sizes), max(depth_of, default=0) + 1
    given: Given = {}
    ends = []
    for depth in range(depths):
        known = [size if d <= depth else 0 for size, d in zip(sizes, depth_of, strict=True)]
        apart = place_peak_first(spans, known, given)
        given = {i: apart.offsets[i] for i, d in enumerate(depth_of) if d <= depth}
        ends.append(apart.arena)
    is_cheap = apart.arena <= together.arena + together.arena // DEPTH_COST
    if apart.arena <= together.arena or (is_cheap and ends[0] <= together.arena // DEPTH_GAIN):
        return apart, tuple(ends)
    return together, (together.arena,) * depths


class _Slot(NamedTuple):
    begin: int
    end: int
    first: int
    last: int


def _insert(placed: list[_Slot], slot: _Slot) -> None:
    """Keep the slots sorted by begin; an equal one goes behind."""
    placed.insert(bisect_right(placed, slot.begin, key=lambda s: s.begin), slot)


def _given(spans: Sequence[Span], sizes: Sequence[int], given: Given) -> tuple[list[int], list[_Slot], int]:
    """Offsets, slots and arena of the buffers that are placed already."""
    offsets, placed = [given.get(i, 0) for i in range(len(sizes))], list[_Slot]()
    for i, begin in sorted(given.items()):
        if sizes[i] > 0:
            _insert(placed, _Slot(begin, begin + _rounded(sizes[i]), *spans[i]))
    return offsets, placed, max((slot.end for slot in placed), default=0)


def _rounded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _smaller(a: Placement, b: Placement) -> Placement:
    return b if b.arena < a.arena else a


def _gaps(live: Iterable[_Slot], arena: int, size: int) -> list[tuple[int, int]]:
    """Length and begin of the free gaps that hold `size` bytes, the one at the arena's end included."""
    gaps = []
    end = 0
    for slot in [*live, _Slot(arena, arena, 0, 0)]:
        if slot.begin - end >= size:
            gaps.append((slot.begin - end, end))
        end = max(end, slot.end)
    return gaps


def _place_lowest(spans: Sequence[Span], sizes: Sequence[int], order: Iterable[int], given: Given) -> Placement:
    """Give every buffer, in this order, the lowest gap among the placed buffers that overlap it in time."""
    offsets, placed, arena = _given(spans, sizes, given)
    for i in order:
        first, last = spans[i]
        size, begin = _rounded(sizes[i]), 0
        for other in placed:
            if other.last < first or other.first > last:
                continue
            if other.begin - begin >= size:
                break
            begin = max(begin, other.end)
        offsets[i] = begin
        arena = max(arena, begin + size)
        _insert(placed, _Slot(begin, begin + size, first, last))
    return Placement(arena, tuple(offsets))


def _improve(spans: Sequence[Span], sizes: Sequence[int], order: list[int], given: Given, floor: int) -> Placement:
    """Place in an order, and again and again with what ends above `floor` half way to the front; the smallest arena."""
    best = placed = _place_lowest(spans, sizes, order, given)
    for _ in range(1, 1 if given else max(1, ROUNDS * FEW // max(FEW, len(order)))):
        if best.arena <= floor:
            break
        for i, buffer in enumerate(order):
            if placed.offsets[buffer] + _rounded(sizes[buffer]) > floor:
                order.insert(i // 2, order.pop(i))
        placed = _place_lowest(spans, sizes, order, given)
        best = _smaller(best, placed)
    return best


def _spans(ranges: Sequence[LiveRange]) -> list[Span]:
    return [(r.first, r.last) for r in ranges]
