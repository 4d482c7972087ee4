# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "mnn==3.6.1",
#     "numpy==2.4.6",
# ]
# ///
"""MNN's runner, in its own environment, with libmnn_trace.so (mnn_trace.c) and the memory hook preloaded.

    env LD_PRELOAD=./libmnn_trace.so:./libmemhook.so python mnn_runner.py SAMPLES THREADS

A change of shape is handled inside `Module.forward`, so there is no bind of its own. MNN packs weights when it loads a
model, and some of them at the first inference or when a branch is first taken; mnn_trace.c counts those, since MNN
cannot tell. The tile of a
Winograd convolution is chosen for the first shape and kept: the harness begins with the smallest. 64-bit integers are
32-bit integers to MNN.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from runner import Arrays, Backend, Hook, busy_threads, main, take_output  # type: ignore[import-not-found]

take_output()  # MNN prints when it is imported

import MNN  # type: ignore[import-not-found]  # noqa: E402
from MNN import expr, nn  # noqa: E402

RESIZE, SHAPES, CREATE, ALLOC = 0, 1, 2, 3  # categories of mnn_trace.c


class Mnn(Backend):  # type: ignore[misc]
    """A module and the variables of its inputs and outputs."""

    engine = "mnn"
    version = MNN.version()

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        if not hasattr(library, "sod2_mnn_weight_bytes"):
            raise RuntimeError("libmnn_trace.so is not preloaded, which counts MNN's weights")
        self.trace = library
        self.all_packed = library.sod2_mnn_weight_bytes
        for function in (
            self.all_packed,
            library.sod2_mnn_calls,
            library.sod2_mnn_ns,
            library.sod2_mnn_alloc_in_shapes_ns,
        ):
            function.restype = ctypes.c_int64
        self.settings = json.loads(Path("settings.json").read_text())
        self.module: Any = None
        self.staged: list[Any] = []
        self.results: list[Any] = []

    def load(self, threads: int) -> None:
        self.workers = threads
        self._load_model()

    def count_threads(self, threads: int) -> None:
        """On a model of its own, since an inference of the real one would spare the first sample its first-run cost;
        and before that is loaded, whose waiting workers would count."""
        probe, _runtime = _load("probe.mnn", ["x"], ["y"], threads)
        image = _variable(np.ones((1, 64, 64, 64), np.float32))

        def infer() -> None:
            probe.forward([image])[0].read()

        self.threads = busy_threads(infer, threads)

    def _load_model(self) -> None:
        names = self.settings
        self.module, self.runtime = _load("model.mnn", names["inputs"], names["outputs"], self.workers)

    def unload(self) -> None:
        self.release()
        self.module = self.runtime = None

    def start(self, threads: int, smallest: Arrays, hook: Hook) -> tuple[int, int]:
        self.count_threads(threads)
        before = hook.settled()
        self.load(threads)
        weight_bytes = hook.settled() - before
        packed = int(self.all_packed())
        self.stage(smallest)
        self.infer()
        packed = int(self.all_packed()) - packed
        if self.trace.sod2_mnn_calls(CREATE) == 0:
            raise RuntimeError(f"libmnn_trace.so saw no kernel made: it does not fit MNN {self.version}")
        weight_bytes += packed
        self.unload()
        start = time.perf_counter_ns()
        self.load(threads)
        load_ns = time.perf_counter_ns() - start
        self.at_start = int(self.all_packed())
        return weight_bytes, load_ns

    def prepare(self, sample: int, arrays: Arrays) -> None:
        if self.settings["session"] == "new":
            self.unload()
            self.at_start = int(self.all_packed())

    def bind(self, sample: int, arrays: Arrays) -> bool:
        self.trace.sod2_mnn_reset()
        if self.module is not None:
            return False
        self._load_model()
        return True

    def phases_ns(self) -> dict[str, int]:
        resize, shapes, alloc = (int(self.trace.sod2_mnn_ns(category)) for category in (RESIZE, SHAPES, ALLOC))
        shapes -= int(self.trace.sod2_mnn_alloc_in_shapes_ns())
        return {"SL": shapes, "ST": resize - shapes - alloc, "Alloc": alloc}

    def stage(self, arrays: Arrays) -> int:
        self.staged = [_variable(array) for array in arrays]
        return sum(4 * array.size for array in arrays)

    def infer(self) -> None:
        self.results = [value.read() for value in self.module.forward(self.staged)]

    def outputs(self) -> Arrays:
        return [np.asarray(value) for value in self.results]

    def release(self) -> None:
        self.staged, self.results = [], []

    def packed_bytes(self) -> int:
        return int(self.all_packed()) - self.at_start


def _load(path: str, inputs: list[str], outputs: list[str], threads: int) -> tuple[Any, Any]:
    """A module, and its runtime, which must live as long."""
    runtime = nn.create_runtime_manager(({"backend": "CPU", "numThread": threads, "precision": "high"},))
    # Rearranged, weights are packed while loading and the file's are dropped; otherwise both stay, twice the memory at
    # the same speed.
    module = nn.load_module_from_file(
        path, inputs, outputs, runtime_manager=runtime, shape_mutable=True, rearrange=True
    )
    return module, runtime


def _variable(array: np.ndarray) -> Any:
    """A copy of the array in a buffer of MNN's."""
    kind = expr.int if array.dtype.kind in "iu" else expr.float
    value = expr.placeholder(list(array.shape), expr.NCHW, kind)
    value.write(array.astype(np.int32 if kind == expr.int else np.float32, copy=False))
    return value


if __name__ == "__main__":
    main(Mnn, sys.argv[1:])
