"""Operators that provably change nothing vanish: a Resize to the operand's own size, an Expand to its own shape, a
pooling by windows of one element.

Models for any size are full of them: features of several resolutions are brought to one, a slice is cut to a limit that
is not reached, a mask is expanded to a shape that it has. Only equal dims tell, so this is what an analysis of symbolic
shapes is for. `Op.hands_on` says for which operators, and when, equal dims mean equal elements.

Results that leave the model stay.
"""

from dataclasses import replace

from sod2.graph import Graph, Node
from sod2.ops import OPS
from sod2.rdp import Analysis
from sod2.symbolic import Dim, eq


def drop(graph: Graph, analysis: Analysis) -> Graph:
    """The graph without them; what read their results reads their operands."""
    renamed: dict[str, str] = {}
    nodes = []
    for old in graph.nodes:
        guard = tuple((renamed.get(p, p), branch) for p, branch in old.guard)
        node = replace(old, inputs=tuple(renamed.get(t, t) for t in old.inputs), guard=guard)
        if node.outputs[0] not in graph.outputs and _changes_nothing(old, analysis):
            renamed[node.outputs[0]] = node.inputs[0]
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes)) if renamed else graph


def _changes_nothing(node: Node, analysis: Analysis) -> bool:
    x, y = analysis.of(node.inputs), analysis.of(node.outputs)
    if not x or x[0] is None or x[0].rank is None or y[0] is None or not isinstance(y[0].shape, tuple):
        return False
    operand, result = x[0].shape, analysis.made(node)
    if not isinstance(operand, tuple) or not isinstance(result, tuple) or len(operand) != len(result):
        return False
    pairs = zip(operand, result, strict=True)
    same = all(isinstance(a, Dim) and isinstance(b, Dim) and eq(a, b) is True for a, b in pairs)
    return same and x[0].dtype == y[0].dtype and OPS(node).hands_on(node, x, y)
