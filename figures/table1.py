"""Table 1: what a change of the input's shape costs, before the first inference at the new shape can begin.

MNN is shown twice: a new session for the new shape, as in the paper, and a live one that is resized. Its phases are
those of the paper, looked up in the stock release by baselines/mnn_trace.c. SoD² has one phase, its bind.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.layout import Cell, Column, Notes, Table, number
from figures.needs import Needs
from figures.versus import DASH
from models import MODELS

NEEDS = Needs(
    models=("yolov6", "conformer", "codebert"),
    engines=(("mnn", {"session": "new"}),),
)
TITLE = "Table 1. Cost of a new input shape: re-initialisation against inference, mean over the samples (ms)."
STEPS = ("Load", "SL", "ST", "Alloc", "Bind")
HEADERS = (*STEPS, "Re-init", "First", "Infer", "Re-init / infer")
_CAPTION = (
    "SL: shape propagation and layout selection; ST: schedule and tuning; Alloc: memory allocation; Re-init: their sum;"
    " First: the whole first inference at the shape, in which untouched memory is mapped too; Infer: median of the"
    " repeats. A new session loads the model and packs its weights; a live one has them from the sample before. The"
    " first sample of a process, which has none before it, is left out. The paper's figures of this table are lost; it"
    " says that on a phone MNN's re-initialisation usually takes significantly longer than inference. "
)


@dataclass(frozen=True)
class Line:
    """A session of an engine; `costs` are milliseconds of each step and of "First", of the first row at a shape."""

    title: str
    engine: str
    costs: Callable[[Row], dict[str, float]]
    claimed: bool  # whether the paper makes its claim of this engine


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """Four lines a model: a new and a live session of MNN and of SoD²."""
    lines = _lines(config)
    shown = {line.engine for line in lines}
    own = [row for row in data.select(rows, device=device.name, processor="cpu") if row.engine in shown]
    notes = Notes()
    body, longer, shorter = [], [], []
    for model in NEEDS.models or ():
        title = MODELS[model].title
        for line in lines:
            cells, ratio = _cells(data.select(own, model=model, engine=line.engine), line, title, notes)
            body.append([Cell(title), Cell(line.title), *cells])
            if ratio is not None and line.claimed:
                (longer if ratio > 1 else shorter).append(f"{line.title} on {title} ({_share(ratio)})")
    columns = [Column((name,), numeric=i >= 2) for i, name in enumerate(("Model", "Engine", *HEADERS))]
    caption = _verdict(longer, shorter) + _CAPTION + provenance.caption(device, own)
    return Table(TITLE, columns, body, [], notes.texts, caption)


def _lines(config: dict[str, Any]) -> list[Line]:
    """The lines of each model."""
    mnn = {
        engine["options"].get("session", "kept"): name
        for name, engine in config["engines"].items()
        if engine["adapter"] == "mnn" and engine["options"].get("control", "switch") == "switch"
    }
    return [
        Line("MNN, new session", mnn["new"], _mnn, claimed=True),
        Line("MNN, live session", mnn.get("kept", ""), _mnn, claimed=True),
        Line("SoD², new session", data.SUBJECT, _sod2_loaded, claimed=False),
        Line("SoD², live session", data.SUBJECT, _sod2, claimed=False),
    ]


def _mnn(row: Row) -> dict[str, float]:
    load = {"Load": _ms(row.bind_ns)} if row.bind_ns else {}
    return {**load, **{name: _ms(ns) for name, ns in (row.phases_ns or {}).items()}, "First": _ms(row.latency_ns)}


def _sod2(row: Row) -> dict[str, float]:
    return {"Bind": _ms(row.bind_ns), "First": _ms(row.latency_ns)}


def _sod2_loaded(row: Row) -> dict[str, float]:
    load = _ms(row.load_ns)  # apart from its latency
    return {"Load": load, "Bind": _ms(row.bind_ns), "First": load + _ms(row.latency_ns)}


def _ms(nanoseconds: int | None) -> float:
    return (nanoseconds or 0) / 1e6


def _cells(rows: Sequence[Row], line: Line, model: str, notes: Notes) -> tuple[list[Cell], float | None]:
    """Cells of one line, and its re-initialisation over inference."""
    good = data.select(rows, status="ok")
    good = [row for row in good if row.sample != good[0].sample]  # the first of a process has no shape before it
    found = [line.costs(row) for row in good if row.first]
    repeats = data.latency_ms(good)
    if not found or not repeats:
        note = f"{line.title} on {model}: {data.hole(rows)}."
        return [Cell(DASH, marks=notes.mark(note), span=len(HEADERS))], None
    mean = {name: statistics.fmean(cost[name] for cost in found) for name in found[0]}
    mean["Re-init"] = sum(mean.get(name, 0.0) for name in STEPS)
    mean["Infer"] = statistics.fmean(repeats.values())
    mean["Re-init / infer"] = ratio = mean["Re-init"] / mean["Infer"]
    cells = {name: Cell(number(value), value) for name, value in mean.items()}
    cells["Re-init / infer"] = Cell(_share(ratio), ratio)
    return [cells.get(name, Cell()) for name in HEADERS], ratio


def _share(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.01 else "< 0.01"


def _verdict(longer: Sequence[str], shorter: Sequence[str]) -> str:
    """Where the paper's claim holds."""
    parts = [
        ("The paper's claim holds here for", longer),
        ("It does not hold, re-initialisation is shorter than inference, for", shorter),
    ]
    return "".join(f"{text} {', '.join(found)}. " for text, found in parts if found)
