"""Control paths: the gates of a model, their decisions for an input, and how clear each decision was.

A gate is an `If`. Its decision is the predicate; its margin is what the predicate compares, left minus right. A gate
inside a branch that is not taken is not reached and has neither.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper

COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
FORWARDING = ("Identity", "Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Gate:
    """An `If`: its name, predicate, the two compared values, and the branches that lead to it, outermost first."""

    name: str
    predicate: str
    compared: tuple[str, str]
    inside: tuple[tuple[str, bool], ...]

    @property
    def values(self) -> tuple[str, str, str]:
        """Names of the values from which `decisions` and `margin` are read."""
        return (self.predicate, *self.compared)

    def margin(self, values: Mapping[str, np.ndarray]) -> float:
        """Distance of the decision from its threshold, with the sign of left minus right."""
        left, right = (values[name].item() for name in self.compared)
        return float(left - right)


def gates(model: ModelProto) -> list[Gate]:
    """All gates in order of execution, one inside a branch after the gate around it."""
    return list(_gates(model.graph, (), {}))


def _gates(graph: GraphProto, inside: tuple[tuple[str, bool], ...], outer: Mapping[str, NodeProto]) -> Iterator[Gate]:
    producers = {**outer, **{name: node for node in graph.node for name in node.output}}
    for node in graph.node:
        if node.op_type == "If":
            yield Gate(node.name, node.input[0], _compared(node, producers), inside)
            for branch, taken in (("then_branch", True), ("else_branch", False)):
                body = helper.get_node_attr_value(node, branch)
                yield from _gates(body, (*inside, (node.name, taken)), producers)


def _compared(gate: NodeProto, producers: Mapping[str, NodeProto]) -> tuple[str, str]:
    """The operands of the comparison behind a gate's predicate."""
    node = producers.get(gate.input[0])
    while node is not None and node.op_type in FORWARDING:
        node = producers.get(node.input[0])
    if node is None or node.op_type not in COMPARISONS:
        found = "an input" if node is None else node.op_type
        raise ValueError(f"predicate of If {gate.name!r} comes from {found}: one of {', '.join(COMPARISONS)} is wanted")
    return node.input[0], node.input[1]


def decisions(found: list[Gate], values: Mapping[str, np.ndarray]) -> dict[str, bool]:
    """The decision of every reached gate, by name, from values in which both branches were computed."""
    path: dict[str, bool] = {}
    for gate in found:
        if all(path.get(name) == taken for name, taken in gate.inside):
            path[gate.name] = bool(values[gate.predicate].item())
    return path


def path_string(found: list[Gate], path: Mapping[str, bool]) -> str:
    """One character per gate in order of execution: 1 then-branch, 0 else-branch, - not reached."""
    return "".join("-" if gate.name not in path else str(int(path[gate.name])) for gate in found)
