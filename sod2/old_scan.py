"""Scan as it was in opset 8, with a batch dim before every operand: a Loop over the batch around a Scan of opset 9.

Limits: sequences of one length (`sequence_lens` is refused).
"""

import onnx
from onnx import helper

from sod2.errors import UnsupportedError


def batched(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with such a Loop for every Scan of its graph."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    for number, node in enumerate(model.graph.node):
        changed.graph.node.extend(_loop(node, f"scan{number}") if node.op_type == "Scan" else [node])
    return changed


def _loop(node: onnx.NodeProto, label: str) -> list[onnx.NodeProto]:
    lengths, *operands = node.input
    if lengths:
        raise UnsupportedError(f"node {node.name or node.output[0]!r} (Scan) has sequence_lens; opset 9 has none")
    first, shape, batch = (f"{label}:{name}" for name in ("zero", "shape", "batch"))
    return [
        helper.make_node("Constant", [], [first], value=helper.make_tensor(first, onnx.TensorProto.INT64, [], [0])),
        helper.make_node("Shape", [operands[-1]], [shape]),
        helper.make_node("Gather", [shape, first], [batch]),
        helper.make_node("Loop", [batch, ""], list(node.output), name=node.name, body=_body(node, operands, label)),
    ]


def _body(node: onnx.NodeProto, operands: list[str], label: str) -> onnx.GraphProto:
    """The Scan of one element of the batch, whose results the Loop stacks."""
    number, going, again = (f"{label}:{name}" for name in ("number", "going", "again"))
    slices = [f"{label}:in{k}" for k in range(len(operands))]
    results = [f"{label}:out{k}" for k in range(len(node.output))]
    scan = helper.make_node("Scan", slices, results, domain="sod2")  # out of the sight of the version converter
    for attribute in node.attribute:
        scan.attribute.add().CopyFrom(attribute)
        if attribute.name == "directions":
            scan.attribute[-1].name = "scan_input_directions"
    gathers = [helper.make_node("Gather", [x, number], [y], axis=0) for x, y in zip(operands, slices, strict=True)]
    same = helper.make_node("Identity", [going], [again])
    scalar = helper.make_tensor_value_info(number, onnx.TensorProto.INT64, [])
    condition = helper.make_tensor_value_info(going, onnx.TensorProto.BOOL, [])
    given = [onnx.ValueInfoProto(name=name) for name in (again, *results)]
    return helper.make_graph([*gathers, scan, same], label, [scalar, condition], given)
