"""Lower bounds of symbols that what every run requires of them implies.

A window that must fit (min(T + 2, 3) == 3) bounds its symbol from below for every input that the model accepts. Bounds
decide comparisons, so RDP repeats its analysis with them; the requirements themselves are checked all the same.
"""

from collections.abc import Mapping
from dataclasses import replace

from sod2.analysis import Analysis
from sod2.graph import Graph, Requirement
from sod2.minting import Minted
from sod2.symbolic import evaluate, maximum, substitute, symbol

_MAX_BOUND = 512  # values of a symbol that are tried in search of its lower bound


def lower_bounds(analysis: Analysis, before: Mapping[str, int]) -> dict[str, int]:
    """Least value of each symbol that meets the unconditional requirements on it alone: smaller ones violate one."""
    lows = dict(before)
    for r in analysis.requirements:
        names = r.left.symbols() | r.right.symbols()
        if r.guard or len(names) != 1:
            continue
        (name,) = names
        if name in analysis.minted:
            lows.update(_sign_bound(r, analysis.minted[name]))
            continue
        start = lows.get(name, 0)
        values = range(start, start + _MAX_BOUND)
        lows[name] = next((k for k in values if _holds(r, {name: k})), start)
    return lows


def _sign_bound(requirement: Requirement, minted: Minted) -> dict[str, int]:
    """The bound of a minted symbol that a requirement `max(s, 0) == s` states, the only one that is looked for."""
    s = minted.symbol
    sides = {requirement.left, requirement.right}
    return {minted.name: 0} if sides == {s, maximum(s, 0)} and s != maximum(s, 0) else {}


def _holds(requirement: Requirement, symbols: Mapping[str, int]) -> bool:
    """Whether the two sides are equal there, or have no value."""
    try:
        return evaluate(requirement.left, symbols) == evaluate(requirement.right, symbols)
    except ZeroDivisionError:
        return True


def bounded(graph: Graph, lows: Mapping[str, int]) -> Graph:
    """The graph with better lower bounds of the symbols of its inputs."""
    table = {name: symbol(name, low) for name, low in lows.items()}
    inputs = tuple(
        replace(v, shape=None if v.shape is None else tuple(substitute(d, table) for d in v.shape))
        for v in graph.inputs
    )
    required = tuple(
        replace(r, left=substitute(r.left, table), right=substitute(r.right, table)) for r in graph.required
    )
    return replace(graph, inputs=inputs, required=required)
