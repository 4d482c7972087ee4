"""ONNX's Loop and Scan to LoopBegin, the nodes of the body, LoopEnd (graph.py).

Loop follows onnxruntime where the standard's words and its tests differ: the condition that the body gives back is
obeyed whether or not the Loop was given one. Inside the body the condition is therefore constantly true.

A Scan is a loop of known trip count: a scan input becomes a Gather by the number of the trip, an output that runs
backwards or along another axis is turned around behind the loop.

Limits: what a loop carries are tensors (no sequences, no optionals); Scan is that of opset 9 (old_scan.py).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx

from sod2.errors import ModelError, UnsupportedError
from sod2.graph import Loop, Node

if TYPE_CHECKING:
    from sod2.frontend import Reader, Scope

_FIRST = -(2**63)  # the end of a Slice that goes backwards to the first element


@dataclass
class _Body:
    """A loop while it is read."""

    reader: "Reader"
    proto: onnx.GraphProto
    label: str
    outer: "Scope"
    inner: "Scope"
    iteration: str

    def constant(self, name: str, value: object) -> str:
        """A new constant of this loop."""
        fresh = self.reader.unique(f"{self.label}:{name}")
        self.reader.constants[fresh] = np.asarray(value)
        return fresh

    def add(
        self, scope: "Scope", op: str, inputs: Sequence[str], output: str, domain: str = "", **attrs: object
    ) -> str:
        """Append a node of one output, which is new unless it is given."""
        label = self.reader.unique(f"node:{op}/{output}").removeprefix("node:")
        scope.nodes.append(Node(label, op, tuple(inputs), (output,), attrs, scope.guard, domain))
        return output

    def fresh(self, name: str) -> str:
        return self.reader.unique(f"{self.label}:{name}")

    def state(self, value: onnx.ValueInfoProto) -> str:
        """The name of what the body reads as an input."""
        kind = value.type.WhichOneof("value")
        if kind not in (None, "tensor_type"):  # an inlined definition declares no types
            raise UnsupportedError(f"{self.label!r} carries {value.name!r}, a {kind}; tensors are supported")
        return self.reader.define(value.name, self.inner)

    def results(self) -> list[str]:
        """Read the nodes of the body; the graph's names of its outputs."""
        self.reader.body(self.proto, self.inner)
        where = f"the body of {self.label!r}"
        found = (self.reader.lookup(o.name, self.inner, where) for o in self.proto.output)
        return [self.reader.tensor(name, f"a result of {where}") for name in found]

    def close(
        self, inputs: Sequence[str], states: Sequence[str], results: Sequence[str], outputs: Sequence[str]
    ) -> None:
        """Put the two nodes around the body. `inputs`: the trip count and every initial state."""
        begin = Node(f"{self.label}:begin", "LoopBegin", tuple(inputs), (self.iteration, *states), {}, self.outer.guard)
        end = Node(f"{self.label}:end", "LoopEnd", tuple(results), tuple(outputs), {}, self.inner.guard)
        self.outer.nodes += [begin, *self.inner.nodes, end]


def _opened(reader: "Reader", proto: onnx.NodeProto, label: str, scope: "Scope", iteration: str) -> _Body:
    body = next(a.g for a in proto.attribute if a.name == "body")
    return _Body(reader, body, label, scope, reader.inside(scope, iteration), iteration)


def _check(label: str, op: str, what: str, found: int, expected: int) -> None:
    if found != expected:
        raise ModelError(f"the body of {label!r} ({op}) has {found} {what}; {expected} are expected")


def loop(reader: "Reader", proto: onnx.NodeProto, label: str, inputs: Sequence[str], scope: "Scope") -> None:
    """Read an ONNX Loop: (trip, condition, init...) -> (final..., stacked...)."""
    trip, condition, *inits = (*inputs, "", "")[: max(2, len(inputs))]
    body = _opened(reader, proto, label, scope, reader.unique(f"{label}:iteration"))
    _check(label, "Loop", "inputs", len(body.proto.input), 2 + len(inits))
    scans = len(body.proto.output) - 1 - len(inits)
    _check(label, "Loop", "outputs besides what it stacks", len(body.proto.output) - max(scans, 0), 1 + len(inits))
    number, going, *carried = body.proto.input
    if shape := _declared(number):
        body.add(
            body.inner, "Reshape", (body.iteration, body.constant("one", np.array(shape, np.int64))), body.state(number)
        )
    else:
        body.inner.names[number.name] = body.iteration
    reader.constants[body.state(going)] = np.ones(_declared(going), np.bool_)
    states = [body.fresh("condition"), *map(body.state, carried)]
    results = body.results()
    given = [reader.define(t, scope) for t in proto.output]
    outputs = [*given, *[""] * (len(inits) + scans - len(given))]
    body.close((trip, condition or body.constant("true", True), *inits), states, results, outputs)


