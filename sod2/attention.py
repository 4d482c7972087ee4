"""Fuse MatMul - Softmax - MatMul into one Attention node, with the scales, the mask and the transposes around it.

DNNFusion's table forbids fusing two Many-to-Many operators; attention is the known exception that pays: the score
matrix never exists in memory, and since the kernel takes strides, the transposes that split and join the heads vanish.
What must hold is read off the facts: rank 4, Softmax over the last axis, an additive mask that broadcasts to the
scores, and no other reader of the tensors in between.

Heads that lie in the first of three dims are taken too. Their scores may have been seen as [heads, rows, columns, rows,
columns] of two maps, for terms that depend on the row or the column of the key only (decomposed relative positions).

Relative positions in a sequence, as Transformer-XL spells them, are a second product whose columns are distances, and
whose rows Pad, Reshape and Slice shift until columns are keys. A Where that replaces scores by a number is the last
thing before Softmax.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sod2.frontend import without_dead
from sod2.graph import Graph, Node
from sod2.lattice import NAC, Shape, same_dims
from sod2.ops import OPS, lift
from sod2.ops.pad import Pad
from sod2.ops.slice import Slice
from sod2.rdp import Analysis
from sod2.symbolic import Dim, as_dim, eq

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
class _Scores:
    """How the argument of Softmax is made: `product` is of queries and keys, `far` of places and distances."""

    product: Node
    scale: float
    mask: str = ""
    far: Node | None = None
    hidden: str = ""
    attrs: Mapping[str, Any] = field(default_factory=dict)  # of what is hidden


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

    def scaled(self, tensor: str, wanted: str = "MatMul") -> tuple[Node, float] | None:
        """The MatMul behind an optional multiplication or division by a scalar, and the factor."""
        product = self.only(tensor, wanted)
        if product is not None:
            return product, 1.0
        for op in ("Mul", "Div"):
            node = self.only(tensor, op)
            if node is None:
                continue
            for inner, other in ((0, 1), (1, 0))[: 2 if op == "Mul" else 1]:
                factor, product = self.scalar(node.inputs[other]), self.only(node.inputs[inner], wanted)
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

    def scores(self, tensor: str) -> _Scores | None:
        """How a tensor of rank 4 is made, where it is scores."""
        where = self.only(tensor, "Where")
        if where is None:
            return self.visible(tensor) or self.masked(tensor)
        condition, *sides = where.inputs
        for hides, (replaced, number) in ((0, sides), (1, reversed(sides))):
            fill, found = self.scalar(number), self.visible(replaced)
            if fill is not None and found is not None and self.keeps_shape(where, replaced):
                return replace(found, hidden=condition, attrs={"hides": hides, "fill": fill})
        return None

    def visible(self, tensor: str) -> _Scores | None:
        """Scores to which nothing was added but relative positions."""
        if (direct := self.scaled(tensor)) is not None:
            return _Scores(*direct)
        found = self.scaled(tensor, "Add")
        if found is None:
            return None
        add, scale = found
        for near, moved in (add.inputs, reversed(add.inputs)):
            product, far = self.only(near, "MatMul"), self.shifted(moved)
            if product is not None and far is not None and self.fit(add, product, far):
                return _Scores(product, scale, far=far)
        return None

    def fit(self, add: Node, product: Node, far: Node) -> bool:
        """Whether there is a place for every query, a row of distances for every head, and nothing is broadcast."""
        q, k, place, distances = (self.analysis[t].shape for n in (product, far) for t in n.inputs)
        heads = [shape[:-2] for shape in (q, k, distances) if isinstance(shape, tuple)]
        alike = len(heads) == 3 and all(same_dims(heads[0], other) for other in heads)
        return alike and same_dims(q, place) and all(self.keeps_shape(add, t) for t in add.inputs)

    def shifted(self, tensor: str) -> Node | None:
        """The MatMul [.., n, 2n - 1] whose row i was moved left by n - 1 - i and cut to n: with a column before it, it
        is seen as 2n rows of n, the first of those is dropped, and the others are seen as n rows again."""
        last, steps = tensor, []
        for op in ("Slice", "Reshape", "Slice", "Reshape", "Pad"):
            node = self.only(last, op)
            if node is None:
                return None
            steps.append(node)
            last = node.inputs[0]
        far, shape = self.only(last, "MatMul"), self.analysis[last].shape
        if far is None or not isinstance(shape, tuple) or len(shape) != 4:
            return None
        *heads, n, distances = shape
        if not isinstance(n, Dim) or not isinstance(distances, Dim) or eq(distances, 2 * n - 1) is not True:
            return None
        rows = ((n, n), (n, distances), (distances, n), (2 * n, n), (n, 2 * n))
        fits = all(same_dims((*heads, *r), self.analysis.made(step)) for r, step in zip(rows, steps, strict=True))
        begins = zip((steps[4], steps[2], steps[0]), ((0, 0, 0, -1), (0, 0, 1, 0), (0, 0, 0, 0)), strict=True)
        return far if fits and all(same_dims(self.begin(step), tuple(map(as_dim, at))) for step, at in begins) else None

    def begin(self, node: Node) -> Shape:
        """Where in its operand the first element of a Pad is, or of a Slice that skips none."""
        rule, x = OPS(node), self.analysis.of(node.inputs)
        if isinstance(rule, Pad):
            return tuple(lift.lift(operator.neg, before) for before, _ in rule.pads(node, x) or [])
        assert isinstance(rule, Slice)
        spans = rule.spans(node, x) or []
        return tuple(as_dim(0) if s is None else s.start if s.step == 1 else NAC for s in spans)

    def masked(self, tensor: str) -> _Scores | None:
        """Scores to which a mask was added."""
        add = self.only(tensor, "Add")
        if add is None:
            return None
        for scores, mask in (add.inputs, reversed(add.inputs)):
            found = self.scaled(scores)
            if found is not None and self.keeps_shape(add, scores):
                return _Scores(*found, mask)
        return None

    def keeps_shape(self, node: Node, operand: str) -> bool:
        """Whether an element-wise node broadcasts an operand to nothing larger."""
        return same_dims(self.analysis.made(node), self.analysis[operand].shape)

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
        return all(same_dims(dims, like) for dims, like in zip(found, wanted, strict=True))

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
        found = self.scores(softmax.inputs[0])
        if found is None or not self.together(found.product, softmax, product):
            return None
        return self.built(found, product)

    def together(self, scores: Node, softmax: Node, product: Node) -> bool:
        """Whether the three run in one branch, and neither product broadcasts a head to several."""
        shapes = [self.analysis[t].shape for t in (*softmax.outputs, *scores.inputs, product.inputs[1])]
        heads = [shape[:-2] if isinstance(shape, tuple) else shape for shape in shapes]
        return all(n.guard == softmax.guard for n in (scores, product)) and all(same_dims(heads[0], h) for h in heads)

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

    def built(self, scores: _Scores, product: Node) -> _Match | None:
        (q, q_scale), (k, k_scale) = map(self.unscaled, scores.product.inputs)
        attrs: dict[str, Any] = {**scores.attrs, "scale": scores.scale * q_scale * k_scale}
        q, attrs["q_layout"] = self.operand(q)
        v, attrs["v_layout"] = self.operand(product.inputs[1])
        if (keys := self.keys(k)) is None:
            return None
        k, attrs["k_layout"] = keys
        place, distances = "", ""
        if scores.far is not None:
            place, layout = self.operand(scores.far.inputs[0])
            rows = self.keys(scores.far.inputs[1])
            if rows is None or layout != attrs["q_layout"] or q_scale * k_scale != 1.0:
                return None
            distances, attrs["p_layout"] = rows
        operands = [q, k, v, scores.mask, "", "", place, distances, scores.hidden]
        while not operands[-1]:
            operands.pop()
        joined = self.reader(product.outputs[0], "Transpose")
        if joined is not None and list(joined.attrs.get("perm", ())) == _HEADS and joined.guard == product.guard:
            return _Match(joined, tuple(operands), {**attrs, "o_layout": "bshd"}, joined.outputs[0])
        return _Match(product, tuple(operands), attrs, product.outputs[0])

    def keys(self, tensor: str) -> tuple[str, str] | None:
        """What a Transpose to [batch, heads, features, rows] reads, and its layout."""
        if (rows_first := self.transposed(tensor, _KEYS)) is not None:
            return rows_first, "bshd"
        plain = self.transposed(tensor, _SWAP)
        return None if plain is None else self.operand(plain)

    def operand(self, tensor: str) -> tuple[str, str]:
        """A tensor [batch, heads, rows, features], or what its Transpose reads, and the layout."""
        source = self.transposed(tensor, _HEADS)
        return (tensor, "bhsd") if source is None else (source, "bshd")


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
