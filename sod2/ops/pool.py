"""Pooling: MaxPool, AveragePool and their global forms, with any number of spatial axes in the rules, one or two in the
kernels. x [N, C, spatial...]. MaxPool's second output (indices) has no kernel."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product as offsets
from typing import Any

import numpy as np

from sod2.dtypes import is_float
from sod2.graph import Node
from sod2.lattice import UNDEF, Shape
from sod2.ops.anchor import (
    Anchor,
    count,
    dims_of,
    dtype_macro,
    in_float,
    initializer,
    is_double,
    known_dims,
    proved,
    require_float32,
)
from sod2.ops.attributes import present
from sod2.ops.conv import fit_guards, planar, spatial, tap_slices
from sod2.ops.direct import accumulator, window_fold
from sod2.ops.elementwise import CType
from sod2.ops.lift import lift
from sod2.ops.op import Array, Call, Emitter, Fact, Facts, Index, MappingType, Op, register
from sod2.ops.shape_of import shape_from
from sod2.ops.window import Axis, axes, axis, ints
from sod2.symbolic import Dim, as_dim


def kernel_of(node: Node) -> list[int]:
    """The required attribute kernel_shape."""
    return [int(k) for k in node.attrs["kernel_shape"]]


def one_each(node: Node, x: Facts) -> bool:
    """Whether windows are of one element, and next to each other: then their maximum and their mean are it."""
    sizes = dims_of(x[0])[2:]
    found = (axis(node, i, len(sizes), s, 1) for i, s in enumerate(sizes) if isinstance(s, Dim))
    return set(kernel_of(node)) == {1} and all(w.stride == 1 for w in found) and len(node.outputs) == 1


class Pool(Anchor):
    """Rules of windowed pooling."""

    mapping = MappingType.MANY_TO_MANY

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        assert x[0] is not None
        return [x[0].dtype, np.dtype(np.int64)][: len(node.outputs)]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        batch, channels, *sizes = dims_of(x[0])
        kernel = kernel_of(node)
        out = [lift(lambda s, i=i: axis(node, i, len(kernel), s, kernel[i]).out, size) for i, size in enumerate(sizes)]
        shape = (batch, channels, *out)
        return [shape] * len(node.outputs)

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        rank = 2 + len(kernel_of(node))
        return [(*proved(y[0], rank)[:2], *[UNDEF] * (rank - 2))]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        kernel = kernel_of(node)
        sizes = enumerate(dims_of(x[0])[2:])
        return fit_guards(axis(node, i, len(kernel), s, kernel[i]) for i, s in sizes if isinstance(s, Dim))

    def is_anchor(self, node: Node, x: Facts) -> bool:
        """The kernels take one or two spatial axes and floats, and give no indices."""
        indices = len(node.outputs) > 1 and bool(node.outputs[1])
        return len(dims_of(x[0])) <= 4 and in_float(x) and not indices

    def struct(self, node: Node, k: Call, x: Facts) -> str:
        """Declaration of the kernel's argument struct."""
        require_float32(node, x[0])
        n, c, *sizes = known_dims(x[0])
        h, w = planar(node, axes(node, sizes, kernel_of(node)))
        return initializer(
            "g",
            "sod2_pooling",
            n=k.c(n),
            c=k.c(c),
            ih=k.c(h.size),
            iw=k.c(w.size),
            oh=k.c(h.out),
            ow=k.c(w.out),
            kh=k.c(h.kernel),
            kw=k.c(w.kernel),
            sh=k.c(h.stride),
            sw=k.c(w.stride),
            dh=k.c(h.dilation),
            dw=k.c(w.dilation),
            pt=k.c(h.begin),
            pl=k.c(w.begin),
            pb=k.c(h.end),
            pr=k.c(w.end),
            x=k.pointer(0),
            y=k.result(),
        )

    def windows(self, node: Node, x: Array, outside: float) -> tuple[Array, list[Axis]]:
        """All windows, [kernel elements, N, C, out...], `outside` beyond the tensor; and their geometry."""
        found = axes(node, x.shape[2:], kernel_of(node))
        reach = [max(0, (int(a.out) - 1) * a.stride + int(a.extent)) for a in found]
        pads = [
            (int(a.begin), max(int(a.end), r - int(a.size) - int(a.begin))) for a, r in zip(found, reach, strict=True)
        ]
        padded = np.pad(x, [(0, 0), (0, 0), *pads], constant_values=outside)
        taps = offsets(*map(range, kernel_of(node)))
        return np.stack([padded[spatial(*tap_slices(found, tap))] for tap in taps]), found


