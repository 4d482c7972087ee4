"""Operators that change nothing vanish where RDP proves it, stay where it doesn't, and never change a result."""

import numpy as np
import onnx
import pytest

import sod2
from tests.graphs import assert_close, expected, model, random

I64 = np.int64
WEIGHTS = {"w": random("f4", (4, 4, 3, 3)), "nc": I64([1, 4]), "two": I64([2])}
OWN_SIZE = """a = Conv <pads = [1, 1, 1, 1]> (x, w) s = Shape <start = 2> (x) t = Concat <axis = 0> (nc, s)
              r = Resize <mode = "{mode}", coordinate_transformation_mode = "{how}"> (a, {roi}, , t) y = Neg(r)"""
IMAGE = ("float[1, 4, H, W] x", "float[?, ?, ?, ?] y")
ROWS = ("float[N, 6] x", "float[?, ?] y")


def resize(mode: str = "linear", how: str = "half_pixel", roi: str = "") -> onnx.ModelProto:
    crop = {"roi": np.float32([0, 0, 0.2, 0.2, 1, 1, 0.7, 0.7])}
    return model(*IMAGE, OWN_SIZE.format(mode=mode, how=how, roi=roi), WEIGHTS | crop)


GONE = {
    f"resize {mode} {how}": resize(mode, how)
    for mode in ("nearest", "linear", "cubic")
    for how in ("align_corners", "half_pixel", "asymmetric")
} | {
    "scale of 1": model(*IMAGE, "a = Relu(x) r = Resize(a, , f) y = Neg(r)", {"f": np.ones(4, np.float32)}),
    "expand": model(*ROWS, "a = Relu(x) s = Shape(x) e = Expand(a, s) y = Neg(e)"),
    "tile": model(*ROWS, "a = Relu(x) t = Tile(a, ones) y = Neg(t)", {"ones": I64([1, 1])}),
    "slice to its end": model(
        *ROWS, "a = Relu(x) s = Shape <end = 1> (x) b = Slice(a, zero, s, zero) y = Neg(b)", {"zero": I64([0])}
    ),
    "mean of one": model(*IMAGE, "a = Relu(x) b = AveragePool <kernel_shape = [1, 1]> (a) y = Neg(b)"),
    "largest of one": model(
        *IMAGE, 'a = Relu(x) b = MaxPool <kernel_shape = [1, 1], auto_pad = "SAME_UPPER"> (a) y = Neg(b)'
    ),
    "in a branch": model(
        "float[N, 6] x, bool p",
        "float[?, ?] y",
        """a = Relu(x) s = Shape(x)
           z = If (p) <then_branch = t () => (float[?, ?] u) { e = Expand(a, s) u = Neg(e) },
                       else_branch = e () => (float[?, ?] v) { v = Expand(a, s) }> y = Exp(z)""",
    ),
}
KEPT = {
    "crop": resize("linear", "tf_crop_and_resize", "roi"),
    "reversed": model(
        *ROWS,
        "a = Relu(x) b = Slice(a, last, first, zero, back) y = Neg(b)",
        {"last": I64([-1]), "first": I64([-(2**62)]), "zero": I64([0]), "back": I64([-1])},
    ),
    "mean of some": model(
        *IMAGE, "a = Relu(x) b = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a) y = Neg(b)"
    ),
    "absolute values of one": model(*IMAGE, "a = Neg(x) b = LpPool <kernel_shape = [1, 1]> (a) y = Neg(b)"),
    "output": model(*ROWS, "a = Relu(x) s = Shape(x) y = Expand(a, s)"),
    "broadcast": model("float[N, M] x, float[A, M] z", "float[?, ?] y", "s = Shape(z) e = Expand(x, s) y = Neg(e)"),
}
REMOVABLE = ("Resize", "Expand", "Tile", "Slice", "AveragePool", "MaxPool", "LpPool")


def kept(source: onnx.ModelProto, fusion: str = "rdp") -> int:
    return sum(n.op in REMOVABLE for n in sod2.plan(source, sod2.Options(fusion=fusion)).graph.nodes)


def arrays(source: onnx.ModelProto, size: int) -> dict[str, np.ndarray]:
    facts = sod2.analyze(source)
    shapes = {v.name: tuple(int(d) if d.is_constant else size for d in v.shape or ()) for v in facts.graph.inputs}
    return {v.name: random(v.dtype, shapes[v.name]) for v in facts.graph.inputs}


@pytest.mark.parametrize("name", [*GONE, *KEPT])
@pytest.mark.parametrize("size", [1, 2, 7])
def test_results_stay(name: str, size: int) -> None:
    source = (GONE | KEPT)[name]
    inputs = arrays(source, size)
    assert_close(sod2.compile(source).run(inputs), expected(source, inputs))


@pytest.mark.parametrize("name", GONE)
def test_what_changes_nothing_vanishes(name: str) -> None:
    assert kept(GONE[name], "none") > 0 and kept(GONE[name]) == 0


@pytest.mark.parametrize("name", KEPT)
def test_what_may_change_something_stays(name: str) -> None:
    assert kept(KEPT[name]) == 1


def test_without_symbolic_shapes_nothing_can_be_proved() -> None:
    assert all(kept(source, "static") for source in GONE.values())


def test_dims_that_a_consumer_requires_are_no_proof() -> None:
    """MatMul requires 6 * r == 6 of a Tile: without the Tile nothing would check it."""
    source = model(
        "float[N, 6] x, int64[1] r",
        "float[?, ?] y",
        "a = Relu(x) t = Concat <axis = 0> (one, r) b = Tile(a, t) y = MatMul(b, w)",
        {"one": I64([1]), "w": random("f4", (6, 4))},
    )
    assert kept(source) == 1
    inputs = {"x": random("f4", (3, 6)), "r": I64([1])}
    compiled = sod2.compile(source)
    assert_close(compiled.run(inputs), expected(source, inputs))
    with pytest.raises(sod2.Error):
        compiled.run(inputs | {"r": I64([2])})
