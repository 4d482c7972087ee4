"""Looking inside a model while it runs: values and shapes of named intermediates.

The model is flattened first (see models/execute_all.py), so that values inside both branches of every `If` can be
observed in one run of onnxruntime. The models built here name every value uniquely, hence a name means the same value
before and after flattening.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime
from onnx import ModelProto, ValueInfoProto, helper

from models.execute_all import execute_all


class Probe:
    """A session that computes, for given inputs, the listed intermediate `values` and the shapes of `shaped` ones."""

    def __init__(self, model: ModelProto, values: Sequence[str] = (), shaped: Sequence[str] = ()) -> None:
        flat = execute_all(model)
        self._values = sorted(set(values))
        self._shaped = sorted(set(shaped))
        shape_names = [f"{name}.shape" for name in self._shaped]
        for name, shape_name in zip(self._shaped, shape_names, strict=True):
            flat.graph.node.append(helper.make_node("Shape", [name], [shape_name], shape_name))
        del flat.graph.output[:]
        self._outputs = self._values + shape_names
        flat.graph.output.extend(ValueInfoProto(name=name) for name in self._outputs)
        self._session = onnxruntime.InferenceSession(flat.SerializeToString(), providers=["CPUExecutionProvider"])

    def run(self, inputs: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, tuple[int, ...]]]:
        """The values and the shapes, each by name."""
        results = self._session.run(self._outputs, dict(inputs))
        count = len(self._values)
        shapes = [tuple(int(extent) for extent in shape) for shape in results[count:]]
        values = dict(zip(self._values, results[:count], strict=True))
        return values, dict(zip(self._shaped, shapes, strict=True))
