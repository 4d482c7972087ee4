"""Attention: softmax(scale * Q K^T + mask) V for every batch and head in one kernel (runtime/attention.c).

An operator of domain "sod2": it is no ONNX node but what the compiler makes of MatMul, Softmax and MatMul. Since the
kernel takes strides, the transposes and reshapes around them vanish too. Where the dims of an operand are is said by a
layout: "bhsd" [batch, heads, rows, features], "bshd" [batch, rows, heads, features] or "bsd" [batch, rows, heads *
features] (attribute `heads`). Attributes: scale, q_layout, k_layout, v_layout, o_layout, heads (for "bsd").
The optional mask is added to the scores and broadcasts to [batch, heads, query rows, key rows]. Instead of it there may
be two terms of relative positions in a map whose cells are the keys, row by row: `down` [batch * heads, .., map rows]
is added by a key's row, `across` [batch * heads, .., map columns] by its column; the dims between are the query rows.
Relative positions in a sequence are a second product: `place` has the layout of q, `distances` (p_layout) a row for
every j - i from 1 - rows to rows - 1, and q k^T + place distances^T is what the scale multiplies. Where `hidden` (of
bool, broadcasting like the mask) is `hides`, a score is replaced by `fill`.
Operands: q, k, v, mask, down, across, place, distances, hidden; from mask on they may be absent.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sod2.errors import UnsupportedError
from sod2.graph import Node
from sod2.lattice import Shape
from sod2.ops.anchor import Anchor, count, dims_of, f32, initializer, known_dims, must_equal, require_float32
from sod2.ops.attributes import present
from sod2.ops.elementwise import broadcast_guards
from sod2.ops.lift import Element, lift, product
from sod2.ops.op import Array, Call, Facts, MappingType, register
from sod2.symbolic import Dim, as_dim, floordiv

LAYOUTS = ("bhsd", "bshd", "bsd")
_LAID_LIKE = {"place": "q", "distances": "p"}  # operands whose layout has another name


class Sides(NamedTuple):
    """The dims of one operand by meaning."""

    batch: Element
    heads: Element
    rows: Element
    features: Element


def layout_of(node: Node, operand: str) -> str:
    """Where the dims of operand q, k, v, o or p (distances) are; "bhsd" by default."""
    layout = str(node.attrs.get(f"{operand}_layout", "bhsd"))
    if layout not in LAYOUTS:
        raise UnsupportedError(f"{operand}_layout={layout!r} of Attention (node {node.name!r}) is not in {LAYOUTS}")
    return layout


def sides(node: Node, operand: str, dims: Sequence[Element]) -> Sides:
    """The dims of an operand by meaning."""
    layout = layout_of(node, operand)
    if layout == "bsd":
        heads = int(node.attrs["heads"])
        return Sides(dims[0], as_dim(heads), dims[1], lift(lambda d: floordiv(d, heads), dims[2]))
    b, first, second, d = dims
    return Sides(b, first, second, d) if layout == "bhsd" else Sides(b, second, first, d)


def strides(node: Node, operand: str, s: Sides) -> tuple[Dim, Dim, Dim]:
    """Floats from one batch, head and row to the next."""
    heads, rows, features = (known(d) for d in s[1:])
    if layout_of(node, operand) == "bhsd":
        return heads * rows * features, rows * features, features
    return heads * rows * features, features, heads * features


def known(d: Element) -> Dim:
    """The dim, which has to be an expression."""
    if not isinstance(d, Dim):
        raise UnsupportedError(f"Attention needs shapes that are known before execution, but a dim is {d}")
    return d


@register(domain="sod2")
class Attention(Anchor):
    """o = softmax(scale * q k^T + mask) v."""

    mapping = MappingType.MANY_TO_MANY

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        q, v = sides(node, "q", dims_of(x[0])), sides(node, "v", dims_of(x[2]))
        match layout_of(node, "o"):
            case "bhsd":
                return [(q.batch, q.heads, q.rows, v.features)]
            case "bshd":
                return [(q.batch, q.rows, q.heads, v.features)]
            case _:
                return [(q.batch, q.rows, lift(lambda h, d: h * d, q.heads, v.features))]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        q, k, v = (sides(node, name, dims_of(x[i])) for i, name in enumerate("qkv"))
        pairs = must_equal(q.features, k.features) + must_equal(k.rows, v.rows)
        for other in (k, v):
            pairs += must_equal(q.batch, other.batch) + must_equal(q.heads, other.heads)
        mask = present(x, 3)
        if mask is not None:
            pairs += broadcast_guards([dims_of(mask), (q.batch, q.heads, q.rows, k.rows)])
        hidden = present(x, 8)
        if hidden is not None:
            pairs += broadcast_guards([dims_of(hidden), (q.batch, q.heads, q.rows, k.rows)])
        if present(x, 6) is not None:
            pairs += self._distance_guards(node, q, k, x)
        terms = [dims_of(term) for i in (4, 5) if (term := present(x, i)) is not None]
        for dims in terms:
            pairs += must_equal(dims[0], product((q.batch, q.heads))) + must_equal(product(dims[1:-1]), q.rows)
        if terms:
            pairs += must_equal(product(dims[-1] for dims in terms), k.rows)
        return pairs

    @staticmethod
    def _distance_guards(node: Node, q: Sides, k: Sides, x: Facts) -> list[tuple[Dim, Dim]]:
        """There is a place for every query, and a distance of as many features for every two of them."""
        place, distances = sides(node, "q", dims_of(x[6])), sides(node, "p", dims_of(x[7]))
        pairs = must_equal(q.rows, k.rows) + must_equal(lift(lambda n: 2 * n - 1, q.rows), distances.rows)
        for left, right in ((q, place), (place._replace(rows=distances.rows), distances)):
            pairs += [pair for a, b in zip(left, right, strict=True) for pair in must_equal(a, b)]
        return pairs

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        require_float32(node, *x[:8])
        found = {name: sides(node, name, known_dims(x[i])) for i, name in enumerate("qkv")}
        q, keys, v = found["q"], found["k"], found["v"]
        found["o"] = Sides(q.batch, q.heads, q.rows, v.features)
        sizes = {"batch": q.batch, "heads": q.heads, "sq": q.rows, "sk": keys.rows, "d": q.features, "dv": v.features}
        fields: dict[str, object] = {name: k.c(known(d)) for name, d in sizes.items()}
        fields |= {"q": k.pointer(0), "k": k.pointer(1), "v": k.pointer(2), "o": k.result()}
        fields["scale"] = f32(float(node.attrs.get("scale", 1.0)))
        if present(x, 3) is not None:
            fields["mask"] = k.pointer(3)
            fields |= self._strides_of_scores(k, "mask", known_dims(x[3]))
        if present(x, 4) is not None:
            fields |= {"down": k.pointer(4), "across": k.pointer(5), "columns": k.c(known_dims(x[5])[-1])}
        if present(x, 6) is not None:
            fields |= {"relative": 1, "place": k.pointer(6), "distances": k.pointer(7)}
            found |= {"place": q, "distances": sides(node, "p", known_dims(x[7]))}
        if present(x, 8) is not None:
            fields |= {
                "hidden": k.pointer(8),
                "hides": int(node.attrs["hides"]),
                "fill": f32(float(node.attrs["fill"])),
            }
            fields |= self._strides_of_scores(k, "hidden", known_dims(x[8]))
        for name, s in found.items():
            steps = zip(("batch", "head", "row"), strides(node, _LAID_LIKE.get(name, name), s), strict=True)
            fields |= {f"{name}_{what}": k.c(step) for what, step in steps}
        k.setup(initializer("g", "sod2_attention", **fields))
        scratch = k.scratch("sod2_attention_scratch(&g, threads)")
        return f"sod2_attention_run(&g, {scratch}, pool);"

    @staticmethod
    def _strides_of_scores(k: Call, operand: str, dims: Sequence[Dim]) -> dict[str, object]:
        """Elements between neighbours of an operand along each dim of the scores, 0 where it is broadcast."""
        names = [f"{operand}_{side}" for side in ("batch", "head", "row", "col")][4 - len(dims) :]
        steps: dict[str, object] = {}
        for i, (name, d) in enumerate(zip(names, dims, strict=True)):
            step = k.c(count(dims[i + 1 :]))
            if d != 1:
                steps[name] = step if d.is_constant else f"{k.c(d)} == 1 ? 0 : {step}"
        return steps

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        def heads_first(operand: str, a: Array | None) -> Array:
            assert a is not None
            wide = a.astype(np.float64)
            if layout_of(node, operand) == "bsd":
                wide = wide.reshape(*wide.shape[:2], int(node.attrs["heads"]), -1)
            return wide if layout_of(node, operand) == "bhsd" else wide.transpose(0, 2, 1, 3)

        q, k, v = (heads_first(name, a) for name, a in zip("qkv", arrays[:3], strict=True))
        mask, down, across, place, distances, hidden = (present(arrays, i) for i in range(3, 9))
        scores = q @ k.transpose(0, 1, 3, 2)
        if place is not None:
            every = heads_first("q", place) @ heads_first("p", distances).transpose(0, 1, 3, 2)
            rows = np.arange(scores.shape[2])
            scores = scores + every[..., rows[:, None], rows - rows[:, None] + len(rows) - 1]
        scores = float(node.attrs.get("scale", 1.0)) * scores
        if hidden is not None:
            scores = np.where(hidden == bool(node.attrs["hides"]), float(node.attrs["fill"]), scores)
        if mask is not None:
            scores = scores + mask.astype(np.float64)
        if down is not None and across is not None:
            below, beside = (a.reshape(*scores.shape[:3], -1) for a in (down, across))
            scores = scores + (below[..., :, None] + beside[..., None, :]).reshape(scores.shape)
        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
        total = weights.sum(axis=-1, keepdims=True)
        o = (weights / np.where(total == 0, 1, total)) @ v
        if layout_of(node, "o") != "bhsd":
            o = o.transpose(0, 2, 1, 3)
        if layout_of(node, "o") == "bsd":
            o = o.reshape(*o.shape[:2], -1)
        assert arrays[0] is not None
        return [o.astype(arrays[0].dtype)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(21)

        def arrays(*shapes: Sequence[int]) -> list[Array]:
            return [random.standard_normal(s).astype(np.float32) for s in shapes]

        yield {"scale": 0.5}, arrays((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4))
        yield {"scale": 0.25}, arrays((1, 2, 6, 16), (1, 2, 6, 16), (1, 2, 6, 16), (1, 1, 1, 6))
        merged = {f"{name}_layout": "bsd" for name in "qkvo"} | {"heads": 2, "scale": 0.5}
        yield merged, arrays((2, 5, 12), (2, 9, 12), (2, 9, 8), (2, 1, 5, 9))
        apart = {f"{name}_layout": "bshd" for name in "qkv"} | {"o_layout": "bsd", "heads": 3}
        yield apart, arrays((1, 4, 3, 8), (1, 4, 3, 8), (1, 4, 3, 8))
        yield {"scale": 1.0}, arrays((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1), (1, 1))
        for b, h, w in ((3, 4, 5), (1, 1, 1), (2, 3, 17), (1, 40, 20)):
            q, *rest = arrays((b, h * w, 8), (b, h * w, 8), (b, h * w, 4), (b, h, w, h), (b, h, w, w))
            yield {**merged, "heads": 1}, [q, *rest[:2], None, *rest[2:]]
        far = {"scale": 0.3, "q_layout": "bshd", "k_layout": "bshd", "p_layout": "bshd"}
        for b, heads, rows in ((1, 2, 5), (2, 1, 1), (1, 2, 70), (1, 1, 600)):
            q, k, v, place, distances = arrays(
                *((b, rows, heads, 8), (b, rows, heads, 8), (b, heads, rows, 4)),
                *((b, rows, heads, 8), (b, 2 * rows - 1, heads, 8)),
            )
            yield far, [q, k, v, None, None, None, place, distances]
        for hides, shape in ((1, (1, 1, 1, 7)), (0, (2, 1, 5, 7)), (1, (5, 1)), (0, (2, 3, 5, 7))):
            hidden = random.integers(0, 2, shape).astype(bool)
            q, k, v = arrays((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4))
            yield {"scale": 0.5, "hides": hides, "fill": -2.0}, [q, k, v, *[None] * 5, hidden]
