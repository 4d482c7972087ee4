"""A frozen model: the outputs of the model with branches, its gates computed, and figure 12 of made-up rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml

import sod2
from baselines import engine
from baselines.session import Limits, Session
from devices import device
from figures import figure12, matrix
from tests.graphs import model
from tests.test_figures import runs

HOST = device.load("host")
ROOT = Path(__file__).parents[1]
SOURCE = model(
    "float[N, 8] x",
    "float[?] y",
    "s = ReduceMean(x) p = Greater(s, zero)"
    "z = If (p) <then_branch = t () => (float[?] a) { a = Exp(x) }, else_branch = e () => (float[?] b) { b = Neg(x) }>"
    "y = Softmax(z)",
    {"zero": np.float32([0.0]).reshape(())},
)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, Path, Path]:
    """Two samples, of different shapes and paths, and the frozen engine on them."""
    folder = tmp_path_factory.mktemp("frozen")
    samples, out = folder / "samples", folder / "bundle"
    for path in (samples, out):
        path.mkdir()
    index = []
    for sample, (rows, sign) in enumerate(((5, 1), (3, -1))):
        array = np.full((rows, 8), sign, np.float32) + np.arange(8, dtype=np.float32) / 64
        np.save(samples / f"{sample}.0.npy", array)
        index.append({"shapes": [[rows, 8]], "path": str(int(sign > 0)), "macs": 1, "macs_all": 2})
    (samples / "samples.json").write_text(json.dumps(index))
    onnx.save(SOURCE, folder / "m.onnx")
    built = engine.build(
        out, name="f", adapter="sod2_frozen", options={}, model=folder / "m.onnx", device=HOST, processor="cpu"
    )
    return Session(HOST, out, built.command, samples=str(samples), threads=1, limits=Limits(60, 1 << 32)), samples, out


def test_every_sample_runs_in_its_own_artifact(session: tuple[Session, Path, Path], tmp_path: Path) -> None:
    started, samples, out = session
    dynamic = sod2.compile(SOURCE)
    for sample in (1, 0):
        (line, again) = started.run(sample, 2, str(tmp_path))
        assert line["sample"] == sample and line["first"] and not again["first"]
        manifest = json.loads((out / "artifact" / "manifest.json").read_text())
        x = np.load(samples / f"{sample}.0.npy")
        assert manifest["inputs"][0]["shape"] == [str(n) for n in x.shape]
        assert len(manifest["outputs"]) == 2  # the gate is computed
        assert sorted(path.name for path in tmp_path.glob(f"{sample}.*")) == [f"{sample}.0.npy"]
        np.testing.assert_array_equal(np.load(tmp_path / f"{sample}.0.npy"), dynamic.run({"x": x})["y"])
    started.close()


def test_figure_12(tmp_path: Path) -> None:
    config: dict[str, Any] = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
    config["engines"] |= yaml.safe_load((ROOT / "config" / "figure12.yaml").read_text())["engines"]
    config["figures"] = ["figure12"]
    matrix.check(config)
    rows = [
        *runs("sod2", "skipnet", 0, 90, 11, 11),
        *runs("sod2-frozen", "skipnet", 0, 90, 10, 10),
        *runs("sod2", "skipnet", 1, 90, 40, 40),
        *runs("sod2-frozen", "skipnet", 1, 90, 44, 44),
    ]
    table = figure12.table(config, rows, HOST)
    skipnet, ranet = table.body
    assert [cell.text for cell in skipnet] == ["SkipNet", "2", "25.5", "27.0", "+0.0 %", "+10.0 %", "3 %"]
    assert ranet[1].text == "–" and ranet[2].text == "7 %"
    assert "no rows" in table.notes[0]
