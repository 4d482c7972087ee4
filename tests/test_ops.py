"""Every rule of every operator on the operator's own examples, each against an independent oracle.

Shapes and values are compared with numpy's results, numpy with ONNX Runtime. Symbolic runs replace each dim (or each
element of an integer input) by a symbol of its own and evaluate the result: a rule may say that it doesn't know, but
what it says must be true wherever its guards hold.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from sod2.graph import Node
from sod2.lattice import NAC, Nac, Undef
from sod2.ops import OPS, Fact, Op
from sod2.ops.slice import Slice
from sod2.symbolic import Dim, as_dim, eq, evaluate, symbol

# What onnxruntime 1.32 does otherwise than the standard, or refuses.
DEVIATIONS = {
    "Slice-9",  # a step of -1 up to INT32_MAX gives everything; by the standard the slice is empty
    "MaxUnpool-1",  # indices count in the given output shape; by the standard in the tensor that was pooled
    "LRN-1",  # an even size is refused
    "OneHot-4",  # a scalar index is refused
    "BitShift-8",  # signed integers, Mod of floats with the divisor's sign and SpaceToDepth's mode are of opset 28
    "BitShift-9",
    "Mod-3",
    "SpaceToDepth-1",
}
OPSET = min(onnx.defs.onnx_opset_version(), 27)  # the newest of onnxruntime 1.32


@dataclass(frozen=True)
class Case:
    """One example of one operator."""

    op: Op
    node: Node
    arrays: tuple[np.ndarray | None, ...]

    def expected(self) -> list[np.ndarray]:
        return self.op.reference(self.node, *self.arrays)


def _output_count(op: Op, attrs: Mapping[str, Any], arrays: Sequence[np.ndarray | None]) -> int:
    if op.name == "Split":
        return attrs["num_outputs"] if "num_outputs" in attrs else arrays[1].size
    node = Node("n", op.name, tuple(f"x{i}" for i in range(len(arrays))), ("y0",), attrs)
    return len(op.reference(node, *arrays))


def _cases() -> Iterator[Any]:
    for (domain, name), op in sorted(OPS.table.items()):
        for i, (attrs, arrays) in enumerate(op.examples()):
            inputs = tuple("" if a is None else f"x{k}" for k, a in enumerate(arrays))
            outputs = tuple(f"y{k}" for k in range(_output_count(op, attrs, arrays)))
            case = Case(op, Node("n", name, inputs, outputs, attrs, (), domain), tuple(arrays))
            yield pytest.param(case, id=f"{domain}{name}-{i}")


CASES = list(_cases())
each_case = pytest.mark.parametrize("case", CASES)


def concrete_fact(array: np.ndarray | None) -> Fact | None:
    return None if array is None else Fact(array.dtype, tuple(map(as_dim, array.shape)), array)


def concrete_facts(case: Case) -> list[Fact | None]:
    return [concrete_fact(a) for a in case.arrays]


def symbolic_facts(case: Case) -> tuple[list[Fact | None], dict[str, int]]:
    """Every dim a symbol, except of the inputs whose values the shape reads."""
    facts: list[Fact | None] = []
    env: dict[str, int] = {}
    for i, array in enumerate(case.arrays):
        if array is None or i in case.op.shape_inputs:
            facts.append(concrete_fact(array))
            continue
        names = [f"i{i}d{k}" for k in range(array.ndim)]
        env.update(zip(names, array.shape, strict=True))
        facts.append(Fact(array.dtype, tuple(map(symbol, names))))
    return facts, env


def symbolic_values(case: Case) -> tuple[list[Fact | None], dict[str, int]]:
    """Every element of every integer input a symbol; floating-point and large inputs stay numbers."""
    facts: list[Fact | None] = []
    env: dict[str, int] = {}
    for i, array in enumerate(case.arrays):
        if array is None or array.dtype.kind not in "iub" or array.size > 64:
            facts.append(concrete_fact(array))
            continue
        value = np.empty(array.shape, dtype=object)
        for k, position in enumerate(np.ndindex(array.shape)):
            number = int(array[position])
            env[f"v{i}e{k}"] = number
            value[position] = symbol(f"v{i}e{k}", min(0, number))
        facts.append(Fact(array.dtype, tuple(map(as_dim, array.shape)), value))
    return facts, env


def output_facts(case: Case, x: Sequence[Fact | None]) -> list[Fact]:
    """Outputs' facts as RDP fills them in: dtype, shape, then value."""
    y = [Fact(t, s) for t, s in zip(case.op.dtype(case.node, x), case.op.shape(case.node, x), strict=True)]
    values = case.op.value(case.node, x, y)
    return [Fact(f.dtype, f.shape, v) for f, v in zip(y, values, strict=True)]


