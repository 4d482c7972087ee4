"""Axes that only execution tells: shapes with some axes dropped, set to 1 or inserted, as expressions over the axes.

An axis is a dim expression `a` in [-rank, rank). Whether axis i is among them is the number
1 - min(|a mod rank - i|, 1), so that every dim of a result is a polynomial: the sum, over the dims that it may be, of
the dim times 0 or 1.
"""

from collections.abc import Sequence

from sod2.ops.lift import Element, integers, lift
from sod2.ops.op import Fact
from sod2.symbolic import Dim, as_dim, eq, maximum, minimum, mod

Pairs = list[tuple[Dim, Dim]]


def axis_values(fact: Fact | None, rank: int) -> list[Dim] | None:
    """The elements of a tensor of axes as expressions from 0 to rank - 1; None where one has none."""
    values = integers(fact)
    if values is None or not all(isinstance(v, Dim) for v in values):
        return None
    return [mod(v, as_dim(rank)) for v in values if isinstance(v, Dim)] if rank else []


def axis_guards(fact: Fact | None, rank: int) -> Pairs:
    """Pairs that are equal exactly when the axes are in range."""
    values = [v for v in integers(fact) or [] if isinstance(v, Dim)]
    pairs = [(minimum(maximum(v, -rank), rank - 1), v) for v in values]
    return [(a, b) for a, b in pairs if eq(a, b) is not True]


def _is(a: Dim, b: Dim | int) -> Dim:
    """1 where a == b, else 0."""
    return 1 - minimum(maximum(a - b, b - a), 1)


def among(axes: Sequence[Dim], i: int) -> Dim:
    """1 where i is one of the axes, else 0."""
    missed = as_dim(1)
    for a in axes:
        missed = missed * (1 - _is(a, i))
    return 1 - missed


def _pick(dims: Sequence[Element], chosen: Sequence[Dim]) -> Element:
    """The dim whose number in `chosen` is 1; the others are 0."""
    wanted = [(d, c) for d, c in zip(dims, chosen, strict=True) if c != as_dim(0)]
    return lift(
        lambda *ds: sum((d * c for d, (_, c) in zip(ds, wanted, strict=True)), start=as_dim(0)), *[d for d, _ in wanted]
    )


def dim_at(dims: Sequence[Element], axis: Dim) -> Element:
    """The dim at an axis."""
    return dims[int(axis)] if axis.is_constant else _pick(dims, [_is(axis, i) for i in range(len(dims))])


def set_to_one(dims: Sequence[Element], axes: Sequence[Dim]) -> tuple[Element, ...]:
    """The dims with 1 at the axes."""
    hits = [among(axes, i) for i in range(len(dims))]
    return tuple(lift(lambda d, h=h: d * (1 - h) + h, d) for d, h in zip(dims, hits, strict=True))


def dropped(dims: Sequence[Element], axes: Sequence[Dim]) -> tuple[Element, ...]:
    """The dims without those at the axes, which differ from one another."""
    kept = [1 - among(axes, i) for i in range(len(dims))]
    before = [sum(kept[:i], start=as_dim(0)) for i in range(len(dims))]
    return tuple(
        _pick(dims, [k * _is(b, out) for k, b in zip(kept, before, strict=True)])
        for out in range(len(dims) - len(axes))
    )


def inserted(dims: Sequence[Element], axes: Sequence[Dim]) -> tuple[Element, ...]:
    """The dims with 1 inserted at the axes, which count in the result."""
    hits = [among(axes, i) for i in range(len(dims) + len(axes))]
    result: list[Element] = []
    for k, hit in enumerate(hits):
        source = k - sum(hits[:k], start=as_dim(0))
        found = _pick(dims, [_is(source, i) for i in range(len(dims))])
        result.append(lift(lambda d, h=hit: d * (1 - h) + h, found) if dims else as_dim(1))
    return tuple(result)


def given_to(axes: Sequence[Dim], values: Sequence[Element], rank: int, otherwise: Sequence[Element]) -> list[Element]:
    """For every axis the value that belongs to it: values[j] at axes[j], `otherwise` where it is not among the axes."""
    result: list[Element] = []
    for i in range(rank):
        chosen = [_is(a, i) for a in axes]
        result.append(_pick([*values, otherwise[i]], [*chosen, 1 - sum(chosen, start=as_dim(0))]))
    return result
