"""LSTM over a sentence of any length, unrolled by an ONNX `Loop`: a workload of Nimble, not of the SoD² paper.

Input: `words` (T, 300), one vector per word. Outputs: `states` (T, 1, hidden), the last layer's hidden state after each
word, and `final` (1, hidden), the last of them. The loop runs T times and carries h and c of every layer; a step is

    i = σ(W_i x + b_i + U_i h + d_i)      f = σ(W_f x + b_f + U_f h + d_f)
    o = σ(W_o x + b_o + U_o h + d_o)      g = tanh(W_g x + b_g + U_g h + d_g)
    c ← f ⊙ c + i ⊙ g                     h ← o ⊙ tanh(c)

written out as an exporter without an LSTM operator does: two Gemm of all four gates together and a Split. Parameters
have PyTorch's names and its order of the gates, i, f, g, o.

Source: Nimble (Shen et al., MLSys 2021), which runs one layer and two of 300 inputs and 512 hidden units.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import spox
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models.blocks import dim, integers
from models.parameters import Parameters, normal


@dataclass(frozen=True)
class Config:
    """Width of a word, width of the states, and layers."""

    words: int
    hidden: int
    layers: int


CONFIGS = {"full": Config(300, 512, 1), "two-layers": Config(300, 512, 2), "tiny": Config(12, 16, 2)}


def compose(p: Parameters, variant: str) -> tuple[dict[str, Var], dict[str, Var]]:
    """Inputs and outputs of the network; the full one has 1,667,072 parameters."""
    config = CONFIGS[variant]
    words = spox.argument(spox.Tensor(np.float32, ("T", config.words)))
    widths = [config.words, *[config.hidden] * (config.layers - 1)]
    cells = [_Cell(p, f"l{layer}", width, config.hidden) for layer, width in enumerate(widths)]
    start = op.const(np.zeros((1, config.hidden), np.float32))

    def step(index: Var, running: Var, *carried: Var) -> list[Var]:
        x = op.gather(words, op.reshape(index, integers(1)))
        states: list[Var] = []
        for cell, h, c in zip(cells, carried[::2], carried[1::2], strict=True):
            states += cell.step(x, h, c)
            x = states[-2]
        return [op.identity(running), *states, op.identity(x)]

    results = op.loop(dim(words, 0), op.const(np.array([True])), [start] * (2 * config.layers), body=step)
    return {"words": words}, {"states": results[-1], "final": results[-3]}


class _Cell:
    """One layer: its weights, shared by all steps."""

    def __init__(self, p: Parameters, name: str, inward: int, hidden: int) -> None:
        self._input = self._gates(p, "ih", name, (4 * hidden, inward))
        self._recurrent = self._gates(p, "hh", name, (4 * hidden, hidden))

    @staticmethod
    def _gates(p: Parameters, kind: str, name: str, shape: tuple[int, int]) -> tuple[Var, Var]:
        weight = p.declare(f"weight_{kind}_{name}", shape, normal(shape, 1 / math.sqrt(shape[1])))
        return weight, p.declare(f"bias_{kind}_{name}", shape[:1], normal(shape[:1], 0.1))

    def step(self, x: Var, h: Var, c: Var) -> Sequence[Var]:
        """The next h and c, (1, hidden) each, after input x (1, inward)."""
        sums = op.add(op.gemm(x, *self._input, transB=1), op.gemm(h, *self._recurrent, transB=1))
        i, f, g, o = op.split(sums, num_outputs=4, axis=1)
        c = op.add(op.mul(op.sigmoid(f), c), op.mul(op.sigmoid(i), op.tanh(g)))
        return op.mul(op.sigmoid(o), op.tanh(c)), c
