"""Resize with `antialias`: where an axis shrinks, the filter grows until it leaves no element out.

Along an axis, element k weighs filter((k - position) * s), where s is the scale but at most 1, for every k within the
filter's radius over s: 1 for linear, 2 for cubic interpolation. Weights are divided by their sum. Outside the tensor
its first or last element stands in; with `exclude_outside` nothing there counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sod2.graph import Node
from sod2.ops.elementwise import CType
from sod2.ops.op import Array, Emitter, Index

RADIUS = {"linear": 1, "cubic": 2}


def _settings(node: Node) -> tuple[str, float, bool]:
    """Mode, coefficient of the cubic, and whether what lies outside is left out."""
    attrs = node.attrs
    return str(attrs["mode"]), float(attrs.get("cubic_coeff_a", -0.75)), bool(attrs.get("exclude_outside", 0))


@dataclass(frozen=True)
class Filter:
    """The taps of one axis as C text, relative to element `first`."""

    node: Node
    e: Emitter
    real: CType  # in which positions and weights are computed
    position: str
    stretch: str  # s
    last: str  # the number of the axis's last element
    first: str
    count: Index

    @classmethod
    def at(cls, node: Node, e: Emitter, real: CType, *, position: str, scale: str, last: str) -> "Filter":
        stretch = e.local(real.dtype, f"({scale} < 1 ? {scale} : 1)")
        radius = e.local(real.dtype, f"{RADIUS[_settings(node)[0]]} / {stretch}")
        first = e.local(np.dtype(np.int64), real.functions(f"(int64_t)~ceil({position} - {radius})"))
        count = e.local(np.dtype(np.int64), real.functions(f"(int64_t)~floor({position} + {radius}) - {first} + 1"))
        return cls(node, e, real, position, stretch, last, first, e.opaque(count))

    def tap(self, k: Any) -> tuple[Index, str]:
        """The element that tap k of `count` reads, and its weight."""
        (mode, a, excludes), real = _settings(self.node), self.real
        place = self.e.local(np.dtype(np.int64), f"{self.first} + {self.e.c(k)}")
        d = self.e.local(
            real.dtype, f"__builtin_fabs{real.suffix}((({real.name}){place} - {self.position}) * {self.stretch})"
        )
        weight = f"({d} < 1 ? 1 - {d} : 0)"
        if mode == "cubic":
            near = f"(({real.number(a + 2)} * {d} - {real.number(a + 3)}) * {d} * {d} + 1)"
            one, five, eight, four = (real.number(factor * a) for factor in (1, 5, 8, 4))
            far = f"((({one} * {d} - {five}) * {d} + {eight}) * {d} - {four})"
            weight = f"({d} <= 1 ? {near} : {d} < 2 ? {far} : 0)"
        if excludes:
            weight = f"({place} < 0 || {place} > {self.last} ? 0 : {weight})"
        return self.e.opaque(f"sod2_imax(sod2_imin({place}, {self.last}), 0)"), self.e.local(real.dtype, weight)

    def total(self) -> str:
        """The sum of the weights."""
        return self.e.fold(self.real.dtype, "0", [self.count], lambda k, total: f"{total} + {self.tap(k[0])[1]}")


def blend(e: Emitter, real: CType, places: Sequence[Index | Filter], c: CType) -> str:
    """The C expression of an element, at an index for axes that stay and at a filter for others."""
    filters = [p for p in places if isinstance(p, Filter)]

    def step(k: list[Any], total: str) -> str:
        taps = [f.tap(number) for f, number in zip(filters, k, strict=True)]
        chosen = iter(taps)
        index = [next(chosen)[0] if isinstance(p, Filter) else p for p in places]
        return f"{total} + {' * '.join(weight for _, weight in taps)} * {e.load(0, index)}"

    if not filters:
        return e.load(0, [p for p in places if not isinstance(p, Filter)])
    value = e.fold(real.dtype, "0", [f.count for f in filters], step)
    return f"(({c.name})({value} / ({' * '.join(f.total() for f in filters)})))"


def taps_at(node: Node, position: float, size: int, scale: float) -> list[tuple[int, float]]:
    """(element, weight) of all taps at a position, for the reference; elements may lie outside."""
    mode, a, excludes = _settings(node)
    stretch = min(scale, 1.0)
    radius = RADIUS[mode] / stretch
    k = np.arange(np.ceil(position - radius), np.floor(position + radius) + 1)
    d: Array = np.abs((k - position) * stretch)
    found = np.maximum(1 - d, 0)
    if mode == "cubic":
        far = np.where(d < 2, a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a, 0)
        found = np.where(d <= 1, (a + 2) * d**3 - (a + 3) * d**2 + 1, far)
    if excludes:
        found = found * ((k >= 0) & (k < size))
    return [(int(n), float(w)) for n, w in zip(k, found / found.sum(), strict=True)]
