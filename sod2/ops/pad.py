"""Pad: constant, edge, reflect and wrap. A negative pad crops.

A reflected pad needs as many other elements on the axis as it has itself; the guards say so. Loads stay inside the
tensor: the position is clamped, and in constant mode the fill value is chosen afterwards.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.errors import UnsupportedError
from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Nac, Shape, Undef
from sod2.ops.attributes import axes_of, present
from sod2.ops.axes import axis_values, given_to
from sod2.ops.elementwise import CType
from sod2.ops.lift import Element, integers, lift, nonempty_guards, number_arrays, small_shape
from sod2.ops.op import Array, Emitter, Facts, Index, MappingType, Op, TensorValue, register
from sod2.symbolic import Dim, as_dim, eq, le, maximum, minimum

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]
MODES = ("constant", "edge", "reflect", "wrap")


@register()
class Pad(Op):
    """Elements before and behind those of the given axes."""

    shape_inputs = (1, 3)
    mapping = MappingType.ONE_TO_MANY
    reads_outside = True
    cost = 4

    def mode(self, node: Node) -> str:
        """One of MODES; UnsupportedError for any other."""
        mode = str(node.attrs.get("mode", "constant"))
        if mode not in MODES:
            raise UnsupportedError(f"Pad (node {node.name!r}) of mode {mode!r}; {', '.join(MODES)} are supported")
        return mode

    def pads(self, node: Node, x: Facts) -> list[tuple[Element, Element]] | None:
        """(before, behind) of every dim; None when the axes or the number of pads aren't known."""
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        rank = len(x[0].shape)
        axes = axes_of(node, x, 3, rank)
        if "pads" in node.attrs:
            values: list[Element] | None = [as_dim(int(p)) for p in node.attrs["pads"]]
        else:
            values = integers(present(x, 1))
        if values is None:
            return None
        if isinstance(axes, Nac):
            found, none = axis_values(present(x, 3), rank), [as_dim(0)] * rank
            if found is None:
                return None
            halves = values[: len(found)], values[len(found) :]
            return list(zip(*(given_to(found, half, rank, none) for half in halves), strict=True))
        padded = range(rank) if axes is None else axes
        result: list[tuple[Element, Element]] = [(as_dim(0), as_dim(0))] * rank
        for axis, before, behind in zip(padded, values[: len(padded)], values[len(padded) :], strict=True):
            result[axis] = (before, behind)
        return result

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        if any((f := present(x, i)) is not None and isinstance(f.value, Undef) for i in self.shape_inputs):
            return [(UNDEF,) * len(x[0].shape)]
        pads = self.pads(node, x)
        if pads is None:
            return [(NAC,) * len(x[0].shape)]
        return [tuple(lift(lambda n, b, e: n + b + e, d, *p) for d, p in zip(x[0].shape, pads, strict=True))]

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        assert y[0] is not None
        numbers = number_arrays(x)
        return [NAC] if numbers is None or small_shape(y[0]) is None else list(self.reference(node, *numbers))

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        claims: list[Shape] = [UNDEF] * len(node.inputs)
        if x[0] is None or x[0].rank is None or y[0] is None or not isinstance(y[0].shape, tuple):
            return claims
        pads = self.pads(node, x)
        if pads is not None:
            dims = [lift(lambda n, b, e: n - b - e, d, *p) for d, p in zip(y[0].shape, pads, strict=True)]
            claims[0] = tuple(d if isinstance(d, Dim) else UNDEF for d in dims)
        return claims

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        """No dim becomes negative, a reflection stays inside the tensor, and what is repeated exists."""
        assert x[0] is not None and isinstance(x[0].shape, tuple) and y[0] is not None
        shape = y[0].shape if isinstance(y[0].shape, tuple) else ()
        pairs = [(maximum(d, 0), d) for d in shape if isinstance(d, Dim)]
        if self.mode(node) == "reflect":
            for dim, pads in zip(x[0].shape, self.pads(node, x) or [], strict=False):
                pairs += [
                    (minimum(p, maximum(dim - 1, 0)), p) for p in pads if isinstance(p, Dim) and isinstance(dim, Dim)
                ]
        if self.mode(node) in ("edge", "wrap"):
            for dim, pads in zip(x[0].shape, self.pads(node, x) or [], strict=False):
                pairs += nonempty_guards(dim, lift(lambda before, behind: before + behind, *pads))
        return [(a, b) for a, b in pairs if eq(a, b) is not True]

    def moves_rows(self, node: Node, x: Facts, y: Facts) -> bool:
        """Zeros around all axes but the last."""
        fill, pads = present(x, 2), self.pads(node, x)
        value = node.attrs.get("value", 0) if fill is None else fill.known_value
        zero = value is not None and not np.any(value)
        return zero and self.mode(node) == "constant" and pads is not None and pads[-1:] == [(as_dim(0), as_dim(0))]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None
        pads = self.pads(node, x) or []
        source: list[Index] = []
        inside: list[str] = []
        for i, dim, (before, behind) in zip(index, x[0].dims, pads, strict=True):
            assert isinstance(before, Dim) and isinstance(behind, Dim)
            position = i + -before
            if le(before, 0) and le(behind, 0):
                source.append(position)
                continue
            text = e.local(np.dtype(np.int64), e.c(position))
            source.append(e.opaque(self._inside(e, text, dim, self.mode(node))))
            inside.append(f"{text} >= 0 && {text} < {e.c(dim)}")
        loaded = e.load(0, source)
        if self.mode(node) != "constant" or not inside:
            return loaded
        return f"({' && '.join(inside)} ? {loaded} : {self._fill(node, e, x)})"

    def _inside(self, e: Emitter, position: str, dim: Dim, mode: str) -> str:
        """A position that may be outside, mapped or clamped into [0, dim)."""
        last = f"({e.c(dim)} - 1)"
        if mode == "wrap":
            return f"sod2_floormod({position}, {e.c(dim)})"
        if mode == "reflect":
            position = f"({position} < 0 ? -{position} : {position} > {last} ? 2 * {last} - {position} : {position})"
        return f"sod2_imax(sod2_imin({position}, {last}), 0)"

    def _fill(self, node: Node, e: Emitter, x: Facts) -> str:
        fact = present(x, 2)
        if fact is not None:
            return e.load(2, [e.position(0)] * len(fact.dims))
        assert x[0] is not None
        return CType(x[0].dtype, e.element(x[0].dtype)).number(float(node.attrs.get("value", 0)))

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        values = [int(p) for p in node.attrs.get("pads", present(arrays, 1))]
        axes = present(arrays, 3)
        fill = present(arrays, 2)
        for k, axis in enumerate(range(x.ndim) if axes is None else axes):
            x = _pad_axis(x, int(axis), (values[k], values[k + len(values) // 2]), self.mode(node), fill)
        return [np.ascontiguousarray(x)]

    def examples(self) -> Examples:
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        pads = np.array([1, 2, 0, 3], np.int64)
        yield {}, [x, pads]
        yield {}, [x, pads, np.array(7, np.float32)]
        yield {"mode": "edge"}, [x, pads]
        yield {"mode": "reflect"}, [x, pads]
        yield {"mode": "wrap"}, [x, pads]
        yield {}, [x, np.array([-1, 1, 0, -2], np.int64)]
        yield {}, [x, np.array([2, 1], np.int64), None, np.array([-1], np.int64)]
        yield {}, [x[:0], np.array([1, 0, 1, 0], np.int64), np.array(2.5, np.float32)]
        yield {}, [np.array([4, 5]), np.array([0, 1], np.int64), np.array(9)]
        yield {}, [np.array([True]), np.array([1, 1], np.int64)]


def _pad_axis(x: Array, axis: int, pads: tuple[int, int], mode: str, fill: Array | None) -> Array:
    before, behind = pads
    size = x.shape[axis]
    x = np.take(x, range(max(0, -before), size - max(0, -behind)), axis=axis)
    width = [(0, 0)] * x.ndim
    width[axis] = (max(0, before), max(0, behind))
    if mode == "constant":
        return np.pad(x, width, constant_values=0 if fill is None else fill.item())
    return np.pad(x, width, mode=mode)  # type: ignore[call-overload, no-any-return]
