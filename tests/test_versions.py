"""MVC's choice of kept versions: within both budgets, never slower for more of one, one a layer when switched off; and
what they add to the error of stacks of convolutions, against float64."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

import sod2
from models import build
from sod2 import Options, compiler, versions
from sod2.codegen.target import host
from sod2.compiler import Plan
from sod2.packing import TILES, Tile
from tests.graphs import model, random
from tests.plain_layers import conv, relu

TILE = TILES["avx512"]


@pytest.fixture(scope="module", params=["yolov6", "skipnet"])
def planned(request: pytest.FixtureRequest) -> Plan:
    return compiler.plan(build(request.param))


def kept(
    planned: Plan, *, several: bool = True, budget: float = 3.0, tolerance: float = 1e-5, tile: Tile = TILE
) -> versions.Kept:
    return versions.plan(
        planned.graph,
        planned.fusion.groups,
        planned.analysis,
        tile,
        several=several,
        budget=budget,
        tolerance=tolerance,
    )


def time(planned: Plan, chosen: versions.Kept) -> float:
    """Expected cycles of all convolutions."""
    return sum(
        layer.cost(chosen[layer.name]) for layer in versions.layers(planned.fusion.groups, planned.analysis, TILE)
    )


@pytest.mark.parametrize("budget", [1.5, 3.0, 6.0])
def test_packed_weights_stay_within_the_budget(planned: Plan, budget: float) -> None:
    found = {layer.name: layer for layer in versions.layers(planned.fusion.groups, planned.analysis, TILE)}
    chosen = kept(planned, budget=budget)
    raw = sum(c.nbytes for c in planned.graph.constants.values())
    others = raw - sum(layer.raw_bytes for layer in found.values())
    assert found.keys() == chosen.keys()
    assert others + sum(layer.bytes(chosen[name]) for name, layer in found.items()) <= budget * raw


def test_a_larger_budget_is_never_slower(planned: Plan) -> None:
    costs = [time(planned, kept(planned, budget=b)) for b in (1.0, 2.0, 4.0, 16.0)]
    assert costs == sorted(costs, reverse=True) and costs[-1] < 0.8 * costs[0]


def test_a_larger_tolerance_is_never_slower(planned: Plan) -> None:
    tolerances = (1e-8, 1e-6, 3e-6, 1e-5, 1e-4)
    choices = [kept(planned, budget=12.0, tolerance=t) for t in tolerances]
    assert all(versions.model_error(planned.graph, c) <= t for c, t in zip(choices, tolerances, strict=True))
    costs = [time(planned, choice) for choice in choices]
    assert all(a >= b for a, b in pairwise(costs)) and costs[-1] < 0.8 * costs[0]
    tiles = [{v for names in choice.values() for v in names if v.startswith("wino")} for choice in choices]
    assert not tiles[0] and "wino6" not in tiles[2] and "wino6" in tiles[4]


def test_without_mvc_each_layer_has_one_version(planned: Plan) -> None:
    assert {len(v) for v in kept(planned, several=False).values()} == {1}
    assert max(len(v) for v in kept(planned).values()) > 1


def test_a_first_layer_is_direct_or_made_of_phases(planned: Plan) -> None:
    """Three channels are too few for Winograd's transforms, the four phases of a stride of 2 are not."""
    first = next(iter(versions.layers(planned.fusion.groups, planned.analysis, TILE)))
    wanted = "wino3" if first.sizes[0].kernel == (7, 7) else "panel"
    assert first.sizes[0].ic == 3 and kept(planned, budget=16.0)[first.name] == (wanted,)
    assert kept(planned, budget=1.0)[first.name] == ("panel",)


# ---- error -----------------------------------------------------------------------------------------------------------

DEPTH = 6
BODIES = {
    "plain": ("y{k} = Conv<pads=[1, 1, 1, 1]>(y{before}, w{k}.weight)", lambda y, z: z),
    "relu": ("c{k} = Conv<pads=[1, 1, 1, 1]>(y{before}, w{k}.weight) y{k} = Relu(c{k})", lambda y, z: relu(z)),
    "residual": (
        "c{k} = Conv<pads=[1, 1, 1, 1]>(y{before}, w{k}.weight) y{k} = Add(c{k}, y{before})",
        lambda y, z: y + z,
    ),
}


def stack(body: str, channels: int, depth: int = DEPTH) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Convolutions one behind the other, with weights that keep the scale, as a model and its weights."""
    weights = {
        f"w{k}.weight": random(np.float32, (channels, channels, 3, 3), k) / np.float32(3 * channels**0.5)
        for k in range(1, depth + 1)
    }
    text = " ".join(body.format(k=k, before=k - 1) for k in range(1, depth + 1))
    named = {name.replace(".", "_"): w for name, w in weights.items()}
    built = model(f"float[1, {channels}, H, W] y0", f"float[?] y{depth}", text.replace(".weight", "_weight"), named)
    return built, weights


def test_what_is_left_of_the_budgets_serves_small_images() -> None:
    """A large tile saves most on large images; one of 16 pixels has few tiles, but needs all of its weights."""
    found = compiler.plan(stack(BODIES["relu"][0], 256, depth=1)[0])
    chosen, one = kept(found, budget=16.0), kept(found, budget=16.0, several=False)
    usual, small = (
        list(versions.layers(found.fusion.groups, found.analysis, TILE, extents))
        for extents in ((128, 320, 640), (16, 32, 64))
    )
    assert {v for names in one.values() for v in names} == {"wino6"}
    assert all(layer.cost(chosen[layer.name]) <= layer.cost(one[layer.name]) for layer in usual)
    assert all(layer.cost(chosen[layer.name]) < 0.95 * layer.cost(one[layer.name]) for layer in small)


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize(("tolerance", "version"), [(3e-6, "wino4"), (1e-4, "wino6")])
def test_error_of_a_stack_is_foreseen(kind: str, tolerance: float, version: str, tmp_path: Path) -> None:
    """Root mean squares: at most what is expected, and not much less."""
    body, step = BODIES[kind]
    source, weights = stack(body, 64)
    options = Options(weight_budget=9, mvc=False, tolerance=tolerance)
    emission = compiler.emit(source, options, host())
    assert set(emission.versions.values()) == {(version,)}
    expected = versions.model_error(emission.analysis.graph, emission.versions)
    assert expected == pytest.approx(DEPTH**0.5 * versions.layer_error((version,)))
    x = random(np.float32, (1, 64, 36, 36))
    got = sod2.load(compiler.build(source, options, host(), tmp_path / "artifact"), 2).run({"y0": x})[f"y{DEPTH}"][0]
    y = x[0].astype(np.float64)
    for k in range(1, DEPTH + 1):
        y = step(y, conv({n: w.astype(np.float64) for n, w in weights.items()}, y, f"w{k}"))
    measured = np.sqrt(((got - y) ** 2).mean() / (y**2).mean())
    assert 0.5 * expected < measured < 1.2 * expected
