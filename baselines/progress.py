"""What a user sees while a measurement runs: one line a round on standard error, with what is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import accumulate

from baselines.samples import Sample


class Progress:
    """Estimates what is left by the multiply-adds of the samples still to come."""

    def __init__(self, model: str, samples: Sequence[Sample], rounds: int) -> None:
        self._model = model
        self._weights = {sample.index: float(sample.macs or sample.size or 1) for sample in samples}
        self._count = len(samples)
        self._rounds = rounds
        self._total = sum(self._weights.values()) * rounds
        self._before = dict(zip(self._weights, accumulate(self._weights.values(), initial=0.0), strict=False))
        self._position: dict[int, int] = {sample.index: n for n, sample in enumerate(samples, 1)}
        self._start = time.monotonic()

    def report(self, sample: Sample, number: int, figures: str) -> None:
        """One line for a finished round of a sample, which may be measured again; `figures` are the latencies."""
        done = self._before[sample.index] * self._rounds + self._weights[sample.index] * (number + 1)
        elapsed = time.monotonic() - self._start
        left = elapsed * (self._total / done - 1)
        position = f"sample {self._position[sample.index]}/{self._count} round {number + 1}/{self._rounds}"
        say(f"{self._model} {position}: {figures} | {100 * done / self._total:.0f} %, {_clock(left)} left")


def say(line: str) -> None:
    """Tell the user, now."""
    print(line, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"
