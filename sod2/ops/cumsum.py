"""CumSum and CumProd: running sums and products along one axis, which is an input."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from sod2.dtypes import is_float
from sod2.graph import Node
from sod2.lattice import NAC, Shape
from sod2.ops.anchor import Anchor, backwards, dims_of, dtype_macro, proved_shape
from sod2.ops.lift import constant_integers, elements, exactness_guards, lift, number_arrays, packed
from sod2.ops.op import Array, Call, Facts, MappingType, TensorValue, register
from sod2.symbolic import Dim


@register("CumSum", "CumProd")
class Running(Anchor):
    """y[i] = sum or product of x[j], j <= i (exclusive: j < i), from the end with `reverse`."""

    mapping = MappingType.MANY_TO_MANY

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        return [dims_of(x[0])]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return backwards(node, [proved_shape(y[0])])

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        return exactness_guards(y)

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        numbers = number_arrays(x)
        if numbers is not None:
            return list(self.reference(node, *numbers))
        opened = None if x[0] is None or x[0].dtype.kind not in "iu" else elements(x[0])
        if node.op == "CumProd" or opened is None or opened.ndim != 1 or constant_integers(x[1]) is None:
            return [NAC]
        step = -1 if node.attrs.get("reverse", 0) else 1
        sums = list(accumulate(opened[::step], lambda a, b: lift(lambda p, q: p + q, a, b), initial=lift(lambda: 0)))
        result = np.empty(len(opened), dtype=object)
        result[:] = sums[:-1] if node.attrs.get("exclusive", 0) else sums[1:]
        assert x[0] is not None
        return [packed(result[::step], x[0].dtype)]

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        assert x[0] is not None and x[1] is not None
        flags = (int(node.op == "CumProd"), *(int(node.attrs.get(name, 0)) for name in ("exclusive", "reverse")))
        dims = ", ".join(map(k.c, x[0].dims))
        return (
            f"const sod2_running_options options = {{{', '.join(map(str, flags))}}};\n"
            f"const int64_t dims[] = {{{dims}}};\n"
            f"sod2_running({k.pointer(0)}, {k.result()}, {dtype_macro(node, x[0].dtype)}, &options, "
            f"{len(x[0].dims)}, dims, *{k.pointer(1)}, pool);"
        )

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, axes = arrays
        assert x is not None and axes is not None
        axis = int(axes.item())
        wide = x.astype(np.float64) if is_float(x.dtype) else x
        ordered = np.flip(wide, axis) if node.attrs.get("reverse", 0) else wide
        running = (np.cumprod if node.op == "CumProd" else np.cumsum)(ordered, axis=axis, dtype=wide.dtype)
        if node.attrs.get("exclusive", 0):
            running = np.roll(running, 1, axis)
            np.moveaxis(running, axis, 0)[:1] = int(node.op == "CumProd")
        return [(np.flip(running, axis) if node.attrs.get("reverse", 0) else running).astype(x.dtype)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(19)
        for attributes, shape, axis in [
            ({}, (2, 5), 1),
            ({"exclusive": 1}, (4, 3), 0),
            ({"reverse": 1}, (2, 3, 4), -2),
            ({"exclusive": 1, "reverse": 1}, (6,), 0),
            ({}, (1, 1), 0),
            ({}, (0, 3), 1),
        ]:
            yield attributes, [random.standard_normal(shape).astype(np.float32), np.array(axis, np.int64)]
            yield attributes, [random.integers(-9, 9, shape), np.array([axis], np.int32).reshape(())]
