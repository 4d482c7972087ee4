"""Products with a matrix are computed where their rows are fewest.

A product with a constant matrix treats all rows alike and makes zeros of zeros, so it changes places with whatever only
moves rows (`Op.moves_rows`). It goes before a Pad that adds rows of zeros, and behind a Slice that drops some, across
the Reshapes and Transposes between. Attention within windows is where it pays: a picture is padded to whole windows and
cropped again, and small pictures are mostly padding. The vector that is added to a product goes with it behind a Slice;
behind a Pad it stays, since rows of zeros have it too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import numpy as np

from sod2.frontend import without_dead
from sod2.graph import Array, Graph, Node
from sod2.lattice import Shape
from sod2.ops import OPS
from sod2.rdp import Analysis
from sod2.simplify import fold_constants
from sod2.symbolic import Dim, ge


@dataclass(frozen=True)
class _Exchange:
    """The nodes that go and those that come, in order, and new constants."""

    gone: list[Node]
    come: list[Node]
    constants: dict[str, Array]


@dataclass(frozen=True)
class _Mover:
    graph: Graph
    analysis: Analysis

    def moved(self, product: Node) -> _Exchange | None:
        """A product that changes places with moves of rows."""
        matrix = self.graph.constants.get(product.inputs[1])
        if matrix is None or matrix.ndim != 2 or not matrix.size:
            return None
        source, output = product.inputs[0], product.outputs[0]
        rows = f"{output}~rows"
        moves = self.chain(product, "Pad", self.before)[::-1]
        if moves and np.isfinite(matrix).all():  # else it makes no zeros of zeros
            come, constants = _resized(moves, rows, matrix.shape[1], output)
            first = replace(product, inputs=(moves[0].inputs[0], product.inputs[1]), outputs=(rows,))
            return _Exchange([*moves, product], [first, *come], constants)
        kept = [product, *self.biased(product, matrix)]
        if moves := self.chain(kept[-1], "Slice", self.behind):
            come, constants = _resized(moves, source, matrix.shape[0], rows)
            names = {source: rows, kept[-1].outputs[0]: moves[-1].outputs[0]}
            return _Exchange([*kept, *moves], [*come, *(_renamed(n, names) for n in kept)], constants)
        return None

    def chain(self, node: Node, wanted: str, step: Callable[[Node], Node | None]) -> list[Node]:
        """The moves of rows from a node on that end with the last one of the operator `wanted`."""
        found: list[Node] = []
        at = step(node)
        while at is not None and at.guard == node.guard and self.is_move(at, wanted):
            found.append(at)
            at = step(at)
        ends = [i for i, n in enumerate(found, 1) if n.op == wanted]
        return found[: ends[-1]] if ends else []

    def before(self, node: Node) -> Node | None:
        """What makes the operand of a node, for it alone."""
        made = self.graph.producer.get(node.inputs[0])
        return made if made is not None and self.reader(made) is node else None

    def behind(self, node: Node) -> Node | None:
        """What alone reads the result of a node, as its operand."""
        reader = self.reader(node)
        return reader if reader is not None and reader.inputs[0] == node.outputs[0] else None

    def reader(self, node: Node) -> Node | None:
        """The node that alone reads what a node makes."""
        readers = self.graph.consumers.get(node.outputs[0], ())
        alone = len(readers) == 1 and node.outputs[0] not in self.graph.outputs
        return readers[0] if alone and readers[0].inputs.count(node.outputs[0]) == 1 else None

    def biased(self, product: Node, matrix: Array) -> list[Node]:
        """The addition of a vector of constants that alone reads a product, if there is one."""
        add = self.reader(product)
        if add is None or add.op != "Add" or add.domain or add.guard != product.guard:
            return []
        (other,) = (t for t in add.inputs if t != product.outputs[0])
        vector = self.graph.constants.get(other)
        return [add] if vector is not None and vector.shape in ((), (1,), matrix.shape[1:]) else []

    def is_move(self, node: Node, wanted: str) -> bool:
        """Whether a node only moves rows; one of the wanted operator provably adds some or none, or drops."""
        if node.op not in ("Reshape", "Transpose", wanted) or node.domain:
            return False
        x, y, made = self.analysis.of(node.inputs), self.analysis.of(node.outputs), self.analysis.made(node)
        if x[0] is None or y[0] is None or not _known(x[0].shape) or not _known(made):
            return False
        if node.op == wanted:
            few, many = (x[0].shape, made) if wanted == "Pad" else (made, x[0].shape)
            if not all(ge(b, a) is True for a, b in zip(few, many, strict=True)):
                return False
        return OPS(node).moves_rows(node, x, [replace(y[0], shape=made)])


def _known(shape: Shape) -> TypeGuard[tuple[Dim, ...]]:
    return isinstance(shape, tuple) and all(isinstance(d, Dim) for d in shape)


def _renamed(node: Node, names: dict[str, str]) -> Node:
    inputs, outputs = (tuple(names.get(t, t) for t in tensors) for tensors in (node.inputs, node.outputs))
    return replace(node, inputs=inputs, outputs=outputs)


def _resized(moves: Sequence[Node], source: str, columns: int, result: str) -> tuple[list[Node], dict[str, Array]]:
    """The same moves from a tensor with rows of another length to `result`, and constants for their targets."""
    constants = {f"{result}~{name}": np.array([n]) for name, n in (("length", columns), ("first", 0), ("last", -1))}
    length, *rows = constants
    nodes: list[Node] = []
    for move in moves:
        output = result if move is moves[-1] else f"{result}~{move.outputs[0]}"
        operands = move.inputs[1:]
        if move.op == "Reshape":
            kept, target = f"{output}~kept", f"{output}~target"
            nodes.append(Node(kept, "Slice", (move.inputs[1], *rows), (kept,), {}, move.guard))
            nodes.append(Node(target, "Concat", (kept, length), (target,), {"axis": 0}, move.guard))
            operands = (target,)
        nodes.append(replace(move, inputs=(source, *operands), outputs=(output,)))
        source = output
    return nodes, constants


def run(graph: Graph, analysis: Analysis) -> Graph:
    """The graph with every such product at its new place."""
    mover, constants = _Mover(graph, analysis), dict(graph.constants)
    placed: dict[str, list[Node]] = {}  # by the node that they come in the place of
    gone: set[str] = set()
    for node in graph.nodes:
        found = mover.moved(node) if node.op == "MatMul" and not node.domain else None
        if found is None or gone.intersection(n.name for n in found.gone):
            continue
        gone.update(n.name for n in found.gone)
        placed[found.gone[-1].name] = found.come
        constants |= found.constants
    if not placed:
        return graph
    nodes = [n for old in graph.nodes for n in placed.get(old.name, [] if old.name in gone else [old])]
    return without_dead(fold_constants(replace(graph, nodes=tuple(nodes), constants=constants)))
