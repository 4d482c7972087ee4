"""Arithmetic of two tensors, and the variadic Max, Min, Sum and Mean, all broadcasting.

Integer division truncates toward zero, Mod takes the divisor's sign (the dividend's with fmod=1), overflow wraps. On
Dims a division is a floor division only where both sides are provably non-negative, otherwise it must be exact.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from sod2.dtypes import is_float
from sod2.graph import Node
from sod2.ops.elementwise import CType, Elementwise, ctype, loaded_operands
from sod2.ops.lift import Rule
from sod2.ops.op import OPS, Array, Emitter, Facts, Index, register
from sod2.symbolic import Dim, as_dim, eq, exact_div, floordiv, ge, gt, maximum, minimum

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]


def broadcast_examples(dtype: str, low: float = -5, high: float = 5) -> Iterable[list[Array]]:
    """Pairs of arrays: equal shapes, one-sized dims on both sides, other ranks, empty ones."""
    rng = np.random.default_rng(4)
    for a, b in (((2, 3), (2, 3)), ((2, 1, 4), (3, 1)), ((1, 0), (2, 1)), ((), (3,)), ((1,), (1, 1))):
        yield [np.asarray(rng.uniform(low, high, s)).astype(dtype) for s in (a, b)]


class BinaryOp(Elementwise):
    """Two inputs; `text` writes the C expression, `function` is numpy's."""

    def __init__(
        self, text: Callable[[CType, str, str], str], function: Callable[[Array, Array], Array], rule: Rule | None
    ) -> None:
        self.text = text
        self.function = function
        self._rule = rule

    def element_rule(self, node: Node, x: Facts) -> Rule | None:
        return self._rule

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        return self.text(c, *operands)

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        a, b = arrays
        assert a is not None and b is not None
        return [np.asarray(self.function(a, b)).astype(a.dtype)]

    def examples(self) -> Examples:
        for pair in broadcast_examples("float32"):
            yield {}, pair
        yield {}, [np.array([7, -7, 6, 0], np.int64), np.array([2, 3, -4, 5], np.int64)]


def _arithmetic(operator: str) -> Callable[[CType, str, str], str]:
    return lambda c, a, b: c.arithmetic(a, operator, b)


def _divide_text(c: CType, a: str, b: str) -> str:
    if c.is_float:
        return f"({a} / {b})"
    if c.dtype == np.uint64:
        return f"({b} == 0 ? 0 : {a} / {b})"
    return f"({c.name})sod2_truncdiv({a}, {b})"


def divide(a: Array, b: Array) -> Array:
    """numpy's division with ONNX's truncation of integers."""
    with np.errstate(all="ignore"):
        if is_float(a.dtype):
            return np.asarray(np.divide(a, b))
        quotient = np.floor_divide(a, b)
    return np.asarray(quotient + ((quotient < 0) & (quotient * b != a)))


def divide_dims(a: Dim, b: Dim) -> Dim | None:
    """ONNX's truncating division. With an unknown sign of `a` it is the difference of two floors, of which one is 0."""
    if not gt(b, 0):
        return exact_div(a, b)
    if ge(a, 0):
        return floordiv(a, b)
    return maximum(floordiv(a, b), 0) - maximum(floordiv(-a, b), 0)


def _pow_dims(a: Dim, b: Dim) -> Dim | None:
    return math.prod([a] * int(b), start=as_dim(1)) if b.is_constant and 0 <= int(b) <= 4 else None


def binary(
    name: str,
    text: Callable[[CType, str, str], str],
    function: Callable[[Array, Array], Array],
    rule: Rule | None = None,
) -> BinaryOp:
    """Register a broadcasting operator of two inputs."""
    op = BinaryOp(text, function, rule)
    op.name = name
    OPS.table["", name] = op
    return op


Add = binary("Add", _arithmetic("+"), np.add, lambda a, b: a + b)
Sub = binary("Sub", _arithmetic("-"), np.subtract, lambda a, b: a - b)
Mul = binary("Mul", _arithmetic("*"), np.multiply, lambda a, b: a * b)


class Division(BinaryOp):
    """Floats aren't rounded, so that there a quotient of sizes is a size only when it is exact."""

    cost = 3

    def element_rule(self, node: Node, x: Facts) -> Rule | None:
        assert x[0] is not None
        return exact_div if is_float(x[0].dtype) else divide_dims


OPS.table["", "Div"] = Division(_divide_text, divide, None)
OPS.table["", "Div"].name = "Div"


class Bitwise(BinaryOp):
    """Integers only."""

    def examples(self) -> Examples:
        yield {}, [np.array([[12], [5]], np.int32), np.array([10, 3, 0], np.int32)]


for _name, _sign, _function in (
    ("BitwiseAnd", "&", np.bitwise_and),
    ("BitwiseOr", "|", np.bitwise_or),
    ("BitwiseXor", "^", np.bitwise_xor),
):
    _op = Bitwise(lambda c, a, b, sign=_sign: f"({c.name})({a} {sign} {b})", _function, None)  # type: ignore[misc]
    _op.name = _name
    OPS.table["", _name] = _op


