"""Operators of one input, element by element: a table of C expressions and numpy functions.

`{x}` is the operand (a local variable), `{f}` the suffix of float functions; `~name(` is a function of kernel.h for
float and of libm for double. Integer forms are written in the unsigned type `{u}` and are cast back.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sod2.errors import UnsupportedError
from sod2.graph import Node
from sod2.ops.elementwise import CType, Elementwise
from sod2.ops.lift import Rule
from sod2.ops.op import OPS, Array, Facts
from sod2.symbolic import Dim, ge, maximum

_SPECIAL = {
    "Exp": [-100.0, 100.0, np.inf, -np.inf, np.nan],
    "Tanh": [-20.0, 20.0, np.inf, -np.inf],
    "Sigmoid": [-80.0, 80.0, 0.0],
    "Round": [0.5, 1.5, 2.5, -0.5, -1.5],
}


@dataclass(frozen=True)
class Unary:
    """One row: expressions for floating point and for integers (empty: not defined), numpy's function, range of the
    examples, the rule on Dims, and `double` where libm has no such function."""

    real: str
    integer: str
    function: Callable[[Array], Any]
    domain: tuple[float, float] = (-4.0, 4.0)
    rule: Rule | None = None
    cost: int = 1
    double: str = ""


def erf(x: Array) -> Array:
    """The error function, element by element in double."""
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x), x.dtype)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x) without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype)


def softplus(x: Array) -> Array:
    """log(1 + e^x) without overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _absolute(x: Dim) -> Dim:
    return x if ge(x, 0) else maximum(x, -x)


UNARY: dict[str, Unary] = {
    "Abs": Unary("__builtin_fabs{f}({x})", "({x} < 0 ? ({u})0 - ({u}){x} : ({u}){x})", np.abs, rule=_absolute),
    "Neg": Unary("(-{x})", "(({u})0 - ({u}){x})", np.negative, rule=lambda x: -x),
    "Sign": Unary("({x} != {x} ? {x} : ({x} > 0) - ({x} < 0))", "(({x} > 0) - ({x} < 0))", np.sign),
    "Ceil": Unary("__builtin_ceil{f}({x})", "", np.ceil, rule=lambda x: x),
    "Floor": Unary("__builtin_floor{f}({x})", "", np.floor, rule=lambda x: x),
    "Round": Unary("__builtin_rint{f}({x})", "", np.rint, rule=lambda x: x),
    "Sqrt": Unary("__builtin_sqrt{f}({x})", "", np.sqrt, (0, 9), cost=4),
    "Reciprocal": Unary("(1 / {x})", "", np.reciprocal, (0.2, 4), cost=3),
    "Exp": Unary("~exp({x})", "", np.exp, cost=10),
    "Log": Unary("~log({x})", "", np.log, (0.01, 9), cost=12),
    "Erf": Unary("~erf({x})", "", erf, cost=16),
    "Tanh": Unary("~tanh({x})", "", np.tanh, cost=14),
    "Sin": Unary("~sin({x})", "", np.sin, cost=20),
    "Cos": Unary("~cos({x})", "", np.cos, cost=20),
    "Tan": Unary("tan{f}({x})", "", np.tan, (-1.4, 1.4), cost=30),
    "Asin": Unary("asin{f}({x})", "", np.arcsin, (-1, 1), cost=30),
    "Acos": Unary("acos{f}({x})", "", np.arccos, (-1, 1), cost=30),
    "Atan": Unary("atan{f}({x})", "", np.arctan, cost=30),
    "Sinh": Unary("sinh{f}({x})", "", np.sinh, cost=30),
    "Cosh": Unary("cosh{f}({x})", "", np.cosh, cost=30),
    "Asinh": Unary("asinh{f}({x})", "", np.arcsinh, cost=30),
    "Acosh": Unary("acosh{f}({x})", "", np.arccosh, (1, 9), cost=30),
    "Atanh": Unary("atanh{f}({x})", "", np.arctanh, (-0.9, 0.9), cost=30),
    "Sigmoid": Unary("~sigmoid({x})", "", sigmoid, cost=12, double="(1 / (1 + exp(-{x})))"),
    "Softplus": Unary("~softplus({x})", "", softplus, cost=24, double="(fmax({x}, 0) + log1p(exp(-fabs({x}))))"),
    "Softsign": Unary("({x} / (1 + __builtin_fabs{f}({x})))", "", lambda x: x / (1 + np.abs(x)), cost=4),
    "BitwiseNot": Unary("", "(~{x})", np.invert),
}


class UnaryOp(Elementwise):
    """One row of the table."""

    def __init__(self, row: Unary) -> None:
        self.row = row
        self.cost = row.cost

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        row = self.row
        form = (row.real if c.suffix else row.double or row.real) if c.is_float else row.integer
        if not form:
            raise UnsupportedError(f"operator {self.name} (node {node.name!r}) has no form for {c.dtype}")
        text = c.functions(form).format(x=operands[0], f=c.suffix, u=c.unsigned)
        return text if c.is_float else f"({c.name}){text}"

    def element_rule(self, node: Node, x: Facts) -> Rule | None:
        return self.row.rule

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        with np.errstate(all="ignore"):
            return [np.asarray(self.row.function(x)).astype(x.dtype)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        low, high = self.row.domain
        if self.row.real:
            for shape in ((2, 3, 5), (0, 4), ()):
                yield {}, [np.random.default_rng(1).uniform(low, high, shape).astype(np.float32)]
            yield {}, [np.array(_SPECIAL.get(self.name, [low, high]), np.float32)]
        if self.row.integer:
            yield {}, [np.arange(-3, 4, dtype=np.int64)]


for _name, _row in UNARY.items():
    _op = UnaryOp(_row)
    _op.name = _name
    OPS.table["", _name] = _op
