"""The encoder of Stable Diffusion 1.x: the KL-autoencoder's half that maps a picture to its latent.

Input: `images` (1, 3, H, W), RGB in -1..1, H and W at least 32. Output: `mean` (1, 4, H // 8, W // 8), the mean of the
latent's distribution; its log-variance, which the deterministic encoding does not use, is cut off. Four levels of
residual blocks (GroupNorm, SiLU, 3x3 convolution, twice), strided convolutions between them that pad right and bottom
only, and a middle with one single-head attention over all positions.

Nodes are those of the PyTorch export: GroupNorm becomes InstanceNormalization between two Reshapes, attention is
written with matrix products. Source: the published configuration of the autoencoder; written from its description.
"""

from dataclasses import dataclass

import numpy as np
import spox
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models.blocks import conv, dim, group_norm, integers, linear, scalar, silu, vector
from models.parameters import Parameters

EPSILON = 1e-6
LATENT = 4


@dataclass(frozen=True)
class Config:
    """Channels and residual blocks per level, and groups of the normalisations."""

    channels: tuple[int, int, int, int]
    blocks: int
    groups: int


CONFIGS = {
    "full": Config((128, 256, 512, 512), 2, 32),
    "tiny": Config((16, 16, 32, 32), 1, 8),
}


def compose(p: Parameters, variant: str) -> tuple[dict[str, Var], dict[str, Var]]:
    """Inputs and outputs; the full encoder has 34,163,592 parameters, the quantising convolution 72."""
    config = CONFIGS[variant]
    images = spox.argument(spox.Tensor(np.float32, (1, 3, "H", "W")))
    width = config.channels[0]
    x = conv(p, images, "encoder.conv_in", (3, width), 3)
    for level, outward in enumerate(config.channels):
        name = f"encoder.down_blocks.{level}"
        for index in range(config.blocks):
            x = _residual(p, config, x, f"{name}.resnets.{index}", (width, outward))
            width = outward
        if level < len(config.channels) - 1:
            downsampler = f"{name}.downsamplers.0.conv"
            x = conv(p, x, downsampler, (width, width), 3, stride=2, pads=[0, 0, 1, 1])
    x = _residual(p, config, x, "encoder.mid_block.resnets.0", (width, width))
    x = _attention(p, config, x, "encoder.mid_block.attentions.0", width)
    x = _residual(p, config, x, "encoder.mid_block.resnets.1", (width, width))
    x = silu(group_norm(p, x, "encoder.conv_norm_out", width, groups=config.groups, epsilon=EPSILON))
    moments = conv(p, x, "encoder.conv_out", (width, 2 * LATENT), 3)
    moments = conv(p, moments, "quant_conv", (2 * LATENT, 2 * LATENT), 1)
    return {"images": images}, {"mean": op.slice(moments, integers(0), integers(LATENT), integers(1))}


def _residual(p: Parameters, config: Config, x: Var, name: str, channels: tuple[int, int]) -> Var:
    """Two normalised convolutions beside the identity, or beside a 1x1 convolution where the width changes."""
    inward, outward = channels
    y = silu(group_norm(p, x, f"{name}.norm1", inward, groups=config.groups, epsilon=EPSILON))
    y = conv(p, y, f"{name}.conv1", channels, 3)
    y = silu(group_norm(p, y, f"{name}.norm2", outward, groups=config.groups, epsilon=EPSILON))
    y = conv(p, y, f"{name}.conv2", (outward, outward), 3)
    if inward != outward:
        x = conv(p, x, f"{name}.conv_shortcut", channels, 1)
    return op.add(x, y)


def _attention(p: Parameters, config: Config, x: Var, name: str, width: int) -> Var:
    """One head over all positions of the map, with its residual."""
    height, breadth = dim(x, 2), dim(x, 3)
    normed = group_norm(p, x, f"{name}.group_norm", width, groups=config.groups, epsilon=EPSILON)
    tokens = op.transpose(op.reshape(normed, integers(1, width, -1)), perm=[0, 2, 1])

    def head(role: str) -> Var:
        projected = op.reshape(linear(p, tokens, f"{name}.{role}", (width, width)), integers(1, -1, 1, width))
        return op.transpose(projected, perm=[0, 2, 1, 3])

    scale = scalar(width**-0.25)  # on both factors, as the exporter writes it
    query, key, value = (head(role) for role in ("to_q", "to_k", "to_v"))
    scores = op.matmul(op.mul(query, scale), op.mul(op.transpose(key, perm=[0, 1, 3, 2]), scale))
    mixed = op.transpose(op.matmul(op.softmax(scores, axis=-1), value), perm=[0, 2, 1, 3])
    joined = linear(p, op.reshape(mixed, integers(1, -1, width)), f"{name}.to_out.0", (width, width))
    back = op.reshape(op.transpose(joined, perm=[0, 2, 1]), vector(1, width, height, breadth))
    return op.add(back, x)
