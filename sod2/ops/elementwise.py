"""Operators on one element per input at a time, and ONNX's broadcasting of their shapes.

The dim of a broadcast is always `bcast(a, b)`: a dim that may be 1 is never treated as if it weren't. `at` reads
element 0 of a dim that is provably 1, decides at run time where that is unknown, and otherwise needs no test.
"""

import re
from collections.abc import Sequence
from functools import reduce
from itertools import combinations
from typing import Any, ClassVar

import numpy as np

from sod2.dtypes import is_float
from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Shape
from sod2.ops.lift import (
    Element,
    Rule,
    elements,
    exact,
    exactness_guards,
    is_undefined,
    lift,
    number_arrays,
    packed,
    small_shape,
)
from sod2.ops.op import Array, Emitter, Fact, Facts, Index, MappingType, Op, TensorValue
from sod2.symbolic import Dim, as_dim, bcast, eq, maximum, minimum


def broadcast_shapes(shapes: Sequence[tuple[Element, ...]]) -> tuple[Element, ...]:
    """ONNX's multidirectional broadcast, right-aligned."""
    rank = max(map(len, shapes))
    padded = [(as_dim(1),) * (rank - len(s)) + s for s in shapes]
    return tuple(reduce(_broadcast_dims, dims) for dims in zip(*padded, strict=True))


def _broadcast_dims(a: Element, b: Element) -> Element:
    for known, other in ((a, b), (b, a)):
        if isinstance(known, Dim) and not isinstance(other, Dim) and eq(known, 1) is False:
            return known  # valid only if the other is 1 or the same
        if isinstance(known, Dim) and known == 1:
            return other
    return lift(bcast, a, b)


def broadcast_back(shapes: Sequence[Shape], out: Shape) -> list[Shape]:
    """What the result proves about each input: dims that must be 1, and dims that only this input can bring."""
    if not isinstance(out, tuple):
        return [UNDEF] * len(shapes)
    claims: list[Shape] = []
    for i, shape in enumerate(shapes):
        if not isinstance(shape, tuple):
            claims.append(UNDEF)
            continue
        others = [s for j, s in enumerate(shapes) if j != i]
        claims.append(tuple(_claim(k, others, out) for k in range(-len(shape), 0)))
    return claims


def _claim(k: int, others: Sequence[Shape], out: tuple[Element, ...]) -> Element:
    """What is proved about dim `k` (from the right) of the input that isn't among `others`."""
    result = out[k]
    if not isinstance(result, Dim):
        return UNDEF
    if result == 1:
        return result
    for other in others:
        if not isinstance(other, tuple):
            return UNDEF
        dim: Element = other[k] if len(other) >= -k else as_dim(1)
        if not isinstance(dim, Dim) or not (dim == 1 or eq(dim, result) is False):
            return UNDEF
    return result


def broadcast_guards(shapes: Sequence[Shape]) -> list[tuple[Dim, Dim]]:
    """Pairs that are equal exactly when the shapes can be broadcast, without those that hold anyway."""
    known = [s for s in shapes if isinstance(s, tuple)]
    pairs: list[tuple[Dim, Dim]] = []
    for a, b in combinations(known, 2):
        for p, q in zip(reversed(a), reversed(b), strict=False):
            if isinstance(p, Dim) and isinstance(q, Dim):
                pairs += _compatible(p, q)
    return pairs


def _compatible(a: Dim, b: Dim) -> list[tuple[Dim, Dim]]:
    if a == 1 or b == 1 or eq(a, b) is True:
        return []
    ones = [d for d in (a, b) if eq(d, 1) is not False]
    if not ones:
        return [(a, b)]
    return [(minimum(_distance(a, b), *(_distance(d, as_dim(1)) for d in ones)), as_dim(0))]


def _distance(a: Dim, b: Dim) -> Dim:
    return maximum(a - b, b - a)


def broadcast_index(e: Emitter, index: Sequence[Index], fact: Fact, out: Fact) -> list[Index]:
    """The index into a broadcast input for an index into the output."""
    dims, results = fact.dims, out.dims
    tail = len(results) - len(dims)
    return [_dim_index(e, i, d, r) for i, d, r in zip(index[tail:], dims, results[tail:], strict=True)]


def _dim_index(e: Emitter, i: Index, dim: Dim, result: Dim) -> Index:
    if dim == 1:
        return e.position(0)
    if eq(dim, result) is True or eq(dim, 1) is False:
        return i
    return e.opaque(f"({e.c(dim)} == 1 ? 0 : {e.c(i)})")


