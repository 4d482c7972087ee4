"""Operators expressed by others, before anything is analysed: what remains has a kernel of its own.

Einsum of two operands becomes MatMul between Transposes: labels of both operands and of the result are batch dims,
those of both operands alone are summed, and MatMul's broadcasting takes the labels that only the first operand has. An
equation with a repeated label inside an operand, an ellipsis, or more than one summed or second-only label stays as it
is and runs as a loop. Recurrent layers of layout 1 (batch first) become layers of layout 0 between Transposes,
an optimiser step over several tensors one for each. Operators of com.microsoft are in contrib.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from sod2 import contrib
from sod2.graph import Graph, Node


def run(graph: Graph) -> Graph:
    """The graph with every operator that can be lowered."""
    nodes: list[Node] = []
    for node in graph.nodes:
        lower = _LOWERED.get((node.domain, node.op))
        nodes += [node] if lower is None else lower(node)
    return replace(graph, nodes=tuple(nodes))


@dataclass(frozen=True)
class _Product:
    """Orders of the labels of both operands as MatMul wants them, and of its result."""

    left: str
    right: str
    result: str


def _product(left: str, right: str, result: str) -> _Product | None:
    """How a product is arranged; None when it is not one that MatMul computes without reshapes."""
    distinct = all(len(set(t)) == len(t) for t in (left, right, result))
    summed = [t for t in left if t in right and t not in result]
    batch = [t for t in right if t in left and t in result]
    own, other = [t for t in left if t not in right], [t for t in right if t not in left]
    complete = set(result) == set(own) | set(batch) | set(other)
    if not distinct or not complete or len(summed) != 1 or len(other) != 1 or not own:
        return None
    rows = own[-1]
    outer = "".join(own[:-1]) + "".join(batch)
    return _Product(
        left=f"{outer}{rows}{summed[0]}",
        right=f"{''.join(batch)}{summed[0]}{other[0]}",
        result=f"{outer}{rows}{other[0]}",
    )


def _einsum(node: Node) -> list[Node]:
    equation = str(node.attrs.get("equation", "")).replace(" ", "")
    sides, arrow, result = equation.partition("->")
    operands = sides.split(",")
    if not arrow or len(operands) != 2 or "." in equation:
        return [node]
    found = _product(operands[0], operands[1], result)
    if found is None:
        return [node]
    sides_of = zip(("left", "right"), node.inputs, operands, (found.left, found.right), strict=True)
    nodes: list[Node] = []
    arranged = []
    for side, tensor, given, wanted in sides_of:
        name = tensor if given == wanted else f"{node.outputs[0]}:{side}"
        arranged.append(name)
        if given != wanted:
            attrs = {"perm": _permutation(given, wanted)}
            part = replace(
                node, name=f"{node.name}:{side}", op="Transpose", inputs=(tensor,), outputs=(name,), attrs=attrs
            )
            nodes.append(part)
    straight = found.result == result
    product = node.outputs[0] if straight else f"{node.outputs[0]}:product"
    label = f"{node.name}:product"
    nodes.append(replace(node, name=label, op="MatMul", inputs=tuple(arranged), outputs=(product,), attrs={}))
    if not straight:
        perm = _permutation(found.result, result)
        nodes.append(replace(node, op="Transpose", inputs=(product,), attrs={"perm": perm}))
    return nodes


def _permutation(given: str, wanted: str) -> list[int]:
    return [given.index(label) for label in wanted]


def _batch_first(node: Node) -> list[Node]:
    """A recurrent layer of layout 1 as one of layout 0 between Transposes."""
    if not node.attrs.get("layout", 0):
        return [node]
    states = (5, 6) if node.op == "LSTM" else (5,)
    inputs, outputs = list(node.inputs), list(node.outputs)
    before, after = [], []
    for i in (0, *states):
        if i < len(inputs) and inputs[i]:
            name = f"{node.outputs[0] or node.name}:operand{i}"
            before.append(_transpose(node, inputs[i], name, [1, 0, 2]))
            inputs[i] = name
    for i, tensor in enumerate(node.outputs):
        if tensor:
            outputs[i] = f"{tensor}:steps"
            after.append(_transpose(node, outputs[i], tensor, [2, 0, 1, 3] if i == 0 else [1, 0, 2]))
    attrs = {name: value for name, value in node.attrs.items() if name != "layout"}
    return [*before, replace(node, inputs=tuple(inputs), outputs=tuple(outputs), attrs=attrs), *after]


def _one_by_one(states: int) -> Callable[[Node], list[Node]]:
    """An optimiser step over several tensors as one step for each."""

    def lower(node: Node) -> list[Node]:
        n = (len(node.inputs) - 2) // (2 + states)
        if n == 1:
            return [node]
        return [
            replace(
                node,
                name=f"{node.name}:{k}",
                inputs=(*node.inputs[:2], *node.inputs[2 + k :: n]),
                outputs=node.outputs[k::n],
            )
            for k in range(n)
        ]

    return lower


def _transpose(node: Node, source: str, target: str, perm: list[int]) -> Node:
    return Node(f"{node.name}:{target}", "Transpose", (source,), (target,), {"perm": perm}, node.guard)


_LOWERED: dict[tuple[str, str], Callable[[Node], list[Node]]] = {
    **contrib.LOWERED,
    ("", "Einsum"): _einsum,
    **{("", name): _batch_first for name in ("LSTM", "GRU", "RNN")},
    **{("ai.onnx.preview.training", n): _one_by_one(k) for n, k in (("Momentum", 1), ("Adagrad", 1), ("Adam", 2))},
}
