"""Work of steps against counts by hand and by the harness; the machine's limits against its clock; the reports."""

import ctypes
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import sod2
from devices import device
from models import build
from models.flops import macs
from models.inputs import concrete_shape
from sod2 import roofline, timeline, work
from sod2.__main__ import main
from sod2.artifact import Limits
from sod2.codegen import target
from tests.graphs import Arrays, model

IMAGE = "float[N, 4, H, W] x"
# Model, sizes, floating-point operations and bytes worked out by hand.
COUNTS = {
    "convolution and its bias": (
        model(
            IMAGE,
            "float[?, ?, ?, ?] y",
            "y = Conv<strides=[2, 2]>(x, w, b)",
            {"w": np.ones((6, 4, 3, 3), "f4"), "b": np.ones(6, "f4")},
        ),
        {"N": 2, "H": 9, "W": 7},
        2 * (2 * 6 * 4 * 3) * (4 * 9),
        4 * (2 * 4 * 9 * 7 + 6 * 4 * 9 + 6 + 2 * 6 * 4 * 3),
    ),
    "groups": (
        model(IMAGE, "float[?, ?, ?, ?] y", "y = Conv<group=2>(x, w)", {"w": np.ones((6, 2, 1, 1), "f4")}),
        {"N": 1, "H": 5, "W": 5},
        2 * (6 * 25) * 2,
        4 * (4 * 25 + 12 + 6 * 25),
    ),
    "transposed convolution": (
        model(
            IMAGE, "float[?, ?, ?, ?] y", "y = ConvTranspose<strides=[2, 2]>(x, w)", {"w": np.ones((4, 3, 2, 2), "f4")}
        ),
        {"N": 1, "H": 5, "W": 1},
        2 * (4 * 5) * (3 * 4),
        4 * (4 * 5 + 48 + 3 * 10 * 2),
    ),
    "transposed Gemm": (
        model("float[K, M] x", "float[?, ?] y", "y = Gemm<transA=1>(x, w)", {"w": np.ones((8, 3), "f4")}),
        {"K": 8, "M": 5},
        2 * 5 * 3 * 8,
        4 * (8 * 5 + 24 + 15),
    ),
    "element-wise": (
        model("float[N, M] x, float[M] c", "float[?, ?] y", "a = Add(x, c) y = Exp(a)"),
        {"N": 3, "M": 7},
        2 * 21,
        4 * (21 + 7 + 21),
    ),
    "a row of a table": (
        model("int64[N] x", "float[?, ?] y", "y = Gather(w, x)", {"w": np.ones((1000, 4), "f4")}),
        {"N": 3},
        0,
        8 * 3 + 2 * 4 * 12,
    ),
    "nothing": (model("float[N, M] x", "float[?, ?] y", "y = Exp(x)"), {"N": 0, "M": 7}, 0, 0),
}


def total(source: onnx.ModelProto, symbols: dict[str, int], what: str) -> int:
    """The sum over all steps, by the text that a manifest has."""
    plan = sod2.plan(source)
    texts = [found.text() for step in plan.storage.steps if (found := work.of_step(step, plan.analysis, {}))]
    values = [work.value(text[what], symbols) for text in texts]  # type: ignore[arg-type]
    assert None not in values
    return sum(value or 0 for value in values)


@pytest.mark.parametrize(("source", "symbols", "flops", "size"), COUNTS.values(), ids=COUNTS)
def test_work_of_an_operator(source: onnx.ModelProto, symbols: dict[str, int], flops: int, size: int) -> None:
    assert total(source, symbols, "flops") == flops
    assert total(source, symbols, "bytes") == size


@pytest.mark.parametrize(("name", "symbols"), [("yolov6", {"h": 7, "w": 9}), ("codebert", {"T": 40})])
def test_work_of_a_model(name: str, symbols: dict[str, int]) -> None:
    """Multiply-adds as the harness counts them on the exported graph; what else there is, is little."""
    source = build(name, "tiny")
    weights = {tensor.name for tensor in source.graph.initializer}
    inputs = [value for value in source.graph.input if value.name not in weights]
    types = {1: np.float32, 7: np.int64}
    arrays = {v.name: np.ones(concrete_shape(v, symbols), types[v.type.tensor_type.elem_type]) for v in inputs}
    counted = 2 * sum(macs(source, arrays).values())
    plan = sod2.plan(source)
    products = 0
    for step in plan.storage.steps:
        found = work.of_step(step, plan.analysis, {})
        assert found is not None
        products += sum(_value(p, symbols) for p in found.flops if len(p) > 3 and p[0] == 2)
    assert products == counted


def _value(product: work.Product, symbols: dict[str, int]) -> int:
    return math.prod(sod2.symbolic.evaluate(d, symbols) for d in product)


def test_unknown_work() -> None:
    """A size that only execution tells, and a step in a loop."""
    assert work.value([["2", "N"], ["3"]], {"N": 4}) == 11
    assert work.value([["2", "`nonzero.1`"]], {"N": 4}) is None
    loop = model(
        "float[N] x, int64 n",
        "float[?] y",
        "t = Constant<value_int = 1>() c = Cast<to = 9>(t)"
        "y = Loop (n, c, x) <body = b (int64 i, bool k, float[N] a) => (bool l, float[N] d)"
        " { l = Identity(k) e = Softmax(a) d = Exp(e) }>",
    )
    plan = sod2.plan(loop)
    assert any(work.of_step(step, plan.analysis, {}) is None for step in plan.storage.steps)


