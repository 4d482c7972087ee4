"""Cut a sequence of items into the parts that are ordered on their own.

Decides where an order may not mix items:

- control flow: the items of one branch become a Region, which is executed in one piece, so that generated code wraps it
  in one `if`; regions nest as guards do. Going through the items, an item joins the latest region of its branch unless
  something outside that region has to run in between; then a new region begins;
- results whose size only execution tells: what is behind such an item stays behind it;
- items through which every order passes, because all others precede or follow them. What has run before such an item
  is then the same in every order, so the best orders of the parts make the best order of the whole. Where exactly one
  tensor is live, which everything behind it needs, is such a place; so is every item of a chain, long skips or not.

Within a level (the top, or one region) a nested region is one task. Its tensors that die inside are only seen as the
largest sum of live bytes while it runs.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from sod2.symbolic import Dim

Branch = tuple[str, bool]  # a predicate, and the value at which the branch runs


@dataclass(frozen=True)
class Item:
    """One schedulable step, a fusion group: tensors that it reads and writes, branches around it, scratch in bytes."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    guard: tuple[Branch, ...]
    scratch: Dim

    def needs(self) -> tuple[str, ...]:
        """The tensors that have to be there before it runs: what it reads, and the predicates of its branches."""
        return (*self.reads, *(predicate for predicate, _ in self.guard))


@dataclass(frozen=True)
class Region:
    """A branch that is executed in one piece: indices of items, and the regions nested in it. The top has no branch."""

    branch: Branch | None
    members: tuple["int | Region", ...]

    def items(self) -> Iterator[int]:
        """The items of this region and of those inside it, in order."""
        for member in self.members:
            if isinstance(member, Region):
                yield from member.items()
            else:
                yield member


@dataclass(frozen=True)
class Task:
    """An item or a region, as a whole, on one level of the schedule.

    `writes` are the tensors that outlive it; `inside` the sums of its own live bytes (those tensors included) of which
    the largest counts while it runs. `order` are its items. Behind a task that `ends` comes nothing that was before it.
    """

    order: tuple[int, ...]
    reads: frozenset[str]
    writes: tuple[str, ...]
    inside: tuple[Dim, ...]
    ends: bool


def regions(items: Sequence[Item]) -> Region:
    """The tree of branches; ValueError when an item reads what a later one writes."""
    written: set[str] = set()
    everything = {tensor for item in items for tensor in item.writes}
    for item in items:
        if late := [tensor for tensor in item.needs() if tensor in everything - written]:
            raise ValueError(
                f"item {item.name!r} reads {late[0]!r} before it is written; items must be in a valid order"
            )
        written.update(item.writes)
    return Region(None, _members(items, range(len(items)), 0))


class _Groups:
    """Items of one level, grouped by branch as they come. `above[g]` is the set of groups that must precede group g."""

    def __init__(self) -> None:
        self.branches: list[Branch | None] = []
        self.indices: list[list[int]] = []
        self.above: list[int] = []

    def add(self, index: int, branch: Branch | None, sources: Collection[int]) -> int:
        """Put an item that reads from the groups `sources` into its group, which is returned."""
        group = next((g for g in reversed(range(len(self.indices))) if self.admits(g, branch, sources)), None)
        if group is None:
            self.branches.append(branch)
            self.indices.append([])
            self.above.append(0)
            group = len(self.indices) - 1
        self.indices[group].append(index)
        for source in sources:
            if source != group:
                self.above[group] |= self.above[source] | 1 << source
        for other, above in enumerate(self.above):
            if above >> group & 1:
                self.above[other] |= self.above[group]
        return group

    def admits(self, group: int, branch: Branch | None, sources: Collection[int]) -> bool:
        """Whether an item may join: same branch, and nothing that it reads comes behind the group."""
        return (
            branch is not None
            and self.branches[group] == branch
            and not any(self.above[source] >> group & 1 for source in sources)
        )

    def in_order(self) -> Iterator[int]:
        """A valid order, by first items where there is a choice."""
        left = list(range(len(self.indices)))
        done = 0
        while left:
            group = min((g for g in left if not self.above[g] & ~done), key=lambda g: self.indices[g][0])
            left.remove(group)
            done |= 1 << group
            yield group


def _members(items: Sequence[Item], indices: Sequence[int], depth: int) -> tuple[int | Region, ...]:
    groups = _Groups()
    home: dict[str, int] = {}
    for i in indices:
        branch = items[i].guard[depth] if len(items[i].guard) > depth else None
        group = groups.add(i, branch, {home[tensor] for tensor in items[i].needs() if tensor in home})
        home.update(dict.fromkeys(items[i].writes, group))
    members: list[int | Region] = []
    for group in groups.in_order():
        branch, inside = groups.branches[group], groups.indices[group]
        members.append(inside[0] if branch is None else Region(branch, _members(items, inside, depth + 1)))
    return tuple(members)


def cut(tasks: Sequence[Task]) -> list[range]:
    """Positions of the blocks of a level: runs of tasks that are ordered on their own.

    A block ends with a task that all earlier tasks precede and all later ones follow in every valid order, and behind a
    task that `ends`.
    """
    writer = {tensor: position for position, task in enumerate(tasks) for tensor in task.writes}
    sources = [{writer[tensor] for tensor in task.reads if tensor in writer} for task in tasks]
    above = [0] * len(tasks)
    below = [0] * len(tasks)
    for i, before in enumerate(sources):
        for j in before:
            above[i] |= above[j] | 1 << j
    for i in reversed(range(len(tasks))):
        for j in sources[i]:
            below[j] |= below[i] | 1 << i
    everything = (1 << len(tasks)) - 1
    blocks = []
    begin = 0
    for i, task in enumerate(tasks):
        is_passed = above[i] | below[i] | 1 << i == everything
        if is_passed or task.ends or i == len(tasks) - 1:
            blocks.append(range(begin, i + 1))
            begin = i + 1
    return blocks
