"""Reductions over any axes (Reduce*) and the position of the extremum along one axis (ArgMax, ArgMin).

Axes come as an attribute or as an input (both opset forms). No axes: all of them, or with noop_with_empty_axes none.
Reduced axes that lie side by side run on the row kernel (runtime/rows.c, float32); all other cases on
runtime/reduce_nd.c. Over an empty set: 0 for sums, 1 for products, NaN for means, the lowest or highest value of the
dtype for Max and Min (infinite for floats), -infinity for logarithms.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import groupby
from typing import Any

import numpy as np

from sod2.dtypes import is_float
from sod2.errors import UnsupportedError
from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Nac, Shape
from sod2.ops.anchor import Anchor, count, dims_of, dtype_macro, known_dims, proved, proved_shape
from sod2.ops.attributes import axes_of, axis_of, given_axes
from sod2.ops.axes import axis_guards, axis_values, dropped, set_to_one
from sod2.ops.lift import Element, elements, exactness_guards, lift, number_arrays, packed
from sod2.ops.op import Array, Call, Facts, MappingType, TensorValue, register
from sod2.symbolic import Dim, as_dim, maximum, minimum


def _limit(dtype: np.dtype[Any], lowest: bool) -> Any:
    """The value that Max (lowest) or Min of an empty set has."""
    if is_float(dtype):
        return -np.inf if lowest else np.inf
    if dtype.kind == "b":
        return not lowest
    return np.iinfo(dtype).min if lowest else np.iinfo(dtype).max


def _mean(a: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """Mean; of integers truncated towards 0. NaN for an empty set of floats, 0 of integers."""
    total = np.asarray(a.sum(axis=axis, keepdims=keepdims, dtype=a.dtype))
    n = int(np.prod([a.shape[i] for i in axis], dtype=np.int64))
    if is_float(a.dtype):
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(total / np.float64(n))
    return np.asarray(np.trunc(total / max(n, 1)))


def _log(a: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(a))


def _log_sum_exp(a: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """log(sum(exp(a))), shifted by the largest element where that is finite."""
    wide = a.astype(np.float64)
    top = wide.max(axis=axis, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, 0.0)
    total = _log(np.exp(wide - shift).sum(axis=axis, keepdims=True)) + shift
    return total if keepdims else total.reshape(wide.sum(axis=axis).shape)


# numpy's function of each operator, over (array, axes, keepdims)
_NUMPY: dict[str, Callable[..., Any]] = {
    "ReduceSum": lambda a, axis, keepdims: a.sum(axis=axis, keepdims=keepdims, dtype=a.dtype),
    "ReduceMean": _mean,
    "ReduceMax": lambda a, axis, keepdims: a.max(axis=axis, keepdims=keepdims, initial=_limit(a.dtype, lowest=True)),
    "ReduceMin": lambda a, axis, keepdims: a.min(axis=axis, keepdims=keepdims, initial=_limit(a.dtype, lowest=False)),
    "ReduceProd": lambda a, axis, keepdims: a.prod(axis=axis, keepdims=keepdims, dtype=a.dtype),
    "ReduceL1": lambda a, axis, keepdims: np.abs(a).sum(axis=axis, keepdims=keepdims, dtype=a.dtype),
    "ReduceL2": lambda a, axis, keepdims: np.sqrt((a * a).sum(axis=axis, keepdims=keepdims, dtype=a.dtype)),
    "ReduceSumSquare": lambda a, axis, keepdims: (a * a).sum(axis=axis, keepdims=keepdims, dtype=a.dtype),
    "ReduceLogSum": lambda a, axis, keepdims: _log(a.sum(axis=axis, keepdims=keepdims, dtype=a.dtype)),
    "ReduceLogSumExp": _log_sum_exp,
}

# The row kernel's name of each reduction (runtime/kernels.h).
_KERNEL = {
    "ReduceSum": "SOD2_REDUCE_SUM",
    "ReduceMean": "SOD2_REDUCE_MEAN",
    "ReduceMax": "SOD2_REDUCE_MAX",
    "ReduceMin": "SOD2_REDUCE_MIN",
    "ReduceProd": "SOD2_REDUCE_PROD",
    "ReduceL1": "SOD2_REDUCE_L1",
    "ReduceL2": "SOD2_REDUCE_L2",
    "ReduceSumSquare": "SOD2_REDUCE_SUM_SQUARE",
    "ReduceLogSum": "SOD2_REDUCE_LOG_SUM",
    "ReduceLogSumExp": "SOD2_REDUCE_LOG_SUM_EXP",
}

# Reductions of dims, for values that are followed symbolically.
_SYMBOLIC: dict[str, Callable[[Dim, Dim], Dim]] = {
    "ReduceSum": lambda a, b: a + b,
    "ReduceProd": lambda a, b: a * b,
    "ReduceMax": maximum,
    "ReduceMin": minimum,
}


def merged(dims: Sequence[Dim], axes: Sequence[int]) -> list[tuple[bool, Dim]]:
    """The tensor's axes as alternating runs (reduced?, elements), without those of 1."""
    kept = [(i in axes, d) for i, d in enumerate(dims) if d != 1]
    return [(reduced, count(d for _, d in run)) for reduced, run in groupby(kept, key=lambda pair: pair[0])]


