"""What dynamic-shape engines get wrong, one tiny model a kind, against onnxruntime at several values of its symbols.

Shapes that onnxruntime refuses have to be refused, as an InputError; those it takes have to run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest

import sod2
from tests.graphs import assert_close, expected, model, random

I64 = np.int64


@dataclass(frozen=True)
class Case:
    """A model, and the shapes of its inputs at which it runs."""

    inputs: str
    outputs: str
    body: str
    shapes: tuple[Mapping[str, tuple[int, ...]], ...]
    stored: Mapping[str, np.ndarray] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        return model(self.inputs, self.outputs, self.body, self.stored)


def each(name: str, *shapes: tuple[int, ...]) -> tuple[dict[str, tuple[int, ...]], ...]:
    return tuple({name: shape} for shape in shapes)


def two(*pairs: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[dict[str, tuple[int, ...]], ...]:
    return tuple({"x": x, "z": z} for x, z in pairs)


BROADCASTS = two(((3,), (3,)), ((1,), (4,)), ((4,), (1,)), ((0,), (1,)), ((1,), (0,)), ((1,), (1,)), ((2,), (3,)))
CASES = {
    "add of two symbols": Case("float[N] x, float[M] z", "float[?] y", "y = Add(x, z)", BROADCASTS),
    "where of two symbols": Case(
        "float[N] x, float[M] z", "float[?] y", "c = Greater(x, z) y = Where(c, x, z)", BROADCASTS
    ),
    "expand both ways": Case("float[N] x, float[M] z", "float[?] y", "s = Shape(z) y = Expand(x, s)", BROADCASTS),
    "three symbols": Case(
        "float[A, B] x, float[C, B] z", "float[?, ?] y", "h = Add(x, z) y = Mul(h, x)",
        two(((2, 3), (2, 3)), ((1, 3), (4, 3)), ((4, 1), (1, 1)), ((1, 0), (5, 0)), ((2, 3), (3, 3))),
    ),
    "gemm on no rows": Case(
        "float[N, 4] x", "float[?, ?] y", "y = Gemm(x, w, b)", each("x", (0, 4), (1, 4), (9, 4)),
        {"w": random("f4", (4, 5)), "b": random("f4", (5,))},
    ),
    "matmul over nothing": Case("float[N, K] x, float[K, M] z", "float[?, ?] y", "y = MatMul(x, z)",
                                two(((2, 0), (0, 3)), ((0, 2), (2, 3)), ((2, 1), (1, 0)))),
    "conv on no images": Case(
        "float[N, 2, H, 8] x", "float[?, ?, ?, ?] y", "c = Conv(x, w) y = Relu(c)",
        each("x", (0, 2, 8, 8), (2, 2, 3, 8)),
        {"w": random("f4", (3, 2, 3, 3))},
    ),
    "concat with nothing": Case(
        "float[N, 3] x, float[M, 3] z", "float[?, 3] y", "y = Concat <axis = 0> (x, z, x)",
        two(((0, 3), (2, 3)), ((2, 3), (0, 3)), ((0, 3), (0, 3)), ((1, 3), (1, 3))),
    ),
    "reduction of nothing": Case(
        "float[N, M] x", "float[?, ?] s, float[?] p", "s = ReduceSum(x, a) p = ReduceProd <keepdims = 0> (x, a)",
        each("x", (3, 0), (0, 3), (0, 0), (1, 1)), {"a": I64([1])},
    ),
    "extremes of nothing": Case(
        "float[N, M] x", "float[?, ?] s, float[?] p", "s = ReduceMin(x, a) p = ReduceMax <keepdims = 0> (x, a)",
        each("x", (0, 4), (4, 0), (0, 0), (1, 1)), {"a": I64([0])},
    ),
    "reshape by 0 and -1": Case(
        "float[N, 2, M] x", "float[?, ?] y", "y = Reshape(x, t)", each("x", (3, 2, 5), (1, 2, 1), (3, 2, 0)),
        {"t": I64([0, -1])},
    ),
    "reshape with allowzero": Case(
        "float[N, 2] x", "float[?, ?] y", "y = Reshape <allowzero = 1> (x, t)", each("x", (0, 2), (3, 2)),
        {"t": I64([0, 7])},
    ),
    "last L elements": Case(
        "float[N] x, float[L] z", "float[?] y", "s = Shape(z) m = Neg(s) y = Slice(x, m, big)",
        two(((5,), (2,)), ((5,), (5,)), ((5,), (9,)), ((5,), (0,)), ((0,), (3,)), ((1,), (1,))),
        {"big": I64([2**63 - 1])},
    ),
    "reversed": Case(
        "float[N] x", "float[?] y", "y = Slice(x, s, e, a, s)", each("x", (0,), (1,), (6,)),
        {"s": I64([-1]), "e": I64([-(2**63)]), "a": I64([0])},
    ),
    "strided": Case(
        "float[N] x", "float[?] y", "y = Slice(x, s, e, a, d)", each("x", (0,), (1,), (6,), (7,), (8,)),
        {"s": I64([1]), "e": I64([-1]), "a": I64([0]), "d": I64([3])},
    ),
    "resize by a half": Case(
        "float[1, 1, H, W] x", "float[?, ?, ?, ?] y", 'y = Resize <mode = "linear"> (x, , k)',
        each("x", (1, 1, 7, 5), (1, 1, 8, 2), (1, 1, 1, 1), (1, 1, 1, 4)), {"k": np.float32([1, 1, 0.5, 0.5])},
    ),
    "resize by two": Case(
        "float[1, 2, H, W] x", "float[?, ?, ?, ?] y",
        'y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, , k)',
        each("x", (1, 2, 7, 5), (1, 2, 1, 1)), {"k": np.float32([1, 1, 2, 2])},
    ),
    "pool with a last window in the padding": Case(
        "float[1, 1, H, 6] x", "float[?, ?, ?, ?] y",
        "y = MaxPool <kernel_shape = [2, 2], strides = [3, 3], pads = [0, 0, 1, 1], ceil_mode = 1> (x)",
        each("x", (1, 1, 5, 6), (1, 1, 6, 6), (1, 1, 7, 6), (1, 1, 2, 6)),
    ),
    "average without padding counted": Case(
        "float[1, 2, H, W] x", "float[?, ?, ?, ?] y",
        "y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1> (x)",
        each("x", (1, 2, 5, 6), (1, 2, 1, 1), (1, 2, 8, 7)),
    ),
    "transposed conv, SAME_UPPER": Case(
        "float[1, 2, H, W] x", "float[?, ?, ?, ?] y",
        'y = ConvTranspose <strides = [2, 2], auto_pad = "SAME_UPPER"> (x, w)',
        each("x", (1, 2, 3, 4), (1, 2, 1, 1)), {"w": random("f4", (2, 3, 3, 3))},
    ),
    "pads that crop": Case(
        "float[N, M] x", "float[?, ?] y", "y = Pad(x, p)", each("x", (3, 4), (2, 1), (5, 2)),
        {"p": I64([1, -1, 0, 2])},
    ),
    "reflection": Case(
        "float[N] x", "float[?] y", 'y = Pad <mode = "reflect"> (x, p)', each("x", (3,), (4,), (9,)),
        {"p": I64([2, 2])},
    ),
    "uneven split": Case(
        "float[N, M] x", "float[?, ?] a, float[?, ?] b, float[?, ?] c",
        "a, b, c = Split <axis = 1, num_outputs = 3> (x)",
        each("x", (2, 7), (0, 7), (1, 6), (2, 4), (3, 0), (2, 1)),
    ),
    "part of a shape": Case(
        "float[N, 3, M] x", "int64[?] a, int64[?] b, int64 s",
        "a = Shape <start = -2> (x) b = Shape <start = 1, end = -1> (x) s = Size(x)", each("x", (2, 3, 4), (0, 3, 1)),
    ),
    "dim as a number": Case(
        "float[N, M] x", "float[?, ?] y, int64[?] r",
        """s = Shape(x) n = Gather(s, zero) m = Gather(s, one) f = Cast <to = 1> (n) y = Div(x, f)
           m0 = Squeeze(m) start = Constant <value_int = 0> () step = Constant <value_int = 2> ()
           r = Range(start, m0, step)""",
        each("x", (2, 5), (1, 3), (3, 0)), {"zero": I64([0]), "one": I64([1])},
    ),
    "optional output left out": Case(
        "float[N, 4] x", "float[?, ?] y", "y, , d = LayerNormalization(x, w, w)", each("x", (3, 4), (0, 4)),
        {"w": random("f4", (4,))},
    ),
    "last output left out": Case("float[N] x", "float[?] y", "y, = Dropout(x)", each("x", (2,), (0,))),
    "product that would overflow at large sizes": Case(
        "float[N] x", "float[?] y", "s = Shape(x) p = Mul(s, big) q = Div(p, big) y = ConstantOfShape(q)",
        each("x", (5,), (0,)), {"big": I64([2**33])},
    ),
    "gather from the end": Case(
        "float[N, 4] x", "float[?, ?] y", "y = Gather <axis = 1> (x, k)", each("x", (3, 4), (0, 4)),
        {"k": I64([-1, 0, -4])},
    ),
    "cumulated": Case("float[N, M] x", "float[?, ?] y", "y = CumSum <exclusive = 1, reverse = 1> (x, one)",
                      each("x", (3, 4), (0, 4), (3, 0), (1, 1)), {"one": np.array(1)}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_case(case: Case) -> None:
    source = case.model()
    compiled, facts = sod2.compile(source), sod2.analyze(source)
    for shapes in case.shapes:
        inputs = {name: random("f4", shape) for name, shape in shapes.items()}
        try:
            wanted = expected(source, inputs)
        except Exception:  # onnxruntime's own classes
            assert facts.admissible(shapes) is not None, shapes
            with pytest.raises(sod2.InputError):
                compiled.run(inputs)
            continue
        assert facts.admissible(shapes) is None
        assert_close(compiled.run(inputs), wanted)
        assert {name: facts.shapes(shapes)[name] for name in wanted} == {name: a.shape for name, a in wanted.items()}


STANDARD = {
    # onnxruntime takes the end for minus infinity and reverses everything
    "reversed up to the largest int32": (
        Case("float[N] x", "float[?] y", "y = Slice(x, s, e, a, s)", each("x", (4,), (1,), (0,)),
             {"s": I64([-1]), "e": I64([2**31 - 1]), "a": I64([0])}),
        [(0,), (0,), (0,)],
    ),
    # onnxruntime refuses to divide 0 elements by 0
    "-1 beside a 0 that is empty": (
        Case("float[N, M, 6] x", "float[?, ?, ?, ?] y", "y = Reshape(x, t)", each("x", (0, 5, 6), (2, 0, 6), (2, 5, 6)),
             {"t": I64([0, -1, 2, 3])}),
        [(0, 5, 2, 3), (2, 0, 2, 3), (2, 5, 2, 3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("case", "wanted"), STANDARD.values(), ids=STANDARD)
def test_standard_where_onnxruntime_deviates(case: Case, wanted: list[tuple[int, ...]]) -> None:
    compiled, facts = sod2.compile(case.model()), sod2.analyze(case.model())
    for shapes, shape in zip(case.shapes, wanted, strict=True):
        x = random("f4", shapes["x"])
        assert facts.admissible(shapes) is None
        assert facts.shapes(shapes)["y"] == shape
        assert_close(compiled.run({"x": x}), {"y": x[: shape[0]].reshape(shape)})


def test_reflection_wider_than_the_axis() -> None:
    case = CASES["reflection"]
    with pytest.raises(sod2.InputError):
        sod2.compile(case.model()).run({"x": np.ones(2, np.float32)})


RANKS = {
    "rank of a target": ("float[N] x, int64[K] z", "float[?] y", "y = Reshape(x, z)", {}),
    "rank that comes out of a loop": (
        "float[3] x, int64 n, bool t", "float[?] y",
        """s = Loop (n, t, x) <body = b (int64 i, bool c, float[?] h) => (bool d, float[?] k)
                                { d = Identity(c) k = Unsqueeze(h, zero) }> y = Exp(s)""",
        {"zero": I64([0])},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("inputs", "outputs", "body", "stored"), RANKS.values(), ids=RANKS)
def test_ranks_that_only_execution_tells(inputs: str, outputs: str, body: str, stored: dict) -> None:
    """Refused with the reason, never guessed."""
    with pytest.raises(sod2.UnsupportedError, match="exists only after execution"):
        sod2.compile(model(inputs, outputs, body, stored))