class Elementwise(Op):
    """An operator on one element per input, broadcast. Subclasses give `expression`, `reference` and maybe a rule."""

    mapping = MappingType.ONE_TO_ONE
    rule: ClassVar[Rule | None] = None  # the operator on Dims; None as a result means unknown

    def expression(self, node: Node, operands: Sequence[str], c: "CType") -> str:
        """The C expression of one element; `operands` may be written several times."""
        raise NotImplementedError(self.name)

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        return [broadcast_shapes([f.shape for f in x if f is not None and isinstance(f.shape, tuple)])]

    def element_rule(self, node: Node, x: Facts) -> Rule | None:
        """The rule for this node; by default the class's."""
        return type(self).rule

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        out = y[0]
        if out is None or small_shape(out) is None:
            return [NAC]
        if is_undefined(x):
            return [UNDEF]
        if (numbers := number_arrays(x)) is not None:
            return list(self.reference(node, *numbers))
        rule = self.element_rule(node, x)
        opened = [elements(f) for f in x if f is not None]
        if rule is None or any(o is None for o in opened):
            return [NAC]
        return [propagated(rule, [o for o in opened if o is not None], out)]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        shapes: list[Shape] = [as_shape(f) for f in x]
        return broadcast_back(shapes, as_shape(y[0]))

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        return broadcast_guards([as_shape(f) for f in x]) + exactness_guards(y)

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        return self.expression(node, loaded_operands(e, index, x, y[0]), ctype(e, x))


def loaded_operands(e: Emitter, index: Sequence[Index], x: Facts, out: Fact | None) -> list[str]:
    """Locals that hold the broadcast inputs' elements at an index of the output."""
    assert out is not None
    present = [(i, f) for i, f in enumerate(x) if f is not None]
    return [e.local(f.dtype, e.load(i, broadcast_index(e, index, f, out))) for i, f in present]


def ctype(e: Emitter, x: Facts) -> "CType":
    """The C side of the first input's element type."""
    dtype = next(f for f in x if f is not None).dtype
    return CType(dtype, e.element(dtype))


def as_shape(fact: Fact | None) -> Shape:
    """The fact's shape; that of an absent tensor is a scalar's, which no broadcast notices."""
    return () if fact is None else fact.shape


def propagated(rule: Rule, opened: Sequence[Array], out: Fact) -> TensorValue:
    """The rule on every element of the broadcast arrays, as the value of `out`."""
    arrays = np.broadcast_arrays(*opened)
    result = np.empty(arrays[0].shape, dtype=object)
    for i in np.ndindex(result.shape):
        members: list[Any] = [a[i] for a in arrays]
        result[i] = exact(lift(rule, *members), out.dtype)
    return packed(result, out.dtype)


class CType:
    """The C side of an element type: its name, its class, and arithmetic that can't overflow."""

    def __init__(self, dtype: np.dtype[Any], name: str) -> None:
        self.dtype = dtype
        self.name = name

    @property
    def suffix(self) -> str:
        """How C's and kernel.h's functions of this type end: `f` for what is computed in float, nothing otherwise."""
        return "f" if self.is_float and self.dtype.itemsize <= 4 else ""

    @property
    def is_float(self) -> bool:
        return is_float(self.dtype)

    @property
    def is_signed(self) -> bool:
        return self.is_float or self.dtype.kind == "i"

    @property
    def unsigned(self) -> str:
        """The unsigned C type of at least 32 bits in which the arithmetic of this integer type wraps."""
        return "uint64_t" if self.dtype.itemsize == 8 else "uint32_t"

    def arithmetic(self, a: str, operator: str, b: str) -> str:
        """a + b, a - b or a * b; integers wrap, as in ONNX Runtime and numpy."""
        if self.is_float:
            return f"({a} {operator} {b})"
        return f"({self.name})(({self.unsigned}){a} {operator} ({self.unsigned}){b})"

    def functions(self, text: str) -> str:
        """`~name(` spelled out: a function of kernel.h for float (sod2_<name>f), of libm for double."""
        return re.sub(r"~(\w+)\(", r"sod2_\1f(" if self.suffix else r"\1(", text)

    def number(self, value: float) -> str:
        """A literal of this type."""
        if not self.is_float:
            number = int(value)
            text = "INT64_MIN" if number == -(2**63) else f"{'U' if number >= 2**63 else ''}INT64_C({number})"
            return f"(({self.name}){text})"
        if np.isnan(value):
            return f'__builtin_nan{self.suffix}("")'
        if value in (np.inf, -np.inf):
            return f"({'-' if value < 0 else ''}__builtin_inf{self.suffix}())"
        exactly = np.float32(value) if self.suffix else value
        text = f"{float(exactly):.17g}"
        return f"({text}{'' if set(text) & set('.en') else '.0'}{self.suffix})"
