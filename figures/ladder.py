"""What each optimisation adds, one after the other: the shape that Figures 5 and 6 share.

The lowest rung is the static engine: fusion on static facts, the file's order, best-fit placement, one version of each
kernel. Each further rung switches one optimisation on. A model's value on a rung is the geometric mean over its samples
of the ratio to the lowest rung.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.chart import Chart, Panel, Series
from figures.layout import Cell, Column, Notes, Table
from figures.needs import Needs
from figures.versus import DASH, reported_range
from models import MODELS

RUNGS: tuple[tuple[str, dict[str, object]], ...] = (
    ("No opt", {"fusion": "static", "sep": False, "dmp": False, "mvc": False}),
    ("+ Fusion", {"sep": False, "dmp": False, "mvc": False}),
    ("+ SEP", {"dmp": False, "mvc": False}),
    ("+ DMP", {"mvc": False}),
    ("+ MVC", {}),
)
PAPER = ("", "fusion", "sep", "dmp", "mvc")
"""What the paper's reported ranges are called, by rung."""
NEEDS = Needs(
    models=("sde", "codebert", "ranet", "blockdrop"),
    engines=tuple((data.SUBJECT, options) for _, options in RUNGS),
    overlay="optimisations",
)


@dataclass(frozen=True)
class Ladder:
    """One such figure: its statistic, what it says of the gain from one rung to the next, and how it is drawn."""

    artefact: str
    title: str
    caption: str
    statistic: data.Statistic
    gain: Callable[[float, float], str]  # of two neighbouring ratios to the lowest rung
    bar: Callable[[float], float]
    label: str

    def table(self, config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
        """One line per model; the chart has one bar per model and rung."""
        own = data.select(rows, device=device.name, processor="cpu")
        engines = [_engine(config, options) for _, options in RUNGS]
        notes = Notes()
        body: list[list[Cell]] = []
        bars: list[list[float | None]] = [[] for _ in RUNGS]
        models = NEEDS.models or ()
        for model in models:
            ratios = [_ratio(own, model, engine, engines[0], self.statistic) for engine in engines]
            for bar, ratio in zip(bars, ratios, strict=True):
                bar.append(None if ratio is None else self.bar(ratio))
            body.append([Cell(MODELS[model].title), *self._cells(ratios, MODELS[model].title, own, model, notes)])
        series = [
            Series(title, bar, subject=title == RUNGS[-1][0]) for (title, _), bar in zip(RUNGS, bars, strict=True)
        ]
        chart = Chart([Panel("", [MODELS[m].title for m in models], series)], label=self.label, level=1.0)
        columns = [Column(("", "Model"), numeric=False)]
        columns += [Column(("Over the rung before", title)) for title, _ in RUNGS[1:]]
        columns.append(Column(("", "Over No opt")))
        paper = [Cell("Paper"), *(Cell(reported_range(self.artefact, name) or DASH) for name in PAPER[1:]), Cell(DASH)]
        shown = [row for row in own if row.engine in engines and row.model in models]
        return Table(
            self.title, columns, body, [paper], notes.texts, self.caption + provenance.caption(device, shown), chart
        )

    def _cells(
        self, ratios: Sequence[float | None], title: str, rows: Sequence[Row], model: str, notes: Notes
    ) -> list[Cell]:
        cells = []
        for lower, upper in [*pairwise(ratios), (ratios[0], ratios[-1])]:
            if lower is None or upper is None:
                reasons = [r.reason for r in data.select(rows, model=model) if r.reason]
                cells.append(Cell(DASH, marks=notes.mark(f"{title}: {reasons[0] if reasons else 'no rows'}.")))
            else:
                cells.append(Cell(self.gain(lower, upper), upper / lower))
        return cells


def _engine(config: dict[str, Any], options: dict[str, object]) -> str:
    """The engine of a rung: SoD² with exactly these options."""
    found = [n for n, e in config["engines"].items() if e["adapter"] == data.SUBJECT and e["options"] == options]
    return str(found[0])  # matrix.check has asked for it, by NEEDS


def _ratio(rows: Sequence[Row], model: str, engine: str, lowest: str, statistic: data.Statistic) -> float | None:
    """Geometric mean over the samples of an engine's value over the lowest rung's; None without a common sample."""
    own = data.select(rows, model=model)
    both = data.pairs(own, engine, statistic, lowest)
    return None if both.empty else data.geo_mean(both["theirs"] / both["ours"])
