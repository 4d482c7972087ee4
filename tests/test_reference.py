"""The oracle against onnxruntime on small graphs, and how it follows control flow."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from sod2.errors import InputError, UnsupportedError
from sod2.graph import Graph, Node, Value
from sod2.reference import run, run_all
from sod2.symbolic import as_dim, symbol

F32 = np.dtype(np.float32)


def graph(
    nodes: Sequence[Node], inputs: Mapping[str, Sequence[Any]], outputs: Sequence[str], **constants: Any
) -> Graph:
    """A graph of float32 inputs (a predicate is called `p...` and is bool); names stand for symbolic dims."""
    values = tuple(
        Value(
            name,
            np.dtype(np.bool_) if name.startswith("p") else F32,
            tuple(symbol(d) if isinstance(d, str) else as_dim(d) for d in dims),
        )
        for name, dims in inputs.items()
    )
    return Graph("g", values, tuple(outputs), tuple(nodes), {k: np.asarray(v) for k, v in constants.items()}, 18)


def node(text: str, guard: Sequence[tuple[str, bool]] = (), **attrs: Any) -> Node:
    """A node from "y, z = Op(a, b)"."""
    outputs, call = text.split(" = ")
    op, inputs = call.rstrip(")").split("(")
    return Node(outputs, op, tuple(inputs.split(", ")), tuple(outputs.split(", ")), attrs, tuple(guard))


def onnxruntime_run(g: Graph, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The same graph in onnxruntime; not for Switch and Combine."""
    nodes = [helper.make_node(n.op, n.inputs, n.outputs, **n.attrs) for n in g.nodes]
    inputs = [
        helper.make_tensor_value_info(v.name, helper.np_dtype_to_tensor_dtype(v.dtype), [None] * len(v.shape or ()))
        for v in g.inputs
    ]
    outputs = [helper.make_tensor_value_info(o, onnx.TensorProto.FLOAT, None) for o in g.outputs]
    constants = [numpy_helper.from_array(a, n) for n, a in g.constants.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, constants),
        opset_imports=[helper.make_opsetid("", g.opset)],
        ir_version=9,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def residual_block() -> Graph:
    """A block of a residual network, its head included."""
    random = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return (0.2 * random.standard_normal(shape)).astype(np.float32)

    nodes = [
        node("a = Conv(x, w1, b1)", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("r = Relu(a)"),
        node("c = Conv(r, w2)", pads=[1, 1, 1, 1], group=2),
        node("s = Add(c, a)"),
        node("m = MaxPool(s)", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("g = GlobalAveragePool(m)"),
        node("f = Flatten(g)"),
        node("y = Gemm(f, w3, b3)", transB=1),
        node("z = Softmax(y)", axis=-1),
    ]
    weights = {"w1": weight(6, 3, 3, 3), "b1": weight(6), "w2": weight(6, 3, 3, 3), "w3": weight(5, 6), "b3": weight(5)}
    return graph(nodes, {"x": ["n", 3, "h", "w"]}, ["y", "z"], **weights)


@pytest.mark.parametrize("shape", [(1, 3, 8, 9), (2, 3, 5, 5), (1, 3, 1, 1), (0, 3, 4, 4)])
def test_network_against_onnxruntime(shape: tuple[int, ...]) -> None:
    """A network of ordinary operators at several sizes."""
    g = residual_block()
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    for got, expected in zip(run(g, {"x": x}).values(), onnxruntime_run(g, {"x": x}), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def branches(nested: bool) -> Graph:
    """y = p ? -x : |x|; nested: y = p ? (q = any negative x) ? -x : exp(x) : |x|."""
    inside = [node("neg = Neg(x_then)", [("p", True)])]
    if nested:
        inside = [
            node("low = ReduceMin(x_then)", [("p", True)], keepdims=0),
            node("q = Less(low, zero)", [("p", True)]),
            node("x_in, x_out = Switch(q, x_then)", [("p", True)]),
            node("inner = Neg(x_in)", [("p", True), ("q", True)]),
            node("other = Exp(x_out)", [("p", True), ("q", False)]),
            node("neg = Combine(q, inner, other)", [("p", True)]),
        ]
    nodes = [
        node("x_then, x_else = Switch(p, x)"),
        *inside,
        node("abs = Abs(x_else)", [("p", False)]),
        node("y = Combine(p, neg, abs)"),
    ]
    return graph(nodes, {"x": ["n"], "p": []}, ["y"], zero=np.float32(0))


def test_only_the_taken_branch_runs() -> None:
    """Tensors of the other branch have no value."""
    x = np.array([-1, 2], np.float32)
    taken = run_all(branches(False), {"x": x, "p": np.array(True)})
    assert "neg" in taken and "x_then" in taken
    assert "abs" not in taken and "x_else" not in taken
    np.testing.assert_array_equal(taken["y"], -x)
    other = run_all(branches(False), {"x": x, "p": np.array(False)})
    assert "neg" not in other
    np.testing.assert_array_equal(other["y"], np.abs(x))


@pytest.mark.parametrize("p", [True, False])
@pytest.mark.parametrize("x", [[-1.0, 2.0], [1.0, 2.0]])
def test_nested_branches(p: bool, x: list[float]) -> None:
    """An inner predicate that was never computed is not asked for."""
    a = np.array(x, np.float32)
    expected = (-a if a.min() < 0 else np.exp(a)) if p else np.abs(a)
    got = run(branches(True), {"x": a, "p": np.array(p)})
    np.testing.assert_allclose(got["y"], expected, rtol=1e-6)


def test_predicate_of_one_element() -> None:
    """ONNX lets the predicate be a tensor of one element."""
    x = np.array([-3], np.float32)
    assert run(branches(False), {"x": x, "p": np.array([True])})["y"] == 3


def test_bad_input() -> None:
    """A missing input and an unknown operator are named."""
    g = branches(False)
    with pytest.raises(InputError, match=r"\['p', 'x'\]"):
        run(g, {"x": np.zeros(1, np.float32)})
    unknown = graph([node("y = Nonsense(x)")], {"x": [1]}, ["y"])
    with pytest.raises(UnsupportedError, match="Nonsense"):
        run(unknown, {"x": np.zeros(1, np.float32)})
