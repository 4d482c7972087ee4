"""The memory plan: which buffer lives when and how large it is, as expressions over the model's symbols.

A buffer lives from the first step that writes it to the last that reads it, both included. The plan's two figures:

- the live peak, the largest sum of live sizes over the steps, as one formula: a maximum of sums, from which those are
  dropped that another one is provably never below;
- the arena, what a placement needs once the sizes are known. Placing happens at run time in runtime/arena.c; here is
  its twin in Python for reports and tests, equal to the last byte.

`place_peak_first` is the paper's dynamic memory planning: what lives where most is used comes first, each buffer into
the lowest gap among those that overlap it in time; more orders are tried when that is not optimal, best fit among them,
so that it is never worse. `place_best_fit` is what engines do without a plan: in order of first use, the smallest gap.
Both place around buffers that are `given`, as sizes become known that only execution tells. `place_by_depth` lets runs
that enter few branches need little.
Limits: the live peak counts bytes as they are, while the arena rounds every buffer up to ALIGN.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from sod2.peak import undominated
from sod2.symbolic import Dim, compile_dims, constant, le, maximum

ALIGN = 64  # SOD2_ALIGN of runtime/program.h
DEPTH_COST, DEPTH_GAIN, ENOUGH, ROUNDS, WORK = 8, 2, 128, 8, 80000  # of runtime/arena.c
Span = tuple[int, int]  # first and last step of a buffer
Given = Mapping[int, int] | None  # offsets of buffers that are placed already, by number


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


_NOTHING = Placement(0, ())


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


def place_peak_first(spans: Sequence[Span], sizes: Sequence[int], given: Given = None) -> Placement:
    """Offsets for buffers of known sizes in bytes (>= 0, rounded up to ALIGN), a span being the first and last step.

    `given` are offsets of buffers that are placed already; like those of empty buffers they stay. ValueError when spans
    and sizes differ in number.
    """
    return _place_together(_Problem(spans, sizes, (0,) * len(sizes), given))


def place_best_fit(spans: Sequence[Span], sizes: Sequence[int], given: Given = None) -> Placement:
    """Offsets for buffers of known sizes in bytes, each at its first step into the smallest gap that holds it."""
    problem = _Problem(spans, sizes, (0,) * len(sizes), given)
    return problem.placed(problem.by_first, _best_fit, math.inf)


def place_by_depth(
    spans: Sequence[Span], sizes: Sequence[int], depth_of: Sequence[int]
) -> tuple[Placement, tuple[int, ...]]:
    """From the outermost tier of branches inwards, where that costs the longest path little.

    Beside the placement, for each depth the arena of a run that touches no deeper buffer.
    """
    problem = _Problem(spans, sizes, depth_of, None)
    peak, is_one = problem.floor[-1], len(problem.floor) == 1
    found = _place_together(problem) if is_one else _search(problem)
    if not is_one and found.arena > peak + peak // DEPTH_COST:
        found = _smaller(found, place_peak_first(spans, sizes))
    depths = range(max(depth_of, default=0) + 1)
    ends = [(d, found.offsets[i] + problem.sizes[i]) for i, d in enumerate(depth_of) if problem.sizes[i]]
    return found, tuple(max((end for d, end in ends if d <= depth), default=0) for depth in depths)


class _Slot(NamedTuple):
    begin: int
    end: int


# The begin of a buffer among the placed ones that are near, in an arena of some size.
Choose = Callable[["_Problem", int, Sequence[_Slot], int], int]


class _Problem:
    """What is placed, and the facts on which orders rest; `problem` of runtime/arena.c."""

    def __init__(self, spans: Sequence[Span], sizes: Sequence[int], depth_of: Sequence[int], given: Given) -> None:
        self.spans = list(spans)
        self.sizes = [_rounded(size) for _, size in zip(spans, sizes, strict=True)]
        self.given, self.tries_again = given or {}, given is None
        self.by_first = sorted(range(len(self.sizes)), key=lambda i: spans[i][0])
        self.first_at = [spans[i][0] for i in self.by_first]
        self.older = [list[int]() for _ in range(max((last for _, last in spans), default=-1) + 1)]
        for i in self.by_first:
            for step in range(spans[i][0] + 1, spans[i][1] + 1):
                self.older[step].append(i)
        self._fill_tiers(depth_of)

    def _fill_tiers(self, depth_of: Sequence[int]) -> None:
        """Tiers of depths, their floors, and the largest usage that each buffer sees."""
        usages = [self._usage(depth_of, depth) for depth in range(max(depth_of, default=0) + 1)]
        peaks = [max(usage, default=0) for usage in usages]
        tier_of, outer = list[int](), 0
        for depth, peak in enumerate(peaks):
            begins = depth == 0 or peak >= DEPTH_GAIN * outer
            tier_of.append((tier_of[-1] if tier_of else -1) + begins)
            outer = peak if begins else outer
        ends = {tier: depth for depth, tier in enumerate(tier_of)}
        self.floor = [peaks[depth] for depth in ends.values()]
        self.tier_of = [tier_of[depth] for depth in depth_of]
        self.most = [
            max(usages[ends[tier]][first : last + 1])
            for tier, (first, last) in zip(self.tier_of, self.spans, strict=True)
        ]

    def _usage(self, depth_of: Sequence[int], depth: int) -> list[int]:
        return live_usage(self.spans, [size if d <= depth else 0 for size, d in zip(self.sizes, depth_of, strict=True)])

    def comes_last(self, i: int) -> bool:
        """Whether a buffer is placed behind the others of its tier."""
        return len(self.floor) > 1 and self.spans[i][0] == self.spans[i][1]

    def ranked(self, weight: Callable[[int], float]) -> list[list[int]]:
        """The buffers to be placed, tier by tier, by weight; in ties the one that begins earlier is first."""
        open_ = [i for i in self.by_first if self.sizes[i] > 0 and i not in self.given]
        return [
            sorted(
                (i for i in open_ if self.tier_of[i] == tier),
                key=lambda i: 0.0 if self.comes_last(i) else weight(i),
                reverse=True,
            )
            for tier in range(len(self.floor))
        ]

    def advanced(self, tier: int, order: Sequence[int], offsets: Sequence[int]) -> list[int]:
        """The order of a tier in which what ended above its live peak is half way to the front."""
        late = [offsets[i] >= 0 and offsets[i] + self.sizes[i] > self.floor[tier] for i in order]
        keys = {i: (k // 2, 0) if is_late else (k, 1) for k, (i, is_late) in enumerate(zip(order, late, strict=True))}
        return sorted(order, key=keys.__getitem__)

    def overlaps(self) -> int:
        """How often one buffer is looked at for another, when all are placed."""
        return sum(len(self.near(i)) for i in self.by_first)

    def near(self, i: int) -> list[int]:
        """The buffers that overlap one in time, itself among them."""
        first, last = self.spans[i]
        begun = self.by_first[bisect_left(self.first_at, first) : bisect_right(self.first_at, last)]
        return [*self.older[first], *begun]

    def placed(self, order: Iterable[int], choose: Choose, limit: float) -> Placement:
        """Every buffer of an order where `choose` puts it, until the arena is not below `limit`."""
        offsets = [self.given.get(i, -1 if size > 0 else 0) for i, size in enumerate(self.sizes)]
        arena = max((offsets[i] + self.sizes[i] for i in self.given if self.sizes[i] > 0), default=0)
        for i in order:
            if offsets[i] >= 0:
                continue  # given, or empty
            if arena >= limit:
                break
            near = [j for j in self.near(i) if offsets[j] >= 0 and self.sizes[j] > 0]
            slots = sorted(_Slot(offsets[j], offsets[j] + self.sizes[j]) for j in near)
            offsets[i] = choose(self, i, slots, arena)
            arena = max(arena, offsets[i] + self.sizes[i])
        return Placement(arena, tuple(offsets))


def _rounded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _smaller(a: Placement, b: Placement) -> Placement:
    return b if b.arena < a.arena else a


def _lowest(problem: _Problem, i: int, live: Sequence[_Slot], _: int) -> int:
    """The begin of the lowest gap; of a buffer that comes last, on top if that is below its tier's live peak."""
    size, top = problem.sizes[i], max((slot.end for slot in live), default=0)
    if problem.comes_last(i) and top + size <= problem.floor[problem.tier_of[i]]:
        return top
    end = 0
    for slot in live:
        if slot.begin - end >= size:
            break
        end = max(end, slot.end)
    return end


