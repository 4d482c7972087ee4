"""First runs: the first inference at a shape against its repeats, per engine and model, and the bind of a new shape.

Samples come by descending size, so that two things are told apart. The first sample is the first of its process: it
pays for what an engine does once, and for first touches of memory, up to the high-water mark. Every smaller one is a
new shape below that mark: what it pays is what each new shape costs an application that has warmed up, whose every
input has another shape: planning, packing, and whatever the engine allocates again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.chart import Chart, Panel, Series
from figures.layout import Cell, Column, Notes, Table, number
from figures.needs import Needs
from figures.versus import DASH, contenders
from models import MODELS

NEEDS = Needs(selection="descending")
TITLE = "First run at a new shape against repeats, geo-mean over the samples."
_NEW = "New shape below the high-water mark"
_BIND = "Bind of it (µs)"
COLUMNS = (
    ("", "Model"),
    ("", "Engine"),
    ("First of the process", "over repeat"),
    (_NEW, "First (ms)"),
    (_NEW, "Repeat (ms)"),
    (_NEW, "First / repeat"),
    (_NEW, "Worst"),
    (_NEW, "First over SoD²'s"),
    (_BIND, "Median"),
    (_BIND, "Largest"),
)
_CAPTION = (
    "Samples come to one process from the largest on. The first one is the first run of the process, which pays for"
    " what an engine does once and for memory that it touches for the first time; so does the run behind a failure,"
    " which has a new process. Smaller ones are shapes that the process has not seen, below the high-water mark of its"
    " memory. Left: latency of their first inference over the median of their repeats; engines take turns, so that"
    " repeats, too, meet caches that others have emptied. Right: that first latency over SoD²'s first. Bind: the part"
    " of it in which an engine plans the new shape, where that is a step of its own; a dash elsewhere. "
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
        ours = data.first_ms(_parted(rows_of[data.SUBJECT])[1])
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
    columns = [Column(headers, numeric=i >= 2) for i, headers in enumerate(COLUMNS)]
    caption = _verdict(data.select(own, engine=data.SUBJECT)) + _CAPTION + provenance.caption(device, own)
    chart = Chart(panels, label="Ratio", logarithmic=True, level=1.0)
    return Table(TITLE, columns, body, [], notes.texts, caption, chart)


def _line(
    rows: Sequence[Row], ours: data.Values, what: str, notes: Notes
) -> tuple[list[Cell], float | None, float | None]:
    """Cells of one engine on one model, first over repeat, and first over SoD²'s first, of new shapes."""
    once, below = _parted(rows)
    cells = [_times(ratio) for ratio in _ratios(once)]
    first, repeat = data.first_ms(below), data.latency_ms(below)
    if not first or not repeat:
        why = data.hole(rows) if not once else "no smaller size was measured"
        return [*cells, Cell(DASH, marks=notes.mark(f"{what}: {why}."), span=len(COLUMNS) - 2 - len(cells))], None, None
    means = [statistics.fmean(values.values()) for values in (first, repeat)]
    ratios = _ratios(below)
    mean, worst = data.geo_mean(ratios), max(ratios)
    both = [first[sample] / ours[sample] for sample in first if sample in ours]
    over = data.geo_mean(both) if both else None
    binds = _binds(below)
    cells += [Cell(number(value), value) for value in means]
    cells += [_times(value) for value in (mean, worst, over)]
    cells += [Cell(number(v), v) for v in (statistics.median(binds), max(binds))] if binds else [Cell(DASH)] * 2
    return cells, mean, over


def _size(row: Row) -> int:
    return sum(math.prod(shape) for shape in row.shape or ())


def _parted(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The good rows of the sample with which the process began, and those of smaller ones. Others as large are neither:
    the bench gives SoD²'s arena back before them.
    """
    good = sorted(data.select(rows, status="ok"), key=lambda row: (_size(row), row.sample or 0))
    began = [row for row in good if row.sample == good[-1].sample]
    return began, [row for row in good if _size(row) < _size(good[-1])]


def _ratios(rows: Sequence[Row]) -> list[float]:
    """First over repeat of each sample."""
    first, repeat = data.first_ms(rows), data.latency_ms(rows)
    return [first[sample] / repeat[sample] for sample in repeat]


def _binds(rows: Sequence[Row]) -> list[float]:
    """Microseconds of the bind at every new shape."""
    return [row.bind_ns / 1e3 for row in rows if row.first and row.bind_ns]


def _times(value: float | None) -> Cell:
    return Cell(DASH) if value is None else Cell(f"{value:.2f}×", value)


def _verdict(rows: Sequence[Row]) -> str:
    """SoD²'s largest bind over all models."""
    models = {row.model for row in rows}
    binds = [bind for model in models for bind in _binds(_parted(data.select(rows, model=model))[1])]
    return f"SoD² binds a new shape in at most {number(max(binds))} µs. " if binds else ""
