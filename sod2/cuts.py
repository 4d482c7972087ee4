"""The least that can be live while a task runs, over all orders: a minimum cut.

What has run when a task begins is a set that holds everything in front of it, nothing behind it, and with a task all
that this one waits for. A tensor is live where its writer is in the set and one of its readers is not. The set of least
live bytes is the source's side of a minimum cut of a network with

- an edge of the tensor's bytes from its writer to a node of its own, and endless ones from there to its readers;
- an endless edge from every task to those that it waits for;

whose source are the tasks in front of the given one, and whose sink it and the tasks behind it. No order needs less
than the cut while the task runs, and each task has an order that needs no more. Found by augmenting shortest paths
(Edmonds and Karp); few tasks may run on either side of another, so that the networks are small.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sod2.problem import Order, Problem, Vector, members

_ENDLESS = 1 << 80
_CHANGES = 32  # of an order at most, for one sample
_SOURCE, _SINK = -1, -2
Network = dict[int, dict[int, int]]  # bytes that may still flow, by beginning and end of an edge


def least_live(problem: Problem, task: int, sample: int) -> tuple[int, int]:
    """Least bytes that are live before the task at a sample, and the smallest set of tasks behind which so few are."""
    network: Network = {_SOURCE: {}, _SINK: {}}
    for begin, end, capacity in _edges(problem, task, sample):
        network.setdefault(begin, {})[end] = network.get(begin, {}).get(end, 0) + capacity
        network.setdefault(end, {}).setdefault(begin, 0)
    total = 0
    while path := _path(network):
        flow = min(network[begin][end] for begin, end in path)
        for begin, end in path:
            network[begin][end] -= flow
            network[end][begin] += flow
        total += flow
    reached = {node for node in _reached(network) if 0 <= node < problem.tasks}
    return total, problem.above[task] | sum(1 << node for node in reached)


def _edges(problem: Problem, task: int, sample: int) -> Iterator[tuple[int, int, int]]:
    """The network's edges; the tasks on either side are one node."""
    behind = problem.below[task] | 1 << task

    def node(other: int) -> int:
        return _SOURCE if problem.above[task] >> other & 1 else _SINK if behind >> other & 1 else other

    for other, before in enumerate(problem.before):
        if node(other) >= 0:
            yield from ((other, node(first), _ENDLESS) for first in members(before) if node(first) >= 0)
    writer = {tensor: node(other) for other, writes in enumerate(problem.writes) for tensor in writes}
    for tensor, readers in enumerate(problem.readers):
        begin, size = writer.get(tensor, _SOURCE), problem.sizes[tensor][sample]
        if size == 0 or begin == _SINK:
            continue
        if not readers or readers & behind:
            yield begin, _SINK, size
            continue
        yield begin, problem.tasks + tensor, size
        yield from ((problem.tasks + tensor, node(r), _ENDLESS) for r in members(readers) if node(r) != _SOURCE)


def _reached(network: Network) -> dict[int, int]:
    """The nodes that the source reaches, the sink at most the last, and where each is reached from."""
    origin, queue = {_SOURCE: _SOURCE}, deque([_SOURCE])
    while queue and _SINK not in origin:
        begin = queue.popleft()
        for end, capacity in network[begin].items():
            if capacity > 0 and end not in origin:
                origin[end] = begin
                queue.append(end)
    return origin


def _path(network: Network) -> list[tuple[int, int]]:
    """The edges of a shortest path from source to sink, none where there is no path."""
    origin, edges = _reached(network), []
    end = _SINK
    while end in origin and end != _SOURCE:
        edges.append((origin[end], end))
        end = origin[end]
    return edges


class Refined(NamedTuple):
    """An order, and for every sample bytes that no order needs less than."""

    order: Order
    bound: Vector


def refined(problem: Problem, order: Sequence[int]) -> Refined:
    """The order, changed where it needs most until that is a minimum cut or no change helps; worse at no sample.

    What is not needed for the cut at the worst moment runs behind it.
    """
    order, bound = tuple(order), list(problem.least)
    for sample in range(len(problem.start)):
        for _ in range(_CHANGES):
            usage = [moment[sample] for moment in problem.usage(order)]
            worst = max(usage)
            if bound[sample] >= worst:
                break
            task = order[usage.index(worst)]
            live, done = least_live(problem, task, sample)
            bound[sample] = max(bound[sample], live + problem.inside[task][sample])
            changed = (
                *(t for t in order if done >> t & 1),
                task,
                *(t for t in order if not done >> t & 1 and t != task),
            )
            if bound[sample] >= worst or not _is_better(problem, changed, order, sample):
                break
            order = changed
    return Refined(order, tuple(bound))


def _is_better(problem: Problem, changed: Order, order: Order, sample: int) -> bool:
    """Whether the large moments at a sample are smaller and those at no other sample are larger."""
    new, old = ([*zip(*problem.usage(o), strict=True)] for o in (changed, order))
    return sorted(new[sample], reverse=True) < sorted(old[sample], reverse=True) and all(
        max(n) <= max(o) for n, o in zip(new, old, strict=True)
    )
