"""Figure 11 from rows made by hand: what counts as held, and what stands where it is not."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from baselines.rows import Row
from devices import device
from figures import figure11, matrix

ROOT = Path(__file__).parents[1]
MIB = 1 << 20


@pytest.fixture
def config() -> dict[str, Any]:
    """The default configuration with the figure's own overlay, on two models."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
    config["engines"] |= yaml.safe_load((ROOT / "config" / "figure11.yaml").read_text())["engines"]
    config |= {"models": ["codebert", "skipnet"], "figures": ["figure11"]}
    matrix.check(config)
    return config


def inferences(engine: str, model: str, sample: int, milliseconds: float, mebibytes: float) -> list[Row]:
    """A first run, which is slower and has a bind, and two repeats."""
    return [
        Row(
            device="host",
            processor="cpu",
            engine=engine,
            model=model,
            status="ok",
            version="1",
            sample=sample,
            repeat=repeat,
            first=repeat == 0,
            latency_ns=int((milliseconds + 40 * (repeat == 0)) * 1e6),
            bind_ns=30_000_000 if repeat == 0 else 0,
            peak_bytes=int(mebibytes * MIB),
            threads=2,
            error=0.0,
            protocol={"samples": 2, "selection": "quantiles", "seed": 0, "repeats": 2},
            started="2026-01-01T00:00:00+00:00",
            facts={"cpu": "a CPU", "cpus": 2, "system": "Linux", "load": 0.0},
        )
        for repeat in range(3)
    ]


def test_only_samples_within_the_memory_count(config: dict[str, Any]) -> None:
    """On CodeBERT one sample exactly meets SoD²'s memory and one misses it by half; on SkipNet the engine failed."""
    rows = [
        *inferences("sod2", "codebert", 0, 10, 4),
        *inferences("sod2", "codebert", 1, 20, 8),
        *inferences("sod2", "skipnet", 0, 10, 4),
        *inferences("litert", "codebert", 0, 15, 9),
        *inferences("litert-held", "codebert", 0, 25, 4),
        *inferences("litert-held", "codebert", 1, 20, 12),
        Row("host", "cpu", "litert-held", "skipnet", "failed", reason="at its start: died"),
    ]
    table = figure11.table(config, rows, device.load("host"))
    lines = {(row[0].text, row[1].text): row for row in table.body}
    assert len(lines) == 2 * 4
    held = lines["CodeBERT", "LiteRT, held"]
    assert [cell.value for cell in held[3:]] == [1.0, 10.0, 25.0, 2.5, 30.0, 1.5]
    assert held[2].text == "1 of 2"
    assert "CodeBERT: LiteRT, held (infeasible on 1 of 2 samples, at least 1.5 times the memory)" in table.notes[0]
    failed = lines["SkipNet", "LiteRT, held"]
    assert [cell.value for cell in failed[2:]] == [None] * 7
    assert "LiteRT, held (failed: at its start: died)" in table.notes[1]
    assert table.caption.startswith("The memory was met in 1 of 2 cases. ")
    assert table.chart is not None
    memory, latency = (panel.series[0].values for panel in table.chart.panels)
    assert list(memory) == [1.0, None]
    assert list(latency) == [2.5, None]
