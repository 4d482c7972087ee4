"""What is certain about the value of a Dim: bounds and three-valued comparisons.

Lower bounds come from intervals; from intervals with every atom shifted to its lower bound (n*m - n >= 0 for m >= 1);
from a common factor; and from replacing a call by an estimate of it (x//d <= x/d, min(x, y) <= x), one after another.
Comparisons bound the difference. Values at a few sample points refute most of them before any proof is tried.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import islice
from itertools import product as cartesian
from zlib import crc32

from sod2.symbolic.form import (
    CACHE,
    Atom,
    Call,
    Dim,
    DimLike,
    Monomial,
    Symbol,
    as_dim,
    common_factor,
    constant_divisor,
    from_monomial,
    from_terms,
    split,
    without,
)

INF = math.inf
Bound = int | float  # an integer, or an infinity
Interval = tuple[Bound, Bound]

SHIFT_DEGREE = 6  # above it, shifting a term (2 ** degree new ones) isn't tried
RELAX_DEPTH = 6
RELAX_FIRST = 4
RELAX_TERMS = 12
SAMPLES = 4


def bounds(dim: DimLike) -> tuple[int | None, int | None]:
    """Integers that the value is never below or above; None where none is known."""
    low, high = interval(as_dim(dim))
    return (int(low) if low > -INF else None), (int(high) if high < INF else None)


@lru_cache(CACHE)
def interval(dim: Dim) -> Interval:
    return _lower(dim, RELAX_DEPTH), _upper(dim)


def positive(a: Dim) -> bool:
    return interval(a)[0] >= 1


def _upper(dim: Dim) -> Bound:
    return -_lower(-dim, RELAX_DEPTH)


@lru_cache(CACHE)
def _lower(dim: Dim, depth: int) -> Bound:
    """The best lower bound of four methods: intervals, a common factor, intervals after the shift, estimates."""
    best = _interval_low([(c, [_atom_bounds(a) for a in m]) for m, c in dim.terms])
    if len(split(dim)[0]) < 2:
        return best  # one product: its interval is exact
    common = common_factor(dim.terms, dim.terms[0][0])
    if common:
        low = _lower(from_terms({without(m, common) or (): c for m, c in dim.terms}), depth)
        factor = reduce(_interval_product, (_atom_bounds(a) for a in common))
        return max(best, _times(factor[low < 0], low)) if factor[0] >= 0 else best
    best = max(best, _shifted_low(dim))
    if depth and len(dim.terms) <= RELAX_TERMS:
        # The first call is enough further down: the others follow it, in one order instead of all.
        for estimates in islice(_estimates(dim), RELAX_FIRST if depth == RELAX_DEPTH else 1):
            for estimate, scale in estimates:
                low = _lower(estimate, depth - 1)
                best = max(best, -(-low // scale) if low > -INF else low)
    return best


def _interval_low(terms: Sequence[tuple[int, Sequence[Interval]]]) -> Bound:
    """Lower end of a sum of (coefficient, intervals of the factors)."""
    total: Bound = 0
    for c, factors in terms:
        unit: Interval = (c, c)
        low = reduce(_interval_product, factors, unit)[0]
        if low == -INF:
            return low
        total += low
    return total


def _interval_product(a: Interval, b: Interval) -> Interval:
    corners = [_times(x, y) for x in a for y in b]
    return min(corners), max(corners)


def _times(x: Bound, y: Bound) -> Bound:
    """x * y, where 0 * inf is 0 and no large integer meets a float."""
    if x == 0 or y == 0:
        return 0
    if abs(x) == INF or abs(y) == INF:
        return INF if (x > 0) == (y > 0) else -INF
    return x * y


def _shifted_low(dim: Dim) -> Bound:
    """Lower bound with every atom written as low + (a new atom >= 0): proves n*m - n >= 0 for m >= 1."""
    shifted: dict[Monomial, int] = {}
    for monomial, c in dim.terms:
        if len(monomial) > SHIFT_DEGREE:
            return -INF
        lows = [int(low) if (low := _atom_bounds(a)[0]) > -INF else 0 for a in monomial]
        for kept in cartesian(*((True, False) if low else (True,) for low in lows)):
            rest = tuple(a for a, keep in zip(monomial, kept, strict=True) if keep)
            weight = math.prod(low for low, keep in zip(lows, kept, strict=True) if not keep)
            shifted[rest] = shifted.get(rest, 0) + c * weight
    return _interval_low([(c, [_shifted_bounds(a) for a in m]) for m, c in shifted.items() if c])


def _shifted_bounds(atom: Atom) -> Interval:
    low, high = _atom_bounds(atom)
    return (0, high - low) if low > -INF else (low, high)


@lru_cache(CACHE)
def _atom_bounds(atom: Atom) -> Interval:
    if isinstance(atom, Symbol):
        return atom.low, INF if atom.high is None else atom.high
    return _CALL_BOUNDS[atom.op](*(interval(a) for a in atom.args))


def _quotient_bounds(a: Interval, b: Interval) -> Interval:
    """Bounds of a // b where b isn't 0 (there the quotient has no value)."""
    if b[0] < 0 or b[1] < 1:
        return -INF, INF
    small, large = max(b[0], 1), b[1]
    return (
        _rounded_down(a[0], small if a[0] < 0 else large),
        _rounded_down(a[1], large if a[1] < 0 else small),
    )


