"""The lattice of facts about shapes and values: undef, constants (known, symbolic, op-inferred), nac.

As in the paper's RDP, a dim climbs from UNDEF (nothing learned yet) through an expression to NAC (not a constant: only
execution tells). A shape is a tuple of dims, or UNDEF or NAC as a whole when not even the rank is known; a value is an
array whose elements are numbers, Dims or NAC, or UNDEF or NAC as a whole.

Two operations, which mustn't be confused:
- `meet` joins alternatives, only one of which happens (the inputs of a Combine, the trips of a loop): what holds on
  both stays. It is commutative, associative and idempotent, with UNDEF neutral and NAC absorbing.
- `refine` joins two truths about one tensor (a forward and a backward fact): all is kept. Two expressions for one dim
  are equal in every valid run; the simpler one stays, and the equality is returned for the guard store. A pair that
  can't be equal (3 and 4, or two ranks) is returned too: the store decides whether the model or a branch is refused.

`meet` compares normal forms, not `symbolic.eq`: what a prover happens to find equal isn't transitive.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sod2.symbolic import Dim, as_dim, constant, eq


class Undef:
    """Nothing is known yet."""

    def __repr__(self) -> str:
        return "undef"

    def __reduce__(self) -> str:
        return "UNDEF"  # one object, also after a copy or a pickle


class Nac:
    """Not a constant: known only by execution."""

    def __repr__(self) -> str:
        return "nac"

    def __reduce__(self) -> str:
        return "NAC"


UNDEF = Undef()
NAC = Nac()

DimFact = Dim | Nac | Undef
Shape = tuple[DimFact, ...] | Undef | Nac
Array = NDArray[Any]
Value = Array | Undef | Nac
Equality = tuple[Dim, Dim]
IMPOSSIBLE: Equality = (constant(0), constant(1))  # what two facts imply that can't both be true


def known(shape: Shape) -> bool:
    """Whether the rank and every dim are expressions."""
    return isinstance(shape, tuple) and all(isinstance(d, Dim) for d in shape)


def kind(dim: DimFact) -> str:
    """The paper's name for what is known about a dim."""
    if not isinstance(dim, Dim):
        return repr(dim)
    if dim.is_constant:
        return "known constant"
    return "symbolic constant" if dim.is_symbol else "op-inferred constant"


# ---- meet ------------------------------------------------------------------------------------------------------------


def meet_dim(a: DimFact, b: DimFact) -> DimFact:
    """What holds of a dim that is `a` or `b`."""
    if isinstance(a, Undef):
        return b
    return a if isinstance(b, Undef) or a == b else NAC


def meet(a: Shape, b: Shape) -> Shape:
    """What holds of a tensor whose shape is `a` or `b`; NAC when the ranks differ."""
    if isinstance(a, Undef):
        return b
    if isinstance(b, Undef):
        return a
    if isinstance(a, Nac) or isinstance(b, Nac) or len(a) != len(b):
        return NAC
    return tuple(map(meet_dim, a, b))


def meet_value(a: Value, b: Value) -> Value:
    """What holds of a tensor whose value is `a` or `b`: elements that differ are NAC; NAC when the shapes differ."""
    if isinstance(a, Undef):
        return b
    if isinstance(b, Undef):
        return a
    if isinstance(a, Nac) or isinstance(b, Nac) or a.shape != b.shape:
        return NAC
    if a is b or _same_numbers(a, b):
        return a
    elements = [x if _same(x, y) else NAC for x, y in zip(_elements(a), _elements(b), strict=True)]
    if any(isinstance(e, Nac) for e in elements):
        return _array(elements, a.shape)
    return b if a.dtype == object else a


# ---- refine ----------------------------------------------------------------------------------------------------------


