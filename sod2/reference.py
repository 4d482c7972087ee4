"""The oracle: runs a graph node by node with every operator's numpy `reference`.

Control flow is followed as at run time: a node runs when every predicate of its guard has the given value, Switch
forwards its operand to the output of the taken branch, Combine takes the operand of the taken branch, and the nodes of
a loop run once a trip. Tensors of branches that were not taken have no value and are missing from the result; those of
a loop have that of the last trip. Nothing is freed: meant for tests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sod2 import rdp
from sod2.errors import InputError, UnsupportedError
from sod2.graph import Array, Graph, Loop, Node
from sod2.lattice import Shape
from sod2.ops import OPS
from sod2.symbolic import Dim, evaluate


def run(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The graph's outputs by name, in the graph's order, for input arrays by name.

    Raises InputError for a missing or unknown input, UnsupportedError for an operator without a reference.
    """
    values = run_all(graph, inputs)
    return {name: values[name] for name in graph.outputs}


def run_all(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every tensor that has a value: inputs, constants and the outputs of the nodes that ran."""
    expected = {v.name for v in graph.inputs}
    if expected != set(inputs):
        raise InputError(f"inputs {sorted(inputs)} are given; the graph takes {sorted(expected)}")
    execution = _Execution(graph, {**graph.constants, **inputs}, inputs)
    execution.run(graph.nodes)
    return execution.values


@dataclass
class _Execution:
    graph: Graph
    values: dict[str, Array]
    inputs: Mapping[str, Array]

    def run(self, nodes: Sequence[Node]) -> None:
        """Run nodes in order; those of a loop inside at its LoopBegin, and no further time."""
        done: set[str] = set()
        for node in nodes:
            if node.name in done or not self.taken(node):
                continue
            if node.op == "LoopBegin":
                loop = self.graph.loop_of(node)
                inside = [n for n in nodes if (loop.iteration, True) in n.guard]
                done.update(n.name for n in inside)
                self.loop(loop, [n for n in inside if n is not loop.end])
            else:
                self.values.update(outputs(node, self.values))

    def taken(self, node: Node) -> bool:
        """Whether the branches around a node are taken; inner predicates have no value when an outer one fails."""
        branches = (entry for entry in node.guard if entry[0] not in self.graph.loops)
        return all(bool(self.values[predicate].item()) == expected for predicate, expected in branches)

    def loop(self, loop: Loop, body: Sequence[Node]) -> None:
        carried = [self.values[s.init] for s in loop.states]
        rows: list[list[Array]] = [[] for _ in loop.stacks]
        trips = self.values[loop.trip].item() if loop.trip else None
        made = [t for n in body for t in n.outputs]
        iteration = 0
        while (trips is None or iteration < trips) and carried[0].item():
            for tensor in made:
                self.values.pop(tensor, None)
            self.values[loop.iteration] = np.array(iteration)
            self.values.update((s.state, value) for s, value in zip(loop.states, carried, strict=True))
            self.values[loop.condition.state] = carried[0].reshape(())
            self.run(body)
            carried = [self.values[s.next] for s in loop.states]
            for row, (scan, _) in zip(rows, loop.stacks, strict=True):
                row.append(self.values[scan])
            iteration += 1
        self.values.update((s.final, value) for s, value in zip(loop.states, carried, strict=True) if s.final)
        for row, (_, stacked) in zip(rows, loop.stacks, strict=True):
            self.values[stacked] = np.stack(row) if row else self.empty(stacked)

    def empty(self, stacked: str) -> Array:
        """What no trip stacks: no rows, of the size that the analysis predicts, 0 where it cannot."""
        analysis = rdp.analyze(self.graph)
        symbols = analysis.bind({name: array.shape for name, array in self.inputs.items()})
        fact = analysis[stacked]
        return np.zeros((0, *_sizes(fact.shape, symbols)[1:]), fact.dtype)


def _sizes(shape: Shape, symbols: Mapping[str, int]) -> list[int]:
    dims = shape if isinstance(shape, tuple) else (0,)
    return [evaluate(d, symbols) if isinstance(d, Dim) and d.symbols() <= symbols.keys() else 0 for d in dims]


def outputs(node: Node, values: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors that a node writes."""
    if node.op == "Switch":
        predicate, tensor = node.inputs
        name = node.outputs[0 if values[predicate].item() else 1]
        return {name: values[tensor]} if name else {}
    if node.op == "Combine":
        predicate, a, b = node.inputs
        return {node.outputs[0]: values[a if values[predicate].item() else b]}
    arrays = [values[t] if t else None for t in node.inputs]
    results = OPS(node).reference(node, *arrays)
    if len(results) != len(node.outputs):
        raise UnsupportedError(
            f"the reference of {node.op} (node {node.name!r}) gives {len(results)} of {len(node.outputs)} outputs"
        )
    return {t: np.asarray(r) for t, r in zip(node.outputs, results, strict=True) if t}
