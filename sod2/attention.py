"""Fuse MatMul - Softmax - MatMul into one Attention node, with the scales, the mask and the transposes around it.

DNNFusion's table forbids fusing two Many-to-Many operators; attention is the known exception that pays: the score
matrix never exists in memory, and since the kernel takes strides, the transposes that split and join the heads vanish.
What must hold is read off the facts: rank 4, Softmax over the last axis, an additive mask that broadcasts to the
scores, and no other reader of the tensors in between.

Heads that lie in the first of three dims are taken too. Their scores may have been seen as [heads, rows, columns, rows,
columns] of two maps, for terms that depend on the row or the column of the key only (decomposed relative positions).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sod2.frontend import without_dead
from sod2.graph import Graph, Node
from sod2.lattice import Shape
from sod2.ops import lift
from sod2.rdp import Analysis
from sod2.symbolic import Dim, eq

_HEADS = [0, 2, 1, 3]  # [batch, rows, heads, features] <-> [batch, heads, rows, features]
_KEYS = [0, 2, 3, 1]  # [batch, rows, heads, features] -> [batch, heads, features, rows]
_SWAP = [0, 1, 3, 2]
_FLAT = {"heads": 1, **{f"{operand}_layout": "bsd" for operand in "qkvo"}}  # [batch * heads, rows, features]


@dataclass(frozen=True)
class _Match:
    """A node of the pattern that ends in `last`, whose output it takes over."""

    last: Node
    inputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    output: str


@dataclass(frozen=True)
class _Matcher:
    graph: Graph
    analysis: Analysis

    def only(self, tensor: str, op: str) -> Node | None:
        """The producer of a tensor when it is such an operator and the tensor has one reader."""
        node = self.graph.producer.get(tensor)
        single = len(self.graph.consumers.get(tensor, ())) == 1 and tensor not in self.graph.outputs
        return node if node is not None and node.op == op and not node.domain and single else None

    def reader(self, tensor: str, op: str) -> Node | None:
        """The single reader of a tensor when it is such an operator."""
        readers = self.graph.consumers.get(tensor, ())
        alone = len(readers) == 1 and tensor not in self.graph.outputs
        return readers[0] if alone and readers[0].op == op and not readers[0].domain else None

    def scalar(self, tensor: str) -> float | None:
        value = self.analysis[tensor].known_value
        known = value is not None and value.size == 1 and value.dtype == np.float32
        return float(value.reshape(-1)[0]) if known and value is not None else None

    def transposed(self, tensor: str, order: list[int]) -> str | None:
        """What a Transpose in this order reads, when it makes the tensor."""
        node = self.graph.producer.get(tensor)
        fits = node is not None and node.op == "Transpose" and list(node.attrs.get("perm", ())) == order
        return node.inputs[0] if fits and node is not None else None

    def scaled(self, tensor: str) -> tuple[Node, float] | None:
        """The MatMul behind an optional multiplication or division by a scalar, and the factor."""
        product = self.only(tensor, "MatMul")
        if product is not None:
            return product, 1.0
        for op in ("Mul", "Div"):
            node = self.only(tensor, op)
            if node is None:
                continue
            for inner, other in ((0, 1), (1, 0))[: 2 if op == "Mul" else 1]:
                factor, product = self.scalar(node.inputs[other]), self.only(node.inputs[inner], "MatMul")
                if product is not None and factor:
                    return product, factor if op == "Mul" else 1 / factor
        return None

    def unscaled(self, tensor: str) -> tuple[str, float]:
        """What a multiplication by a scalar reads, and the factor; the tensor itself and 1 where there is none."""
        node = self.only(tensor, "Mul")
        if node is None:
            return tensor, 1.0
        for inner, other in (node.inputs, reversed(node.inputs)):
            factor = self.scalar(other)
            if factor and self.keeps_shape(node, inner):
                return inner, factor
        return tensor, 1.0

    def masked(self, tensor: str) -> tuple[Node, float, str] | None:
        """The scores' MatMul, the scale, and the mask's tensor ("" without one)."""
        direct = self.scaled(tensor)
        if direct is not None:
            return *direct, ""
        add = self.only(tensor, "Add")
        if add is None:
            return None
        for scores, mask in (add.inputs, reversed(add.inputs)):
            found = self.scaled(scores)
            if found is not None and self.keeps_shape(add, scores):
                return *found, mask
        return None

    def keeps_shape(self, node: Node, operand: str) -> bool:
        """Whether an element-wise node broadcasts an operand to nothing larger."""
        return _same(self.analysis.made(node), self.analysis[operand].shape)

    def term(self, tensor: str) -> tuple[int, str] | None:
        """A term of keys in a map: 3 if it depends on their column, 4 on their row, and what makes it."""
        node = self.only(tensor, "Unsqueeze")
        axes = None if node is None else self.analysis[node.inputs[1]].known_value
        if node is None or axes is None or axes.size != 1 or self.analysis[tensor].rank != 5:
            return None
        return int(axes.reshape(-1)[0]) % 5, node.inputs[0]

    def mapped(self, tensor: str) -> tuple[Node, float, str, str] | None:
        """The scores' MatMul, the scale, and the terms of the keys' rows and columns."""
        outer = self.only(tensor, "Reshape")
        if outer is None:
            return None
        inside, terms = outer.inputs[0], {}
        for _ in range(2):
            add = self.only(inside, "Add")
            pairs = [] if add is None else [add.inputs, tuple(reversed(add.inputs))]
            found = next(((scores, term) for scores, name in pairs if (term := self.term(name)) is not None), None)
            if found is None:
                return None
            inside = found[0]
            terms[found[1][0]] = found[1][1]
        inner = self.only(inside, "Reshape")
        product = None if inner is None else self.scaled(inner.inputs[0])
        if product is None or set(terms) != {3, 4} or not self.is_map(inside, tensor, terms):
            return None
        return *product, terms[4], terms[3]

    def is_map(self, seen: str, scores: str, terms: Mapping[int, str]) -> bool:
        """Whether scores [heads, queries, keys] seen as [heads, rows, columns, rows, columns] broadcast to no more."""
        shape, *found = (self.analysis[t].shape for t in (seen, scores, terms[4], terms[3]))
        if not isinstance(shape, tuple):
            return False
        heads, h, w, rows, columns = shape
        wanted = (
            (heads, lift.product((h, w)), lift.product((rows, columns))),
            (heads, h, w, rows),
            (heads, h, w, columns),
        )
        return all(_same(dims, like) for dims, like in zip(found, wanted, strict=True))

    def match(self, softmax: Node) -> _Match | None:
        rank = self.analysis[softmax.outputs[0]].rank
        product = self.reader(softmax.outputs[0], "MatMul")
        if rank not in (3, 4) or softmax.attrs.get("axis", -1) not in (-1, rank - 1):
            return None
        if product is None or product.inputs[0] != softmax.outputs[0]:
            return None
        if self.analysis[softmax.outputs[0]].dtype != np.float32:
            return None
        if rank == 3:
            return self.match_flat(softmax, product)
        found = self.masked(softmax.inputs[0])
        if found is None or not self.together(found[0], softmax, product):
            return None
        scores, scale, mask = found
        return self.built(scores, product, scale, mask)

    def together(self, scores: Node, softmax: Node, product: Node) -> bool:
        """Whether the three run in one branch, and neither product broadcasts a head to several."""
        shapes = [self.analysis[t].shape for t in (*softmax.outputs, *scores.inputs, product.inputs[1])]
        heads = [shape[:-2] if isinstance(shape, tuple) else shape for shape in shapes]
        return all(n.guard == softmax.guard for n in (scores, product)) and all(_same(heads[0], h) for h in heads)

    def match_flat(self, softmax: Node, product: Node) -> _Match | None:
        """Attention whose heads are in the first dim."""
        terms: tuple[str, ...] = ()
        found = self.scaled(softmax.inputs[0])
        if found is None:
            mapped = self.mapped(softmax.inputs[0])
            if mapped is None:
                return None
            found, terms = mapped[:2], ("", *mapped[2:])
        scores, scale = found
        (q, q_scale), (k, k_scale) = map(self.unscaled, scores.inputs)
        keys = self.transposed(k, [0, 2, 1])
        if keys is None or not self.together(scores, softmax, product):
            return None
        attrs = {**_FLAT, "scale": scale * q_scale * k_scale}
        return _Match(product, (q, keys, product.inputs[1], *terms), attrs, product.outputs[0])

    def built(self, scores: Node, product: Node, scale: float, mask: str) -> _Match | None:
        (q, q_scale), (k, k_scale), v = *map(self.unscaled, scores.inputs), product.inputs[1]
        attrs: dict[str, Any] = {"scale": scale * q_scale * k_scale}
        q, attrs["q_layout"] = self.operand(q)
        v, attrs["v_layout"] = self.operand(v)
        if (rows_first := self.transposed(k, _KEYS)) is not None:
            k, attrs["k_layout"] = rows_first, "bshd"
        elif (plain := self.transposed(k, _SWAP)) is not None:
            k, attrs["k_layout"] = self.operand(plain)
        else:
            return None
        joined = self.reader(product.outputs[0], "Transpose")
        if joined is not None and list(joined.attrs.get("perm", ())) == _HEADS and joined.guard == product.guard:
            return _Match(joined, _operands(q, k, v, mask), {**attrs, "o_layout": "bshd"}, joined.outputs[0])
        return _Match(product, _operands(q, k, v, mask), attrs, product.outputs[0])

    def operand(self, tensor: str) -> tuple[str, str]:
        """A tensor [batch, heads, rows, features], or what its Transpose reads, and the layout."""
        source = self.transposed(tensor, _HEADS)
        return (tensor, "bhsd") if source is None else (source, "bshd")


def _same(left: Shape, right: Shape) -> bool:
    """Whether two shapes are provably equal."""
    if not isinstance(left, tuple) or not isinstance(right, tuple) or len(left) != len(right):
        return False
    return all(isinstance(p, Dim) and isinstance(q, Dim) and eq(p, q) is True for p, q in zip(left, right, strict=True))


def _operands(q: str, k: str, v: str, mask: str) -> tuple[str, ...]:
    return (q, k, v, mask) if mask else (q, k, v)


def fuse(graph: Graph, analysis: Analysis) -> Graph:
    """The graph with every attention pattern as one node of domain `sod2`."""
    matcher = _Matcher(graph, analysis)
    matches = [m for n in graph.nodes if n.op == "Softmax" and not n.domain and (m := matcher.match(n)) is not None]
    by_last = {m.last.name: m for m in matches}
    nodes = []
    for node in graph.nodes:
        found = by_last.get(node.name)
        if found is None:
            nodes.append(node)
        else:
            name = f"Attention/{node.name}"
            nodes.append(Node(name, "Attention", found.inputs, (found.output,), found.attrs, node.guard, "sod2"))
    return without_dead(replace(graph, nodes=tuple(nodes)))
