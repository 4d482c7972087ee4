"""Expected time of the versions of a convolution.

The Python twin of the cost functions of runtime/conv_panel.c, conv_pixel.c, conv_dot.c, winograd.c, depthwise.c and
conv_taps.c, by which the runtime chooses among the kept versions once sizes are bound. The model counts the steps of
the register tiles exactly, partial tiles included, adds measured costs for what surrounds them (filling strips,
storing, transforms), and lets Winograd take no less time than its weights need to arrive from memory. Measured on Zen
5, and within 10 % there except where a layer takes only a few microseconds; `apart` and `crowded` on Intel's servers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, prod

from sod2.packing import Tile, winograd_inputs, winograd_phases

_STRIP_CYCLES = 0.4  # per float of the image
_STORE_CYCLES = {"panel": 5.5, "pixel": 8.0}  # per vector of results
_PAGE = 1024  # floats: rows of larger images lie on pages of their own
_DOT_CYCLES = 10.0  # per row of one pixel: the sum of its lanes
_GATHER_CYCLES = 1.0  # per input of one pixel, copied next to each other
_SLOWER_PER_TAP = 1 / 16384  # of panels, whose rows lie a channel apart
_SPLIT = 1.03  # of those that begin within a cache line, where L1 holds no dense copies:
_NEAR = 1 << 13  # floats of two panels at most
_TRANSFORM_CYCLES = {2: 80.0, 3: 230.0, 4: 250.0, 6: 550.0}  # per tile and vector of channels
_ADD_CYCLES = 4.0  # per vector of outputs and tap, whose products were computed before
_MOST_PRODUCTS = 1 << 14
_BYTES_PER_CYCLE = 6.0  # of weights from memory, half of the bandwidth of a core


@dataclass(frozen=True)
class ConvLayer:
    """A convolution at bound sizes. `padded`: any padding at all."""

    n: int
    ic: int
    oc: int
    groups: int
    image: tuple[int, int]
    out: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padded: bool

    @property
    def depth(self) -> int:
        """Multiply-adds of one output element."""
        return self.ic // self.groups * self.kernel[0] * self.kernel[1]

    @property
    def in_place(self) -> bool:
        """Is the image its own matrix?"""
        unit = self.kernel == (1, 1) and self.stride == (1, 1)
        return unit and not self.padded and self.ic * self.image[0] * self.image[1] < 2**31 - 1

    @property
    def lines(self) -> tuple[int, int]:
        """Output lines and the pixels of one: all pixels are one line where the kernel is a single tap."""
        return (1, self.out[0] * self.out[1]) if self.kernel == (1, 1) else self.out


def possible_versions(layer: ConvLayer) -> tuple[str, ...]:
    """The versions that compute this layer."""
    found = ["panel", "pixel", "dot"]
    unit = layer.stride == (1, 1) and layer.dilation == (1, 1)
    if layer.kernel == (3, 3) and unit and layer.groups == 1:
        found += ["wino2", "wino4", "wino6"]
    if (layer.kernel, layer.stride, layer.dilation, layer.groups) == ((7, 7), (2, 2), (1, 1), 1):
        found.append("wino3")
    if layer.groups == layer.ic:
        found.append("depthwise")
    if layer.oc == 1 and layer.groups == 1 and layer.stride == (1, 1) and layer.kernel != (1, 1):
        found.append("taps")
    return tuple(found)


def _block_cycles(size: int, tile: Tile) -> float:
    """Cycles of a step of k for `size` rows in balanced blocks: two multiply-adds each, but 4 a block for latency."""
    blocks = ceil(size / tile.mr)
    return max(size * (tile.nr // tile.lanes) / 2, 4.0 * blocks)


def _panels(layer: ConvLayer, tile: Tile) -> float:
    """Panels of pixels of one image: across the ends of lines, or beginning anew where that wastes less.

    Of the last panel half suffices where there are no more pixels.
    """
    lines, pixels = layer.lines
    margin = (layer.kernel[1] - 1) * layer.dilation[1] // layer.stride[1]
    pitch = min(pixels + margin, ceil(pixels / tile.nr) * tile.nr)
    return ceil(((lines - 1) * pitch + pixels) / (tile.nr // 2)) / 2


def _strip_cycles(layer: ConvLayer) -> float:
    if layer.in_place:
        return 0.0
    used = 1.0
    for kernel, stride, dilation in zip(layer.kernel, layer.stride, layer.dilation, strict=True):
        used *= len({tap * dilation % stride for tap in range(kernel)}) / stride
    return _STRIP_CYCLES * layer.n * layer.ic * layer.image[0] * layer.image[1] * used


def _winograd_floats(layer: ConvLayer, m: int, tile: Tile) -> int:
    """Size of the transformed weights."""
    depth, panels = ceil(winograd_phases(m) * layer.ic / tile.lanes), ceil(layer.oc / tile.nr)
    return winograd_inputs(m) ** 2 * depth * tile.lanes * panels * tile.nr


def _winograd_cycles(layer: ConvLayer, m: int, tile: Tile) -> float:
    tiles = ceil(layer.out[0] / m) * ceil(layer.out[1] / m)
    inputs, outputs = ceil(winograd_phases(m) * layer.ic / tile.lanes), ceil(layer.oc / tile.lanes)
    weights = _winograd_floats(layer, m, tile)
    rows = winograd_inputs(m) ** 2 * winograd_phases(m) * layer.ic * ceil(layer.oc / tile.nr)
    block = winograd_inputs(m) ** 2 * inputs * tile.lanes * min(tile.mr, tiles) * 4 / 2**20
    crowded = 1 + max(block - 1, 0.0) * tile.crowded / 100
    products = rows * layer.n * _block_cycles(tiles, tile) * crowded
    stream = weights * 4 / _BYTES_PER_CYCLE
    return max(products, stream) + _TRANSFORM_CYCLES[m] * layer.n * tiles * (inputs + outputs)


def _taps_cycles(layer: ConvLayer, tile: Tile) -> float:
    """The products of all pixels, if they are few, then their sums."""
    products = replace(layer, n=1, oc=prod(layer.kernel), out=layer.image, kernel=(1, 1), padded=False)
    if products.oc * prod(layer.image) > _MOST_PRODUCTS:
        return inf
    vectors = layer.out[0] * ceil(layer.out[1] / tile.lanes)
    return layer.n * (conv_cycles("panel", products, tile) + _ADD_CYCLES * vectors * products.oc)


def conv_cycles(version: str, layer: ConvLayer, tile: Tile) -> float:
    """Expected cycles of one core for `version`, one of CONV_VERSIONS."""
    lines, pixels = layer.lines
    lines *= layer.n
    if version == "panel":
        panels = layer.n * layer.groups * _panels(layer, tile)
        tiles = panels * layer.depth * _block_cycles(layer.oc // layer.groups, tile)
        tiles *= 1 + _SLOWER_PER_TAP * layer.depth
        if layer.in_place and pixels % 16 != 0 and layer.depth * tile.nr * 2 > _NEAR:
            tiles *= _SPLIT
        return tiles + _STORE_CYCLES[version] * lines * pixels * layer.oc / tile.lanes + _strip_cycles(layer)
    if version == "pixel":
        panels = layer.groups * ceil(layer.oc // layer.groups / tile.nr)
        apart = min(1.0, pixels / _PAGE) ** 2 * tile.apart / 100 if layer.in_place else 0.0
        tiles = lines * _block_cycles(pixels, tile) * panels * layer.depth * (1 + apart)
        return tiles + _STORE_CYCLES[version] * lines * pixels * panels * tile.nr / tile.lanes + _strip_cycles(layer)
    if version == "dot":
        gathered = 0.0 if layer.in_place and pixels == 1 else _GATHER_CYCLES * layer.depth
        row = _DOT_CYCLES + layer.depth / tile.lanes
        return lines * pixels * (layer.oc * row + layer.groups * gathered) + _strip_cycles(layer)
    if version == "depthwise":
        vectors = layer.n * layer.oc * layer.out[0] * ceil(layer.out[1] / tile.lanes)
        return vectors * (0.6 * layer.kernel[0] * layer.kernel[1] + 8)
    if version == "taps":
        return _taps_cycles(layer, tile)
    return _winograd_cycles(layer, int(version.removeprefix("wino")), tile)


def packed_floats(version: str, layer: ConvLayer, tile: Tile) -> int:
    """Size of the weights that `packing.conv_weights` gives for a version."""
    if version in ("panel", "dot", "depthwise", "taps"):
        return layer.oc * layer.depth
    if version == "pixel":
        return layer.groups * ceil(layer.oc // layer.groups / tile.nr) * tile.nr * layer.depth
    return _winograd_floats(layer, int(version.removeprefix("wino")), tile)
