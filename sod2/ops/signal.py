"""DFT and STFT by their definition, and MelWeightMatrix. A complex number is a last axis of two: its parts.

Every output element is a sum over the whole signal: n^2 operations, which suits the short frames of audio models.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Shape, Undef
from sod2.ops.anchor import dims_of
from sod2.ops.attributes import dtype_of, normal_axis, present
from sod2.ops.axes import axis_guards, axis_values, dim_at, given_to
from sod2.ops.lift import Element, integers, lift
from sod2.ops.op import Array, Emitter, Facts, Index, MappingType, Op, TensorValue, register
from sod2.ops.selection import only
from sod2.symbolic import Dim, as_dim, floordiv, minimum

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]
DOUBLE, INT64 = np.dtype(np.float64), np.dtype(np.int64)


def _part(e: Emitter, which: Index, angle: str, real: str, imaginary: str) -> str:
    """Real or imaginary part, by the index of the last axis, of (real + i imaginary) e^(i angle)."""
    c, s = (e.local(DOUBLE, f"{f}({angle})") for f in ("cos", "sin"))
    return f"({e.c(which)} == 0 ? {real} * {c} - {imaginary} * {s} : {real} * {s} + {imaginary} * {c})"


def _select(e: Emitter, axis: str, index: Sequence[Index]) -> str:
    """C expression of the element of an index at an axis that only execution may tell."""
    text = e.c(index[0])
    for i, position in enumerate(index[1:], start=1):
        text = f"({axis} == {i} ? {e.c(position)} : {text})"
    return text


@register()
class DFT(Op):
    """The discrete Fourier transform along an axis: (x, length or None, axis or None)."""

    shape_inputs = (1, 2)
    mapping = MappingType.MANY_TO_MANY
    cost = 200

    def _axis(self, node: Node, x: Facts) -> Dim | None:
        """The axis counted from 0, maybe an expression over values that only execution tells."""
        rank = len(dims_of(x[0]))
        if (given := present(x, 2)) is None:
            default = 1 if "axis" in node.attrs else -2
            return as_dim(normal_axis(node, int(node.attrs.get("axis", default)), rank))
        axes = axis_values(given, rank)
        return axes[0] if axes else None

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        dims, axis = dims_of(x[0]), self._axis(node, x)
        if any(f is not None and isinstance(f.value, Undef) for f in x[1:]):
            return [UNDEF]
        if axis is None:
            return [(NAC,) * len(dims)]
        given, one_sided, inverse = present(x, 1), *(bool(node.attrs.get(n, 0)) for n in ("onesided", "inverse"))
        length = dim_at(dims, axis) if given is None else (integers(given) or [NAC])[0]
        if one_sided and not inverse:
            length = lift(lambda n: floordiv(n, 2) + 1, length)
        elif one_sided and given is None:
            length = lift(lambda n: (n - 1) * 2, length)
        out = given_to([axis], [length], len(dims), dims)
        return [(*out[:-1], as_dim(1 if one_sided and inverse else 2))]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        return axis_guards(present(x, 2), len(dims_of(x[0])))

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and y[0] is not None
        axis = self._axis(node, x)
        assert axis is not None
        inverse = bool(node.attrs.get("inverse", 0))
        whole = inverse and bool(node.attrs.get("onesided", 0))
        own = dim_at(x[0].dims, axis)
        given = integers(present(x, 1)) if present(x, 1) is not None else None
        length = given[0] if given else dim_at(y[0].dims, axis) if whole else own
        assert isinstance(length, Dim) and isinstance(own, Dim)
        last, number, size = e.c(x[0].dims[-1]), e.c(axis), e.c(length)
        here = _select(e, number, index)

        def step(k: list[Any], total: str) -> str:
            n = e.c(k[0])
            source = e.local(INT64, f"({n} < {e.c(own)} ? {n} : {size} - {n})" if whole else n)
            at = [e.opaque(f"({number} == {i} ? {source} : {e.c(p)})") for i, p in enumerate(index[:-1])]
            real = e.load(0, [*at, e.position(0)])
            second = e.load(0, [*at, e.opaque(f"({last} > 1 ? 1 : 0)")])
            sign = f"({n} == {source} ? 1 : -1) * " if whole else ""  # the other half is the conjugate of this one
            imaginary = f"({last} > 1 ? {sign}{second} : 0)"
            turn = f"(double)({here} * {n} % {size}) / (double){size}"
            angle = e.local(DOUBLE, f"{'' if inverse else '-'}2 * M_PI * {turn}")
            return f"{total} + {_part(e, index[-1], angle, real, imaginary)}"

        total = e.fold(DOUBLE, "0", [length if whole else minimum(length, own)], step)
        return f"(({e.element(x[0].dtype)})({total}{f' / (double){size}' if inverse else ''}))"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, length, given = arrays[0], present(arrays, 1), present(arrays, 2)
        assert x is not None
        default = 1 if "axis" in node.attrs else -2
        axis = int(given.item()) if given is not None else int(node.attrs.get("axis", default))
        axis %= x.ndim
        z = x[..., 0] + (1j * x[..., 1] if x.shape[-1] > 1 else 0)
        n = None if length is None else int(length.item())
        inverse, half = (bool(node.attrs.get(name, 0)) for name in ("inverse", "onesided"))
        if inverse and half:
            return [np.fft.irfft(z, n, axis)[..., None].astype(x.dtype)]
        out = np.fft.ifft(z, n, axis) if inverse else np.fft.fft(z, n, axis)
        if half:
            out = np.take(out, np.arange(out.shape[axis] // 2 + 1), axis)
        return [np.stack([out.real, out.imag], -1).astype(x.dtype)]

    def examples(self) -> Examples:
        random = np.random.default_rng(50)
        real, pair = (random.standard_normal((2, 6, 4, k)).astype(np.float32) for k in (1, 2))
        for attrs in ({}, {"inverse": 1}):
            yield attrs, [pair, None, np.array(1, np.int64)]
            yield attrs, [real, None, np.array(-2, np.int64)]
            yield attrs, [pair, np.array(4, np.int64), np.array(1, np.int64)]
        yield {"onesided": 1}, [real, None, np.array(1, np.int64)]
        yield {"onesided": 1}, [real, np.array(5, np.int64), np.array(1, np.int64)]


@register()
class STFT(Op):
    """One-sided or full transforms of frames of a signal [batch, length, 1 or 2]: (x, step, window or None, frame)."""

    shape_inputs = (1, 3)
    mapping = MappingType.MANY_TO_MANY
    cost = 200

    def _frame(self, x: Facts) -> Element:
        frame, window = present(x, 3), present(x, 2)
        return (integers(frame) or [NAC])[0] if frame is not None else dims_of(window)[0]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        if any(f is not None and isinstance(f.value, Undef) for f in (x[1], present(x, 3))):
            return [UNDEF]
        batch, length, _ = dims_of(x[0])
        frame, step = self._frame(x), (integers(x[1]) or [NAC])[0]
        frames = lift(lambda n, f, s: floordiv(n - f, s) + 1, length, frame, step)
        bins = lift(lambda f: floordiv(f, 2) + 1, frame) if node.attrs.get("onesided", 1) else frame
        return [(batch, frames, bins, as_dim(2))]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None
        frame, (step_size, *_) = self._frame(x), integers(x[1]) or [NAC]
        assert isinstance(frame, Dim) and isinstance(step_size, Dim)
        batch, number, bin_, part = index
        last = e.c(x[0].dims[2])

        def step(k: list[Any], total: str) -> str:
            at = number * step_size + k[0]
            weight = "1" if present(x, 2) is None else e.load(2, k)
            real = f"{e.load(0, [batch, at, e.position(0)])} * {weight}"
            imaginary = f"({last} > 1 ? {e.load(0, [batch, at, e.opaque(f'({last} > 1 ? 1 : 0)')])} * {weight} : 0)"
            turn = f"(double)({e.c(bin_)} * {e.c(k[0])} % {e.c(frame)}) / (double){e.c(frame)}"
            return f"{total} + {_part(e, part, e.local(DOUBLE, f'-2 * M_PI * {turn}'), real, imaginary)}"

        return f"(({e.element(x[0].dtype)}){e.fold(DOUBLE, '0', [frame], step)})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, step, window, length = arrays[0], arrays[1], present(arrays, 2), present(arrays, 3)
        assert x is not None and step is not None
        z = x[..., 0] + (1j * x[..., 1] if x.shape[-1] > 1 else 0)
        n = int(length.item()) if length is not None else len(window)
        weight = np.ones(n) if window is None else window
        starts = range(0, z.shape[1] - n + 1, int(step.item()))
        frames = np.stack([z[:, s : s + n] * weight for s in starts], 1)
        out = np.fft.fft(frames, axis=2)
        out = out[:, :, : n // 2 + 1] if node.attrs.get("onesided", 1) else out
        return [np.stack([out.real, out.imag], -1).astype(x.dtype)]

    def examples(self) -> Examples:
        random = np.random.default_rng(51)
        x, window = random.standard_normal((2, 16, 1)).astype(np.float32), np.hanning(6).astype(np.float32)
        yield {}, [x, np.array(3, np.int64), window]
        yield {"onesided": 0}, [x, np.array(4, np.int64), None, np.array(8, np.int64)]


@register()
class MelWeightMatrix(Op):
    """Triangular filters on the mel scale: (mel bins, transform length, sample rate, lower and upper edge in hertz)."""

    shape_inputs = (0, 1)
    mapping = MappingType.ONE_TO_MANY
    cost = 100

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [dtype_of(node, "output_datatype", 1)]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        if any(f is not None and isinstance(f.value, Undef) for f in x[:2]):
            return [UNDEF]
        bins, length = ((integers(f) or [NAC])[0] for f in x[:2])
        return [(lift(lambda n: floordiv(n, 2) + 1, length), bins)]

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        return [NAC]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert y[0] is not None
        length, rate, low, high = (only(e, k, x) for k in range(1, 5))
        low, high = (e.local(DOUBLE, f"2595 * log10(1 + (double){hz} / 700)") for hz in (low, high))
        bins = e.c(y[0].dims[1])
        edges = []
        for k in range(3):
            mel = f"({low} + (double)({e.c(index[1])} + {k}) * ({high} - {low}) / (double)({bins} + 2))"
            hertz = f"(700 * (pow(10, {mel} / 2595) - 1))"
            edges.append(e.local(DOUBLE, f"floor((double)({length} + 1) * {hertz} / (double){rate})"))
        lower, centre, upper = edges
        i = f"(double){e.c(index[0])}"
        rising = f"({centre} == {lower} ? 1 : ({i} - {lower}) / ({centre} - {lower}))"
        falling = f"({upper} - {i}) / ({upper} - {centre})"
        left, right = f"{i} >= {lower} && {i} <= {centre}", f"{i} > {centre} && {i} < {upper}"
        text = f"({left} ? {rising} : {right} ? {falling} : 0)"
        return f"(({e.element(y[0].dtype)}){text})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        bins, length, rate, low, high = (a.item() for a in arrays if a is not None)
        first, last = (2595 * math.log10(1 + hz / 700) for hz in (low, high))
        mels = np.linspace(first, last, bins + 2, endpoint=False)
        edges = np.floor((length + 1) * (700 * (10 ** (mels / 2595) - 1)) / rate).astype(int)
        out = np.zeros((length // 2 + 1, bins))
        for k in range(bins):
            lower, centre, upper = edges[k : k + 3]
            if centre == lower:
                out[centre, k] = 1
            out[lower : centre + 1, k] = (
                np.arange(centre - lower + 1) / (centre - lower) if centre > lower else out[lower : centre + 1, k]
            )
            if upper > centre:
                out[centre:upper, k] = np.arange(upper - centre, 0, -1) / (upper - centre)
        return [out.astype(self.dtype(node, [])[0])]

    def examples(self) -> Examples:
        ints = [np.array(v, np.int64) for v in (8, 16, 8192)]
        yield {}, [*ints, np.array(0, np.float32), np.array(4096, np.float32)]
