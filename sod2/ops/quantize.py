"""Integers that stand for real numbers: y = saturate(round(x / scale) + zero point), and back.

Scale and zero point are scalars, one number per index along `axis`, or one per block of `block_size` indices. Products
of quantised tensors are summed exactly in integers; their scales are applied to the sum.

Limits: element types of a byte or more; 8-bit floats are refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.dtypes import is_float
from sod2.graph import Node
from sod2.lattice import UNDEF, Shape
from sod2.ops.attributes import axis_of, dtype_of, present
from sod2.ops.conv import Conv, group_of, known_axes
from sod2.ops.direct import convolution
from sod2.ops.matmul import MatMul, product
from sod2.ops.op import Array, Emitter, Fact, Facts, Index, MappingType, Op, register
from sod2.ops.selection import only
from sod2.symbolic import eq

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]
INT64 = np.dtype(np.int64)


def limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Least and largest value of an integer type."""
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def saturated(e: Emitter, real: str, zero: str, dtype: np.dtype[Any]) -> str:
    """C expression of a double, rounded to the nearest (ties to even), shifted and cut to the range of `dtype`."""
    low, high = limits(dtype)
    rounded = e.local(np.dtype(np.float64), f"__builtin_rint({real}) + {zero}")
    return f"(({e.element(dtype)})({rounded} < {low} ? {low} : {rounded} > {high} ? {high} : {rounded}))"


def parameter(e: Emitter, operand: int, x: Facts, index: Sequence[Any], axis: int, *, block: int = 0) -> str:
    """The element of a scale or zero point that belongs to an index of the tensor that it scales."""
    fact = x[operand]
    assert fact is not None
    rank = len(fact.dims)
    if rank == 0 or (rank == 1 and fact.dims[0] == 1):
        return e.load(operand, [e.position(0)] * rank)
    if block:
        blocked = e.opaque(f"{e.c(index[axis])} / {block}")
        return e.load(operand, [*index[:axis], blocked, *index[axis + 1 :]])
    if eq(fact.dims[0], 1) is None:
        return e.load(operand, [e.opaque(f"({e.c(fact.dims[0])} == 1 ? 0 : {e.c(index[axis])})")])
    return e.load(operand, [index[axis]])


def spread(value: Array, x: Array, axis: int, block: int) -> Array:
    """A scale or zero point broadcast to the tensor that it scales."""
    if value.size == 1:
        return value.reshape(())
    if block:
        index = np.arange(x.shape[axis]) // block
        return np.take(value, index, axis=axis)
    return value.reshape(-1, *[1] * (x.ndim - 1 - axis % x.ndim))


class _Scaled(Op):
    """Rules of QuantizeLinear and DequantizeLinear: (x, scale, zero point or None)."""

    mapping = MappingType.ONE_TO_ONE
    cost = 4

    @property
    def aligned(self) -> bool:
        return False  # the scale is not broadcast as in an element-wise operator

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None
        return [x[0].shape]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return [UNDEF if y[0] is None else y[0].shape] + [UNDEF] * (len(node.inputs) - 1)

    def _parameters(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts) -> tuple[str, str]:
        assert x[0] is not None and x[1] is not None
        axis = axis_of(node, len(x[0].dims), 1) if len(x[1].dims) else 0
        block = int(node.attrs.get("block_size", 0))
        zero = present(x, 2)
        return (
            f"(double){parameter(e, 1, x, index, axis, block=block)}",
            "0" if zero is None else f"(double){parameter(e, 2, x, index, axis, block=block)}",
        )

    def _spread(self, node: Node, arrays: Sequence[Array | None]) -> tuple[Array, Array, Array]:
        x, scale, zero = arrays[0], arrays[1], present(arrays, 2)
        assert x is not None and scale is not None
        axis, block = int(node.attrs.get("axis", 1)), int(node.attrs.get("block_size", 0))
        wide = spread(scale.astype(np.float64), x, axis, block)
        shift = np.zeros(()) if zero is None else spread(zero.astype(np.float64), x, axis, block)
        return x, wide, shift


