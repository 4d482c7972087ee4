"""SoD²: our compiler, called as any user calls it, with the toggles of `sod2.Options` as options.

The bundle is the compiler's artifact folder; its executable `bench` has the runner and the memory hook linked in. With
the option `tuned`, kernels have the block sizes that `sod2 tune` found for the device: results/tuned/DEVICE.json.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

from baselines.engine import ROOT, BuildFailed, Engine, Options, Unsupported
from devices.device import Device


class Sod2(Engine):
    """The compiler of this repository."""

    elsewhere = True
    tolerance = 1e-4
    options: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "fusion": ("none", "static", "rdp"),
        "sep": (True, False),
        "dmp": (True, False),
        "mvc": (True, False),
        "control": ("switch", "all"),
        "weight_budget": (1, 2, 3, 4, 6, 16),
        "tolerance": ("1e-6", "1e-5", "1e-4"),
        "scratch_budget": (0, "1MiB", "4MiB", "16MiB"),
        "tuned": (True, False),
    }
    sources = ("sod2/**/*.py", "sod2/**/*.c", "sod2/**/*.h", "sod2/**/*.in", "results/tuned/*.json")

    def version(self) -> str:
        return version("sod2")

    def build(self, model: Path, device: Device, processor: str, options: Options, out: Path) -> list[str]:
        if processor != "cpu":
            raise Unsupported(f"no code generator for processor '{processor}'; the only one is for 'cpu'")
        command = [
            sys.executable,
            "-m",
            "sod2",
            "compile",
            str(model),
            "-o",
            str(out),
            *flags({name: value for name, value in options.items() if name != "tuned"}),
            *(["--tuned", str(TUNED / f"{device.name}.json")] if options.get("tuned") else []),
            *_target(device),
        ]
        result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        sys.stderr.write(result.stderr)
        if result.returncode != 0:
            lines = result.stderr.strip().splitlines()
            raise BuildFailed(lines[-1] if lines else f"sod2 compile ended with status {result.returncode}")
        return ["./bench"]


TUNED = ROOT / "results" / "tuned"
ENGINE = Sod2()


def _target(device: Device) -> list[str]:
    """Which machine the compiler compiles for, as its command line takes it."""
    known = {"target": device.platform, "cpu": device.cpu, "cc": device.cc}
    return [word for name, value in known.items() if value is not None for word in (f"--{name}", value)]


def flags(options: Options) -> list[str]:
    """Command-line form of the options: --name VALUE, and --no-name for a toggle that is off."""
    flags: list[str] = []
    for name, value in sorted(options.items()):
        if not isinstance(value, bool):
            flags += [f"--{name.replace('_', '-')}", str(value)]
        elif not value:
            flags.append(f"--no-{name}")
    return flags
