"""The share of TVM's time that is spent in functions without a schedule of ours, by the VM's own instrumentation.

    python tvm_profile.py SAMPLES THREADS

Prints {"unscheduled": share} over one inference of every sample, timed call by call; tvm_runner.py says it once for a
bundle. A process of its own, since the VM's pools would keep what it allocates, and the first runs would be no first
runs any more.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Set
from pathlib import Path
from typing import Any

import numpy as np
from runner import take_output  # type: ignore[import-not-found]
from tvm.relax import VMInstrumentReturnKind  # type: ignore[import-not-found]
from tvm_runner import FACTS, Tvm  # type: ignore[import-not-found]


class Stopwatch:
    """The VM's instrument: sums the time of calls to functions of these names, which call none of each other."""

    def __init__(self, names: Set[str]) -> None:
        self.names = names
        self.spent_ns = 0
        self.start = 0

    def __call__(self, _function: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> int:
        """Called by the VM before and after each call."""
        if name in self.names:
            if before:
                self.start = time.perf_counter_ns()
            else:
                self.spent_ns += time.perf_counter_ns() - self.start
        return int(VMInstrumentReturnKind.NO_OP)


def unscheduled_share(samples: Path, threads: int, names: Set[str]) -> float:
    """Time in functions of these names over all time, in one inference of every sample."""
    backend = Tvm()
    backend.load(threads)
    watch = Stopwatch(names)
    backend.machine.set_instrument(watch)
    total = 0
    for sample in range(len(json.loads((samples / "samples.json").read_text()))):
        files = sorted(samples.glob(f"{sample}.*.npy"), key=lambda path: int(path.name.split(".")[1]))
        backend.stage([np.load(file) for file in files])
        start = time.perf_counter_ns()
        backend.infer()
        total += time.perf_counter_ns() - start
    return watch.spent_ns / total


if __name__ == "__main__":
    share = unscheduled_share(Path(sys.argv[1]), int(sys.argv[2]), set(FACTS["unscheduled"]))
    print(json.dumps({"unscheduled": share}), file=take_output(), flush=True)
