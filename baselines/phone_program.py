"""Engines by their makers' own programs for Android: MNN's ModuleBasic.out, TFLite's benchmark_model, TVM's tvm_rpc.

A device's file names them (key `programs`), since they cannot be had from a package. They do not speak the protocol of
engine.py. TVM's is a server (tvm_rpc.py). The others are started anew in each turn with the inputs of one sample, and
what they print is parsed here. What follows from that: loading is part of no number; peak memory is not counted,
`own_bytes` is the program's own report where it has one; threads are those that it was asked for; MNN's program does
not time its first inference.

The first word of such a bundle's command names one of these programs, which is how a measurement tells it from others.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from baselines import bundle, tflite_models, tvm_rpc
from baselines.engine import Unsupported
from baselines.samples import Sample, array_files, read_index
from baselines.session import Answer, EngineFailure, Limits
from baselines.tvm_rpc import RpcSession
from devices.device import Device

Array = np.ndarray
LINK = "program"
"""The folder of the program and its libraries, in the bundle."""


class Program(ABC):
    """One program: how it is called, and what its output means. `folder` is the bundle here."""

    engine: ClassVar[str]
    output_folder: ClassVar[str] = "."
    """Where it writes, which must be there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = json.loads((folder / "settings.json").read_text())

    @abstractmethod
    def write_inputs(self, sample: Sample, arrays: Sequence[Array], out: Path) -> None:
        """Put what the program reads of a sample into a folder, which is then pushed."""

    @abstractmethod
    def arguments(self, home: str, inputs: str, sample: Sample, threads: int) -> list[str]:
        """Words behind the program's name: the bundle lies in the folder `home`, the inputs in `inputs`."""

    @abstractmethod
    def parse(self, text: str, first: bool) -> Answer:
        """The numbers in what it printed, in the protocol's words; EngineFailure when they are not there."""

    @abstractmethod
    def read_outputs(self, folder: Path, like: Sequence[Array]) -> list[Array]:
        """The outputs that it left in its folder, in the shapes of `like` where their sizes agree."""


class ModuleBasic(Program):
    """MNN's Module interface, on text files; the inference that gives the outputs comes before those that are timed."""

    engine = "mnn"
    output_folder = "output"

    def write_inputs(self, sample: Sample, arrays: Sequence[Array], out: Path) -> None:
        names = self.settings["inputs"]
        inputs = [{"name": name, "shape": list(array.shape)} for name, array in zip(names, arrays, strict=True)]
        (out / "input.json").write_text(json.dumps({"inputs": inputs, "outputs": self.settings["outputs"]}))
        for name, array in zip(names, arrays, strict=True):
            np.savetxt(out / f"{name}.txt", array.reshape(-1), fmt="%.9g" if array.dtype.kind == "f" else "%d")

    def arguments(self, home: str, inputs: str, sample: Sample, threads: int) -> list[str]:
        no_mask, cpu, loops, high_precision = "0", "0", "1", "1"
        return [f"{home}/model.mnn", inputs, no_mask, cpu, loops, str(threads), high_precision]

    def parse(self, text: str, first: bool) -> Answer:
        latency = re.search(r"^Avg= ([0-9.e+-]+) ms", text, re.MULTILINE)
        if latency is None:
            raise EngineFailure(f"ModuleBasic.out tells no time: {_last(text)}")
        memory = re.search(r"^memoryInMB=f ([0-9.e+-]+)", text, re.MULTILINE)
        own = None if memory is None else round(float(memory[1]) * 2**20)
        return _answer(False, round(float(latency[1]) * 1e6), own_bytes=own)

    def read_outputs(self, folder: Path, like: Sequence[Array]) -> list[Array]:
        files = (folder / "output" / f"{k}.txt" for k in range(len(like)))
        return [np.loadtxt(file, np.float32, ndmin=1) for file in files if file.exists()]


class BenchmarkModel(Program):
    """TFLite's benchmark_model: a warm-up, which is the first inference at the sample's shape, and one more."""

    engine = "tflite"

    def write_inputs(self, sample: Sample, arrays: Sequence[Array], out: Path) -> None:
        models = self.folder / self.settings["models"]
        model = models / tflite_models.file_name(sample)
        if not model.exists():
            raise EngineFailure("onnx2tf did not convert the model of this sample")
        shutil.copyfile(model, out / "model.tflite")
        for k, array in enumerate(arrays):
            array.tofile(out / f"{k}.bin")

    def arguments(self, home: str, inputs: str, sample: Sample, threads: int) -> list[str]:
        names = [f"input{k}" for k in range(len(sample.shapes))]
        shapes = ":".join(",".join(map(str, shape)) for shape in sample.shapes)
        files = ",".join(f"{name}:{inputs}/{k}.bin" for k, name in enumerate(names))
        return [
            *(f"--graph={inputs}/model.tflite", f"--num_threads={threads}"),
            *("--warmup_runs=1", "--num_runs=1", "--warmup_min_secs=0", "--min_secs=0"),
            f"--use_xnnpack={str(self.settings['xnnpack']).lower()}",
            *(f"--input_layer={','.join(names)}", f"--input_layer_shape={shapes}"),
            *(f"--input_layer_value_files={files}", "--output_filepath=output.bin"),
        ]

    def parse(self, text: str, first: bool) -> Answer:
        found = re.search(
            r"Inference timings in us: Init: ([0-9.e+]+), First inference: ([0-9.e+]+), Warmup \(avg\): [0-9.e+]+,"
            r" Inference \(avg\): ([0-9.e+]+)",
            text,
        )
        if found is None:
            raise EngineFailure(f"benchmark_model tells no times: {_last(text)}")
        init, begin, again = (round(float(value) * 1000) for value in found.groups())
        return _answer(True, init + begin, bind_ns=init) if first else _answer(False, again)

    def read_outputs(self, folder: Path, like: Sequence[Array]) -> list[Array]:
        """The file has all outputs, one behind the other, then what the gates decide."""
        if not (folder / "output.bin").is_file():
            return []
        data, found, begin = (folder / "output.bin").read_bytes(), [], 0
        for array in like:
            found.append(np.frombuffer(data[begin : begin + array.nbytes], array.dtype))
            begin += array.nbytes
        return found if begin <= len(data) else []


