"""First runs: the first inference at a shape against its repeats, per engine and model.

The first pays for whatever a new shape costs: planning, allocation, first touch of memory, packing. An application
whose every input has another shape lives with firsts alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.chart import Chart, Panel, Series
from figures.layout import Cell, Column, Notes, Table, number
from figures.versus import DASH, contenders
from models import MODELS

TITLE = "First run at a shape against repeats, geo-mean over the samples."
HEADERS = ("Model", "Engine", "First (ms)", "Repeat (ms)", "First / repeat", "Worst", "First over SoD²'s")
_CAPTION = (
    "Left: latency of the first inference at a shape over the median of its repeats. Right: that first latency over"
    " SoD²'s first. Samples come by ascending size to one long-lived process, so each is a shape that it has not seen;"
    " the very first also pays for what an engine does once. "
)


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line per model and engine; two panels of bars."""
    engines = contenders(config)
    own = [row for row in data.select(rows, device=device.name, processor="cpu") if row.engine in engines]
    notes = Notes()
    body = []
    ratios: dict[str, list[float | None]] = {engine: [] for engine in engines}
    overs: dict[str, list[float | None]] = {engine: [] for engine in engines}
    for model in config["models"]:
        rows_of = {engine: data.select(own, model=model, engine=engine) for engine in engines}
        ours = data.first_ms(rows_of[data.SUBJECT])
        for engine, title in engines.items():
            cells, ratio, over = _line(rows_of[engine], ours, f"{title} on {MODELS[model].title}", notes)
            ratios[engine].append(ratio)
            overs[engine].append(over)
            body.append([Cell(MODELS[model].title), Cell(title), *cells])
    names = [MODELS[model].short for model in config["models"]]
    others = [engine for engine in engines if engine != data.SUBJECT]
    panels = [
        Panel(title, names, [Series(engines[e], values[e], subject=e == data.SUBJECT) for e in shown])
        for title, values, shown in (
            ("First over repeat", ratios, list(engines)),
            ("First over SoD²'s first", overs, others),
        )
    ]
    columns = [Column((name,), numeric=i >= 2) for i, name in enumerate(HEADERS)]
    chart = Chart(panels, label="Ratio", logarithmic=True, level=1.0)
    return Table(TITLE, columns, body, [], notes.texts, _CAPTION + provenance.caption(device, own), chart)


def _line(
    rows: Sequence[Row], ours: data.Values, what: str, notes: Notes
) -> tuple[list[Cell], float | None, float | None]:
    """Cells of one engine on one model, first over repeat, and first over SoD²'s first."""
    first, repeat = data.first_ms(rows), data.latency_ms(rows)
    if not first or not repeat:
        return [Cell(DASH, marks=notes.mark(f"{what}: {data.hole(rows)}."), span=5)], None, None
    ratios = [first[sample] / repeat[sample] for sample in repeat]
    means = [statistics.fmean(values.values()) for values in (first, repeat)]
    mean, worst = data.geo_mean(ratios), max(ratios)
    both = [first[sample] / ours[sample] for sample in first if sample in ours]
    over = data.geo_mean(both) if both else None
    cells = [*(Cell(number(value), value) for value in means)]
    cells += [Cell(f"{value:.2f}×", value) for value in (mean, worst)]
    cells.append(Cell(DASH) if over is None else Cell(f"{over:.2f}×", over))
    return cells, mean, over
