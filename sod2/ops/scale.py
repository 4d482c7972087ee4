"""Two operators of our own that contrib operators are made of: Scale and SwapLast (contrib.py)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.errors import ModelError
from sod2.graph import Node
from sod2.lattice import UNDEF, Shape
from sod2.ops.anchor import dims_of
from sod2.ops.elementwise import CType, Elementwise
from sod2.ops.op import Array, Emitter, Facts, Index, MappingType, Op, register

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]


@register(domain="sod2")
class Scale(Elementwise):
    """alpha * x."""

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        return f"({c.number(float(node.attrs['alpha']))} * {operands[0]})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        return [(arrays[0] * node.attrs["alpha"]).astype(arrays[0].dtype)]

    def examples(self) -> Examples:
        yield {"alpha": 0.5}, [np.array([[1, -3], [0, 8]], np.float32)]


@register(domain="sod2")
class SwapLast(Op):
    """x with its last two dims exchanged."""

    mapping = MappingType.SHUFFLE

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        dims = dims_of(x[0])
        if len(dims) < 2:
            raise ModelError(f"{node.op} (node {node.name!r}) of {x[0]}; two dims or more are needed")
        return [(*dims[:-2], dims[-1], dims[-2])]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        known = y[0].shape if y[0] is not None else UNDEF
        return [(*known[:-2], known[-1], known[-2]) if isinstance(known, tuple) else UNDEF]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        return e.load(0, [*index[:-2], index[-1], index[-2]])

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        return [np.ascontiguousarray(arrays[0].swapaxes(-1, -2))]

    def examples(self) -> Examples:
        yield {}, [np.arange(24, dtype=np.float32).reshape(2, 3, 4)]
        yield {}, [np.zeros((0, 3), np.float32)]