@register()
class QuantizeLinear(_Scaled):
    """saturate(round(x / scale) + zero point), in the type of the zero point, of `output_dtype`, or uint8."""

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        zero = present(x, 2)
        if zero is not None:
            return [zero.dtype]
        return [dtype_of(node, "output_dtype") if node.attrs.get("output_dtype", 0) else np.dtype(np.uint8)]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert y[0] is not None
        scale, zero = self._parameters(node, e, index, x)
        assert x[0] is not None
        wide = np.float64 if x[0].dtype == np.float64 or not is_float(x[0].dtype) else np.float32
        ratio = e.local(np.dtype(wide), f"{e.load(0, index)} / ({e.element(np.dtype(wide))}){scale}")
        return saturated(e, ratio, zero, y[0].dtype)

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, scale, shift = self._spread(node, arrays)
        facts = [None if a is None else Fact(a.dtype, ()) for a in arrays]
        (dtype,) = self.dtype(node, facts)
        wide = x.dtype if x.dtype in (np.float32, np.float64) else np.dtype(np.float32)
        ratio = x.astype(wide) / scale.astype(wide)
        return [np.clip(np.rint(ratio.astype(np.float64)) + shift, *limits(dtype)).astype(dtype)]

    def examples(self) -> Examples:
        x = np.array([[0.0, 2.4, 3.5, 1000.0, -254.0, -1000.0]], np.float32)
        scale = np.array(2.0, np.float32)
        yield {}, [x, scale, np.array(128, np.uint8)]
        yield {}, [x, scale]
        yield {}, [x, scale, np.array(-3, np.int8)]
        yield {"axis": 1}, [x, np.arange(1, 7, dtype=np.float32), np.zeros(6, np.int16)]
        yield {"axis": -1, "block_size": 3}, [x, np.array([[2.0, 3.0]], np.float32), np.array([[1, 2]], np.uint8)]
        yield {}, [x[:0], scale, np.array(0, np.uint8)]


@register()
class DequantizeLinear(_Scaled):
    """(x - zero point) * scale, in the type of the scale."""

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        assert x[1] is not None
        return [dtype_of(node, "output_dtype") if node.attrs.get("output_dtype", 0) else x[1].dtype]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert y[0] is not None
        scale, zero = self._parameters(node, e, index, x)
        return f"(({e.element(y[0].dtype)})(((double){e.load(0, index)} - {zero}) * {scale}))"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, scale, shift = self._spread(node, arrays)
        facts = [None if a is None else Fact(a.dtype, ()) for a in arrays]
        return [((x.astype(np.float64) - shift) * scale).astype(self.dtype(node, facts)[0])]

    def examples(self) -> Examples:
        x = np.array([[0, 3, 128, 255]], np.uint8)
        yield {}, [x, np.array(2.0, np.float32), np.array(128, np.uint8)]
        yield {}, [x, np.array([0.5], np.float32)]
        yield {"axis": 1}, [x, np.array([1, 2, 3, 4], np.float32), np.array([0, 1, 2, 3], np.uint8)]
        yield {"axis": 1, "block_size": 2}, [x, np.array([[1, 2]], np.float32), np.array([[7, 9]], np.uint8)]
        yield {}, [np.array([-100000, 7], np.int32), np.array(0.25, np.float32)]


def centred(e: Emitter, value: str, zero: int, x: Facts, index: Sequence[Any], *, axis: int) -> str:
    """C expression (int64_t) of a quantised element minus its zero point, which is input `zero`."""
    if present(x, zero) is None:
        return f"(int64_t){value}"
    return f"((int64_t){value} - (int64_t){parameter(e, zero, x, index, axis)})"


def _shifted(value: Array, zero: Array | None, axis: int) -> Array:
    """The array minus its zero points along an axis, in int64."""
    wide = value.astype(np.int64)
    if zero is None:
        return wide
    flat = zero.astype(np.int64)
    if flat.size == 1:
        return wide - flat.reshape(())
    return wide - (flat if flat.ndim > 1 else flat.reshape(-1, *[1] * (wide.ndim - 1 - axis % wide.ndim)))


