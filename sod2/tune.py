"""`sod2 tune`: a genetic search of the block sizes of runtime/tuning.h, for a model at a shape, measured here.

A candidate is a value for every macro. Its cost is the model's time over that with the shipped values: both are built
and loaded and take turns run by run, and the median of the ratios of their turns counts, so that a machine that changes
its speed meets both alike. Beginning with neighbours of the shipped values, a new candidate crosses two of the best so
far, each macro taken from either, and now and then moves one to the next value. The best is measured once more, longer,
before it is believed.

Every candidate that was measured is written at once: a search that was interrupted goes on where it stopped, and a
longer one extends a shorter one. Macros of kernels that the model does not call keep their values, and only the kernels
that mention a macro are compiled for it. No bit of a result depends on the values. Register tiles are no part of the
search: they fill the registers there are (runtime/tile.h), and the versions of convolutions are chosen by the cost
model (conv_cost.py).
"""

import json
import math
import random
import statistics
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sod2 import artifact
from sod2.artifact import CompiledModel
from sod2.codegen.steps import Emission
from sod2.codegen.target import Target, constants
from sod2.errors import Error
from sod2.graph import Array

CHOICES: Mapping[str, tuple[int, ...]] = {
    "SOD2_GEMM_DEPTH": (256, 384, 512, 768, 1024, 1536),
    "SOD2_GEMM_ROWS": (2, 4, 6, 8, 12, 16),
    "SOD2_PANEL_PIXELS": (2, 4, 6, 8, 12),
    "SOD2_PANEL_COPIES_KIB": (16, 32, 64, 128, 256, 512),
    "SOD2_PANEL_ROWS": (2, 3, 5, 8, 12),
    "SOD2_PIXEL_DEPTH": (128, 256, 512, 1024),
    "SOD2_PIXEL_BLOCK": (28, 56, 84, 112, 168, 224),
    "SOD2_WINOGRAD_OWN_TILES": (24, 36, 48, 72, 96),
    "SOD2_WINOGRAD_TILES": (24, 36, 48, 72, 96),
    "SOD2_WINOGRAD_OWN_KIB": (96, 192, 320, 480, 640),
    "SOD2_WINOGRAD_SHARED_KIB": (320, 640, 960, 1280, 2560),
    "SOD2_WINOGRAD_WEIGHTS_KIB": (1024, 4096, 16384, 65536),
    "SOD2_WINOGRAD_COLUMNS": (12, 30, 42, 60),
    "SOD2_STRIP_OWN_KIB": (160, 320, 480, 640, 960, 1280),
    "SOD2_STRIP_KIB": (128, 256, 384, 512, 768, 1024),
}
# What generated code names where it calls the kernels of a macro SOD2_<KERNEL>_...
_NAMED = {
    "GEMM": "sod2_gemm_run",
    "PANEL": "SOD2_CONV_PANEL",
    "PIXEL": "SOD2_CONV_PIXEL",
    "WINOGRAD": "SOD2_CONV_WINO",
    "STRIP": "SOD2_CONV_",
}
_PARENTS = 6  # the best so far, of which two are crossed
_MUTATION = 0.25  # of each macro, to a neighbouring value
_ROUNDS, _FINAL_ROUNDS = 7, 25  # runs of each side
_GAIN = 0.99  # cost above which the best is no better than the shipped values

Values = Mapping[str, int]


@dataclass(frozen=True)
class Candidate:
    """Values of all macros, and the time with them over that with the shipped ones."""

    values: Values
    cost: float


def shipped(target: Target) -> dict[str, int]:
    """The values of runtime/tuning.h for a target, of the macros that are searched."""
    return dict(zip(CHOICES, constants(target.cc, target.cflags, "tuning.h", tuple(CHOICES)), strict=True))


def used(code: str) -> tuple[str, ...]:
    """The macros on which the time of a generated model.c can depend."""
    return tuple(name for name in CHOICES if _NAMED[name.split("_")[1]] in code)


def read(path: Path) -> tuple[tuple[str, int], ...]:
    """The best values of a file that a search wrote, as Target.tuned takes them; Error when it is none."""
    best = _content(path)["best"]
    return tuple(sorted(best.items()))


