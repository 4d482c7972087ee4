"""BlockDrop-101: a bottleneck ResNet and a small policy network that decides about all its blocks before it starts.

Input: `images` (1, 3, H, W), ImageNet-normalised RGB, any size. Output: `logits` (1, classes). The policy is a
ResNet-10 of basic blocks on the picture at half size, with one probability per block; a block of probability 0.5 or
more gives ReLU(F(x) + S(x)), any other S(x), the identity or the stage's strided 1x1 convolution without a ReLU. All
predicates are elements of one vector that is known after three per cent of the work. The policy's value head, which
only its training uses, is counted and not exported.

Calibration, published-like: the paper reports 24.77 +- 0.98 of 33 blocks and ten distinct policies. So 21 blocks
always run, 6 never do, and 6 vary: two groups of three, each group reading one direction of the policy's features with
a threshold per block. That gives 24.77 +- 1.0 blocks and at most 16 paths. BatchNorm statistics are calibrated and
folded.

Source: the BlockDrop paper and the figures its authors publish for ImageNet; written from the description.
"""

import math

import numpy as np
import spox
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models import resnet
from models.blocks import global_mean, integers, scalar
from models.parameters import Folding, Parameters, normal
from models.resnet import Block
from models.statistics import Batch, choose_threshold

RATE = 24.77 / 33
GROUPS = (((7, 0.97), (12, 0.75), (17, 0.18)), ((10, 0.96), (15, 0.74), (20, 0.17)))  # (block, rate) of varying blocks
NEVER = (9, 14, 19, 23, 25, 28)

CONFIGS = {
    "full": resnet.R101,
    "tiny": resnet.Config((1, 1, 1, 1), (8, 16, 32, 64), 10),
}
POLICIES = {
    "full": resnet.Config((1, 1, 1, 1), (64, 128, 256, 512), 33, expansion=1),
    "tiny": resnet.Config((1, 1, 1, 1), (4, 8, 8, 16), 4, expansion=1),
}
TINY_GROUPS = (((1, 0.8), (2, 0.4)), ((3, 0.6),))


def compose(p: Parameters, variant: str) -> tuple[dict[str, Var], dict[str, Var]]:
    """Inputs and outputs; the full variant has 49,472,394 parameters, 4,923,234 of them in the policy network."""
    config = CONFIGS[variant]
    images = spox.argument(spox.Tensor(np.float32, (1, 3, "H", "W")))
    actions = _policy(p, variant, images)
    x = resnet.stem(p, images, ("resnet.conv1", "resnet.bn1"), config.widths[0])
    blocks = list(resnet.blocks(config))
    for index, block in enumerate(blocks):
        runs = op.reshape(op.gather(actions, op.const(np.int64(index)), axis=1), integers())
        x = _block(p, block, x, runs)
    return {"images": images}, {"logits": resnet.classify(p, x, blocks[-1].outward, config.classes, "resnet.fc")}


def _block(p: Parameters, block: Block, x: Var, runs: Var) -> Var:
    name = f"resnet.blocks.{block.stage}.{block.index}"
    shortcut = resnet.shortcut(p, block, x, (f"resnet.ds.{block.stage}.0", f"resnet.ds.{block.stage}.1"))
    (merged,) = op.if_(
        runs,
        then_branch=lambda: [op.relu(op.add(resnet.bottleneck(p, block, x, name), shortcut))],
        else_branch=lambda: [op.identity(shortcut)],
    )
    return merged


def _policy(p: Parameters, variant: str, images: Var) -> Var:
    """Which blocks run, bool (1, blocks)."""
    config = POLICIES[variant]
    x = op.average_pool(images, kernel_shape=[2, 2], strides=[2, 2])
    x = resnet.stem(p, x, ("agent.features.conv1", "agent.features.bn1"), config.widths[0])
    for block in resnet.blocks(config):
        name = f"agent.features.blocks.{block.stage}.{block.index}"
        ds = f"agent.features.ds.{block.stage}"
        shortcut = resnet.shortcut(p, block, x, (f"{ds}.0", f"{ds}.1"))
        x = op.relu(op.add(resnet.basic(p, block, x, name), shortcut))
    width = config.widths[-1]
    p.reserve("agent.vnet.weight", (1, width))
    p.reserve("agent.vnet.bias", (1,))
    features = op.reshape(global_mean(x), integers(1, width))
    weight, bias = _logits(p, variant, (config.classes, width))
    return op.greater_or_equal(op.sigmoid(op.gemm(features, weight, bias, transB=1)), scalar(0.5))


def _logits(p: Parameters, variant: str, shape: tuple[int, int]) -> tuple[Var, Var]:
    """Weight and bias of the policy's dense layer, each block's logit shifted to the block's rate."""
    name = "agent.logit"
    blocks, width = shape
    p.reserve(f"{name}.weight", shape)
    p.reserve(f"{name}.bias", (blocks,))
    groups = TINY_GROUPS if variant == "tiny" else GROUPS
    rates = np.ones(blocks)
    rates[[block for block in NEVER if block < blocks]] = 0.0
    for block, rate in (member for group in groups for member in group):
        rates[block] = rate

    def weight() -> np.ndarray:
        rows = p.draw(f"{name}.weight", normal(shape, 1 / math.sqrt(width)))
        if not p.loaded:
            for group in groups:
                rows[[block for block, _ in group]] = rows[group[0][0]]
        return rows

    def measure(batch: Batch) -> dict[str, np.ndarray]:
        columns = np.concatenate(batch).T
        thresholds = [choose_threshold(logits, rate) for logits, rate in zip(columns, rates, strict=True)]
        return {f"{name}.threshold": np.array(thresholds, np.float32)}

    folding = Folding(
        weight=weight,
        bias=lambda: p.draw(f"{name}.bias", normal((blocks,), 0.1)),
        measure=measure,
        affine=lambda: (np.float32(1), -p.calibrated(f"{name}.threshold", 0.0)),  # type: ignore[return-value]
    )
    return p.fold(name, shape, folding)
