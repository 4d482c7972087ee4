"""SoD² against the fastest other engine of each model, and how sure that is.

The engines are those of Table 6 that run the taken branch alone. Which of them is the fastest is decided by the
geometric mean of its latency over the samples that both have; why an engine has none, or not all, is a footnote of the
model. The lower bound is a bootstrap over rounds: in a round
each engine runs once, so drawing rounds, not single runs, keeps what was measured side by side together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.chart import Chart, Panel, Series
from figures.layout import Cell, Column, Notes, Table
from figures.versus import DASH, UNSCHEDULED, blemishes, contenders
from models import MODELS

TITLE = "Latency of the fastest other engine of each model over SoD²'s."
DRAWS, PERCENTILE = 2000, 5.0
HEADERS = ("Model", "Fastest other", "Over SoD²", "Lower bound", "Closest sample", "Its shape", "Its lower bound")
_CAPTION = (
    "Ratios of medians, geo-mean over the samples; a value above 1 means that SoD² is faster. Lower bound: 95 % of the"
    f" ratios of {DRAWS} bootstrap draws over rounds lie above it. Closest: the sample with the smallest ratio. "
)


@dataclass(frozen=True)
class Lead:
    """How far SoD² is ahead of one engine on one model."""

    engine: str
    draws: np.ndarray
    """float64 [samples, 1 + DRAWS]: logarithms of the ratios; as measured, then of each draw."""
    samples: Sequence[int]

    def ratio(self, sample: int | None = None) -> tuple[float, float]:
        """The ratio and its lower bound, of one sample or over all."""
        return _bounded(self.draws.mean(axis=0) if sample is None else self.draws[self.samples.index(sample)])

    @property
    def closest(self) -> int:
        """The sample with the smallest ratio."""
        return self.samples[int(self.draws[:, 0].argmin())]


def _bounded(logarithms: np.ndarray) -> tuple[float, float]:
    return float(np.exp(logarithms[0])), float(np.exp(np.percentile(logarithms[1:], PERCENTILE)))


def lead(ours: Sequence[Row], theirs: Sequence[Row], engine: str) -> Lead | None:
    """SoD² against an engine on one model, from the rows of both; None when no sample has both."""
    tables = [data.rounds(rows) for rows in (ours, theirs)]
    samples = sorted(set(tables[0]) & set(tables[1]))
    if not samples:
        return None
    rng = np.random.default_rng(0)
    found = []
    for sample in samples:
        first, second = (table[sample] for table in tables)
        common = sorted(set(first) & set(second))
        times = np.array([[times_of[k] for k in common] for times_of in (first, second)])
        drawn = np.vstack([np.arange(len(common)), rng.integers(0, len(common), (DRAWS, len(common)))])
        medians = np.median(times[:, drawn], axis=2)
        found.append(np.log(medians[1] / medians[0]))
    return Lead(engine, np.array(found), samples)


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line and one bar per model."""
    engines = contenders(config)
    own = [row for row in data.select(rows, device=device.name, processor="cpu") if row.engine in engines]
    notes = Notes()
    body, ratios, ends, found = [], [], [], []
    for model in config["models"]:
        best = _fastest(data.select(own, model=model), engines)
        if best is None:
            reason = data.hole(data.select(own, model=model))
            body.append([Cell(MODELS[model].title), Cell(DASH, marks=notes.mark(f"{model}: {reason}."), span=6)])
        else:
            marks = "".join(map(notes.mark, _remarks(data.select(own, model=model), engines, MODELS[model].title)))
            body.append([Cell(MODELS[model].title), *_cells(best, data.select(own, model=model), engines, marks)])
            found.append(best)
        ratios.append(best.ratio()[0] if best else None)
        ends.append((best.ratio()[1], best.ratio()[0]) if best else None)
    summary = []
    if found:
        ratio, bound = _bounded(np.mean([best.draws.mean(axis=0) for best in found], axis=0))
        summary = [[Cell("Geo-mean"), Cell(), *_ratio(ratio), *_ratio(bound), Cell(span=3)]]
    names = [MODELS[model].short for model in config["models"]]
    chart = Chart([Panel("", names, [Series("Fastest other engine", ratios, ends)])], label="Over SoD²", level=1.0)
    columns = [Column((header,), numeric=k in (2, 3, 4, 6)) for k, header in enumerate(HEADERS)]
    caption = _verdict(found) + _CAPTION + provenance.caption(device, own)
    return Table(TITLE, columns, body, summary, notes.texts, caption, chart)


def _fastest(rows: Sequence[Row], engines: dict[str, str]) -> Lead | None:
    """The engine with the smallest ratio; one that spends its time in code without a schedule does not count."""
    ours = data.select(rows, engine=data.SUBJECT)
    leads = []
    for engine in engines:
        theirs = data.select(rows, engine=engine)
        if engine != data.SUBJECT and all((row.unscheduled or 0) <= UNSCHEDULED for row in theirs):
            leads += [found for found in [lead(ours, theirs, engine)] if found is not None]
    return min(leads, key=lambda found: found.ratio()[0], default=None)


def _remarks(rows: Sequence[Row], engines: dict[str, str], model: str) -> Iterator[str]:
    """Why engines have no time on a model, or what a reader must know of it."""
    for engine, title in engines.items():
        theirs = data.select(rows, engine=engine)
        known = blemishes(theirs) if data.latency_ms(theirs) else [data.hole(theirs)]
        yield from (f"{title} on {model}: {text}." for text in known)


def _cells(best: Lead, rows: Sequence[Row], engines: dict[str, str], marks: str) -> list[Cell]:
    closest = best.closest
    shape = next(row.shape for row in rows if row.sample == closest and row.shape is not None)
    text = ", ".join("×".join(map(str, dims)) for dims in shape if dims)
    (ratio, bound), (least, least_bound) = best.ratio(), best.ratio(closest)
    numbers = [*_ratio(ratio), *_ratio(bound), *_ratio(least)]
    return [Cell(engines[best.engine], marks=marks), *numbers, Cell(text), *_ratio(least_bound)]


def _ratio(value: float) -> list[Cell]:
    return [Cell(f"{value:.2f}×", value)]


def _verdict(found: Sequence[Lead]) -> str:
    behind = [best for best in found if best.ratio()[1] < 1]
    return f"SoD² is surely ahead of every engine on {len(found) - len(behind)} of {len(found)} models. "
