"""Products with a matrix are computed where their rows are fewest, across padding, windows and cropping."""

import math

import numpy as np
import onnx
import pytest

import sod2
from sod2.symbolic import evaluate
from tests.graphs import assert_close, expected, model, random

IN, OUT, SIDE = 6, 5, 4
STORED = {
    "w": random("f4", (IN, OUT)),
    "v": random("f4", (OUT, IN), 1),
    "bias": random("f4", (OUT,), 2),
    "back": random("f4", (IN,), 3),
    "table": random("f4", (5, 1), 4),
    "endless": np.full((IN, OUT), np.inf, np.float32),
    "none": np.int64([0]),
    "one": np.int64([1]),
    "two": np.int64([2]),
    "three": np.int64([SIDE - 1]),
    "four": np.int64([SIDE]),
    "last": np.int64([-1]),
    "next": np.int64([-2]),
    "least": np.int64([-99]),
    "around": np.int64([0, 0, 0, 0, 0, 1, 1, 0]),
    "wider": np.int64([0, 0, 0, 0, 0, 1, 1, 1]),
    "less": np.int64([0, 1, 0, 0, 0, -1, 0, 0]),
    "fill": np.float32(1),
    "zero": np.float32(0),
    "windows": np.int64([-1, SIDE, SIDE, IN]),
    "halves": np.int64([1, 0, -1, IN // 2]),
    "again": np.int64([1, 0, -1, IN]),
}
SIZES = """h = Shape <start = 1, end = 2> (x) b = Shape <start = 2, end = 3> (x)
  hu = Add(h, three) hc = Div(hu, four) hp = Mul(hc, four) hm = Sub(hp, h)
  bu = Add(b, three) bc = Div(bu, four) bp = Mul(bc, four) bm = Sub(bp, b)
  pads = Concat <axis = 0> (none, none, none, none, none, hm, bm, none) """
SPLIT = """ps = Concat <axis = 0> (one, hc, four, bc, four, last)
  p = Pad(x, pads) r = Reshape(p, ps) t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (r) c = Reshape(t, windows) """
JOIN = """ws = Concat <axis = 0> (one, hc, bc, four, four, last) js = Concat <axis = 0> (one, hp, bp, last)
  j = Reshape(e, ws) k = Transpose <perm = [0, 1, 3, 2, 4, 5]> (j) l = Reshape(k, js)
  m = Slice(l, none, h, one) n = Slice(m, none, b, two) """
PADDED = "p = Pad(x, pads) "


def picture(body: str, length: int = IN) -> onnx.ModelProto:
    return model(f"float[1, H, B, {length}] x", "float[?, ?, ?, ?] y", SIZES + body, STORED)


FEWEST = {
    "windows": picture(f"{SPLIT} q = MatMul(c, w) a = Add(q, bias) y = Relu(a)"),
    "there and back": picture(
        f"{SPLIT} q = MatMul(c, w) a = Add(q, bias) f = Relu(a) o = MatMul(f, v) e = Add(back, o) {JOIN} y = Add(x, n)"
    ),
    "a given zero": picture("p = Pad(x, pads, zero) y = MatMul(p, w)"),
    "padded and cut": picture("p = Pad(x, around) q = MatMul(p, w) y = Slice(q, none, b, two)"),
    "no vector": picture("q = MatMul(x, w) y = Slice(q, none, h, two)"),
    "backwards": picture("p = Pad(x, around) q = MatMul(p, w) a = Add(q, bias) y = Slice(a, next, least, one, last)"),
}
STAYS = {
    "rows in halves": picture("p = Pad(x, around) g = Reshape(p, halves) k = Reshape(g, again) y = MatMul(k, w)"),
    "ones": picture("p = Pad(x, pads, fill) y = MatMul(p, w)"),
    "edges": picture('p = Pad <mode = "edge"> (x, around) y = MatMul(p, w)'),
    "longer rows": picture("p = Pad(x, wider) y = MatMul(p, w)", IN - 1),
    "fewer rows": picture("p = Pad(x, less) y = MatMul(p, w)"),
    "no zeros of zeros": picture(f"{PADDED} y = MatMul(p, endless)"),
    "two readers": picture(f"{PADDED} q = MatMul(p, w) s = ReduceSum <keepdims = 0> (p) y = Add(q, s)"),
    "a function between": picture(f"{PADDED} i = Exp(p) y = MatMul(i, w)"),
    "shorter rows": picture("q = MatMul(x, w) y = Slice(q, one, four, last)"),
    "columns before": picture("q = MatMul(x, w) t = Transpose <perm = [0, 3, 1, 2]> (q) y = Slice(t, one, four, two)"),
    "no constant": picture(f"{PADDED} s = ReduceSum <keepdims = 0> (x) m = Mul(w, s) y = MatMul(p, m)"),
    "a number for each row": picture("q = MatMul(x, w) a = Add(q, table) y = Slice(a, none, three, one)"),
}


def rows(source: onnx.ModelProto, fusion: str) -> list[int]:
    """Of every product, for a picture of 3 x 5."""
    plan = sod2.plan(source, sod2.Options(fusion=fusion))
    made = [plan.analysis[n.outputs[0]].dims for n in plan.graph.nodes if n.op == "MatMul"]
    return [math.prod(evaluate(d, {"H": 3, "B": 5}) for d in dims[:-1]) for dims in made]


@pytest.mark.parametrize(("height", "breadth"), [(3, 5), (4, 8), (1, 1), (9, 2)])
@pytest.mark.parametrize("name", [*FEWEST, *STAYS])
def test_results_stay(name: str, height: int, breadth: int) -> None:
    source = (FEWEST | STAYS)[name]
    if name == "a number for each row":
        breadth = len(STORED["table"])
    length = source.graph.input[0].type.tensor_type.shape.dim[3].dim_value
    inputs = {"x": random("f4", (1, height, breadth, length))}
    assert_close(sod2.compile(source).run(inputs), expected(source, inputs))


@pytest.mark.parametrize("name", FEWEST)
def test_fewest_rows(name: str) -> None:
    assert set(rows(FEWEST[name], "rdp")) == {9 if name == "no vector" else 15}


@pytest.mark.parametrize("name", STAYS)
def test_what_does_not_only_move_rows_stays(name: str) -> None:
    assert rows(STAYS[name], "rdp") == rows(STAYS[name], "none")
