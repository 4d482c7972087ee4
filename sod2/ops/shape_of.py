"""Tensors made of shapes, and shapes made of values: Shape, Size, ConstantOfShape, Range, EyeLike.

Shape is where sizes enter the V-map, ConstantOfShape and Range are where values become sizes (paper, Table 2).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.dtypes import element_type, is_float
from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Shape, Undef
from sod2.ops.attributes import dtype_of
from sod2.ops.elementwise import CType
from sod2.ops.lift import (
    MAX_ELEMENTS,
    Element,
    concrete,
    elements,
    exactness_guards,
    integers,
    known_shape,
    lift,
    number_arrays,
    packed,
    product,
    small_shape,
)
from sod2.ops.op import Array, Counting, Emitter, Facts, Index, MappingType, Op, TensorValue, register
from sod2.symbolic import Dim, as_dim, ceildiv, eq, ge, lt, maximum, minimum

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]
INT64 = np.dtype(np.int64)


@register("Shape")
class ShapeOf(Op):
    """ONNX Shape: the dims from `start` to `end` as an int64 vector; the input's elements are never read."""

    value_inputs = False
    mapping = MappingType.ONE_TO_ONE

    @property
    def aligned(self) -> bool:
        return False

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [INT64]

    def _range(self, node: Node, rank: int) -> slice:
        start, end = node.attrs.get("start", 0), node.attrs.get("end", rank)
        first, last = (min(max(i + rank if i < 0 else i, 0), rank) for i in (start, end))
        return slice(first, max(first, last))

    def _dims(self, node: Node, x: Facts) -> tuple[Element, ...]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        return x[0].shape[self._range(node, len(x[0].shape))]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        return [concrete([len(self._dims(node, x))])]

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        dims = np.empty(len(self._dims(node, x)), dtype=object)
        dims[:] = self._dims(node, x)
        return [UNDEF if any(isinstance(d, Undef) for d in dims) else packed(dims, INT64)]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        """A refined value of the output says what the input's dims are."""
        if x[0] is None or x[0].rank is None or y[0] is None:
            return [UNDEF]
        claim: list[Element] = [UNDEF] * x[0].rank
        values = integers(y[0])
        if values is not None:
            claim[self._range(node, x[0].rank)] = [v if isinstance(v, Dim) else UNDEF for v in values]
        return [tuple(claim)]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None
        dims = x[0].dims[self._range(node, len(x[0].dims))]
        text = "INT64_C(0)"
        for i, dim in reversed(list(enumerate(dims))):
            text = f"({e.c(index[0])} == {i} ? {e.c(dim)} : {text})"
        return text

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        return [np.array(arrays[0].shape[self._range(node, arrays[0].ndim)], np.int64)]

    def examples(self) -> Examples:
        x = np.zeros((2, 3, 0, 1), np.float32)
        yield {}, [x]
        yield {"start": 1}, [x]
        yield {"start": -2, "end": -1}, [x]
        yield {"start": 3, "end": 1}, [x]
        yield {"end": 99}, [x]
        yield {}, [np.array(1.0, np.float32)]


@register()
class Size(Op):
    """The number of elements, an int64 scalar."""

    value_inputs = False

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [INT64]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        return [()]

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        count = np.empty((), dtype=object)
        count[()] = product(x[0].shape)
        return [packed(count, INT64)]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None
        return e.c(math.prod(x[0].dims, start=as_dim(1)))

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        return [np.array(arrays[0].size, np.int64)]

    def examples(self) -> Examples:
        yield {}, [np.zeros((2, 3), np.float32)]
        yield {}, [np.zeros((2, 0), np.int64)]
        yield {}, [np.array(True)]


@register()
class ConstantOfShape(Op):
    """A tensor of the given shape, filled with the attribute `value` (float32 0 by default)."""

    shape_inputs = (0,)
    value_inputs = False
    mapping = MappingType.ONE_TO_MANY

    def _fill(self, node: Node) -> Array:
        return np.asarray(node.attrs.get("value", np.zeros(1, np.float32))).reshape(())

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [self._fill(node).dtype]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        return [shape_from(x, 0)]

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        shape = None if y[0] is None else known_shape(y[0].shape)
        if shape is None or math.prod(shape) > MAX_ELEMENTS:
            return [NAC]
        return [np.full(shape, self._fill(node))]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        return size_guards(x, 0)

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        fill = self._fill(node)
        return CType(fill.dtype, e.element(fill.dtype)).number(fill.item())

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        return [np.full(tuple(arrays[0]), self._fill(node))]

    def examples(self) -> Examples:
        yield {}, [np.array([2, 3], np.int64)]
        yield {"value": np.array([7], np.int64)}, [np.array([2, 0, 1], np.int64)]
        yield {"value": np.array([True])}, [np.zeros(0, np.int64)]


def shape_from(x: Facts, position: int) -> Shape:
    """The shape that is written in the values of an input; UNDEF before they are reached."""
    fact = x[position]
    if fact is not None and isinstance(fact.value, Undef):
        return UNDEF
    dims = integers(fact)
    return NAC if dims is None else tuple(dims)


def size_guards(x: Facts, position: int) -> list[tuple[Dim, Dim]]:
    """Pairs that are equal exactly when the sizes in an input's value are not negative."""
    return [(maximum(d, 0), d) for d in integers(x[position]) or [] if isinstance(d, Dim) and maximum(d, 0) != d]


