"""Norms of order p: LpNormalization, LpPool, GlobalLpPool; and LRN, which divides by a sum of squares of channels."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.graph import Node
from sod2.lattice import UNDEF, Shape
from sod2.ops.anchor import dims_of
from sod2.ops.attributes import axis_of
from sod2.ops.direct import window_fold
from sod2.ops.op import Array, Emitter, Facts, Index, MappingType, Op, register
from sod2.ops.pool import Pool, kernel_of
from sod2.ops.selection import SameShape
from sod2.ops.window import axes
from sod2.symbolic import as_dim

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]
DOUBLE = np.dtype(np.float64)


def power(p: int, value: str) -> str:
    """|value|^p in C, a double."""
    return (
        f"fabs((double){value})" if p == 1 else f"((double){value} * {value})" if p == 2 else f"pow(fabs({value}), {p})"
    )


def root(p: int, total: str) -> str:
    """The p-th root in C."""
    return total if p == 1 else f"sqrt({total})" if p == 2 else f"pow({total}, 1.0 / {p})"


@register()
class LpNormalization(SameShape):
    """x divided by its norm of order p (1 or 2) along `axis`; 0 where that is 0."""

    cost = 100

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None
        axis, p = axis_of(node, len(x[0].dims), -1), int(node.attrs.get("p", 2))

        def step(k: list[Any], total: str) -> str:
            return f"{total} + {power(p, e.load(0, [*index[:axis], k[0], *index[axis + 1 :]]))}"

        norm = e.local(DOUBLE, root(p, e.fold(DOUBLE, "0", [x[0].dims[axis]], step)))
        return f"(({e.element(x[0].dtype)})({norm} == 0 ? 0 : {e.load(0, index)} / {norm}))"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        axis, p = int(node.attrs.get("axis", -1)), int(node.attrs.get("p", 2))
        wide = x.astype(np.float64)
        norm = (np.abs(wide) ** p).sum(axis=axis, keepdims=True) ** (1 / p)
        return [np.where(norm == 0, 0, wide / np.where(norm == 0, 1, norm)).astype(x.dtype)]

    def examples(self) -> Examples:
        x = np.array([[[1, 2, 2], [3, 4, 0]], [[0, 5, 5], [6, 8, 0]]], np.float32)
        for attrs in ({}, {"axis": 0}, {"axis": 1, "p": 1}):
            yield attrs, [x]
        yield {}, [x[:0]]


@register()
class LpPool(Pool):
    """The norm of order p of each window."""

    def is_anchor(self, node: Node, x: Facts) -> bool:
        return False

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None
        p = int(node.attrs.get("p", 2))
        total = window_fold(
            e, index, found=axes(node, x[0].dims[2:], kernel_of(node)), dtype=DOUBLE, start="0",
            step=lambda total, value, _: f"{total} + {power(p, value)}",
        )  # fmt: skip
        return f"(({e.element(x[0].dtype)}){root(p, total)})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        p = int(node.attrs.get("p", 2))
        stacked = np.abs(self.windows(node, x.astype(np.float64), 0.0)[0]) ** p
        return [(stacked.sum(axis=0) ** (1 / p)).astype(x.dtype)]

    def examples(self) -> Examples:
        x = np.random.default_rng(60).standard_normal((1, 2, 6, 7)).astype(np.float32)
        for p in (1, 2, 3):
            yield {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "p": p}, [x]
        yield {"kernel_shape": [2], "auto_pad": "SAME_UPPER"}, [x[:, 0]]


@register()
class GlobalLpPool(Op):
    """The norm of order p over all spatial axes."""

    mapping = MappingType.MANY_TO_MANY
    cost = 100

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        batch, channels, *sizes = dims_of(x[0])
        return [(batch, channels, *[as_dim(1)] * len(sizes))]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None
        p = int(node.attrs.get("p", 2))
        total = e.fold(
            DOUBLE, "0", x[0].dims[2:], lambda k, total: f"{total} + {power(p, e.load(0, [*index[:2], *k]))}"
        )
        return f"(({e.element(x[0].dtype)}){root(p, total)})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        p, over = int(node.attrs.get("p", 2)), tuple(range(2, x.ndim))
        return [((np.abs(x.astype(np.float64)) ** p).sum(axis=over, keepdims=True) ** (1 / p)).astype(x.dtype)]

    def examples(self) -> Examples:
        x = np.random.default_rng(61).standard_normal((2, 3, 4, 5)).astype(np.float32)
        yield {}, [x]
        yield {"p": 3}, [x[:, :, 0]]


@register()
class LRN(SameShape):
    """x / (bias + alpha / size * the sum of squares of the `size` channels around it)^beta."""

    cost = 100

    def _constants(self, node: Node) -> tuple[int, float, float, float]:
        alpha, beta, bias = (float(node.attrs.get(*pair)) for pair in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
        return int(node.attrs["size"]), alpha, beta, bias

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return [UNDEF if y[0] is None else y[0].shape]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None
        size, alpha, beta, bias = self._constants(node)

        def step(k: list[Any], total: str) -> str:
            channel = e.local(np.dtype(np.int64), e.c(index[1] + k[0] + -((size - 1) // 2)))
            e.only_if(f"{channel} >= 0 && {channel} < {e.c(x[0].dims[1])}")  # type: ignore[union-attr]
            return f"{total} + {power(2, e.load(0, [index[0], e.opaque(channel), *index[2:]]))}"

        total = e.fold(DOUBLE, "0", [size], step)
        return f"(({e.element(x[0].dtype)})({e.load(0, index)} / pow({bias!r} + {alpha / size!r} * {total}, {beta!r})))"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        size, alpha, beta, bias = self._constants(node)
        square, total = x.astype(np.float64) ** 2, np.zeros(x.shape)
        for c in range(x.shape[1]):
            first = c - (size - 1) // 2
            total[:, c] = square[:, max(0, first) : max(0, first + size)].sum(axis=1)
        return [(x / (bias + alpha / size * total) ** beta).astype(x.dtype)]

    def examples(self) -> Examples:
        x = np.random.default_rng(62).standard_normal((2, 5, 3, 3)).astype(np.float32)
        yield {"size": 3}, [x]
        yield {"size": 4, "alpha": 0.5, "beta": 0.5, "bias": 2.0}, [x]
