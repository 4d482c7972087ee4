"""Multiply-adds of a model at given inputs, counted node by node from the shapes at run time.

Convolutions, matrix products and LSTMs count; everything else is free, which is the convention of published GMAC
figures. `macs` counts every node once, those of both branches of an `If` included; `executed` leaves out the branches
that a control path does not take. A node in the body of a `Loop` counts at every step.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper

from models.assembly import subgraphs
from models.execute_all import walk
from models.probe import Probe, Shape


def _conv(node: NodeProto, shapes: list[Shape]) -> int:
    return math.prod(shapes[-1]) * math.prod(shapes[1][1:])


def _conv_transpose(node: NodeProto, shapes: list[Shape]) -> int:
    return math.prod(shapes[0]) * math.prod(shapes[1][1:])


def _matmul(node: NodeProto, shapes: list[Shape]) -> int:
    return math.prod(shapes[-1]) * shapes[0][-1]


def _gemm(node: NodeProto, shapes: list[Shape]) -> int:
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return math.prod(shapes[-1]) * shapes[0][0 if transposed else 1]


def _lstm(node: NodeProto, shapes: list[Shape]) -> int:
    layout = next((attribute.i for attribute in node.attribute if attribute.name == "layout"), 0)
    if layout:
        raise ValueError(f"LSTM {node.name!r} has layout {layout}: multiply-adds are counted for layout 0")
    (steps, batch, width), (directions, rows, hidden) = shapes[0], shapes[2]
    return steps * batch * directions * rows * (width + hidden)


def _einsum(node: NodeProto, shapes: list[Shape]) -> int:
    """The product of all the lengths that the equation names."""
    equation = next(attribute.s.decode() for attribute in node.attribute if attribute.name == "equation")
    terms = equation.replace(" ", "").split("->")[0].split(",")
    lengths = {axis: n for term, shape in zip(terms, shapes, strict=False) for axis, n in zip(term, shape, strict=True)}
    return math.prod(lengths.values())


# For each counted operator its formula over the shapes of its data and weights and, last, of its first output.
COUNTED: dict[str, Callable[[NodeProto, list[Shape]], int]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "LSTM": _lstm,
}


def _operands(node: NodeProto) -> list[str]:
    weights = 3 if node.op_type == "LSTM" else 2
    output = next(name for name in node.output if name)
    return [*node.input[:weights], output]


def counted_nodes(model: ModelProto) -> list[NodeProto]:
    """The nodes whose multiply-adds count, of all branches."""
    return [node for node in walk(model.graph) if node.op_type in COUNTED]


def shaped_values(model: ModelProto) -> list[str]:
    """The values whose run-time shapes `count` reads."""
    return [name for node in counted_nodes(model) for name in _operands(node)]


def count(model: ModelProto, shapes: Mapping[str, Shape | list[Shape]]) -> dict[str, int]:
    """Multiply-adds by node name, from the shapes of `shaped_values`."""
    return {node.name: _count(node, [shapes[name] for name in _operands(node)]) for node in counted_nodes(model)}


def _count(node: NodeProto, operands: list[Shape | list[Shape]]) -> int:
    """Multiply-adds of one node, summed over the steps if it is in a loop."""
    formula = COUNTED[node.op_type]
    steps = next((len(operand) for operand in operands if isinstance(operand, list)), None)
    if steps is None:
        return formula(node, [operand for operand in operands if not isinstance(operand, list)])
    columns = [operand if isinstance(operand, list) else [operand] * steps for operand in operands]
    return sum(formula(node, list(shapes)) for shapes in zip(*columns, strict=True))


def macs(model: ModelProto, inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Multiply-adds by node name for one set of inputs; runs the model once."""
    _, shapes = Probe(model, shaped=shaped_values(model)).run(inputs)
    return count(model, shapes)


def executed(model: ModelProto, counts: Mapping[str, int], path: Mapping[str, bool]) -> int:
    """Multiply-adds on a control path: `path` says for the name of each reached `If` whether its predicate holds."""

    def total(graph: GraphProto) -> int:
        amount = 0
        for node in graph.node:
            amount += counts.get(node.name, 0)
            if node.op_type == "If":
                branch = "then_branch" if path[node.name] else "else_branch"
                amount += total(helper.get_node_attr_value(node, branch))
            else:
                amount += sum(total(body) for body in subgraphs(node))
        return amount

    return total(model.graph)
