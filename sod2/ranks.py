"""Ranks that execution decides: what lies behind such a tensor is compiled once for each rank.

Two operators have one: Combine of branches of different ranks, and Squeeze without axes of a dim that may be 1. The
second is made the first, by the predicate that the dim is 1. Then everything behind the Combine is moved into both
branches, where the rank is known, and what leaves the model is combined again at the very end: an output may have
several ranks (`Analysis.alternatives`), no other tensor.

One call takes one step; the caller analyses the result and calls again until nothing changes. Limits: a node is copied
for at most 2 ** _DEPTH ranks; nothing is moved out of a loop, nor out of the branch in which the Combine itself is.
Where that is not enough the rank stays unknown, and compilation says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sod2.graph import Graph, Guard, Node, Requirement
from sod2.lattice import Nac
from sod2.rdp import Analysis
from sod2.symbolic import Dim, eq

_DEPTH = 3
_NAMES = ("~then", "~else")  # what the copies of a tensor or node are called, behind its own name


def run(graph: Graph, analysis: Analysis) -> Graph:
    """The graph after one step; the graph itself where none is left to take."""
    for node in graph.nodes:
        if not any(isinstance(analysis[t].shape, Nac) for t in node.outputs if t):
            continue
        if node.op == "Squeeze" and (axis := _undecided(node, analysis)) is not None:
            return _decided(graph, node, axis)
        if node.op == "Combine" and (moved := _moved(graph, analysis, node)) is not None:
            return moved
    return graph


# ---- Squeeze ---------------------------------------------------------------------------------------------------------


def _undecided(node: Node, analysis: Analysis) -> int | None:
    """The first axis of which it is not known whether a Squeeze drops it; None where something else is missing."""
    shape = analysis[node.inputs[0]].shape
    if len(node.inputs) > 1 or "axes" in node.attrs or not isinstance(shape, tuple):
        return None
    kept = node.attrs.get("kept", ())
    return next((i for i, d in enumerate(shape) if i not in kept and isinstance(d, Dim) and eq(d, 1) is None), None)


def _decided(graph: Graph, node: Node, axis: int) -> Graph:
    """The graph with a Squeeze split by whether one dim is 1: there it is dropped, elsewhere kept."""
    (x,), (y,) = node.inputs, node.outputs
    part = {name: f"{y}:{name}" for name in ("size", "one", "equal", "is one", "dropped")}
    then, other = (f"{x}:{y}{suffix}" for suffix in _NAMES)

    def new(
        op: str, inputs: Sequence[str], outputs: Sequence[str], branch: bool | None = None, **attrs: object
    ) -> Node:
        guard = node.guard if branch is None else (*node.guard, (part["is one"], branch))
        return Node(f"{node.name}:{outputs[0]}", op, tuple(inputs), tuple(outputs), attrs, guard)

    kept = [*node.attrs.get("kept", ())]
    shifted = [k - (k > axis) for k in kept]  # behind the dim that is dropped
    results = [y + suffix for suffix in _NAMES]
    split = [
        new("Shape", [x], [part["size"]], start=axis, end=axis + 1),
        new("Equal", [part["size"], part["one"]], [part["equal"]]),
        new("Squeeze", [part["equal"]], [part["is one"]], axes=[0]),
        new("Switch", [part["is one"], x], [then, other]),
        new("Squeeze", [then], [part["dropped"]], True, axes=[axis]),
        new("Squeeze", [part["dropped"]], [results[0]], True, kept=shifted),
        new("Squeeze", [other], [results[1]], False, kept=[*kept, axis]),
        replace(node, op="Combine", inputs=(part["is one"], *results), attrs={}),
    ]
    nodes = [n for old in graph.nodes for n in (split if old is node else [old])]
    return replace(graph, nodes=tuple(nodes), constants={**graph.constants, part["one"]: np.ones(1, np.int64)})


# ---- Combine ---------------------------------------------------------------------------------------------------------


def _last(graph: Graph, analysis: Analysis) -> set[str]:
    """Names of the Combines of unknown rank that only pick what leaves the model."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if node.op == "Combine" and isinstance(analysis[node.outputs[0]].shape, Nac):
            readers = graph.consumers.get(node.outputs[0], ())
            if all(r.name in found for r in readers):
                found.add(node.name)
    return found


