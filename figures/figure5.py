"""Figure 5: how much of the memory of intermediates each optimisation saves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baselines.rows import Row
from devices.device import Device
from figures import data, ladder
from figures.layout import Table

NEEDS = ladder.NEEDS
_LADDER = ladder.Ladder(
    artefact="figure5",
    title="Figure 5. Peak memory of intermediates as SoD²'s optimisations are switched on, over none of them.",
    caption=(
        "No opt is the static engine: fusion on what static shape inference proves, the file's order, best-fit"
        " placement, one version of each kernel. A gain is the share of the rung before that is saved; a negative one"
        " costs memory, as versions may whose kernels need more scratch. "
    ),
    statistic=data.peak_mib,
    gain=lambda before, after: f"{100 * (1 - after / before):.1f} %",
    bar=lambda ratio: ratio,
    label="Peak memory over No opt",
)


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line per model, one column per optimisation."""
    return _LADDER.table(config, rows, device)
