"""Element-wise operators behind a reduction run in its kernel, on pieces of its result."""

import numpy as np
import onnx
import pytest

import sod2
from tests.graphs import assert_close, expected, model, random


def reduction(op: str, axes: list[int], keepdims: int) -> onnx.ModelProto:
    rank = 3 if keepdims else 3 - len(axes)
    anything = ", ".join("?" * rank)
    body = f"a = {op} <keepdims = {keepdims}> (x, axes) b = Mul(a, half) c = Tanh(b) y = Add(c, a)"
    stored = {"axes": np.int64(axes), "half": np.float32(0.5)}
    return model("float[A, B, C] x", f"float[{anything}] a, float[{anything}] y", body, stored, opset=18)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 1], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("op", ["ReduceMean", "ReduceMax", "ReduceLogSumExp"])
def test_reductions(op: str, axes: list[int], keepdims: int) -> None:
    source = reduction(op, axes, keepdims)
    assert len(sod2.plan(source).fusion.groups) == 1
    compiled = sod2.compile(source, threads=2)
    for shape in [(2, 3, 5), (1, 1, 1), (3, 4, 600), (1, 600, 1), (2, 7, 0) if 2 not in axes else (0, 7, 2)]:
        inputs = {"x": random("f4", shape)}
        if 0 in shape and (op == "ReduceMean" or 0 in axes):
            continue
        assert_close(compiled.run(inputs), expected(source, inputs))


def test_axes_that_lie_apart_take_no_epilogue() -> None:
    source = reduction("ReduceMean", [0, 2], 1)
    assert len(sod2.plan(source).fusion.groups) == 2
    inputs = {"x": random("f4", (2, 3, 5))}
    assert_close(sod2.compile(source).run(inputs), expected(source, inputs))


def test_a_gate() -> None:
    """The mean over all pixels, and what is done with one number per channel."""
    source = model(
        "float[N, 8, H, W] x, float[N, 8, 1, 1] z",
        "float[?, ?, ?, ?] y",
        "a = GlobalAveragePool(x) b = Add(a, z) c = Sigmoid(b) y = Mul(c, half)",
        {"half": np.float32(0.5)},
    )
    assert len(sod2.plan(source).fusion.groups) == 1
    for n, h in [(2, 7), (1, 1)]:
        inputs = {"x": random("f4", (n, 8, h, 3)), "z": random("f4", (n, 8, 1, 1))}
        assert_close(sod2.compile(source).run(inputs), expected(source, inputs))
