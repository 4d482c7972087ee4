"""Dimension expressions: integers, symbols, + - * // %, min, max and ONNX's broadcast of two dims.

Decides when two sizes are equal, when one is at most another, and what a size is worth at run time.

A `Dim` is kept in normal form: a sum of terms, a term is an integer times a product of atoms, an atom is a symbol or a
call (floordiv, mod, min, max, bcast) whose arguments are Dims. Sums and products are expanded, terms sorted (highest
degree first, then by name); calls are simplified when built, by exact division and by the bounds of their arguments.
Equality is equality of normal forms, so two Dims that differ may still be equal: ask `eq`, which answers True, False
or None (unknown) and never guesses. Comparisons bound the difference: intervals, after shifting every atom to its lower
bound, after replacing a call by an estimate of it (x//d <= x/d, min(x, y) <= x, ...).

Limits: `x//y` and `x % y` mean what Python means; where y is 0 they have no value, `evaluate` raises and no statement
about them is made. `bcast` has its value only where ONNX allows the broadcast; that guard belongs to the caller.
Bounds are part of a symbol's identity. A product that would exceed 64 terms or degree 12 stays an unexpanded atom.
The normal form follows the idea of JAX's symbolic dimensions (jax/_src/export/shape_poly.py).
"""

# The form is first: Dim needs division, which needs Dim (see the end of form.py).
from sod2.symbolic.form import Dim, DimLike, DimTooLargeError, as_dim, constant, symbol

# isort: split
from sod2.symbolic.bounds import bounds, eq, ge, gt, le, lt
from sod2.symbolic.division import bcast, ceildiv, divisible, exact_div, floordiv, maximum, minimum, mod
from sod2.symbolic.parsing import parse
from sod2.symbolic.values import compile_dims, evaluate, substitute, to_c

__all__ = [
    "Dim",
    "DimLike",
    "DimTooLargeError",
    "as_dim",
    "bcast",
    "bounds",
    "ceildiv",
    "compile_dims",
    "constant",
    "divisible",
    "eq",
    "evaluate",
    "exact_div",
    "floordiv",
    "ge",
    "gt",
    "le",
    "lt",
    "maximum",
    "minimum",
    "mod",
    "parse",
    "substitute",
    "symbol",
    "to_c",
]
