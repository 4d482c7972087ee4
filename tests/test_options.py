"""All 24 combinations of the four optimisations: equal outputs, and each switch changes only what it names.

Tiny models by default, all of them and the full ones with `-m slow`. Tiny ones are held to onnxruntime's outputs. Full
ones are held to each other as closely, and to onnxruntime by what is asked of a result: behind a hundred layers it is
itself further than that from the same model in double.
"""

import difflib
import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import sod2
from datasets.sample import Sampler
from models import MODELS, PAPER, build
from sod2 import Options, compiler
from sod2.codegen import model as model_c
from sod2.fusion import Group
from tests.batch import Batch, target

QUICK = ("codebert", "skipnet")  # attention and shapes; convolutions and branches
TINY = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PAPER]
TOLERANCE = 1e-5  # between two combinations, of the output's scale
CORRECT = 1e-4  # of a full model, against onnxruntime
COMBINATIONS = {
    f"{fusion} sep={sep:d} dmp={dmp:d} mvc={mvc:d}": Options(fusion=fusion, sep=sep, dmp=dmp, mvc=mvc)
    for fusion, sep, dmp, mvc in itertools.product(("none", "static", "rdp"), *[(False, True)] * 3)
}


def sample(name: str, variant: str) -> dict[str, np.ndarray]:
    """Inputs at a size in the lower half of each symbol's range, no two symbols alike where that is possible."""
    symbols = {
        s: extent.low + (extent.high - extent.low) // (3 + k) // extent.step * extent.step
        for k, (s, extent) in enumerate(MODELS[name].symbols.items())
    }
    return Sampler(name, variant).sample(symbols, 3, 0)[0]


def errors(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> list[float]:
    """Largest differences, relative to each output's scale."""
    return [float(np.abs(got[k] - w).max() / max(float(np.abs(w).max()), 1e-30)) for k, w in wanted.items() if w.size]


def reference(proto: bytes | str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What onnxruntime computes without optimising the graph."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    return dict(zip((o.name for o in session.get_outputs()), session.run(None, inputs), strict=True))


@pytest.mark.parametrize("name", TINY)
def test_outputs_do_not_depend_on_the_options(name: str, tmp_path: Path) -> None:
    proto, inputs = build(name, "tiny"), sample(name, "tiny")
    wanted = reference(proto.SerializeToString(), inputs)
    batch = Batch(tmp_path, dict.fromkeys(COMBINATIONS, proto), COMBINATIONS)
    assert not batch.problems
    for combination in COMBINATIONS:
        got = batch.load(combination).run(inputs)
        assert max(errors(got, wanted)) <= TOLERANCE, combination


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER)
def test_outputs_of_full_models_do_not_depend_on_the_options(name: str, tmp_path: Path) -> None:
    path, inputs = tmp_path / f"{name}.onnx", sample(name, "full")
    onnx.save(build(name), path, save_as_external_data=True, location=f"{path.name}.data")
    wanted = reference(str(path), inputs)
    first: dict[str, np.ndarray] = {}
    for combination, options in COMBINATIONS.items():
        folder = compiler.build(path, options, sod2.codegen.target.host(), tmp_path / "artifact")
        got = sod2.load(folder, threads=2).run(inputs)
        first = first or got
        found = max(errors(got, first)), max(errors(got, wanted))
        print(f"{name} {combination}: {found[0]:.1e} from the first, {found[1]:.1e} from onnxruntime")
        assert found[0] <= TOLERANCE / 2, combination  # so that no two differ by more than it
        assert found[1] <= CORRECT, combination


def nodes(plan: compiler.Plan) -> Counter[str]:
    """The nodes that the steps execute, with those of streamed pairs."""
    groups = [step for step in plan.storage.steps if isinstance(step, Group)]
    groups += [group.lead for group in groups if group.lead is not None]
    return Counter(node.name for group in groups for node in group.nodes)


@pytest.mark.parametrize("name", QUICK)
def test_each_switch_changes_only_what_it_names(name: str) -> None:
    proto = build(name, "tiny")
    base = compiler.emit(proto, Options(), target())

    one_version = compiler.emit(proto, Options(mvc=False), target())
    assert one_version.storage == base.storage  # the same kernels in the same order, in the same buffers

    digest = base.weights.digest()
    placed = [model_c.source(base, digest, peak_first).splitlines() for peak_first in (True, False)]
    changed = [line for line in difflib.ndiff(*placed) if line[:2] in ("+ ", "- ")]
    assert len(changed) == 2 and all(".peak_first" in line for line in changed)

    ordered, given = (compiler.plan(proto, Options(sep=sep)) for sep in (True, False))
    assert ordered.fusion.groups == given.fusion.groups
    assert nodes(ordered) == nodes(given)

    launched = [
        sum(isinstance(step, Group) for step in compiler.plan(proto, Options(fusion=fusion)).storage.steps)
        for fusion in ("none", "static", "rdp")
    ]
    assert launched == sorted(launched, reverse=True)
