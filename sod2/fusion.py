"""Operator fusion: which nodes become one kernel (paper, section 3.3, on DNNFusion's mapping types).

A group is either an anchor (an operator with a kernel of its own) with the element-wise operators that its epilogue
applies to each tile, or a set of element expressions evaluated in one loop over one space. Groups grow from their seed
to successors, then to predecessors, as long as the combination is legal:

- One-to-One successors join when their output has provably the group's dims. This is where RDP decides: an operand
  whose dim may or may not be 1 would need a version of the kernel for either case, so it is refused with that reason.
- One-to-One, Reorganize and Shuffle predecessors are pulled in when all their consumers are in the group; those whose
  elements would be computed again for every element of a broadcast only if they are cheap.
- Nothing crosses a branch of control flow, and no cycle between groups may arise.

`fusion: none` makes every node its own group; `static` and `rdp` are this algorithm on poorer and richer facts: which
nodes run and what their kernels can do is the same for both, what is proved of dims is not.
Views (Reshape, Switch, ...) and tensors whose value RDP knows need no kernel and belong to no group.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sod2.graph import Graph, Guard, Node
from sod2.ops import OPS
from sod2.ops.op import MappingType
from sod2.rdp import Analysis
from sod2.symbolic import Dim, constant, eq

_ONE = constant(1)
_REEVALUATE = 4  # highest total cost of an expression that a broadcast may compute again
_PULLED = (MappingType.ONE_TO_ONE, MappingType.REORGANIZE, MappingType.SHUFFLE, MappingType.ONE_TO_MANY)


@dataclass(frozen=True)
class Group:
    """Nodes that become one kernel, in execution order; `inputs` and `outputs` are tensors that pass through memory."""

    name: str
    nodes: tuple[Node, ...]
    anchor: Node | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    guard: Guard
    lead: "Group | None" = None  # a group whose result this one reads strip by strip (streaming.py)

    def __str__(self) -> str:
        lead = f"{' + '.join(n.op for n in self.lead.nodes)} ... " if self.lead else ""
        return f"{self.name}: {lead}{' + '.join(n.op for n in self.nodes)} -> {', '.join(self.outputs)}"


@dataclass(frozen=True)
class FusionPlan:
    """Groups in a valid execution order, and why neighbouring nodes were not fused."""

    groups: tuple[Group, ...]
    refusals: Mapping[tuple[str, str], str]

    def __str__(self) -> str:
        why = [f"  {a} | {b}: {reason}" for (a, b), reason in self.refusals.items()]
        return "\n".join([*map(str, self.groups), *(["refused:"] if why else []), *why])


def run_time_operands(node: Node, analysis: Analysis) -> tuple[str, ...]:
    """The tensors a node reads when it runs: its inputs without those that only define shapes known by now."""
    skipped = set(OPS(node).shape_inputs)
    return tuple(
        t for i, t in enumerate(node.inputs) if t and not (i in skipped and analysis[t].known_value is not None)
    )


def live_nodes(graph: Graph, analysis: Analysis) -> tuple[Node, ...]:
    """The nodes that have to run: backwards from the outputs, without those whose outputs' values are known."""
    minting = analysis.minting
    needed = {t for t in graph.outputs if analysis.known(t) is None}
    for tensor in analysis.results:
        needed.update(t for mint in minting.closure(minting.awaited_by(tensor)) for t in mint.inputs)
    live: list[Node] = []
    for node in reversed(graph.nodes):
        wanted = [t for t in node.outputs if t in needed]
        if not wanted:
            continue
        live.append(node)
        read = (*run_time_operands(node, analysis), *(p for p, _ in node.guard))
        needed.update(t for t in (*read, *minting.upstream(node)) if analysis.known(t) is None)
    return tuple(reversed(live))


