"""What a compiler without symbolic analysis knows: RDP's opponent under `fusion: static`.

Exactly what `onnx.shape_inference` proves of the same graph: ranks, constant dims, and which dims have one name. A dim
that it leaves open gets a name of its own, which operators that keep shapes hand on. It knows no expressions, to it the
result of a padded 3x3 convolution has other dims than its operand; and as it is called by default, no values that
exist at run time only: what a Reshape makes by a target computed from Shape has a rank, no more. With `values`, onnx
propagates such values as far as it can (`data_prop=True`): names go through Shape, Gather and Concat into a target.
Values are known of constants alone.

The flat graph is written as an ONNX model for this. Switch hands its operand on, Combine is an If whose branches hand
theirs on, LoopEnd a Loop whose body does; a loop's states come without a rank, as in onnx, because a body may change
it. Attention is spelled out, for onnx knows its parts, and GroupNormalization too, for older opsets have none; of other
operators that are not ONNX's it knows nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TypeProto, helper, numpy_helper

from sod2.analysis import Analysis
from sod2.graph import Graph, Loop, Node
from sod2.lattice import NAC
from sod2.minting import Minting
from sod2.ops.op import UNKNOWN_DTYPE, Fact
from sod2.symbolic import Dim, as_dim, symbol

_ANY_SHAPE = "any shape"  # the target of a Reshape whose result then has an element type but no rank
_LARGEST_VALUE = 1024  # elements of a constant whose value is shown to onnx; shape arithmetic is far smaller


def analyze(graph: Graph, *, values: bool = False) -> Analysis:
    """Shape and element type of every tensor as far as `onnx.shape_inference` proves them, with its data propagation
    or without."""
    names = {str(d): d for v in graph.inputs for d in v.shape or ()}
    inferred = onnx.shape_inference.infer_shapes(_model(graph), data_prop=values).graph
    facts = {t: Fact(UNKNOWN_DTYPE, NAC) for n in graph.nodes for t in n.outputs if t}
    found = [v for v in (*inferred.input, *inferred.value_info) if v.name != _ANY_SHAPE]
    facts |= {v.name: _fact(v.type.tensor_type, names) for v in found}
    facts |= {t: Fact(a.dtype, tuple(map(as_dim, a.shape)), a) for t, a in graph.constants.items()}
    reasons = {t: f"onnx.shape_inference finds no rank of {t!r}" for t, f in facts.items() if f.rank is None}
    return Analysis(graph, facts, (), reasons, Minting(graph, facts, {}))


def _fact(tensor: TypeProto.Tensor, names: Mapping[str, Dim]) -> Fact:
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else UNKNOWN_DTYPE
    return Fact(dtype, tuple(_dim(d, names) for d in tensor.shape.dim) if tensor.HasField("shape") else NAC)


def _dim(dim: onnx.TensorShapeProto.Dimension, names: Mapping[str, Dim]) -> Dim:
    if dim.HasField("dim_value"):
        return as_dim(dim.dim_value)
    return names[dim.dim_param] if dim.dim_param in names else symbol(dim.dim_param)


# ---- the graph as an ONNX model --------------------------------------------------------------------------------------


def _model(graph: Graph) -> onnx.ModelProto:
    """The graph's operators and small constants; large ones are inputs, whose values nothing reads."""
    small = {t: a for t, a in graph.constants.items() if a.size <= _LARGEST_VALUE}
    inputs = [_value(v.name, v.dtype, v.shape) for v in graph.inputs]
    inputs += [_value(t, a.dtype, a.shape) for t, a in graph.constants.items() if t not in small]
    inputs += [_value(iteration, np.dtype(np.int64), ()) for iteration in graph.loops]
    inputs += [_value(_ANY_SHAPE, np.dtype(np.int64), None)]
    nodes = [proto for node in graph.nodes for proto in _protos(graph, node)]
    stored = [numpy_helper.from_array(a, t) for t, a in small.items()]
    versions = {n.domain: 1 for n in graph.nodes} | {"": graph.opset}
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(helper.make_graph(nodes, graph.name, inputs, [], stored), opset_imports=opsets)


