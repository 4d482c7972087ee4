"""Concat and Split: parallel byte copies between one tensor and its pieces along an axis (runtime/movement.c)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.errors import ModelError
from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Shape, Undef
from sod2.ops.attributes import axis_of, present
from sod2.ops.lift import (
    Element,
    elements,
    integers,
    is_undefined,
    lift,
    number_arrays,
    packed,
    small_shape,
)
from sod2.ops.op import Array, Call, Fact, Facts, MappingType, Op, TensorValue, register
from sod2.symbolic import Dim, as_dim, ceildiv, eq, maximum

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]


def _shapes(facts: Facts) -> list[tuple[Element, ...]]:
    return [f.shape for f in facts if f is not None and isinstance(f.shape, tuple)]


def _sum(dims: Sequence[Element]) -> Element:
    return lift(lambda *ds: sum(ds, start=as_dim(0)), *dims)


def _common(dims: Sequence[Element]) -> Element:
    """The simplest of dims that must be equal: a constant, else an expression, else what there is."""
    known = [d for d in dims if isinstance(d, Dim)]
    return min(known, key=lambda d: (not d.is_constant, not d.is_symbol), default=dims[0])


def _equal_guards(dims: Sequence[Element]) -> list[tuple[Dim, Dim]]:
    known = [d for d in dims if isinstance(d, Dim)]
    return [(known[0], d) for d in known[1:] if eq(known[0], d) is not True]


def _copy(k: Call, whole: Fact, axis: int, lengths: Sequence[Dim], *, function: str, piece: str, tensor: str) -> str:
    """The block that calls sod2_concat or sod2_split; `piece` declares the pointers to the pieces."""
    inner = math.prod(whole.dims[axis + 1 :], start=as_dim(1)) * whole.dtype.itemsize
    outer = math.prod(whole.dims[:axis], start=as_dim(1))
    sizes = ", ".join(k.c(n * inner) for n in lengths)
    return (
        f"{{ {piece} const int64_t bytes[] = {{{sizes}}};\n"
        f"{function}({k.c(outer)}, {len(lengths)}, piece, bytes, {tensor}, pool); }}"
    )


@register()
class Concat(Op):
    """The inputs one after the other along `axis`."""

    mapping = MappingType.ONE_TO_ONE

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        shapes = _shapes(x)
        if len({len(s) for s in shapes}) != 1:
            raise ModelError(
                f"Concat (node {node.name!r}): inputs of ranks {[len(s) for s in shapes]}; one rank is needed"
            )
        axis = axis_of(node, len(shapes[0]), 0)
        columns = list(zip(*shapes, strict=True))
        return [tuple(_sum(c) if i == axis else _common(c) for i, c in enumerate(columns))]

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        assert y[0] is not None
        if small_shape(y[0]) is None:
            return [NAC]
        if is_undefined(x):
            return [UNDEF]
        if (numbers := number_arrays(x)) is not None:
            return list(self.reference(node, *numbers))
        opened = [o for f in x if f is not None and (o := elements(f)) is not None]
        if len(opened) != len(x):
            return [NAC]
        return [packed(np.concatenate(opened, axis=int(node.attrs.get("axis", 0))), y[0].dtype)]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        """Dims beside the axis are the output's; along it one unknown is the difference."""
        if y[0] is None or not isinstance(y[0].shape, tuple):
            return [UNDEF] * len(x)
        out = y[0].shape
        axis = axis_of(node, len(out), 0)
        claims: list[Shape] = []
        for i in range(len(x)):
            others = [
                f.shape[axis] if f is not None and isinstance(f.shape, tuple) else NAC for f in (*x[:i], *x[i + 1 :])
            ]
            rest = lift(lambda total, *ds: total - sum(ds, start=as_dim(0)), out[axis], *others)
            claims.append(
                tuple((rest if isinstance(rest, Dim) else UNDEF) if k == axis else d for k, d in enumerate(out))
            )
        return claims

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        shapes = _shapes(x)
        axis = axis_of(node, len(shapes[0]), 0)
        columns = zip(*shapes, strict=True)
        return [pair for i, c in enumerate(columns) if i != axis for pair in _equal_guards(c)]

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        whole = y[0]
        assert whole is not None
        axis = axis_of(node, len(whole.dims), 0)
        pieces = f"const void *const piece[] = {{{', '.join(k.pointer(i) for i in range(len(x)))}}};"
        lengths = [f.dims[axis] for f in x if f is not None]
        return _copy(k, whole, axis, lengths, function="sod2_concat", piece=pieces, tensor=k.result(0))

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        return [np.concatenate([a for a in arrays if a is not None], axis=int(node.attrs.get("axis", 0)))]

    def examples(self) -> Examples:
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        yield {"axis": 1}, [x, x[:, :1], x[:, :0]]
        yield {"axis": -1}, [x, x[:, :, 1:]]
        yield {"axis": 0}, [x]
        yield {"axis": 0}, [np.array([3, 4]), np.array([], np.int64), np.array([5])]
        yield {"axis": 0}, [np.array([[True]]), np.array([[False]])]


