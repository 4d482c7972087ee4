"""Figure 12: what being dynamic costs: SoD²'s artifact against one compiled for each sample's shapes and path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.chart import Chart, Panel, Series
from figures.layout import Cell, Column, Notes, Table, number
from figures.needs import Needs
from figures.versus import DASH, reported_range
from models import MODELS

FROZEN = "sod2_frozen"
NEEDS = Needs(models=("skipnet", "ranet"), engines=((FROZEN, {}),))
TITLE = "Figure 12. Overhead of SoD² over the same model frozen: constant shapes, branches resolved."
HEADERS = ("Model", "Samples", "SoD² (ms)", "Frozen (ms)", "Overhead", "Worst", "Paper")
_CAPTION = (
    "Medians of interleaved repeats; overhead is the geo-mean of ratios paired per sample, less 1; below 0 the dynamic"
    " artifact is faster. Each sample has a frozen artifact of its own, with every optimisation: fixed offsets and"
    " versions, no guards, fusion across branches. Gates are computed in both. The paper compares with DNNFusion. "
)


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line per model; bars are latencies over the frozen model's."""
    own = data.select(rows, device=device.name, processor="cpu")
    (engine,) = [name for name, settings in config["engines"].items() if settings["adapter"] == FROZEN]
    notes = Notes()
    body, bars = [], []
    models = NEEDS.models or ()
    for model in models:
        found = data.select(own, model=model)
        both = data.pairs(found, data.SUBJECT, data.latency_ms, engine)
        title, reported = MODELS[model].title, Cell(reported_range("figure12", model) or DASH)
        if both.empty:
            holes = [data.hole(data.select(found, engine=name)) for name in (data.SUBJECT, engine)]
            mark = notes.mark(f"{title}: {'; '.join(holes)}.")
            body.append([Cell(title), Cell(DASH, marks=mark, span=5), reported])
            bars.append(None)
            continue
        ratios = both["theirs"] / both["ours"]  # SoD² over the frozen model
        mean = data.geo_mean(ratios)
        means = [float(both[side].mean()) for side in ("theirs", "ours")]
        overheads = [Cell(_percent(ratio - 1), ratio - 1) for ratio in (mean, float(ratios.max()))]
        numbers = [Cell(str(len(both)), len(both)), *(Cell(number(ms), ms) for ms in means)]
        body.append([Cell(title), *numbers, *overheads, reported])
        bars.append(mean)
    names = [MODELS[model].title for model in models]
    series = [Series("SoD²", bars, subject=True), Series("Frozen", [1.0 for _ in models])]
    chart = Chart([Panel("", names, series)], label="Latency over the frozen model's", level=1.0)
    columns = [Column((header,), numeric=i > 0) for i, header in enumerate(HEADERS)]
    shown = [row for row in own if row.engine in (engine, data.SUBJECT)]
    return Table(TITLE, columns, body, [], notes.texts, _CAPTION + provenance.caption(device, shown), chart)


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")
