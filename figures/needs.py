"""What a figure is drawn from, where that is not all models and samples of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """A figure's module states them as `NEEDS`; without it, every default below holds.

    `models` are measured whether or not the configuration has them. `engines` are (adapter, options), each of which
    some engine of the configuration must have; config/OVERLAY.yaml adds them, whose name is the figure's own unless
    told. `selection` chooses the samples, one of matrix.SELECTIONS.
    """

    models: tuple[str, ...] | None = None
    engines: tuple[tuple[str, Mapping[str, object]], ...] = ()
    selection: str | None = None
    overlay: str | None = None
