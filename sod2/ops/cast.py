"""Cast and CastLike. A followed size keeps its expression through a cast when the target holds it exactly.

For int32, float and double a guard says so (see lift.py): a model that casts sizes refuses those that would not fit.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.dtypes import element_type, is_float
from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Shape, Undef
from sod2.ops.attributes import dtype_of
from sod2.ops.elementwise import Elementwise, propagated
from sod2.ops.lift import elements, exactness_guards, small_shape
from sod2.ops.op import Array, Emitter, Facts, Index, TensorValue, register
from sod2.symbolic import Dim, eq

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]


@register()
class Cast(Elementwise):
    """Conversion to the element type `to`: floats are truncated toward zero, everything but 0 is true."""

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [dtype_of(node, "to")]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None
        return [x[0].shape]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return [UNDEF if y[0] is None else y[0].shape] + [UNDEF] * (len(node.inputs) - 1)

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        return exactness_guards(y)

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        source, target = x[0], y[0]
        assert source is not None and target is not None
        if small_shape(target) is None:
            return [NAC]
        if isinstance(source.value, Undef):
            return [UNDEF]
        if isinstance(source.value, np.ndarray) and source.value.dtype != object:
            return [source.value.astype(target.dtype)]
        opened = elements(source)
        rule = _differs_from_zero if target.dtype == np.bool_ else _same
        return [NAC if opened is None else propagated(rule, [opened], target)]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and y[0] is not None
        return converted(e.load(0, index), x[0].dtype, y[0].dtype)

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        return [arrays[0].astype(dtype_of(node, "to"))]

    def examples(self) -> Examples:
        x = np.array([[0.0, 0.4, 1.6, -2.5, 100.0]], np.float32)
        for to in (1, 3, 6, 7, 9, 11):
            yield {"to": to}, [x]
        integers = np.array([[-1, 0, 3], [300, 127, -128]], np.int64)
        for to in (1, 2, 3, 5, 6, 9, 12, 13):
            yield {"to": to}, [integers]
        yield {"to": 7}, [np.array([True, False])]
        yield {"to": 1}, [np.zeros((2, 0), bool)]


def converted(operand: str, source: np.dtype[Any], target: np.dtype[Any]) -> str:
    """C expression of an element of dtype `source` as one of `target`; what doesn't fit wraps where C defines it."""
    if target == np.bool_:
        return f"({operand} != 0)"
    kind = element_type(target)
    if is_float(target):
        return f"(({kind.value}){kind.rounded.format(operand)})"
    if is_float(source) and target.itemsize < 4:
        operand = f"(int32_t){operand}"  # then the low bits: a direct conversion is undefined beyond the target's range
    elif is_float(source) and target == np.uint32:
        operand = f"(int64_t){operand}"
    return f"(({kind.value}){operand})"


def _same(d: Dim) -> Dim:
    return d


def _differs_from_zero(d: Dim) -> bool | None:
    zero = eq(d, 0)
    return None if zero is None else not zero


@register()
class CastLike(Cast):
    """Cast to the element type of the second input."""

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        assert x[1] is not None
        return [x[1].dtype]

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, like = arrays
        assert x is not None and like is not None
        return [x.astype(like.dtype)]

    def examples(self) -> Examples:
        yield {}, [np.array([1.5, -2, 0], np.float32), np.zeros(2, np.int32)]
        yield {}, [np.arange(4).reshape(2, 2), np.zeros((), np.float32)]