def _rounded_down(a: Bound, b: Bound) -> Bound:
    """a // b for b >= 1, either of which may be infinite."""
    if abs(a) == INF:
        return a
    if b == INF:
        return 0 if a >= 0 else -1
    return a // b


def _remainder_bounds(a: Interval, b: Interval) -> Interval:
    """Bounds of a % b where b isn't 0."""
    if b[0] < 0 or b[1] < 1:
        return -INF, INF
    return 0, min(b[1] - 1, a[1] if a[0] >= 0 else INF)


_CALL_BOUNDS: dict[str, Callable[..., Interval]] = {
    "floordiv": _quotient_bounds,
    "mod": _remainder_bounds,
    "min": lambda *xs: (min(low for low, _ in xs), min(high for _, high in xs)),
    "max": lambda *xs: (max(low for low, _ in xs), max(high for _, high in xs)),
    "bcast": lambda *xs: (min(low for low, _ in xs), max(high for _, high in xs)),
    "mul": _interval_product,
}


def _estimates(dim: Dim) -> Iterator[list[tuple[Dim, int]]]:
    """For one call of `dim` after another: pairs (e, s) with s * dim >= e, where the call gave way to an estimate."""
    for monomial, c in dim.terms:
        for i, atom in enumerate(monomial):
            if not isinstance(atom, Call):
                continue
            rest = monomial[:i] + monomial[i + 1 :]
            replacements = list(_above(atom) if c < 0 else _below(atom))
            if replacements and all(_atom_bounds(a)[0] >= 0 for a in rest):
                others = dim - from_monomial(monomial) * c
                yield [(others * scale + from_monomial(rest) * e * c, scale) for e, scale in replacements]


def _above(atom: Call) -> Iterator[tuple[Dim, int]]:
    """Pairs (e, s) with s * atom <= e."""
    x, *others = atom.args
    match atom.op:
        case "floordiv" if d := constant_divisor(atom):
            yield x, d
        case "floordiv" | "mod" if interval(x)[0] >= 0 and interval(others[0])[0] >= 0:
            yield x, 1
        case "min":
            yield from ((y, 1) for y in atom.args)
    if atom.op == "mod" and interval(others[0])[0] >= 0:
        yield others[0] - 1, 1