@dataclass
class _Fuser:
    graph: Graph
    analysis: Analysis
    facts: Analysis  # what fusion may know of dims: RDP's facts, or fewer
    nodes: tuple[Node, ...]
    group_of: dict[str, int] = field(default_factory=dict)  # node name -> group number
    members: dict[int, list[Node]] = field(default_factory=dict)
    anchors: dict[int, Node] = field(default_factory=dict)
    refusals: dict[tuple[str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.position = {n.name: k for k, n in enumerate(self.nodes)}
        self.producer = {t: n for n in self.nodes for t in n.outputs if t}
        self.stored = {*self.graph.outputs, *self.analysis.minting.read}  # read by what is no node
        self.consumers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for t in dict.fromkeys((*run_time_operands(node, self.analysis), *(p for p, _ in node.guard))):
                self.consumers.setdefault(t, []).append(node)

    def is_view(self, node: Node) -> bool:
        return OPS(node).is_view

    def is_anchor(self, node: Node) -> bool:
        return OPS(node).is_anchor(node, self.analysis.of(node.inputs))

    def dims(self, tensor: str) -> tuple[Dim, ...] | None:
        shape = self.facts[tensor].shape
        known = isinstance(shape, tuple) and all(isinstance(d, Dim) for d in shape)
        return self.facts[tensor].dims if known else None

    def start(self, node: Node) -> int:
        """Open a group with one node."""
        number = len(self.members)
        self.members[number] = [node]
        self.group_of[node.name] = number
        if self.is_anchor(node):
            self.anchors[number] = node
        return number

    def outputs_of(self, number: int) -> list[str]:
        """Tensors of a group that something outside reads, or that leave the model."""
        inside = self.members[number]
        names = {n.name for n in inside}
        return [
            t
            for n in inside
            for t in n.outputs
            if t and (t in self.stored or any(c.name not in names for c in self.consumers.get(t, ())))
        ]

    def reaches(self, starts: Iterable[Node], target: int) -> bool:
        """Whether group `target` lies upstream of these nodes through other groups: fusing them would make a cycle."""
        seen: set[int | str] = set()
        stack = list(starts)
        floor = min(self.position[n.name] for n in self.members[target])
        while stack:
            node = stack.pop()
            number = self.group_of.get(node.name)
            if number == target:
                return True
            key: int | str = number if number is not None else node.name
            if key in seen:
                continue
            seen.add(key)
            for member in self.members[number] if number is not None else [node]:
                for t in self.depends(member):
                    producer = self.producer.get(t)
                    if producer is not None and (self.position[producer.name] >= floor or number is not None):
                        stack.append(producer)
        return False

    def depends(self, node: Node) -> tuple[str, ...]:
        """The tensors that have to be there before a node runs."""
        operands = run_time_operands(node, self.analysis)
        return (*operands, *(p for p, _ in node.guard), *self.analysis.minting.upstream(node))

    def refuse(self, group: int, node: Node, reason: str) -> bool:
        self.refusals[self.members[group][-1].name, node.name] = reason
        return False

    # ---- successors ----------------------------------------------------------------------------------------------

    def space(self, number: int) -> tuple[Dim, ...] | None:
        """The dims that the loop of a group runs over: those of its first node's output."""
        first = self.anchors.get(number, self.members[number][0])
        return self.dims(next(t for t in first.outputs if t))

    def operand_pattern(self, tensor: str, space: Sequence[Dim]) -> list[bool] | str:
        """Per dim of the space whether the operand moves along it; a sentence where that isn't proved."""
        dims = self.dims(tensor)
        if dims is None:
            return f"the shape of {tensor!r} is not known"
        padded = (_ONE,) * (len(space) - len(dims)) + tuple(dims)
        if len(padded) != len(space):
            return f"{tensor!r} has more dims than the group's space"
        pattern = []
        for d, s in zip(padded, space, strict=True):
            if eq(d, s) is True:
                pattern.append(True)
            elif d == _ONE:
                pattern.append(False)
            else:
                return f"dim {d} of {tensor!r} may or may not equal {s}"
        return pattern

    def tile_reason(self, number: int, pattern: Sequence[bool], space: Sequence[Dim], tensor: str) -> str:
        """Why an operand can't be read by the epilogue of an anchor: it must move uniformly over rows and columns."""
        anchor = self.anchors[number]
        rows = OPS(anchor).space(anchor, self.analysis.of(anchor.inputs), self.analysis.of(anchor.outputs))
        if rows is None:
            return f"{anchor.op} takes no epilogue"
        for begin, end in ((0, rows[0]), (rows[0], rows[1]), (rows[1], len(space))):
            moves = {pattern[k] for k in range(begin, end) if space[k] != _ONE}
            if len(moves) > 1:
                return f"{tensor!r} is broadcast along a part of the rows or columns only"
        return ""

    def joins(self, number: int, node: Node) -> bool:  # noqa: PLR0911 - one return for each reason
        """Whether a consumer of the group may become part of it."""
        op, inside = OPS(node), self.members[number]
        if node.name in self.group_of or not op.aligned or op.is_view:
            return False
        if node.guard != inside[0].guard:
            return self.refuse(number, node, "they run under different branches")
        space = self.space(number)
        if space is None:
            return self.refuse(number, node, "the group's dims are not known")
        pattern = self.operand_pattern(node.outputs[0], space)
        if isinstance(pattern, str) or self.facts[node.outputs[0]].rank != len(space) or not all(pattern):
            return self.refuse(
                number, node, f"its output has not provably the group's dims [{', '.join(map(str, space))}]"
            )
        own = {t for n in inside for t in n.outputs}
        external = [t for t in run_time_operands(node, self.analysis) if t not in own]
        for t in external:
            operand = self.operand_pattern(t, space)
            if isinstance(operand, str):
                return self.refuse(number, node, operand)
            if number in self.anchors and (reason := self.tile_reason(number, operand, space, t)):
                return self.refuse(number, node, reason)
        if number in self.anchors and self.tile_reason(number, [True] * len(space), space, node.name):
            return self.refuse(number, node, f"{self.anchors[number].op} takes no epilogue")
        before = (*external, *self.analysis.minting.upstream(node))
        producers = [self.producer[t] for t in before if t in self.producer]
        if any(self.reaches([p], number) for p in producers):
            return self.refuse(number, node, "an operand depends on the group through another kernel")
        return True

    def grow(self, number: int) -> None:
        """Add successors until none fits."""
        frontier = list(self.members[number])
        while frontier:
            node = frontier.pop(0)
            for t in node.outputs:
                for consumer in self.consumers.get(t, ()):
                    if consumer.name not in self.group_of and self.joins(number, consumer):
                        self.group_of[consumer.name] = number
                        self.members[number].append(consumer)
                        self.members[number].sort(key=lambda n: self.position[n.name])
                        frontier.append(consumer)

    # ---- predecessors --------------------------------------------------------------------------------------------

    def pulls(self, number: int, producer: Node, consumer: Node) -> bool:
        op, inside = OPS(producer), {n.name for n in self.members[number]}
        if not op.has_at or op.is_view or op.mapping not in _PULLED or len([t for t in producer.outputs if t]) != 1:
            return False
        tensor = producer.outputs[0]
        if tensor in self.stored or any(c.name not in inside for c in self.consumers[tensor]):
            return False
        if producer.guard != consumer.guard or any(p == tensor for n in self.members[number] for p, _ in n.guard):
            return False
        space, dims = self.space(number), self.dims(tensor)
        if space is None or dims is None:
            return False
        if OPS(consumer).reads_outside and any(eq(d, 0) is not False for d in dims):
            return False  # memory of an empty tensor can be read; an expression over it can divide by its size
        same = isinstance(p := self.operand_pattern(tensor, space), list) and all(p)
        return same or op.cost <= _REEVALUATE

    # ---- the plan ------------------------------------------------------------------------------------------------

    def fuse(self) -> None:
        for node in self.nodes:
            if self.is_anchor(node):
                self.grow(self.start(node))
        for node in self.nodes:
            if node.name not in self.group_of and not self.is_view(node):
                number = self.start(node)
                self.grow(number)
        self.merge_predecessors()

    def merge_predecessors(self) -> None:
        """Dissolve a group of element expressions into its only consumer where that can pull it."""
        for number in sorted(self.members, reverse=True):
            if number in self.anchors or number not in self.members:
                continue
            for node in list(self.members[number]):
                self.absorb(number, node)

    def absorb(self, number: int, node: Node) -> None:
        for t in run_time_operands(node, self.analysis):
            producer = self.producer.get(t)
            other = self.group_of.get(producer.name) if producer is not None else None
            if producer is None or other is None or other == number or other in self.anchors:
                continue
            moved = self.members[other]
            if len(moved) == 1 and self.pulls(number, producer, node):
                del self.members[other]
                self.group_of[producer.name] = number
                self.members[number] = sorted([*self.members[number], producer], key=lambda n: self.position[n.name])
                self.absorb(number, producer)

    def groups(self) -> tuple[Group, ...]:
        plans = [self.group(number) for number in sorted(self.members)]
        return _in_order([g for g in plans if g.outputs], self.nodes, self.analysis)

    def group(self, number: int) -> Group:
        nodes = tuple(self.members[number])
        own = {t for n in nodes for t in n.outputs}
        reads = dict.fromkeys(t for n in nodes for t in run_time_operands(n, self.analysis) if t not in own)
        outputs = tuple(self.outputs_of(number))
        name = nodes[-1].name
        return Group(name, nodes, self.anchors.get(number), tuple(reads), outputs, nodes[0].guard)


def _in_order(groups: Sequence[Group], nodes: Sequence[Node], analysis: Analysis) -> tuple[Group, ...]:
    """Topological order of the groups, by the position of their last node where free."""
    position = {n.name: k for k, n in enumerate(nodes)}
    maker = {t: g for g in groups for n in g.nodes for t in n.outputs}
    views = {t: n for n in nodes if OPS(n).is_view for t in n.outputs}

    def sources(tensor: str, seen: set[str]) -> list[Group]:
        if tensor in maker:
            return [maker[tensor]]
        node = views.get(tensor)
        if node is None or tensor in seen:
            return []
        seen.add(tensor)
        read = (*run_time_operands(node, analysis), *(p for p, _ in node.guard))
        return [g for t in read for g in sources(t, seen)]

    order: list[Group] = []
    done: set[str] = set()

    def visit(group: Group) -> None:
        if group.name in done:
            return
        done.add(group.name)
        upstream = [t for node in group.nodes for t in analysis.minting.upstream(node)]
        for t in (*group.inputs, *(p for p, _ in group.guard), *upstream):
            for before in sources(t, set()):
                visit(before)
        order.append(group)

    for group in sorted(groups, key=lambda g: position[g.nodes[-1].name]):
        visit(group)
    return tuple(order)


def plan(graph: Graph, analysis: Analysis, facts: Analysis) -> FusionPlan:
    """Fuse where `facts` prove that it is legal; `analysis` says which nodes run and what their kernels can do."""
    fuser = _Fuser(graph, analysis, facts, live_nodes(graph, analysis))
    fuser.fuse()
    apart = {
        (a, b): reason for (a, b), reason in fuser.refusals.items() if fuser.group_of.get(a) != fuser.group_of.get(b)
    }
    return FusionPlan(fuser.groups(), apart)


def separate(graph: Graph, analysis: Analysis) -> FusionPlan:
    """`fusion: none`: every node is a group of its own."""
    fuser = _Fuser(graph, analysis, analysis, live_nodes(graph, analysis))
    for node in fuser.nodes:
        if not fuser.is_view(node):
            fuser.start(node)
    return FusionPlan(fuser.groups(), {})
