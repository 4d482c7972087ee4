"""The sum of two 1x1 convolutions is one over both images: Wa a + Wb b = [Wa Wb] [a; b].

A residual block whose shortcut is a projection ends in such a sum. Computed as one convolution, neither summand is
written to memory and read back, and the kernel runs over twice the depth. The images are joined by a Concat along the
channels, which copies nothing where both can be computed inside its result (parts.py).

Both convolutions must be plain (stride 1, no padding, one group) with constant weights and biases, lie in the branch of
the sum, be read by nothing else and have provably the same dims. Where a summand has fewer elements than the images,
joining those could cost more than it saves, so the sum stays as it is.
"""

from dataclasses import replace

import numpy as np

from sod2.frontend import without_dead
from sod2.graph import Array, Graph, Node
from sod2.ops.window import auto_pad
from sod2.rdp import Analysis
from sod2.symbolic import eq


def fuse(graph: Graph, analysis: Analysis) -> Graph:
    """The graph with every such sum as one convolution."""
    constants, nodes = dict(graph.constants), []
    for node in graph.nodes:
        pair = _summands(node, graph, analysis)
        nodes += [node] if pair is None else _joined(node, pair, constants)
    return without_dead(replace(graph, nodes=tuple(nodes), constants=constants))


def _summands(node: Node, graph: Graph, analysis: Analysis) -> tuple[Node, Node] | None:
    """The two convolutions that an Add adds, where one can take their place."""
    if node.op != "Add" or node.domain:
        return None
    a, b = (graph.producer.get(t) for t in node.inputs)
    if a is None or b is None or a is b or not all(_is_plain(n, node, graph) for n in (a, b)):
        return None
    left, right = analysis[a.inputs[0]], analysis[b.inputs[0]]
    if left.rank != 4 or right.rank != 4:
        return None
    wa, wb = (graph.constants[n.inputs[1]] for n in (a, b))
    same = all(eq(p, q) is True for i, (p, q) in enumerate(zip(left.dims, right.dims, strict=True)) if i != 1)
    return (a, b) if same and len(wa) == len(wb) >= wa.shape[1] + wb.shape[1] else None


def _is_plain(node: Node, reader: Node, graph: Graph) -> bool:
    """A 1x1 convolution over all pixels with constant operands, whose only reader is `reader`, beside it."""
    if node.op != "Conv" or node.domain or node.guard != reader.guard or node.outputs[0] in graph.outputs:
        return False
    alone = len(graph.consumers[node.outputs[0]]) == 1
    weights, *bias = (graph.constants.get(t) for t in node.inputs[1:] if t)
    if not alone or weights is None or any(b is None for b in bias) or weights.shape[2:] != (1, 1):
        return False
    strides, pads = node.attrs.get("strides", ()), node.attrs.get("pads", ())
    unit = all(s == 1 for s in strides) and not any(pads)
    return unit and auto_pad(node) in ("NOTSET", "VALID") and node.attrs.get("group", 1) == 1


def _joined(node: Node, pair: tuple[Node, Node], constants: dict[str, Array]) -> list[Node]:
    """Concat and convolution in place of `node`; adds their weights to `constants`."""
    output = node.outputs[0]
    image, weights, bias = (f"{output}~{part}" for part in ("images", "weights", "bias"))
    constants[weights] = np.concatenate([constants[n.inputs[1]] for n in pair], axis=1)
    inputs = [image, weights]
    biases = [constants[n.inputs[2]] for n in pair if len(n.inputs) > 2 and n.inputs[2]]
    if biases:
        constants[bias] = np.sum(biases, axis=0, dtype=constants[weights].dtype)
        inputs.append(bias)
    concat = Node(f"{node.name}~images", "Concat", tuple(n.inputs[0] for n in pair), (image,), {"axis": 1}, node.guard)
    return [concat, Node(node.name, "Conv", tuple(inputs), node.outputs, {}, node.guard)]
