"""Memory budgets: plans that compute tensors twice give the plain plan's bits within their budget, or refuse a shape.

Oracles: the plain artifact bit for bit, onnxruntime, the reference interpreter on the graph with the copies, the replay
of test_storage over its buffers, and the memory hook that is linked into the bench program.
"""

import json
import re
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

import models
import sod2
from datasets.sample import Sampler
from sod2 import compiler, footprint, order, reference, roofline
from sod2.__main__ import main
from sod2.codegen import target
from sod2.rematerialize import Candidates, Table, dropped
from sod2.symbolic import evaluate
from tests import random_graphs
from tests.batch import target as quick_target
from tests.graphs import Arrays, assert_close, expected, model, random
from tests.test_storage import Replay, guards

BUDGET = sod2.Options(memory_budget=1)  # its size matters at run time alone
PAGE = 4096
POOL = "MaxPool<kernel_shape=[2, 2], strides=[2, 2]>"
WIDE = (  # from p, of 4 channels at half the size, by way of 64 channels to i, of 1 at the full size
    f"c = Softmax<axis=1>(p) d = Concat<axis=1>({', '.join(8 * 'c')}) e = Softmax<axis=1>(d) f = Concat<axis=1>(e, d)"
    'g = Softmax<axis=1>(f) h = ReduceMean<keepdims=1>(g, one) i = Resize<mode="nearest">(h, , double)'
)
STORED = {
    "one": np.array([1]),
    "double": np.array([1, 1, 2, 2], np.float32),
    "flat": np.array([0, 4, -1]),
    "w": random("f4", (4, 4, 3, 3), 7),
    "trips": np.array(3),
}


def case(body: str, inputs: str = "float[N, 4, H, W] x") -> onnx.ModelProto:
    """A model that ends in y; STORED are its constants."""
    return model(inputs, "float[?] y", body, {k: v for k, v in STORED.items() if re.search(rf"\b{k}\b", body)})


CONVOLUTION = case(f"a = Conv<pads=[1, 1, 1, 1]>(x, w) k = Relu(a) p = {POOL}(k) {WIDE} y = Add(k, i)")
BRANCH = case(
    f"a = Softmax<axis=1>(x) p = {POOL}(a) {WIDE}"
    "y = If (q) <then_branch = t () => (float[?] u) { r = Exp(a) u = Add(r, i) },"
    " else_branch = o () => (float[?] v) { v = Mul(x, i) }>",
    "float[N, 4, H, W] x, bool q",
)
LOOP = case(
    "a = Softmax<axis=1>(x) p = ReduceMax<keepdims=1>(a, one)"
    "s = Loop (trips, , p) <body = b (int64 j, bool c, float[N, 1, H, W] m) => (bool d, float[N, 1, H, W] n) {"
    f" d = Identity(c) k = Concat<axis=1>({', '.join(16 * 'm')}) l = Softmax<axis=1>(k)"
    " n = ReduceMean<keepdims=1>(l, one) }> y = Add(a, s)"
)
GRAPHS = {
    "one step": case(f"a = Softmax<axis=1>(x) p = {POOL}(a) {WIDE} y = Add(a, i)"),
    "two steps": case(f"a = Softmax<axis=1>(x) k = Softmax<axis=2>(a) p = {POOL}(k) {WIDE} y = Add(k, i)"),
    "a view": case(
        f"a = Softmax<axis=1>(x) p = {POOL}(a) {WIDE} j = ReduceMean<keepdims=0>(i) k = Reshape(a, flat)"
        "l = Softmax<axis=1>(k) y = Add(l, j)"
    ),
    "two skips": case(
        f"a = Softmax<axis=1>(x) k = Softmax<axis=2>(x) s = Add(a, k) p = {POOL}(s) {WIDE} t = Add(k, i) y = Mul(a, t)"
    ),
    "U-Net": case(
        f"a = Softmax<axis=1>(x) b = {POOL}(a) k = Softmax<axis=1>(b) p = {POOL}(k) {WIDE} s = Concat<axis=1>(k, i)"
        't = ReduceMean<keepdims=1>(s, one) u = Resize<mode="nearest">(t, , double) y = Concat<axis=1>(a, u)'
    ),
    "convolution": CONVOLUTION,
    "in a branch": BRANCH,
    "across a loop": LOOP,
}


def peak(storage: sod2.storage.Storage, symbols: dict[str, int]) -> int:
    return evaluate(footprint.formula(storage).live_peak, symbols)


def check_tables(plan: compiler.Plan, inputs: Arrays) -> None:
    """Every table's graph computes the same, and its buffers hold what is read, in all branches."""
    wanted = reference.run(plan.graph, inputs)
    for table in plan.tables:
        for name, array in reference.run(table.analysis.graph, inputs).items():
            np.testing.assert_array_equal(array, wanted[name])
        as_plan = replace(plan, graph=table.analysis.graph, analysis=table.analysis, storage=table.storage)
        for taken in guards(sorted({n.inputs[0] for n in plan.graph.nodes if n.op in ("Combine", "Switch")})):
            Replay(as_plan, taken).run()