def _content(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        known = all(name in CHOICES and isinstance(value, int) for name, value in content["best"].items())
    except (ValueError, KeyError, AttributeError, TypeError):
        known = False
    if not known:
        raise Error(f"{str(path)!r} is no file of `sod2 tune`, which has values of {', '.join(CHOICES)}")
    for name, value in content["best"].items():
        if value not in CHOICES[name]:
            accepted = ", ".join(map(str, CHOICES[name]))
            raise Error(f"{str(path)!r} has {value} as {name}; accepted are {accepted}")
    return content


class Search:
    """One search of `macros` around `start`: `measure(values, rounds)` tells the cost; what is found lies in `path`."""

    def __init__(
        self,
        path: Path,
        subject: Mapping[str, object],
        start: Values,
        measure: Callable[[Values, int], float],
        macros: Collection[str] = tuple(CHOICES),
    ) -> None:
        self._path = path
        self._subject = dict(subject)
        self._start = Candidate(start, 1.0)
        self._measure = measure
        self._macros = macros
        self._found = self._resumed()

    def _resumed(self) -> list[Candidate]:
        """The candidates of an earlier search of the same subject."""
        if not self._path.exists():
            return []
        content = _content(self._path)
        if (subject := content.get("subject")) != self._subject:
            raise Error(f"{str(self._path)!r} is of {subject}: give a new file for {self._subject}")
        return [Candidate(c["values"], c["cost"]) for c in content["candidates"]]

    def run(self, count: int, say: Callable[[str], None]) -> Candidate:
        """Measure until `count` candidates are known, or all; the best, or the shipped values where none is better."""
        count = min(count, math.prod(len(CHOICES[name]) for name in self._macros) - 1)
        while len(self._found) < count:
            values = self._next(random.Random(len(self._found)))
            self._found.append(Candidate(values, self._measure(values, _ROUNDS)))
            self._write(self._start)
            best = min(self._found, key=lambda c: c.cost)
            say(f"{len(self._found)}/{count}: {self._found[-1].cost:.3f}, best {best.cost:.3f}  {self.changes(values)}")
        best = min((self._start, *self._found), key=lambda c: c.cost)
        if best is not self._start:
            best = replace(best, cost=self._measure(best.values, _FINAL_ROUNDS))
        chosen = best if best.cost < _GAIN else self._start
        self._write(chosen)
        return chosen

    def changes(self, values: Values) -> str:
        """What differs from the values that the search began with."""
        before = self._start.values
        return " ".join(f"{name.removeprefix('SOD2_')}={v}" for name, v in values.items() if v != before[name])

    def _next(self, chance: random.Random) -> Values:
        """A candidate that was not measured yet."""
        known = [c.values for c in self._found]
        parents = sorted((self._start, *self._found), key=lambda c: c.cost)[:_PARENTS]
        a, b = (chance.choice(parents).values for _ in range(2))
        values = {name: chance.choice((a[name], b[name])) for name in CHOICES}
        while True:  # one that is known moves on
            values |= {name: _moved(name, values[name], chance) for name in self._macros}
            if values not in known and values != self._start.values:
                return values

    def _write(self, best: Candidate) -> None:
        content = {
            "subject": self._subject,
            "best": dict(best.values),
            "cost": best.cost,
            "candidates": [{"cost": c.cost, "values": dict(c.values)} for c in self._found],
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f".{self._path.name}.tmp")
        partial.write_text(json.dumps(content, indent=1) + "\n")
        partial.rename(self._path)


def _moved(name: str, value: int, chance: random.Random) -> int:
    """The value or, now and then, one of its neighbours."""
    if chance.random() >= _MUTATION:
        return value
    choices = CHOICES[name]
    at = choices.index(value) + chance.choice((-1, 1))
    return choices[min(max(at, 0), len(choices) - 1)]


def measuring(
    emission: Emission, options: Mapping[str, Any], inputs: Mapping[str, Array], threads: int
) -> Callable[[Values, int], float]:
    """The function that tells the cost of values for a compiled model at these inputs."""
    folder = tempfile.TemporaryDirectory(prefix="sod2-tune-")

    def built(name: str, values: Values) -> CompiledModel:
        target = replace(emission.target, tuned=tuple(values.items()))
        out = artifact.write(replace(emission, target=target), bool(options["dmp"]), options, Path(folder.name, name))
        return artifact.load(out, threads)

    base = built("shipped", {})

    def measure(values: Values, rounds: int) -> float:
        both = (base, built("candidate", values))
        for model in both:
            model.run(inputs)
        turns = [[sum(ns for _, ns in model.profile(inputs)) for model in both] for _ in range(rounds)]
        return statistics.median(ours / theirs for theirs, ours in turns)

    return measure


def subject(model: str, inputs: Mapping[str, Array], threads: int, target: Target) -> dict[str, object]:
    """What a search is about: its results hold for nothing else."""
    shapes = {name: list(array.shape) for name, array in inputs.items()}
    return {"model": model, "inputs": shapes, "threads": threads, "target": target.name}
