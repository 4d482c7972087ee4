"""Dim expressions mean what Python's integers compute, and every decision about them is sound.

The oracle is Python: an expression is generated as a tree of plain functions next to the Dim, and both are evaluated on
random environments inside the symbols' bounds, 0 and 1 included.
"""

import ctypes
import itertools
import operator
import pickle
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sod2 import symbolic
from sod2.symbolic import (
    Dim,
    DimTooLargeError,
    as_dim,
    bcast,
    bounds,
    ceildiv,
    compile_dims,
    constant,
    divisible,
    eq,
    evaluate,
    exact_div,
    floordiv,
    ge,
    gt,
    le,
    lt,
    maximum,
    minimum,
    parse,
    substitute,
    symbol,
    to_c,
)

RUNTIME = Path(symbolic.__file__).parent.parent / "runtime"
BOUNDS = {"a": (0, None), "b": (0, None), "n": (1, None), "h": (2, 9), "z": (-3, 4)}
SYMBOLS = {name: symbol(name, *span) for name, span in BOUNDS.items()}
Env = Mapping[str, int]


@dataclass(frozen=True)
class Expression:
    """A Dim, and what it means: `value` raises ZeroDivisionError or Refused where it has no value."""

    dim: Dim
    value: Callable[[Env], int]


class Refused(Exception):
    """ONNX doesn't allow this broadcast."""


def broadcast(a: int, b: int) -> int:
    if a != b and 1 not in (a, b):
        raise Refused
    return b if a == 1 else a


