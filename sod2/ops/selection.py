"""Elements chosen by their position: Trilu, OneHot, ReverseSequence, Hardmax, TensorScatter."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Shape, Undef
from sod2.ops.attributes import axis_of, normal_axis, present
from sod2.ops.lift import Element, integers
from sod2.ops.op import Array, Counting, Emitter, Facts, Index, MappingType, Op, register
from sod2.ops.shape_of import size_guards
from sod2.symbolic import Dim

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]
INT64 = np.dtype(np.int64)


class SameShape(Op):
    """An operator whose output has the shape of its first input."""

    mapping = MappingType.ONE_TO_ONE

    @property
    def aligned(self) -> bool:
        return False

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None
        return [x[0].shape]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return [UNDEF if y[0] is None else y[0].shape] + [UNDEF] * (len(node.inputs) - 1)


def only(e: Emitter, operand: int, x: Facts) -> str:
    """The element of a tensor that has one."""
    fact = x[operand]
    assert fact is not None
    return e.load(operand, [e.position(0)] * len(fact.dims))


@register()
class Trilu(SameShape):
    """The upper (or lower) triangle of the last two axes from the k-th diagonal on, 0 elsewhere."""

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        k = "0" if present(x, 1) is None else only(e, 1, x)
        sign = ">=" if node.attrs.get("upper", 1) else "<="
        return f"({e.c(index[-1])} - {e.c(index[-2])} {sign} {k} ? {e.load(0, index)} : 0)"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, k = arrays[0], present(arrays, 1)
        assert x is not None
        distance = np.arange(x.shape[-1]) - np.arange(x.shape[-2])[:, None]
        first = 0 if k is None else int(k.item())
        return [np.where(distance >= first if node.attrs.get("upper", 1) else distance <= first, x, x.dtype.type(0))]

    def examples(self) -> Examples:
        x = np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4)
        yield {}, [x]
        yield {"upper": 0}, [x]
        for k in (-1, 1, 7):
            yield {}, [x, np.array(k, np.int64)]
            yield {"upper": 0}, [x.astype(np.int64), np.array([k], np.int64).reshape(())]
        yield {}, [np.zeros((2, 0, 4), np.float32)]


@register()
class OneHot(Op):
    """values[1] where the index equals the position along a new axis of length `depth`, values[0] elsewhere."""

    shape_inputs = (1,)
    mapping = MappingType.ONE_TO_MANY

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        assert x[2] is not None
        return [x[2].dtype]

    def _axis(self, node: Node, x: Facts) -> int:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        return axis_of(node, len(x[0].shape) + 1, -1)

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None and isinstance(x[0].shape, tuple) and x[1] is not None
        axis = self._axis(node, x)
        depth: Element = UNDEF if isinstance(x[1].value, Undef) else (integers(x[1]) or [NAC])[0]
        return [(*x[0].shape[:axis], depth, *x[0].shape[axis:])]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        axis = self._axis(node, x)
        known = y[0].shape if y[0] is not None else UNDEF
        first = (*known[:axis], *known[axis + 1 :]) if isinstance(known, tuple) else UNDEF
        return [first, UNDEF, UNDEF]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        return size_guards(x, 1)

    def count(self, node: Node, k: Counting, x: Facts, y: Facts) -> str:
        """A depth that is a real number."""
        return f"{k.minted(0, self._axis(node, x))} = (int64_t)*({k.pointer(1)});"

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert y[0] is not None and x[0] is not None
        axis = self._axis(node, x)
        depth = e.c(y[0].dims[axis])
        hot = e.local(INT64, f"(int64_t){e.load(0, [*index[:axis], *index[axis + 1 :]])}")
        position = e.local(INT64, f"({hot} < 0 ? {hot} + {depth} : {hot})")
        off, on = (e.load(2, [e.position(k)]) for k in range(2))
        return f"({position} == {e.c(index[axis])} ? {on} : {off})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        indices, depth, values = arrays
        assert indices is not None and depth is not None and values is not None
        count = int(depth.item())
        axis = normal_axis(node, int(node.attrs.get("axis", -1)), indices.ndim + 1)
        hot = np.expand_dims(indices.astype(np.int64), axis)
        positions = np.arange(count).reshape(-1, *[1] * (indices.ndim - axis))
        return [np.where(np.where(hot < 0, hot + count, hot) == positions, values[1], values[0])]

    def examples(self) -> Examples:
        values = np.array([2, 5], np.float32)
        indices = np.array([[0, -1, 3], [7, 1, -9]], np.int64)
        for axis in (-1, 0, 1):
            yield {"axis": axis}, [indices, np.array(4, np.int64), values]
        yield {}, [np.zeros((0,), np.int64), np.array(2, np.int64), values.astype(np.int32)]
        yield {}, [np.array(1, np.int64), np.array(3, np.int64), values]


@register()
class ReverseSequence(SameShape):
    """Along the time axis the first `sequence_lens` elements of each batch entry in reverse order."""

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        time, batch = int(node.attrs.get("time_axis", 0)), int(node.attrs.get("batch_axis", 1))
        assert x[0] is not None
        length = e.local(INT64, f"sod2_imin((int64_t){e.load(1, [index[batch]])}, {e.c(x[0].dims[time])})")
        at = e.c(index[time])
        source = e.opaque(f"({at} < {length} ? {length} - 1 - {at} : {at})")
        return e.load(0, [*index[:time], source, *index[time + 1 :]])

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, lengths = arrays
        assert x is not None and lengths is not None
        time, batch = int(node.attrs.get("time_axis", 0)), int(node.attrs.get("batch_axis", 1))
        moved = np.moveaxis(x, (batch, time), (0, 1)).copy()
        for row, length in zip(moved, lengths, strict=True):
            row[:length] = row[:length][::-1].copy()
        return [np.moveaxis(moved, (0, 1), (batch, time))]

    def examples(self) -> Examples:
        x = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
        yield {}, [x, np.array([4, 1, 2], np.int64)]
        yield {"time_axis": 1, "batch_axis": 0}, [x, np.array([3, 2, 1, 1], np.int64)]


@register()
class Hardmax(SameShape):
    """1 at the first largest element along `axis`, 0 elsewhere."""

    cost = 100

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None
        axis = axis_of(node, len(x[0].dims), -1)
        own, here = e.load(0, index), e.c(index[axis])

        def step(k: list[Any], beaten: str) -> str:
            other = e.load(0, [*index[:axis], k[0], *index[axis + 1 :]])
            return f"({beaten} || {other} > {own} || ({other} == {own} && {e.c(k[0])} < {here}))"

        return f"(!{e.fold(INT64, '0', [x[0].dims[axis]], step)})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        axis = int(node.attrs.get("axis", -1))
        best = np.argmax(x, axis=axis, keepdims=True)
        shape = [1] * x.ndim
        shape[axis] = -1
        return [(np.arange(x.shape[axis]).reshape(shape) == best).astype(x.dtype)]

    def examples(self) -> Examples:
        x = np.array([[3, 0, 1, 2], [2, 5, 1, 0], [0, 1, 3, 2], [0, 1, 2, 2]], np.float32)
        yield {}, [x]
        yield {"axis": 0}, [x]
        yield {"axis": 1}, [x.reshape(2, 2, 4)]


@register()
class TensorScatter(SameShape):
    """A cache with an update written into it along `axis`, from each batch entry's write index on."""

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and x[1] is not None
        axis = axis_of(node, len(x[0].dims), -2)
        length, size = x[1].dims[axis], e.c(x[0].dims[axis])
        first = "0" if present(x, 2) is None else e.load(2, index[:1])
        offset = e.local(INT64, f"{e.c(index[axis])} - {first}")
        if str(node.attrs.get("mode", "linear")) == "circular":
            offset = e.local(INT64, f"sod2_floormod({offset}, {size})")
        inside = f"{offset} >= 0 && {offset} < {e.c(length)}"
        source = e.opaque(f"({inside} ? {offset} : 0)")
        update = e.load(1, [*index[:axis], source, *index[axis + 1 :]])
        return f"({inside} ? {update} : {e.load(0, index)})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        cache, update, starts = arrays[0], arrays[1], present(arrays, 2)
        assert cache is not None and update is not None
        axis = int(node.attrs.get("axis", -2)) % cache.ndim
        result = np.moveaxis(cache.copy(), axis, 1)
        piece = np.moveaxis(update, axis, 1)
        first = np.zeros(len(cache), np.int64) if starts is None else starts
        for row, new, start in zip(result, piece, first, strict=True):
            where = (int(start) + np.arange(len(new))) % len(row)
            row[where] = new
        return [np.moveaxis(result, 1, axis)]

    def examples(self) -> Examples:
        cache, update = np.zeros((2, 3, 4, 5), np.float32), np.ones((2, 3, 2, 5), np.float32)
        yield {}, [cache, update, np.array([0, 2], np.int64)]
        yield {"mode": "circular"}, [cache, update, np.array([3, 1], np.int64)]
        yield {}, [cache, update]
