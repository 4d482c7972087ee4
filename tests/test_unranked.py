"""Inputs that declare no rank: the arrays of a run tell it, and every combination is compiled once."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import sod2
from sod2 import compiler, unranked
from sod2.codegen.target import host
from tests.graphs import assert_close, expected, model, random

SOURCE = model("float[] x, float[N, 4] z", "float[] y, int64[] s", "e = Exp(x) y = Mul(e, z) s = Shape(y)")
SHAPES = [(), (4,), (3, 4), (1,), (2, 3, 1), (0, 3, 4), (4,), ()]


def test_every_rank() -> None:
    """And the same bits behind other ranks."""
    compiled = sod2.compile(SOURCE)
    z, bits = random("f4", (3, 4)), {}
    for shape in SHAPES:
        inputs = {"x": random("f4", shape), "z": z}
        found = compiled.run(inputs)
        assert_close(found, expected(SOURCE, inputs))
        assert bits.setdefault(shape, found["y"].tobytes()) == found["y"].tobytes()
        assert compiled.peak_bytes({name: array.shape for name, array in inputs.items()}) == compiled.stats.arena_bytes
        assert compiled.profile(inputs)


def test_each_is_compiled_once() -> None:
    built = []

    def compiled(ranked: onnx.ModelProto) -> Path:
        built.append(len(ranked.graph.input[0].type.tensor_type.shape.dim))
        return sod2.compile(ranked).folder

    runner = unranked.UnrankedModel(SOURCE, compiled, 1)
    for shape in SHAPES:
        runner.run({"x": random("f4", shape), "z": random("f4", (3, 4))})
    assert built == [0, 1, 2, 3]


def test_what_is_refused(tmp_path: Path) -> None:
    """Sizes as everywhere; and a folder, which holds one rank."""
    compiled, z = sod2.compile(SOURCE), random("f4", (3, 4))
    with pytest.raises(AttributeError, match="no manifest before a run has told the ranks"):
        _ = compiled.manifest
    with pytest.raises(sod2.InputError, match="'x' is missing"):
        compiled.run({"z": z})
    with pytest.raises(sod2.InputError, match="must equal"):
        compiled.run({"x": np.ones(5, np.float32), "z": z})
    with pytest.raises(sod2.UnsupportedError, match="declares no rank"):
        compiler.build(SOURCE, sod2.Options(), host(), tmp_path / "a")


def test_nothing_is_guessed() -> None:
    """The analysis of the model as it is knows nothing of what depends on the rank, and says why."""
    facts = sod2.analyze(SOURCE)
    assert facts["y"].rank is None and "no rank" in facts.reasons["x"]
    assert unranked.inputs(SOURCE) == ("x",)
    assert unranked.inputs(unranked.ranked(SOURCE, {"x": 0})) == ()
