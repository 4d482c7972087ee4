"""Minimum cuts against all sets of tasks that may have run, on small random blocks; what they change in an order."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from sod2 import search
from sod2.cuts import least_live, refined
from sod2.problem import Problem
from tests.test_schedule import problems, valid_orders


def sets_before(problem: Problem, task: int) -> Iterator[int]:
    """All sets of tasks that may have run when a task begins."""
    others = [t for t in range(problem.tasks) if t != task and not problem.below[task] >> t & 1]
    for count in range(len(others) + 1):
        for chosen in itertools.combinations(others, count):
            done = sum(1 << t for t in chosen)
            if not any(problem.before[t] & ~done for t in (*chosen, task)):
                yield done


def live(problem: Problem, done: int, sample: int) -> int:
    """Bytes behind a set of tasks, tensor by tensor."""
    total = 0
    for tensor, size in enumerate(problem.sizes):
        writers = [t for t, writes in enumerate(problem.writes) if tensor in writes]
        readers = [t for t, reads in enumerate(problem.reads) if tensor in reads]
        is_written = all(done >> t & 1 for t in writers)
        is_needed = not readers or any(not done >> t & 1 for t in readers)
        total += size[sample] if is_written and is_needed else 0
    return total


def test_the_cut_is_the_least_over_all_sets() -> None:
    rng = np.random.default_rng(7)
    for _ in range(40):
        problem = problems(rng, 8)
        for task, sample in itertools.product(range(8), range(2)):
            usages = {done: live(problem, done, sample) for done in sets_before(problem, task)}
            found, done = least_live(problem, task, sample)
            assert found == usages[done] == min(usages.values())


def test_refined_orders_are_valid_worse_nowhere_and_bounded_rightly() -> None:
    rng = np.random.default_rng(9)
    gained = 0
    for _ in range(60):
        problem = problems(rng, 7)
        orders = set(valid_orders(problem))
        found = refined(problem, range(7))
        assert found.order in orders
        given, ours = problem.peaks(range(7)), problem.peaks(found.order)
        assert all(o <= g for o, g in zip(ours, given, strict=True))
        least = [min(problem.peaks(o)[sample] for o in orders) for sample in range(2)]
        assert all(b <= m for b, m in zip(found.bound, least, strict=True))
        gained += ours != given
        assert search.solve(problem).gap == pytest.approx(
            max(p / m - 1 for p, m in zip(problem.peaks(search.solve(problem).order), least, strict=True))
        )
    assert gained > 5


def test_small_results_of_one_source_are_made_before_a_peak() -> None:
    """Four gates read one vector: until all have run, the vector is live, so that no order of them needs less."""
    gates, size = 4, (16,)
    problem = Problem(
        reads=((), *[(0,)] * gates, (), (gates + 1, *range(1, gates + 1))),
        writes=((0,), *((k,) for k in range(1, gates + 1)), (gates + 1,), ()),
        inside=(size, *[(4,)] * gates, (1000,), (10,)),
        before=(0, *[1] * gates, 1, (1 << gates + 2) - 2),
        sizes=(size, *[(4,)] * gates, (1000,)),
        entering=(),
    )
    assert search.solve(problem) == (tuple(range(gates + 3)), 0.0)
