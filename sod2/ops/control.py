"""Switch and Combine: the paper's control-flow operators, which the front end makes from ONNX's If.

Switch(pred, x) hands x to both branches. Facts about x flow forward only: what is true in a branch that may not run
never reaches a tensor outside, so there is no backward rule. Combine(pred, a, b) is a where pred holds and b elsewhere,
and keeps what holds of both.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.errors import ModelError
from sod2.graph import Node
from sod2.lattice import NAC, Shape, meet, meet_value
from sod2.ops.lift import constant_integers, product
from sod2.ops.op import Array, Counting, Facts, MappingType, Op, TensorValue, register
from sod2.symbolic import Dim, as_dim, eq

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]


@register()
class Switch(Op):
    """(pred, x) -> (x when pred, x when not pred); both outputs are input 1's bytes."""

    is_view = True
    execution = True
    mapping = MappingType.ONE_TO_ONE

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        assert x[1] is not None
        return [x[1].dtype] * 2

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[1] is not None
        return [x[1].shape] * 2

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        assert x[1] is not None
        return [x[1].value] * 2

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[1] is not None
        return [arrays[1], arrays[1]]

    def examples(self) -> Examples:
        yield {}, [np.array(True), np.arange(6, dtype=np.float32).reshape(2, 3)]
        yield {}, [np.array(False), np.zeros((0, 1), np.int64)]


@register()
class Combine(Op):
    """(pred, a, b) -> a when pred, else b. Which one exists is known by execution; the shape is what both agree on, and
    where they don't the dims of the one that exists."""

    is_view = True
    execution = True
    mapping = MappingType.ONE_TO_ONE

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [next(f for f in x[1:] if f is not None).dtype]

    def _taken(self, x: Facts) -> Facts:
        """The branches that can be the one."""
        pred = constant_integers(x[0])
        taken = x[1:] if pred is None else [x[1] if pred[0] else x[2]]
        return [f for f in taken if f is not None]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        if x[0] is not None and x[0].dtype != np.bool_:
            raise ModelError(f"If (node {node.name!r}) has a predicate of {x[0].dtype}; it takes a bool")
        shapes = [f.shape for f in self._taken(x) if f is not None]
        return [shapes[0] if len(shapes) == 1 else meet(*shapes)]

    def count(self, node: Node, k: Counting, x: Facts, y: Facts) -> str:
        """The dims of the branch that was taken; the sizes of the other one may not exist."""
        assert x[0] is not None and x[1] is not None and x[2] is not None
        pairs = list(zip(x[1].dims, x[2].dims, strict=True))
        differ = [axis for axis, (a, b) in enumerate(pairs) if a != b]
        return f"const uint8_t taken = *({k.pointer(0)});\n" + "\n".join(
            f"{k.minted(0, axis)} = taken ? {k.c(pairs[axis][0])} : {k.c(pairs[axis][1])};" for axis in differ
        )

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        values = [f.value for f in self._taken(x) if f is not None]
        return [values[0] if len(values) == 1 else meet_value(*values)]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        count = product(x[0].shape) if x[0] is not None and isinstance(x[0].shape, tuple) else NAC
        return [(count, as_dim(1))] if isinstance(count, Dim) and eq(count, 1) is not True else []

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        pred, a, b = arrays
        assert pred is not None
        chosen = a if pred.item() else b
        assert chosen is not None
        return [chosen]

    def examples(self) -> Examples:
        a, b = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
        yield {}, [np.array(True), a, b]
        yield {}, [np.array(False), a, b]
