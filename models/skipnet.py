"""SkipNet-101: a bottleneck ResNet whose shared recurrent gate decides block by block which of them run.

Input: `images` (1, 3, H, W), ImageNet-normalised RGB, any size. Output: `logits` (1, classes). Block 0 always runs.
After block k a gate looks at the block's output (global mean, 1x1 convolution to ten channels, one LSTM cell shared by
all gates, a shared linear layer) and decides about block k + 1: run gives ReLU(F(x) + S(x)), skip gives S(x), the
identity or the stage's strided 1x1 convolution, which is computed outside the `If` because both branches read it.

Random weights make every gate decide alike, so each gate's ten channels are normalised over calibration pictures
(folded into its convolution) and each gate has its own constant threshold in place of zero, chosen so that it opens
for the published share of pictures. BatchNorm statistics are calibrated too, and folded (see models/calibrate.py).

Source: the SkipNet paper and its ImageNet configuration (recurrent gate; 70.06 % of 33 blocks run, so 0.691 of the 32
gated ones); written from the description of the architecture.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx
import spox
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models.blocks import conv_bn, convolve, gemm, global_mean, integers, scalar
from models.parameters import Parameters, normal, read_calibration

RATE = 0.691
GATE_WIDTH = 10
EXPANSION = 4


@dataclass(frozen=True)
class Config:
    """Blocks and bottleneck width per stage, and the number of classes."""

    layers: tuple[int, int, int, int]
    widths: tuple[int, int, int, int]
    classes: int


CONFIGS = {
    "full": Config((3, 4, 23, 3), (64, 128, 256, 512), 1000),
    "tiny": Config((1, 2, 2, 1), (8, 16, 32, 64), 10),
}


@dataclass(frozen=True)
class Block:
    """A bottleneck block: `name` is the checkpoint's stem, `project` tells whether the shortcut is a convolution."""

    name: str
    inward: int
    width: int
    stride: int
    project: bool

    @property
    def outward(self) -> int:
        """Channels of the block's output."""
        return self.width * EXPANSION

    def part(self, kind: str) -> str:
        """Checkpoint name of the block's "layer", "ds" (shortcut) or "gate"."""
        return self.name.replace("*", kind)


class State(NamedTuple):
    """Hidden and cell vector of the gates' LSTM, each (1, 1, GATE_WIDTH)."""

    hidden: Var
    cell: Var


def parameters(variant: str) -> Parameters:
    """The declared parameters; 44,875,501 for the full model."""
    return _compose(variant, {})[0]


def build(variant: str) -> onnx.ModelProto:
    """The network of the given variant, with its calibrated statistics and thresholds."""
    p, images, logits = _compose(variant, read_calibration("skipnet", variant))
    return p.assemble("skipnet", {"images": images}, {"logits": logits})


def gate_spread(variant: str) -> np.ndarray:
    """Standard deviation of each gate's logit over the calibration pictures, in the order of execution."""
    return read_calibration("skipnet", variant)["gates.spread"]


def blocks(config: Config) -> Iterator[Block]:
    """The blocks in order of execution."""
    inward = config.widths[0]
    for stage, (count, width) in enumerate(zip(config.layers, config.widths, strict=True)):
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            yield Block(f"group{stage + 1}_*{index}", inward, width, stride, index == 0)
            inward = width * EXPANSION


def _compose(variant: str, calibration: dict[str, np.ndarray]) -> tuple[Parameters, Var, Var]:
    config = CONFIGS[variant]
    p = Parameters(calibration)
    images = spox.argument(spox.Tensor(np.float32, (1, 3, "H", "W")))
    first, *gated = blocks(config)
    x = stem(conv_bn(p, images, ("conv1", "bn1"), (3, config.widths[0]), 7, stride=2))
    x = _run(p, first, x, _shortcut(p, first, x))
    gates = Gates(p)
    state: State | None = None
    before = first
    for index, block in enumerate(gated):
        decision, state = gates.decide(index, before, x, state)
        x = _gated(p, block, x, decision)
        before = block
    reserve_gate(p, before)  # the checkpoint's last gate decides about no block
    return p, images, _classify(p, config, x, before.outward)


def stem(x: Var) -> Var:
    """ReLU and max-pool behind the first convolution."""
    return op.max_pool(op.relu(x), kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])[0]


def _shortcut(p: Parameters, block: Block, x: Var) -> Var:
    if not block.project:
        return x
    name = block.part("ds")
    return conv_bn(p, x, (f"{name}.0", f"{name}.1"), (block.inward, block.outward), 1, stride=block.stride)


def _run(p: Parameters, block: Block, x: Var, shortcut: Var) -> Var:
    """ReLU(F(x) + S(x))."""
    name = block.part("layer")
    width = block.width
    y = op.relu(conv_bn(p, x, (f"{name}.conv1", f"{name}.bn1"), (block.inward, width), 1))
    y = op.relu(conv_bn(p, y, (f"{name}.conv2", f"{name}.bn2"), (width, width), 3, stride=block.stride))
    y = conv_bn(p, y, (f"{name}.conv3", f"{name}.bn3"), (width, block.outward), 1)
    return op.relu(op.add(y, shortcut))


