"""MNN on the CPU, the release pinned in mnn_runner.py, converted from ONNX and run by MNN's Module interface.

The Module interface is the only one that runs `If` (lazily), and needs less memory than sessions do for the same speed.
The wheel has no other backend than the CPU. On Android the device's file names MNN's own program (phone_program.py);
"kept" and "new" are the same there. Options:

* `control`: "switch" runs `If` natively, each branch as a module with buffers of its own; "all" runs both branches and
  a selection.
* `session`: "kept" changes the shapes of one module; "new" loads the model anew for each sample, as the paper's Table 1
  has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from baselines import bundle, environment, phone_program
from baselines.engine import Engine, Options, Unsupported
from devices.device import Device

RUNNER = Path(__file__).with_name("mnn_runner.py")
CONVERTER = Path(__file__).with_name("mnn_convert.py")
TRACE = Path(__file__).with_name("mnn_trace.c")


class Mnn(Engine):
    """MNN from PyPI in an environment of its own."""

    elsewhere = True
    options: ClassVar[Mapping[str, tuple[object, ...]]] = {"control": bundle.CONTROL, "session": ("kept", "new")}
    sources = ("baselines/mnn_*", "baselines/phone_program.py", *bundle.SOURCES)

    def version(self) -> str:
        return environment.pinned(RUNNER, "mnn")

    def build(self, model: Path, device: Device, processor: str, options: Options, out: Path) -> list[str]:
        if processor != "cpu":
            raise Unsupported(f"MNN's wheel has no backend for processor '{processor}', only for 'cpu'")
        program = phone_program.choose("mnn", "ModuleBasic.out", device, out)
        source = bundle.place_model(model, options.get("control", "switch"), out)
        settings = {**bundle.argument_names(source), "session": options.get("session", "kept")}
        (out / "settings.json").write_text(json.dumps(settings) + "\n")
        probe = out / "probe.onnx"
        bundle.write_probe(probe)
        for onnx_file in (source, probe):
            target = onnx_file.with_suffix(".mnn")
            bundle.run_script(environment.python(RUNNER), CONVERTER, [onnx_file.name, target.name], out)
        for leftover in (source, probe, out / f"{model.name}.data"):
            leftover.unlink(missing_ok=True)
        return program or bundle.preload(TRACE, out, device, bundle.place_runner(RUNNER, out, device))


ENGINE = Mnn()
