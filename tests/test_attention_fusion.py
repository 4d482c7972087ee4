"""MatMul, Softmax and MatMul with what lies around them become one kernel, wherever the scale is applied."""

import numpy as np
import onnx
import pytest

import sod2
from tests.graphs import assert_close, expected, model, random

STORED = {"four": np.int64([0, -1, 2, 8]), "three": np.int64([0, -1, 16]), "c": np.float32(0.4)}
HEADS = "rq = Reshape(q, four) tq = Transpose <perm = [0, 2, 1, 3]> (rq) rk = Reshape(k, four) "
VALUES = """rv = Reshape(v, four) tv = Transpose <perm = [0, 2, 1, 3]> (rv) o = MatMul(p, tv)
            to = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape(to, three)"""
SWAPPED = "tk = Transpose <perm = [0, 2, 1, 3]> (rk) uk = Transpose <perm = [0, 1, 3, 2]> (tk) "
DIRECT = "uk = Transpose <perm = [0, 2, 3, 1]> (rk) "


def attention(keys: str, scores: str, mask: str = "") -> onnx.ModelProto:
    inputs = f"float[B, S, 16] q, float[B, T, 16] k, float[B, T, 16] v{mask}"
    body = f"{HEADS} {keys} {scores} p = Softmax <axis = -1> (t) {VALUES}"
    return model(inputs, "float[?, ?, ?] y", body, STORED)


FUSED = {
    "plain": attention(DIRECT, "t = MatMul(tq, uk)"),
    "scaled scores": attention(DIRECT, "s = MatMul(tq, uk) t = Mul(c, s)"),
    "scaled operands": attention(SWAPPED, "a = Mul(tq, c) b = Mul(uk, c) t = MatMul(a, b)"),
    "scaled keys and scores": attention(SWAPPED, "b = Mul(c, uk) s = MatMul(tq, b) t = Div(s, c)"),
    "mask": attention(DIRECT, "a = Mul(tq, c) s = MatMul(a, uk) t = Add(s, m)", ", float[B, 1, 1, T] m"),
}


def operators(source: onnx.ModelProto) -> list[str]:
    return [n.op for g in sod2.plan(source).fusion.groups for n in g.nodes]


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize(("b", "s", "t"), [(2, 5, 7), (1, 1, 1), (1, 0, 3)])
def test_one_kernel(name: str, b: int, s: int, t: int) -> None:
    source = FUSED[name]
    assert operators(source) == ["Attention"]
    inputs = {"q": random("f4", (b, s, 16)), "k": random("f4", (b, t, 16)), "v": random("f4", (b, t, 16), 1)}
    if name == "mask":
        inputs["m"] = random("f4", (b, 1, 1, t))
    result = sod2.compile(source).run(inputs)
    if s:
        assert_close(result, expected(source, inputs))
    else:
        assert result["y"].shape == (b, 0, 16)


def test_scaled_operands_that_something_else_reads_stay() -> None:
    source = attention(DIRECT, "a = Mul(tq, c) t = MatMul(a, uk)")
    source.graph.output.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, ["B", 2, "S", 8]))
    assert operators(source).count("Attention") == 1 and "Mul" in operators(source)


# Scores of heads in the first of three dims, seen as a map of 3 x `w` queries and as many keys.
FLAT = "kt = Transpose <perm = [0, 2, 1]> (k) a = Mul(q, c) s = MatMul(a, kt) "
BEHIND = " p = Softmax <axis = -1> (t) y = MatMul(p, v)"
MAPPED = """m = Reshape(s, five) ud = Unsqueeze(d, axis4) ua = Unsqueeze(a1, axis3)
    {} t = Reshape(n, three)"""
MAPS = {
    "down first": MAPPED.format("l = Add(m, ud) n = Add(l, ua)"),
    "across first": MAPPED.format("l = Add(ua, m) n = Add(l, ud)"),
}