@register()
class MaxPool(Pool):
    """Largest element of each window."""

    def hands_on(self, node: Node, x: Facts, y: Facts) -> bool:
        return one_each(node, x)

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        k.setup(self.struct(node, k, x))
        return "sod2_max_pool(&g, pool);"

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None
        c = CType(x[0].dtype, e.element(x[0].dtype))
        found = axes(node, x[0].dims[2:], kernel_of(node))
        lowest = c.number(-np.inf if is_float(x[0].dtype) else int(np.iinfo(x[0].dtype).min))
        best = window_fold(
            e, index, found=found, dtype=x[0].dtype, start=lowest,
            step=lambda best, value, _: f"({value} > {best} || {value} != {value} ? {value} : {best})",
        )  # fmt: skip
        if e.output == 0:
            return best
        order = list(range(len(found)))
        if node.attrs.get("storage_order", 0):  # column-major within one channel
            order.reverse()

        def first(number: str, value: str, where: list[Any]) -> str:
            inner: Any = e.position(0)
            for i in order:
                inner = inner * found[i].size + where[i]
            size = count(a.size for a in found)
            found_at = e.c((index[0] * x[0].dims[1] + index[1]) * size + inner)  # type: ignore[union-attr]
            return f"({number} < 0 && ({value} == {best} || {value} != {value}) ? {found_at} : {number})"

        return window_fold(e, index, found=found, dtype=np.dtype(np.int64), start="-1", step=first)

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        stacked = self.windows(node, x, lowest)[0]
        if len(node.outputs) < 2:
            return [stacked.max(axis=0)]
        numbers = np.arange(x.size, dtype=np.int64).reshape(x.shape)
        if node.attrs.get("storage_order", 0):  # column-major within one channel
            numbers = numbers.reshape(*x.shape[:2], *x.shape[:1:-1]).transpose(0, 1, *range(x.ndim - 1, 1, -1))
        at = stacked.argmax(axis=0)[None]
        return [stacked.max(axis=0), np.take_along_axis(self.windows(node, numbers, -1)[0], at, axis=0)[0]]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        yield from pool_examples()


@register()
class AveragePool(Pool):
    """Mean of each window, of its elements inside the tensor or (count_include_pad) inside the padded tensor."""

    def hands_on(self, node: Node, x: Facts, y: Facts) -> bool:
        return one_each(node, x)

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        k.setup(self.struct(node, k, x))
        return f"sod2_average_pool(&g, {int(node.attrs.get('count_include_pad', 0))}, pool);"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        stacked, found = self.windows(node, x.astype(np.float64), 0.0)
        counted = np.ones((1, 1, *x.shape[2:]))
        if node.attrs.get("count_include_pad", 0):
            padded = [(int(a.begin), int(a.end)) for a in found]
            inside = np.ones([int(a.size + a.begin + a.end) for a in found])
            counts = self._count(found, inside, [0] * len(padded))
        else:
            counts = self._count(found, counted[0, 0], [int(a.begin) for a in found])
        return [(stacked.sum(axis=0) / np.maximum(counts, 1)).astype(x.dtype)]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None
        found, wide = axes(node, x[0].dims[2:], kernel_of(node)), accumulator(x[0].dtype)
        total = window_fold(e, index, found=found, dtype=wide, start="0", step=lambda t, value, _: f"{t} + {value}")
        if node.attrs.get("count_include_pad", 0):
            counts = [_inside_padding(e, a, i) for a, i in zip(found, index[2:], strict=True)]
            return f"(({e.element(x[0].dtype)})({total} / sod2_imax({' * '.join(counts)}, 1)))"
        number = np.dtype(np.int64)
        elements = window_fold(e, index, found=found, dtype=number, start="0", step=lambda t, value, _: f"{t} + 1")
        return f"(({e.element(x[0].dtype)})({total} / sod2_imax({elements}, 1)))"

    @staticmethod
    def _count(found: Sequence[Axis], inside: Array, begin: Sequence[int]) -> Array:
        """Number of `inside` elements in each window; `begin` elements lie in front of them."""
        reach = [max(0, (int(a.out) - 1) * a.stride + int(a.extent)) for a in found]
        pads = [(b, max(0, r - b - n)) for b, r, n in zip(begin, reach, inside.shape, strict=True)]
        padded = np.pad(inside, pads)
        taps = offsets(*(range(int(a.kernel)) for a in found))
        return np.asarray(sum(padded[tuple(tap_slices(found, tap))] for tap in taps))

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        for attributes, arrays in pool_examples():
            yield attributes, arrays
            yield {**attributes, "count_include_pad": 1}, arrays


