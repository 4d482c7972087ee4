"""Which control path an engine took, read from its outputs.

An engine tells no gate decisions, and an output for them would change what is measured. But a gate can only be decided
differently by rounding where its margin is small; samples.py's file says the margin of every gate. For each sample and
each gate with a small margin the reference engine computes the outputs with that one decision inverted (gates behind
it decide for themselves). Outputs that are nearer to one of these than to the reference's are of another path.

    paths/<gate>/<i>.<k>.npy    output k of sample i with the decision of this gate inverted

Limits: one inverted decision, not several at once, and none with a margin above NEAR. What differs more is wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from baselines.reference import compare
from baselines.samples import array_files, input_names
from models.assembly import graphs
from models.gates import gates

NEAR = 0.1
"""Largest margin, in standard deviations of what a gate compares, that is taken for a close decision: ten times the
largest error that a peer's outputs may have."""
EXACT = 1e-4
"""Outputs with a smaller error are on the reference's path."""
FLIP = "inverted_gate"


def write_paths(model: Path, archive: Path, samples: Path) -> None:
    """Compute the outputs of the near-by paths of the samples of datasets/sample.py's file into their folder."""
    with np.load(archive) as content:
        margins = [fact["margins"] for fact in json.loads(str(content["facts"]))]
    near = [[g for g, margin in enumerate(m) if margin is not None and abs(margin) < NEAR] for m in margins]
    if not any(near):
        return
    names = input_names(model)
    session = onnxruntime.InferenceSession(invertible(onnx.load(model)).SerializeToString())
    for i, close in enumerate(near):
        arrays = [np.load(path) for path in array_files(samples, i)]
        inputs = dict(zip(names, arrays, strict=True))
        for gate in close:
            folder = samples / "paths" / str(gate)
            folder.mkdir(parents=True, exist_ok=True)
            for k, value in enumerate(session.run(None, inputs | {FLIP: np.array(gate, np.int64)})):
                np.save(folder / f"{i}.{k}.npy", value)


def other_gate(samples: Path, outputs: Path, sample: int, error: float) -> tuple[int, float] | None:
    """The gate that explains outputs with this error against the reference when it is inverted, and the error then.

    None when the outputs are nearest to the reference's, or within EXACT of them.
    """
    if error <= EXACT:
        return None
    folders = [folder for folder in samples.glob("paths/*") if array_files(folder, sample)]
    errors = {int(folder.name): compare(folder, outputs, sample, math.inf)[0] for folder in folders}
    found = {gate: other for gate, other in errors.items() if other is not None and other < error}
    return min(found.items(), key=lambda item: (item[1], item[0])) if found else None


def invertible(model: ModelProto) -> ModelProto:
    """A copy with one more input, the number of the gate (as models/gates.py counts) whose decision is inverted."""
    numbers = {gate.name: number for number, gate in enumerate(gates(model))}
    result = ModelProto()
    result.CopyFrom(model)
    for graph in graphs(result.graph):
        _invert(graph, numbers)
    result.graph.input.append(helper.make_tensor_value_info(FLIP, TensorProto.INT64, []))
    result.graph.initializer.extend(
        numpy_helper.from_array(np.array(number, np.int64), f"{FLIP}_{number}") for number in numbers.values()
    )
    return result


def _invert(graph: GraphProto, numbers: Mapping[str, int]) -> None:
    """Put `predicate xor (this gate is the inverted one)` in the place of each predicate of one graph."""
    for position, node in reversed(list(enumerate(graph.node))):
        if node.op_type == "If":
            chosen, decision = f"{node.name}_is_inverted", f"{node.name}_decision"
            graph.node.insert(position, helper.make_node("Xor", [node.input[0], chosen], [decision]))
            graph.node.insert(position, helper.make_node("Equal", [FLIP, f"{FLIP}_{numbers[node.name]}"], [chosen]))
            node.input[0] = decision
