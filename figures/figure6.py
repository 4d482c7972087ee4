"""Figure 6: how much faster each optimisation makes a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, ladder
from figures.layout import Table

NEEDS = ladder.NEEDS
_LADDER = ladder.Ladder(
    artefact="figure6",
    title="Figure 6. Speedup as SoD²'s optimisations are switched on, over none of them.",
    caption=(
        "No opt is the static engine: fusion on what static shape inference proves, the file's order, best-fit"
        " placement, one version of each kernel. A gain is the speedup over the rung before. "
    ),
    statistic=data.latency_ms,
    gain=lambda before, after: f"{before / after:.2f}×",
    bar=lambda ratio: 1 / ratio,
    label="Speedup over No opt",
)


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line per model, one column per optimisation."""
    return _LADDER.table(config, rows, device)
