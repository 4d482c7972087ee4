"""Single operators: every engine's time beside the least that the machine allows.

The limit is the longer of two times: the multiply-adds of the direct algorithm at the peak of fused multiply-adds, and
the operands' bytes at the bandwidth of reading a set of their size. Both figures of the machine are measured in every
round beside the engines (devices/limits.c) and, as theirs, are medians over the rounds of a sample: a slow clock or a
busy neighbour meets all alike. Winograd's convolutions do fewer multiply-adds and so may pass 100 %. Two sentences of
the caption say what the peak is worth: the operations in a cycle of each thread (64 are two pipelines of sixteen
lanes), and the fastest product or 1×1 convolution of any engine, which does all of its multiply-adds and so cannot pass
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, provenance
from figures.chart import Chart, Panel, Series
from figures.layout import Cell, Column, Notes, Table, number
from figures.needs import Needs
from figures.versus import DASH, contenders
from models.operators import MATRIX, ONE, OPERATORS, OVERHEAD
from sod2.roofline import Ceiling

NEEDS = Needs(models=tuple(OPERATORS), engines=(("mnn", {}),))
TITLE = "Single operators: latency, rate and share of what the machine allows."
RATES = ("GFLOP/s", "Of peak", "Of limit", "Ahead")
_CAPTION = (
    "GFLOP/s of SoD² count two operations for a multiply-add of the direct algorithm; Winograd may pass the peak."
    " Limit: the longer of the operations at the peak and the operands' bytes at the bandwidth of their size, both"
    " medians of the same rounds. Ahead: the fastest peer's latency over SoD²'s. The chart shows the largest size. "
)


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line per operator and size; bars of the share of the limit at the largest size, a panel for each kind."""
    engines = contenders(config)
    own = [row for row in data.select(rows, device=device.name, processor="cpu") if row.engine in engines]
    notes, body, shares, fastest = Notes(), [], {}, []
    for name in OPERATORS:
        found = {engine: data.select(own, model=name, engine=engine) for engine in engines}
        values = {engine: data.latency_ms(found[engine]) for engine in engines}
        marks = {
            engine: notes.mark(f"{title}: {data.hole(found[engine])}.")
            for engine, title in engines.items()
            if not values[engine]
        }
        for sample, row in _samples(found).items():
            times = {engine: values[engine].get(sample) for engine in engines}
            ceiling = _ceiling(data.select(own, model=name, sample=sample))
            line, shares[name] = _line(name, row, times, ceiling, marks)
            body.append(line)
            if OPERATORS[name].kind in (ONE, MATRIX):
                least = min(ms for ms in times.values() if ms)
                fastest.append((2e3 * (row.macs or 0) / least / ceiling.flops, name, _size(row)))
    columns = [Column(("Operator",), numeric=False), Column(("Size",)), Column(("GFLOP",)), Column(("MB",))]
    columns += [Column((f"{title} (µs)",)) for title in engines.values()]
    columns += [Column((header,)) for header in RATES]
    caption = _peak(own, max(fastest, default=None)) + _verdict(body) + _CAPTION + provenance.caption(device, own)
    return Table(TITLE, columns, body, [], notes.texts, caption, _chart(shares, engines))


def _ceiling(rows: Sequence[Row]) -> Ceiling:
    """What the device did at most while one sample was measured; ValueError where that was not."""
    rounds = {row.repeat: row.facts["limits"] for row in rows if "limits" in row.facts}
    if not rounds:
        raise ValueError("figure operators needs protocol.roofline, which --configfile config/operators.yaml sets")
    bandwidth = zip(*(found["bandwidth"] for found in rounds.values()), strict=True)
    return Ceiling(median(found["flops"] for found in rounds.values()), tuple(map(median, bandwidth)))


def _samples(found: Mapping[str, Sequence[Row]]) -> dict[int, Row]:
    """A row of every sample that any engine has a result for, by size."""
    good = [row for rows in found.values() for row in data.select(rows, status="ok")]
    return {row.sample: row for row in sorted(good, key=_size) if row.sample is not None}


def _size(row: Row) -> int:
    """The symbolic dim of an operator's only input: rows of a product, or the side of an image."""
    assert row.shape is not None
    (shape,) = row.shape
    return shape[1] if row.model.startswith("mat") else shape[-1]


