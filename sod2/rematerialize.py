"""Plans that need less memory because they compute some tensors twice, for a budget that the plain plan exceeds.

A tensor that is made early and read late takes up memory while others make the peak. It may be dropped behind its early
readers and computed again right before the late ones. In terms of the graph: the group that makes it is copied, with
what has to be computed again for it, and the late readers read the copy. What comes behind this pass is told nothing of
it: storage is assigned as ever, and copies are the same kernels on the same weights.

Greedy, at the step of the peak: among the groups whose results lie idle there, the one whose repetition costs least for
each byte that it frees, by the least work of its steps (work.py). For every group several chains are looked at: it
alone, its inputs kept alive, or with the makers of those inputs before it, and so on. A drop is taken when it lowers
the live peak at the largest of the sampled sizes (peak.environments), or the number of steps that have it, and raises
the peak at none. Whenever the peak is lower by 1/64, that makes a table; a few are kept, from fastest to leanest. Which
one a shape gets is decided when it is bound (runtime/plan.c): the first whose arena fits.

Under control flow a copy runs in the branches that all its readers are in, and those have to be inside the branches of
what it is a copy of. Nothing is dropped that a loop, a Combine or a predicate reads or that is a result of the model,
and nothing of a loop's body runs again.

Limits: scratch is not in the sums; copies are put where they are needed, and the order of all else stays. Source: Chen
et al., Training Deep Nets with Sublinear Memory Cost, 2016, here for inference and on symbolic sizes.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, islice

import numpy as np

from sod2 import sharing, work
from sod2.fusion import Group
from sod2.graph import Array, Guard, Node
from sod2.ops import OPS
from sod2.order import root
from sod2.peak import Environment, environments, sampled
from sod2.rdp import Analysis
from sod2.storage import JOINTS, Storage, Thing, byte_size
from sod2.symbolic import Dim, evaluate

_TABLES = 3  # plans kept beside the plain one: each is code that has to be compiled
_DROPS = 64  # that the leanest of them has
_TRIALS = 24  # drops that are tried at one peak, the most promising first
_GAIN = 1 / 64  # of the peak, below which a table is not worth its code
_LINKS = 8  # lengths of chains that are tried for a group
_BALANCE = 8  # operations that take a core as long as a byte from memory


@dataclass(frozen=True)
class Table:
    """An order of execution and its storage. `copies`: the nodes that run again, and which node each is a copy of."""

    analysis: Analysis
    order: tuple[Thing, ...]
    storage: Storage
    copies: Mapping[str, str] = field(default_factory=dict)

    @property
    def again(self) -> tuple[Group, ...]:
        """The groups that run again."""
        return tuple(t for t in self.order if isinstance(t, Group) and t.nodes[-1].name in self.copies)

    def __str__(self) -> str:
        return "\n".join(["runs again:", *(f"  {group}" for group in self.again), str(self.storage)])


def tables(analysis: Analysis, order: Sequence[Thing], storage: Storage) -> tuple[Table, ...]:
    """Plans of falling live peak and rising work beside the plain one, which is given; none where nothing is gained."""
    current = Table(analysis, tuple(order), storage)
    samples = _samples(current)
    found: list[Table] = []
    reached = _usage(current, samples)[-1].max(initial=0) if samples else 0
    for _ in range(_DROPS if reached else 0):
        better = _improved(current, samples)
        if better is None:
            break
        current = better
        peak = _usage(current, samples)[-1].max()
        if peak < reached * (1 - _GAIN):
            found.append(current)
            reached = peak
    kept = {-(-len(found) * k // _TABLES) for k in range(1, _TABLES + 1)} if found else set()
    return tuple(found[k - 1] for k in sorted(kept))


def _samples(table: Table) -> list[Environment]:
    """Values of the symbols at which all sizes and all work have a value."""
    dims = [b.size for b in table.storage.buffers]
    for thing in table.order:
        dims += [byte_size(table.analysis, t) for t in thing.outputs if t in table.storage.places]
        found = work.of_step(thing, table.analysis, {}) if isinstance(thing, Group) else None
        dims += [d for product in (*found.flops, *found.bytes) for d in product] if found is not None else []
    return [sample for sample in environments(dims) if all(sampled(dims, [sample]))]


def _usage(table: Table, samples: Sequence[Environment]) -> Array:
    """Live bytes [samples, steps]."""
    change = np.zeros((len(samples), len(table.storage.steps) + 1), np.int64)
    for buffer in table.storage.buffers:
        sizes = [evaluate(buffer.size, sample) for sample in samples]
        change[:, buffer.first] += sizes
        change[:, buffer.last + 1] -= sizes
    return np.cumsum(change, axis=1)[:, :-1]


def _improved(table: Table, samples: Sequence[Environment]) -> Table | None:
    """The table with the most promising drop that helps; None where none does."""
    before = _usage(table, samples)
    candidates = Candidates(table, samples[-1], int(before[-1].argmax()))
    for drop in islice(candidates.by_promise(), _TRIALS):
        trial = dropped(table, drop)
        after = _usage(trial, samples)
        if _rank(after[-1]) < _rank(before[-1]) and np.all(after.max(axis=1) <= before.max(axis=1)):
            return trial
    return None


def _rank(usage: Array) -> tuple[int, int]:
    """The peak, and how many steps have it."""
    return int(usage.max()), int(np.count_nonzero(usage == usage.max()))


# ---- what may be dropped ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drop:
    """What is at positions `chain`, of which the last is dropped, runs again before `at` under `guard`, for `late`."""

    chain: tuple[int, ...]
    late: tuple[int, ...]
    at: int
    guard: Guard


class Candidates:
    """The drops that may lower the live bytes of one step, and their promise at one sample of the symbols."""

    def __init__(self, table: Table, sample: Environment, step: int) -> None:
        self.analysis, self.order, self.places = table.analysis, table.order, table.storage.places
        self.buffers = table.storage.buffers
        self.sample = sample
        self.graph = table.analysis.graph
        at = {thing.name: k for k, thing in enumerate(self.order)}
        begun = (at[s.name] for s in reversed(table.storage.steps[: step + 1]) if s.name in at)
        self.peak = next(begun, 0)
        self.writer = {t: k for k, thing in enumerate(self.order) for t in thing.outputs if t}
        predicates = {p for thing in self.order for p, _ in thing.guard}
        self.kept = {root(self.graph, self.analysis, t) for t in (*self.analysis.results, *predicates)}

    @cached_property
    def readers(self) -> Mapping[str, list[int]]:
        """The positions that read each tensor, views of it included."""
        found: dict[str, list[int]] = {}
        for k in range(len(self.order)):
            for tensor in self.inputs(k):
                found.setdefault(tensor, []).append(k)
        return found

    def inputs(self, position: int) -> dict[str, None]:
        """The tensors that are read at a position and lie in memory."""
        read = (t for t in self.order[position].inputs if t and self.analysis.known(t) is None)
        return dict.fromkeys(root(self.graph, self.analysis, t) for t in read)

    def by_promise(self) -> Iterator[Drop]:
        """The drops that free something, those first that cost least for a byte."""
        drops = [drop for position in range(self.peak) for drop in self.of(position)]
        found = [(self.cost(drop) / freed, k) for k, drop in enumerate(drops) if (freed := self.freed(drop)) > 0]
        yield from (drops[k] for _, k in sorted(found))

    def of(self, position: int) -> Iterator[Drop]:
        """What is at a position alone, and with ever more of what makes its inputs."""
        idle = self.idle(position)
        readers = {k for t in idle for k in self.readers[t]}
        late = sorted(k for k in readers if k > self.peak)
        if not late or any(self.graph.within(self.order[k].guard) for k in readers):
            return
        guard = _common([self.order[k].guard for k in late])
        at = self.before_branch(late[0], len(guard))
        if at <= self.peak or not self.repeats(position, guard):
            return
        if not all(isinstance(self.order[k], Group) for k in late):
            return
        chain = {position}
        for _ in range(_LINKS):
            yield Drop(tuple(sorted(chain)), tuple(late), at, guard)
            makers = {self.writer[t] for t in self.gone(chain, at)}
            more = {k for k in makers if self.repeats(k, guard)}
            if not more:
                return
            chain |= more

    def idle(self, position: int) -> list[str]:
        """The results of a step that lie in the arena at the peak, untouched, and are read behind it."""
        written = [t for t in self.order[position].outputs if t and t not in self.kept]
        return [
            t
            for t in written
            if t in self.places
            and self.places[t].kind == "buffer"
            and max(self.readers.get(t, ()), default=-1) > self.peak
            and self.peak not in self.readers[t]
        ]

    def repeats(self, position: int, guard: Guard) -> bool:
        """Whether what is at a position may run again under a guard: a group outside loops that tells no sizes."""
        thing = self.order[position]
        if not isinstance(thing, Group) or self.graph.within(thing.guard):
            return False
        return guard[: len(thing.guard)] == thing.guard and self.analysis.minting.origins.isdisjoint(thing.outputs)

    def before_branch(self, position: int, depth: int) -> int:
        """The first position of the branch that a position lies in, of those `depth` branches deep."""
        branch = self.order[position].guard[: depth + 1]
        while len(branch) > depth and position > 0 and self.order[position - 1].guard[: depth + 1] == branch:
            position -= 1
        return position

    def gone(self, chain: Collection[int], at: int) -> list[str]:
        """The inputs of a chain that are no longer there at a position unless they are kept for it."""
        made = {t for k in chain for t in self.order[k].outputs}
        read = dict.fromkeys(t for k in sorted(chain) for t in self.inputs(k) if t in self.writer and t not in made)
        return [t for t in read if t not in self.kept and self.readers[t][-1] < at]

    @cached_property
    def lying(self) -> Mapping[int, list[str]]:
        """What lies in each buffer at the peak."""
        found: dict[int, list[str]] = {}
        for tensor, readers in self.readers.items():
            place = self.places.get(tensor)
            if place is not None and place.kind == "buffer" and self.writer.get(tensor, -1) <= self.peak <= readers[-1]:
                found.setdefault(place.number, []).append(tensor)
        return found

    def freed(self, drop: Drop) -> int:
        """Bytes that a drop takes from the peak, less those of inputs that have to live through it.

        A buffer goes as far as nothing else lies in it, such as an operand of a Concat.
        """
        idle = self.idle(drop.chain[-1])
        through = [t for t in self.gone(drop.chain, drop.at) if self.readers[t][-1] < self.peak]
        freed = -self.bytes(through)
        for number in {self.places[t].number for t in idle}:
            others = [t for t in self.lying[number] if t not in idle]
            freed += max(0, evaluate(self.buffers[number].size, self.sample) - self.bytes(others))
        return freed

    def bytes(self, tensors: Sequence[str]) -> int:
        return sum(evaluate(byte_size(self.analysis, t), self.sample) for t in tensors)

    def cost(self, drop: Drop) -> int:
        """The least work of what runs again, in operations."""
        return sum(self.operations(thing) for k in drop.chain if isinstance(thing := self.order[k], Group))

    def operations(self, group: Group) -> int:
        found = work.of_step(group, self.analysis, {}) or work.Work()
        flops, moved = (sum(self.value(product) for product in total) for total in (found.flops, found.bytes))
        return flops + _BALANCE * moved

    def value(self, product: Sequence[Dim]) -> int:
        return math.prod(evaluate(d, self.sample) for d in product)


def _common(guards: Sequence[Guard]) -> Guard:
    """The branches that all guards begin with."""
    depth = 0
    while all(len(g) > depth and g[depth] == guards[0][depth] for g in guards):
        depth += 1
    return guards[0][:depth]


# ---- the graph in which it is computed twice -------------------------------------------------------------------------


class _Copier:
    """Copies of nodes that run again under a guard. `names`: the tensors made again, and what they are called then."""

    def __init__(self, table: Table, guard: Guard) -> None:
        self.analysis, self.graph, self.guard = table.analysis, table.analysis.graph, guard
        numbered = map(" (again {})".format, count(1))
        self.suffix = next(s for s in numbered if not any(t.endswith(s) for t in self.analysis.facts))
        self.names: dict[str, str] = {}
        self.made: list[Node] = []
        self.copies: dict[str, str] = {}
        self.before = table.copies

    def now(self, tensor: str) -> str:
        """The name under which a tensor is read from here on; views of what is made again are copied first."""
        node = self.graph.producer.get(tensor)
        if tensor in self.names or node is None or node.op in JOINTS or not OPS(node).is_view:
            return self.names.get(tensor, tensor)
        operand = node.inputs[1 if node.op == "Switch" else 0]
        if self.analysis.known(tensor) is not None or self.now(operand) == operand:
            return tensor
        if node.op == "Switch":  # the copy lies in the branch already
            self.names[tensor] = self.now(operand)
        else:
            self.copied(node)
        return self.names[tensor]

    def copied(self, node: Node) -> Node:
        """The copy of a node, which comes behind those made before."""
        inputs = tuple(map(self.now, node.inputs))
        self.names.update((t, t + self.suffix) for t in node.outputs if t)
        outputs = tuple(self.names.get(t, t) for t in node.outputs)
        made = replace(node, name=node.name + self.suffix, inputs=inputs, outputs=outputs, guard=self.guard)
        self.made.append(made)
        self.copies[made.name] = self.before.get(node.name, node.name)
        return made

    def again(self, group: Group) -> Group:
        """The copy of a group."""
        lead = self.again(group.lead) if group.lead is not None else None
        nodes = {node.name: self.copied(node) for node in group.nodes}
        return self._with(group, nodes, lead, group.name + self.suffix, self.guard)

    def rewired(self, group: Group) -> Group:
        """A group that reads what is made again."""
        lead = self.rewired(group.lead) if group.lead is not None else None
        nodes = {node.name: replace(node, inputs=tuple(map(self.now, node.inputs))) for node in group.nodes}
        return self._with(group, nodes, lead, group.name, group.guard)

    def _with(self, group: Group, nodes: Mapping[str, Node], lead: Group | None, name: str, guard: Guard) -> Group:
        return Group(
            name,
            tuple(nodes.values()),
            nodes[group.anchor.name] if group.anchor is not None else None,
            tuple(dict.fromkeys(map(self.now, group.inputs))),
            tuple(self.names.get(t, t) for t in group.outputs),
            guard,
            lead,
        )

    def analysed(self, readers: Sequence[Group]) -> Analysis:
        """The analysis of the graph in which the groups read the copies. Each copy comes as soon as it can be made."""
        changed = {node.name: node for group in readers for node in _nodes(group)}
        position = {t: k for k, node in enumerate(self.graph.nodes) for t in node.outputs}
        behind: dict[int, list[Node]] = {}
        for made in self.made:
            needed = (*made.inputs, *(predicate for predicate, _ in made.guard))
            k = max((position[t] for t in needed if t in position), default=0)
            position.update(dict.fromkeys(made.outputs, k))
            behind.setdefault(k, []).append(made)
        kept = enumerate(changed.get(node.name, node) for node in self.graph.nodes)
        nodes = [n for k, node in kept for n in (node, *behind.get(k, ()))]
        graph = replace(self.graph, nodes=tuple(nodes))
        facts = {**self.analysis.facts, **{new: self.analysis[old] for old, new in self.names.items()}}
        minting = replace(self.analysis.minting, graph=graph, facts=facts)
        return replace(self.analysis, graph=graph, facts=facts, minting=minting)


def _nodes(group: Group) -> tuple[Node, ...]:
    return (*(_nodes(group.lead) if group.lead is not None else ()), *group.nodes)


def dropped(table: Table, drop: Drop) -> Table:
    """The table in which a drop is made."""
    copier = _Copier(table, drop.guard)
    things = list(table.order)
    copies = [copier.again(thing) for k in drop.chain if isinstance(thing := things[k], Group)]
    readers = {k: copier.rewired(thing) for k in drop.late if isinstance(thing := things[k], Group)}
    order = [readers.get(k, thing) for k, thing in enumerate(things)]
    order[drop.at : drop.at] = copies
    analysis = copier.analysed(list(readers.values()))
    storage = sharing.assign(analysis.graph, analysis, order)
    return Table(analysis, tuple(order), storage, {**table.copies, **copier.copies})
