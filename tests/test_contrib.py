"""Operators of com.microsoft and of older exporters against onnxruntime, with symbolic batches."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import sod2
from tests.batch import Batch, prepare
from tests.graphs import assert_close, expected, random

DECLARED = '<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>'
_DIRECTIONS = {1: "forward", 2: "bidirectional"}
X = {"x": (3, 5, 8)}
# inputs by name, the node, outputs
CASES: dict[str, tuple[dict[str, tuple[int, ...]], str, int]] = {
    "fused product": ({"x": (2, 3, 8), "z": (2, 8, 5)}, "com.microsoft.FusedMatMul <alpha = 0.5> (x, z)", 1),
    "fused product, turned": (
        {"x": (2, 8, 3), "z": (2, 5, 8)}, "com.microsoft.FusedMatMul <transA = 1, transB = 1> (x, z)", 1
    ),
    "gelu": (X, "com.microsoft.Gelu (x)", 1),
    "gelu with bias": ({**X, "b": (8,)}, "com.microsoft.BiasGelu (x, b)", 1),
    "fast gelu": (X, "com.microsoft.FastGelu (x)", 1),
    "fast gelu with bias": ({**X, "b": (8,)}, "com.microsoft.FastGelu (x, b)", 1),
    "quick gelu": (X, "com.microsoft.QuickGelu <alpha = 1.5> (x)", 1),
    "skip norm": (
        {**X, "s": (3, 5, 8), "g": (8,), "b": (8,), "c": (8,)},
        "com.microsoft.SkipLayerNormalization <epsilon = 0.001> (x, s, g, b, c)", 1,
    ),
    "skip norm without bias": (
        {**X, "s": (3, 5, 8), "g": (8,)}, "com.microsoft.SkipLayerNormalization (x, s, g)", 1
    ),
    "skip norm with its sum": (
        {**X, "s": (3, 5, 8), "g": (8,), "b": (8,)}, "com.microsoft.SkipLayerNormalization (x, s, g, b)", 4
    ),
    "skip root mean square": (
        {**X, "s": (3, 5, 8), "g": (8,)}, "com.microsoft.SkipSimplifiedLayerNormalization (x, s, g)", 1
    ),
    "root mean square": ({**X, "g": (8,)}, "SimplifiedLayerNormalization <axis = -1, epsilon = 0.001> (x, g)", 1),
}  # fmt: skip


def model(name: str) -> onnx.ModelProto:
    """The case as a model whose first dim of three is a symbol."""
    inputs, node, count = CASES[name]
    given = ", ".join(
        f"float[{', '.join(['N', *map(str, s[1:])] if len(s) == 3 else map(str, s))}] {t}" for t, s in inputs.items()
    )
    names = ["y", "", "", "t"][:count]
    wanted = [t for t in names if t]
    outputs = ", ".join(f"float[{', '.join('?' * 3)}] {t}" for t in wanted)
    return onnx.parser.parse_model(f"{DECLARED} g ({given}) => ({outputs}) {{ {', '.join(names)} = {node} }}")


@pytest.fixture(scope="module")
def batch() -> Iterator[Batch]:
    prepare()
    with tempfile.TemporaryDirectory() as folder:
        yield Batch(Path(folder), {name: model(name) for name in CASES})


@pytest.mark.parametrize("size", [3, 1, 0])
@pytest.mark.parametrize("name", CASES)
def test_contrib(batch: Batch, name: str, size: int) -> None:
    assert name not in batch.problems, batch.problems[name]
    shapes = {t: (size, *s[1:]) if len(s) == 3 else s for t, s in CASES[name][0].items()}
    inputs = {t: random(np.float32, s, k) for k, (t, s) in enumerate(shapes.items())}
    assert_close(batch.load(name).run(inputs), expected(model(name), inputs))


@pytest.mark.parametrize("columns", [False, True], ids=["scale per layer", "scale per column"])
@pytest.mark.parametrize("directions", [1, 2])
def test_dynamically_quantised_lstm(directions: int, columns: bool) -> None:
    """Operands are rounded to the very numbers that onnxruntime rounds them to."""
    inputs, hidden = 5, 7
    scales = (directions, 4 * hidden) if columns else (directions,)
    draw = np.random.default_rng(directions)
    stored = {
        "w": draw.integers(0, 256, (directions, inputs, 4 * hidden), np.uint8),
        "r": draw.integers(0, 256, (directions, hidden, 4 * hidden), np.uint8),
        "b": random(np.float32, (directions, 8 * hidden)),
        "s": np.full(scales, 0.01, np.float32) * np.float32(draw.uniform(0.5, 1, scales)),
        "z": np.full(scales, 128, np.uint8),
    }
    node = f"""com.microsoft.DynamicQuantizeLSTM <hidden_size = {hidden}, direction = "{_DIRECTIONS[directions]}">
               (x, w, r, b, , , , , s, z, s, z)"""
    text = f"{DECLARED} g (float[S, N, {inputs}] x) => (float[?, ?, ?, ?] y, float[?, ?, ?] h, float[?, ?, ?] c)"
    source = onnx.parser.parse_model(f"{text} {{ y, h, c = {node} }}")
    source.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in stored.items())
    compiled = sod2.compile(source)
    for shape in ((4, 1, inputs), (1, 3, inputs), (9, 2, inputs)):
        x = {"x": random(np.float32, shape)}
        assert_close(compiled.run(x), expected(source, x), 1e-5)
