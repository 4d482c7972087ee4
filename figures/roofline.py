"""How far ahead the machine would allow SoD² to be: the ratios of Table 6, and what they were at the roofline.

A step's limit is that of `sod2 bench --profile` (sod2/roofline.py): its operations at the peak of fused multiply-adds,
or its bytes at the bandwidth of a set of their size, whichever takes longer. The limit of an inference is the sum over
the steps that ran, which a profiled run of every sample tells, here and now; a step without a limit counts as long as
it took. Latencies are those of the rows, so a machine that is slower today than when they were measured shows as a
higher share of the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, own_artifact, provenance
from figures.chart import Chart, Panel, Series
from figures.layout import Cell, Column, Notes, Table
from figures.versus import DASH, contenders
from models import MODELS
from sod2 import roofline
from sod2.artifact import CompiledModel

TITLE = "Latency over SoD²'s: as measured, and if SoD² ran at the machine's limit."
REPEATS = 5  # of the profiled run, of which each step's shortest counts
_CAPTION = (
    "Ratios are paired per sample, geo-means over the samples and then the models. Limit: the sum over the steps that"
    " ran of operations at the peak or bytes at the bandwidth of their size, of the cheapest algorithm that a step has"
    " kernels for. No schedule of these steps can be further ahead than the second ratio; fewer steps could be. "
)


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line per model: SoD²'s share of its limit, and two ratios for every other engine."""
    engines = {**contenders(config), **contenders(config, all_branches=True)}
    del engines[data.SUBJECT]
    own = data.select(rows, device=device.name, processor="cpu")
    notes = Notes()
    body: list[list[Cell]] = []
    lines: dict[str, list[float | None]] = {}
    for model in config["models"]:
        found = data.select(own, model=model)
        shares = _shares(config, model, found, device)
        if not shares:
            mark = notes.mark(f"{MODELS[model].title}: no artifact for this machine was measured.")
            body.append([Cell(MODELS[model].title), Cell(DASH, marks=mark, span=1 + 2 * len(engines))])
            continue
        lines[model] = [data.geo_mean(shares.values()), *_ratios(found, engines, shares)]
        body.append([Cell(MODELS[model].title), *_cells(lines[model])])
    columns = [Column(("", "Model"), numeric=False), Column(("SoD²", "Of its limit"))]
    columns += [Column((title, which)) for title in engines.values() for which in ("Measured", "At the limit")]
    means = [_mean(column) for column in zip(*lines.values(), strict=True)]
    summary = [[Cell("Geo-mean"), *_cells(means)]] if means else []
    caption = _CAPTION + provenance.caption(device, own)
    return Table(TITLE, columns, body, summary, notes.texts, caption, _chart(lines))


def _chart(lines: Mapping[str, Sequence[float | None]]) -> Chart | None:
    if not lines:
        return None
    shares = [100 * (line[0] or 0) for line in lines.values()]
    panel = Panel("", [MODELS[model].short for model in lines], [Series("SoD²", shares, subject=True)])
    return Chart([panel], label="Of the limit (%)", level=100.0)


def _shares(config: dict[str, Any], model: str, rows: Sequence[Row], device: Device) -> dict[int, float]:
    """Of every sample the limit over SoD²'s latency."""
    latencies = data.latency_ms(data.select(rows, engine=data.SUBJECT))
    folder = own_artifact.folder(model, device)
    if folder is None:
        return {}
    compiled = CompiledModel(folder, device.threads)
    with device.lock():
        return {
            sample: _limit_ms(compiled, own_artifact.inputs(config, model, sample, compiled)) / ms
            for sample, ms in latencies.items()
        }


def _limit_ms(compiled: CompiledModel, inputs: Mapping[str, Any]) -> float:
    steps, _ = roofline.measure(compiled, inputs, REPEATS)
    return sum(step.ns if step.limit_ns is None else step.limit_ns for step in steps if step.ns) / 1e6


def _ratios(rows: Sequence[Row], engines: Mapping[str, str], shares: Mapping[int, float]) -> list[float | None]:
    """Of every engine the ratio as measured and at the limit."""
    found: list[float | None] = []
    for engine in engines:
        both = data.pairs(rows, engine, data.latency_ms)
        measured = {sample: pair.theirs / pair.ours for (_, sample), pair in both.iterrows()}
        found.append(_mean(measured.values()))
        found.append(_mean(ratio / shares[sample] for sample, ratio in measured.items()))
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return data.geo_mean(known) if known else None


def _cells(line: Sequence[float | None]) -> list[Cell]:
    share, *ratios = line
    first = Cell(DASH) if share is None else Cell(f"{share:.0%}", share)
    return [first, *(Cell(DASH) if ratio is None else Cell(f"{ratio:.2f}×", ratio) for ratio in ratios)]