@register()
class Range(Op):
    """start, start + delta, … before limit: max(0, ceil((limit - start) / delta)) numbers."""

    shape_inputs = (0, 1, 2)
    mapping = MappingType.ONE_TO_MANY

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        if any(f is not None and isinstance(f.value, Undef) for f in x):
            return [(UNDEF,)]
        numbers = number_arrays(x)
        if numbers is not None:
            return [concrete(self.reference(node, *numbers)[0].shape)]
        if x[0] is None or is_float(x[0].dtype):
            return [(NAC,)]
        return [(NAC if self._by_sign(x) else self._number(x),)]

    def _number(self, x: Facts) -> Element:
        """The number of elements between integer ends."""
        return lift(_count, *((integers(f) or [NAC])[0] for f in x))

    def _by_sign(self, x: Facts) -> bool:
        """Whether the number of elements has a case for each sign of a delta that only execution tells."""
        (delta,) = integers(x[2]) or [NAC]
        return isinstance(delta, Dim) and delta.is_signed

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        if y[0] is None or small_shape(y[0]) is None:
            return [NAC]
        numbers = number_arrays(x)
        if numbers is not None:
            return list(self.reference(node, *numbers))
        start, _, delta = (None if f is None else elements(f) for f in x)
        if start is None or delta is None:
            return [NAC]
        (count,) = small_shape(y[0]) or (0,)
        result = np.empty(count, dtype=object)
        result[:] = [lift(lambda a, d, i=i: a + d * i, start.item(), delta.item()) for i in range(count)]
        return [packed(result, y[0].dtype)]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        (delta,) = integers(x[2]) or [NAC]
        if not isinstance(delta, Dim) or eq(delta, 0) is False:
            return exactness_guards(y)
        size = minimum(maximum(delta, 0), 1) + minimum(maximum(-delta, 0), 1)
        return [*exactness_guards(y), (size, as_dim(1))]

    def count(self, node: Node, k: Counting, x: Facts, y: Facts) -> str:
        assert x[0] is not None
        if self._by_sign(x):
            count = self._number(x)
            assert isinstance(count, Dim)
            return f"{k.minted(0, 0)} = {k.c(count)};"
        load = element_type(x[0].dtype).load
        start, limit, delta = (f"(double){load.format(f'*{k.pointer(i)}')}" for i in range(3))
        return (
            f"const double count = ceil(({limit} - {start}) / {delta});\n"
            f"if (!(fabs(count) < 0x1p62)) {k.refuse('a Range whose delta is 0 or whose ends are not finite')}\n"
            f"{k.minted(0, 0)} = count > 0 ? (int64_t)count : 0;"
        )

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None
        c = CType(x[0].dtype, e.element(x[0].dtype))
        start, delta = e.load(0, []), e.load(2, [])
        return c.arithmetic(start, "+", c.arithmetic(f"({c.name}){e.c(index[0])}", "*", delta))

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        start, limit, delta = (np.asarray(a).reshape(()) for a in arrays)
        span = (float(limit) - float(start)) / float(delta) if is_float(start.dtype) else 0.0
        count = math.ceil(span) if is_float(start.dtype) else -((int(start) - int(limit)) // int(delta))
        return [(start + np.arange(max(0, count)) * delta).astype(start.dtype)]

    def examples(self) -> Examples:
        for start, limit, delta in ((0, 5, 1), (3, 10, 3), (10, 3, -2), (5, 5, 1), (6, 5, 2)):
            yield {}, [np.array(v, np.int64) for v in (start, limit, delta)]
        yield {}, [np.array(v, np.float32) for v in (0.5, 3.0, 0.5)]


def _count(start: Dim, limit: Dim, delta: Dim) -> Dim | None:
    if delta == 0:
        return None
    if ge(delta, 1):
        return maximum(ceildiv(limit - start, delta), 0)
    if lt(delta, 0):
        return maximum(ceildiv(start - limit, -delta), 0)
    up = minimum(maximum(delta, 0), 1)  # only execution tells the sign
    ahead, back = ceildiv(limit - start, maximum(delta, 1)), ceildiv(start - limit, maximum(-delta, 1))
    return maximum(ahead, 0) * up + maximum(back, 0) * (1 - up)


@register()
class EyeLike(Op):
    """A matrix of the input's shape with ones on the k-th diagonal."""

    value_inputs = False

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [dtype_of(node, "dtype")] if "dtype" in node.attrs else super().dtype(node, x)

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None
        return [x[0].shape]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return [UNDEF if y[0] is None else y[0].shape]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        return f"({e.c(index[0] + int(node.attrs.get('k', 0)))} == {e.c(index[1])})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        dtype = dtype_of(node, "dtype") if "dtype" in node.attrs else arrays[0].dtype
        rows, columns = arrays[0].shape
        return [np.eye(rows, columns, k=int(node.attrs.get("k", 0)), dtype=dtype)]

    def examples(self) -> Examples:
        yield {}, [np.zeros((3, 4), np.float32)]
        yield {"k": 1, "dtype": 7}, [np.zeros((2, 3), np.float32)]
        yield {"k": -1}, [np.zeros((3, 2), np.float32)]
