# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "openvino==2026.4.1",
#     "openvino-telemetry==2025.2.0",
#     "numpy==2.4.6",
# ]
# ///
"""OpenVINO's runner, in its own environment.

    env LD_PRELOAD=./libmemhook.so python openvino_runner.py SAMPLES THREADS

Inputs are wrapped and outputs seen without a copy, which the wrapper's `infer` makes of all outputs unless it is told.
OpenVINO packs weights and compiles kernels at the first inference of each shape, and keeps both: they are weights to
us, so each first inference is followed by `CompiledModel.release_memory`, which frees the intermediates and nothing
else (repeats cost the same before and after it).
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import openvino as ov  # type: ignore[import-not-found]
from openvino import opset15 as ops  # type: ignore[import-not-found]
from runner import Arrays, Backend, Hook, busy_threads, main  # type: ignore[import-not-found]


class OpenVino(Backend):  # type: ignore[misc]
    """A compiled model of the CPU plugin and one infer request."""

    engine = "openvino"
    version = ov.__version__.split("-")[0]
    packs_late = True

    def __init__(self) -> None:
        self.core = ov.Core()
        self.compiled: Any = None
        self.request: Any = None
        self.staged: list[Any] = []

    def load(self, threads: int) -> None:
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            # Pinned threads of several engines, measured in turns, would fight for the same processors.
            "ENABLE_CPU_PINNING": False,
        }
        self.compiled = self.core.compile_model(self.core.read_model("model.onnx"), "CPU", settings)
        self.request = self.compiled.create_infer_request()
        # On a model of its own: an inference of the real one would spare the first sample its first-run cost.
        probe = self.core.compile_model(_matmul(), "CPU", settings).create_infer_request()
        probe.set_input_tensor(ov.Tensor(np.ones((512, 512), np.float32)))
        self.threads = busy_threads(probe.infer, threads)

    def start(self, threads: int, smallest: Arrays, hook: Hook) -> tuple[int, int]:
        self.load(threads)
        self.stage(smallest)
        self.infer()  # packs the weights
        self.trim()
        loaded = hook.settled()
        self.unload()
        weight_bytes = loaded - hook.settled()
        start = time.perf_counter_ns()
        self.load(threads)
        return weight_bytes, time.perf_counter_ns() - start

    def unload(self) -> None:
        self.release()
        self.request = self.compiled = None

    def stage(self, arrays: Arrays) -> int:
        self.staged = [ov.Tensor(array, shared_memory=True) for array in arrays]
        for k, tensor in enumerate(self.staged):
            self.request.set_input_tensor(k, tensor)
        return 0

    def infer(self) -> None:
        self.request.infer(share_outputs=True)

    def outputs(self) -> Arrays:
        return [self.request.get_output_tensor(k).data for k in range(len(self.compiled.outputs))]

    def release(self) -> None:
        self.staged = []

    def trim(self) -> None:
        self.compiled.release_memory()


def _matmul() -> Any:
    """A product of matrices, large enough to need every thread."""
    left = ops.parameter([512, 512], np.float32)
    return ov.Model([ops.matmul(left, ops.constant(np.ones((512, 512), np.float32)), False, False)], [left])


if __name__ == "__main__":
    main(OpenVino, sys.argv[1:])