def refine_dim(a: DimFact, b: DimFact) -> tuple[DimFact, list[Equality]]:
    """The better of two facts about one dim, and the equality that both being true implies."""
    if isinstance(a, Dim) and isinstance(b, Dim):
        if a == b:
            return a, []
        better, other = sorted((a, b), key=_complexity)
        return better, [(better, other)]
    return max(a, b, key=_knowledge), []


def refine(a: Shape, b: Shape) -> tuple[Shape, list[Equality]]:
    """Both of two facts about one tensor's shape, and the equalities of dims that they imply.

    Two ranks can't both be true: the equality of the two ranks, which is false, says so and the smaller rank stays.
    """
    if not isinstance(a, tuple) or not isinstance(b, tuple):
        return max(a, b, key=_knowledge), []
    if len(a) != len(b):
        low, high = sorted((a, b), key=len)
        return low, [(constant(len(low)), constant(len(high)))]
    pairs = [refine_dim(x, y) for x, y in zip(a, b, strict=True)]
    return tuple(dim for dim, _ in pairs), [e for _, equalities in pairs for e in equalities]


def refine_value(a: Value, b: Value) -> tuple[Value, list[Equality]]:
    """Both of two facts about one tensor's value, and the equalities of integer elements that they imply.

    Arrays of different shapes, or different floating-point numbers, can't both be true: IMPOSSIBLE says so.
    """
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return max(a, b, key=_knowledge), []
    if a.shape != b.shape:
        return a, [IMPOSSIBLE]
    if a is b or _same_numbers(a, b):
        return a, []
    elements, equalities = [], []
    for x, y in zip(_elements(a), _elements(b), strict=True):
        element, found = _refine_element(x, y)
        elements.append(element)
        equalities += found
    return _array(elements, a.shape), equalities


def _refine_element(x: Any, y: Any) -> tuple[Any, list[Equality]]:
    if isinstance(x, Nac | Undef) or isinstance(y, Nac | Undef):
        return max(x, y, key=_knowledge), []
    if _same(x, y):
        return x, []
    if _is_integer(x) and _is_integer(y):
        return refine_dim(as_dim(x), as_dim(y))
    return x, [IMPOSSIBLE]


def _knowledge(fact: object) -> int:
    return 0 if isinstance(fact, Undef) else 1 if isinstance(fact, Nac) else 2


def _complexity(dim: Dim) -> tuple[bool, bool, int, int, str]:
    """Order of preference: a constant, a bare symbol, few symbols, a short expression, the alphabet."""
    return not dim.is_constant, not dim.is_symbol, len(dim.symbols()), dim.size, dim.key


# ---- elements of values ----------------------------------------------------------------------------------------------


def same_dims(left: Shape, right: Shape) -> bool:
    """Whether two shapes are known and provably equal."""
    if not isinstance(left, tuple) or not isinstance(right, tuple) or len(left) != len(right):
        return False
    return all(isinstance(p, Dim) and isinstance(q, Dim) and eq(p, q) is True for p, q in zip(left, right, strict=True))


def _elements(array: Array) -> list[Any]:
    return list(array.ravel()) if array.dtype == object else list(array.ravel().tolist())


def _is_integer(x: object) -> bool:
    return isinstance(x, Dim | int | np.integer)


def _same(x: Any, y: Any) -> bool:
    """Whether two elements are the same fact. For floats the bits count: NaN is the same as NaN, -0.0 isn't 0.0."""
    if isinstance(x, float | np.floating) or isinstance(y, float | np.floating):
        return _bits(x) == _bits(y)
    return bool(x == y)


def _bits(x: object) -> object:
    return float(x).hex() if isinstance(x, float | np.floating) else x


def _same_numbers(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.dtype != object and a.tobytes() == b.tobytes()


def _array(elements: list[Any], shape: tuple[int, ...]) -> Array:
    """An object array; numpy may not look inside the elements."""
    array = np.empty(len(elements), dtype=object)
    for i, element in enumerate(elements):
        array[i] = element
    return array.reshape(shape)
