"""Looking inside a model while it runs: values and shapes of named intermediates.

The model is flattened first (see models/execute_all.py), so that values inside both branches of every `If` can be
observed in one run of onnxruntime. The models built here name every value uniquely, hence a name means the same value
before and after flattening. Of values inside the body of a `Loop` the shapes can be observed, at every step; loops
inside loops are not looked into.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from models.assembly import subgraphs
from models.execute_all import execute_all

Shape = tuple[int, ...]


class Probe:
    """A session that computes, for given inputs, the listed intermediate `values` and the shapes of `shaped` ones."""

    def __init__(self, model: ModelProto, values: Sequence[str] = (), shaped: Sequence[str] = ()) -> None:
        flat = execute_all(model)
        self._values = sorted(set(values))
        self._shaped = sorted(set(shaped))
        self._looped = _observe_loops(flat.graph, self._shaped)
        outside = [name for name in self._shaped if name not in self._looped]
        flat.graph.node.extend(
            helper.make_node("Shape", [name], [_shape_of(name)], _shape_of(name)) for name in outside
        )
        del flat.graph.output[:]
        self._outputs = self._values + [_shape_of(name) for name in self._shaped]
        flat.graph.output.extend(ValueInfoProto(name=name) for name in self._outputs)
        self._session = onnxruntime.InferenceSession(flat.SerializeToString(), providers=["CPUExecutionProvider"])

    def run(self, inputs: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Shape | list[Shape]]]:
        """The values and the shapes, each by name; inside a loop, a list of the shapes at its steps."""
        results = self._session.run(self._outputs, dict(inputs)) if self._outputs else []
        count = len(self._values)
        shapes: dict[str, Shape | list[Shape]] = {}
        for name, result in zip(self._shaped, results[count:], strict=True):
            looped = name in self._looped
            shapes[name] = [tuple(row) for row in result.tolist()] if looped else tuple(result.tolist())
        return dict(zip(self._values, results[:count], strict=True)), shapes


def _shape_of(name: str) -> str:
    return f"{name}.shape"


def _observe_loops(graph: GraphProto, shaped: Sequence[str]) -> set[str]:
    """Make every Loop give the shapes of its body's values, stacked over its steps; returns their names."""
    found: set[str] = set()
    for node in graph.node:
        if node.op_type != "Loop":
            continue
        (body,) = subgraphs(node)
        inner = {name for step in body.node for name in step.output} | {value.name for value in body.input}
        for name in sorted(inner.intersection(shaped)):
            stepwise = f"{name}.shape_of_step"
            body.node.append(helper.make_node("Shape", [name], [stepwise], stepwise))
            body.output.append(helper.make_tensor_value_info(stepwise, TensorProto.INT64, None))
            node.output.append(_shape_of(name))
            found.add(name)
    return found
