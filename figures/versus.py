"""Tables that set engines against SoD²: per model the smallest and largest value over its samples, then ratios.

Table 5 and Table 6 share this shape and differ in their statistic. All ten models and all engines of the paper have
their place; where nothing was measured stands a dash whose footnote says why. A figure of the paper appears only in
the row that says so.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines.engine import adapters
from baselines.rows import Row
from devices.device import Device
from figures import data
from figures.layout import Cell, Column, Notes, number
from models import MODELS

FOLDER = Path(__file__).parent
TITLES = {"ort": "ORT", "mnn": "MNN", "tvm": "TVM-N", "sod2": "SoD²"}
"""The paper's names of its engines, by the adapter that stands for them here."""

DASH = "–"


@dataclass(frozen=True)
class Entry:
    """One engine's pair of columns; `hole` is the reason why nothing can be in it."""

    processor: str
    title: str
    adapter: str
    engine: str | None = None
    all_branches: bool = False
    hole: str | None = None


@dataclass(frozen=True)
class Model:
    """A line of the table."""

    name: str
    title: str
    dynamism: str
    input: str


class Versus:
    """The cells of one such table on one device."""

    def __init__(
        self, artefact: str, config: dict[str, Any], rows: Sequence[Row], device: Device, statistic: data.Statistic
    ) -> None:
        self.artefact = artefact
        self.config = config
        self.device = device
        self.rows = data.select(rows, device=device.name)
        self.statistic = statistic
        self.notes = Notes()
        self.paper = {
            (line["processor"], line["engine"]): float(line["low"])
            for line in _lines("paper.csv")
            if line["artefact"] == artefact and line["unit"] == "ratio"
        }

    def models(self) -> list[Model]:
        """The paper's models in its order, then those that only we have."""
        paper = [Model(**line) for line in _lines("paper_models.csv")]
        known = {model.name for model in paper}
        return [*paper, *(Model(name, name, "", "") for name in self.config["models"] if name not in known)]

    def entries(self, processor: str) -> list[Entry]:
        """Columns of a processor: the configuration's engines, the paper's that are missing, SoD² last."""
        paper = [engine for where, engine in self.paper if where == processor]
        if processor not in self.device.processors:
            hole = (
                f"No {processor.upper()} column was measured: {self.device.title} runs no {processor.upper()} bundles."
            )
            return [Entry(processor, TITLES[name], name, hole=hole) for name in (*paper, data.SUBJECT)]
        shown = {name: e for name, e in self.config["engines"].items() if self.artefact in e["tables"]}
        entries = [
            Entry(processor, e["title"], e["adapter"], name, e["options"].get("control") == "all")
            for name, e in shown.items()
        ]
        missing = [name for name in paper if all(entry.adapter != name for entry in entries)]
        holes = [Entry(processor, TITLES[name], name, hole=_missing_engine(name)) for name in missing]
        return sorted([*entries, *holes], key=lambda entry: entry.engine == data.SUBJECT)

    def columns(self, entries: Sequence[Entry], unit: str) -> list[Column]:
        """Two columns an entry, under the processor and the engine."""
        where = {"cpu": f"CPU ({unit})", "gpu": f"GPU ({unit})"}
        return [Column((where[e.processor], e.title, end)) for e in entries for end in ("Min", "Max")]

    def cells(self, model: Model, entries: Sequence[Entry]) -> list[Cell]:
        """Minimum and maximum of a model for each entry, or a dash over both."""
        return [cell for entry in entries for cell in self._pair(model, entry)]

    def _pair(self, model: Model, entry: Entry) -> list[Cell]:
        if entry.hole is not None:
            return self._hole(entry.hole)
        if model.name not in self.config["models"]:
            return self._hole(_missing_model(model))
        rows = data.select(self.rows, model=model.name, engine=entry.engine, processor=entry.processor)
        values = self.statistic(rows)
        bad = [row for row in rows if row.status != "ok"]
        if not values:
            reason = bad[0].reason if bad else "no rows"
            return self._hole(f"{entry.title} on {model.title}: {bad[0].status if bad else 'missing'}: {reason}.")
        marks = ""
        if bad:
            lost = len({row.sample for row in bad})
            marks = self.notes.mark(
                f"{entry.title} on {model.title}: {lost} of {lost + len(values)} samples failed: {bad[0].reason}."
            )
        low, high = min(values.values()), max(values.values())
        return [Cell(number(low), low), Cell(number(high), high, marks)]

    def _hole(self, reason: str) -> list[Cell]:
        return [Cell(DASH, marks=self.notes.mark(reason), span=2)]

    def ratios(
        self, entries: Sequence[Entry], of: Callable[[data.Comparison], float], all_branches: bool | None = None
    ) -> list[Cell]:
        """Ratios to SoD², for entries of one protocol (None: of both); cells elsewhere stay empty."""
        cells = []
        for entry in entries:
            ratio = None
            if entry.engine is not None and all_branches in (None, entry.all_branches):
                rows = data.select(self.rows, processor=entry.processor)
                comparison = data.compare(rows, entry.engine, self.statistic)
                ratio = of(comparison) if comparison else None
            cells.append(_ratio(ratio))
        return cells

    def reported(self, entries: Sequence[Entry]) -> list[Cell]:
        """The paper's ratios, each once: under the engine's all-branches column where there is one."""
        cells = []
        for entry in entries:
            rivals = [e for e in entries if (e.processor, e.adapter) == (entry.processor, entry.adapter)]
            home = next((e for e in rivals if e.all_branches), rivals[0])
            known = entry is home and entry.adapter != data.SUBJECT
            ratio = self.paper.get((entry.processor, entry.adapter)) if known else None
            is_subject = entry.engine == data.SUBJECT or (entry.adapter == data.SUBJECT and entry.hole is not None)
            cells.append(_ratio(1.0 if is_subject else ratio))
        return cells


def _ratio(value: float | None) -> Cell:
    return Cell(span=2) if value is None else Cell(f"{value:.2f}×", value, span=2)


def _missing_engine(adapter: str) -> str:
    if adapter in adapters():
        return f"{TITLES[adapter]} is not among the engines of this configuration."
    return f"{TITLES[adapter]}: this repository has no adapter for it yet."


def _missing_model(model: Model) -> str:
    if model.name in MODELS:
        return "The model is not among those of this configuration."
    return "This repository does not build the model yet."


def _lines(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="") as file:
        return list(csv.DictReader(file))
