# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "onnxruntime==1.32.0",
#     "numpy==2.4.6",
#     "flatbuffers==25.12.19",
#     "packaging==25.0",
#     "protobuf==7.36.2",
# ]
# ///
"""onnxruntime's runner, in its own environment: `env LD_PRELOAD=./libmemhook.so python ort_runner.py SAMPLES THREADS`.

The model is loaded twice. The first session, without arena and dropped at once, tells how many bytes the model itself
keeps live. With an arena, loading leaves room in it that later inferences fill: these bytes count as intermediates.
Inputs are bound without a copy, outputs are allocated by onnxruntime as for any caller who does not know their shape.
Weights of large models lie in a file that onnxruntime maps: pages of a file are not counted, so `weight_bytes` has of
those only what it packs anew.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from runner import Arrays, Backend, Hook, main, take_output, thread_count  # type: ignore[import-not-found]

take_output()

import onnxruntime as ort  # type: ignore[import-untyped]  # noqa: E402


class OnnxRuntime(Backend):  # type: ignore[misc]
    """One session, and the inputs and outputs that are bound to it."""

    engine = "onnxruntime"
    version = ort.__version__

    def __init__(self) -> None:
        settings = json.loads(Path("settings.json").read_text())
        self.arena, self.optimise = settings["arena"], settings["optimise"]
        self.session: Any = None
        self.binding: Any = None

    def load(self, threads: int) -> None:
        self.session = _session(threads, self.arena, self.optimise)

    def unload(self) -> None:
        self.release()
        self.session = None

    def start(self, threads: int, smallest: Arrays, hook: Hook) -> tuple[int, int]:
        lean = _session(threads, False, self.optimise)
        loaded = hook.settled()
        del lean
        weight_bytes = loaded - hook.settled()
        before = thread_count()
        start = time.perf_counter_ns()
        self.load(threads)
        load_ns = time.perf_counter_ns() - start
        self.threads = 1 + thread_count() - before  # the caller works too
        self.reserved_bytes = hook.settled() - loaded
        return int(weight_bytes), load_ns

    def stage(self, arrays: Arrays) -> int:
        self.binding = self.session.io_binding()
        for argument, array in zip(self.session.get_inputs(), arrays, strict=True):
            self.binding.bind_ortvalue_input(argument.name, ort.OrtValue.ortvalue_from_numpy(array))
        self._bind_outputs()
        return 0

    def infer(self) -> None:
        self.session.run_with_iobinding(self.binding)

    def outputs(self) -> Arrays:
        return [np.asarray(value.numpy()) for value in self.binding.get_outputs()]

    def discard(self) -> None:
        self.binding.clear_binding_outputs()
        self._bind_outputs()

    def release(self) -> None:
        self.binding = None

    def _bind_outputs(self) -> None:
        for argument in self.session.get_outputs():
            self.binding.bind_output(argument.name, "cpu")


def _session(threads: int, arena: bool, optimise: bool) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = arena
    options.enable_mem_pattern = arena
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return ort.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main(OnnxRuntime, sys.argv[1:])
