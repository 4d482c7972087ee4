"""The normal form: symbols, calls, Dim, its sums, products and text.

A Dim is a sum of terms (integer times a sorted product of atoms), sorted by degree and name. Equal forms are mostly one
object, so that equality and the memoised operations built on it are cheap.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import groupby
from itertools import product as cartesian
from numbers import Integral
from typing import Any, SupportsIndex

MAX_TERMS = 64
MAX_DEGREE = 12
MAX_SIZE = 30_000
MAX_COEFFICIENT = 2**127
CACHE = 1 << 17


class DimTooLargeError(OverflowError):
    """An expression, or a constant in it, is larger than any real model's. An analysis degrades the dim to nac."""


class Symbol:
    """An integer whose value is known when a model is bound to input shapes; low <= value <= high."""

    __slots__ = ("_hash", "high", "key", "low", "name", "size")

    def __init__(self, name: str, low: int, high: int | None) -> None:
        self.name = name
        self.low = low
        self.high = high
        self.size = 1
        self.key = name if low == 0 and high is None else f"{name}[{low},{high}]"  # its place among atoms
        self._hash = hash((name, low, high))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Symbol) and (self.name, self.low, self.high) == (other.name, other.low, other.high)
        )

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Symbol, (self.name, self.low, self.high)


class Call:
    """A floordiv, mod, min, max, bcast or unexpanded product (`mul`) of Dims."""

    __slots__ = ("_hash", "args", "key", "op", "size")
    key: str
    size: int

    def __init__(self, op: str, args: tuple["Dim", ...]) -> None:
        self.op = op
        self.args = args
        self.key = f"{op}({','.join(a.key for a in args)})"
        self.size = 1 + sum(a.size for a in args)
        self._hash = hash((op, args))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Call) and self.op == other.op and self.args == other.args)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Call, (self.op, self.args)


Atom = Symbol | Call
Monomial = tuple[Atom, ...]  # sorted by key; a power is a repetition
Terms = tuple[tuple[Monomial, int], ...]


