"""The full-size models, as users run them: outputs, shapes, histories and threads at twenty random inputs each.

Slow (minutes a model), so not part of the default run: `pytest -m slow tests/test_full_models.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import sod2
from datasets.sample import Sampler
from models import MODELS, PAPER, build
from models.execute_all import execute_all
from models.inputs import generator, random_sizes
from models.probe import Probe

pytestmark = pytest.mark.slow
COUNT = 20
TOLERANCE = 1e-4  # of the output's scale


@dataclass
class Full:
    """A full-size model, compiled and in onnxruntime, and its random inputs."""

    name: str
    proto: onnx.ModelProto
    path: Path
    session: onnxruntime.InferenceSession
    samples: list[dict[str, np.ndarray]]


@pytest.fixture(scope="module", params=PAPER)
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Full]:
    name = request.param
    path = tmp_path_factory.mktemp(name) / f"{name}.onnx"
    proto = build(name)
    onnx.save(proto, path, save_as_external_data=True, location=f"{path.name}.data")
    proto = onnx.load(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    sampler = Sampler(name, "full")
    rng = generator("sizes", 7)
    sizes = [random_sizes(MODELS[name].symbols, rng) for _ in range(COUNT)]
    samples = [sampler.sample(size, 7, index)[0] for index, size in enumerate(sizes)]
    yield Full(name, proto, path, session, samples)


def error(got: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference, relative to the output's scale."""
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    return float(np.abs(got - wanted).max() / max(float(np.abs(wanted).max()), 1e-30))


def test_outputs_threads_and_histories(full: Full) -> None:
    names = [o.name for o in full.session.get_outputs()]
    one, two = (sod2.compile(full.path, threads=n) for n in (1, 2))
    first = {name: array.copy() for name, array in one.run(full.samples[0]).items()}
    for inputs in full.samples:
        wanted = full.session.run(names, inputs)
        single, double = one.run(inputs), two.run(inputs)
        for name, reference in zip(names, wanted, strict=True):
            assert error(single[name], reference) <= TOLERANCE
            np.testing.assert_array_equal(single[name], double[name])
    for name, array in one.run(full.samples[0]).items():
        np.testing.assert_array_equal(array, first[name])


def test_predicted_shapes_are_the_real_ones(full: Full) -> None:
    facts = sod2.analyze(full.path)
    written = {t for n in execute_all(full.proto).graph.node for t in n.output}  # lowering and Switch add others
    observable = sorted(t for n in facts.graph.nodes for t in n.outputs if t in written)
    probe = Probe(full.proto, shaped=observable)
    for inputs in full.samples:
        predicted = facts.shapes({name: array.shape for name, array in inputs.items()})
        _, real = probe.run(inputs)
        assert {t: predicted[t] for t in observable} == real


def test_memory_is_what_the_plan_says(full: Full) -> None:
    model = sod2.compile(full.path, threads=2)
    peaks = []
    for inputs in full.samples:
        shapes = {name: array.shape for name, array in inputs.items()}
        needed = model.peak_bytes(shapes)
        model.run(inputs)
        assert model.stats.live_bytes <= model.stats.arena_bytes == needed
        peaks.append(needed)
    page = 2 * 4096
    assert model.stats.reserved_bytes <= max(peaks) + page  # the high-water is the largest single need