@pytest.mark.parametrize("name", GRAPHS)
def test_tables(name: str) -> None:
    plan = sod2.plan(GRAPHS[name], BUDGET)
    assert plan.tables
    for height, width in ((8, 8), (64, 32), (640, 640)):
        symbols = {"N": 1, "H": height, "W": width}
        peaks = [peak(t.storage, symbols) for t in (plan, *plan.tables)]
        assert all(a > b for a, b in pairwise(peaks))
    if name != "across a loop":  # the replay walks over no loops
        inputs = {"x": random("f4", (2, 4, 8, 8)), **({"q": np.array(True)} if name == "in a branch" else {})}
        check_tables(plan, inputs)


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs(seed: int) -> None:
    """Every drop that frees anything at any step, not only those at the peak."""
    options = sod2.Options(fusion=("rdp", "none", "static")[seed % 3])
    plan = sod2.plan(random_graphs.build(seed, steps=40), options)
    env = next(random_graphs.environments(random_graphs.generator(seed), 1))
    inputs = random_graphs.arrays({**env, "N": 3, "M": 5, "H": 7, "W": 8, "A": 3}, seed)
    table = Table(plan.analysis, order.near_optimal(plan.graph, plan.analysis, plan.fusion), plan.storage)
    sample, steps = dict.fromkeys("NMAHW", 64), range(len(plan.storage.steps))
    drops = {drop for step in steps for drop in Candidates(table, sample, step).by_promise()}
    tables = tuple(dropped(table, drop) for drop in drops)
    check_tables(replace(plan, tables=tables), {value.name: inputs[value.name] for value in plan.graph.inputs})


def test_a_copy_runs_in_the_branch_of_its_reader() -> None:
    (table, *_) = sod2.plan(BRANCH, BUDGET).tables
    assert [[on for _, on in group.guard] for group in table.again] == [[True]]


def test_nothing_of_a_loop_runs_again() -> None:
    for table in sod2.plan(LOOP, BUDGET).tables:
        assert not any(group.guard for group in table.again)


def compare(lean: sod2.CompiledModel, plain: sod2.CompiledModel, inputs: Arrays, table: int) -> None:
    """The plain artifact's bits, from the table that is expected."""
    wanted, found = plain.run(inputs)["y"], lean.run(inputs)["y"]
    np.testing.assert_array_equal(found, wanted)
    assert lean.stats.table == table
    assert lean.stats.arena_bytes <= lean.manifest["options"]["memory_budget"]