def _inside_padding(e: Emitter, a: Axis, i: Index) -> str:
    """C expression of the number of elements of window `i` that lie inside the padded axis."""
    room = f"({e.c(a.size + a.begin + a.end)} - {e.c(i * a.stride)} + {a.dilation - 1}) / {a.dilation}"
    return f"sod2_imin({e.c(a.kernel)}, {room})"


@register()
class MaxUnpool(Op):
    """The inverse of MaxPool: (x, indices into the whole output, shape of the output or None); 0 where nothing was."""

    shape_inputs = (2,)
    mapping = MappingType.MANY_TO_MANY
    cost = 100

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        given = present(x, 2)
        if given is not None:
            return [shape_from(x, 2)]
        batch, channels, *sizes = dims_of(x[0])
        kernel, rank = kernel_of(node), len(sizes)
        strides, pads = ints(node, "strides", rank, 1), ints(node, "pads", 2 * rank, 0)
        out = [
            lift(lambda d, i=i: (d - 1) * strides[i] + kernel[i] - pads[i] - pads[rank + i], d)
            for i, d in enumerate(sizes)
        ]
        return [(batch, channels, *out)]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and y[0] is not None
        kernel, rank = kernel_of(node), len(x[0].dims) - 2
        out = self._pooled(node, x, kernel, rank)
        here = e.local(np.dtype(np.int64), e.c(index[0] * x[0].dims[1] + index[1]))
        plane = e.c(count(out))

        def step(k: list[Any], found: str) -> str:
            at = [*index[:2], *k]
            number = e.local(np.dtype(np.int64), f"{e.load(1, at)} - {here} * {plane}")
            wanted: Any = e.position(0)
            inside = []
            for p, d in zip(index[2:], out, strict=True):
                wanted = wanted * d + p
                inside.append(f"{e.c(p)} < {e.c(d)}")
            return f"({' && '.join(inside)} && {number} == {e.c(wanted)} ? {e.load(0, at)} : {found})"

        return e.fold(x[0].dtype, "0", x[0].dims[2:], step)

    def _pooled(self, node: Node, x: Facts, kernel: Sequence[int], rank: int) -> list[Dim]:
        """Spatial dims of the tensor that was pooled, in which the indices count."""
        strides, pads = ints(node, "strides", rank, 1), ints(node, "pads", 2 * rank, 0)
        sizes = known_dims(x[0])[2:]
        return [(d - 1) * strides[i] + kernel[i] - pads[i] - pads[rank + i] for i, d in enumerate(sizes)]

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, indices, given = arrays[0], arrays[1], present(arrays, 2)
        assert x is not None and indices is not None
        facts = [Fact(x.dtype, tuple(map(as_dim, x.shape))), None]
        pooled = (*x.shape[:2], *(int(d) for d in self._pooled(node, facts, kernel_of(node), x.ndim - 2)))
        out = np.zeros(pooled if given is None else tuple(given), x.dtype)
        places = np.unravel_index(indices, pooled)
        out[places] = x
        return [out]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        x, indices = np.array([[[[1, 2], [3, 4]]]], np.float32), np.array([[[[5, 7], [13, 15]]]], np.int64)
        yield {"kernel_shape": [2, 2], "strides": [2, 2]}, [x, indices]
        yield {"kernel_shape": [2, 2], "strides": [2, 2]}, [x, indices, np.array([1, 1, 5, 5], np.int64)]


