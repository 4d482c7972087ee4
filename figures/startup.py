"""What comes before the first inference: building the bundle, and loading it. What a new shape costs is first_run.py's.

Build times are those of the workflow, in which other jobs run beside.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.layout import Cell, Column, Notes, Table, number
from figures.versus import DASH, contenders
from models import MODELS

TITLE = "Before the first inference: build and load."
HEADERS = ("Model", "Engine", "Build (s)", "Load (ms)")
_CAPTION = "Bundles are built beside other jobs. A dash is a step that the engine does not tell of. "


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line per model and engine."""
    engines = contenders(config)
    own = [row for row in data.select(rows, device=device.name, processor="cpu") if row.engine in engines]
    notes, body = Notes(), []
    for model in config["models"]:
        for engine, title in engines.items():
            found = data.select(own, model=model, engine=engine)
            good = data.select(found, status="ok")
            mark = "" if good else notes.mark(f"{title} on {MODELS[model].title}: {data.hole(found)}.")
            body.append([Cell(MODELS[model].title, marks=mark), Cell(title), *_cells(good)])
    columns = [Column((name,), numeric=i >= 2) for i, name in enumerate(HEADERS)]
    caption = _verdict(data.select(own, engine=data.SUBJECT)) + _CAPTION + provenance.caption(device, own)
    return Table(TITLE, columns, body, [], notes.texts, caption)


def _cells(rows: Sequence[Row]) -> list[Cell]:
    builds = [row.build_ns / 1e9 for row in rows[:1] if row.build_ns is not None]
    loads = [row.load_ns / 1e6 for row in rows[:1] if row.load_ns is not None]
    return [_cell(builds), _cell(loads)]


def _cell(values: Sequence[float]) -> Cell:
    return Cell(number(values[0]), values[0]) if values else Cell(DASH)


def _verdict(rows: Sequence[Row]) -> str:
    """SoD²'s longest steps over all models."""
    good = data.select(rows, status="ok")
    builds = {row.model: row.build_ns / 1e9 for row in good if row.build_ns is not None}
    if not builds:
        return ""
    return (
        f"SoD² builds a model in {number(statistics.median(builds.values()))} s (median; at most"
        f" {number(max(builds.values()))} s). "
    )
