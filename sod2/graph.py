"""The graph every pass reads: frozen, flat and topologically sorted.

Control flow is the paper's extended graph: an ONNX `If` becomes, per captured tensor, a `Switch(pred, x)` with the two
outputs (x if pred, x if not pred), the nodes of both branches with the predicate in their `guard`, and per output a
`Combine(pred, a, b)`. A node runs when every predicate of its guard has the given value; passes never edit a graph,
they return side tables or a new graph. Tensors are named by strings; the empty string is an absent optional tensor.
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
class Graph:
    """Nodes in execution order; `constants` are the initializers and everything folded into one."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    opset: int

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """The node that writes each tensor; graph inputs and constants have none."""
        return {t: n for n in self.nodes for t in n.outputs if t}

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
