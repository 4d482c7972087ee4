"""Expand and Tile: more of the same elements.

Expand broadcasts both ways: a target of 1 (or fewer dims than the input) keeps the input's dim.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Shape, Undef
from sod2.ops.elementwise import as_shape, broadcast_back, broadcast_guards, broadcast_index, broadcast_shapes
from sod2.ops.lift import elements, integers, lift, packed, small_shape
from sod2.ops.op import Array, Emitter, Facts, Index, MappingType, Op, TensorValue, register
from sod2.ops.shape_of import shape_from, size_guards
from sod2.symbolic import Dim, eq

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]


@register()
class Expand(Op):
    """The broadcast of the input with a tensor of the given shape."""

    shape_inputs = (1,)
    mapping = MappingType.ONE_TO_MANY

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        target = shape_from(x, 1)
        return [broadcast_shapes([x[0].shape, target]) if isinstance(target, tuple) else target]

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        assert x[0] is not None and y[0] is not None
        shape = small_shape(y[0])
        if isinstance(x[0].value, Undef):
            return [UNDEF]
        if shape is None or not isinstance(x[0].value, np.ndarray):
            return [NAC]
        return [np.broadcast_to(x[0].value, shape).copy()]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        target = shape_from(x, 1)
        return [broadcast_back([as_shape(x[0]), target], as_shape(y[0]))[0], UNDEF]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        return broadcast_guards([as_shape(x[0]), shape_from(x, 1)]) + size_guards(x, 1)

    def hands_on(self, node: Node, x: Facts, y: Facts) -> bool:
        return True

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and y[0] is not None
        return e.load(0, broadcast_index(e, index, x[0], y[0]))

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, shape = arrays
        assert x is not None and shape is not None
        return [x * np.ones(tuple(shape), x.dtype)]

    def examples(self) -> Examples:
        x = np.arange(3, dtype=np.float32).reshape(3, 1)
        for target in ([2, 1, 6], [3, 4], [1], [1, 1], [0], [2, 3, 0]):
            yield {}, [x, np.array(target, np.int64)]
        yield {}, [np.array([7]), np.array([3], np.int64)]
        yield {}, [np.array([True]), np.array([2, 2], np.int64)]


@register()
class Tile(Op):
    """The input repeated along every axis."""

    shape_inputs = (1,)
    mapping = MappingType.ONE_TO_MANY

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None and isinstance(x[0].shape, tuple) and x[1] is not None
        if isinstance(x[1].value, Undef):
            return [(UNDEF,) * len(x[0].shape)]
        repeats = integers(x[1])
        if repeats is None:
            return [(NAC,) * len(x[0].shape)]
        return [tuple(lift(lambda d, r: d * r, d, r) for d, r in zip(x[0].shape, repeats, strict=True))]

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        assert x[0] is not None and y[0] is not None
        shape, opened = small_shape(y[0]), elements(x[0])
        if isinstance(x[0].value, Undef):
            return [UNDEF]
        if shape is None or opened is None or not isinstance(x[0].value, np.ndarray) or 0 in opened.shape:
            return [NAC]
        repeats = tuple(n // m for n, m in zip(shape, opened.shape, strict=True))
        if x[0].value.dtype != object:
            return [np.tile(x[0].value, repeats)]
        return [packed(np.tile(opened, repeats), x[0].dtype)]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        return size_guards(x, 1)

    def hands_on(self, node: Node, x: Facts, y: Facts) -> bool:
        return True

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and y[0] is not None
        pairs = zip(index, x[0].dims, y[0].dims, strict=True)
        return e.load(0, [_tile_index(e, i, d, r) for i, d, r in pairs])

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, repeats = arrays
        assert x is not None and repeats is not None
        return [np.tile(x, tuple(int(r) for r in repeats))]

    def examples(self) -> Examples:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        for repeats in ([1, 1], [2, 1], [1, 3], [2, 2], [0, 2]):
            yield {}, [x, np.array(repeats, np.int64)]
        yield {}, [np.zeros((1, 0), np.float32), np.array([3, 2], np.int64)]
        yield {}, [np.array([4, 5]), np.array([2], np.int64)]


def _tile_index(e: Emitter, i: Index, dim: Dim, result: Dim) -> Index:
    if dim == 1:
        return e.position(0)
    return i if eq(dim, result) is True else e.opaque(f"({e.c(i)} % {e.c(dim)})")
