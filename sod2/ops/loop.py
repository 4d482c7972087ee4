"""The nodes around a loop's body (graph.py), and two small operators that Scan is made of.

What is known of a loop's states depends on all its trips, and not on one node's operands: rdp.py asks loops.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.errors import ModelError
from sod2.graph import Node
from sod2.lattice import NAC, Shape
from sod2.ops.attributes import axis_of
from sod2.ops.lift import packed
from sod2.ops.op import Array, Facts, MappingType, Op, TensorValue, register
from sod2.ops.transpose import Transpose
from sod2.symbolic import Dim

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]


@register()
class LoopBegin(Op):
    """(trip, init...) -> (iteration, state...): opens the body. A state may be its init's bytes (loop_storage.py)."""

    is_view = True
    execution = True


@register()
class LoopEnd(Op):
    """(next..., scan...) -> (final..., stacked...): ends a trip. A final state is its state's bytes."""

    is_view = True
    execution = True


@register(domain="sod2")
class ScanLength(Op):
    """The common length, an int64 scalar, of all inputs along their attribute `axes`: the trip count of a Scan."""

    value_inputs = False

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [np.dtype(np.int64)]

    def _lengths(self, node: Node, x: Facts) -> list[Any]:
        lengths = []
        for fact, axis in zip(x, node.attrs["axes"], strict=True):
            assert fact is not None and isinstance(fact.shape, tuple)
            if not -len(fact.shape) <= axis < len(fact.shape):
                raise ModelError(f"Scan (node {node.name!r}) has axis {axis} for an input of rank {len(fact.shape)}")
            lengths.append(fact.shape[axis])
        return lengths

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        return [()]

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        count = np.empty((), dtype=object)
        count[()] = next((d for d in self._lengths(node, x) if isinstance(d, Dim)), NAC)
        return [packed(count, np.dtype(np.int64))]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        known = [d for d in self._lengths(node, x) if isinstance(d, Dim)]
        return [(known[0], other) for other in known[1:] if other != known[0]]

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        lengths = [a.shape[axis] for a, axis in zip(arrays, node.attrs["axes"], strict=True) if a is not None]
        return [np.array(lengths[0], np.int64)]

    def examples(self) -> Examples:
        x, z = np.zeros((2, 3), np.float32), np.zeros((3, 0), np.int64)
        yield {"axes": [1, 0]}, [x, z]
        yield {"axes": [-1]}, [z]


@register(domain="sod2")
class MoveAxis(Transpose):
    """The first dim becomes the dim at the attribute `axis`; the others keep their order."""

    mapping = MappingType.SHUFFLE

    def permutation(self, node: Node, rank: int) -> list[int]:
        order = list(range(1, rank))
        order.insert(axis_of(node, rank, 0), 0)
        return order

    def examples(self) -> Examples:
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        for axis in (0, 1, -1):
            yield {"axis": axis}, [x]
        yield {"axis": -1}, [np.zeros((0, 3), np.float32)]
