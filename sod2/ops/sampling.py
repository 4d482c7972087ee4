"""Samples between elements: GridSample, RoiAlign, DeformConv; and Col2Im, the sum of overlapping windows.

A sample at a real position reads 1 (nearest), 2 (linear) or 4 (cubic) elements along each axis (runtime/sampling.h).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product as offsets
from typing import Any

import numpy as np

from sod2.errors import ModelError
from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Shape, Undef
from sod2.ops.anchor import count, dims_of, must_equal
from sod2.ops.attributes import present
from sod2.ops.conv import Conv, group_of, known_axes
from sod2.ops.direct import accumulator
from sod2.ops.gather import wrapped
from sod2.ops.lift import Element, integers, lift, nonempty_guards, product
from sod2.ops.op import Array, Emitter, Facts, Index, MappingType, Op, register
from sod2.ops.window import axes
from sod2.symbolic import Dim, as_dim

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]
DOUBLE, INT64 = np.dtype(np.float64), np.dtype(np.int64)

_TAPS = {"nearest": 1, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}
_PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}


def sample(
    e: Emitter, at: Sequence[str], sizes: Sequence[Dim], *, taps: int, padding: int, align: int, load: Any
) -> str:
    """C local (double) of a tensor at the real positions `at`; `load` loads the element at a list of indices."""
    firsts = [e.local(INT64, f"sod2_first_tap({p}, {taps})") for p in at]

    def step(k: list[Any], total: str) -> str:
        where, weights = [], []
        for p, first, size, tap in zip(at, firsts, sizes, k, strict=True):
            index = e.local(INT64, f"{first} + {e.c(tap)}")
            weights.append(e.local(DOUBLE, f"sod2_tap_weight({p} - (double){index}, {taps})"))
            if padding:
                index = e.local(
                    INT64, f"(int64_t)sod2_padded_position((double){index}, {e.c(size)}, {padding}, {align})"
                )
            e.only_if(f"{index} >= 0 && {index} < {e.c(size)}")
            where.append(e.opaque(index))
        return f"{total} + {' * '.join(weights)} * {load(where)}"

    return e.fold(DOUBLE, "0", [taps] * len(at), step)


@register()
class GridSample(Op):
    """x [N, C, spatial...] at the positions of grid [N, out..., axes], the last spatial axis first."""

    mapping = MappingType.MANY_TO_MANY
    cost = 200

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        image, grid = dims_of(x[0]), dims_of(x[1])
        return [(image[0], image[1], *grid[1:-1])]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        image, grid = dims_of(x[0]), dims_of(x[1])
        return must_equal(image[0], grid[0]) + must_equal(grid[-1], as_dim(len(image) - 2))

    def _options(self, node: Node) -> tuple[int, int, int]:
        mode, padding = str(node.attrs.get("mode", "linear")), str(node.attrs.get("padding_mode", "zeros"))
        if mode not in _TAPS or padding not in _PADDINGS:
            raise ModelError(f"GridSample (node {node.name!r}) has mode={mode!r} and padding_mode={padding!r}")
        return _TAPS[mode], _PADDINGS[padding], int(node.attrs.get("align_corners", 0))

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None
        sizes = x[0].dims[2:]
        taps, padding, align = self._options(node)
        at = []
        for i, size in enumerate(sizes):
            g = e.load(1, [index[0], *index[2:], e.position(len(sizes) - 1 - i)])
            position = e.local(DOUBLE, f"sod2_grid_position({g}, {e.c(size)}, {align})")
            position = e.local(DOUBLE, f"rint({position})") if taps == 1 else position
            if taps < 4:  # as in PyTorch, cubic samples stay where they are and only the elements they read are moved
                position = e.local(DOUBLE, f"sod2_padded_position({position}, {e.c(size)}, {padding}, {align})")
            at.append(position)
        total = sample(
            e, at, sizes, taps=taps, padding=padding, align=align,
            load=lambda where: e.load(0, [*index[:2], *where]),
        )  # fmt: skip
        return f"(({e.element(x[0].dtype)}){total})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, grid = arrays
        assert x is not None and grid is not None
        options = self._options(node)
        sizes = x.shape[2:]
        out = np.zeros((*x.shape[:2], *grid.shape[1:-1]), x.dtype)
        for n, *at in np.ndindex(grid.shape[0], *grid.shape[1:-1]):
            real = [_position(float(g), s, options) for g, s in zip(grid[(n, *at)][::-1], sizes, strict=True)]
            for c in range(x.shape[1]):
                out[(n, c, *at)] = _sampled(x[n, c].astype(np.float64), real, options)
        return [out]

    def examples(self) -> Examples:
        random = np.random.default_rng(40)
        x = random.standard_normal((1, 2, 4, 5)).astype(np.float32)
        grid = random.uniform(-1.3, 1.3, (1, 3, 2, 2)).astype(np.float32)
        for mode, padding in offsets(("linear", "nearest", "cubic"), _PADDINGS):
            yield {"mode": mode, "padding_mode": padding}, [x, grid]
        yield {"align_corners": 1}, [x, grid]
        yield {}, [x, grid[:, :0]]


def _position(g: float, size: int, options: tuple[int, int, int]) -> float:
    taps, padding, align = options
    x = (g + 1) / 2 * (size - 1) if align else ((g + 1) * size - 1) / 2
    x = float(np.rint(x)) if taps == 1 else x
    return x if taps == 4 else _padded(x, size, padding, align)


def _padded(x: float, size: int, padding: int, align: int) -> float:
    if padding == 0:
        return x
    if padding == 1:
        return min(max(x, 0), size - 1)
    low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
    if low <= x <= high or high <= low:
        return low if high <= low else x
    turns, extra = divmod(abs(x - low), high - low)
    return low + extra if turns % 2 == 0 else high - extra


def _cubic(x: float) -> float:
    a, x = -0.75, abs(x)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0.0


def _sampled(image: Array, at: Sequence[float], options: tuple[int, int, int]) -> float:
    taps, padding, align = options
    weigh = {1: lambda d: 1.0, 2: lambda d: max(0.0, 1 - abs(d)), 4: _cubic}[taps]
    firsts = [int(np.rint(p)) if taps == 1 else int(np.floor(p)) - (taps // 2 - 1) for p in at]
    total = 0.0
    for tap in offsets(range(taps), repeat=len(at)):
        where = [f + t for f, t in zip(firsts, tap, strict=True)]
        weight = float(np.prod([weigh(p - w) for p, w in zip(at, where, strict=True)]))
        mapped = [int(_padded(w, s, padding, align)) for w, s in zip(where, image.shape, strict=True)]
        if all(0 <= w < s for w, s in zip(mapped, image.shape, strict=True)):
            total += weight * float(image[tuple(mapped)])
    return total


@register()
class DeformConv(Conv):
    """A convolution whose window elements are moved by `offset` and weighted by `mask`: (x, w, offset, bias, mask)."""

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return [UNDEF] * len(node.inputs)

    def is_anchor(self, node: Node, x: Facts) -> bool:
        return False

    def bias(self, node: Node, x: Facts) -> None:
        return None

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and x[1] is not None
        found, weights, sizes = known_axes(node, x), x[1].dims, x[0].dims[2:]
        n, m, *at = index
        moved = int(node.attrs.get("offset_group", 1))
        per_group = f"({e.c(x[0].dims[1])} / {moved})"
        first: Any = e.opaque(f"{e.c(m)} / ({e.c(weights[0])} / {group_of(node)})") * weights[1]
        taps = e.c(count(a.kernel for a in found))

        def step(k: list[Any], total: str) -> str:
            c, *window = k
            channel: Any = first + c
            number: Any = e.position(0)
            for a, t in zip(found, window, strict=True):
                number = number * a.kernel + t
            group = e.local(INT64, f"{e.c(channel)} / {per_group}")
            tap = e.local(INT64, f"{group} * {taps} + {e.c(number)}")
            real = []
            for d, (a, i, t) in enumerate(zip(found, at, window, strict=True)):
                offset = e.load(2, [n, e.opaque(f"{tap} * {len(found)} + {d}"), *at])
                base = e.c(i * a.stride + t * a.dilation + -a.begin)
                real.append(e.local(DOUBLE, f"(double){base} + {offset}"))
            value = sample(e, real, sizes, taps=2, padding=0, align=0, load=lambda w: e.load(0, [n, channel, *w]))
            mask = "1" if present(x, 4) is None else e.load(4, [n, e.opaque(tap), *at])
            return f"{total} + {value} * {mask} * {e.load(1, [m, c, *window])}"

        total = e.fold(accumulator(x[0].dtype), "0", [weights[1], *(a.kernel for a in found)], step)
        bias = "0" if present(x, 3) is None else e.load(3, [m])
        return f"(({e.element(x[0].dtype)})({total} + {bias}))"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, w, offset = arrays[:3]
        bias, mask = present(arrays, 3), present(arrays, 4)
        assert x is not None and w is not None and offset is not None
        found = axes(node, x.shape[2:], w.shape[2:])
        moved, m_group = int(node.attrs.get("offset_group", 1)), w.shape[0] // group_of(node)
        taps = int(np.prod(w.shape[2:]))
        out = np.zeros((x.shape[0], w.shape[0], *(int(a.out) for a in found)))
        for n, m, *at in np.ndindex(out.shape):
            for c, *window in np.ndindex(w.shape[1:]):
                channel = m // m_group * w.shape[1] + c
                tap = channel // (x.shape[1] // moved) * taps + int(np.ravel_multi_index(window, w.shape[2:]))
                real = [
                    i * a.stride + t * a.dilation - int(a.begin) + offset[(n, tap * len(found) + d, *at)]
                    for d, (a, i, t) in enumerate(zip(found, at, window, strict=True))
                ]
                weight = w[(m, c, *window)] * (1 if mask is None else mask[(n, tap, *at)])
                out[(n, m, *at)] += weight * _sampled(x[n, channel].astype(np.float64), real, (2, 0, 0))
        out += 0 if bias is None else bias.reshape(-1, *[1] * (x.ndim - 2))
        return [out.astype(x.dtype)]

    def examples(self) -> Examples:
        random = np.random.default_rng(41)
        x, w = (random.standard_normal(s).astype(np.float32) for s in ((1, 2, 4, 5), (3, 2, 2, 2)))
        offset = random.uniform(-0.7, 0.7, (1, 8, 3, 4)).astype(np.float32)
        mask = random.uniform(0, 1, (1, 4, 3, 4)).astype(np.float32)
        yield {}, [x, w, offset]
        yield {}, [x, w, offset, np.arange(3, dtype=np.float32), mask]


@register()
class RoiAlign(Op):
    """Each region of x [N, C, H, W] as a grid of output_height x output_width averages (or maxima) of samples."""

    mapping = MappingType.MANY_TO_MANY
    cost = 200

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        size = [as_dim(int(node.attrs.get(name, 1))) for name in ("output_height", "output_width")]
        return [(dims_of(x[1])[0], dims_of(x[0])[1], *size)]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        """A number for each region; and images with elements, where there are regions."""
        image, regions = dims_of(x[0]), dims_of(x[1])[0]
        filled = [pair for axis in (0, 2, 3) for pair in nonempty_guards(image[axis], regions)]
        return must_equal(regions, dims_of(x[2])[0]) + filled

    def _options(self, node: Node) -> tuple[float, int, bool, float]:
        half = str(node.attrs.get("coordinate_transformation_mode", "half_pixel")) == "half_pixel"
        scale, ratio = float(node.attrs.get("spatial_scale", 1.0)), int(node.attrs.get("sampling_ratio", 0))
        return scale, ratio, str(node.attrs.get("mode", "avg")) == "avg", 0.5 if half else 0.0

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and x[2] is not None and y[0] is not None
        scale, ratio, average, shift = self._options(node)
        roi, channel, *at = index
        image = wrapped(e, x[2], e.load(2, [roi]), x[0].dims[0])
        starts, bins, counts = [], [], []
        for axis, cells in enumerate(y[0].dims[2:]):  # height from the second and fourth number, width from the others
            first, last = (e.load(1, [roi, e.position(1 - axis + end)]) for end in (0, 2))
            start = e.local(DOUBLE, f"{first} * {scale!r} - {shift}")
            length = e.local(DOUBLE, f"{last} * {scale!r} - {shift} - {start}")
            length = length if shift else e.local(DOUBLE, f"fmax({length}, 1)")
            starts.append(start)
            bins.append(e.local(DOUBLE, f"{length} / {int(cells)}"))
            counts.append(str(ratio) if ratio > 0 else e.local(INT64, f"(int64_t)ceil({bins[-1]})"))

        def step(k: list[Any], total: str) -> str:
            real = []
            for start, width, i, t, n, size in zip(starts, bins, at, k, counts, x[0].dims[2:], strict=True):  # type: ignore[union-attr]
                p = e.local(DOUBLE, f"{start} + {width} * ({e.c(i)} + ({e.c(t)} + 0.5) / (double){n})")
                e.only_if(f"{p} >= -1 && {p} <= {e.c(size)}")
                real.append(e.local(DOUBLE, f"fmin(fmax({p}, 0), (double){e.c(size)} - 1)"))
            value = self._interpolated(e, real, average, lambda w: e.load(0, [image, channel, *w]), x[0].dims[2:])  # type: ignore[union-attr]
            return f"{total} + {value}" if average else f"({value} > {total} ? {value} : {total})"

        total = e.fold(DOUBLE, "0" if average else "(-INFINITY)", [e.opaque(c) for c in counts], step)
        divisor = f" / (double)sod2_imax({' * '.join(counts)}, 1)" if average else ""
        return f"(({e.element(x[0].dtype)})({total}{divisor}))"

    def _interpolated(self, e: Emitter, real: list[str], average: bool, load: Any, sizes: Sequence[Dim]) -> str:
        """The four elements around a sample: their weighted sum, or the largest of the weighted ones."""
        if average:
            return sample(e, real, sizes, taps=2, padding=0, align=0, load=load)
        firsts = [e.local(INT64, f"(int64_t)floor({p})") for p in real]

        def step(k: list[Any], best: str) -> str:
            where, weights = [], []
            for p, first, size, t in zip(real, firsts, sizes, k, strict=True):
                position = e.local(INT64, f"{first} + {e.c(t)}")
                weights.append(e.local(DOUBLE, f"sod2_linear_weight({p} - (double){position})"))
                where.append(e.opaque(f"sod2_imin({position}, {e.c(size)} - 1)"))
            value = e.local(DOUBLE, f"{' * '.join(weights)} * {load(where)}")
            return f"({value} > {best} ? {value} : {best})"

        return e.fold(DOUBLE, "(-INFINITY)", [2, 2], step)

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, rois, numbers = arrays
        assert x is not None and rois is not None and numbers is not None
        scale, ratio, average, shift = self._options(node)
        grid = [int(node.attrs.get(name, 1)) for name in ("output_height", "output_width")]
        out = np.zeros((len(rois), x.shape[1], *grid))
        for r, c, *at in np.ndindex(out.shape):
            starts = [float(v) * scale - shift for v in rois[r][[1, 0]]]
            lengths = [float(v) * scale - shift - s for v, s in zip(rois[r][[3, 2]], starts, strict=True)]
            widths = [(n if shift else max(n, 1.0)) / g for n, g in zip(lengths, grid, strict=True)]
            counts = [ratio if ratio > 0 else int(np.ceil(w)) for w in widths]
            values = []
            for t in np.ndindex(*counts):
                p = [s + w * (i + (k + 0.5) / n) for s, w, i, k, n in zip(starts, widths, at, t, counts, strict=True)]
                values.append(self._value(x[numbers[r], c].astype(np.float64), p, average))
            found = [v for v in values if v is not None]
            out[(r, c, *at)] = sum(found) / max(len(values), 1) if average else max(found, default=-np.inf)
        return [out.astype(x.dtype)]

    @staticmethod
    def _value(image: Array, p: list[float], average: bool) -> float | None:
        if not all(-1 <= q <= s for q, s in zip(p, image.shape, strict=True)):
            return None
        p = [min(max(q, 0), s - 1) for q, s in zip(p, image.shape, strict=True)]
        if average:
            return _sampled(image, p, (2, 0, 0))
        corners = []
        for tap in offsets(range(2), repeat=2):
            where = [int(np.floor(q)) + t for q, t in zip(p, tap, strict=True)]
            weight = np.prod([max(0.0, 1 - abs(q - w)) for q, w in zip(p, where, strict=True)])
            corners.append(weight * image[tuple(min(w, s - 1) for w, s in zip(where, image.shape, strict=True))])
        return float(max(corners))

    def examples(self) -> Examples:
        random = np.random.default_rng(42)
        x = random.uniform(0, 1, (2, 2, 6, 7)).astype(np.float32)
        rois = np.array([[0, 0, 4, 5], [1, 2, 5.5, 3]], np.float32)
        for mode in ("half_pixel", "output_half_pixel"):
            attrs = {"output_height": 2, "output_width": 3, "coordinate_transformation_mode": mode}
            yield attrs, [x, rois, np.array([1, 0], np.int64)]
            yield {**attrs, "sampling_ratio": 2, "spatial_scale": 0.5}, [x, rois, np.array([1, 0], np.int64)]


@register()
class Col2Im(Op):
    """Windows [N, C * block, L] added up where they lie in an image [N, C, size...] of the given size."""

    shape_inputs = (1, 2)
    mapping = MappingType.MANY_TO_MANY
    cost = 100

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        if any(f is not None and isinstance(f.value, Undef) for f in x):
            return [UNDEF]
        size, block = integers(x[1]), integers(x[2])
        if size is None or block is None:
            return [NAC]
        n, columns, _ = dims_of(x[0])
        channels: Element = lift(lambda a, b: a // b, columns, product(block))
        return [(n, channels, *size)]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and y[0] is not None
        block = [b for b in integers(x[2]) or [] if isinstance(b, Dim)]
        found = axes(node, y[0].dims[2:], block)
        n, c, *at = index

        def step(k: list[Any], total: str) -> str:
            number: Any = c
            window: Any = e.position(0)
            for a, i, t in zip(found, at, k, strict=True):
                reached = e.local(INT64, e.c(i + a.begin + t * -a.dilation))
                e.only_if(f"{reached} >= 0 && {reached} % {a.stride} == 0 && {reached} / {a.stride} < {e.c(a.out)}")
                number = number * a.kernel + t
                window = window * a.out + e.opaque(f"{reached} / {a.stride}")
            return f"{total} + {e.load(0, [n, number, window])}"

        wide = accumulator(x[0].dtype)
        return f"(({e.element(x[0].dtype)}){e.fold(wide, '0', [a.kernel for a in found], step)})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, size, block = arrays
        assert x is not None and size is not None and block is not None
        found = axes(node, [int(s) for s in size], [int(b) for b in block])
        windows: Any = x.reshape(x.shape[0], -1, *block, *(int(a.out) for a in found))
        reach = [int(a.size + a.begin + a.end) for a in found]
        full: Any = np.zeros((*windows.shape[:2], *reach), x.dtype)
        for tap in offsets(*map(range, block)):
            where = [slice(t * a.dilation, t * a.dilation + (int(a.out) - 1) * a.stride + 1, a.stride)
                     for a, t in zip(found, tap, strict=True)]  # fmt: skip
            full[(slice(None), slice(None), *where)] += windows[(slice(None), slice(None), *tap)]
        cut = [slice(int(a.begin), int(a.begin) + int(a.size)) for a in found]
        return [full[(slice(None), slice(None), *cut)]]

    def examples(self) -> Examples:
        random = np.random.default_rng(43)
        size, block = np.array([5, 6], np.int64), np.array([2, 3], np.int64)
        yield {}, [random.standard_normal((1, 12, 16)).astype(np.float32), size, block]
        yield (
            {"pads": [1, 0, 1, 0], "strides": [2, 1]},
            [random.standard_normal((2, 6, 12)).astype(np.float32), size, block],
        )
