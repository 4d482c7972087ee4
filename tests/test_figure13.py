"""Figure 13 from made-up rows: ratios worked out by hand, two devices, a hole with its reason."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from baselines import rows as row_files
from baselines.rows import Row
from devices import device
from figures import figure13, layout, matrix
from figures.__main__ import main

ROOT = Path(__file__).parents[1]
FACTS = {"cpu": "Imaginary 9000", "cpus": 8, "system": "Linux 4", "load": 0.1}
PROTOCOL = {"samples": 2, "selection": "quantiles", "seed": 0, "repeats": 1}
TIMES = {
    ("s21", "ort"): (2.0, 8.0),
    ("sd835", "ort"): (9.0, 4.0),
    ("s21", "sod2"): (1.0, 1.0),
    ("sd835", "sod2"): (1.0, 1.0),
}
"""Milliseconds of the two samples: geo-means over SoD² are 4 and 6."""


@pytest.fixture
def config() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
    config["devices"] = ["s21", "sd835"]
    matrix.check(config)
    return config


def inference(name: str, engine: str, model: str, *, sample: int, repeat: int, ms: float) -> Row:
    return Row(
        name, "cpu", engine, model, "ok", version="1", sample=sample, repeat=repeat, first=repeat == 0,
        latency_ns=int(ms * 1e6), peak_bytes=1, threads=8, started="2026-11-30", facts=FACTS, protocol=PROTOCOL,
    )  # fmt: skip


def made_up() -> list[Row]:
    rows = []
    for (name, engine), times in TIMES.items():
        for model in figure13.NEEDS.models or ():
            if (name, engine, model) == ("sd835", "ort", "sde"):
                continue
            for sample, ms in enumerate(times):
                rows += [inference(name, engine, model, sample=sample, repeat=repeat, ms=ms) for repeat in range(2)]
    return [*rows, Row("sd835", "cpu", "ort", "sde", "failed", reason="died of SIGKILL", facts=FACTS)]


def test_ratios_by_device(config: dict[str, Any], tmp_path: Path) -> None:
    tables = [figure13.table(config, made_up(), device.load(name)) for name in config["devices"]]
    lines = [[cell.text for cell in table.body[0]] for table in tables]
    assert lines == [["ORT", *["4.00×"] * 6], ["ORT", "–", *["6.00×"] * 5]]
    assert any("died of SIGKILL" in note for note in tables[1].notes)
    assert tables[1].caption.startswith("Geo-means here and on Galaxy S21: ORT 6.00× against 4.00×. ")
    assert tables[0].chart is not None
    assert tables[0].chart.panels[0].series[0].ends[0] == (pytest.approx(2), pytest.approx(8))
    layout.write(tables, tmp_path / "figure13")
    assert (tmp_path / "figure13.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "figure13.csv").read_text().count("ORT") >= 2


def test_runs_of_both_phones(config: dict[str, Any]) -> None:
    runs = matrix.runs(config, "figure13")
    assert len(runs) == 2 * 5
    assert "results/runs/sd835/cpu/quantiles/blockdrop.jsonl" in runs


def test_tables_of_several_devices_have_a_column_for_it(config: dict[str, Any], tmp_path: Path) -> None:
    row_files.write(tmp_path / "rows.jsonl", made_up())
    arguments = ["figure13", "--config", json.dumps(config), "--out", str(tmp_path / "f")]
    assert main([*arguments, "--rows", str(tmp_path / "rows.jsonl")]) == 0
    lines = list(csv.reader((tmp_path / "f.csv").open()))
    assert [line[:3] for line in lines if line[1] == "ORT"] == [
        ["Galaxy S21", "ORT", "4"],
        ["Snapdragon 835 phone", "ORT", "–"],
    ]
