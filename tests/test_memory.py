"""The memory plan: its live peak as a formula, and the placements it reports. test_arena.py tests the placing itself.

The oracle adds up the sizes of what is live, step by step.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sod2 import memory, peak
from sod2.memory import LiveRange
from sod2.symbolic import Dim, constant, evaluate, symbol

N, M = symbol("n", 0), symbol("m", 1, 640)
ENVIRONMENTS = [{"n": n, "m": m} for n in (0, 1, 3, 100) for m in (1, 2, 640)]
SIZES = [constant(0), constant(64), 4 * N, 4 * M, 4 * N * M, 4 * N * N, (N + 7) // 8 * 64, 4 * N * (M - 1), N % 16]


@st.composite
def plans(draw: st.DrawFn) -> memory.MemoryPlan:
    steps = draw(st.integers(1, 10))
    ranges = []
    for i in range(draw(st.integers(0, 12))):
        first = draw(st.integers(0, steps - 1))
        last = draw(st.integers(first, steps - 1))
        ranges.append(LiveRange(f"b{i}", first, last, draw(st.integers(1, 4)) * draw(st.sampled_from(SIZES))))
    return memory.plan(ranges, steps, peak_first=draw(st.booleans()))


@settings(max_examples=200, deadline=None)
@given(plans())
def test_live_peak_is_the_largest_sum_at_every_size(plan: memory.MemoryPlan) -> None:
    for env in ENVIRONMENTS:
        sizes = [evaluate(r.size, env) for r in plan.ranges]
        live = [
            [size for size, r in zip(sizes, plan.ranges, strict=True) if r.first <= step <= r.last]
            for step in range(plan.steps)
        ]
        assert evaluate(plan.live_peak, env) == max(map(sum, live))
        assert plan.live_bytes(env) == max(sum(-(-size // 64) * 64 for size in step) for step in live)
        assert plan.sizes(env) == tuple(sizes)
        placement = plan.placement(env)
        place = memory.place_peak_first if plan.peak_first else memory.place_best_fit
        assert placement == place([(r.first, r.last) for r in plan.ranges], sizes)
        assert evaluate(plan.live_peak, env) <= plan.live_bytes(env) <= placement.arena


def test_dominated_sums_are_dropped_and_undecided_ones_stay() -> None:
    def peak_of(*sizes: Dim) -> str:
        return str(memory.plan([LiveRange(str(i), i, i, size) for i, size in enumerate(sizes)], len(sizes)).live_peak)

    assert peak_of(4 * N, 8 * N, 8 * N) == "8*n"
    assert peak_of(4 * N * M, 4 * N, N * M + 3 * N) == "4*n*m".replace("n*m", "m*n")
    assert peak_of(100 * N, 4 * N * M) == "max(4*m*n, 100*n)"
    assert peak_of(640 * N, N * M) == "640*n"


def test_a_plan_prints_its_ranges() -> None:
    plan = memory.plan([LiveRange("x", 0, 1, 4 * N), LiveRange("scratch", 0, 0, constant(64))], 2)
    assert str(plan) == "2 steps, live peak 4*n + 64\n  x 0..1: 4*n\n  scratch 0..0: 64"


def test_nothing_to_place() -> None:
    plan = memory.plan([], 3)
    assert (plan.live_peak, plan.live_bytes({}), plan.placement({})) == (0, 0, memory.Placement(0, ()))


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (LiveRange("x", 1, 0, N), r"buffer 'x' is live at 1\.\.0; the steps are 0\.\.2"),
        (LiveRange("x", 2, 3, N), r"buffer 'x' is live at 2\.\.3; the steps are 0\.\.2"),
        (LiveRange("x", 0, 0, constant(-4)), "buffer 'x' has -4 bytes, which is never 0 or more"),
    ],
)
def test_a_wrong_range_is_refused(broken: LiveRange, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        memory.plan([broken], 3)


def test_a_missing_symbol_is_named() -> None:
    with pytest.raises(KeyError, match="'n' has no value"):
        memory.plan([LiveRange("x", 0, 0, N)], 1).placement({"m": 3})


def test_proportional_sizes_are_compared_as_integers() -> None:
    base = 3 * N * M + 2 * M
    assert peak.proportional([2 * base, constant(0), 7 * base]) == [6, 0, 21]
    assert peak.proportional([constant(4), constant(6)]) == [4, 6]
    assert peak.proportional([constant(0), constant(0)]) == [0, 0]
    assert peak.proportional([9 - M % 9, 18 - 2 * (M % 9)]) == [1, 2]  # negative leading coefficients
    assert peak.proportional([base, 3 * N * M]) is None
    assert peak.proportional([base, 3 * N * M + 4 * M]) is None
    assert peak.proportional([N, M]) is None


def test_samples_stay_inside_bounds_and_skip_what_has_no_value() -> None:
    k = symbol("k", 64, 65)
    samples = peak.environments([N * M, k])
    assert all(64 <= e["k"] <= 65 and 1 <= e["m"] <= 640 for e in samples)
    assert len(samples) == len({tuple(sorted(e.items())) for e in samples}) > 4
    assert peak.environments([constant(3)]) != []
    assert peak.sampled([N // (M - 640), N], [{"n": 5, "m": 640}, {"n": 5, "m": 639}]) == [(-5,), (5,)]
