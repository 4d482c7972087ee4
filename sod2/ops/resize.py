"""Resize: nearest, linear and cubic interpolation in all coordinate modes of ONNX.

Sizes are exact. Given scales, a dim is floor(size * scale) of a *float32* product, as in every runtime: it may be
another integer than in exact arithmetic. For a symbolic dim that is an expression only when
the scale is a dyadic fraction p / 2^k, where the float product has no error as long as size * p stays below 2^24 (a
guard says so); for any other scale, and for scales that only execution tells, the dim is counted (`count`). Given
sizes, the dims are those.

Every axis is interpolated on its own: an output element is a sum over at most 4 taps per axis that changes, or over
those of antialias.py. Linear and cubic interpolation of one or two neighbouring axes of floats has a kernel
(runtime/resize.c), which is given taps and weights of each axis as tables; the rest are element expressions, made of
the same formulas. Positions are computed in float32, which decides ties of `nearest` as ONNX Runtime does; those in a
tensor of doubles in double.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product as taps_of
from typing import Any, cast

import numpy as np

from sod2.dtypes import element_type
from sod2.errors import UnsupportedError
from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Shape, Undef
from sod2.ops.anchor import count, f32, initializer
from sod2.ops.antialias import RADIUS, Filter, blend
from sod2.ops.attributes import normal_axis, present
from sod2.ops.elementwise import CType
from sod2.ops.lift import Element, integers, lift, nonempty_guards
from sod2.ops.op import Array, Call, Counting, Emitter, Facts, Index, MappingType, Op, register
from sod2.ops.resize_reference import resized
from sod2.symbolic import Dim, as_dim, eq, minimum

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]
EXACT = 2**24  # integers up to here are exact in float32
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
POSITIONS = {
    # i: output index, s: scale, n and m: input and output length, a and b: region of interest, h: a half
    "half_pixel": "({i} + {h}) / {s} - {h}",
    "half_pixel_symmetric": "{n} / 2 * (1 - {m} / ({n} * {s})) + ({i} + {h}) / {s} - {h}",
    "pytorch_half_pixel": "({m} > 1 ? ({i} + {h}) / {s} - {h} : 0)",
    "asymmetric": "{i} / {s}",
    "align_corners": "({m} > 1 ? {i} * ({n} - 1) / ({m} - 1) : 0)",
    "tf_crop_and_resize": (
        "({m} > 1 ? {a} * ({n} - 1) + {i} * (({b} - {a}) * ({n} - 1)) / ({m} - 1) : {h} * ({a} + {b}) * ({n} - 1))"
    ),
}
NEAREST = {
    "round_prefer_floor": "~ceil({x} - {h})",
    "round_prefer_ceil": "~floor({x} + {h})",
    "floor": "~floor({x})",
    "ceil": "~ceil({x})",
}


@dataclass(frozen=True)
class Axis:
    """One dim of a resize: lengths, the given scale (None: the quotient of the lengths), its place in the inputs."""

    size: Element
    out: Element
    scale: float | None
    position: int | None
    is_read: bool = False  # the scale is read when the model runs

    @property
    def is_kept(self) -> bool:
        """Whether no element moves along it."""
        if self.position is None:
            return True
        return self.scale == 1.0 if self.scale is not None else lift(eq, self.size, self.out) == 1


def scaled(size: Dim, scale: float) -> Dim | None:
    """floor(size * scale) as float32 computes it; None when that is no expression over the size."""
    exact = np.float32(scale)
    if size.is_constant:
        return as_dim(int(np.floor(np.float32(int(size)) * exact)))
    numerator, denominator = float(exact).as_integer_ratio()
    return size * numerator // denominator if numerator <= 2**8 else None


def scale_guards(axes: Sequence[Axis]) -> list[tuple[Dim, Dim]]:
    """Pairs that are equal exactly when the products of symbolic sizes and scales are exact in float32."""
    pairs = []
    for axis in axes:
        if axis.scale is None or axis.is_kept or not isinstance(axis.size, Dim) or not isinstance(axis.out, Dim):
            continue
        product = axis.size * float(np.float32(axis.scale)).as_integer_ratio()[0]
        if not axis.size.is_constant:
            pairs.append((minimum(product, EXACT), product))
    return [(a, b) for a, b in pairs if eq(a, b) is not True]


def kernel_axes(axes: Sequence[Axis]) -> tuple[int, int]:
    """The axes that are the kernel's rows and columns. Where only one axis moves, it is the rows, except the last one,
    which is the columns; then both are the same number, and there are no rows."""
    moved = [i for i, axis in enumerate(axes) if not axis.is_kept]
    if len(moved) == 2:
        return moved[0], moved[1]
    return (moved[0], moved[0]) if moved[0] == len(axes) - 1 else (moved[0], moved[0] + 1)


@dataclass
class Table:
    """What positions and taps ask of an Emitter, in the loop that fills the table of an axis."""

    k: Call
    lines: list[str] = field(default_factory=list)

    def c(self, value: Dim | int) -> str:
        return self.k.c(value)

    def opaque(self, text: str) -> str:
        return text

    def local(self, dtype: np.dtype[Any], text: str) -> str:
        self.lines.append(f"const {element_type(dtype).value} v{len(self.lines)} = {text};")
        return f"v{len(self.lines) - 1}"


@register()
class Resize(Op):
    """(X, roi, scales, sizes): one of scales and sizes is given."""

    shape_inputs = (2, 3)
    mapping = MappingType.ONE_TO_MANY
    cost = 30

    def _check(self, node: Node) -> None:
        allowed = {
            "mode": tuple(TAPS),
            "coordinate_transformation_mode": tuple(POSITIONS),
            "nearest_mode": tuple(NEAREST),
            "keep_aspect_ratio_policy": ("stretch",),
            "antialias": (0, 1) if node.attrs.get("mode") in RADIUS else (0,),
        }
        for name, values in allowed.items():
            if node.attrs.get(name, values[0]) not in values:
                raise UnsupportedError(
                    f"Resize (node {node.name!r}) with {name}={node.attrs[name]!r}; "
                    f"{', '.join(map(str, values))} is supported"
                )

    def axes(self, node: Node, x: Facts, counted: Sequence[Dim] | None = None) -> list[Axis] | None:
        """What happens to every dim; None before the values of scales or sizes are reached.

        `counted` are the output's dims, some of which the rules may leave to `count`.
        """
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        self._check(node)
        rank = len(x[0].shape)
        chosen = [normal_axis(node, int(a), rank) for a in node.attrs.get("axes", range(rank))]
        scales, sizes = present(x, 2), present(x, 3)
        by_scale = sizes is None or (scales is not None and scales.shape != (as_dim(0),))
        given = scales if by_scale else sizes
        if given is None or isinstance(given.value, Undef):
            return None
        result = [Axis(d, d, None, None) for d in x[0].shape]
        for k, axis in enumerate(chosen):
            size = x[0].shape[axis]
            if by_scale:
                scale = float(given.value[k]) if given.known_value is not None else None
                out = NAC if scale is None else lift(lambda d, s=scale: scaled(d, s), size)
            else:
                values = integers(given)
                scale, out = None, NAC if values is None else values[k]
            result[axis] = Axis(size, out, scale, k, by_scale and scale is None)
        for i, dim in enumerate(counted or ()):
            result[i] = replace(result[i], out=dim)
        return result

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        axes = self.axes(node, x)
        return [(UNDEF,) * len(x[0].shape) if axes is None else tuple(a.out for a in axes)]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        """Dims that aren't resized stay."""
        claims: list[Shape] = [UNDEF] * len(node.inputs)
        axes = self.axes(node, x)
        if axes is not None and y[0] is not None and isinstance(y[0].shape, tuple):
            claims[0] = tuple(
                d if a.position is None or a.scale == 1.0 else UNDEF for a, d in zip(axes, y[0].shape, strict=True)
            )
        return claims

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        """Products are exact, and nothing is made of an axis without elements."""
        axes = self.axes(node, x) or []
        by_size = [a for a in axes if not a.is_kept and a.scale is None and not a.is_read]
        return scale_guards(axes) + [pair for a in by_size for pair in nonempty_guards(a.size, a.out)]

    def count(self, node: Node, k: Counting, x: Facts, y: Facts) -> str:
        """floor(size * scale) in float32, of the axes for which that is no expression over the size."""
        lines = []
        for i, axis in enumerate(self.axes(node, x) or []):
            if isinstance(axis.out, Dim):
                continue
            assert isinstance(axis.size, Dim) and axis.position is not None
            scale = f"({k.pointer(2)})[{axis.position}]" if axis.scale is None else f32(axis.scale)
            product = f"floorf((float){k.c(axis.size)} * {scale})"
            lines.append(f"if (!({product} >= 0 && {product} < 0x1p62f)) {k.refuse('a Resize by a scale below 0')}")
            lines.append(f"{k.minted(0, i)} = (int64_t){product};")
        return "\n".join(lines)

    def hands_on(self, node: Node, x: Facts, y: Facts) -> bool:
        """A scale of 1 puts every element on one of the operand's; only cropping moves it then."""
        assert y[0] is not None
        axes = self.axes(node, x, y[0].dims)
        crops = node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        return axes is not None and not crops and all(axis.is_kept and not axis.is_read for axis in axes)

    def is_anchor(self, node: Node, x: Facts) -> bool:
        """Whether tables suffice: cropping and antialias need more, nearest less."""
        if x[0] is None or x[0].dtype != np.float32 or (axes := self.axes(node, x)) is None:
            return False
        crops = node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        plain = node.attrs.get("mode", "nearest") != "nearest" and not node.attrs.get("antialias", 0) and not crops
        moved = [i for i, axis in enumerate(axes) if not axis.is_kept]
        near = 1 <= len(moved) <= 2 and moved[-1] - moved[0] < 2
        return plain and near and not any(axis.is_read for axis in axes)

    def space(self, node: Node, x: Facts, y: Facts) -> tuple[int, int] | None:
        return 0, kernel_axes(self.axes(node, x) or [])[1]

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        assert x[0] is not None and y[0] is not None
        axes, dims = self.axes(node, x, y[0].dims) or [], x[0].dims
        rows, columns = kernel_axes(axes)
        epilogue, arguments = k.epilogue()
        fields: dict[str, object] = {"outer": k.c(count(dims[:rows])), "inner": k.c(count(dims[columns + 1 :]))}
        fields |= {"x": k.pointer(0), "y": k.result(), "epilogue": epilogue, "args": arguments}
        tables = []
        for name, chosen in (("rows", axes[rows:columns]), ("columns", axes[columns : columns + 1])):
            sizes = ["1", "1", "0"]
            for axis in chosen:
                assert isinstance(axis.size, Dim) and isinstance(axis.out, Dim)
                sizes = [k.c(axis.size), k.c(axis.out), "0"]
                if not axis.is_kept:
                    sizes[2] = str(TAPS[str(node.attrs["mode"])])
                    tables.append(self._table(node, Table(k), f"g.{name}", axis, x))
            fields[name] = f"{{{', '.join([*sizes, 'NULL', 'NULL'])}}}"
        k.setup(initializer("g", "sod2_resize", **fields))
        scratch = k.scratch("sod2_resize_scratch(&g, threads)")
        return "\n".join([f"sod2_resize_tables(&g, {scratch});", *tables, f"sod2_resize_run(&g, {scratch}, pool);"])

    def _table(self, node: Node, table: "Table", name: str, axis: Axis, x: Facts) -> str:
        """The loop that fills the table of an axis."""
        e = cast(Emitter, table)
        taps = self._taps(node, e, real(x), self._position(node, e, "i", axis, x), axis)
        stores = [
            f"{name}.{field}[{t} * {name}.m + i] = ({kind}){value};"
            for t, (index, weight) in enumerate(taps)
            for field, kind, value in (("index", "int32_t", index), ("weight", "float", weight))
        ]
        return "\n".join([f"for (int64_t i = 0; i < {name}.m; i++) {{", *table.lines, *stores, "}"])

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and y[0] is not None
        c = CType(x[0].dtype, e.element(x[0].dtype))
        axes = self.axes(node, x, y[0].dims) or []
        smooth, r = bool(node.attrs.get("antialias", 0)), real(x)
        taps: list[list[tuple[Index, str]]] = []
        places: list[Index | Filter] = []  # with antialias
        outside: list[str] = []
        for i, axis in zip(index, axes, strict=True):
            if axis.is_kept:
                taps.append([(i, "")])
                places.append(i)
                continue
            position = self._position(node, e, e.c(i), axis, x)
            if node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
                assert isinstance(axis.size, Dim)
                outside.append(f"{position} < 0 || {position} > ({r.name})({e.c(axis.size)} - 1)")
            if smooth:
                assert isinstance(axis.size, Dim)
                last = f"({e.c(axis.size)} - 1)"
                places.append(Filter.at(node, e, r, position=position, scale=self._scale(e, r, axis), last=last))
            else:
                taps.append(self._taps(node, e, r, position, axis))
        value = blend(e, r, places, c) if smooth else self._blend(e, taps, c)
        if not outside:
            return value
        return f"({' || '.join(outside)} ? {c.number(float(node.attrs.get('extrapolation_value', 0)))} : {value})"

    def _blend(self, e: Emitter, taps: Sequence[Sequence[tuple[Index, str]]], c: CType) -> str:
        terms = []
        for chosen in taps_of(*taps):
            weights = [w for _, w in chosen if w]
            terms.append(" * ".join([*weights, e.load(0, [i for i, _ in chosen])]))
        return f"(({c.name})({' + '.join(terms)}))" if len(terms) > 1 else terms[0]

    def _position(self, node: Node, e: Emitter, i: str, axis: Axis, x: Facts) -> str:
        assert isinstance(axis.size, Dim) and isinstance(axis.out, Dim) and axis.position is not None
        r = real(x)
        n, m = f"({r.name}){e.c(axis.size)}", f"({r.name}){e.c(axis.out)}"
        mode = str(node.attrs.get("coordinate_transformation_mode", "half_pixel"))
        a = b = ""
        if mode == "tf_crop_and_resize":
            count = sum(1 for other in self.axes(node, x) or [] if other.position is not None)
            a, b = (e.load(1, [e.position(axis.position + k * count)]) for k in (0, 1))
        i, s, h = f"({r.name}){i}", self._scale(e, r, axis), r.number(0.5)
        return e.local(r.dtype, POSITIONS[mode].format(i=i, s=s, n=n, m=m, a=a, b=b, h=h))

    def _scale(self, e: Emitter, r: CType, axis: Axis) -> str:
        assert isinstance(axis.size, Dim) and isinstance(axis.out, Dim) and axis.position is not None
        if axis.is_read:
            return e.load(2, [e.position(axis.position)])
        if axis.scale is not None:
            return r.number(axis.scale)
        return f"(({r.name}){e.c(axis.out)} / ({r.name}){e.c(axis.size)})"

    def _taps(self, node: Node, e: Emitter, r: CType, position: str, axis: Axis) -> list[tuple[Index, str]]:
        """(index, C weight) of the elements that contribute along one axis, indices clamped into it."""
        assert isinstance(axis.size, Dim)
        last = f"({e.c(axis.size)} - 1)"
        mode = str(node.attrs.get("mode", "nearest"))

        def clamped(text: str) -> Index:
            return e.opaque(f"sod2_imax(sod2_imin({text}, {last}), 0)")

        if mode == "nearest":
            rounding = NEAREST[str(node.attrs.get("nearest_mode", "round_prefer_floor"))]
            return [(clamped(f"(int64_t){r.functions(rounding.format(x=position, h=r.number(0.5)))}"), "")]
        if mode == "linear":  # beyond the ends both taps are the end
            end = f"({r.name}){last}"
            position = e.local(r.dtype, f"({position} < 0 ? 0 : {position} > {end} ? {end} : {position})")
        base = e.local(np.dtype(np.int64), r.functions(f"(int64_t)~floor({position})"))
        t = e.local(r.dtype, f"({position} - ({r.name}){base})")
        if mode == "linear":
            return [(clamped(base), f"(1 - {t})"), (clamped(f"{base} + 1"), t)]
        return self._cubic_taps(node, e, r, base=base, t=t, last=last)

    def _cubic_taps(self, node: Node, e: Emitter, r: CType, *, base: str, t: str, last: str) -> list[tuple[Index, str]]:
        a = r.number(float(node.attrs.get("cubic_coeff_a", -0.75)))
        near = "((({a} + 2) * {d} - ({a} + 3)) * {d} * {d} + 1)"
        far = "((({a} * {d} - 5 * {a}) * {d} + 8 * {a}) * {d} - 4 * {a})"
        forms = [(far, f"({t} + 1)"), (near, t), (near, f"(1 - {t})"), (far, f"(2 - {t})")]
        weights = [e.local(r.dtype, form.format(a=a, d=d)) for form, d in forms]
        places = [f"({base} + {k - 1})" for k in range(4)]
        if node.attrs.get("exclude_outside", 0):
            inside = [f"({p} >= 0 && {p} <= {last} ? {w} : 0)" for p, w in zip(places, weights, strict=True)]
            total = e.local(r.dtype, f"({' + '.join(inside)})")
            weights = [f"({w} / {total})" for w in inside]
        return [(e.opaque(f"sod2_imax(sod2_imin({p}, {last}), 0)"), w) for p, w in zip(places, weights, strict=True)]

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        return [resized(node, *arrays)]

    def examples(self) -> Examples:
        yield from _examples()


