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
from typing import NamedTuple

import numpy as np
import spox
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models import resnet
from models.blocks import convolve, global_mean, integers
from models.parameters import Folding, Parameters, normal
from models.resnet import Block
from models.statistics import channel_statistics

RATE = 0.691
GATE_WIDTH = 10

CONFIGS = {
    "full": resnet.R101,
    "tiny": resnet.Config((1, 2, 2, 1), (8, 16, 32, 64), 10),
}


class State(NamedTuple):
    """Hidden and cell vector of the gates' LSTM, each (1, 1, GATE_WIDTH)."""

    hidden: Var
    cell: Var


def compose(p: Parameters, variant: str) -> tuple[dict[str, Var], dict[str, Var]]:
    """Inputs and outputs of the network; the full one has 44,875,501 parameters."""
    config = CONFIGS[variant]
    images = spox.argument(spox.Tensor(np.float32, (1, 3, "H", "W")))
    first, *gated = resnet.blocks(config)
    x = resnet.stem(p, images, ("conv1", "bn1"), config.widths[0])
    x = _run(p, first, x, _shortcut(p, first, x))
    gates = _Gates(p)
    state: State | None = None
    before = first
    for index, block in enumerate(gated):
        decision, state = gates.decide(index, before, x, state)
        x = _gated(p, block, x, decision)
        before = block
    _reserve_gate(p, before)  # the checkpoint's last gate decides about no block
    return {"images": images}, {"logits": resnet.classify(p, x, before.outward, config.classes, "fc")}


def gate_rates(variant: str) -> np.ndarray:
    """Share of the calibration pictures for which each gate opens."""
    return np.full(sum(CONFIGS[variant].layers) - 1, RATE)


def _part(block: Block, kind: str) -> str:
    """Checkpoint name of the block's "layer", "ds" (shortcut) or "gate"."""
    return f"group{block.stage + 1}_{kind}{block.index}"


def _shortcut(p: Parameters, block: Block, x: Var) -> Var:
    name = _part(block, "ds")
    return resnet.shortcut(p, block, x, (f"{name}.0", f"{name}.1"))


def _run(p: Parameters, block: Block, x: Var, shortcut: Var) -> Var:
    """ReLU(F(x) + S(x))."""
    return op.relu(op.add(resnet.bottleneck(p, block, x, _part(block, "layer")), shortcut))


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


def _reserve_gate(p: Parameters, block: Block) -> str:
    """Count the parameters of the gate behind `block`; returns their common name."""
    name = f"{_part(block, 'gate')}.1"
    p.reserve(f"{name}.weight", (GATE_WIDTH, block.outward, 1, 1))
    p.reserve(f"{name}.bias", (GATE_WIDTH,))
    return name


class _Gates:
    """The gates of one network: each has its own convolution and threshold, all share the LSTM and its projection."""

    def __init__(self, p: Parameters) -> None:
        self._p = p
        self._weight, self._recurrence = (_lstm_matrix(p, f"control.rnn.weight_{kind}_l0") for kind in ("ih", "hh"))
        self._bias = _lstm_bias(p)
        std = 1 / math.sqrt(GATE_WIDTH)
        self._projection = p.declare("control.proj.weight", (1, GATE_WIDTH), normal((1, GATE_WIDTH), std))
        self._projection_bias = p.declare("control.proj.bias", (1,), normal((1,), 0.1))

    def decide(self, index: int, before: Block, x: Var, state: State | None) -> tuple[Var, State]:
        """Whether the block after `before` runs, bool (1, 1), from the output x of `before`; and the next state."""
        step = op.reshape(self._features(before, global_mean(x)), integers(1, 1, GATE_WIDTH))
        h, c = (None, None) if state is None else (_layer_state(state.hidden), _layer_state(state.cell))
        weights = (self._weight, self._recurrence, self._bias)
        y, hidden, cell = op.lstm(step, *weights, initial_h=h, initial_c=c, hidden_size=GATE_WIDTH)
        row = op.reshape(op.squeeze(y, integers(1)), integers(1, GATE_WIDTH))
        logit = op.gemm(row, self._projection, self._projection_bias, transB=1)
        return op.greater(logit, self._p.threshold(index)), State(hidden, cell)

    def _features(self, before: Block, pooled: Var) -> Var:
        """The gate's 1x1 convolution with the normalisation of its channels folded in, (1, GATE_WIDTH, 1, 1)."""
        p = self._p
        name = _reserve_gate(p, before)
        shape = (GATE_WIDTH, before.outward, 1, 1)

        def affine() -> tuple[np.ndarray, np.ndarray]:
            scale = 1 / p.calibrated(f"{name}.std", 1.0)
            return scale, -p.calibrated(f"{name}.mean", 0.0) * scale

        folding = Folding(
            weight=lambda: p.draw(f"{name}.weight", normal(shape, 1 / math.sqrt(before.outward))),
            bias=lambda: p.draw(f"{name}.bias", normal((GATE_WIDTH,), 0.1)),
            measure=lambda batch: dict(
                zip((f"{name}.mean", f"{name}.std"), channel_statistics(batch, epsilon=0), strict=True)
            ),
            affine=affine,
        )
        return convolve(pooled, *p.fold(name, shape, folding), 1)


def _lstm_matrix(p: Parameters, name: str) -> Var:
    """A checkpoint's LSTM matrix in ONNX's layout, (1, 4 * GATE_WIDTH, GATE_WIDTH)."""
    shape = (4 * GATE_WIDTH, GATE_WIDTH)
    p.reserve(name, shape)
    draw = normal(shape, 1 / math.sqrt(GATE_WIDTH))
    return p.derive(name, (1, *shape), lambda: _onnx_gate_order(p.draw(name, draw)))


def _lstm_bias(p: Parameters) -> Var:
    """The checkpoint's two LSTM biases as ONNX's single one, (1, 8 * GATE_WIDTH)."""
    names = [f"control.rnn.bias_{kind}_l0" for kind in ("ih", "hh")]
    shape = (4 * GATE_WIDTH,)
    for name in names:
        p.reserve(name, shape)

    def array() -> np.ndarray:
        return np.concatenate([_onnx_gate_order(p.draw(name, normal(shape, 0.1))) for name in names])

    return p.derive("control.rnn.bias", (1, 8 * GATE_WIDTH), array)


def _onnx_gate_order(rows: np.ndarray) -> np.ndarray:
    """Rows of input, forget, cell and output gate, as a checkpoint has them, in ONNX's order: i, o, f, c."""
    i, f, c, o = np.split(rows, 4)
    return np.concatenate([i, o, f, c])


def _layer_state(state: Var) -> Var:
    """The state of the LSTM's only layer: the slice an export takes from the stacked states."""
    return op.slice(state, integers(0), integers(1), integers(0))
