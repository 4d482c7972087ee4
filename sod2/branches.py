"""Branches that the analysis decides: where the value of a predicate is known, only the taken one stays.

Exporters and function bodies ask for the rank or a size of a tensor; once that is known, the other branch is dead, and
often could not even be compiled.
"""

from dataclasses import replace

import numpy as np

from sod2.frontend import without_dead
from sod2.graph import Graph, Guard, Node
from sod2.rdp import Analysis


def run(graph: Graph, analysis: Analysis) -> Graph:
    """The graph without decided branches; the graph itself when there is none."""
    decided = {
        node.inputs[0]: bool(value.reshape(()))
        for node in graph.nodes
        if node.op in ("Switch", "Combine") and (value := _number(analysis, node.inputs[0])) is not None
    }
    if not decided:
        return graph
    nodes = [found for node in graph.nodes if (found := _decided(node, decided)) is not None]
    return without_dead(replace(graph, nodes=tuple(nodes)))


def _number(analysis: Analysis, tensor: str) -> np.ndarray | None:
    value = analysis[tensor].known_value
    return value if isinstance(value, np.ndarray) and value.dtype != object else None


def _decided(node: Node, decided: dict[str, bool]) -> Node | None:
    """The node as it is in the taken branches; None in a branch that is not."""
    if any(decided.get(p, taken) != taken for p, taken in node.guard):
        return None
    guard: Guard = tuple((p, taken) for p, taken in node.guard if p not in decided)
    if node.op not in ("Switch", "Combine") or node.inputs[0] not in decided:
        return replace(node, guard=guard)
    first = decided[node.inputs[0]]
    source = node.inputs[1] if node.op == "Switch" or first else node.inputs[2]
    target = node.outputs[0 if node.op == "Combine" or first else 1]
    return Node(node.name, "Identity", (source,), (target,), {}, guard) if target else None
