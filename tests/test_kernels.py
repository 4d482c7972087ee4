"""The generated code of every operator on the operator's own examples, against numpy.

Each example becomes one node, compiled twice: with a symbol for every dim of every input, and with all inputs but the
first as constants, which is how weights arrive. Many nodes share one compiled model, because compiling is what costs.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from sod2 import artifact, fusion, order, rdp, sharing, versions
from sod2.artifact import CompiledModel
from sod2.codegen import model as codegen
from sod2.codegen.steps import Emission
from sod2.codegen.target import host
from sod2.errors import Error, UnsupportedError
from sod2.graph import Graph, Node, Value
from sod2.symbolic import symbol
from tests.test_ops import CASES, Case

VARIANTS = ("symbols", "constants")
BATCH = 64  # nodes in one compiled model
CONTROL_FLOW = ("Switch", "Combine")  # no kernels: tests/test_compiler.py runs them


def is_stored(case: Case, operand: int, variant: str) -> bool:
    """Whether an input of the example is a constant of the model."""
    return operand in case.op.shape_inputs or (variant == "constants" and operand > 0)


def graph_of(members: list[tuple[str, Case]], variant: str) -> Graph:
    """One graph of independent nodes; tensors are prefixed by the id of their example."""
    nodes, inputs, constants = [], [], {}
    for name, case in members:
        operands = tuple(f"{name}/{t}" if t else "" for t in case.node.inputs)
        results = tuple(f"{name}/{t}" for t in case.node.outputs)
        nodes.append(Node(name, case.op.name, operands, results, case.node.attrs, (), case.op.domain))
        for k, (tensor, array) in enumerate(zip(operands, case.arrays, strict=True)):
            if array is None:
                continue
            if is_stored(case, k, variant):
                constants[tensor] = array
            else:
                dims = tuple(symbol(f"{tensor}.{axis}") for axis in range(array.ndim))
                inputs.append(Value(tensor, array.dtype, dims))
    outputs = tuple(t for n in nodes for t in n.outputs)
    return Graph("kernels", tuple(inputs), outputs, tuple(nodes), constants, 21)


def emitted(graph: Graph) -> Emission:
    analysis = rdp.analyze(graph)
    fused = fusion.plan(graph, analysis, analysis)
    placed = sharing.assign(graph, analysis, order.as_given(graph, analysis, fused))
    target = host()
    kept = versions.plan(graph, fused.groups, analysis, target.tile, several=True, budget=3.0, tolerance=1e-5)
    emission = Emission(analysis, placed, target, kept)
    codegen.emit(emission)
    return emission


def refusal(name: str, case: Case, variant: str) -> str:
    """The sentence with which the compiler refuses an example, empty when it takes it."""
    try:
        emitted(graph_of([(name, case)], variant))
    except UnsupportedError as error:
        return str(error)
    return ""


NAMED: dict[str, Case] = {p.id: p.values[0] for p in CASES if p.values[0].op.name not in CONTROL_FLOW}


NUMBER = {name: k for k, name in enumerate(NAMED)}


def run_batch(names: list[str], variant: str) -> dict[str, np.ndarray]:
    """Outputs of the nodes of one compiled model."""
    emission = emitted(graph_of([(n, NAMED[n]) for n in names], variant))
    feeds = {
        f"{n}/{t}": a
        for n in names
        for k, (t, a) in enumerate(zip(NAMED[n].node.inputs, NAMED[n].arrays, strict=True))
        if a is not None and not is_stored(NAMED[n], k, variant)
    }
    with TemporaryDirectory() as folder:
        artifact.write(emission, True, {}, Path(folder, "model"))
        return CompiledModel(Path(folder, "model")).run(feeds)


@dataclass(frozen=True)
class Batch:
    """Some examples of one variant: the refused ones with the compiler's sentence, and the outputs of the others."""

    refused: Mapping[str, str]
    outputs: Mapping[str, np.ndarray]
    failure: Error | None = None  # of the whole batch: kept, so that it is met once and not by every example


@functools.cache
def batch_of(variant: str, number: int) -> Batch:
    names = list(NAMED)[number * BATCH : (number + 1) * BATCH]
    sentences = {name: refusal(name, NAMED[name], variant) for name in names}
    refused = {n: s for n, s in sentences.items() if s}
    try:
        return Batch(refused, run_batch([n for n in names if n not in refused], variant))
    except Error as error:
        return Batch(refused, {}, error)


# What the compiler says it does not take, by variant: the sentence has to say so.
REFUSED = {
    "symbols": {
        "GatherND": "only after execution",
        "Resize": "only after execution",
        "Squeeze": "only after execution",
    },
    "constants": {
        "GroupNormalization": "per channel",
        "RMSNormalization": "broadcast",
        "Resize": "only after execution",
        "Squeeze": "only after execution",
    },
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("variant", VARIANTS)
def test_kernel(variant: str, name: str) -> None:
    """Compiled results are numpy's: within 1e-5 of the output's scale, integers exactly."""
    case, batch = NAMED[name], batch_of(variant, NUMBER[name] // BATCH)
    if batch.failure:
        raise batch.failure
    if name in batch.refused:
        assert REFUSED[variant][case.op.name] in batch.refused[name]
        return
    for tensor, expected in zip(case.node.outputs, case.expected(), strict=True):
        actual = batch.outputs[f"{name}/{tensor}"]
        assert actual.shape == expected.shape
        assert actual.dtype == expected.dtype
        if expected.dtype.kind == "f":
            scale = np.abs(expected[np.isfinite(expected)], dtype=np.float64).max(initial=1e-30)
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * scale)
        else:
            np.testing.assert_array_equal(actual, expected)
