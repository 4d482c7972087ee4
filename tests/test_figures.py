"""Statistics against numbers worked out by hand, and tables drawn from made-up rows."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from onnx import TensorProto, helper

from baselines import rows as row_files
from baselines.rows import Row
from devices import device
from figures import data, layout, matrix, table5, table6, versus
from figures.__main__ import main
from figures.layout import Cell, Column, Notes, Table
from models import MODELS

ROOT = Path(__file__).parents[1]
HOST = device.load("host")
FACTS = {"cpu": "Imaginary 9000", "cpus": 2, "system": "Linux 6", "load": 0.1}
PROTOCOL = {"samples": 2, "selection": "quantiles", "seed": 0, "repeats": 2}


@pytest.fixture
def config() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
    matrix.check(config)
    return config


def inference(engine: str, model: str, sample: int, repeat: int, *, ms: float, mib: float) -> Row:
    return Row(
        "host",
        "cpu",
        engine,
        model,
        "ok",
        adapter=engine.split("-", maxsplit=1)[0],
        version="1.0",
        variant="full",
        sample=sample,
        repeat=repeat,
        first=repeat == 0,
        latency_ns=round(ms * 1e6),
        peak_bytes=round(mib * 2**20),
        error=1e-6,
        threads=2,
        git="abc",
        protocol=PROTOCOL,
        started="2026-01-02T03:04:05+00:00",
        facts=FACTS,
    )


def runs(engine: str, model: str, sample: int, first: float, *repeats: float, mib: float = 1.0) -> list[Row]:
    """A first run and repeats; the first needs twice the memory."""
    return [
        inference(engine, model, sample, 0, ms=first, mib=2 * mib),
        *(inference(engine, model, sample, n, ms=ms, mib=mib) for n, ms in enumerate(repeats, 1)),
    ]


@pytest.fixture
def measured() -> list[Row]:
    """CodeBERT: ORT takes twice as long on sample 0, eight times on sample 1. SkipNet: equal; ORT lost sample 1."""
    return [
        *runs("sod2", "codebert", 0, 90, 10, 10, 30),
        *runs("sod2", "codebert", 1, 90, 20, 20),
        *runs("ort", "codebert", 0, 90, 20, 20, mib=3),
        *runs("ort", "codebert", 1, 90, 160, 160, mib=3),
        *runs("ort-all", "codebert", 0, 90, 40, 40),
        *runs("sod2", "skipnet", 0, 90, 5, 5),
        *runs("sod2", "skipnet", 1, 90, 5, 5),
        *runs("ort", "skipnet", 0, 90, 5, 5),
        Row("host", "cpu", "ort", "skipnet", "failed", "died of SIGSEGV", sample=1),
        Row("host", "cpu", "ort-all", "skipnet", "unsupported", "no If"),
    ]


def test_latency_is_the_median_of_repeats_and_memory_the_peak_of_all_runs() -> None:
    found = runs("ort", "m", 3, 99, 1, 2, 30, mib=5)
    assert data.latency_ms(found) == {3: 2.0}
    assert data.peak_mib(found) == {3: 10.0}
    assert data.spread(found) == [(16.0 - 1.5) / 2]
    failed = Row("host", "cpu", "ort", "m", "failed", "no", sample=4)
    assert data.latency_ms([failed]) == data.peak_mib([failed]) == {}


def test_comparison_is_paired_by_sample(measured: list[Row]) -> None:
    ort = data.compare(measured, "ort", data.latency_ms)
    assert ort is not None
    assert ort.ratio == pytest.approx(math.sqrt(4 * 1))  # sqrt(2 * 8) on CodeBERT, 1 on the sample SkipNet has
    assert ort.paper_ratio == pytest.approx(math.sqrt(90 * 5) / math.sqrt(15 * 5))
    assert (ort.models, ort.samples) == (2, 3)
    itself = data.compare(measured, "sod2", data.latency_ms)
    assert itself is not None
    assert itself.ratio == itself.paper_ratio == 1
    assert data.compare(measured, "mnn", data.latency_ms) is None


def test_geo_mean_refuses_what_has_none() -> None:
    assert data.geo_mean([2, 8]) == pytest.approx(4)
    with pytest.raises(ValueError, match="positive numbers"):
        data.geo_mean([])
    with pytest.raises(ValueError, match="positive numbers"):
        data.geo_mean([1, 0])


def row_of(table: Table, title: str) -> list[str]:
    (row,) = [row for row in (*table.body, *table.summary) if row[0].text == title]
    return [cell.text for cell in row]


def test_table6(config: dict[str, Any], measured: list[Row]) -> None:
    table = table6.table(config, measured, HOST)
    titles = list(dict.fromkeys(column.headers[1] for column in table.columns[2:]))
    assert titles == ["ORT", "ORT, all branches", "MNN", "TVM-N", "SoD²"]
    width = len(table.columns)
    assert all(sum(cell.span for cell in row) == width for row in (*table.body, *table.summary))
    assert row_of(table, "CodeBERT")[2:] == ["20.0", "160", "40.0", "40.0", "–", "–", "10.0", "20.0", "–", "–", "–"]
    assert row_of(table, "SkipNet")[2:] == ["5.00", "5.00", "–", "–", "–", "5.00", "5.00", "–", "–", "–"]
    native, every_branch = [[c.text for c in row] for row in table.summary[:2]]
    assert native == ["Geo-mean over SoD²", "native If", "2.00×", "", "", "", "1.00×", "", "", ""]
    assert every_branch == ["Geo-mean over SoD²", "all branches", "", "4.00×", "", "", "", "", "", ""]
    paper = ["", "2.50×", "1.70×", "2.70×", "1.00×", "3.90×", "2.30×", "1.00×"]
    assert row_of(table, "Paper (Snapdragon 888)")[2:] == paper
    notes = " ".join(table.notes)
    assert "ORT on SkipNet: 1 of 2 samples failed: died of SIGSEGV." in notes
    assert "ORT, all branches on SkipNet: unsupported: no If." in notes
    assert "No GPU column was measured: this host runs no GPU bundles." in notes
    for fact in ("Imaginary 9000", "2 threads", "ort 1.0", "2 repeats", "Spread", "ort 1e-06", "abc"):
        assert fact in table.caption


def test_table5(config: dict[str, Any], measured: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("results/models").mkdir(parents=True)
    for name in config["models"]:
        onnx.save(nested_model(), f"results/models/{name}.onnx")
    table = table5.table(config, measured, HOST)
    assert row_of(table, "CodeBERT")[:5] == ["CodeBERT", "shape", "text", "3.0", "4"]
    assert row_of(table, "CodeBERT")[5:] == ["6.00", "6.00", "–", "–", "–", "2.00", "2.00"]
    assert row_of(table, "Geo-mean over SoD²")[5:] == [f"{math.sqrt(3):.2f}×", "", "", "", "1.00×"]
    assert row_of(table, "Paper (Snapdragon 888)")[5:] == ["3.64×", "", "1.37×", "8.62×", "1.00×"]


def nested_model() -> onnx.ModelProto:
    """Four nodes and three million parameters, some of them in the branches of an If; constants are not layers."""
    big = helper.make_tensor("big", TensorProto.FLOAT, [1000, 1000], bytes(4_000_000), raw=True)

    def branch(name: str) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node("Relu", ["big"], [name])], name, [], [output], [big])

    constant = helper.make_tensor("c", TensorProto.BOOL, [], [True])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=constant),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b")),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    output = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    return helper.make_model(helper.make_graph(nodes, "g", [], [output], [big]))


def test_without_any_result_the_tables_still_draw(config: dict[str, Any]) -> None:
    rows = [Row("host", "cpu", "sod2", model, "failed", "no") for model in config["models"]]
    table = table6.table(config, rows, HOST)
    assert "SoD² on CodeBERT: failed: no." in table.notes
    assert table.caption.endswith("No engine gave a result on this host.")


def test_files(tmp_path: Path) -> None:
    notes = Notes()
    mark = notes.mark("Not there.")
    assert notes.mark("Not there.") == mark == "a"
    columns = [Column(("", "Name"), numeric=False), Column(("Group", "Min")), Column(("Group", "Max"))]
    body = [[Cell("SoD²"), Cell("1.23", 1.234567), Cell("–", marks=mark)], [Cell("both"), Cell("–", span=2)]]
    table = Table("Title", columns, body, [], notes.texts, "word " * 60)
    layout.write([table, table], tmp_path / "t")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.md", "t.pdf"]
    with (tmp_path / "t.csv").open() as file:
        lines = list(csv.reader(file))
    assert lines[:3] == [
        ["Name", "Group / Min", "Group / Max", "notes"],
        ["SoD²", "1.23457", "–", "Not there."],
        ["both", "–", "", ""],
    ]
    assert "| SoD² | 1.23 | –<sup>a</sup> |" in (tmp_path / "t.md").read_text()
    first = (tmp_path / "t.pdf").read_bytes()
    assert first.startswith(b"%PDF")
    layout.write([table, table], tmp_path / "t")
    assert (tmp_path / "t.pdf").read_bytes() == first


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123, "0.12"), (9.994, "9.99"), (9.996, "10.0"), (99.96, "100"), (99.94, "99.9"), (1234, "1234")],
)
def test_three_significant_digits(value: float, text: str) -> None:
    assert layout.number(value) == text


def test_command_line(config: dict[str, Any], measured: list[Row], tmp_path: Path, capsys: Any) -> None:
    row_files.write(tmp_path / "a.jsonl", measured)
    arguments = ["table6", "--config", json.dumps(config), "--out", str(tmp_path / "table6"), "--rows"]
    assert main([*arguments, str(tmp_path / "a.jsonl")]) == 0
    assert (tmp_path / "table6.pdf").exists()
    (tmp_path / "b.jsonl").write_text("{}\n")
    assert main([*arguments, str(tmp_path / "b.jsonl")]) == 1
    assert "b.jsonl:1 is not a row" in capsys.readouterr().err


def test_the_papers_models_agree_with_ours() -> None:
    listed = {line["name"]: line for line in csv.DictReader((ROOT / "figures" / "paper_models.csv").open())}
    assert len(listed) == 10
    for name, model in MODELS.items():
        assert listed[name]["title"].lower() in (model.title.lower(), model.short.lower())
        assert listed[name]["dynamism"] == model.dynamism


def test_the_papers_figures_have_titles() -> None:
    for line in csv.DictReader((ROOT / "figures" / "paper.csv").open()):
        assert float(line["low"]) <= float(line["high"])
        if line["artefact"] in matrix.figures():
            assert line["engine"] in versus.TITLES
