"""MVC: which versions of each convolution are kept (paper, section 3.5).

A version is a kernel with weights packed for it: direct (lanes over pixels, output channels or taps), or Winograd
F(2) and F(4), whose transformed weights take 1.8 and 4 times the raw ones, and F(3) for a 7x7 first layer of stride
2, 3.9 times, over the four phases of the image. The library also has F(6), which takes 7.1 times the raw ones and is
not kept: its error was three times F(4)'s on SkipNet-101 (8e-5 of the output's scale). At run time the kernel library
picks among the kept versions by a cost formula over the bound sizes (runtime/conv.c); here the model's weight budget
is spent.

Each layer starts with its fastest direct version. Then, as long as the budget lasts, the change with the most time
saved per byte is made: a layer's set of versions is replaced by a better one. Time is that of the run-time formula
(conv_cost.py), summed over four sizes of the inputs, since a layer may want F(4) on large images and F(2) on small
ones. `several=False` (mvc off) allows one version a layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from sod2.admissible import affine
from sod2.conv_cost import ConvLayer, conv_cycles, packed_floats, possible_versions
from sod2.fusion import Group
from sod2.graph import Graph, Node
from sod2.ops.window import axes
from sod2.packing import Tile
from sod2.rdp import Analysis
from sod2.symbolic import evaluate

Kept = Mapping[str, tuple[str, ...]]  # node name -> versions
Environment = Mapping[str, int]

# Sizes that every free input dim takes, as near as its declaration allows. Planes of 322 do not end with a cache line.
_EXTENTS = (128, 320, 322, 640)
_DIRECT = ("panel", "pixel", "dot", "depthwise", "taps")
_FIRST = ("wino3",)  # made for three channels
_INACCURATE = ("wino6",)
_SMALLEST_WINOGRAD = 16  # channels; below it the transforms cost more than they save


@dataclass(frozen=True)
class Layer:
    """One convolution with constant weights at the sampled sizes of the inputs."""

    name: str
    sizes: tuple[ConvLayer, ...]
    tile: Tile

    @property
    def raw_bytes(self) -> int:
        return 4 * self.sizes[0].oc * self.sizes[0].depth

    def versions(self) -> tuple[str, ...]:
        """The versions that may be kept."""
        layer = self.sizes[0]
        narrow = min(layer.oc, layer.ic) < _SMALLEST_WINOGRAD
        kept = (v for v in possible_versions(layer) if v not in _INACCURATE)
        return tuple(v for v in kept if v in (*_DIRECT, *_FIRST) or not narrow)

    def cost(self, kept: Sequence[str]) -> float:
        """Cycles summed over the sampled sizes, each with the best of the kept versions."""
        return sum(min(conv_cycles(v, size, self.tile) for v in kept) for size in self.sizes)

    def bytes(self, kept: Sequence[str]) -> int:
        """Size of the packed weights."""
        return 4 * sum(packed_floats(v, self.sizes[0], self.tile) for v in kept)


def environments(analysis: Analysis) -> list[Environment]:
    """Symbol values at which every free input dim is near each of the sampled extents."""
    found: list[Environment] = []
    for extent in _EXTENTS:
        symbols: dict[str, int] = {}
        for value in analysis.graph.inputs:
            for dim in value.shape or ():
                if not dim.is_constant:
                    name, scale, base = affine(dim)
                    symbols.setdefault(name, max(1, (extent - base) // scale))
        found.append(symbols)
    return found


def layers(groups: Sequence[Group], analysis: Analysis, tile: Tile) -> Iterator[Layer]:
    """The convolutions with constant weights whose sizes follow from the inputs."""
    samples = environments(analysis)
    for group in groups:
        node = group.anchor
        if node is not None and node.op == "Conv" and not node.domain:
            layer = _layer(node, analysis, samples, tile)
            if layer is not None:
                yield layer


def _layer(node: Node, analysis: Analysis, samples: Sequence[Environment], tile: Tile) -> Layer | None:
    image, weights = analysis[node.inputs[0]], analysis[node.inputs[1]].known_value
    if weights is None or weights.ndim > 4:
        return None
    sizes = []
    for sample in samples:
        if any(d.symbols() - sample.keys() for d in image.dims):
            return None
        batch, channels, *extents = (evaluate(d, sample) for d in image.dims)
        found = axes(node, extents, weights.shape[2:])
        flat = (1, *(int(e) for e in extents))[-2:]
        sizes.append(
            ConvLayer(
                n=batch,
                ic=channels,
                oc=weights.shape[0],
                groups=int(node.attrs.get("group", 1)),
                image=(flat[0], flat[1]),
                out=_pair([int(a.out) for a in found]),
                kernel=_pair(weights.shape[2:]),
                stride=_pair([a.stride for a in found]),
                dilation=_pair([a.dilation for a in found]),
                padded=any(int(a.begin) or int(a.end) for a in found),
            )
        )
    return Layer(node.name, tuple(sizes), tile)


def _pair(values: Sequence[int]) -> tuple[int, int]:
    """Height and width; a one-dimensional window has height 1."""
    height, width = (1, *values)[-2:]
    return height, width


def plan(
    graph: Graph, groups: Sequence[Group], analysis: Analysis, tile: Tile, *, several: bool, budget: float
) -> Kept:
    """Versions kept for each convolution.

    Packed weights stay within `budget` times the model's raw constants, unless even the direct versions exceed that.
    """
    found = list(layers(groups, analysis, tile))
    kept = {layer.name: _start(layer) for layer in found}
    spent = {layer.name: layer.bytes(kept[layer.name]) for layer in found}
    others = sum(c.nbytes for c in graph.constants.values()) - sum(layer.raw_bytes for layer in found)
    room = budget * sum(c.nbytes for c in graph.constants.values()) - others - sum(spent.values())
    changes = sorted(
        ((rate, layer, choice) for layer in found for rate, choice in _changes(layer, several)),
        key=lambda c: (-c[0], c[1].name, c[2]),
    )
    for _, layer, choice in changes:
        more = layer.bytes(choice) - spent[layer.name]
        if more <= room and layer.cost(choice) < layer.cost(kept[layer.name]):
            room -= more
            spent[layer.name], kept[layer.name] = layer.bytes(choice), choice
    return kept


def _start(layer: Layer) -> tuple[str, ...]:
    """The fastest direct version."""
    direct = [v for v in layer.versions() if v in _DIRECT]
    return (min(direct, key=lambda v: layer.cost((v,))),)


def _changes(layer: Layer, several: bool) -> Iterator[tuple[float, tuple[str, ...]]]:
    """(cycles saved per extra byte, versions) of every set that beats the start."""
    start = _start(layer)
    names = layer.versions()
    for choice in [(v,) for v in names] + (list(combinations(names, 2)) if several else []):
        saved = layer.cost(start) - layer.cost(choice)
        if saved > 0:
            yield saved / max(layer.bytes(choice) - layer.bytes(start), 1), choice
