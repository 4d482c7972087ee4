"""Optimiser steps of ai.onnx.preview.training, element by element: Momentum, Adagrad, Adam.

Inputs are the rate R, the count T of earlier steps, a tensor, its gradient and its states; outputs the new tensor and
the new states. A step over several tensors is lowered to one for each (lowering.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.graph import Node
from sod2.lattice import Shape
from sod2.ops.op import Array, Emitter, Facts, Index, MappingType, Op, register
from sod2.ops.selection import only

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]
DOMAIN = "ai.onnx.preview.training"
DOUBLE = np.dtype(np.float64)


class Step(Op):
    """Rules of all: `states` is their number; `update` is the step in C, `advance` the same in numpy."""

    mapping = MappingType.MANY_TO_MANY
    states = 1
    cost = 20

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        assert x[2] is not None
        return [x[2].dtype] * len(node.outputs)

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[2] is not None
        return [x[2].shape] * len(node.outputs)

    def number(self, node: Node, name: str) -> float:
        """A float attribute; 0 by default."""
        return float(node.attrs.get(name, 0.0))

    def update(self, node: Node, e: Emitter, rate: str, count: str, values: Sequence[str]) -> list[str]:
        """C of the new tensor and states from (x, gradient, states)."""
        raise NotImplementedError(self.name)

    def advance(self, node: Node, rate: float, count: float, values: Sequence[Array]) -> list[Array]:
        """The same in numpy, float64."""
        raise NotImplementedError(self.name)

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        values = [e.local(DOUBLE, e.load(2 + k, index)) for k in range(2 + self.states)]
        rate, count = (e.local(DOUBLE, f"(double){only(e, k, x)}") for k in range(2))
        assert x[2] is not None
        return f"(({e.element(x[2].dtype)}){self.update(node, e, rate, count, values)[e.output]})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        rate, count, *tensors = (a for a in arrays if a is not None)
        new = self.advance(node, rate.item(), count.item(), [t.astype(np.float64) for t in tensors])
        return [a.astype(tensors[0].dtype) for a in new]

    def examples(self) -> Examples:
        random = np.random.default_rng(80)
        for shape in ((2, 3), (0, 1)):
            lists = [random.uniform(0.1, 1, shape).astype(np.float32) for _ in range(2 + self.states)]
            for count in (0, 3):
                yield self.attributes(), [np.array(0.1, np.float32), np.array(count, np.int64), *lists]

    def attributes(self) -> dict[str, Any]:
        """Those of the examples."""
        raise NotImplementedError(self.name)


@register(domain=DOMAIN)
class Momentum(Step):
    """v = alpha v + beta g (beta 1 at the first step), x = x - rate v; nesterov looks one step ahead."""

    def update(self, node: Node, e: Emitter, rate: str, count: str, values: Sequence[str]) -> list[str]:
        x, g, v = values
        alpha, beta, decay = (repr(self.number(node, n)) for n in ("alpha", "beta", "norm_coefficient"))
        g = e.local(DOUBLE, f"{decay} * {x} + {g}")
        new = e.local(DOUBLE, f"{alpha} * {v} + ({count} > 0 ? {beta} : 1) * {g}")
        step = f"({g} + {alpha} * {new})" if str(node.attrs["mode"]) == "nesterov" else new
        return [f"({x} - {rate} * {step})", new]

    def advance(self, node: Node, rate: float, count: float, values: Sequence[Array]) -> list[Array]:
        x, g, v = values
        alpha, beta = self.number(node, "alpha"), self.number(node, "beta") if count > 0 else 1.0
        g = self.number(node, "norm_coefficient") * x + g
        new = alpha * v + beta * g
        return [x - rate * (g + alpha * new if str(node.attrs["mode"]) == "nesterov" else new), new]

    def attributes(self) -> dict[str, Any]:
        return {"alpha": 0.9, "beta": 0.5, "norm_coefficient": 0.01, "mode": "nesterov"}


@register(domain=DOMAIN)
class Adagrad(Step):
    """h = h + g^2, x = x - rate g / (sqrt(h) + epsilon), with a rate that decays with the count."""

    def update(self, node: Node, e: Emitter, rate: str, count: str, values: Sequence[str]) -> list[str]:
        x, g, h = values
        decay, epsilon = (repr(self.number(node, n)) for n in ("norm_coefficient", "epsilon"))
        g = e.local(DOUBLE, f"{decay} * {x} + {g}")
        new = e.local(DOUBLE, f"{h} + {g} * {g}")
        slower = f"({rate} / (1 + {count} * {self.number(node, 'decay_factor')!r}))"
        return [f"({x} - {slower} * {g} / (sqrt({new}) + {epsilon}))", new]

    def advance(self, node: Node, rate: float, count: float, values: Sequence[Array]) -> list[Array]:
        x, g, h = values
        g = self.number(node, "norm_coefficient") * x + g
        new = h + g * g
        slower = rate / (1 + count * self.number(node, "decay_factor"))
        return [x - slower * g / (np.sqrt(new) + self.number(node, "epsilon")), new]

    def attributes(self) -> dict[str, Any]:
        return {"norm_coefficient": 0.01, "epsilon": 1e-5, "decay_factor": 0.1}


@register(domain=DOMAIN)
class Adam(Step):
    """Running means v of g and h of g^2; x = x - rate v / (sqrt(h) + epsilon), the rate corrected by the count."""

    states = 2

    def update(self, node: Node, e: Emitter, rate: str, count: str, values: Sequence[str]) -> list[str]:
        x, g, v, h = values
        a, b = repr(float(node.attrs.get("alpha", 0.9))), repr(float(node.attrs.get("beta", 0.999)))
        decay, after, epsilon = (
            repr(self.number(node, n)) for n in ("norm_coefficient", "norm_coefficient_post", "epsilon")
        )
        g = e.local(DOUBLE, f"{decay} * {x} + {g}")
        mean = e.local(DOUBLE, f"{a} * {v} + (1 - {a}) * {g}")
        square = e.local(DOUBLE, f"{b} * {h} + (1 - {b}) * {g} * {g}")
        correction = f"({count} > 0 ? sqrt(1 - pow({b}, {count})) / (1 - pow({a}, {count})) : 1)"
        moved = f"({x} - {rate} * {correction} * {mean} / (sqrt({square}) + {epsilon}))"
        return [f"((1 - {after}) * {moved})", mean, square]

    def advance(self, node: Node, rate: float, count: float, values: Sequence[Array]) -> list[Array]:
        x, g, v, h = values
        a, b = float(node.attrs.get("alpha", 0.9)), float(node.attrs.get("beta", 0.999))
        g = self.number(node, "norm_coefficient") * x + g
        mean, square = a * v + (1 - a) * g, b * h + (1 - b) * g * g
        corrected = rate * np.sqrt(1 - b**count) / (1 - a**count) if count > 0 else rate
        moved = x - corrected * mean / (np.sqrt(square) + self.number(node, "epsilon"))
        return [(1 - self.number(node, "norm_coefficient_post")) * moved, mean, square]

    def attributes(self) -> dict[str, Any]:
        return {"alpha": 0.9, "beta": 0.99, "norm_coefficient": 0.01, "epsilon": 1e-3, "norm_coefficient_post": 0.1}