@register(*_NUMPY)
class Reduce(Anchor):
    """y = x reduced over `axes`, which stay as dims of 1 with keepdims (the default)."""

    mapping = MappingType.MANY_TO_MANY
    shape_inputs = (1,)

    def axes(self, node: Node, x: Facts) -> tuple[int, ...] | Nac:
        """The reduced axes, sorted; NAC when only execution tells."""
        rank = len(dims_of(x[0]))
        axes = axes_of(node, x, 1, rank)
        if isinstance(axes, Nac):
            return NAC
        if axes:
            return tuple(sorted(set(axes)))
        return () if node.attrs.get("noop_with_empty_axes", 0) else tuple(range(rank))

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        dims, axes, keep = dims_of(x[0]), self.axes(node, x), bool(node.attrs.get("keepdims", 1))
        if isinstance(axes, Nac):
            return [self._shape_along(dims, x, keep)]
        if keep:
            return [tuple(as_dim(1) if i in axes else d for i, d in enumerate(dims))]
        return [tuple(d for i, d in enumerate(dims) if i not in axes)]

    @staticmethod
    def _shape_along(dims: tuple[Element, ...], x: Facts, keep: bool) -> Shape:
        """The shape for axes that only execution tells, whose number is known."""
        axes = axis_values(x[1], len(dims))
        if axes is None or not axes:
            return (NAC,) * len(dims) if keep else NAC
        return set_to_one(dims, axes) if keep else dropped(dims, axes)

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        unknown: list[Shape] = [UNDEF] * len(node.inputs)
        rank = x[0].rank if x[0] is not None else None
        if rank is None or isinstance(axes := self.axes(node, x), Nac):
            return unknown
        keep = bool(node.attrs.get("keepdims", 1))
        kept = list(proved(y[0], rank if keep else rank - len(axes)))
        if not keep:
            for i in axes:
                kept.insert(i, UNDEF)
        return [tuple(UNDEF if i in axes else d for i, d in enumerate(kept)), *unknown[1:]]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        run_time = isinstance(self.axes(node, x), Nac)
        return exactness_guards(y) + (axis_guards(x[1], len(dims_of(x[0]))) if run_time else [])

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        axes = self.axes(node, x)
        if x[0] is None or isinstance(axes, Nac):
            return [NAC]
        numbers = number_arrays(x[:1])
        if numbers is not None and numbers[0] is not None:
            return [self._reduced(node, numbers[0], axes)]
        opened, combine = elements(x[0]), _SYMBOLIC.get(node.op)
        if opened is None or combine is None or x[0].dtype.kind not in "iu":
            return [NAC]
        empty = {"ReduceSum": 0, "ReduceProd": 1}.get(node.op)
        reduced = np.empty([1 if i in axes else n for i, n in enumerate(opened.shape)], dtype=object)
        for i in np.ndindex(reduced.shape):
            window = opened[tuple(slice(None) if a in axes else slice(p, p + 1) for a, p in enumerate(i))]
            members: list[Element] = [] if empty is None else [as_dim(empty)]
            members += list(window.ravel())
            reduced[i] = lift(lambda *ds: reduce(combine, ds), *members) if members else NAC
        shape = tuple(n for i, n in enumerate(reduced.shape) if i not in axes)
        return [packed(reduced if node.attrs.get("keepdims", 1) else reduced.reshape(shape), x[0].dtype)]

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        axes, dims = self.axes(node, x), known_dims(x[0])
        assert x[0] is not None
        if isinstance(axes, Nac):
            return self._call_along(node, k, x)
        runs = merged(dims, axes)
        if self._runs_by_rows(x, axes):
            line = next((i for i, (reduced, _) in enumerate(runs) if reduced), len(runs))
            outer, inner = count(d for _, d in runs[:line]), count(d for _, d in runs[line + 1 :])
            n = runs[line][1] if line < len(runs) else as_dim(1)
            sizes = ", ".join((*map(k.c, (outer, n, inner)), *k.epilogue()))
            return f"sod2_reduce({k.pointer(0)}, {k.result()}, {_KERNEL[node.op]}, {sizes}, pool);"
        k.setup(f"const int64_t g[] = {{{', '.join(k.c(d) for _, d in runs) or 1}}};\n(void)g;")
        bits = sum(1 << i for i, (reduced, _) in enumerate(runs) if reduced)
        kind = f"{dtype_macro(node, x[0].dtype)}, {_KERNEL[node.op]}, {len(runs)}"
        return f"sod2_reduce_nd({k.pointer(0)}, {k.result()}, {kind}, g, {bits}, pool);"

    @staticmethod
    def _runs_by_rows(x: Facts, axes: tuple[int, ...]) -> bool:
        """Whether the row kernel takes it: floats, reduced along axes that lie side by side."""
        assert x[0] is not None
        return x[0].dtype == np.float32 and sum(reduced for reduced, _ in merged(x[0].dims, axes)) <= 1

    def space(self, node: Node, x: Facts, y: Facts) -> tuple[int, int] | None:
        """Rows are the dims of y up to the last one reduced, columns those behind."""
        axes, dims = self.axes(node, x), known_dims(x[0])
        if isinstance(axes, Nac) or not self._runs_by_rows(x, axes):
            return None
        behind = 1 + max((i for i in axes if dims[i] != 1), default=len(dims) - 1)
        return 0, sum(1 for i in range(behind) if node.attrs.get("keepdims", 1) or i not in axes)

    @staticmethod
    def _call_along(node: Node, k: Call, x: Facts) -> str:
        """The call for axes that only execution tells."""
        dims = known_dims(x[0])
        axes = axis_values(x[1], len(dims))
        if axes is None or x[0] is None:
            raise UnsupportedError(f"{node.op} (node {node.name!r}) has axes whose number only execution tells")
        k.setup(f"const int64_t g[] = {{{', '.join(map(k.c, dims)) or 1}}};\n(void)g;")
        bits = " | ".join(f"(UINT32_C(1) << {k.c(a)})" for a in axes)
        kind = f"{dtype_macro(node, x[0].dtype)}, {_KERNEL[node.op]}, {len(dims)}"
        return f"sod2_reduce_nd({k.pointer(0)}, {k.result()}, {kind}, g, {bits}, pool);"

    @staticmethod
    def _reduced(node: Node, a: Array, axes: tuple[int, ...]) -> Array:
        wide = a.astype(np.float64) if is_float(a.dtype) else a
        return np.asarray(_NUMPY[node.op](wide, axes, bool(node.attrs.get("keepdims", 1)))).astype(a.dtype)

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        a = arrays[0]
        assert a is not None
        axes = given_axes(node, arrays, 1)
        if not axes and node.attrs.get("noop_with_empty_axes", 0):
            return [self._reduced(node, a, ())]
        return [self._reduced(node, a, tuple(i % a.ndim for i in axes) if axes else tuple(range(a.ndim)))]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(10)
        cases: list[tuple[Mapping[str, Any], Sequence[int], Sequence[int] | None]] = [
            ({}, (2, 3, 4), [2]),
            ({"keepdims": 0}, (2, 3, 4), [1]),
            ({}, (2, 3, 4, 5), [-1, 2]),
            ({"keepdims": 0}, (2, 3, 4, 5), [0, 2]),
            ({"keepdims": 0}, (2, 3, 4), None),
            ({}, (2, 3), None),
            ({"noop_with_empty_axes": 1}, (2, 3), []),
            ({}, (1, 1, 1), [1]),
            ({}, (3, 1, 5), [0]),
            ({}, (0, 3), [1]),
            ({"keepdims": 0}, (7,), [0]),
        ]
        for attributes, shape, axes in cases:
            x = random.uniform(0.5, 1.5, shape).astype(np.float32)
            yield attributes, [x] if axes is None else [x, np.array(axes, dtype=np.int64)]
        # of integers, logarithms are left out: truncated, they depend on the last bit
        for dtype in (np.float64,) if "Log" in self.name else (np.int32, np.int64, np.float64):
            x = random.integers(1, 9, (2, 3, 4)).astype(dtype)
            yield {"keepdims": 0}, [x, np.array([0, 2], dtype=np.int64)]
            yield {}, [x[:1, :1], np.array([1], dtype=np.int64)]


