"""Shapes that only execution tells: what is minted, and that such models run as onnxruntime runs them.

Every model runs at all its samples in turn and then at the first again, whose bits must not have changed. Samples that
onnxruntime refuses have to be refused with a sentence, after which the model is as good as before; every prediction of
the analysis is held against an execution.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest

import models
import sod2
from sod2 import checking
from sod2.__main__ import main
from tests.graphs import assert_close, model, random, session

I64, F32 = np.int64, np.float32
ZERO, ONE = {"zero": I64([0])}, {"one": I64([1])}
Sample = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A model and what it is run on."""

    inputs: str
    outputs: str
    body: str
    samples: tuple[Sample, ...]
    stored: Mapping[str, np.ndarray] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        return model(self.inputs, self.outputs, self.body, self.stored)


def sparse(*shape: int, density: float = 0.5) -> np.ndarray:
    rng = np.random.default_rng([*shape, int(100 * density)])
    return (rng.standard_normal(shape) * (rng.random(shape) < density)).astype(F32)


def grid(**axes: Iterable[object]) -> tuple[Sample, ...]:
    """All combinations; a number becomes a scalar, a list a vector of int64."""
    samples: list[dict[str, np.ndarray]] = [{}]
    for name, values in axes.items():
        arrays = [v if isinstance(v, np.ndarray) else np.array(v, I64) for v in values]
        samples = [{**s, name: a} for s in samples for a in arrays]
    return tuple(samples)


def scalar(value: float) -> np.ndarray:
    return np.array(value, F32)


def vectors(*lengths: int) -> list[np.ndarray]:
    return [random("f4", (n,)) for n in lengths]


