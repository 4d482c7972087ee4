"""What is claimed of the models, measured: `python -m models evidence` writes the table docs/models.md.

For each full-size model: how long its definition takes to build, whether nodes and multiply-adds are the published
ones, what onnxruntime fuses in it, what the analysis resolves; and over random samples of the evaluation that no
calibration has seen, drawn once with generated contents and once with real ones where some are installed, the share of
blocks that run and the control paths. On the last of these draws SoD² is held against onnxruntime: outputs, how many
of its steps ran, and whether the first sample gives the same bits again after all others.
"""

import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto

import sod2
from datasets.sample import Sampler
from models import MODELS, build, parameters
from models.__main__ import save
from models.execute_all import walk
from models.flops import count, shaped_values
from models.inputs import concrete_shape, contents, generator, random_sizes
from models.package_data import installed
from models.probe import Probe
from models.published import LARGE_GMACS, NODES, PARAMETERS, SMALL_GMACS

FUSIONS = ("Gelu", "Attention", "LayerNormalization", "FusedMatMul")  # what the fused operators' names end in
T = TypeVar("T")


@dataclass(frozen=True)
class Drawn:
    """Samples of one kind of contents: the share of reached gates that ran their block, and how often each path."""

    rate: float | None
    paths: Counter[str]


@dataclass(frozen=True)
class Evidence:
    """The measurements of one model; times in seconds of the processor, which other jobs on the machine do not stretch.

    `nodes` is the greatest deviation from the published number, in all or of one operator, as a fraction, `gmacs` that
    of the multiply-adds. `unresolved` counts the tensors without a shape over the input's dims. `error` is the largest
    difference from onnxruntime, relative to the output's scale; `steps` are the least and the most steps that SoD² ran,
    and how many it has.
    """

    name: str
    parameters: int
    nodes: float
    gmacs: float | None
    fused: Counter[str]
    build_s: float
    analysis_s: float
    unresolved: int
    drawn: dict[str, Drawn]
    error: float
    steps: tuple[int, int, int]
    repeats: bool


def measure(name: str, samples: int, seed: int) -> Evidence:
    """All measurements of one full-size model over `samples` random samples of each kind of contents."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        model, building = _timed(lambda: build(name))
        found = nodes(model)
        work = multiply_adds(name, model)
        save(model, path)
        facts, analysing = _timed(lambda: sod2.analyze(path))
        compiled = sod2.compile(path, threads=len(os.sched_getaffinity(0)))
        drawn, inputs = _draw(name, samples, seed)
        error, steps, repeats = compare(compiled, path, inputs)
        shapes = facts.shapes({key: array.shape for key, array in inputs[0].items()})
        return Evidence(
            name=name,
            parameters=parameters(name),
            nodes=found,
            gmacs=work,
            fused=fusions(path),
            build_s=building,
            analysis_s=analysing,
            unresolved=sum(shape is None for shape in shapes.values()),
            drawn=drawn,
            error=error,
            steps=steps,
            repeats=repeats,
        )


def nodes(model: ModelProto) -> float:
    """Greatest relative deviation from the published numbers of nodes."""
    total, by_type = NODES[model.graph.name]
    found = Counter(node.op_type for node in walk(model.graph))
    ratios = [sum(found.values()) / total, *(found[kind] / number for kind, number in by_type.items())]
    return max(abs(ratio - 1) for ratio in ratios)


def multiply_adds(name: str, model: ModelProto) -> float | None:
    """Greatest relative deviation from the published multiply-adds; None where none are published for a whole run."""
    probe = Probe(model, shaped=shaped_values(model))
    deviations = []
    for _, value, published in (case for case in SMALL_GMACS + LARGE_GMACS if case[0] == name):
        sizes = dict.fromkeys(MODELS[name].symbols, value)
        weights = {tensor.name for tensor in model.graph.initializer}
        shapes = {i.name: concrete_shape(i, sizes) for i in model.graph.input if i.name not in weights}
        _, found = probe.run(contents(MODELS[name], "full", shapes, generator("evidence")))
        deviations.append(abs(sum(count(model, found).values()) / 1e9 / published - 1))
    return max(deviations, default=None)


def fusions(path: Path) -> Counter[str]:
    """The operators of `FUSIONS` that onnxruntime makes of a model's nodes, at its highest level, by kind."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = f"{folder}/optimised.onnx"
        options.log_severity_level = 3
        for key, value in (("file_name", "weights.bin"), ("min_size_in_bytes", "1024")):
            options.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        optimised, own = (
            Counter(node.op_type for node in walk(onnx.load(file, load_external_data=False).graph))
            for file in (options.optimized_model_filepath, path)
        )
    return Counter({kind: number for kind, number in (optimised - own).items() if kind.endswith(FUSIONS)})


