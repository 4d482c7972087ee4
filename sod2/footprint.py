"""Memory before a model is shipped: the peak as a formula, and the arena over a range of input sizes.

Two figures that must not be confused. The *live peak* is the largest sum of live buffers over the steps: a formula
over the symbols of the input dims, which no placement can beat for this order of steps. The *arena* is what the
placement at a concrete shape needs, scratch of the kernels included; the compiled model tells it by binding the shape
without running (microseconds), which is what `Scan` does over a grid. The arena holds the longest path; a run that
leaves early touches less.

Limits: the arena is no formula, so its maximum is that of the sampled sizes, both ends of every range included.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from sod2 import memory, work
from sod2.artifact import CompiledModel
from sod2.errors import BudgetError, Error, InputError
from sod2.fusion import Group
from sod2.memory import LiveRange, MemoryPlan
from sod2.peak import undominated
from sod2.rdp import Analysis
from sod2.storage import Storage, byte_size
from sod2.symbolic import Dim, constant, evaluate, maximum

_POINTS = {1: 257, 2: 25}  # sizes tried per symbol, by number of symbols that vary
_FEWEST = 9
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def formula(storage: Storage) -> MemoryPlan:
    """The plan of all buffers; its `live_peak` is the formula over every path."""
    ranges = [LiveRange(b.name, b.first, b.last, b.size) for b in storage.buffers]
    return memory.plan(ranges, len(storage.steps))


def outside_branches(storage: Storage) -> Dim:
    """The live peak while no branch runs: what every run needs, whatever its path."""
    sums = [
        sum((b.size for b in storage.buffers if b.first <= number <= b.last), constant(0))
        for number, step in enumerate(storage.steps)
        if not getattr(step, "guard", ())
    ]
    return maximum(0, *undominated(sums))


def largest_step(storage: Storage, analysis: Analysis, symbols: Mapping[str, int]) -> int:
    """The most bytes of the arena that the operands of one kernel take: no order of the kernels and no placement needs
    less. Operands whose size only execution tells are left out."""
    return max(
        (_operand_bytes(s, storage, analysis, symbols) for s in storage.steps if isinstance(s, Group)), default=0
    )


def _operand_bytes(step: Group, storage: Storage, analysis: Analysis, symbols: Mapping[str, int]) -> int:
    """Bytes of buffers that a kernel reads or writes; what two operands share counts once."""
    parts: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for tensor in {*step.inputs, *step.outputs}:
        place, size = storage.places.get(tensor), byte_size(analysis, tensor)
        if place and place.kind == "buffer" and size.symbols() | place.offset.symbols() <= symbols.keys():
            begin = evaluate(place.offset, symbols)
            parts[place.number].append((begin, begin + evaluate(size, symbols)))
    return sum(_covered(part) for part in parts.values())


def _covered(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of the union of intervals."""
    total, reached = 0, 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 64MB, 1.5GiB or 4096."""
    digits = text.rstrip("BKMGIbkmgi ")
    unit = text[len(digits) :].strip().upper()
    try:
        return int(float(digits) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise InputError(
            f"budget {text!r} is no size; accepted are numbers with {', '.join(filter(None, _UNITS))}"
        ) from None


def parse_ranges(texts: Sequence[str], symbols: Sequence[str]) -> dict[str, range]:
    """Ranges of all symbols from texts like H=224:640, H=224:640:32 or H=224; InputError for one that is missing."""
    found: dict[str, range] = {}
    for text in texts:
        name, _, numbers = text.partition("=")
        parts = numbers.split(":")
        if not 1 <= len(parts) <= 3 or not all(p.isdecimal() for p in parts):
            raise InputError(f"range {text!r} is not understood; accepted is SYMBOL=LOW:HIGH or SYMBOL=LOW:HIGH:STEP")
        if name not in symbols:
            raise InputError(f"the model has no symbol {name!r}; its symbols are {', '.join(symbols) or 'none'}")
        if name in found:
            raise InputError(f"symbol {name!r} is given again as {text!r}; one range is accepted")
        low, high = int(parts[0]), int(parts[min(1, len(parts) - 1)])
        step = int(parts[2]) if len(parts) == 3 else 1
        if high < low or step < 1 or high >= 2**63:
            raise InputError(
                f"range {text!r} is empty or endless; accepted is LOW <= HIGH < 2^63, and a step from 1 on"
            )
        found[name] = range(low, high + 1, step)
    missing = [s for s in symbols if s not in found]
    if missing:
        raise InputError(f"symbol {missing[0]!r} has no range; give --range {missing[0]}=LOW:HIGH")
    return found


@dataclass(frozen=True)
class Point:
    """One sampled size: the symbols' values, and bytes of the arena; None where the model refuses the shape.

    With a memory budget also where no table fits; `table` is the one that does.
    """

    symbols: Mapping[str, int]
    arena: int | None
    table: int = 0


@dataclass(frozen=True)
class Scan:
    """The arena over a grid of sizes. `axes` are the symbols that vary, with their sampled values."""

    axes: Mapping[str, tuple[int, ...]]
    points: tuple[Point, ...]

    @property
    def worst(self) -> Point:
        """The admissible point of the largest arena; Error when there is none."""
        accepted = [p for p in self.points if p.arena is not None]
        if not accepted:
            raise Error("the model accepts none of the sizes in these ranges")
        return max(accepted, key=lambda p: p.arena or 0)

    def fitting(self, budget: int) -> Iterator[str]:
        """Which sizes fit a budget of bytes."""
        return self.where(lambda p: p.arena is not None and p.arena <= budget)

    def where(self, holds: Callable[[Point], bool]) -> Iterator[str]:
        """At which sizes something holds, in lines: intervals of the last symbol, for each value of the others."""
        *outer, last = self.axes
        for values in product(*(self.axes[name] for name in outer)):
            fixed = dict(zip(outer, values, strict=True))
            row = [p for p in self.points if all(p.symbols[k] == v for k, v in fixed.items())]
            fits = [p.symbols[last] for p in row if holds(p)]
            place = "".join(f"{k}={v} " for k, v in fixed.items())
            yield f"{place}{last} in {_intervals(fits, self.axes[last])}" if fits else f"{place}no {last}"


def _intervals(values: Sequence[int], grid: Sequence[int]) -> str:
    """Values as intervals of neighbours on the grid."""
    at = {v: k for k, v in enumerate(grid)}
    cuts = [k + 1 for k, (a, b) in enumerate(pairwise(values)) if at[b] != at[a] + 1]
    runs = [values[i:j] for i, j in pairwise([0, *cuts, len(values)])]
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}..{r[-1]}" for r in runs)


def _sampled(values: range, count: int) -> tuple[int, ...]:
    """At most `count` of the values, evenly, both ends included."""
    if len(values) <= count:
        return tuple(values)
    return tuple(values[round(k * (len(values) - 1) / (count - 1))] for k in range(count))


def scan(model: CompiledModel, analysis: Analysis, ranges: Mapping[str, range]) -> Scan:
    """Bind the model at a grid of sizes in the ranges of its symbols."""
    varying = [name for name, values in ranges.items() if len(values) > 1]
    count = _POINTS.get(len(varying), _FEWEST)
    grid = {name: _sampled(values, count) for name, values in ranges.items()}
    points = []
    for values in product(*grid.values()):
        symbols = dict(zip(grid, values, strict=True))
        shapes = {v.name: tuple(evaluate(d, symbols) for d in v.shape or ()) for v in analysis.graph.inputs}
        accepted = analysis.admissible(shapes) is None
        points.append(_point(model, symbols, shapes) if accepted else Point(symbols, None))
    return Scan({name: grid[name] for name in varying or grid}, tuple(points))


def _point(model: CompiledModel, symbols: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> Point:
    try:
        return Point(symbols, model.peak_bytes(shapes), model.stats.table)
    except BudgetError:
        return Point(symbols, None)


def by_table(model: CompiledModel, found: Scan) -> Iterator[str]:
    """Which sizes fit a model's memory budget: as they are, then by computing tensors twice, and what that costs."""
    plain: dict[str, Any] = model.manifest
    for table, schedule in enumerate([plain, *plain["tables"]]):
        sizes = [p for p in found.points if p.arena is not None and p.table == table]
        if table == 0:
            yield from found.where(sizes.__contains__)
        elif sizes:
            more = [_operations(schedule, p) / max(_operations(plain, p), 1) - 1 for p in sizes]
            steps = schedule["steps"] - plain["steps"]
            cost = f"{steps} more steps, {max(more):.1%} more operations"
            yield f"by table {table}, which computes tensors twice ({cost}):"
            yield from (f"  {line}" for line in found.where(sizes.__contains__))


