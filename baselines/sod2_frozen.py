"""SoD² without anything dynamic: every sample has an artifact of its own, compiled for its shapes and its path.

All dims are constants: offsets, versions and loop bounds are decided by the compiler and nothing is checked. Branches
that are not taken are gone; what decides between them is computed, so that the work is the same as SoD²'s, but nothing
depends on it. The difference is what being dynamic costs.
Artifacts are made when a sample is first asked for, untimed (frozen_session.py). The options are SoD²'s defaults.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from baselines import bundle
from baselines.engine import ROOT, Engine, Options, Unsupported
from baselines.sod2 import ENGINE as SOD2
from devices.device import Device

SESSION = Path(__file__).with_name("frozen_session.py")


class Frozen(Engine):
    """The compiler of this repository, on static models."""

    tolerance = SOD2.tolerance
    sources = (
        "baselines/frozen_session.py",
        "baselines/tflite_convert.py",
        *bundle.SOURCES,
        *SOD2.sources,
    )

    def version(self) -> str:
        return SOD2.version()

    def build(self, model: Path, device: Device, processor: str, options: Options, out: Path) -> list[str]:
        if processor != "cpu":
            raise Unsupported(f"no code generator for processor '{processor}'; the only one is for 'cpu'")
        bundle.place_model(model, "switch", out)
        shutil.copyfile(SESSION, out / SESSION.name)
        return ["env", f"PYTHONPATH={bundle.relative(ROOT, out)}", sys.executable, SESSION.name]


ENGINE = Frozen()
