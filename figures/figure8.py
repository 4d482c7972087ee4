"""Figure 8: sub-graphs by what is known of their shapes, their share of the latency, and how well they are ordered.

A sub-graph is what SEP orders on its own (sod2/partition.py). It is all known when every shape in it is constant, mixed
when shapes are expressions over the input's dims, and nac when one depends on what only execution tells. A mixed one
needs as many versions as the most that one of its kernels is kept in, of which a shape takes one when it is bound.
Latencies are those of the steps of one run at the middle sample, measured when the figure is drawn. A step is ordered
exactly when it is proved that no order of its sub-graph has a lower peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, own_artifact
from figures.chart import Chart, Panel, Series
from figures.layout import Cell, Column, Notes, Table
from figures.versus import DASH, reported_range
from models import MODELS
from models.inputs import generator, random_sizes
from sod2 import Options, order, plan
from sod2.artifact import CompiledModel
from sod2.codegen.target import host
from sod2.compiler import Plan, kept_versions
from sod2.fusion import Group
from sod2.minting import Mint
from sod2.order import Order
from sod2.symbolic import Dim

TITLE = "Figure 8. Sub-graphs by what is known of their shapes, and their share of the latency."
KNOWN, NAC = "All known", "nac"
MIXED = {1: "Mixed, 1 version", 4: "Mixed, 2–4", 8: "Mixed, 5–8"}  # by the most versions
KINDS = (KNOWN, *MIXED.values(), NAC)
CHECKED = 25  # random sizes at which orders are held against proved bounds
_CAPTION = (
    "A sub-graph is what SEP orders on its own; branches have sub-graphs of their own. Exactly ordered: share of"
    " the steps in sub-graphs for which no order has a lower peak, proved for all sizes where sizes are proportional,"
    f" else at the sizes for which orders are chosen and at {CHECKED} random ones in the model's range; the gap is the"
    " worst distance from a proved bound. Latency is of one run at the middle"
    " sample, on the host. The paper's two models are lost; it reports over 90 % of sub-graphs known or mixed. "
)


@dataclass(frozen=True)
class Part:
    """A sub-graph: its kind, the names of its steps, and the gap of its order."""

    kind: str
    steps: frozenset[str]
    gap: float


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line per model and one for all; two panels of bars."""
    notes = Notes()
    parts = {model: _parts(model, plan(Path(f"results/models/{model}.onnx"))) for model in config["models"]}
    latencies = {model: _latency(config, model, rows, device) for model in parts}
    counts = {model: _shares(found, {}) for model, found in parts.items()}
    shares = {model: _shares(found, latencies[model]) if latencies[model] else None for model, found in parts.items()}
    body = []
    for model, found in parts.items():
        title = MODELS[model].title
        mark = "" if latencies[model] else notes.mark(f"{title}: no artifact for this machine was measured.")
        body.append([Cell(title), *_cells(found, counts[model], shares[model], mark)])
    everything = [part for found in parts.values() for part in found]
    summary = [[Cell("All"), *_cells(everything, _shares(everything, {}), None, "")], _paper()]
    names = [MODELS[model].short for model in parts]
    panels = [
        Panel(title, names, [_series(kind, [found[model] for model in parts]) for kind in KINDS])
        for title, found in (("Sub-graphs", counts), ("Latency", shares))
    ]
    chart = Chart(panels, label="Share (%)")
    columns = [Column(("", "Model"), numeric=False), Column(("", "Sub-graphs")), Column(("", "Steps"))]
    columns += [Column((f"Share of {what} (%)", kind)) for what in ("sub-graphs", "latency") for kind in KINDS]
    columns += [Column(("Order", "Exact steps (%)")), Column(("Order", "Gap (%)"))]
    return Table(TITLE, columns, body, summary, notes.texts, _verdict(everything) + _CAPTION, chart)


def _parts(model: str, planned: Plan) -> list[Part]:
    rng = generator("figure 8", 0)
    checked = [random_sizes(MODELS[model].symbols, rng) for _ in range(CHECKED)]
    kept = kept_versions(planned, Options(), host())
    return [
        Part(_kind(things, planned, kept), frozenset(thing.name for thing in things), gap)
        for things, gap in order.subgraphs(planned.graph, planned.analysis, planned.fusion, checked)
    ]


