"""Einsum: a loop over the letters that are summed. Products that MatMul computes are lowered to it (lowering.py).

The equation is read once into the subscripts of each operand and of the output. "..." stands for as many dims as an
operand has left, which broadcast as in MatMul. Without "->" the output has the letters that occur once, in order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sod2.dtypes import is_float
from sod2.errors import ModelError
from sod2.graph import Node
from sod2.lattice import Shape
from sod2.ops.anchor import dims_of, known_dims
from sod2.ops.direct import accumulator
from sod2.ops.elementwise import broadcast_guards, broadcast_shapes
from sod2.ops.lift import Element
from sod2.ops.op import Array, Emitter, Facts, Index, MappingType, Op, register
from sod2.symbolic import Dim, eq

Dims = tuple[Element, ...]


@dataclass(frozen=True)
class Equation:
    """Subscripts of the operands and of the output; "." is the ellipsis."""

    operands: tuple[str, ...]
    output: str


def equation_of(node: Node) -> Equation:
    """The equation of a node; ModelError when the number of operands is not that of the inputs."""
    text = str(node.attrs["equation"]).replace(" ", "").replace("...", ".")
    left, arrow, output = text.partition("->")
    operands = tuple(left.split(","))
    if len(operands) != len(node.inputs):
        raise ModelError(f"Einsum (node {node.name!r}) has {len(node.inputs)} inputs for the equation {text!r}")
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        output = ("." if "." in left else "") + "".join(c for c in sorted(set(letters)) if letters.count(c) == 1)
    return Equation(operands, output)


def split(node: Node, subscripts: str, dims: Dims) -> tuple[dict[str, list[Element]], Dims]:
    """The dims of one operand by letter (a letter may repeat), and those of its ellipsis."""
    count = len(dims) - len(subscripts.replace(".", ""))
    if count < 0 or (count > 0 and "." not in subscripts):
        raise ModelError(f"Einsum (node {node.name!r}) has an operand of {len(dims)} dims for {subscripts!r}")
    position = 0
    letters: dict[str, list[Element]] = {}
    ellipsis: Dims = ()
    for c in subscripts:
        if c == ".":
            ellipsis = dims[position : position + count]
            position += count
        else:
            letters.setdefault(c, []).append(dims[position])
            position += 1
    return letters, ellipsis


def _operand_index(
    e: Emitter, subscripts: str, dims: Sequence[Dim], letters: Mapping[str, Any], dots: Sequence[Any]
) -> list[Any]:
    """The index into an operand: that of each letter and of the ellipsis, 0 where the operand's dim is 1."""
    own: list[Any] = []
    count = len(dims) - len(subscripts.replace(".", ""))
    for c in subscripts:
        own += dots[len(dots) - count :] if c == "." else [letters[c]]
    return [e.position(0) if d == 1 else _within(e, i, d) for i, d in zip(own, dims, strict=True)]


def _within(e: Emitter, index: Any, dim: Dim) -> Any:
    """The index, or 0 where the dim turns out to be 1 and is broadcast."""
    return index if eq(dim, 1) is False else e.opaque(f"({e.c(dim)} == 1 ? 0 : {e.c(index)})")


@register()
class Einsum(Op):
    """Sum of products over the letters that the output does not have."""

    mapping = MappingType.MANY_TO_MANY
    cost = 100

    def _dims(self, node: Node, x: Facts) -> tuple[dict[str, list[Element]], list[Dims]]:
        """All dims by letter over all operands, and the ellipsis of each operand that has one."""
        equation = equation_of(node)
        letters: dict[str, list[Element]] = {}
        ellipses = []
        for subscripts, fact in zip(equation.operands, x, strict=True):
            own, ellipsis = split(node, subscripts, dims_of(fact))
            for letter, dims in own.items():
                letters.setdefault(letter, []).extend(dims)
            if "." in subscripts:
                ellipses.append(ellipsis)
        return letters, ellipses

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        letters, ellipses = self._dims(node, x)
        dims: list[Element] = []
        for c in equation_of(node).output:
            if c == ".":
                dims += broadcast_shapes(ellipses)
            else:
                dims.append(broadcast_shapes([(d,) for d in letters[c]])[0])
        return [tuple(dims)]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        letters, ellipses = self._dims(node, x)
        summed = [pair for dims in letters.values() for pair in broadcast_guards([(d,) for d in dims])]
        return summed + broadcast_guards(ellipses)

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        equation, (letters, ellipses) = equation_of(node), self._dims(node, x)
        rank = max(map(len, ellipses), default=0)
        where: dict[str, Any] = {}
        many: Sequence[Any] = ()
        position = 0
        for c in equation.output:
            if c == ".":
                many, position = index[position : position + rank], position + rank
            else:
                where[c], position = index[position], position + 1
        summed = [c for c in letters if c not in where]
        extents = [broadcast_shapes([(d,) for d in letters[c]])[0] for c in summed]
        hidden = [d for d in broadcast_shapes(ellipses)] if ellipses and "." not in equation.output else []
        assert x[0] is not None

        def step(k: list[Any], total: str) -> str:
            own = {**where, **dict(zip(summed, k[: len(summed)], strict=True))}
            dots = many or k[len(summed) :]
            factors = [
                e.load(i, _operand_index(e, subscripts, known_dims(fact), own, dots))
                for i, (subscripts, fact) in enumerate(zip(equation.operands, x, strict=True))
            ]
            return f"{total} + {' * '.join(factors)}"

        sizes = [d for d in (*extents, *hidden) if isinstance(d, Dim)]
        return f"(({e.element(x[0].dtype)}){e.fold(accumulator(x[0].dtype), '0', sizes, step)})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        operands = [a for a in arrays if a is not None]
        wide = np.float64 if is_float(operands[0].dtype) else operands[0].dtype
        equation = str(node.attrs["equation"]).replace(" ", "")
        return [np.asarray(np.einsum(equation, *(a.astype(wide) for a in operands))).astype(operands[0].dtype)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(22)
        cases: list[tuple[str, list[tuple[int, ...]]]] = [
            ("ij,jk->ik", [(3, 4), (4, 5)]),
            ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
            ("...ij,...jk->...ik", [(2, 3, 4), (1, 4, 5)]),
            ("ij->ji", [(3, 4)]),
            ("i,i", [(4,), (4,)]),
            ("ii->i", [(3, 3)]),
            ("bij , j -> bi", [(2, 3, 4), (4,)]),
            ("ij,jk", [(1, 1), (1, 1)]),
            ("ij,jk->ik", [(0, 4), (4, 5)]),
        ]
        for equation, shapes in cases:
            yield {"equation": equation}, [random.standard_normal(s).astype(np.float32) for s in shapes]
