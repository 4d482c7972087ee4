"""NonZero and Compress: how many elements are selected is known by execution alone, so both count before they write."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.dtypes import element_type
from sod2.graph import Node
from sod2.lattice import NAC, Shape
from sod2.ops.attributes import normal_axis
from sod2.ops.op import Array, Call, Counting, Fact, Facts, MappingType, Op, register
from sod2.symbolic import Dim, as_dim

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]


def _ranked(fact: Fact | None) -> tuple[Any, ...]:
    assert fact is not None and isinstance(fact.shape, tuple)
    return fact.shape


@register()
class NonZero(Op):
    """int64 [rank, count]: the positions of the elements that are not 0, in row-major order. A scalar counts as one
    dim of 1, as in onnxruntime."""

    execution = True
    one_count = True
    any_dtype = True
    mapping = MappingType.SHUFFLE

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [np.dtype(np.int64)]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        return [(as_dim(max(len(_ranked(x[0])), 1)), NAC)]

    def _test(self, x: Facts) -> str:
        assert x[0] is not None
        return f"{element_type(x[0].dtype).load.format('x[i]')} != 0"

    def count(self, node: Node, k: Counting, x: Facts, y: Facts) -> str:
        assert x[0] is not None
        size = k.c(math.prod(x[0].dims, start=as_dim(1)))
        return (
            f"const {element_type(x[0].dtype).memory} *x = {k.pointer(0)};\n"
            f"const int64_t size = {size};\nint64_t count = 0;\n"
            f"for (int64_t i = 0; i < size; i++) count += {self._test(x)};\n{k.minted(0, 1)} = count;"
        )

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        assert x[0] is not None and y[0] is not None
        dims = x[0].dims or (as_dim(1),)
        loops = "".join(f"for (int64_t i{a} = 0; i{a} < {k.c(d)}; i{a}++)\n" for a, d in enumerate(dims[:-1]))
        stores = " ".join(f"y[{a} * count + at] = i{a};" for a in range(len(dims)))
        last = f"i{len(dims) - 1}"
        return (
            f"const {element_type(x[0].dtype).memory} *x = {k.pointer(0)};\nint64_t *y = {k.result()};\n"
            f"const int64_t count = {k.c(y[0].dims[1])};\nint64_t at = 0, i = 0;\n"
            f"{loops}for (int64_t {last} = 0; {last} < {k.c(dims[-1])}; {last}++, i++)\n"
            f"  if ({self._test(x)}) {{ {stores} at++; }}"
        )

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        return [np.array(np.nonzero(np.atleast_1d(arrays[0])), np.int64)]

    def examples(self) -> Examples:
        yield {}, [np.array([[1, 0, 2], [0, 0, 3]], np.float32)]
        yield {}, [np.array([[True, False], [False, False]])]
        yield {}, [np.zeros((2, 0), np.int64)]
        yield {}, [np.arange(12, dtype=np.int64).reshape(2, 1, 6) % 3]


@register()
class Compress(Op):
    """The slices along `axis` (without it: the elements) whose condition holds; a short condition selects no more."""

    execution = True
    one_count = True
    any_dtype = True
    mapping = MappingType.SHUFFLE

    def _axis(self, node: Node, rank: int) -> int | None:
        return normal_axis(node, int(node.attrs["axis"]), rank) if "axis" in node.attrs else None

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        dims = _ranked(x[0])
        axis = self._axis(node, len(dims))
        return [(NAC,) if axis is None else (*dims[:axis], NAC, *dims[axis + 1 :])]

    def _extents(self, node: Node, x: Facts) -> tuple[Dim, Dim, Dim]:
        """Slices before, along and inside the axis."""
        assert x[0] is not None
        dims = x[0].dims
        axis = self._axis(node, len(dims))
        one = as_dim(1)
        if axis is None:
            return one, math.prod(dims, start=one), one
        return math.prod(dims[:axis], start=one), dims[axis], math.prod(dims[axis + 1 :], start=one)

    def _condition(self, node: Node, k: Call, x: Facts) -> str:
        assert x[1] is not None
        return (
            f"const uint8_t *condition = {k.pointer(1)};\nconst int64_t along = {k.c(self._extents(node, x)[1])};\n"
            f"const int64_t tested = sod2_imin(along, {k.c(x[1].dims[0])});"
        )

    def count(self, node: Node, k: Counting, x: Facts, y: Facts) -> str:
        axis = self._axis(node, len(_ranked(x[0])))
        return (
            f"{self._condition(node, k, x)}\nint64_t count = 0;\n"
            f"for (int64_t i = 0; i < tested; i++) count += condition[i] != 0;\n{k.minted(0, axis or 0)} = count;"
        )

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        assert x[0] is not None
        outer, _, inner = self._extents(node, x)
        return (
            f"{self._condition(node, k, x)}\nconst char *x = (const char *){k.pointer(0)};\n"
            f"char *y = (char *){k.result()};\nconst int64_t bytes = {x[0].dtype.itemsize} * {k.c(inner)};\n"
            f"for (int64_t o = 0; o < {k.c(outer)}; o++, x += along * bytes)\n"
            "  for (int64_t i = 0; i < tested; i++)\n"
            "    if (condition[i]) { memcpy(y, x + i * bytes, (size_t)bytes); y += bytes; }"
        )

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, condition = arrays
        assert x is not None and condition is not None
        axis = self._axis(node, x.ndim)
        along = x.size if axis is None else x.shape[axis]
        return [np.compress(condition[:along], x, axis)]

    def examples(self) -> Examples:
        x = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
        for axis, length in ((0, 3), (1, 2), (-1, 1), (0, 2)):
            yield {"axis": axis}, [x, np.arange(length) % 2 == 0]
        yield {}, [x, np.array([False, True, True])]
        yield {"axis": 0}, [x, np.zeros(3, bool)]
        yield {"axis": 1}, [np.zeros((2, 0), np.int64), np.ones(1, bool)]