def mapped(scores: str, width: int, heads: str = "B") -> onnx.ModelProto:
    inputs = f"float[B, {3 * width}, 8] q, float[B, {3 * width}, 8] k, float[B, {3 * width}, 4] v"
    if "ud" in scores:
        inputs += f", float[{heads}, 3, {width}, 3] d, float[B, 3, {width}, {width}] a1"
    stored = {"c": np.float32(0.4), "five": np.int64([-1, 3, width, 3, width]), "axis3": np.int64([3])}
    stored |= {"three": np.int64([-1, 3 * width, 3 * width]), "axis4": np.int64([-1])}
    return model(inputs, "float[?, ?, ?] y", FLAT + scores + BEHIND, stored)


@pytest.mark.parametrize("width", [1, 5, 8, 14, 17, 23, 40, 200])
@pytest.mark.parametrize("scores", [*MAPS, "plain"])
def test_heads_in_the_first_dim(scores: str, width: int) -> None:
    """With and without terms of relative positions; at 200 columns keys take more than one chunk."""
    source = mapped(MAPS.get(scores, "t = Mul(s, c)"), width)
    assert operators(source) == ["Attention"]
    given = {i.name: [d.dim_value or 2 for d in i.type.tensor_type.shape.dim] for i in source.graph.input}
    inputs = {name: random("f4", tuple(shape), k) for k, (name, shape) in enumerate(given.items())}
    one, two = (sod2.compile(source, threads=threads).run(inputs) for threads in (1, 2))
    assert_close(one, expected(source, inputs), 1e-5)
    assert one["y"].tobytes() == two["y"].tobytes()


@pytest.mark.parametrize("heads", ["B", "1"])
def test_terms_that_are_not_of_every_row_and_column(heads: str) -> None:
    """One of rows twice, and one that is the same for all heads."""
    second = "ua" if heads == "1" else "ud"
    source = mapped(MAPPED.format(f"l = Add(m, ud) n = Add(l, {second})"), 5, heads)
    assert "Attention" not in operators(source)
    shapes = {"q": (2, 15, 8), "k": (2, 15, 8), "v": (2, 15, 4), "d": (1 if heads == "1" else 2, 3, 5, 3)}
    inputs = {name: random("f4", shape, 1) for name, shape in (shapes | {"a1": (2, 3, 5, 5)}).items()}
    assert_close(sod2.compile(source).run(inputs), expected(source, inputs), 1e-5)


@pytest.mark.parametrize(("q", "v"), [("1", "B"), ("B", "1")])
def test_heads_that_are_broadcast_stay(q: str, v: str) -> None:
    """The kernel has as many heads of queries as of keys."""
    body = FLAT + "t = Mul(s, c)" + BEHIND
    inputs = f"float[{q}, 4, 8] q, float[B, 5, 8] k, float[{v}, 5, 4] v"
    source = model(inputs, "float[?, ?, ?] y", body, {"c": np.float32(0.4)})
    assert "Attention" not in operators(source)
    compiled = sod2.compile(source)
    for b in (1, 3):
        shapes = {"q": (1 if q == "1" else b, 4, 8), "k": (b, 5, 8), "v": (1 if v == "1" else b, 5, 4)}
        given = {name: random("f4", shape) for name, shape in shapes.items()}
        assert_close(compiled.run(given), expected(source, given), 1e-5)


# Queries meet keys, and by a second product rows of distances, which are shifted into place: Transformer-XL.
RELATIVE = """h = Shape <start = 1, end = 2> (q) h2 = Mul(h, two) h1 = Sub(h2, one) b = Shape <end = 1> (q)
    n = Squeeze(h1) r = Range(start, n, step1) a = Cast <to = 1> (r) angles = Mul(table, a) waves = Sin(angles)
    turn = Transpose <perm = [2, 0, 1]> (waves) ds = Concat <axis = 0> (b, h1, two, eight) d = Expand(turn, ds)
    kt = Transpose <perm = [0, 2, 3, 1]> (k) qt = Transpose <perm = [0, 2, 1, 3]> (q) near = MatMul(qt, kt)
    dt = Transpose <perm = [0, 2, 3, 1]> (d) pt = Transpose <perm = [0, 2, 1, 3]> (w) far = MatMul(pt, dt)
    wide = Pad(far, {pads}) ts = Concat <axis = 0> (none, none, h2, h) turned = Reshape(wide, ts)
    rest = Slice(turned, {first}, most, two) bs = Concat <axis = 0> (none, none, h, h1) back = Reshape(rest, bs)
    moved = Slice(back, none, h, three{step}) s = Add(near, moved) {scores}
    p = Softmax <axis = -1> (t) vt = Transpose <perm = [0, 2, 1, 3]> (v) y = MatMul(p, vt)"""
