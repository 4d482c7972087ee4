"""Statistics against numbers worked out by hand, and tables drawn from made-up rows."""

import csv
import dataclasses
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
from figures import (
    data,
    engines,
    fastest,
    figure9,
    figure10,
    first_run,
    layout,
    matrix,
    provenance,
    table1,
    table5,
    table6,
    table7,
    versus,
)
from figures.__main__ import main
from figures.layout import Cell, Column, Notes, Table
from models import MODELS, PAPER

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


def test_the_first_of_several_inferences_in_a_turn_is_no_repeat() -> None:
    """Two rounds of three; with one inference a turn, the same first ones count."""
    times = {0: (99.0,), 1: (50.0, 1.0, 2.0), 2: (60.0, 4.0, 5.0)}
    several = PROTOCOL | {"inferences": 3}
    found = [
        dataclasses.replace(inference("ort", "m", 3, n, ms=ms, mib=1), place=place, protocol=several)
        for n, turn in times.items()
        for place, ms in enumerate(turn)
    ]
    assert data.latency_ms(found) == {3: 3.0}
    assert data.rounds(found) == {3: {1: 1.5, 2: 4.5}}
    assert data.first_ms(found) == {3: 99.0}
    said = "2 repeats, each of 3 inferences in a row of which the first does not count, engines interleaved."
    assert said in provenance.caption(HOST, found)
    alone = [dataclasses.replace(row, protocol=PROTOCOL) for row in found if row.place == 0]
    assert data.latency_ms(alone) == {3: 55.0}


def test_latency_is_the_median_of_repeats_and_memory_the_peak_of_all_runs() -> None:
    found = runs("ort", "m", 3, 99, 1, 2, 30, mib=5)
    assert data.latency_ms(found) == {3: 2.0}
    assert data.peak_mib(found) == {3: 10.0}
    (line,) = data.latencies(found).itertuples()
    assert (line.median, line.mean, line.repeats) == (2.0, 11.0, 3)
    assert line.p90 == pytest.approx(2 + 0.8 * 28)
    assert line.spread == pytest.approx((16.0 - 1.5) / 2)
    assert data.first_ms(found) == {3: 99.0}
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


def test_a_sample_with_another_path_leaves_the_ratio_and_is_counted(
    config: dict[str, Any], measured: list[Row]
) -> None:
    other = Row("host", "cpu", "ort", "codebert", "path differs", "gate 3 was decided otherwise", sample=1)
    rows = [row for row in measured if (row.engine, row.model, row.sample) != ("ort", "codebert", 1)] + [other]
    comparison = data.compare(rows, "ort", data.latency_ms)
    assert comparison is not None
    assert comparison.ratio == pytest.approx(math.sqrt(2))
    notes = " ".join(table6.table(config, rows, HOST).notes)
    assert "ORT on CodeBERT: 1 of 2 samples took another path and are left out for both: gate 3 was decided" in notes


def test_a_model_of_unscheduled_code_is_left_out_of_the_geo_mean(config: dict[str, Any], measured: list[Row]) -> None:
    slow = [dataclasses.replace(row, unscheduled=0.3) if row.model == "codebert" else row for row in measured]
    rows = [slow[i] if row.engine == "ort" else row for i, row in enumerate(measured)]
    table = table6.table(config, rows, HOST)
    assert table.summary[0][2].text == "1.00×"  # of SkipNet alone
    assert any("30% of the time is code without a schedule" in note for note in table.notes)


def test_captions_say_which_ratios_of_the_paper_hold(config: dict[str, Any], measured: list[Row]) -> None:
    assert table6.table(config, measured, HOST).caption.startswith(
        "The paper's ratio is reached for ORT, all branches 4.00× (paper: 2.50×). "
    )
    slower = [dataclasses.replace(row, latency_ns=10**6) if row.engine == "ort-all" else row for row in measured]
    assert "The paper's ratio does not hold here for ORT, all" in table6.table(config, slower, HOST).caption


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


MIB = 2**20


def mnn(engine: str, sample: int, **first: Any) -> list[Row]:
    """A first run of 20 ms with these figures, and repeats of 4 ms."""
    found = runs(engine, "yolov6", sample, 20, 4, 4)
    return [dataclasses.replace(found[0], adapter="mnn", **first), *found[1:]]