class GlobalPool(Anchor):
    """Rules of pooling over all spatial axes: [N, C, spatial...] -> [N, C, 1...]."""

    mapping = MappingType.MANY_TO_MANY
    reduction = ""

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        batch, channels, *sizes = dims_of(x[0])
        return [(batch, channels, *[as_dim(1)] * len(sizes))]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        rank = y[0].rank if y[0] is not None else None
        if rank is None:
            return [UNDEF]
        return [(*proved(y[0], rank)[:2], *[UNDEF] * (rank - 2))]

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        n, c, *sizes = known_dims(x[0])
        if is_double(x):
            k.setup(f"const int64_t g[] = {{{k.c(n * c)}, {k.c(count(sizes))}}};\n(void)g;")
            kind = f"{dtype_macro(node, np.dtype(np.float64))}, {self.reduction}"
            return f"sod2_reduce_nd({k.pointer(0)}, {k.result()}, {kind}, 2, g, 2, pool);"
        require_float32(node, x[0])
        lengths = f"{k.c(n * c)}, {k.c(count(sizes))}, 1"
        end = f"{', '.join(k.epilogue())}, pool"
        return f"sod2_reduce({k.pointer(0)}, {k.result()}, {self.reduction}, {lengths}, {end});"

    def space(self, node: Node, x: Facts, y: Facts) -> tuple[int, int] | None:
        return None if is_double(x) else (0, 2)

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(8)
        for shape in [(1, 3, 5, 7), (2, 4, 6), (1, 1, 1, 1), (0, 3, 4, 4), (1, 2, 3, 4, 2)]:
            yield {}, [random.standard_normal(shape).astype(np.float32)]


@register()
class GlobalAveragePool(GlobalPool):
    """Mean over all spatial axes."""

    reduction = "SOD2_REDUCE_MEAN"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        return [x.astype(np.float64).mean(axis=tuple(range(2, x.ndim)), keepdims=True).astype(x.dtype)]


@register()
class GlobalMaxPool(GlobalPool):
    """Largest element over all spatial axes."""

    reduction = "SOD2_REDUCE_MAX"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        return [x.max(axis=tuple(range(2, x.ndim)), keepdims=True)]


def pool_examples() -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
    """Examples of windowed pooling; windows that hold padding only are left out (engines differ on them)."""
    random = np.random.default_rng(9)
    cases: list[tuple[Mapping[str, Any], Sequence[int]]] = [
        ({"kernel_shape": [2, 2], "strides": [2, 2]}, (1, 3, 6, 8)),
        ({"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, (1, 2, 7, 8)),
        ({"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}, (1, 2, 3, 4)),
        ({"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}, (1, 2, 6, 7)),
        ({"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}, (1, 1, 7, 6)),
        ({"kernel_shape": [1, 1], "strides": [2, 2], "ceil_mode": 1}, (1, 1, 3, 4)),
        ({"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}, (1, 2, 7, 8)),
        ({"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}, (1, 2, 5, 5)),
        ({"kernel_shape": [2, 3], "auto_pad": "VALID", "strides": [1, 2]}, (1, 2, 5, 8)),
        ({"kernel_shape": [3], "strides": [2]}, (2, 3, 9)),
        ({"kernel_shape": [1, 1]}, (1, 1, 1, 1)),
        ({"kernel_shape": [2, 2]}, (0, 2, 4, 4)),
    ]
    for attributes, shape in cases:
        yield attributes, [random.standard_normal(shape).astype(np.float32)]
