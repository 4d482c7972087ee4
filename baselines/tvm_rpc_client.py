"""The client of TVM's RPC server on a phone, run here by the Python of TVM's environment:

    python tvm_rpc_client.py PORT LIBRARY SAMPLES THREADS

PORT is one of this machine that leads to the server, LIBRARY the model's path there. Speaks the runner's side of the
protocol (engine.py); tvm_rpc.py says what its numbers are.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from runner import Run, converse, load_sample, save_outputs, take_output  # type: ignore[import-not-found]

ANSWERS = take_output()

import tvm  # type: ignore[import-not-found]  # noqa: E402
from tvm import relax, rpc  # noqa: E402

CONNECT_S = 20.0
"""How long the server may take to start."""
FACTS = json.loads(Path("model.json").read_text())
"""What tvm_compile.py says of the model."""


def connect(port: int) -> Any:
    """A session with the server; RuntimeError when there is none."""
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            return rpc.connect("127.0.0.1", port)
        except tvm.error.InternalError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"TVM's RPC server did not answer within {CONNECT_S:g} s") from error
            time.sleep(0.1)


class Remote:
    """The model in a virtual machine on the phone."""

    def __init__(self, port: int, library: str, samples: Path) -> None:
        session = connect(port)
        memory = json.loads(Path("settings.json").read_text())["memory"]
        self.samples = samples
        self.device = session.cpu()
        self.make_shape = session.get_function("ffi.Shape")
        self.machine = relax.VirtualMachine(session.load_module(library), self.device, memory_cfg=memory)
        self.timed = self.machine.time_evaluator("invoke_stateful", self.device, number=1)

    def run(self, sample: int, repeats: int, folder: Path | None) -> list[dict[str, Any]]:
        """Run a sample; a line for each inference. Outputs of the last go to the folder."""
        arrays = load_sample(self.samples, sample)
        arguments = [tvm.runtime.tensor(array, self.device) for array in arrays]
        if FACTS["dims"]:
            arguments.append(self.make_shape(*(arrays[k].shape[axis] // factor for k, axis, factor in FACTS["dims"])))
        self.machine.set_input("main", *arguments)
        lines = []
        for repeat in range(repeats):
            (seconds,) = self.timed("main").results
            figures = {"latency_ns": round(seconds * 1e9), "bind_ns": 0, "copy_ns": 0}
            sizes = {"peak_bytes": None, "own_bytes": None}
            lines.append({"sample": sample, "repeat": repeat, "first": False, **figures, **sizes})
        if folder is not None:
            found = self.machine.get_outputs("main")
            outputs = [found] if isinstance(found, tvm.runtime.Tensor) else found
            save_outputs(folder, sample, [value.numpy() for value in outputs])
        return lines


def main(port: str, library: str, samples: str, threads: str) -> None:
    """Obey the harness's commands."""

    def start() -> tuple[dict[str, Any], Run]:
        remote = Remote(int(port), library, Path(samples))
        # Code without a schedule is not timed by itself there (tvm_profile.py), so its share is known at the ends only.
        partly = None if FACTS["unscheduled"] else 0.0
        about = {
            "engine": "tvm",
            "version": f"{tvm.__version__}, server as given",
            "threads": int(threads),
            "weight_bytes": None,
            "load_ns": None,
            "unscheduled": partly if FACTS["scheduled"] else 1.0,
        }
        return about, remote.run

    converse(start, sys.stdin, ANSWERS)


if __name__ == "__main__":
    main(*sys.argv[1:])
