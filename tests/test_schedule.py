"""Schedules: valid, branches in one piece, never worse than the given order, and optimal where that is promised.

The oracle replays an order on concrete sizes, written without the scheduler's data structures, and searches all valid
orders of small cases.
"""

import itertools
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sod2 import peak, schedule, search
from sod2.partition import Region, cut, regions
from sod2.problem import Problem
from sod2.schedule import Item
from sod2.symbolic import Dim, constant, evaluate, maximum, symbol

N, M, K = symbol("n", 0), symbol("m", 1, 640), symbol("k", 2, 9)
ZERO = constant(0)


def item(name: str, reads: str, writes: str, guard: tuple[tuple[str, bool], ...] = (), scratch: Dim = ZERO) -> Item:
    return Item(name, tuple(reads.split()), tuple(writes.split()), guard, scratch)


def replayed_peak(
    items: Sequence[Item],
    sizes: Mapping[str, int],
    live_out: Collection[str],
    order: Sequence[int],
    env: Mapping[str, int],
) -> int:
    """Peak bytes of an order: after each item its dead tensors go, found by looking through all items to come."""
    live: set[str] = set()
    worst = 0
    for position, i in enumerate(order):
        live |= {t for t in items[i].writes if t in sizes}
        worst = max(worst, sum(sizes[t] for t in live) + evaluate(items[i].scratch, env))
        to_come = {t for j in order[position + 1 :] for t in items[j].needs()}
        live = {t for t in live if t in to_come or t in live_out}
    return worst


def is_valid(items: Sequence[Item], order: Sequence[int]) -> bool:
    everything = {t for it in items for t in it.writes}
    there: set[str] = set()
    for i in order:
        if any(t in everything and t not in there for t in items[i].needs()):
            return False
        there.update(items[i].writes)
    return sorted(order) == list(range(len(items)))


def is_contiguous(items: Sequence[Item], order: Sequence[int], members: Region) -> bool:
    """Whether every region, at every depth, is one run of the order."""
    for member in members.members:
        if isinstance(member, Region):
            positions = sorted(order.index(i) for i in member.items())
            if positions != list(range(positions[0], positions[-1] + 1)) or not is_contiguous(items, order, member):
                return False
    return True