def _gated(p: Parameters, block: Block, x: Var, decision: Var) -> Var:
    """The block under its gate's decision (one element of any rank)."""
    shortcut = _shortcut(p, block, x)
    predicate = op.reshape(decision, integers())
    (merged,) = op.if_(
        predicate,
        then_branch=lambda: [_run(p, block, x, shortcut)],
        else_branch=lambda: [op.identity(shortcut)],
    )
    return merged


def bare_gate(p: Parameters, block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Weight (GATE_WIDTH, C) and bias of the gate behind `block`, before normalisation."""
    name = f"{block.part('gate')}.1"
    weight = p.draw(f"{name}.weight", normal((GATE_WIDTH, block.outward), 1 / math.sqrt(block.outward)))
    return weight, p.draw(f"{name}.bias", normal((GATE_WIDTH,), 0.1))


def reserve_gate(p: Parameters, block: Block) -> str:
    """Count the parameters of the gate behind `block`; returns their common name."""
    name = f"{block.part('gate')}.1"
    p.reserve(f"{name}.weight", (GATE_WIDTH, block.outward, 1, 1))
    p.reserve(f"{name}.bias", (GATE_WIDTH,))
    return name


class Gates:
    """The gates of one network: each has its own convolution and threshold, all share the LSTM and its projection.

    The LSTM's weights are in ONNX's layout and gate order; the checkpoint's two bias vectors become one.
    """

    def __init__(self, p: Parameters) -> None:
        self._p = p
        rows = 4 * GATE_WIDTH
        std = 1 / math.sqrt(GATE_WIDTH)
        biases = ["control.rnn.bias_ih_l0", "control.rnn.bias_hh_l0"]
        for name in biases:
            p.reserve(name, (rows,))

        def bias() -> np.ndarray:
            return np.concatenate([p.draw(name, normal((rows,), 0.1)) for name in biases])[None]

        shape = (1, rows, GATE_WIDTH)
        self._weight = p.declare("control.rnn.weight_ih_l0", shape, normal(shape, std))
        self._recurrence = p.declare("control.rnn.weight_hh_l0", shape, normal(shape, std))
        self._bias = p.derive("control.rnn.bias", (1, 2 * rows), bias)
        self._projection = p.declare("control.proj.weight", (1, GATE_WIDTH), normal((1, GATE_WIDTH), std))
        self._projection_bias = p.declare("control.proj.bias", (1,), normal((1,), 0.1))

    def decide(self, index: int, before: Block, x: Var, state: State | None) -> tuple[Var, State]:
        """Whether the block after `before` runs, bool (1, 1), from the output x of `before`; and the next state."""
        logit, state = self.logit(index, before, global_mean(x), state)
        calibrated = self._p.calibration.get("gates.threshold")
        threshold = 0.0 if calibrated is None else float(calibrated[index])
        return op.greater(logit, scalar(threshold)), state

    def logit(self, index: int, before: Block, pooled: Var, state: State | None) -> tuple[Var, State]:
        """Logit (1, 1) of gate `index` from pooled features (1, C, 1, 1), and the LSTM's next state."""
        step = op.reshape(self._features(index, before, pooled), integers(1, 1, GATE_WIDTH))
        h, c = (None, None) if state is None else (_layer_state(state.hidden), _layer_state(state.cell))
        weights = (self._weight, self._recurrence, self._bias)
        y, hidden, cell = op.lstm(step, *weights, initial_h=h, initial_c=c, hidden_size=GATE_WIDTH)
        row = op.reshape(op.squeeze(y, integers(1)), integers(1, GATE_WIDTH))
        return op.gemm(row, self._projection, self._projection_bias, transB=1), State(hidden, cell)

    def _features(self, index: int, before: Block, pooled: Var) -> Var:
        """The gate's 1x1 convolution with the normalisation of its channels folded in, (1, GATE_WIDTH, 1, 1)."""
        p = self._p
        name = reserve_gate(p, before)

        def weight() -> np.ndarray:
            return (bare_gate(p, before)[0] / p.calibration["gates.std"][index][:, None])[:, :, None, None]

        def bias() -> np.ndarray:
            return (bare_gate(p, before)[1] - p.calibration["gates.mean"][index]) / p.calibration["gates.std"][index]

        return convolve(
            pooled,
            p.derive(f"{name}.weight", (GATE_WIDTH, before.outward, 1, 1), weight),
            p.derive(f"{name}.bias", (GATE_WIDTH,), bias),
            1,
        )


def _layer_state(state: Var) -> Var:
    """The state of the LSTM's only layer: the slice an export takes from the stacked states."""
    return op.slice(state, integers(0), integers(1), integers(0))


def _classify(p: Parameters, config: Config, x: Var, width: int) -> Var:
    features = op.reshape(global_mean(x), integers(1, width))
    return gemm(p, features, "fc", (width, config.classes))
