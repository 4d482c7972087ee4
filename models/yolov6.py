"""YOLO-V6: the detector of release 3.0 in deploy form (RepVGG blocks merged into plain convolutions).

`full` is the nano model, `small` the next larger one.

EfficientRep backbone, SimCSPSPPF, RepBiFPAN neck, anchor-free decoupled head without distribution focal loss, boxes
decoded in the graph, no non-maximum suppression. Input: `images` (1, 3, 32*h, 32*w), RGB in 0..1. Output:
`outputs` (1, 21*h*w, 85) = box centre and size in pixels, objectness (one), 80 class scores; finest level first.

Height and width are multiples of 32, so that the three levels of the neck line up; the anchor grid is computed from
the feature maps' run-time sizes. Source: Meituan's YOLOv6 report and its published configuration; written from the
description of the architecture.
"""

from dataclasses import dataclass

import numpy as np
import spox
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models.blocks import conv, conv_transpose, dim, integers, scalar, silu, vector
from models.parameters import Parameters

STRIDES = (8, 16, 32)
CLASS_BIAS = -4.59511985013459  # the logit of the prior probability 0.01


@dataclass(frozen=True)
class Config:
    """Widths and repeats after scaling: backbone stages (strides 2..32), neck N0..N5, blocks per stage."""

    backbone: tuple[int, int, int, int, int]
    neck: tuple[int, int, int, int, int, int]
    stage_repeats: tuple[int, int, int, int]
    neck_repeats: int
    classes: int


CONFIGS = {
    "full": Config((16, 32, 64, 128, 256), (64, 32, 32, 64, 64, 128), (2, 4, 6, 2), 4, 80),
    "small": Config((32, 64, 128, 256, 512), (128, 64, 64, 128, 128, 256), (2, 4, 6, 2), 4, 80),
    "tiny": Config((8, 8, 16, 16, 24), (16, 8, 8, 16, 16, 24), (1, 1, 1, 1), 1, 5),
}


def compose(p: Parameters, variant: str) -> tuple[dict[str, Var], dict[str, Var]]:
    """Inputs and outputs of the detector; nano has 4,646,940 parameters, small 18,537,276."""
    config = CONFIGS[variant]
    images = spox.argument(spox.Tensor(np.float32, (1, 3, "32*h", "32*w")))
    features = _backbone(p, config, images)
    levels = _neck(p, config, features)
    return {"images": images}, {"outputs": _head(p, config, levels)}


def _unit(p: Parameters, x: Var, name: str, channels: tuple[int, int], kernel: int, *, stride: int = 1) -> Var:
    return op.relu(conv(p, x, f"{name}.block.conv", channels, kernel, stride=stride))


def _repeat(p: Parameters, x: Var, name: str, channels: tuple[int, int], count: int) -> Var:
    """A RepBlock: `count` merged RepVGG blocks, the first of which changes the width."""
    x = op.relu(conv(p, x, f"{name}.conv1.rbr_reparam", channels, 3))
    for index in range(count - 1):
        x = op.relu(conv(p, x, f"{name}.block.{index}.rbr_reparam", (channels[1], channels[1]), 3))
    return x


def _backbone(p: Parameters, config: Config, images: Var) -> tuple[Var, Var, Var, Var]:
    """Feature maps at strides 4, 8, 16, 32."""
    widths = config.backbone
    x = op.relu(conv(p, images, "backbone.stem.rbr_reparam", (3, widths[0]), 3, stride=2))
    maps = []
    for stage, repeats in enumerate(config.stage_repeats):
        name = f"backbone.ERBlock_{stage + 2}"
        channels = (widths[stage], widths[stage + 1])
        x = op.relu(conv(p, x, f"{name}.0.rbr_reparam", channels, 3, stride=2))
        x = _repeat(p, x, f"{name}.1", (channels[1], channels[1]), repeats)
        maps.append(x)
    maps[3] = _pyramid_pool(p, maps[3], "backbone.ERBlock_5.2.cspsppf", widths[4])
    return maps[0], maps[1], maps[2], maps[3]


def _pyramid_pool(p: Parameters, x: Var, name: str, width: int) -> Var:
    """SimCSPSPPF: three chained 5x5 max-pools beside a bypass, hidden width half."""
    hidden = width // 2
    y = _unit(p, x, f"{name}.cv1", (width, hidden), 1)
    y = _unit(p, y, f"{name}.cv3", (hidden, hidden), 3)
    y = _unit(p, y, f"{name}.cv4", (hidden, hidden), 1)
    pooled = [y]
    for _ in range(3):
        pooled.append(op.max_pool(pooled[-1], kernel_shape=[5, 5], pads=[2, 2, 2, 2], strides=[1, 1])[0])
    y = _unit(p, op.concat(pooled, axis=1), f"{name}.cv5", (4 * hidden, hidden), 1)
    y = _unit(p, y, f"{name}.cv6", (hidden, hidden), 3)
    bypass = _unit(p, x, f"{name}.cv2", (width, hidden), 1)
    return _unit(p, op.concat([bypass, y], axis=1), f"{name}.cv7", (2 * hidden, width), 1)


