"""Figure 8, the memory plan against the optimum, and the walk over random shapes, drawn for a small model."""

import contextlib
import dataclasses
import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import sod2
from baselines import environment
from baselines.rows import Row
from devices import device
from figures import figure8, memory_walk, optimum, placement, roofline
from figures.layout import Table
from models import build
from sod2.codegen import target
from sod2.compiler import build as compile_to
from tests.test_figures import runs

HOST = device.load("host")
CONFIG = {"models": ["codebert"], "protocol": {"selection": "quantiles"}}
SHAPES = [[[1, 32], [1, 32]], [[1, 61], [1, 61]]]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of the workflow that the figures read."""
    folder = tmp_path_factory.mktemp("work")
    results = folder / "results"
    samples = results / "samples" / "quantiles" / "codebert"
    for path in (results / "models", samples):
        path.mkdir(parents=True)
    onnx.save(build("codebert", "tiny"), results / "models" / "codebert.onnx")
    bundle = results / "bundles" / "host" / "cpu" / "sod2" / "codebert"
    compile_to(results / "models" / "codebert.onnx", sod2.Options(), target.host(), bundle)
    for sample, shapes in enumerate(SHAPES):
        for k, shape in enumerate(shapes):
            np.save(samples / f"{sample}.{k}.npy", np.ones(shape, np.int64))
    (samples / "samples.json").write_text(json.dumps([{"shapes": shapes} for shapes in SHAPES]))
    return folder


@pytest.fixture
def rows(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    monkeypatch.chdir(workplace)
    monkeypatch.setattr(device.Device, "lock", lambda _: contextlib.nullcontext())  # nothing is timed here
    made = [row for sample in (0, 1) for row in runs("sod2", "codebert", sample, 9, 9)]
    return [dataclasses.replace(row, shape=SHAPES[row.sample or 0]) for row in made]


def cells(table: Table, row: int) -> dict[str, float | str | None]:
    names = [" ".join(filter(None, column.headers)) for column in table.columns]
    return dict(zip(names, [cell.value for cell in table.body[row]], strict=True))


def test_figure_8(rows: list[Row]) -> None:
    table = figure8.table(CONFIG, rows, HOST)
    found = cells(table, 0)
    assert found["Share of sub-graphs (%) nac"] == 0
    for what in ("sub-graphs", "latency"):
        shares = [float(found[f"Share of {what} (%) {kind}"] or 0) for kind in figure8.KINDS]
        assert sum(shares) == pytest.approx(100)
    assert found["Order Exact steps (%)"] == 100
    assert table.caption.startswith("Known or mixed are 100.0 % of the sub-graphs, and 100.0 % of the steps")


def test_roofline(rows: list[Row]) -> None:
    """What another engine's ratio would be grows by as much as the limit is below the latency."""
    engines = {name: {"title": name, "tables": ["table6"], "options": {}, "adapter": name} for name in ("ort", "sod2")}
    rows = [*rows, *(row for sample in (0, 1) for row in runs("ort", "codebert", sample, 18, 18))]
    table = roofline.table({**CONFIG, "engines": engines}, rows, HOST)
    found = cells(table, 0)
    share = float(found["SoD² Of its limit"] or 0)
    assert 0 < share < 1  # a tiny model, and 9 ms
    assert found["ort Measured"] == pytest.approx(2)
    assert found["ort At the limit"] == pytest.approx(2 / share)
    assert [cell.value for cell in table.summary[0][1:]] == [cell.value for cell in table.body[0][1:]]


def test_placement(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the live peak is reached no solver is needed, as here."""
    monkeypatch.setattr(environment, "python", lambda _: pytest.fail("nothing is to be solved"))
    table = placement.table(CONFIG, rows, HOST)
    for row in range(2):
        found = cells(table, row)
        assert found["Over the optimum DMP"] == 1.0 <= float(found["Over the optimum Best fit"] or 0)
        assert found["MiB Live peak"] == found["MiB Optimum"] == found["MiB Arena"]
        assert 0 < float(found["MiB Largest step"] or 0) <= float(found["MiB Live peak"] or 0)
    assert [cell.text for cell in table.summary[-1]][6:8] == ["1.05×", "1.16×"]


def test_the_solver_is_asked_where_the_live_peak_is_not_reached() -> None:
    spans, sizes = [(0, 1), (0, 0), (1, 2), (2, 3), (3, 3)], [64, 128, 128, 64, 192]
    try:
        with optimum.Solver(seconds=5) as solver:
            placed = placement.solved((spans, sizes), solver)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the solver's environment cannot be made: {error}")
    assert placed.optimum.is_proved and 1.0 <= placed.dmp <= placed.best_fit


def test_memory_walk(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_walk, "SHAPES", 60)
    table = memory_walk.table(CONFIG, rows, HOST)
    (line,) = table.body
    need, high, ratio, grown = (float(cell.value or 0) for cell in line[1:])
    assert need * ratio == pytest.approx(high)
    assert high <= need + 0.3 and grown <= 200  # MiB, KiB: what the interpreter keeps
    assert table.chart is not None and len(table.chart.panels[0].at) == 60
