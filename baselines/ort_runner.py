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
"""onnxruntime's side of the runner protocol; runs in its own environment, in a bundle's folder.

    env LD_PRELOAD=./libmemhook.so python ort_runner.py SAMPLES THREADS

The model is loaded twice. The first session, without arena and dropped at once, tells how many bytes the model itself
keeps live. With an arena, loading leaves room in it that later inferences fill: taking the bytes live after *that* load
as the base would hide them. Inputs are bound without a copy, outputs are allocated by onnxruntime as for any caller
who does not know their shape, and those of the inference before are released first. Weights of large models lie in a
file that onnxruntime maps: pages of a file are not counted, so `weight_bytes` has of those only what it packs anew.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]


class Hook:
    """The preloaded counter of live bytes."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        if not hasattr(library, "sod2_hook_live"):
            raise RuntimeError("the memory hook is not preloaded: start with LD_PRELOAD=./libmemhook.so")
        self.live, self.peak, self.reset = library.sod2_hook_live, library.sod2_hook_peak, library.sod2_hook_reset
        self.live.restype = self.peak.restype = ctypes.c_int64
        self.reset.restype = None


class Runner:
    """One session, and the sample that is bound to it."""

    def __init__(self, model: str, samples: Path, threads: int, arena: bool, optimise: bool) -> None:
        self.hook = Hook()
        self.samples = samples
        lean = _session(model, threads, False, optimise)
        self.loaded = self._live()
        del lean
        # By what unloading frees: loading also allocates what the library needs once and keeps.
        self.weight_bytes = self.loaded - self._live()
        before = _threads()
        start = time.perf_counter_ns()
        self.session = _session(model, threads, arena, optimise)
        self.load_ns = time.perf_counter_ns() - start
        self.threads = 1 + _threads() - before
        self.sample: int | None = None
        self.binding: Any = None
        self.staged: list[np.ndarray] = []
        self.staged_bytes = 0
        self.copy_ns = 0

    def run(self, sample: int, repeats: int, outputs: Path | None) -> None:
        """Run a sample `repeats` times and print a line for each."""
        first = sample != self.sample
        if first:
            self._stage(sample)
        for repeat in range(repeats):
            line = self._inference(first and repeat == 0) | {"sample": sample, "repeat": repeat}
            if outputs is not None and repeat == repeats - 1:
                outputs.mkdir(parents=True, exist_ok=True)
                for k, value in enumerate(self.binding.get_outputs()):
                    np.save(outputs / f"{sample}.{k}.npy", value.numpy())
            answer(line)

    def _stage(self, sample: int) -> None:
        """Bind the inputs of a sample, in buffers that stay theirs until the next sample."""
        self.binding, self.staged = None, []
        before = self._live()
        arrays = [np.load(self.samples / f"{sample}.{k}.npy") for k in range(len(self.session.get_inputs()))]
        start = time.perf_counter_ns()
        self.binding = self.session.io_binding()
        for argument, array in zip(self.session.get_inputs(), arrays, strict=True):
            self.binding.bind_ortvalue_input(argument.name, ort.OrtValue.ortvalue_from_numpy(array))
        self.copy_ns = time.perf_counter_ns() - start
        self.staged = arrays
        self.staged_bytes = self._live() - before
        self.sample = sample

    def _inference(self, first: bool) -> dict[str, object]:
        self.binding.clear_binding_outputs()
        for argument in self.session.get_outputs():
            self.binding.bind_output(argument.name, "cpu")
        self.hook.reset()
        start = time.perf_counter_ns()
        self.session.run_with_iobinding(self.binding)
        latency = time.perf_counter_ns() - start
        return {
            "first": first,
            "latency_ns": latency,
            "copy_ns": self.copy_ns,
            "bind_ns": 0,
            "peak_bytes": self.hook.peak() - self.loaded - self.staged_bytes,
            "own_bytes": None,
        }

    def _live(self) -> int:
        gc.collect()
        return int(self.hook.live())


def _session(model: str, threads: int, arena: bool, optimise: bool) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = arena
    options.enable_mem_pattern = arena
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def answer(line: dict[str, object]) -> None:
    """Print one JSON line for the harness."""
    PROTOCOL.write(json.dumps(line) + "\n")
    PROTOCOL.flush()


def serve(samples: Path, threads: int) -> None:
    """Load the bundle's model and obey commands until `quit` or the end of input."""
    runner = Runner("model.onnx", samples, threads, **json.loads(Path("options.json").read_text()))
    answer(
        {
            "ready": True,
            "engine": "onnxruntime",
            "version": ort.__version__,
            "threads": runner.threads,
            "weight_bytes": runner.weight_bytes,
            "load_ns": runner.load_ns,
        }
    )
    for line in sys.stdin:
        match line.split():
            case ["run", sample, repeats]:
                runner.run(int(sample), int(repeats), None)
            case ["run", sample, repeats, outputs]:
                runner.run(int(sample), int(repeats), Path(outputs))
            case ["quit"]:
                return
            case _:
                answer({"error": f"unknown command {line.strip()!r}"})


if __name__ == "__main__":
    # Whatever else prints goes to standard error: the protocol keeps the real standard output to itself.
    PROTOCOL = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        serve(Path(sys.argv[1]), int(sys.argv[2]))
    except Exception as error:
        answer({"error": " ".join(str(error).split())})
        sys.exit(1)
