"""How small an arena can be: the optimum of a placement problem, by an exact solver in an environment of its own.

Where the arena is as small as the live peak, it is optimal and nothing has to be solved. Otherwise CP-SAT
(placement_solver.py) improves on it and raises the lower bound until both meet or its time is over.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from baselines import environment
from sod2.memory import ALIGN, Span, live_usage, place_peak_first

SCRIPT = Path(__file__).with_name("placement_solver.py")


@dataclass(frozen=True)
class Optimum:
    """Bytes of the smallest arena that was found, and a lower bound; equal when the arena is proved to be the least."""

    arena: int
    bound: int

    @property
    def is_proved(self) -> bool:
        return self.arena == self.bound


class Solver:
    """The solver's process, started when it is first needed; a context. `seconds` is the limit for one problem."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> Solver:
        return self

    def __exit__(self, *_: object) -> None:
        if "process" in self.__dict__:
            self.process.communicate()

    @cached_property
    def process(self) -> subprocess.Popen[str]:
        command = [environment.python(SCRIPT), SCRIPT]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def optimum(self, spans: Sequence[Span], sizes: Sequence[int]) -> Optimum:
        """The least arena for buffers that are live at the steps of `spans` and have these sizes in bytes."""
        peak, placed = max(live_usage(spans, sizes), default=0), place_peak_first(spans, sizes).arena
        if placed == peak:
            return Optimum(peak, peak)
        units = [(span, -(-size // ALIGN)) for span, size in zip(spans, sizes, strict=True) if size]
        problem = {"spans": [s for s, _ in units], "sizes": [n for _, n in units], "below": placed // ALIGN}
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({**problem, "seconds": self.seconds}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return Optimum(ALIGN * answer["arena"], ALIGN * answer["bound"])
