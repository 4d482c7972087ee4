"""Single operators as models: the convolutions, products and poolings in which the ten models spend their time, and a
chain of 500 tiny steps, whose time is what a step costs beside its work.

Each is one ONNX node with its weights and one symbolic size S, whose range is about what the ten models give it. Names
tell the kernel, the stride and the channels. The variant `tiny` has an eighth of the channels.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import spox
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models.blocks import conv_transpose, convolve
from models.parameters import Parameters, normal

DIVISORS = {"full": 1, "tiny": 8}  # of the channels
Ports = tuple[dict[str, Var], dict[str, Var]]


@dataclass(frozen=True)
class Operator(ABC):
    """One node over a size S from `low` to `high` in steps of `step`; `kind` is its part of the figure."""

    CONFIGS: ClassVar[Mapping[str, int]] = DIVISORS

    kind: str
    low: int
    high: int
    step: int

    @abstractmethod
    def compose(self, p: Parameters, variant: str) -> Ports:
        """The node between input x and output y."""

    @abstractmethod
    def floats(self, size: int) -> int:
        """Elements of input, weights and output at a size, full variant."""


def image(channels: int) -> Var:
    """A square image (1, channels, S, S)."""
    return spox.argument(spox.Tensor(np.float32, (1, channels, "S", "S")))


@dataclass(frozen=True)
class Convolution(Operator):
    """x (1, inward, S, S); padding kernel // 2, so that a stride of 1 keeps the size."""

    inward: int
    outward: int
    kernel: int
    stride: int = 1

    def compose(self, p: Parameters, variant: str) -> Ports:
        inward, outward = (-(-n // DIVISORS[variant]) for n in (self.inward, self.outward))
        shape = (outward, inward, self.kernel, self.kernel)
        weight = p.declare("weight", shape, normal(shape, 1 / np.sqrt(np.prod(shape[1:]))))
        bias = p.declare("bias", (outward,), normal((outward,), 0.1))
        x = image(inward)
        return {"x": x}, {"y": convolve(x, weight, bias, self.kernel, stride=self.stride)}

    def floats(self, size: int) -> int:
        out = -(-size // self.stride)
        return self.inward * size**2 + self.outward * (out**2 + self.inward * self.kernel**2 + 1)


@dataclass(frozen=True)
class Depthwise(Operator):
    """x (1, channels, S, S) or with `line` (1, channels, S), a window for every channel."""

    channels: int
    kernel: int
    line: bool = False

    def compose(self, p: Parameters, variant: str) -> Ports:
        channels, rank = self.channels // DIVISORS[variant], 1 if self.line else 2
        shape = (channels, 1, *[self.kernel] * rank)
        weight = p.declare("weight", shape, normal(shape, self.kernel ** (-rank / 2)))
        bias = p.declare("bias", (channels,), normal((channels,), 0.1))
        x = spox.argument(spox.Tensor(np.float32, (1, channels, *["S"] * rank)))
        window = {"kernel_shape": [self.kernel] * rank, "pads": [self.kernel // 2] * (2 * rank)}
        return {"x": x}, {"y": op.conv(x, weight, bias, group=channels, **window)}

    def floats(self, size: int) -> int:
        rank = 1 if self.line else 2
        return self.channels * (2 * size**rank + self.kernel**rank + 1)


@dataclass(frozen=True)
class Upsampling(Operator):
    """Transposed 2x2 convolution of stride 2: x (1, channels, S, S) becomes twice as large."""

    channels: int

    def compose(self, p: Parameters, variant: str) -> Ports:
        channels = self.channels // DIVISORS[variant]
        x = image(channels)
        return {"x": x}, {"y": conv_transpose(p, x, "up", (channels, channels), 2)}

    def floats(self, size: int) -> int:
        return self.channels * (5 * size**2 + 4 * self.channels + 1)


@dataclass(frozen=True)
class Pooling(Operator):
    """x (1, channels, S, S): the largest of a window, or without `kernel` the mean of everything."""

    channels: int
    kernel: int = 0
    stride: int = 1

    def compose(self, p: Parameters, variant: str) -> Ports:
        x = image(self.channels // DIVISORS[variant])
        if not self.kernel:
            return {"x": x}, {"y": op.global_average_pool(x)}
        window = {"kernel_shape": [self.kernel] * 2, "pads": [self.kernel // 2] * 4, "strides": [self.stride] * 2}
        return {"x": x}, {"y": op.max_pool(x, **window)[0]}

    def floats(self, size: int) -> int:
        out = -(-size // self.stride) if self.kernel else 1
        return self.channels * (size**2 + out**2)


@dataclass(frozen=True)
class Product(Operator):
    """x (1, S, inward) times a matrix (inward, outward)."""

    inward: int
    outward: int

    def compose(self, p: Parameters, variant: str) -> Ports:
        shape = (self.inward // DIVISORS[variant], self.outward // DIVISORS[variant])
        x = spox.argument(spox.Tensor(np.float32, (1, "S", shape[0])))
        return {"x": x}, {"y": op.matmul(x, p.declare("weight", shape, normal(shape, shape[0] ** -0.5)))}

    def floats(self, size: int) -> int:
        return size * (self.inward + self.outward) + self.inward * self.outward


@dataclass(frozen=True)
class Chain(Operator):
    """x (1, S) through so many softmaxes, which no engine merges."""

    steps: int

    def compose(self, p: Parameters, variant: str) -> Ports:
        x = spox.argument(spox.Tensor(np.float32, (1, "S")))
        y = x
        for _ in range(self.steps // DIVISORS[variant]):
            y = op.softmax(y, axis=1)
        return {"x": x}, {"y": y}

    def floats(self, size: int) -> int:
        return 2 * size


THREE, ONE, STRIDED = "3×3 convolution", "1×1 convolution", "Strided and transposed"
LIGHT, MATRIX, OVERHEAD = "Depthwise and pooling", "Matrix product", "Overhead"
OPERATORS: dict[str, Operator] = {
    "conv3x3-16": Convolution(THREE, 80, 160, 40, 16, 16, 3),
    "conv3x3-32": Convolution(THREE, 80, 160, 40, 32, 32, 3),
    "conv3x3-64": Convolution(THREE, 56, 160, 52, 64, 64, 3),
    "conv3x3-128": Convolution(THREE, 28, 112, 42, 128, 128, 3),
    "conv3x3-256": Convolution(THREE, 14, 56, 21, 256, 256, 3),
    "conv3x3-512": Convolution(THREE, 10, 28, 9, 512, 512, 3),
    "conv1x1-64-256": Convolution(ONE, 56, 160, 52, 64, 256, 1),
    "conv1x1-256-64": Convolution(ONE, 56, 160, 52, 256, 64, 1),
    "conv1x1-512-128": Convolution(ONE, 28, 80, 26, 512, 128, 1),
    "conv1x1-256-1024": Convolution(ONE, 14, 40, 13, 256, 1024, 1),
    "conv1x1-1024-256": Convolution(ONE, 14, 40, 13, 1024, 256, 1),
    "conv1x1-512-2048": Convolution(ONE, 7, 21, 7, 512, 2048, 1),
    "conv3x3s2-3-16": Convolution(STRIDED, 224, 640, 208, 3, 16, 3, 2),
    "conv7x7s2-3-64": Convolution(STRIDED, 224, 640, 208, 3, 64, 7, 2),
    "conv3x3s2-32-64": Convolution(STRIDED, 56, 160, 52, 32, 64, 3, 2),
    "conv3x3s2-128-256": Convolution(STRIDED, 14, 40, 13, 128, 256, 3, 2),
    "deconv2x2s2-64": Upsampling(STRIDED, 14, 40, 13, 64),
    "depthwise3x3-256": Depthwise(LIGHT, 14, 56, 21, 256, 3),
    "depthwise31-256": Depthwise(LIGHT, 32, 384, 176, 256, 31, line=True),
    "maxpool3x3s2-64": Pooling(LIGHT, 112, 320, 104, 64, 3, 2),
    "maxpool5x5-128": Pooling(LIGHT, 7, 21, 7, 128, 5),
    "meanpool-2048": Pooling(LIGHT, 7, 21, 7, 2048),
    "matmul-256-256": Product(MATRIX, 32, 384, 176, 256, 256),
    "matmul-256-1024": Product(MATRIX, 32, 384, 176, 256, 1024),
    "matmul-768-768": Product(MATRIX, 32, 384, 176, 768, 768),
    "matmul-768-3072": Product(MATRIX, 32, 384, 176, 768, 3072),
    "matmul-3072-768": Product(MATRIX, 32, 384, 176, 3072, 768),
    "matvec-2048-1000": Product(MATRIX, 1, 3, 1, 2048, 1000),
    "chain500": Chain(OVERHEAD, 8, 24, 8, 500),
}
