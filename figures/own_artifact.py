"""SoD²'s own artifact of a model, where a figure looks into it or runs it: of this machine's, in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from baselines.samples import array_files
from devices.device import Device
from figures import data
from sod2.artifact import CompiledModel
from sod2.graph import Array


def folder(model: str, device: Device) -> Path | None:
    """The bundle; None where it holds no library that a process of this machine can load."""
    found = Path(f"results/bundles/{device.name}/cpu/{data.SUBJECT}/{model}")
    return found if (found / "model.so").exists() else None


def inputs(config: dict[str, Any], model: str, sample: int, compiled: CompiledModel) -> dict[str, Array]:
    """The inputs of a sample, by name."""
    place = Path(f"results/samples/{config['protocol']['selection']}/{model}")
    arrays = [np.load(path) for path in array_files(place, sample)]
    return {entry["name"]: array for entry, array in zip(compiled.manifest["inputs"], arrays, strict=True)}
