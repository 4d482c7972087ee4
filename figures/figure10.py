"""Figure 10: latency over the sizes of the input, YOLO-V6: one line per engine, one point per sample.

The caption says how evenly SoD²'s cost grows: how far its latencies are from a line over the pixels, fitted by least
squares of the relative deviation, and whether a size takes longer than the next larger one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.chart import Chart, Panel, Series
from figures.layout import Cell, Column, Notes, Table, number
from figures.needs import Needs
from figures.versus import DASH, contenders

MODEL = "yolov6"
NEEDS = Needs(models=(MODEL,))
SMALLEST = 3
"""Sizes whose deviation is told apart: what does not grow with the pixels weighs most there."""
TITLE = "Figure 10. Latency of YOLO-V6 over the size of its input."
_CAPTION = "Medians of the repeats. The paper's text of this figure is lost: this is our definition. "


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """Lines over the pixels of the picture."""
    engines = contenders(config)
    own = [r for r in data.select(rows, device=device.name, processor="cpu", model=MODEL) if r.engine in engines]
    shapes = {row.sample: row.shape[0] for row in own if row.sample is not None and row.shape}
    samples = sorted(shapes, key=lambda sample: (math.prod(shapes[sample]), sample))
    values = {engine: data.latency_ms(data.select(own, engine=engine)) for engine in engines}
    notes = Notes()
    marks = {}
    for engine, title in engines.items():
        if set(samples) - values[engine].keys():
            marks[engine] = notes.mark(f"{title}: {data.hole(data.select(own, engine=engine))}.")
    body = []
    for sample in samples:
        height, width = shapes[sample][-2:]
        cells = [Cell(f"{height}×{width}"), Cell(f"{height * width / 1e3:.0f}", height * width / 1e3)]
        for engine in engines:
            value = values[engine].get(sample)
            cells.append(Cell(DASH, marks=marks.get(engine, "")) if value is None else Cell(number(value), value))
        body.append(cells)
    series = [
        Series(title, [values[engine].get(sample) for sample in samples], subject=engine == data.SUBJECT)
        for engine, title in engines.items()
    ]
    pixels = [math.prod(shapes[sample][-2:]) / 1e3 for sample in samples]
    chart = Chart([Panel("", pixels, series, "Thousand pixels")], label="Latency (ms)")
    columns = [Column(("Input",), numeric=False), Column(("Thousand pixels",))]
    columns += [Column((f"{title} (ms)",)) for title in engines.values()]
    ours = [values[data.SUBJECT].get(sample) for sample in samples]
    grown = _growth([(size, ms) for size, ms in zip(pixels, ours, strict=True) if ms is not None])
    caption = _verdict(values, engines) + grown + _CAPTION + provenance.caption(device, own)
    return Table(TITLE, columns, body, [], notes.texts, caption, chart)


def _verdict(values: dict[str, data.Values], engines: dict[str, str]) -> str:
    """How often SoD² is the fastest."""
    ours = values[data.SUBJECT]
    others = [values[engine] for engine in engines if engine != data.SUBJECT]
    if not ours:
        return ""
    ahead = sum(all(ms <= other.get(sample, math.inf) for other in others) for sample, ms in ours.items())
    return f"SoD² is the fastest at {ahead} of {len(ours)} sizes. "


def _growth(points: Sequence[tuple[float, float]]) -> str:
    """How far (thousand pixels, ms) of ascending size are from a line; nothing where they are too few for one."""
    if len(points) < SMALLEST + 3:
        return ""
    pixels, ms = np.array(points).T
    slope, start = np.polyfit(pixels, ms, 1, w=1 / ms)
    apart = np.abs(ms / (start + slope * pixels) - 1)
    slower = [a / b - 1 for (_, a), (_, b) in pairwise(points) if a > b]
    order = (
        f"{len(slower)} take longer than the next larger one, by {max(slower):.1%} at most"
        if slower
        else ("none takes longer than the next larger one")
    )
    return (
        f"SoD²'s latency is {start:.2f} ms + {slope:.4f} ms per thousand pixels within {apart[SMALLEST:].max():.1%}"
        f" ({apart[:SMALLEST].max():.1%} at the {SMALLEST} smallest sizes), and {order}. "
    )
