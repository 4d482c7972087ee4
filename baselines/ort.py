"""onnxruntime on the CPU, the release pinned in ort_runner.py, each configuration as good as it gets for a user.

Sequential executor, all threads inside operators, spinning thread pool (the default, and faster on an idle machine),
inputs bound to preallocated buffers. `If` is lazy in onnxruntime: only the taken branch runs. On Android it is another
release, with a runner in C (ort_android.py); rows say which. Options:

* `arena`: true is the default configuration (arena, memory pattern); false is the leanest (every tensor allocated and
  freed by itself).
* `control`: "switch" runs `If` natively; "all" runs a model whose `If`s were replaced by both branches and a selection,
  which is the protocol of the paper's baselines.
* `optimise`: false runs the graph as it is written. For the reference outputs, never for a table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from baselines import bundle, environment
from baselines.engine import Engine, Options, Unsupported
from devices.device import Device

RUNNER = Path(__file__).with_name("ort_runner.py")


class OnnxRuntime(Engine):
    """onnxruntime from PyPI in an environment of its own."""

    elsewhere = True

    options: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "arena": (True, False),
        "control": bundle.CONTROL,
        "optimise": (True, False),
    }
    sources = (
        "baselines/ort_*",
        "baselines/android*",
        "sod2/runtime/npy.*",
        "sod2/runtime/protocol.*",
        *bundle.SOURCES,
    )

    def version(self) -> str:
        return environment.pinned(RUNNER, "onnxruntime")

    def build(self, model: Path, device: Device, processor: str, options: Options, out: Path) -> list[str]:
        if processor != "cpu":
            raise Unsupported(f"onnxruntime's wheel has no provider for processor '{processor}'")
        if not device.android:
            bundle.check_python(device)
        bundle.place_model(model, options.get("control", "switch"), out)
        settings = {"arena": bool(options.get("arena", True)), "optimise": bool(options.get("optimise", True))}
        if device.android:
            # Here, so that reading the configuration does not load the compiler.
            from baselines import ort_android  # noqa: PLC0415

            return ort_android.place_runner(out, **settings)
        (out / "settings.json").write_text(json.dumps(settings) + "\n")
        return bundle.place_runner(RUNNER, out, device)


ENGINE = OnnxRuntime()
