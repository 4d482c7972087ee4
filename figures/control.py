"""Control flow: what running only the taken branches saves, against what the multiply-adds promise.

Per sample of each model with gates: the share of the multiply-adds that its path executes, and SoD²'s latency over its
own latency with every branch executed. Their quotient is the cost of deciding: at 1 a skipped block costs nothing.
It is that only where all convolutions run at one rate. Winograd makes some blocks cheaper per multiply-add than what
always runs, so skipping those saves less than their share; config/control.yaml has a pair of engines without it.
Engines with option control: all stand beside those with the same options otherwise.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.layout import Cell, Column, Table, number
from figures.needs import Needs
from models import MODELS

NEEDS = Needs(engines=(("sod2", {"control": "all"}),))
TITLE = "Control flow: latency of the taken branches against the share of multiply-adds they execute."
_CAPTION = (
    "Latencies are medians of the repeats, both of SoD²; overhead is (taken / all) / share of multiply-adds. A value"
    " below 1 means that the skipped work cost more than the average work, one above 1 that it cost less: without"
    " Winograd (weight budget 1) all convolutions run at about the same rate. "
)


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line per sample of the models with control flow, one summary line per model."""
    own = data.select(rows, device=device.name, processor="cpu")
    engines = _pairs(config["engines"])
    names = ("Model", "Engine", "Shape", "Path", "Share of MACs", "Taken (ms)", "All (ms)", "Taken / all", "Overhead")
    body: list[list[Cell]] = []
    summary: list[list[Cell]] = []
    for model, (taken, every) in itertools.product(config["models"], engines):
        lines, overheads = _lines(data.select(own, model=model), taken, every)
        title, engine = MODELS[model].title, config["engines"][taken]["title"]
        body += [[Cell(title), Cell(engine), *line] for line in lines]
        if overheads:
            mean, worst = data.geo_mean(overheads), max(overheads)
            tail = [Cell(), Cell(), Cell(f"worst {worst:.3f}", worst), Cell(f"{mean:.3f}", mean)]
            summary.append([Cell(f"Geo-mean of {title}"), Cell(engine), Cell(), Cell(), Cell(), *tail])
    columns = [Column((name,), numeric=i >= 4) for i, name in enumerate(names)]
    return Table(TITLE, columns, body, summary, [], _CAPTION + provenance.caption(device, own))


def _pairs(engines: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(engine, the one with the same options but every branch), both by name."""
    found = []
    for every, settings in engines.items():
        rest = {k: v for k, v in settings["options"].items() if k != "control"}
        if settings["adapter"] == "sod2" and settings["options"].get("control") == "all":
            found += [(k, every) for k, e in engines.items() if e["adapter"] == "sod2" and e["options"] == rest]
    return found


def _lines(rows: Sequence[Row], taken_by: str, every_by: str) -> tuple[list[list[Cell]], list[float]]:
    """Cells of each sample of one model, and their overheads."""
    taken, every = (data.latency_ms(data.select(rows, engine=e)) for e in (taken_by, every_by))
    facts = {row.sample: row for row in rows if row.path and row.sample is not None}
    lines, overheads = [], []
    for sample in sorted(taken.keys() & every.keys() & facts.keys()):
        row = facts[sample]
        assert row.macs is not None and row.macs_all is not None and row.path is not None
        share, ratio = row.macs / row.macs_all, taken[sample] / every[sample]
        overheads.append(ratio / share)
        shape = "; ".join("×".join(map(str, s)) for s in row.shape or [])
        numbers = [(f"{share:.3f}", share), *((number(v), v) for v in (taken[sample], every[sample]))]
        ratios = [(f"{ratio:.3f}", ratio), (f"{ratio / share:.3f}", ratio / share)]
        path = f"{row.path.count('1')} of {len(row.path)}"
        lines.append([Cell(shape), Cell(path, row.path), *(Cell(t, v) for t, v in (*numbers, *ratios))])
    return lines, overheads
