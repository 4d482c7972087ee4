"""Gather, GatherElements and GatherND: elements at positions that another tensor holds.

Gather of a followed value is how exporters take a dim out of a shape. Indices may count from the end. Constant ones
have to be inside; an index that only execution tells reads the nearest element where it is not: there has to be one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Shape, Undef
from sod2.ops.attributes import axis_of
from sod2.ops.lift import Element, constant_integers, elements, known_shape, nonempty_guards, packed, product
from sod2.ops.op import Array, Emitter, Fact, Facts, Index, MappingType, Op, TensorValue, register
from sod2.symbolic import Dim, as_dim, eq, minimum

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]


def wrapped(e: Emitter, fact: Fact, text: str, size: Dim) -> Index:
    """A loaded index as one inside [0, size)."""
    position = e.local(np.dtype(np.int64), f"(int64_t){text}")
    count = e.c(size)
    if fact.dtype.kind == "i":
        position = e.local(np.dtype(np.int64), f"({position} < 0 ? {position} + {count} : {position})")
    return e.opaque(f"sod2_imax(sod2_imin({position}, {count} - 1), 0)")


def _guards(size: Element, indices: Fact, taken: Element) -> list[tuple[Dim, Dim]]:
    """Constant indices are inside an axis of this size; it is not empty where others, `taken` in number, are read."""
    positions = constant_integers(indices)
    if not positions or not isinstance(size, Dim):
        return nonempty_guards(size, taken)
    least = max(p + 1 if p >= 0 else -p for p in positions)
    pair = minimum(size, least), as_dim(least)
    return [] if eq(*pair) is True else [pair]


def _ranked(fact: Fact | None) -> tuple[Fact, tuple[Element, ...]]:
    assert fact is not None and isinstance(fact.shape, tuple)
    return fact, fact.shape


@register()
class Gather(Op):
    """Slices of the data along one axis, one per index: the axis becomes the dims of the indices."""

    mapping = MappingType.ONE_TO_MANY

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        (_, data), (_, indices) = _ranked(x[0]), _ranked(x[1])
        axis = axis_of(node, len(data), 0)
        return [(*data[:axis], *indices, *data[axis + 1 :])]

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        data, indices = x[0], x[1]
        assert data is not None and indices is not None and y[0] is not None
        if isinstance(data.value, Undef) or isinstance(indices.value, Undef):
            return [UNDEF]
        positions, opened = constant_integers(indices), elements(data)
        shape = known_shape(indices.shape)
        if positions is None or shape is None or not isinstance(data.value, np.ndarray) or opened is None:
            return [NAC]
        axis = axis_of(node, opened.ndim, 0)
        size = opened.shape[axis]
        if any(not -size <= p < size for p in positions):
            return [NAC]  # an invalid model, or a branch that is never taken
        index = np.array(positions, dtype=np.int64).reshape(shape)
        if data.value.dtype != object:
            return [np.asarray(np.take(data.value, index, axis=axis))]
        return [packed(_take(opened, index, axis), data.dtype)]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        if x[0] is None or x[1] is None or y[0] is None or not isinstance(y[0].shape, tuple):
            return [UNDEF, UNDEF]
        if x[0].rank is None or x[1].rank is None:
            return [UNDEF, UNDEF]
        axis = axis_of(node, x[0].rank, 0)
        out, behind = y[0].shape, axis + x[1].rank
        return [(*out[:axis], UNDEF, *out[behind:]), out[axis:behind]]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        (_, data), (indices, shape) = _ranked(x[0]), _ranked(x[1])
        return _guards(data[axis_of(node, len(data), 0)], indices, product(shape))

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        (data, _), (indices, positions) = _ranked(x[0]), _ranked(x[1])
        axis = axis_of(node, len(data.dims), 0)
        behind = axis + len(positions)
        position = wrapped(e, indices, e.load(1, index[axis:behind]), data.dims[axis])
        return e.load(0, [*index[:axis], position, *index[behind:]])

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        data, indices = arrays
        assert data is not None and indices is not None
        return [np.asarray(np.take(data, indices, axis=int(node.attrs.get("axis", 0))))]

    def examples(self) -> Examples:
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        yield {}, [x, np.array([1, 0, 1, -1], np.int64)]
        yield {"axis": 1}, [x, np.array([[0, 2], [-3, 1]], np.int64)]
        yield {"axis": -1}, [x, np.array(2, np.int64)]
        yield {"axis": 2}, [x, np.zeros((0, 2), np.int32)]
        yield {}, [np.array([5, 6, 7]), np.array([1], np.int64)]
        yield {}, [np.array([5, 6, 7]), np.array(-1, np.int64)]
        yield {"axis": 1}, [np.zeros((0, 2), np.float32), np.array([1], np.int64)]


def _take(values: Array, index: Array, axis: int) -> Array:
    """np.take for object arrays: always an array, also of rank 0."""
    result = np.empty((*values.shape[:axis], *index.shape, *values.shape[axis + 1 :]), dtype=object)
    result[...] = np.take(values, index, axis=axis)
    return result


@register()
class GatherElements(Op):
    """data[i, indices[i, j], k]… along one axis, in the shape of the indices."""

    mapping = MappingType.ONE_TO_MANY

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        return [_ranked(x[1])[1]]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return [UNDEF, UNDEF if y[0] is None else y[0].shape]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        (_, data), (indices, shape) = _ranked(x[0]), _ranked(x[1])
        return _guards(data[axis_of(node, len(data), 0)], indices, product(shape))

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        (data, _), (indices, _) = _ranked(x[0]), _ranked(x[1])
        axis = axis_of(node, len(data.dims), 0)
        position = wrapped(e, indices, e.load(1, index), data.dims[axis])
        return e.load(0, [*index[:axis], position, *index[axis + 1 :]])

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        data, indices = arrays
        assert data is not None and indices is not None
        axis = int(node.attrs.get("axis", 0)) % data.ndim
        grid = np.indices(indices.shape)
        return [data[(*grid[:axis], indices, *grid[axis + 1 :])]]

    def examples(self) -> Examples:
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        yield {"axis": 1}, [x, np.array([[0, -1], [2, 2], [1, 0]], np.int64)]
        yield {}, [x, np.array([[2, 1, 0]], np.int64)]
        yield {"axis": -1}, [x, np.zeros((3, 0), np.int64)]


@register()
class GatherND(Op):
    """Slices of the data at index tuples: the last dim of the indices holds the leading positions."""

    mapping = MappingType.ONE_TO_MANY

    def _depth(self, x: Facts) -> int | None:
        last = _ranked(x[1])[1][-1]
        return int(last) if isinstance(last, Dim) and last.is_constant else None

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        (_, data), (_, indices) = _ranked(x[0]), _ranked(x[1])
        depth, batch = self._depth(x), int(node.attrs.get("batch_dims", 0))
        return [NAC if depth is None else (*indices[:-1], *data[batch + depth :])]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        """No axis that tuples point into is empty where there are some."""
        data, shape = _ranked(x[0])[1], _ranked(x[1])[1]
        batch = int(node.attrs.get("batch_dims", 0))
        indexed = data[batch : batch + (self._depth(x) or 0)]
        return [pair for size in indexed for pair in nonempty_guards(size, product(shape[:-1]))]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        (data, _), (indices, shape) = _ranked(x[0]), _ranked(x[1])
        batch, depth = int(node.attrs.get("batch_dims", 0)), self._depth(x) or 0
        outer = list(index[: len(shape) - 1])
        positions = [
            wrapped(e, indices, e.load(1, [*outer, e.position(k)]), data.dims[batch + k]) for k in range(depth)
        ]
        return e.load(0, [*index[:batch], *positions, *index[len(shape) - 1 :]])

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        data, indices = arrays
        assert data is not None and indices is not None
        batch = int(node.attrs.get("batch_dims", 0))
        depth = indices.shape[-1]
        lead = np.indices(indices.shape[:-1])[:batch]
        return [data[(*lead, *(indices[..., k] for k in range(depth)))]]

    def examples(self) -> Examples:
        x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
        yield {}, [x, np.array([[0, 1], [1, -1]], np.int64)]
        yield {}, [x, np.array([[1], [0], [1]], np.int64)]
        yield {"batch_dims": 1}, [x, np.array([[1], [0]], np.int64)]
        yield {}, [x, np.zeros((0, 3), np.int64)]
