"""Comparisons, logic and Where: outputs of bool, stored as one byte that is 0 or 1.

On Dims a comparison is three-valued: its element is known only when it holds (or fails) for all values of the symbols.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Undef
from sod2.ops.elementwise import CType, Elementwise
from sod2.ops.lift import Element, Rule, elements, is_undefined, number_arrays, packed, small_shape
from sod2.ops.op import OPS, Array, Facts, TensorValue, register
from sod2.symbolic import Dim, eq, ge, gt, le, lt, maximum

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]
BOOL = np.dtype(np.bool_)


@dataclass(frozen=True)
class Comparison:
    """One row: C's operator, numpy's function, the rule on Dims, whether operands are bool."""

    sign: str
    function: Callable[[Array, Array], Any]
    rule: Rule | None
    logical: bool = False


COMPARISONS: dict[str, Comparison] = {
    "Equal": Comparison("==", np.equal, eq),
    "Less": Comparison("<", np.less, lt),
    "LessOrEqual": Comparison("<=", np.less_equal, le),
    "Greater": Comparison(">", np.greater, gt),
    "GreaterOrEqual": Comparison(">=", np.greater_equal, ge),
    "And": Comparison("&", np.logical_and, lambda a, b: a * b, True),
    "Or": Comparison("|", np.logical_or, maximum, True),
    "Xor": Comparison("^", np.logical_xor, lambda a, b: a + b - 2 * a * b, True),
}


class Predicate(Elementwise):
    """An element-wise operator whose output is bool."""

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [BOOL]


class ComparisonOp(Predicate):
    """One row of the table."""

    def __init__(self, row: Comparison) -> None:
        self.row = row

    def element_rule(self, node: Node, x: Facts) -> Rule | None:
        return self.row.rule

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        return f"({operands[0]} {self.row.sign} {operands[1]})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        a, b = arrays
        assert a is not None and b is not None
        return [np.asarray(self.row.function(a, b))]

    def examples(self) -> Examples:
        rng = np.random.default_rng(5)
        for a, b in (((2, 3), (2, 3)), ((2, 1), (1, 3)), ((0, 3), (1,)), ((), (2,))):
            if self.row.logical:
                yield {}, [np.asarray(rng.integers(0, 2, s)).astype(bool) for s in (a, b)]
            else:
                yield {}, [np.asarray(rng.integers(0, 3, s)).astype(np.float32) for s in (a, b)]
                yield {}, [np.asarray(rng.integers(-1, 2, s)).astype(np.int64) for s in (a, b)]


for _name, _row in COMPARISONS.items():
    _op = ComparisonOp(_row)
    _op.name = _name
    OPS.table["", _name] = _op


@register()
class Not(Predicate):
    """1 - x."""

    def element_rule(self, node: Node, x: Facts) -> Rule | None:
        return lambda a: 1 - a

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        return f"(!{operands[0]})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        return [np.logical_not(arrays[0])]

    def examples(self) -> Examples:
        yield {}, [np.array([[True, False]])]
        yield {}, [np.zeros((0, 1), bool)]


@register()
class IsNaN(Predicate):
    """Whether x is NaN."""

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        return f"({operands[0]} != {operands[0]})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        return [np.isnan(arrays[0])]

    def examples(self) -> Examples:
        yield {}, [np.array([[1, np.nan, np.inf, -np.nan]], np.float32)]


@register()
class IsInf(Predicate):
    """Whether x is an infinity of the signs that the attributes select."""

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        ends = {"detect_positive": np.inf, "detect_negative": -np.inf}
        tests = [f"{operands[0]} == {c.number(end)}" for name, end in ends.items() if node.attrs.get(name, 1)]
        return f"({' || '.join(tests)})" if tests else "0"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        positive, negative = (bool(node.attrs.get(n, 1)) for n in ("detect_positive", "detect_negative"))
        return [np.asarray((np.isposinf(x) & positive) | (np.isneginf(x) & negative))]

    def examples(self) -> Examples:
        x = np.array([1, np.nan, np.inf, -np.inf], np.float32)
        yield {}, [x]
        yield {"detect_negative": 0}, [x]
        yield {"detect_positive": 0}, [x]


@register()
class Where(Elementwise):
    """x where the condition holds, y elsewhere."""

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        assert x[1] is not None
        return [x[1].dtype]

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        """Gives elements also where the operand that isn't selected, or even the condition, is unknown."""
        out = y[0]
        if out is None or small_shape(out) is None:
            return [NAC]
        if is_undefined(x):
            return [UNDEF]
        if (numbers := number_arrays(x)) is not None:
            return list(self.reference(node, *numbers))
        opened = [elements(f) for f in x if f is not None]
        if any(o is None for o in opened):
            return [NAC]
        arrays = np.broadcast_arrays(*[o for o in opened if o is not None])
        result = np.empty(arrays[0].shape, dtype=object)
        for i in np.ndindex(result.shape):
            members: list[Any] = [a[i] for a in arrays]
            result[i] = _select(*members)
        return [packed(result, out.dtype)]

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        condition, a, b = operands
        return f"({condition} ? {a} : {b})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        condition, a, b = arrays
        assert condition is not None and a is not None and b is not None
        return [np.asarray(np.where(condition, a, b))]

    def examples(self) -> Examples:
        rng = np.random.default_rng(6)
        for shapes in (((2, 3), (2, 3), (2, 3)), ((2, 1), (3,), ()), ((1,), (0, 1), (1, 4)), ((), (2,), (1,))):
            condition = np.asarray(rng.integers(0, 2, shapes[0])).astype(bool)
            a, b = (np.asarray(rng.standard_normal(s)).astype(np.float32) for s in shapes[1:])
            yield {}, [condition, a, b]
            yield {}, [condition, np.asarray(a * 4).astype(np.int64), np.asarray(b * 4).astype(np.int64)]


def _select(condition: Element, a: Element, b: Element) -> Element:
    if isinstance(condition, Undef):
        return UNDEF
    if isinstance(condition, Dim) and condition.is_constant:
        return a if int(condition) else b
    if isinstance(a, Dim) and isinstance(b, Dim) and eq(a, b) is True:
        return a
    return NAC
