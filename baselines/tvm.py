"""TVM's Relax VM with symbolic shapes on the CPU, the release pinned in tvm_runner.py.

Stands for the paper's "TVM with Nimble", of which no release exists: Relay, its VM and Nimble's compiler are gone,
Relax is their successor. Its wheel has next to no schedules for CPUs with symbolic shapes; tvm_schedules.py adds what a
careful user would. Compiled for the processor of the host. Options:

* `schedules`: "scheduled" adds our schedules; "stock" is the wheel's own pipeline, up to a hundred times slower.
* `memory`: "pooled" keeps freed blocks by size class (the default of the VM); "naive" frees at the last use.
* `control`: "switch" runs only the branch taken, outlined into functions; "all" runs both branches and a selection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from baselines import bundle, environment
from baselines.engine import Engine, Options, Unsupported
from devices.device import Device

FOLDER = Path(__file__).parent
RUNNER = FOLDER / "tvm_runner.py"
COMPILER = FOLDER / "tvm_compile.py"
PROBE_SIZE = 8  # small: TVM keeps the memory of the probe in pools that the model uses too
MODULES = (FOLDER / "tvm_import.py", FOLDER / "tvm_schedules.py")


class Tvm(Engine):
    """TVM from PyPI in an environment of its own."""

    options: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "schedules": ("scheduled", "stock"),
        "memory": ("pooled", "naive"),
        "control": bundle.CONTROL,
    }
    sources = ("baselines/tvm_*.py", *bundle.SOURCES)

    def version(self) -> str:
        return environment.pinned(RUNNER, "apache-tvm")

    def build(self, model: Path, device: Device, processor: str, options: Options, out: Path) -> list[str]:
        if processor != "cpu":
            raise Unsupported(f"TVM is compiled for processors of kind 'cpu' here, not for '{processor}'")
        source = bundle.place_model(model, options.get("control", "switch"), out)
        pipeline = str(options.get("schedules", "scheduled"))
        probe = out / "probe.onnx"
        bundle.write_probe(probe, PROBE_SIZE)
        for onnx_file in (source, probe):
            arguments = [onnx_file.name, f"{onnx_file.stem}.so", str(device.threads), pipeline]
            bundle.run_script(environment.python(RUNNER), COMPILER, arguments, out, MODULES)
        for leftover in (source, probe, out / f"{model.name}.data"):
            leftover.unlink(missing_ok=True)
        (out / "settings.json").write_text(json.dumps({"memory": options.get("memory", "pooled")}) + "\n")
        return bundle.place_runner(RUNNER, out)


ENGINE = Tvm()
