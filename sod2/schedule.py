"""Static execution planning: the order of the items that needs the least memory for intermediates.

`order` is SEP on, `given` is SEP off: the file's order, in which only branches are drawn together so that each is
executed in one piece. Both go through the same regions (partition.py), innermost first; SEP then orders every block of
a region:

- sizes that are all proportional to one expression are compared as its coefficients: the order found holds for all
  values of the symbols;
- other sizes are compared at sampled values of the symbols, the caller's admissible ones or those of
  peak.environments. An order is taken when it is better at every sample, and dropped again when symbolic bounds prove
  that the given order is never above it. Bounds decide most pairs only one way, hence the samples;
- an order is the best when minimum cuts (cuts.py) or an exact search (search.py) prove it. Blocks in which neither does
  get the best of several greedy orders, improved by exact search in a window that moves over it, and by cuts.

Blocks that look alike are solved once. The result is never worse than `given` at any sample, and where nothing is
gained the given order stays. Limits: memory is the sum of live bytes; how well a placement packs them is not looked at,
nor is the speed of an order. Source: SoD2 (ASPLOS'24), section on static execution planning; choosing among several
orders, the given one included, is also what torch.inductor's memory pass does.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sod2.partition import Item, Region, Task, cut, regions
from sod2.peak import Environment, environments, never_above, proportional, sampled, undominated
from sod2.problem import Order, Problem, Vector
from sod2.search import Solution, gap_of_given, improved, solve
from sod2.symbolic import Dim, constant

__all__ = ["Item", "Subgraph", "given", "live_sums", "order", "subgraphs"]


_WINDOW = 10  # tasks ordered exactly at once in a block too large for an exact search of all
_STRIDE = 5


@dataclass(frozen=True)
class Subgraph:
    """Items that are ordered on their own, as indices in their order; those of branches among them are none of them.

    `gap`: the peak over a proved lower bound, less 1. At 0 no order needs less: where sizes are proportional for all
    values of the symbols, else at any of the sampled ones.
    """

    items: tuple[int, ...]
    gap: float


def order(
    items: Sequence[Item],
    sizes: Mapping[str, Dim],
    live_out: Collection[str],
    unknown: Collection[str] = (),
    samples: Sequence[Environment] = (),
) -> Order:
    """Indices of `items` in an order of low peak memory, valid and with every branch in one piece.

    `sizes`: bytes of the tensors that lie in the arena; others count 0. `live_out`: tensors needed after the last item.
    `unknown`: tensors whose size only execution tells; what is behind their items stays there. `samples`: admissible
    values of the symbols at which the order must not be worse. ValueError when `items` are not in a valid order.
    """
    found = _Scheduler(items, sizes, live_out, unknown, samples).level(regions(items), True).order
    # A tensor that dies inside a branch counts until its end there, so that blocks alone do not tell.
    before = given(items, sizes, live_out)
    sums = [live_sums(items, sizes, live_out, candidate) for candidate in (before, found)]
    columns = sampled([*sums[0], *sums[1]], samples or environments([*sums[0], *sums[1]]))
    peaks = [[max(c) for c in zip(*part, strict=True)] for part in (columns[: len(items)], columns[len(items) :])]
    return found if all(ours <= theirs for theirs, ours in zip(*peaks, strict=True)) else before


def subgraphs(
    items: Sequence[Item],
    sizes: Mapping[str, Dim],
    live_out: Collection[str],
    checked: Sequence[Environment] = (),
) -> tuple[Subgraph, ...]:
    """What `order` cuts the items into: each is in one sub-graph. Arguments and errors are those of `order`.

    `checked`: further values of the symbols at which the gaps are taken; they change no order.
    """
    scheduler = _Scheduler(items, sizes, live_out, (), ())
    scheduler.checked = checked
    scheduler.level(regions(items), True)
    return tuple(scheduler.subgraphs)


def given(items: Sequence[Item], sizes: Mapping[str, Dim], live_out: Collection[str]) -> Order:
    """Indices of `items` as they come, each branch drawn together. ValueError when they are not in a valid order."""
    return tuple(regions(items).items())


def live_sums(
    items: Sequence[Item], sizes: Mapping[str, Dim], live_out: Collection[str], order: Sequence[int]
) -> list[Dim]:
    """Bytes live while each item of an order runs, its scratch included: the peak is the largest of them."""
    last = {tensor: position for position, i in enumerate(order) for tensor in items[i].needs()}
    live: dict[str, Dim] = {}
    sums = []
    for position, i in enumerate(order):
        live.update((t, sizes[t]) for t in items[i].writes if t in sizes)
        sums.append(sum(live.values(), items[i].scratch))
        live = {t: size for t, size in live.items() if t in live_out or last.get(t, -1) > position}
    return sums


class _Scheduler:
    """Orders the levels of one model. `solved` remembers the order of every block that looked different, `subgraphs`
    what each block is; `covered` are the items in them."""

    def __init__(
        self,
        items: Sequence[Item],
        sizes: Mapping[str, Dim],
        live_out: Collection[str],
        unknown: Collection[str],
        samples: Sequence[Environment],
    ) -> None:
        self.items = items
        self.sizes = sizes
        self.live_out = frozenset(live_out)
        self.unknown = frozenset(unknown)
        self.samples = samples
        self.checked: Sequence[Environment] = ()
        self.solved: dict[Problem, Solution] = {}
        self.subgraphs: list[Subgraph] = []
        self.covered: set[int] = set()
        self.readers: dict[str, set[int]] = {}
        for i, item in enumerate(items):
            for tensor in item.needs():
                self.readers.setdefault(tensor, set()).add(i)

    def outliving(self, tensors: Sequence[str], inside: Collection[int]) -> tuple[str, ...]:
        """Those of the tensors that are needed when the items `inside` are over."""
        return tuple(t for t in tensors if t in self.live_out or not self.readers.get(t, set()) <= set(inside))

    def total(self, tensors: Collection[str]) -> Dim:
        return sum((self.sizes[t] for t in tensors if t in self.sizes), constant(0))

    def task(self, member: int | Region) -> Task:
        if isinstance(member, Region):
            return self.level(member, False)
        item = self.items[member]
        return Task(
            order=(member,),
            reads=frozenset(item.needs()),
            writes=self.outliving(item.writes, (member,)),
            inside=(self.total(item.writes) + item.scratch,),
            ends=not self.unknown.isdisjoint(item.writes),
        )

    def level(self, region: Region, is_top: bool) -> Task:
        """A region as one task, its members ordered."""
        tasks = self.arranged([self.task(member) for member in region.members], frozenset(region.items()))
        done = tuple(i for task in tasks for i in task.order)
        written = [t for task in tasks for t in task.writes]
        return Task(
            order=done,
            reads=frozenset().union(*(task.reads for task in tasks)) - frozenset(written),
            writes=self.outliving(written, done),
            inside=() if is_top else tuple(undominated(self.sums(tasks, self.outliving(written, done), {}))),
            ends=any(task.ends for task in tasks),
        )

    def arranged(self, tasks: Sequence[Task], items: Collection[int]) -> list[Task]:
        """The tasks of a level, every block in its best order. `items` are all items of the level."""
        own = frozenset(t for task in tasks for t in task.writes if t in self.sizes)
        later = frozenset(self.outliving(sorted(own), items))
        result: list[Task] = []
        for block in reversed(cut(tasks)):
            inside = tasks[block.start : block.stop]
            ordered, gap = self.block(inside, own, later)
            if self.checked and len(inside) > 1:
                gap = max(gap, gap_of_given(self.problem(ordered, own, later, self.checked)))
            self.note(ordered, gap)
            result[:0] = ordered
            later = later.union(*(task.reads for task in inside))
        return result

    def note(self, tasks: Sequence[Task], gap: float) -> None:
        """Remember a block as a sub-graph; the items of its branches are in sub-graphs already."""
        if items := tuple(i for task in tasks for i in task.order if i not in self.covered):
            self.subgraphs.append(Subgraph(items, gap))
            self.covered.update(items)

    def block(self, tasks: Sequence[Task], own: frozenset[str], later: frozenset[str]) -> tuple[Sequence[Task], float]:
        """The best order of a block that is found, and its gap.

        `own` are the level's tensors, `later` those needed behind the block.
        """
        if len(tasks) < 2:
            return tasks, 0.0
        problem = self.problem(tasks, own, later)
        best, gap = self.solution(tasks, problem)
        if gap > 0:
            best = self.windows(best, own, later)
            found = improved(problem, [tasks.index(task) for task in best])
            best, gap = [tasks[i] for i in found.order], min(gap, found.gap)
        if best == tasks:
            return tasks, gap
        read = frozenset().union(*(task.reads for task in tasks))
        entering = (read & own) - later - {t for task in tasks for t in task.writes}
        live = {t: self.sizes[t] for t in sorted(entering)}
        before, after = (undominated(self.sums(o, later, live)) for o in (tasks, best))
        return tasks if never_above(before, after) else best, gap

    def solution(self, tasks: Sequence[Task], problem: Problem) -> tuple[list[Task], float]:
        if problem not in self.solved:
            self.solved[problem] = solve(problem)
        found = self.solved[problem]
        return [tasks[i] for i in found.order], found.gap

    def windows(self, tasks: list[Task], own: frozenset[str], later: frozenset[str]) -> list[Task]:
        """An order improved by solving short runs of it on their own, from the front to the back."""
        for begin in range(0, len(tasks) - _STRIDE, _STRIDE):
            end = begin + _WINDOW
            behind = later.union(*(task.reads for task in tasks[end:]))
            tasks[begin:end], _ = self.solution(tasks[begin:end], self.problem(tasks[begin:end], own, behind))
        return tasks

    def problem(
        self, tasks: Sequence[Task], own: frozenset[str], later: frozenset[str], samples: Sequence[Environment] = ()
    ) -> Problem:
        """A block in integers; tensors and tasks are numbered as they appear, so that like blocks are equal."""
        number: dict[str, int] = {}
        reads, writes, before = [], [], []
        writer: dict[str, int] = {}
        for i, task in enumerate(tasks):
            freed = sorted((t for t in task.reads if t in own and t not in later), key=lambda t: (number.get(t, -1), t))
            reads.append(tuple(number.setdefault(t, len(number)) for t in freed))
            writes.append(tuple(number.setdefault(t, len(number)) for t in task.writes if t in own))
            before.append(sum({1 << writer[t] for t in task.reads if t in writer}))
            writer.update(dict.fromkeys(task.writes, i))
        produced = {number[t] for t in writer if t in number}
        dims = [*(self.sizes[t] for t in number), *(s for task in tasks for s in task.inside)]
        vectors = _vectors(dims, samples or self.samples)
        rest = iter(vectors[len(number) :])
        inside = [tuple(map(max, zip(*(next(rest) for _ in task.inside), strict=True))) for task in tasks]
        return Problem(
            reads=tuple(reads),
            writes=tuple(writes),
            inside=tuple(inside),
            before=tuple(before),
            sizes=tuple(vectors[: len(number)]),
            entering=tuple(n for n in number.values() if n not in produced),
        )

    def sums(self, tasks: Sequence[Task], kept: Collection[str], live: Mapping[str, Dim]) -> list[Dim]:
        """Bytes live at the moments of a level or block, of its own tensors and those in `live` at its start."""
        last = {tensor: position for position, task in enumerate(tasks) for tensor in task.reads}
        now = dict(live)
        sums = []
        for position, task in enumerate(tasks):
            total = sum(now.values(), constant(0))
            sums += [total + inside for inside in task.inside]
            now.update((t, self.sizes[t]) for t in task.writes if t in self.sizes)
            now = {t: size for t, size in now.items() if t in kept or last.get(t, -1) > position}
        return sums


def _vectors(dims: Sequence[Dim], samples: Sequence[Environment]) -> list[Vector]:
    """Sizes as integers that can be compared: coefficients of one expression, or values at the samples."""
    if (weights := proportional(dims)) is not None:
        unit = math.gcd(*weights) or 1
        return [(weight // unit,) for weight in weights]
    defaults = environments(dims)
    return sampled(dims, [{**defaults[-1], **sample} for sample in samples] or defaults)
