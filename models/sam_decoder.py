"""The prompt encoder and mask decoder of SegmentAnything.

A point becomes a code of random Fourier features plus a learned vector by its label; the selection by label is
arithmetic. Learned tokens for the score and the four masks are joined with the points and pass, against the picture's
features, through a two-way transformer of two layers. The features are upscaled four times, each mask token becomes by
a small network the vector whose product with them is a mask, and masks are resized to the picture (bilinear).

No mask prompt: one learned vector stands for it everywhere. Source: as models/sam.py.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models.blocks import channel_norm, conv_transpose, dim, gelu, gemm, integers, layer_norm, linear, scalar, vector
from models.parameters import Parameters, normal

MASKS = 4
LAYERS = 2
EPSILON = 1e-5
UPSCALING = 4


@dataclass(frozen=True)
class Config:
    """Width, heads, and inner width of the feed-forward."""

    width: int
    heads: int
    feed_forward: int


class Side(NamedTuple):
    """Tokens or picture in the two-way transformer: values and their position code, (1, n, width)."""

    values: Var
    code: Var

    def coded(self) -> Var:
        """Values with positions."""
        return op.add(self.values, self.code)


def decode(p: Parameters, config: Config, features: Var, points: tuple[Var, Var], images: Var) -> tuple[Var, Var]:
    """Masks (1, 4, H, W) at the size of `images`, and scores (1, 4), from features (1, width, h, w) and points."""
    width = config.width
    size = op.shape(images, start=2)
    cells = (dim(features, 2), dim(features, 3))
    frequencies = _frequencies(p, config)
    prompt = _prompt(p, config, points, frequencies, size)
    learned = [
        p.declare(f"mask_decoder.{name}.weight", (count, width), normal((count, width), 1.0))
        for name, count in (("iou_token", 1), ("mask_tokens", MASKS))
    ]
    tokens = op.concat([op.unsqueeze(op.concat(learned, axis=0), integers(0)), prompt], axis=1)
    no_mask = p.declare("prompt_encoder.no_mask_embed.weight", (1, width), normal((1, width), 0.5))
    dense = op.expand(op.reshape(no_mask, integers(1, width, 1, 1)), vector(1, width, *cells))
    picture = Side(_flatten(op.add(features, dense), width), _grid_code(frequencies, cells))
    hidden, keys = _two_way(p, config, Side(tokens, tokens), picture)
    upscaled = _upscale(p, config, op.reshape(op.transpose(keys, perm=[0, 2, 1]), vector(1, width, *cells)))
    masks = op.matmul(_mask_vectors(p, config, hidden), op.reshape(upscaled, integers(1, width // 8, -1)))
    low = op.reshape(masks, vector(1, MASKS, *(op.mul(cell, integers(UPSCALING)) for cell in cells)))
    resized = op.resize(low, None, None, op.concat([integers(1, MASKS), size], axis=0), mode="linear")
    return resized, _network(p, _token(hidden, 0), "mask_decoder.iou_prediction_head", (width, width, MASKS))


def _frequencies(p: Parameters, config: Config) -> Var:
    """The fixed random matrix (2, width / 2) of the position code."""
    name = "prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"
    shape = (2, config.width // 2)
    p.buffers[name] = shape
    return p.derive(name, shape, lambda: p.draw(name, normal(shape, 1.0)))


def _code(places: Var, frequencies: Var) -> Var:
    """Position code (..., width) of places (..., 2) in 0..1."""
    centred = op.sub(op.mul(places, scalar(2.0)), scalar(1.0))
    angles = op.mul(op.matmul(centred, frequencies), scalar(2 * math.pi))
    return op.concat([op.sin(angles), op.cos(angles)], axis=-1)


def _prompt(p: Parameters, config: Config, points: tuple[Var, Var], frequencies: Var, size: Var) -> Var:
    """Tokens of the points, (1, points, width)."""
    coords, labels = points
    breadth_first = op.cast(op.gather(size, integers(1, 0)), to=np.float32)
    code = _code(op.div(op.add(coords, scalar(0.5)), breadth_first), frequencies)

    def labelled(value: float) -> Var:
        return op.unsqueeze(op.cast(op.equal(labels, scalar(value)), to=np.float32), integers(2))

    padding = labelled(-1.0)
    prompt = op.mul(code, op.sub(scalar(1.0), padding))
    names = (
        ("not_a_point_embed", padding),
        ("point_embeddings.0", labelled(0.0)),
        ("point_embeddings.1", labelled(1.0)),
    )
    for name, selected in names:
        shape = (1, config.width)
        vector_of_label = p.declare(f"prompt_encoder.{name}.weight", shape, normal(shape, 1.0))
        prompt = op.add(prompt, op.mul(selected, vector_of_label))
    return prompt


def _grid_code(frequencies: Var, cells: tuple[Var, Var]) -> Var:
    """Position code of every cell's centre, (1, h w, width)."""
    grid = vector(*cells)
    axes = []
    for cell, line in zip(reversed(cells), (integers(1, -1), integers(-1, 1)), strict=True):
        steps = op.range(op.const(np.int64(0)), op.squeeze(cell, integers(0)), op.const(np.int64(1)))
        centres = op.div(op.add(op.cast(steps, to=np.float32), scalar(0.5)), op.cast(cell, to=np.float32))
        axes.append(op.unsqueeze(op.expand(op.reshape(centres, line), grid), integers(2)))
    code = _code(op.concat(axes, axis=2), frequencies)
    width = 2 * frequencies.unwrap_tensor().shape[1]  # type: ignore[index, operator]
    return _flatten(op.unsqueeze(op.transpose(code, perm=[2, 0, 1]), integers(0)), width)


