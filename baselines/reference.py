"""The reference outputs of the samples, and how far an engine's outputs are from them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from baselines.engine import Bundle
from baselines.samples import array_files, read_index
from baselines.session import Limits, Session
from devices.device import Device


def compare(reference: Path, outputs: Path, sample: int, tolerance: float) -> tuple[float | None, str | None]:
    """Error of a sample's outputs as a share of the reference's scale, and the reason when they are not acceptable.

    The scale of an output is its largest magnitude (1 when it is all zeros); the error is the largest over outputs.
    """
    expected, actual = array_files(reference, sample), array_files(outputs, sample)
    if len(expected) != len(actual):
        return None, f"wrote {len(actual)} outputs where the reference has {len(expected)}"
    worst = 0.0
    for k, (want_file, got_file) in enumerate(zip(expected, actual, strict=True)):
        want, got = np.load(want_file), np.load(got_file)
        if want.shape != got.shape:
            return None, f"output {k} has shape {list(got.shape)} where the reference has {list(want.shape)}"
        if want.size == 0:
            continue
        if not np.isfinite(got).all():
            return None, f"output {k} has values that are not finite"
        scale = float(np.abs(want).max()) or 1.0
        worst = max(worst, float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max()) / scale)
    if worst > tolerance:
        return worst, f"wrong numbers: error {worst:.2g} of the output's scale, where {tolerance:g} is allowed"
    return worst, None


def write_reference(device: Device, folder: Path, samples: Path, limits: Limits) -> None:
    """Run the bundle of the reference engine on every sample; outputs go to `samples`/reference.

    Raises EngineFailure when it fails: without a reference nothing can be measured.
    """
    command = Bundle.read(folder).command
    session = Session(
        device, folder, command, samples=device.files.push(samples), threads=device.threads, limits=limits
    )
    outputs = device.files.scratch()
    for sample in read_index(samples):
        session.run(sample.index, 1, outputs)
    session.close()
    shutil.move(device.files.pull(outputs), samples / "reference")