class _Quantised(Op):
    """Mixin of products of integers: `zeros` are the positions of the operands' zero points and their axes."""

    operands: tuple[int, int] = (0, 1)
    zeros: tuple[tuple[int, int], tuple[int, int]] = ((2, -2), (3, -1))

    def is_anchor(self, node: Node, x: Facts) -> bool:
        return False

    def _pair(self, x: Sequence[Any]) -> list[Any]:
        return [x[i] for i in self.operands]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return [UNDEF] * len(node.inputs)

    def _load(self, e: Emitter, x: Facts) -> Any:
        def load(operand: int, index: Sequence[Any]) -> str:
            zero, axis = self.zeros[operand]
            return centred(e, e.load(self.operands[operand], index), zero, x, index, axis=axis)

        return load


class _Requantised(_Quantised):
    """Mixin: (a, scale, zero, b, scale, zero, y scale, y zero, ...) to the type of y's zero point."""

    operands = (0, 3)
    zeros = ((2, -2), (5, -1))
    scales = ((1, -2), (4, -1))

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        assert x[7] is not None
        return [x[7].dtype]

    def _requantised(self, e: Emitter, total: str, index: Sequence[Any], x: Facts, y: Facts) -> str:
        assert y[0] is not None
        left, right, out = (f"(double){parameter(e, i, x, index, axis)}" for i, axis in (*self.scales, (6, 0)))
        return saturated(e, f"{total} * {left} * {right} / {out}", f"(double){only(e, 7, x)}", y[0].dtype)


class _IntegerProduct(_Quantised, MatMul):
    """A matrix product of centred integers."""

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        return MatMul.shape(self, node, self._pair(x))

    def guards(self, node: Node, x: Facts, y: Facts) -> list[Any]:
        return MatMul.guards(self, node, self._pair(x), y)

    def _total(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts) -> str:
        a, b = self._pair(x)
        return product(e, index, a, b, dtype=INT64, load=self._load(e, x))

    def _exact(self, arrays: Sequence[Array | None]) -> Array:
        a, b = self._pair(arrays)
        (za, a_axis), (zb, b_axis) = self.zeros
        return np.asarray(np.matmul(_shifted(a, present(arrays, za), a_axis), _shifted(b, present(arrays, zb), b_axis)))


@register()
class MatMulInteger(_IntegerProduct):
    """(a - a's zero point) (b - b's zero point) in int32."""

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [np.dtype(np.int32)]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        return f"((int32_t){self._total(node, e, index, x)})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        return [self._exact(arrays).astype(np.int32)]

    def examples(self) -> Examples:
        random = np.random.default_rng(30)
        a, b = random.integers(0, 256, (2, 3, 5), np.uint8), random.integers(-128, 128, (5, 4), np.int8)
        yield {}, [a, b]
        yield {}, [a, b, np.array(12, np.uint8), np.array(-3, np.int8)]
        yield {}, [a[:0], b, np.array(12, np.uint8)]


@register()
class QLinearMatMul(_IntegerProduct, _Requantised):
    """The product of two quantised matrices, quantised again."""

    operands = _Requantised.operands
    zeros = _Requantised.zeros
    dtype = _Requantised.dtype

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        return self._requantised(e, self._total(node, e, index, x), index, x, y)

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        a_scale, b_scale, y_scale, zero = (arrays[i] for i in (1, 4, 6, 7))
        assert a_scale is not None and b_scale is not None and y_scale is not None and zero is not None
        real = self._exact(arrays) * a_scale.astype(np.float64) * b_scale.astype(np.float64) / y_scale
        return [np.clip(np.rint(real) + zero, *limits(zero.dtype)).astype(zero.dtype)]

    def examples(self) -> Examples:
        random = np.random.default_rng(31)
        a, b = random.integers(0, 256, (2, 3, 5), np.uint8), random.integers(0, 256, (5, 4), np.uint8)
        scales = [np.array(v, np.float32) for v in (0.01, 0.02, 0.05)]
        zeros = [np.array(v, np.uint8) for v in (110, 130, 100)]
        yield {}, [a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], zeros[2]]


