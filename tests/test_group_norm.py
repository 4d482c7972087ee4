"""Group normalisation in the spelling of exporters becomes one kernel, with the activation behind it."""

import numpy as np
import onnx
import pytest

import sod2
from tests.graphs import assert_close, expected, model, random

CHANNELS, GROUPS = 6, 3
STORED = {
    "w": random("f4", (CHANNELS, 4, 3, 3)),
    "apart": np.int64([0, GROUPS, -1]),
    "four": np.int64([0, 4, -1]),
    "merged": np.int64([1, GROUPS, -1]),
    "gs": random("f4", (GROUPS,)),
    "gb": random("f4", (GROUPS,), 1),
    "s4": random("f4", (4,)),
    "b4": random("f4", (4,), 1),
    "scale": random("f4", (CHANNELS, 1, 1)),
    "bias": random("f4", (1, CHANNELS, 1, 1), 1),
    "one": np.float32([[[0.5]]]),
    "wide": random("f4", (CHANNELS, 1, 5)),
}
BEGIN = "c = Conv <pads = [1, 1, 1, 1]> (x, w) r = Reshape(c, {apart}) i = InstanceNormalization({norm}) s = Shape(c) "
NORM = BEGIN.format(apart="apart", norm="r, gs, gb") + "n = Reshape(i, s) "
SILU = "g = Sigmoid(a) y = Mul(a, g)"


def image(body: str, images: str = "N") -> onnx.ModelProto:
    return model(f"float[{images}, 4, H, W] x", "float[?, ?, ?, ?] y", body, STORED)


FUSED = {
    "scale, bias, activation": image(f"{NORM} m = Mul(n, scale) a = Add(bias, m) {SILU}"),
    "scale alone": image(f"{NORM} y = Mul(n, scale)"),
    "bias alone": image(f"{NORM} y = Add(n, bias)"),
    "neither": image(f"{NORM} y = Relu(n)"),
    "one number": image(f"{NORM} m = Mul(n, one) y = Exp(m)"),
    "another reader of the image": image(f"{NORM} m = Mul(n, scale) y = Add(m, c)"),
    "a factor for columns": image(f"{NORM} m = Mul(n, wide) y = Neg(m)"),
}
ONE_IMAGE = "groups across images"  # three groups do not go into two
APART = {
    ONE_IMAGE: image(NORM.replace("apart", "merged") + "y = Mul(n, scale)"),
    "another reader": image(f"{NORM} m = Mul(n, scale) q = Neg(i) t = Reshape(q, s) y = Add(m, t)"),
    "another shape": model(
        "float[N, 4, H, W] x",
        "float[?, ?, ?] y",
        BEGIN.format(apart="apart", norm="r, gs, gb").replace("s = Shape(c) ", "") + "y = Neg(i)",
        STORED,
    ),
}


def norms(source: onnx.ModelProto, fusion: str = "rdp") -> list[str]:
    nodes = sod2.plan(source, sod2.Options(fusion=fusion)).graph.nodes
    return [n.op for n in nodes if "Normalization" in n.op]


@pytest.mark.parametrize(
    ("name", "n", "h"),
    [(name, n, h) for name in (*FUSED, *APART) for n, h in ((2, 5), (1, 1), (1, 40)) if n == 1 or name != ONE_IMAGE],
)
def test_results_stay(name: str, n: int, h: int) -> None:
    """Also with more pixels than an epilogue gets at once."""
    source = (FUSED | APART)[name]
    width = 5 if "columns" in name else h
    inputs = {"x": random("f4", (n, 4, h, width))}
    assert_close(sod2.compile(source).run(inputs), expected(source, inputs))


@pytest.mark.parametrize("name", FUSED)
def test_one_node(name: str) -> None:
    assert norms(FUSED[name]) == ["GroupNormalization"]


@pytest.mark.parametrize("name", APART)
def test_what_is_not_proved_stays(name: str) -> None:
    assert norms(APART[name]) == ["InstanceNormalization"]


def test_the_activation_is_in_the_same_kernel() -> None:
    groups = sod2.plan(FUSED["scale, bias, activation"]).fusion.groups
    assert [[n.op for n in g.nodes] for g in groups] == [["Conv"], ["GroupNormalization", "Sigmoid", "Mul"]]


def test_only_equal_dims_tell() -> None:
    """Without RDP the dims that come back from Shape and Reshape are unknown."""
    assert norms(FUSED["neither"], "static") == ["InstanceNormalization"]


@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("columns", [1, 17, 512, 1300])
def test_epilogues_of_row_normalisations(op: str, rows: int, columns: int) -> None:
    """What follows is applied to pieces of a row."""
    stored = {"scale": random("f4", (columns,)), "shift": random("f4", (columns,), 1)}
    source = model(
        f"float[N, {columns}] x, float[N, {columns}] z",
        "float[?, ?] a, float[?, ?] y",
        f"a = {op} <axis = -1> (x, scale) b = Add(a, z) c = Mul(b, shift) y = Tanh(c)",
        stored,
        opset=23,
    )
    assert len(sod2.plan(source).fusion.groups) == 1
    inputs = {"x": random("f4", (rows, columns)), "z": random("f4", (rows, columns), 1)}
    if rows:
        assert_close(sod2.compile(source).run(inputs), expected(source, inputs))
    else:
        assert sod2.compile(source).run(inputs)["y"].shape == (0, columns)
