"""MVC: which versions of each convolution are kept (paper, section 3.5).

A version is a kernel with weights packed for it: direct (lanes over pixels or over output channels), or Winograd F(2),
F(4), F(6), whose transformed weights take 1.8, 4 and 7.1 times the raw ones. At run time the kernel library picks among
the kept versions by a cost formula over the bound sizes (runtime/conv.c); here the model's weight budget is spent.

Each layer starts with its cheapest direct version. Then, as long as the budget lasts, the change with the largest time
saved per byte is made: a layer's set of versions is replaced by a better one. Time is a roofline estimate, multiply-adds
at the version's effective speed plus the bytes of its weights, summed over three sizes of the inputs, since a layer may
want F(6) on large images and F(2) on small ones. `several=False` (mvc off) allows one version a layer.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from sod2.admissible import affine
from sod2.fusion import Group
from sod2.graph import Graph, Node
from sod2.ops.window import axes
from sod2.rdp import Analysis
from sod2.symbolic import evaluate

Kept = Mapping[str, tuple[str, ...]]  # node name -> versions

_EXTENTS = (128, 320, 640)  # sizes that every free input dim takes, as near as its declaration allows
_BYTES = {"panel": 1.0, "pixel": 1.0, "wino2": 16 / 9, "wino4": 4.0, "wino6": 64 / 9, "depthwise": 1.0}
_TILE = {"wino2": 2, "wino4": 4, "wino6": 6}
_PEAK = 2e11  # multiply-adds and bytes per second of an ordinary core: only their ratio matters
_BANDWIDTH = 2e10
_TRANSFORM = {"wino2": 12.0, "wino4": 20.0, "wino6": 32.0}  # extra operations per element read or written, both transforms


@dataclass(frozen=True)
class Layer:
    """One convolution: channels, window, and its output sizes in the sampled environments."""

    name: str
    weights: str
    oc: int
    ic: int  # per group
    taps: int
    winograd: bool
    depthwise: bool
    outputs: tuple[tuple[int, int], ...]

    @property
    def raw_bytes(self) -> int:
        return 4 * self.oc * self.ic * self.taps

    def versions(self) -> tuple[str, ...]:
        """All versions whose kernel can run the layer at all; the first one is the direct version to start from."""
        if self.depthwise:
            return ("depthwise",)
        if self.ic * self.taps < 64:
            return ("panel",)
        direct = ("pixel", "panel")
        return (*direct, "wino2", "wino4", "wino6") if self.winograd else direct

    def seconds(self, version: str, size: tuple[int, int]) -> float:
        """Estimated time on one core at one output size."""
        height, width = size
        macs = self.oc * self.ic * self.taps * height * width
        traffic = self.raw_bytes * _BYTES[version] / _BANDWIDTH
        if version not in _TILE:
            waste = 1.0 if version == "pixel" or height * width >= 256 else 1.15
            return max(2 * macs * waste / _PEAK, traffic)
        m = _TILE[version]
        tiles = math.ceil(height / m) * math.ceil(width / m)
        products = 2 * tiles * (m + 2) ** 2 * self.oc * self.ic
        transforms = tiles * m * m * (self.oc + self.ic) * _TRANSFORM[version]
        return max(products / _PEAK, traffic) + transforms / _PEAK

    def cost(self, kept: Sequence[str]) -> float:
        """Time summed over the sampled sizes, each with the best of the kept versions."""
        return sum(min(self.seconds(v, size) for v in kept) for size in self.outputs)

    def bytes(self, kept: Sequence[str]) -> float:
        return self.raw_bytes * sum(_BYTES[v] for v in kept)


def environments(analysis: Analysis) -> list[dict[str, int]]:
    """Symbol values at which every free input dim is near each of the sampled extents."""
    found = []
    for extent in _EXTENTS:
        symbols: dict[str, int] = {}
        for value in analysis.graph.inputs:
            for dim in value.shape or ():
                if not dim.is_constant:
                    name, scale, base = affine(dim)
                    symbols.setdefault(name, max(1, (extent - base) // scale))
        found.append(symbols)
    return found


def layers(groups: Sequence[Group], analysis: Analysis) -> Iterator[Layer]:
    """The convolutions with constant weights whose sizes follow from the inputs."""
    samples = environments(analysis)
    for group in groups:
        node = group.anchor
        if node is not None and node.op == "Conv" and not node.domain:
            layer = _layer(node, analysis, samples)
            if layer is not None:
                yield layer


def _layer(node: Node, analysis: Analysis, samples: Sequence[Mapping[str, int]]) -> Layer | None:
    x = analysis.of(node.inputs)
    weights = analysis[node.inputs[1]].known_value
    if weights is None or weights.ndim > 4:
        return None
    image = x[0]
    if image is None:
        return None
    found = axes(node, image.dims[2:], weights.shape[2:])
    if any(a.out.symbols() - samples[0].keys() for a in found):
        return None
    groups = int(node.attrs.get("group", 1))
    oc, ic, *window = weights.shape
    outputs = [tuple(evaluate(a.out, s) for a in found) for s in samples]
    unit = all(a.stride == 1 and a.dilation == 1 for a in found)
    winograd = window == [3, 3] and unit and groups == 1 and min(oc, ic) >= 16
    padded = tuple((1, *o)[-2:] for o in outputs)
    return Layer(node.name, node.inputs[1], oc, ic, math.prod(window), winograd, ic == 1 and groups > 1, padded)


def plan(graph: Graph, groups: Sequence[Group], analysis: Analysis, several: bool, budget: float) -> Kept:
    """Versions kept for each convolution; packed weights stay within `budget` times the model's raw constants, unless
    even the direct versions exceed that."""
    found = list(layers(groups, analysis))
    raw = sum(c.nbytes for c in graph.constants.values())
    direct = sum(layer.raw_bytes for layer in found)
    room = budget * raw - raw  # the other constants are stored once, as the direct versions are
    kept = {layer.name: layer.versions()[:1] for layer in found}
    if not direct:
        return kept
    changes = sorted(
        ((rate, extra, layer, choice) for layer in found for rate, extra, choice in _changes(layer, several)),
        key=lambda c: (-c[0], c[1], c[2].name, c[3]),
    )
    spent: dict[str, float] = {layer.name: 0.0 for layer in found}
    cost = {layer.name: layer.cost(kept[layer.name]) for layer in found}
    for _, extra, layer, choice in changes:
        more = extra - spent[layer.name]
        better = layer.cost(choice) < cost[layer.name]
        if better and more <= room:
            room -= more
            spent[layer.name], cost[layer.name], kept[layer.name] = extra, layer.cost(choice), choice
    return kept


def _changes(layer: Layer, several: bool) -> Iterator[tuple[float, float, tuple[str, ...]]]:
    """(seconds saved per extra byte, extra bytes, versions) of every set that beats the start."""
    names = layer.versions()
    start = names[:1]
    sets = [(v,) for v in names] + (list(combinations(names, 2)) if several else [])
    for choice in sets:
        saved = layer.cost(start) - layer.cost(choice)
        extra = layer.bytes(choice) - layer.bytes(start)
        if saved > 0:
            yield saved / max(extra, 1.0), extra, choice