@register()
class Split(Op):
    """Pieces along `axis`: of the given sizes, or `num_outputs` equal ones where the last may be smaller."""

    shape_inputs = (1,)
    mapping = MappingType.ONE_TO_ONE

    def sizes(self, node: Node, x: Facts) -> list[Element]:
        """The size of every output along the axis."""
        (shape,) = _shapes(x[:1])
        whole = shape[axis_of(node, len(shape), 0)]
        given = present(x, 1)
        if "split" in node.attrs:
            return [as_dim(int(s)) for s in node.attrs["split"]]
        if given is not None:
            unknown: Element = UNDEF if isinstance(given.value, Undef) else NAC
            return integers(given) or [unknown] * len(node.outputs)
        count = len(node.outputs)
        part = lift(lambda n: ceildiv(n, count), whole)
        return [part] * (count - 1) + [lift(lambda n, p: n - p * (count - 1), whole, part)]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        (shape,) = _shapes(x[:1])
        axis = axis_of(node, len(shape), 0)
        return [(*shape[:axis], size, *shape[axis + 1 :]) for size in self.sizes(node, x)]

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        assert x[0] is not None
        if isinstance(x[0].value, Undef):
            return [UNDEF] * len(y)
        sizes = [int(s) for s in self.sizes(node, x) if isinstance(s, Dim) and s.is_constant]
        if not isinstance(x[0].value, np.ndarray) or len(sizes) != len(y):
            return [NAC] * len(y)
        pieces = np.split(x[0].value, np.cumsum(sizes)[:-1], axis=axis_of(node, x[0].value.ndim, 0))
        return [packed(p, x[0].dtype) if p.dtype == object else p for p in pieces]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        shapes = _shapes(y)
        rest: list[Shape] = [UNDEF] * (len(x) - 1)
        if len(shapes) != len(node.outputs):
            return [UNDEF, *rest]
        axis = axis_of(node, len(shapes[0]), 0)
        total = _sum([s[axis] for s in shapes])
        columns = zip(*shapes, strict=True)
        claim = tuple(
            (total if isinstance(total, Dim) else UNDEF) if i == axis else _common(c) for i, c in enumerate(columns)
        )
        return [claim, *rest]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        """Sizes add up to the axis, are not negative, and are equal unless `num_outputs` or sizes allow otherwise."""
        (shape,) = _shapes(x[:1])
        whole = shape[axis_of(node, len(shape), 0)]
        sizes = self.sizes(node, x)
        pairs = [(maximum(s, 0), s) for s in sizes if isinstance(s, Dim)]
        total = _sum(sizes)
        if isinstance(total, Dim) and isinstance(whole, Dim):
            pairs.append((total, whole))
        if "num_outputs" not in node.attrs and "split" not in node.attrs and present(x, 1) is None:
            pairs += _equal_guards([sizes[0], sizes[-1]])
        return [(a, b) for a, b in pairs if eq(a, b) is not True]

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        whole = x[0]
        assert whole is not None
        axis = axis_of(node, len(whole.dims), 0)
        written = [k.result(i) if name else "NULL" for i, name in enumerate(node.outputs)]
        lengths = [d for d in self.sizes(node, x) if isinstance(d, Dim)]
        pieces = f"void *const piece[] = {{{', '.join(written)}}};"
        return _copy(k, whole, axis, lengths, function="sod2_split", piece=pieces, tensor=k.pointer(0))

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        given = present(arrays, 1)
        axis = int(node.attrs.get("axis", 0))
        count = len(node.outputs)
        part = -(-x.shape[axis] // count)
        sizes = node.attrs.get("split", [part] * count) if given is None else given
        return [np.ascontiguousarray(p) for p in np.split(x, np.cumsum(sizes)[:-1], axis=axis)]

    def examples(self) -> Examples:
        x = np.arange(24, dtype=np.float32).reshape(2, 6, 2)
        yield {"axis": 1}, [x, np.array([1, 5], np.int64)]
        yield {"axis": -2}, [x, np.array([2, 0, 4], np.int64)]
        yield {"axis": 1, "num_outputs": 4}, [x]
        yield {"num_outputs": 2}, [x]
        yield {"num_outputs": 1}, [np.array([4, 5, 6])]
        yield {"axis": 0}, [np.array([4, 5, 6]), np.array([1, 2], np.int64)]
        yield {"axis": 1, "num_outputs": 3}, [x[:0]]
