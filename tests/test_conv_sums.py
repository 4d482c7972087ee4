"""The sum of two 1x1 convolutions as one: against onnxruntime, and where it must stay a sum."""

import numpy as np
import onnx
import pytest

from sod2 import compiler
from tests.graphs import assert_close, expected, model

RNG = np.random.default_rng(3)
PLAIN = "a = Conv(x, wa, ba) b = Conv(z, wb, bb) s = Add(a, b) y = Relu(s)"
INPUTS = "float[1, 5, H, W] x, float[1, 3, H, W] z"


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def stored(rows: int, kernel: int = 1, columns: tuple[int, int] = (5, 3)) -> dict[str, np.ndarray]:
    arrays = {}
    for name, inputs in zip("ab", columns, strict=True):
        arrays[f"w{name}"] = normal(rows, inputs, kernel, kernel)
        arrays[f"b{name}"] = normal(rows)
    return arrays


def convolutions(source: onnx.ModelProto) -> int:
    return sum(n.op == "Conv" for n in compiler.plan(source).graph.nodes)


@pytest.mark.parametrize(
    "body",
    [PLAIN, PLAIN.replace(", bb", ""), PLAIN.replace(", ba", "").replace(", bb", "")],
    ids=["both", "one", "none"],
)
@pytest.mark.parametrize("rows", [8, 33])
def test_one_convolution(rows: int, body: str) -> None:
    source = model(INPUTS, "float[?, ?, ?, ?] y", body, stored(rows))
    assert convolutions(source) == 1
    compiled = compiler.compile(source, threads=2)
    for size in [(1, 1), (7, 9), (40, 33)]:
        arrays = {n: normal(1, c, *size) for n, c in (("x", 5), ("z", 3))}
        assert_close(compiled.run(arrays), expected(source, arrays))


def test_any_batch() -> None:
    """Operands of the Concat are then no consecutive bytes of its result."""
    source = model(INPUTS.replace("[1,", "[N,"), "float[?, ?, ?, ?] y", PLAIN, stored(9))
    assert convolutions(source) == 1
    compiled = compiler.compile(source)
    arrays = {n: normal(3, c, 6, 5) for n, c in (("x", 5), ("z", 3))}
    assert_close(compiled.run(arrays), expected(source, arrays))


def test_both_images_are_one() -> None:
    source = model("float[1, 4, H, W] x", "float[?, ?, ?, ?] y", PLAIN.replace("z", "x"), stored(8, columns=(4, 4)))
    compiled = compiler.compile(source)
    arrays = {"x": normal(1, 4, 6, 5)}
    assert_close(compiled.run(arrays), expected(source, arrays))


@pytest.mark.parametrize("rows", [(1, 8), (8, 1)])
def test_a_broadcast_summand_stays(rows: tuple[int, int]) -> None:
    """One row of results is added to each of the other's."""
    arrays = {f"w{n}": normal(r, c, 1, 1) for n, r, c in zip("ab", rows, (5, 3), strict=True)}
    arrays |= {f"b{n}": normal(r) for n, r in zip("ab", rows, strict=True)}
    source = model(INPUTS, "float[?, ?, ?, ?] y", PLAIN, arrays)
    assert convolutions(source) == 2
    inputs = {"x": normal(1, 5, 6, 7), "z": normal(1, 3, 6, 7)}
    assert_close(compiler.compile(source).run(inputs), expected(source, inputs))


@pytest.mark.parametrize(
    ("body", "inputs", "rows", "kernel"),
    [
        (PLAIN, INPUTS, 7, 1),  # joining eight channels would cost more than writing seven
        (PLAIN, INPUTS, 8, 3),
        (PLAIN, INPUTS.replace("H, W] z", "H, V] z"), 8, 1),  # one of the two may be broadcast
        (PLAIN.replace("(x, wa, ba)", "<strides = [2, 2]>(x, wa, ba)"), INPUTS.replace("H, W] x", "1, 1] x"), 8, 1),
        (PLAIN.replace("(z, wb, bb)", '<auto_pad = "SAME_UPPER">(z, wb, bb)'), INPUTS, 8, 1),
        (PLAIN.replace("Add(a, b)", "Sub(a, b)"), INPUTS, 8, 1),
        (PLAIN.replace("Relu(s)", "Mul(s, a)"), INPUTS, 8, 1),  # a summand that is read elsewhere
    ],
)
def test_stays_a_sum(body: str, inputs: str, rows: int, kernel: int) -> None:
    assert convolutions(model(inputs, "float[?, ?, ?, ?] y", body, stored(rows, kernel))) == 2
