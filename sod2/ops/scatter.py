"""ScatterElements (once Scatter) and ScatterND: updates combined into a copy of the data (runtime/scatter.c)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.dtypes import element_type
from sod2.errors import ModelError
from sod2.graph import Node
from sod2.lattice import Shape
from sod2.ops.anchor import Anchor, backwards, dims_of, initializer, known_dims, proved_shape
from sod2.ops.attributes import axis_of
from sod2.ops.op import Array, Call, Facts, MappingType, register
from sod2.symbolic import Dim

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


class Scatter(Anchor):
    """Rules of both: (data, indices, updates) -> the data's shape."""

    mapping = MappingType.MANY_TO_MANY
    overwrites = 0
    any_dtype = True

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        return [dims_of(x[0])]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return backwards(node, [proved_shape(y[0])])

    def reduction(self, node: Node) -> str:
        """The attribute reduction: none, add, mul, max or min."""
        name = str(node.attrs.get("reduction", "none"))
        if name not in _COMBINE:
            raise ModelError(
                f"{node.op} (node {node.name!r}) has reduction={name!r}; accepted are {', '.join(_COMBINE)}"
            )
        return name

    def struct(self, node: Node, k: Call, x: Facts, index_dims: Sequence[Dim]) -> str:
        """Declaration of the kernel's argument struct."""
        data, indices = x[0], x[1]
        assert data is not None and indices is not None
        how = self.reduction(node)
        fields = initializer(
            "g", "sod2_scatter", data=k.pointer(0), updates=k.pointer(2), indices=k.pointer(1), out=k.result(),
            dtype=element_type(data.dtype).number, item=data.dtype.itemsize, index_bytes=indices.dtype.itemsize,
            rank=len(data.dims), index_rank=len(index_dims), dims="dims", index_dims="index_dims",
            how=f"SOD2_COMBINE_{'REPLACE' if how == 'none' else how.upper()}",
        )  # fmt: skip
        lists = (("dims", data.dims), ("index_dims", index_dims))
        arrays = [f"const int64_t {name}[] = {{{', '.join(map(k.c, dims)) or '1'}}};" for name, dims in lists]
        return "\n".join([*arrays, fields])


@register("ScatterElements", "Scatter")
class ScatterElements(Scatter):
    """out[..., indices[i], ...] along `axis` is combined with updates[i]."""

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        k.setup(self.struct(node, k, x, known_dims(x[1])))
        return f"sod2_scatter_elements(&g, {axis_of(node, len(known_dims(x[0])), 0)}, pool);"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        data, indices, updates = arrays
        assert data is not None and indices is not None and updates is not None
        axis, combine = int(node.attrs.get("axis", 0)) % data.ndim, _COMBINE[self.reduction(node)]
        out = data.copy()
        for position in np.ndindex(indices.shape):
            where = list(position)
            where[axis] = int(indices[position])
            old, new = out[tuple(where)], updates[position]
            out[tuple(where)] = combine(old, new)
        return [out]

    def examples(self) -> Examples:
        if self.name == "Scatter":
            return
        data = np.arange(12, dtype=np.float32).reshape(3, 4)
        indices = np.array([[1, 0, -1], [2, 1, 0]], np.int64)
        updates = np.array([[10, -11, 12], [13, 14, -15]], np.float32)
        for reduction in _COMBINE:
            yield {"reduction": reduction}, [data, indices, updates]
        yield {"axis": 1}, [data, indices, updates]
        yield (
            {"axis": 1, "reduction": "add"},
            [data.astype(np.int64), indices.astype(np.int32), updates.astype(np.int64)],
        )
        yield {}, [data, indices[:0], updates[:0]]


@register()
class ScatterND(Scatter):
    """The slice of the output at each index of the last dim of `indices` is combined with an update."""

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        *outer, depth = known_dims(x[1])
        k.setup(self.struct(node, k, x, outer))
        return f"sod2_scatter_nd(&g, {k.c(depth)}, pool);"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        data, indices, updates = arrays
        assert data is not None and indices is not None and updates is not None
        combine, out = _COMBINE[self.reduction(node)], data.copy()
        for position in np.ndindex(indices.shape[:-1]):
            where = tuple(int(i) for i in indices[position])
            out[where] = combine(out[where], updates[position])
        return [out]

    def examples(self) -> Examples:
        data = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
        indices = np.array([[0, 2], [3, -1], [0, 2]], np.int64)
        updates = np.array([[1, -2], [3, 4], [5, 60]], np.float32)
        for reduction in _COMBINE:
            yield {"reduction": reduction}, [data, indices, updates]
        yield {}, [data, np.array([[1]], np.int64), np.ones((1, 3, 2), np.float32)]
        yield {}, [data, indices[:0], updates[:0]]
