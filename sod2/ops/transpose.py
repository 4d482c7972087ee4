"""Transpose, DepthToSpace, SpaceToDepth: the same elements in another order (DNNFusion's Shuffle)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.errors import ModelError
from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Shape, Undef
from sod2.ops.lift import Element, elements, lift, packed
from sod2.ops.op import Array, Emitter, Facts, Index, MappingType, Op, TensorValue, register
from sod2.symbolic import Dim, as_dim, eq, exact_div, floordiv

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]


@register()
class Transpose(Op):
    """Dim i of the output is dim perm[i] of the input; reversed by default."""

    mapping = MappingType.SHUFFLE

    def permutation(self, node: Node, rank: int) -> list[int]:
        """Input dim of every output dim."""
        order = [int(p) for p in node.attrs.get("perm", range(rank - 1, -1, -1))]
        if sorted(order) != list(range(rank)):
            raise ModelError(f"Transpose (node {node.name!r}): perm {order} is no order of {rank} dims")
        return order

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        return [tuple(x[0].shape[p] for p in self.permutation(node, len(x[0].shape)))]

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        assert x[0] is not None
        if isinstance(x[0].value, Undef):
            return [UNDEF]
        opened = elements(x[0])
        if opened is None or not isinstance(x[0].value, np.ndarray):
            return [NAC]
        if x[0].value.dtype != object:
            return list(self.reference(node, x[0].value))
        return [packed(opened.transpose(self.permutation(node, opened.ndim)), x[0].dtype)]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        if y[0] is None or not isinstance(y[0].shape, tuple):
            return [UNDEF]
        permutation = self.permutation(node, len(y[0].shape))
        return [tuple(y[0].shape[permutation.index(k)] for k in range(len(permutation)))]

    def moves_rows(self, node: Node, x: Facts, y: Facts) -> bool:
        """The last axis stays the last."""
        assert y[0] is not None
        rank = len(y[0].dims)
        return rank > 0 and self.permutation(node, rank)[-1] == rank - 1

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        permutation = self.permutation(node, len(index))
        return e.load(0, [index[permutation.index(k)] for k in range(len(index))])

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        return [arrays[0].transpose(self.permutation(node, arrays[0].ndim)).copy()]

    def examples(self) -> Examples:
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        yield {}, [x]
        for perm in ([1, 2, 0], [0, 2, 1], [2, 0, 1]):
            yield {"perm": perm}, [x]
        yield {"perm": [1, 0]}, [np.zeros((0, 3), np.float32)]
        yield {"perm": [1, 0]}, [np.array([[1, 2], [3, 4]])]
        yield {}, [np.array(2.0, np.float32)]


class _Blocks(Op):
    """NCHW tensors whose channels hold, or receive, blocks of blocksize x blocksize pixels."""

    mapping = MappingType.SHUFFLE

    def _block(self, node: Node) -> int:
        return int(node.attrs["blocksize"])

    def _is_column_major(self, node: Node) -> bool:
        """DepthToSpace's mode CRD keeps the channel outermost; DCR, and SpaceToDepth, put the block there."""
        return str(node.attrs.get("mode", "DCR")) == "CRD"


def _times(d: Element, k: int) -> Element:
    return lift(lambda v: v * k, d)


def _over(d: Element, k: int) -> Element:
    return lift(lambda v: floordiv(v, k), d)


@register()
class DepthToSpace(_Blocks):
    """Channels become blocks of pixels."""

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        n, c, h, w = x[0].shape
        b = self._block(node)
        return [(n, _over(c, b * b), _times(h, b), _times(w, b))]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        return divisible_guards(x[0].shape[1:2], self._block(node) ** 2)

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        if y[0] is None or not isinstance(y[0].shape, tuple):
            return [UNDEF]
        n, c, h, w = y[0].shape
        b = self._block(node)
        return [
            (
                n,
                _known(_times(c, b * b)),
                _known(lift(lambda v: exact_div(v, b), h)),
                _known(lift(lambda v: exact_div(v, b), w)),
            )
        ]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert y[0] is not None
        n, c, h, w = index
        b = self._block(node)
        row, column = (e.local(np.dtype(np.int64), e.c(i)) for i in (h, w))
        block = e.opaque(f"({row} % {b} * {b} + {column} % {b})")
        if self._is_column_major(node):
            channel = e.opaque(f"({e.c(c)} * {b * b} + {e.c(block)})")
        else:
            channel = e.opaque(f"({e.c(block)} * {e.c(y[0].dims[1])} + {e.c(c)})")
        return e.load(0, [n, channel, e.opaque(f"({row} / {b})"), e.opaque(f"({column} / {b})")])

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        n, c, h, w = x.shape
        b = self._block(node)
        if self._is_column_major(node):
            parts = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
        else:
            parts = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
        return [np.ascontiguousarray(parts.reshape(n, c // (b * b), h * b, w * b))]

    def examples(self) -> Examples:
        x = np.arange(2 * 8 * 3 * 2, dtype=np.float32).reshape(2, 8, 3, 2)
        yield {"blocksize": 2}, [x]
        yield {"blocksize": 2, "mode": "CRD"}, [x]
        yield {"blocksize": 1}, [x[:1, :, :1]]
        yield {"blocksize": 2}, [x[:0]]


@register()
class SpaceToDepth(_Blocks):
    """Blocks of pixels become channels."""

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        n, c, h, w = x[0].shape
        b = self._block(node)
        return [(n, _times(c, b * b), _over(h, b), _over(w, b))]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        return divisible_guards(x[0].shape[2:4], self._block(node))

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        if y[0] is None or not isinstance(y[0].shape, tuple):
            return [UNDEF]
        n, c, h, w = y[0].shape
        b = self._block(node)
        return [(n, _known(lift(lambda v: exact_div(v, b * b), c)), _known(_times(h, b)), _known(_times(w, b)))]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None
        n, c, h, w = index
        b = self._block(node)
        channel, count = e.local(np.dtype(np.int64), e.c(c)), e.c(x[0].dims[1])
        quotient, rest = (f"({channel} {sign} {b * b if self._is_column_major(node) else count})" for sign in "/%")
        block, source = (rest, quotient) if self._is_column_major(node) else (quotient, rest)
        row, column = (e.opaque(f"({e.c(i)} * {b} + {block} {sign} {b})") for i, sign in ((h, "/"), (w, "%")))
        return e.load(0, [n, e.opaque(source), row, column])

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        n, c, h, w = x.shape
        b = self._block(node)
        order = (0, 1, 3, 5, 2, 4) if self._is_column_major(node) else (0, 3, 5, 1, 2, 4)
        parts = x.reshape(n, c, h // b, b, w // b, b).transpose(order)
        return [np.ascontiguousarray(parts.reshape(n, c * b * b, h // b, w // b))]

    def examples(self) -> Examples:
        x = np.arange(2 * 3 * 4 * 2, dtype=np.float32).reshape(2, 3, 4, 2)
        yield {"blocksize": 2}, [x]
        yield {"blocksize": 2, "mode": "CRD"}, [x]
        yield {"blocksize": 1}, [x]
        yield {"blocksize": 2}, [x[:, :, :0]]


def _known(d: Element) -> Element:
    """A backward claim: unknown is no claim."""
    return d if isinstance(d, Dim) else UNDEF


def divisible_guards(dims: Sequence[Element], k: int) -> list[tuple[Dim, Dim]]:
    """Pairs that are equal exactly when k divides the dims."""
    return [(d % k, as_dim(0)) for d in dims if isinstance(d, Dim) and eq(d % k, 0) is not True]
