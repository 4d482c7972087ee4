# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "absl-py==2.5.1",
#     "immutabledict==4.3.1",
#     "numpy==2.4.6",
#     "ortools==9.15.6755",
#     "pandas==3.1.1",
#     "protobuf==6.33.6",
#     "python-dateutil==4.0.0",
#     "typing-extensions==4.16.0",
#     "tzdata==2026.6",
# ]
# ///
"""Smallest arenas of placement problems, by OR-Tools' CP-SAT; in an environment of its own, whose protobuf is older.

Reads a line {"spans", "sizes", "below", "seconds"} a problem: first and last step and the units of every buffer, all of
at least 1, an arena that is known to do, and a time limit. Writes a line {"arena", "bound"} each: the smallest arena
that was found (`below` when none is smaller), and the proved lower bound, which is equal to it at the optimum.
Every buffer is a rectangle, fixed in time and free in space, and no two may overlap.
"""

import json
import sys
from collections.abc import Sequence

from ortools.sat.python import cp_model


def least(spans: Sequence[Sequence[int]], sizes: Sequence[int], below: int, seconds: float) -> tuple[int, int]:
    """The smallest arena found and the proved lower bound."""
    model = cp_model.CpModel()
    arena = model.new_int_var(0, below, "arena")
    lives, places = [], []
    for (first, last), size in zip(spans, sizes, strict=True):
        offset = model.new_int_var(0, below - size, "")
        lives.append(model.new_fixed_size_interval_var(first, last - first + 1, ""))
        places.append(model.new_fixed_size_interval_var(offset, size, ""))
        model.add(offset + size <= arena)
    model.add_no_overlap_2d(lives, places)
    model.add_cumulative(lives, list(sizes), arena)  # implied, and it gives the bound of the live peak at once
    model.minimize(arena)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    found = round(solver.objective_value) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else below
    return found, round(solver.best_objective_bound)


def main() -> None:
    for line in sys.stdin:
        arena, bound = least(**json.loads(line))
        print(json.dumps({"arena": arena, "bound": bound}), flush=True)


if __name__ == "__main__":
    main()