def _best_fit(problem: _Problem, i: int, live: Sequence[_Slot], arena: int) -> int:
    """The begin of the smallest gap, the one at the arena's end included; where none is large enough, behind all."""
    gaps, end = list[tuple[int, int]](), 0
    for slot in (*live, _Slot(arena, arena)):
        if slot.begin - end >= problem.sizes[i]:
            gaps.append((slot.begin - end, end))
        end = max(end, slot.end)
    return min(gaps, default=(0, max((slot.end for slot in live), default=0)))[1]


def _search(problem: _Problem) -> Placement:
    """The smallest arena of the orders that are tried, in turns."""
    orders = [
        problem.ranked(lambda i: float(problem.most[i]) * float(problem.sizes[i])),
        problem.ranked(lambda i: float(problem.most[i])),
    ]
    peak = problem.floor[-1]
    enough = peak + peak // (ENOUGH if len(problem.floor) == 1 else DEPTH_COST)
    most = min(len(orders) * ROUNDS, 1 + WORK // max(1, problem.overlaps()))
    best, limit = _NOTHING, math.inf
    for k in range(most if problem.tries_again else len(orders)):
        order = orders[k % len(orders)]
        found = problem.placed(chain(*order), _lowest, limit)
        if found.arena < limit:
            best, limit = found, found.arena
        if limit <= enough:
            break
        orders[k % len(orders)] = [problem.advanced(t, part, found.offsets) for t, part in enumerate(order)]
    return best


def _place_together(problem: _Problem) -> Placement:
    """The search, and best fit where that does not reach the live peak."""
    found = _search(problem)
    if found.arena <= problem.floor[0]:
        return found
    return _smaller(found, problem.placed(problem.by_first, _best_fit, found.arena))


def _spans(ranges: Sequence[LiveRange]) -> list[Span]:
    return [(r.first, r.last) for r in ranges]
