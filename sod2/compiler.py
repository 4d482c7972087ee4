"""The pipeline: from an ONNX model to an artifact, one pass after the other. The only reader of Options.

A toggle picks between two functions of one signature, here and nowhere else.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx

from sod2 import (
    artifact,
    attention,
    branches,
    frontend,
    functions,
    fusion,
    group_norm,
    identities,
    order,
    ranks,
    rdp,
    rematerialize,
    rewrite,
    row_moves,
    sharing,
    simplify,
    static_facts,
    unranked,
    versions,
    widening,
)
from sod2.artifact import CompiledModel
from sod2.codegen import model as codegen
from sod2.codegen.steps import Emission
from sod2.codegen.target import Target, default_cache, host
from sod2.errors import Error, UnsupportedError
from sod2.fusion import FusionPlan
from sod2.graph import Graph
from sod2.rdp import Analysis
from sod2.rematerialize import Table
from sod2.storage import Storage
from sod2.unranked import UnrankedModel


def _are_bytes(value: object, least: int) -> bool:
    """Whether an option is a number of bytes from `least` on that an arena can have (runtime/plan.c)."""
    return type(value) is int and least <= value <= 2**62


@dataclass(frozen=True)
class Options:
    """What the compiler may do. The defaults are SoD²; each field is one of the paper's ablations."""

    fusion: str = "rdp"  # none | static | rdp
    sep: bool = True  # order the steps for the lowest peak, else the file's order
    dmp: bool = True  # place first what lives at the peak, else best fit as engines do at run time
    mvc: bool = True  # several versions of a hot kernel, chosen by shape, else one
    control: str = "switch"  # switch | all: run the taken branch, or every branch and pick
    weight_budget: float = 3.0  # packed weights, as a multiple of the raw ones
    tolerance: float = 1e-5  # error that versions may add, as a part of an output's scale (versions.py)
    scratch_budget: int = 0  # bytes by which scratch of kernels may raise the peak where that makes them faster
    memory_budget: int | None = None  # bytes of the arena, beyond which tensors are computed twice or a shape refused

    def __post_init__(self) -> None:
        for name, accepted in (("fusion", ("none", "static", "rdp")), ("control", ("switch", "all"))):
            if getattr(self, name) not in accepted:
                raise Error(f"option {name} is {getattr(self, name)!r}; accepted are {', '.join(accepted)}")
        for name in ("sep", "dmp", "mvc"):
            if not isinstance(getattr(self, name), bool):
                raise Error(f"option {name} is {getattr(self, name)!r}; accepted are True and False")
        if not isinstance(self.weight_budget, int | float) or not self.weight_budget >= 1:
            raise Error(f"option weight_budget is {self.weight_budget!r}; accepted are numbers from 1 on")
        if not isinstance(self.tolerance, int | float) or not self.tolerance > 0:
            raise Error(f"option tolerance is {self.tolerance!r}; accepted are numbers above 0")
        if not _are_bytes(self.scratch_budget, 0):
            raise Error(f"option scratch_budget is {self.scratch_budget!r}; accepted are bytes from 0 to 2^62")
        if self.scratch_budget and self.memory_budget is not None:
            raise Error(f"option scratch_budget is {self.scratch_budget}; with a memory_budget only 0 is accepted")
        if self.memory_budget is not None and not _are_bytes(self.memory_budget, 1):
            raise Error(f"option memory_budget is {self.memory_budget!r}; accepted are None and bytes from 1 to 2^62")


@dataclass(frozen=True)
class Plan:
    """Every pass's result, for inspection: `sod2 explain` prints them."""

    graph: Graph
    analysis: Analysis
    fusion: FusionPlan
    storage: Storage
    tables: tuple[Table, ...] = ()  # with a memory budget: plans that need less


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


Know = Callable[[Graph], Analysis]
_KNOW: dict[str, Know | None] = {"none": None, "static": static_facts.analyze, "rdp": rdp.analyze}


def _rewritten(graph: Graph, know: Know) -> Graph:
    """The graph after every rewriting whose condition is proved."""
    for move in (identities.drop, row_moves.run):
        graph = move(graph, know(graph))
    graph = rewrite.run(graph, analyze=know)
    for fuse in (group_norm.fuse, attention.fuse):
        graph = fuse(graph, know(graph))
    return graph


def _fused(graph: Graph, analysis: Analysis, know: Know | None) -> FusionPlan:
    if know is None:
        return fusion.separate(graph, analysis)
    return fusion.plan(graph, analysis, analysis if know is rdp.analyze else know(graph))


