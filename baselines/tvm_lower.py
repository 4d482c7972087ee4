"""ONNX to ONNX for TVM: operators that its importer lacks or has no schedules for, written out by others.

* `LSTM` over a sequence of one step: matrix products and elementwise operators. Longer sequences are refused by name.
* `Pad` with zeros by computed sizes: a `Concat` with blocks of zeros.
* `ConvTranspose` whose kernel is its stride: a convolution.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from assembly import graphs  # type: ignore[import-not-found]  # of models/, copied beside this script
from onnx import GraphProto, NodeProto, helper, numpy_helper


def lower(model: onnx.ModelProto) -> None:
    """Replace what can be replaced, in place."""
    written_out = {"LSTM": _lstm_step, "Pad": _padded, "ConvTranspose": _transposed}
    for graph in graphs(model.graph):
        nodes: list[NodeProto] = []
        for node in graph.node:
            nodes += written_out.get(node.op_type, _kept)(graph, node)
        del graph.node[:]
        graph.node.extend(nodes)


def _kept(_: GraphProto, node: NodeProto) -> list[NodeProto]:
    """A copy, which outlives the graph that owns the node."""
    copy = NodeProto()
    copy.CopyFrom(node)
    return [copy]


def _settings(node: NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _lstm_step(graph: GraphProto, node: NodeProto) -> list[NodeProto]:
    """One step of an LSTM: gates = x W^T + h R^T + b in the order i, o, f, c."""
    attributes = _settings(node)
    inputs = [*node.input, *[""] * (8 - len(node.input))]
    x, w, r, b, lengths, h, c, peepholes = inputs
    known = attributes.get("direction", b"forward") == b"forward" and not attributes.get("layout", 0)
    plain = not lengths and not peepholes and "activations" not in attributes and "clip" not in attributes
    if not (known and plain and b):
        raise NotImplementedError(f"LSTM '{node.name}' is not a plain forward one with a bias")
    p = f"{node.name}_step_"
    _add_constants(graph, {"lstm_axis_0": np.array([0]), "lstm_axes_01": np.array([0, 1])})
    nodes = [
        # Squeeze fails on sequences of more than one step.
        helper.make_node("Squeeze", [x, "lstm_axis_0"], [p + "x"]),
        helper.make_node("Squeeze", [w, "lstm_axis_0"], [p + "w"]),
        helper.make_node("Squeeze", [b, "lstm_axis_0"], [p + "b"]),
        helper.make_node("Split", [p + "b"], [p + "wb", p + "rb"], axis=0, num_outputs=2),
        helper.make_node("Add", [p + "wb", p + "rb"], [p + "bias"]),
        helper.make_node("Gemm", [p + "x", p + "w", p + "bias"], [p + "input"], transB=1),
    ]
    gates = p + "input"
    if h:
        nodes += [
            helper.make_node("Squeeze", [h, "lstm_axis_0"], [p + "h"]),
            helper.make_node("Squeeze", [r, "lstm_axis_0"], [p + "r"]),
            helper.make_node("Gemm", [p + "h", p + "r", gates], [p + "gates"], transB=1),
        ]
        gates = p + "gates"
    names = [p + gate for gate in ("i", "o", "f", "g")]
    nodes.append(helper.make_node("Split", [gates], names, axis=1, num_outputs=4))
    nodes += [helper.make_node("Sigmoid", [name], [name + "_open"]) for name in names[:3]]
    nodes.append(helper.make_node("Tanh", [p + "g"], [p + "g_value"]))
    nodes.append(helper.make_node("Mul", [p + "i_open", p + "g_value"], [p + "new"]))
    cell = p + "new"
    if c:
        nodes += [
            helper.make_node("Squeeze", [c, "lstm_axis_0"], [p + "c"]),
            helper.make_node("Mul", [p + "f_open", p + "c"], [p + "kept"]),
            helper.make_node("Add", [p + "kept", p + "new"], [p + "cell"]),
        ]
        cell = p + "cell"
    nodes.append(helper.make_node("Tanh", [cell], [p + "squashed"]))
    nodes.append(helper.make_node("Mul", [p + "o_open", p + "squashed"], [p + "hidden"]))
    results = [(p + "hidden", "lstm_axes_01"), (p + "hidden", "lstm_axis_0"), (cell, "lstm_axis_0")]
    for output, (value, axes) in zip(node.output, results, strict=False):
        if output:
            nodes.append(helper.make_node("Unsqueeze", [value, axes], [output]))
    return nodes


def _padded(graph: GraphProto, node: NodeProto) -> list[NodeProto]:
    """A Pad by sizes that a Concat computes, none negative: one edge after the other without those known to be 0."""
    sizes = {other.output[0]: list(other.input) for other in graph.node if other.op_type == "Concat"}
    plain = len(node.input) == 2 and _settings(node).get("mode", b"constant") == b"constant"
    if not plain or node.input[1] not in sizes:
        return _kept(graph, node)
    zeros = {tensor.name for tensor in graph.initializer if not numpy_helper.to_array(tensor).any()}
    edges = sizes[node.input[1]]
    value, rank = node.input[0], len(edges) // 2
    nodes = []
    for k, size in enumerate(edges):
        if size in zeros:
            continue
        axis, p = k % rank, f"{node.output[0]}_edge_{k}_"
        parts = [p + "zeros", value] if k < rank else [value, p + "zeros"]
        nodes += [
            helper.make_node("Shape", [value], [p + "outer"], start=0, end=axis),
            helper.make_node("Shape", [value], [p + "inner"], start=axis + 1),
            helper.make_node("Concat", [p + "outer", size, p + "inner"], [p + "shape"], axis=0),
            helper.make_node("ConstantOfShape", [p + "shape"], [p + "zeros"]),
            helper.make_node("Concat", parts, [p + "padded"], axis=axis),
        ]
        value = p + "padded"
    return [*nodes, helper.make_node("Identity", [value], list(node.output))]


def _transposed(graph: GraphProto, node: NodeProto) -> list[NodeProto]:
    """A ConvTranspose whose kernel is its stride as a 1x1 convolution to the pixels of each block: equal arithmetic."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    plain = len(node.input) == 3 and set(node.input[1:]) <= set(constants)
    if not plain or not _disjoint(_settings(node), list(constants[node.input[1]].dims)):
        return _kept(graph, node)
    weight, bias = (numpy_helper.to_array(constants[name]) for name in node.input[1:])
    channels, _, size, _ = weight.shape
    flat = np.ascontiguousarray(weight.reshape(channels, -1).T.reshape(-1, channels, 1, 1))
    p = f"{node.output[0]}_blocks_"
    _add_constants(graph, {p + "weight": flat, p + "bias": np.repeat(bias, size * size)})
    return [
        helper.make_node("Conv", [node.input[0], p + "weight", p + "bias"], [p + "depth"]),
        helper.make_node("DepthToSpace", [p + "depth"], list(node.output), blocksize=size, mode="CRD"),
    ]


def _add_constants(graph: GraphProto, values: Mapping[str, np.ndarray]) -> None:
    """Initializers of the graph, unless it has them already."""
    known = {tensor.name for tensor in graph.initializer}
    graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in values.items() if name not in known)


def _disjoint(settings: dict[str, Any], shape: list[int]) -> bool:
    """Whether a transposed convolution writes every pixel once: square kernel = stride, nothing else set."""
    kernel = shape[2:]
    return (
        len(kernel) == 2
        and kernel[0] == kernel[1]
        and list(settings.get("strides", [1, 1])) == kernel
        and settings.get("group", 1) == 1
        and not any(settings.get("pads", []))
        and not any(settings.get("output_padding", []))
        and set(settings.get("dilations", [1])) == {1}
    )
