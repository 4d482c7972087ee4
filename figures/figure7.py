"""Figure 7: kernels and intermediate results under no fusion, fusion on static facts, and fusion on RDP's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import onnxruntime

from baselines.rows import Row
from devices.device import Device
from figures.chart import Chart, Panel, Series
from figures.layout import Cell, Column, Table, number
from figures.needs import Needs
from figures.versus import reported_range
from models import MODELS
from models.execute_all import walk
from sod2 import Options, plan, static_facts
from sod2.compiler import Know, Plan
from sod2.fusion import Group
from sod2.storage import Copy, Step, byte_size
from sod2.symbolic import evaluate

NEEDS = Needs(models=("sde", "codebert", "ranet", "blockdrop"))
TITLE = "Figure 7. Kernels and intermediate results: without fusion, with static fusion, with RDP's."
VARIANTS: dict[str, tuple[str, Know | None]] = {
    "Original": ("none", None),
    "SFusion": ("static", None),
    "SFusion, values": ("static", partial(static_facts.analyze, values=True)),
    "RDP": ("rdp", None),
}
NAMES = tuple(VARIANTS)
_CAPTION = (
    "A layer is a kernel that is launched, the copy of an operand into a Concat included; shape arithmetic, views and"
    " copies of branches are none. Intermediate results are the bytes that kernels write, outputs and all branches"
    " included, at the middle of each symbol's range. SFusion rewrites and fuses where it suffices to know ranks,"
    " constant dims, equal names of dims and what else onnx.shape_inference proves, by default and with its propagation"
    " of run-time values. Beside them, the nodes of onnxruntime's optimised graph, constants left out. "
)


@dataclass(frozen=True)
class Counts:
    """Kernels launched, and bytes that they write."""

    layers: int
    bytes: int


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line per model; two panels of bars. Nothing is measured: the compiler's plans are counted."""
    models = NEEDS.models or ()
    found = {model: _counts(model) for model in models}
    body = [_line(model, found[model]) for model in models]
    titles = [MODELS[model].title for model in models]

    def panel(title: str, attribute: str) -> Panel:
        values = {m: [getattr(c, attribute) / getattr(found[m][0], attribute) for c in found[m]] for m in models}
        series = [
            Series(name, [values[m][k] for m in models], subject=name == NAMES[-1]) for k, name in enumerate(NAMES)
        ]
        return Panel(title, titles, series)

    chart = Chart([panel("Layers", "layers"), panel("Intermediate results", "bytes")], label="Over no fusion")
    quantities = "further fewer layers", "further smaller intermediate results"
    paper = [Cell(f"−{reported_range('figure7', 'rdp fusion', quantity)}") for quantity in quantities]
    summary = [[Cell("Paper"), *[Cell()] * 5, paper[0], Cell(), *[Cell()] * 4, paper[1], Cell()]]
    return Table(TITLE, _columns(), body, summary, [], _CAPTION, chart)


def _columns() -> list[Column]:
    changes = [f"RDP over {name}" for name in NAMES[1:-1]]
    return [
        Column(("", "Model"), numeric=False),
        *(Column(("Layers", name)) for name in (*NAMES, "ORT's nodes", *changes)),
        *(Column(("Intermediate results (MiB)", name)) for name in (*NAMES, *changes)),
    ]


def _line(model: str, counts: Sequence[Counts]) -> list[Cell]:
    _, *static, rdp = counts
    cells = [Cell(MODELS[model].title), *(Cell(str(c.layers), c.layers) for c in counts)]
    cells.append(Cell(str(nodes := optimised_nodes(_path(model))), nodes))
    cells += [_change(c.layers, rdp.layers) for c in static]
    cells += [Cell(number(c.bytes / 2**20), c.bytes / 2**20) for c in counts]
    return [*cells, *(_change(c.bytes, rdp.bytes) for c in static)]


def _change(before: int, after: int) -> Cell:
    return Cell(f"{100 * (after / before - 1):+.1f} %".replace("-", "−"), after / before)


def _path(model: str) -> Path:
    return Path(f"results/models/{model}.onnx")


def _counts(model: str) -> list[Counts]:
    middle = {name: (extent.low + extent.high) // 2 for name, extent in MODELS[model].symbols.items()}
    return [count(plan(_path(model), Options(fusion=fusion), know), middle) for fusion, know in VARIANTS.values()]


def count(planned: Plan, symbols: dict[str, int]) -> Counts:
    """The kernels of a plan, and what they write at given values of the symbols."""
    written = [outputs for step in planned.storage.steps if (outputs := _written(planned, step))]
    sizes = [byte_size(planned.analysis, tensor) for outputs in written for tensor in outputs]
    return Counts(len(written), sum(evaluate(size, symbols) for size in sizes))


def _written(planned: Plan, step: Step) -> tuple[str, ...]:
    """The tensors that a launched kernel writes: those of a group, or the operand that is copied into a Concat."""
    if isinstance(step, Group):
        return step.outputs
    joins = isinstance(step, Copy) and (node := planned.graph.producer.get(step.target)) and node.op == "Concat"
    return (step.source,) if isinstance(step, Copy) and joins else ()


def optimised_nodes(path: Path) -> int:
    """Nodes of onnxruntime's optimised graph, sub-graphs included, constants left out."""
    with TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.optimized_model_filepath = f"{folder}/optimised.onnx"
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        optimised = onnx.load(options.optimized_model_filepath, load_external_data=False)
    return sum(node.op_type != "Constant" for node in walk(optimised.graph))
