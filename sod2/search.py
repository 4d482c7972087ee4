"""Search for the order of a block's tasks that needs the least memory.

Most blocks need no search: the given order, changed where a minimum cut says that less need be live (cuts.py), meets
the lower bound that the cut gives. Else the best order is found as a path: the set of executed tasks determines what is
live, so it is the path through sets with the least bottleneck. `exact` finds it best-first, and rules keep the search
small. A run of tasks that leaves no more live than it found, and needs no more than any order does, is made at once:
nothing is lost, since what is live is a submodular function of what has run, so that all later sets only get smaller.
Tasks that wait for nothing run just before the first that reads them (`early`). A state that costs as much as the best
known order is dropped. Where the search is given up, `by_lists` builds orders greedily, the best of which is changed by
cuts: least bytes live afterwards, least bytes needed, newest tensor first, and the first of them backwards, from the
end.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from sod2.cuts import refined
from sod2.problem import Order, Problem, Vector, covers, members

MAX_STATES = 1024  # expanded, as many as ten tasks can have; beyond them the best known order is kept
_DEEPEST = 16  # tasks of a descent


class TooManyStatesError(Exception):
    """The search for the best order was given up."""


class Solution(NamedTuple):
    """An order of the tasks, and its peak over a proved lower bound, less 1, at the worst sample: at 0 no order needs
    less at any sample."""

    order: Order
    gap: float


def solve(problem: Problem) -> Solution:
    """The best order that is found, at no sample worse than the given one.

    Where the search ends within MAX_STATES states, no order has a lower cost.
    """
    best = refined(problem, range(problem.tasks))
    if best.bound == problem.peaks(best.order):
        return Solution(best.order, 0.0)
    try:
        if (found := exact(problem, problem.cost_of(best.order))) is not None:
            best = refined(problem, found)
    except TooManyStatesError:
        return improved(problem, min((best.order, *by_lists(problem)), key=problem.cost_of))
    return Solution(best.order, _gap(problem, best.order, map(max, best.bound, _least_alone(problem, best.order))))


def improved(problem: Problem, order: Sequence[int]) -> Solution:
    """An order as good or better at every sample, by cuts alone."""
    best = refined(problem, order)
    return Solution(best.order, _gap(problem, best.order, best.bound))


def gap_of_given(problem: Problem) -> float:
    """The gap of the given order."""
    order = tuple(range(problem.tasks))
    bound = refined(problem, order).bound
    return 0.0 if bound == problem.peaks(order) else _gap(problem, order, map(max, bound, _least_alone(problem, order)))


def _gap(problem: Problem, order: Order, bounds: Iterable[int]) -> float:
    """The peak over the bound, less 1, at the worst sample."""
    found = zip(problem.peaks(order), bounds, strict=True)
    return max(peak / max(1, bound) - 1 if peak > bound else 0.0 for peak, bound in found)


def _least_alone(problem: Problem, order: Order) -> Iterator[int]:
    """The least that an order may need at each sample, found by an exact search; 0 where that was given up."""
    for sample, peak in enumerate(problem.peaks(order)):
        alone = problem.at(sample)
        try:
            found = exact(alone, peak / alone.reference[0])
            yield peak if found is None else alone.peaks(found)[0]
        except TooManyStatesError:
            yield 0


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
    for task in members(waiting & ~problem.early or waiting):
        missing = problem.above[task] & waiting
        if not missing & ~problem.early:
            moves.append((*members(missing), task))
    for move in moves:
        if (found := _descent(problem, state, move)) is not None:
            return [found]
    return moves


def _descent(problem: Problem, state: _State, move: Order) -> Order | None:
    """The move, and then what it makes ready, until no more is live than before it; None where that costs more."""
    here = state.behind(problem, move)
    released = dict.fromkeys(t for task in move for t in problem.released(task, here.done))
    ready = [t for t in released if not here.done >> t & 1]
    while here.cost <= state.cost and not covers(state.live, here.live):
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
        for reader in members(problem.behind[task]):
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
        ready += [t for t in members(problem.before[-chosen]) if not problem.behind[t] & done]
        order.append(-chosen)
    return tuple(reversed(order))