def test_table1(config: dict[str, Any]) -> None:
    for name, options in (("mnn", {}), ("mnn-new", {"session": "new"})):
        config["engines"][name] = {"adapter": "mnn", "title": name, "options": options, "tables": []}
    rows: list[Row] = []
    phases = [{"SL": 10**6 * n, "ST": 2 * 10**6, "Alloc": 10**6} for n in (90, 1, 3)]  # the first is left out
    for i, p in enumerate(phases):
        rows += mnn("mnn", i, phases_ns=p) + mnn("mnn-new", i, phases_ns=p, bind_ns=5 * 10**6)
        rows += mnn("sod2", i, bind_ns=10**5, load_ns=3 * 10**6)
    table = table1.table(config, rows, HOST)
    lines = ["|".join(cell.text for cell in line[1:]) for line in table.body[:4]]
    assert lines == [
        "MNN, new session|5.00|2.00|2.00|1.00||10.0|20.0|4.00|2.50",
        "MNN, live session||2.00|2.00|1.00||5.00|20.0|4.00|1.25",
        "SoD², new session|3.00||||0.10|3.10|23.0|4.00|0.78",
        "SoD², live session|||||0.10|0.10|20.0|4.00|0.03",
    ]
    assert table.caption.startswith("The paper's claim holds here for MNN, new session on YOLO-V6 (2.50), MNN, live")
    assert "MNN, new session on Conformer: no rows." in table.notes


