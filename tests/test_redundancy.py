"""Reductions shared across branches: what moves, what stays, and that the numbers are onnxruntime's on every path."""

import itertools

import numpy as np
import onnx
import pytest

import sod2
from sod2 import frontend, simplify
from sod2.graph import Graph
from tests import graphs

# Two gated blocks, each opened by a number; the means behind them are all that is returned besides the result.
BLOCK = """
    y{k} = If (p{k}) <
        then_branch = then{k} () => (float[1, C, W] a{k}) {{ r{k} = Relu(x{k}) a{k} = Add(r{k}, x{k}) }},
        else_branch = else{k} () => (float[1, C, W] b{k}) {{ b{k} = {other}(x{k}) }}
    >
    m{k} = {reduction} (y{k}, axes)
"""


def model(other: str = "Identity", reduction: str = "ReduceMean") -> onnx.ModelProto:
    blocks = "".join(BLOCK.format(k=k, other=other, reduction=reduction) for k in (0, 1))
    blocks = blocks.replace("x1", "y0")
    body = f"first = ReduceMean (x0, axes) {blocks}"
    outputs = "float[1, C, W] y1, float[1, C, 1] first, float[1, C, 1] m0, float[1, C, 1] m1"
    return graphs.model("float[1, C, W] x0, bool p0, bool p1", outputs, body, {"axes": np.array([2])})


def reductions(graph: Graph) -> list[int]:
    """Number of predicates around each reduction."""
    return [len(n.guard) for n in graph.nodes if n.op.startswith("Reduce")]


def simplified(source: onnx.ModelProto, control: str = "switch") -> Graph:
    return simplify.run(frontend.load(source, control))


def test_means_of_skipped_blocks_are_those_before() -> None:
    assert reductions(simplified(model())) == [0, 1, 1]


def test_nothing_moves_where_the_other_branch_changes_its_operand() -> None:
    assert reductions(simplified(model(other="Neg"))) == [0, 0, 0]


def test_nothing_moves_where_the_reduction_is_another_one() -> None:
    """The second of the new ones finds the first, which stays."""
    assert reductions(simplified(model(reduction="ReduceMax"))) == [0, 0, 1]


def test_nothing_moves_where_every_branch_runs() -> None:
    assert reductions(simplified(model(), "all")) == [0, 0, 0]


@pytest.mark.parametrize("reduction", ["ReduceMean", "ReduceMax"])
def test_every_path_gives_what_onnxruntime_gives(reduction: str) -> None:
    source = model(reduction=reduction)
    compiled = sod2.compile(source)
    for channels, width, p0, p1 in itertools.product((1, 3), (1, 20), (False, True), (False, True)):
        inputs = {"x0": graphs.random(np.float32, (1, channels, width)), "p0": np.array(p0), "p1": np.array(p1)}
        graphs.assert_close(compiled.run(inputs), graphs.expected(source, inputs))