def listed(fused: Counter[str]) -> str:
    """Operators and how many of each, as a cell of a table."""
    return ", ".join(f"{number} {kind}" for kind, number in sorted(fused.items())) or "–"


def _draw(name: str, samples: int, seed: int) -> tuple[dict[str, Drawn], list[dict[str, np.ndarray]]]:
    """What was drawn of each kind of contents, and the inputs of the last kind."""
    sizes = [random_sizes(MODELS[name].symbols, generator("evidence sizes", seed, index)) for index in range(samples)]
    real = installed(MODELS[name], "full")
    drawn: dict[str, Drawn] = {}
    inputs: list[dict[str, np.ndarray]] = []
    for kind, files in {"generated": None, **({} if real is None else {"real": real})}.items():
        sampler = Sampler(name, "full", files)
        pairs = [sampler.sample(size, seed, index) for index, size in enumerate(sizes)]
        inputs = [arrays for arrays, _ in pairs]
        paths = Counter(facts["path"] for _, facts in pairs if facts["path"] is not None)
        reached = "".join(paths.elements()).replace("-", "")
        drawn[kind] = Drawn(reached.count("1") / len(reached) if reached else None, paths)
    return drawn, inputs


def compare(compiled: Any, path: Path, inputs: list[dict[str, np.ndarray]]) -> tuple[float, tuple[int, int, int], bool]:
    """SoD²'s largest relative difference from onnxruntime, its steps (see Evidence), and whether it repeats itself."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    first = {name: array.copy() for name, array in compiled.run(inputs[0]).items()}
    worst, ran, total = 0.0, [], 0
    for arrays in inputs:
        wanted = session.run(names, arrays)
        steps = [nanoseconds for _, nanoseconds in compiled.profile(arrays)]
        ran.append(sum(nanoseconds > 0 for nanoseconds in steps))
        total = len(steps)
        got = compiled.run(arrays)
        for name, reference in zip(names, wanted, strict=True):
            scale = max(float(np.abs(reference).max()), 1e-30)
            worst = max(worst, float(np.abs(got[name] - reference).max()) / scale)
    again = compiled.run(inputs[0])
    return worst, (min(ran), max(ran), total), all(np.array_equal(again[name], first[name]) for name in names)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def table(found: list[Evidence], samples: int, seed: int) -> str:
    """The measurements as a Markdown page."""
    return "\n".join(_lines(found, samples, seed)) + "\n"


def head(*titles: str) -> Iterator[str]:
    """The two lines that begin a table."""
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"


def _lines(found: list[Evidence], samples: int, seed: int) -> Iterator[str]:
    yield "# The models, measured"
    yield ""
    yield f"Written by `python -m models evidence --samples {samples} --seed {seed}`; models/evidence.py says what is"
    yield "measured. Times are seconds of one core of the machine that wrote it. What onnxruntime fuses in PyTorch's"
    yield "own exports is in [exported.md](exported.md)."
    yield ""
    yield from head(
        "model", "parameters", "nodes off", "GMAC off", "fused by ORT", "build s", "analysis s", "unresolved"
    )
    for one in found:
        equal = "" if one.parameters == PARAMETERS[one.name] else f" (published {PARAMETERS[one.name]:,})"
        gmacs = "–" if one.gmacs is None else f"{one.gmacs:.2%}"
        yield (
            f"| {MODELS[one.name].title} | {one.parameters:,}{equal} | {one.nodes:.1%} | {gmacs} | {listed(one.fused)}"
            f" | {one.build_s:.1f} | {one.analysis_s:.2f} | {one.unresolved} |"
        )
    kinds = " · ".join(max((one.drawn for one in found), key=len))
    yield ""
    yield f"Median build: {statistics.median(one.build_s for one in found):.1f} s."
    yield ""
    yield from head("model", "rate wanted", f"{kinds} rate", f"{kinds} paths", "SoD² error", "steps run", "repeats")
    for one in found:
        wanted = MODELS[one.name].rate
        rates = " · ".join("–" if kind.rate is None else f"{kind.rate:.3f}" for kind in one.drawn.values())
        paths = " · ".join(str(len(kind.paths) or 1) for kind in one.drawn.values())
        low, high, total = one.steps
        yield (
            f"| {MODELS[one.name].title} | {'–' if wanted is None else f'{wanted:.3f}'} | {rates} | {paths}"
            f" | {one.error:.1e} | {low}–{high} of {total} | {'yes' if one.repeats else 'no'} |"
        )
