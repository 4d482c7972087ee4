"""Table 7: does the speedup depend on the distribution of input sizes? YOLO-V6 at percentiles of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, matrix, provenance
from figures.layout import Cell, Column, Notes, Table
from figures.needs import Needs
from figures.versus import DASH, contenders

MODEL = "yolov6"
NEEDS = Needs(models=(MODEL,), selection="percentiles")
TITLE = "Table 7. Speedup of SoD² on YOLO-V6 with inputs from one percentile of the distribution of their size."
_CAPTION = (
    "Geo-mean of latency over SoD²'s, paired per sample; a percentile's samples have the sizes of the percent that ends"
    " with it, and contents of their own. The paper's figures of this table are lost; it concludes that SoD² is ahead"
    " at every percentile. "
)


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line per engine, one column per percentile."""
    own = data.select(rows, device=device.name, processor="cpu", model=MODEL)
    notes = Notes()
    body, slower = [], []
    for engine, title in contenders(config).items():
        if engine == data.SUBJECT:
            continue
        ratios = _ratios(own, engine, config["protocol"]["samples"])
        reason = data.hole(data.select(own, engine=engine))
        cells = []
        for percentile in matrix.PERCENTILES:
            ratio = ratios.get(percentile)
            if ratio is None:
                cells.append(Cell(DASH, marks=notes.mark(f"{title}: {reason}.")))
            else:
                cells.append(Cell(f"{ratio:.2f}×", ratio))
                slower += [f"{title} at percentile {percentile} ({ratio:.2f}×)"] * (ratio < 1)
        body.append([Cell(title), *cells])
    group = "Percentile of the input size"
    columns = [Column(("", "Engine"), numeric=False), *(Column((group, str(p))) for p in matrix.PERCENTILES)]
    verdict = f"SoD² is not ahead here of {', '.join(slower)}. " if slower else "SoD² is ahead at every percentile. "
    return Table(TITLE, columns, body, [], notes.texts, verdict + _CAPTION + provenance.caption(device, own))


def _ratios(rows: Sequence[Row], engine: str, samples: int) -> dict[int, float]:
    """Geo-mean ratio at each percentile; samples are numbered in the order of the percentiles."""
    both = data.pairs(rows, engine, data.latency_ms)
    if both.empty:
        return {}
    position = both.index.get_level_values("sample") // samples
    ratios = (both["theirs"] / both["ours"]).groupby(position).agg(data.geo_mean)
    return {matrix.PERCENTILES[int(p)]: float(ratio) for p, ratio in ratios.items()}
