"""The oracle: runs a graph node by node with every operator's numpy `reference`.

Control flow is followed as at run time: a node runs when every predicate of its guard has the given value, Switch
forwards its operand to the output of the taken branch, Combine takes the operand of the taken branch. Tensors of
branches that were not taken have no value and are missing from the result. Nothing is freed: meant for tests.
"""

from collections.abc import Mapping

import numpy as np

from sod2.errors import InputError, UnsupportedError
from sod2.graph import Array, Graph, Node
from sod2.ops import OPS


def run(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The graph's outputs by name, in the graph's order, for input arrays by name.

    Raises InputError for a missing or unknown input, UnsupportedError for an operator without a reference.
    """
    values = run_all(graph, inputs)
    return {name: values[name] for name in graph.outputs}


def run_all(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every tensor that has a value: inputs, constants and the outputs of the nodes that ran."""
    expected = {v.name for v in graph.inputs}
    if expected != set(inputs):
        raise InputError(f"inputs {sorted(inputs)} are given; the graph takes {sorted(expected)}")
    values: dict[str, Array] = {**graph.constants, **inputs}
    for node in graph.nodes:
        if taken(node, values):
            values.update(outputs(node, values))
    return values


def taken(node: Node, values: Mapping[str, Array]) -> bool:
    """Whether the branches around a node are taken; inner predicates have no value when an outer one fails."""
    return all(bool(values[predicate].item()) == expected for predicate, expected in node.guard)


def outputs(node: Node, values: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors that a node writes."""
    if node.op == "Switch":
        predicate, tensor = node.inputs
        name = node.outputs[0 if values[predicate].item() else 1]
        return {name: values[tensor]} if name else {}
    if node.op == "Combine":
        predicate, a, b = node.inputs
        return {node.outputs[0]: values[a if values[predicate].item() else b]}
    arrays = [values[t] if t else None for t in node.inputs]
    results = OPS(node).reference(node, *arrays)
    if len(results) != len(node.outputs):
        raise UnsupportedError(
            f"the reference of {node.op} (node {node.name!r}) gives {len(results)} of {len(node.outputs)} outputs"
        )
    return {t: np.asarray(r) for t, r in zip(node.outputs, results, strict=True) if t}