def _behind(graph: Graph, node: Node, last: set[str]) -> list[Node]:
    """The nodes that need the result of one, in order, without the last Combines."""
    tensors, found = {*node.outputs}, []
    for other in graph.nodes:
        if other.name not in last and not tensors.isdisjoint((*other.inputs, *(p for p, _ in other.guard))):
            found.append(other)
            tensors.update(t for t in other.outputs if t)  # an absent tensor leads nowhere
    return found


def _movable(graph: Graph, node: Node, guard: Guard) -> bool:
    """Whether a node may be copied into branches inside `guard`."""
    in_loop = node.op.startswith("Loop") or any(p in graph.loops for p, _ in node.guard)
    return not in_loop and sum(map(node.name.count, _NAMES)) < _DEPTH and node.guard[: len(guard)] == guard


def _moved(graph: Graph, analysis: Analysis, node: Node) -> Graph | None:
    """The graph with everything behind a Combine in its branches; None where that is beyond the limits, or nothing."""
    last = _last(graph, analysis)
    behind = _behind(graph, node, last)
    if not behind or not all(_movable(graph, other, node.guard) for other in behind):
        return None
    mover = _Mover(graph, node, {t for n in behind for t in n.outputs if t})
    copies = [mover.copy(n, branch) for branch in (True, False) for n in behind]
    if any(c is None for c in copies):
        return None
    read = {*graph.outputs, *(t for n in graph.nodes if n.name in last for t in n.inputs)}
    combined = []
    for tensor in sorted(mover.inside & read):
        alternatives = (tensor + suffix for suffix in _NAMES)
        name = f"Combine/{tensor}"
        combined.append(Node(name, "Combine", (node.inputs[0], *alternatives), (tensor,), {}, node.guard))
    names = {n.name for n in behind}
    before = [n for n in graph.nodes if n.name not in names and n.name not in last]
    moved = [c for c in copies if c is not None]
    after = [n for n in graph.nodes if n.name in last]
    required = tuple(dict.fromkeys(mover.requirement(r, branch) for r in graph.required for branch in (True, False)))
    nodes = (*before, *mover.switches.values(), *moved, *combined, *after)
    return replace(graph, nodes=nodes, required=required)


@dataclass
class _Mover:
    """Copies nodes into the two branches of a Combine."""

    graph: Graph
    combine: Node
    inside: set[str]  # tensors behind it
    switches: dict[str, Node] = field(default_factory=dict)  # of tensors that the copies read from outside

    def copy(self, node: Node, branch: bool) -> Node | None:
        """A node under a branch; None when it reads a tensor of another branch inside."""
        inputs = [self.operand(t, branch) if t else "" for t in node.inputs]
        if None in inputs:
            return None
        suffix, depth = _NAMES[not branch], len(self.combine.guard)
        rest: Guard = tuple((p + suffix if p in self.inside else p, on) for p, on in node.guard[depth:])
        return replace(
            node,
            name=node.name + suffix,
            inputs=tuple(t for t in inputs if t is not None),
            outputs=tuple(t and t + suffix for t in node.outputs),
            guard=(*self.combine.guard, (self.combine.inputs[0], branch), *rest),
        )

    def requirement(self, requirement: Requirement, branch: bool) -> Requirement:
        """What is required under the copies in a branch; the same for both where its guard is not inside."""
        depth = next((k for k, (p, _) in enumerate(requirement.guard) if p in self.inside), None)
        if depth is None:
            return requirement
        outer, inner = requirement.guard[:depth], requirement.guard[depth:]
        renamed = tuple((p + _NAMES[not branch], on) for p, on in inner)
        return replace(requirement, guard=(*outer, (self.combine.inputs[0], branch), *renamed))

    def operand(self, tensor: str, branch: bool) -> str | None:
        predicate, *alternatives = self.combine.inputs
        if tensor == self.combine.outputs[0]:
            return alternatives[not branch]
        if tensor in self.inside:
            return tensor + _NAMES[not branch]
        if tensor in self.graph.constants:
            return tensor
        maker = self.graph.producer.get(tensor)
        guard = maker.guard if maker is not None else ()
        if guard != self.combine.guard[: len(guard)]:
            return None
        if tensor not in self.switches:
            outputs = tuple(f"{tensor}:{self.combine.outputs[0]}{suffix}" for suffix in _NAMES)
            name = f"Switch/{outputs[0]}"
            self.switches[tensor] = Node(name, "Switch", (predicate, tensor), outputs, {}, self.combine.guard)
        return self.switches[tensor].outputs[not branch]
