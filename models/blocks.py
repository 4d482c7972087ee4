"""Layers shared by the models, composed with spox at opset 18.

Each function adds the ONNX nodes that a PyTorch exporter writes for the layer, with weights declared under the
checkpoint's names. Random weights are scaled by fan-in so that activations stay of order one at any depth.
"""

import math

import numpy as np
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models.parameters import Parameters, normal

BATCH_NORM_EPSILON = 1e-5


def integers(*values: int) -> Var:
    """A constant int64 vector."""
    return op.const(np.array(values, dtype=np.int64))


def scalar(value: float) -> Var:
    """A constant float32 scalar."""
    return op.const(np.float32(value))


def conv(
    p: Parameters, x: Var, name: str, channels: tuple[int, int], kernel: int, *, stride: int = 1, bias: float = 0.0
) -> Var:
    """Convolution with bias, `channels` = (in, out), zero padding kernel // 2; keeps the variance through a ReLU.

    `bias` is the mean of the random biases.
    """
    inward, outward = channels
    shape = (outward, inward, kernel, kernel)
    weight = p.declare(f"{name}.weight", shape, normal(shape, math.sqrt(2 / (inward * kernel * kernel))))
    offset = p.declare(f"{name}.bias", (outward,), normal((outward,), 0.05, bias))
    return convolve(x, weight, offset, kernel, stride=stride)


def conv_transpose(p: Parameters, x: Var, name: str, channels: tuple[int, int], kernel: int) -> Var:
    """Transposed convolution with bias whose stride equals its kernel, so that output windows don't overlap."""
    inward, outward = channels
    shape = (inward, outward, kernel, kernel)
    weight = p.declare(f"{name}.weight", shape, normal(shape, 1 / math.sqrt(inward)))
    bias = p.declare(f"{name}.bias", (outward,), normal((outward,), 0.05))
    return op.conv_transpose(
        x,
        weight,
        bias,
        dilations=[1, 1],
        group=1,
        kernel_shape=[kernel, kernel],
        pads=[0, 0, 0, 0],
        strides=[kernel, kernel],
    )


def conv_bn(
    p: Parameters, x: Var, names: tuple[str, str], channels: tuple[int, int], kernel: int, *, stride: int = 1
) -> Var:
    """Convolution and BatchNorm, `names` = (conv, bn), exported as one convolution with the BatchNorm folded in.

    The running statistics are the calibrated vectors `<bn>.mean` and `<bn>.std` (the root of variance + epsilon).
    """
    conv_name, bn_name = names
    inward, outward = channels
    shape = (outward, inward, kernel, kernel)
    p.reserve(f"{conv_name}.weight", shape)
    p.reserve(f"{bn_name}.weight", (outward,))
    p.reserve(f"{bn_name}.bias", (outward,))

    def gain() -> np.ndarray:
        return p.draw(f"{bn_name}.weight", normal((outward,), 0.1, 1.0)) / p.calibration[f"{bn_name}.std"]

    def folded_weight() -> np.ndarray:
        return bare_weight(p, conv_name, channels, kernel) * gain()[:, None, None, None]

    def folded_bias() -> np.ndarray:
        return p.draw(f"{bn_name}.bias", normal((outward,), 0.1)) - p.calibration[f"{bn_name}.mean"] * gain()

    weight = p.derive(f"{conv_name}.weight", shape, folded_weight)
    bias = p.derive(f"{conv_name}.bias", (outward,), folded_bias)
    return convolve(x, weight, bias, kernel, stride=stride)


def bare_weight(p: Parameters, name: str, channels: tuple[int, int], kernel: int) -> np.ndarray:
    """The weight (out, in, kernel, kernel) of a convolution before its BatchNorm is folded in."""
    inward, outward = channels
    return p.draw(f"{name}.weight", normal((outward, inward, kernel, kernel), 1 / math.sqrt(inward * kernel * kernel)))


def convolve(x: Var, weight: Var, bias: Var, kernel: int, *, stride: int = 1) -> Var:
    """Convolution by a given weight (out, in, kernel, kernel), zero padding kernel // 2."""
    return op.conv(
        x,
        weight,
        bias,
        dilations=[1, 1],
        group=1,
        kernel_shape=[kernel, kernel],
        pads=[kernel // 2] * 4,
        strides=[stride, stride],
    )


def linear(p: Parameters, x: Var, name: str, features: tuple[int, int]) -> Var:
    """Dense layer on the last axis of a tensor of rank above two: MatMul, then Add of the bias."""
    inward, outward = features
    weight = p.declare(f"{name}.weight", features, normal(features, 1 / math.sqrt(inward)))
    bias = p.declare(f"{name}.bias", (outward,), normal((outward,), 0.1))
    return op.add(op.matmul(x, weight), bias)


def gemm(p: Parameters, x: Var, name: str, features: tuple[int, int]) -> Var:
    """Dense layer on a matrix: one Gemm with the weight as the checkpoint has it, (out, in)."""
    inward, outward = features
    shape = (outward, inward)
    weight = p.declare(f"{name}.weight", shape, normal(shape, 1 / math.sqrt(inward)))
    bias = p.declare(f"{name}.bias", (outward,), normal((outward,), 0.1))
    return op.gemm(x, weight, bias, transB=1)


def layer_norm(p: Parameters, x: Var, name: str, width: int, epsilon: float) -> Var:
    """LayerNormalization over the last axis."""
    weight = p.declare(f"{name}.weight", (width,), normal((width,), 0.1, 1.0))
    bias = p.declare(f"{name}.bias", (width,), normal((width,), 0.1))
    return op.layer_normalization(x, weight, bias, axis=-1, epsilon=epsilon)[0]


def gelu(x: Var) -> Var:
    """Exact GELU, the five nodes of an export: x * (1 + erf(x / sqrt 2)) * 0.5."""
    shifted = op.add(op.erf(op.div(x, scalar(math.sqrt(2)))), scalar(1.0))
    return op.mul(op.mul(x, shifted), scalar(0.5))


def silu(x: Var) -> Var:
    """x * sigmoid(x)."""
    return op.mul(x, op.sigmoid(x))


def global_mean(x: Var) -> Var:
    """Mean over height and width, kept as (1, C, 1, 1)."""
    return op.reduce_mean(x, integers(2, 3), keepdims=1)


def dim(x: Var, axis: int) -> Var:
    """The run-time length of one axis of x, as an int64 vector of one element."""
    return op.shape(x, start=axis, end=axis + 1)


def vector(*parts: Var | int) -> Var:
    """A shape vector from run-time lengths (one-element vectors) and constants, for Reshape and Expand."""
    return op.concat([integers(part) if isinstance(part, int) else part for part in parts], axis=0)
