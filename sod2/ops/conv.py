"""Convolutions: Conv and ConvTranspose with any number of spatial axes in the rules, one or two in the kernels.

x [N, C, spatial...], w [M, C/group, kernel...] (ConvTranspose: [C, M/group, kernel...]), bias [M].
The kernel adds the bias itself and applies a Relu behind it; where more is fused, all of that is left to the epilogue.
A 1-D convolution runs as a 2-D one with height 1.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product as offsets
from typing import Any

import numpy as np

from sod2.errors import ModelError, UnsupportedError
from sod2.graph import Node
from sod2.lattice import UNDEF, Shape
from sod2.ops.anchor import (
    Anchor,
    Bias,
    backwards,
    dims_of,
    in_float,
    initializer,
    known_dims,
    must_equal,
    proved,
    require_float32,
)
from sod2.ops.attributes import present
from sod2.ops.direct import accumulator, convolution, plus_bias, transposed_convolution
from sod2.ops.lift import Element, lift
from sod2.ops.op import Array, Call, Emitter, Fact, Facts, Index, MappingType, register
from sod2.ops.window import Axis, auto_pad, axes, axis, ints, transposed_axis
from sod2.packing import conv_transpose, conv_weights
from sod2.symbolic import Dim, as_dim, exact_div


def group_of(node: Node) -> int:
    """Number of groups; 1 by default."""
    return int(node.attrs.get("group", 1))


def kernel_dims(node: Node, x: Facts) -> tuple[Element, ...]:
    """The window's dims: those of the weights, or `kernel_shape` where the weights' are not known."""
    if len(dims_of(x[0])) != len(dims_of(x[1])):
        raise ModelError(f"{node.op} (node {node.name!r}) has an image {x[0]} and weights {x[1]} of different ranks")
    found = dims_of(x[1])[2:]
    attribute = node.attrs.get("kernel_shape") or [None] * len(found)
    return tuple(
        as_dim(int(a)) if a is not None and not isinstance(d, Dim) else d for d, a in zip(found, attribute, strict=True)
    )


def known_axes(node: Node, x: Facts) -> list[Axis]:
    """Windows along the spatial axes of a convolution whose shapes are all known expressions."""
    return axes(node, known_dims(x[0])[2:], known_dims(x[1])[2:])


def fit_guards(found: Iterable[Axis]) -> list[tuple[Dim, Dim]]:
    """A window must fit into every padded axis."""
    return [pair for a in found if (pair := a.fits)[0] != pair[1]]


def planar(node: Node, found: Sequence[Axis]) -> tuple[Axis, Axis]:
    """The axes as height and width; UnsupportedError when there are more than two."""
    if len(found) > 2:
        raise UnsupportedError(
            f"{node.op} (node {node.name!r}) has {len(found)} spatial axes; its kernel takes one or two"
        )
    one = as_dim(1)
    flat = Axis(one, one, 1, 1, as_dim(0), as_dim(0), one)
    return (flat, found[0]) if len(found) == 1 else (found[0], found[1])


def constant_weights(node: Node, x: Facts) -> Array:
    """The weights as [_, _, kh, kw]; UnsupportedError unless they are constant float32."""
    require_float32(node, *x)
    w = x[1].known_value if x[1] is not None else None
    if w is None:
        raise UnsupportedError(f"{node.op} (node {node.name!r}) has weights {x[1]}; its kernel takes constant ones")
    return w.reshape(*w.shape[:2], *([1] if w.ndim == 3 else []), *w.shape[2:])


def takes_kernel(x: Facts) -> bool:
    """Whether a kernel serves: floats, one or two spatial axes. Else the element expression does."""
    return len(dims_of(x[0])) in (3, 4) and in_float(x)


def is_constant(fact: Fact | None) -> bool:
    """Whether weights are packed when compiling."""
    return fact is not None and fact.known_value is not None


def conv_struct(node: Node, k: Call, x: Facts, *, found: Sequence[Axis], channels: Dim, weights: str) -> str:
    """Declaration of the kernels' argument struct; `channels` are those of the output."""
    (n, c, *_), (h, w) = known_dims(x[0]), found
    epilogue, arguments = k.epilogue()
    sizes: dict[str, Dim | int] = {"n": n, "ic": c, "ih": h.size, "iw": w.size, "oc": channels}
    sizes |= {"oh": h.out, "ow": w.out, "kh": h.kernel, "kw": w.kernel, "pt": h.begin, "pl": w.begin}
    sizes |= {"groups": group_of(node), "sh": h.stride, "sw": w.stride, "dh": h.dilation, "dw": w.dilation}
    fields: dict[str, object] = {name: k.c(value) for name, value in sizes.items()}
    fields |= {"x": k.pointer(0), "w": weights, "y": k.result()}
    if k.end is not None:
        bias = k.pointer(2) if present(x, 2) is not None else "NULL"
        fields |= {"bias": bias, "rectified": int(k.end.op == "Relu")}
    fields |= {"epilogue": epilogue, "epilogue_args": arguments, "touched": k.touched()}
    return initializer("g", "sod2_conv", **fields)


