"""What is claimed of the models: slowly for the full-size ones, quickly for the parts of the measurement."""

import itertools
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models import MODELS, PAPER, __main__, build, evidence
from models.__main__ import save
from models.evidence import Drawn, Evidence
from models.published import PARAMETERS

PATHS = {"skipnet": 20, "convnet_aig": 20, "ranet": 8}  # so many distinct ones at least among fifty samples


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER)
def test_claims(name: str) -> None:
    found = evidence.measure(name, samples=50, seed=1)
    assert found.parameters == PARAMETERS[name]
    assert found.nodes <= 0.1
    assert found.gmacs is None or found.gmacs <= 0.01
    assert found.build_s <= 20
    assert found.analysis_s <= 2
    assert found.unresolved == 0
    assert found.error <= 1e-4
    assert found.repeats
    for drawn in found.drawn.values():
        if (wanted := MODELS[name].rate) is not None:
            assert drawn.rate == pytest.approx(wanted, abs=0.05)
        assert len(drawn.paths) >= PATHS.get(name, 0)
    if "control" in MODELS[name].dynamism:
        assert found.steps[0] < found.steps[1]  # only what is on the path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # two layers, each of one Gelu, one scaled product and two sums; and the embedding's sum
        ("codebert", {"BiasGelu": 2, "SkipLayerNormalization": 5, "FusedMatMul": 2}),
        ("conformer", {"SkipLayerNormalization": 2, "QuickGelu": 6}),
        ("sam", {"BiasGelu": 4, "Gelu": 2, "SkipLayerNormalization": 6, "FusedMatMul": 14}),
        ("sde", {"QuickGelu": 13, "FusedMatMul": 4}),
    ],
)
def test_onnxruntime_fuses_as_in_an_exported_model(name: str, expected: dict[str, int], tmp_path: Path) -> None:
    save(build(name, "tiny"), tmp_path / "m.onnx")
    assert evidence.fusions(tmp_path / "m.onnx") == expected


@pytest.mark.slow
def test_onnxruntime_fuses_every_layer_of_the_full_encoder(tmp_path: Path) -> None:
    save(build("codebert"), tmp_path / "m.onnx")
    assert evidence.fusions(tmp_path / "m.onnx") == {"BiasGelu": 12, "SkipLayerNormalization": 25, "FusedMatMul": 12}


class Stand:
    """A compiled model that adds `wrong` to what onnxruntime gives, and forgets itself on its third run."""

    def __init__(self, outputs: list[np.ndarray], wrong: float, forgets: bool) -> None:
        self._outputs = itertools.cycle(outputs)
        self._wrong, self._forgets, self._runs = wrong, forgets, 0

    def run(self, _: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self._runs += 1
        return {"final": next(self._outputs) + self._wrong + (self._runs == 3 and self._forgets)}

    def profile(self, _: dict[str, np.ndarray]) -> list[tuple[str, int]]:
        return [("a", 5), ("b", 0), ("c", self._runs % 2)]


@pytest.mark.parametrize("forgets", [False, True])
def test_comparison_finds_errors_and_forgetting(forgets: bool, tmp_path: Path) -> None:
    model = build("lstm", "tiny")
    del model.graph.output[0]
    save(model, tmp_path / "m.onnx")
    inputs = [{"words": np.ones((4, 12), np.float32)}]
    expected = evidence.onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, inputs[0])
    scale = np.abs(expected[0]).max()
    error, steps, repeats = evidence.compare(Stand(expected, 0.01 * scale, forgets), tmp_path / "m.onnx", inputs)
    assert error == pytest.approx(0.01, rel=1e-3)
    assert (steps, repeats) == ((2, 2, 3), not forgets)


def test_page_has_a_line_for_each_model_in_both_tables() -> None:
    plain = Evidence(
        "sde", 7, 0.01, None, Counter(), 1.0, 0.5, 0, {"generated": Drawn(None, Counter())}, 0.0, (3, 3, 3), True
    )
    gated = replace(
        plain, name="skipnet", drawn={kind: Drawn(0.7, Counter(["01", "11"])) for kind in ("generated", "real")}
    )
    lines = evidence.table([plain, gated], 50, 1).splitlines()
    assert sum(line.startswith("| StableDiffusion Encoder |") for line in lines) == 2
    assert f"| StableDiffusion Encoder | 7 (published {PARAMETERS['sde']:,}) | 1.0% | – | – | 1.0 | 0.50 | 0 |" in lines
    assert "| SkipNet | 0.691 | 0.700 · 0.700 | 2 · 2 | 0.0e+00 | 3–3 of 3 | yes |" in lines
    assert any("generated · real rate" in line for line in lines)


def test_unknown_model_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["evidence", "resnet", "--out", str(tmp_path / "m.md")]) == 2
    assert "unknown model 'resnet'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_exports_without_pytorch_are_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    assert __main__.main(["exported", "--out", str(tmp_path / "m.md")]) == 2
    expected = "module 'diffusers' is missing: the extra [pytorch] of pyproject.toml has it"
    assert capsys.readouterr().err == f"python -m models: {expected}\n"
    assert not list(tmp_path.iterdir())
