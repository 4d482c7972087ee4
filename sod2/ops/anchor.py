"""What anchors share: operators with a kernel of their own in sod2/runtime, around which fusion groups form.

An anchor's `call` declares the kernel's argument struct with `Call.setup` and returns the statements that run it. The
struct is always called `g`. The same declaration is emitted twice: where a shape is bound (tensor pointers are NULL,
`threads` is in scope; the expressions given to `Call.scratch` and `Call.choice` are evaluated there) and in the step
(`pool` is in scope).

Most kernels compute in float32; an anchor that meets a dtype that its kernel does not take says so when code is
generated, not when it is analysed.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sod2.dtypes import is_float
from sod2.errors import ModelError, UnsupportedError
from sod2.graph import Node
from sod2.lattice import UNDEF, Nac, Shape
from sod2.ops.lift import Element
from sod2.ops.op import Fact, Facts, Op
from sod2.symbolic import Dim, as_dim, eq

_MACROS = {
    name: f"SOD2_{name.upper()}"
    for name in ("float32", "float64", "bool", "int8", "uint8", "int16", "int32", "uint32", "int64")
}


@dataclass(frozen=True)
class Bias:
    """An addend that an anchor's kernel leaves to its epilogue: result + scale * operand.

    Dim i of the operand runs along dim `dims[i]` of output 0 and is broadcast where it is 1: exactly what
    `Add(result, operand)` does once the operand is viewed under the output's rank.
    """

    operand: int
    dims: tuple[int, ...]
    scale: float = 1.0


class Anchor(Op):
    """Base of the operators that call a kernel of the runtime."""

    cost = 100
    rectifies: bool = False  # the kernel can add its bias and apply a Relu behind it without an epilogue

    def bias(self, node: Node, x: Facts) -> Bias | None:
        """The addend that the epilogue has to apply as its first step; None when there is none."""
        return None


def count(dims: Iterable[Dim]) -> Dim:
    """Number of elements; 1 for no dims."""
    return math.prod(dims, start=as_dim(1))


def dims_of(fact: Fact | None) -> tuple[Element, ...]:
    """The dims of a tensor, each maybe unknown; UnsupportedError when not even the rank is known."""
    if fact is None or not isinstance(fact.shape, tuple):
        raise UnsupportedError(f"a tensor of known rank is needed here, but it is {fact}")
    return fact.shape


def ranked_dims(node: Node, x: Facts, i: int, rank: int) -> tuple[Element, ...]:
    """The dims of input `i`; ModelError when there are not `rank` of them."""
    dims = dims_of(x[i])
    if len(dims) != rank:
        raise ModelError(f"{node.op} (node {node.name!r}) has an input {i} of {x[i]}; {rank} dims are needed")
    return dims


def known_dims(fact: Fact | None) -> tuple[Dim, ...]:
    """The dims of a tensor that is present and whose shape is known; UnsupportedError otherwise."""
    if fact is None:
        raise UnsupportedError("a tensor is needed here, but the input is absent")
    return fact.dims


def proved(fact: Fact | None, rank: int) -> tuple[Element, ...]:
    """The dims of a tensor of that rank as a backward rule may use them: UNDEF where unknown or of another rank."""
    if fact is None or not isinstance(fact.shape, tuple) or len(fact.shape) != rank:
        return (UNDEF,) * rank
    return tuple(UNDEF if isinstance(d, Nac) else d for d in fact.shape)


def proved_shape(fact: Fact | None) -> Shape:
    """The shape of a tensor as a backward rule may use it: UNDEF where rank or dims are unknown."""
    return proved(fact, fact.rank) if fact is not None and fact.rank is not None else UNDEF


def backwards(node: Node, known: Sequence[Shape]) -> list[Shape]:
    """`known` shapes of the first inputs, padded or cut to the number of inputs; absent inputs get UNDEF."""
    padded = [*known, *[UNDEF] * len(node.inputs)]
    return [shape if name else UNDEF for name, shape in zip(node.inputs, padded, strict=False)]


def must_equal(a: Element, b: Element) -> list[tuple[Dim, Dim]]:
    """The guard a == b, when both are known and their equality is not proved."""
    return [(a, b)] if isinstance(a, Dim) and isinstance(b, Dim) and eq(a, b) is not True else []


def in_float(x: Facts) -> bool:
    """Whether a kernel that computes in float serves: 16-bit floats are converted around it (widening.py)."""
    return all(f is None or (is_float(f.dtype) and f.dtype.itemsize <= 4) for f in x)


def is_double(x: Facts) -> bool:
    """Whether every operand is of doubles: the few kernels that take them have a variant or a case of their own."""
    return all(f is None or f.dtype == np.float64 for f in x)


def require_float32(node: Node, *facts: Fact | None) -> None:
    """UnsupportedError unless every present tensor is float32, the only dtype of most kernels."""
    for fact in facts:
        if fact is not None and fact.dtype != np.float32:
            raise UnsupportedError(
                f"{node.op} (node {node.name!r}) has a {fact.dtype} operand; its kernel takes float32"
            )


def real_suffix(node: Node, *facts: Fact | None) -> str:
    """How the functions of a kernel that is compiled for floats and for doubles end (runtime/real.h)."""
    if is_double(facts):
        return "_double"
    require_float32(node, *facts)
    return ""


def dtype_macro(node: Node, dtype: np.dtype[Any]) -> str:
    """The runtime's name (sod2.h) of a dtype that runtime/reduce_nd.c takes."""
    if dtype.name not in _MACROS:
        raise UnsupportedError(f"{node.op} (node {node.name!r}) of {dtype} has no kernel; {', '.join(_MACROS)} have")
    return _MACROS[dtype.name]


def f32(value: float) -> str:
    """C literal (float) of a number; infinities and NaN by their macros."""
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{np.float32(value)!s}f"


def initializer(name: str, struct: str, **fields: object) -> str:
    """C declaration of a struct variable with designated initializers, one field a line; it may stay unused."""
    lines = "".join(f"    .{field} = {value},\n" for field, value in fields.items())
    return f"{struct} {name} = {{\n{lines}}};\n(void){name};"
