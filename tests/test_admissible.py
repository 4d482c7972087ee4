"""Input shapes of every model at hand, all 0, all 1 and random: what onnxruntime takes runs, with its results.

What it refuses either runs (some kernels of onnxruntime take no empty tensors) or is refused in a sentence that names
an input. Models found in packages are drawn likewise by tests.real_models.
"""

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
import pytest

import models
import sod2
from sod2.analysis import Analysis
from sod2.symbolic import evaluate
from tests.graphs import Arrays, assert_close, session
from tests.test_cases import CASES

DRAWS = 12
SLOW = ("sam", "yolov6")
LARGEST = {"cases": 6, "models": 70}
DEVIATIONS = {"reflection": "onnxruntime reads behind an axis that is shorter than its padding"}


def sizes(facts: Analysis, rng: np.random.Generator, largest: int) -> dict[str, int]:
    """Random symbols, half of them equal to another one."""
    symbols: dict[str, int] = {}
    for name in rng.permutation(facts.symbols):
        again = symbols and rng.random() < 0.5
        symbols[str(name)] = int(rng.choice([*symbols.values()])) if again else int(rng.integers(0, largest + 1))
    return symbols


def arrays(facts: Analysis, symbols: Mapping[str, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Inputs of these sizes; integers are 0 and 1."""
    found = {}
    for value in facts.graph.inputs:
        shape = tuple(evaluate(d, symbols) for d in value.shape or ())
        floats = value.dtype.kind == "f"
        numbers = rng.standard_normal(shape) if floats else rng.integers(0, 2, shape)
        found[value.name] = np.asarray(numbers, value.dtype)
    return found


def outputs(oracle: onnxruntime.InferenceSession, inputs: Arrays) -> dict[str, np.ndarray] | None:
    """What onnxruntime computes; None when it refuses."""
    try:
        found = oracle.run(None, dict(inputs))
    except Exception:  # onnxruntime's own classes
        return None
    return dict(zip((o.name for o in oracle.get_outputs()), found, strict=True))


def check(source: onnx.ModelProto, largest: int) -> int:
    """Draws shapes and compares; how many of them onnxruntime took."""
    facts, compiled, oracle = sod2.analyze(source), sod2.compile(source), session(source)
    rng = np.random.default_rng(0)
    taken = 0
    extremes = [dict.fromkeys(facts.symbols, size) for size in (0, 1)]
    for symbols in [*extremes, *(sizes(facts, rng, largest) for _ in range(DRAWS))]:
        inputs = arrays(facts, symbols, rng)
        shapes: Mapping[str, tuple[int, ...]] = {name: a.shape for name, a in inputs.items()}
        wanted, sentence = outputs(oracle, inputs), facts.admissible(shapes)
        if wanted is not None:
            assert sentence is None
            assert_close(compiled.run(inputs), wanted, floor=1e-6)
            taken += 1
        elif sentence is not None:
            assert any(repr(name) in sentence for name in inputs), sentence
            with pytest.raises(sod2.InputError):
                compiled.run(inputs)
    return taken


@pytest.mark.parametrize("name", [name for name in CASES if name not in DEVIATIONS])
def test_cases(name: str) -> None:
    assert check(CASES[name].model(), LARGEST["cases"]) > 0


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in models.MODELS]
)
def test_models(name: str) -> None:
    assert check(models.build(name, "tiny"), LARGEST["models"]) > 0
