"""The pipeline: from an ONNX model to an artifact, one pass after the other. The only reader of Options.

A toggle picks between two functions of one signature, here and nowhere else.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx

from sod2 import (
    artifact,
    attention,
    branches,
    conv_sums,
    frontend,
    functions,
    fusion,
    order,
    ranks,
    rdp,
    rewrite,
    sharing,
    simplify,
    versions,
    widening,
)
from sod2.artifact import CompiledModel
from sod2.codegen import model as codegen
from sod2.codegen.steps import Emission
from sod2.codegen.target import Target, default_cache, host
from sod2.errors import Error
from sod2.fusion import FusionPlan
from sod2.graph import Graph
from sod2.packing import Tile
from sod2.rdp import Analysis
from sod2.storage import Storage


@dataclass(frozen=True)
class Options:
    """What the compiler may do. The defaults are SoD²; each field is one of the paper's ablations."""

    fusion: str = "rdp"  # none | static | rdp
    sep: bool = True  # order the steps for the lowest peak, else the file's order
    dmp: bool = True  # place buffers from the peak outwards, else best fit as engines do at run time
    mvc: bool = True  # several versions of a hot kernel, chosen by shape, else one
    control: str = "switch"  # switch | all: run the taken branch, or every branch and pick
    weight_budget: float = 3.0  # packed weights, as a multiple of the raw ones

    def __post_init__(self) -> None:
        for name, accepted in (("fusion", ("none", "static", "rdp")), ("control", ("switch", "all"))):
            if getattr(self, name) not in accepted:
                raise Error(f"option {name} is {getattr(self, name)!r}; accepted are {', '.join(accepted)}")
        for name in ("sep", "dmp", "mvc"):
            if not isinstance(getattr(self, name), bool):
                raise Error(f"option {name} is {getattr(self, name)!r}; accepted are True and False")
        if not isinstance(self.weight_budget, int | float) or not self.weight_budget >= 1:
            raise Error(f"option weight_budget is {self.weight_budget!r}; accepted are numbers from 1 on")


@dataclass(frozen=True)
class Plan:
    """Every pass's result, for inspection: `sod2 explain` prints them."""

    graph: Graph
    analysis: Analysis
    fusion: FusionPlan
    storage: Storage


def analyze(source: str | Path | onnx.ModelProto, control: str = "switch") -> Analysis:
    """RDP of a model: symbolic facts of every tensor. Needs no C compiler."""
    return _ranked(*_decided(simplify.run(frontend.load(source, control))))[1]


def _decided(graph: Graph) -> tuple[Graph, Analysis]:
    """The graph with branches that are decided resolved, and its analysis.

    Not the graph that the analysis has: in that one, requirements have become bounds of the inputs' symbols.
    """
    analysis = rdp.analyze(graph)
    while (smaller := branches.run(graph, analysis)) is not graph:
        graph = simplify.run(smaller)
        analysis = rdp.analyze(graph)
    return graph, analysis


def _ranked(graph: Graph, analysis: Analysis) -> tuple[Graph, Analysis]:
    """The graph in which only outputs may have several ranks, as far as ranks.py can do that, and its analysis."""
    while (split := ranks.run(graph, analysis)) is not graph:
        graph, analysis = _decided(frontend.without_dead(split))
    return graph, analysis


_FUSE: dict[str, Callable[[Graph, Analysis], FusionPlan]] = {
    "none": fusion.separate,
    "static": lambda graph, analysis: fusion.plan(graph, rdp.analyze_static(graph, analysis)),
    "rdp": fusion.plan,
}


def plan(source: str | Path | onnx.ModelProto, options: Options | None = None) -> Plan:
    """All passes up to code generation."""
    options = options or Options()
    graph, _ = _ranked(*_decided(simplify.run(frontend.load(source, options.control))))
    if options.fusion != "none":
        graph = rewrite.run(graph)
        graph = attention.fuse(graph, rdp.analyze(graph))
        graph = conv_sums.fuse(graph, rdp.analyze(graph))
    analysis = rdp.analyze(graph)
    if (wide := widening.run(graph, analysis)) is not graph:
        graph = simplify.fold_constants(wide)
        analysis = rdp.analyze(graph)
    fused = _FUSE[options.fusion](graph, analysis)
    arrange = order.near_optimal if options.sep else order.as_given
    return Plan(graph, analysis, fused, sharing.assign(graph, analysis, arrange(graph, analysis, fused)))


def emit(source: str | Path | onnx.ModelProto, options: Options, target: Target) -> Emission:
    """All passes and the generated code: what artifact.write turns into files."""
    planned = plan(source, options)
    tile = Tile(target.lanes, target.mr, target.nr)
    kept = versions.plan(
        planned.graph,
        planned.fusion.groups,
        planned.analysis,
        tile,
        several=options.mvc,
        budget=options.weight_budget,
    )
    emission = Emission(planned.analysis, planned.storage, target, kept)
    codegen.emit(emission)
    return emission


def build(source: str | Path | onnx.ModelProto, options: Options, target: Target, out: Path) -> Path:
    """Compile a model into the artifact folder `out` (renamed into place when complete); returns it."""
    return artifact.write(emit(source, options, target), options.dmp, asdict(options), out)


def compile(source: str | Path | onnx.ModelProto, options: Options | None = None, threads: int = 1) -> CompiledModel:
    """Compile for this machine and load. Builds are cached by the content of model, options, compiler and sod2."""
    options, target = options or Options(), host()
    folder = default_cache() / "models" / _key(source, options, target)
    if not (folder / "manifest.json").exists():
        build(source, options, target, folder)
    return CompiledModel(folder, threads)


def _key(source: str | Path | onnx.ModelProto, options: Options, target: Target) -> str:
    digest = hashlib.sha256(artifact.code_digest().encode())
    digest.update(json.dumps([asdict(options), asdict(target)], sort_keys=True).encode())
    light, heavy = functions.without_data(frontend.read(source))  # protobuf serializes nothing above 2 GB
    digest.update(light.SerializeToString(deterministic=True))
    for tensor in heavy:
        digest.update(tensor.name.encode())
        digest.update(np.ascontiguousarray(onnx.numpy_helper.to_array(tensor)).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:32]
