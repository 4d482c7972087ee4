"""Measuring the statistics that random weights need: BatchNorm means and deviations, gate thresholds.

Random convolutions with untrained running statistics let a residual sum grow without bound, and random gates all
decide alike. Both are repaired by running calibration inputs through the network node by node, all inputs through a
node before the next one: a folded layer gets the statistics of what its own weights make of that batch, a gate the
threshold that opens it for the wanted share of the inputs that reach it. The inputs have the sizes of the evaluation,
because gates read means over pixels, which shift with size.

BatchNorm statistics are taken over all inputs, whether their gates let a block run or not, as in training, where every
block is computed and masked; hence both branches of an `If` are computed for all inputs, and each input then follows
its own decision. With `reached_only` the inputs that skip a block have no say in its statistics.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import GraphProto, NodeProto, ValueInfoProto, helper, numpy_helper

from models import Model
from models.assembly import subgraphs
from models.gates import Gate, gates
from models.inputs import concrete_shape, contents, generator, random_sizes
from models.parameters import Parameters
from models.statistics import Batch, choose_threshold

OPSET = 18


def calibrate(model: Model, variant: str) -> dict[str, np.ndarray]:
    """The calibration vectors of a variant of a model: those of every folding, and per gate (`gates.`) the
    threshold, where the model has its gates' thresholds apart, and the standard deviation of the compared value."""
    p = Parameters()
    inputs, outputs = model.module.compose(p, variant)
    graph = p.graph("calibrated", inputs, outputs)
    found = gates(graph)
    p.calibration["gates.threshold"] = np.zeros(len(found), np.float32)
    p.calibration["gates.spread"] = np.zeros(len(found), np.float32)
    batch = inputs_of(model, variant, graph.graph.input)
    rates = model.gate_rates(variant) if model.gate_rates else None
    _Pass(p, graph.graph, found, rates, model.reached_only).run(graph.graph, batch, np.ones(model.calibration, bool))
    if rates is None:
        del p.calibration["gates.threshold"]
    if not found:
        del p.calibration["gates.spread"]
    return p.calibration


def inputs_of(model: Model, variant: str, values: Iterable[ValueInfoProto]) -> dict[str, Batch]:
    """Calibration inputs by name, for the graph inputs `values`: drawn as for the evaluation, from their own stream."""
    samples = []
    for index in range(model.calibration):
        rng = generator("calibration", index)
        sizes = random_sizes(model.symbols, rng)
        samples.append(contents(model, variant, {value.name: concrete_shape(value, sizes) for value in values}, rng))
    return {name: [sample[name] for sample in samples] for name in samples[0]}


class _Pass:
    """One pass of a batch through a network without its parameters' arrays, which come from `p` as they get known."""

    def __init__(
        self,
        p: Parameters,
        graph: GraphProto,
        found: Sequence[Gate],
        rates: np.ndarray | None,
        reached_only: bool,
    ) -> None:
        self._p = p
        self._reached_only = reached_only
        self._constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self._gates = {gate.name: (index, gate) for index, gate in enumerate(found)}
        self._compared = [name for gate in found for name in gate.compared]
        self._rates = rates

    def run(self, graph: GraphProto, outer: Mapping[str, Batch], active: np.ndarray) -> list[Batch]:
        """The graph's outputs for the batch; `active` tells which inputs reach the graph on their control path."""
        values = dict(outer)
        uses = Counter(name for node in graph.node for name in _read(node))
        uses.update(output.name for output in graph.output)
        uses.update(self._compared)  # read at the gate, which may be in an inner graph
        local = {name for node in graph.node for name in node.output}
        for node in graph.node:
            results = self._if(node, values, active) if node.op_type == "If" else self._node(node, values, active)
            produced = [name for name in node.output if name]
            values |= {name: batch for name, batch in zip(produced, results, strict=True) if uses[name]}
            for name in _read(node):
                uses[name] -= 1
                if name in local and not uses[name]:
                    del values[name]
        return [values[output.name] for output in graph.output]

    def _node(self, node: NodeProto, values: Mapping[str, Batch], active: np.ndarray) -> list[Batch]:
        if len(node.input) > 1 and node.input[1] in self._p.foldings:
            return [self._folded(node, values, active)]
        fixed = {name: self._fixed(name) for name in node.input if name and name not in values}
        return _over(node, fixed, values)

    def _fixed(self, name: str) -> np.ndarray:
        return self._constants[name] if name in self._constants else self._p.array(name)

    def _folded(self, node: NodeProto, values: Mapping[str, Batch], active: np.ndarray) -> Batch:
        """A folded layer: its own output, measured, then mapped."""
        folding = self._p.foldings[node.input[1]]
        weight = folding.weight().astype(np.float32)
        bias = np.zeros(len(weight), np.float32) if folding.bias is None else folding.bias().astype(np.float32)
        (batch,) = _over(node, {node.input[1]: weight, node.input[2]: bias}, values)
        counted = active if self._reached_only else np.ones_like(active)
        self._p.calibration.update(
            folding.measure([array for array, counts in zip(batch, counted, strict=True) if counts])
        )
        scale, shift = (
            np.broadcast_to(np.asarray(part, np.float32), weight.shape[:1]).reshape(-1, *[1] * (batch[0].ndim - 2))
            for part in folding.affine()
        )
        for array in batch:
            np.multiply(array, scale, out=array)
            np.add(array, shift, out=array)
        return batch

    def _if(self, node: NodeProto, values: Mapping[str, Batch], active: np.ndarray) -> list[Batch]:
        """Both branches, and for each input the result of the one it takes."""
        index, gate = self._gates[node.name]
        operands = [self._operand(name, values, len(active)) for name in gate.compared]
        margins = np.array([gate.difference(*pair) for pair in zip(*operands, strict=True)])
        if self._rates is not None:
            threshold = choose_threshold(margins[active], self._rates[index])
            self._p.calibration["gates.threshold"][index] = threshold
            margins -= threshold
        self._p.calibration["gates.spread"][index] = margins[active].std()
        taken = margins > 0 if gate.above else margins < 0
        bodies = {attribute.name: attribute.g for attribute in node.attribute}
        then = self.run(bodies["then_branch"], values, active & taken)
        other = self.run(bodies["else_branch"], values, active & ~taken)
        return [[a if t else b for t, a, b in zip(taken, x, y, strict=True)] for x, y in zip(then, other, strict=True)]

    def _operand(self, name: str, values: Mapping[str, Batch], count: int) -> Batch:
        return values[name] if name in values else [self._fixed(name)] * count


def _read(node: NodeProto) -> list[str]:
    """Names that a node and its bodies read, each use once."""
    names = [name for name in node.input if name]
    for body in subgraphs(node):
        names += [name for inner in body.node for name in _read(inner)]
        names += [output.name for output in body.output]
    return names


def _over(node: NodeProto, fixed: Mapping[str, np.ndarray], values: Mapping[str, Batch]) -> list[Batch]:
    """Run one node with onnxruntime for every input of the batch."""
    fed = [name for name in dict.fromkeys(node.input) if name in values]
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values[name][0].dtype), None)
        for name in fed
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    weights = [numpy_helper.from_array(array, name) for name, array in fixed.items()]
    graph = helper.make_graph([node], "node", declared, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    count = len(next(iter(values.values())))
    results = [session.run(None, {name: values[name][index] for name in fed}) for index in range(count)]
    return [[result[position] for result in results] for position in range(len(outputs))]