def _declared(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """The shape of a body's iteration or condition: a scalar, or one element."""
    return (1,) * len(value.type.tensor_type.shape.dim)


def scan(reader: "Reader", proto: onnx.NodeProto, label: str, inputs: Sequence[str], scope: "Scope") -> None:
    """Read an ONNX Scan: (init..., sequence...) -> (final..., stacked...)."""
    attrs = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}
    count = int(attrs["num_scan_inputs"])
    inits, sequences = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    body = _opened(reader, proto, label, scope, reader.unique(f"{label}:iteration"))
    _check(label, "Scan", "inputs", len(body.proto.input), len(inputs))
    axes = _list(attrs, "scan_input_axes", count)
    trip = body.add(scope, "ScanLength", sequences, body.fresh("length"), "sod2", axes=axes)
    states = [body.fresh("condition"), *map(body.state, body.proto.input[: len(inits)])]
    backwards = _list(attrs, "scan_input_directions", count)
    for value, sequence, axis, back in zip(body.proto.input[len(inits) :], sequences, axes, backwards, strict=True):
        index = _from_the_end(body, trip) if back else body.iteration
        body.add(body.inner, "Gather", (sequence, index), body.state(value), axis=axis)
    results = body.results()
    scans = len(results) - len(inits)
    _check(label, "Scan", "outputs", len(proto.output), len(results))
    finals = [reader.define(t, scope) for t in proto.output[: len(inits)]]
    stacked = [body.fresh("stacked") if t else "" for t in proto.output[len(inits) :]]
    true = body.constant("true", True)
    body.close((trip, true, *inits), states, (true, *results), (*finals, *stacked))
    turns = zip(_list(attrs, "scan_output_directions", scans), _list(attrs, "scan_output_axes", scans), strict=True)
    for tensor, name, (back, axis) in zip(stacked, proto.output[len(inits) :], turns, strict=True):
        if name:
            _turned(body, tensor, reader.define(name, scope), bool(back), axis)


def _list(attrs: Mapping[str, object], name: str, count: int) -> list[int]:
    """A list attribute of Scan: 0 for each where it is absent."""
    found = attrs.get(name)
    return [int(v) for v in found] if isinstance(found, Sequence) else [0] * count


def _from_the_end(body: _Body, trip: str) -> str:
    """The index trip - 1 - iteration."""
    one = body.constant("one", np.int64(1))
    last = body.add(body.outer, "Sub", (trip, one), body.fresh("last"))
    return body.add(body.inner, "Sub", (last, body.iteration), body.fresh("index"))


def _turned(body: _Body, stacked: str, output: str, back: bool, axis: int) -> None:
    """Put the trips of a stacked output in their direction, along their axis."""
    if back:
        bounds = [body.constant(n, [v]) for n, v in (("start", -1), ("end", _FIRST), ("axis", 0), ("step", -1))]
        stacked = body.add(body.outer, "Slice", (stacked, *bounds), body.fresh("reversed"))
    body.add(body.outer, "MoveAxis", (stacked,), output, "sod2", axis=axis)


READ: Mapping[str, Callable[["Reader", onnx.NodeProto, str, Sequence[str], "Scope"], None]] = {
    "Loop": loop,
    "Scan": scan,
}


def pruned(node: Node, loop: Loop, needed: Collection[str]) -> Node:
    """The LoopBegin or LoopEnd of a loop without the states and stacked outputs that nothing needs."""
    states = [s for s in loop.states if s.state in needed]
    stacks = [(scan, stacked) for scan, stacked in loop.stacks if stacked in needed]
    if node is loop.begin:
        inputs, outputs = (s.init for s in states), (s.state for s in states)
        return replace(node, inputs=(loop.trip, *inputs), outputs=(loop.iteration, *outputs))
    finals = (s.final if s.final in needed else "" for s in states[1:])
    return replace(
        node,
        inputs=(*(s.next for s in states), *(scan for scan, _ in stacks)),
        outputs=(*finals, *(stacked for _, stacked in stacks)),
    )
