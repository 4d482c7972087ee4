"""MNN on the CPU, the release pinned in mnn_runner.py, converted from ONNX and run by MNN's Module interface.

The Module interface is the only one that runs `If` (lazily), and needs less memory than sessions do for the same speed.
The wheel has no other backend than the CPU. Options:

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

from baselines import bundle, environment
from baselines.engine import Engine, Options, Unsupported
from devices.device import Device

RUNNER = Path(__file__).with_name("mnn_runner.py")
CONVERTER = Path(__file__).with_name("mnn_convert.py")
TRACE = Path(__file__).with_name("mnn_trace.c")


class Mnn(Engine):
    """MNN from PyPI in an environment of its own."""

    options: ClassVar[Mapping[str, tuple[object, ...]]] = {"control": bundle.CONTROL, "session": ("kept", "new")}
    sources = ("baselines/mnn_runner.py", "baselines/mnn_convert.py", "baselines/mnn_trace.c", *bundle.SOURCES)

    def version(self) -> str:
        return environment.pinned(RUNNER, "mnn")

    def build(self, model: Path, device: Device, processor: str, options: Options, out: Path) -> list[str]:
        if processor != "cpu":
            raise Unsupported(f"MNN's wheel has no backend for processor '{processor}', only for 'cpu'")
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
        return bundle.preload(TRACE, out, bundle.place_runner(RUNNER, out, device))


ENGINE = Mnn()
