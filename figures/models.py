"""The models of the evaluation and what the samples made of them: sizes, work, paths and execution rates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.layout import Cell, Column, Table, number
from figures.table5 import layers_and_parameters
from models import MODELS, parameters

TITLE = "The models: parameters, work at the sampled inputs, and control paths."
HEADERS = (
    "Model",
    "Dynamism",
    "Input",
    "Parameters",
    "Nodes",
    "GMAC min",
    "GMAC max",
    "Gates",
    "Paths",
    "Rate, published",
    "Rate, samples",
    "Trained on (paper)",
)
_TEXT = (0, 1, 2, 11)
_CAPTION = (
    "Parameters as the upstream checkpoints count them; nodes of the ONNX graph, bodies of control flow included. GMAC"
    " are multiply-adds of convolutions and matrix products on the path that a sample takes. Paths are distinct ones"
    " among the samples; the rate is the mean share of gated blocks that run. "
)


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line per model of the configuration; work and paths are those of the measured samples."""
    own = data.select(rows, device=device.name)
    body = [_line(name, config["variant"], data.select(own, model=name)) for name in config["models"]]
    columns = [Column((name,), numeric=i not in _TEXT) for i, name in enumerate(HEADERS)]
    return Table(TITLE, columns, body, [], [], _CAPTION + provenance.caption(device, own))


def _line(name: str, variant: str, rows: Sequence[Row]) -> list[Cell]:
    model = MODELS[name]
    count = parameters(name, variant)
    nodes = layers_and_parameters(Path(f"results/models/{name}.onnx"))[0]
    samples = {row.sample: row for row in rows if row.sample is not None and row.macs is not None}
    work = [row.macs / 1e9 for row in samples.values() if row.macs is not None]
    sizes = "; ".join(
        f"{s} {e.low}..{e.high}" + (f" by {e.step}" if e.step > 1 else "") for s, e in model.symbols.items()
    )
    ends = [Cell(number(v), v) for v in (min(work), max(work))] if work else [Cell("–"), Cell("–")]
    leading = [Cell(model.title), Cell(model.dynamism), Cell(sizes), Cell(f"{count:,}", float(count)), Cell(str(nodes))]
    return [*leading, *ends, *_paths(samples.values(), model.rate), Cell(model.trained_on)]


def _paths(rows: Any, wanted: float | None) -> list[Cell]:
    """Gates, distinct paths, published and measured execution rate."""
    paths = [row.path for row in rows if row.path]
    if not paths:
        return [Cell("–"), Cell("1"), Cell("–"), Cell("–")]
    reached = "".join(paths).replace("-", "")
    rate = reached.count("1") / max(1, len(reached))
    published = Cell("–") if wanted is None else Cell(number(wanted), wanted)
    return [Cell(str(len(paths[0]))), Cell(str(len(set(paths)))), published, Cell(number(rate), rate)]
