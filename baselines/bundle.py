"""What the bundles of all Python engines have in common: the model in the wanted form, and the command that runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from baselines import environment
from baselines.engine import PRELOAD, BuildFailed, Unsupported, add_hook
from devices.device import Device
from models.assembly import graphs
from models.execute_all import execute_all

CONTROL = ("switch", "all")
"""Values of the option `control`: `If` as the engine runs it, or both branches and a selection, as in the paper."""
SOURCES = (
    "baselines/bundle.py",
    "baselines/runner.py",
    "baselines/environment.py",
    "models/assembly.py",
    "models/execute_all.py",
)
RUNNER = Path(__file__).with_name("runner.py")


def place_model(model: Path, control: object, out: Path) -> Path:
    """Put the model into the folder `out` as model.onnx, with `If` replaced for control "all"; returns its path.

    The indices of max poolings are dropped where nothing reads them. onnxruntime and OpenVINO would compute them, MNN
    3.6.1 computes a pooling with indices wrongly at the padding, TVM and TFLite have no operator for them.
    """
    target = out / "model.onnx"
    graph = onnx.load(model, load_external_data=False)
    if control == "all":
        graph = execute_all(graph)
    drop_unused_indices(graph)
    onnx.save(graph, target)
    weights = model.with_name(f"{model.name}.data")  # of large models; the graph refers to it by this name
    if weights.exists():
        # Not linked: the `onnx` package refuses to read a file with several names, the model's own then too.
        shutil.copyfile(weights, out / weights.name)
    return target


def drop_unused_indices(model: onnx.ModelProto) -> None:
    """Remove the second output of every MaxPool whose second output nothing reads, in place."""
    parts = list(graphs(model.graph))
    read = {name for graph in parts for node in graph.node for name in node.input}
    read |= {value.name for graph in parts for value in graph.output}
    for graph in parts:
        for node in graph.node:
            if node.op_type == "MaxPool" and len(node.output) == 2 and node.output[1] not in read:
                del node.output[1]


def argument_names(path: Path) -> dict[str, list[str]]:
    """Names of the inputs that are no weights, and of the outputs, of an ONNX file."""
    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in weights]
    return {"inputs": inputs, "outputs": [value.name for value in graph.output]}


def write_probe(path: Path, size: int = 64) -> None:
    """Write a model of one convolution, large enough to need every thread, on which a runner counts them.

    Its input and output are x and y of shape (1, 64, size, size). A model of its own, because an inference of the
    measured one would spare that one's first run some of its cost.
    """
    weights = numpy_helper.from_array(np.ones((64, 64, 3, 3), np.float32), "w")
    shape = [1, 64, size, size]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [weights],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def check_python(device: Device) -> None:
    """Raise Unsupported for a device on which an engine whose packages are wheels cannot run."""
    if device.android:
        raise Unsupported("its packages are wheels for Linux, which Android's C library does not load")
    if device.platform is not None and device.python is None:
        raise Unsupported(f"its packages run under Python, and devices/{device.name}.yaml names none (key 'python')")


def place_runner(script: Path, out: Path, device: Device) -> list[str]:
    """Put a runner script, what it imports and the memory hook into the folder `out`; returns the bundle's command.

    For a device that is not this machine the engine's packages come along, to be run by the device's own Python, as
    `check_python` has found that they can be.
    """
    for source in (script, RUNNER):
        shutil.copyfile(source, out / source.name)
    add_hook(out, device)
    if device.platform is None or device.python is None:
        return [*PRELOAD, relative(environment.python(script), out), script.name]
    packages = environment.packages(script, device.platform.rpartition("-")[2], device.python)
    (out / "site").symlink_to(relative(packages, out))
    return [*PRELOAD, "PYTHONPATH=site", device.python, script.name]


def run_script(python: Path, script: Path, arguments: Sequence[str], out: Path, modules: Sequence[Path] = ()) -> None:
    """Run a script, which imports these modules, by the Python of its environment, with the folder `out` as its own.

    Raises BuildFailed with the last line that it printed when it fails. The script is copied first: beside the modules
    of this package, which have the names of engines, it would import those instead of the engines.
    """
    copies = [Path(shutil.copy(source, out)) for source in (script, *modules)]
    command = [python.absolute(), script.name, *arguments]
    result = subprocess.run(command, cwd=out, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if result.returncode != 0:
        lines = result.stdout.decode(errors="replace").strip().splitlines()
        how = f"{script.name} ended with status {result.returncode}"
        raise BuildFailed(f"{how}: {lines[-1].strip()}" if lines else how)
    for copy in copies:
        copy.unlink()


def relative(path: Path, out: Path) -> str:
    """A path as seen from the folder `out`; symbolic links, as interpreters of environments are, are kept."""
    return os.path.relpath(path, out)


def preload(source: Path, out: Path, device: Device, command: list[str]) -> list[str]:
    """Compile a C file into the folder `out`, to be preloaded before the hook; returns the command changed so."""
    # Here, so that reading the configuration does not load the compiler.
    from sod2.codegen import target  # noqa: PLC0415

    machine = device.target(static=False)
    library = f"lib{source.stem}.so"
    target.link_shared(machine, target.compile_objects(machine, [source], (), target.default_cache()), out / library)
    return [word.replace("LD_PRELOAD=", f"LD_PRELOAD=./{library}:") for word in command]
