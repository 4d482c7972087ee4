"""Division and its relatives, simplified when built: //, %, exact division, min, max, broadcast.

Multiples of the divisor leave a quotient, common factors cancel where they can't be 0, nested divisions join, and
whatever the bounds decide is decided here. All other modules see only the resulting normal forms.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from sod2.symbolic.bounds import INF, eq, ge, interval, le, lt, positive, samples
from sod2.symbolic.form import (
    CACHE,
    MAX_TERMS,
    Atom,
    Call,
    Dim,
    DimLike,
    as_dim,
    common_factor,
    constant,
    constant_divisor,
    from_atom,
    from_terms,
    interned,
    split,
    without,
)


def floordiv(a: DimLike, b: DimLike, nonzero: bool = False) -> Dim:
    """a // b, rounded down. `nonzero`: the caller guards b != 0, so that common factors cancel whatever their bounds.

    Raises ZeroDivisionError for the constant 0.
    """
    return _floordiv(as_dim(a), as_dim(b), nonzero)


def mod(a: DimLike, b: DimLike) -> Dim:
    """a % b with the sign of b, as in Python. Raises ZeroDivisionError for the constant 0."""
    return _mod(as_dim(a), as_dim(b))


def ceildiv(a: DimLike, b: DimLike) -> Dim:
    """a / b rounded up."""
    a, b = as_dim(a), as_dim(b)
    return (a + b - 1) // b if interval(b)[0] >= 1 else -(-a // b)


def exact_div(a: DimLike, b: DimLike, nonzero: bool = False) -> Dim | None:
    """The q with a == q * b when one is proved and b can't be 0 (`nonzero`: the caller guards it), else None."""
    a, b = as_dim(a), as_dim(b)
    if not (nonzero or _nonzero(b)) or b == 0:
        return None
    a, b = _cancel(a, b, nonzero)
    if b.is_constant:
        return _floordiv(a, b, False) if divisible(a, abs(int(b))) else None
    return _polynomial_quotient(a, b)


def divisible(a: DimLike, k: int) -> bool | None:
    """Whether the constant k >= 1 divides a always (True), never (False), or one can't tell (None)."""
    if k < 1:
        raise ValueError(f"divisible() by {k}; a positive integer is needed")
    return eq(as_dim(a) % k, 0)


def _nonzero(a: Dim) -> bool:
    low, high = interval(a)
    return low > 0 or high < 0


