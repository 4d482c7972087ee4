"""MVC: which versions of each convolution are kept (paper, section 3.5).

A version is a kernel with weights packed for it: direct (lanes over pixels, output channels or taps), or Winograd
F(2), F(4) and F(6), whose transformed weights take 1.8, 4 and 7.1 times the raw ones, and F(3) for a 7x7 first layer of
stride 2, 3.9 times, over the four phases of the image. At run time the kernel library picks among the kept versions by
a cost formula over the bound sizes (runtime/conv.c); here the model's weight budget and its tolerance are spent.

Each layer starts with its fastest direct version. Then, of all changes of a layer's versions, the one that saves most
time for its price is made as long as both budgets last; the price is its share of the one and of the other, and what
saves next to nothing is left. Time is that of the run-time formula (conv_cost.py), summed over four usual sizes of the
inputs, since a layer may want F(4) on large images and F(2) on small ones. What is left of the budgets then buys more
versions for three small sizes in the same way, one after the other, if each saves a hundredth of the model there.
`several=False` (mvc off) allows one version a layer.

The error that a version adds follows from its transforms: they make numbers that are larger than the result, whose
rounding stays (packing.winograd_gain). It hardly depends on channels, which are summed in short chains. Layers hand on
the relative error that they get, and what they add is independent of it: along a path squares add, and where paths meet
the worse one counts. That foresees root mean squares on random data: those of layers within 30 %, those of stacks are
0.65 to 0.95 of it. It is no bound: what becomes of an error in a model is a factor of that model, the same for all
versions. Held against full models in double, it is 0.003 for YOLO-V6, 0.04 for DGNet, 0.2 for Stable Diffusion's
encoder, 0.5 for RANet, 0.7 for ConvNet-AIG, 1.9 for BlockDrop and 3.6 for SkipNet, where direct convolutions err as
much as F(4).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt

from sod2.admissible import affine
from sod2.conv_cost import ConvLayer, conv_cycles, packed_floats, possible_versions
from sod2.fusion import Group
from sod2.graph import Graph, Node
from sod2.ops.window import axes
from sod2.packing import Tile, winograd_gain
from sod2.rdp import Analysis
from sod2.symbolic import evaluate

Kept = Mapping[str, tuple[str, ...]]  # node name -> versions
Offers = Mapping["Layer", Sequence[tuple[str, ...]]]  # what a layer's versions may be changed to
Environment = Mapping[str, int]

# Sizes that every free input dim takes, as near as its declaration allows. Planes of 322 do not end with a cache line,
# those of 14 with no panel of pixels.
_USUAL, _SMALL = (128, 320, 322, 640), (64, 32, 14)
_DIRECT = ("panel", "pixel", "dot", "depthwise", "taps")
_FIRST = ("wino3",)  # made for three channels
_SMALLEST_WINOGRAD = 16  # channels; below it the transforms cost more than they save
_ROUNDING = 1.3e-7  # error of a sum in chains of 32, of its root mean square: 1.2e-7 for 32 channels, 1.5e-7 for 512
_WORTH = 0.01  # of the time, what both budgets must save if all of them were spent as a change spends them


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
        return tuple(v for v in possible_versions(layer) if v in (*_DIRECT, *_FIRST) or not narrow)

    def cost(self, kept: Sequence[str]) -> float:
        """Cycles summed over the sampled sizes, each with the best of the kept versions."""
        return sum(min(conv_cycles(v, size, self.tile) for v in kept) for size in self.sizes)

    def bytes(self, kept: Sequence[str]) -> int:
        """Size of the packed weights."""
        return 4 * sum(packed_floats(v, self.sizes[0], self.tile) for v in kept)


def environments(analysis: Analysis, extents: Sequence[int] = _USUAL) -> list[Environment]:
    """Symbol values at which every free input dim is near each of the extents."""
    found: list[Environment] = []
    for extent in extents:
        symbols: dict[str, int] = {}
        for value in analysis.graph.inputs:
            for dim in value.shape or ():
                if not dim.is_constant:
                    name, scale, base = affine(dim)
                    symbols.setdefault(name, max(1, (extent - base) // scale))
        found.append(symbols)
    return found


def layers(groups: Sequence[Group], analysis: Analysis, tile: Tile, extents: Sequence[int] = _USUAL) -> Iterator[Layer]:
    """The convolutions with constant weights whose sizes follow from the inputs, and are any at these extents."""
    samples = environments(analysis, extents)
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
        if min(batch, *(int(a.out) for a in found)) < 1:
            return None
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
    graph: Graph,
    groups: Sequence[Group],
    analysis: Analysis,
    tile: Tile,
    *,
    several: bool,
    budget: float,
    tolerance: float,
) -> Kept:
    """Versions kept for each convolution.

    Packed weights stay within `budget` times the model's raw constants, unless even the direct versions exceed that,
    and the error that the versions add to the outputs within `tolerance` of their scale, as far as it is foreseen.
    """
    found = list(layers(groups, analysis, tile))
    kept: Kept = {layer.name: _start(layer) for layer in found}
    raw = sum(c.nbytes for c in graph.constants.values())
    limit = budget * raw - (raw - sum(layer.raw_bytes for layer in found))
    kept = _spend(graph, {layer: _sets(layer.versions(), several) for layer in found}, kept, limit, tolerance)
    for extent in _SMALL if several else ():
        small = {layer.name: layer for layer in layers(groups, analysis, tile, (extent,))}
        least = _WORTH * sum(layer.cost(kept[layer.name]) for layer in small.values())
        offers = {small.get(k.name, k): _larger(small[k.name], kept, least) if k.name in small else [] for k in found}
        kept = _spend(graph, offers, kept, limit, tolerance)
    return kept


def _spend(graph: Graph, offers: Offers, kept: Kept, limit: float, tolerance: float) -> Kept:
    """`kept` with the changes among those offered that pay within `limit` bytes of all layers and the tolerance."""
    room = limit - sum(layer.bytes(kept[layer.name]) for layer in offers)
    worth = _WORTH * sum(layer.cost(kept[layer.name]) for layer, choices in offers.items() if choices)

    def price(layer: Layer, choice: Sequence[str]) -> float:
        return layer.bytes(choice) / max(room, 1) + (layer_error(choice) / tolerance) ** 2

    changes = [
        (rate, layer, choice)
        for layer, choices in offers.items()
        for rate, choice in _changes(layer, kept[layer.name], choices, price)
        if rate >= worth
    ]
    left = room
    for _, layer, choice in sorted(changes, key=lambda c: (-c[0], c[1].name, c[2])):
        more = layer.bytes(choice) - layer.bytes(kept[layer.name])
        changed = {**kept, layer.name: choice}
        faster = layer.cost(choice) < layer.cost(kept[layer.name])
        if faster and more <= left and model_error(graph, changed) <= tolerance:
            left, kept = left - more, changed
    return kept


def _start(layer: Layer) -> tuple[str, ...]:
    """The fastest direct version."""
    direct = [v for v in layer.versions() if v in _DIRECT]
    return (min(direct, key=lambda v: layer.cost((v,))),)


def _sets(names: Sequence[str], several: bool) -> list[tuple[str, ...]]:
    return [(v,) for v in names] + (list(combinations(names, 2)) if several else [])


def _larger(layer: Layer, kept: Kept, least: float) -> list[tuple[str, ...]]:
    """What a layer has and one or two versions more, if that saves `least`: one more to decide on at every bind."""
    own = kept[layer.name]
    more = [v for v in layer.versions() if v not in own]
    sets = [(*own, *added) for count in (1, 2) for added in combinations(more, count)]
    return [s for s in sets if layer.cost(own) - layer.cost(s) >= least]


def _changes(
    layer: Layer,
    at: tuple[str, ...],
    choices: Sequence[tuple[str, ...]],
    price: Callable[[Layer, Sequence[str]], float],
) -> Iterator[tuple[float, tuple[str, ...]]]:
    """(cycles saved for the price, versions): from `at` on, each time the change that saves most for its price."""
    cost = {c: layer.cost(c) for c in (at, *choices)}
    prices = {c: price(layer, c) for c in (at, *choices)}
    while faster := [c for c in choices if cost[c] < cost[at]]:
        rate, at = max(((cost[at] - cost[c]) / max(prices[c] - prices[at], 1e-9), c) for c in faster)
        yield rate, at


def layer_error(kept: Sequence[str]) -> float:
    """Error that the worst of the versions adds to a layer's result, root mean squares of both."""
    tiles = [int(v.removeprefix("wino")) for v in kept if v.startswith("wino")]
    return _ROUNDING * max(map(winograd_gain, tiles), default=0.0)


def model_error(graph: Graph, kept: Kept) -> float:
    """Error that the versions are expected to add to the outputs, of their scale: that of the worst path."""
    squares: dict[str, float] = {}  # of tensors
    for node in graph.nodes:
        before = max((squares.get(t, 0.0) for t in node.inputs), default=0.0)
        squares.update(dict.fromkeys(node.outputs, before + layer_error(kept.get(node.name, ())) ** 2))
    return sqrt(max((squares.get(t, 0.0) for t in graph.outputs), default=0.0))
