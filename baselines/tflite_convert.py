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

    python tflite_convert.py MODEL.onnx [REQUEST...]

A request is the JSON {"out", "shapes", "path"}; without arguments each line of the input is one. It is answered by
{"done": true} or {"error"} on a line. One process converts all samples of a model, since importing the converter and
reading the model take as long as a conversion.

The shapes are those of the inputs in the model's order, the path has a character per `If` in order of execution: 1
keeps its then-branch, 0 its else-branch, anything else marks one that is not reached. Every branch that is not taken is
cut away, so the graph is static, and is simplified as such (onnxsim) before onnx2tf converts it. What the gates decide
is still computed, as by any engine that does not know it before: each `If` that is reached leaves its predicate as one
more output. Inputs keep their layout; outputs of four dimensions come out channels last.

A request {"out", "source", "budget"} is another: the TFLite file `source` is changed to keep no more than `budget`
bytes of intermediates (tflite_remat.py), and the answer says how many live at once before and after,
{"done": [bytes, bytes]}.

Of onnx2tf, the steps that lead to the single-precision file are called one by one: its own entry also writes the model
in half precision, which doubles the time. onnx2tf 2.6.9 has no TFLite operator for the indices of a max pooling, which
are dropped when nothing reads them, and mixes up the widths of a sum over 64-bit integers, which is made in single
precision (exact below 2^24). It makes a BATCH_MATMUL of every MatMul, also of one by a matrix of weights, of which the
built-in kernel keeps a transposed copy and takes ten times as long as FULLY_CONNECTED: those are written as Gemm. A
product of two constants, which the simplifier leaves where the weights stand aside of it, is computed here. Of an LSTM
whose initial states are constant or none, onnx2tf makes an operator that keeps its states from one inference to the
next, and writes it wrongly: such an LSTM gets zeros that are computed.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Shapes = Sequence[Sequence[int]]

LARGE = 1 << 16
"""Bytes of a weight from which it stands aside of the simplifier."""
KEPT_BYTES = 1 << 30
"""Files of a model that are kept, newest first; the models of some have half a gigabyte each."""
GATE, ONE = "gate", "one_element"
"""The name of the nodes that read predicates, and their shape."""
UNMERGED = {"MatMul", "Gemm", "Gather"}
"""Operators into whose operands the simplifier merges nothing."""


def fix(model: ModelProto, shapes: Shapes, path: str) -> None:
    """Give the inputs these shapes and cut every `If` down to the branch of the path, in place."""
    for value, shape in zip(model.graph.input, shapes, strict=True):
        for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
            dim.dim_value = size
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    del model.graph.value_info[:]
    model.graph.initializer.append(helper.make_tensor(ONE, TensorProto.INT64, [1], [1]))
    nodes = [_copy(node) for node in _taken(model.graph, model.graph, iter(path))]
    gates = [node.output[0] for node in nodes if node.name == GATE]
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.BOOL, [1]) for name in gates)
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
    """Nodes of a graph, with a node GATE that reads the predicate and those of the branch taken in place of each `If`;
    weights of branches move to `top`."""
    for node in graph.node:
        if node.op_type != "If":
            yield node
            continue
        bodies = {a.name: a.g for a in node.attribute if a.type == AttributeProto.GRAPH}
        yield helper.make_node("Reshape", [node.input[0], ONE], [f"{node.output[0]}_decision"], GATE)
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
    """Replace what onnx2tf converts wrongly or badly; for graphs with fixed shapes."""
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    values = (*graph.value_info, *graph.input, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    matrices = {name for name, tensor in weights.items() if len(tensor.dims) == 2}
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "MatMul" and weights.keys() >= set(node.input):
            left, right = (numpy_helper.to_array(weights[name]) for name in node.input)
            graph.initializer.append(numpy_helper.from_array(left @ right, node.output[0]))
            continue
        if node.op_type == "MatMul" and node.input[1] in matrices and len(shapes[node.input[0]]) > 2:
            nodes += _linear(graph, node, shapes[node.input[0]], shapes[node.output[0]])
            continue
        if node.op_type == "MaxPool" and len(node.output) == 2 and node.output[1] not in read:
            del node.output[1]
        if node.op_type == "LSTM" and len(node.input) < 6:
            nodes += _with_states(graph, node, shapes[node.input[0]])
            continue
        wide = node.op_type == "CumSum" and types[node.input[0]] == TensorProto.INT64
        nodes += _float_sum(node) if wide else [_copy(node)]
    del graph.node[:]
    graph.node.extend(nodes)


def _linear(graph: GraphProto, node: NodeProto, rows: list[int], result: list[int]) -> list[NodeProto]:
    """The product of a stack of rows, of which the result has this shape, with a matrix of weights, as a Gemm."""
    (name,) = node.output
    for shape, suffix in (([-1, rows[-1]], "rows"), (result, "shape")):
        graph.initializer.append(helper.make_tensor(f"{name}_{suffix}", TensorProto.INT64, [len(shape)], shape))
    return [
        helper.make_node("Reshape", [node.input[0], f"{name}_rows"], [f"{name}_flat"]),
        helper.make_node("Gemm", [f"{name}_flat", node.input[1]], [f"{name}_product"]),
        helper.make_node("Reshape", [f"{name}_product", f"{name}_shape"], [name]),
    ]


def _with_states(graph: GraphProto, node: NodeProto, sequence: list[int]) -> list[NodeProto]:
    """An LSTM over a sequence of this shape with initial states: zeros, multiplied by what no folding knows."""
    width = next(a.i for a in node.attribute if a.name == "hidden_size")
    directions = 2 if any(a.name == "direction" and a.s == b"bidirectional" for a in node.attribute) else 1
    name = f"{node.output[0]}_states"
    zeros = np.zeros((directions, sequence[1], width), np.float32)
    graph.initializer.append(numpy_helper.from_array(zeros, f"{name}_zeros"))
    stateful = _copy(node)
    stateful.input.extend([*["", ""][len(node.input) - 3 :], name, name])  # no bias, no lengths
    return [
        helper.make_node("ReduceSum", [node.input[0]], [f"{name}_sum"]),
        helper.make_node("Mul", [f"{name}_sum", f"{name}_zeros"], [name]),
        stateful,
    ]


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


def simplify(model: ModelProto) -> ModelProto:
    """The static model with constants folded and BatchNorm merged into convolutions.

    Large operands of matrix products and gathers stand aside as inputs: nothing merges into them, and copying them
    through the simplifier takes longer than everything else it does.
    """
    import onnxsim  # here, so that tests of the rest need only onnx  # noqa: PLC0415

    readers: dict[str, set[str]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, set()).add(node.op_type)
    apart, kept = [], []
    for tensor in model.graph.initializer:
        aside = len(tensor.raw_data) > LARGE and readers[tensor.name] <= UNMERGED
        (apart if aside else kept).append(tensor)
    inputs = len(model.graph.input)
    model.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in apart)
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    simple, _ = onnxsim.simplify(model)
    del simple.graph.input[inputs:]
    simple.graph.initializer.extend(apart)
    return simple  # type: ignore[no-any-return]