def test_winograd_needs_less() -> None:
    source = model(
        "float[1, 64, H, W] x",
        "float[?, ?, ?, ?] y",
        "y = Conv<pads=[1, 1, 1, 1]>(x, w)",
        {"w": np.ones((64, 64, 3, 3), "f4")},
    )
    plan = sod2.plan(source)
    (step,) = plan.storage.steps
    for versions, reduction in ((["panel"], 1.0), (["panel", "wino2"], 2.25), (["wino2", "wino4"], 4.0)):
        found = work.of_step(step, plan.analysis, {plan.graph.nodes[0].name: versions})
        assert found is not None
        assert found.reduction == reduction


# ---- the machine -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("probe")
    sources = [target.RUNTIME / name for name in ("roofline.c", "threads.c")]
    host = target.host()
    library = target.link_shared(host, target.compile_objects(host, sources, (), folder), folder / "probe.so")
    return ctypes.CDLL(str(library))


def limits(probe: ctypes.CDLL, threads: int = 1) -> Limits:
    found = Limits()
    assert probe.sod2_measure_limits(threads, ctypes.byref(found)) == 0
    return found


def test_the_peak_is_a_whole_number_of_vectors_a_cycle(probe: ctypes.CDLL) -> None:
    """Cores issue one, two or four multiply-adds of a vector a cycle."""
    apart = []
    for _ in range(8):
        found = limits(probe)
        vectors = found.flops / found.clock / (2 * target.host().lanes)
        apart.append(abs(vectors / (2 ** max(0, round(math.log2(vectors)))) - 1))
        if apart[-1] < 0.03:
            return
    pytest.fail(f"apart from a power of two by {apart}")


def test_a_set_in_a_cache_is_read_faster(probe: ctypes.CDLL) -> None:
    found = limits(probe)
    assert len(found.bandwidth) == 12
    assert min(found.bandwidth) > 1e8
    assert max(found.bandwidth[:3]) > found.bandwidth[11]


def test_too_many_threads(probe: ctypes.CDLL) -> None:
    header = (target.RUNTIME / "sod2.h").read_text()
    assert re.search(rf"SOD2_SMALLEST_SET {roofline.SMALLEST_SET}$", header, re.MULTILINE)
    assert re.search(r"SOD2_SETS 12$", header, re.MULTILINE)
    assert limits(probe, 3).flops > 0


def test_limits_of_a_device() -> None:
    found = device.load("host").limits()
    assert found["flops"] > 1e8
    assert 1e8 < found["clock"] < 2e10
    assert len(found["bandwidth"]) == 12


def test_ceiling() -> None:
    ceiling = roofline.Ceiling(1e9, (4e9, 2e9, 3e9, 1e9, *[1e9] * 8))
    kib64 = roofline.SMALLEST_SET
    assert ceiling.reading(0) == ceiling.reading(2 * kib64 - 1) == 4e9
    assert ceiling.reading(2 * kib64) == 3e9  # a larger set that was read faster: noise
    assert ceiling.reading(2**60) == 1e9
    assert ceiling.seconds(1e9, 0) == 1.0
    assert ceiling.seconds(0, 8 * kib64) == pytest.approx(8 * kib64 / 1e9)


# ---- the reports -----------------------------------------------------------------------------------------------------

BRANCHES = model(
    "float[N, 64] x, bool p",
    "float[?, 64] y",
    "a = MatMul(x, w) s = If (p) <then_branch = t () => (float[?, 64] b) { b = Softmax(a) },"
    " else_branch = u () => (float[?, 64] c) { c = MatMul(a, w) }> y = Exp(s)",
    {"w": np.eye(64, dtype="f4")},
)


def inputs() -> Arrays:
    return {"x": np.ones((96, 64), np.float32), "p": np.array(True)}


def test_steps_and_their_limits(tmp_path: Path) -> None:
    compiled = sod2.compile(BRANCHES)
    steps, ceiling = roofline.measure(compiled, inputs(), repeats=3)
    assert [step.name for step in steps] == [name for name, _ in compiled.profile(inputs())]
    (first, *_) = (step for step in steps if step.name.startswith("MatMul"))
    assert first.flops == 2 * 96 * 64 * 64
    assert first.limit_ns == pytest.approx(1e9 * ceiling.seconds(first.flops, first.bytes or 0))
    assert 0 < first.limit_ns < first.ns
    ran = [step for step in steps if step.ns]
    assert len(ran) < len(steps)  # a branch was not taken
    lines = list(roofline.report(steps, ceiling))
    assert len(lines) == 2 + len(ran) + 1
    assert "GFLOP/s" in lines[0] and f"all {len(ran)} steps" in lines[-1]
    timeline.write(timeline.trace(compiled, inputs()), tmp_path / "t.json")
    events = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(events) == len(ran)
    assert all(e["args"].keys() >= {"GFLOP/s", "GB/s", "of limit", "live bytes"} for e in events)


def test_bench_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(BRANCHES, tmp_path / "m.onnx")
    arguments = ["bench", str(tmp_path / "m.onnx"), "x=8x64", "p=", "--repeats", "2", "--profile"]
    assert main([*arguments, "--timeline", str(tmp_path / "t.json")]) == 0
    printed = capsys.readouterr().out
    assert "of limit" in printed and "median" in printed
    assert (tmp_path / "t.json").exists()


def test_strict_compilation(tmp_path: Path) -> None:
    """The probe and its program without a warning."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    for source in (target.RUNTIME / "roofline.c", Path(device.__file__).parent / "limits.c"):
        command = ["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{target.RUNTIME}", "-c", source]
        subprocess.run([*command, "-o", tmp_path / "o.o"], check=True)