INTEGERS = {"none": [0], "one": [1], "two": [2], "three": [3], "most": [2**63 - 1], "eight": [8]}
PADS = {"before": [0, 0, 0, 1, 0, 0, 0, 0], "behind": [0, 0, 0, 0, 0, 0, 0, 1]}
HIDE = {
    "first": "u = Div(s, c) t = Where(m, low, u)",
    "second": "u = Mul(s, c) t = Where(m, u, low)",
    "unscaled": "t = Where(m, low, s)",
}


def relative(
    scores: str = "t = Mul(s, c)", pads: str = "before", first: str = "one", step: str = ""
) -> onnx.ModelProto:
    stored = {name: np.int64(n) for name, n in (INTEGERS | PADS).items()}
    stored |= {"c": np.float32(0.4), "low": np.float32(-1.5), "start": np.int64(0), "step1": np.int64(1)}
    stored["table"] = random("f4", (2, 8, 1))
    inputs = "float[B, S, 2, 8] q, float[B, S, 2, 8] k, float[B, S, 2, 4] v, float[B, S, 2, 8] w"
    if "Where" in scores:
        inputs += ", bool[1, 1, 1, S] m"
    body = RELATIVE.format(scores=scores, pads=pads, first=first, step=step)
    return model(inputs, "float[?, ?, ?, ?] y", body, stored)


def sequence(source: onnx.ModelProto, batch: int, rows: int) -> dict[str, np.ndarray]:
    sizes = {"B": batch, "S": rows}
    shapes = {
        i.name: [sizes.get(d.dim_param, d.dim_value) for d in i.type.tensor_type.shape.dim] for i in source.graph.input
    }
    return {n: random("?" if n == "m" else "f4", tuple(s), k) for k, (n, s) in enumerate(shapes.items())}


@pytest.mark.parametrize(("batch", "rows"), [(2, 1), (1, 2), (2, 33), (1, 70), (1, 700)])
@pytest.mark.parametrize("scores", ["t = Mul(s, c)", "t = Div(s, c)", *HIDE.values()])
def test_relative_positions(scores: str, batch: int, rows: int) -> None:
    """At 700 rows keys take more than one chunk."""
    source = relative(scores)
    assert operators(source)[-1] == "Attention" and "Softmax" not in operators(source)
    inputs = sequence(source, batch, rows)
    one, two = (sod2.compile(source, threads=threads).run(inputs) for threads in (1, 2))
    assert_close(one, expected(source, inputs), 1e-5)
    assert one["y"].tobytes() == two["y"].tobytes()


@pytest.mark.parametrize("other", [{"pads": "behind"}, {"first": "none"}, {"first": "two"}])
def test_other_shifts_stay(other: dict[str, str]) -> None:
    assert "Attention" not in operators(relative(**other))


@pytest.mark.parametrize("hide", HIDE.values())
@pytest.mark.parametrize("shape", ["B, 1, 1, T", "B, 1, S, T", "S, T", "1"])
def test_hidden_scores(hide: str, shape: str) -> None:
    source = attention(DIRECT, f"s = MatMul(tq, uk) {hide}", f", bool[{shape}] m")
    source.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(-1.5), "low"))
    assert operators(source) == ["Attention"]
    sizes = {"B": 2, "S": 5, "T": 21}
    inputs = {n: random("f4", (2, sizes[r], 16), k) for k, (n, r) in enumerate((("q", "S"), ("k", "T"), ("v", "T")))}
    inputs["m"] = random("?", tuple(sizes.get(d, 1) for d in shape.split(", ")))
    assert_close(sod2.compile(source).run(inputs), expected(source, inputs), 1e-5)


def test_a_mask_under_hidden_scores_stays() -> None:
    """It is added before they are replaced, the kernel's behind."""
    scores = "s = MatMul(tq, uk) u = Add(s, a) t = Where(m, c, u)"
    source = attention(DIRECT, scores, ", bool[S, T] m, float[S, T] a")
    assert "Attention" not in operators(source)