@register("ArgMax", "ArgMin")
class Extremum(Anchor):
    """Index (int64) of the largest or smallest element along `axis`: the first, or with select_last_index the last."""

    mapping = MappingType.MANY_TO_MANY

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [np.dtype(np.int64)]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        dims = dims_of(x[0])
        axis = axis_of(node, len(dims), 0)
        one = (as_dim(1),) if node.attrs.get("keepdims", 1) else ()
        return [(*dims[:axis], *one, *dims[axis + 1 :])]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        known, keep = proved_shape(y[0]), bool(node.attrs.get("keepdims", 1))
        if not isinstance(known, tuple):
            return [UNDEF]
        axis = axis_of(node, len(known) + (0 if keep else 1), 0)
        return [(*known[:axis], UNDEF, *known[axis + (1 if keep else 0) :])]

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        dims = known_dims(x[0])
        axis = axis_of(node, len(dims), 0)
        assert x[0] is not None
        sizes = ", ".join(k.c(d) for d in (count(dims[:axis]), dims[axis], count(dims[axis + 1 :])))
        flags = f"{int(node.op == 'ArgMin')}, {int(node.attrs.get('select_last_index', 0))}"
        kind = dtype_macro(node, x[0].dtype)
        return f"sod2_arg_extremum({k.pointer(0)}, {k.result()}, {kind}, {flags}, {sizes}, pool);"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        a = arrays[0]
        assert a is not None
        axis, keep = int(node.attrs.get("axis", 0)), bool(node.attrs.get("keepdims", 1))
        find = np.argmax if node.op == "ArgMax" else np.argmin
        if node.attrs.get("select_last_index", 0):
            return [a.shape[axis] - 1 - np.asarray(find(np.flip(a, axis), axis=axis, keepdims=keep))]
        return [np.asarray(find(a, axis=axis, keepdims=keep))]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(11)
        for attributes, shape in [
            ({"axis": 1}, (2, 5, 3)),
            ({"axis": -1, "keepdims": 0}, (4, 6)),
            ({"axis": 0, "select_last_index": 1}, (7, 2)),
            ({"axis": 1}, (0, 3)),
            ({}, (1, 1)),
        ]:
            yield attributes, [random.integers(0, 4, shape).astype(np.float32)]
            yield attributes, [random.integers(0, 4, shape)]
