"""The algebra of meet and refine, on dims, shapes and values.

The oracle for soundness is membership: a fact stands for the set of runs it allows; `allows` says whether a concrete
shape or value belongs to it for given symbols.
"""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sod2.lattice import (
    IMPOSSIBLE,
    NAC,
    UNDEF,
    DimFact,
    Nac,
    Shape,
    Undef,
    Value,
    kind,
    known,
    meet,
    meet_dim,
    meet_value,
    refine,
    refine_dim,
    refine_value,
)
from sod2.symbolic import Dim, constant, evaluate, symbol

h, w = symbol("h"), symbol("w")
EXPRESSIONS = [constant(0), constant(1), constant(3), h, w, h + 1, 2 * h, h * w]
DIMS = st.sampled_from([*EXPRESSIONS, NAC, UNDEF])
SHAPES = st.one_of(st.sampled_from([UNDEF, NAC]), st.lists(DIMS, max_size=3).map(tuple))
ENV = {"h": 2, "w": 3}


def objects(elements: list[Any]) -> Value:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


NUMBERS = st.one_of(
    st.lists(st.integers(-1, 2), max_size=3).map(lambda xs: np.array(xs, np.int64)),
    st.lists(st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")]), max_size=2).map(np.array),
)
SYMBOLIC = st.lists(st.sampled_from([*EXPRESSIONS, 1, 3, NAC]), max_size=3).map(objects)
VALUES = st.one_of(st.sampled_from([UNDEF, NAC]), NUMBERS, SYMBOLIC)


def same(a: Value, b: Value) -> bool:
    """Structural equality of values; numbers by their bits, whatever the dtype of the array."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return a is b
    texts = [[str(e) for e in x.ravel().tolist()] for x in (a, b)]
    return a.shape == b.shape and texts[0] == texts[1]


# ---- meet ------------------------------------------------------------------------------------------------------------


@given(DIMS, DIMS, DIMS)
def test_meet_of_dims_is_a_semilattice(a: DimFact, b: DimFact, c: DimFact) -> None:
    assert meet_dim(a, a) == a
    assert meet_dim(a, b) == meet_dim(b, a)
    assert meet_dim(a, meet_dim(b, c)) == meet_dim(meet_dim(a, b), c)
    assert meet_dim(UNDEF, a) == a
    assert meet_dim(NAC, a) is NAC


@given(SHAPES, SHAPES, SHAPES)
def test_meet_of_shapes_is_a_semilattice(a: Shape, b: Shape, c: Shape) -> None:
    assert meet(a, a) == a
    assert meet(a, b) == meet(b, a)
    assert meet(a, meet(b, c)) == meet(meet(a, b), c)
    assert meet(UNDEF, a) == a
    assert meet(NAC, a) is NAC


@given(VALUES, VALUES, VALUES)
def test_meet_of_values_is_a_semilattice(a: Value, b: Value, c: Value) -> None:
    assert same(meet_value(a, a), a)
    assert same(meet_value(a, b), meet_value(b, a))
    assert same(meet_value(a, meet_value(b, c)), meet_value(meet_value(a, b), c))
    assert same(meet_value(UNDEF, a), a)
    assert meet_value(NAC, a) is NAC


def test_meet_keeps_what_holds_on_both() -> None:
    assert meet((constant(1), h, w), (constant(1), h + 1, w)) == (1, NAC, w)
    assert meet((h, w), (h, w, constant(1))) is NAC
    assert meet((), ()) == ()
    met = meet_value(np.array([1, 2]), np.array([1, 3]))
    assert isinstance(met, np.ndarray)
    assert met.tolist() == [1, NAC]
    assert meet_value(np.array([1, 2]), np.array([[1, 2]])) is NAC
    zeros = meet_value(np.array([0.0]), np.array([-0.0]))
    assert isinstance(zeros, np.ndarray)
    assert zeros.tolist() == [NAC]
    empty = np.zeros((0, 2), np.int64)
    assert meet_value(empty, empty.copy()) is empty


# ---- refine ----------------------------------------------------------------------------------------------------------


def allows(fact: DimFact, size: int) -> bool:
    return not isinstance(fact, Dim) or evaluate(fact, ENV) == size


@given(DIMS, DIMS, st.integers(0, 7))
def test_refine_keeps_both_truths(a: DimFact, b: DimFact, size: int) -> None:
    refined, equalities = refine_dim(a, b)
    holds = all(evaluate(x, ENV) == evaluate(y, ENV) for x, y in equalities)
    assert (allows(refined, size) and holds) == (allows(a, size) and allows(b, size))


@given(SHAPES, SHAPES)
def test_refine_of_shapes(a: Shape, b: Shape) -> None:
    refined, equalities = refine(a, b)
    assert refine(a, a) == (a, [])
    assert refine(b, a) == (refined, equalities)
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        assert isinstance(refined, tuple)
        assert all(isinstance(r, Dim) for r, x, y in zip(refined, a, b, strict=True) if {type(x), type(y)} & {Dim})
    assert refine(UNDEF, a) == (a, [])


@given(VALUES, VALUES)
def test_refine_of_values(a: Value, b: Value) -> None:
    refined = refine_value(a, b)[0]
    assert same(refine_value(a, a)[0], a)
    assert isinstance(refined, np.ndarray) == (isinstance(a, np.ndarray) or isinstance(b, np.ndarray))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape == b.shape:
        assert isinstance(refined, np.ndarray)
        for r, x, y in zip(refined.tolist(), a.tolist(), b.tolist(), strict=True):
            assert isinstance(r, Nac) == (isinstance(x, Nac) and isinstance(y, Nac))


def test_refine_prefers_the_simpler_expression() -> None:
    assert refine_dim(h * w, h) == (h, [(h, h * w)])
    assert refine_dim(h, constant(3)) == (3, [(constant(3), h)])
    assert refine_dim(h, NAC) == (h, [])
    assert refine_dim(UNDEF, NAC) == (NAC, [])
    assert refine((h, NAC), (2 * w, w)) == ((h, w), [(h, 2 * w)])


def test_contradictions_are_false_equalities() -> None:
    assert refine((h, w), (h,)) == ((h,), [(constant(1), constant(2))])
    assert refine_dim(constant(3), constant(4)) == (3, [(constant(3), constant(4))])
    assert refine_value(np.array([1]), np.array([1, 2]))[1] == [IMPOSSIBLE]
    assert refine_value(np.array([1.0, 2.0]), np.array([1.0, 3.0]))[1] == [IMPOSSIBLE]


def test_refine_of_a_value_fills_in_elements() -> None:
    refined, equalities = refine_value(objects([NAC, 2 * h, 3]), objects([w, 4, constant(3)]))
    assert isinstance(refined, np.ndarray)
    assert refined.tolist() == [w, 4, 3]
    assert equalities == [(constant(4), 2 * h)]


# ---- names -----------------------------------------------------------------------------------------------------------


def test_known() -> None:
    assert known(())
    assert known((h, constant(0)))
    assert not known((h, NAC))
    assert not known((UNDEF,))
    assert not known(NAC)
    assert not known(UNDEF)


@pytest.mark.parametrize(
    ("dim", "name"),
    [
        (constant(0), "known constant"),
        (h, "symbolic constant"),
        (h + 1, "op-inferred constant"),
        (h // 2, "op-inferred constant"),
        (NAC, "nac"),
        (UNDEF, "undef"),
    ],
)
def test_kind(dim: DimFact, name: str) -> None:
    assert kind(dim) == name


def test_the_two_ends_are_single_objects() -> None:
    assert (repr(UNDEF), repr(NAC)) == ("undef", "nac")
    for end in (UNDEF, NAC):
        assert pickle.loads(pickle.dumps(end)) is end
        assert copy.deepcopy(end) is end
    assert isinstance(UNDEF, Undef)
