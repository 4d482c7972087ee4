"""Chunk: one element of what SplitToSequence cuts from a tensor (sequences.py)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.graph import Node
from sod2.ops.attributes import axis_of
from sod2.ops.lift import Element, lift
from sod2.ops.op import Array, Facts, register
from sod2.ops.slice import Slice, Span
from sod2.symbolic import Dim, as_dim, ceildiv, eq, maximum, minimum

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]


@register(domain="sod2")
class Chunk(Slice):
    """What chunk number `position` of chunks of `size` along `axis` holds; the last one may be smaller.

    A negative position counts from the end. There has to be such a chunk.
    """

    shape_inputs = ()

    def _chunk(self, node: Node, x: Facts) -> tuple[int, Element, Element]:
        """The axis, its length, and where the chunk begins."""
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        axis = axis_of(node, len(x[0].shape), 0)
        size, position = int(node.attrs["size"]), int(node.attrs["position"])
        whole = x[0].shape[axis]
        return axis, whole, lift(lambda n: (position + (ceildiv(n, size) if position < 0 else 0)) * size, whole)

    def spans(self, node: Node, x: Facts) -> list[Span | None] | None:
        axis, whole, start = self._chunk(node, x)
        count = lift(lambda n, begin: minimum(maximum(n - begin, 0), int(node.attrs["size"])), whole, start)
        assert x[0] is not None and x[0].rank is not None
        return [Span(start, as_dim(1), count) if i == axis else None for i in range(x[0].rank)]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        """The chunk begins inside."""
        _, whole, start = self._chunk(node, x)
        if not isinstance(whole, Dim) or not isinstance(start, Dim):
            return []
        inside = minimum(maximum(start, 0), whole - 1)
        return [] if eq(inside, start) is True else [(inside, start)]

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        size, axis = int(node.attrs["size"]), int(node.attrs["axis"])
        chunks = np.split(x, range(size, x.shape[axis], size), axis)
        return [np.ascontiguousarray(chunks[int(node.attrs["position"])])]

    def examples(self) -> Examples:
        x = np.arange(42, dtype=np.float32).reshape(2, 7, 3)
        for position in (0, 1, 2, -1, -3):
            yield {"axis": 1, "size": 3, "position": position}, [x]
        yield {"axis": -1, "size": 9, "position": 0}, [x]
        yield {"axis": 1, "size": 4, "position": 1}, [x[:0].astype(np.int64)]
