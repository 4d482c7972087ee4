"""The suite of single operators: their models, samples and sizes; the figures about them, startup and growth."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from snakemake.utils import update_config

from baselines.rows import Row
from devices import device
from figures import figure10, layout, matrix, operators, startup, targets
from models import MODELS, OPERATORS, build, find
from models.execute_all import walk
from models.flops import macs
from models.inputs import concrete_shape, contents, generator, quantile_sizes
from models.operators import OPERATORS as SPECS
from models.operators import OVERHEAD
from models.probe import Probe
from tests.graphs import expected

ROOT = Path(__file__).parents[1]
HOST = device.load("host")
FACTS = {"cpu": "Imaginary 9000", "cpus": 2, "system": "Linux 6", "load": 0.1}
PROTOCOL = {"samples": 3, "selection": "quantiles", "seed": 0, "repeats": 1}
LIMITS = {"flops": 1e12, "clock": 4e9, "bandwidth": [1e11] * 12}


@pytest.fixture
def config() -> dict[str, Any]:
    """The default configuration with the overlay of the suite."""
    base, overlay = (yaml.safe_load((ROOT / "config" / f"{name}.yaml").read_text()) for name in ("config", "operators"))
    update_config(base, overlay)
    matrix.check(base)
    return dict(base)


def draw(name: str, variant: str, size: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    source = build(name, variant)
    shapes = {"x": concrete_shape(source.graph.input[0], {"S": size})}
    return source, contents(OPERATORS[name], variant, shapes, generator("test"))


@pytest.mark.parametrize("name", SPECS)
def test_a_single_operator(name: str) -> None:
    """One kind of node, valid in both variants, and as many floats as its operands have."""
    for variant in ("full", "tiny"):
        onnx.checker.check_model(build(name, variant))
    spec, model = SPECS[name], find(name)
    assert name not in MODELS
    size = spec.low
    source, inputs = draw(name, "full", size)
    assert len({node.op_type for node in walk(source.graph)}) == 1
    outputs = expected(source, inputs)
    weights = sum(int(np.prod(tensor.dims)) for tensor in source.graph.initializer)
    assert spec.floats(size) == inputs["x"].size + weights + outputs["y"].size
    assert {spec.low, spec.high} <= {int(v) for v in model.symbols["S"].values()}


def test_three_sizes_and_their_work() -> None:
    sizes = quantile_sizes(OPERATORS["conv3x3s2-32-64"].symbols, [0, 0.5, 1], 0)
    assert sizes[0] == {"S": 56} and sizes[2] == {"S": 160}
    source, inputs = draw("conv3x3s2-32-64", "full", 56)
    assert sum(macs(source, inputs).values()) == 28 * 28 * 64 * 32 * 9
    source, inputs = draw("maxpool3x3s2-64", "tiny", 8)
    assert macs(source, inputs) == {}
    assert Probe(source).run(inputs) == ({}, {})


def test_the_workflow_knows_them(config: dict[str, Any]) -> None:
    assert "conv3x3-64" in targets.names(config)["model"]
    files = matrix.runs(config, "operators")
    assert len(files) == len(SPECS) and files[0].endswith("/conv3x3-16.jsonl")
    with pytest.raises(matrix.ConfigError, match="conv3x3-64"):  # no model of another figure
        matrix.check(config | {"models": ["conv3x3-64"]})


# ---- figures from made-up rows ---------------------------------------------------------------------------------------


def row(engine: str, model: str, sample: int, **fields: Any) -> Row:
    return Row(
        "host",
        "cpu",
        engine,
        model,
        "ok",
        adapter=engine,
        version="1.0",
        variant="full",
        sample=sample,
        repeat=fields.pop("repeat", 1),
        first=fields.pop("first", False),
        error=1e-6,
        threads=2,
        git="abc",
        protocol=PROTOCOL,
        started="2026-01-02T03:04:05+00:00",
        facts=fields.pop("facts", FACTS | {"limits": LIMITS}),
        **fields,
    )


def operator_rows() -> Iterator[Row]:
    """SoD² needs 20 us for 64 -> 64 channels at 56, its peers 30 and 10; a pooling has no peers."""
    shape = [[1, 64, 56, 56]]
    count = 56 * 56 * 64 * 64 * 9
    for engine, us in (("sod2", 200), ("ort", 300), ("mnn", 100)):
        yield row(engine, "conv3x3-64", 0, shape=shape, macs=count, latency_ns=us * 1000)
    yield row("sod2", "maxpool3x3s2-64", 0, shape=[[1, 64, 112, 112]], macs=0, latency_ns=100_000)
    yield row("sod2", "matmul-768-768", 0, shape=[[1, 32, 768]], macs=32 * 768 * 768, latency_ns=50_000)


def test_operators_figure(config: dict[str, Any], tmp_path: Path) -> None:
    table = operators.table(config, list(operator_rows()), HOST)
    by_name = {line[0].text: line for line in table.body}
    assert set(by_name) == {"conv3x3-64", "maxpool3x3s2-64", "matmul-768-768"}
    headers = [column.headers[0] for column in table.columns]
    conv = dict(zip(headers, by_name["conv3x3-64"], strict=True))
    flops = 2 * 56 * 56 * 64 * 64 * 9
    assert conv["Size"].text == "56"
    assert conv["GFLOP/s"].value == pytest.approx(flops / 200e-6 / 1e9)
    assert conv["Of peak"].value == pytest.approx(flops / 200e-6 / 1e12)
    assert conv["Of limit"].value == pytest.approx(flops / 1e12 / 200e-6)
    assert conv["Ahead"].text == "0.50×"
    assert conv["OpenVINO (µs)"].text == "–" and conv["OpenVINO (µs)"].marks
    pool = dict(zip(headers, by_name["maxpool3x3s2-64"], strict=True))
    assert pool["Of peak"].text == "–" and pool["Ahead"].text == "–"
    assert pool["Of limit"].value == pytest.approx(4 * 64 * (112**2 + 56**2) / 1e11 / 100e-6)
    assert dict(zip(headers, by_name["matmul-768-768"], strict=True))["Size"].text == "32"
    assert "below 0.95× on 1 of 1" in table.caption
    assert "1000 GFLOP/s (median 1000), 125.0 in a cycle of each thread at 4.00 GHz" in table.caption
    share = 2 * 32 * 768 * 768 / 50e-6 / 1e12
    assert f"any engine reaches {share:.0%} of the peak that its own rounds had (matmul-768-768 at 32)" in table.caption
    assert table.chart is not None
    assert OVERHEAD not in {panel.title for panel in table.chart.panels}
    layout.write([table], tmp_path / "operators")
    assert (tmp_path / "operators.pdf").stat().st_size > 1000


def test_shares_are_of_the_median_round(config: dict[str, Any]) -> None:
    """Three rounds of one sample: the peak that its time is held against is the middle one of theirs alone."""
    shape = [[1, 32, 768]]
    rows = [
        row("sod2", "matmul-768-768", 0, shape=shape, macs=32 * 768 * 768, latency_ns=50_000, **fields)
        for fields in (
            {"repeat": number, "facts": FACTS | {"limits": LIMITS | {"flops": flops}}}
            for number, flops in enumerate((2e12, 5e11, 1e12), start=1)
        )
    ]
    other = row("sod2", "matmul-768-3072", 0, shape=shape, macs=32 * 768 * 3072, latency_ns=200_000)
    table = operators.table(config, [*rows, other], HOST)
    share = [column.headers[0] for column in table.columns].index("Of peak")
    assert table.body[0][share].value == pytest.approx(2 * 32 * 768 * 768 / 50e-6 / 1e12)
    assert "At most 2000 GFLOP/s (median 1000)" in table.caption


def test_operators_figure_of_failures(config: dict[str, Any]) -> None:
    """Rows that failed tell no limits; the reasons are shown."""
    failed = dataclasses.replace(row("sod2", "conv3x3-64", 0, facts=FACTS), status="failed", reason="it died")
    table = operators.table(config, [failed], HOST)
    assert table.body == [] and table.chart is None
    assert "SoD²: failed: it died." in table.notes


def test_operators_figure_needs_the_limits(config: dict[str, Any]) -> None:
    rows = [dataclasses.replace(r, facts=FACTS) for r in operator_rows()]
    with pytest.raises(ValueError, match=r"config/operators\.yaml"):
        operators.table(config, rows, HOST)


def test_startup_figure(config: dict[str, Any]) -> None:
    rows = [row("sod2", "codebert", k, first=True, build_ns=9 * 10**9, load_ns=2 * 10**6) for k in range(3)]
    rows += [row("sod2", "yolov6", 0, first=True, build_ns=5 * 10**9, load_ns=10**6)]
    table = startup.table(config, [*rows, row("ort", "codebert", 0, latency_ns=5, load_ns=10**7)], HOST)
    lines = {(line[0].text, line[1].text): [cell.text for cell in line[2:]] for line in table.body}
    assert lines["CodeBERT", "SoD²"] == ["9.00", "2.00"]
    assert lines["CodeBERT", "ORT"] == ["–", "10.0"]
    assert "in 7.00 s (median; at most 9.00 s)." in table.caption


@pytest.mark.parametrize(
    ("latencies", "said"),
    [
        ([3, 4, 5, 6, 7, 8, 9], "2.00 ms + 1.0000 ms per thousand pixels within 0.0%"),
        ([3, 4, 5, 6, 7, 8, 9], "none takes longer"),
        ([3, 4, 5, 7, 6, 8, 9], "1 take longer than the next larger one, by 16.7% at most"),
        ([3, 4, 5, 6, 7], ""),
    ],
)
def test_growth_of_cost(config: dict[str, Any], latencies: list[float], said: str) -> None:
    rows = []
    for k, ms in enumerate(latencies):
        shape = [[1, 3, 1000, k + 1]]
        rows.append(row("sod2", "yolov6", k, shape=shape, latency_ns=int(ms * 1e6), peak_bytes=1))
    caption = figure10.table(config, rows, HOST).caption
    assert said in caption
    assert ("per thousand pixels" in caption) == bool(said)
