"""Control flow: what running only the taken branches saves, against what the multiply-adds promise.

Per sample of each model with gates: the share of the multiply-adds that its path executes, and SoD²'s latency over its
own latency with every branch executed. Their quotient is the cost of deciding: at 1 a skipped block costs nothing.
Needs an engine with adapter sod2 and option control: all (config/control-all.yaml).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.layout import Cell, Column, Notes, Table, number
from models import MODELS

TITLE = "Control flow: latency of the taken branches against the share of multiply-adds they execute."
_CAPTION = (
    "Latencies are medians of the repeats, both of SoD²; overhead is (taken / all) / share of multiply-adds. A value"
    " below 1 means that the skipped work cost more than the average work. "
)


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line per sample of the models with control flow, one summary line per model."""
    own = data.select(rows, device=device.name, processor="cpu")
    engine = _all_branches(config)
    names = ("Model", "Shape", "Path", "Share of MACs", "Taken (ms)", "All (ms)", "Taken / all", "Overhead")
    body: list[list[Cell]] = []
    summary: list[list[Cell]] = []
    for model in config["models"]:
        lines, overheads = _lines(data.select(own, model=model), engine)
        body += [[Cell(MODELS[model].title), *line] for line in lines]
        if overheads:
            mean, worst = data.geo_mean(overheads), max(overheads)
            tail = [Cell(), Cell(), Cell(f"worst {number(worst)}", worst), Cell(number(mean), mean)]
            summary.append([Cell(f"Geo-mean of {MODELS[model].title}"), Cell(), Cell(), Cell(), *tail])
    notes = Notes()
    if engine is None:
        notes.mark("No engine of the configuration runs SoD² with every branch: add config/control-all.yaml.")
    columns = [Column((name,), numeric=i >= 3) for i, name in enumerate(names)]
    return Table(TITLE, columns, body, summary, notes.texts, _CAPTION + provenance.caption(device, own))


def _all_branches(config: dict[str, Any]) -> str | None:
    """The engine that runs every branch of SoD²'s code, all else equal."""
    for name, settings in config["engines"].items():
        if settings["adapter"] == "sod2" and settings["options"] == {"control": "all"}:
            return str(name)
    return None


def _lines(rows: Sequence[Row], engine: str | None) -> tuple[list[list[Cell]], list[float]]:
    """Cells of each sample of one model, and their overheads."""
    lines, overheads = [], []
    for row, taken, every in _pairs(rows, engine):
        assert row.macs is not None and row.macs_all is not None
        share = row.macs / row.macs_all
        overhead = taken / every / share
        overheads.append(overhead)
        shape = "; ".join("×".join(map(str, s)) for s in row.shape or [])
        numbers = [(f"{share:.3f}", share), *((number(v), v) for v in (taken, every))]
        ratios = [(f"{taken / every:.3f}", taken / every), (f"{overhead:.3f}", overhead)]
        path = f"{row.path.count('1')} of {len(row.path)}" if row.path else ""
        lines.append([Cell(shape), Cell(path, row.path), *(Cell(t, v) for t, v in (*numbers, *ratios))])
    return lines, overheads


def _pairs(rows: Sequence[Row], engine: str | None) -> Iterator[tuple[Row, float, float]]:
    """(a row of the sample, latency of the taken branches, of all) for every sample that has both and has gates."""
    taken = data.latency_ms(data.select(rows, engine=data.SUBJECT))
    every = data.latency_ms(data.select(rows, engine=engine)) if engine is not None else {}
    facts = {row.sample: row for row in rows if row.path and row.macs is not None}
    for sample in sorted(taken.keys() & every.keys() & {s for s in facts if s is not None}):
        yield facts[sample], taken[sample], every[sample]