def test_table7(config: dict[str, Any]) -> None:
    config["protocol"]["samples"] = 2
    rows = []
    for sample in range(2 * len(matrix.PERCENTILES)):
        rows += runs("sod2", "yolov6", sample, 9, 1, 1)
        rows += runs("ort", "yolov6", sample, 9, *[[2, 0.5, 4, 1, 8][sample // 2] * 2.0 ** (sample % 2 * 2 - 1)] * 2)
    table = table7.table(config, rows, HOST)
    assert [cell.text for cell in table.body[0]] == ["ORT", "2.00×", "0.50×", "4.00×", "1.00×", "8.00×"]
    assert table.caption.startswith("SoD² is not ahead here of ORT at percentile 25 (0.50×). ")


def test_figure9(config: dict[str, Any], tmp_path: Path) -> None:
    config["engines"]["mine"] = {
        "adapter": "sod2", "title": "SoD², all", "options": {"control": "all"}, "tables": ["table6"]
    }  # fmt: skip
    rows = [*runs("mine", "skipnet", 0, 9, 2, 2), *runs("ort-all", "skipnet", 0, 9, 6, 6)]
    rows += [*runs("mine", "skipnet", 1, 9, 2, 2), *runs("ort-all", "skipnet", 1, 9, 24, 24)]
    rows.append(Row("host", "cpu", "ort-all", "ranet", "failed", "too hard"))
    table = figure9.table(config, rows, HOST)
    assert table.chart is not None
    ort, ours = table.chart.panels[0].series
    assert (ort.name, ours.name, ours.subject) == ("ORT, all branches", "SoD², all", True)
    assert ort.values == [pytest.approx(6), None, None, None]
    assert ort.ends[0] == (3, 12)
    assert [cell.text for cell in table.body[0]] == ["SkipNet", "15.0", "6.00×", "2.00", "1.00×"]
    assert "ORT, all branches on RANet: failed: too hard." in table.notes
    layout.write([table], tmp_path / "f")
    assert (tmp_path / "f.pdf").read_bytes().startswith(b"%PDF")


def test_figure10_and_first_runs(config: dict[str, Any], tmp_path: Path) -> None:
    rows = []
    for sample, (side, ms) in enumerate([(640, 8.0), (224, 1.0)]):
        for engine, factor in (("sod2", 1), ("ort", 2)):
            found = runs(engine, "yolov6", sample, 6 * ms * factor, ms * factor, ms * factor)
            bind_ns = 40_000 if engine == "sod2" and side < 640 else None
            rows += [dataclasses.replace(row, shape=[[1, 3, side, side]], bind_ns=bind_ns) for row in found]
    table = figure10.table(config, rows, HOST)
    assert [[cell.text for cell in line] for line in table.body] == [
        ["224×224", "50", "2.00", "1.00"],
        ["640×640", "410", "16.0", "8.00"],
    ]
    assert table.caption.startswith("SoD² is the fastest at 2 of 2 sizes.")
    assert table.chart is not None
    assert table.chart.panels[0].at == [50.176, 409.6]
    firsts = first_run.table(config, rows, HOST)
    lines = {tuple(cell.text for cell in line[:2]): [cell.text for cell in line[2:]] for line in firsts.body}
    assert lines["YOLO-V6", "ORT"] == ["6.00×", "12.0", "2.00", "6.00×", "6.00×", "2.00×", "–", "–"]
    assert lines["YOLO-V6", "SoD²"] == ["6.00×", "6.00", "1.00", "6.00×", "6.00×", "1.00×", "40.0", "40.0"]
    assert firsts.caption.startswith("SoD² binds a new shape in at most 40.0 µs.")
    layout.write([table, firsts], tmp_path / "f")
    assert (tmp_path / "f.pdf").stat().st_size > 1000


def test_a_model_of_one_size_has_no_first_runs_at_smaller_ones(config: dict[str, Any], tmp_path: Path) -> None:
    rows = [
        dataclasses.replace(row, shape=[[1, 3, 224, 224]])
        for sample, factor in ((0, 3.0), (1, 2.0))
        for row in runs("sod2", "skipnet", sample, factor, 1.0, 1.0)
    ]
    found = first_run.table(config, rows, HOST)
    line = next(line for line in found.body if [cell.text for cell in line[:2]] == ["SkipNet", "SoD²"])
    assert [(cell.text, cell.span) for cell in line[2:]] == [("2.00×", 1), ("–", len(first_run.COLUMNS) - 3)]
    assert "SoD² on SkipNet: no smaller size was measured." in found.notes
    layout.write([found], tmp_path / "f")


def test_the_fastest_other_engine(config: dict[str, Any], tmp_path: Path) -> None:
    """The best engine counts, not the worst; noise of one round in five makes the bound lower, not the ratio."""
    config["engines"]["quick"] = {**config["engines"]["ort"], "title": "Quick"}
    times = {
        "sod2": ((1, 1, 1, 1, 1), (2, 2, 2, 2, 2)),
        "ort": ((3, 3, 3, 3, 3), (6, 6, 6, 6, 6)),
        "quick": ((2, 2, 2, 0.5, 0.5), (2, 2, 2, 2, 2)),
    }
    rows = [
        dataclasses.replace(row, shape=[[1, sample]])
        for engine, samples in times.items()
        for sample, repeats in enumerate(samples)
        for row in runs(engine, "codebert", sample, 9, *repeats)
    ]
    table = fastest.table(config, rows, HOST)
    line = next(line for line in table.body if line[0].text == "CodeBERT")
    assert [cell.text for cell in line[1:3]] == ["Quick", "1.41×"]
    assert [cell.text for cell in line[4:5]] == ["1.00×"]
    assert line[6].value == 1.0  # of the sample without noise
    assert line[3].value == pytest.approx(0.5**0.5)  # half of what the first sample may have been
    assert table.caption.startswith("SoD² is surely ahead of every engine on 0 of 1 models.")
    assert table.summary[0][2].value == pytest.approx(2**0.5)
    layout.write([table], tmp_path / "f")
    assert (tmp_path / "f.pdf").read_bytes().startswith(b"%PDF")


def test_a_hole_is_left_to_the_other_engines(config: dict[str, Any]) -> None:
    """An engine without the model, and one without a sample, are footnotes of the model; another one is the fastest."""
    config["engines"] |= {name: {**config["engines"]["ort"], "title": name.title()} for name in ("none", "half")}
    rows = [
        dataclasses.replace(row, shape=[[1, sample]])
        for engine, latency in (("sod2", 1), ("ort", 2), ("half", 3))
        for sample in range(1 if engine == "half" else 2)
        for row in runs(engine, "codebert", sample, 9, latency, latency)
    ]
    rows.append(Row("host", "cpu", "none", "codebert", "unsupported", "no such operator"))
    rows.append(Row("host", "cpu", "half", "codebert", "failed", "died", sample=1))
    table = fastest.table(config, rows, HOST)
    line = next(line for line in table.body if line[0].text == "CodeBERT")
    assert [cell.text for cell in line[1:3]] == ["ORT", "2.00×"]
    assert [table.notes["abc".index(mark)] for mark in line[1].marks] == [
        "None on CodeBERT: unsupported: no such operator.",
        "Half on CodeBERT: 1 of 2 samples failed: died.",
    ]


def test_engines_in_full(config: dict[str, Any]) -> None:
    small, large = runs("ort", "codebert", 4, 9, 1, 1), runs("ort", "codebert", 2, 30, 10, 20, 30, mib=3)
    large = [dataclasses.replace(row, weight_bytes=7 * MIB, hwm_bytes=90 * MIB, own_bytes=5 * MIB) for row in large]
    table = engines.table(config, [*small, *large], HOST)
    lines = {tuple(cell.text for cell in line[:2]): [cell.text for cell in line[2:]] for line in table.body}
    times = ["30.0", "20.0", "20.0", "28.0", "50.0%"]
    assert lines["CodeBERT", "ORT"] == ["2", "1e-06", *times, "6.00", "5.00", "90.0", "7.00"]
    assert lines["CodeBERT", "SoD²"] == ["–"]


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
    for name in PAPER:
        model = MODELS[name]
        assert listed[name]["title"].lower() in (model.title.lower(), model.short.lower())
        assert listed[name]["dynamism"] == model.dynamism


def test_the_papers_figures_have_titles() -> None:
    for line in csv.DictReader((ROOT / "figures" / "paper.csv").open()):
        assert float(line["low"]) <= float(line["high"])
        if line["artefact"] in matrix.figures():
            assert line["engine"] in versus.TITLES
