"""Layers shared by the models, composed with spox at opset 18.

Each function adds the ONNX nodes that a PyTorch exporter writes for the layer, with weights declared under the
checkpoint's names. Random weights are scaled by fan-in so that activations stay of order one at any depth.
"""

import math
from collections.abc import Sequence

import numpy as np
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models.parameters import Folding, Parameters, normal
from models.statistics import channel_statistics


def integers(*values: int) -> Var:
    """A constant int64 vector."""
    return op.const(np.array(values, dtype=np.int64))


def scalar(value: float) -> Var:
    """A constant float32 scalar."""
    return op.const(np.float32(value))


def conv(
    p: Parameters,
    x: Var,
    name: str,
    channels: tuple[int, int],
    kernel: int,
    *,
    stride: int = 1,
    pads: Sequence[int] | None = None,
    bias: float = 0.0,
) -> Var:
    """Convolution with bias, `channels` = (in, out), zero padding kernel // 2 or as given (top, left, bottom, right).

    Random weights keep the variance through a ReLU; `bias` is the mean of the random biases.
    """
    inward, outward = channels
    shape = (outward, inward, kernel, kernel)
    weight = p.declare(f"{name}.weight", shape, normal(shape, math.sqrt(2 / (inward * kernel * kernel))))
    offset = p.declare(f"{name}.bias", (outward,), normal((outward,), 0.05, bias))
    return convolve(x, weight, offset, kernel, stride=stride, pads=pads)


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
    p: Parameters,
    x: Var,
    names: tuple[str, str],
    channels: tuple[int, int],
    kernel: int,
    *,
    stride: int = 1,
    biased: bool = False,
) -> Var:
    """Convolution and BatchNorm, `names` = (conv, bn), exported as one convolution with the BatchNorm folded in."""
    inward, outward = channels
    weight, bias = fold_batch_norm(p, names, (outward, inward, kernel, kernel), biased=biased)
    return convolve(x, weight, bias, kernel, stride=stride)


def fold_batch_norm(
    p: Parameters, names: tuple[str, str], shape: tuple[int, ...], *, biased: bool = False
) -> tuple[Var, Var]:
    """Weight (out, in / groups, ...) and bias of a convolution with its BatchNorm folded in, `names` = (conv, bn).

    The running statistics are the calibrated vectors `<bn>.mean` and `<bn>.std` (the root of variance + epsilon).
    """
    conv_name, bn_name = names
    width = shape[:1]
    for name, extent in ((f"{conv_name}.weight", shape), (f"{bn_name}.weight", width), (f"{bn_name}.bias", width)):
        p.reserve(name, extent)
    p.buffers |= {f"{bn_name}.running_mean": width, f"{bn_name}.running_var": width}
    if biased:
        p.reserve(f"{conv_name}.bias", width)

    def affine() -> tuple[np.ndarray, np.ndarray]:
        mean, std = p.statistics(bn_name)
        gain = p.draw(f"{bn_name}.weight", normal(width, 0.1, 1.0)) / std
        return gain, p.draw(f"{bn_name}.bias", normal(width, 0.1)) - mean * gain

    folding = Folding(
        weight=lambda: p.draw(f"{conv_name}.weight", normal(shape, 1 / math.sqrt(math.prod(shape[1:])))),
        bias=(lambda: p.draw(f"{conv_name}.bias", normal(width, 0.1))) if biased else None,
        measure=lambda batch: dict(zip((f"{bn_name}.mean", f"{bn_name}.std"), channel_statistics(batch), strict=True)),
        affine=affine,
    )
    return p.fold(conv_name, shape, folding)