def _flatten(x: Var, width: int) -> Var:
    """(1, width, h, w) to (1, h w, width)."""
    return op.transpose(op.reshape(x, integers(1, width, -1)), perm=[0, 2, 1])


def _two_way(p: Parameters, config: Config, tokens: Side, picture: Side) -> tuple[Var, Var]:
    """The two-way transformer: tokens and picture after it, (1, n, width) each."""
    width = config.width
    for layer in range(LAYERS):
        name = f"mask_decoder.transformer.layers.{layer}"

        def norm(x: Var, number: int, name: str = name) -> Var:
            return layer_norm(p, x, f"{name}.norm{number}", width, EPSILON)

        if layer == 0:  # without positions and residual
            x = _attention(p, config, f"{name}.self_attn", (tokens.values,) * 3, width)
        else:
            coded = tokens.coded()
            attended = _attention(p, config, f"{name}.self_attn", (coded, coded, tokens.values), width)
            x = op.add(tokens.values, attended)
        tokens = tokens._replace(values=norm(x, 1))
        x = _to_picture(p, config, f"{name}.cross_attn_token_to_image", tokens, picture)
        tokens = tokens._replace(values=norm(x, 2))
        hidden = op.relu(linear(p, tokens.values, f"{name}.mlp.lin1", (width, config.feed_forward)))
        x = op.add(tokens.values, linear(p, hidden, f"{name}.mlp.lin2", (config.feed_forward, width)))
        tokens = tokens._replace(values=norm(x, 3))
        sides = (picture.coded(), tokens.coded(), tokens.values)
        attended = _attention(p, config, f"{name}.cross_attn_image_to_token", sides, width // 2)
        picture = picture._replace(values=norm(op.add(picture.values, attended), 4))
    x = _to_picture(p, config, "mask_decoder.transformer.final_attn_token_to_image", tokens, picture)
    return layer_norm(p, x, "mask_decoder.transformer.norm_final_attn", width, EPSILON), picture.values


def _to_picture(p: Parameters, config: Config, name: str, tokens: Side, picture: Side) -> Var:
    """Tokens that attend to the picture, with residual."""
    sides = (tokens.coded(), picture.coded(), picture.values)
    return op.add(tokens.values, _attention(p, config, name, sides, config.width // 2))


def _attention(p: Parameters, config: Config, name: str, sides: tuple[Var, Var, Var], inner: int) -> Var:
    """Multi-head attention of queries, keys, values (1, n, width) in an inner width."""
    width, heads = config.width, config.heads
    size = inner // heads
    query, key, value = (
        op.transpose(
            op.reshape(linear(p, x, f"{name}.{role}_proj", (width, inner)), integers(1, -1, heads, size)),
            perm=[0, 2, 1, 3],
        )
        for role, x in zip("qkv", sides, strict=True)
    )
    scores = op.div(op.matmul(query, op.transpose(key, perm=[0, 1, 3, 2])), scalar(math.sqrt(size)))
    mixed = op.transpose(op.matmul(op.softmax(scores, axis=-1), value), perm=[0, 2, 1, 3])
    return linear(p, op.reshape(mixed, integers(1, -1, inner)), f"{name}.out_proj", (inner, width))


def _upscale(p: Parameters, config: Config, x: Var) -> Var:
    """Two transposed convolutions: (1, width, h, w) to (1, width / 8, 4 h, 4 w)."""
    width = config.width
    x = conv_transpose(p, x, "mask_decoder.output_upscaling.0", (width, width // 4), 2)
    x = gelu(channel_norm(p, x, "mask_decoder.output_upscaling.1", width // 4, 1e-6))
    return gelu(conv_transpose(p, x, "mask_decoder.output_upscaling.3", (width // 4, width // 8), 2))


def _token(hidden: Var, index: int) -> Var:
    """One token as a row, (1, width)."""
    return op.gather(hidden, op.const(np.int64(index)), axis=1)


def _mask_vectors(p: Parameters, config: Config, hidden: Var) -> Var:
    """What each mask token makes of the upscaled features: (1, 4, width / 8)."""
    width = config.width
    rows = [
        _network(
            p,
            _token(hidden, 1 + mask),
            f"mask_decoder.output_hypernetworks_mlps.{mask}",
            (width, width, width // 8),
        )
        for mask in range(MASKS)
    ]
    return op.concat([op.unsqueeze(row, integers(1)) for row in rows], axis=1)


def _network(p: Parameters, x: Var, name: str, widths: tuple[int, int, int]) -> Var:
    """Three dense layers on a row: inward, hidden, outward."""
    inward, hidden, outward = widths
    x = op.relu(gemm(p, x, f"{name}.layers.0", (inward, hidden)))
    x = op.relu(gemm(p, x, f"{name}.layers.1", (hidden, hidden)))
    return gemm(p, x, f"{name}.layers.2", (hidden, outward))
