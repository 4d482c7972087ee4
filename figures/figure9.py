"""Figure 9: the same work for everyone: control flow disabled, every branch executed, in the four gated models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.chart import Chart, Panel, Series
from figures.layout import Cell, Column, Notes, Table, number
from figures.needs import Needs
from figures.versus import DASH, contenders
from models import MODELS

NEEDS = Needs(
    models=("skipnet", "ranet", "convnet_aig", "blockdrop"),
    engines=(("sod2", {"control": "all"}), ("mnn", {"control": "all"})),
)
TITLE = "Figure 9. Latency with every branch executed, over that of SoD² with every branch executed."
_CAPTION = (
    "Geo-mean of ratios paired per sample; thin lines reach from the smallest to the largest. The paper's text of this"
    " figure is lost: this is our definition. It compares with MNN and finds SoD² ahead on all four models. "
)


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """Bars per model and engine; the table has mean latencies too."""
    own = data.select(rows, device=device.name, processor="cpu")
    engines = contenders(config, all_branches=True)
    subject = next(name for name in engines if config["engines"][name]["adapter"] == data.SUBJECT)
    notes = Notes()
    models = NEEDS.models or ()
    body: list[list[Cell]] = [[Cell(MODELS[model].title)] for model in models]
    series, behind = [], []
    for engine, title in engines.items():
        both = data.pairs(own, engine, data.latency_ms, subject)
        values: list[float | None] = []
        ends: list[tuple[float, float] | None] = []
        for model, line in zip(models, body, strict=True):
            if both.empty or model not in both.index.get_level_values("model"):
                note = f"{title} on {MODELS[model].title}: {data.hole(data.select(own, model=model, engine=engine))}."
                line.append(Cell(DASH, marks=notes.mark(note), span=2))
                values.append(None)
                ends.append(None)
                continue
            found = both.loc[model]
            ratios = found["theirs"] / found["ours"]
            ratio, mean = data.geo_mean(ratios), float(found["theirs"].mean())
            line += [Cell(number(mean), mean), Cell(f"{ratio:.2f}×", ratio)]
            values.append(ratio)
            ends.append((float(ratios.min()), float(ratios.max())))
            behind += [f"{title} on {MODELS[model].title} ({ratio:.2f}×)"] * (ratio < 1)
        series.append(Series(title, values, ends, subject=engine == subject))
    verdict = f"SoD² is not ahead here of {', '.join(behind)}. " if behind else "SoD² is ahead of all of them here. "
    chart = Chart(
        [Panel("", [MODELS[model].title for model in models], series)], label="Latency over SoD²'s", level=1.0
    )
    columns = [Column(("", "Model"), numeric=False)]
    columns += [Column((title, end)) for title in engines.values() for end in ("Mean (ms)", "Over SoD²")]
    caption = verdict + _CAPTION + provenance.caption(device, [row for row in own if row.engine in engines])
    return Table(TITLE, columns, body, [], notes.texts, caption, chart)
