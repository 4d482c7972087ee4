"""The graph every pass reads: frozen, flat and topologically sorted.

Control flow is the paper's extended graph: an ONNX `If` becomes, per captured tensor, a `Switch(pred, x)` with the two
outputs (x if pred, x if not pred), the nodes of both branches with the predicate in their `guard`, and per output a
`Combine(pred, a, b)`. A node runs when every predicate of its guard has the given value; passes never edit a graph,
they return side tables or a new graph. Tensors are named by strings; the empty string is an absent optional tensor.

A loop is as flat: `LoopBegin(trip, init...) -> (iteration, state...)`, the nodes of the body, and
`LoopEnd(next..., scan...) -> (final..., stacked...)`. The body and the LoopEnd have the guard entry (iteration, True):
they run again and again. The back edge from next to state is no input of a node; `Graph.loops` knows it. The first
state is the condition, constantly true in a loop that only counts. Captured tensors are read as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sod2.symbolic import Dim

Guard = tuple[tuple[str, bool], ...]
Array = NDArray[Any]


@dataclass(frozen=True)
class Value:
    """A graph input: its dims are symbols or constants; None when the file does not even tell the rank."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Dim, ...] | None


@dataclass(frozen=True)
class Node:
    """One operator. `attrs` are numbers, strings, lists or arrays; `guard` the branches around it, outermost first."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    guard: Guard = ()
    domain: str = ""

    def __str__(self) -> str:
        attrs = "".join(f" {k}={v}" for k, v in sorted(self.attrs.items()) if not isinstance(v, np.ndarray))
        guard = "".join(f" if {p}" if on else f" if not {p}" for p, on in self.guard)
        return f"{', '.join(self.outputs)} = {self.op}({', '.join(self.inputs)}){attrs}{guard}"


@dataclass(frozen=True)
class State:
    """What a loop carries: `state` is `init` in the first trip, the last trip's `next` in others; `final` comes out."""

    init: str
    state: str
    next: str
    final: str


@dataclass(frozen=True, eq=False)
class Loop:
    """The two nodes around a loop's body, and how their tensors belong together."""

    begin: Node
    end: Node

    @property
    def trip(self) -> str:
        """The tensor of the largest number of trips; empty when there is none."""
        return self.begin.inputs[0]

    @property
    def iteration(self) -> str:
        """The number of the trip, from 0 on. Its name is the loop's in guards."""
        return self.begin.outputs[0]

    @cached_property
    def states(self) -> tuple[State, ...]:
        """The condition, then the others."""
        inits, states = self.begin.inputs[1:], self.begin.outputs[1:]
        count = len(inits)
        return tuple(map(State, inits, states, self.end.inputs[:count], ("", *self.end.outputs[: count - 1])))

    @property
    def condition(self) -> State:
        """Another trip follows while it is true."""
        return self.states[0]

    @cached_property
    def stacks(self) -> tuple[tuple[str, str], ...]:
        """(scan, stacked): a tensor of every trip, and all of them together along a new first axis."""
        count = len(self.states)
        return tuple(zip(self.end.inputs[count:], self.end.outputs[count - 1 :], strict=True))

    def sources(self, tensor: str) -> tuple[str, ...]:
        """What an output of one of the two nodes needs: its value comes through all trips."""
        again = (self.trip, self.condition.init, self.condition.next, self.condition.state)
        carried = next((s for s in self.states if tensor in (s.state, s.final)), None)
        if carried is not None:
            return (*again, carried.init, carried.next, carried.state, self.iteration)
        return (*again, *(scan for scan, stacked in self.stacks if stacked == tensor))


@dataclass(frozen=True)
class Requirement:
    """Two dims that must be equal whenever `node` runs."""

    left: Dim
    right: Dim
    node: str
    guard: Guard = ()

    def __str__(self) -> str:
        return f"{self.left} == {self.right} (needed by {self.node})"


@dataclass(frozen=True)
class Graph:
    """Nodes in execution order; `constants` are the initializers and everything folded into one; `required` is what
    nodes needed that are no longer there."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    opset: int
    required: tuple[Requirement, ...] = ()

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """The node that writes each tensor; graph inputs and constants have none."""
        return {t: n for n in self.nodes for t in n.outputs if t}

    @cached_property
    def loops(self) -> Mapping[str, Loop]:
        """The loops by the names of their iteration, outer ones before those inside."""
        ends = {n.guard[-1][0]: n for n in self.nodes if n.op == "LoopEnd"}
        return {n.outputs[0]: Loop(n, ends[n.outputs[0]]) for n in self.nodes if n.op == "LoopBegin"}

    def loop_of(self, node: Node) -> Loop:
        """The loop that a LoopBegin or a LoopEnd belongs to."""
        return self.loops[node.outputs[0] if node.op == "LoopBegin" else node.guard[-1][0]]

    def guard_of(self, tensor: str) -> Guard:
        """The branches and loops in which a tensor gets its value; that of a state is another one in every trip."""
        node = self.producer.get(tensor)
        if node is None:
            return ()
        if node.op == "LoopBegin":
            return (*node.guard, (node.outputs[0], True))
        return node.guard[:-1] if node.op == "LoopEnd" else node.guard

    def within(self, guard: Guard) -> tuple[Loop, ...]:
        """The loops among the entries of a guard, outermost first."""
        return tuple(self.loops[name] for name, _ in guard if name in self.loops)

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each tensor as an input or as a predicate of their guard."""
        table: dict[str, list[Node]] = {}
        for node in self.nodes:
            for tensor in dict.fromkeys((*node.inputs, *(p for p, _ in node.guard))):
                if tensor:
                    table.setdefault(tensor, []).append(node)
        return {t: tuple(ns) for t, ns in table.items()}

    def __str__(self) -> str:
        inputs = ", ".join(f"{v.name}: {v.dtype}{list(map(str, v.shape or ('?',)))}" for v in self.inputs)
        return "\n".join([f"{self.name}({inputs}) -> {', '.join(self.outputs)}", *(f"  {n}" for n in self.nodes)])
