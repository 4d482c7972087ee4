"""Branches that the analysis decides: where the value of a predicate is known, only the taken one stays.

Exporters and function bodies ask for the rank or a size of a tensor; once that is known, the other branch is dead, and
often could not even be compiled. A branch with a node that cannot run (an LSTM of five dims) is never taken either:
where its predicate compares dims, the other outcome is required, and the branch goes (`Graph.required`).
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sod2.frontend import without_dead
from sod2.graph import Graph, Guard, Node, Requirement
from sod2.ops.lift import integers
from sod2.rdp import Analysis
from sod2.symbolic import Dim, as_dim, maximum, minimum

_HANDED_ON = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")  # what leaves a predicate as it is


def run(graph: Graph, analysis: Analysis) -> Graph:
    """The graph without decided branches; the graph itself when there is none."""
    decided = {
        node.inputs[0]: bool(value.reshape(()))
        for node in graph.nodes
        if node.op in ("Switch", "Combine") and (value := _number(analysis, node.inputs[0])) is not None
    }
    required = _refuted(graph, analysis, decided)
    if not decided:
        return graph
    nodes = [found for node in graph.nodes if (found := _decided(node, decided)) is not None]
    kept = [held for r in (*graph.required, *required) if (held := _kept(r, decided)) is not None]
    return without_dead(replace(graph, nodes=tuple(nodes), required=tuple(kept)))


def _refuted(graph: Graph, analysis: Analysis, decided: dict[str, bool]) -> list[Requirement]:
    """Decides the predicates of branches that cannot run; what that requires."""
    required = []
    for name, guard in analysis.impossible.items():
        *outer, (predicate, taken) = guard
        if predicate in decided or graph.within(guard) or graph.guard_of(predicate) != tuple(outer):
            continue
        pair = _equality(graph, analysis, predicate, not taken)
        if pair is not None:
            decided[predicate] = not taken
            required.append(Requirement(*pair, name, tuple(outer)))
    return required


def _equality(graph: Graph, analysis: Analysis, predicate: str, holds: bool) -> tuple[Dim, Dim] | None:
    """Two dims that are equal where a predicate holds (or doesn't), if it tells that."""
    node = graph.producer.get(predicate)
    if node is None:
        return None
    if node.op == "Not":
        return _equality(graph, analysis, node.inputs[0], not holds)
    if node.op in _HANDED_ON:
        return _equality(graph, analysis, node.inputs[0], holds)
    sides = [integers(analysis[t]) for t in node.inputs] if node.op == "Equal" else []
    found = [side[0] for side in sides if side is not None and len(side) == 1]
    dims = [d for d in found if isinstance(d, Dim)]
    if len(dims) < 2:
        return None
    left, right = dims
    return (left, right) if holds else (minimum(maximum(left - right, right - left), 1), as_dim(1))


def _kept(requirement: Requirement, decided: Mapping[str, bool]) -> Requirement | None:
    """A requirement as it is in the taken branches; None in a branch that is not."""
    if any(decided.get(p, taken) != taken for p, taken in requirement.guard):
        return None
    return replace(requirement, guard=tuple((p, taken) for p, taken in requirement.guard if p not in decided))


def _number(analysis: Analysis, tensor: str) -> np.ndarray | None:
    value = analysis[tensor].known_value
    return value if isinstance(value, np.ndarray) and value.dtype != object else None


def _decided(node: Node, decided: Mapping[str, bool]) -> Node | None:
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
