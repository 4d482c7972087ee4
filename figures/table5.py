"""Table 5: peak memory of intermediates, smallest and largest over the samples of each model; weights excluded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.layout import Cell, Column, Table
from figures.versus import DASH, Versus
from models.assembly import graphs

TITLE = (
    "Table 5. Peak memory of intermediate results: minimum and maximum over the samples of a model, weights excluded."
)


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """Draw the table for one device; the model files are read for sizes and layer counts."""
    versus = Versus("table5", config, rows, device, data.peak_mib)
    entries = versus.entries("cpu")
    leading = ["Model", "Dynamism", "Input", "Parameters (M)", "Layers"]
    body = []
    for model in versus.models():
        size = _size(Path(f"results/models/{model.name}.onnx")) if model.name in config["models"] else [Cell(DASH)] * 2
        body.append([Cell(model.title), Cell(model.dynamism), Cell(model.input), *size, *versus.cells(model, entries)])
    summary = [
        [Cell("Geo-mean over SoD²"), *[Cell()] * 4, *versus.ratios(entries, lambda c: c.ratio)],
        [Cell("Paper's formula over SoD²"), *[Cell()] * 4, *versus.ratios(entries, lambda c: c.paper_ratio)],
        [Cell("Paper (Snapdragon 888)"), *[Cell()] * 4, *versus.reported(entries)],
    ]
    columns = [Column(("", "", name), numeric=i >= 3) for i, name in enumerate(leading)]
    return Table(
        title=TITLE,
        columns=[*columns, *versus.columns(entries, "MiB")],
        body=body,
        summary=summary,
        notes=versus.notes.texts,
        caption=versus.verdict(entries) + _CAPTION + provenance.caption(device, versus.rows),
    )


_CAPTION = (
    "Live heap and anonymous mappings over those of the loaded model and its staged inputs, counted by one hook"
    " for every engine; outputs, scratch and arenas are included. ORT's default configuration keeps an arena that"
    " grows by powers of two and never shrinks (samples run by ascending size); lean is without arena and memory"
    " pattern. Geo-means are of ratios paired per sample; the paper's formula divides geo-means of per-model"
    " averages. The paper's ORT ran all branches. "
)


def _size(path: Path) -> list[Cell]:
    layers, parameters = layers_and_parameters(path)
    return [Cell(f"{parameters / 1e6:.1f}", parameters / 1e6), Cell(str(layers))]


def layers_and_parameters(path: Path) -> tuple[int, int]:
    """Number of operator nodes, bodies of control flow included and constants not, and of initializer elements."""
    graph = onnx.load(path, load_external_data=False).graph
    layers = sum(node.op_type != "Constant" for part in graphs(graph) for node in part.node)
    return layers, sum(math.prod(w.dims) for part in graphs(graph) for w in part.initializer)