PROGRAMS: Mapping[str, type[Program]] = {"ModuleBasic.out": ModuleBasic, "benchmark_model": BenchmarkModel}


def is_program(command: Sequence[str]) -> bool:
    """Whether the command of a bundle is such a program."""
    return Path(command[0]).name in (*PROGRAMS, tvm_rpc.SERVER)


def choose(adapter: str, name: str, device: Device, out: Path) -> list[str]:
    """The command of a bundle for Android, with the program `name` in it; [] elsewhere, where an engine's wheels run.

    Raises Unsupported where neither can be: with what to provide when the device's file names no program, or none that
    exists.
    """
    if not device.android:
        bundle.check_python(device)
        return []
    given = device.programs.get(adapter)
    wanted = f"name a folder with {name} for {device.platform} and its libraries in devices/{device.name}.yaml"
    if given is None:
        raise Unsupported(f"{adapter} has no package for {device.platform}: {wanted} (programs: {{{adapter}: FOLDER}})")
    folder = Path(os.path.expandvars(given)).expanduser()
    if not (folder / name).is_file():
        raise Unsupported(f"{folder} has no {name}: {wanted}")
    (out / LINK).symlink_to(folder.absolute())
    return [f"{LINK}/{name}"]


class ProgramSession:
    """Turns of one of PROGRAMS."""

    def __init__(
        self,
        device: Device,
        folder: Path,
        command: Sequence[str],
        *,
        samples: Path,
        outputs: str,
        threads: int,
        limits: Limits,
    ) -> None:
        """`samples` lie here, `outputs` is the scratch folder on the device."""
        self._device, self._limits, self._threads = device, limits, threads
        self._samples, self._outputs = samples, outputs
        self._index = {sample.index: sample for sample in read_index(samples)}
        self._program = PROGRAMS[Path(command[0]).name](folder)
        self._home = device.files.push(folder)
        self._command = command[0]
        self._seen: set[int] = set()
        self._last = 0
        about = {"engine": self._program.engine, "version": f"as given: {command[0]}", "threads": threads}
        self.ready: Answer = {**about, "weight_bytes": None, "load_ns": None}

    def run(self, sample: int, repeats: int, outputs: str | None = None) -> list[Answer]:
        """As Session.run; the outputs are written whether wanted or not."""
        with tempfile.TemporaryDirectory() as folder:
            arrays = [np.load(file) for file in array_files(self._samples, sample)]
            self._program.write_inputs(self._index[sample], arrays, Path(folder))
            inputs = self._device.files.push(Path(folder))
        first = sample not in self._seen
        self._seen.add(sample)
        self._last = sample
        return [
            {"sample": sample, "repeat": repeat, **self._once(sample, inputs, first and repeat == 0)}
            for repeat in range(repeats)
        ]

    def _once(self, sample: int, inputs: str, first: bool) -> Answer:
        words = self._program.arguments(self._home, inputs, self._index[sample], self._threads)
        # Both streams: what is printed where differs between releases.
        script = f'mkdir -p {self._program.output_folder} && LD_LIBRARY_PATH="${{0%/*}}" exec "$0" "$@" 2>&1'
        program = ["sh", "-c", script, f"{self._home}/{self._command}", *words]
        text, deadline = b"", time.monotonic() + self._limits.seconds
        with self._device.start(program, self._outputs, self._limits.memory_bytes) as process:
            while data := process.read(deadline - time.monotonic()):
                text += data
            if data is None:
                raise EngineFailure(f"gave no answer within {self._limits.seconds:g} s")
            end = process.end()
        printed = text.decode(errors="replace")
        if not end.startswith("ended with status 0"):
            raise EngineFailure(f"{end}: {_last(printed)}")
        return self._program.parse(printed, first)

    def pull(self, outputs: str) -> Path:
        """As Session.pull: the outputs of the last turn, made .npy files."""
        folder = self._device.files.pull(outputs)
        like = [np.load(file) for file in array_files(self._samples / "reference", self._last)]
        for k, array in enumerate(self._program.read_outputs(folder, like)):
            shaped = array.reshape(like[k].shape) if array.size == like[k].size else array
            np.save(folder / f"{self._last}.{k}.npy", shaped)
        return folder

    def close(self) -> None:
        """Nothing runs between turns."""

    def kill(self) -> None:
        """Nothing runs between turns."""


PhoneSession = ProgramSession | RpcSession


def open_session(
    device: Device, folder: Path, command: Sequence[str], *, samples: Path, outputs: str, threads: int, limits: Limits
) -> PhoneSession:
    """The turns of the program that the command names, for a measurement in place of a Session."""
    session = RpcSession if Path(command[0]).name == tvm_rpc.SERVER else ProgramSession
    return session(device, folder, command, samples=samples, outputs=outputs, threads=threads, limits=limits)


def _answer(first: bool, latency_ns: int, *, bind_ns: int = 0, own_bytes: int | None = None) -> Answer:
    sizes = {"peak_bytes": None, "own_bytes": own_bytes}
    return {"first": first, "latency_ns": latency_ns, "bind_ns": bind_ns, "copy_ns": 0, **sizes}


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "it printed nothing"
