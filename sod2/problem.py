"""A block of tasks as integers: what the search for its order (search.py) and the proof of it (cuts.py) work on.

Every size is a vector, either one number (sizes that are proportional for all values of the symbols: what is found then
holds for all of them) or one number for each sampled value of the symbols. The usage of a moment is a vector too, and
its cost is the largest of its components, each relative to the peak of the given order: at 1 an order needs what the
given one needs, at less it is better at every sample.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

Vector = tuple[int, ...]
Order = tuple[int, ...]

_SMALL = 16  # times as much is needed in any order as by a task that may wait for its reader


@dataclass(frozen=True)
class Problem:
    """Tasks 0..n-1, in the given order, over tensors that are freed in this block or outlive it.

    reads[t]: tensors that task t reads and that are freed after their last reader; writes[t]: tensors that outlive it;
    inside[t]: bytes of its own while it runs, `writes` included; before[t]: tasks that must precede it, as a bit set;
    sizes: of the tensors; entering: the ones among `reads` that are live from the start. Tensors that are read without
    being freed here add the same to every moment and do not appear.
    """

    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    inside: tuple[Vector, ...]
    before: tuple[int, ...]
    sizes: tuple[Vector, ...]
    entering: tuple[int, ...]

    @property
    def tasks(self) -> int:
        """How many tasks there are."""
        return len(self.reads)

    def at(self, sample: int) -> "Problem":
        """The problem at one sample alone."""
        inside, sizes = (tuple((v[sample],) for v in vectors) for vectors in (self.inside, self.sizes))
        return replace(self, inside=inside, sizes=sizes)

    @cached_property
    def readers(self) -> tuple[int, ...]:
        """The tasks that read each tensor, as a bit set."""
        sets = [0] * len(self.sizes)
        for task, reads in enumerate(self.reads):
            for tensor in reads:
                sets[tensor] |= 1 << task
        return tuple(sets)

    @cached_property
    def start(self) -> Vector:
        """Bytes live before the first task."""
        return self.total(self.entering)

    def total(self, tensors: Sequence[int]) -> Vector:
        """Bytes of some tensors together."""
        zero = (0,) * len(self.inside[0])
        return tuple(map(sum, zip(zero, *(self.sizes[tensor] for tensor in tensors), strict=True)))

    @cached_property
    def written(self) -> tuple[Vector, ...]:
        """Bytes that each task leaves behind."""
        return tuple(self.total(writes) for writes in self.writes)

    def during(self, live: Vector, task: int) -> Vector:
        """Bytes live while a task runs, when `live` are live before it."""
        return tuple(map(int.__add__, live, self.inside[task]))

    def grown(self, task: int, done: int) -> Vector:
        """What a task changes in the bytes that are live, when the tasks `done` have run before it."""
        done |= 1 << task
        freed = [tensor for tensor in self.reads[task] if not self.readers[tensor] & ~done]
        return tuple(map(int.__sub__, self.written[task], self.total(freed))) if freed else self.written[task]

    def after(self, live: Vector, task: int, done: int) -> Vector:
        """Bytes live behind a task, when `live` are before it and the tasks `done` have run."""
        return tuple(map(int.__add__, live, self.grown(task, done)))

    def usage(self, order: Sequence[int]) -> Iterator[Vector]:
        """Bytes live while each task runs."""
        live, done = self.start, 0
        for task in order:
            yield self.during(live, task)
            live = self.after(live, task, done)
            done |= 1 << task

    @cached_property
    def reference(self) -> Vector:
        """Peak of the given order."""
        return tuple(max(1, *column) for column in zip(*self.usage(range(self.tasks)), strict=True))

    def cost(self, usage: Vector) -> float:
        """A moment's bytes relative to the given order's peak, the worst of all samples."""
        return max(u / r for u, r in zip(usage, self.reference, strict=True))

    def peaks(self, order: Sequence[int]) -> Vector:
        """The most bytes that an order needs at each sample."""
        return tuple(map(max, zip(*self.usage(order), strict=True)))

    def cost_of(self, order: Sequence[int]) -> float:
        """The worst moment of an order."""
        return max(map(self.cost, self.usage(order)))

    @cached_property
    def bounds(self) -> tuple[Vector, ...]:
        """Bytes that each task needs in any order: while it runs, those tensors are live that a task before it has
        written, or that enter, and that it or a task behind it reads, or that outlive the block."""
        writer = {tensor: 1 << task for task, writes in enumerate(self.writes) for tensor in writes}
        found = []
        for task, (above, below) in enumerate(zip(self.above, self.below, strict=True)):
            needed = below | 1 << task
            live = [
                tensor
                for tensor, readers in enumerate(self.readers)
                if (not readers or readers & needed) and writer.get(tensor, above) & above == writer.get(tensor, above)
            ]
            found.append(self.during(self.total(live), task))
        return tuple(found)

    @cached_property
    def bound(self) -> float:
        """A cost that no order is below."""
        return max(map(self.cost, self.bounds))

    @cached_property
    def least(self) -> Vector:
        """Bytes that no order needs less than at each sample."""
        return tuple(map(max, zip(*self.bounds, strict=True)))

    @cached_property
    def above(self) -> tuple[int, ...]:
        """All tasks that precede each task in any order, as a bit set."""
        sets = list(self.before)
        for task, before in enumerate(self.before):
            for other in members(before):
                sets[task] |= sets[other]
        return tuple(sets)

    @cached_property
    def below(self) -> tuple[int, ...]:
        """All tasks that follow each task in any order, as a bit set."""
        sets = [0] * self.tasks
        for task, above in enumerate(self.above):
            for other in members(above):
                sets[other] |= 1 << task
        return tuple(sets)

    @cached_property
    def early(self) -> int:
        """The tasks that wait for nothing but others of these and need little, as a bit set: run just before the first
        task that reads them, they cost least, since their results are live the shortest time."""
        entering = set(self.entering)
        small = [_SMALL * self.cost(inside) <= self.bound for inside in self.inside]
        allowed = {t for t in range(self.tasks) if small[t] and self.behind[t] and entering.isdisjoint(self.reads[t])}
        while True:
            early = 0
            for task, before in enumerate(self.before):
                if task in allowed and not before & ~early:
                    early |= 1 << task
            first = {task: above & early for task, above in enumerate(self.above) if not early >> task & 1}
            costly = [tasks for task, tasks in first.items() if tasks and not self._is_free_before(task, tasks)]
            if not costly:
                return early
            allowed -= {other for tasks in costly for other in members(tasks)}

    def _is_free_before(self, task: int, first: int) -> bool:
        """Whether a task needs as much as the tasks `first`, which run before it, do."""
        zero = (0,) * len(self.inside[0])
        live, peak, done = zero, zero, 0
        for other in members(first):
            peak = tuple(map(max, peak, self.during(live, other)))
            live = self.after(live, other, done)
            done |= 1 << other
        return covers(self.during(live, task), peak)

    @cached_property
    def behind(self) -> tuple[int, ...]:
        """The tasks that each task must precede, as a bit set."""
        sets = [0] * self.tasks
        for task, before in enumerate(self.before):
            for other in members(before):
                sets[other] |= 1 << task
        return tuple(sets)

    def ready(self, done: int) -> list[int]:
        """Tasks that may run next, ascending."""
        return [t for t in range(self.tasks) if not done >> t & 1 and not self.before[t] & ~done]

    def released(self, task: int, done: int) -> list[int]:
        """Tasks that may run because `task` has, as the last of those before them; `done` holds it."""
        return [t for t in members(self.behind[task]) if not self.before[t] & ~done]


def members(bits: int) -> Iterator[int]:
    """The numbers in a bit set, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def covers(a: Vector, b: Vector) -> bool:
    return all(x >= y for x, y in zip(a, b, strict=True))
