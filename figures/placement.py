"""The memory plan against the optimum, and against what the memory hook counts: the paper's claim on ConvNet-AIG.

For every sample of every model, the buffers of the bound plan (same order, lifetimes and aliases, scratch included) are
placed by SoD² (DMP) and by greedy best fit, and an exact solver says how small the arena could be (optimum.py). Then
the same for each sub-graph that SEP ordered on its own, at the largest sample. The arena that a run needs may be more
than DMP's where early exits are worth it (sod2/depth.py): its prediction stands beside the peak that the hook counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, own_artifact, provenance
from figures.layout import Cell, Column, Notes, Table, number
from figures.optimum import Optimum, Solver
from figures.versus import DASH, reported_range
from models import MODELS
from sod2 import admissible, footprint, order
from sod2.artifact import Buffer, CompiledModel
from sod2.compiler import Plan, plan
from sod2.memory import Span, place_best_fit, place_peak_first

TITLE = "The memory plan against the optimum of the same order, lifetimes and aliases."
SECONDS = 10.0  # of the solver, for one problem
MIB = 2**20

Problem = tuple[Sequence[Span], Sequence[int]]  # of each buffer its first and last step, and its bytes
_CAPTION = (
    "Largest step: the operands of a single kernel, below which no order and no placement is. Live peak: the largest"
    " sum of live buffers, below which no placement of this order is. DMP and best fit over the smallest arena that an"
    f" exact solver finds in {SECONDS:g} seconds. Arena: what the bound plan predicts for the longest path,"
    " early exits considered; hook: the peak that the memory hook counted in a run, which may take a shorter one."
    " Sub-graphs are those of more than one step that SEP orders on their own. "
)
_COLUMNS = (
    ("", "Buffers"),
    ("MiB", "Largest step"),
    ("MiB", "Live peak"),
    ("MiB", "Optimum"),
    ("Over the optimum", "DMP"),
    ("Over the optimum", "Best fit"),
    ("MiB", "Arena"),
    ("MiB", "Hook"),
)


@dataclass(frozen=True)
class Placed:
    """One placement problem, and what was made of it."""

    spans: Sequence[Span]
    sizes: Sequence[int]
    optimum: Optimum

    @cached_property
    def dmp(self) -> float:
        """Arena of DMP over the optimum; 1 where nothing is placed."""
        return self._over(place_peak_first(self.spans, self.sizes).arena)

    @cached_property
    def best_fit(self) -> float:
        """Arena of greedy best fit over the optimum."""
        return self._over(place_best_fit(self.spans, self.sizes).arena)

    def _over(self, arena: int) -> float:
        return arena / self.optimum.arena if self.optimum.arena else 1.0


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line per sample; summaries per model, of samples and of sub-graphs."""
    own = data.select(rows, device=device.name, processor="cpu", engine=data.SUBJECT)
    notes = Notes()
    body: list[list[Cell]] = []
    summary: list[list[Cell]] = []
    with Solver(SECONDS) as solver:
        for model in config["models"]:
            found = [row for row in data.select(own, model=model, status="ok") if row.first]
            folder = own_artifact.folder(model, device)
            title = MODELS[model].title
            if not found or folder is None:
                reason = data.hole(data.select(own, model=model)) if not found else "compiled for another machine"
                body.append([Cell(title), Cell(DASH, marks=notes.mark(f"{title}: {reason}.")), *[Cell()] * 8])
                continue
            compiled, planned = CompiledModel(folder), plan(Path(f"results/models/{model}.onnx"))
            placed = []
            for row in sorted(found, key=lambda row: row.sample or 0):
                placed.append(solved(_bound(compiled, row), solver))
                body.append([Cell(title), *_line(compiled, planned, row, placed[-1], notes)])
            parts = [solved(problem, solver) for problem in _subgraphs(planned, compiled.buffers())]
            summary += [_summary(title, "samples", placed), _summary(title, "sub-graphs", parts)]
    summary.append(_paper())
    columns = [Column(("", name), numeric=False) for name in ("Model", "Shape")]
    columns += [Column(headers) for headers in _COLUMNS]
    return Table(TITLE, columns, body, summary, notes.texts, _CAPTION + provenance.caption(device, own))