def below(plain: sod2.CompiledModel, inputs: Arrays) -> sod2.Options:
    """A budget that the plain plan just exceeds at these inputs."""
    return sod2.Options(memory_budget=plain.peak_bytes({k: v.shape for k, v in inputs.items()}) // PAGE * PAGE)


@pytest.mark.parametrize("name", ["one step", "convolution", "in a branch", "across a loop"])
def test_numbers(name: str) -> None:
    """A-B-A over tables, empty tensors and refusals between."""
    plain = sod2.compile(GRAPHS[name])
    taken = [{"q": np.array(q)} for q in (True, False)] if name == "in a branch" else [{}]
    small, large, huge = ({"x": random("f4", (2, 4, n, n))} for n in (6, 64, 98))
    options = below(plain, {**large, **taken[0]})
    for threads in (1, 2):
        lean = sod2.compile(GRAPHS[name], options, threads)
        assert lean.stats.weight_bytes == plain.stats.weight_bytes
        for sizes, table in ((small, 0), (large, 1), (small, 0), ({"x": np.empty((0, 4, 6, 6), "f4")}, 0), (large, 1)):
            for choice in taken:
                compare(lean, plain, {**sizes, **choice}, table)
            with pytest.raises(sod2.BudgetError):
                lean.run({**huge, **taken[0]})
    assert_close(lean.run({**large, **taken[0]}), expected(GRAPHS[name], {**large, **taken[0]}))


def refusal(options: sod2.Options, shape: tuple[int, ...]) -> str:
    with pytest.raises(sod2.BudgetError) as caught:
        sod2.compile(CONVOLUTION, options).peak_bytes({"x": shape})
    return str(caught.value)


def test_the_smallest_budget_that_would_do() -> None:
    sentence = r"model g needs at least (\d+) bytes at input dims 1x4x64x48; the budget is 1"
    found = re.fullmatch(sentence, refusal(BUDGET, (1, 4, 64, 48)))
    assert found is not None
    least = int(found[1])
    inputs = {"x": random("f4", (1, 4, 64, 48))}
    lean = sod2.compile(CONVOLUTION, sod2.Options(memory_budget=least))
    compare(lean, sod2.compile(CONVOLUTION), inputs, len(lean.manifest["tables"]))
    assert lean.stats.reserved_bytes == least
    assert f"at least {least} bytes" in refusal(sod2.Options(memory_budget=least - 1), (1, 4, 64, 48))


def test_scratch_budget() -> None:
    """A convolution that is the peak computes in larger blocks: the same bits, and more memory within the budget."""
    layer = case("y = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(x, w)")
    plain, roomy = (sod2.compile(layer, sod2.Options(scratch_budget=n)) for n in (0, 1 << 20))
    inputs = {"x": random("f4", (1, 4, 400, 300))}
    np.testing.assert_array_equal(plain.run(inputs)["y"], roomy.run(inputs)["y"])
    assert 0 < roomy.stats.arena_bytes - plain.stats.arena_bytes <= 1 << 20
    with pytest.raises(sod2.Error, match="scratch_budget"):
        sod2.Options(scratch_budget=1, memory_budget=1)


def test_the_hook_counts_no_more_than_the_budget(tmp_path: Path) -> None:
    inputs = [{"x": random("f4", (1, 4, n, n))} for n in (224, 32)]
    options = below(sod2.compile(CONVOLUTION), inputs[0])
    folder = compiler.build(CONVOLUTION, options, target.host(), tmp_path / "artifact")
    for k, arrays in enumerate(inputs):
        np.save(tmp_path / f"{k}.0.npy", arrays["x"])
    commands = "run 0 2\nrun 1 1\nrun 0 1\nquit\n"
    bench = [str(folder / "bench"), str(tmp_path), "2"]
    done = subprocess.run(bench, input=commands, stdout=subprocess.PIPE, text=True, check=True)
    rows = [row for row in map(json.loads, done.stdout.splitlines()) if "peak_bytes" in row]
    assert len(rows) == 4
    assert options.memory_budget is not None
    assert all(row["own_bytes"] <= row["peak_bytes"] <= options.memory_budget for row in rows)


def test_sizes_that_only_execution_tells() -> None:
    """They are held to the budget while the model runs."""
    source = model("float[N] x", "float[?] y", "a = NonZero(x) b = Cast<to=1>(a) c = Softmax(b) y = Exp(c)")
    lean, inputs = sod2.compile(source, sod2.Options(memory_budget=8 * PAGE)), random("f4", (4096,))
    plain = sod2.compile(source)
    few = np.where(np.arange(4096) < 99, inputs, 0).astype("f4")
    for _ in range(2):
        compare(lean, plain, {"x": few}, 0)
        with pytest.raises(sod2.BudgetError, match=r"model g needs \d+ bytes for these inputs; the budget is 32768"):
            lean.run({"x": inputs})


def test_a_paper_model(tmp_path: Path) -> None:
    """RANet's scales wait for one another: its leanest plan keeps fewer of them."""
    source, inputs = models.build("ranet", "tiny"), Sampler("ranet", "tiny").sample({"H": 640, "W": 640}, 3, 0)[0]
    plain = sod2.load(compiler.build(source, sod2.Options(), quick_target(), tmp_path / "plain"))
    wanted = plain.run(inputs)
    lean = sod2.load(compiler.build(source, below(plain, inputs), quick_target(), tmp_path / "lean"))
    found = lean.run(inputs)
    assert lean.stats.table > 0
    assert lean.stats.arena_bytes < plain.stats.arena_bytes
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


def test_reports_follow_the_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(CONVOLUTION, path)
    plain = sod2.compile(CONVOLUTION)
    large = {"x": random("f4", (1, 4, 64, 64))}
    options = below(plain, large)
    lean = sod2.compile(CONVOLUTION, options)
    assert len(roofline.measure(lean, large)[0]) == lean.manifest["tables"][0]["steps"] > lean.manifest["steps"]
    command = ["memory", str(path), "--range", "N=1", "W=64", "H=8:64:8", "--budget", str(options.memory_budget)]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "H in 8..56\n" in said
    again = r"  by table 1, .* \(1 more steps, \d+\.\d% more operations\):\n    H in 64\n"
    assert re.search(again, said)
    assert main(["explain", str(path), "--memory-budget", "64KB"]) == 0
    assert "runs again:\n  k (again 1): Conv + Relu" in capsys.readouterr().out


@pytest.mark.parametrize("budget", [0, -1, 1.5, True, "64MB"])
def test_options(budget: object) -> None:
    with pytest.raises(sod2.Error, match="option memory_budget is"):
        sod2.Options(memory_budget=budget)  # type: ignore[arg-type]


def test_memory_outside_the_arena() -> None:
    source = model(
        "float[N] x, int64 t",
        "float[?] y",
        "y = Loop (t, , x) <body = b (int64 j, bool c, float[?] m) => (bool d, float[?] n)"
        " { d = Identity(c) n = Concat<axis=0>(m, x) }>",
    )
    with pytest.raises(sod2.UnsupportedError, match="no memory_budget can be kept"):
        sod2.plan(source, BUDGET)
