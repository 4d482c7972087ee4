"""Rules written for dims and arrays, applied to facts that are only partly known.

An element is a Dim, NAC or UNDEF. `lift` applies a function of Dims where all arguments are Dims; `elements` opens the
value of a fact for element-wise rules and `packed` closes it again. Values are followed up to MAX_ELEMENTS elements:
they exist to compute shapes, and no shape is longer.

Elements stand for exact integers, also in a floating-point tensor (exporters scale sizes in float). A rule whose result
might not be exact in the tensor's dtype is refused by `exact`, or guarded by `exactness_guards`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from sod2.lattice import NAC, UNDEF, Nac, Shape, Undef
from sod2.ops.op import Array, Fact, Facts, TensorValue
from sod2.symbolic import Dim, as_dim, bounds, eq, exact_div, maximum, minimum

MAX_ELEMENTS = 1024

Element = Dim | Nac | Undef
Rule = Callable[..., Dim | int | bool | None]

# Sizes pass through these dtypes in exported models although a huge one would not fit; a guard at the entry says so.
_GUARDED = {np.dtype(np.int32): 2**31 - 1, np.dtype(np.float32): 2**24, np.dtype(np.float64): 2**53}


def lift(rule: Rule, *args: Element) -> Element:
    """rule(*args) when every argument is a Dim; NAC (or UNDEF) when one is NAC (UNDEF) or the rule returns None."""
    if any(isinstance(a, Nac) for a in args):
        return NAC
    if any(isinstance(a, Undef) for a in args):
        return UNDEF
    result = rule(*args)
    return NAC if result is None else as_dim(int(result) if isinstance(result, bool) else result)


def product(dims: Iterable[Element]) -> Element:
    """The product; a factor that is provably 0 wins over unknown ones."""
    factors = list(dims)
    if any(isinstance(d, Dim) and d == 0 for d in factors):
        return as_dim(0)
    return lift(lambda *ds: math.prod(ds, start=as_dim(1)), *factors)


def known_shape(shape: Shape) -> tuple[int, ...] | None:
    """The shape as integers when all of it is constant, else None."""
    if isinstance(shape, tuple) and all(isinstance(d, Dim) and d.is_constant for d in shape):
        return tuple(int(d) for d in shape if isinstance(d, Dim))
    return None


def small_shape(fact: Fact) -> tuple[int, ...] | None:
    """The constant shape of a tensor whose value is worth following, else None."""
    shape = known_shape(fact.shape)
    return shape if shape is not None and math.prod(shape) <= MAX_ELEMENTS else None


def element(value: Any) -> Element:
    """One element of a value array; a number that is no integer is NAC."""
    if isinstance(value, Dim | Nac | Undef):
        return value
    number = int(value) if isinstance(value, int | np.integer | np.bool_) else float(value)
    return as_dim(int(number)) if isinstance(number, int) or number.is_integer() else NAC


def elements(fact: Fact) -> Array | None:
    """An object array of Elements in the tensor's shape, all NAC where nothing is known; None when it isn't small."""
    shape = small_shape(fact)
    if shape is None or isinstance(fact.value, Undef):
        return None
    opened = np.empty(shape, dtype=object)
    for i in np.ndindex(shape):
        opened[i] = element(fact.value[i]) if isinstance(fact.value, np.ndarray) else NAC
    return opened


def packed(values: Array, dtype: np.dtype[Any]) -> TensorValue:
    """Elements as the value of a tensor: numbers when all are constant, NAC when none is known."""
    if all(isinstance(v, Nac) for v in values.flat) and values.size:
        return NAC
    if all(isinstance(v, Dim) and v.is_constant for v in values.flat):
        return np.array([int(v) for v in values.flat], dtype=np.int64).reshape(values.shape).astype(dtype)
    return values


def number_arrays(x: Facts) -> list[Array | None] | None:
    """The values of all inputs when each is absent or small and made of numbers, else None."""
    arrays: list[Array | None] = []
    for fact in x:
        if fact is None:
            arrays.append(None)
        elif isinstance(fact.value, np.ndarray) and fact.value.dtype != object and fact.value.size <= MAX_ELEMENTS:
            arrays.append(fact.value)
        else:
            return None
    return arrays


def is_undefined(x: Facts) -> bool:
    """Whether some input's value has not been visited yet."""
    return any(f is not None and isinstance(f.value, Undef) for f in x)


def exact(value: Element, dtype: np.dtype[Any]) -> Element:
    """The element, NAC when the dtype might not hold it; int64 and the dtypes of `exactness_guards` are trusted."""
    if not isinstance(value, Dim) or dtype in _GUARDED or dtype == np.int64:
        return value
    low, high = bounds(value)
    if dtype == np.bool_:
        least, most = 0, 1
    elif dtype.kind in "iu":
        least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        high = most if high is None and dtype == np.uint64 else high
    else:
        least, most = -(2**11), 2**11  # float16
    return value if low is not None and high is not None and least <= low and high <= most else NAC


def exactness_guards(y: Facts) -> list[tuple[Dim, Dim]]:
    """Pairs that are equal exactly when every followed element of the outputs fits its dtype."""
    pairs: list[tuple[Dim, Dim]] = []
    for fact in y:
        if fact is None or not isinstance(fact.value, np.ndarray) or fact.value.dtype != object:
            continue
        limit = _GUARDED.get(fact.dtype)
        if limit is None:
            continue
        for value in fact.value.flat:
            if isinstance(value, Dim):
                inside = minimum(maximum(value, -limit), limit)
                if eq(inside, value) is not True:
                    pairs.append((inside, value))
    return pairs


def nonempty_guards(size: Element, taken: Element) -> list[tuple[Dim, Dim]]:
    """The pair that is equal exactly when an axis of this size has elements, or no positions along it are taken."""
    if not isinstance(size, Dim) or not isinstance(taken, Dim):
        return []
    if not size.is_constant and exact_div(taken, size, nonzero=True) is not None:
        return []  # a multiple of the size: of an empty axis none are
    pair = minimum(size, 1) * taken, taken
    return [] if eq(*pair) is True else [pair]


def integers(fact: Fact | None) -> list[Element] | None:
    """The elements of a 1-D (or scalar) integer tensor such as a list of sizes; None when its length isn't known."""
    opened = None if fact is None else elements(fact)
    return None if opened is None else list(opened.ravel())


def constant_integers(fact: Fact | None) -> list[int] | None:
    """The elements of a small integer tensor when all are constants, else None."""
    values = integers(fact)
    if values is None or not all(isinstance(v, Dim) and v.is_constant for v in values):
        return None
    return [int(v) for v in values if isinstance(v, Dim)]


def concrete(shape: Sequence[int]) -> tuple[Dim, ...]:
    """A shape of integers as Dims."""
    return tuple(map(as_dim, shape))
