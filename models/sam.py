"""SegmentAnything: the ViT-B picture encoder, and the decoder that makes masks from one point.

Inputs: `images` (1, 3, H, W), ImageNet-normalised RGB, used at its own size (H and W multiples of 16, up to 1024);
`point_coords` (1, 2, 2), pixel coordinates (x, y) of a point and of a padding point, and `point_labels` (1, 2): 1
foreground, 0 background, -1 padding. Outputs: `masks` (1, 4, H, W), logits, and `iou_predictions` (1, 4).

This module is the encoder: patches of 16x16, a position table resized (bicubic) from 64x64 cells to the picture's, and
transformer blocks that attend within windows of 14x14 cells, padded and cropped again, or, four of them, over the whole
picture. Attention adds two decomposed relative-position terms, whose tables are interpolated where the extent is not
their own. Nothing depends on sizes in Python: padding, interpolation and cropping are always in the graph, as they are
in an export with symbolic sizes. The decoder is in models/sam_decoder.py.

Source: the SegmentAnything paper and the published sizes of ViT-B; position table and prompt are choices made here.
Written from the description of the architecture.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import spox
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models import sam_decoder
from models.blocks import channel_norm, conv, dim, gelu, integers, layer_norm, linear, scalar, vector
from models.parameters import Parameters, normal

EPSILON = 1e-6
PATCH = 16


@dataclass(frozen=True)
class Config:
    """Sizes of encoder and decoder; `whole` are the blocks with attention over the whole picture."""

    width: int
    depth: int
    heads: int
    whole: tuple[int, ...]
    table: int
    window: int
    decoder: sam_decoder.Config


CONFIGS = {
    "full": Config(768, 12, 12, (2, 5, 8, 11), 64, 14, sam_decoder.Config(256, 8, 2048)),
    "tiny": Config(48, 4, 3, (1, 3), 16, 4, sam_decoder.Config(32, 4, 64)),
}


class Extent(NamedTuple):
    """One axis of the picture in cells: its length, and for its relative positions the rows to interpolate between."""

    cells: Var
    lower: Var
    upper: Var
    share: Var
    relative: Var


class Maps(NamedTuple):
    """Shapes in the attention over maps of h x w cells, for any number of maps and heads."""

    qkv: Var  # (-1, h w, 3, heads, size)
    parts: Var  # (3, -1, h w, size)
    places: Var  # (-1, h, w, size)
    pairs: Var  # (-1, h, w, h, w)
    scores: Var  # (-1, h w, h w)
    heads: Var  # (-1, heads, h, w, size)
    joined: Var  # (-1, h, w, width)


class Windows(NamedTuple):
    """How a picture is cut into windows: padding, and the shapes on the way there and back."""

    pads: Var
    split: Var  # (1, rows, side, columns, side, width)
    joined: Var  # (1, rows, columns, side, side, width)
    padded: Var  # (1, rows side, columns side, width)


class Picture(NamedTuple):
    """What all blocks read of the picture's size."""

    axes: tuple[Extent, Extent]
    windows: Windows
    whole_maps: Maps
    window_maps: Maps


def compose(p: Parameters, variant: str) -> tuple[dict[str, Var], dict[str, Var]]:
    """Inputs and outputs; the full encoder has 89,670,912 parameters, the decoder 4,059,364."""
    config = CONFIGS[variant]
    images = spox.argument(spox.Tensor(np.float32, (1, 3, "H", "W")))
    coords = spox.argument(spox.Tensor(np.float32, (1, 2, 2)))
    labels = spox.argument(spox.Tensor(np.float32, (1, 2)))
    features = _encode(p, config, images)
    masks, scores = sam_decoder.decode(p, config.decoder, features, (coords, labels), images)
    inputs = {"images": images, "point_coords": coords, "point_labels": labels}
    return inputs, {"masks": masks, "iou_predictions": scores}


