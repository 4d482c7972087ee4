"""What the bundles of all Python engines have in common: the model in the wanted form, and the command that runs it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import onnx

from baselines import environment
from baselines.engine import PRELOAD, add_hook
from models.execute_all import execute_all

CONTROL = ("switch", "all")
"""Values of the option `control`: `If` as the engine runs it, or both branches and a selection (the paper's protocol)."""
SOURCES = ("baselines/bundle.py", "baselines/runner.py", "baselines/environment.py", "models/execute_all.py")
RUNNER = Path(__file__).with_name("runner.py")


def place_model(model: Path, control: object, out: Path) -> Path:
    """Put the model into the folder `out` as model.onnx, with `If` replaced for control "all"; returns its path."""
    target = out / "model.onnx"
    if control == "all":
        onnx.save(execute_all(onnx.load(model, load_external_data=False)), target)
    else:
        shutil.copyfile(model, target)
    weights = model.with_name(f"{model.name}.data")  # of large models; the graph refers to it by this name
    if weights.exists():
        os.link(weights, out / weights.name)  # hundreds of megabytes, shared by the bundles of all configurations
    return target


def has_if(model: Path) -> bool:
    """Whether the graph of an ONNX file has an `If`."""
    return any(node.op_type == "If" for node in onnx.load(model, load_external_data=False).graph.node)


def place_runner(script: Path, out: Path) -> list[str]:
    """Put a runner script, what it imports and the memory hook into the folder `out`; returns the bundle's command."""
    for source in (script, RUNNER):
        shutil.copyfile(source, out / source.name)
    add_hook(out)
    return [*PRELOAD, relative(environment.python(script), out), script.name]


def relative(path: Path, out: Path) -> str:
    """A path as seen from the folder `out`; symbolic links, as interpreters of environments are, are kept."""
    return os.path.relpath(path, out)


def preload(source: Path, out: Path, command: list[str]) -> list[str]:
    """Compile a C file into the folder `out`, to be preloaded before the hook; returns the command changed so."""
    # Here, so that reading the configuration does not load the compiler.
    from sod2.codegen import target  # noqa: PLC0415

    host = target.host()
    library = f"lib{source.stem}.so"
    target.link_shared(host, target.compile_objects(host, [source], (), target.default_cache()), out / library)
    return [word.replace("LD_PRELOAD=", f"LD_PRELOAD=./{library}:") for word in command]
