"""Figure 7: static fusion is a fair opponent on every model, and what RDP adds is counted honestly."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import sod2
from devices import device
from figures import figure7
from figures.needs import Needs
from models import MODELS, build
from tests.graphs import model

TEN = [name for name in MODELS if name not in ("lstm", "tree_lstm")]


@pytest.mark.parametrize("name", TEN)
def test_static_fusion_launches_no_more_than_onnxruntime_has_nodes(name: str, tmp_path: Path) -> None:
    """And each analysis that knows more fuses no less."""
    path = tmp_path / "model.onnx"
    onnx.save(build(name, "tiny"), path)
    middle = {symbol: (extent.low + extent.high) // 2 for symbol, extent in MODELS[name].symbols.items()}
    plans = [sod2.plan(path, sod2.Options(fusion=fusion), know) for fusion, know in figure7.VARIANTS.values()]
    counts = [figure7.count(plan, middle) for plan in plans]
    assert [c.layers for c in counts] == sorted((c.layers for c in counts), reverse=True)
    assert [c.bytes for c in counts] == sorted((c.bytes for c in counts), reverse=True)
    assert counts[1].layers <= figure7.optimised_nodes(path)


def test_copies_into_a_concat_are_kernels() -> None:
    """One of the operands is an input, which has a place already."""
    source = model("float[1, N, 4] x", "float[?, ?, ?] y", "a = Exp(x) y = Concat <axis = 1> (a, x)")
    assert figure7.count(sod2.plan(source), {"N": 10}) == figure7.Counts(2, 2 * 10 * 4 * 4)


def test_values_are_what_data_propagation_adds() -> None:
    """An addend whose dims are those of another tensor because a Reshape says so."""
    source = model(
        "float[N, 6] x, float[M] z",
        "float[?, ?] y",
        "c = MatMul(x, w) s = Shape(x) r = Reshape(z, s) y = Add(c, r)",
        {"w": np.ones((6, 6), np.float32)},
    )
    plans = [sod2.plan(source, sod2.Options(fusion=fusion), know) for fusion, know in figure7.VARIANTS.values()]
    assert [figure7.count(plan, {"N": 5, "M": 30}).layers for plan in plans] == [2, 2, 1, 1]


def test_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results" / "models").mkdir(parents=True)
    onnx.save(build("codebert", "tiny"), tmp_path / "results" / "models" / "codebert.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(figure7, "NEEDS", Needs(models=("codebert",)))
    table = figure7.table({}, [], device.load("host"))
    (line,) = table.body
    assert len(line) == len(table.columns) == len(table.summary[0])
    none, static, values, rdp, nodes, over_static, over_values = (cell.value for cell in line[1:8])
    assert rdp < values < static < none and static <= nodes  # only RDP knows that queries and keys have as many heads
    assert over_static == pytest.approx(rdp / static) and over_values == pytest.approx(rdp / values)
    assert np.isfinite([cell.value for cell in line[8:]]).all()
