"""RANet: four sub-networks from the lowest resolution to the highest, with eight classifiers where a picture can exit.

Input: `images` (1, 3, H, W), ImageNet-normalised RGB, any size. Output: `logits` (1, classes) of the exit taken. A
first layer makes the inputs of all sub-networks (strides 4 to 32). Blocks are densely connected; those of a later
sub-network also take in, layer by layer, the features which the same-numbered block of the previous one stored, resized
to their own resolution (bilinear, corners aligned). Two blocks of every sub-network end in a classifier at stride 32.
The picture leaves at the first one whose greatest softmax probability reaches the exit's threshold; the last takes all.

The exits are nested: each `If` has the logits in its then-branch and all of the rest in its else-branch. Resizing a
layer's input to the layer's output changes nothing except where the layer strides; it is kept, as in published code.

Thresholds are fitted so that equal shares leave at every exit; the heads' random dense layers are scaled so that their
confidences spread. BatchNorm statistics are calibrated and folded. With a checkpoint the thresholds are zero, so that
all leave at the first exit, until they are fitted on data. Parameter names follow the structure of the network; they
have not been compared with a checkpoint.

Source: the RANet paper and the configuration of its README (base 32, growth factors 4-2-2-1); written from the
description.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import spox
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models.blocks import conv_bn, gemm, global_mean, integers, vector
from models.parameters import Parameters

REDUCTION = 2  # of channels at a transition
COMPRESSION = 4  # a fusion layer takes 1 / COMPRESSION of its growth from the previous sub-network
LOGIT_GAIN = 10.0


@dataclass(frozen=True)
class Config:
    """Base channels, factors of growth and bottleneck, growth, layers per block, exits per sub-network, classes."""

    base: int
    factors: tuple[int, ...]
    growth: int
    layers: int
    exits: int
    classes: int


CONFIGS = {
    "full": Config(32, (4, 2, 2, 1), 16, 8, 2, 1000),
    "tiny": Config(8, (2, 2, 1), 8, 2, 1, 10),
}


@dataclass(frozen=True)
class Map:
    """A feature map: its values, channels, and level of resolution (0: the highest, stride 4)."""

    x: Var
    channels: int
    level: int


@dataclass(frozen=True)
class Block:
    """A block: its name, growth, the bottleneck factors of its sub-network and the previous one, whether it strides."""

    name: str
    growth: int
    factor: int
    factor_below: int
    down: bool


def compose(p: Parameters, variant: str) -> tuple[dict[str, Var], dict[str, Var]]:
    """Inputs and outputs of the network; the full one has 131,123,991 parameters."""
    config = CONFIGS[variant]
    images = spox.argument(spox.Tensor(np.float32, (1, 3, "H", "W")))
    exits = _Network(p, config).exits(images)
    return {"images": images}, {"logits": _leave_early(p, exits, 0, len(config.factors) * config.exits - 1)}


def gate_rates(variant: str) -> np.ndarray:
    """Of the pictures that reach each exit but the last, the share that leaves there: equal shares of all leave."""
    config = CONFIGS[variant]
    return 1 / np.arange(len(config.factors) * config.exits, 1, -1)


def _leave_early(p: Parameters, exits: Iterator[Var], index: int, last: int) -> Var:
    """The logits of the first exit from `index` on whose confidence suffices, of exit `last` if none does."""
    logits = next(exits)
    if index == last:
        return logits
    confidence = op.reshape(op.reduce_max(op.softmax(logits, axis=1), integers(1), keepdims=0), integers())
    (chosen,) = op.if_(
        op.greater_or_equal(confidence, p.threshold(index)),
        then_branch=lambda: [op.identity(logits)],
        else_branch=lambda: [_leave_early(p, exits, index + 1, last)],
    )
    return chosen


class _Network:
    """The network under construction: keeps the size vector of every level of resolution."""

    def __init__(self, p: Parameters, config: Config) -> None:
        self._p = p
        self._config = config
        self._sizes: list[Var] = []

    def exits(self, images: Var) -> Iterator[Var]:
        """Logits of each exit in order; what one needs beyond the previous ones is composed when it is asked for."""
        config = self._config
        entries = self._first_layer(images)
        below: list[list[Map]] = []  # per block of the previous sub-network: its input and the output of every layer
        for number, entry in enumerate(reversed(entries)):
            fusing, stored, x = config.exits * number, [], entry
            for index in range(fusing + config.exits):
                down = index < fusing and index % config.exits == config.exits - 1
                factors = config.factors[number], config.factors[max(number - 1, 0)]
                name = f"scale_flows.{number}.{index}"
                block = Block(name, config.growth * factors[0], *factors, down)
                features = self._layers(block, x, below[index] if index < fusing else None)
                stored.append(features)
                x = features[-1]
                if index < fusing:
                    x = self._finish_fusion(block, x, below[index][-1])
                else:
                    yield self._classify(x, f"classifier.{number * config.exits + index - fusing}")
            below = stored

    def _first_layer(self, images: Var) -> list[Map]:
        """The inputs of the sub-networks, the last one's first, each at half the resolution of the one before."""
        widths = [self._config.base * factor for factor in reversed(self._config.factors)]
        names = ("FirstLayer.layers.0.0", "FirstLayer.layers.0.1")
        x = op.relu(conv_bn(self._p, images, names, (3, widths[0]), 7, stride=2, biased=True))
        x = op.max_pool(x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])[0]
        maps = [Map(x, widths[0], 0)]
        for level, width in enumerate(widths[1:], start=1):
            maps.append(self._basic(maps[-1], f"FirstLayer.layers.{level}", width, 3, down=True))
        self._sizes = [op.shape(entry.x, start=2) for entry in maps]
        return maps

    def _basic(self, x: Map, name: str, width: int, kernel: int, *, down: bool = False) -> Map:
        """Convolution, BatchNorm, ReLU."""
        names = (f"{name}.net.0", f"{name}.net.1")
        y = op.relu(conv_bn(self._p, x.x, names, (x.channels, width), kernel, stride=2 if down else 1))
        return Map(y, width, x.level + down)

    def _bottleneck(self, x: Map, name: str, width: int, factor: int, *, down: bool = False) -> Map:
        """1x1 convolution to at most factor * width channels, 3x3 to `width`, BatchNorm and ReLU on both."""
        hidden = min(x.channels, factor * width)
        y = op.relu(conv_bn(self._p, x.x, (f"{name}.net.0", f"{name}.net.1"), (x.channels, hidden), 1))
        stride = 2 if down else 1
        y = op.relu(conv_bn(self._p, y, (f"{name}.net.3", f"{name}.net.4"), (hidden, width), 3, stride=stride))
        return Map(y, width, x.level + down)

    def _resize(self, x: Map, level: int) -> Map:
        """Bilinear to the resolution of a level, corners aligned."""
        sizes = vector(1, x.channels, self._sizes[level])
        y = op.resize(x.x, None, None, sizes, coordinate_transformation_mode="align_corners", mode="linear")
        return Map(y, x.channels, level)

    def _layers(self, block: Block, x: Map, below: list[Map] | None) -> list[Map]:
        """The input and the output of each layer of a block, of a fusion block with the features from `below`."""
        features = [x]
        count = self._config.layers
        for index in range(count):
            name = f"{block.name}.layers.{index}"
            if below is None:
                x = _concat(x, self._bottleneck(x, f"{name}.conv", block.growth, block.factor))
            else:
                down = block.down and index == count - 1
                x = self._fusion_layer(block, x, below[index], name, down=down)
            features.append(x)
        return features

    def _fusion_layer(self, block: Block, x: Map, low: Map, name: str, *, down: bool) -> Map:
        taken = block.growth // COMPRESSION
        new = self._bottleneck(x, f"{name}.conv_prev", block.growth - taken, block.factor, down=down)
        up = self._bottleneck(low, f"{name}.conv_up", taken, block.factor_below)
        return _concat(self._resize(x, new.level), self._resize(up, new.level), new)

    def _finish_fusion(self, block: Block, x: Map, low: Map) -> Map:
        """Append the previous sub-network's result; where the block strides, halve the channels."""
        up = self._basic(low, f"{block.name}.conv_last", x.channels // COMPRESSION, 1)
        x = _concat(x, self._resize(up, x.level))
        return self._basic(x, f"{block.name}.trans", x.channels // REDUCTION, 1) if block.down else x

    def _classify(self, x: Map, name: str) -> Var:
        """Two strided 3x3 convolutions, global mean, dense layer."""
        for index in range(2):
            x = self._basic(x, f"{name}.m.{index}", x.channels, 3, down=True)
        features = op.reshape(global_mean(x.x), integers(1, x.channels))
        return gemm(self._p, features, f"{name}.linear", (x.channels, self._config.classes), gain=LOGIT_GAIN)


def _concat(*maps: Map) -> Map:
    """The maps, of one resolution, joined along the channels."""
    return Map(op.concat([m.x for m in maps], axis=1), sum(m.channels for m in maps), maps[-1].level)
