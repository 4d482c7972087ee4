"""A session of 200 random shapes holds what the largest one needs, and a bounded number of plans; oracle: the hook."""

import contextlib
from pathlib import Path

import numpy as np
import onnx
import pytest

import sod2
from devices import device
from figures import memory_walk
from sod2.codegen import target
from sod2.compiler import build
from tests.graphs import model

PLANS = 32  # of runtime/plan.c
SOURCE = model(
    "float[1, 4, H, W] x",
    "float[?] y",
    "a = Softmax(x) b = MaxPool<kernel_shape=[3, 3]>(a) c = Concat<axis=1>(b, b) d = Softmax(c) y = ReduceMean(d)",
)
BRANCHES = model(
    "float[N, 64] x, bool p",
    "float[?] y",
    "a = Softmax(x)"
    "y = If (p) <then_branch = t () => (float[?] b) { c = Softmax(a) d = Concat<axis=1>(c, a) e = Softmax(d)"
    " b = ReduceSum(e) }, else_branch = u () => (float[?] g) { g = ReduceSum(a) }>",
)


@pytest.mark.parametrize(("source", "dims"), [(SOURCE, "1 4 H W"), (BRANCHES, "H 64")], ids=["one path", "branches"])
def test_a_session_holds_the_largest_need(
    source: onnx.ModelProto, dims: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device.Device, "lock", lambda _: contextlib.nullcontext())  # nothing is timed here
    folder = build(source, sod2.Options(), target.host(), tmp_path / "artifact")
    rng = np.random.default_rng(5)
    extents = [{"H": int(h), "W": int(w)} for h, w in rng.integers(3, 400, (200, 2))]
    shapes = [[[extent.get(dim) or int(dim) for dim in dims.split()]] for extent in extents]
    if source is BRANCHES:
        shapes = [[*shape, []] for shape in shapes]
    needs, held = memory_walk.walk(folder, shapes, device.load("host"))
    largest = needs.index(max(needs))
    page, python = 2 * 4096, 200 * 1024  # the arena's last pages; what the interpreter keeps
    assert max(held) <= max(needs) + page + python
    assert held[-1] - held[max(largest, PLANS)] <= python
