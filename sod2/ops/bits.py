"""BitShift and BitCast: integers shifted, and elements whose bits are read as another type of the same size."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.dtypes import element_type
from sod2.errors import UnsupportedError
from sod2.graph import Node
from sod2.lattice import NAC
from sod2.ops.attributes import dtype_of
from sod2.ops.elementwise import CType, Elementwise
from sod2.ops.op import Array, Emitter, Facts, Index, TensorValue, register

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]


@register()
class BitShift(Elementwise):
    """x shifted by y bits to the LEFT or RIGHT; a shift outside [0, width) leaves 0, or -1 of what was negative."""

    cost = 2

    def _is_left(self, node: Node) -> bool:
        return str(node.attrs["direction"]) == "LEFT"

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        a, b = operands
        shifted = f"({c.unsigned}){a} << {b}" if self._is_left(node) else f"{a} >> {b}"
        gone = "0" if self._is_left(node) or c.dtype.kind == "u" else f"-({a} < 0)"
        return f"(({c.name})({b} >= 0 && {b} < {8 * c.dtype.itemsize} ? {shifted} : {gone}))"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        a, b = arrays
        assert a is not None and b is not None
        fits = (b >= 0) & (b < 8 * a.dtype.itemsize)
        amount = np.where(fits, b, 0).astype(b.dtype)
        shifted = a << amount if self._is_left(node) else a >> amount
        gone = np.zeros_like(a) if self._is_left(node) else -(a < 0).astype(a.dtype)
        return [np.where(fits, shifted, gone).astype(a.dtype)]

    def examples(self) -> Examples:
        for dtype in (np.uint8, np.uint16, np.uint32, np.uint64):
            for direction in ("LEFT", "RIGHT"):
                yield {"direction": direction}, [np.array([[16], [255]], dtype), np.array([0, 1, 7], dtype)]
        yield {"direction": "LEFT"}, [np.array([16, -5], np.int32), np.array([2, 33], np.int32)]
        yield {"direction": "RIGHT"}, [np.array([16, -5, -5, -5], np.int8), np.array([2, 1, 33, -1], np.int8)]


@register()
class BitCast(Elementwise):
    """The bits of each element as an element of type `to`, which has the same size."""

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        assert x[0] is not None
        target = dtype_of(node, "to")
        if target.itemsize != x[0].dtype.itemsize:
            raise UnsupportedError(
                f"BitCast (node {node.name!r}) from {x[0].dtype} to {target}; types of one size are needed"
            )
        return [target]

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        return [NAC]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and y[0] is not None
        source, target = element_type(x[0].dtype), element_type(y[0].dtype)
        stored = source.store.format(e.load(0, index))
        bits = f"((union {{ {source.memory} from; {target.memory} to; }}){{.from = {stored}}}.to)"
        return target.load.format(bits)

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        return [np.ascontiguousarray(arrays[0]).view(dtype_of(node, "to")).reshape(arrays[0].shape)]

    def examples(self) -> Examples:
        yield {"to": 6}, [np.array([1.0, -2.5], np.float32)]
        yield {"to": 11}, [np.array([[4607182418800017408]], np.int64)]
        yield {"to": 3}, [np.array([0, 200], np.uint8)]
