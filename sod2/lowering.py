"""Operators expressed by others, before anything is analysed: what remains has a kernel of its own.

Einsum of two operands becomes MatMul between Transposes: labels of both operands and of the result are batch dims,
those of both operands alone are summed, and MatMul's broadcasting takes the labels that only the first operand has. An
equation with a repeated label inside an operand, an ellipsis, or more than one summed or second-only label stays as it
is; code generation then refuses it by name.
"""

from dataclasses import dataclass, replace

from sod2.graph import Graph, Node


def run(graph: Graph) -> Graph:
    """The graph with every operator that can be lowered."""
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += _einsum(node) if node.op == "Einsum" and not node.domain else [node]
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
