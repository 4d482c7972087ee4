"""Static clean-ups that every variant of the compiler gets, the ablation baseline included.

Nodes whose inputs are all constants are folded by their reference; BatchNormalization behind a convolution with
constant weights is folded into them; nodes that no output needs are dropped. Folding leaves a node alone when its
result would be larger than `_MAX_GROWTH` times its inputs and not small: constants are stored, expressions are free.
"""

from dataclasses import replace

import numpy as np

from sod2 import lowering
from sod2.errors import UnsupportedError
from sod2.frontend import without_dead
from sod2.graph import Array, Graph, Node
from sod2.ops import OPS
from sod2.redundancy import share_reductions

_MAX_GROWTH = 4
_SMALL = 1 << 16  # elements
_NEVER = (
    "Switch",
    "Combine",
    "LoopBegin",
    "LoopEnd",
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Multinomial",
)


def run(graph: Graph) -> Graph:
    """Lower what has no kernel, fold constants and BatchNormalization, share reductions, then drop what is dead."""
    return without_dead(share_reductions(fold_batch_norm(fold_constants(lowering.run(graph)))))


def fold_constants(graph: Graph) -> Graph:
    """Evaluate nodes of constant inputs. A predicate that is constant keeps its branches: Combine stays correct."""
    constants = dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        folded = _evaluate(node, constants)
        if folded is None:
            nodes.append(node)
        else:
            constants.update(zip((t for t in node.outputs), folded, strict=False))
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _evaluate(node: Node, constants: dict[str, Array]) -> list[Array] | None:
    if node.op in _NEVER or node.domain or not node.inputs or any(t and t not in constants for t in node.inputs):
        return None
    arrays = [constants[t] if t else None for t in node.inputs]
    try:
        results = OPS(node).reference(node, *arrays)
    except UnsupportedError:
        return None
    given = sum(a.size for a in arrays if a is not None)
    if sum(r.size for r in results) > max(_SMALL, _MAX_GROWTH * given):
        return None
    return results


def fold_batch_norm(graph: Graph) -> Graph:
    """Conv -> BatchNormalization with constant parameters becomes Conv with scaled weights and a bias."""
    constants = dict(graph.constants)
    renamed: dict[str, Node] = {}
    dropped = set()
    for node in graph.nodes:
        conv = graph.producer.get(node.inputs[0]) if node.op == "BatchNormalization" and not node.domain else None
        if conv is None or not _foldable(graph, conv, node):
            continue
        scale, shift, mean, variance = (constants[t].astype(np.float64) for t in node.inputs[1:5])
        factor = scale / np.sqrt(variance + node.attrs.get("epsilon", 1e-5))
        weights = constants[conv.inputs[1]]
        bias = constants[conv.inputs[2]].astype(np.float64) if len(conv.inputs) > 2 else 0.0
        names = f"{conv.inputs[1]}*{node.name}", f"{node.name}.bias"
        constants[names[0]] = (weights * factor.reshape(-1, *[1] * (weights.ndim - 1))).astype(weights.dtype)
        constants[names[1]] = (shift + (bias - mean) * factor).astype(weights.dtype)
        renamed[conv.name] = replace(conv, inputs=(conv.inputs[0], *names), outputs=(node.outputs[0],))
        dropped.add(node.name)
    nodes = tuple(renamed.get(n.name, n) for n in graph.nodes if n.name not in dropped)
    return replace(graph, nodes=nodes, constants=constants)


def _foldable(graph: Graph, conv: Node, norm: Node) -> bool:
    return (
        conv.op == "Conv"
        and conv.guard == norm.guard
        and len([t for t in norm.outputs if t]) == 1
        and not norm.attrs.get("training_mode")
        and all(t in graph.constants for t in (*conv.inputs[1:], *norm.inputs[1:5]))
        and len(graph.consumers.get(conv.outputs[0], ())) == 1
        and conv.outputs[0] not in graph.outputs
    )
