"""Unique: the distinct elements, or slices along an axis; how many there are is counted before they are written."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.dtypes import element_type
from sod2.graph import Node
from sod2.lattice import NAC, Shape
from sod2.ops.anchor import initializer
from sod2.ops.attributes import normal_axis
from sod2.ops.lift import product
from sod2.ops.op import Array, Call, Counting, Facts, MappingType, Op, register
from sod2.symbolic import as_dim


@register()
class Unique(Op):
    """x -> distinct slices, position of the first of each, number of the slice at each position, how often each occurs.

    Sorted, or in order of appearance. NaN equals itself.
    """

    execution = True
    one_count = True
    mapping = MappingType.MANY_TO_MANY

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        assert x[0] is not None
        return [x[0].dtype, *[np.dtype(np.int64)] * 3][: len(node.outputs)]

    def _axis(self, node: Node, rank: int) -> int | None:
        return normal_axis(node, int(node.attrs["axis"]), rank) if "axis" in node.attrs else None

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        dims = x[0].shape
        axis = self._axis(node, len(dims))
        slices: Shape = (NAC,) if axis is None else (*dims[:axis], NAC, *dims[axis + 1 :])
        along = product(dims) if axis is None else dims[axis]
        return [slices, (NAC,), (along,), (NAC,)][: len(node.outputs)]

    def _struct(self, node: Node, k: Call, x: Facts) -> str:
        """Declares the argument struct g; returns the C pointer of its scratch."""
        assert x[0] is not None
        dims = x[0].dims
        axis = self._axis(node, len(dims))
        outer, along, inner = (
            (dims[:axis], dims[axis : axis + 1], dims[axis + 1 :]) if axis is not None else ((), dims, ())
        )
        sizes = {name: k.c(math.prod(part, start=as_dim(1))) for name, part in
                 (("outer", outer), ("n", along), ("inner", inner))}  # fmt: skip
        fields = {"x": k.pointer(0), "dtype": element_type(x[0].dtype).number, "sorted": node.attrs.get("sorted", 1)}
        k.setup(initializer("g", "sod2_unique", **fields, **sizes))
        return f"(int64_t *){k.scratch('8 * sod2_unique_scratch(&g)')}"

    def count(self, node: Node, k: Counting, x: Facts, y: Facts) -> str:
        scratch = self._struct(node, k, x)
        output = next(i for i, t in enumerate(node.outputs) if t and i != 2)
        axis = self._axis(node, len(x[0].dims)) if x[0] is not None else None
        return f"{k.minted(output, axis or 0 if output == 0 else 0)} = sod2_unique_count(&g, {scratch});"

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        assert x[0] is not None
        scratch = self._struct(node, k, x)
        results = ", ".join(k.result(i) if t else "NULL" for i, t in enumerate((*node.outputs, "", "", "")[:4]))
        axis = self._axis(node, len(x[0].dims))
        sizes = [f.dims[axis or 0 if i == 0 else 0] for i, f in enumerate(y) if f is not None and i != 2]
        count = k.c(sizes[0]) if sizes else f"sod2_unique_count(&g, {scratch})"
        return f"sod2_unique_run(&g, {count}, {scratch}, {results});"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        axis = self._axis(node, x.ndim)
        flat = x.ravel() if axis is None else x
        y, first, inverse, counts = np.unique(flat, True, True, True, axis=axis)
        inverse = inverse.reshape(-1)
        if not node.attrs.get("sorted", 1):
            order = np.argsort(first, kind="stable")
            y, first, counts = np.take(y, order, axis=axis or 0), first[order], counts[order]
            inverse = np.argsort(order, kind="stable")[inverse]
        return [y, *(a.astype(np.int64) for a in (first, inverse, counts))][: len(node.outputs)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        x = np.random.default_rng(2).integers(0, 3, (5, 2, 3))
        for attributes in ({}, {"sorted": 0}, {"axis": 0}, {"axis": -1, "sorted": 0}, {"axis": 1}):
            for dtype in (np.float32, np.int64):
                yield attributes, [(x // 2).astype(dtype)]
        yield {}, [np.zeros((0,), np.float32)]
        yield {}, [np.array([7, 7, 1], np.int8)]
