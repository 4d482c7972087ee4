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
UNSCHEDULED = 0.1
"""Share of an engine's time in code without a schedule above which a model does not count in its geo-mean."""

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
        if not values:
            return self._hole(f"{entry.title} on {model.title}: {data.hole(rows)}.")
        marks = "".join(self.notes.mark(f"{entry.title} on {model.title}: {text}.") for text in blemishes(rows))
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
                ratio = self._ratio(entry, of)
            cells.append(_ratio(ratio))
        return cells

    def _ratio(self, entry: Entry, of: Callable[[data.Comparison], float]) -> float | None:
        """One engine's ratio over the models whose time it does not spend in code without a schedule."""
        rows = [
            row
            for row in data.select(self.rows, processor=entry.processor)
            if row.engine != entry.engine or (row.unscheduled or 0) <= UNSCHEDULED
        ]
        comparison = data.compare(rows, str(entry.engine), self.statistic)
        return of(comparison) if comparison else None

    def reported(self, entries: Sequence[Entry]) -> list[Cell]:
        """The paper's ratios, each once: under the engine's all-branches column where there is one."""
        cells = []
        for entry in entries:
            ratio = self._reported(entry, entries)
            is_subject = entry.engine == data.SUBJECT or (entry.adapter == data.SUBJECT and entry.hole is not None)
            cells.append(_ratio(1.0 if is_subject else ratio))
        return cells

    def _reported(self, entry: Entry, entries: Sequence[Entry]) -> float | None:
        rivals = [e for e in entries if (e.processor, e.adapter) == (entry.processor, entry.adapter)]
        home = next((e for e in rivals if e.all_branches), rivals[0])
        known = entry is home and entry.adapter != data.SUBJECT
        return self.paper.get((entry.processor, entry.adapter)) if known else None

    def verdict(self, entries: Sequence[Entry]) -> str:
        """Which of the paper's ratios hold here, by the same protocol, and which do not."""
        found = [
            (f"{entry.title} {ours:.2f}× (paper: {paper:.2f}×)", ours >= paper)
            for entry in entries
            if (paper := self._reported(entry, entries)) is not None
            and entry.engine is not None
            and (ours := self._ratio(entry, lambda comparison: comparison.ratio)) is not None
        ]
        sentences = {False: "The paper's ratio does not hold here for", True: "The paper's ratio is reached for"}
        parts = {held: [text for text, reached in found if reached == held] for held in sentences}
        return "".join(f"{sentences[held]} {' and '.join(texts)}. " for held, texts in parts.items() if texts)


def contenders(config: dict[str, Any], all_branches: bool = False) -> dict[str, str]:
    """Titles by name of Table 6's engines of one protocol, SoD² last: what the figures about latency compare."""
    shown = {
        name: engine
        for name, engine in config["engines"].items()
        if "table6" in engine["tables"] and (engine["options"].get("control") == "all") == all_branches
    }
    ordered = sorted(shown, key=lambda name: shown[name]["adapter"] == data.SUBJECT)
    return {name: shown[name]["title"] for name in ordered}


def blemishes(rows: Sequence[Row]) -> list[str]:
    """What a reader must know of an engine's numbers on one model."""
    total = len({row.sample for row in rows})
    found = []
    for status, what in (("failed", "failed"), ("path differs", "took another path and are left out for both")):
        if bad := data.select(rows, status=status):
            found.append(f"{len({row.sample for row in bad})} of {total} samples {what}: {bad[0].reason}")
    share = max((row.unscheduled or 0.0 for row in rows), default=0.0)
    if share > UNSCHEDULED:
        found.append(f"{share:.0%} of the time is code without a schedule, so the model is not in its geo-mean")
    return found


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


def reported_range(artefact: str, subject: str, quantity: str = "") -> str | None:
    """What the paper reports of a subject on the CPU, as text; None where it tells nothing."""
    for line in _lines("paper.csv"):
        found = line["artefact"], line["processor"], line["subject"]
        if found == (artefact, "cpu", subject) and quantity in ("", line["quantity"]):
            ends = dict.fromkeys((line["low"], line["high"]))
            return "–".join(ends) + {"percent": " %", "ratio": "×"}[line["unit"]]
    return None


def _lines(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="") as file:
        return list(csv.DictReader(file))