def solved(problem: Problem, solver: Solver) -> Placed:
    """The problem with its optimum."""
    return Placed(*problem, solver.optimum(*problem))


def _shapes(compiled: CompiledModel, row: Row) -> dict[str, Sequence[int]]:
    return dict(zip((entry["name"] for entry in compiled.manifest["inputs"]), row.shape or (), strict=True))


def _bound(compiled: CompiledModel, row: Row) -> Problem:
    """The problem of a sample's shape, to which the model is bound."""
    compiled.peak_bytes(_shapes(compiled, row))
    buffers = compiled.buffers()
    return [(b.first, b.last) for b in buffers], [b.bytes for b in buffers]


def _subgraphs(planned: Plan, buffers: Sequence[Buffer]) -> Iterator[Problem]:
    """The problem of each sub-graph at the bound shape: the buffers that are live at its steps, as if it ran alone."""
    step_of = {step.name: k for k, step in enumerate(planned.storage.steps)}
    for things, _ in order.subgraphs(planned.graph, planned.analysis, planned.fusion):
        steps = sorted(step_of[thing.name] for thing in things if thing.name in step_of)
        inside = [(b, [i for i, step in enumerate(steps) if b.first <= step <= b.last]) for b in buffers]
        live = [(b.bytes, (at[0], at[-1])) for b, at in inside if at]
        if len(steps) > 1:
            yield [span for _, span in live], [size for size, _ in live]


def _line(compiled: CompiledModel, planned: Plan, row: Row, placed: Placed, notes: Notes) -> list[Cell]:
    stats, optimum = compiled.stats, placed.optimum
    symbols = admissible.bind(planned.graph, _shapes(compiled, row))
    mark = "" if optimum.is_proved else notes.mark("Smallest that was found in time; a smaller one is not excluded.")
    return [
        Cell("; ".join("×".join(map(str, shape)) for shape in row.shape or [])),
        Cell(str(len(placed.sizes)), len(placed.sizes)),
        _mib(footprint.largest_step(planned.storage, planned.analysis, symbols)),
        _mib(stats.live_bytes),
        _mib(optimum.arena, mark),
        Cell(f"{placed.dmp:.3f}", placed.dmp),
        Cell(f"{placed.best_fit:.3f}", placed.best_fit),
        _mib(stats.arena_bytes),
        _mib(row.peak_bytes or 0),
    ]


def _mib(size: int, mark: str = "") -> Cell:
    return Cell(number(size / MIB), size / MIB, mark)


def _summary(title: str, what: str, placed: Sequence[Placed]) -> list[Cell]:
    """Mean and worst ratio of the problems that the solver decided."""
    decided = [p for p in placed if p.optimum.is_proved]
    count = f"{len(decided)} of {len(placed)} {what} decided"
    if not decided:
        return [Cell(title), Cell(count), *[Cell()] * 4, Cell(DASH), Cell(DASH), Cell(), Cell()]
    cells = []
    for ratios in ([p.dmp for p in decided], [p.best_fit for p in decided]):
        mean = data.geo_mean(ratios)
        cells.append(Cell(f"{mean:.3f} (worst {max(ratios):.3f})", mean))
    return [Cell(title), Cell(count), *[Cell()] * 4, *cells, Cell(), Cell()]


def _paper() -> list[Cell]:
    plans = ("memory plan over the optimum", "greedy best fit over the optimum")
    ranges = [Cell(reported_range("text", "convnet-aig", plan) or DASH) for plan in plans]
    return [Cell("Paper"), Cell("ConvNet-AIG"), *[Cell()] * 4, *ranges, Cell(), Cell()]
