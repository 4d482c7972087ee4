"""Conformer-M: an encoder for speech whose blocks join attention and convolution, with a linear CTC head.

Inputs: `features` (1, T, 80) float32, normalised log-mel frames, and `length` int64 (1,), how many of them are speech.
Output: `log_probs` (1, T', 1000), T' = (T - 3) // 4: two strided convolutions without padding quarter the frames.
A block: half a feed-forward, relative attention, a convolution module (pointwise, gated, depthwise over 31 frames,
BatchNorm, pointwise), half a feed-forward, LayerNorm. Attention is Transformer-XL's: queries meet keys and, by a
second product, sinusoids of the distance, whose rows are shifted into place by Pad, Reshape and Slice.

BatchNorm statistics are calibrated and folded. T' is read once from the subsampled frames.
Source: the Conformer paper (size M, kernel 31 as in public code, vocabulary 1000 chosen here); written from its
description.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import spox
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models.blocks import (
    conv,
    conv_1d,
    dim,
    fold_batch_norm,
    integers,
    layer_norm,
    linear,
    project,
    scalar,
    silu,
    vector,
)
from models.parameters import Parameters, normal

MELS = 80
MASKED = -1e4
EPSILON = 1e-5


@dataclass(frozen=True)
class Config:
    """Sizes of the encoder."""

    blocks: int
    width: int
    heads: int
    kernel: int
    classes: int


CONFIGS = {
    "full": Config(16, 256, 4, 31, 1000),
    "tiny": Config(2, 32, 4, 7, 20),
}


class Run(NamedTuple):
    """What every block reads of the run; the last five are shapes."""

    steps: Var  # T', one element
    positions: Var  # sinusoids of the distances T' - 1 .. 1 - T', (1, 2 T' - 1, width)
    masked: Var  # (1, 1, 1, T'), true where the key is padding
    split: Var  # (1, T', heads, size)
    split_positions: Var  # (1, 2 T' - 1, heads, size)
    turned: Var  # (1, heads, 2 T', T')
    shifted: Var  # (1, heads, T', 2 T' - 1)
    join: Var  # (1, T', width)


def compose(p: Parameters, variant: str) -> tuple[dict[str, Var], dict[str, Var]]:
    """Inputs and outputs; the full encoder has 27,257,856 parameters, its head 256,000."""
    config = CONFIGS[variant]
    features = spox.argument(spox.Tensor(np.float32, (1, "T", MELS)))
    length = spox.argument(spox.Tensor(np.int64, (1,)))
    x, steps = _subsample(p, config, features)
    run = _prepare(config, steps, length)
    for block in range(config.blocks):
        x = _block(p, config, x, run, f"encoder.layers.{block}.sequential")
    logits = project(p, x, "fc.linear", (config.width, config.classes))
    return {"features": features, "length": length}, {"log_probs": op.log_softmax(logits, axis=-1)}


def _subsample(p: Parameters, config: Config, features: Var) -> tuple[Var, Var]:
    """Two 3x3 convolutions of stride 2 over (frames, mels), channels and mels joined: (1, T', width); and T'."""
    width = config.width
    x = op.unsqueeze(features, integers(1))
    for index, channels in ((0, (1, width)), (2, (width, width))):
        x = op.relu(conv(p, x, f"encoder.conv_subsample.sequential.{index}", channels, 3, stride=2, pads=[0] * 4))
    steps = dim(x, 2)
    bands = ((MELS - 1) // 2 - 1) // 2
    x = op.reshape(op.transpose(x, perm=[0, 2, 1, 3]), vector(1, steps, width * bands))
    return linear(p, x, "encoder.input_projection.0", (width * bands, width)), steps


def _prepare(config: Config, steps: Var, length: Var) -> Run:
    doubled = op.mul(steps, integers(2))
    distances = op.sub(doubled, integers(1))
    count = op.squeeze(steps, integers(0))
    one = op.const(np.int64(1))
    descending = op.range(op.sub(count, one), op.neg(count), op.const(np.int64(-1)))
    frequencies = np.exp(np.arange(0, config.width, 2) * -(math.log(10_000) / config.width)).astype(np.float32)
    angles = op.mul(op.unsqueeze(op.cast(descending, to=np.float32), integers(1)), op.const(frequencies))
    pairs = op.concat([op.unsqueeze(wave(angles), integers(2)) for wave in (op.sin, op.cos)], axis=2)
    positions = op.reshape(pairs, vector(1, distances, config.width))
    places = op.range(op.const(np.int64(0)), count, one)
    spoken = op.div(op.sub(length, integers(3)), integers(4))  # steps that remain of the frames of speech
    masked = op.unsqueeze(op.greater_or_equal(places, spoken), integers(0, 1, 2))
    heads, size = config.heads, config.width // config.heads
    return Run(
        steps,
        positions,
        masked,
        split=vector(1, steps, heads, size),
        split_positions=vector(1, distances, heads, size),
        turned=vector(1, heads, doubled, steps),
        shifted=vector(1, heads, steps, distances),
        join=vector(1, steps, config.width),
    )


def _block(p: Parameters, config: Config, x: Var, run: Run, name: str) -> Var:
    half = scalar(0.5)
    x = op.add(x, op.mul(_feed_forward(p, config, x, f"{name}.0.module.sequential"), half))
    x = op.add(x, _attention(p, config, x, run, f"{name}.1.module"))
    x = op.add(x, _convolution(p, config, x, f"{name}.2.module.sequential"))
    x = op.add(x, op.mul(_feed_forward(p, config, x, f"{name}.3.module.sequential"), half))
    return layer_norm(p, x, f"{name}.4", config.width, EPSILON)


def _feed_forward(p: Parameters, config: Config, x: Var, name: str) -> Var:
    width = config.width
    x = layer_norm(p, x, f"{name}.0", width, EPSILON)
    x = silu(linear(p, x, f"{name}.1.linear", (width, 4 * width)))
    return linear(p, x, f"{name}.4.linear", (4 * width, width))


def _attention(p: Parameters, config: Config, x: Var, run: Run, name: str) -> Var:
    """Relative multi-head attention of the normalised input, (1, T', width)."""
    width, heads = config.width, config.heads
    size = width // heads
    x = layer_norm(p, x, f"{name}.layer_norm", width, EPSILON)
    name = f"{name}.attention"
    query, key, value = (
        op.reshape(linear(p, x, f"{name}.{role}_proj.linear", (width, width)), run.split)
        for role in ("query", "key", "value")
    )
    positions = project(p, run.positions, f"{name}.pos_proj.linear", (width, width))
    positions = op.reshape(positions, run.split_positions)

    def scores(bias: str, other: Var) -> Var:
        offset = p.declare(f"{name}.{bias}", (heads, size), normal((heads, size), 0.1))
        shifted = op.transpose(op.add(query, offset), perm=[0, 2, 1, 3])
        return op.matmul(shifted, op.transpose(other, perm=[0, 2, 3, 1]))

    content = scores("u_bias", key)
    score = op.add(content, _shift(scores("v_bias", positions), run))
    score = op.where(run.masked, scalar(MASKED), op.div(score, scalar(math.sqrt(size))))
    mixed = op.matmul(op.softmax(score, axis=-1), op.transpose(value, perm=[0, 2, 1, 3]))
    joined = op.reshape(op.transpose(mixed, perm=[0, 2, 1, 3]), run.join)
    return linear(p, joined, f"{name}.out_proj.linear", (width, width))


def _shift(scores: Var, run: Run) -> Var:
    """From a column per distance to a column per key: row i of (T', 2 T' - 1) moves left by T' - 1 - i."""
    padded = op.pad(scores, integers(0, 0, 0, 1, 0, 0, 0, 0))
    turned = op.reshape(padded, run.turned)
    rows = op.slice(turned, integers(1), integers(np.iinfo(np.int64).max), integers(2))
    back = op.reshape(rows, run.shifted)
    return op.slice(back, integers(0), run.steps, integers(3))


def _convolution(p: Parameters, config: Config, x: Var, name: str) -> Var:
    """Pointwise to twice the width, gated back, depthwise along time, pointwise."""
    width, kernel = config.width, config.kernel
    x = op.transpose(layer_norm(p, x, f"{name}.0", width, EPSILON), perm=[0, 2, 1])
    value, gate = op.split(_pointwise(p, x, f"{name}.2.conv", (width, 2 * width)), num_outputs=2, axis=1)
    x = op.mul(value, op.sigmoid(gate))
    weights = fold_batch_norm(p, (f"{name}.4.conv", f"{name}.5"), (width, 1, kernel))
    x = silu(conv_1d(x, *weights, kernel, groups=width))
    return op.transpose(_pointwise(p, x, f"{name}.7.conv", (width, width)), perm=[0, 2, 1])


def _pointwise(p: Parameters, x: Var, name: str, channels: tuple[int, int]) -> Var:
    shape = (channels[1], channels[0], 1)
    weight = p.declare(f"{name}.weight", shape, normal(shape, 1 / math.sqrt(channels[0])))
    return conv_1d(x, weight, p.declare(f"{name}.bias", channels[1:], normal(channels[1:], 0.1)), 1)