@st.composite
def size_of(draw: st.DrawFn, kind: str) -> Dim:
    count = draw(st.integers(0, 6))
    if kind == "proportional":
        return count * 4 * N * M
    return count * draw(st.sampled_from([constant(64), N, M, N * M, N * N, M * K, (N + 7) // 8, N * (M - 1)]))


@st.composite
def graphs(draw: st.DrawFn, most: int, kind: str) -> tuple[list[Item], dict[str, Dim], set[str]]:
    """Items in a valid order with up to two results, some dead, some model outputs, some outside the arena."""
    items: list[Item] = []
    sizes: dict[str, Dim] = {}
    tensors = ["input"]
    for i in range(draw(st.integers(1, most))):
        recent = tensors[-4:] if draw(st.booleans()) else tensors
        reads = draw(st.lists(st.sampled_from(recent), max_size=3, unique=True))
        writes = [f"t{i}.{k}" for k in range(draw(st.integers(1, 2)))]
        scratch = draw(size_of(kind)) if draw(st.integers(0, 3)) == 0 else ZERO
        items.append(Item(f"item{i}", tuple(reads), tuple(writes), (), scratch))
        tensors += writes
        sizes.update((t, draw(size_of(kind))) for t in writes if draw(st.integers(0, 9)))
    live_out = {t for t in tensors[1:] if draw(st.integers(0, 7)) == 0} | {tensors[-1]}
    return items, sizes, live_out


ENVIRONMENTS = [{"n": n, "m": m, "k": k} for n, m, k in [(0, 1, 2), (1, 1, 2), (5, 600, 9), (300, 2, 3), (90, 90, 5)]]


@settings(max_examples=80, deadline=None)
@given(graphs(most=7, kind="proportional"))
def test_small_graphs_of_proportional_sizes_are_optimal_at_every_size(
    graph: tuple[list[Item], dict[str, Dim], set[str]],
) -> None:
    items, sizes, live_out = graph
    order = schedule.order(items, sizes, live_out)
    assert is_valid(items, order)
    for env in ENVIRONMENTS:
        at = {t: evaluate(s, env) for t, s in sizes.items()}
        valid = (
            (p for p in itertools.permutations(range(len(items))) if is_valid(items, p))
            if env == ENVIRONMENTS[3]
            else ()
        )
        least = min((replayed_peak(items, at, live_out, p, env) for p in valid), default=None)
        found = replayed_peak(items, at, live_out, order, env)
        assert found <= replayed_peak(items, at, live_out, range(len(items)), env)
        assert least is None or found == least


@settings(max_examples=80, deadline=None)
@given(graphs(most=25, kind="mixed"))
def test_never_worse_than_given_at_any_sample(graph: tuple[list[Item], dict[str, Dim], set[str]]) -> None:
    items, sizes, live_out = graph
    order = schedule.order(items, sizes, live_out, samples=ENVIRONMENTS)
    assert is_valid(items, order)
    assert schedule.given(items, sizes, live_out) == tuple(range(len(items)))
    for env in ENVIRONMENTS:
        at = {t: evaluate(s, env) for t, s in sizes.items()}
        before = replayed_peak(items, at, live_out, range(len(items)), env)
        assert replayed_peak(items, at, live_out, order, env) <= before
        sums = schedule.live_sums(items, sizes, live_out, order)
        assert evaluate(maximum(*sums), env) == replayed_peak(items, at, live_out, order, env)


@st.composite
def guarded(draw: st.DrawFn) -> tuple[list[Item], dict[str, Dim], set[str]]:
    """Nested branches on computed predicates, joined by Combine items, then shuffled into another valid order."""
    items: list[Item] = []
    sizes: dict[str, Dim] = {}
    count = itertools.count()

    def emit(reads: Sequence[str], guard: tuple[tuple[str, bool], ...]) -> str:
        tensor = f"t{next(count)}"
        items.append(Item(f"make {tensor}", tuple(reads), (tensor,), guard, draw(size_of("mixed"))))
        sizes[tensor] = draw(size_of("mixed"))
        return tensor

    def body(tensors: list[str], guard: tuple[tuple[str, bool], ...], depth: int) -> str:
        tensors = list(tensors)
        for _ in range(draw(st.integers(1, 4))):
            if depth < 2 and draw(st.booleans()):
                predicate = emit(tensors[-1:], guard)
                sides = [body(tensors, (*guard, (predicate, side)), depth + 1) for side in (True, False)]
                tensors.append(emit([predicate, *sides], guard))
            else:
                tensors.append(emit(draw(st.lists(st.sampled_from(tensors), max_size=2, unique=True)), guard))
        return emit(tensors[-3:], guard)

    result = body(["input"], (), 0)
    left, done = list(range(len(items))), set(range(0))
    writer = {t: i for i, it in enumerate(items) for t in it.writes}
    shuffled = []
    while left:
        ready = [i for i in left if all(writer.get(t, i) in {i, *done} for t in items[i].needs())]
        i = ready[draw(st.integers(0, len(ready) - 1))]
        left.remove(i)
        done.add(i)
        shuffled.append(items[i])
    return shuffled, sizes, {result}


@settings(max_examples=60, deadline=None)
@given(guarded())
def test_branches_stay_in_one_piece(graph: tuple[list[Item], dict[str, Dim], set[str]]) -> None:
    items, sizes, live_out = graph
    tree = regions(items)
    as_given = schedule.given(items, sizes, live_out)
    order = schedule.order(items, sizes, live_out, samples=ENVIRONMENTS)
    for result in (as_given, order):
        assert is_valid(items, result)
        assert is_contiguous(items, result, tree)
        runs = [key for key, _ in itertools.groupby(items[i].guard[:1] for i in result) if key]
        assert len(runs) == len(set(runs))  # here every predicate belongs to one If
    for env in ENVIRONMENTS:
        at = {t: evaluate(s, env) for t, s in sizes.items()}
        assert replayed_peak(items, at, live_out, order, env) <= replayed_peak(items, at, live_out, as_given, env)


def test_a_branch_that_waits_for_its_own_result_is_split() -> None:
    """Two Ifs on one predicate, the second reading what was joined behind the first."""
    on = (("p", True),)
    items = [
        item("p", "", "p"),
        item("first", "", "a", on),
        item("unrelated", "", "u"),
        item("also first", "a", "b", on),
        item("join", "b p", "c"),
        item("second", "c", "d", on),
        item("end", "d u", "e"),
    ]
    assert [list(m.items()) for m in regions(items).members if isinstance(m, Region)] == [[1, 3], [5]]
    assert schedule.given(items, {}, {"e"}) == (0, 1, 3, 2, 4, 5, 6)


def test_two_branches_that_wait_for_each_other_are_split() -> None:
    """p, q, p, q in turn, each reading through a join what the other made; nothing else orders the two p."""
    p, q = (("p", True),), (("q", True),)
    items = [
        item("predicates", "", "p q"),
        item("p1", "", "a", p),
        item("join a", "a", "ja"),
        item("q1", "ja", "b", q),
        item("q2", "", "c", q),
        item("join c", "c", "jc"),
        item("p2", "jc", "d", p),
        item("end", "b d", "e"),
    ]
    order = schedule.given(items, {}, {"e"})
    assert is_valid(items, order)
    assert is_contiguous(items, order, regions(items))


def test_a_late_reader_of_small_things_is_put_off() -> None:
    """Both halves of a diamond shrink their operand: finishing one before the other begins saves a large tensor."""
    items = [
        item("stem", "input", "x"),
        item("left large", "x", "l"),
        item("right large", "x", "r"),
        item("left small", "l", "ls"),
        item("right small", "r", "rs"),
        item("end", "ls rs", "y"),
    ]
    large = {t: 100 * N for t in "xlr"}
    small = {t: N for t in ("ls", "rs", "y")}
    order = schedule.order(items, large | small, {"y"})
    assert order == (0, 1, 3, 2, 4, 5)
    assert [str(s) for s in schedule.live_sums(items, large | small, {"y"}, order)] == [
        "100*n", "200*n", "201*n", "201*n", "102*n", "3*n",
    ]  # fmt: skip


def test_gaps_are_taken_at_checked_sizes_too() -> None:
    """Orders are chosen at sizes with n >= few, where the given one is the best; at n = 1 the other one needs less."""
    few = symbol("few", 0, 8)
    items = [item("a", "", "x", scratch=3 * N), item("b", "", "z", scratch=3 * few), item("end", "x z", "y")]
    sizes = {"x": N, "z": few, "y": ZERO}
    (found,) = schedule.subgraphs(items, sizes, {"y"})
    (checked,) = schedule.subgraphs(items, sizes, {"y"}, [{"n": 1, "few": 8}])
    assert found == schedule.Subgraph((0, 1, 2), 0.0)
    assert checked == schedule.Subgraph((0, 1, 2), 1 / 32)


def test_an_order_that_gains_nothing_is_kept() -> None:
    items = [item(f"i{i}", f"t{i - 1}", f"t{i}") for i in range(50)]
    assert schedule.order(items, {f"t{i}": N for i in range(50)}, {"t49"}) == tuple(range(50))


def test_nothing_passes_a_result_of_unknown_size() -> None:
    """Without the cut, the small independent item would go first."""
    items = [
        item("where", "input", "found"),
        item("small", "input", "s", scratch=10 * N),
        item("end", "found s", "y"),
    ]
    sizes = {"found": N, "s": constant(4), "y": N}
    assert schedule.order(items, sizes, {"y"}) == (1, 0, 2)
    assert schedule.order(items, sizes, {"y"}, unknown={"found"}) == (0, 1, 2)


def test_a_chain_with_a_long_skip_is_cut_at_every_item() -> None:
    items = [item(f"i{i}", f"t{i - 1}", f"t{i}") for i in range(5)]
    items.append(item("skip", "t4 t0", "t5"))
    scheduler = schedule._Scheduler(items, {}, {"t5"}, (), ())
    assert [len(block) for block in cut([scheduler.task(i) for i in range(6)])] == [1] * 6


def test_bounds_overrule_samples() -> None:
    """At k = 0 the second order needs 2m and the first 3m; but k >= 2, and then the first is never above the second."""
    items = [item("a", "input", "a", scratch=M * K), item("b", "input", "b", scratch=M), item("end", "a b", "y")]
    free = symbol("k")
    unbounded = [replace(items[0], scratch=M * free), *items[1:]]
    sizes = {"a": M, "b": M, "y": ZERO}
    samples = [{"m": 10, "k": 0}]
    assert schedule.order(unbounded, sizes, {"y"}, samples=samples) == (1, 0, 2)
    assert schedule.order(items, sizes, {"y"}, samples=samples) == (0, 1, 2)


def test_items_in_an_impossible_order_are_refused() -> None:
    with pytest.raises(ValueError, match="item 'b' reads 'a' before it is written"):
        schedule.order([item("b", "a", "b"), item("a", "", "a")], {}, {"b"})


def test_no_items() -> None:
    assert schedule.order([], {}, ()) == schedule.given([], {}, ()) == ()


def problems(rng: np.random.Generator, tasks: int) -> Problem:
    """One tensor a task, random readers; two samples."""
    reads: list[list[int]] = [[] for _ in range(tasks)]
    for tensor in range(tasks - 1):
        for reader in rng.choice(np.arange(tensor + 1, tasks), min(tasks - 1 - tensor, int(rng.integers(1, 3)))):
            reads[reader].append(tensor)
    sizes = tuple(tuple(map(int, rng.integers(0, 50, 2))) for _ in range(tasks))
    return Problem(
        reads=tuple(tuple(sorted(set(r))) for r in reads),
        writes=tuple((t,) for t in range(tasks)),
        inside=tuple((a + int(rng.integers(0, 30)), b + 5) for a, b in sizes),
        before=tuple(sum(1 << t for t in set(r)) for r in reads),
        sizes=sizes,
        entering=(),
    )


def valid_orders(problem: Problem, done: int = 0) -> Iterator[tuple[int, ...]]:
    ready = problem.ready(done)
    if not ready:
        yield ()
    for task in ready:
        yield from ((task, *rest) for rest in valid_orders(problem, done | 1 << task))


def test_search_finds_the_least_bottleneck_over_two_samples() -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        problem = problems(rng, 7)
        least = min(problem.cost_of(o) for o in valid_orders(problem))
        assert problem.cost_of(search.solve(problem).order) == least
        assert problem.bound <= least
        for order in search.by_lists(problem):
            assert order in set(valid_orders(problem))


def branchy(rng: np.random.Generator, count: int) -> tuple[list[Item], dict[str, Dim]]:
    """A network of `count` items with skips and parallel chains, sizes in two symbols."""
    items = []
    sizes: dict[str, Dim] = {}
    tensors = ["input"]
    for i in range(count):
        back = rng.integers(1, 12, 2)
        reads = sorted({tensors[-min(len(tensors), int(b))] for b in (1 if rng.random() < 0.6 else back[0], back[1])})
        items.append(Item(f"i{i}", tuple(reads), (f"t{i}",), (), 16 * N if rng.random() < 0.3 else ZERO))
        sizes[f"t{i}"] = int(rng.integers(1, 64)) * N * M + int(rng.integers(0, 3)) * M * M
        tensors.append(f"t{i}")
    return items, sizes


def test_five_hundred_items_take_about_a_second() -> None:
    """Of this process: others that run beside it do not count."""
    items, sizes = branchy(np.random.default_rng(2), 500)
    started = time.process_time()
    order = schedule.order(items, sizes, {"t499"})
    assert time.process_time() - started < 5
    assert is_valid(items, order)
    for env in peak.environments(sizes.values()):
        at = {t: evaluate(s, env) for t, s in sizes.items()}
        before = replayed_peak(items, at, {"t499"}, range(500), env)
        assert replayed_peak(items, at, {"t499"}, order, env) <= before