def _operations(schedule: Mapping[str, Any], point: Point) -> int:
    """Operations of all steps at a size, without those whose sizes only execution tells."""
    known = (work.value(step["flops"], point.symbols) for step in schedule["work"] if step is not None)
    return sum(flops for flops in known if flops is not None)


def draw(found: Scan, path: Path, title: str, budget: int | None = None) -> None:
    """A curve (one symbol) or map (two) of the arena as a picture; the budget as a line."""
    if len(found.axes) not in (1, 2):
        raise InputError(
            f"{len(found.axes)} symbols vary; a picture shows one or two, so fix the others as SYMBOL=VALUE"
        )
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and half a second that others should not pay
    except ImportError:
        raise Error("a picture needs matplotlib; install it with pip install matplotlib") from None
    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axes = figure.add_subplot(title=title)
    (_curve if len(found.axes) == 1 else _map)(figure, axes, found, budget)
    kind = path.suffix.lstrip(".").lower() or "png"
    if kind not in (kinds := figure.canvas.get_supported_filetypes()):
        raise InputError(f"picture {str(path)!r} ends in {kind!r}; accepted are {', '.join(kinds)}")
    partial = path.with_name(f".{path.name}.tmp")
    figure.savefig(partial, format=kind, dpi=160)
    partial.rename(path)


def _mib(point: Point) -> float:
    return np.nan if point.arena is None else point.arena / 2**20


def _curve(figure: Any, axes: Any, found: Scan, budget: int | None) -> None:
    (name,) = found.axes
    axes.plot([p.symbols[name] for p in found.points], [_mib(p) for p in found.points])
    if budget is not None:
        axes.axhline(budget / 2**20, color="tab:red", linewidth=1, label=f"budget {budget / 2**20:.1f} MiB")
        axes.legend()
    axes.set(xlabel=name, ylabel="arena, MiB", ylim=(0, None))
    axes.grid(alpha=0.3)


def _map(figure: Any, axes: Any, found: Scan, budget: int | None) -> None:
    (rows, ys), (columns, xs) = found.axes.items()
    table = {(p.symbols[rows], p.symbols[columns]): _mib(p) for p in found.points}
    mesh = axes.pcolormesh(xs, ys, [[table[y, x] for x in xs] for y in ys], shading="nearest")
    figure.colorbar(mesh, label="arena, MiB")
    if budget is not None:
        values = np.array([[table[y, x] for x in xs] for y in ys])
        axes.contour(xs, ys, np.nan_to_num(values, nan=np.inf), levels=[budget / 2**20], colors="tab:red")
    axes.set(xlabel=columns, ylabel=rows)
