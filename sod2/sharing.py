"""Where each tensor lives: views, in-place results and Combine, decided on the final order of steps.

Tensors that share bytes form one buffer. A view (Reshape, Switch) is its input's buffer. A group writes in place over
an operand that it reads element by element at the position it writes, when nothing reads that operand afterwards. A
Combine costs nothing when both alternatives already share a buffer, as in a residual block that adds in place onto its
shortcut; otherwise the alternative that is not at home is copied in its branch. One exception makes the first case
possible: an operand whose only later reader is the Combine that picks between it and the result written over it may be
overwritten, because in the branch that overwrites it the Combine picks the result.

Loops are planned by loop_storage.py.

Operands of a Concat and results of a Split or a Slice may be parts of the whole tensor (parts.py). A whole and its
parts are one family: bytes of one are bytes of another, so nothing is written over a member while any other is still
read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from sod2 import loop_storage, parts
from sod2.fusion import Group, run_time_operands
from sod2.graph import Graph, Guard, Loop, Node, State
from sod2.minting import Mint
from sod2.ops import OPS
from sod2.rdp import Analysis
from sod2.storage import (
    JOINTS,
    Buffer,
    Carry,
    Copy,
    Materialize,
    Place,
    Stack,
    Step,
    Storage,
    Thing,
    byte_size,
)
from sod2.symbolic import Dim, eq
from sod2.tensor_class import TensorClass

_END = 1 << 30


@dataclass
class Planner:
    graph: Graph
    analysis: Analysis
    order: Sequence[Thing]  # in the order of execution
    roots: dict[str, str] = field(default_factory=dict)
    classes: dict[str, TensorClass] = field(default_factory=dict)  # root -> class
    combines: dict[str, tuple[str, str, str]] = field(default_factory=dict)  # Combine node -> roots of y, a, b
    predicates: dict[str, str] = field(default_factory=dict)  # Combine node -> predicate
    values: list[str] = field(default_factory=list)
    guards: dict[str, Guard] = field(default_factory=dict)  # root -> branches around the step that writes it
    slices: dict[str, dict[str, Dim]] = field(default_factory=dict)  # root -> its Slices that are parts, and offsets
    holds: list[tuple[int, Step]] = field(default_factory=list)  # position that a step precedes
    spares: dict[str, str] = field(default_factory=dict)  # buffer without a tensor -> tensor of its size

    def root(self, tensor: str) -> str:
        """The tensor whose bytes these are, through views."""
        if tensor not in self.roots:
            node = self.graph.producer.get(tensor)
            is_view = node is not None and node.op not in JOINTS and OPS(node).is_view
            known = self.analysis.known(tensor) is not None
            operand = node.inputs[1 if node.op == "Switch" else 0] if is_view and node is not None else ""
            self.roots[tensor] = self.root(operand) if operand and not known else tensor
        return self.roots[tensor]

    def reads(self, item: Thing) -> list[str]:
        tensors: Sequence[str] = item.inputs
        if isinstance(item, Node) and item.op == "Combine":
            tensors = item.inputs[1:]
        elif isinstance(item, Node):
            tensors = loop_storage.reads(self, self.graph.loop_of(item), item.op == "LoopBegin")
        return [self.root(t) for t in (*tensors, *(p for p, _ in item.guard))]

    def home(self, root: str) -> Place | None:
        """The fixed home of a root that no step writes."""
        for number, value in enumerate(self.graph.inputs):
            if value.name == root:
                return Place("input", number)
        known = self.analysis.known(root)
        if known is not None and known.dtype != object:
            return Place("constant", name=root)
        return Place("block", self.blocks[root]) if root in self.blocks else None

    @cached_property
    def blocks(self) -> Mapping[str, int]:
        """The tensors of loops that lie outside the arena."""
        return loop_storage.blocks(self.graph, self.analysis)

    def prepare(self) -> None:
        """Collect the readers of every root, and give a class to those that exist before the first step."""
        for position, item in enumerate(self.order):
            self.guards.update(dict.fromkeys(item.outputs, item.guard))
            combine = item.name if isinstance(item, Node) and item.op == "Combine" else ""
            for root in self.reads(item):
                found, until = self.note(root), loop_storage.reach(self, item.guard, root, position)
                found.uses.append((until, root, combine if until == position else ""))
            if isinstance(item, Node) and combine:
                self.note(self.root(item.inputs[0])).uses.append((position, self.root(item.inputs[0]), ""))
                self.predicates[item.name] = item.inputs[0]
                self.combines[item.name] = (item.outputs[0], self.root(item.inputs[1]), self.root(item.inputs[2]))
        for tensor in self.analysis.results:
            self.note(self.root(tensor)).uses.append((_END, self.root(tensor), ""))

    def note(self, root: str) -> TensorClass:
        if root not in self.classes:
            home = self.home(root)
            self.classes[root] = TensorClass({root}, _END, [], home)
            if home is None and self.analysis.known(root) is not None:
                self.values.append(root)
                self.classes[root].first = self.known_at(root)
                self.classes[root].is_value = True
        return self.classes[root]

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Where everything that is ordered runs."""
        return {item.name: k for k, item in enumerate(self.order)}

    def known_at(self, root: str) -> int:
        """The position behind which a tensor's dims and value are known; -1 before the first step."""
        return max((self.positions[m.name] for m in self.analysis.minting.awaited_by(root)), default=-1)

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
        if found.home is not None or found.is_value or found is self.classes.get(result):
            return False
        later = [(root, combine) for p, root, combine in found.family_uses() if p > position]
        return all(combine and self.picks(combine, root, result, guard) for root, combine in later)

    def picks(self, combine: str, read: str, result: str, guard: Guard) -> bool:
        """Whether a Combine chooses between `read` and `result`, and takes `result` whenever the guard holds."""
        _, a, b = self.combines[combine]
        return {read, result} == {a, b} and (self.predicates[combine], result == a) in guard

    def takes_over(self, group: Group, root: str) -> bool:
        """Whether the group is a kernel that may write its result over these bytes, the data of a Scatter."""
        node, top = group.nodes[0], self.classes[root].top
        around = {member for found in top.below() for member in found.members}
        touched = [k for k, t in enumerate(node.inputs) if t and self.root(t) in around]
        return len(group.nodes) == 1 and top is self.classes[root] and touched == [OPS(node).overwrites]

    def elementwise_reads(self, group: Group, root: str) -> bool:
        """Whether the group reads these bytes only at the position that it writes."""
        space = self.analysis[group.outputs[-1]].dims
        family = self.classes[root].members
        around = {member for found in self.classes[root].top.below() for member in found.members} - family
        if any(self.root(t) in around for t in group.inputs):
            return False  # a part and its whole: equal positions are not equal bytes
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

    def group(self, group: Group, position: int) -> list[Step]:
        """The steps that remain of a group, after deciding where its results lie."""
        (node, *others), domain = group.nodes, group.nodes[0].domain
        if node.op == "Concat" and not domain and not others:
            return self.concat(group, node, position)
        pieces = {"Split": self.split, "Slice": self.slice}.get(node.op)
        if pieces is not None and not domain and not others and pieces(node, position):
            return []
        self.reuse(group, position)
        return [group]

    def reuse(self, group: Group, position: int) -> None:
        """Let results be written over operands where that is legal."""
        reused: set[int] = set()
        for tensor in group.outputs:
            found = self.note(tensor)
            found.first = min(found.first, position)
            for loop, result in self.results.get(tensor, ()):
                loop_storage.claim(self, loop, result)
            if self.classes[tensor] is not found or not found.is_plain:
                continue
            for operand in dict.fromkeys(self.root(t) for t in group.inputs):
                target = self.classes[operand]
                if id(target) in reused or eq(self.size(operand), self.size(tensor)) is not True:
                    continue
                if loop_storage.is_foreign(self, tensor, target):
                    continue
                fits = self.elementwise_reads(group, operand) or self.takes_over(group, operand)
                if fits and self.overwritable(tensor, operand, position, group.guard):
                    self.join(tensor, operand)
                    reused.add(id(target))
                    break

    def size(self, root: str) -> Dim:
        return byte_size(self.analysis, self.spares.get(root, root))

    def copy(self, source: str, target: str, node: Node, like: str) -> Copy:
        """A step of a loop's beginning or end: as many bytes as the tensor `like` has."""
        return Copy(f"{node.name}:{target}", source, target, node.guard, like=like)

    @cached_property
    def results(self) -> Mapping[str, list[tuple[Loop, State | str]]]:
        """The roots that a trip of a loop makes and gives back, and as what."""
        found: dict[str, list[tuple[Loop, State | str]]] = {}
        for loop in self.graph.loops.values():
            for result in loop_storage.results(self, loop):
                root = self.root(loop_storage.source(loop, result))
                if (loop.iteration, True) in self.graph.guard_of(root):
                    found.setdefault(root, []).append((loop, result))
        return found

    def second_block(self, state: str) -> Place:
        """Where the next value of a state is put that lies in blocks."""
        return Place("block", self.blocks[state] + 1)

    def spare(self, like: str, position: int) -> str:
        """A new buffer that lives at one position, of the size of the tensor `like`."""
        name = f"spare of {like} at {position}"
        self.spares[name] = self.root(like)
        self.roots[name] = name
        self.classes[name] = TensorClass({name}, position, [])
        return name

    # ---- Concat, Split, Slice ------------------------------------------------------------------------------------

    @cached_property
    def profile(self) -> parts.Profile:
        """Live bytes along the order, before anything is reused."""
        spans, end = {}, len(self.order) - 1
        for position, item in enumerate(self.order):
            for tensor in item.outputs:
                found = self.classes.get(tensor)
                if found is not None and found.home is None and not found.is_value:
                    spans[tensor] = (position, min(end, max([position, *(p for p, _, _ in found.uses)])))
        return parts.Profile(spans, {t: self.size(t) for t in spans}, len(self.order))

    def concat(self, group: Group, node: Node, position: int) -> list[Step]:
        """Compute operands where the result lies, as far as that is legal and no peak grows; copy the others."""
        whole = self.note(node.outputs[0])
        offsets = parts.offsets(self.analysis, node.outputs[0], node.inputs, parts.axis_of(node))
        inside = dict(self.movable(group, offsets)) if offsets is not None else {}
        inside = {t: inside[t] for t in self.profile.move(list(inside), node.outputs[0])}
        if not inside:
            self.reuse(group, position)
            return [group]
        whole.first = min(whole.first, position)
        copies: list[Step] = []
        for k, (tensor, offset) in enumerate(zip(node.inputs, offsets or (), strict=True)):
            if inside.get(self.root(tensor)) is offset:
                self.classes[self.root(tensor)].put_into(whole, offset)
            else:
                copies.append(Copy(f"{node.name}:{k}", tensor, node.outputs[0], group.guard, offset))
        return copies

    def movable(self, group: Group, offsets: Sequence[Dim]) -> Iterator[tuple[str, Dim]]:
        """The roots among a Concat's operands that may move, each once, and the bytes before them."""
        seen: set[int] = set()
        for tensor, offset in zip(group.nodes[0].inputs, offsets, strict=True):
            root = self.root(tensor)
            found = self.classes[root]
            same_guard = self.guards.get(root) == group.guard
            if (
                found.home is None
                and not found.is_value
                and found.first > self.known_at(group.nodes[0].outputs[0])
                and found.whole is None
                and found.row_of is None
                and found.until < 0
                and same_guard
                and id(found) not in seen
            ):
                seen.add(id(found))
                yield root, offset

    def split(self, node: Node, position: int) -> bool:
        """Let the results be parts of the operand, where they are consecutive bytes of it; whether they are."""
        pieces, axis = [t for t in node.outputs if t], parts.axis_of(node)
        offsets = (
            parts.offsets(self.analysis, node.inputs[0], pieces, axis) if len(pieces) == len(node.outputs) else None
        )
        if offsets is None:
            return False
        whole = self.classes[self.root(node.inputs[0])]
        for tensor, offset in zip(pieces, offsets, strict=True):
            found = self.note(tensor)
            found.first = min(found.first, position)
            found.put_into(whole, offset)
        return True

    def slice(self, node: Node, position: int) -> bool:
        """Let the result be a part of the operand, where it is consecutive bytes of it and no peak grows by keeping all
        of it; whether it is."""
        root, (result,) = self.root(node.inputs[0]), node.outputs
        if root not in self.slices:
            self.slices[root] = dict(self.cuts(root))
            inside = self.profile.move(list(self.slices[root]), root)
            self.slices[root] = {t: self.slices[root][t] for t in inside}
        if result not in self.slices[root]:
            return False
        found = self.note(result)
        found.first = min(found.first, position)
        found.put_into(self.classes[root], self.slices[root][result])
        return True

    def cuts(self, root: str) -> Iterator[tuple[str, Dim]]:
        """The results of all Slices of these bytes that may be parts of them, and the bytes before each."""
        whole = self.note(root)
        if whole.home is not None or whole.is_value or whole.row_of is not None or whole.until >= 0:
            return
        for item in self.order:
            node = item.nodes[0] if isinstance(item, Group) and len(item.nodes) == 1 else None
            if node is None or node.op != "Slice" or node.domain or self.root(node.inputs[0]) != root:
                continue
            offset = parts.offset_of_slice(self.analysis, node)
            if offset is not None and self.note(node.outputs[0]).is_plain:
                yield node.outputs[0], offset

    # ---- Combine -------------------------------------------------------------------------------------------------

    def combine(self, node: Node, position: int) -> list[Copy]:
        """Unify the output with an alternative where that is free; the copies that remain."""
        y, a, b = self.combines[node.name]
        fitting = [root for root in (a, b) if eq(self.size(root), self.size(y)) is True]
        if len(fitting) < 2 or self.classes[a] is not self.classes[b]:
            for candidate in fitting:
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

    def joint(self, node: Node, position: int) -> Sequence[Copy | Stack | Carry]:
        """The copies that remain of a Combine, or of the beginning or the end of a loop."""
        if node.op == "Combine":
            return self.combine(node, position)
        plan = loop_storage.begin if node.op == "LoopBegin" else loop_storage.end
        return plan(self, self.graph.loop_of(node), position)

    def private(self, root: str, node: Node, position: int) -> bool:
        """Whether nothing but this Combine reads the alternative from here on."""
        found = self.classes[root]
        return not found.is_value and all(p < position or c == node.name for p, _, c in found.family_uses())

    # ---- the result ----------------------------------------------------------------------------------------------

    def plan(self) -> Storage:
        self.prepare()
        steps: list[tuple[int, Step]] = []
        for position, item in enumerate(self.order):
            if isinstance(item, Group):
                steps += [(position, step) for step in self.group(item, position)]
            elif isinstance(item, Mint):
                learned: list[Step] = [item, *self.materialized(position)]
                steps += [(position, step) for step in learned]
            else:
                steps += [(position, step) for step in self.joint(item, position)]
        ordered = sorted([*self.holds, *steps], key=lambda entry: entry[0])
        return self.numbered(self.materialized(-1), ordered)

    def materialized(self, position: int) -> list[Materialize]:
        """The values that are known from that position on."""
        mint = self.order[position] if position >= 0 else None
        guard = mint.guard if mint is not None else ()
        return [Materialize(f"value:{t}", t, guard) for t in self.values if self.classes[t].first == position]

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
            if found.whole is not None or found.row_of is not None:
                continue
            place, family = found.home, list(found.below())
            if place is None:
                name = min(found.members)
                first, final_use = min(c.first for c in family), max(c.last for c in family)
                begin = 0 if first == -1 else first_step(first)
                last = len(final) - 1 if final_use == _END else last_step(final_use)
                buffers.append(Buffer(name, self.size(name), begin, max(begin, last)))
                place = Place("buffer", len(buffers) - 1)
            for member in family:
                places.update(dict.fromkeys(member.members, replace(place, offset=member.start)))
        rows = {m: found for m, found in self.classes.items() if found.row_of is not None}
        places.update({m: self.row(found, places) for m, found in rows.items()})
        for tensor in self.analysis.facts:
            root = self.roots.get(tensor)
            if root in places:
                places[tensor] = places[root]
        return Storage(tuple(final), tuple(buffers), places, self.blocks)

    def row(self, found: TensorClass, places: Mapping[str, Place]) -> Place:
        """The home of a row; the stacked output may be a row itself, of the loop around."""
        assert found.row_of is not None
        stacked, iteration, stride = found.row_of
        whole = places[min(stacked.members)] if stacked.row_of is None else self.row(stacked, places)
        return replace(whole, rows=(*whole.rows, (iteration, stride)))


def assign(graph: Graph, analysis: Analysis, order: Sequence[Thing]) -> Storage:
    """Decide the home of every tensor for groups, Combine nodes and mints in their order of execution."""
    return Planner(graph, analysis, order).plan()
