"""TopK: the k largest or smallest elements along an axis, with their positions; k may be known by execution alone."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.dtypes import element_type
from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Shape, Undef
from sod2.ops.attributes import axis_of
from sod2.ops.lift import integers
from sod2.ops.op import Array, Call, Facts, MappingType, Op, register
from sod2.symbolic import Dim, as_dim, eq, maximum, minimum


@register()
class TopK(Op):
    """(x, k) -> values, indices: the best first, of equal elements the one of lower index, sorted or not.

    k beyond the axis is refused, as by onnxruntime.
    """

    shape_inputs = (1,)
    mapping = MappingType.MANY_TO_MANY

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        assert x[0] is not None
        return [x[0].dtype, np.dtype(np.int64)][: len(node.outputs)]

    def _axis(self, node: Node, rank: int) -> int:
        return axis_of(node, rank, -1)

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None and isinstance(x[0].shape, tuple) and x[1] is not None
        axis = self._axis(node, len(x[0].shape))
        values = [UNDEF] if isinstance(x[1].value, Undef) else integers(x[1])
        k = NAC if values is None else values[0]
        return [(*x[0].shape[:axis], k, *x[0].shape[axis + 1 :])] * len(node.outputs)

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        along, (k, *_) = x[0].shape[self._axis(node, len(x[0].shape))], integers(x[1]) or [NAC]
        if not isinstance(k, Dim):
            return []
        pairs = [(maximum(k, 0), k)]
        if isinstance(along, Dim):
            pairs.append((minimum(k, along), k))
        return [(a, b) for a, b in pairs if eq(a, b) is not True]

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        assert x[0] is not None
        dims = x[0].dims
        axis = self._axis(node, len(dims))
        count = next(f for f in y if f is not None).dims[axis]
        outer, inner = (math.prod(part, start=as_dim(1)) for part in (dims[:axis], dims[axis + 1 :]))
        values, indices = (len(node.outputs) > i and node.outputs[i] != "" for i in (0, 1))
        positions = k.result(1) if indices else f"(int64_t *){k.scratch(f'8 * {k.c(outer * count * inner)}')}"
        smallest = int(not node.attrs.get("largest", 1))
        return (
            f"sod2_top_k({k.pointer(0)}, {k.result() if values else 'NULL'}, {positions}, "
            f"{element_type(x[0].dtype).number}, {smallest}, {k.c(outer)}, {k.c(dims[axis])}, {k.c(count)}, "
            f"{k.c(inner)}, pool);"
        )

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, k = arrays
        assert x is not None and k is not None
        axis, ranked = self._axis(node, x.ndim), x.astype(np.float64) if x.dtype.kind != "f" else x
        best = np.argsort(-ranked if node.attrs.get("largest", 1) else ranked, axis=axis, kind="stable")
        indices = np.take(best, np.arange(int(k[0])), axis=axis)
        return [np.take_along_axis(x, indices, axis), indices.astype(np.int64)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        x = np.random.default_rng(5).integers(-9, 9, (3, 4, 5))
        for attributes, dtype, k in (
            ({}, np.float32, 3),
            ({"axis": 0}, np.float32, 3),
            ({"axis": 1, "largest": 0}, np.int64, 2),
            ({"axis": -2}, np.int32, 1),
            ({"largest": 0}, np.float64, 0),
        ):
            yield attributes, [x.astype(dtype), np.array([k], np.int64)]
        yield {}, [np.zeros((0, 3), np.float32), np.array([2], np.int64)]
