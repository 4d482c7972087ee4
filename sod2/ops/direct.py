"""Convolutions and windowed reductions as element expressions: a loop over the window for every output element.

Slow, but for every element type and number of spatial axes, and for weights that only exist at run time. The float32
kernels (runtime/conv*.c, pool.c) take over where they can; Conv.is_anchor and Pool.is_anchor say where.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sod2.dtypes import is_float
from sod2.ops.attributes import present
from sod2.ops.op import Emitter, Facts, Index
from sod2.ops.window import Axis
from sod2.symbolic import Dim

Load = Callable[[int, Sequence[Any]], str]  # operand, index -> C expression of the element that takes part


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which elements of a dtype are summed: double, or integers that wrap."""
    return np.dtype(np.float64 if is_float(dtype) else np.int64)


def positions(e: Emitter, found: Sequence[Axis], index: Sequence[Any], window: Sequence[Any]) -> list[Any]:
    """Where element `window` of the window `index` lies in the tensor; inside a fold, which skips what lies outside."""
    result = []
    for a, i, k in zip(found, index, window, strict=True):
        text = e.local(np.dtype(np.int64), e.c(i * a.stride + k * a.dilation + -a.begin))
        e.only_if(f"{text} >= 0 && {text} < {e.c(a.size)}")
        result.append(e.opaque(text))
    return result


def convolution(
    e: Emitter, index: Sequence[Index], *, found: Sequence[Axis], weights: Sequence[Dim], group: int,
    load: Load, dtype: np.dtype[Any],
) -> str:  # fmt: skip
    """The sum of one output element [n, m, position...] of a convolution with weights [M, C / group, kernel...]."""
    n, m, *at = index
    channels = weights[1]
    first: Any = e.position(0)
    if group > 1:
        first = e.opaque(f"{e.c(m)} / ({e.c(weights[0])} / {group})") * channels

    def step(k: list[Any], total: str) -> str:
        c, *window = k
        where = positions(e, found, at, window)
        return f"{total} + {load(0, [n, first + c, *where])} * {load(1, [m, c, *window])}"

    return e.fold(dtype, "0", [channels, *(a.kernel for a in found)], step)


def transposed_convolution(
    e: Emitter, index: Sequence[Index], *, found: Sequence[Axis], weights: Sequence[Dim], group: int,
    load: Load, dtype: np.dtype[Any],
) -> str:  # fmt: skip
    """The same of a transposed convolution with weights [C, M / group, kernel...]: over the windows that reach it."""
    n, m, *at = index
    per_group = weights[1]
    number = e.c(m) if group > 1 else "0"
    channels = f"({e.c(weights[0])} / {group})"
    first = e.opaque(f"({number} / {e.c(per_group)}) * {channels}") if group > 1 else e.position(0)
    column: Any = e.opaque(f"{number} % {e.c(per_group)}") if group > 1 else m

    def step(k: list[Any], total: str) -> str:
        c, *window = k
        where = []
        for a, i, t in zip(found, at, window, strict=True):
            reached = e.local(np.dtype(np.int64), e.c(i + a.begin + t * -a.dilation))
            e.only_if(f"{reached} >= 0 && {reached} % {a.stride} == 0 && {reached} / {a.stride} < {e.c(a.size)}")
            where.append(e.opaque(f"{reached} / {a.stride}"))
        return f"{total} + {load(0, [n, first + c, *where])} * {load(1, [first + c, column, *window])}"

    return e.fold(dtype, "0", [e.opaque(channels), *(a.kernel for a in found)], step)


def plus_bias(e: Emitter, index: Sequence[Index], x: Facts, total: str) -> str:
    """The sum plus the optional bias (input 2) of its channel."""
    return total if present(x, 2) is None else f"({total} + {e.load(2, index[1:2])})"


def window_fold(
    e: Emitter, index: Sequence[Index], *, found: Sequence[Axis], dtype: np.dtype[Any], start: str,
    step: Callable[[str, str, list[Any]], str],
) -> str:  # fmt: skip
    """Over the elements of the window `index` inside the tensor: local = step(local, element, its position)."""
    n, c, *at = index

    def one(k: list[Any], local: str) -> str:
        where = positions(e, found, at, k)
        return step(local, e.load(0, [n, c, *where]), where)

    return e.fold(dtype, start, [a.kernel for a in found], one)
