# /// script
# requires-python = ">=3.12"
# dependencies = [
#     "onnx2tf==2.6.9",
#     "ai-edge-litert==2.1.2",
#     "backports-strenum==1.3.1",
#     "flatbuffers==25.12.19",
#     "h5py==3.14.0",
#     "ml-dtypes==0.5.4",
#     "numpy==2.2.6",
#     "onnx==1.20.1",
#     "onnx-ir==1.1.0",
#     "onnxoptimizer==0.4.2",
#     "onnxruntime==1.26.0",
#     "onnxscript==0.6.2",
#     "onnxsim==0.6.5",
#     "opencv-python==4.13.0.92",
#     "protobuf==7.35.1",
#     "psutil==5.9.5",
#     "sne4onnx==2.0.1",
#     "sng4onnx==2.0.1",
#     "tqdm==4.67.1",
# ]
# ///
"""ONNX to TFLite for one set of input shapes and one path, as the paper ran TFLite; in an environment of its own.

    python tflite_convert.py MODEL.onnx OUT.tflite '[[1, 3, 224, 224]]' 0110

The shapes are those of the inputs in the model's order, the path has a character per `If` in order of execution: 1
keeps its then-branch, 0 its else-branch, anything else marks one that is not reached. Every branch that is not taken is
cut away, so the graph is static, and is simplified as such (onnxsim) before onnx2tf converts it. Inputs keep their
layout; outputs of four dimensions come out channels last.

onnx2tf 2.6.9 has no TFLite operator for the indices of a max pooling, which are dropped when nothing reads them, and
mixes up the widths of a sum over 64-bit integers, which is made in single precision (exact below 2^24).
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

Shapes = Sequence[Sequence[int]]


def fix(model: ModelProto, shapes: Shapes, path: str) -> None:
    """Give the inputs these shapes and cut every `If` down to the branch of the path, in place."""
    for value, shape in zip(model.graph.input, shapes, strict=True):
        for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
            dim.dim_value = size
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    del model.graph.value_info[:]
    nodes = [_copy(node) for node in _taken(model.graph, model.graph, iter(path))]
    needed = {value.name for value in model.graph.output}
    live = []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            live.append(node)
            needed.update(node.input)
    weights = [tensor for tensor in model.graph.initializer if tensor.name in needed]
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(reversed(live))
    model.graph.initializer.extend(weights)


def _taken(graph: GraphProto, top: GraphProto, path: Iterator[str]) -> Iterator[NodeProto]:
    """Nodes of a graph, with those of the branch taken in place of each `If`; weights of branches move to `top`."""
    for node in graph.node:
        if node.op_type != "If":
            yield node
            continue
        bodies = {a.name: a.g for a in node.attribute if a.type == AttributeProto.GRAPH}
        choice = next(path)
        # The path names the gates of both branches, then-branch first.
        parts = {name: list(_taken(bodies[name], top, path)) for name in ("then_branch", "else_branch")}
        body = bodies["then_branch" if choice == "1" else "else_branch"]
        yield from parts["then_branch" if choice == "1" else "else_branch"]
        top.initializer.extend(body.initializer)
        for inner, outer in zip(body.output, node.output, strict=True):
            yield helper.make_node("Identity", [inner.name], [outer])


def _copy(node: NodeProto) -> NodeProto:
    """A copy that outlives the graph which owns the node."""
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy


def mend(graph: GraphProto) -> None:
    """Replace what onnx2tf converts wrongly; for graphs with fixed shapes."""
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input)}
    nodes = []
    for node in graph.node:
        if node.op_type == "MaxPool" and len(node.output) == 2 and node.output[1] not in read:
            del node.output[1]
        wide = node.op_type == "CumSum" and types[node.input[0]] == TensorProto.INT64
        nodes += _float_sum(node) if wide else [_copy(node)]
    del graph.node[:]
    graph.node.extend(nodes)


def _float_sum(node: NodeProto) -> list[NodeProto]:
    """A CumSum of 64-bit integers by way of floats."""
    value, axis = node.input
    (result,) = node.output
    total = _copy(node)
    total.input[:] = [f"{result}_float", axis]
    total.output[:] = [f"{result}_total"]
    return [
        helper.make_node("Cast", [value], [f"{result}_float"], to=TensorProto.FLOAT),
        total,
        helper.make_node("Cast", [f"{result}_total"], [result], to=TensorProto.INT64),
    ]


def convert(model: ModelProto, out: Path) -> None:
    """Write a static model as TFLite in single precision."""
    import onnx2tf  # here, so that tests of the rest need only onnx  # noqa: PLC0415
    import onnxsim  # noqa: PLC0415

    simple, _ = onnxsim.simplify(model)
    mend(simple.graph)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        source = Path(folder) / "model.onnx"
        onnx.save(simple, source)  # onnx2tf rewrites the file that it is given
        onnx2tf.convert(
            input_onnx_file_path=str(source),
            output_folder_path=folder,
            keep_shape_absolutely_input_names=[value.name for value in simple.graph.input],
            not_use_onnxsim=True,
            non_verbose=True,
        )
        shutil.move(Path(folder) / "model_float32.tflite", out)


def main(arguments: Sequence[str]) -> None:
    """Convert one model; the file appears complete or not at all."""
    source, out, shapes, path = arguments
    model = onnx.load(source)
    fix(model, json.loads(shapes), path)
    convert(model, Path(out))


if __name__ == "__main__":
    main(sys.argv[1:])
