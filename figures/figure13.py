"""Figure 13: portability: how much faster SoD² is on each device of the configuration, in five models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baselines.rows import Row
from devices.device import Device
from devices.device import load as load_device
from figures import data, provenance
from figures.chart import Chart, Panel, Series
from figures.layout import Cell, Column, Notes, Table
from figures.needs import Needs
from figures.versus import DASH, contenders
from models import MODELS

NEEDS = Needs(models=("sde", "yolov6", "skipnet", "convnet_aig", "blockdrop"))
TITLE = "Figure 13. Portability: latency of other engines over SoD²'s, by device."
_CAPTION = (
    "Geo-means of ratios paired per sample; thin lines reach from the smallest to the largest, the last column is the"
    " geo-mean over models. The paper finds speedups on a Snapdragon 835 similar to those on the Snapdragon 888,"
    " slightly higher. "
)


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """Bars per model and engine on one device; the caption compares its geo-means with those of the other devices."""
    engines = _engines(config)
    own = data.select(rows, device=device.name, processor="cpu")
    models = NEEDS.models or ()
    notes = Notes()
    body, series = [], []
    for engine, title in engines.items():
        both = data.pairs(own, engine, data.latency_ms)
        line: list[Cell] = [Cell(title)]
        values: list[float | None] = []
        ends: list[tuple[float, float] | None] = []
        for model in models:
            if both.empty or model not in both.index.get_level_values("model"):
                reason = data.hole(data.select(own, model=model, engine=engine))
                line.append(Cell(DASH, marks=notes.mark(f"{title} on {MODELS[model].title}: {reason}.")))
                values.append(None)
                ends.append(None)
                continue
            ratios = both.loc[model]["theirs"] / both.loc[model]["ours"]
            values.append(data.geo_mean(ratios))
            ends.append((float(ratios.min()), float(ratios.max())))
            line.append(_ratio(values[-1]))
        body.append([*line, _ratio(_speedups(own, [engine]).get(engine))])
        series.append(Series(title, values, ends))
    titles = [MODELS[model].title for model in models]
    columns = [Column(("Engine",), numeric=False), *(Column((title,)) for title in (*titles, "Geo-mean"))]
    chart = Chart([Panel(device.title, titles, series)], label="Latency over SoD²'s", level=1.0)
    used = [row for row in own if row.engine in (*engines, data.SUBJECT)]
    caption = _verdict(config, rows, device, engines) + _CAPTION + provenance.caption(device, used)
    return Table(TITLE, columns, body, [], notes.texts, caption, chart)


def _engines(config: dict[str, Any]) -> dict[str, str]:
    """Titles by name of Table 6's engines, those that run all branches last, without SoD²."""
    found = contenders(config) | contenders(config, all_branches=True)
    return {name: title for name, title in found.items() if config["engines"][name]["adapter"] != data.SUBJECT}


def _speedups(rows: Sequence[Row], engines: Sequence[str]) -> dict[str, float]:
    """Geo-mean over models of the engines that have a value on one device."""
    found = {engine: data.compare(rows, engine, data.latency_ms) for engine in engines}
    return {engine: comparison.ratio for engine, comparison in found.items() if comparison is not None}


def _verdict(config: dict[str, Any], rows: Sequence[Row], device: Device, engines: Mapping[str, str]) -> str:
    """Where the speedups of this device are higher, and where lower, than on each other device."""
    here, sentences = _speedups(data.select(rows, device=device.name, processor="cpu"), list(engines)), []
    for name in config["devices"]:
        there = _speedups(data.select(rows, device=name, processor="cpu"), list(engines))
        parts = [f"{engines[e]} {here[e]:.2f}× against {there[e]:.2f}×" for e in here if e in there]
        if name != device.name and parts:
            sentences.append(f"Geo-means here and on {load_device(name).title}: {', '.join(parts)}. ")
    return "".join(sentences)


def _ratio(value: float | None) -> Cell:
    return Cell() if value is None else Cell(f"{value:.2f}×", value)
