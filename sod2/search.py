"""Search for the order of a block's tasks that needs the least memory.

A Problem is a block in integers: every size is a vector, either one number (sizes that are proportional for all values
of the symbols: what is found then holds for all of them) or one number for each sampled value of the symbols. The usage
of a moment is a vector too, and its cost is the largest of its components, each relative to the peak of the given
order: at 1 an order needs what the given one needs, at less it is better at every sample.

The set of executed tasks determines what is live, so the best order is a path through sets with the least bottleneck.
`exact` finds it best-first, and rules keep the search small. A run of tasks that leaves no more live than it found, and
needs no more than any order does, is made at once: nothing is lost, since what is live is a submodular function of what
has run, so that all later sets only get smaller. Tasks that wait for nothing run just before the first that reads them
(`early`). A state that costs as much as the best known order is dropped. `by_lists` builds orders greedily: least bytes
live afterwards, least bytes needed, newest tensor first, and the first of them backwards, from the end.
The lower bound, each task with what is live in any order while it runs, ends most searches before they begin.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

Vector = tuple[int, ...]
Order = tuple[int, ...]

MAX_STATES = 1024  # expanded, as many as ten tasks can have; beyond them the best known order is kept
_DEEPEST = 16  # tasks of a descent
_SMALL = 16  # times as much is needed in any order as by a task that may wait for its reader


class TooManyStatesError(Exception):
    """The search for the best order was given up."""


class Solution(NamedTuple):
    """An order of the tasks, and its cost over a proved lower bound, less 1: at 0 no order costs less."""

    order: Order
    gap: float


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
        """A cost that no order is below: while a task runs, those tensors are live in any order that a task before it
        has written, or that enter, and that it or a task behind it reads, or that outlive the block."""
        writer = {tensor: 1 << task for task, writes in enumerate(self.writes) for tensor in writes}
        costs = []
        for task, (above, below) in enumerate(zip(self.above, self.below, strict=True)):
            needed = below | 1 << task
            live = [
                tensor
                for tensor, readers in enumerate(self.readers)
                if (not readers or readers & needed) and writer.get(tensor, above) & above == writer.get(tensor, above)
            ]
            costs.append(self.cost(self.during(self.total(live), task)))
        return max(costs)

    def gap(self, order: Sequence[int]) -> float:
        """Cost of an order over the bound, less 1."""
        return self.cost_of(order) / self.bound - 1 if self.bound > 0 else 0.0

    @cached_property
    def above(self) -> tuple[int, ...]:
        """All tasks that precede each task in any order, as a bit set."""
        sets = list(self.before)
        for task, before in enumerate(self.before):
            for other in _members(before):
                sets[task] |= sets[other]
        return tuple(sets)

    @cached_property
    def below(self) -> tuple[int, ...]:
        """All tasks that follow each task in any order, as a bit set."""
        sets = [0] * self.tasks
        for task, above in enumerate(self.above):
            for other in _members(above):
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
            allowed -= {other for tasks in costly for other in _members(tasks)}

    def _is_free_before(self, task: int, first: int) -> bool:
        """Whether a task needs as much as the tasks `first`, which run before it, do."""
        zero = (0,) * len(self.inside[0])
        live, peak, done = zero, zero, 0
        for other in _members(first):
            peak = tuple(map(max, peak, self.during(live, other)))
            live = self.after(live, other, done)
            done |= 1 << other
        return _covers(self.during(live, task), peak)

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


def solve(problem: Problem) -> Solution:
    """The best order that is found; the given one unless another is better at every sample.

    Where the search ends within MAX_STATES states, it is the best there is.
    """
    best, cost = tuple(range(problem.tasks)), 1.0
    if problem.bound >= cost:
        return Solution(best, 0.0)
    try:
        return Solution(exact(problem, cost) or best, 0.0)
    except TooManyStatesError:
        pass  # the orders below are valid, but not proven to be the best
    for order in by_lists(problem):
        if (found := problem.cost_of(order)) < cost:
            best, cost = order, found
    return Solution(best, problem.gap(best))


class _State(NamedTuple):
    """Where an order has come: its cost, the tasks that have run, as a bit set, and the bytes live behind them."""

    cost: float
    done: int
    live: Vector

    def behind(self, problem: Problem, tasks: Sequence[int]) -> "_State":
        """The state when these tasks have run too, one after the other."""
        cost, done, live = self
        for task in tasks:
            cost = max(cost, problem.cost(problem.during(live, task)))
            live = problem.after(live, task, done)
            done |= 1 << task
        return _State(cost, done, live)


def exact(problem: Problem, limit: float) -> Order | None:
    """The order of least cost below `limit`, None when there is none; TooManyStatesError beyond MAX_STATES."""
    everything = (1 << problem.tasks) - 1
    queue: list[tuple[float, int, _State, Order]] = [(0.0, 0, _State(problem.bound, 0, problem.start), ())]
    seen: set[int] = set()
    while queue:
        _, _, state, order = heapq.heappop(queue)
        if state.done == everything:
            return order
        if state.done in seen:
            continue
        seen.add(state.done)
        if len(seen) > MAX_STATES:
            raise TooManyStatesError
        for tasks in _moves(problem, state):
            following = state.behind(problem, tasks)
            if following.cost < limit and following.done not in seen:
                longer = (*order, *tasks)
                heapq.heappush(queue, (following.cost, -len(longer), following, longer))
    return None


def _moves(problem: Problem, state: _State) -> list[Order]:
    """What may run next: each task that is ready, behind the early ones that it waits for; or a descent alone."""
    waiting = ~state.done & ((1 << problem.tasks) - 1)
    moves: list[Order] = []
    for task in _members(waiting & ~problem.early or waiting):
        missing = problem.above[task] & waiting
        if not missing & ~problem.early:
            moves.append((*_members(missing), task))
    for move in moves:
        if (found := _descent(problem, state, move)) is not None:
            return [found]
    return moves


def _descent(problem: Problem, state: _State, move: Order) -> Order | None:
    """The move, and then what it makes ready, until no more is live than before it; None where that costs more."""
    here = state.behind(problem, move)
    released = dict.fromkeys(t for task in move for t in problem.released(task, here.done))
    ready = [t for t in released if not here.done >> t & 1]
    while here.cost <= state.cost and not _covers(state.live, here.live):
        if not ready or len(move) >= _DEEPEST:
            return None
        task = min((problem.cost(problem.after(here.live, t, here.done)), t) for t in ready)[1]
        here, move = here.behind(problem, (task,)), (*move, task)
        ready = [t for t in ready if t != task] + problem.released(task, here.done)
    return move if here.cost <= state.cost else None


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
