"""Kernels of the runtime compute in float: around one that meets 16-bit floats, Casts are put.

The Cast behind becomes part of the kernel's epilogue where it takes one; what lies between two such nodes is computed
and stored in 16 bits as the model says. Element expressions need none of this: they convert as they load.
"""

from dataclasses import replace

import numpy as np

from sod2.dtypes import element_type, is_float
from sod2.graph import Graph, Node
from sod2.ops import OPS
from sod2.rdp import Analysis

_FLOAT32 = 1  # onnx.TensorProto.FLOAT


def run(graph: Graph, analysis: Analysis) -> Graph:
    """The graph with Casts around the kernels that need them; the graph itself when none does."""
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += _widened(node, analysis)
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=tuple(nodes))


def _widened(node: Node, analysis: Analysis) -> list[Node]:
    op = OPS(node)
    narrow = [t for t in dict.fromkeys((*node.inputs, *node.outputs)) if t and _is_narrow(analysis, t)]
    if not narrow or op.any_dtype or not op.is_anchor(node, analysis.of(node.inputs)):
        return [node]
    wide = {t: f"{t}:wide:{node.name}" for t in narrow}
    before = [_cast(node, t, wide[t], _FLOAT32) for t in narrow if t in node.inputs]
    after = [_cast(node, wide[t], t, element_type(analysis[t].dtype).number) for t in narrow if t in node.outputs]
    inputs = tuple(wide.get(t, t) for t in node.inputs)
    return [*before, replace(node, inputs=inputs, outputs=tuple(wide.get(t, t) for t in node.outputs)), *after]


def _is_narrow(analysis: Analysis, tensor: str) -> bool:
    dtype = analysis[tensor].dtype
    return is_float(dtype) and dtype.itemsize < np.dtype(np.float32).itemsize


def _cast(node: Node, source: str, target: str, to: int) -> Node:
    return Node(f"{node.name}:{target}", "Cast", (source,), (target,), {"to": to}, node.guard)