def _kind(things: Order, planned: Plan, kept: Mapping[str, Sequence[str]]) -> str:
    tensors = {t for thing in things for t in (*thing.inputs, *thing.outputs) if t in planned.analysis.facts}
    shapes = [planned.analysis[t].shape for t in tensors]
    if any(isinstance(thing, Mint) for thing in things) or not all(isinstance(shape, tuple) for shape in shapes):
        return NAC
    dims = [dim for shape in shapes if isinstance(shape, tuple) for dim in shape]
    symbols = {name for dim in dims if isinstance(dim, Dim) for name in dim.symbols()}
    if not symbols.isdisjoint(planned.analysis.minted) or not all(isinstance(dim, Dim) for dim in dims):
        return NAC
    nodes = [node.name for thing in things if isinstance(thing, Group) for node in thing.nodes]
    most = max((len(kept.get(name, "1")) for name in nodes), default=1)
    return next(kind for limit, kind in MIXED.items() if most <= limit) if symbols else KNOWN


def _latency(config: dict[str, Any], model: str, rows: Sequence[Row], device: Device) -> Mapping[str, int]:
    """Nanoseconds by step of a run at the middle sample; empty where this machine has no artifact of the model."""
    found = data.select(rows, device=device.name, processor="cpu", engine=data.SUBJECT, model=model, status="ok")
    samples = [row.sample for row in found if row.first and row.sample is not None]
    folder = own_artifact.folder(model, device)
    if not samples or folder is None:
        return {}
    compiled = CompiledModel(folder, device.threads)
    inputs = own_artifact.inputs(config, model, samples[len(samples) // 2], compiled)
    with device.lock():
        compiled.run(inputs)  # the first run at a shape touches the arena for the first time
        return {step.split()[-1]: ns for step, ns in compiled.profile(inputs)}  # operators stand before the name


def _shares(parts: Sequence[Part], weights: Mapping[str, int]) -> dict[str, float]:
    """Percent of the sub-graphs that are of each kind, or of the weight of their steps where weights are given."""
    amounts = [sum(weights.get(step, 0) for step in part.steps) if weights else 1 for part in parts]
    total = sum(amounts) or 1
    return {kind: 100 * sum(n for n, p in zip(amounts, parts, strict=True) if p.kind == kind) / total for kind in KINDS}


def _steps(parts: Sequence[Part]) -> int:
    return sum(len(part.steps) for part in parts)


def _exact(parts: Sequence[Part]) -> float:
    """Percent of the steps that are in sub-graphs without a gap."""
    return 100 * _steps([part for part in parts if part.gap <= 0]) / max(1, _steps(parts))


def _cells(
    parts: Sequence[Part], counts: Mapping[str, float], latency: Mapping[str, float] | None, mark: str
) -> list[Cell]:
    cells = [Cell(str(n), n) for n in (len(parts), _steps(parts))]
    cells += [Cell(f"{counts[kind]:.1f}", counts[kind]) for kind in KINDS]
    cells += [Cell(DASH, marks=mark) if latency is None else Cell(f"{latency[k]:.1f}", latency[k]) for k in KINDS]
    gap = 100 * max((part.gap for part in parts), default=0.0)
    return [*cells, Cell(f"{_exact(parts):.1f}", _exact(parts)), Cell(f"{gap:.1f}", gap)]


def _series(kind: str, shares: Sequence[Mapping[str, float] | None]) -> Series:
    return Series(kind, [None if share is None else share[kind] for share in shares])


def _paper() -> list[Cell]:
    known = reported_range("figure8", "sub-graphs", "known or mixed")
    return [Cell(f"Paper: {known} known or mixed"), *[Cell()] * (4 + 2 * len(KINDS))]


def _verdict(parts: Sequence[Part]) -> str:
    shares = _shares(parts, {})
    return (
        f"Known or mixed are {100 - shares[NAC]:.1f} % of the sub-graphs, and {_exact(parts):.1f} % of the steps are"
        " ordered exactly. "
    )