class _IntegerConvolution(_Quantised, Conv):
    """A convolution of centred integers."""

    zeros = ((2, 0), (3, 0))

    def _as_conv(self, x: Sequence[Any]) -> list[Any]:
        return self._pair(x)

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        return Conv.shape(self, node, self._as_conv(x))

    def guards(self, node: Node, x: Facts, y: Facts) -> list[Any]:
        return Conv.guards(self, node, self._as_conv(x), y)

    def bias(self, node: Node, x: Facts) -> None:
        return None

    def _total(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts) -> str:
        pair = self._as_conv(x)
        return convolution(
            e, index, found=known_axes(node, pair), weights=pair[1].dims, group=group_of(node),
            load=self._load(e, x), dtype=INT64,
        )  # fmt: skip

    def _exact(self, node: Node, arrays: Sequence[Array | None]) -> Array:
        a, b = self._as_conv(arrays)
        (za, a_axis), (zb, b_axis) = self.zeros
        images = _shifted(a, present(arrays, za), a_axis), _shifted(b, present(arrays, zb), b_axis)
        return Conv.reference(self, node, *(i.astype(np.float64) for i in images))[0]


@register()
class ConvInteger(_IntegerConvolution):
    """Conv of x - x's zero point and w - w's zero point in int32."""

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [np.dtype(np.int32)]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        return f"((int32_t){self._total(node, e, index, x)})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        return [self._exact(node, arrays).astype(np.int32)]

    def examples(self) -> Examples:
        random = np.random.default_rng(32)
        x, w = random.integers(0, 256, (1, 2, 5, 6), np.uint8), random.integers(0, 256, (3, 2, 3, 3), np.uint8)
        yield {"pads": [1, 1, 1, 1]}, [x, w, np.array(7, np.uint8)]
        yield {"strides": [2, 2]}, [x, w]


@register()
class QLinearConv(_IntegerConvolution, _Requantised):
    """Conv of quantised tensors with an int32 bias in units of x's scale times w's, quantised again."""

    operands = _Requantised.operands
    zeros = ((2, 0), (5, 0))
    scales = ((1, 1), (4, 1))
    dtype = _Requantised.dtype

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        total = self._total(node, e, index, x)
        if present(x, 8) is not None:
            total = f"({total} + {e.load(8, index[1:2])})"
        return self._requantised(e, total, index, x, y)

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        total, bias = self._exact(node, arrays), present(arrays, 8)
        a_scale, b_scale, y_scale, zero = (arrays[i] for i in (1, 4, 6, 7))
        assert a_scale is not None and b_scale is not None and y_scale is not None and zero is not None
        channel = (-1, *[1] * (total.ndim - 2))
        total = total if bias is None else total + bias.reshape(channel)
        scale = b_scale.astype(np.float64)
        real = total * a_scale.astype(np.float64) * (scale.reshape(channel) if scale.size > 1 else scale) / y_scale
        return [np.clip(np.rint(real) + zero, *limits(zero.dtype)).astype(zero.dtype)]

    def examples(self) -> Examples:
        random = np.random.default_rng(33)
        x, w = random.integers(0, 256, (1, 2, 5, 6), np.uint8), random.integers(-9, 9, (3, 2, 3, 3)).astype(np.int8)
        one = [np.array(v, np.float32) for v in (0.02, 0.4)]
        zero = [np.array(130, np.uint8), np.array(0, np.int8), np.array(100, np.uint8)]
        per_channel = np.array([0.01, 0.02, 0.03], np.float32)
        bias = np.array([100, -50, 7], np.int32)
        yield {"pads": [1, 1, 1, 1]}, [x, one[0], zero[0], w, np.array(0.1, np.float32), zero[1], one[1], zero[2]]
        yield {}, [x, one[0], zero[0], w, per_channel, np.zeros(3, np.int8), one[1], zero[2], bias]
