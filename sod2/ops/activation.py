"""Activation functions: one input, constants from attributes; Clip with its bounds as scalar inputs; PRelu.

The C side of each is a template over {x} and its attributes, written with `~name(` for a function of kernel.h (float)
or libm (double). Functions with tails that float cannot represent are those of kernel.h.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sod2.graph import Node
from sod2.lattice import UNDEF, Shape
from sod2.ops.attributes import present
from sod2.ops.elementwise import CType, Elementwise
from sod2.ops.lift import Rule
from sod2.ops.op import OPS, Array, Facts, register
from sod2.ops.unary import erf, sigmoid, softplus
from sod2.symbolic import Dim, maximum, minimum

SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


@dataclass(frozen=True)
class Activation:
    """One row: C template, numpy function of (x, attributes) and the defaults of the attributes."""

    template: str
    function: Callable[..., Any]
    defaults: Mapping[str, float] = field(default_factory=dict)
    cost: int = 2
    double: str = ""  # where libm lacks a function of the template


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _celu(x: Array, alpha: float) -> Array:
    return np.maximum(0, x) + np.minimum(0, alpha * np.expm1(np.minimum(x, 0) / alpha))


def _shrink(x: Array, bias: float, lambd: float) -> Array:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))


ACTIVATIONS: dict[str, Activation] = {
    "LeakyRelu": Activation(
        "({x} >= 0 ? {x} : {alpha} * {x})", lambda x, alpha: np.where(x >= 0, x, alpha * x), {"alpha": 0.01}
    ),
    "Elu": Activation("({x} > 0 ? {x} : {alpha} * ~expm1({x}))", _elu, {"alpha": 1.0}, 14),
    "Selu": Activation(
        "({gamma} * ({x} > 0 ? {x} : {alpha} * ~expm1({x})))",
        lambda x, alpha, gamma: gamma * _elu(x, alpha),
        {"alpha": SELU_ALPHA, "gamma": SELU_GAMMA},
        14,
    ),
    "Celu": Activation("({x} > 0 ? {x} : {alpha} * ~expm1({x} / {alpha}))", _celu, {"alpha": 1.0}, 16),
    "HardSigmoid": Activation(
        "~clamp({alpha} * {x} + {beta}, 0, 1)",
        lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
        {"alpha": 0.2, "beta": 0.5},
        double="fmax(0, fmin(1, {alpha} * {x} + {beta}))",
    ),
    "HardSwish": Activation(
        "({x} * ~clamp({x} / 6 + {half}, 0, 1))",
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        double="({x} * fmax(0, fmin(1, {x} / 6 + {half})))",
    ),
    "Mish": Activation(
        "({x} * ~tanh(~softplus({x})))",
        lambda x: x * np.tanh(softplus(x)),
        cost=40,
        double="({x} * tanh(fmax({x}, 0) + log1p(exp(-fabs({x})))))",
    ),
    "Swish": Activation(
        "({x} * ~sigmoid({alpha} * {x}))",
        lambda x, alpha: x * sigmoid(alpha * x),
        {"alpha": 1.0},
        14,
        double="({x} / (1 + exp(-{alpha} * {x})))",
    ),
    "ThresholdedRelu": Activation(
        "({x} > {alpha} ? {x} : 0)", lambda x, alpha: np.where(x > alpha, x, 0), {"alpha": 1.0}
    ),
    "Shrink": Activation(
        "({x} < -{lambd} ? {x} + {bias} : {x} > {lambd} ? {x} - {bias} : 0)", _shrink, {"bias": 0.0, "lambd": 0.5}
    ),
}


class ActivationOp(Elementwise):
    """One row of the table."""

    def __init__(self, row: Activation) -> None:
        self.row = row
        self.cost = row.cost

    def _attributes(self, node: Node) -> dict[str, float]:
        return {name: float(node.attrs.get(name, default)) for name, default in self.row.defaults.items()}

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        numbers = {name: c.number(value) for name, value in self._attributes(node).items()}
        template = self.row.template if c.suffix else self.row.double or self.row.template
        return c.functions(template).format(x=operands[0], half=c.number(0.5), **numbers)

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        return [np.asarray(self.row.function(x, **self._attributes(node))).astype(x.dtype)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        x = np.random.default_rng(2).uniform(-5, 5, (3, 4, 2)).astype(np.float32)
        yield {}, [x]
        yield {}, [np.zeros((2, 0), np.float32)]
        if self.row.defaults:
            yield {name: value + 0.125 for name, value in self.row.defaults.items()}, [x]


for _name, _row in ACTIVATIONS.items():
    _op = ActivationOp(_row)
    _op.name = _name
    OPS.table["", _name] = _op


@register()
class Relu(Elementwise):
    """max(x, 0)."""

    def element_rule(self, node: Node, x: Facts) -> Rule | None:
        return lambda v: maximum(v, 0)

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        if c.suffix:
            return f"sod2_reluf({operands[0]})"
        return f"({operands[0]} < 0 ? 0 : {operands[0]})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        return [np.maximum(arrays[0], arrays[0].dtype.type(0))]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        yield {}, [np.array([[-1.5, 0, 2, np.inf, -np.inf]], np.float32)]
        yield {}, [np.array([-3, 0, 7], np.int32)]
        yield {}, [np.zeros((1, 0, 3), np.float32)]


@register()
class Gelu(Elementwise):
    """x/2 (1 + erf(x / sqrt 2)), or its approximation by tanh."""

    cost = 20

    def _is_tanh(self, node: Node) -> bool:
        return str(node.attrs.get("approximate", "none")) == "tanh"

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        x = operands[0]
        if c.suffix:
            return f"sod2_gelu{'_tanh' if self._is_tanh(node) else ''}f({x})"
        if self._is_tanh(node):
            return f"(0.5 * {x} * (1 + tanh(0.79788456080286536 * ({x} + 0.044715 * {x} * {x} * {x}))))"
        return f"(0.5 * {x} * (1 + erf({x} * 0.70710678118654752)))"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        inner = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)) if self._is_tanh(node) else erf(x / np.sqrt(2))
        return [np.asarray(0.5 * x * (1 + inner)).astype(x.dtype)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        x = np.linspace(-4, 4, 24, dtype=np.float32).reshape(2, 3, 4)
        yield {}, [x]
        yield {"approximate": "tanh"}, [x]


@register()
class PRelu(Elementwise):
    """x where x >= 0, slope * x elsewhere; the slope is broadcast to x, never the other way round."""

    cost = 2

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None
        return [x[0].shape]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return [UNDEF if y[0] is None else y[0].shape, UNDEF]

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        x, slope = operands
        return f"({x} < 0 ? {c.arithmetic(slope, '*', x)} : {x})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, slope = arrays
        assert x is not None and slope is not None
        return [np.where(x < 0, slope * x, x)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        x = np.random.default_rng(3).standard_normal((2, 3, 4)).astype(np.float32)
        yield {}, [x, np.array([[0.1], [0.2], [0.3]], np.float32)]
        yield {}, [x, np.array([0.25], np.float32)]
        yield {}, [x[:, :1], x[:1, :1]]


@register()
class Clip(Elementwise):
    """min(max(x, low), high); the bounds are optional scalars, attributes before opset 11."""

    cost = 2

    def element_rule(self, node: Node, x: Facts) -> Rule | None:
        low, high = present(x, 1) is not None, present(x, 2) is not None

        def clip(value: Dim, *limits: Dim) -> Dim:
            clipped = maximum(value, limits[0]) if low else value
            return minimum(clipped, limits[-1]) if high else clipped

        return None if {"min", "max"} & set(node.attrs) else clip

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        # NaN passes: a comparison with NaN is false, and the operand itself is what remains.
        x, *limits = operands
        low, high = self._limits(node, limits, c)
        text = f"({x} < {low} ? {low} : {x})" if low else x
        return f"({text} > {high} ? {high} : {text})" if high else text

    def _limits(self, node: Node, limits: Sequence[str], c: CType) -> tuple[str, str]:
        if {"min", "max"} & set(node.attrs):
            low, high = (c.number(float(node.attrs[n])) if n in node.attrs else "" for n in ("min", "max"))
            return low, high
        has_low = len(node.inputs) > 1 and bool(node.inputs[1])
        has_high = len(node.inputs) > 2 and bool(node.inputs[2])
        return (limits[0] if has_low else ""), (limits[-1] if has_high else "")

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        low = node.attrs.get("min", present(arrays, 1))
        high = node.attrs.get("max", present(arrays, 2))
        x = x if low is None else np.maximum(x, np.asarray(low, x.dtype))
        return [x if high is None else np.minimum(x, np.asarray(high, x.dtype))]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
        low, high = np.float32(-1), np.float32(2)
        yield {}, [x, np.array(low), np.array(high)]
        yield {}, [x, None, np.array(high)]
        yield {}, [x, np.array(low)]
        yield {}, [np.arange(-4, 5), np.array(0), np.array(3)]
        yield {}, [x]
