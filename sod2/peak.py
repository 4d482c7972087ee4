"""Peaks of memory as maxima of symbolic sums, and the sizes at which they are compared when symbols do not decide.

A peak is a collection of sums, one for each moment; its value is the largest. `undominated` drops the sums that another
one is provably never below; `never_above` proves one peak at most another. Both rest on `symbolic.le`, which answers
unknown rather than guess, and both first look at sampled values, which refute most comparisons cheaply.

`environments` gives the samples: values of the symbols inside their bounds, from small to large, together and one by
one. They are fixed, so that a compilation is reproducible. What holds at all samples is likely, never certain, and is
used only to choose between orders that are all correct.
"""

from collections.abc import Iterable, Mapping, Sequence

from sod2.symbolic import Dim, compile_dims, le
from sod2.symbolic.form import Call, Symbol

Environment = Mapping[str, int]

_COMMON = (8, 64, 224, 640)  # all symbols alike
_LARGE, _SMALL = 512, 16  # one symbol large, the others small
_ALONE = 4  # as many symbols get such a sample
_THOROUGH = 40  # sums up to which dominance is proved by bounds; among more, term by term


def environments(dims: Iterable[Dim]) -> list[Environment]:
    """Values for all symbols of `dims`, clipped to their bounds; the last has the largest. At least one."""
    symbols = sorted(_symbols(dims), key=lambda s: s.key)
    values = [dict.fromkeys(symbols, v) for v in _COMMON[:-1]]
    if len(symbols) > 1:
        values += [{s: _LARGE if s is large else _SMALL for s in symbols} for large in symbols[:_ALONE]]
    values.append(dict.fromkeys(symbols, _COMMON[-1]))
    return [{s.name: _clipped(s, v) for s, v in sample.items()} for sample in values]


def sampled(dims: Sequence[Dim], samples: Sequence[Environment]) -> list[tuple[int, ...]]:
    """For every dim its values at the samples; those at which a dim has no value (a division by 0) are left out."""
    values = compile_dims(tuple(dims))
    columns = []
    for sample in samples:
        try:
            columns.append(values(sample))
        except ZeroDivisionError:
            continue
    return [tuple(column[i] for column in columns) for i in range(len(dims))]


def undominated(sums: Sequence[Dim]) -> list[Dim]:
    """The sums, in their order, without those that another one is provably never below."""
    sums = list(dict.fromkeys(sums))
    values = sampled(sums, environments(sums))
    at_most = le if len(sums) <= _THOROUGH else _termwise
    kept: list[int] = []
    for i in sorted(range(len(sums)), key=lambda i: (tuple(-v for v in reversed(values[i])), i)):
        if not any(_covers(values[j], values[i]) and at_most(sums[i], sums[j]) for j in kept):
            kept = [j for j in kept if not (_covers(values[i], values[j]) and at_most(sums[j], sums[i]))]
            kept.append(i)
    return [sums[i] for i in sorted(kept)]


def _termwise(a: Dim, b: Dim) -> bool:
    """Whether each term of `a` is in `b` with at least its coefficient: then a <= b for sums of sizes."""
    other = dict(b.terms)
    return all(other.get(monomial, 0) >= coefficient for monomial, coefficient in a.terms)


def never_above(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether the peak `a` is provably at most the peak `b`: each of its sums is at most one of b's."""
    values = sampled([*a, *b], environments([*a, *b]))
    above, below = values[: len(a)], values[len(a) :]
    return all(any(_covers(below[j], above[i]) and le(x, y) for j, y in enumerate(b)) for i, x in enumerate(a))


def proportional(dims: Sequence[Dim]) -> list[int] | None:
    """Integers that are to each other as the dims are, whatever the symbols' values; None when there are none.

    The dims must be sizes: never negative.
    """
    base = next((d.terms for d in dims if d.terms), ())
    for d in dims:
        if d.terms and [m for m, _ in d.terms] != [m for m, _ in base]:
            return None
        if any(c * base[0][1] != k * d.terms[0][1] for (_, c), (_, k) in zip(d.terms, base, strict=False)):
            return None
    return [abs(d.terms[0][1]) if d.terms else 0 for d in dims]


def _covers(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(x >= y for x, y in zip(a, b, strict=True))


def _clipped(symbol: Symbol, value: int) -> int:
    value = max(value, symbol.low)
    return value if symbol.high is None else min(value, symbol.high)


def _symbols(dims: Iterable[Dim]) -> set[Symbol]:
    found: set[Symbol] = set()
    seen = set(dims)
    pending = list(seen)
    while pending:
        for atom in (atom for monomial, _ in pending.pop().terms for atom in monomial):
            if isinstance(atom, Symbol):
                found.add(atom)
            elif isinstance(atom, Call):
                pending += set(atom.args) - seen
                seen.update(atom.args)
    return found