@register()
class Mod(Elementwise):
    """The remainder: with the divisor's sign, or C's fmod."""

    cost = 8

    def _is_fmod(self, node: Node) -> bool:
        return bool(node.attrs.get("fmod", 0))

    def element_rule(self, node: Node, x: Facts) -> Rule | None:
        fmod = self._is_fmod(node)

        def remainder(a: Dim, b: Dim) -> Dim | None:
            if fmod and not (ge(a, 0) and gt(b, 0)):
                return None
            return a % b if eq(b, 0) is False else None

        return remainder

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        a, b = operands
        if c.is_float:
            return f"fmod{c.suffix}({a}, {b})" if self._is_fmod(node) else f"(({c.name})sod2_real_mod({a}, {b}))"
        if c.dtype == np.uint64:
            return f"({b} == 0 ? 0 : {a} % {b})"
        return f"({c.name})sod2_{'trunc' if self._is_fmod(node) else 'floor'}mod({a}, {b})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        a, b = arrays
        assert a is not None and b is not None
        with np.errstate(all="ignore"):
            return [np.asarray(np.fmod(a, b) if self._is_fmod(node) else np.mod(a, b))]

    def examples(self) -> Examples:
        a, b = np.array([[7, -7, 6, 0]], np.int64), np.array([[2], [-3]], np.int64)
        yield {}, [a, b]
        yield {"fmod": 1}, [a, b]
        yield {"fmod": 1}, [a.astype(np.float32) + 0.5, b.astype(np.float32)]
        yield {}, [a.astype(np.float32) + 0.5, b.astype(np.float32)]
        yield {}, [np.zeros((0, 4), np.int32), np.ones(4, np.int32)]


@register()
class Pow(Elementwise):
    """x to the power of the exponent, in x's dtype; small constant exponents are products."""

    cost = 30
    rule = _pow_dims

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        x, exponent = operands
        if c.is_float:
            # The tests are loop invariant when the exponent is one scalar, and the common exponents vectorise.
            return (
                f"({exponent} == 2 ? {x} * {x} : {exponent} == 3 ? {x} * {x} * {x} : "
                f"{exponent} == 1 ? {x} : pow{c.suffix}({x}, {exponent}))"
            )
        return f"({c.name})pow({x}, {exponent})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, exponent = arrays
        assert x is not None and exponent is not None
        return [np.asarray(np.power(x.astype(np.float64), exponent.astype(np.float64))).astype(x.dtype)]

    def examples(self) -> Examples:
        x = np.linspace(0.25, 3, 6, dtype=np.float32).reshape(2, 3)
        for exponent in (2.0, 3.0, 1.0, 0.5, -1.5):
            yield {}, [x, np.array(exponent, np.float32)]
        yield {}, [x, np.array([[2], [3]], np.int64)]
        yield {}, [np.array([-2, 3], np.int32), np.array([3, 2], np.int32)]
        yield {}, [np.zeros((0, 2), np.float32), np.ones((1, 2), np.float32)]


def _add_dims(*xs: Dim) -> Dim:
    return sum(xs[1:], start=xs[0])


class Variadic(Elementwise):
    """One or more inputs, combined from left to right."""

    combine: ClassVar[np.ufunc]

    def pair(self, c: CType, a: str, b: str) -> str:
        """The C expression of two operands."""
        raise NotImplementedError(self.name)

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        c = ctype(e, x)  # a local per step: an expression would grow exponentially where a pair writes an operand twice
        return reduce(lambda a, b: e.local(c.dtype, self.pair(c, a, b)), loaded_operands(e, index, x, y[0]))

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        return [np.asarray(reduce(self.combine, [a for a in arrays if a is not None]))]

    def examples(self) -> Examples:
        for pair in broadcast_examples("float32"):
            yield {}, pair
        a, b = np.array([[1, 5, -2]], np.float32), np.array([[2], [0]], np.float32)
        yield {}, [a]
        yield {}, [a, b, np.array(1.5, np.float32)]


class Extremum(Variadic):
    """Max and Min; NaN where any operand is NaN."""

    sign = ""

    def pair(self, c: CType, a: str, b: str) -> str:
        if c.suffix:
            return f"sod2_{self.name.lower()}f({a}, {b})"
        if c.is_float:
            return f"({a} != {a} || {a} {self.sign} {b} ? {a} : {b})"
        return f"({a} {self.sign} {b} ? {a} : {b})"

    def examples(self) -> Examples:
        yield from super().examples()
        yield {}, [np.array([np.nan, 1, np.nan], np.float32), np.array([1, np.nan, np.nan], np.float32)]
        yield {}, [np.array([3, -1], np.int64), np.array([2], np.int64), np.array([[0], [9]], np.int64)]


@register()
class Max(Extremum):
    """The largest operand."""

    sign = ">"
    combine = np.maximum
    rule = maximum


@register()
class Min(Extremum):
    """The smallest operand."""

    sign = "<"
    combine = np.minimum
    rule = minimum


@register()
class Sum(Variadic):
    """The sum of all operands."""

    combine = np.add
    rule = _add_dims

    def pair(self, c: CType, a: str, b: str) -> str:
        return c.arithmetic(a, "+", b)


@register()
class Mean(Variadic):
    """The mean of all operands, floating point."""

    combine = np.add
    cost = 3

    def pair(self, c: CType, a: str, b: str) -> str:
        return c.arithmetic(a, "+", b)

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        return f"({super().at(node, e, index, x, y)} / {ctype(e, x).number(len(x))})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        total = super().reference(node, *arrays)[0]
        return [np.asarray(total / total.dtype.type(len(arrays)))]
