"""The whole compiler: the tiny models under every option, and what control flow and shared memory can get wrong.

onnxruntime is the oracle. Inputs of each model are the smallest admissible shape and random ones; histories A, B, A
must give the same bits for both A.
"""

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import models
import sod2
from sod2 import compiler
from sod2.codegen import target
from tests.graphs import assert_close, expected, model, random

TOGGLES = [
    sod2.Options(),
    sod2.Options(fusion="none", sep=False, dmp=False, mvc=False),
    sod2.Options(fusion="static"),
    sod2.Options(sep=False),
    sod2.Options(dmp=False),
    sod2.Options(mvc=False),
    sod2.Options(control="all"),
    sod2.Options(fusion="none", control="all"),
]
MODELS = ("codebert", "skipnet", "yolov6")


def option_id(options: sod2.Options) -> str:
    changed = [f"{k}={v}" for k, v in vars(options).items() if v != getattr(sod2.Options(), k)]
    return ",".join(changed) or "default"


@pytest.fixture(scope="module", params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def source(name: str) -> onnx.ModelProto:
    return models.build(name, "tiny")


def inputs_of(source: onnx.ModelProto, symbols: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    """Random inputs at these symbols: token ids below 1000 with some padding, masks of ones, pictures."""
    rng = np.random.default_rng(seed)
    arrays = {}
    facts = sod2.analyze(source)
    for value in facts.graph.inputs:
        shape = tuple(int(sod2.symbolic.evaluate(d, symbols)) for d in value.shape)
        if value.dtype.kind == "f":
            arrays[value.name] = rng.standard_normal(shape).astype(value.dtype)
        else:
            low, high = (0, 2) if "mask" in value.name else (2, 1000)
            arrays[value.name] = rng.integers(low, high, shape).astype(value.dtype)
    return arrays


def samples(name: str, source: onnx.ModelProto, count: int) -> list[dict[str, np.ndarray]]:
    """Inputs at the smallest shapes that the model takes, then at random ones."""
    smallest = {"codebert": {"T": 1}, "yolov6": {"h": 1, "w": 1}, "skipnet": {"H": 32, "W": 33}}[name]
    rng = np.random.default_rng(7)
    drawn = [{s: int(rng.integers(low, low * 8 + 1)) for s, low in smallest.items()} for _ in range(count - 1)]
    return [inputs_of(source, symbols, k) for k, symbols in enumerate([smallest, *drawn])]


@pytest.fixture(scope="module")
def wanted(name: str, source: onnx.ModelProto) -> list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Samples with onnxruntime's outputs."""
    return [(inputs, expected(source, inputs)) for inputs in samples(name, source, 4)]


@pytest.mark.parametrize("options", TOGGLES, ids=option_id)
def test_model_under_options(source: onnx.ModelProto, wanted: list, options: sod2.Options) -> None:
    """Every option computes the same function, at 1 and 2 threads, whatever ran before, bit by bit."""
    runs = [sod2.compile(source, options, threads) for threads in (1, 2)]
    first = []
    for inputs, outputs in wanted:
        one, two = (compiled.run(inputs) for compiled in runs)
        assert_close(one, outputs)
        assert all(one[k].tobytes() == two[k].tobytes() for k in one), "the number of threads changes bits"
        first.append(one)
        stats = runs[0].stats
        assert 0 < stats.live_bytes <= stats.arena_bytes <= stats.reserved_bytes
    for (inputs, _), one in zip(wanted, first, strict=True):
        again = runs[1].run(inputs)
        assert all(one[k].tobytes() == again[k].tobytes() for k in one), "the history changes bits"


def with_intermediates(source: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every tensor of its outer graph as an output."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(source)
    known = {o.name for o in exposed.graph.output}
    for tensor in (t for n in exposed.graph.node for t in n.output if t and t not in known):
        exposed.graph.output.append(onnx.ValueInfoProto(name=tensor))
    return exposed


def test_predicted_shapes(source: onnx.ModelProto, wanted: list) -> None:
    """Every shape that the analysis predicts is onnxruntime's, for all intermediates of the outer graph."""
    facts = sod2.analyze(source)
    exposed = with_intermediates(source)
    for inputs, _ in wanted:
        real = expected(exposed, inputs)
        predicted = facts.shapes({k: v.shape for k, v in inputs.items()})
        checked = {t: s for t, s in predicted.items() if t in real and s is not None}
        assert {t: real[t].shape for t in checked} == checked
        assert len(checked) >= len([t for t in real if t in predicted])


def test_peak_bytes(source: onnx.ModelProto, wanted: list) -> None:
    """peak_bytes is the arena of a run at this shape, and least at the smallest shape."""
    compiled = sod2.compile(source)
    peaks = []
    for inputs, _ in wanted:
        peaks.append(compiled.peak_bytes({k: v.shape for k, v in inputs.items()}))
        compiled.run(inputs)
        assert compiled.stats.arena_bytes == peaks[-1]
    assert peaks[0] == min(peaks)


# ---- control flow ----------------------------------------------------------------------------------------------------

CONTROL = (sod2.Options(), sod2.Options(fusion="none", sep=False), sod2.Options(control="all"))


def if_(then: str, other: str, predicate: str = "p") -> str:
    """If on a predicate: each branch is the text of its nodes, whose last one defines `a` (then) and `b` (else)."""
    return (
        f"If ({predicate}) <then_branch = t () => (float[?] a) {{ {then} }},"
        f" else_branch = e () => (float[?] b) {{ {other} }}>"
    )


BRANCHES = {
    # the branch that writes in place over a tensor that the other branch hands on
    "residual": f"x = Exp(v) z = {if_('h = Softmax(x) a = Add(h, x)', 'b = Identity(x)')}",
    # y is computed whatever the predicate says: it must not be written over x
    "unconditional": f"x = Exp(v) y = Neg(x) z = {if_('a = Identity(y)', 'b = Identity(x)')}",
    "read again": f"x = Exp(v) y = {if_('h = Softmax(x) a = Add(h, x)', 'b = Identity(x)')} z = Mul(x, y)",
    "twice": f"""x = Exp(v) y = {if_("h = Softmax(x) a = Add(h, x)", "b = Identity(x)")}
                 z = {if_("a = Neg(y)", "b = Identity(y)")}""",
    "other predicate": f"""x = Exp(v) y = {if_("a = Neg(x)", "b = Identity(x)")}
                           z = {if_("a = Sqrt(x)", "b = Identity(y)", "q")}""",
    "input handed on": f"z = {if_('a = Identity(v)', 'b = Identity(w)')}",
    "constants": f"""k = Constant <value_floats = [1.0, 2.0]> ()
                     z = {if_("a = Identity(k)", "b = Constant <value_floats = [3.0, 4.0]> ()")}""",
    "no work": f"z = {if_('a = Identity(v)', 'b = Identity(v)')}",
}


def nested() -> str:
    inner = if_("h = Softmax(x) a = Add(h, x)", "b = Neg(x)", "q").replace("(float[?] a)", "(float[?] a1)")
    return f"x = Exp(v) z = {if_('a = Identity(c)', 'b = Identity(x)')}".replace(
        "a = Identity(c)",
        "a = " + inner.replace("a = Add", "a1 = Add").replace("t ()", "t1 ()").replace("e ()", "e1 ()"),
    )


BRANCHES["nested"] = nested()


@pytest.mark.parametrize("body", BRANCHES.values(), ids=BRANCHES)
def test_branches(body: str) -> None:
    """Both sides of every predicate, at several sizes, under three strategies."""
    source = model("float[N] v, float[N] w, bool p, bool q", "float[?] z", body)
    for options in CONTROL:
        compiled = sod2.compile(source, options)
        for size, p, q in itertools.product((0, 1, 2, 33), (True, False), (True, False)):
            inputs = {"v": random("f4", (size,)), "w": random("f4", (size,), 1), "p": np.array(p), "q": np.array(q)}
            assert_close(compiled.run(inputs), expected(source, inputs))


def test_only_the_taken_branch_runs() -> None:
    """Steps of the other branch take no time; with control="all" there are no branches."""
    body = f"x = Exp(v) z = {if_('h = Softmax(x) a = Add(h, x)', 'h2 = LogSoftmax(x) b = Add(h2, x)')}"
    source = model("float[N] v, bool p", "float[?] z", body)
    compiled = sod2.compile(source)
    for taken in (True, False):
        steps = compiled.profile({"v": random("f4", (1000,)), "p": np.array(taken)})
        times = {
            op: sum(ns for step, ns in steps if op in step.split()[0].split("+")) for op in ("Softmax", "LogSoftmax")
        }
        assert (times["Softmax"] > 0) == taken
        assert (times["LogSoftmax"] > 0) == (not taken)
    every = sod2.compile(source, sod2.Options(control="all"))
    assert all(ns > 0 for _, ns in every.profile({"v": random("f4", (1000,)), "p": np.array(True)}))


def test_two_outputs_of_a_kernel_on_one_buffer() -> None:
    """The first output may lie on an operand that the second one reads under another name."""
    body = "x = Softmax(v) s = Identity(x) y = Add(x, one) z = Mul(s, y)"
    source = model("float[N] v", "float[?] y, float[?] z", body, {"one": np.float32([1.0])})
    inputs = {"v": random("f4", (33,))}
    assert_close(sod2.compile(source).run(inputs), expected(source, inputs))


@pytest.mark.parametrize("fusion", ["none", "static", "rdp"])
def test_in_place_only_at_the_same_position(fusion: str) -> None:
    """A Slice that reverses is One-to-One by name, and reads elsewhere than it writes."""
    ends = {"s": np.int64([-1]), "e": np.int64([-(2**31)]), "a": np.int64([0]), "d": np.int64([-1])}
    source = model("float[N] v", "float[?] z", "x = Softmax(v) y = Slice(x, s, e, a, d) z = Neg(y)", ends)
    inputs = {"v": random("f4", (9,))}
    assert_close(sod2.compile(source, sod2.Options(fusion=fusion)).run(inputs), expected(source, inputs))


CONVOLUTIONS = {
    "in place": "a = Softmax(i) c = Conv <pads = [1, 1, 1, 1]> (a, k, b) y = Conv <pads = [1, 1, 1, 1]> (c, k, b)",
    "residual": """a = Softmax(i) c = Conv <pads = [1, 1, 1, 1]> (a, k, b)
                   d = Conv <pads = [1, 1, 1, 1]> (c, k, b) y = Add(a, d)""",
    "image twice": """c = Conv <pads = [1, 1, 1, 1]> (i, k, b) d = Max(c, i)
                      y = Conv <pads = [1, 1, 1, 1]> (d, k, b)""",
    "rows": """c = Conv <pads = [1, 1, 1, 1]> (i, k, b) d = Max(c, r)
               y = Conv <pads = [1, 1, 1, 1]> (d, k, b)""",
}


@pytest.mark.parametrize("height", ["H", "40"])
@pytest.mark.parametrize("body", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolution_pairs(body: str, height: str) -> None:
    """A pair that runs strip by strip computes the same, whatever else reads its tensors or lies on their bytes."""
    stored = {"k": random("f4", (4, 4, 3, 3)), "b": random("f4", (4,)), "r": random("f4", (1, 1, 40, 1))}
    source = model(f"float[1, 4, {height}, W] i", "float[?, ?, ?, ?] y", body, stored)
    for options in (sod2.Options(), sod2.Options(fusion="none")):
        compiled = sod2.compile(source, options)
        for width in (1, 8, 33):
            inputs = {"i": random("f4", (1, 4, 40, width))}
            assert_close(compiled.run(inputs), expected(source, inputs))


def test_equal_steps_decide_once_for_each_allowance(tmp_path: Path) -> None:
    """Of three equal convolutions the first has less live beside it: it may have more scratch."""
    conv = "Conv <pads = [1, 1, 1, 1], strides = [1, 1]>"
    body = f"a = Softmax(i) b = {conv} (a, k) c = Softmax(b) d = {conv} (c, l) e = Softmax(d) f = {conv} (e, m)"
    stored = {name: random("f4", (48, 48, 3, 3), seed) for seed, name in enumerate("klm")}
    source = model("float[1, 48, H, W] i", "float[?, ?, ?, ?] y", f"{body} g = Softmax(f) y = Add(g, a)", stored)
    folder = compiler.build(source, sod2.Options(), target.host(), tmp_path / "built")
    entries = re.findall(r"^\{decide_\d+, (.*)\},$", (folder / "model.c").read_text(), re.MULTILINE)
    assert [entry.split(", ")[4] for entry in entries] == ["0", "1", "1"]  # so far back is an equal decision
    compiled = sod2.load(folder)
    for size in (1, 8, 33):
        inputs = {"i": random("f4", (1, 48, 3 * size, size))}
        assert_close(compiled.run(inputs), expected(source, inputs))
        first, second, third = (b.bytes for b in compiled.buffers()[-3:])
        assert first >= second == third > 0


def test_constant_output() -> None:
    """An output that is known when compiling is stored with the weights."""
    source = model("float[N] v", "float[?] z, float[3] k", "z = Neg(v)", {"k": np.float32([1, 2, 3])})
    np.testing.assert_array_equal(sod2.compile(source).run({"v": random("f4", (2,))})["k"], np.float32([1, 2, 3]))


def test_bias_that_may_be_broadcast() -> None:
    """Gemm's C may be broadcast along rows, columns or both: only the run tells."""
    source = model("float[N, 4] a, float[4, M] b, float[S, T] c", "float[N, M] y", "y = Gemm(a, b, c)")
    compiled = sod2.compile(source)
    for n, m, s, t in (
        (3, 5, 3, 5),
        (3, 5, 1, 5),
        (3, 5, 3, 1),
        (3, 40, 1, 1),
        (1, 1, 1, 1),
        (0, 5, 1, 5),
        (3, 0, 3, 1),
    ):
        inputs = {"a": random("f4", (n, 4)), "b": random("f4", (4, m)), "c": random("f4", (s, t))}
        assert_close(compiled.run(inputs), expected(source, inputs))


def test_build_is_deterministic(tmp_path) -> None:
    """Two builds of one model give the same sources and weights: nothing depends on time or on iteration order."""
    source = models.build("skipnet", "tiny")
    folders = [sod2.compiler.build(source, sod2.Options(), sod2.codegen.target.host(), tmp_path / k) for k in "ab"]
    for file in ("model.c", "weights.bin", "manifest.json"):
        assert (folders[0] / file).read_bytes() == (folders[1] / file).read_bytes(), file


def test_a_requirement_of_a_branch_is_checked_where_the_branch_is_taken() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        g (float[A, K] x, float[L, B] y, bool p) => (float r) {
          r = If (p) <
            then_branch = t () => (float a) { h = MatMul(x, y) a = ReduceSum <keepdims = 0> (h) },
            else_branch = e () => (float b) { b = ReduceSum <keepdims = 0> (x) }>
        }""")
    model = sod2.compile(proto)
    x, y = np.ones((2, 3), np.float32), np.ones((4, 2), np.float32)
    assert model.run({"x": x, "y": y, "p": np.array(False)})["r"] == 6
    assert model.run({"x": x, "y": y[:3], "p": np.array(True)})["r"] == 12
    with pytest.raises(sod2.InputError, match="K must equal L"):
        model.run({"x": x, "y": y, "p": np.array(True)})


def test_two_processes_build_a_model_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the faster one has built and loaded stays where it is."""
    monkeypatch.setenv("SOD2_CACHE", str(tmp_path))
    source, build = model("float[N, 5] x", "float[N, 5] y", "y = Abs(x)"), compiler.build
    faster: list[sod2.CompiledModel] = []

    def slow(*arguments: Any) -> Path:
        monkeypatch.setattr(compiler, "build", build)
        faster.append(sod2.compile(source))
        inodes.append(library().stat().st_ino)
        return build(*arguments)

    def library() -> Path:
        return faster[0].folder / "model.so"

    inodes: list[int] = []
    monkeypatch.setattr(compiler, "build", slow)
    sod2.compile(source)
    assert inodes == [library().stat().st_ino]
    assert [p.name for p in (tmp_path / "models").iterdir()] == [faster[0].folder.name]


def test_an_artifact_may_be_replaced(tmp_path: Path) -> None:
    """Loading again behind another compilation into the same folder gives the new model; one in use stays itself."""
    x, loaded = random(np.float32, (3, 5)), []
    for operator in ("Abs", "Neg"):
        source = model("float[N, 5] x", "float[N, 5] y", f"y = {operator}(x)")
        folder = compiler.build(source, sod2.Options(), target.host(), tmp_path / "artifact")
        loaded.append(sod2.load(folder, 2))
    for found, oracle in zip(loaded, (np.abs, np.negative), strict=True):
        np.testing.assert_array_equal(found.run({"x": x})["y"], oracle(x))