def real(x: Facts) -> CType:
    """The type in which positions and weights are computed."""
    assert x[0] is not None
    wide = x[0].dtype == np.float64
    return CType(np.dtype(np.float64), "double") if wide else CType(np.dtype(np.float32), "float")


def _examples() -> Examples:
    x = np.random.default_rng(8).standard_normal((1, 2, 4, 5)).astype(np.float32)
    up, down = np.array([1, 1, 2, 1.5], np.float32), np.array([1, 1, 0.5, 0.75], np.float32)
    sizes = np.array([1, 2, 7, 3], np.int64)
    for mode in TAPS:
        for transformation in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"):
            attrs = {"mode": mode, "coordinate_transformation_mode": transformation}
            yield attrs, [x, None, up]
            yield attrs, [x, None, None, sizes]
        yield {"mode": mode, "coordinate_transformation_mode": "half_pixel_symmetric"}, [x, None, down]
    for rounding in NEAREST:
        yield {"nearest_mode": rounding}, [x, None, down]
    for mode in RADIUS:
        for excludes in (0, 1):
            smooth = {"mode": mode, "antialias": 1, "exclude_outside": excludes}
            yield smooth, [x, None, down]
            yield smooth, [x, None, None, sizes]
    yield {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}, [x, None, up]
    yield {"mode": "linear", "axes": [2, 3]}, [x, None, None, np.array([3, 9], np.int64)]
    roi = np.array([0, 0, 0.2, -0.25, 1, 1, 0.8, 1.25], np.float32)
    crop = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    yield crop, [x, roi, None, sizes]
    yield {}, [np.arange(224, dtype=np.float32).reshape(1, 1, 224), None, np.array([1, 1, 223.9999 / 224], np.float32)]