def _value(name: str, dtype: np.dtype[Any] | None, shape: Sequence[Dim | int] | None) -> onnx.ValueInfoProto:
    number = onnx.TensorProto.UNDEFINED if dtype is None else helper.np_dtype_to_tensor_dtype(dtype)
    dims = None if shape is None else [int(d) if as_dim(d).is_constant else str(d) for d in shape]
    return helper.make_tensor_value_info(name, number, dims)


def _protos(graph: Graph, node: Node) -> list[NodeProto]:
    """A node as ONNX has it."""
    if node.op == "LoopBegin":
        states = graph.loop_of(node).states
        return [helper.make_node("Reshape", [s.init, _ANY_SHAPE], [s.state]) for s in states]
    if node.op == "LoopEnd":
        return [_loop(graph.loop_of(node))]
    spelled = _SPELLED.get((node.domain, node.op))
    return [_proto(node)] if spelled is None else spelled(node)


def _proto(node: Node) -> NodeProto:
    proto = helper.make_node(node.op, node.inputs, node.outputs, node.name, domain=node.domain)
    for name, value in node.attrs.items():
        content = numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        kind = AttributeProto.INTS if value == [] else None  # helper tells the type of anything else
        proto.attribute.append(helper.make_attribute(name, content, attr_type=kind))
    return proto


def _switch(node: Node) -> list[NodeProto]:
    return [helper.make_node("Identity", [node.inputs[1]], [t]) for t in node.outputs if t]


def _same_shape(node: Node) -> list[NodeProto]:
    return [helper.make_node("Identity", node.inputs[:1], node.outputs)]


def _combine(node: Node) -> list[NodeProto]:
    (predicate, a, b), (result,) = node.inputs, node.outputs
    branches = {"then_branch": _hands_on(f"{result}:then", [a]), "else_branch": _hands_on(f"{result}:else", [b])}
    return [helper.make_node("If", [predicate], [result], **branches)]


def _loop(loop: Loop) -> NodeProto:
    """The loop around a body that hands on what the flat one computes."""
    name = loop.end.name
    given = [_value(f"{name}:{k}", None, None) for k in range(1 + len(loop.states))]
    return helper.make_node("Loop", loop.begin.inputs, loop.end.outputs, body=_hands_on(name, loop.end.inputs, given))


def _hands_on(name: str, tensors: Sequence[str], given: Sequence[onnx.ValueInfoProto] = ()) -> GraphProto:
    """A sub-graph whose outputs are tensors from outside."""
    results = [f"{name}.{k}" for k in range(len(tensors))]
    nodes = [helper.make_node("Identity", [t], [r]) for t, r in zip(tensors, results, strict=True)]
    return helper.make_graph(nodes, name, given, [_value(r, None, None) for r in results])


def _attention(node: Node) -> list[NodeProto]:
    """Softmax(Q K^T + mask) V of operands [batch, heads, rows, features], with the Transposes of the layouts."""
    (result,), (q, k, v, *rest) = node.outputs, node.inputs
    nodes = []

    def make(op: str, output: str, *inputs: str, **attrs: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"{result}:{output}"], **attrs))
        return f"{result}:{output}"

    def heads_first(operand: str, tensor: str, last: Sequence[int] = (2, 3)) -> str:
        first = [0, 2, 1, 3] if node.attrs.get(f"{operand}_layout") == "bshd" else [0, 1, 2, 3]
        return make("Transpose", operand, tensor, perm=[first[i] for i in (0, 1, *last)])

    scores = make("MatMul", "scores", heads_first("q", q), heads_first("k", k, last=(3, 2)))
    scores = make("Add", "masked", scores, rest[0]) if rest and rest[0] else scores
    product = make("MatMul", "product", scores, heads_first("v", v))
    perm = [0, 2, 1, 3] if node.attrs.get("o_layout") == "bshd" else [0, 1, 2, 3]
    nodes.append(helper.make_node("Transpose", [product], [result], perm=perm))
    return nodes


_SPELLED: dict[tuple[str, str], Callable[[Node], list[NodeProto]]] = {
    ("", "Switch"): _switch,
    ("", "Combine"): _combine,
    ("", "GroupNormalization"): _same_shape,
    ("sod2", "Attention"): _attention,
}
