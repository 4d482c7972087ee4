"""Softmax and LogSoftmax along one axis (opset 13 and later: the axis alone, default the last)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.graph import Node
from sod2.lattice import Shape
from sod2.ops.anchor import Anchor, count, dims_of, is_double, known_dims, proved_shape, require_float32
from sod2.ops.attributes import axis_of
from sod2.ops.op import Array, Call, Facts, MappingType, register


@register("Softmax", "LogSoftmax")
class Softmax(Anchor):
    """exp(x) / sum(exp(x)) along `axis`, or its logarithm."""

    mapping = MappingType.MANY_TO_MANY

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        dims = dims_of(x[0])
        axis_of(node, len(dims), -1)
        return [dims]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return [proved_shape(y[0])]

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        dims = known_dims(x[0])
        axis = axis_of(node, len(dims), -1)
        sizes = ", ".join(k.c(d) for d in (count(dims[:axis]), dims[axis], count(dims[axis + 1 :])))
        if is_double(x):
            logarithm = int(node.op == "LogSoftmax")
            return f"sod2_softmax_double({k.pointer(0)}, {k.result()}, {logarithm}, {sizes}, pool);"
        require_float32(node, x[0])
        kernel = "sod2_softmax" if node.op == "Softmax" else "sod2_log_softmax"
        return f"{kernel}({k.pointer(0)}, {k.result()}, {sizes}, pool);"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        axis = int(node.attrs.get("axis", -1))
        wide = x.astype(np.float64)
        shifted = wide - wide.max(axis=axis, keepdims=True, initial=-np.inf) if x.size else wide
        total = np.exp(shifted).sum(axis=axis, keepdims=True)
        result = np.exp(shifted) / total if node.op == "Softmax" else shifted - np.log(total)
        return [result.astype(x.dtype)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(12)
        for attributes, shape in [
            ({}, (3, 7)),
            ({"axis": 1}, (2, 5, 3)),
            ({"axis": 0}, (4, 2, 1)),
            ({"axis": -2}, (1, 1, 9)),
            ({}, (0, 4)),
            ({}, (40,)),
        ]:
            yield attributes, [(4 * random.standard_normal(shape)).astype(np.float32)]
            yield attributes, [4 * random.standard_normal(shape)]