BINARY: list[tuple[Callable[[Dim, Dim], Dim], Callable[[int, int], int]]] = [
    (operator.add, operator.add),
    (operator.sub, operator.sub),
    (operator.mul, operator.mul),
    (operator.floordiv, operator.floordiv),
    (operator.mod, operator.mod),
    (ceildiv, lambda x, y: -(-x // y)),
    (minimum, min),
    (maximum, max),
    (bcast, broadcast),
]


def combine(
    build: Callable[[Dim, Dim], Dim], meaning: Callable[[int, int], int], x: Expression, y: Expression
) -> Expression:
    """One operation on two expressions; x alone where the divisor is the constant 0."""
    try:
        return Expression(build(x.dim, y.dim), lambda env: meaning(x.value(env), y.value(env)))
    except ZeroDivisionError:
        return x


def binary(children: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.builds(lambda f, x, y: combine(*f, x, y), st.sampled_from(BINARY), children, children)


CONSTANTS = st.one_of(st.integers(-3, 9), st.sampled_from([12, 16, 64, 768])).map(
    lambda c: Expression(constant(c), lambda env: c)
)
NAMES = st.sampled_from(sorted(SYMBOLS)).map(lambda s: Expression(SYMBOLS[s], lambda env: env[s]))
EXPRESSIONS = st.recursive(st.one_of(NAMES, NAMES, CONSTANTS), binary, max_leaves=9)
ENVIRONMENTS = st.fixed_dictionaries(
    {
        name: st.one_of(st.integers(low, min(low + 2, high or low + 2)), st.integers(low, 40 if high is None else high))
        for name, (low, high) in BOUNDS.items()
    }
)


def defined(expressions: list[Expression], env: Env) -> list[int] | None:
    """The values, or None where one has none."""
    try:
        return [e.value(env) for e in expressions]
    except (ZeroDivisionError, Refused):
        return None


# ---- random expressions ----------------------------------------------------------------------------------------------


@settings(max_examples=600, deadline=None)
@given(EXPRESSIONS, st.lists(ENVIRONMENTS, min_size=4, max_size=8))
def test_means_what_python_computes(expression: Expression, envs: list[Env]) -> None:
    low, high = bounds(expression.dim)
    for env in envs:
        values = defined([expression], env)
        if values is not None:
            assert evaluate(expression.dim, env) == values[0]
            assert low is None or low <= values[0]
            assert high is None or values[0] <= high


@settings(max_examples=600, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS, st.lists(ENVIRONMENTS, min_size=4, max_size=8), st.integers(1, 12))
def test_decisions_are_sound(x: Expression, y: Expression, envs: list[Env], k: int) -> None:
    decisions = {f: f(x.dim, y.dim) for f in (eq, le, lt, ge, gt)}
    divides = divisible(x.dim, k)
    quotient = exact_div(x.dim, y.dim)
    for env in envs:
        values = defined([x, y], env)
        if values is None:
            continue
        for decide, decision in decisions.items():
            assert decision in (None, getattr(operator, decide.__name__)(*values)), decide.__name__
        assert divides in (None, values[0] % k == 0)
        if quotient is not None:
            assert values[1] != 0
            assert evaluate(quotient, env) * values[1] == values[0]


@settings(max_examples=400, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS, st.lists(ENVIRONMENTS, min_size=2, max_size=5))
def test_substitution_commutes_with_evaluation(x: Expression, y: Expression, z: Expression, envs: list[Env]) -> None:
    try:
        replaced = substitute(x.dim, {"a": y.dim * y.dim, "n": maximum(z.dim, 1)})
    except ZeroDivisionError:
        return
    for env in envs:
        inner = defined([y, z], env)
        if inner is not None:
            bound = {**env, "a": inner[0] ** 2, "n": max(inner[1], 1)}
            values = defined([x], bound)
            assert values is None or evaluate(replaced, env) == values[0]


@settings(max_examples=400, deadline=None)
@given(EXPRESSIONS)
def test_text_reads_back(expression: Expression) -> None:
    default = {name: symbol(name) for name in BOUNDS}
    try:
        dim = substitute(expression.dim, default)
    except ZeroDivisionError:  # with the wider bounds a divisor is always 0: min(z, 0)
        return
    assert parse(str(dim)) == dim
    assert pickle.loads(pickle.dumps(dim)) == dim


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.text(max_size=30), st.text("ab10 +-*/%(),.`floormax", max_size=30)))
def test_parse_never_raises(text: str) -> None:
    assert isinstance(parse(text), Dim)


@settings(max_examples=200, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS)
def test_normal_form_of_ring(x: Expression, y: Expression, z: Expression) -> None:
    a, b, c = (symbol("x") * x.dim.is_constant + e.dim for e in (x, y, z))
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a - a == 0
    assert hash(a + b) == hash(b + a)
    assert a * b == b * a
    assert minimum(a, b, c) == minimum(c, minimum(b, a))


# ---- simplification --------------------------------------------------------------------------------------------------

a, b, m, H, h = (symbol(s) for s in "abmHh")
n, T = symbol("n", 1), symbol("T", 1)


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        ((n * T * a) // (n * T), "a"),
        ((a * b) // a, "a*b//a"),  # a may be 0
        (floordiv(a * b, a, nonzero=True), "b"),
        ((8 * h) // 8, "h"),
        ((8 * h + 3) // 8, "h"),
        ((H + 1 - 1) // 2, "H//2"),
        (((H - 1) // 2) // 2, "(H + 3)//4 - 1"),
        ((H - 1) // 2 + 1, "(H + 1)//2"),
        (((H - 1) // 2 + 1 - 1) // 2 + 1, "(H + 3)//4"),
        ((3 * H) // 2, "H + H//2"),
        ((4 * H + 2) // 6, "(2*H + 1)//3"),
        (-(-H // 2), "(H + 1)//2"),
        (ceildiv(H, 32) * 32, "32*((H + 31)//32)"),
        ((a * n) // (b * n), "a//b"),
        ((T * a + b) // T, "a + b//T"),
        ((a // n) // T, "a//(T*n)"),
        (a // (a + 1), "0"),
        ((n * n - 1) // (n + 1), "n - 1"),
        ((8 * h) % 8, "0"),
        ((8 * h + 3) % 8, "3"),
        ((4 * h + 2) % 8, "4*(h % 2) + 2"),
        ((a % 12) % 4, "a % 4"),
        ((-a) % 8, "(-a) % 8"),
        ((n * a + 1) % n, "1 % n"),
        (symbol("k", 0, 7) % 8, "k"),
        (symbol("k", 8, 15) // 8, "1"),
        (minimum(a, a + 1, 5), "min(a, 5)"),
        (maximum(a, 0, n), "max(a, n)"),
        (maximum(a, 3), "max(a, 3)"),
        (maximum(maximum(a, 3), b, 2), "max(a, b, 3)"),
        (minimum(a // 2, a), "a//2"),
        (bcast(a, a), "a"),
        (bcast(1, a), "a"),
        (bcast(a, 8), "8"),
        (bcast(a, n + 1), "n + 1"),
        (bcast(b, a), "bcast(a, b)"),
        (bcast(bcast(a, b), a), "bcast(a, b)"),
        ((a + b) * (a - b), "a**2 - b**2"),
        (-(a // 2) * 3, "-3*(a//2)"),
    ],
)
def test_simplification(dim: Dim, expected: str) -> None:
    assert str(dim) == expected


def test_exact_division_of_reshape() -> None:
    assert exact_div(2 * T * 768, 768) == 2 * T
    assert exact_div(T * 12 * 64, T * 64) == 12
    assert exact_div(a * 12 * 64, a * 64) is None
    assert exact_div(a * 12 * 64, a * 64, nonzero=True) == 12
    assert exact_div(a, 2) is None
    assert exact_div(a, 0, nonzero=True) is None
    assert exact_div(n * n + n * a, n + a, nonzero=True) == n
    assert exact_div(6 * (a % 2), 3) == 2 * (a % 2)
    assert exact_div(a * b, a + 1) is None


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (le(a // 2, a), True),
        (le(2 * (a // 2), a), True),
        (lt(a, 2 * (a // 2)), False),
        (le(T * (a // 2), T * a), True),
        (le(T * 768, T * 3072), True),
        (ge(n * T, n), True),
        (ge(a * b, b), None),
        (le(n * n, n * n * T), True),
        (le(minimum(a, b), a), True),
        (ge(maximum(a, b), b), True),
        (le(a % n, a), True),
        (lt(a % n, n), True),
        (le(n, bcast(n, T)), True),
        (le(a, bcast(a, b)), None),  # 1 > bcast(1, 0)
        (eq(2 * a, 5), False),
        (eq(a + 1, a), False),
        (eq(a, b), None),
        (eq(a * b, b * a), True),
        (gt(n, 0), True),
        (gt(a, 0), None),
        (ge((a - 1) // 2 + 1, 0), True),
        (le((a + 1) // 2, a), True),
        (divisible(6 * a + 3, 3), True),
        (divisible(2 * a + 1, 4), False),
        (divisible(a, 2), None),
        (divisible(a * (a + 1), 1), True),
    ],
)
def test_decision(decision: bool | None, expected: bool | None) -> None:
    assert decision is expected


def test_convolution_chains_compose() -> None:
    dim, halvings = H, 0
    for halvings in range(1, 6):
        dim = (dim + 2 - 3) // 2 + 1
        assert dim == ceildiv(H, 2**halvings)
    assert bounds(dim) == (0, None)


def test_products_beyond_the_limits_stay_sound() -> None:
    total = sum((symbol(s) for s in "cdefgijkl"), start=constant(1))
    square = total * total
    assert evaluate(square, {s: i for i, s in enumerate("cdefgijkl")}) == 37**2
    assert ge(square, 1) is True
    assert parse(str(square)) == square
    for start in (n + 1, as_dim(3)):
        with pytest.raises(DimTooLargeError):
            reduce(lambda x, _: x * x, range(40), start)


# ---- the class -------------------------------------------------------------------------------------------------------


def test_constants_and_integers_are_one() -> None:
    assert constant(3) == 3
    assert hash(constant(3)) == hash(3)
    assert constant(3) == np.int64(3)
    assert int(constant(0)) == 0
    assert list(range(constant(2))) == [0, 1]
    assert as_dim(np.int64(4)) is constant(4)
    assert np.int64(2) + n == n + 2
    assert (np.array([n, 3], dtype=object) * n).tolist() == [n * n, 3 * n]
    assert (n + np.array([1, 2])).tolist() == [n + 1, n + 2]
    assert (n == np.array([1, 2])).tolist() == [False, False]
    assert n != "n"


def test_a_symbolic_size_has_no_truth() -> None:
    with pytest.raises(TypeError, match="n is not a constant"):
        bool(n)
    with pytest.raises(TypeError, match="not a dimension"):
        as_dim(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        n + 1.5  # type: ignore[operator]


def test_bounds_belong_to_the_symbol() -> None:
    assert symbol("k", 0, 3) != symbol("k")
    assert symbol("k", 3, 3) == 3
    with pytest.raises(ValueError, match="'k' has no value"):
        symbol("k", 2, 1)


def test_unbound_symbols_and_zero_divisors() -> None:
    with pytest.raises(KeyError, match="dimension 'a' has no value; values are given for b"):
        evaluate(a + b, {"b": 1})
    with pytest.raises(ZeroDivisionError):
        evaluate(b // a, {"a": 0, "b": 1})
    with pytest.raises(ZeroDivisionError):
        a // 0
    with pytest.raises(ZeroDivisionError):
        a % 0
    with pytest.raises(ValueError, match="positive"):
        divisible(a, 0)
    with pytest.raises(ValueError, match="at least one"):
        minimum()


def test_compiled_dims() -> None:
    values = compile_dims((a // 2, a // 2 + b, constant(7), symbol('it\'s "odd"\n')))
    assert values({"a": 9, "b": 1, 'it\'s "odd"\n': 5}) == (4, 5, 7, 5)
    assert compile_dims(())({}) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("T", "T"),
        ("32*h", "32*h"),
        ("(s0 - 1)//2 + 1", "(s0 + 1)//2"),
        ("floor(H/2)", "H//2"),
        ("floor(H/2 - 1/2) + 1", "(H + 1)//2"),
        ("ceil(H/32)*32", "32*((H + 31)//32)"),
        ("Max(1, h)", "max(h, 1)"),
        ("h/8", "h//8"),
        ("-1", "-1"),
        (" 8 ", "8"),
        ("Mod(a, 4)", "a % 4"),
        ("2**3*a**2", "8*a**2"),
        ("images_dim.0", "images_dim.0"),
        ("batch size", "`batch size`"),
        ("unk__12", "unk__12"),
        ("höhe", "höhe"),
        ("?", "`?`"),
        ("", "``"),
        ("a//0", "`a//0`"),
        ("max()", "`max()`"),
        ("1e5", "`1e5`"),
        ("__import__('os')", "`__import__('os')`"),
        ("a**99999999", "`a**99999999`"),
        ("(" * 300 + "a" + ")" * 300, "`" + "(" * 300 + "a" + ")" * 300 + "`"),
    ],
)
def test_parse(text: str, expected: str) -> None:
    assert str(parse(text)) == expected


def test_parse_gives_symbols_the_lower_bound() -> None:
    assert bounds(parse("2*h + 1", low=1)) == (3, None)


# ---- generated C -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Expression], ctypes.CDLL]:
    """A batch of random expressions as C functions f0, f1, ... of (symbols in order, int *overflow)."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    batch: list[Expression] = []

    @settings(max_examples=250, deadline=None, derandomize=True, database=None)
    @given(EXPRESSIONS)
    def collect(expression: Expression) -> None:
        batch.append(expression)

    collect()
    folder = tmp_path_factory.mktemp("to_c")
    arguments = ", ".join(f"int64_t v_{s}" for s in BOUNDS)
    unused = " ".join(f"(void)v_{s};" for s in BOUNDS)
    functions = [
        f"int64_t f{i}({arguments}, int *o) {{ (void)o; {unused} return {to_c(e.dim, 'v_{}'.format)}; }}"
        for i, e in enumerate(batch)
    ]
    big = to_c(a * 2**62, str)
    functions.append(f"int64_t big(int64_t a, int *o) {{ return {big}; }}")
    source = folder / "dims.c"
    source.write_text("\n".join(['#include "kernel.h"', *functions]))
    library = folder / "dims.so"
    flags = ["-std=c11", "-O0", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, f"-I{RUNTIME}", source, "-o", library], check=True)
    return batch, ctypes.CDLL(str(library))


def test_c_equals_python(compiled: tuple[list[Expression], ctypes.CDLL]) -> None:
    batch, library = compiled
    values = ((0, 1, 7), (0, 1, 2, 30), (1, 2, 13), (2, 9), (-3, 0, 4))
    compared = 0
    for i, expression in enumerate(batch):
        function = library[f"f{i}"]
        function.restype = ctypes.c_int64
        function.argtypes = [ctypes.c_int64] * len(BOUNDS) + [ctypes.POINTER(ctypes.c_int)]
        for point in itertools.product(*values):
            env = dict(zip(BOUNDS, point, strict=True))
            expected = defined([expression], env)
            if expected is not None:
                overflow = ctypes.c_int(0)
                result = function(*point, ctypes.byref(overflow))
                assert (result, overflow.value) == (expected[0], 0), expression.dim
                compared += 1
    assert compared > 5000


def test_c_reports_overflow(compiled: tuple[list[Expression], ctypes.CDLL]) -> None:
    function = compiled[1]["big"]
    function.restype = ctypes.c_int64
    function.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_int)]
    for value, flag in ((1, 0), (2, 1)):
        overflow = ctypes.c_int(0)
        function(value, ctypes.byref(overflow))
        assert overflow.value == flag
    with pytest.raises(OverflowError, match="64 bits"):
        to_c(a * 2**63, str)
