"""OpenVINO on the CPU, the release pinned in openvino_runner.py: the strongest engine for x86.

ONNX files are read as they are, symbolic dims included, `If` runs only the branch taken. Latency hint, one stream,
single precision (the default would be bfloat16 where the processor has it), all threads inside operators. Options:

* `control`: "switch" runs `If` natively; "all" runs both branches and a selection.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from baselines import bundle, environment
from baselines.engine import Engine, Options, Unsupported
from devices.device import Device

RUNNER = Path(__file__).with_name("openvino_runner.py")


class OpenVino(Engine):
    """OpenVINO from PyPI in an environment of its own."""

    options: ClassVar[Mapping[str, tuple[object, ...]]] = {"control": bundle.CONTROL}
    sources = ("baselines/openvino_runner.py", *bundle.SOURCES)

    def version(self) -> str:
        return environment.pinned(RUNNER, "openvino")

    def build(self, model: Path, device: Device, processor: str, options: Options, out: Path) -> list[str]:
        if processor != "cpu":
            raise Unsupported(f"OpenVINO has a plugin for 'cpu' here, none for processor '{processor}'")
        bundle.place_model(model, options.get("control", "switch"), out)
        return bundle.place_runner(RUNNER, out, device)


ENGINE = OpenVino()
