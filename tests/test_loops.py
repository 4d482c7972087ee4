"""Loop and Scan: the reference interpreter, the analysis and generated code against onnxruntime."""

from pathlib import Path

import numpy as np
import pytest

import sod2
from sod2 import frontend, rdp, reference, simplify
from sod2.codegen.target import Target
from tests import random_loops, test_sanitize
from tests.graphs import assert_close, expected, model, random, session
from tests.loop_cases import ALL, FIXED, I64, SCANS, VARYING, Arrays, Case, X, counted, loop, number, scan

sanitizing = test_sanitize.target  # a fixture

OPTIONS = (
    sod2.Options(),
    sod2.Options(fusion="none", sep=False, dmp=False),
    sod2.Options(fusion="static"),
)  # one after the other


def check_shapes(analysis: rdp.Analysis, inputs: Arrays, values: Arrays) -> None:
    """Every shape is the predicted one, given what execution told of the last trip."""
    told = {}
    for m in analysis.minted.values():
        if m.tensor in values:
            array = values[m.tensor]
            told[m.name] = int(array.flat[m.index] if m.kind == "value" else array.shape[m.index])
    shapes = analysis.shapes({name: array.shape for name, array in inputs.items()}, told)
    found = {
        name: array.shape
        for name, array in values.items()
        if shapes[name] is not None or name in analysis.graph.outputs
    }
    assert {t: shapes[t] for t in found} == found


@pytest.mark.parametrize("case", ALL.values(), ids=ALL)
def test_reference(case: Case) -> None:
    """The interpreter computes what onnxruntime computes, in shapes that the analysis predicts."""
    source = case.model()
    graph = simplify.run(frontend.load(source))
    analysis = rdp.analyze(graph)
    for inputs in case.runs:
        wanted, values = expected(source, inputs), reference.run_all(graph, inputs)
        assert_close({name: values[name] for name in graph.outputs}, wanted)
        check_shapes(analysis, inputs, values)


@pytest.mark.parametrize("name", ALL)
def test_generated_code(name: str) -> None:
    """As onnxruntime, with bits that depend neither on threads nor on what ran before."""
    case, options = ALL[name], OPTIONS[list(ALL).index(name) % len(OPTIONS)]
    source = case.model()
    one, two = (sod2.compile(source, options, threads) for threads in (1, 2))
    first = [one.run(inputs) for inputs in case.runs]
    for inputs, found in zip(case.runs, first, strict=True):
        assert_close(found, expected(source, inputs))
    for inputs, found in reversed(list(zip(case.runs, first, strict=True))):
        for compiled in (one, two):
            again = compiled.run(inputs)
            assert {k: v.tobytes() for k, v in again.items()} == {k: v.tobytes() for k, v in found.items()}


@pytest.mark.parametrize("seed", range(40))
def test_random_loops(seed: int) -> None:
    """What the analysis predicts for every tensor is what it has in the last trip; every fourth one is compiled."""
    source = random_loops.build(seed)
    oracle, graph = session(source), simplify.run(frontend.load(source))
    analysis, names = rdp.analyze(graph), [o.name for o in source.graph.output]
    compiled = sod2.compile(source, OPTIONS[seed % len(OPTIONS)], 1 + seed % 2) if seed % 4 == 0 else None
    for inputs in random_loops.runs(seed):
        found = dict(zip(names, oracle.run(None, inputs), strict=True))
        wanted = {k: v.reshape(0) if v.size == 0 else v for k, v in found.items()}  # of no trip it has no rank
        values = reference.run_all(graph, inputs)
        assert_close({name: values[name] for name in names}, wanted, floor=1e-2)
        check_shapes(analysis, inputs, values)
        if compiled is not None:
            assert_close(compiled.run(inputs), wanted, floor=1e-2)


@pytest.mark.parametrize(
    ("name", "copies"),
    {
        "counted": ["Copy"],  # the input becomes the state; the next one is written over it
        "matrix power": ["Copy", "Copy"],  # a product cannot be written over its operand
        "state that stays": ["Copy"],  # the other begins as what nothing else reads
        "states that swap": ["Copy"] * 5,  # through a spare buffer
        "fibonacci": ["Copy"] * 4,  # each of the two in its turn
        "stacked": ["Copy", "Stack"],  # rows are computed where they belong, but for the number of the trip
        "rows written into its state": ["Copy"],
        "becomes a captured value": ["Copy", "Copy"],
        "grows": ["Carry", "Hold", "Carry"],  # computed where the next trip reads it
    }.items(),
)
def test_copies(name: str, copies: list[str]) -> None:
    """A state costs no copy where its next value may be written over it."""
    steps = sod2.plan(ALL[name].model()).storage.steps
    kinds = [type(step).__name__ for step in steps]
    assert [kind for kind in kinds if kind in ("Copy", "Stack", "Carry", "Hold")] == copies