def _fuse(p: Parameters, name: str, maps: tuple[Var, Var, Var], channels: tuple[int, int], width: int) -> Var:
    """BiFusion: the low-resolution map upsampled, the middle one, and the high-resolution one downsampled."""
    low, middle, high = maps
    up = conv_transpose(p, low, f"{name}.upsample.upsample_transpose", (width, width), 2)
    same = _unit(p, middle, f"{name}.cv1", (channels[0], width), 1)
    down = _unit(p, high, f"{name}.cv2", (channels[1], width), 1)
    down = _unit(p, down, f"{name}.downsample", (width, width), 3, stride=2)
    return _unit(p, op.concat([up, same, down], axis=1), f"{name}.cv3", (3 * width, width), 1)


def _neck(p: Parameters, config: Config, features: tuple[Var, Var, Var, Var]) -> tuple[Var, Var, Var]:
    """RepBiFPAN: maps at strides 8, 16, 32 of widths N1, N3, N5."""
    x3, x2, x1, x0 = features
    c = config.backbone
    n = config.neck
    repeats = config.neck_repeats
    a0 = _unit(p, x0, "neck.reduce_layer0", (c[4], n[0]), 1)
    p4 = _fuse(p, "neck.Bifusion0", (a0, x1, x2), (c[3], c[2]), n[0])
    p4 = _repeat(p, p4, "neck.Rep_p4", (n[0], n[0]), repeats)
    a1 = _unit(p, p4, "neck.reduce_layer1", (n[0], n[1]), 1)
    q2 = _fuse(p, "neck.Bifusion1", (a1, x2, x3), (c[2], c[1]), n[1])
    q2 = _repeat(p, q2, "neck.Rep_p3", (n[1], n[1]), repeats)
    q1 = op.concat([_unit(p, q2, "neck.downsample2", (n[1], n[2]), 3, stride=2), a1], axis=1)
    q1 = _repeat(p, q1, "neck.Rep_n3", (n[2] + n[1], n[3]), repeats)
    q0 = op.concat([_unit(p, q1, "neck.downsample1", (n[3], n[4]), 3, stride=2), a0], axis=1)
    q0 = _repeat(p, q0, "neck.Rep_n4", (n[4] + n[0], n[5]), repeats)
    return q2, q1, q0


def _head(p: Parameters, config: Config, levels: tuple[Var, Var, Var]) -> Var:
    """Class scores and decoded boxes of all levels, (1, anchors, 5 + classes)."""
    scores, distances, centres, strides = [], [], [], []
    for level, (x, width, stride) in enumerate(zip(levels, config.neck[1::2], STRIDES, strict=True)):
        logits, box = _branches(p, x, level, width, config.classes)
        scores.append(op.reshape(op.sigmoid(logits), integers(1, config.classes, -1)))
        distances.append(op.reshape(box, integers(1, 4, -1)))
        centre, cells = _cell_centres(x)
        centres.append(centre)
        strides.append(op.expand(op.const(np.full((1, 1), stride, np.float32)), vector(cells, 1)))
    score = op.transpose(op.concat(scores, axis=2), perm=[0, 2, 1])
    distance = op.transpose(op.concat(distances, axis=2), perm=[0, 2, 1])
    box = _decode(distance, op.concat(centres, axis=0), op.concat(strides, axis=0))
    ones = op.expand(op.const(np.ones((1, 1, 1), np.float32)), vector(1, dim(box, 1), 1))
    return op.concat([box, ones, score], axis=2)


def _branches(p: Parameters, x: Var, level: int, width: int, classes: int) -> tuple[Var, Var]:
    """Class logits and the four box distances (in cells) of one level."""
    channels = (width, width)
    x = silu(conv(p, x, f"detect.stems.{level}.block.conv", channels, 1))
    scored = silu(conv(p, x, f"detect.cls_convs.{level}.block.conv", channels, 3))
    logits = conv(p, scored, f"detect.cls_preds.{level}", (width, classes), 1, bias=CLASS_BIAS)
    boxed = silu(conv(p, x, f"detect.reg_convs.{level}.block.conv", channels, 3))
    return logits, conv(p, boxed, f"detect.reg_preds.{level}", (width, 4), 1, bias=1.0)


def _cell_centres(x: Var) -> tuple[Var, Var]:
    """Centres (x, y) of the cells of a feature map in row-major order, (cells, 2), and the number of cells."""
    sizes = [dim(x, 2), dim(x, 3)]
    lengths = [op.squeeze(size, integers(0)) for size in sizes]
    grid = vector(*sizes)
    axes = []
    for length, line in zip(reversed(lengths), (integers(1, -1), integers(-1, 1)), strict=True):
        steps = op.range(op.const(np.int64(0)), length, op.const(np.int64(1)))
        centre = op.add(op.cast(steps, to=np.float32), scalar(0.5))
        axes.append(op.unsqueeze(op.expand(op.reshape(centre, line), grid), integers(2)))
    cells = op.reshape(op.mul(*lengths), integers(1))
    return op.reshape(op.concat(axes, axis=2), integers(-1, 2)), cells


def _decode(distance: Var, centres: Var, strides: Var) -> Var:
    """Distances (left, top, right, bottom) around the centres to box centre and size in pixels, (1, anchors, 4)."""
    near, far = op.split(distance, num_outputs=2, axis=2)
    corner = op.sub(centres, near)
    opposite = op.add(centres, far)
    middle = op.div(op.add(corner, opposite), scalar(2.0))
    box = op.concat([middle, op.sub(opposite, corner)], axis=2)
    return op.mul(box, strides)
