"""Table 6: end-to-end latency, smallest and largest over the samples of each model, on CPU and GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.layout import Cell, Column, Table
from figures.versus import Versus

TITLE = "Table 6. End-to-end latency: minimum and maximum over the samples of a model."


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """Draw the table for one device."""
    versus = Versus("table6", config, rows, device, data.latency_ms)
    entries = [*versus.entries("cpu"), *versus.entries("gpu")]
    body = [[Cell(model.title), Cell(model.dynamism), *versus.cells(model, entries)] for model in versus.models()]
    summary = [
        [Cell("Geo-mean over SoD²"), Cell("native If"), *versus.ratios(entries, lambda c: c.ratio, False)],
        [Cell("Geo-mean over SoD²"), Cell("all branches"), *versus.ratios(entries, lambda c: c.ratio, True)],
        [Cell("Paper's formula over SoD²"), Cell(), *versus.ratios(entries, lambda c: c.paper_ratio)],
        [Cell("Paper (Snapdragon 888)"), Cell("all branches"), *versus.reported(entries)],
    ]
    columns = [Column(("", "", name), numeric=False) for name in ("Model", "Dynamism")]
    return Table(
        title=TITLE,
        columns=[*columns, *versus.columns(entries, "ms")],
        body=body,
        summary=summary,
        notes=versus.notes.texts,
        caption=versus.verdict(entries) + _CAPTION + provenance.caption(device, versus.rows),
    )


_CAPTION = (
    "A sample's latency is the median of its repeats; first runs at a shape are apart. Geo-means are of ratios"
    " paired per sample, then over models: engines that run If natively first, then the paper's protocol, in which"
    " every framework but SoD² runs all branches and strips the unused. The paper's formula divides geo-means of"
    " per-model averages. "
)
