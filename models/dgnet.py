"""DGNet-50, Dynamic Dual Gating: a bottleneck ResNet whose blocks mask the tiles and channels they compute.

Input: `images` (1, 3, 224, 224), ImageNet-normalised RGB, this size only. Output: `logits` (1, classes). Each block has
a spatial gate (average over a 7x7 grid, 3x3 convolution to one logit per tile) and two channel gates (global mean, two
1x1 convolutions, one logit per channel) before its first and its second convolution. A logit of 0 or more opens a tile
or a channel; all that is closed is multiplied by zero. The published code computes everything and masks it.

Variants: `full` adds control flow by blocks, an encoding of ours: a block with no open tile gives ReLU(S(x)) without
being computed, exactly what the masked block gives, because its last masking is spatial; the channel gates, of no other
use, are in the branch with the block. `masks` is the published form without an `If`. `compact` gathers, inside the
`If`, the open channels (NonZero) from the weights of the block's convolutions, so that the number of channels is known
only at run time.

Calibration: thresholds of the channel gates open each channel for 63 % of the pictures. The spatial gate's is set by
the block's greatest logit so that the block runs for 32 % of the pictures: the mean multiply-adds are then the
published 1.65 G of 4.10 G (the density of the authors' d = 0.4 in terms of blocks). Random gates would all open for
the same pictures, those of strong features; so the weights of a channel gate get a random response to the mean of its
input, and those of the spatial gates one whose sign alternates from block to block: the number of blocks that run then
varies little from picture to picture. BatchNorm is calibrated on the pictures for which a block runs, and folded.
Parameter names of the gates have not been compared with a checkpoint.

Source: the DGNet paper and its authors' figures; written from the description of the architecture.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import spox
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models import resnet
from models.blocks import convolve, fold_batch_norm, global_mean, integers, scalar
from models.parameters import Draw, Folding, Parameters, constant, normal
from models.resnet import Block
from models.statistics import Batch, choose_threshold

RATE = 0.32
CHANNEL_RATE = 0.63
SIZE = 224
GRID = 7
CHANNEL_SLOPE = 4.0  # deviation of a channel gate's response to the mean of its input
TILE_SLOPE = 8.0  # a spatial gate's response to it, of either sign
BOTTLENECK = 4  # a channel gate's hidden layer has 1 / BOTTLENECK of its inputs


@dataclass(frozen=True)
class Config:
    """The network, whether blocks without open tiles are skipped, and whether closed channels are left out."""

    net: resnet.Config
    skips: bool = True
    compacts: bool = False


TINY = resnet.Config((1, 1, 1, 1), (16, 16, 32, 32), 10)
CONFIGS = {
    "full": Config(resnet.R50),
    "tiny": Config(TINY),
    "masks": Config(resnet.R50, skips=False),
    "compact": Config(resnet.R50, compacts=True),
    "tiny-masks": Config(TINY, skips=False),
    "tiny-compact": Config(TINY, compacts=True),
}
SAME_WEIGHTS = {"masks": "full", "compact": "full", "tiny-masks": "tiny", "tiny-compact": "tiny"}


def compose(p: Parameters, variant: str) -> tuple[dict[str, Var], dict[str, Var]]:
    """Inputs and outputs of the network; the full one has 31,384,568 parameters."""
    config = CONFIGS[variant]
    images = spox.argument(spox.Tensor(np.float32, (1, 3, SIZE, SIZE)))
    x = resnet.stem(p, images, ("conv1", "bn1"), config.net.widths[0])
    size = SIZE // 4
    blocks = list(resnet.blocks(config.net))
    for number, block in enumerate(blocks):
        x = _Block(p, config, block, size, 1 if number % 2 else -1).output(x)
        size //= block.stride
    return {"images": images}, {"logits": resnet.classify(p, x, blocks[-1].outward, config.net.classes, "fc")}


class _Block:
    """One block under construction, its input of `size` x `size` pixels; `sign` is that of its spatial gate's response
    to the mean of that input."""

    def __init__(self, p: Parameters, config: Config, block: Block, size: int, sign: int) -> None:
        self._p = p
        self._config = config
        self._block = block
        self._size = size
        self._sign = sign
        self._name = f"layer{block.stage + 1}.{block.index}"

    def output(self, x: Var) -> Var:
        """The block under its gates."""
        names = (f"{self._name}.downsample.0", f"{self._name}.downsample.1")
        shortcut = resnet.shortcut(self._p, self._block, x, names)
        tiles = self._tile_logits(x)
        opened = op.cast(op.greater_or_equal(tiles, scalar(0.0)), to=np.float32)
        channels = self._channels(x, "mask_c1", self._block.inward, None)
        if not self._config.skips:
            return op.relu(op.add(self._body(x, opened, channels), shortcut))
        runs = op.greater_or_equal(op.reduce_max(tiles, keepdims=0), scalar(0.0))
        (merged,) = op.if_(
            runs,
            then_branch=lambda: [op.relu(op.add(self._body(x, opened, channels), shortcut))],
            else_branch=lambda: [op.relu(shortcut)],
        )
        return merged

    def _tile_logits(self, x: Var) -> Var:
        """Logits of the spatial gate, (1, 1, 7, 7)."""
        tile = self._size // GRID
        pooled = op.average_pool(x, kernel_shape=[tile, tile], strides=[tile, tile])
        name, shape = f"{self._name}.mask_s.conv", (1, self._block.inward, 3, 3)
        weights = _shifted(self._p, name, shape, constant(self._sign * TILE_SLOPE), _greatest_logit)
        return convolve(pooled, *weights, 3)

    def _channels(self, x: Var, gate: str, inward: int, present: Var | None) -> Var:
        """The open channels: their mask (1, width, 1, 1), or their indices where channels are left out.

        `present` are the indices of the channels that x has, None if it has them all.
        """
        name = f"{self._name}.{gate}"
        hidden = inward // BOTTLENECK
        weight, bias = fold_batch_norm(self._p, (f"{name}.fc1", f"{name}.bn"), (hidden, inward, 1, 1))
        y = op.relu(convolve(global_mean(x), _take(weight, present, 1), bias, 1))
        shape = (self._block.width, hidden, 1, 1)
        slopes = normal((self._block.width, 1, 1, 1), CHANNEL_SLOPE)
        logits = convolve(y, *_shifted(self._p, f"{name}.fc2", shape, slopes, _logits_per_channel), 1)
        opened = op.greater_or_equal(logits, scalar(0.0))
        if self._config.compacts:
            return op.reshape(op.non_zero(op.reshape(opened, integers(-1))), integers(-1))
        return op.cast(opened, to=np.float32)

    def _body(self, x: Var, tiles: Var, first: Var) -> Var:
        """What is added to the shortcut, with the channels that `first` opens after the first convolution."""
        block, compacts = self._block, self._config.compacts
        width = block.width
        before, after = self._upsampled(tiles, self._size), self._upsampled(tiles, self._size // block.stride)
        weight, bias = self._convolution(1, (width, block.inward, 1, 1))
        kept = first if compacts else None
        y = op.relu(convolve(x, _take(weight, kept, 0), _take(bias, kept, 0), 1))
        y = op.mul(y if compacts else op.mul(y, first), before)
        second = self._channels(y, "mask_c2", width, kept)
        weight, bias = self._convolution(2, (width, width, 3, 3))
        remaining = second if compacts else None
        weight = _take(_take(weight, kept, 1), remaining, 0)
        y = op.relu(convolve(y, weight, _take(bias, remaining, 0), 3, stride=block.stride))
        y = op.mul(y if compacts else op.mul(y, second), after)
        weight, bias = self._convolution(3, (block.outward, width, 1, 1))
        return op.mul(convolve(y, _take(weight, remaining, 1), bias, 1), after)

    def _convolution(self, number: int, shape: tuple[int, ...]) -> tuple[Var, Var]:
        return fold_batch_norm(self._p, (f"{self._name}.conv{number}", f"{self._name}.bn{number}"), shape)

    def _upsampled(self, tiles: Var, size: int) -> Var:
        """The mask of tiles at size x size pixels."""
        sizes = integers(1, 1, size, size)
        rounding = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return op.resize(tiles, None, None, sizes, mode="nearest", **rounding)


def _take(x: Var, indices: Var | None, axis: int) -> Var:
    """The slices of x at the indices, all of x without any."""
    return x if indices is None else op.gather(x, indices, axis=axis)


def _greatest_logit(batch: Batch) -> np.ndarray:
    """The threshold that leaves no tile open in all but RATE of the pictures."""
    return np.array([choose_threshold(np.array([array.max() for array in batch]), RATE)], np.float32)


def _logits_per_channel(batch: Batch) -> np.ndarray:
    """For each channel the threshold that opens it for CHANNEL_RATE of the pictures."""
    columns = np.stack([array.reshape(-1) for array in batch], axis=1)
    return np.array([choose_threshold(logits, CHANNEL_RATE) for logits in columns], np.float32)


def _shifted(
    p: Parameters, name: str, shape: tuple[int, ...], slopes: Draw, thresholds: Callable[[Batch], np.ndarray]
) -> tuple[Var, Var]:
    """Weight and bias of a convolution to logits, less a threshold each.

    The random weight of a logit sums to its slope, which is hence its response to the mean of the input.
    """
    p.reserve(f"{name}.weight", shape)
    p.reserve(f"{name}.bias", shape[:1])

    def weight() -> np.ndarray:
        values = p.draw(f"{name}.weight", normal(shape, 1 / math.sqrt(math.prod(shape[1:]))))
        if p.loaded:
            return values
        slope = p.draw(f"{name}.slope", slopes)
        return values - values.mean(axis=1, keepdims=True) + slope / math.prod(shape[1:])

    folding = Folding(
        weight=weight,
        bias=lambda: p.draw(f"{name}.bias", normal(shape[:1], 0.1)),
        measure=lambda batch: {f"{name}.threshold": thresholds(batch)},
        affine=lambda: (np.ones(1, np.float32), -p.calibrated(f"{name}.threshold", 0.0)),
    )
    return p.fold(name, shape, folding)
