"""CodeBERT: the RoBERTa-base encoder, without the pooler.

Inputs: `input_ids` and `attention_mask`, int64 (1, T), one symbol for both. Output: `last_hidden_state`
(1, T, hidden), float32. Post-norm transformer with eager attention (MatMul, Softmax, MatMul) and exact GELU; position
ids count the tokens that are not padding and start behind the padding id. Nodes are those of the PyTorch export: the
attention mask becomes an additive bias by Where, head splitting reshapes by a run-time length.

Source: the published RoBERTa configuration (vocabulary 50265, hidden 768, 12 layers, 12 heads, feed-forward 3072,
514 positions); written from the description of the architecture.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import spox
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models.blocks import dim, gelu, integers, layer_norm, linear, scalar, vector
from models.parameters import Parameters, normal

PADDING = 1
EPSILON = 1e-5


class Run(NamedTuple):
    """What every layer reads of the run: the attention bias, and the shapes that split and join the heads."""

    bias: Var  # (1, 1, T, T)
    split: Var  # (1, T, heads, head size)
    join: Var  # (1, T, hidden)


@dataclass(frozen=True)
class Config:
    """Sizes of the encoder."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    feed_forward: int
    positions: int = 514


CONFIGS = {
    "full": Config(50265, 768, 12, 12, 3072),
    "tiny": Config(1000, 128, 2, 4, 256),
}


def compose(p: Parameters, variant: str) -> tuple[dict[str, Var], dict[str, Var]]:
    """Inputs and outputs of the encoder; the full one has 124,055,040 parameters, the pooler's 590,592 left out."""
    config = CONFIGS[variant]
    ids = spox.argument(spox.Tensor(np.int64, (1, "T")))
    mask = spox.argument(spox.Tensor(np.int64, (1, "T")))
    length = dim(ids, 1)
    split = vector(1, length, -1, config.hidden // config.heads)
    run = Run(_mask_bias(mask), split, vector(1, length, -1))
    x = _embed(p, config, ids)
    for layer in range(config.layers):
        x = _layer(p, config, x, run, f"encoder.layer.{layer}")
    return {"input_ids": ids, "attention_mask": mask}, {"last_hidden_state": x}


def _position_ids(ids: Var) -> Var:
    """Position of each token among those that are not padding, counted from PADDING + 1; padding keeps PADDING."""
    present = op.cast(op.not_(op.equal(ids, op.const(np.int64(PADDING)))), to=np.int32)
    counted = op.cast(op.cumsum(op.cast(present, to=np.int64), op.const(np.int64(1))), to=np.int32)
    return op.add(op.cast(op.mul(counted, present), to=np.int64), op.const(np.int64(PADDING)))


def _embed(p: Parameters, config: Config, ids: Var) -> Var:
    """Sum of word, token-type and position embeddings, normalised."""

    def table(name: str, rows: int) -> Var:
        shape = (rows, config.hidden)
        return p.declare(f"embeddings.{name}_embeddings.weight", shape, normal(shape, 1.0))

    positions = _position_ids(ids)
    all_types = op.const(np.zeros((1, config.positions), np.int64))
    types = op.gather_elements(all_types, positions, axis=1)
    x = op.add(op.gather(table("word", config.vocabulary), ids), op.gather(table("token_type", 1), types))
    x = op.add(x, op.gather(table("position", config.positions), positions))
    return layer_norm(p, x, "embeddings.LayerNorm", config.hidden, EPSILON)


def _mask_bias(mask: Var) -> Var:
    """Additive attention bias (1, 1, T, T): zero where the key token counts, the lowest float where it is padding."""
    keys = op.unsqueeze(op.cast(mask, to=np.bool_), integers(1, 2))
    length = dim(mask, 1)
    visible = op.expand(keys, vector(1, 1, length, length))
    return op.where(visible, scalar(0.0), scalar(float(np.finfo(np.float32).min)))


def _layer(p: Parameters, config: Config, x: Var, run: Run, name: str) -> Var:
    """One post-norm transformer layer."""
    hidden = config.hidden
    attended = _attention(p, config, x, run, f"{name}.attention.self")
    attended = linear(p, attended, f"{name}.attention.output.dense", (hidden, hidden))
    x = layer_norm(p, op.add(attended, x), f"{name}.attention.output.LayerNorm", hidden, EPSILON)
    expanded = gelu(linear(p, x, f"{name}.intermediate.dense", (hidden, config.feed_forward)))
    reduced = linear(p, expanded, f"{name}.output.dense", (config.feed_forward, hidden))
    return layer_norm(p, op.add(reduced, x), f"{name}.output.LayerNorm", hidden, EPSILON)


def _attention(p: Parameters, config: Config, x: Var, run: Run, name: str) -> Var:
    """Multi-head attention before the output projection, (1, T, hidden)."""
    size = config.hidden // config.heads

    def project(role: str, order: list[int]) -> Var:
        projected = linear(p, x, f"{name}.{role}", (config.hidden, config.hidden))
        return op.transpose(op.reshape(projected, run.split), perm=order)

    query = project("query", [0, 2, 1, 3])
    key = project("key", [0, 2, 3, 1])
    value = project("value", [0, 2, 1, 3])
    scores = op.mul(op.matmul(query, key), scalar(1 / math.sqrt(size)))
    weights = op.softmax(op.add(scores, run.bias), axis=-1)
    joined = op.transpose(op.matmul(weights, value), perm=[0, 2, 1, 3])
    return op.reshape(joined, run.join)