def plan(source: str | Path | onnx.ModelProto, options: Options | None = None, know: Know | None = None) -> Plan:
    """All passes up to code generation. `know` is the analysis that rewriting and fusion rely on, where it is not to be
    that of the option `fusion`."""
    options = options or Options()
    know = know or _KNOW[options.fusion]
    graph, _ = _ranked(*_decided(simplify.run(frontend.load(source, options.control))))
    if know is not None:
        graph = _rewritten(graph, know)
    analysis = rdp.analyze(graph)
    if (wide := widening.run(graph, analysis)) is not graph:
        graph = simplify.fold_constants(wide)
        analysis = rdp.analyze(graph)
    fused = _fused(graph, analysis, know)
    arrange = order.near_optimal if options.sep else order.as_given
    order_of_steps = arrange(graph, analysis, fused)
    storage = sharing.assign(graph, analysis, order_of_steps)
    if options.memory_budget is None:
        return Plan(graph, analysis, fused, storage)
    if outside := next(iter(storage.blocks), None):
        raise UnsupportedError(f"tensor {outside!r} grows with the trips of a loop: no memory_budget can be kept")
    return Plan(graph, analysis, fused, storage, rematerialize.tables(analysis, order_of_steps, storage))


def kept_versions(planned: Plan, options: Options, target: Target) -> versions.Kept:
    """Which versions of each convolution are kept for a machine."""
    return versions.plan(
        planned.graph,
        planned.fusion.groups,
        planned.analysis,
        target.tile,
        several=options.mvc,
        budget=options.weight_budget,
        tolerance=options.tolerance,
    )


def emit(source: str | Path | onnx.ModelProto, options: Options, target: Target) -> Emission:
    """All passes and the generated code: what artifact.write turns into files."""
    return emit_tables(source, options, target)[0]


def emit_tables(source: str | Path | onnx.ModelProto, options: Options, target: Target) -> list[Emission]:
    """The code of the plan, and of those that need less memory within a budget. All have the same weights."""
    planned = plan(source, options)
    kept = kept_versions(planned, options, target)
    emissions = [Emission(planned.analysis, planned.storage, target, kept, scratch_budget=options.scratch_budget)]
    for table in planned.tables:
        versions_of_copies = {copy: kept[node] for copy, node in table.copies.items() if node in kept}
        shared = emissions[0].weights
        emissions.append(Emission(table.analysis, table.storage, target, {**kept, **versions_of_copies}, shared))
    for emission in emissions:
        codegen.emit(emission)
    return emissions


def build(source: str | Path | onnx.ModelProto, options: Options, target: Target, out: Path) -> Path:
    """Compile a model into the artifact folder `out` (renamed into place when complete); returns it."""
    emission, *leaner = emit_tables(source, options, target)
    budget = options.memory_budget or 0
    return artifact.write(emission, options.dmp, asdict(options), out, leaner=leaner, budget=budget)


def compile(source: str | Path | onnx.ModelProto, options: Options | None = None, threads: int = 1) -> CompiledModel:
    """Compile for this machine and load. Builds are cached by the content of model, options, compiler and sod2.

    A model with an input of no declared rank is compiled when its runs tell the rank (unranked.py).
    """
    model, options = frontend.read(source), options or Options()
    if unranked.inputs(model):
        return UnrankedModel(model, lambda ranked: _cached(ranked, options), threads)
    return CompiledModel(_cached(model, options), threads)


def _cached(model: onnx.ModelProto, options: Options) -> Path:
    """The artifact of a model for this machine, built unless it is there. One that another process puts there meanwhile
    stays: it may be in use."""
    target = host()
    cache = default_cache() / "models"
    folder = cache / _key(model, options, target)
    if (folder / "manifest.json").exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".build-") as own:
        made = build(model, options, target, Path(own, folder.name))
        try:
            made.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    return folder


def _key(model: onnx.ModelProto, options: Options, target: Target) -> str:
    digest = hashlib.sha256(artifact.code_digest().encode())
    digest.update(json.dumps([asdict(options), asdict(target)], sort_keys=True).encode())
    light, heavy = functions.without_data(model)  # protobuf serializes nothing above 2 GB
    digest.update(light.SerializeToString(deterministic=True))
    for tensor in heavy:
        digest.update(tensor.name.encode())
        digest.update(np.ascontiguousarray(onnx.numpy_helper.to_array(tensor)).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:32]
