"""Slice with symbolic starts, ends and steps.

Indices are clamped as the standard says: a negative one counts from the end, then it is limited to [0, n] for a
positive step and to [-1, n - 1] for a negative one. Where the sign isn't known it becomes part of the expression. The
number of elements is max(0, ceil((end - start) / step)). For a negative step with end INT_MAX that is 0: the standard,
though some engines return everything.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Shape, Undef
from sod2.ops.attributes import normal_axis, present
from sod2.ops.axes import axis_guards, axis_values, given_to
from sod2.ops.lift import Element, constant_integers, integers, lift, packed, small_shape
from sod2.ops.op import Array, Counting, Emitter, Facts, Index, MappingType, Op, TensorValue, register
from sod2.symbolic import Dim, as_dim, ceildiv, eq, ge, lt, maximum, minimum

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]
HUGE = 2**31 - 1  # ends beyond this mean "to the end" (exporters write INT32_MAX or INT64_MAX)


def is_negative(index: Dim) -> Dim:
    """1 where the index is below 0, else 0; without overflow for any 64-bit number."""
    return -maximum(minimum(index, 0), -1)


def clamp_index(index: Dim, size: Dim, low: int, high: Dim) -> Dim:
    """An index that counts from the end when it is negative, limited to [low, high], the upper limit last."""
    if index.is_constant and abs(int(index)) >= HUGE:
        return minimum(high, low) if int(index) < 0 else high
    if ge(index, 0):
        position = index
    elif lt(index, 0):
        position = index + size
    else:
        position = index + size * is_negative(index)
    return minimum(maximum(position, low), high)


@dataclass(frozen=True)
class Span:
    """The elements that a slice takes of one axis: `start + k * step` for k below `count`."""

    start: Element
    step: Element
    count: Element

    @property
    def is_counted(self) -> bool:
        """Whether the count gets a name of its own: its expression has a case for each sign of numbers in the data."""
        return isinstance(self.count, Dim) and self.count.is_signed


def span(start: Element, end: Element, step: Element, size: Element) -> Span:
    """The span of start, end and step over an axis of `size`; what can't be decided is NAC."""
    if not isinstance(step, Dim) or step == 0:
        return Span(NAC, step, NAC)
    if step.is_constant:
        return _directed(start, end, step, int(step) > 0, size)
    up = minimum(maximum(step, 0), 1)  # a step that only execution tells: 1 where it is positive, else 0
    ahead = _directed(start, end, maximum(step, 1), True, size)
    back = _directed(start, end, minimum(step, -1), False, size)

    def chosen(a: Dim, b: Dim) -> Dim:
        return a * up + b * (1 - up)

    return Span(lift(chosen, ahead.start, back.start), step, lift(chosen, ahead.count, back.count))


def _directed(start: Element, end: Element, step: Dim, forward: bool, size: Element) -> Span:
    """The span for a step whose sign is known."""

    def begin(s: Dim, n: Dim) -> Dim:
        return clamp_index(s, n, 0, n if forward else n - 1)

    def stop(e: Dim, n: Dim) -> Dim:
        return clamp_index(e, n, 0, n) if forward else clamp_index(e, n, -1, n - 1)

    def count(b: Dim, s: Dim) -> Dim:
        return maximum(ceildiv(s - b, step) if forward else ceildiv(b - s, -step), 0)

    first = lift(begin, start, size)
    return Span(first, step, lift(count, first, lift(stop, end, size)))


