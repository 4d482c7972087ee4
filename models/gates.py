"""Control paths: the gates of a model, their decisions for an input, and how clear each decision was.

A gate is an `If`. Its decision is the predicate; its margin is what the predicate compares, left minus right. A gate
inside a branch that is not taken is not reached and has neither.

Some networks also decide within tensors: elementwise comparisons of computed values with zero make masks that are
multiplied in (DGNet). `masks` names what they compare, so that a sample with a value next to zero can be avoided.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
FORWARDING = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Gather")  # Gather picks one of several decisions
BRANCHES = (("then_branch", True), ("else_branch", False))

Branches = tuple[tuple[str, bool], ...]  # names of `If`s with the branch of each, outermost first


@dataclass(frozen=True)
class Gate:
    """An `If`: its name, predicate, the two compared values, and the branches that lead to it, outermost first.

    `element` is the position of the decision among the elements of a compared tensor, 0 in a tensor of one element;
    `above` tells whether the predicate holds where the left value is the greater one.
    """

    name: str
    predicate: str
    compared: tuple[str, str]
    element: int
    above: bool
    inside: Branches

    @property
    def values(self) -> tuple[str, str, str]:
        """Names of the values from which `decisions` and `margin` are read."""
        return (self.predicate, *self.compared)

    def margin(self, values: Mapping[str, np.ndarray]) -> float:
        """Distance of the decision from its threshold, with the sign of left minus right."""
        return self.difference(*(values[name] for name in self.compared))

    def difference(self, left: np.ndarray, right: np.ndarray) -> float:
        """Left minus right of the compared element."""
        a, b = (float(array.flat[self.element if array.size > 1 else 0]) for array in (left, right))
        return a - b


def gates(model: ModelProto) -> list[Gate]:
    """All gates in order of execution, one inside a branch after the gate around it."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    return list(_gates(model.graph, (), {}, constants))


@dataclass(frozen=True)
class Mask:
    """A tensor of decisions: the value compared with zero, element by element, and the branches that lead to it."""

    value: str
    inside: Branches

    def margin(self, values: Mapping[str, np.ndarray]) -> float:
        """Distance from zero of the nearest element, in standard deviations of the tensor."""
        value = values[self.value]
        return float(np.abs(value).min() / max(float(value.std()), np.finfo(np.float32).tiny))


def masks(model: ModelProto) -> list[Mask]:
    """The float tensors that are compared with a constant zero for something else than a gate."""
    zeros = {
        tensor.name
        for tensor in model.graph.initializer
        if tensor.data_type == TensorProto.FLOAT and not tensor.dims and not numpy_helper.to_array(tensor).any()
    }
    deciding = {gate.compared[0] for gate in gates(model)}
    return [mask for mask in _masks(model.graph, (), zeros) if mask.value not in deciding]


def _masks(graph: GraphProto, inside: Branches, zeros: set[str]) -> Iterator[Mask]:
    for node in graph.node:
        if node.op_type in COMPARISONS and node.input[1] in zeros:
            yield Mask(node.input[0], inside)
        for branch, body in _branches(node):
            yield from _masks(body, (*inside, branch), zeros)


def _branches(node: NodeProto) -> list[tuple[tuple[str, bool], GraphProto]]:
    """The branches of an `If`, then first, each as (name, whether it is the then-branch)."""
    if node.op_type != "If":
        return []
    bodies = ((taken, helper.get_node_attr_value(node, name)) for name, taken in BRANCHES)
    return [((node.name, taken), body) for taken, body in bodies]


def reached(inside: Branches, path: Mapping[str, bool]) -> bool:
    """Whether a control path leads into all these branches."""
    return all(path.get(name) == taken for name, taken in inside)


def _gates(
    graph: GraphProto,
    inside: Branches,
    outer: Mapping[str, NodeProto],
    constants: Mapping[str, TensorProto],
) -> Iterator[Gate]:
    producers = {**outer, **{name: node for node in graph.node for name in node.output}}
    for node in graph.node:
        if node.op_type == "If":
            comparison, element = _comparison(node, producers, constants)
            compared = (comparison.input[0], comparison.input[1])
            yield Gate(node.name, node.input[0], compared, element, comparison.op_type.startswith("Greater"), inside)
            for branch, body in _branches(node):
                yield from _gates(body, (*inside, branch), producers, constants)


def _comparison(
    gate: NodeProto, producers: Mapping[str, NodeProto], constants: Mapping[str, TensorProto]
) -> tuple[NodeProto, int]:
    """The comparison behind a gate's predicate, and which of its elements decides."""
    node = producers.get(gate.input[0])
    element = 0
    while node is not None and node.op_type in FORWARDING:
        if node.op_type == "Gather":
            element = int(numpy_helper.to_array(constants[node.input[1]]).item())
        node = producers.get(node.input[0])
    if node is None or node.op_type not in COMPARISONS:
        found = "an input" if node is None else node.op_type
        raise ValueError(f"predicate of If {gate.name!r} comes from {found}: one of {', '.join(COMPARISONS)} is wanted")
    return node, element


def decisions(found: list[Gate], values: Mapping[str, np.ndarray]) -> dict[str, bool]:
    """The decision of every reached gate, by name, from values in which both branches were computed."""
    path: dict[str, bool] = {}
    for gate in found:
        if reached(gate.inside, path):
            path[gate.name] = bool(values[gate.predicate].item())
    return path


def path_string(found: list[Gate], path: Mapping[str, bool]) -> str:
    """One character per gate in order of execution: 1 then-branch, 0 else-branch, - not reached."""
    return "".join("-" if gate.name not in path else str(int(path[gate.name])) for gate in found)
