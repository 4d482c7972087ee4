"""onnxruntime on the CPU, the release pinned in ort_runner.py, each configuration as good as it gets for a user.

Sequential executor, all threads inside operators, spinning thread pool (the default, and faster on an idle machine),
inputs bound to preallocated buffers. `If` is lazy in onnxruntime: only the taken branch runs. Options:

* `arena`: true is the default configuration (arena, memory pattern); false is the leanest (every tensor allocated and
  freed by itself).
* `control`: "switch" runs `If` natively; "all" runs a model whose `If`s were replaced by both branches and a selection,
  which is the protocol of the paper's baselines.
* `optimise`: false runs the graph as it is written. For the reference outputs, never for a table.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import onnx

from baselines import environment
from baselines.engine import PRELOAD, Engine, Options, Unsupported, add_hook
from devices.device import Device
from models.execute_all import execute_all

RUNNER = Path(__file__).with_name("ort_runner.py")


class OnnxRuntime(Engine):
    """onnxruntime from PyPI in an environment of its own."""

    options: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "arena": (True, False),
        "control": ("switch", "all"),
        "optimise": (True, False),
    }
    sources = ("baselines/ort_runner.py", "baselines/environment.py", "models/execute_all.py")

    def version(self) -> str:
        return environment.pinned(RUNNER, "onnxruntime")

    def build(self, model: Path, device: Device, processor: str, options: Options, out: Path) -> list[str]:
        if processor != "cpu":
            raise Unsupported(f"onnxruntime's wheel has no provider for processor '{processor}'")
        if options.get("control", "switch") == "all":
            onnx.save(execute_all(onnx.load(model, load_external_data=False)), out / "model.onnx")
        else:
            shutil.copyfile(model, out / "model.onnx")
        weights = model.with_name(f"{model.name}.data")  # of large models; the graph refers to it by this name
        if weights.exists():
            shutil.copyfile(weights, out / weights.name)  # not a link: onnx refuses to follow links to weights
        shutil.copyfile(RUNNER, out / RUNNER.name)
        add_hook(out)
        settings = {"arena": options.get("arena", True), "optimise": options.get("optimise", True)}
        (out / "options.json").write_text(json.dumps(settings) + "\n")
        python = os.path.relpath(environment.python(RUNNER), out)
        return [*PRELOAD, python, RUNNER.name]


ENGINE = OnnxRuntime()
