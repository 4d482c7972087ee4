"""Statistics of rows.

The value of an engine on a sample is the median over its repeats (latency; the first run at a shape is apart) or the
largest figure of any run, the first included (peak memory). Where turns have several inferences, the first of a turn
is no repeat: it wakes threads and fills caches that other engines have emptied. An engine is compared with SoD² sample
by sample: a sample on which either has no value is left out for both. The ratio of a model is the geometric mean over
its samples, the ratio of a table the geometric mean over models. The paper's own formula, the ratio of geometric means
of per-model averages, is computed beside it, over the same samples.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

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


def hole(rows: Iterable[Row]) -> str:
    """Why rows give no number: status and reason of the first that says so."""
    return next((f"{row.status}: {row.reason.rstrip('.')}" for row in rows if row.reason is not None), "no rows")


def latency_ms(rows: Sequence[Row]) -> Values:
    """Median latency of the repeats of each sample, in milliseconds."""
    return _values(_repeats(rows).groupby("sample")["latency_ns"].median() / 1e6)


def first_ms(rows: Sequence[Row]) -> Values:
    """Latency of the first run of each sample, in milliseconds."""
    table = _good(rows)
    return _values(table[table["first"]].groupby("sample")["latency_ns"].median() / 1e6)


def peak_mib(rows: Sequence[Row]) -> Values:
    """Peak memory of intermediates of each sample, in MiB, over all its inferences."""
    return _values(_good(rows).groupby("sample")["peak_bytes"].max() / 2**20)


def rounds(rows: Sequence[Row]) -> dict[int, dict[int, float]]:
    """Median latency of the repeats of each round in milliseconds: sample -> round -> value."""
    found: dict[int, dict[int, float]] = {}
    for (sample, repeat), latency in _repeats(rows).groupby(["sample", "repeat"])["latency_ns"].median().items():
        found.setdefault(int(sample), {})[int(repeat)] = float(latency) / 1e6
    return found


def latencies(rows: Sequence[Row]) -> pd.DataFrame:
    """Repeats of each (device, model, engine, sample): `median`, `mean` and `p90` in milliseconds, and `spread`.

    The spread is the interquartile range over the median.
    """
    groups = _repeats(rows).groupby(["device", "model", "engine", "sample"])["latency_ns"]
    low, high = groups.quantile(0.25), groups.quantile(0.75)
    columns = {"median": groups.median() / 1e6, "mean": groups.mean() / 1e6, "p90": groups.quantile(0.9) / 1e6}
    return pd.DataFrame({**columns, "spread": (high - low) / groups.median(), "repeats": groups.size()})


def geo_mean(values: Iterable[float]) -> float:
    """Geometric mean of positive numbers; ValueError when there is none or one is not positive."""
    numbers = list(values)
    if not numbers or min(numbers) <= 0:
        raise ValueError(f"a geometric mean needs positive numbers, not {numbers}")
    return math.exp(math.fsum(map(math.log, numbers)) / len(numbers))


def pairs(rows: Sequence[Row], engine: str, statistic: Statistic, subject: str = SUBJECT) -> pd.DataFrame:
    """`theirs` and `ours` by (model, sample), where both an engine and the subject have a value."""
    by_model = {
        model: pd.DataFrame(
            {
                side: pd.Series(dict(statistic(select(rows, model=model, engine=name))), dtype=float)
                for side, name in (("theirs", engine), ("ours", subject))
            }
        )
        for model in sorted({row.model for row in rows})
    }
    return pd.concat(by_model, names=["model", "sample"]).dropna() if by_model else pd.DataFrame()


def compare(rows: Sequence[Row], engine: str, statistic: Statistic) -> Comparison | None:
    """The engine against SoD² over all models of the rows; None when no sample has both."""
    both = pairs(rows, engine, statistic)
    if both.empty:
        return None
    averages = both.groupby(level="model").mean()
    paper_ratio = geo_mean(averages["theirs"]) / geo_mean(averages["ours"])
    logarithms = np.log(both["theirs"] / both["ours"]).groupby(level="model").mean()
    return Comparison(math.exp(logarithms.mean()), paper_ratio, len(averages), len(both))


def _good(rows: Sequence[Row]) -> pd.DataFrame:
    """The rows of inferences that gave numbers, as a table with the fields of Row as columns."""
    names = [field.name for field in dataclasses.fields(Row)]
    found = [vars(row) for row in rows if row.status == "ok" and row.sample is not None]
    numbers = {"first": bool, "sample": int, "latency_ns": float, "peak_bytes": float}
    return pd.DataFrame(found, columns=names).astype(numbers)


def _repeats(rows: Sequence[Row]) -> pd.DataFrame:
    """The rows of good inferences without first runs, and without the first of a turn that has several."""
    table = _good(rows)
    several = table["protocol"].map(lambda protocol: protocol.get("inferences", 1) > 1).astype(bool)
    return table[~(table["first"] | (several & (table["place"] == 0)))]


def _values(series: pd.Series[float]) -> Values:
    return {int(sample): float(value) for sample, value in series.dropna().items()}
