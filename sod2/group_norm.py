"""Group normalisation, as exporters spell it, becomes one node.

Before ONNX had the operator it was written as Reshape to [N, groups, rest], InstanceNormalization, Reshape back, and
Mul and Add by one number per channel. One kernel reads the image once for its statistics and once for its result,
applies both factors at once and takes the activation behind them as its epilogue.

What must hold is proved: the first Reshape keeps the images apart and makes a constant number of groups, which divides
the channels, and the second one brings back the image's own dims. The statistics' scale and bias are constants.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sod2.frontend import without_dead
from sod2.graph import Array, Graph, Node
from sod2.lattice import Shape, same_dims
from sod2.rdp import Analysis
from sod2.symbolic import Dim, eq


@dataclass
class _Norm:
    """A group normalisation of `image` that ends in the node `last`; scale and bias by channel."""

    image: str
    last: Node
    groups: int
    epsilon: float
    scale: Array
    bias: Array


def fuse(graph: Graph, analysis: Analysis) -> Graph:
    """The graph with every group normalisation as one node."""
    found = {n.last.name: n for node in graph.nodes if (n := _norm(node, graph, analysis)) is not None}
    constants, nodes = dict(graph.constants), []
    for node in graph.nodes:
        norm = found.get(node.name)
        nodes.append(node if norm is None else _built(norm, constants))
    return without_dead(replace(graph, nodes=tuple(nodes), constants=constants)) if found else graph


def _built(norm: _Norm, constants: dict[str, Array]) -> Node:
    (output,) = norm.last.outputs
    scale, bias = f"{output}~scale", f"{output}~bias"
    constants[scale], constants[bias] = norm.scale, norm.bias
    attrs = {"num_groups": norm.groups, "epsilon": norm.epsilon}
    name = f"GroupNormalization/{norm.last.name}"
    return Node(name, "GroupNormalization", (norm.image, scale, bias), (output,), attrs, norm.last.guard)


def _norm(node: Node, graph: Graph, analysis: Analysis) -> _Norm | None:
    """The group normalisation around an InstanceNormalization."""
    if node.op != "InstanceNormalization" or node.domain or any(t not in graph.constants for t in node.inputs[1:]):
        return None
    apart, back = graph.producer.get(node.inputs[0]), _only_reader(node, graph)
    if apart is None or back is None or apart.op != "Reshape" or back.op != "Reshape" or apart.guard != node.guard:
        return None
    image, inner = analysis[apart.inputs[0]], analysis.made(apart)
    if image.dtype != np.float32 or not same_dims(image.shape, analysis.made(back)) or len(image.dims) < 3:
        return None
    groups = _groups(image.dims, inner)
    if groups is None:
        return None
    scale, bias = (np.repeat(graph.constants[t], int(image.dims[1]) // groups) for t in node.inputs[1:])
    norm = _Norm(apart.inputs[0], back, groups, float(node.attrs.get("epsilon", 1e-5)), scale, bias)
    return _with_factors(norm, graph, len(image.dims))


def _groups(image: Sequence[Dim], inner: Shape) -> int | None:
    """Into how many groups of whole channels a Reshape from `image` to `inner` [N, groups, rest] divides an image."""
    if not isinstance(inner, tuple) or len(inner) != 3:
        return None
    images, groups, _ = inner
    if not isinstance(images, Dim) or eq(images, image[0]) is not True or not isinstance(groups, Dim):
        return None
    if not groups.is_constant or not image[1].is_constant or int(groups) < 1 or int(image[1]) % int(groups):
        return None
    return int(groups)


def _with_factors(norm: _Norm, graph: Graph, rank: int) -> _Norm:
    """The normalisation with the Mul and the Add by constants of each channel behind it."""
    for op in ("Mul", "Add"):
        reader = _only_reader(norm.last, graph)
        if reader is None or reader.op != op or reader.domain:
            continue
        (other,) = [t for t in reader.inputs if t != norm.last.outputs[0]] or [""]
        factor = _by_channel(graph.constants.get(other), rank, len(norm.scale))
        if factor is None:
            break
        norm.last = reader
        norm.bias = norm.bias * factor if op == "Mul" else norm.bias + factor
        norm.scale = norm.scale * factor if op == "Mul" else norm.scale
    return norm


def _by_channel(array: Array | None, rank: int, channels: int) -> Array | None:
    """The numbers of a constant that broadcasts over images and pixels, one for each channel."""
    if array is None or array.ndim > rank or array.dtype != np.float32:
        return None
    padded = (1,) * (rank - array.ndim) + array.shape
    fits = all(n == 1 for i, n in enumerate(padded) if i != 1) and padded[1] in (1, channels)
    return np.broadcast_to(array.reshape(-1), channels) if fits else None


def _only_reader(node: Node, graph: Graph) -> Node | None:
    """The node that alone reads a node's result, in the same branch."""
    (tensor,) = node.outputs
    readers = graph.consumers.get(tensor, ())
    alone = len(readers) == 1 and tensor not in graph.outputs and readers[0].guard == node.guard
    return readers[0] if alone and readers[0].inputs.count(tensor) == 1 else None
