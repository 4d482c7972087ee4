"""Nothing is read of an axis without elements: such a run is refused, unless nothing is asked of it.

onnxruntime refuses the same, but for RoiAlign, which then reads other memory.
"""

import numpy as np
import pytest

import sod2
from tests.graphs import assert_close, expected, model, random

I64 = np.int64
CASES = {
    # name: inputs, body, shape of the indices
    "Gather": ("float[N, 3] x, int64[K] k", "y = Gather(x, k)", (2,)),
    "GatherElements": ("float[N, 3] x, int64[K, 3] k", "y = GatherElements(x, k)", (2, 3)),
    "GatherND": ("float[N, 3] x, int64[K, 1] k", "y = GatherND(x, k)", (2, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_indices(name: str) -> None:
    """Zeros as indices, none of them, and one that is outside, which reads the nearest element."""
    inputs, body, shape = CASES[name]
    source = model(inputs, "float[?, ?] y", body)
    compiled = sod2.compile(source)
    for rows, count in ((0, 2), (0, 0), (1, 2), (2, 0), (4, 2)):
        given = {"x": random("f4", (rows, 3)), "k": np.zeros((count, *shape[1:]), I64)}
        if rows == 0 and count:
            with pytest.raises(sod2.InputError, match="must equal"):
                compiled.run(given)
        else:
            assert_close(compiled.run(given), expected(source, given))


@pytest.mark.parametrize(("index", "least"), [(0, 1), (-1, 1), (2, 3), (-4, 4)])
def test_constant_indices(index: int, least: int) -> None:
    """They have to be inside: the model's inputs say how long they are at least."""
    source = model("float[N, 2] x", "float[?] y", "y = Gather(x, k)", {"k": I64(index)})
    compiled, facts = sod2.compile(source), sod2.analyze(source)
    for rows in range(6):
        x = random("f4", (rows, 2))
        assert (facts.admissible({"x": x.shape}) is None) == (rows >= least)
        if rows >= least:
            assert_close(compiled.run({"x": x}), expected(source, {"x": x}))
        else:
            with pytest.raises(sod2.InputError):
                compiled.run({"x": x})


@pytest.mark.parametrize("mode", ["edge", "wrap"])
def test_pad(mode: str) -> None:
    source = model("float[N, 2] x", "float[?, ?] y", f'y = Pad <mode = "{mode}"> (x, k)', {"k": I64([1, 0, 1, 0])})
    compiled = sod2.compile(source)
    for rows in (0, 1, 3):
        x = random("f4", (rows, 2))
        if rows:
            assert_close(compiled.run({"x": x}), {"y": np.pad(x, ((1, 1), (0, 0)), mode)})
        else:
            with pytest.raises(sod2.InputError):
                compiled.run({"x": x})


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize(mode: str) -> None:
    """To given sizes; a multiple of a dim needs no check."""
    source = model("float[1, 1, N] x, int64[3] k", "float[?, ?, ?] y", f'y = Resize <mode = "{mode}"> (x, , , k)')
    compiled = sod2.compile(source)
    for size, out in ((0, 3), (2, 3), (1, 1)):
        given = {"x": random("f4", (1, 1, size)), "k": I64([1, 1, out])}
        if size:
            assert_close(compiled.run(given), expected(source, given))
        else:
            with pytest.raises(sod2.InputError):
                compiled.run(given)
    doubled = model("float[1, 1, N] x", "float[?, ?, ?] y", "s = Shape(x) k = Mul(s, t) y = Resize(x, , , k)",
                    {"t": I64([1, 1, 2])})  # fmt: skip
    assert not sod2.analyze(doubled).requirements


def test_regions() -> None:
    """Nor of an image that is not there."""
    source = model("float[N, 1, H, 4] x, float[R, 4] r, int64[R] k", "float[?, ?, ?, ?] y", "y = RoiAlign(x, r, k)")
    compiled = sod2.compile(source)
    for shape, regions in (((0, 1, 4, 4), 1), ((1, 1, 0, 4), 1), ((2, 1, 4, 4), 2), ((0, 1, 0, 4), 0)):
        r = np.float32([[0, 0, 2, 2]] * regions).reshape(-1, 4)
        given = {"x": random("f4", shape), "r": r, "k": np.zeros(regions, I64)}
        if regions and 0 in shape:
            with pytest.raises(sod2.InputError):
                compiled.run(given)
        else:
            assert_close(compiled.run(given), expected(source, given))


def test_lengths_beyond_the_axis() -> None:
    """ReverseSequence reverses what is there; onnxruntime refuses."""
    source = model("float[N, 2] x, int64[2] k", "float[?, ?] y", "y = ReverseSequence(x, k)")
    x = random("f4", (3, 2))
    found = sod2.compile(source).run({"x": x, "k": I64([9, -4])})
    assert_close(found, {"y": np.stack([x[::-1, 0], x[:, 1]], 1)})