def guards_hold(case: Case, x: Sequence[Fact | None], y: Sequence[Fact], env: Mapping[str, int]) -> bool:
    return all(evaluate(a, env) == evaluate(b, env) for a, b in case.op.guards(case.node, x, y))


def assert_dims(shape: Any, expected: tuple[int, ...], env: Mapping[str, int]) -> int:
    """Whatever is claimed about the shape is true; returns the number of dims that are left open."""
    if not isinstance(shape, tuple):
        return len(expected) + 1
    assert len(shape) == len(expected)
    known = [(d, n) for d, n in zip(shape, expected, strict=True) if isinstance(d, Dim)]
    assert [evaluate(d, env) for d, _ in known] == [n for _, n in known]
    return len(expected) - len(known)


def assert_value(value: Any, expected: np.ndarray, env: Mapping[str, int]) -> None:
    """Whatever is claimed about the elements is true."""
    if isinstance(value, Nac | Undef):
        return
    assert value.shape == expected.shape
    if value.dtype != object:
        np.testing.assert_array_equal(value, expected)
        return
    for claimed, number in zip(value.flat, expected.flat, strict=True):
        if isinstance(claimed, Dim):
            assert evaluate(claimed, env) == number


@each_case
def test_shape_at_concrete_dims(case: Case) -> None:
    """Dtype, shape and value are exactly numpy's, and the guards accept the example."""
    x = concrete_facts(case)
    y = output_facts(case, x)
    for fact, expected in zip(y, case.expected(), strict=True):
        assert fact.dtype == expected.dtype
        opened = assert_dims(fact.shape, expected.shape, {})
        assert opened == 0 or case.op.execution
        assert_value(fact.value, expected, {})
    assert guards_hold(case, x, y, {})


def may_stay_open(case: Case) -> bool:
    """Examples whose shape isn't an expression over the dims: ranks that depend on a dim, scales that aren't dyadic."""
    if case.op.name == "Squeeze":
        return len(case.arrays) < 2
    if case.op.name == "GatherND":
        return True
    if case.op.name == "Resize" and len(case.arrays) == 3:
        return any((float(s) * 64) % 1 for s in case.arrays[2])
    return case.op.execution


@each_case
def test_shape_at_symbolic_dims(case: Case) -> None:
    """With a symbol for every dim the shape is known, and evaluates to numpy's."""
    x, env = symbolic_facts(case)
    y = output_facts(case, x)
    for fact, expected in zip(y, case.expected(), strict=True):
        opened = assert_dims(fact.shape, expected.shape, env)
        assert opened == 0 or may_stay_open(case)
        assert_value(fact.value, expected, env)
    assert guards_hold(case, x, y, env)


@each_case
def test_symbolic_values(case: Case) -> None:
    """With a symbol for every integer element, what is claimed holds wherever the guards do."""
    x, env = symbolic_values(case)
    y = output_facts(case, x)
    if not guards_hold(case, x, y, env):
        return
    for fact, expected in zip(y, case.expected(), strict=True):
        assert_dims(fact.shape, expected.shape, env)
        assert_value(fact.value, expected, env)


def unknown(fact: Fact | None) -> Fact | None:
    """The same rank and nothing else."""
    return None if fact is None else Fact(fact.dtype, (NAC,) * len(fact.dims))