def _line(
    name: str, row: Row, times: Mapping[str, float | None], ceiling: Ceiling, marks: Mapping[str, str]
) -> tuple[list[Cell], dict[str, float | None]]:
    """The cells of one operator at one size, and every engine's share of the limit in percent."""
    size, flops = _size(row), 2 * (row.macs or 0)
    moved = 4 * OPERATORS[name].floats(size)
    limit_ms = 1e3 * ceiling.seconds(flops, moved)
    cells = [Cell(name), Cell(str(size), float(size)), Cell(number(flops / 1e9), flops / 1e9)]
    cells.append(Cell(number(moved / 1e6), moved / 1e6))
    for engine, ms in times.items():
        cells.append(Cell(DASH, marks=marks.get(engine, "")) if ms is None else Cell(number(1e3 * ms), 1e3 * ms))
    ours, peers = times[data.SUBJECT], [ms for engine, ms in times.items() if ms and engine != data.SUBJECT]
    if ours is None:
        cells += [Cell(DASH)] * len(RATES)
    else:
        rate = flops / ours / 1e6
        cells.append(Cell(number(rate), rate) if flops else Cell(DASH))
        cells.append(_percent(1e9 * rate / ceiling.flops) if flops else Cell(DASH))
        cells.append(_percent(limit_ms / ours))
        ahead = min(peers) / ours if peers else None
        cells.append(Cell(DASH) if ahead is None else Cell(f"{ahead:.2f}×", ahead))
    return cells, {engine: 100 * limit_ms / ms if ms else None for engine, ms in times.items()}


def _percent(share: float) -> Cell:
    return Cell(f"{100 * share:.0f} %", share)


def _chart(shares: Mapping[str, Mapping[str, float | None]], engines: Mapping[str, str]) -> Chart | None:
    """The last, which is the largest size of every operator."""
    kinds = dict.fromkeys(OPERATORS[name].kind for name in shares if OPERATORS[name].kind != OVERHEAD)
    panels = []
    for kind in kinds:
        names = [name for name in shares if OPERATORS[name].kind == kind]
        series = [
            Series(title, [shares[name][engine] for name in names], subject=engine == data.SUBJECT)
            for engine, title in engines.items()
        ]
        panels.append(Panel(kind, [name.replace("-", "\n", 1) for name in names], series))
    return Chart(panels, label="Of the limit (%)", level=100.0, width=1200.0, height=260.0) if panels else None


def _peak(rows: Sequence[Row], fastest: tuple[float, str, int] | None) -> str:
    """What the machine did at most, in its best round and in the middle one, and what there is to hold that against."""
    found = [row.facts["limits"] for row in rows if "limits" in row.facts]
    if not found:
        return ""
    best, middle = max(found, key=lambda limits: limits["flops"]), median(limits["flops"] for limits in found)
    cycle = best["flops"] / best["clock"] / max(row.threads or 1 for row in rows)
    text = f"At most {best['flops'] / 1e9:.0f} GFLOP/s (median {middle / 1e9:.0f}), {cycle:.1f} in a cycle of each"
    text += f" thread at {best['clock'] / 1e9:.2f} GHz; {best['bandwidth'][-1] / 1e9:.0f} GB/s from memory. "
    if fastest:
        share, where, size = fastest
        text += f"The fastest product or 1×1 convolution of any engine reaches {share:.0%} of the peak"
        text += f" that its own rounds had ({where} at {size}). "
    return text


def _verdict(body: Sequence[Sequence[Cell]]) -> str:
    """Where SoD² is slowest against the best peer."""
    found = [(float(cells[-1].value), cells[0].text, cells[1].text) for cells in body if cells[-1].value is not None]
    if not found:
        return ""
    worst, name, size = min(found)
    behind = sum(ratio < 0.95 for ratio, _, _ in found)
    text = f"SoD² is slowest against the best peer on {name} at {size}: {worst:.2f}×; below 0.95× on {behind} of "
    return text + f"{len(found)}, geo-mean {data.geo_mean(ratio for ratio, _, _ in found):.2f}×. "
