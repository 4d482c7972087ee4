"""Values of Dims: substitution, evaluation in Python and as C expressions."""

from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from typing import Any

from sod2.symbolic.bounds import value_bcast
from sod2.symbolic.division import bcast, floordiv, maximum, minimum
from sod2.symbolic.form import Atom, Dim, DimLike, Symbol, as_dim, call_text, constant, from_atom, sum_text

REBUILD: dict[str, Callable[..., Dim]] = {
    "floordiv": floordiv,
    "mod": lambda a, b: as_dim(a) % b,
    "min": minimum,
    "max": maximum,
    "bcast": lambda *xs: reduce(bcast, xs),
    "mul": lambda a, b: as_dim(a) * b,
}


def substitute(dim: DimLike, replacements: Mapping[str, DimLike]) -> Dim:
    """`dim` with symbols replaced by name, simplified anew. Symbols that aren't named stay.

    Raises ZeroDivisionError when a divisor becomes the constant 0.
    """
    done: dict[Atom, Dim] = {}

    def of_atom(atom: Atom) -> Dim:
        if atom not in done:
            if isinstance(atom, Symbol):
                done[atom] = as_dim(replacements[atom.name]) if atom.name in replacements else from_atom(atom)
            else:
                done[atom] = REBUILD[atom.op](*map(of_dim, atom.args))
        return done[atom]

    def of_dim(d: Dim) -> Dim:
        total = constant(0)
        for monomial, c in d.terms:
            total += reduce(lambda product, atom: product * of_atom(atom), monomial, constant(c))
        return total

    return of_dim(as_dim(dim))


def evaluate(dim: DimLike, env: Mapping[str, int]) -> int:
    """The value for given symbols. KeyError for a symbol that isn't in `env`; ZeroDivisionError as in Python."""
    return compile_dims((as_dim(dim),))(env)[0]


@lru_cache(1 << 14)
def compile_dims(dims: tuple[Dim, ...]) -> Callable[[Mapping[str, int]], tuple[int, ...]]:
    """A function from the symbols' values to those of `dims`, each common call computed once.

    It raises KeyError for a symbol that has no value; values aren't checked against the symbols' bounds.
    """
    lines: list[str] = []
    names: dict[Atom, str] = {}

    def of_atom(atom: Atom) -> str:
        if atom not in names:
            text = f"read({atom.name!r})" if isinstance(atom, Symbol) else call_text(atom, of_dim)
            names[atom] = f"v{len(names)}"
            lines.append(f"    {names[atom]} = {text}")
        return names[atom]

    def of_dim(d: Dim) -> str:
        return sum_text(d, of_atom)

    results = "".join(f"{of_dim(d)}, " for d in dims)
    source = "\n".join(["def values(env):", "    read = reader(env)", *lines, f"    return ({results})"])
    scope: dict[str, Any] = {"bcast": value_bcast, "reader": _reader}
    exec(source, scope)  # the source has only our operators and string literals in it
    values: Callable[[Mapping[str, int]], tuple[int, ...]] = scope["values"]
    return values


def _reader(env: Mapping[str, int]) -> Callable[[str], int]:
    def read(name: str) -> int:
        if name not in env:
            raise KeyError(f"dimension {name!r} has no value; values are given for {', '.join(sorted(env)) or 'none'}")
        return int(env[name])

    return read


# ---- C ---------------------------------------------------------------------------------------------------------------


def to_c(dim: DimLike, name: Callable[[str], str], share: Callable[[str], str] = str) -> str:
    """A C expression of type int64_t. `name` gives the C expression of a symbol.

    It calls sod2_add, sod2_sub, sod2_mul, sod2_div and sod2_mod of kernel.h, each with a last argument `o`, the
    `int *overflow` in scope, and sod2_imin and sod2_imax. Raises OverflowError for a constant beyond 64 bits.
    `share` gets each operation that is always evaluated, its operands shared already, and gives what stands for it.
    """

    def of_atom(atom: Atom, share: Callable[[str], str]) -> str:
        if isinstance(atom, Symbol):
            return name(atom.name)
        if atom.op == "bcast":  # evaluates its arguments one by one, as far as it must
            texts = [_c_sum(a, of_atom, str) for a in atom.args]
            return share(reduce(lambda tail, x: f"({x} == 1 ? {tail} : {x})", reversed(texts)))
        texts = [_c_sum(a, of_atom, share) for a in atom.args]
        match atom.op:
            case "floordiv":
                return share(f"sod2_div({texts[0]}, {texts[1]}, o)")
            case "mod" | "mul":
                return share(f"sod2_{atom.op}({texts[0]}, {texts[1]}, o)")
            case _:
                return reduce(lambda x, y: share(f"sod2_i{atom.op}({x}, {y})"), texts)

    return _c_sum(as_dim(dim), of_atom, share)


def _c_sum(dim: Dim, of_atom: Callable[[Atom, Callable[[str], str]], str], share: Callable[[str], str]) -> str:
    text = ""
    for monomial, c in sorted(dim.terms, key=lambda term: term[1] < 0):
        subtract = bool(text) and c < 0
        weight = -c if subtract else c
        factors = [of_atom(a, share) for a in monomial]
        factors += [_c_literal(weight)] if weight != 1 or not monomial else []
        term = reduce(lambda x, y: share(f"sod2_mul({x}, {y}, o)"), factors)
        text = share(f"sod2_{'sub' if subtract else 'add'}({text}, {term}, o)") if text else term
    return text or "0"


def _c_literal(value: int) -> str:
    if not -(2**63) < value < 2**63:
        raise OverflowError(f"the constant {value} of a dimension doesn't fit; 64 bits do")
    return str(value) if abs(value) < 2**31 else f"INT64_C({value})"