class Dim:
    """An immutable integer expression. Build it with `symbol`, `constant`, the operators and the functions below.

    `size` counts terms and atoms, written out as a tree; every operation raises DimTooLargeError when it passes
    MAX_SIZE, because a hostile model can double it with every node.
    """

    __slots__ = ("_hash", "key", "size", "terms")
    key: str
    size: int

    def __init__(self, terms: Terms) -> None:
        """Not for callers: `terms` must be in normal form."""
        self.terms = terms
        self.size = sum(1 + sum(a.size for a in m) for m, _ in terms)
        if self.size > MAX_SIZE or any(abs(c) > MAX_COEFFICIENT for _, c in terms):
            raise DimTooLargeError(
                f"a dimension of {self.size} parts; {MAX_SIZE}, with 127-bit constants, are accepted"
            )
        # Constants sort behind all ASCII names: max(a, 3).
        self.key = "+".join(("*".join(a.key for a in m) or "~") + (f"*{c}" if c != 1 else "") for m, c in terms)
        self._hash = hash(int(self)) if self.is_constant else hash(terms)

    def __reduce__(self) -> tuple[Any, ...]:
        return Dim, (self.terms,)  # hashes of strings differ between processes

    @property
    def is_constant(self) -> bool:
        return not self.terms or (len(self.terms) == 1 and not self.terms[0][0])

    @property
    def is_symbol(self) -> bool:
        """Whether this is one bare symbol."""
        return self._atom(Symbol) is not None

    @property
    def is_signed(self) -> bool:
        """Whether a symbol inside may be negative: then it is a number from the data, not a size."""
        return any(s.low < 0 for s in _symbols(self))

    def symbols(self) -> frozenset[str]:
        """Names of all symbols inside."""
        return frozenset(s.name for s in _symbols(self))

    def _atom(self, kind: type[Any]) -> Any:
        """The only atom when the whole Dim is one atom of that class, else None."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            atom = self.terms[0][0][0]
            return atom if isinstance(atom, kind) else None
        return None

    def __int__(self) -> int:
        if not self.terms:
            return 0
        if not self.is_constant:
            raise TypeError(f"{self} is not a constant; evaluate() gives its value for given symbols")
        return self.terms[0][1]

    __index__ = __int__

    def __bool__(self) -> bool:
        return int(self) != 0  # a symbolic size is neither true nor false: int() refuses it

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Dim):
            return self._hash == other._hash and self.terms == other.terms
        if isinstance(other, Integral):
            return self.is_constant and int(self) == int(other)
        return NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: "DimLike") -> "Dim":
        return _add(self, as_dim(other)) if _is_dimlike(other) else NotImplemented

    def __sub__(self, other: "DimLike") -> "Dim":
        return _add(self, _scale(as_dim(other), -1)) if _is_dimlike(other) else NotImplemented

    def __rsub__(self, other: "DimLike") -> "Dim":
        return as_dim(other) - self if _is_dimlike(other) else NotImplemented

    def __mul__(self, other: "DimLike") -> "Dim":
        return _multiply(self, as_dim(other)) if _is_dimlike(other) else NotImplemented

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> "Dim":
        return _scale(self, -1)

    def __floordiv__(self, other: "DimLike") -> "Dim":
        return floordiv(self, other) if _is_dimlike(other) else NotImplemented

    def __rfloordiv__(self, other: "DimLike") -> "Dim":
        return floordiv(other, self) if _is_dimlike(other) else NotImplemented

    def __mod__(self, other: "DimLike") -> "Dim":
        return mod(self, other) if _is_dimlike(other) else NotImplemented

    def __rmod__(self, other: "DimLike") -> "Dim":
        return mod(other, self) if _is_dimlike(other) else NotImplemented

    def __str__(self) -> str:
        return infix(self, _quoted)

    def __repr__(self) -> str:
        return f"Dim({self})"


DimLike = Dim | SupportsIndex  # at run time Integral: int and numpy's integers, but no arrays


def _is_dimlike(value: object) -> bool:
    return isinstance(value, Dim | Integral)


@lru_cache(CACHE)
def interned(terms: Terms) -> Dim:
    """One object for one normal form, as far as the cache reaches: equal Dims are then mostly the same object."""
    return Dim(terms)


def _order(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    """Graded lexicographic order: compatible with multiplication, as polynomial division needs."""
    return -len(term[0]), [a.key for a in term[0]]


def from_terms(coefficients: Mapping[Monomial, int]) -> Dim:
    return interned(tuple(sorted(((m, c) for m, c in coefficients.items() if c), key=_order)))


def from_atom(atom: Atom) -> Dim:
    return interned((((atom,), 1),))


def symbol(name: str, low: int = 0, high: int | None = None) -> Dim:
    """The integer called `name`, low <= value <= high. Other bounds make it another symbol."""
    if high is not None and high <= low:
        if high < low:
            raise ValueError(f"symbol {name!r} has no value: low={low} is above high={high}")
        return constant(low)
    return from_atom(Symbol(name, low, high))


@lru_cache(CACHE)
def constant(value: int) -> Dim:
    """The Dim of an integer."""
    return interned((((), int(value)),) if value else ())


def as_dim(value: DimLike) -> Dim:
    """A Dim from a Dim or an integer (numpy's too); TypeError for anything else."""
    if isinstance(value, Dim):
        return value
    if isinstance(value, Integral):
        return constant(int(value))
    raise TypeError(f"{value!r} is not a dimension; an integer or a Dim is")


# ---- sums and products -----------------------------------------------------------------------------------------------


@lru_cache(CACHE)
def _add(a: Dim, b: Dim) -> Dim:
    if not a.terms or not b.terms:
        return a if a.terms else b
    coefficients = dict(a.terms)
    for monomial, c in b.terms:
        coefficients[monomial] = coefficients.get(monomial, 0) + c
    return from_terms(coefficients)


def _scale(a: Dim, factor: int) -> Dim:
    if factor == 1:
        return a
    return interned(tuple((m, c * factor) for m, c in a.terms)) if factor else constant(0)


@lru_cache(CACHE)
def _multiply(a: Dim, b: Dim) -> Dim:
    if a.is_constant or b.is_constant:
        return _scale(b, int(a)) if a.is_constant else _scale(a, int(b))
    if len(a.terms) * len(b.terms) > MAX_TERMS or len(a.terms[0][0]) + len(b.terms[0][0]) > MAX_DEGREE:
        return from_atom(Call("mul", tuple(sorted((a, b), key=lambda d: d.key))))
    coefficients: dict[Monomial, int] = {}
    for (m, c), (n, d) in cartesian(a.terms, b.terms):
        monomial = tuple(sorted(m + n, key=lambda atom: atom.key))
        coefficients[monomial] = coefficients.get(monomial, 0) + c * d
    return from_terms(coefficients)


def from_monomial(monomial: Monomial) -> Dim:
    return interned(((monomial, 1),))


def without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    """The quotient of two monomials, None when it isn't one."""
    rest = list(monomial)
    for factor in factors:
        if factor not in rest:
            return None
        rest.remove(factor)
    return tuple(rest)


def split(a: Dim) -> tuple[tuple[tuple[Monomial, int], ...], int]:
    """Non-constant terms and the constant one."""
    if a.terms and not a.terms[-1][0]:
        return a.terms[:-1], a.terms[-1][1]
    return a.terms, 0


def common_factor(terms: Terms, factors: Monomial) -> Monomial:
    """The largest part of `factors` that divides every term."""
    for monomial, _ in terms:
        factors = tuple(f for i, f in enumerate(factors) if monomial.count(f) > factors[:i].count(f))
    return factors


def constant_divisor(atom: Atom) -> int:
    """The constant divisor of a floor division, 0 for any other atom."""
    return int(atom.args[1]) if isinstance(atom, Call) and atom.op == "floordiv" and atom.args[1].is_constant else 0


def _symbols(dim: Dim) -> set[Symbol]:
    found: set[Symbol] = set()
    pending, seen = [dim], {dim}
    while pending:
        for monomial, _ in pending.pop().terms:
            for atom in monomial:
                if isinstance(atom, Symbol):
                    found.add(atom)
                else:
                    pending += set(atom.args) - seen
                    seen.update(atom.args)
    return found


# ---- text ------------------------------------------------------------------------------------------------------------

NAME = re.compile(r"[^\W\d]\w*(\.\w+)*")


def _quoted(name: str) -> str:
    """The name as `parse` reads it back: in backticks unless it is an identifier (dots allowed)."""
    return name if NAME.fullmatch(name) else f"`{name}`"


def infix(dim: Dim, name: Callable[[str], str]) -> str:
    def of_dim(d: Dim) -> str:
        return sum_text(d, of_atom)

    def of_atom(atom: Atom) -> str:
        return name(atom.name) if isinstance(atom, Symbol) else call_text(atom, of_dim)

    return of_dim(dim)


def sum_text(dim: Dim, of_atom: Callable[[Atom], str]) -> str:
    """Infix text, valid Python when the atoms' texts are."""
    text = ""
    for monomial, c in dim.terms:
        sign = ("-" if c < 0 else "") if not text else (" - " if c < 0 else " + ")
        factors = [str(abs(c))] if abs(c) != 1 or not monomial else []
        alone = len(monomial) == 1 and not factors and sign != "-"
        for atom, same in groupby(monomial):
            power = len(list(same))
            factors.append(_factor_text(atom, of_atom(atom), power, alone))
        text += sign + "*".join(factors)
    return text or "0"


def _factor_text(atom: Atom, text: str, power: int, alone: bool) -> str:
    """The atom's text as a factor: // and % bind like *, so they get parentheses unless alone in their term."""
    loose = isinstance(atom, Call) and (
        (atom.op in ("floordiv", "mod") and not alone) or (atom.op == "mul" and power > 1)
    )
    text = f"({text})" if loose else text
    return f"{text}**{power}" if power > 1 else text


def call_text(call: Call, of_dim: Callable[[Dim], str]) -> str:
    texts = [of_dim(a) for a in call.args]
    match call.op:
        case "floordiv" | "mod":
            left, right = call.args
            if len(left.terms) != 1 or left.terms[0][1] < 0:
                texts[0] = f"({texts[0]})"
            if not right.is_symbol and not (right.is_constant and int(right) > 0):
                texts[1] = f"({texts[1]})"
            return (" % " if call.op == "mod" else "//").join(texts)
        case "mul":
            return "*".join(f"({t})" for t in texts)
        case _:
            return f"{call.op}({', '.join(texts)})"


from sod2.symbolic.division import floordiv, mod  # noqa: E402  Dim and division need each other; this is the seam
