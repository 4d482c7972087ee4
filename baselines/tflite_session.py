"""TFLite and LiteRT behind the runner protocol, with a model of its own for each sample; copied into their bundles.

A sample's model is made when the sample is first asked for, untimed, by the converter whose command is in the bundle
(tflite_convert.py), and kept in the bundle. Changing the sample is a re-initialisation: the bind makes an interpreter
and lets it allocate, which includes packing of weights.

Weights lie in the file, which is mapped and not counted. XNNPACK packs them into memory that cannot be told from its
other buffers: the size of those that it packs in the file, the least that they take, is taken off the peak instead.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from runner import Arrays, Backend, Hook, busy_threads  # type: ignore[import-not-found]

PACKED = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL")


class Tflite(Backend):  # type: ignore[misc]
    """An interpreter of the current sample's model; `library` is the interpreter's module."""

    def __init__(self, engine: str, version: str, library: ModuleType) -> None:
        self.engine = engine
        self.version = version
        self.library = library
        self.settings = json.loads(Path("settings.json").read_text())
        self.threads = 0
        self.wanted = 0
        self.model = Path()
        self.interpreter: Any = None
        self.results: list[Any] = []

    def load(self, threads: int) -> None:
        self.wanted = threads

    def unload(self) -> None:
        self.release()

    def start(self, threads: int, smallest: Arrays, hook: Hook) -> tuple[int, int]:
        """Nothing is loaded yet; the bytes are those of the smallest sample's file."""
        self.load(threads)
        # Of one operator: built-in kernels of different operators have different pools, which take turns.
        self.interpreter = self._interpreter(Path("probe.tflite"))
        self.stage([np.ones((1, 64, 64, 64), np.float32)])
        self.threads = busy_threads(self.infer, threads)
        self.unload()
        self.prepare(self.smallest, smallest)
        start = time.perf_counter_ns()
        self.bind(self.smallest, smallest)
        load_ns = time.perf_counter_ns() - start
        self.unload()
        return self.model.stat().st_size, load_ns

    def prepare(self, sample: int, arrays: Arrays) -> None:
        shapes = json.dumps([list(array.shape) for array in arrays])
        path = _path(self.samples, sample)
        self.model = Path(f"fixed-{shapes}-{path}.tflite".replace(" ", ""))
        if not self.model.exists():
            environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
            command = [*self.settings["converter"], "model.onnx", str(self.model), shapes, path]
            result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if result.returncode != 0:
                last = result.stderr.strip().splitlines()[-1:]
                raise RuntimeError(f"the converter failed for input shapes {shapes}: {' '.join(last)}")

    def bind(self, sample: int, arrays: Arrays) -> bool:
        self.interpreter = self._interpreter(self.model)
        return True

    def _interpreter(self, model: Path) -> Any:
        options: dict[str, Any] = {}
        if not self.settings["xnnpack"]:
            resolver = self.library.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES  # type: ignore[attr-defined]
            options["experimental_op_resolver_type"] = resolver
        make = self.library.Interpreter  # type: ignore[attr-defined]
        interpreter = make(str(model), num_threads=self.wanted, **options)
        interpreter.allocate_tensors()
        return interpreter

    def stage(self, arrays: Arrays) -> int:
        for place, array in zip(self.interpreter.get_input_details(), arrays, strict=True):
            self.interpreter.set_tensor(place["index"], array)
        return sum(array.nbytes for array in arrays)

    def infer(self) -> None:
        self.interpreter.invoke()

    def outputs(self) -> Arrays:
        places = self.interpreter.get_output_details()
        return [np.asarray(self.interpreter.get_tensor(place["index"])) for place in places]

    def release(self) -> None:
        self.interpreter = None

    def packed_bytes(self) -> int:
        return _weight_bytes(self.interpreter) if self.settings["xnnpack"] else 0


def _weight_bytes(interpreter: Any) -> int:
    """Bytes of the constant operands of the operators whose weights XNNPACK packs."""
    tensors = {tensor["index"]: tensor for tensor in interpreter.get_tensor_details()}
    operators = interpreter._get_ops_details()
    computed = {index for operator in operators for index in operator["outputs"]}
    computed |= {place["index"] for place in interpreter.get_input_details()}
    packed = {
        int(index)
        for operator in operators
        if operator["op_name"] in PACKED
        for index in operator["inputs"]
        if index in tensors and index not in computed
    }
    return sum(math.prod(tensors[i]["shape"].tolist()) * np.dtype(tensors[i]["dtype"]).itemsize for i in packed)


def _path(samples: Path, sample: int) -> str:
    """The branches that a sample takes, as samples.json says; empty for models without `If`."""
    return json.loads((samples / "samples.json").read_text())[sample]["path"] or ""
