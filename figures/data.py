"""Statistics of rows.

The value of an engine on a sample is the median over its repeats (latency; the first run at a shape is apart) or the
largest figure of any run, the first included (peak memory). An engine is compared with SoD² sample by sample: a sample
on which either has no value is left out for both. The ratio of a model is the geometric mean over its samples, the
ratio of a table the geometric mean over models. The paper's own formula, the ratio of geometric means of per-model
averages, is computed beside it, over the same samples.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from baselines.rows import Row

SUBJECT = "sod2"
"""Name of the engine that ratios are relative to."""

Values = Mapping[int, float]
"""Sample -> value."""

Statistic = Callable[[Sequence[Row]], Values]


@dataclass(frozen=True)
class Comparison:
    """An engine against SoD²; a ratio above 1 means that SoD² needs less."""

    ratio: float  # geometric mean of paired ratios
    paper_ratio: float  # by the paper's formula
    models: int
    samples: int


def select(rows: Iterable[Row], **fields: object) -> list[Row]:
    """Rows whose fields have these values."""
    return [row for row in rows if all(getattr(row, name) == value for name, value in fields.items())]


def latency_ms(rows: Sequence[Row]) -> Values:
    """Median latency of the repeats of each sample, in milliseconds."""
    return {s: statistics.median(times) / 1e6 for s, times in _repeats(rows).items()}


def peak_mib(rows: Sequence[Row]) -> Values:
    """Peak memory of intermediates of each sample, in MiB, over all its inferences."""
    peaks: dict[int, float] = defaultdict(float)
    for row in rows:
        if row.status == "ok" and row.sample is not None and row.peak_bytes is not None:
            peaks[row.sample] = max(peaks[row.sample], row.peak_bytes / 2**20)
    return dict(peaks)


def spread(rows: Sequence[Row]) -> list[float]:
    """Interquartile range over median of the repeats of each (model, engine, sample) that has at least two."""
    shares = []
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.device, row.model, row.engine].append(row)
    for group in groups.values():
        for times in _repeats(group).values():
            if len(times) > 1:
                low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
                shares.append((high - low) / middle)
    return shares


def geo_mean(values: Iterable[float]) -> float:
    """Geometric mean of positive numbers; ValueError when there is none or one is not positive."""
    numbers = list(values)
    if not numbers or min(numbers) <= 0:
        raise ValueError(f"a geometric mean needs positive numbers, not {numbers}")
    return math.exp(math.fsum(map(math.log, numbers)) / len(numbers))


def compare(rows: Sequence[Row], engine: str, statistic: Statistic) -> Comparison | None:
    """The engine against SoD² over all models of the rows; None when no sample has both."""
    pairs = []
    for model in sorted({row.model for row in rows}):
        ours = statistic(select(rows, model=model, engine=SUBJECT))
        theirs = statistic(select(rows, model=model, engine=engine))
        if both := sorted(ours.keys() & theirs.keys()):
            pairs.append(([ours[s] for s in both], [theirs[s] for s in both]))
    if not pairs:
        return None
    ratio = geo_mean(geo_mean(t / o for o, t in zip(ours, theirs, strict=True)) for ours, theirs in pairs)
    averages = [(statistics.fmean(ours), statistics.fmean(theirs)) for ours, theirs in pairs]
    paper_ratio = geo_mean(theirs for _, theirs in averages) / geo_mean(ours for ours, _ in averages)
    return Comparison(ratio, paper_ratio, len(pairs), sum(len(ours) for ours, _ in pairs))


def _repeats(rows: Sequence[Row]) -> dict[int, list[int]]:
    """Latencies of the good inferences of each sample, first runs left out."""
    times: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        if row.status == "ok" and not row.first and row.sample is not None and row.latency_ns is not None:
            times[row.sample].append(row.latency_ns)
    return dict(times)
