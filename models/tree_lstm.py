"""Binary Tree-LSTM over a parsed sentence, its recursion unrolled by an ONNX `Loop`: a workload of Nimble.

Inputs: `words` (N, 300), the vector of each leaf's word and zeros at inner nodes; `children` (N, 2) int64, the numbers
of each node's left and right child, counted from 1, and 0 for none. Nodes are in post-order, so children come before
their parents and the root is the last one. Output: `logits` (1, 5), the class of the root.

The loop visits the nodes in order; how deep the tree is and which states a step reads depends on the values of
`children`. It carries h and c of all nodes, (N + 1, hidden) each, whose row 0 stays zero: the absent child's. A node's
row is written by a Where on its number, an element-wise operator which every engine has. A step is the N-ary Tree-LSTM
of Tai et al. with N = 2 (equations 9 to 14); with l and r the children,

    i = σ(W_i x + U_il h_l + U_ir h_r + b_i)           o, u likewise, u under tanh
    f_l = σ(W_f x + U_ll h_l + U_lr h_r + b_f)         f_r = σ(W_f x + U_rl h_l + U_rr h_r + b_f)
    c = i ⊙ u + f_l ⊙ c_l + f_r ⊙ c_r                  h = o ⊙ tanh(c)

Variants: in `full` the loop runs N times. In `padded` the arrays may be longer than the tree: the `children` of what
follows the root are -1. The number of steps is then a value that the graph counts, not a shape.

Source: Tai, Socher, Manning, ACL 2015; sizes of Nimble (Shen et al., MLSys 2021), 300 inputs and 150 hidden units on
the Stanford Sentiment Treebank. Parameter names are ours: no checkpoint of this form is known.
"""

import math
from dataclasses import dataclass

import numpy as np
import spox
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models.blocks import dim, integers, vector
from models.parameters import Parameters, normal


@dataclass(frozen=True)
class Config:
    """Width of a word, width of the states, classes, and whether arrays may be longer than the tree."""

    words: int
    hidden: int
    classes: int
    padded: bool = False


CONFIGS = {
    "full": Config(300, 150, 5),
    "tiny": Config(12, 10, 3),
    "padded": Config(300, 150, 5, padded=True),
    "tiny-padded": Config(12, 10, 3, padded=True),
}
PADDED = tuple(variant for variant, config in CONFIGS.items() if config.padded)


def compose(p: Parameters, variant: str) -> tuple[dict[str, Var], dict[str, Var]]:
    """Inputs and outputs of the network; the full one has 406,355 parameters."""
    config = CONFIGS[variant]
    words = spox.argument(spox.Tensor(np.float32, ("N", config.words)))
    children = spox.argument(spox.Tensor(np.int64, ("N", 2)))
    nodes = dim(words, 0)
    count = _nodes(children) if config.padded else nodes
    cell = _Cell(p, config)
    rows = op.add(nodes, integers(1))
    start = op.expand(op.const(np.zeros((1, config.hidden), np.float32)), vector(rows, 1))
    numbers = op.range(op.const(np.int64(0)), op.squeeze(rows, integers(0)), op.const(np.int64(1)))
    numbers = op.unsqueeze(numbers, integers(1))

    def step(index: Var, running: Var, h: Var, c: Var) -> list[Var]:
        node = op.reshape(index, integers(1))
        x = op.gather(words, node)
        pair = op.reshape(op.gather(children, node), integers(2))
        new_h, new_c = cell.step(x, op.gather(h, pair), op.gather(c, pair))
        own = op.equal(numbers, op.add(node, integers(1)))
        return [op.identity(running), op.where(own, new_h, h), op.where(own, new_c, c)]

    h, _ = op.loop(count, op.const(np.array([True])), [start, start], body=step)
    root = op.gather(h, count)
    shape = (config.classes, config.hidden)
    weight = p.declare("output.weight", shape, normal(shape, 1 / math.sqrt(config.hidden)))
    bias = p.declare("output.bias", (config.classes,), normal((config.classes,), 0.1))
    return {"words": words, "children": children}, {"logits": op.gemm(root, weight, bias, transB=1)}


def _nodes(children: Var) -> Var:
    """How many rows are nodes and no padding, int64 (1,)."""
    left = op.gather(children, op.const(np.int64(0)), axis=1)
    present = op.greater_or_equal(left, op.const(np.int64(0)))
    return op.reduce_sum(op.cast(present, to=np.int64), keepdims=1)


class _Cell:
    """The weights of all nodes: of the input for i, o, u and f; of both children's h for i, o, u and both f."""

    def __init__(self, p: Parameters, config: Config) -> None:
        hidden = config.hidden
        of_input, of_children = (4 * hidden, config.words), (5 * hidden, 2 * hidden)
        self._input = p.declare("cell.input.weight", of_input, normal(of_input, 1 / math.sqrt(config.words)))
        self._bias = p.declare("cell.input.bias", of_input[:1], normal(of_input[:1], 0.1))
        std = 1 / math.sqrt(2 * hidden)
        self._children = p.declare("cell.children.weight", of_children, normal(of_children, std))

    def step(self, x: Var, h: Var, c: Var) -> tuple[Var, Var]:
        """The node's h and c, (1, hidden) each, from its word x and its children's h and c, (2, hidden) each."""
        joined = op.reshape(h, integers(1, -1))
        *own, forget = op.split(op.gemm(x, self._input, self._bias, transB=1), num_outputs=4, axis=1)
        *theirs, left, right = op.split(op.gemm(joined, self._children, transB=1), num_outputs=5, axis=1)
        i, o, u = (op.add(a, b) for a, b in zip(own, theirs, strict=True))
        forgets = op.sigmoid(op.add(op.concat([left, right], axis=0), forget))
        kept = op.reduce_sum(op.mul(forgets, c), integers(0))
        cell = op.add(op.mul(op.sigmoid(i), op.tanh(u)), kept)
        return op.mul(op.sigmoid(o), op.tanh(cell)), cell