@each_case
def test_backward_against_forward(case: Case) -> None:
    """From the outputs' shapes, with each input's dims unknown in turn and together, only truths follow."""
    y = [concrete_fact(a) for a in case.expected()]
    known = concrete_facts(case)
    symbolic, env = symbolic_facts(case)
    for i, fact in enumerate(known):
        if fact is None:
            continue
        for base in (known, symbolic):
            check_claims(case, [*base[:i], unknown(fact), *base[i + 1 :]], y, env)
    check_claims(case, [unknown(f) for f in known], y, env)


def check_claims(case: Case, x: list[Fact | None], y: Sequence[Fact | None], env: Mapping[str, int]) -> None:
    claims = case.op.shape_back(case.node, x, y)
    assert len(claims) == len(case.node.inputs)
    for claim, array in zip(claims, case.arrays, strict=True):
        if array is not None:
            assert_dims(claim, array.shape, env)


def _attribute(value: Any) -> Any:
    return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value


def _model(case: Case) -> bytes:
    attrs = {k: _attribute(v) for k, v in case.node.attrs.items()}
    node = helper.make_node(case.op.name, case.node.inputs, case.node.outputs, domain=case.node.domain, **attrs)

    def info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    inputs = [info(n, a) for n, a in zip(case.node.inputs, case.arrays, strict=True) if a is not None]
    outputs = [info(n, a) for n, a in zip(case.node.outputs, case.expected(), strict=True)]
    graph = helper.make_graph([node], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return model.SerializeToString()


@pytest.mark.parametrize("case", [c for c in CASES if c.id not in DEVIATIONS])
def test_reference_against_onnxruntime(case: Case) -> None:
    """numpy's results are those of onnxruntime, where it has a kernel and follows the standard."""
    if case.node.domain or not onnx.defs.has(case.op.name):
        pytest.skip("not an ONNX operator")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(_model(case), options, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
        pytest.skip(f"onnxruntime has no kernel: {error}")
    feeds = {n: a for n, a in zip(case.node.inputs, case.arrays, strict=True) if a is not None}
    for got, expected in zip(session.run(None, feeds), case.expected(), strict=True):
        assert got.shape == expected.shape
        assert got.dtype == expected.dtype
        scale = np.abs(expected[np.isfinite(expected)], dtype=np.float64).max(initial=1.0)
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6 * scale if expected.dtype.kind == "f" else 0)


def test_dynamism_is_derived() -> None:
    """Table 2 of the paper: Reshape is ISVDOS, and ISDOS once its target is known; Shape is ISDO."""
    x = Fact(np.dtype("float32"), (symbol("n"), as_dim(4)))
    target = Fact(np.dtype("int64"), (as_dim(2),))
    node = Node("n", "Reshape", ("x", "s"), ("y",))
    op = OPS(node)
    assert op.dynamism(node, [x, target]).name == "ISVDOS"
    assert op.dynamism(node, [x, Fact(target.dtype, target.shape, np.array([2, -1]))]).name == "ISDOS"
    shape = Node("n", "Shape", ("x",), ("y",))
    assert OPS(shape).dynamism(shape, [x]).name == "ISDO"


def test_broadcast_never_takes_a_side() -> None:
    """Two distinct symbols broadcast to neither; either being 1 gives the other."""
    a, b = symbol("a"), symbol("b")
    node = Node("n", "Add", ("x", "y"), ("z",))
    facts = [Fact(np.dtype("float32"), (d,)) for d in (a, b)]
    (shape,) = OPS(node).shape(node, facts)
    assert isinstance(shape, tuple)
    for env, expected in (({"a": 1, "b": 5}, 5), ({"a": 5, "b": 1}, 5), ({"a": 0, "b": 1}, 0), ({"a": 4, "b": 4}, 4)):
        assert evaluate(shape[0], env) == expected
        assert all(evaluate(p, env) == evaluate(q, env) for p, q in OPS(node).guards(node, facts, facts[:1]))
    pairs = OPS(node).guards(node, facts, facts[:1])
    assert any(evaluate(p, {"a": 2, "b": 3}) != evaluate(q, {"a": 2, "b": 3}) for p, q in pairs)


@pytest.mark.parametrize("start, end, step", [("s", None, 1), (None, "e", 1), ("s", "e", 2), ("s", "e", -1)])
def test_slice_with_symbolic_ends(start: str | None, end: str | None, step: int) -> None:
    """Over all sizes and ends, also negative and beyond the tensor: the count is that of Python's slice."""
    n = symbol("n")
    first = symbol("s", -100) if start else as_dim(-1 if step < 0 else 0)
    last = symbol("e", -100) if end else as_dim(2**63 - 1)
    lists = [np.array([v], dtype=object) for v in (first, last, as_dim(0), as_dim(step))]
    x = [Fact(np.dtype("float32"), (n,)), *(Fact(np.dtype("int64"), (as_dim(1),), v) for v in lists)]
    node = Node("n", "Slice", ("x", "s", "e", "a", "t"), ("y",))
    (span,) = Slice().spans(node, x) or [None]
    assert span is not None and isinstance(span.count, Dim)
    assert OPS(node).shape(node, x) == [(NAC,)] and span.is_counted  # it gets a name of its own when it is learnt
    for size in (0, 1, 2, 5):
        for s in (-7, -2, -1, 0, 1, 4, 9):
            for e in (-7, -5, -1, 0, 3, 5, 8):
                env = {"n": size, "s": s, "e": e}
                arrays = [np.array([v if isinstance(v, int) else evaluate(v, env)]) for v in (first, last, 0, step)]
                expected = OPS(node).reference(node, np.zeros(size, np.float32), *arrays)[0].size
                assert evaluate(span.count, env) == expected, env


def test_reshape_cancels_an_empty_batch() -> None:
    """[b, s, 6] under [0, -1, 2, 3] is [b, s, 2, 3], also for a batch of 0."""
    x = Fact(np.dtype("float32"), (symbol("b"), symbol("s"), as_dim(6)))
    target = Fact(np.dtype("int64"), (as_dim(4),), np.array([0, -1, 2, 3]))
    node = Node("n", "Reshape", ("x", "t"), ("y",))
    assert OPS(node).shape(node, [x, target]) == [(symbol("b"), symbol("s"), as_dim(2), as_dim(3))]


def test_reshape_of_an_unknown_dim_is_not_guessed() -> None:
    """-1 beside an unknown dim is nac, unless a 0 copies that dim."""
    x = Fact(np.dtype("float32"), (NAC, as_dim(6)))
    node = Node("n", "Reshape", ("x", "t"), ("y",))

    def reshaped(target: list[int]) -> Any:
        return OPS(node).shape(node, [x, Fact(np.dtype("int64"), (as_dim(len(target)),), np.array(target))])[0]

    assert reshaped([-1, 3]) == (NAC, as_dim(3))
    assert reshaped([0, -1, 3]) == (NAC, as_dim(2), as_dim(3))


def test_integer_division_truncates() -> None:
    """(n - 9) / 2 isn't a floor division for n < 9."""
    n = symbol("n")
    node = Node("n", "Div", ("x", "y"), ("z",))

    def quotient(value: Dim) -> Any:
        facts = [Fact(np.dtype("int64"), (), np.array(v, dtype=object)) for v in (value, as_dim(2))]
        return OPS(node).value(node, facts, [Fact(np.dtype("int64"), ())])[0]

    assert [evaluate(quotient(n - 9).item(), {"n": k}) for k in range(14)] == [int((k - 9) / 2) for k in range(14)]
    real = np.dtype("float32")
    facts = [Fact(real, (), np.array(n, dtype=object)), Fact(real, (), np.array(2, np.float32))]
    assert OPS(node).value(node, facts, [Fact(real, ())])[0] is NAC  # floats aren't rounded
    assert eq(quotient(n).item(), n // 2) is True
