"""Figure 11: TFLite with fixed shapes and paths, held to SoD²'s memory by rematerialising its graph.

A sample counts when the peak that the memory hook counted on it is within SoD²'s own on the same sample; else holding
it to that memory was infeasible, however near it came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.chart import Chart, Panel, Series
from figures.layout import Cell, Column, Notes, Table, number
from figures.needs import Needs
from figures.versus import DASH
from models import MODELS

NEEDS = Needs(
    engines=(
        ("tflite", {"memory": "sod2"}),
        ("tflite", {"memory": "sod2", "xnnpack": False}),
        ("tflite", {"memory": "sod2", "runtime": "tflite"}),
        ("tflite", {"memory": "sod2", "runtime": "tflite", "xnnpack": False}),
    )
)
TITLE = "Figure 11. Latency of TFLite with fixed shapes and paths, held to SoD²'s memory, over SoD²'s latency."
_CAPTION = (
    "Every sample has a model of its own, rematerialised until it should fit into SoD²'s peak on that sample; samples"
    " where it does, by the same count of live bytes, are compared, the others are infeasible. Ratios are geo-means of"
    " ratios paired per sample. Re-initialisation (a new interpreter that allocates its tensors) is not in them. Beside"
    " it, the same engine without the limit. The paper finds SoD² ahead by more than without the limit. "
)
_COLUMNS = ("Feasible", "Least memory / SoD²'s", "SoD² (ms)", "Held (ms)", "Held / SoD²", "Re-init (ms)", "Free / SoD²")


@dataclass(frozen=True)
class Held:
    """An engine that is held to SoD²'s memory, on one model, by its rows and SoD²'s."""

    theirs: Sequence[Row]
    ours: Sequence[Row]

    @cached_property
    def shares(self) -> dict[int, float]:
        """Peak over SoD²'s, by sample; within the limit up to 1."""
        peaks, limits = data.peak_mib(self.theirs), data.peak_mib(self.ours)
        return {sample: peaks[sample] / limits[sample] for sample in sorted(peaks.keys() & limits.keys())}

    @cached_property
    def latencies(self) -> list[tuple[float, float]]:
        """Its latency and SoD²'s in milliseconds on each sample where the limit was met."""
        theirs, ours = data.latency_ms(self.theirs), data.latency_ms(self.ours)
        met = [sample for sample, share in self.shares.items() if share <= 1]
        return [(theirs[sample], ours[sample]) for sample in met if sample in theirs and sample in ours]

    @property
    def least(self) -> float | None:
        """The smallest peak over SoD²'s."""
        return min(self.shares.values(), default=None)

    @property
    def ratio(self) -> float | None:
        """Latency over SoD²'s."""
        return data.geo_mean(theirs / ours for theirs, ours in self.latencies) if self.latencies else None

    @property
    def hole(self) -> str | None:
        """Why samples are missing."""
        if not self.shares:
            return data.hole(self.theirs)
        over = [share for share in self.shares.values() if share > 1]
        count, all_samples = len(over), len(self.shares)
        return (
            f"infeasible on {count} of {all_samples} samples, at least {min(over):.3g} times the memory"
            if over
            else None
        )

    def cells(self) -> list[Cell]:
        """Feasible samples, least memory, latencies, ratio and re-initialisation; dashes where nothing is."""
        if not self.shares:
            return [Cell(DASH) for _ in range(6)]
        least, binds = (
            min(self.shares.values()),
            [row.bind_ns / 1e6 for row in self.theirs if row.first and row.bind_ns],
        )
        first = [Cell(f"{len(self.latencies)} of {len(self.shares)}"), Cell(f"{least:.2f}×", least)]
        means: list[float | None] = [None, None]
        if self.latencies:
            means = [fmean(ours for _, ours in self.latencies), fmean(theirs for theirs, _ in self.latencies)]
        return [
            *first,
            *(_cell(mean) for mean in means),
            _cell(self.ratio, "×"),
            _cell(fmean(binds) if binds else None),
        ]


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """A row per model and engine; bars are the least memory, and latencies over the feasible samples."""
    own = data.select(rows, device=device.name, processor="cpu")
    engines = {name: e for name, e in config["engines"].items() if e["options"].get("memory") == "sod2"}
    titles = [MODELS[model].title for model in config["models"]]
    notes = Notes()
    body: list[list[Cell]] = []
    memory: dict[str, list[float | None]] = {name: [] for name in engines}
    latency: dict[str, list[float | None]] = {name: [] for name in engines}
    met = measured = 0
    for model, title in zip(config["models"], titles, strict=True):
        found = data.select(own, model=model)
        ours = data.select(found, engine=data.SUBJECT)
        helds = {name: Held(data.select(found, engine=name), ours) for name in engines}
        holes = [f"{engines[name]['title']} ({held.hole})" for name, held in helds.items() if held.hole]
        mark = notes.mark(f"{title}: {'; '.join(holes)}.") if holes else ""
        for name, held in helds.items():
            memory[name].append(held.least)
            latency[name].append(held.ratio)
            first = [Cell(title), Cell(engines[name]["title"], marks=mark if held.hole else "")]
            body.append([*first, *held.cells(), _free(found, engines[name], config)])
            met += len(held.latencies)
            measured += len(held.shares)
    panels = [
        Panel(title, titles, [Series(engine["title"], values[name]) for name, engine in engines.items()])
        for title, values in (("Least memory", memory), ("Latency where the memory is met", latency))
    ]
    chart = Chart(panels, label="Over SoD²'s", logarithmic=True, level=1.0)
    columns = [Column((column,), numeric=i > 1) for i, column in enumerate(("Model", "Engine", *_COLUMNS))]
    caption = (
        f"The memory was met in {met} of {measured} cases. "
        + _CAPTION
        + provenance.caption(device, [row for row in own if row.engine in (*engines, data.SUBJECT)])
    )
    return Table(TITLE, columns, body, [], notes.texts, caption, chart)


def _free(rows: Sequence[Row], held: Mapping[str, Any], config: Mapping[str, Any]) -> Cell:
    """Latency over SoD²'s of the engine that differs in the limit alone; a dash where the configuration has none."""
    options = {key: value for key, value in held["options"].items() if key != "memory"}
    same = [n for n, e in config["engines"].items() if (e["adapter"], e["options"]) == (held["adapter"], options)]
    comparison = data.compare(rows, same[0], data.latency_ms) if same else None
    return _cell(comparison.ratio if comparison else None, "×")


def _cell(value: float | None, unit: str = "") -> Cell:
    return Cell(DASH) if value is None else Cell(f"{number(value)}{unit}", value)
