"""Calibration of SkipNet's random weights: one pass over the pictures, block by block, each on its own path.

BatchNorm statistics are taken over all pictures, whether their gates let the block run or not, as in training, where
every block is computed and masked. A gate's decision then selects for each picture the block's output or its shortcut.
"""

import numpy as np
import spox
from spox import Var

from models import MODELS
from models.calibrate import Batch, choose_threshold, conv_bn, open_session, over, pictures, relu
from models.parameters import Parameters
from models.skipnet import CONFIGS, GATE_WIDTH, RATE, Block, Gates, State, bare_gate, blocks, stem

PICTURES = 96


def calibrate(variant: str) -> dict[str, np.ndarray]:
    """The calibration vectors of the variant: `<bn>.mean`, `<bn>.std`, and per gate mean, std, threshold, spread."""
    config = CONFIGS[variant]
    first, *gated = blocks(config)
    gates = len(gated)
    p = Parameters()
    p.calibration["gates.mean"] = np.zeros((gates, GATE_WIDTH), np.float32)
    p.calibration["gates.std"] = np.ones((gates, GATE_WIDTH), np.float32)
    p.calibration["gates.threshold"] = np.zeros(gates, np.float32)
    p.calibration["gates.spread"] = np.zeros(gates, np.float32)

    batch = pictures(MODELS["skipnet"], PICTURES)
    batch = over(stem, conv_bn(p, batch, ("conv1", "bn1"), (3, config.widths[0]), 7, stride=2))
    batch, _ = _block(p, first, batch)
    states = [np.zeros((2, 1, 1, GATE_WIDTH), np.float32) for _ in batch]
    before = first
    for index, block in enumerate(gated):
        logits, states = _gate(p, before, index, batch, states)
        threshold = choose_threshold(logits, RATE)
        p.calibration["gates.threshold"][index] = threshold
        p.calibration["gates.spread"][index] = logits.std()
        run, skip = _block(p, block, batch)
        batch = [a if logit > threshold else b for a, b, logit in zip(run, skip, logits, strict=True)]
        before = block
    return p.calibration


def _block(p: Parameters, block: Block, batch: Batch) -> tuple[Batch, Batch]:
    """What the block gives for every picture, run and skipped."""
    name = block.part("layer")
    width = block.width
    shortcut = batch
    if block.project:
        ds = block.part("ds")
        shortcut = conv_bn(p, batch, (f"{ds}.0", f"{ds}.1"), (block.inward, block.outward), 1, stride=block.stride)
    y = relu(conv_bn(p, batch, (f"{name}.conv1", f"{name}.bn1"), (block.inward, width), 1))
    y = relu(conv_bn(p, y, (f"{name}.conv2", f"{name}.bn2"), (width, width), 3, stride=block.stride))
    y = conv_bn(p, y, (f"{name}.conv3", f"{name}.bn3"), (width, block.outward), 1)
    for array, other in zip(y, shortcut, strict=True):
        np.add(array, other, out=array)
    return relu(y), shortcut


def _gate(p: Parameters, before: Block, index: int, batch: Batch, states: Batch) -> tuple[np.ndarray, Batch]:
    """Logits (pictures,) of gate `index` behind `before`, after normalising its channels, and the next states."""
    pooled = np.concatenate([array.mean(axis=(2, 3)) for array in batch])
    weight, bias = bare_gate(p, before)
    channels = pooled @ weight.T + bias
    p.calibration["gates.mean"][index] = channels.mean(axis=0)
    p.calibration["gates.std"][index] = channels.std(axis=0)

    step = Parameters(p.calibration)
    feature = spox.argument(spox.Tensor(np.float32, (1, before.outward, 1, 1)))
    hidden, cell = (spox.argument(spox.Tensor(np.float32, (1, 1, GATE_WIDTH))) for _ in range(2))
    logit, state = Gates(step).logit(index, before, feature, State(hidden, cell))
    inputs: dict[str, Var] = {"feature": feature, "hidden": hidden, "cell": cell}
    outputs = {"logit": logit, "next_hidden": state.hidden, "next_cell": state.cell}
    session = open_session(step.assemble("gate", inputs, outputs).SerializeToString())

    results = [
        session.run(None, {"feature": row[None, :, None, None], "hidden": h, "cell": c})
        for row, (h, c) in zip(pooled, states, strict=True)
    ]
    return np.array([r[0].item() for r in results]), [np.stack(r[1:]) for r in results]
