"""Reductions that a branch would repeat: they move behind it into the branch that changes their operand.

A skipped residual block hands its input on, y = Combine(p, F(x), x), and the next gate reduces y as the gate before it
reduced x. Where f(x) exists, f(y) becomes Combine(p, f(F(x)), f(x)): the branch that computes F computes f as well, the
other one nothing. Chains of skipped blocks follow, since f(y) is then known for the next Combine. Only reductions move:
their results are small, so that it costs nothing if a Combine has to copy one, and no element-wise fusion is lost.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sod2.graph import Array, Graph, Guard, Node

Key = tuple[object, ...]


def share_reductions(graph: Graph) -> Graph:
    """The graph with every reduction of a Combine moved whose result exists for one of the alternatives."""
    walk = _Walk(graph)
    for node in graph.nodes:
        walk.visit(node)
    return replace(graph, nodes=tuple(walk.nodes)) if walk.moved else graph


class _Walk:
    """The nodes so far, and which reductions of which tensors they computed."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[Key, tuple[str, Guard]] = {}  # reduction and operand -> its result, and where that exists
        self.nodes: list[Node] = []
        self.moved = False

    def visit(self, node: Node) -> None:
        """Append the node, or what stands for it."""
        if not _is_reduction(node, self._graph.constants):
            self.nodes.append(node)
            return
        combine = self._graph.producer.get(node.inputs[0])
        if combine is None or combine.op != "Combine" or combine.guard != node.guard or not self._move(node, combine):
            self.nodes.append(node)
        self._known.setdefault((self._operator(node), self._root(node.inputs[0])), (node.outputs[0], node.guard))

    def _move(self, node: Node, combine: Node) -> bool:
        """Append the reduction of one alternative and a Combine of both, if the other reduction exists."""
        predicate, *alternatives = combine.inputs
        for branch in (True, False):
            changed, same = alternatives if branch else alternatives[::-1]
            result, guard = self._known.get((self._operator(node), self._root(same)), ("", ()))
            if not result or node.guard[: len(guard)] != guard:
                continue
            names = [f"{node.outputs[0]}@{kind}" for kind in ("changed", "same-then", "same-else")]
            inner = (*node.guard, (predicate, branch))
            self.nodes += [
                replace(
                    node,
                    name=f"{node.name}@changed",
                    inputs=(changed, *node.inputs[1:]),
                    outputs=(names[0],),
                    guard=inner,
                ),
                Node(f"{node.name}@switch", "Switch", (predicate, result), tuple(names[1:]), {}, node.guard),
                Node(
                    f"{node.name}@combine",
                    "Combine",
                    (predicate, names[0], names[2]) if branch else (predicate, names[1], names[0]),
                    node.outputs,
                    {},
                    node.guard,
                ),
            ]
            self.moved = True
            return True
        return False

    def _root(self, tensor: str) -> str:
        """The tensor whose value this is, through Switch and Identity."""
        node = self._graph.producer.get(tensor)
        while node is not None and not node.domain and node.op in ("Switch", "Identity"):
            tensor = node.inputs[1 if node.op == "Switch" else 0]
            node = self._graph.producer.get(tensor)
        return tensor

    def _operator(self, node: Node) -> Key:
        """What the node does to its operand: equal keys, equal function."""
        attributes = tuple((k, _frozen(v)) for k, v in sorted(node.attrs.items()))
        return (node.op, attributes, *(_frozen(self._graph.constants.get(t, t)) for t in node.inputs[1:]))


def _frozen(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return tuple(value) if isinstance(value, list) else value


def _is_reduction(node: Node, constants: Mapping[str, Array]) -> bool:
    """A reduction whose axes, where they are an input, are constant."""
    reduces = node.op.startswith("Reduce") or node.op in ("GlobalAveragePool", "GlobalMaxPool")
    return reduces and not node.domain and all(not t or t in constants for t in node.inputs[1:])
