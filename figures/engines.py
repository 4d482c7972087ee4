"""Every engine on every model in full: the statistics behind the other tables, and cross-checks of memory.

Latency at the largest sample, where each engine needs the most memory: median, mean, 90th percentile and spread of the
repeats. Memory there: the hook's peak, the engine's own report where it has one, the resident peak of the whole
process (VmHWM, which no ratio is made of), and the weights that the loaded model keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.layout import Cell, Column, Notes, Table, number
from figures.versus import DASH
from models import MODELS

TITLE = "Engines in full: latency and memory at the largest sample of each model."
LATENCY = ("First", "Median", "Mean", "p90", "Spread")
MEMORY = ("Peak", "Own report", "VmHWM", "Weights")
_CAPTION = (
    "Spread: interquartile range over median. Peak is the hook's, by which engines are compared. Own reports leave out"
    " what the engine does not know of, outputs or scratch; VmHWM is the resident size of the whole process, libraries"
    " and weights included: both are cross-checks. Error: the largest of all samples, of the output's scale. "
)


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line per model and engine."""
    own = data.select(rows, device=device.name, processor="cpu")
    notes = Notes()
    body = []
    for model in config["models"]:
        for engine, settings in config["engines"].items():
            found = data.select(own, model=model, engine=engine)
            leading = [Cell(MODELS[model].title), Cell(settings["title"])]
            body.append([*leading, *_cells(found, f"{settings['title']} on {MODELS[model].title}", notes)])
    columns = [Column(("", name), numeric=False) for name in ("Model", "Engine")]
    columns += [Column(("", "Samples")), Column(("", "Error"))]
    columns += [Column(("Latency (ms)", name)) for name in LATENCY] + [
        Column(("Memory (MiB)", name)) for name in MEMORY
    ]
    return Table(TITLE, columns, body, [], notes.texts, _CAPTION + provenance.caption(device, own))


def _cells(rows: Sequence[Row], what: str, notes: Notes) -> list[Cell]:
    good = [row for row in rows if row.status == "ok"]
    latencies = data.latencies(rows)
    if latencies.empty:
        return [Cell(DASH, marks=notes.mark(f"{what}: {data.hole(rows)}."), span=2 + len(LATENCY) + len(MEMORY))]
    largest = data.select(good, sample=good[-1].sample)  # samples come by ascending size
    times = latencies.xs(largest[0].sample, level="sample").iloc[0]
    first = data.first_ms(largest)[largest[0].sample or 0]
    error = max(row.error or 0.0 for row in good)
    cells = [Cell(str(len(latencies))), Cell(f"{error:.0e}", error)]
    cells += [Cell(number(ms), ms) for ms in (first, times["median"], times["mean"], times["p90"])]
    cells.append(Cell(f"{times['spread']:.1%}", float(times["spread"])))
    for name in ("peak_bytes", "own_bytes", "hwm_bytes", "weight_bytes"):
        sizes = [value / 2**20 for row in largest if (value := getattr(row, name)) is not None]
        cells.append(Cell(number(max(sizes)), max(sizes)) if sizes else Cell(DASH))
    return cells
