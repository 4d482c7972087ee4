"""`sod2 memory`: the formula against the runtime's own figures, and what fits a budget against trying every size."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import sod2
from sod2 import footprint, timeline
from sod2.__main__ import main
from sod2.symbolic import evaluate
from tests.graphs import model

MODEL = model(
    "float[1, 4, H, W] x, bool p",
    "float[?] y",
    "a = Softmax(x) b = MaxPool<kernel_shape=[3, 3]>(a)"
    "c = If (p) <then_branch = t () => (float[?] d) { e = Concat<axis=1>(b, b) f = Softmax(e) d = ReduceSum(f) },"
    " else_branch = u () => (float[?] g) { g = ReduceSum(b) }>"
    "y = Exp(c)",
)


@pytest.fixture(scope="module")
def compiled() -> sod2.CompiledModel:
    return sod2.compile(MODEL)


@pytest.fixture(scope="module")
def scan(compiled: sod2.CompiledModel) -> footprint.Scan:
    analysis = sod2.analyze(MODEL)
    return footprint.scan(compiled, analysis, footprint.parse_ranges(["H=1:12", "W=2:8:2"], analysis.symbols))


def test_formula_is_the_live_peak(compiled: sod2.CompiledModel) -> None:
    storage = sod2.plan(MODEL).storage
    plan, outside = footprint.formula(storage), footprint.outside_branches(storage)
    for height, width in ((3, 3), (16, 40), (64, 9)):
        symbols = {"H": height, "W": width}
        compiled.peak_bytes({"x": (1, 4, height, width), "p": ()})
        assert evaluate(plan.live_peak, symbols) <= plan.live_bytes(symbols) <= compiled.stats.live_bytes
        assert compiled.stats.live_bytes <= compiled.stats.arena_bytes
        assert evaluate(outside, symbols) <= evaluate(plan.live_peak, symbols)


def test_largest_step() -> None:
    """MaxPool reads and writes two buffers, the second Softmax another two; the rest is smaller."""
    plan = sod2.plan(MODEL)
    for height, width in ((3, 3), (16, 40), (64, 9)):
        a, b = 16 * height * width, 16 * (height - 2) * (width - 2)
        found = footprint.largest_step(plan.storage, plan.analysis, {"H": height, "W": width})
        assert found == max(a + b, 2 * 2 * b)


def test_largest_step_counts_shared_bytes_once() -> None:
    """A slice is a view of what it is cut from: together with it they take no more than the whole."""
    rows = {"first": np.array([2]), "last": np.array([4])}
    body = "a = Softmax(x) b = Slice(a, first, last) c = Gemm<transB = 1>(a, b) z = Softmax(c)"
    plan = sod2.plan(model("float[8, N] x", "float[?, ?] z", body, rows))
    assert plan.storage.places["b"].number == plan.storage.places["a"].number
    assert footprint.largest_step(plan.storage, plan.analysis, {"N": 10}) == 4 * (8 * 10 + 8 * 2)


def test_scan_binds_every_admissible_size(scan: footprint.Scan, compiled: sod2.CompiledModel) -> None:
    assert len(scan.points) == 12 * 4
    for point in scan.points:
        height, width = point.symbols["H"], point.symbols["W"]
        accepted = height >= 2 and width >= 2  # a window too many: onnxruntime counts none, and takes the size
        assert (point.arena is not None) == accepted
        if accepted:
            assert point.arena == compiled.peak_bytes({"x": (1, 4, height, width), "p": ()})
    assert scan.worst.symbols == {"H": 12, "W": 8}


def test_budget(scan: footprint.Scan) -> None:
    assert scan.worst.arena is not None
    (*small, last) = scan.fitting(scan.worst.arena - 1)
    assert small[0] == "H=1 no W" and small[2] == "H=3 W in 2..8"
    assert last == "H=12 W in 2..6"
    assert list(scan.fitting(0)) == [f"H={h} no W" for h in range(1, 13)]


@pytest.mark.parametrize(
    ("text", "message"),
    [("Q=1:2", "no symbol 'Q'"), ("H=3:1", "is empty"), ("H=a:b", "is not understood"), ("H=1:9:0", "is empty")],
)
def test_bad_ranges(text: str, message: str) -> None:
    with pytest.raises(sod2.Error, match=message):
        footprint.parse_ranges([text, "W=3"], ("H", "W"))


def test_missing_range() -> None:
    with pytest.raises(sod2.Error, match="symbol 'W' has no range"):
        footprint.parse_ranges(["H=3"], ("H", "W"))


@pytest.mark.parametrize(
    ("text", "size"), [("64MB", 64 * 10**6), ("1.5GiB", 3 * 2**29), ("4096", 4096), ("8 kb", 8000), ("7B", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert footprint.parse_bytes(text) == size


def test_bad_size() -> None:
    with pytest.raises(sod2.Error, match="budget 'much' is no size"):
        footprint.parse_bytes("much")


def test_timeline(compiled: sod2.CompiledModel, tmp_path: Path) -> None:
    """Steps that ran, end to end, with the bytes of the plan: the largest over all steps is the live peak."""
    x = np.ones((1, 4, 9, 8), np.float32)
    inputs = {"x": x, "p": np.array(False)}
    timeline.write(timeline.trace(compiled, inputs), tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    steps = [e for e in events if e["ph"] == "X"]
    names = [name for name, ns in compiled.profile(inputs) if ns]
    assert [e["name"] for e in steps] == names and not any("Softmax f" in name for name in names)
    assert all(b["ts"] == pytest.approx(a["ts"] + a["dur"]) for a, b in pairwise(steps))
    assert max(compiled.live_bytes()) == compiled.stats.live_bytes
    assert max(e["args"]["live bytes"] for e in steps) <= compiled.stats.live_bytes


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, picture = tmp_path / "m.onnx", tmp_path / "m.PNG"
    path.write_bytes(MODEL.SerializeToString())
    assert main(["memory", str(path), "--range", "H=3:9", "W=5", "--budget", "1KB", "--png", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "live peak, any path" in printed and "within 1KB" in printed and "0 the model refuses" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["memory", str(path), "--range", "H=1", "W=5"]) == 1
    assert "accepts none of the sizes" in capsys.readouterr().err
    assert np.all([p.name in ("m.onnx", "m.PNG") for p in tmp_path.iterdir()])
