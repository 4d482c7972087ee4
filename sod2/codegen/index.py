"""Element indices inside a generated loop nest, and the collapsing of its axes.

An index is affine in the loop axes, with coefficients that are dim expressions; what isn't affine (a gathered index, a
clamp) is C text added to it. A memory access is one index, the offset into its buffer. Two neighbouring axes of a nest
collapse into one when every access steps over the inner axis as over the outer: coefficient(outer) equals
coefficient(inner) * extent(inner), proved symbolically. Facts from RDP are what make those proofs succeed, so that one
long vectorised loop replaces a nest of short ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sod2.symbolic import Dim, as_dim, constant, eq

_ZERO = constant(0)


Text = tuple[tuple[str, Dim], ...]  # C expressions (int64_t), each with its factor


@dataclass(frozen=True)
class Affine:
    """base + sum(coefficient * axis) + sum(factor * C text)."""

    terms: Mapping[int, Dim]
    base: Dim = _ZERO
    text: Text = ()

    @staticmethod
    def axis(number: int) -> "Affine":
        """The loop variable of an axis."""
        return Affine({number: constant(1)})

    def __add__(self, other: "Affine | Dim | int") -> "Affine":
        if not isinstance(other, Affine):
            return replace(self, base=self.base + other)
        terms = {k: self.terms.get(k, _ZERO) + other.terms.get(k, _ZERO) for k in {**self.terms, **other.terms}}
        kept = {k: c for k, c in sorted(terms.items()) if c != _ZERO}
        return Affine(kept, self.base + other.base, self.text + other.text)

    def __mul__(self, factor: "Dim | int") -> "Affine":
        if as_dim(factor) == _ZERO:
            return Affine({})
        text = tuple((t, c * factor) for t, c in self.text)
        return Affine({k: c * factor for k, c in self.terms.items()}, self.base * factor, text)


def offset(index: Sequence[Affine], dims: Sequence[Dim]) -> Affine:
    """Row-major linear offset of a multi-index into a dense tensor of shape `dims`."""
    total, stride = Affine({}), constant(1)
    for position, dim in zip(reversed(index), reversed(dims), strict=True):
        total, stride = total + position * stride, stride * dim
    return total


@dataclass(frozen=True)
class Axis:
    """One loop after collapsing: its extent and the original axes it covers (outermost first)."""

    extent: Dim
    members: tuple[int, ...]


def _joins(access: Affine, outer: int, inner: int, extent: Dim) -> bool:
    return eq(access.terms.get(outer, _ZERO), access.terms.get(inner, _ZERO) * extent) is True


def collapse(extents: Sequence[Dim], accesses: Iterable[Affine], pinned: frozenset[int]) -> tuple[Axis, ...]:
    """Merge neighbouring axes wherever all accesses allow; `pinned` axes are used by C text and stay as they are.

    Axes of extent 1 vanish into their neighbour; there is always at least one axis.
    """
    accesses = list(accesses)
    axes: list[Axis] = []
    for number, extent in enumerate(extents):
        if extent == constant(1) and number not in pinned:
            continue
        if axes and number not in pinned and not pinned.intersection(axes[-1].members):
            last = axes[-1]
            if all(_joins(a, last.members[-1], number, extent) for a in accesses):
                axes[-1] = Axis(last.extent * extent, (*last.members, number))
                continue
        axes.append(Axis(extent, (number,)))
    return tuple(axes) or (Axis(constant(1), ()),)
