"""Generated code and runtime under the address and undefined-behaviour sanitizers.

The bench program of an artifact is built with them and runs samples at several shapes; a report ends it with another
status. Kernels read no byte outside their tensors, sizes do not overflow, shifts and casts are defined.

What is built one by one takes seconds each, so that most of it is slow: `pytest -m slow tests/test_sanitize.py`.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

import models
import sod2
from sod2 import compiler
from sod2.codegen.target import (
    BENCH_SOURCES,
    RUNTIME,
    Target,
    compile_objects,
    default_cache,
    host,
    link_executable,
    runtime_objects,
)
from tests import loop_cases, random_graphs, test_cases, test_dynamic
from tests.graphs import Arrays, random, session


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """The sanitizing target; skipped where the compiler has no sanitizer runtime."""
    folder = tmp_path_factory.mktemp("probe")
    try:
        sanitizing = host(sanitize=True)
        source = folder / "probe.c"
        source.write_text("int main(void) { return 0; }\n")
        objects = compile_objects(sanitizing, [source], [], folder)
        link_executable(sanitizing, objects, folder / "probe")
    except sod2.ToolchainError as error:
        pytest.skip(f"no sanitizers: {error}")
    return sanitizing


def run_bench(folder: Path, samples: Sequence[dict[str, np.ndarray]], threads: int, work: Path) -> None:
    """Run every sample twice, in the order given and back; fails on any report of a sanitizer."""
    results = work / "results"
    results.mkdir(parents=True)
    names = [t["name"] for t in json.loads((folder / "manifest.json").read_text())["inputs"]]
    for i, sample in enumerate(samples):
        for k, name in enumerate(names):
            np.save(work / f"{i}.{k}.npy", sample[name])
    order = [*range(len(samples)), *reversed(range(len(samples)))]
    commands = "".join(f"run {i} 2 {results}\n" for i in order) + "quit\n"
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1"}
    bench = [str(folder / "bench"), str(work), str(threads)]
    done = subprocess.run(bench, input=commands, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-500:]
    assert "runtime error" not in done.stderr, done.stderr[-3000:]


def build(source: onnx.ModelProto, target: Target, out: Path) -> Path:
    """An artifact whose bench has no memory hook: AddressSanitizer replaces malloc itself."""
    folder = compiler.build(source, sod2.Options(), target, out)
    bench = [RUNTIME / name for name in BENCH_SOURCES if name != "memhook.c"]
    own = [folder / "model.c", *bench, Path(__file__).parent / "no_memory_hook.c"]
    cache = default_cache() / "objects"
    objects = [*compile_objects(target, own, [], cache), *runtime_objects(target, cache)]
    link_executable(target, objects, folder / "bench")
    return folder


SHAPES = {
    "codebert": [{"T": 1}, {"T": 37}, {"T": 64}],
    "skipnet": [{"H": 33, "W": 47}, {"H": 64, "W": 32}],
    "yolov6": [{"h": 1, "w": 1}, {"h": 2, "w": 3}],
}


@pytest.mark.parametrize("name", SHAPES)
def test_models(name: str, target: Target, tmp_path: Path) -> None:
    source = models.build(name, "tiny")
    samples = []
    for symbols in SHAPES[name]:
        values = sod2.analyze(source).graph.inputs
        shapes = {v.name: tuple(sod2.symbolic.evaluate(d, symbols) for d in v.shape or ()) for v in values}
        samples.append({v.name: np.abs(random(v.dtype, shapes[v.name])) for v in values})
    run_bench(build(source, target, tmp_path / "model"), samples, 2, tmp_path / "samples")


@pytest.mark.parametrize("seed", range(1000, 1006))
def test_random_graphs(seed: int, target: Target, tmp_path: Path) -> None:
    """Zero-sized and one-sized dims among them."""
    source = random_graphs.build(seed, steps=30)
    environments = random_graphs.environments(random_graphs.generator(seed), 5)
    drawn = [random_graphs.arrays(env, k) for k, env in enumerate(environments)]
    accepts = sod2.analyze(source).admissible
    samples = [sample for sample in drawn if accepts({name: a.shape for name, a in sample.items()}) is None]
    run_bench(build(source, target, tmp_path / "model"), samples, 1, tmp_path / "samples")


COUNTING = (
    "nonzero, gather, sum",
    "compress by a short condition",
    "unique",
    "unique in order of appearance",
    "suppression",
    "top k",
    "reshape",
    "slice by steps",
    "counting in a branch",
    "branches over the same bytes",
)


@pytest.mark.parametrize("name", COUNTING)
def test_sizes_that_only_execution_tells(name: str, target: Target, tmp_path: Path) -> None:
    """What is counted first and written then stays inside its buffer, which is placed while the model runs."""
    case = test_dynamic.CASES[name]
    run_case(case.model(), case.samples, target, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", test_cases.CASES)
def test_hard_cases(name: str, target: Target, tmp_path: Path) -> None:
    case = test_cases.CASES[name]
    samples = [{name: random("f4", shape) for name, shape in shapes.items()} for shapes in case.shapes]
    run_case(case.model(), samples, target, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", loop_cases.ALL)
def test_loops(name: str, target: Target, tmp_path: Path) -> None:
    case = loop_cases.ALL[name]
    run_case(case.model(), case.runs, target, tmp_path)


def run_case(source: onnx.ModelProto, given: Sequence[Arrays], target: Target, work: Path) -> None:
    """Build a model, and run the samples that onnxruntime takes."""
    oracle, samples = session(source), []
    for sample in given:
        with contextlib.suppress(Exception):  # onnxruntime's own classes: such a sample is refused
            oracle.run(None, dict(sample))
            samples.append(dict(sample))
    run_bench(build(source, target, work / "model"), samples, 2, work / "samples")
