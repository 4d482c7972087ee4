"""Residual networks: the blocks that the gated networks share.

A block's body F is a bottleneck (1x1, 3x3 with the stride, 1x1 to four times the width) or basic (3x3 with the stride,
3x3), BatchNorm after each convolution. Its shortcut S is the identity, or a strided 1x1 convolution with BatchNorm
where the shape changes; body and shortcut map a size n to ceil(n / stride) alike. The names in a checkpoint differ from
network to network, so the caller gives them. Source: the ResNet paper, stride in the 3x3 convolution.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import spox.opset.ai.onnx.v18 as op
from spox import Var

from models.blocks import conv_bn, gemm, global_mean, integers
from models.parameters import Parameters


@dataclass(frozen=True)
class Config:
    """Blocks and width per stage, outputs over widths of a block (4: bottleneck, 1: basic), and number of classes."""

    layers: tuple[int, ...]
    widths: tuple[int, ...]
    classes: int
    expansion: int = 4


R50 = Config((3, 4, 6, 3), (64, 128, 256, 512), 1000)
R101 = Config((3, 4, 23, 3), (64, 128, 256, 512), 1000)


@dataclass(frozen=True)
class Block:
    """One block: its stage and index therein (from 0), channels in, inner width, channels out, stride."""

    stage: int
    index: int
    inward: int
    width: int
    outward: int
    stride: int

    @property
    def projects(self) -> bool:
        """Whether the shortcut is a convolution."""
        return self.index == 0 and (self.stride > 1 or self.inward != self.outward)


def blocks(config: Config) -> Iterator[Block]:
    """The blocks in order of execution."""
    inward = config.widths[0]
    for stage, (count, width) in enumerate(zip(config.layers, config.widths, strict=True)):
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            yield Block(stage, index, inward, width, width * config.expansion, stride)
            inward = width * config.expansion


def stem(p: Parameters, images: Var, names: tuple[str, str], width: int) -> Var:
    """7x7 convolution, BatchNorm, ReLU and max-pool: a quarter of the size."""
    x = op.relu(conv_bn(p, images, names, (3, width), 7, stride=2))
    return op.max_pool(x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])[0]


def shortcut(p: Parameters, block: Block, x: Var, names: tuple[str, str]) -> Var:
    """S(x), its convolution and BatchNorm called `names`."""
    if not block.projects:
        return x
    return conv_bn(p, x, names, (block.inward, block.outward), 1, stride=block.stride)


def bottleneck(p: Parameters, block: Block, x: Var, name: str) -> Var:
    """F(x) with parameters `<name>.conv1` to `<name>.bn3`; no ReLU at the end."""
    width = block.width
    y = op.relu(conv_bn(p, x, (f"{name}.conv1", f"{name}.bn1"), (block.inward, width), 1))
    y = op.relu(conv_bn(p, y, (f"{name}.conv2", f"{name}.bn2"), (width, width), 3, stride=block.stride))
    return conv_bn(p, y, (f"{name}.conv3", f"{name}.bn3"), (width, block.outward), 1)


def basic(p: Parameters, block: Block, x: Var, name: str) -> Var:
    """F(x) of two 3x3 convolutions, `<name>.conv1` to `<name>.bn2`; no ReLU at the end."""
    y = op.relu(conv_bn(p, x, (f"{name}.conv1", f"{name}.bn1"), (block.inward, block.width), 3, stride=block.stride))
    return conv_bn(p, y, (f"{name}.conv2", f"{name}.bn2"), (block.width, block.outward), 3)


def classify(p: Parameters, x: Var, width: int, classes: int, name: str) -> Var:
    """Global mean and dense layer: logits (1, classes)."""
    return gemm(p, op.reshape(global_mean(x), integers(1, width)), name, (width, classes))
