"""ConvNet-AIG-50: a bottleneck ResNet in which every block has a gate that looks at the block's own input.

Input: `images` (1, 3, H, W), ImageNet-normalised RGB, any size. Output: `logits` (1, classes). The gate: global mean,
1x1 convolution to 16 channels with BatchNorm and ReLU, 1x1 convolution to the two logits skip and run. Where run is the
greater the block gives ReLU(F(x) + S(x)), else ReLU(S(x)), the ReLU being of use behind a stage's convolved shortcut
only. Shortcuts are computed outside the `If`, which both branches read. The published code adds Gumbel noise to the
logits even in evaluation; it is left out, so that the path is a function of the input.

Random gates are calibrated by a shift of the run logit's bias to the published target rates (t = 0.6: 12.3 of 16
blocks). Blocks of rate 1 keep their gates, which then always open. BatchNorm statistics are calibrated and folded.

Source: the ConvNet-AIG paper and the target rates of its ImageNet run; written from the description.
"""

import math

import numpy as np
import spox
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models import resnet
from models.blocks import conv_bn, convolve, global_mean, integers
from models.parameters import Folding, Parameters, normal
from models.resnet import Block
from models.statistics import Batch, choose_threshold

T = 0.6
RATES = (1, 1, 0.8, 1, T, T, T, 1, T, T, T, T, T, 1, 0.7, 1)
GATE_WIDTH = 16

CONFIGS = {
    "full": resnet.R50,
    "tiny": resnet.Config((1, 1, 1, 1), (8, 16, 32, 64), 10),
}
TINY_RATES = (0.8, T, 0.7, T)


def compose(p: Parameters, variant: str) -> tuple[dict[str, Var], dict[str, Var]]:
    """Inputs and outputs of the network; the full one has 25,768,264 parameters, 211,232 of them in gates."""
    config = CONFIGS[variant]
    images = spox.argument(spox.Tensor(np.float32, (1, 3, "H", "W")))
    x = resnet.stem(p, images, ("conv1", "bn1"), config.widths[0])
    blocks = list(resnet.blocks(config))
    for block, rate in zip(blocks, rates(variant), strict=True):
        x = _block(p, block, x, rate)
    return {"images": images}, {"logits": resnet.classify(p, x, blocks[-1].outward, config.classes, "fc")}


def rates(variant: str) -> tuple[float, ...]:
    """Share of the calibration pictures for which each block runs."""
    return TINY_RATES if variant == "tiny" else RATES


def _block(p: Parameters, block: Block, x: Var, rate: float) -> Var:
    name = f"layer{block.stage + 1}.{block.index}"
    runs = _decide(p, block, x, name, rate)
    shortcut = resnet.shortcut(p, block, x, (f"{name}.downsample.0", f"{name}.downsample.1"))
    (merged,) = op.if_(
        op.reshape(runs, integers()),
        then_branch=lambda: [op.relu(op.add(resnet.bottleneck(p, block, x, name), shortcut))],
        else_branch=lambda: [op.relu(shortcut)],
    )
    return merged


def _decide(p: Parameters, block: Block, x: Var, name: str, rate: float) -> Var:
    """Whether the block runs, bool (1, 1, 1)."""
    names = (f"{name}.fc1", f"{name}.fc1bn")
    hidden = op.relu(conv_bn(p, global_mean(x), names, (block.inward, GATE_WIDTH), 1, biased=True))
    logits = convolve(hidden, *_logits(p, f"{name}.fc2", rate), 1)
    skip, run = (op.gather(logits, op.const(np.int64(index)), axis=1) for index in range(2))
    return op.greater(run, skip)


def _logits(p: Parameters, name: str, rate: float) -> tuple[Var, Var]:
    """Weight and bias of the convolution to the logits, the run logit shifted to the wanted rate."""
    shape = (2, GATE_WIDTH, 1, 1)
    p.reserve(f"{name}.weight", shape)
    p.reserve(f"{name}.bias", (2,))

    def measure(batch: Batch) -> dict[str, np.ndarray]:
        margins = np.array([array[0, 1].item() - array[0, 0].item() for array in batch])
        return {f"{name}.threshold": np.array([choose_threshold(margins, rate)], np.float32)}

    def affine() -> tuple[np.ndarray, np.ndarray]:
        return np.ones(2, np.float32), np.array([0, -1], np.float32) * p.calibrated(f"{name}.threshold", 0.0)

    folding = Folding(
        weight=lambda: p.draw(f"{name}.weight", normal(shape, 1 / math.sqrt(GATE_WIDTH))),
        bias=lambda: p.draw(f"{name}.bias", normal((2,), 0.1)),
        measure=measure,
        affine=affine,
    )
    return p.fold(name, shape, folding)
