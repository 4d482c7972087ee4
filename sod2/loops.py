"""What RDP knows of loops: facts that hold in every trip.

A state is assumed to be what it is initialised with. When a fixed point shows that the body gives something else back,
the assumption descends: a dim that differs becomes a minted symbol (its value in the trip at hand), an element of a
value or a rank that differs is nac. The analysis is then repeated, until the body gives back what was assumed; every
round takes something away, so that there are at most as many as there are dims and values, and in practice two.

What comes out is the last state: its dims are those that the state began with, or a minted symbol. A stacked output has
as many rows as there were trips. That is an expression when the condition never ends the loop and the trip count is
known, by the file or as a minted value, else a minted symbol; so is a dim of a row that exists inside the loop only.

Facts of the body hold when it runs: guards keep what a loop without trips would not prove inside.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from sod2.graph import Graph, Loop, State
from sod2.lattice import NAC, DimFact, Nac, Undef, Value, meet_value
from sod2.ops.lift import elements, product
from sod2.ops.op import Fact
from sod2.symbolic import Dim, as_dim, eq, maximum

Facts = Mapping[str, Fact]
Name = Callable[[str, int], Dim]  # the symbol of a dim that differs from trip to trip
Inside = Callable[[Loop, DimFact], bool]  # whether a dim is made of symbols that have a value inside the loop only


@dataclass(frozen=True)
class Varying:
    """What of a state differs from trip to trip: its rank, some dims, its value or some integers of it."""

    rank: bool = False
    axes: frozenset[int] = frozenset()
    value: bool = False
    elements: frozenset[int] = frozenset()


SAME = Varying()


def assumed(init: Fact, varying: Varying, tensor: str, name: Name) -> Fact:
    """The fact of a state, or of what comes out of it, that begins as `init`."""
    if varying.rank or not isinstance(init.shape, tuple):
        return Fact(init.dtype, NAC)
    if varying.axes:
        return Fact(init.dtype, tuple(name(tensor, k) if k in varying.axes else d for k, d in enumerate(init.shape)))
    if varying.value:
        return Fact(init.dtype, init.shape)
    return Fact(init.dtype, init.shape, _without(init, varying.elements)) if varying.elements else init


def _without(fact: Fact, differing: frozenset[int]) -> Value:
    opened = elements(fact)
    if opened is None:
        return NAC
    value = np.empty(opened.size, dtype=object)
    value[:] = [NAC if k in differing else e for k, e in enumerate(opened.flat)]
    return value.reshape(opened.shape)


def facts(loop: Loop, known: Facts, varying: Mapping[str, Varying], name: Name, inside: Inside) -> dict[str, Fact]:
    """The facts of all outputs of a loop's two nodes, as far as those of their inputs are there."""
    found = {loop.iteration: Fact(np.dtype(np.int64), ())}
    for state in loop.states:
        init = known[state.init] if state is not loop.condition else scalar(known[state.init])
        for tensor in filter(None, (state.state, state.final)):
            found[tensor] = assumed(init, varying.get(state.state, SAME), tensor, name)
    trips = trip_count(loop, {**known, **found})
    for scan, stacked in loop.stacks:
        if stacked and scan in known:
            shape = known[scan].shape
            rows = (trips, *(NAC if inside(loop, d) else d for d in shape)) if isinstance(shape, tuple) else shape
            found[stacked] = Fact(known[scan].dtype, rows)
    return found


def is_inside(graph: Graph, loop: Loop, makers: Iterable[str]) -> bool:
    """Whether one of these tensors, of which symbols were minted, exists inside the loop only."""
    return any((loop.iteration, True) in graph.guard_of(tensor) for tensor in makers)


def scalar(fact: Fact) -> Fact:
    """A condition as a scalar: it may be given as one element of a vector."""
    one = isinstance(fact.value, np.ndarray) and fact.value.size == 1
    return Fact(fact.dtype, (), np.asarray(fact.value).reshape(()) if one else NAC)


def required(loop: Loop, known: Facts) -> list[tuple[Dim, Dim]]:
    """Trip count and condition are scalars, or vectors of one element."""
    shapes = [known[t].shape for t in (loop.trip, loop.condition.init) if t]
    counts = [product(shape) for shape in shapes if isinstance(shape, tuple)]
    return [(count, as_dim(1)) for count in counts if isinstance(count, Dim)]


def only_counts(loop: Loop, known: Facts) -> bool:
    """Whether the condition is true in every trip."""
    value = known[loop.condition.state].known_value
    return value is not None and value.dtype != object and bool(value)


def trip_count(loop: Loop, known: Facts) -> DimFact:
    """The number of trips, NAC where only execution tells it."""
    value = known[loop.trip].known_value if loop.trip else None
    if value is None or value.size != 1 or not only_counts(loop, known):
        return NAC
    return maximum(as_dim(value.item()), 0)


# ---- descent ---------------------------------------------------------------------------------------------------------


def descended(loop: Loop, known: Facts, varying: Mapping[str, Varying]) -> dict[str, Varying]:
    """What differs between each state that a trip begins with and what it gives back, together with `varying`."""
    found = {}
    for state in loop.states:
        if state.state in known and state.next in known:
            old = varying.get(state.state, SAME)
            new = _descent(state, known[state.state], known[state.next], old, state is loop.condition)
            if new != SAME:
                found[state.state] = new
    return found


def _descent(state: State, begun: Fact, given: Fact, old: Varying, condition: bool) -> Varying:
    if condition:
        given = scalar(given)
    if old.rank or not isinstance(begun.shape, tuple):
        return old
    if not isinstance(given.shape, tuple) or len(given.shape) != len(begun.shape):
        return Varying(rank=True)
    pairs = enumerate(zip(begun.shape, given.shape, strict=True))
    axes = old.axes | {k for k, (a, b) in pairs if not _stays(a, b)}
    differing = _differing(begun, given)
    if old.value or differing is None:
        return Varying(axes=axes, value=True)
    return Varying(axes=axes, elements=old.elements | differing)


def _stays(begun: DimFact, given: DimFact) -> bool:
    """Whether a dim that is not known, or a symbol of this trip, may stay as it is."""
    if not isinstance(begun, Dim) or isinstance(given, Undef):
        return True
    return isinstance(given, Dim) and (begun == given or eq(begun, given) is True)


def _differing(begun: Fact, given: Fact) -> frozenset[int] | None:
    """Positions of the integers that are known when a trip begins, but not as the same at its end; None: all."""
    if not isinstance(begun.value, np.ndarray) or isinstance(given.value, Undef):
        return frozenset()
    met = meet_value(begun.value, given.value)
    if not isinstance(met, np.ndarray):
        return None
    pairs = enumerate(zip(begun.value.flat, met.flat, strict=True))
    found = frozenset(k for k, (a, b) in pairs if isinstance(b, Nac) and not isinstance(a, Nac))
    return found if begun.dtype.kind in "iub" or not found else None
