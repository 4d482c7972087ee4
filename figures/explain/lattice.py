"""The lattice of facts about a dim, as a Hasse diagram of some of its elements.

Drawn from what `meet_dim` answers: a is above b where their meet is b, and a line joins neighbours in that order.
"""

from __future__ import annotations

import itertools

from figures.explain import svg
from sod2.lattice import NAC, UNDEF, DimFact, kind, meet_dim
from sod2.symbolic import constant, symbol

_H, _W = symbol("H"), symbol("W")
ELEMENTS: tuple[DimFact, ...] = (
    UNDEF, constant(3), constant(224), _H, _W, (_H + 1) // 2, 2 * _W, NAC
)  # fmt: skip
STEP, ROW, WIDTH, HEIGHT = 96.0, 84.0, 84.0, 30.0


def above(a: DimFact, b: DimFact) -> bool:
    """Whether `a` promises more than `b`: both being possible, only `b` is known."""
    return a is not b and meet_dim(a, b) == b and meet_dim(b, a) == b


def picture() -> str:
    """The diagram as SVG."""
    pairs = {(i, j) for i, j in itertools.permutations(range(len(ELEMENTS)), 2) if above(ELEMENTS[i], ELEMENTS[j])}
    covers = {(i, j) for i, j in pairs if not any((i, k) in pairs and (k, j) in pairs for k in range(len(ELEMENTS)))}
    depth = [0] * len(ELEMENTS)
    for _ in ELEMENTS:  # the longest way down from the top
        for i, j in covers:
            depth[j] = max(depth[j], depth[i] + 1)
    rows = [[i for i, d in enumerate(depth) if d == row] for row in range(max(depth) + 1)]
    width = STEP * max(map(len, rows)) + 40
    center = {}
    for level, row in enumerate(rows):
        for k, i in enumerate(row):
            center[i] = (width / 2 + (k - (len(row) - 1) / 2) * STEP, 70 + ROW * level)
    parts = [svg.text(width / 2, 24, "meet goes down: what holds whichever way was taken", size=13)]
    for i, j in sorted(covers):
        (x1, y1), (x2, y2) = center[i], center[j]
        parts.append(svg.line(x1, y1, x2, y2))
    for i, (x, y) in center.items():
        element = ELEMENTS[i]
        parts.append(svg.box(x - WIDTH / 2, y - HEIGHT / 2, WIDTH, HEIGHT, words=str(element), fill=svg.PALE))
    for name, group in itertools.groupby(range(len(ELEMENTS)), key=lambda i: kind(ELEMENTS[i])):
        if name != str(ELEMENTS[(members := list(group))[0]]):
            x = sum(center[i][0] for i in members) / len(members)
            parts.append(svg.label(x, center[members[0]][1] + 31, f"{name}s", 10))
    return svg.document(width, 70 + ROW * (len(rows) - 1) + 34, parts)