TRUE, FALSE = np.array(True), np.array(False)
ENDS = [[n] for n in (-(2**63), -9, -5, -1, 0, 2, 5, 9, 2**63 - 1)]
IF = "If (p) <then_branch = t () => (float[?] a) {{ {} }}, else_branch = e () => (float[?] b) {{ {} }}>"
SELECT = "i = NonZero(x) j = Squeeze(i, zero) a = Gather(x, j)"
CASES = {
    # operators that count
    "nonzero, gather, sum": Case(
        "float[N, M] x", "float[?] y, int64[2, ?] i",
        "i = NonZero(x) r = Gather(i, first) g = Gather(x, r) y = ReduceSum <keepdims = 0> (g, one)",
        tuple({"x": sparse(*s)} for s in ((3, 4), (60, 7), (0, 3), (1, 1), (90, 50), (2, 0))), {"first": I64(0), **ONE},
    ),
    "nonzero of nothing set": Case("float[N] x", "int64[?, ?] y", "y = NonZero(x)",
                                   grid(x=[np.zeros(3, F32), np.zeros(0, F32), np.ones(5, F32)])),
    "nonzero of a scalar": Case("float x", "int64[?, ?] y", "y = NonZero(x)", grid(x=[scalar(0), scalar(2)])),
    "only the number of nonzeros": Case("float[N] x", "int64[2] y", "i = NonZero(x) y = Shape(i)",
                                        grid(x=vectors(0, 1, 9))),
    "compress by a short condition": Case(
        "float[N, 2] x, bool[K] c", "float[?, 2] y", "y = Compress <axis = 0> (x, c)",
        grid(x=[random("f4", (n, 2)) for n in (6, 2, 0)], c=[random("?", (k,)) for k in (6, 3, 0)]),
    ),
    "compress elements": Case("float[N, 3] x, bool[K] c", "float[?] y", "y = Compress(x, c)",
                              grid(x=[random("f4", (4, 3))], c=[random("?", (k,)) for k in (12, 5)])),
    "unique": Case("float[N] x", "float[?] y, int64[?] a, int64[?] b, int64[?] c", "y, a, b, c = Unique(x)",
                   grid(x=[np.round(v) for v in vectors(40, 0, 1, 7)])),
    "unique in order of appearance": Case(
        "int64[N, M] x", "int64[?, ?] y, int64[?] b", "y, a, b = Unique <axis = 1, sorted = 0> (x)",
        grid(x=[random("i8", s) // 4 for s in ((2, 9), (1, 4), (3, 1))]),
    ),
    "suppression": Case(
        "float[B, N, 4] b, float[B, C, N] s, int64[1] m, float[1] o, float[1] t", "int64[?, 3] y",
        "y = NonMaxSuppression(b, s, m, o, t)",
        tuple(
            {"b": random("f4", (b, n, 4)), "s": random("f4", (b, c, n)), "m": I64([m]), "o": F32([0.3]), "t": F32([t])}
            for b, n, c, m, t in ((2, 20, 3, 4, 0.5), (1, 100, 1, 100, 0.1), (1, 0, 2, 3, 0.5), (2, 9, 2, 2, 9))
        ),
    ),
    "top k": Case("float[N, M] x, int64[1] k", "float[?, ?] v, int64[?, ?] i", "v, i = TopK(x, k)",
                  grid(x=[random("f4", (3, 9)), random("f4", (0, 9))], k=[[2], [9], [0], [10], [-1]])),
    "top k of columns": Case(
        "int64[N, M] x, int64[1] k", "int64[?, ?] i", "v, i = TopK <axis = 0, largest = 0> (x, k)",
        grid(x=[random("i8", (30, 4))], k=[[7], [1], [31]]),
    ),
    # targets that are computed or given
    "expand": Case("float[N] x, int64[1] k", "float[?] y", "y = Expand(x, k)",
                   grid(x=vectors(6, 1, 0), k=[[6], [1], [0], [-1]])),
    "reshape": Case("float[N] x, int64[2] k", "float[?, ?] y", "y = Reshape(x, k)",
                    grid(x=vectors(6, 0), k=[[2, 3], [-1, 2], [0, 1], [3, -1], [4, 2], [-1, -1], [-2, 3]])),
    "reshape allowing zero": Case("float[N, 2] x, int64[2] k", "float[?, ?] y", "y = Reshape <allowzero = 1> (x, k)",
                                  grid(x=[random("f4", (3, 2)), random("f4", (0, 2))], k=[[0, 4], [2, 3], [0, 2]])),
    "slice": Case("float[N] x, int64[1] s, int64[1] e", "float[?] y", "y = Slice(x, s, e)",
                  grid(x=vectors(5, 0), s=ENDS, e=ENDS)),
    "slice by steps": Case(
        "float[N] x, int64[1] s, int64[1] e, int64[1] d", "float[?] y", "y = Slice(x, s, e, zero, d)",
        grid(x=vectors(5, 1), s=ENDS[::2], e=ENDS[:-1], d=[[-2], [1], [3], [0]]), ZERO,
    ),
    "the last elements": Case("float[N] x, int64[1] k", "float[?] y", "m = Neg(k) y = Slice(x, m, end)",
                              grid(x=vectors(4, 0), k=[[2], [4], [9]]), {"end": I64([2**63 - 1])}),
    "tile": Case("float[N, 2] x, int64[2] k", "float[?, ?] y", "y = Tile(x, k)",
                 grid(x=[random("f4", (3, 2))], k=[[1, 2], [0, 2], [2, 1], [-1, 1]])),
    "pad": Case("float[N, M] x, int64[4] k", "float[?, ?] y", "y = Pad(x, k)",
                grid(x=[random("f4", (3, 3))], k=[[1, 0, 2, 0], [-1, 1, -1, 0], [-2, -1, 3, 0]])),
    "range": Case("int64 a, int64 b, int64 d", "int64[?] y", "y = Range(a, b, d)",
                  grid(a=[-3, 0, 5], b=[-4, 0, 9], d=[-2, 1, 3, 0])),
    "range of floats": Case(
        "float a, float b, float d", "float[?] y", "y = Range(a, b, d)",
        grid(a=map(scalar, (-3, 0.5)), b=map(scalar, (0, 1.7)), d=map(scalar, (-0.3, 1))),
    ),
    "constant of shape": Case("int64[2] k", "float[?, ?] y", "y = ConstantOfShape(k)",
                              grid(k=[[2, 3], [0, 3], [1, 1], [-1, 2], [2**32, 2**32]])),
    "one hot": Case("int64[N] x, int64 k, float[2] v", "float[?, ?] y", "y = OneHot(x, k, v)",
                    grid(x=[[0, 2, -1]], k=[3, 1], v=[F32([0, 1])])),
    "split": Case("float[N] x, int64[2] k", "float[?] y, float[?] z", "y, z = Split(x, k)",
                  grid(x=vectors(6), k=[[2, 4], [0, 6], [3, 4], [-1, 7]])),
    "resize by scales": Case("float[1, 2, H, W] x, float[4] k", "float[?, ?, ?, ?] y",
                             'y = Resize <mode = "linear"> (x, , k)',
                             grid(x=[random("f4", (1, 2, 5, 6))], k=[F32([1, 1, 2, 1.3]), F32([1, 1, 0.5, 0.7])])),
    "resize by an inexact scale": Case("float[1, 1, H] x", "float[?, ?, ?] y", "y = Resize(x, , k)",
                                       grid(x=[random("f4", (1, 1, n)) for n in (5, 1, 10)]), {"k": F32([1, 1, 1.3])}),
    "resize by a product that float32 rounds down": Case(
        "float[1, 1, H] x", "float[?, ?, ?] y", "y = Resize(x, , k)",
        grid(x=[random("f4", (1, 1, n)) for n in (706, 3)]), {"k": F32([1, 1, 224 / 706])},
    ),
    "resize to sizes": Case("float[1, 1, H, W] x, int64[4] k", "float[?, ?, ?, ?] y", "y = Resize(x, , , k)",
                            grid(x=[random("f4", (1, 1, 5, 6))], k=[[1, 1, 7, 3], [1, 1, 1, 1]])),
    "a target made of data": Case(
        "float[N] x", "float[?, ?] y",
        """m = ReduceMax <keepdims = 0> (x) c = Cast <to = 7> (m) a = Abs(c) u = Unsqueeze(a, zero)
           s = Concat <axis = 0> (u, two) y = Expand(v, s)""",
        grid(x=[3 * v for v in vectors(1, 4, 7)]), {"two": I64([2]), "v": F32([[3.0]]), **ZERO},
    ),
    "one number, two shapes": Case(
        "float[N] x, int64[1] k", "float[?] y, int64[2] z",
        "e = Expand(v, k) c = ConstantOfShape(k) s = Add(e, c) y = Exp(s) t = Add(k, one) z = Concat <axis = 0> (t, k)",
        grid(x=vectors(1), k=[[3], [0], [1]]), {"v": F32([2.0]), **ONE},
    ),
    # branches
    "branches of two lengths": Case("float[N] x, bool p", "float[?] y",
                                    f"y = {IF.format('a = Concat <axis = 0> (x, x)', 'b = Relu(x)')}",
                                    grid(x=vectors(3, 0, 7), p=[TRUE, FALSE, TRUE])),
    "counting in a branch": Case("float[N] x, bool p", "float[?] y",
                                 f"v = {IF.format(SELECT, 'b = Neg(x)')} y = Add(v, v)",
                                 grid(x=[sparse(9), sparse(40)], p=[TRUE, FALSE, TRUE]), ZERO),
    "branches over the same bytes": Case(
        "float[2, 3] x, bool p", "float[?, ?] y",
        f"y = {IF.format('a = Reshape(x, s)', 'b = Identity(x)').replace('float[?]', 'float[?, ?]')}",
        grid(x=[random("f4", (2, 3))], p=[TRUE, FALSE]), {"s": I64([3, 2])},
    ),
    "a target of a branch": Case(
        "float[N] x, int64[1] k, bool p", "float[?] y",
        f"y = {IF.format('a = Expand(v, k)', 'b = Neg(x)')}",
        grid(x=vectors(3), k=[[4], [-4]], p=[TRUE, FALSE]), {"v": F32([2.0])},
    ),
    "what both branches need": Case(
        "float[N] x, bool p", "float[?] y",
        f"y = {IF.format('h = Softmax(x) a = MatMul(h, w)', 'k = Exp(x) b = MatMul(k, w)')}",
        grid(x=vectors(4, 3), p=[TRUE, FALSE]), {"w": random("f4", (4, 3))},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_runs_as_onnxruntime_does(name: str) -> None:
    case = CASES[name]
    source = case.model()
    compiled, facts, oracle = sod2.compile(source), sod2.analyze(source), session(source)
    first: dict[str, np.ndarray] | None = None
    for sample in case.samples:
        try:
            wanted = dict(zip(facts.graph.outputs, oracle.run(None, dict(sample)), strict=True))
        except Exception:  # onnxruntime's own classes
            with pytest.raises(sod2.Error):
                compiled.run(sample)
            continue
        found = compiled.run(sample)
        assert_close(found, wanted)
        report = checking.check(facts, sample)
        assert not report.wrong
        assert not report.unknown
        if first is None:
            first, start = found, sample
            needed = compiled.stats.arena_bytes
    assert first is not None
    again = compiled.run(start)
    assert {k: v.tobytes() for k, v in again.items()} == {k: v.tobytes() for k, v in first.items()}
    assert compiled.stats.arena_bytes == needed


# ---- under every option, with threads, in memory ---------------------------------------------------------------------

# The number of rows comes out of the kernel that also begins the chain behind it: they may not be one kernel.
ENTANGLED = model(
    "float[N] x, float[1] v", "float[?] y, float[?] w",
    """m = ReduceMax(x, zero) d = Add(m, v) c = Cast <to = 7> (d) a = Abs(c) e = Expand(v, a) f = Mul(d, e)
       g = Add(f, f) n = NonZero(g) j = Squeeze(n, zero) h = Gather(g, j) y = Concat <axis = 0> (h, d) w = Exp(d)""",
    ZERO,
)  # fmt: skip
OPTIONS = [
    sod2.Options(),
    sod2.Options(fusion="none", sep=False),
    sod2.Options(fusion="static"),
    sod2.Options(dmp=False, mvc=False),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option(options: sod2.Options) -> None:
    oracle = session(ENTANGLED)
    runs = []
    for threads in (1, 2):
        compiled = sod2.compile(ENTANGLED, options, threads)
        for top in (3.0, 0.2, 40.0, 3.0):
            sample = {"x": F32([-1, top]), "v": F32([0.5])}
            found = compiled.run(sample)
            assert_close(found, dict(zip(("y", "w"), oracle.run(None, sample), strict=True)))
            runs.append({name: array.tobytes() for name, array in found.items()})
    assert runs[:4] == runs[4:]
    assert runs[0] == runs[3]


STEPS = (
    "i{k} = NonZero({x}) j{k} = Squeeze(i{k}, zero) {y} = Gather({x}, j{k})",
    "{y} = Concat <axis = 0> ({x}, {x})",
    "{y} = Relu({x})",
    "c{k} = Greater({x}, half) {y} = Compress({x}, c{k})",
    "{y} = Unique({x})",
    "s{k} = Shape({x}) t{k} = Div(s{k}, two) {y}, u{k} = TopK({x}, t{k})",
    "r{k} = ReduceSum <keepdims = 1> ({x}) q{k} = Cast <to = 7> (r{k}) {y} = Slice({x}, q{k}, end)",
    "o{k} = Neg({x}) {y} = Add({x}, o{k})",
    """b{k} = Shape({x}) a{k} = Concat <axis = 0> (one, b{k}) e{k} = Reshape <allowzero = 1> ({x}, a{k})
       {y} = ReduceSum <keepdims = 0> (e{k}, zero)""",
)


@pytest.mark.parametrize("seed", range(6))
def test_chains_of_counting_operators(seed: int) -> None:
    rng = np.random.default_rng(seed)
    body = " ".join(
        STEPS[step].format(x=f"x{k}" if k else "x", y=f"x{k + 1}", k=k) for k, step in enumerate(rng.integers(0, 9, 7))
    )
    stored = {"half": F32(0.2), "two": I64([2]), "end": I64([2**31]), **ZERO, **ONE}
    source = model("float[N] x", "float[?] x7, float[?] x4", body, stored)
    compiled, facts, oracle = sod2.compile(source), sod2.analyze(source), session(source)
    for n in (0, 1, 9, 50, 9):
        sample = {"x": sparse(n, density=0.8)}
        assert_close(compiled.run(sample), dict(zip(("x7", "x4"), oracle.run(None, sample), strict=True)), floor=1)
        assert not checking.check(facts, sample).wrong


def test_the_arena_grows_under_a_run_and_is_given_back() -> None:
    source = model("float[N] x, int64[1] k", "float[?] y", "e = Expand(x, k) r = Relu(e) y = Concat <axis = 0> (r, x)")
    compiled = sod2.compile(source)
    x = np.ones(1, F32)
    known = compiled.peak_bytes({"x": (1,), "k": (1,)})
    assert known < 64 * 3
    sizes = []
    for count in (3, 10**6, 3):
        assert compiled.run({"x": x, "k": I64([count])})["y"].shape == (count + 1,)
        sizes.append((compiled.stats.arena_bytes, compiled.stats.reserved_bytes))
    assert sizes[0][0] == sizes[2][0] < 1000
    assert 4 * 10**6 < sizes[1][0] <= sizes[1][1] == sizes[2][1]
    compiled._library.sod2_trim(compiled._handle)
    assert compiled.stats.reserved_bytes == 0
    assert compiled.run({"x": x, "k": I64([4])})["y"].shape == (5,)
    with pytest.raises(sod2.Error, match="no memory"):
        compiled.run({"x": x, "k": I64([2**50])})
    assert compiled.run({"x": x, "k": I64([3])})["y"].shape == (4,)
    assert compiled.stats.arena_bytes == sizes[0][0]


# ---- ranks ----------------------------------------------------------------------------------------------------------

RANKS = {
    "squeeze": Case("float[N, 3] x", "float[?] y", "y = Squeeze(x)", grid(x=[random("f4", (n, 3)) for n in (1, 2, 0)])),
    "squeeze, and what is behind": Case(
        "float[N, 3, M] x", "float[?] y, float s",
        "z = Squeeze(x) w = Add(z, z) y = Exp(w) s = ReduceSum <keepdims = 0> (w)",
        grid(x=[random("f4", (n, 3, m)) for n in (1, 2, 0) for m in (4, 1)]),
    ),
    "branches": Case(
        "float[N] x, bool p, bool q", "float[?] y, float[?] z",
        f"""v = {IF.format("a = Unsqueeze(x, zero)", "b = Neg(x)")}
            y = If (q) <then_branch = t2 () => (float[?] a2) {{ a2 = Exp(v) }},
                        else_branch = e2 () => (float[?] b2) {{ b2 = Add(v, x) }}> z = Concat <axis = 0> (x, x)""",
        grid(x=vectors(3, 1, 0), p=[TRUE, FALSE], q=[TRUE, FALSE]), ZERO,
    ),
    "branches that count": Case(
        "float[N] x, bool p", "float[?] y, float s",
        f"""v = {IF.format("i = NonZero(x) a = Cast <to = 1> (i)", "b = Neg(x)")} y = Mul(v, v)
            s = ReduceSum <keepdims = 0> (y)""",
        grid(x=[sparse(9), sparse(40), sparse(1)], p=[TRUE, FALSE]),
    ),
    "squeeze to the one rank that its reader takes": Case(
        "float[N, 3, M] x", "float[?, ?, ?] y", "z = Squeeze(x) y = Transpose <perm = [2, 0, 1]> (z)",
        grid(x=[random("f4", (n, 3, m)) for n in (2, 0, 1) for m in (4, 0, 1)]),
    ),
    "squeeze to that rank in two ways": Case(
        "float[N, 3, M] x", "float[?, ?] y", "z = Squeeze(x) y = Transpose <perm = [1, 0]> (z)",
        grid(x=[random("f4", (n, 3, m)) for n in (1, 2, 0) for m in (4, 1)]),
    ),
    "squeeze to any rank but none": Case(
        "float[N, M] x", "float[?] y", "z = Squeeze(x) y = Softmax(z)",
        grid(x=[random("f4", (n, m)) for n in (2, 1, 0) for m in (3, 1)]),
    ),
    "squeeze of a number of rows to one rank": Case(
        "float[N, 3] x, bool[N] c", "float[?, ?] y",
        "z = Compress <axis = 0> (x, c) s = Squeeze(z) y = Transpose <perm = [1, 0]> (s)",
        grid(x=[random("f4", (4, 3))], c=[np.arange(4) < k for k in (2, 1, 0, 4)]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RANKS)
def test_ranks_that_execution_decides(name: str) -> None:
    """What is behind is compiled for each rank that it takes; an output has the one of the run."""
    case = RANKS[name]
    source = case.model()
    compiled, oracle = sod2.compile(source), session(source)
    names = [o.name for o in source.graph.output]
    for sample in (*case.samples, *case.samples[:1]):
        try:
            wanted = dict(zip(names, oracle.run(None, dict(sample)), strict=True))
        except Exception:  # onnxruntime's own classes
            with pytest.raises(sod2.InputError):
                compiled.run(sample)
            continue
        assert_close(compiled.run(sample), wanted)


# ---- soundness -------------------------------------------------------------------------------------------------------


def test_what_a_consumer_requires_of_a_count_is_checked_and_not_believed() -> None:
    """MatMul needs five rows: before they are written, it is checked that five were counted."""
    source = model("float[N] x", "float[?, 3] y", "i = NonZero(x) f = Cast <to = 1> (i) y = MatMul(f, w)",
                   {"w": random("f4", (5, 3))})  # fmt: skip
    compiled = sod2.compile(source)
    assert compiled.run({"x": np.ones(5, F32)})["y"].shape == (1, 3)
    for n in (0, 4, 90):
        with pytest.raises(sod2.InputError, match=rf"5 must equal i\.1 \(node i\); here 5 and {n}"):
            compiled.run({"x": np.ones(n, F32)})
    assert compiled.run({"x": np.ones(5, F32)})["y"].shape == (1, 3)


def test_a_fact_that_waits_for_execution_never_reaches_back() -> None:
    """x exists before its rows are counted, so that its shape keeps its own symbol; the equality is required."""
    source = model("float[N] x, float[M, 2] w", "float[?] y",
                   "i = NonZero(x) j = Squeeze(i, zero) g = Gather(x, j) y = MatMul(g, w)", ZERO)  # fmt: skip
    facts = sod2.analyze(source)
    assert [str(d) for d in facts["w"].dims] == ["M", "2"]
    assert facts.admissible({"x": (3,), "w": (9, 2)}) is None
    compiled = sod2.compile(source)
    assert compiled.run({"x": F32([0, 1, 2]), "w": np.ones((2, 2), F32)})["y"].tolist() == [3, 3]
    with pytest.raises(sod2.InputError, match="must equal"):
        compiled.run({"x": F32([3, 1, 2]), "w": np.ones((2, 2), F32)})


def test_one_number_has_one_name() -> None:
    """A value symbol is minted where the number comes from: sums of shapes made of it are known to fit."""
    facts = sod2.analyze(CASES["one number, two shapes"].model())
    assert list(facts.minted) == ["k[0]"]
    assert facts["e"].dims == facts["c"].dims == facts["s"].dims
    assert facts["z"].known_value is not None
    assert facts.shapes({"x": (1,), "k": (1,)})["s"] is None
    assert facts.shapes({"x": (1,), "k": (1,)}, {"k[0]": 7})["s"] == (7,)


def test_convolution_and_product_with_computed_weights() -> None:
    source = model(
        "float[N, C, H, W] x, float[M, C, 3, 3] w, float[M] b, bool[M] open", "float[?, ?, ?, ?] y, float[?, ?] z",
        """i = NonZero(open) j = Squeeze(i, zero) k = Gather(w, j) d = Gather(b, j)
           c = Conv <pads = [1, 1, 1, 1], strides = [2, 1]> (x, k, d) y = Relu(c)
           f = Flatten <axis = 1> (k) t = Transpose(f) z = MatMul(f, t)""",
        ZERO,
    )  # fmt: skip
    compiled, oracle = sod2.compile(source), session(source)
    for n, c, h, width, m in ((1, 3, 8, 9, 5), (2, 16, 20, 20, 40), (1, 1, 1, 1, 1), (0, 2, 5, 5, 20), (1, 3, 8, 9, 5)):
        sample = {
            "x": random("f4", (n, c, h, width)),
            "w": random("f4", (m, c, 3, 3)),
            "b": random("f4", (m,)),
            "open": random("?", (m,)),
        }
        assert_close(compiled.run(sample), dict(zip(("y", "z"), oracle.run(None, sample), strict=True)))


def test_dgnet_leaves_closed_channels_out() -> None:
    source = models.build("dgnet", "tiny-compact")
    compiled, oracle = sod2.compile(source), session(source)
    for seed in range(3):
        images = random("f4", (1, 3, 224, 224), seed)
        wanted = oracle.run(None, {"images": images})
        assert_close(compiled.run({"images": images}), {"logits": wanted[0]})


def test_explain_and_self_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(CASES["nonzero, gather, sum"].model(), path)
    assert main(["explain", str(path)]) == 0
    text = capsys.readouterr().out
    assert "minted i.1: counted dim 1 of i" in text
    assert "i: int64[2, i.1]" in text
    assert main(["explain", str(path), "--memory"]) == 0
    assert "stage 1 behind step 0, count:i: i.1" in capsys.readouterr().out
    assert main(["run", str(path), "x=3x4", "--check"]) == 0
    text = capsys.readouterr().out
    assert "shapes predicted from the input dims" in text
    assert "0 not; 0 wrong" in text