def convolve(x: Var, weight: Var, bias: Var, kernel: int, *, stride: int = 1, pads: Sequence[int] | None = None) -> Var:
    """Convolution by a given weight (out, in, kernel, kernel), zero padding kernel // 2 or as given."""
    return op.conv(
        x,
        weight,
        bias,
        dilations=[1, 1],
        group=1,
        kernel_shape=[kernel, kernel],
        pads=[kernel // 2] * 4 if pads is None else pads,
        strides=[stride, stride],
    )


def conv_1d(x: Var, weight: Var, bias: Var, kernel: int, groups: int = 1) -> Var:
    """Convolution of (1, channels, T) by a given weight (out, in / groups, kernel), zero padding kernel // 2."""
    return op.conv(
        x,
        weight,
        bias,
        dilations=[1],
        group=groups,
        kernel_shape=[kernel],
        pads=[kernel // 2] * 2,
        strides=[1],
    )


def linear(p: Parameters, x: Var, name: str, features: tuple[int, int]) -> Var:
    """Dense layer on the last axis of a tensor of rank above two: MatMul, then Add of the bias."""
    inward, outward = features
    weight = p.declare(f"{name}.weight", features, normal(features, 1 / math.sqrt(inward)), transposed=True)
    bias = p.declare(f"{name}.bias", (outward,), normal((outward,), 0.1))
    return op.add(op.matmul(x, weight), bias)


def gemm(p: Parameters, x: Var, name: str, features: tuple[int, int], *, gain: float = 1.0) -> Var:
    """Dense layer on a matrix: one Gemm with the weight as the checkpoint has it, (out, in).

    Random weights multiply the deviation of the features by `gain`.
    """
    inward, outward = features
    shape = (outward, inward)
    weight = p.declare(f"{name}.weight", shape, normal(shape, gain / math.sqrt(inward)))
    bias = p.declare(f"{name}.bias", (outward,), normal((outward,), 0.1))
    return op.gemm(x, weight, bias, transB=1)


def project(p: Parameters, x: Var, name: str, features: tuple[int, int]) -> Var:
    """Dense layer without bias: one MatMul."""
    inward, _ = features
    weight = p.declare(f"{name}.weight", features, normal(features, 1 / math.sqrt(inward)), transposed=True)
    return op.matmul(x, weight)


def layer_norm(p: Parameters, x: Var, name: str, width: int, epsilon: float) -> Var:
    """LayerNormalization over the last axis."""
    weight = p.declare(f"{name}.weight", (width,), normal((width,), 0.1, 1.0))
    bias = p.declare(f"{name}.bias", (width,), normal((width,), 0.1))
    return op.layer_normalization(x, weight, bias, axis=-1, epsilon=epsilon)[0]


def group_norm(p: Parameters, x: Var, name: str, width: int, *, groups: int, epsilon: float) -> Var:
    """GroupNorm of (1, C, H, W) as exported at opset 18: InstanceNormalization over the groups, then the affine."""
    grouped = op.reshape(x, integers(0, groups, -1))
    ones, zeros = (op.const(np.full(groups, value, np.float32)) for value in (1, 0))
    y = op.reshape(op.instance_normalization(grouped, ones, zeros, epsilon=epsilon), op.shape(x))
    for kind, mean, apply in (("weight", 1.0, op.mul), ("bias", 0.0, op.add)):
        y = apply(y, channel_vector(p, f"{name}.{kind}", width, mean))
    return y


def channel_vector(p: Parameters, name: str, width: int, mean: float) -> Var:
    """A parameter per channel, (width,) in the checkpoint, in the shape (width, 1, 1) that broadcasts over a map."""
    p.reserve(name, (width,))
    return p.derive(name, (width, 1, 1), lambda: p.draw(name, normal((width,), 0.1, mean)))


def channel_norm(p: Parameters, x: Var, name: str, width: int, epsilon: float) -> Var:
    """Normalisation over the channels of (1, C, H, W), written out as an exporter does."""
    centred = op.sub(x, op.reduce_mean(x, integers(1), keepdims=1))
    variance = op.reduce_mean(op.pow(centred, scalar(2.0)), integers(1), keepdims=1)
    y = op.div(centred, op.sqrt(op.add(variance, scalar(epsilon))))
    y = op.mul(y, channel_vector(p, f"{name}.weight", width, 1.0))
    return op.add(y, channel_vector(p, f"{name}.bias", width, 0.0))


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
    constants = [part for part in parts if isinstance(part, int)]
    if len(constants) == len(parts):
        return integers(*constants)
    return op.concat([integers(part) if isinstance(part, int) else part for part in parts], axis=0)