def _cancel(a: Dim, b: Dim, nonzero: bool) -> tuple[Dim, Dim]:
    """a and b without their common integer and symbolic factors, these only if they aren't 0 (`nonzero`: any)."""
    terms = a.terms + b.terms
    divisor = math.gcd(*(c for _, c in terms))
    common = tuple(f for f in b.terms[0][0] if nonzero or _nonzero(from_atom(f)))
    common = common_factor(terms, common)
    if divisor == 1 and not common:
        return a, b

    def reduced(x: Dim) -> Dim:
        return from_terms({without(m, common) or (): c // divisor for m, c in x.terms})

    return reduced(a), reduced(b)


def _polynomial_quotient(a: Dim, b: Dim) -> Dim | None:
    """q with a == q * b as polynomials, by long division; None when there is a remainder."""
    quotient, rest = constant(0), a
    lead, coefficient = b.terms[0]
    for _ in range(MAX_TERMS):
        if not rest.terms:
            return quotient
        monomial, c = rest.terms[0]
        factor = without(monomial, lead)
        if factor is None or c % coefficient:
            return None
        step = interned(((factor, c // coefficient),))
        quotient, rest = quotient + step, rest - step * b
    return None


def _divide(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """(q, r) with a == q * b + r, r without what b divides as a polynomial. b isn't 0."""
    if len(b.terms) > 1:
        quotient = _polynomial_quotient(a, b)
        return (constant(0), a) if quotient is None else (quotient, constant(0))
    factors, coefficient = b.terms[0]
    quotients = {
        rest: c // coefficient
        for monomial, c in a.terms
        if (rest := without(monomial, factors)) is not None and c % coefficient == 0
    }
    q = from_terms(quotients)
    return q, a - q * b


@lru_cache(CACHE)
def _floordiv(a: Dim, b: Dim, nonzero: bool) -> Dim:
    if b.is_constant:
        d = int(b)
        if d == 0:
            raise ZeroDivisionError(f"({a})//0; a divisor other than 0 is needed")
        return _floordiv_constant(a, d) if d > 0 else _floordiv_constant(-a, -d)
    a, b = _cancel(a, b, nonzero)
    if b.is_constant:
        return _floordiv(a, b, False)
    if not nonzero and not _nonzero(b):
        return from_atom(Call("floordiv", (a, b)))
    if interval(b)[1] < 0:
        return _floordiv(-a, -b, nonzero)
    quotient, rest = _divide(a, b)
    return quotient + _floordiv_node(rest, b, nonzero)


def _floordiv_node(a: Dim, b: Dim, nonzero: bool) -> Dim:
    """a // b for a symbolic b that isn't 0, when no term divides."""
    if ge(a, 0) and lt(a, b):
        return constant(0)
    inner = a._atom(Call)
    if inner is not None and inner.op == "floordiv" and positive(inner.args[1]) and positive(b):
        return _floordiv(inner.args[0], inner.args[1] * b, nonzero)
    return from_atom(Call("floordiv", (a, b)))


def _floordiv_constant(a: Dim, d: int) -> Dim:
    """a // d, d >= 1. Multiples of d leave; what stays is reduced by the gcd, led by a positive term, and joined with
    an inner floor division: (x//k + r)//d == (x + k*r)//(k*d)."""
    terms, offset = split(a)
    whole = {m: abs(c) // d * (1 if c > 0 else -1) for m, c in terms}
    whole[()] = offset // d
    quotient = from_terms(whole)
    terms, offset = split(a - quotient * d)
    if not terms:
        return quotient  # 0 <= offset < d
    common = math.gcd(d, *(c for _, c in terms))
    d, offset = d // common, offset // common
    rest = from_terms({**{m: c // common for m, c in terms}, (): offset})
    if d == 1:
        return quotient + rest
    if rest.terms[0][1] < 0:
        return quotient - _floordiv_constant(-rest + (d - 1), d)
    inner = [m[0] for m, c in terms if c == common and len(m) == 1 and constant_divisor(m[0])]
    if len(inner) == 1 and isinstance(inner[0], Call):
        k = constant_divisor(inner[0])
        return quotient + _floordiv_constant(inner[0].args[0] + (rest - from_atom(inner[0])) * k, k * d)
    whole_part = _constant_quotient(rest, d)
    if whole_part is not None:
        return quotient + whole_part
    return quotient + from_atom(Call("floordiv", (rest, constant(d))))


def _constant_quotient(a: Dim, d: int) -> int | None:
    """The value of a // d, d >= 1, where the bounds of a leave only one."""
    if len({s // d for s in samples(a) if s is not None}) > 1:
        return None
    low, high = interval(a)
    return int(low // d) if low > -INF and high < INF and low // d == high // d else None


@lru_cache(CACHE)
def _mod(a: Dim, b: Dim) -> Dim:
    if b.is_constant:
        d = int(b)
        if d == 0:
            raise ZeroDivisionError(f"({a}) % 0; a divisor other than 0 is needed")
        return _mod_constant(a, d) if d > 0 else -_mod_constant(-a, -d)
    if not _nonzero(b):
        return from_atom(Call("mod", (a, b)))
    if interval(b)[1] < 0:
        return -_mod(-a, -b)
    _, rest = _divide(a, b)
    if not rest.terms or (ge(rest, 0) and lt(rest, b)):
        return rest
    return from_atom(Call("mod", (rest, b)))


def _mod_constant(a: Dim, d: int) -> Dim:
    """a % d, d >= 1. Coefficients become the residue nearest 0, the constant one of 0..d-1, x % (k*d) inside x."""
    terms, offset = split(a)
    inner = [(m, c) for m, c in terms if len(m) == 1 and _modulus(m[0]) and _modulus(m[0]) % d == 0]
    if inner:
        (monomial, c), *_ = inner
        atom = monomial[0]
        assert isinstance(atom, Call)
        return _mod_constant(a + (atom.args[0] - from_atom(atom)) * c, d)
    residues = {m: r - d if 2 * r > d else r for m, c in terms if (r := c % d)}
    offset %= d
    if not residues:
        return constant(offset)
    common = math.gcd(d, *residues.values())
    if common > 1:
        rest = from_terms({**{m: c // common for m, c in residues.items()}, (): offset // common})
        return _mod_constant(rest, d // common) * common + offset % common
    rest = from_terms({**residues, (): offset})
    whole_part = _constant_quotient(rest, d)
    if whole_part is not None:
        return rest - d * whole_part
    return from_atom(Call("mod", (rest, constant(d))))


def _modulus(atom: Atom) -> int:
    """The constant modulus of a remainder, 0 for any other atom."""
    return int(atom.args[1]) if isinstance(atom, Call) and atom.op == "mod" and atom.args[1].is_constant else 0


# ---- min, max, broadcast ---------------------------------------------------------------------------------------------


def minimum(*xs: DimLike) -> Dim:
    """The smallest of one or more dims."""
    return _extremum("min", tuple(map(as_dim, xs)))


def maximum(*xs: DimLike) -> Dim:
    """The largest of one or more dims."""
    return _extremum("max", tuple(map(as_dim, xs)))


def bcast(a: DimLike, b: DimLike) -> Dim:
    """The dim that ONNX's broadcasting makes of two: `b if a == 1 else a`.

    The caller guards that a and b are equal or one of them is 1. Under that guard the order of arguments doesn't
    matter (they are sorted), and a dim that can't be 1 is the result.
    """
    return _bcast(as_dim(a), as_dim(b))


def _flat(op: str, args: Sequence[Dim]) -> set[Dim]:
    """The arguments, those of nested calls of `op` in place of the calls."""
    flat: set[Dim] = set()
    for a in args:
        call = a._atom(Call)
        flat.update(call.args if call is not None and call.op == op else (a,))
    return flat


@lru_cache(CACHE)
def _extremum(op: str, xs: tuple[Dim, ...]) -> Dim:
    if not xs:
        raise ValueError(f"{op} of no dims; at least one is needed")
    wins = le if op == "min" else ge
    kept: list[Dim] = []
    for x in sorted(_flat(op, xs), key=lambda d: d.key):
        if not any(wins(y, x) for y in kept):
            kept = [y for y in kept if not wins(x, y)] + [x]
    return kept[0] if len(kept) == 1 else from_atom(Call(op, tuple(kept)))


@lru_cache(CACHE)
def _bcast(a: Dim, b: Dim) -> Dim:
    args = sorted(_flat("bcast", (a, b)) - {constant(1)}, key=lambda d: (not d.is_constant, d.size, d.key))
    certain = [x for x in args if eq(x, 1) is False]
    if certain:
        return certain[0]
    if len(args) < 2:
        return args[0] if args else constant(1)
    return from_atom(Call("bcast", tuple(sorted(args, key=lambda d: d.key))))