def _below(atom: Call) -> Iterator[tuple[Dim, int]]:
    """Pairs (e, s) with s * atom >= e. A broadcast of dims that aren't 0 is at least each of them."""
    if d := constant_divisor(atom):
        yield atom.args[0] - (d - 1), d
    elif atom.op == "max" or (atom.op == "bcast" and all(map(positive, atom.args))):
        yield from ((y, 1) for y in atom.args)


# ---- comparison ------------------------------------------------------------------------------------------------------

# A proof is tried only where a few samples don't refute it; most comparisons of unrelated sizes end there.


def eq(a: DimLike, b: DimLike) -> bool | None:
    """Whether a == b for all values of the symbols (True), for none (False), or one can't tell (None)."""
    a, b = as_dim(a), as_dim(b)
    difference = b - a
    if difference.is_constant:
        return not difference.terms
    terms, offset = split(difference)
    signs = _sampled_signs(a, b)
    apart = offset % math.gcd(*(c for _, c in terms)) != 0
    if apart or (signs <= {1} and _lower(difference, RELAX_DEPTH) > 0) or (signs <= {-1} and _upper(difference) < 0):
        return False
    return True if signs <= {0} and interval(difference) == (0, 0) else None


def le(a: DimLike, b: DimLike) -> bool | None:
    """Whether a <= b always (True), never (False), or one can't tell (None)."""
    a, b = as_dim(a), as_dim(b)
    signs = _sampled_signs(a, b)
    if signs <= {0, 1} and _lower(b - a, RELAX_DEPTH) >= 0:
        return True
    return False if signs <= {-1} and _upper(b - a) < 0 else None


def lt(a: DimLike, b: DimLike) -> bool | None:
    """Whether a < b always, never, or unknown (None)."""
    return le(as_dim(a) + 1, b)


def ge(a: DimLike, b: DimLike) -> bool | None:
    """Whether a >= b always, never, or unknown (None)."""
    return le(b, a)


def gt(a: DimLike, b: DimLike) -> bool | None:
    """Whether a > b always, never, or unknown (None)."""
    return le(as_dim(b) + 1, a)


def _sampled_signs(a: Dim, b: Dim) -> set[int]:
    """Signs of b - a at the sample points where both have a value."""
    pairs = zip(samples(a), samples(b), strict=True)
    return {(x < y) - (x > y) for x, y in pairs if x is not None and y is not None}


@lru_cache(CACHE)
def samples(dim: Dim) -> tuple[int | None, ...]:
    """Values at the sample points, None where the expression has none."""
    factors = [([_atom_samples(a) for a in m], c) for m, c in dim.terms]
    return tuple(_sum_of_products([([f[i] for f in fs], c) for fs, c in factors]) for i in range(SAMPLES))


def _sum_of_products(terms: Sequence[tuple[Sequence[int | None], int]]) -> int | None:
    total = 0
    for factors, c in terms:
        value = c
        for factor in factors:
            if factor is None:
                return None
            value *= factor
        total += value
    return total


@lru_cache(CACHE)
def _atom_samples(atom: Atom) -> tuple[int | None, ...]:
    if isinstance(atom, Symbol):
        scatter = crc32(atom.name.encode("utf-8", "surrogatepass"))
        offsets = (0, 1, 3 + scatter % 29, 64 + scatter // 29 % 193)
        return tuple(atom.low + o if atom.high is None else min(atom.low + o, atom.high) for o in offsets)
    return tuple(_call_value(atom.op, values) for values in zip(*map(samples, atom.args), strict=True))


def _call_value(op: str, args: tuple[int | None, ...]) -> int | None:
    """The value of a call; None where it has none."""
    if None in args or (op in ("floordiv", "mod") and args[1] == 0) or (op == "bcast" and len({*args} - {1}) > 1):
        return None
    return _VALUE[op](*args)


def value_bcast(*xs: int) -> int:
    return next((x for x in xs if x != 1), 1)


_VALUE: dict[str, Callable[..., int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
    "bcast": value_bcast,
    "mul": operator.mul,
}
