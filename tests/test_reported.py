"""What users report of other engines that take dynamic shapes: each report as one small model, and what it has to do.

Outputs are those of the ONNX standard, written here with numpy; None where a run has to be refused. The kinds of fault
behind them, at many more shapes and against onnxruntime, are in test_cases, test_dynamic and test_loops.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest

import sod2
from tests.graphs import assert_close, model

I64, F32 = np.int64, np.float32
Arrays = Mapping[str, np.ndarray]
Run = tuple[Arrays, Sequence[np.ndarray] | None]


@dataclass(frozen=True)
class Case:
    """A model, and its runs: inputs, and the outputs in their order."""

    inputs: str
    outputs: str
    body: str
    runs: Sequence[Run]
    stored: Arrays = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        return model(self.inputs, self.outputs, self.body, self.stored)


def count(*shape: int) -> np.ndarray:
    """1, 2, 3, … in this shape."""
    return np.arange(1, 1 + np.prod(shape, dtype=int), dtype=F32).reshape(shape)


def runs(function: Callable[..., object], *samples: Arrays) -> list[Run]:
    """Runs of one output, which is this function of the inputs."""
    return [(s, [np.asarray(function(**s))]) for s in samples]


def xs(*shapes: tuple[int, ...]) -> list[Arrays]:
    return [{"x": count(*shape)} for shape in shapes]


def xys(*pairs: tuple[tuple[int, ...], tuple[int, ...]]) -> list[Arrays]:
    return [{"x": count(*x), "y": -count(*y)} for x, y in pairs]


def growing(m: np.ndarray, s: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.concatenate([s, *[x] * int(m)])


def added(m: int) -> Run:
    s, x = count(2), F32([3, 5])
    stacked = F32([s + (k + 1) * x for k in range(m)]).reshape(m, 2)
    return {"m": I64(m), "s": s, "x": x}, [F32(s + m * x), stacked]


TRUE, FALSE = np.array(True), np.array(False)
BOXES = F32([[[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3]], [[0, 0, 1, 1], [5, 5, 6, 6], [5, 5, 6, 6.1]]])
SCORES = F32([[[0.9, 0.8, 0.7]], [[0.5, 0.6, 0.4]]])
PICKED = I64([[0, 0, 0], [0, 0, 2], [1, 0, 1], [1, 0, 0]])
CASES = {
    "add_two_syms": Case("float[a, 4] x, float[b, 4] y", "float[?, ?] z", "z = Add(x, y)",
                         runs(lambda x, y: x + y, *xys(((1, 4), (3, 4)), ((3, 4), (1, 4)), ((0, 4), (1, 4))))),
    "compress_short_cond": Case(
        "float[n, 2] x, bool[k] c", "float[?, ?] z", "z = Compress <axis = 0> (x, c)",
        runs(lambda x, c: x[: len(c)][c], *({"x": count(3, 2), "c": np.array(c, bool)} for c in ([0, 1], []))),
    ),
    "concat_with_empty": Case("float[n, 2] x, float[m, 2] y", "float[?, ?] z", "z = Concat <axis = 0> (x, y)",
                              runs(lambda x, y: np.concatenate([x, y]), *xys(((0, 2), (2, 2)), ((0, 2), (0, 2))))),
    "convT_outpad_sameupper": Case(
        "float[1, 1, w] x", "float[?, ?, ?] z", 'z = ConvTranspose <auto_pad = "SAME_UPPER", strides = [2]> (x, w)',
        [({"x": count(1, 1, 1)}, [F32([[[1, 1]]])]), ({"x": count(1, 1, 3)}, [F32([[[1, 1, 3, 2, 5, 3]]])])],
        {"w": np.ones((1, 1, 3), F32)},
    ),
    "conv_batch0": Case("float[n, 3, 5, 5] x", "float[?, ?, ?, ?] z", "y = Conv(x, w) z = Relu(y)",
                        [({"x": count(0, 3, 5, 5)}, [count(0, 2, 3, 3)])], {"w": np.ones((2, 3, 3, 3), F32)}),
    "empty_optional_out": Case("float[n] x", "float[?] z", "z, = Dropout(x)", runs(lambda x: x, *xs((2,)))),
    "expand_smaller_target": Case("float[n, 3] x", "float[?, ?] z", "z = Expand(x, s)",
                                  runs(lambda x: x, *xs((2, 3), (1, 3))), {"s": I64([1])}),
    "gemm_batch0": Case("float[n, 3] x", "float[?, ?] z", "z = Gemm(x, w)",
                        runs(lambda x: x @ np.ones((3, 2), F32), *xs((0, 3), (2, 3))), {"w": np.ones((3, 2), F32)}),
    "if_diff_rank": Case(
        "bool c, float[1, n] x", "float[] z",
        """z = If (c) <then_branch = t () => (float[] a) { a = Squeeze(x, axis) },
                       else_branch = e () => (float[] b) { b = Identity(x) }>""",
        runs(lambda c, x: x[0] if c else x, {"c": TRUE, "x": count(1, 3)}, {"c": FALSE, "x": count(1, 3)}),
        {"axis": I64([0])},
    ),
    "if_nested_capture": Case(
        "bool c, bool d, float[n] x", "float[] z",
        """w = Mul(x, x)
           z = If (c) <else_branch = e () => (float[] u) { u = Identity(x) },
             then_branch = t () => (float[] q) {
               q = If (d) <else_branch = f () => (float[] s) { s = Sub(x, w) },
                           then_branch = g () => (float[] r) { r = Add(x, w) }> }>""",
        runs(lambda c, d, x: (x + x * x if d else x - x * x) if c else x,
             *({"c": c, "d": d, "x": count(2)} for c in (TRUE, FALSE) for d in (TRUE, FALSE))),
    ),
    "loop_growing_state": Case(
        "int64 m, float[k] s, float[n] x", "float[] y",
        """y = Loop (m, , s) <body = b (int64 i, bool c, float[] h) => (bool d, float[] o)
                                    { d = Identity(c) o = Concat <axis = 0> (h, x) }>""",
        runs(growing, *({"m": I64(m), "s": count(1), "x": count(2)} for m in (3, 0, 1))),
    ),
    "loop_zero_trip": Case(
        "int64 m, float[n] s, float[n] x", "float[] y, float[] z",
        """y, z = Loop (m, , s) <body = b (int64 i, bool c, float[n] h) => (bool d, float[n] o, float[n] r)
                                       { d = Identity(c) o = Add(h, x) r = Identity(o) }>""",
        [added(0), added(3)],
    ),
    "nms_batch2": Case(
        "float[N, M, 4] b, float[N, C, M] s", "int64[?, 3] z", "z = NonMaxSuppression(b, s, k, t)",
        [({"b": BOXES, "s": SCORES}, [PICKED]),
         ({"b": np.zeros((2, 0, 4), F32), "s": np.zeros((2, 1, 0), F32)}, [np.zeros((0, 3), I64)])],
        {"k": I64([9]), "t": F32([0.5])},
    ),
    "nonzero_scalar_empty": Case(  # a scalar is taken as one element, as onnxruntime does
        "float[] x", "int64[?, ?] z", "z = NonZero(x)",
        runs(lambda x: np.array(np.nonzero(np.atleast_1d(x))), {"x": np.zeros(2, F32)}, {"x": np.array(0, F32)},
             {"x": np.zeros((0, 2), F32)}, {"x": F32([[0, 1], [2, 0]])}, {"x": np.array(3, F32)}),
    ),
    "output_is_input_and_dup": Case("float[n] x", "float[?] z, float[n] x", "z = Identity(x)",
                                    [({"x": count(2)}, [count(2), count(2)])]),
    "pad_negative_dyn": Case(
        "float[n, m] x, int64[4] p", "float[?, ?] z", "z = Pad(x, p)",
        runs(lambda x, p: np.pad(x, ((1, 0), (0, 1)))[:, 1:], {"x": count(4, 2), "p": I64([1, -1, 0, 1])}),
    ),
    "pad_reflect_small": Case(
        "float[n] x", "float[?] z", 'z = Pad <mode = "reflect"> (x, p)',
        [*runs(lambda x: np.pad(x, (3, 0), "reflect"), *xs((5,), (4,))), ({"x": count(2)}, None)],
        {"p": I64([3, 0])},
    ),
    "pool_ceil_last_window": Case(
        "float[1, 1, w] x", "float[?, ?, ?] z", "z = MaxPool <ceil_mode = 1, kernel_shape = [1], strides = [2]> (x)",
        runs(lambda x: x[..., ::2], *xs((1, 1, 2), (1, 1, 3))),
    ),
    "reduce_empty_max_keep": Case("float[n, 4] x", "float[?] z", "z = ReduceMax <keepdims = 0> (x, a)",
                                  [({"x": count(0, 4)}, [np.full(4, -np.inf, F32)])], {"a": I64([0])}),
    "reshape_0_and_-1_sym": Case(
        "float[n, m, 6] x", "float[?, ?, ?, ?] z", "z = Reshape(x, s)",
        runs(lambda x: x.reshape(*x.shape[:2], 2, 3), *xs((2, 5, 6), (0, 5, 6), (2, 0, 6))),
        {"s": I64([0, -1, 2, 3])},
    ),
    "reshape_allowzero": Case("float[0, m, 2] x", "float[?, ?, ?] z", "z = Reshape <allowzero = 1> (x, s)",
                              [({"x": count(0, 3, 2)}, [count(0, 0, 4)])], {"s": I64([0, 0, 4])}),
    "resize_224_706": Case("float[1, 1, h] x", "float[?, ?, ?] z", 'z = Resize <mode = "nearest"> (x, , k)',
                           [({"x": np.ones((1, 1, 706), F32)}, [np.ones((1, 1, 223), F32)])],
                           {"k": F32([1, 1, 224 / 706])}),
    "resize_odd_half": Case(
        "float[1, 1, h, w] x", "float[?, ?, ?, ?] z", 'z = Resize <mode = "linear"> (x, , k)',
        runs(lambda x: (x[..., :-1:2, :-1:2] + x[..., 1::2, 1::2]) / 2, *xs((1, 1, 7, 5), (1, 1, 1, 1))),
        {"k": F32([1, 1, 0.5, 0.5])},
    ),
    "shape_mul_overflow": Case(
        "float[a] x", "float[?] z", "s = Shape(x) p = Mul(s, big) q = Div(p, big) z = ConstantOfShape(q)",
        [({"x": count(5)}, [np.zeros(5, F32)])], {"big": I64([2**33])},
    ),
    "shape_start_end": Case("float[a, b, 3] x", "float[?, ?] z", "s = Shape <start = 1> (x) z = ConstantOfShape(s)",
                            [({"x": count(2, 5, 3)}, [np.zeros((5, 3), F32)])]),
    "slice_rev_intmax_end": Case(
        "float[n] x", "float[?] z", "z = Slice(x, s, e, a, s)", [({"x": count(4)}, [count(0)])],
        {"s": I64([-1]), "e": I64([2**31 - 1]), "a": I64([0])},
    ),
    "slice_x_minusL": Case(
        "float[n] x, float[L] y", "float[?] z", "k = Shape(y) s = Neg(k) z = Slice(x, s, e)",
        runs(lambda x, y: x[-len(y) :], *xys(((4,), (2,)), ((4,), (0,)), ((4,), (9,)))), {"e": I64([2**63 - 1])},
    ),
    "split_uneven_num_outputs": Case(
        "float[n] x", "float[?] a, float[?] b, float[?] d", "a, b, d = Split <axis = 0, num_outputs = 3> (x)",
        [({"x": count(n)}, np.split(count(n), parts)) for n, parts in ((7, [3, 6]), (6, [2, 4]))],
    ),
    "squeeze_noaxes_dyn": Case("float[n, 1, m] x", "float[] z", "z = Squeeze(x)",
                               runs(lambda x: x.squeeze(), *xs((2, 1, 3), (1, 1, 3)))),
    "topk_k_gt_dim": Case(
        "float[n] x, int64[1] k", "float[?] v, int64[?] i", "v, i = TopK(x, k)",
        [({"x": count(3), "k": I64([2])}, [F32([3, 2]), I64([2, 1])]),
         ({"x": count(3), "k": I64([0])}, [count(0), I64([])]), ({"x": count(3), "k": I64([5])}, None)],
    ),
    "where_sym_bcast": Case(
        "bool[a, 1] c, float[1, b] x, float y", "float[?, ?] z", "z = Where(c, x, y)",
        runs(lambda c, x, y: c * x + ~c * y,
             {"c": np.array([[True], [False], [True]]), "x": count(1, 4), "y": np.array(7, F32)}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_reported(name: str) -> None:
    check(CASES[name].model(), CASES[name].runs)


def test_unicode_space_names() -> None:
    x, z = "日 本/a:0", 'z z;"\\'
    node = onnx.helper.make_node("Neg", [x], [z], name="ключ")
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n"]) for name in (x, z)]
    source = onnx.helper.make_model(onnx.helper.make_graph([node], "g", values[:1], values[1:]))
    check(source, [({x: count(2)}, [-count(2)])])


def check(source: onnx.ModelProto, wanted: Sequence[Run]) -> None:
    """Runs all, and the first once more behind the others."""
    compiled, facts = sod2.compile(source), sod2.analyze(source)
    names = [o.name for o in source.graph.output]
    for inputs, outputs in (*wanted, wanted[0]):
        if outputs is None:
            with pytest.raises(sod2.InputError):
                compiled.run(inputs)
            continue
        assert facts.admissible({name: array.shape for name, array in inputs.items()}) is None
        assert_close(compiled.run(inputs), dict(zip(names, outputs, strict=True)))
