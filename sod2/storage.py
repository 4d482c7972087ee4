"""Where each tensor lives: views, in-place results and Combine, decided on the final order of steps.

Tensors that share bytes form one buffer. A view (Reshape, Switch) is its input's buffer. A group writes in place over
an operand that it reads element by element at the position it writes, when nothing reads that operand afterwards. A
Combine costs nothing when both alternatives already share a buffer, as in a residual block that adds in place onto its
shortcut; otherwise the alternative that is not at home is copied in its branch. One exception makes the first case
possible: an operand whose only later reader is the Combine that picks between it and the result written over it may be
overwritten, because in the branch that overwrites it the Combine picks the result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sod2.fusion import Group, run_time_operands
from sod2.graph import Graph, Guard, Node
from sod2.ops import OPS
from sod2.rdp import Analysis
from sod2.symbolic import Dim, as_dim, eq

_END = 1 << 30


@dataclass(frozen=True)
class Copy:
    """Bytes of tensor `source` to tensor `target`, when `guard` holds: one alternative of a Combine."""

    name: str
    source: str
    target: str
    guard: Guard


@dataclass(frozen=True)
class Materialize:
    """Write a small tensor whose value is an expression over the symbols, because a kernel reads it from memory."""

    name: str
    tensor: str
    guard: Guard = ()


Step = Group | Copy | Materialize


@dataclass(frozen=True)
class Place:
    """Home of a tensor: `input`, `constant` or `buffer`, and its number or name there."""

    kind: str
    number: int = 0
    name: str = ""


@dataclass(frozen=True)
class Buffer:
    """Bytes of the arena that live from step `first` to step `last`."""

    name: str
    size: Dim
    first: int
    last: int


@dataclass(frozen=True)
class Storage:
    """The steps that run, the buffers they use, and the home of every tensor that is read or written."""

    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...]
    places: Mapping[str, Place]

    def __str__(self) -> str:
        return "\n".join(f"{b.name}: {b.size} bytes, steps {b.first}..{b.last}" for b in self.buffers)


def byte_size(analysis: Analysis, tensor: str) -> Dim:
    """Bytes of a dense tensor, symbolic."""
    fact = analysis[tensor]
    total = as_dim(fact.dtype.itemsize)
    for dim in analysis.dims(tensor):
        total = total * dim
    return total


@dataclass
class _Class:
    """Tensors sharing bytes, and the positions at which they are read."""

    members: set[str]
    first: int
    uses: list[tuple[int, str, str]]  # (position, root read, reader: "" or the Combine's node name)
    home: Place | None = None

    @property
    def last(self) -> int:
        return max([self.first, *(p for p, _, _ in self.uses)])


@dataclass
class _Planner:
    graph: Graph
    analysis: Analysis
    order: Sequence[Group | Node]  # groups and Combine nodes, in the order of execution
    roots: dict[str, str] = field(default_factory=dict)
    classes: dict[str, _Class] = field(default_factory=dict)  # root -> class
    combines: dict[str, tuple[str, str, str]] = field(default_factory=dict)  # Combine node -> roots of y, a, b
    predicates: dict[str, str] = field(default_factory=dict)  # Combine node -> predicate
    values: list[str] = field(default_factory=list)

    def root(self, tensor: str) -> str:
        """The tensor whose bytes these are, through views."""
        if tensor not in self.roots:
            node = self.graph.producer.get(tensor)
            is_view = node is not None and node.op != "Combine" and OPS(node).is_view
            known = self.analysis[tensor].known_value is not None
            operand = node.inputs[1 if node.op == "Switch" else 0] if is_view and node is not None else ""
            self.roots[tensor] = self.root(operand) if operand and not known else tensor
        return self.roots[tensor]

    def reads(self, item: Group | Node) -> list[str]:
        tensors = item.inputs if isinstance(item, Group) else item.inputs[1:]
        return [self.root(t) for t in (*tensors, *(p for p, _ in item.guard))]

    def home(self, root: str) -> Place | None:
        """The fixed home of a root that no step writes."""
        for number, value in enumerate(self.graph.inputs):
            if value.name == root:
                return Place("input", number)
        known = self.analysis[root].known_value
        if known is not None and known.dtype != object:
            return Place("constant", name=root)
        return None

    def prepare(self) -> None:
        """Collect the readers of every root, and give a class to those that exist before the first step."""
        for position, item in enumerate(self.order):
            combine = item.name if isinstance(item, Node) else ""
            for root in self.reads(item):
                self.note(root).uses.append((position, root, combine))
            if isinstance(item, Node):
                self.note(self.root(item.inputs[0])).uses.append((position, self.root(item.inputs[0]), ""))
                self.predicates[item.name] = item.inputs[0]
                self.combines[item.name] = (item.outputs[0], self.root(item.inputs[1]), self.root(item.inputs[2]))
        for tensor in self.graph.outputs:
            self.note(self.root(tensor)).uses.append((_END, self.root(tensor), ""))

    def note(self, root: str) -> _Class:
        if root not in self.classes:
            home = self.home(root)
            self.classes[root] = _Class({root}, _END, [], home)
            known = self.analysis[root].known_value
            if home is None and known is not None:
                self.values.append(root)
                self.classes[root].first = -1
        return self.classes[root]

    def join(self, root: str, other: str) -> None:
        """Let `root` share the bytes of `other`'s class."""
        mine, theirs = self.note(root), self.note(other)
        if mine is theirs:
            return
        theirs.members |= mine.members
        theirs.uses += mine.uses
        theirs.first = min(theirs.first, mine.first)
        for member in mine.members:
            self.classes[member] = theirs

    # ---- in place ------------------------------------------------------------------------------------------------

    def overwritable(self, result: str, operand: str, position: int, guard: Guard) -> bool:
        """Whether a step of `guard` may write over the operand's bytes: nothing that reads them later can miss them."""
        found = self.classes[operand]
        if found.home is not None or found.first == -1 or found is self.classes.get(result):
            return False
        later = [(root, combine) for p, root, combine in found.uses if p > position]
        return all(combine and self.picks(combine, root, result, guard) for root, combine in later)

    def picks(self, combine: str, read: str, result: str, guard: Guard) -> bool:
        """Whether a Combine chooses between `read` and `result`, and takes `result` whenever the guard holds."""
        _, a, b = self.combines[combine]
        return {read, result} == {a, b} and (self.predicates[combine], result == a) in guard

    def elementwise_reads(self, group: Group, root: str) -> bool:
        """Whether the group reads these bytes only at the position that it writes."""
        space = self.analysis[group.outputs[-1]].dims
        family = self.classes[root].members
        if group.lead is not None and any(self.root(t) in family for t in group.lead.inputs):
            return False  # a later strip reads rows that an earlier one would have overwritten
        for node in group.nodes:
            touched = [t for t in run_time_operands(node, self.analysis) if self.root(t) in family]
            aligned = OPS(node).aligned
            if not touched:
                if not aligned and node is not group.anchor:
                    return False  # the index is transformed between here and the store
                continue
            if not aligned or node is group.anchor:
                return False
            for t in touched:
                dims = self.analysis[t].dims
                if len(dims) != len(space) or not all(eq(d, s) is True for d, s in zip(dims, space, strict=True)):
                    return False
        return True

    def group(self, group: Group, position: int) -> None:
        reused: set[int] = set()
        for tensor in group.outputs:
            found = self.note(tensor)
            found.first = min(found.first, position)
            for operand in dict.fromkeys(self.root(t) for t in group.inputs):
                target = self.classes[operand]
                if id(target) in reused or eq(self.size(operand), self.size(tensor)) is not True:
                    continue
                if self.overwritable(tensor, operand, position, group.guard) and self.elementwise_reads(group, operand):
                    self.join(tensor, operand)
                    reused.add(id(target))
                    break

    def size(self, root: str) -> Dim:
        return byte_size(self.analysis, root)

    # ---- Combine -------------------------------------------------------------------------------------------------

    def combine(self, node: Node, position: int) -> list[Copy]:
        """Unify the output with an alternative where that is free; the copies that remain."""
        y, a, b = self.combines[node.name]
        if self.classes[a] is not self.classes[b]:
            for candidate in (a, b):
                if self.classes[candidate].home is None and self.private(candidate, node, position):
                    self.join(y, candidate)
                    break
            else:
                found = self.note(y)
                found.first = min(found.first, position)
        else:
            self.join(y, a)
        own = self.classes[y]
        copies = []
        for root, tensor, branch in ((a, node.inputs[1], True), (b, node.inputs[2], False)):
            if self.classes[root] is not own:
                guard = (*node.guard, (node.inputs[0], branch))
                copies.append(Copy(f"{node.name}:{'then' if branch else 'else'}", tensor, y, guard))
        return copies

    def private(self, root: str, node: Node, position: int) -> bool:
        """Whether nothing but this Combine reads the alternative from here on."""
        found = self.classes[root]
        return found.first != -1 and all(p < position or c == node.name for p, _, c in found.uses)

    # ---- the result ----------------------------------------------------------------------------------------------

    def plan(self) -> Storage:
        self.prepare()
        steps: list[tuple[int, Step]] = []
        for position, item in enumerate(self.order):
            if isinstance(item, Group):
                self.group(item, position)
                steps.append((position, item))
            else:
                steps += [(position, copy) for copy in self.combine(item, position)]
        values = [Materialize(f"value:{t}", t) for t in self.values]
        return self.numbered(values, steps)

    def numbered(self, values: list[Materialize], steps: list[tuple[int, Step]]) -> Storage:
        """Positions in the order become step numbers; classes without a home become buffers."""
        final: list[Step] = [*values, *(s for _, s in steps)]
        starts = [p for p, _ in steps]

        def first_step(position: int) -> int:
            return len(values) + sum(1 for p in starts if p < position)

        def last_step(position: int) -> int:
            return max(0, len(values) + sum(1 for p in starts if p <= position) - 1)

        buffers, places = [], {}
        for found in {id(c): c for c in self.classes.values()}.values():
            place = found.home
            if place is None:
                name = min(found.members)
                begin = 0 if found.first == -1 else first_step(found.first)
                last = len(final) - 1 if found.last == _END else last_step(found.last)
                buffers.append(Buffer(name, self.size(name), begin, max(begin, last)))
                place = Place("buffer", len(buffers) - 1)
            for member in found.members:
                places[member] = place
        for tensor in self.analysis.facts:
            root = self.roots.get(tensor)
            if root in places:
                places[tensor] = places[root]
        return Storage(tuple(final), tuple(buffers), places)


def assign(graph: Graph, analysis: Analysis, order: Sequence[Group | Node]) -> Storage:
    """Decide the home of every tensor for groups and Combine nodes in their order of execution."""
    return _Planner(graph, analysis, order).plan()
