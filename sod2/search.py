"""Search for the order of a block's tasks that needs the least memory.

A Problem is a block in integers: every size is a vector, either one number (sizes that are proportional for all values
of the symbols: what is found then holds for all of them) or one number for each sampled value of the symbols. The usage
of a moment is a vector too, and its cost is the largest of its components, each relative to the peak of the given
order: at 1 an order needs what the given one needs, at less it is better at every sample.

The set of executed tasks determines what is live, so the best order is a path through sets with the least bottleneck.
`exact` finds it best-first. Two rules keep the search small: a task that leaves no more live than it found, and needs
no more than was needed already, is run at once (nothing is lost: all later sets only get smaller); a state that costs
as much as the best known order is dropped. `by_lists` builds orders greedily: least bytes live afterwards, least bytes
needed, newest tensor first, and the first of them backwards, from the end.
The lower bound, each task with its operands alone, ends most searches before they begin.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

Vector = tuple[int, ...]
Order = tuple[int, ...]

MAX_EXACT = 14  # tasks
MAX_STATES = 5000  # expanded; beyond them the best known order is kept


class TooManyStatesError(Exception):
    """The search for the best order was given up."""


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

    def cost_of(self, order: Sequence[int]) -> float:
        """The worst moment of an order."""
        return max(map(self.cost, self.usage(order)))

    @cached_property
    def bound(self) -> float:
        """A cost that no order is below: a task needs its own bytes and the tensors that it reads."""
        return max(self.cost(self.during(self.total(self.reads[t]), t)) for t in range(self.tasks))

    @cached_property
    def behind(self) -> tuple[int, ...]:
        """The tasks that each task must precede, as a bit set."""
        sets = [0] * self.tasks
        for task, before in enumerate(self.before):
            for other in _members(before):
                sets[other] |= 1 << task
        return tuple(sets)

    def ready(self, done: int) -> list[int]:
        """Tasks that may run next, ascending."""
        return [t for t in range(self.tasks) if not done >> t & 1 and not self.before[t] & ~done]

    def released(self, task: int, done: int) -> list[int]:
        """Tasks that may run because `task` has, as the last of those before them; `done` holds it."""
        return [t for t in _members(self.behind[task]) if not self.before[t] & ~done]


def solve(problem: Problem) -> Order:
    """The best order that is found; the given one unless another is better at every sample.

    With at most MAX_EXACT tasks, and MAX_STATES states, it is the best there is.
    """
    best, cost = tuple(range(problem.tasks)), 1.0
    if problem.bound >= cost:
        return best
    if problem.tasks <= MAX_EXACT:
        try:
            return exact(problem, cost) or best
        except TooManyStatesError:
            pass  # the orders below are valid, but not proven to be the best
    for order in by_lists(problem):
        if (found := problem.cost_of(order)) < cost:
            best, cost = order, found
    return best


def exact(problem: Problem, limit: float) -> Order | None:
    """The order of least cost below `limit`, None when there is none; TooManyStatesError beyond MAX_STATES."""
    everything = (1 << problem.tasks) - 1
    queue: list[tuple[float, int, int, Vector, Order]] = [(0.0, 0, 0, problem.start, ())]
    seen: set[int] = set()
    for _ in range(MAX_STATES):
        if not queue:
            return None
        cost, _, done, live, order = heapq.heappop(queue)
        if done == everything:
            return order
        if done in seen:
            continue
        seen.add(done)
        for task in _choices(problem, done, live, cost):
            reached = max(cost, problem.cost(problem.during(live, task)))
            following = done | 1 << task
            if reached < limit and following not in seen:
                after = problem.after(live, task, done)
                heapq.heappush(queue, (reached, -len(order) - 1, following, after, (*order, task)))
    raise TooManyStatesError


def _choices(problem: Problem, done: int, live: Vector, cost: float) -> list[int]:
    """The ready tasks, or one of them alone when running it now loses nothing."""
    ready = problem.ready(done)
    for task in ready:
        if problem.cost(problem.during(live, task)) <= cost and _covers(live, problem.after(live, task, done)):
            return [task]
    return ready


def by_lists(problem: Problem) -> Iterator[Order]:
    """Valid orders, each built by a greedy rule."""

    def needed(live: Vector, task: int) -> float:
        return problem.cost(problem.during(live, task))

    def left(live: Vector, task: int, done: int) -> float:
        return problem.cost(problem.after(live, task, done))

    yield _forwards(problem, lambda live, task, done: (left(live, task, done), needed(live, task)))
    yield _forwards(problem, lambda live, task, done: (needed(live, task), left(live, task, done)))
    yield _newest_first(problem)
    yield _backwards(problem)


def _forwards(problem: Problem, rule: Callable[[Vector, int, int], tuple[float, float]]) -> Order:
    """Runs, again and again, the ready task for which `rule` is least; the earlier one in a tie."""
    order: list[int] = []
    live, done = problem.start, 0
    ready = problem.ready(done)
    while ready:
        task = min((rule(live, t, done), t) for t in ready)[1]
        live = problem.after(live, task, done)
        done |= 1 << task
        ready.remove(task)
        ready += problem.released(task, done)
        order.append(task)
    return tuple(order)


def _newest_first(problem: Problem) -> Order:
    """Depth first: a consumer of the newest result runs next, so that chains are finished before others begin."""
    order: list[int] = []
    done = 0
    newest = [-1] * problem.tasks  # position of the last task that ran before each one
    ready = problem.ready(done)
    while ready:
        task = min((-newest[t], t) for t in ready)[1]
        done |= 1 << task
        ready.remove(task)
        ready += problem.released(task, done)
        for reader in _members(problem.behind[task]):
            newest[reader] = len(order)
        order.append(task)
    return tuple(order)


def _backwards(problem: Problem) -> Order:
    """From the last task to the first: of those that nothing in front needs, the one before which least is live."""
    order: list[int] = []
    done = (1 << problem.tasks) - 1
    after = (0,) * len(problem.start)  # less what outlives the block: the same for all
    ready = [t for t in range(problem.tasks) if not problem.behind[t]]
    while ready:
        choices = []
        for task in ready:
            before = tuple(map(int.__sub__, after, problem.grown(task, done & ~(1 << task))))
            cost = max(problem.cost(problem.during(before, task)), problem.cost(before))
            choices.append((cost, -task, before))
        _, chosen, after = min(choices)
        done &= ~(1 << -chosen)
        ready.remove(-chosen)
        ready += [t for t in _members(problem.before[-chosen]) if not problem.behind[t] & done]
        order.append(-chosen)
    return tuple(reversed(order))


def _members(bits: int) -> Iterator[int]:
    """The numbers in a bit set, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _covers(a: Vector, b: Vector) -> bool:
    return all(x >= y for x, y in zip(a, b, strict=True))