@register()
class Slice(Op):
    """x[start:end:step] along the given axes."""

    shape_inputs: tuple[int, ...] = (1, 2, 3, 4)
    mapping = MappingType.ONE_TO_ONE

    @property
    def aligned(self) -> bool:
        return False

    def _numbers(self, node: Node, x: Facts, position: int, name: str) -> list[Element] | None:
        """Starts, ends or steps from the attribute of old opsets or from the input."""
        if name in node.attrs:
            return [as_dim(int(v)) for v in node.attrs[name]]
        return integers(present(x, position))

    def _axes(self, node: Node, x: Facts, rank: int, count: int) -> list[int] | None:
        if "axes" in node.attrs:
            return [normal_axis(node, int(a), rank) for a in node.attrs["axes"]]
        fact = present(x, 3)
        axes = list(range(count)) if fact is None else constant_integers(fact)
        return None if axes is None else [normal_axis(node, a, rank) for a in axes]

    def spans(self, node: Node, x: Facts) -> list[Span | None] | None:
        """Per dim of the input its span, None where it is not sliced; None when the axes aren't known."""
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        starts, ends = self._numbers(node, x, 1, "starts"), self._numbers(node, x, 2, "ends")
        if starts is None or ends is None:
            return None
        steps = [as_dim(1)] * len(starts) if present(x, 4) is None else self._numbers(node, x, 4, "steps")
        if steps is None:
            return None
        rank = len(x[0].shape)
        axes = self._axes(node, x, rank, len(starts))
        if axes is None:
            found = axis_values(present(x, 3), rank)
            return None if found is None else self._spans_along(x[0].shape, found, starts, ends, steps)
        result: list[Span | None] = [None] * len(x[0].shape)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            result[axis] = span(start, end, step, x[0].shape[axis])
        return result

    @staticmethod
    def _spans_along(dims: Sequence[Element], axes: Sequence[Dim], *lists: Sequence[Element]) -> list[Span | None]:
        """The spans for axes that only execution tells: everything is taken of an axis that is not among them."""
        rank = len(dims)
        whole = ([as_dim(0)] * rank, dims, [as_dim(1)] * rank)
        starts, ends, steps = (given_to(axes, v, rank, w) for v, w in zip(lists, whole, strict=True))
        return [span(*of_axis) for of_axis in zip(starts, ends, steps, dims, strict=True)]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        if any(f is not None and isinstance(f.value, Undef) for f in x[1:]):
            return [(UNDEF,) * len(x[0].shape)]
        spans = self.spans(node, x)
        if spans is None:
            return [(NAC,) * len(x[0].shape)]
        return [
            tuple(d if s is None else NAC if s.is_counted else s.count for d, s in zip(x[0].shape, spans, strict=True))
        ]

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        assert x[0] is not None and y[0] is not None
        shape, spans = small_shape(y[0]), self.spans(node, x)
        if isinstance(x[0].value, Undef):
            return [UNDEF]
        if shape is None or spans is None or not isinstance(x[0].value, np.ndarray):
            return [NAC]
        taken: list[range] = []
        for count, s in zip(shape, spans, strict=True):
            start, step = (as_dim(0), as_dim(1)) if s is None else (s.start, s.step)
            if not (isinstance(start, Dim) and start.is_constant and isinstance(step, Dim) and step.is_constant):
                return [NAC]
            taken.append(range(int(start), int(start) + count * int(step), int(step)))
        return [_taken(x[0].value, taken, y[0].dtype)]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        """A step is never 0; an axis that only execution tells is in range."""
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        axes = axis_guards(present(x, 3), len(x[0].shape)) if constant_integers(present(x, 3)) is None else []
        steps = [s.step for s in self.spans(node, x) or [] if s is not None]
        unsure = [s for s in steps if isinstance(s, Dim) and eq(s, 0) is not False]
        return [(minimum(maximum(s, 0), 1) + is_negative(s), as_dim(1)) for s in unsure] + axes

    def count(self, node: Node, k: Counting, x: Facts, y: Facts) -> str:
        spans = enumerate(self.spans(node, x) or [])
        counts = [(axis, s.count) for axis, s in spans if s is not None and s.is_counted and isinstance(s.count, Dim)]
        return "\n".join(f"{k.minted(0, axis)} = {k.c(count)};" for axis, count in counts)

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        """Dims that are not sliced stay."""
        claims: list[Shape] = [UNDEF] * len(node.inputs)
        if x[0] is None or x[0].rank is None or y[0] is None or not isinstance(y[0].shape, tuple):
            return claims
        spans = self.spans(node, x)
        if spans is not None:
            claims[0] = tuple(d if s is None else UNDEF for d, s in zip(y[0].shape, spans, strict=True))
        return claims

    def hands_on(self, node: Node, x: Facts, y: Facts) -> bool:
        """As many elements forwards are all of them."""
        spans = self.spans(node, x)
        return spans is not None and all(s is None or (isinstance(s.step, Dim) and s.step == 1) for s in spans)

    def moves_rows(self, node: Node, x: Facts, y: Facts) -> bool:
        """Rows are whole where the last axis is not sliced."""
        spans = self.spans(node, x)
        return spans is not None and spans[-1:] == [None]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        spans = self.spans(node, x) or []
        source = list(index)
        for i, s in enumerate(spans):
            if s is not None:
                assert isinstance(s.start, Dim) and isinstance(s.step, Dim)
                # opaque: an index that another operator wrote as C text can be added to, but not scaled
                stepped = index[i] if s.step == 1 else e.opaque(f"({e.c(index[i])} * {e.c(s.step)})")
                source[i] = stepped + s.start
        return e.load(0, source)

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None

        def numbers(position: int, name: str, default: Sequence[int]) -> Sequence[int]:
            array = present(arrays, position)
            given = node.attrs.get(name, default) if array is None else array
            return [int(v) for v in given]

        starts, ends = numbers(1, "starts", ()), numbers(2, "ends", ())
        axes = numbers(3, "axes", range(len(starts)))
        steps = numbers(4, "steps", [1] * len(starts))
        picks = [np.arange(n) for n in x.shape]
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            picks[axis] = _positions(start, end, step, x.shape[axis])
        return [x[np.ix_(*picks)] if x.ndim else x]

    def examples(self) -> Examples:
        x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
        huge = 2**63 - 1

        def case(
            starts: list[int], ends: list[int], axes: list[int] | None = None, steps: list[int] | None = None
        ) -> Any:
            lists = [starts, ends, axes, steps]
            return {}, [x, *(None if v is None else np.array(v, np.int64) for v in lists)]

        yield case([1], [3])
        yield case([0, 1], [huge, -1], [0, 2])
        yield case([-2], [huge], [1])
        yield case([-1], [-huge - 1], [2], [-1])
        yield case([-1], [-99], [2], [-2])
        yield case([4], [1], [2], [-1])
        yield case([3], [1], [1])
        yield case([0, 1], [3, 4], [-1, 1], [2, 3])
        yield case([99], [100], [0])
        yield case([-1], [2**31 - 1], [2], [-1])
        yield {}, [x[:0], np.array([0]), np.array([2]), np.array([0])]
        yield {}, [x[:0], np.array([-1]), np.array([-9]), np.array([0]), np.array([-1])]


def _positions(start: int, end: int, step: int, size: int) -> Array:
    """Positions by the standard's words, unlike Python's slice also for an end beyond the tensor with step < 0."""
    start, end = (v + size if v < 0 else v for v in (start, end))
    if step > 0:
        return np.arange(min(max(start, 0), size), min(max(end, 0), size), step)
    return np.arange(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def _taken(value: Array, taken: Sequence[range], dtype: np.dtype[Any]) -> TensorValue:
    result = value[np.ix_(*[np.array(list(t), dtype=np.intp) for t in taken])] if taken else value
    return packed(np.vectorize(lambda v: v, otypes=[object])(result), dtype) if result.dtype == object else result
