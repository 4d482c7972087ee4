"""What RDP buys fusion: one graph, fused with and without facts about the dims.

The paper's example: an addition of two tensors each of whose dims may be equal to, or broadcast against, the other's.
Without facts the two would need 2^3 versions of a fused kernel, so they stay apart.
"""

from __future__ import annotations

import itertools

import onnx

import sod2
from figures.explain import svg
from sod2.graph import Node

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
example (float[I, J, K] a, float[L, M] b) => (float[I, J, K] y) {
    s = Sigmoid(a)
    n = Shape(a)
    r = Reshape(b, n)
    t = Add(s, r)
    y = Relu(t)
}
"""
CHAIN = ("s", "t", "y")
TITLES = {"static": "static facts (fusion: static)", "rdp": "facts of RDP (fusion: rdp)"}
PANEL, TOP, STEP, WIDTH, HEIGHT = 400.0, 92.0, 70.0, 110.0, 30.0
SHIFT = 24.0  # of the chain to the left, since its second operand is named on its right


def picture() -> str:
    """Both plans side by side, as SVG; a shaded box is a kernel."""
    parts = []
    for number, (option, title) in enumerate(TITLES.items()):
        plan = sod2.plan(onnx.parser.parse_model(MODEL), sod2.Options(fusion=option))
        groups = [[node for node in group.nodes if node.name in CHAIN] for group in plan.fusion.groups]
        shapes = {name: str(plan.analysis[name]).removeprefix("float32") for name in ("a", "r", *CHAIN)}
        left = PANEL * number
        parts.append(svg.text(left + PANEL / 2, 24, f"{title}: {_kernels(len(groups))}", size=13, weight="bold"))
        parts += _chain(left + PANEL / 2 - WIDTH / 2 - SHIFT, groups, shapes)
        for i, ((first, second), why) in enumerate(plan.fusion.refusals.items()):
            parts.append(
                svg.text(
                    left + PANEL / 2,
                    TOP + STEP * len(CHAIN) + 26 + 14 * i,
                    f"refused: {first} with {second}: {why}",
                    size=10,
                )
            )
    return svg.document(PANEL * len(TITLES), TOP + STEP * len(CHAIN) + 44, parts)


def _kernels(count: int) -> str:
    return "1 kernel" if count == 1 else f"{count} kernels"


def _chain(x: float, groups: list[list[Node]], shapes: dict[str, str]) -> list[str]:
    """The nodes from top to bottom, each group in a shaded box, with the tensors between them."""
    y = {name: TOP + STEP * i for i, name in enumerate(CHAIN)}
    middle = x + WIDTH / 2
    parts = [svg.text(middle, TOP - 42, f"a {shapes['a']}", size=11)]
    for group in groups:
        first, last = y[group[0].name], y[group[-1].name]
        parts.append(svg.box(x - 14, first - 14, WIDTH + 28, last - first + HEIGHT + 28, fill=svg.PALE))
    for above, below in itertools.pairwise(CHAIN):
        parts.append(svg.line(middle, y[above] + HEIGHT, middle, y[below], arrow=True))
    parts.append(svg.line(middle, TOP - 36, middle, TOP, arrow=True))
    parts.append(svg.line(middle, y["y"] + HEIGHT, middle, y["y"] + STEP - 6, arrow=True))
    right = x + WIDTH + 40
    parts.append(svg.line(x + WIDTH, y["t"] + HEIGHT / 2, right, y["t"] + HEIGHT / 2))
    parts.append(svg.text(right + 4, y["t"] + HEIGHT / 2 + 4, "Reshape(b, Shape(a))", size=10, anchor="start"))
    for node in itertools.chain(*groups):
        parts.append(svg.box(x, y[node.name], WIDTH, HEIGHT, words=node.op))
        words = f"{node.name} {shapes[node.name]}"
        parts.append(svg.text(x - 20, y[node.name] + HEIGHT / 2 + 4, words, size=11, anchor="end"))
    return parts