def test_nothing_to_scan() -> None:
    """onnxruntime refuses a sequence of no elements; the standard does not."""
    for name in ("sum", "backwards"):
        found = sod2.compile(SCANS[name].model()).run({"s0": X[:2], "x": np.zeros((0, 2), np.float32)})
        np.testing.assert_array_equal(found["y"], X[:2])
        assert found["z"].shape == (0, 2)


def test_sequences_of_different_lengths_are_refused() -> None:
    takes, gives = "float a, float b", "float o"
    text = scan("x, w", takes, gives, "o = Mul(a, b)", 2)
    source = model("float[T] x, float[U] w", "float[?] y", f"y = {text}")
    with pytest.raises(sod2.InputError, match="must equal"):
        sod2.compile(source).run({"x": random("f4", (2,)), "w": random("f4", (4,))})


def test_every_branch_runs_in_every_trip() -> None:
    """control="all" changes branches, not loops."""
    for name in ("around a branch", "in a branch"):
        source = FIXED[name].model()
        compiled = sod2.compile(source, sod2.Options(control="all"))
        for inputs in FIXED[name].runs:
            assert_close(compiled.run(inputs), expected(source, inputs))


def test_memory_of_trips_that_do_not_happen() -> None:
    """A trip count of 2^62 costs nothing when the condition ends the loop; what comes out grows with what is done."""
    body = "d = Less(i, five) n = Add(s, one) o = Identity(n)"
    text = loop("t, , x", "float[N] s", "float[N] n, float[N] o", body)
    stored = {"five": number(5), "one": np.float32(1)}
    source = model("float[N] x, int64 t", "float[N] y, float[?, N] z", f"y, z = {text}", stored)
    compiled = sod2.compile(source)
    found = compiled.run({"x": np.zeros(1000, np.float32), "t": number(2**62)})
    np.testing.assert_array_equal(found["z"], np.repeat(np.arange(1, 7, dtype=np.float32)[:, None], 1000, axis=1))
    assert 7 * 4000 <= compiled.stats.arena_bytes <= 10 * 4000


def test_blocks_are_given_back() -> None:
    """A state that grows needs its size twice, not the sum over the trips; freeing the model frees it."""
    compiled = sod2.compile(VARYING["grows"].model())
    for count in (1, 100, 1):
        compiled.run({"x": np.ones(1024, np.float32), "t": number(count)})
        state = 4096 * (count + 1)
        assert 2 * state <= compiled.stats.arena_bytes <= 4 * state
    assert compiled.stats.reserved_bytes <= 2 * 4 * 4096 * 101


def test_trip_count_of_several_elements_is_refused() -> None:
    source = model("float[N] x, int64[K] t", "float[N] y", FIXED["counted"].body)
    compiled = sod2.compile(source)
    assert_close(compiled.run({"x": X, "t": I64([2])}), {"y": 3 * X})
    for counts in ([], [2, 2]):
        with pytest.raises(sod2.InputError, match="must equal 1"):
            compiled.run({"x": X, "t": I64(counts)})


REFUSED = {
    "rank": (counted("x", "float[?] s", "float[?, ?] n", "n = Unsqueeze(s, zero)"), "differs from trip to trip"),
    "inputs of the body": (loop("t, , x", "", "float[?] n", "d = Identity(c) n = Neg(x)"), "2 inputs"),
    "outputs of the body": (
        loop("t, , x, x", "float[?] s, float[?] r", "float[?] n", "d = Identity(c) n = Neg(s)"),
        "outputs",
    ),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(text: str, reason: str) -> None:
    with pytest.raises((sod2.ModelError, sod2.UnsupportedError), match=reason):
        sod2.compile(model("float[N] x, int64 t", "float[?] y", f"y = {text}", {"zero": I64([0])}))


def test_a_later_trip_is_refused() -> None:
    """A sum that fits in the first trip only ends the run with the sentence."""
    text = counted("x", "float[?] s", "float[?] n", "a = Add(s, x) n = Concat <axis = 0> (a, x)")
    compiled = sod2.compile(model("float[N] x, int64 t", "float[?] y", f"y = {text}"))
    np.testing.assert_array_equal(compiled.run({"x": X, "t": number(1)})["y"], np.concatenate([X + X, X]))
    with pytest.raises(sod2.InputError, match="must equal"):
        compiled.run({"x": X, "t": number(2)})
    np.testing.assert_array_equal(compiled.run({"x": X, "t": number(0)})["y"], X)


def test_what_a_trip_needs_is_not_needed_without_one() -> None:
    """A body that needs four elements refuses three when it runs, and only then."""
    compiled = sod2.compile(FIXED["needs what holds in a trip only"].model())
    with pytest.raises(sod2.InputError, match="must equal"):
        compiled.run({"x": X, "v": X[:2], "t": number(1)})


@pytest.mark.parametrize("seed", (3, 24))
def test_sanitizers(seed: int, sanitizing: Target, tmp_path: Path) -> None:
    """No step reads or writes outside its buffers and blocks, which are apart under the address sanitizer."""
    folder = test_sanitize.build(random_loops.build(seed), sanitizing, tmp_path / "model")
    test_sanitize.run_bench(folder, random_loops.runs(seed), 2, tmp_path / "samples")
