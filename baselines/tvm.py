"""TVM's Relax VM with symbolic shapes on the CPU, the release pinned in tvm_runner.py.

Stands for the paper's "TVM with Nimble", of which no release exists: Relay, its VM and Nimble's compiler are gone,
Relax is their successor. Its wheel has next to no schedules for CPUs with symbolic shapes; tvm_schedules.py adds what a
careful user would. Compiled for the processor of the host, or the core that the device's file names. On Android that
names TVM's own RPC server (tvm_rpc.py). Options:

* `pipeline`: "scheduled" adds our schedules; "stock" is the wheel's own pipeline, up to a hundred times slower: for a
  footnote, never for a ratio, since rows say which share of the time is code without a schedule (tvm_profile.py).
* `memory`: "pooled" keeps freed blocks by size class (the default of the VM); "naive" frees at the last use.
* `control`: "switch" runs only the branch taken, outlined into functions; "all" runs both branches and a selection.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from baselines import bundle, environment, phone_program, tvm_rpc
from baselines.engine import Engine, Options, Unsupported
from devices.device import Device

FOLDER = Path(__file__).parent
RUNNER = FOLDER / "tvm_runner.py"
COMPILER = FOLDER / "tvm_compile.py"
PROFILER = FOLDER / "tvm_profile.py"
LIBRARIES = FOLDER.parent / "results" / "tvm"
PROBE_SIZE = 8  # small: TVM keeps the memory of the probe in pools that the model uses too
MODULES = (
    FOLDER / "tvm_import.py",
    FOLDER / "tvm_lower.py",
    FOLDER / "tvm_schedules.py",
    FOLDER.parent / "models" / "assembly.py",
)


class Tvm(Engine):
    """TVM from PyPI in an environment of its own."""

    elsewhere = True
    options: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "pipeline": ("scheduled", "stock"),
        "memory": ("pooled", "naive"),
        "control": bundle.CONTROL,
    }
    sources = ("baselines/tvm_*.py", "baselines/phone_program.py", "baselines/android.py", *bundle.SOURCES)

    def version(self) -> str:
        return environment.pinned(RUNNER, "apache-tvm")

    def build(self, model: Path, device: Device, processor: str, options: Options, out: Path) -> list[str]:
        if processor != "cpu":
            raise Unsupported(f"TVM is compiled for processors of kind 'cpu' here, not for '{processor}'")
        server = phone_program.choose("tvm", tvm_rpc.SERVER, device, out)
        source = bundle.place_model(model, options.get("control", "switch"), out)
        compiled = {source: str(options.get("pipeline", "scheduled"))}
        if not server:
            # The stock pipeline has no parallel loops; what its probe can count is the threads of TVM's pool.
            compiled[out / "probe.onnx"] = "scheduled"
            bundle.write_probe(out / "probe.onnx", PROBE_SIZE)
        weights = out / f"{model.name}.data"
        for onnx_file, how in compiled.items():
            read = [onnx_file, *([weights] if weights.exists() and onnx_file is source else [])]
            library = _library(read, [str(device.threads), how, *_cross(device)])
            for suffix in (".so", ".json"):
                os.link(library.with_suffix(suffix), out / f"{onnx_file.stem}{suffix}")
        (out / "settings.json").write_text(json.dumps({"memory": options.get("memory", "pooled")}) + "\n")
        if server:
            return [*server, *tvm_rpc.place_client(out)]
        shutil.copyfile(PROFILER, out / PROFILER.name)
        return bundle.place_runner(RUNNER, out, device)


def _cross(device: Device) -> list[str]:
    """What tvm_compile.py must know of a device that is not this machine: triple, core and linker."""
    if device.platform is None:
        return []
    core = device.cpu or "generic"
    if device.android:
        # Here, so that reading the configuration does not load the compiler.
        from baselines import android  # noqa: PLC0415

        return [android.TRIPLE, core, *android.library_linker()]
    machine = device.platform.rpartition("-")[2]
    return [f"{machine}-linux-gnu", core, *device.target(static=False).cc]


def _library(files: Sequence[Path], options: Sequence[str]) -> Path:
    """The library compiled from an ONNX file (and its weights), which are used up, with its JSON beside it.

    Kept by content: engines that differ in what happens at run time share one, and so do the two forms of control flow
    of a model without branches.
    """
    state = hashlib.sha256(repr(options).encode())
    for path in (*files, COMPILER, RUNNER, *MODULES):
        state.update(path.read_bytes())
    folder = LIBRARIES / state.hexdigest()[:24]
    LIBRARIES.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another engine may be compiling just this
        if not folder.exists():
            _compile(files, options, folder)
    for path in files:
        path.unlink(missing_ok=True)
    return folder / "library.so"


def _compile(files: Sequence[Path], options: Sequence[str], folder: Path) -> None:
    """Compile the first of the files into the folder, which appears when it is complete; the files are used up."""
    work = Path(tempfile.mkdtemp(dir=LIBRARIES))
    try:
        for path in files:  # moved, not linked: `onnx` refuses to read weights that have two names
            path.rename(work / path.name)
        arguments = [files[0].name, "library.so", *options]
        bundle.run_script(environment.python(RUNNER), COMPILER, arguments, work, MODULES)
        for path in files:
            (work / path.name).unlink()
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


ENGINE = Tvm()
