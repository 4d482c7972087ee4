"""How near every step of a model is to what the machine allows: the report of `sod2 bench --profile`.

The limit of a step is the longer of two times: its floating-point operations at the machine's peak of fused
multiply-adds, and its bytes at the bandwidth of reading a set of their size. Operations are those of the cheapest
algorithm that the step has kernels for, so that a Winograd layer is no exception; both figures of the machine are
measured in the same process between the runs (runtime/roofline.c). Steps come by the time that they take beyond their
limit: the first line is the next bottleneck.

The time of a step is the shortest of its runs, to which the machine's noise adds least. Limits: a bandwidth of a cache
assumes that the operands are in it; a step inside a loop, or of a size that only execution tells, has no limit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sod2 import work
from sod2.admissible import affine
from sod2.artifact import CompiledModel, Limits
from sod2.graph import Array
from sod2.symbolic import parse

SMALLEST_SET = 65536  # SOD2_SMALLEST_SET of runtime/sod2.h


@dataclass(frozen=True)
class Ceiling:
    """Operations a second, and bytes read a second from sets of SMALLEST_SET, twice that, and so on."""

    flops: float
    bandwidth: tuple[float, ...]

    @classmethod
    def best(cls, found: Sequence[Limits]) -> "Ceiling":
        """Of several measurements, which noise can only lower."""
        return cls(max(f.flops for f in found), tuple(map(max, zip(*(f.bandwidth for f in found), strict=True))))

    def reading(self, size: int) -> float:
        """Bytes a second from a set of `size` bytes: the highest of those that are measured from this size on."""
        at = max(0, (size // SMALLEST_SET).bit_length() - 1)
        return max(self.bandwidth[min(at, len(self.bandwidth) - 1) :])

    def seconds(self, flops: float, size: int) -> float:
        """The shortest time in which so many operations can be done and bytes be moved."""
        return max(flops / self.flops, size / self.reading(size))


@dataclass(frozen=True)
class StepTime:
    """A step: its nanoseconds, 0 where its branch was not taken; its work and limit, None where sizes are unknown."""

    name: str
    ns: int
    flops: int | None
    bytes: int | None
    limit_ns: float | None

    @property
    def beyond(self) -> float:
        """Nanoseconds beyond the limit, all of them where that is not known."""
        return self.ns - (self.limit_ns or 0.0)


def symbols(model: CompiledModel, inputs: Mapping[str, Array]) -> dict[str, int]:
    """The symbols of the input dims at these inputs."""
    found: dict[str, int] = {}
    for declared in model.manifest["inputs"]:
        for text, size in zip(declared["shape"], inputs[declared["name"]].shape, strict=True):
            if not (dim := parse(text)).is_constant:
                name, scale, base = affine(dim)
                found[name] = (size - base) // scale
    return found


def measure(model: CompiledModel, inputs: Mapping[str, Array], repeats: int = 1) -> tuple[list[StepTime], Ceiling]:
    """All steps in their order, and the machine's limits, measured before and after the runs."""
    model.run(inputs)  # the first run at a shape touches the arena for the first time
    limits = [model.limits()]
    runs = [model.profile(inputs) for _ in range(max(1, repeats))]
    limits.append(model.limits())
    ceiling, bound = Ceiling.best(limits), symbols(model, inputs)
    names, times = [name for name, _ in runs[0]], zip(*([ns for _, ns in run] for run in runs), strict=True)
    done = model.work
    return [_step(*step, bound, ceiling) for step in zip(names, map(min, times), done, strict=True)], ceiling


def _step(name: str, ns: int, done: Any, bound: Mapping[str, int], ceiling: Ceiling) -> StepTime:
    flops, size = (work.value(done[what], bound) if done else None for what in ("flops", "bytes"))
    if flops is None or size is None:
        return StepTime(name, ns, None, None, None)
    return StepTime(name, ns, flops, size, 1e9 * ceiling.seconds(flops / done["reduction"], size))


def report(found: Sequence[StepTime], ceiling: Ceiling) -> Iterator[str]:
    """A table of the steps that ran, the largest loss first, and a line of all together."""
    steps = sorted((step for step in found if step.ns), key=lambda step: -step.beyond)
    total = sum(step.ns for step in steps) or 1
    kept = sum(step.limit_ns or 0.0 for step in steps)
    yield f"at most {ceiling.flops / 1e9:.0f} GFLOP/s, and from memory {ceiling.bandwidth[-1] / 1e9:.0f} GB/s"
    yield f"{'us':>10} {'share':>7} {'GFLOP/s':>8} {'GB/s':>7} {'of limit':>8}  step"
    for step in steps:
        yield f"{step.ns / 1e3:10.1f} {step.ns / total:7.1%} {_rates(step)}  {step.name}"
    yield f"{total / 1e3:10.1f} {1:7.1%} {'':16} {kept / total:8.1%}  all {len(steps)} steps"


def _rates(step: StepTime) -> str:
    if step.flops is None or step.bytes is None or step.limit_ns is None:
        return f"{'-':>8} {'-':>7} {'-':>8}"
    return f"{step.flops / step.ns:8.1f} {step.bytes / step.ns:7.1f} {step.limit_ns / step.ns:8.1%}"