def convert(model: ModelProto, out: Path) -> None:
    """Write a static model as TFLite in single precision; the file appears complete or not at all."""
    from onnx2tf import tflite_builder as onnx2tf  # noqa: PLC0415

    model = simplify(model)
    mend(model.graph)
    onnx2tf.register_default_preprocess_rules()
    model, _ = onnx2tf.run_preprocess_pipeline(onnx_graph=model)
    lowered = onnx2tf.lower_onnx_to_ir(
        onnx_graph=model,
        output_file_name=out.stem,
        transpose_inputs_to_nhwc=True,
        keep_shape_absolutely_input_names=[value.name for value in model.graph.input],
        show_progress=False,
    )
    lowered = onnx2tf.clone_model_ir_with_float32(lowered)
    onnx2tf.prune_identity_cast_operators(lowered, preserve_model_outputs=True)
    onnx2tf.optimize_redundant_transpose_operators(lowered, preserve_model_outputs=True)
    index = onnx2tf.ModelIRGraphIndex(lowered)
    onnx2tf._optimize_constant_binary_elementwise_chains(lowered, graph_index=index)
    onnx2tf.run_model_ir_validation_pipeline(lowered, graph_index=index)
    part = out.with_suffix(".part")
    schema = onnx2tf.load_schema_module(str(out.parent))
    onnx2tf.write_model_file(schema_tflite=schema, model_ir=lowered, output_tflite_path=str(part))
    part.replace(out)


def answer(model: ModelProto, request: dict[str, Any]) -> object:
    """Do what is asked, and make room by removing the oldest files of the folder."""
    out = Path(request["out"])
    if "budget" in request:
        from tflite_remat import rewrite  # type: ignore[import-not-found]  # noqa: PLC0415

        return rewrite(Path(request["source"]), out, request["budget"])
    fixed = ModelProto()
    fixed.CopyFrom(model)
    fix(fixed, request["shapes"], request["path"])
    convert(fixed, out)
    files = sorted(out.parent.glob("*.tflite"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for file, size in zip(files, itertools.accumulate(path.stat().st_size for path in files), strict=True):
        if size > KEPT_BYTES and file != out:
            file.unlink()
    return True


def serve(source: Path, requests: Iterable[str], answers: TextIO) -> None:
    """Convert a model as often as asked."""
    model = onnx.load(source)
    for line in requests:
        try:
            result: dict[str, object] = {"done": answer(model, json.loads(line))}
        except Exception as error:  # whatever a converter of a hundred thousand lines may raise
            result = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
        answers.write(json.dumps(result) + "\n")
        answers.flush()


if __name__ == "__main__":
    output = os.fdopen(os.dup(1), "w")  # for answers alone: whatever else prints goes to standard error
    os.dup2(2, 1)
    serve(Path(sys.argv[1]), sys.argv[2:] or sys.stdin, output)
