# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "apache-tvm==0.27.0.post1",
#     "apache-tvm-ffi==0.1.14.post1",
#     "ml-dtypes==0.6.0",
#     "numpy==2.4.6",
#     "onnx==1.23.2",
#     "protobuf==7.36.2",
#     "typing-extensions==4.16.0",
# ]
# ///
"""TVM's runner, in its own environment: `env LD_PRELOAD=./libmemhook.so python tvm_runner.py SAMPLES THREADS`.

The VM has no step for new shapes: sizes are computed as it runs. Threads are counted on a small model of its own. The
share of the time that is code without a schedule is measured once for a bundle (tvm_profile.py) and kept in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from runner import Arrays, Backend, Hook, busy_threads, main, take_output  # type: ignore[import-not-found]

take_output()
os.environ["TVM_NUM_THREADS"] = sys.argv[2]  # read when the library starts its threads
os.environ["TVM_BIND_THREADS"] = "0"  # as other engines: bound threads of processes in turns would share a processor

import tvm  # type: ignore[import-not-found]  # noqa: E402
from tvm import relax  # noqa: E402

FACTS = json.loads(Path("model.json").read_text())
"""What tvm_compile.py says of the model."""
PROFILE = Path("unscheduled.json")
PROBE_SIZE = 8  # of bundle.write_probe's image, as tvm.py has it made


class Tvm(Backend):  # type: ignore[misc]
    """The virtual machine with the bundle's library."""

    engine = "tvm"
    version = tvm.__version__

    def __init__(self) -> None:
        self.settings = json.loads(Path("settings.json").read_text())
        self.dims = FACTS["dims"]
        self.machine: Any = None
        self.staged: list[Any] = []
        self.result: Any = None

    def load(self, threads: int) -> None:
        library = tvm.runtime.load_module("model.so")
        self.machine = relax.VirtualMachine(library, tvm.cpu(), memory_cfg=self.settings["memory"])

    def unload(self) -> None:
        self.release()
        self.machine = None

    def start(self, threads: int, smallest: Arrays, hook: Hook) -> tuple[int, int]:
        before = hook.settled()
        start = time.perf_counter_ns()
        self.load(threads)
        load_ns = time.perf_counter_ns() - start
        # The library's constants stay with the library, which is never unloaded.
        weight_bytes = hook.settled() - before
        probe = relax.VirtualMachine(tvm.runtime.load_module("probe.so"), tvm.cpu(), memory_cfg=self.settings["memory"])
        image = tvm.runtime.tensor(np.ones((1, 64, PROBE_SIZE, PROBE_SIZE), np.float32), tvm.cpu())
        self.threads = busy_threads(lambda: probe["main"](image), threads)
        self.unscheduled = _unscheduled(self.samples, threads)
        return int(weight_bytes), load_ns

    def stage(self, arrays: Arrays) -> int:
        self.staged = [tvm.runtime.tensor(array, tvm.cpu()) for array in arrays]
        if self.dims:
            sizes = [arrays[k].shape[axis] // factor for k, axis, factor in self.dims]
            self.staged.append(tvm.runtime.ShapeTuple(sizes))
        return sum(array.nbytes for array in arrays)

    def infer(self) -> None:
        self.result = None
        self.result = self.machine["main"](*self.staged)

    def outputs(self) -> Arrays:
        results = [self.result] if isinstance(self.result, tvm.runtime.Tensor) else list(self.result)
        return [np.asarray(value.numpy()) for value in results]

    def release(self) -> None:
        self.staged, self.result = [], None


def _unscheduled(samples: Path, threads: int) -> float:
    """Share of the time in functions that none of our schedules fits; all of it where there are no schedules."""
    if not FACTS["scheduled"]:
        return 1.0
    if not FACTS["unscheduled"]:
        return 0.0
    if not PROFILE.exists():
        plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        command = [sys.executable, "tvm_profile.py", str(samples), str(threads)]
        result = subprocess.run(command, env=plain, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"tvm_profile.py failed: {' '.join(result.stderr.strip().splitlines()[-1:])}")
        PROFILE.write_text(result.stdout)
    return float(json.loads(PROFILE.read_text())["unscheduled"])


if __name__ == "__main__":
    main(Tvm, sys.argv[1:])
