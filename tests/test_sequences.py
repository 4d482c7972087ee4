"""Sequences and optionals, which are resolved while a model is read, against onnxruntime."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest

import sod2
from tests.graphs import assert_close, expected, model, random

I64 = np.int64
STORED = {
    "zero": I64(0), "one": I64(1), "last": I64(-1), "two": I64(2), "three": I64(3), "axis": I64([1]),
    "parts": I64([1, 4, 2]), "k": I64([2]),
}  # fmt: skip
X, P, J = "float[N, M] x", "float[N, M] x, bool p", "float[N, M] x, int64 j"
Y, L, YL = "float[?, ?] y", "int64 n", "float[?, ?] y, int64 n"
MADE = "a = Relu(x) b = Neg(x) s = SequenceConstruct(x, a, b)"
SHAPES = [(2, 7), (3, 7), (0, 7), (2, 7)]
LENGTHS = [(2, 7), (3, 4), (1, 3), (2, 1), (0, 5), (2, 6), (2, 0)]
CASES: Mapping[str, tuple[str, str, str, Sequence[tuple[int, int]]]] = {
    "at": (X, Y, f"{MADE} h = SequenceAt(s, one) g = SequenceAt(s, last) y = Add(h, g)", SHAPES),
    "length": (X, L, f"{MADE} n = SequenceLength(s)", SHAPES),
    "empty": (X, YL, "e = SequenceEmpty() s = SequenceInsert(e, x) y = SequenceAt(s, zero) n = SequenceLength(e)",
              SHAPES),
    "insert": (
        X, YL, f"{MADE} r = Exp(x) t = SequenceInsert(s, r, last) y = SequenceAt(t, two) n = SequenceLength(t)", SHAPES,
    ),
    "erase": (X, YL, f"{MADE} t = SequenceErase(s, one) y = SequenceAt(t, one) n = SequenceLength(t)", SHAPES),
    "erase the last": (X, Y, f"{MADE} t = SequenceErase(s) y = SequenceAt(t, last)", SHAPES),
    "join": (X, Y, f"{MADE} y = ConcatFromSequence <axis = 1> (s)", SHAPES),
    "stack": (X, "float[?, ?, ?] y", f"{MADE} y = ConcatFromSequence <axis = -1, new_axis = 1> (s)", SHAPES),
    "parts": (
        X, YL, """s = SplitToSequence <axis = 1> (x, parts) h = SequenceAt(s, one) g = SequenceAt(s, last)
                  y = Concat <axis = 1> (g, h) n = SequenceLength(s)""", SHAPES,
    ),
    "chunks": (
        X, "float[?, ?] y, float[?, ?] z, int64 n, float[?, ?] w",
        """s = SplitToSequence <axis = 1> (x, three) y = SequenceAt(s, zero) z = SequenceAt(s, last)
           n = SequenceLength(s) w = ConcatFromSequence <axis = 1> (s)""", LENGTHS,
    ),
    "second chunk": (X, Y, "s = SplitToSequence <axis = 1> (x, three) y = SequenceAt(s, one)", LENGTHS),
    "rows": (
        X, "float[?] y, float[?] z, int64 n, float[?, ?] w",
        """s = SplitToSequence <keepdims = 0> (x) y = SequenceAt(s, zero) z = SequenceAt(s, last)
           n = SequenceLength(s) w = ConcatFromSequence <axis = 0, new_axis = 1> (s)""", SHAPES,
    ),
    "rows that are kept": (X, Y, "s = SplitToSequence <axis = 1> (x) y = SequenceAt(s, two)", LENGTHS),
    "captured": (
        P, Y, MADE + """y = If (p) <then_branch = t () => (float[?, ?] c) { c = SequenceAt(s, one) },
                        else_branch = e () => (float[?, ?] d) { d = ConcatFromSequence <axis = 1> (s) }>""", SHAPES,
    ),
    "of both branches": (
        P, YL, MADE + """t = If (p) <then_branch = t () => (c) { c = SequenceErase(s, one) },
                         else_branch = e () => (d) { u = SequenceErase(s) d = Identity(u) }>
                         y = ConcatFromSequence <axis = 0> (t) n = SequenceLength(t)""", SHAPES,
    ),
    "in a loop": (
        J, Y, MADE + """y = Loop (j, , x) <body = b (int64 i, bool c, float[?, ?] h) => (bool d, float[?, ?] o)
                        { d = Identity(c) g = SequenceAt(s, two) o = Add(h, g) }>""", SHAPES,
    ),
    "row of a computed position": (
        J, "float[?] y", "s = SplitToSequence <keepdims = 0> (x) q = Sub(j, one) y = SequenceAt(s, q)", SHAPES[:2],
    ),
    "optional": (
        X, "float[?, ?] y, bool b, bool c",
        "o = Optional(x) y = OptionalGetElement(o) b = OptionalHasElement(o) c = OptionalHasElement()", SHAPES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(name: str) -> None:
    inputs, outputs, body, shapes = CASES[name]
    source = model(inputs, outputs, body, STORED)
    compiled, facts = sod2.compile(source), sod2.analyze(source)
    for k, shape in enumerate(shapes):
        given = {"x": random("f4", shape), "p": np.array(k % 2 == 0), "j": I64(k % 3)}
        given = {value.name: np.asarray(given[value.name]) for value in facts.graph.inputs}
        try:
            wanted = expected(source, given)
        except Exception:  # onnxruntime's own classes
            with pytest.raises(sod2.InputError):
                compiled.run(given)
            continue
        assert_close(compiled.run(given), wanted)


REFUSED = {
    "position": (X, Y, f"{MADE} y = SequenceAt(s, three)", sod2.ModelError, "position 3"),
    "computed position": (J, Y, f"{MADE} y = SequenceAt(s, j)", sod2.UnsupportedError, "position that is computed"),
    "reader": (X, Y, f"{MADE} y = Exp(s)", sod2.UnsupportedError, "a sequence"),
    "output": (X, Y, "y = SequenceConstruct(x)", sod2.UnsupportedError, "output 'y'"),
    "no sequence": (X, Y, "y = SequenceAt(x, zero)", sod2.ModelError, "no sequence"),
    "nothing to join": (X, Y, "e = SequenceEmpty() y = ConcatFromSequence <axis = 0> (e)", sod2.ModelError,
                        "no tensors"),
    "no element": (X, Y, "o = Optional() y = OptionalGetElement(o)", sod2.UnsupportedError, "has none"),
    "another length": (
        P, YL, MADE + """t = If (p) <then_branch = t () => (c) { c = SequenceErase(s, one) },
                         else_branch = e () => (d) { d = Identity(s) }>
                         y = ConcatFromSequence <axis = 0> (t) n = SequenceLength(t)""",
        sod2.UnsupportedError, "branches",
    ),
    "carried": (
        "float[N, M] x, int64 j", Y,
        MADE + """t = Loop (j, , s) <body = b (int64 i, bool c, h) => (bool d, o) { d = Identity(c) o = Identity(h) }>
        y = ConcatFromSequence <axis = 0> (t)""", sod2.UnsupportedError, "a sequence",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    inputs, outputs, body, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        sod2.compile(model(inputs, outputs, body, STORED))


def test_inputs() -> None:
    """An optional tensor has to be given; a sequence is refused."""
    tensor = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ["N"])
    source = model("float[N] x", "float[?] y, bool b", "h = OptionalGetElement(x) y = Neg(h) b = OptionalHasElement(x)")
    source.graph.input[0].type.CopyFrom(onnx.helper.make_optional_type_proto(tensor))
    x = random("f4", (3,))
    assert_close(sod2.compile(source).run({"x": x}), {"y": -x, "b": np.array(True)})
    source.graph.input[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(tensor))
    with pytest.raises(sod2.UnsupportedError, match="input 'x' is a sequence"):
        sod2.analyze(source)