@register()
class Conv(Anchor):
    """N-D convolution with groups, dilations, strides and every padding mode."""

    mapping = MappingType.MANY_TO_MANY
    rectifies = True

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        batch, _, *sizes = dims_of(x[0])
        out = [
            lift(lambda s, k, i=i: axis(node, i, len(sizes), s, k).out, size, kernel)
            for i, (size, kernel) in enumerate(zip(sizes, kernel_dims(node, x), strict=True))
        ]
        return [(batch, dims_of(x[1])[0], *out)]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        shape = y[0].shape if y[0] is not None else UNDEF
        if not isinstance(shape, tuple):
            return [UNDEF] * len(node.inputs)
        rank, group = len(shape), group_of(node)
        batch, channels, *out = proved(y[0], rank)
        _, c, *_ = proved(x[0], rank)
        _, c_group, *kernel = proved(x[1], rank)
        sizes = [self._size(node, i, rank - 2, o, k) for i, (o, k) in enumerate(zip(out, kernel, strict=True))]
        image = (batch, lift(lambda d: d * group, c_group), *sizes)
        attribute: list[Element] = [as_dim(int(k)) for k in node.attrs.get("kernel_shape") or []]
        weights = (channels, quotient(c, group), *(attribute or [UNDEF] * (rank - 2)))
        return backwards(node, [image, weights, (channels,)])

    @staticmethod
    def _size(node: Node, i: int, rank: int, out: Element, kernel: Element) -> Element:
        """The input size that gives `out` windows: determined for stride 1 only."""
        if ints(node, "strides", rank, 1)[i] != 1:
            return UNDEF
        if auto_pad(node).startswith("SAME"):
            return out
        return lift(lambda o, k: o - axis(node, i, rank, 0, k).out, out, kernel)

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        channels = must_equal(dims_of(x[0])[1], lift(lambda d: d * group_of(node), dims_of(x[1])[1]))
        rank = len(dims_of(x[0])) - 2
        known = [
            axis(node, i, rank, size, kernel)
            for i, (size, kernel) in enumerate(zip(dims_of(x[0])[2:], kernel_dims(node, x), strict=True))
            if isinstance(size, Dim) and isinstance(kernel, Dim)
        ]
        return channels + fit_guards(known)

    def space(self, node: Node, x: Facts, y: Facts) -> tuple[int, int] | None:
        return 1, 2

    def bias(self, node: Node, x: Facts) -> Bias | None:
        return Bias(2, (1,)) if present(x, 2) is not None else None

    def is_anchor(self, node: Node, x: Facts) -> bool:
        return takes_kernel(x)

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and x[1] is not None
        total = convolution(
            e, index, found=known_axes(node, x), weights=x[1].dims, group=group_of(node),
            load=e.load, dtype=accumulator(x[0].dtype),
        )  # fmt: skip
        return f"(({e.element(x[0].dtype)}){plus_bias(e, index, x, total)})"

    def declare(self, node: Node, k: Call, x: Facts) -> str:
        """C declaration of the kernel's argument struct `g`, with the packed weights of every version kept."""
        w, group = constant_weights(node, x), group_of(node)
        found = planar(node, known_axes(node, x))
        packed = {v: k.packed(1, f"conv {v}", partial(conv_weights, v, w, group, k.tile)) for v in k.versions}
        versions = ", ".join(f"[SOD2_CONV_{v.upper()}] = {pointer}" for v, pointer in packed.items())
        weights = f"{{{versions}}},\n    .scratch_limit = {k.choice('sod2_imax(allowance, 1)')}"
        return conv_struct(node, k, x, found=found, channels=as_dim(w.shape[0]), weights=weights)

    def _call_packing(self, node: Node, k: Call, x: Facts) -> str:
        """A convolution whose weights are computed by the model: they are packed first, for the one general version."""
        found, (channels, *rest) = planar(node, known_axes(node, x)), known_dims(x[1])
        weights = f"{{NULL}},\n    .scratch_limit = {k.choice('sod2_imax(allowance, 1)')}"
        k.setup(conv_struct(node, k, x, found=found, channels=channels, weights=weights))
        packed = k.scratch(f"4 * {k.c(math.prod(rest, start=channels))}")
        scratch = k.scratch("sod2_conv_scratch(&g, SOD2_CONV_PANEL, threads)")
        return (
            f"sod2_conv_pack_panel(&g, {k.pointer(1)}, {packed}, pool);\n"
            f"g.w[SOD2_CONV_PANEL] = {packed};\nsod2_conv_run(&g, SOD2_CONV_PANEL, {scratch}, pool);"
        )

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        if not is_constant(x[1]):
            return self._call_packing(node, k, x)
        k.setup(self.declare(node, k, x))
        version = k.choice("sod2_conv_choose(&g, threads)")
        scratch = k.scratch(f"sod2_conv_scratch(&g, (int){version}, threads)")
        return f"sod2_conv_run(&g, (int){version}, {scratch}, pool);"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, w, *rest = arrays
        assert x is not None and w is not None
        group = group_of(node)
        found = axes(node, x.shape[2:], w.shape[2:])
        out = [int(a.out) for a in found]
        n, c, m = x.shape[0], x.shape[1] // group, w.shape[0] // group
        pads = [(int(a.begin), int(a.end)) for a in found]
        padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *pads])
        total = np.zeros((n, group, m, math.prod(out)))
        for tap in offsets(*map(range, w.shape[2:])):
            taken = padded[spatial(*tap_slices(found, tap))].reshape(n, group, c, math.prod(out))
            weights = w[spatial(*tap)].astype(np.float64).reshape(group, m, c)
            total += weights * taken if c == 1 else weights @ taken
        return [with_bias(total.reshape(n, group * m, *out), rest, x.dtype)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        yield from convolution_examples(transposed=False)


def spatial(*index: int | slice) -> tuple[Any, ...]:
    """An index into the spatial axes of a tensor [N, C, spatial...], all of the first two."""
    return (slice(None), slice(None), *index)


def tap_slices(found: Sequence[Axis], tap: Sequence[int]) -> list[slice]:
    """For one position inside the window: the elements of the padded axes that it meets, over all windows."""
    starts = [t * a.dilation for a, t in zip(found, tap, strict=True)]
    return [
        slice(start, start + (int(a.out) - 1) * a.stride + 1 if int(a.out) else start, a.stride)
        for a, start in zip(found, starts, strict=True)
    ]


def quotient(dim: Element, divisor: int) -> Element:
    """dim / divisor where that is proved to be exact, else UNDEF."""
    if not isinstance(dim, Dim):
        return UNDEF
    exact = exact_div(dim, divisor)
    return UNDEF if exact is None else exact


def with_bias(total: Array, rest: Sequence[Array | None], dtype: np.dtype[Any]) -> Array:
    """The convolution's sum plus the optional bias along the channels, in the output's dtype."""
    if rest and rest[0] is not None:
        total = total + rest[0].astype(np.float64).reshape(-1, *[1] * (total.ndim - 2))
    return total.astype(dtype)


@register()
class ConvTranspose(Anchor):
    """Transposed convolution: every input element adds a scaled window to the output."""

    mapping = MappingType.MANY_TO_MANY
    rectifies = True

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        batch, _, *sizes = dims_of(x[0])
        out = [
            lift(lambda s, k, i=i: transposed_axis(node, i, len(sizes), s, k).out, size, kernel)
            for i, (size, kernel) in enumerate(zip(sizes, kernel_dims(node, x), strict=True))
        ]
        return [(batch, lift(lambda d: d * group_of(node), dims_of(x[1])[1]), *out)]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        shape = y[0].shape if y[0] is not None else UNDEF
        if not isinstance(shape, tuple):
            return [UNDEF] * len(node.inputs)
        rank = len(shape)
        batch, channels, *_ = proved(y[0], rank)
        c = proved(x[0], rank)[1]
        c_weights = proved(x[1], rank)[0]
        attribute: list[Element] = [as_dim(int(k)) for k in node.attrs.get("kernel_shape") or []]
        image = (batch, c_weights, *[UNDEF] * (rank - 2))
        weights = (c, quotient(channels, group_of(node)), *(attribute or [UNDEF] * (rank - 2)))
        return backwards(node, [image, weights, (channels,)])

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        return must_equal(dims_of(x[0])[1], dims_of(x[1])[0])

    def space(self, node: Node, x: Facts, y: Facts) -> tuple[int, int] | None:
        return 1, 2

    def bias(self, node: Node, x: Facts) -> Bias | None:
        return Bias(2, (1,)) if present(x, 2) is not None else None

    def is_anchor(self, node: Node, x: Facts) -> bool:
        return takes_kernel(x) and is_constant(x[1])

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and x[1] is not None
        pairs = list(zip(x[0].dims[2:], x[1].dims[2:], strict=True))
        total = transposed_convolution(
            e, index, found=[transposed_axis(node, i, len(pairs), s, d) for i, (s, d) in enumerate(pairs)],
            weights=x[1].dims, group=group_of(node), load=e.load, dtype=accumulator(x[0].dtype),
        )  # fmt: skip
        return f"(({e.element(x[0].dtype)}){plus_bias(e, index, x, total)})"

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        w, group = constant_weights(node, x), group_of(node)
        image, weights = known_dims(x[0]), known_dims(x[1])
        pairs = enumerate(zip(image[2:], weights[2:], strict=True))
        found = planar(node, [transposed_axis(node, i, len(image) - 2, s, d) for i, (s, d) in pairs])
        packed = k.packed(1, "conv transpose", partial(conv_transpose, w, group, k.tile.mr))
        k.setup(conv_struct(node, k, x, found=found, channels=as_dim(w.shape[1] * group), weights=f"{{{packed}}}"))
        scratch = k.scratch("sod2_conv_transpose_scratch(&g, threads)")
        return f"sod2_conv_transpose_run(&g, {scratch}, pool);"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, w, *rest = arrays
        assert x is not None and w is not None
        group, rank = group_of(node), x.ndim - 2
        sizes, kernel = x.shape[2:], w.shape[2:]
        found = [transposed_axis(node, i, rank, s, k) for i, (s, k) in enumerate(zip(sizes, kernel, strict=True))]
        n, c, m = x.shape[0], x.shape[1] // group, w.shape[1]
        reach = [max(int(a.begin) + int(a.out), int(a.size) * a.stride + int(a.extent)) for a in found]
        full = np.zeros((n, group * m, *reach))
        image = x.astype(np.float64).reshape(n, group, c, math.prod(sizes))
        for tap in offsets(*map(range, kernel)):
            weights = w[spatial(*tap)].astype(np.float64).reshape(group, c, m)
            added = (weights.transpose(0, 2, 1) @ image).reshape(n, group * m, *sizes)
            targets = [
                slice(t * a.dilation, t * a.dilation + int(a.size) * a.stride, a.stride)
                for a, t in zip(found, tap, strict=True)
            ]
            full[spatial(*targets)] += added
        cut = [slice(int(a.begin), int(a.begin) + int(a.out)) for a in found]
        return [with_bias(full[spatial(*cut)], rest, x.dtype)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        yield from convolution_examples(transposed=True)


def convolution_examples(transposed: bool) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
    """Examples for both operators: (attributes, sizes of x, sizes of w as [M, C/group, kernel...], with bias)."""
    random = np.random.default_rng(5)
    cases: list[tuple[Mapping[str, Any], Sequence[int], Sequence[int], bool]] = [
        ({}, (1, 3, 5, 7), (4, 3, 1, 1), True),
        ({"pads": [1, 1, 1, 1]}, (2, 3, 6, 5), (5, 3, 3, 3), True),
        ({"pads": [1, 1, 1, 1], "strides": [2, 2]}, (1, 4, 7, 8), (6, 4, 3, 3), False),
        ({"pads": [0, 1, 2, 0], "strides": [2, 1], "dilations": [1, 2]}, (1, 2, 9, 8), (3, 2, 3, 2), False),
        ({"group": 4, "pads": [1, 1, 1, 1]}, (1, 4, 6, 6), (4, 1, 3, 3), True),
        ({"group": 2}, (1, 4, 4, 4), (6, 2, 3, 2), False),
        ({"auto_pad": "SAME_UPPER", "strides": [2, 3]}, (1, 2, 7, 8), (3, 2, 3, 4), False),
        ({"auto_pad": "SAME_LOWER", "strides": [2, 1]}, (1, 2, 6, 5), (3, 2, 4, 2), True),
        ({"auto_pad": "VALID"}, (1, 1, 4, 4), (1, 1, 2, 2), False),
        ({"pads": [2, 2], "strides": [2]}, (2, 3, 11), (4, 3, 5), True),
        ({"pads": [1, 1, 1, 1]}, (1, 16, 9, 7), (20, 16, 3, 3), True),
        ({"pads": [1, 1, 1, 1]}, (1, 150, 6, 5), (130, 150, 3, 3), False),
        ({"strides": [2, 2]}, (2, 40, 5, 6), (33, 40, 3, 3), True),
        ({}, (1, 1, 1, 1), (1, 1, 1, 1), True),
        ({}, (0, 3, 4, 4), (2, 3, 3, 3), False),
    ]
    if transposed:
        cases += [
            ({"strides": [2, 2]}, (1, 3, 4, 5), (5, 3, 2, 2), True),
            ({"strides": [3, 2], "output_padding": [2, 1]}, (1, 2, 3, 3), (2, 2, 3, 3), False),
            ({"strides": [2, 2], "output_shape": [8, 7]}, (1, 2, 4, 4), (2, 2, 3, 3), False),
        ]
    for attributes, image, kernel, bias in cases:
        group = attributes.get("group", 1)
        sizes = (image[1], kernel[0] // group, *kernel[2:]) if transposed else kernel
        arrays = [random.standard_normal(image), random.standard_normal(sizes) / math.sqrt(math.prod(sizes[1:]))]
        arrays += [random.standard_normal(kernel[0])] if bias else []
        yield attributes, [a.astype(np.float32) for a in arrays]
