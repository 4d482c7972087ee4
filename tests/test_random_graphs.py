"""Random graphs against onnxruntime, each at several shapes; hundreds are compiled together.

Small graphs find most faults and compile in milliseconds; every tenth is large. A failing seed is reproduced by
`random_graphs.build(seed, steps(seed))`.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

import sod2
from sod2.artifact import CompiledModel
from tests import random_graphs
from tests.batch import Batch
from tests.graphs import assert_close, session

OPTIONS = (
    sod2.Options(),
    sod2.Options(fusion="none", dmp=False),
    sod2.Options(fusion="static", sep=False),
    sod2.Options(control="all", mvc=False),
)
GRAPHS = 2000
BATCH = 100
RUNS = 3


def steps(seed: int) -> int:
    """Nodes of a seed's graph, roughly: few, and every tenth time many."""
    return 14 if seed % 10 == 0 else 2 + seed % 5


@pytest.mark.parametrize("number", range(GRAPHS // BATCH))
def test_random_graphs(number: int) -> None:
    """Outputs, and the shapes that the analysis predicts, at several values of the symbols on one artifact."""
    seeds = range(number * BATCH, (number + 1) * BATCH)
    sources = {str(seed): random_graphs.build(seed, steps(seed)) for seed in seeds}
    with tempfile.TemporaryDirectory() as folder:
        batch = Batch(Path(folder), sources, OPTIONS[number % len(OPTIONS)])
        assert batch.problems == {}
        for seed in seeds:
            check(seed, sources[str(seed)], batch.load(str(seed), threads=1 + seed % 2))


def check(seed: int, source: onnx.ModelProto, compiled: CompiledModel) -> None:
    """Compare one graph at the shapes of its seed."""
    oracle, facts = session(source), sod2.analyze(source)
    names = [o.name for o in source.graph.output]
    for number, env in enumerate(random_graphs.environments(random_graphs.generator(seed), RUNS)):
        inputs = random_graphs.arrays(env, seed + number)
        shapes = {name: array.shape for name, array in inputs.items()}
        if facts.admissible(shapes) is not None:  # a window that does not fit into an empty image
            with pytest.raises(sod2.InputError):
                compiled.run(inputs)
            with pytest.raises(InvalidArgument):
                oracle.run(None, inputs)
            continue
        try:
            wanted = dict(zip(names, oracle.run(None, inputs), strict=True))
        except InvalidArgument:  # the same inside a branch that was taken
            continue
        compare(seed, compiled.run(inputs), wanted)
        predicted = facts.shapes(shapes)
        assert {name: predicted[name] for name in names} == {name: array.shape for name, array in wanted.items()}, seed


def compare(seed: int, found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    """As assert_close, with the seed in the message."""
    try:
        assert_close(found, wanted, floor=1e-2)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from None