def _encode(p: Parameters, config: Config, images: Var) -> Var:
    """Picture to features (1, decoder width, h, w)."""
    name = "image_encoder"
    width = config.width
    x = conv(p, images, f"{name}.patch_embed.proj", (3, width), PATCH, stride=PATCH, pads=[0] * 4)
    x = op.transpose(x, perm=[0, 2, 3, 1])
    height, breadth = dim(x, 1), dim(x, 2)
    x = op.add(x, _position_table(p, config, height, breadth))
    picture = Picture(
        axes=(_extent(config, height), _extent(config, breadth)),
        windows=_windows(config, (height, breadth)),
        whole_maps=_maps(config, height, breadth, op.mul(height, breadth)),
        window_maps=_maps(config, config.window, config.window, config.window**2),
    )
    for index in range(config.depth):
        x = _block(p, config, x, picture, index)
    neck = op.transpose(x, perm=[0, 3, 1, 2])
    channels = (width, config.decoder.width)
    for index, kernel in ((0, 1), (2, 3)):
        shape = (channels[1], channels[0], kernel, kernel)
        weight = p.declare(f"{name}.neck.{index}.weight", shape, normal(shape, (channels[0] * kernel**2) ** -0.5))
        neck = op.conv(neck, weight, kernel_shape=[kernel, kernel], pads=[kernel // 2] * 4)
        neck = channel_norm(p, neck, f"{name}.neck.{index + 1}", channels[1], EPSILON)
        channels = (channels[1], channels[1])
    return neck


def _position_table(p: Parameters, config: Config, height: Var, breadth: Var) -> Var:
    """The table of absolute positions at the picture's size, (1, h, w, width)."""
    shape = (1, config.table, config.table, config.width)
    table = op.transpose(p.declare("image_encoder.pos_embed", shape, normal(shape, 0.5)), perm=[0, 3, 1, 2])
    resized = op.resize(table, None, None, vector(1, config.width, height, breadth), mode="cubic", cubic_coeff_a=-0.75)
    return op.transpose(resized, perm=[0, 2, 3, 1])


def _extent(config: Config, cells: Var) -> Extent:
    """How 2 n - 1 relative positions of an axis of n cells lie between the rows of a table (corners not aligned)."""
    rows = 2 * config.table - 1
    length, one = op.squeeze(cells, integers(0)), op.const(np.int64(1))
    count = op.sub(op.add(length, length), one)
    ratio = op.div(scalar(float(rows)), op.cast(count, to=np.float32))
    centres = op.add(op.cast(_range(count), to=np.float32), scalar(0.5))
    source = op.max([op.sub(op.mul(centres, ratio), scalar(0.5)), scalar(0.0)])
    floor = op.floor(source)
    lower = op.cast(floor, to=np.int64)
    upper = op.min([op.add(lower, one), op.const(np.int64(rows - 1))])
    steps = _range(length)
    distance = op.sub(op.unsqueeze(steps, integers(1)), op.unsqueeze(steps, integers(0)))
    relative = op.unsqueeze(op.add(distance, op.sub(length, one)), integers(2))
    return Extent(cells, lower, upper, op.sub(source, floor), relative)


def _range(count: Var) -> Var:
    """0, 1, ... count - 1 for a scalar count."""
    return op.range(op.const(np.int64(0)), count, op.const(np.int64(1)))


def _maps(config: Config, height: Var | int, breadth: Var | int, cells: Var | int) -> Maps:
    heads, width = config.heads, config.width
    size = width // heads
    return Maps(
        qkv=vector(-1, cells, 3, heads, size),
        parts=vector(3, -1, cells, size),
        places=vector(-1, height, breadth, size),
        pairs=vector(-1, height, breadth, height, breadth),
        scores=vector(-1, cells, cells),
        heads=vector(-1, heads, height, breadth, size),
        joined=vector(-1, height, breadth, width),
    )


def _windows(config: Config, cells: tuple[Var, Var]) -> Windows:
    side, width = config.window, config.width
    counts = [op.div(op.add(extent, integers(side - 1)), integers(side)) for extent in cells]
    padded = [op.mul(count, integers(side)) for count in counts]
    missing = [op.sub(whole, extent) for whole, extent in zip(padded, cells, strict=True)]
    return Windows(
        pads=vector(0, 0, 0, 0, 0, *missing, 0),
        split=vector(1, counts[0], side, counts[1], side, width),
        joined=vector(1, *counts, side, side, width),
        padded=vector(1, *padded, width),
    )


def _block(p: Parameters, config: Config, x: Var, picture: Picture, index: int) -> Var:
    name = f"image_encoder.blocks.{index}"
    width = config.width
    y = layer_norm(p, x, f"{name}.norm1", width, EPSILON)
    attend = _whole if index in config.whole else _windowed
    x = op.add(x, attend(p, config, y, picture, f"{name}.attn"))
    y = gelu(linear(p, layer_norm(p, x, f"{name}.norm2", width, EPSILON), f"{name}.mlp.lin1", (width, 4 * width)))
    return op.add(x, linear(p, y, f"{name}.mlp.lin2", (4 * width, width)))


def _whole(p: Parameters, config: Config, x: Var, picture: Picture, name: str) -> Var:
    """Attention over the whole picture."""
    sides = zip("hw", picture.axes, strict=True)
    tables = [_interpolated(p, config, f"{name}.rel_pos_{side}", axis) for side, axis in sides]
    return _attention(p, config, x, name, maps=picture.whole_maps, tables=tables)


def _windowed(p: Parameters, config: Config, x: Var, picture: Picture, name: str) -> Var:
    """Attention within windows: pad right and bottom with zeros, attend, join, crop."""
    side, windows = config.window, picture.windows
    split = op.reshape(op.pad(x, windows.pads), windows.split)
    x = op.reshape(op.transpose(split, perm=[0, 1, 3, 2, 4, 5]), integers(-1, side, side, config.width))
    relative = np.arange(side)[:, None] - np.arange(side)[None, :] + side - 1
    shape = (2 * side - 1, config.width // config.heads)
    tables = [
        op.gather_nd(p.declare(f"{name}.rel_pos_{axis}", shape, normal(shape, 0.1)), op.const(relative[:, :, None]))
        for axis in "hw"
    ]
    y = op.reshape(_attention(p, config, x, name, maps=picture.window_maps, tables=tables), windows.joined)
    x = op.reshape(op.transpose(y, perm=[0, 1, 3, 2, 4, 5]), windows.padded)
    for axis, extent in enumerate(picture.axes, start=1):
        x = op.slice(x, integers(0), extent.cells, integers(axis))
    return x


def _interpolated(p: Parameters, config: Config, name: str, axis: Extent) -> Var:
    """Relative positions of every query and key of an axis of run-time length: (n, n, head size)."""
    size = config.width // config.heads
    shape = (2 * config.table - 1, size)
    table = op.reshape(p.declare(name, shape, normal(shape, 0.1)), integers(1, shape[0], size))
    columns = op.transpose(table, perm=[0, 2, 1])
    low, high = (op.gather(columns, rows, axis=2) for rows in (axis.lower, axis.upper))
    between = op.add(low, op.mul(op.sub(high, low), axis.share))
    rows = op.transpose(op.reshape(between, integers(size, -1)), perm=[1, 0])
    return op.gather_nd(rows, axis.relative)


def _attention(p: Parameters, config: Config, x: Var, name: str, *, maps: Maps, tables: list[Var]) -> Var:
    """Attention over the h x w cells of each of the maps in x (maps, h, w, width), with relative positions."""
    width = config.width
    qkv = op.reshape(linear(p, x, f"{name}.qkv", (width, 3 * width)), maps.qkv)
    qkv = op.reshape(op.transpose(qkv, perm=[2, 0, 3, 1, 4]), maps.parts)
    query, key, value = (
        op.squeeze(op.slice(qkv, integers(part), integers(part + 1), integers(0)), integers(0)) for part in range(3)
    )
    scale = scalar((width // config.heads) ** -0.5)
    scores = op.matmul(op.mul(query, scale), op.transpose(key, perm=[0, 2, 1]))
    places = op.reshape(query, maps.places)
    down = op.unsqueeze(op.einsum([places, tables[0]], equation="bhwc,hkc->bhwk"), integers(4))
    across = op.unsqueeze(op.einsum([places, tables[1]], equation="bhwc,wkc->bhwk"), integers(3))
    biased = op.add(op.add(op.reshape(scores, maps.pairs), down), across)
    weights = op.softmax(op.reshape(biased, maps.scores), axis=-1)
    mixed = op.transpose(op.reshape(op.matmul(weights, value), maps.heads), perm=[0, 2, 3, 1, 4])
    return linear(p, op.reshape(mixed, maps.joined), f"{name}.proj", (width, width))
