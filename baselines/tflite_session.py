"""TFLite and LiteRT behind the runner protocol, with a model of its own for each sample; copied into their bundles.

A sample's model is made when the sample is first asked for, untimed, by the converter (tflite_convert.py), in a folder
that all bundles of the model share: engines are measured in turns, so the first makes it and the others find it there.
Where the settings name no converter, models were made before on another machine (tflite_models.py). Changing the sample
is a re-initialisation: the bind makes an interpreter and lets it allocate, which includes packing of weights.

Under the memory limit of another engine, that engine's bundle lies in a folder of ours. It runs the sample once, and
its peak is the budget; the sample's model runs once as it is, and what it takes beyond the bytes that must live at once
is no intermediate. What the budget leaves of it is what the model is rematerialised to. Whether the result keeps to the
budget is seen in the rows.

Converted models give outputs of four dimensions channels last. Turning them to the model's layout is left out of the
latency, in favour of this engine.

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


class Converter:
    """The process that converts the samples of a model; started at the first request, and ends with this process."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.process: subprocess.Popen[str] | None = None

    def ask(self, **request: object) -> Any:
        """What the converter answers; RuntimeError when it fails."""
        if self.process is None:
            plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, env=plain, text=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": f"ended with status {self.process.wait()}"}
        if "error" in answer:
            raise RuntimeError(f"the converter failed: {answer['error']}")
        return answer["done"]


class Tflite(Backend):  # type: ignore[misc]
    """An interpreter of the current sample's model; `library` is the interpreter's module."""

    def __init__(self, engine: str, version: str, library: ModuleType) -> None:
        self.engine = engine
        self.version = version
        self.library = library
        self.settings = json.loads(Path("settings.json").read_text())
        self.converter = Converter(self.settings["converter"] or [])
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
        self.hook = hook
        self.load(threads)
        # Of one operator: built-in kernels of different operators have different pools, which take turns, or none.
        self.interpreter = self._interpreter(Path("probe.tflite"))
        (place,) = self.interpreter.get_input_details()
        self.stage([np.ones(place["shape"], np.float32)])
        self.threads = busy_threads(self.infer, threads)
        self.unload()
        self._convert(self.smallest, smallest)
        start = time.perf_counter_ns()
        self.bind(self.smallest, smallest)
        load_ns = time.perf_counter_ns() - start
        self.unload()
        return self.model.stat().st_size, load_ns

    def prepare(self, sample: int, arrays: Arrays) -> None:
        self._convert(sample, arrays)
        if self.settings["limit"]:
            self._keep_to(self._limit(sample), arrays)

    def _convert(self, sample: int, arrays: Arrays) -> None:
        """Have the sample's model."""
        shapes = [list(array.shape) for array in arrays]
        path = _path(self.samples, sample)
        name = f"{'-'.join('x'.join(map(str, shape)) for shape in shapes)}-{path}.tflite"
        self.model = Path(self.settings["models"]) / name
        if not self.model.exists():
            if self.settings["converter"] is None:
                raise RuntimeError("onnx2tf did not convert the model of this sample")
            self.converter.ask(out=str(self.model.absolute()), shapes=shapes, path=path)

    def _limit(self, sample: int) -> int:
        """Peak bytes of the engine whose memory is the limit, on a sample."""
        plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        command = [*self.settings["limit"], str(self.samples.absolute()), str(self.wanted)]
        words = f"run {sample} 2\nquit\n"
        result = subprocess.run(
            command, cwd="limit", input=words, env=plain, stdout=subprocess.PIPE, text=True, check=True
        )
        return max(json.loads(line)["peak_bytes"] for line in result.stdout.splitlines()[1:])

    def _keep_to(self, budget: int, arrays: Arrays) -> None:
        """Replace the sample's model by one that keeps to the budget, where recomputing can do it."""
        taken = self._peak(arrays)
        if taken <= budget:
            return
        source, self.model = self.model, Path("limited.tflite")
        live, _ = self._rematerialise(source, 1 << 62)
        self._rematerialise(source, max(0, budget - max(0, taken - live)))

    def _rematerialise(self, source: Path, budget: int) -> list[int]:
        out = str(self.model.absolute())
        return self.converter.ask(out=out, source=str(source.absolute()), budget=budget)  # type: ignore[no-any-return]

    def _peak(self, arrays: Arrays) -> int:
        """Peak bytes of the current model, by the rules of runner.py."""
        before = self.hook.settled()
        self.hook.reset()
        self.interpreter = self._interpreter(self.model)
        copied = self.stage(arrays)
        self.infer()
        peak = int(self.hook.peak()) - before - copied - self.packed_bytes()
        self.release()
        return peak

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
        places = self.interpreter.get_output_details()[: self.settings["outputs"]]  # behind them what gates decide
        found = (np.asarray(self.interpreter.get_tensor(place["index"])) for place in places)
        return [np.moveaxis(array, -1, 1) if array.ndim == 4 else array for array in found]

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
