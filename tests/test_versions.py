"""MVC's choice of kept versions: within the budget, never slower for more of it, one a layer when switched off."""

import pytest

from models import build
from sod2 import compiler, versions
from sod2.compiler import Plan
from sod2.packing import TILES, Tile

TILE = TILES["avx512"]


@pytest.fixture(scope="module", params=["yolov6", "skipnet"])
def planned(request: pytest.FixtureRequest) -> Plan:
    return compiler.plan(build(request.param))


def kept(planned: Plan, *, several: bool = True, budget: float = 3.0, tile: Tile = TILE) -> versions.Kept:
    groups = planned.fusion.groups
    return versions.plan(planned.graph, groups, planned.analysis, tile, several=several, budget=budget)


@pytest.mark.parametrize("budget", [1.5, 3.0, 6.0])
def test_packed_weights_stay_within_the_budget(planned: Plan, budget: float) -> None:
    found = {layer.name: layer for layer in versions.layers(planned.fusion.groups, planned.analysis, TILE)}
    chosen = kept(planned, budget=budget)
    raw = sum(c.nbytes for c in planned.graph.constants.values())
    others = raw - sum(layer.raw_bytes for layer in found.values())
    assert found.keys() == chosen.keys()
    assert others + sum(layer.bytes(chosen[name]) for name, layer in found.items()) <= budget * raw


def test_a_larger_budget_is_never_slower(planned: Plan) -> None:
    found = {layer.name: layer for layer in versions.layers(planned.fusion.groups, planned.analysis, TILE)}
    costs = [
        sum(layer.cost(choice[name]) for name, layer in found.items())
        for choice in (kept(planned, budget=b) for b in (1.0, 2.0, 4.0, 16.0))
    ]
    assert costs == sorted(costs, reverse=True) and costs[-1] < 0.8 * costs[0]


def test_without_mvc_each_layer_has_one_version(planned: Plan) -> None:
    assert {len(v) for v in kept(planned, several=False).values()} == {1}
    assert max(len(v) for v in kept(planned).values()) == 2


def test_a_first_layer_is_direct_or_made_of_phases(planned: Plan) -> None:
    """Three channels are too few for Winograd's transforms, the four phases of a stride of 2 are not."""
    first = next(iter(versions.layers(planned.fusion.groups, planned.analysis, TILE)))
    wanted = "wino3" if first.sizes[0].kernel == (7, 7) else "panel"
    assert first.sizes[0].ic == 3 and kept(planned, budget=16.0)[first.name] == (wanted,)
    assert kept(planned, budget=1.0)[first.name] == ("panel",)
