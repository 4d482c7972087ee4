"""GRU and RNN: all steps of a recurrent layer in one anchor (runtime/recurrent_real.h).

x [steps, batch, input], weights [directions, gates hidden, ...], the gates of GRU in the order z, r, h. Layout 1 is
lowered to layout 0 (lowering.py).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.errors import ModelError, UnsupportedError
from sod2.graph import Node
from sod2.lattice import UNDEF, Shape
from sod2.ops.anchor import Anchor, dims_of, f32, initializer, known_dims, must_equal, ranked_dims, real_suffix
from sod2.ops.attributes import present
from sod2.ops.lift import Element, lift
from sod2.ops.op import Array, Call, Facts, MappingType, register
from sod2.ops.rnn import directions_of
from sod2.ops.unary import sigmoid, softplus
from sod2.symbolic import Dim, as_dim

Act = tuple[str, float, float]  # name in lower case, alpha, beta

# name -> (default alpha, default beta, function)
FUNCTIONS: dict[str, tuple[float, float, Callable[[Array, float, float], Any]]] = {
    "sigmoid": (0, 0, lambda x, a, b: sigmoid(x)),
    "tanh": (0, 0, lambda x, a, b: np.tanh(x)),
    "relu": (0, 0, lambda x, a, b: np.maximum(x, 0)),
    "affine": (1, 0, lambda x, a, b: a * x + b),
    "leakyrelu": (0.01, 0, lambda x, a, b: np.where(x < 0, a * x, x)),
    "thresholdedrelu": (1, 0, lambda x, a, b: np.where(x > a, x, 0)),
    "scaledtanh": (1, 1, lambda x, a, b: a * np.tanh(b * x)),
    "hardsigmoid": (0.2, 0.5, lambda x, a, b: np.clip(a * x + b, 0, 1)),
    "elu": (1, 0, lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x)),
    "softsign": (0, 0, lambda x, a, b: x / (1 + np.abs(x))),
    "softplus": (0, 0, lambda x, a, b: softplus(x)),
}


class Recurrent(Anchor):
    """Outputs y [steps, directions, batch, hidden] and y_h [directions, batch, hidden]; each may be absent."""

    mapping = MappingType.MANY_TO_MANY
    gates = 1
    defaults: tuple[str, ...] = ("tanh",)

    def _activations(self, node: Node) -> list[Act]:
        """Those of each direction in turn."""
        names = [str(a).lower() for a in node.attrs.get("activations") or self.defaults * directions_of(node)]
        alphas, betas = (list(node.attrs.get(n, [])) for n in ("activation_alpha", "activation_beta"))
        found = []
        for name in names:
            if name not in FUNCTIONS:
                raise ModelError(
                    f"{node.op} (node {node.name!r}) has activation {name!r}; accepted are {', '.join(FUNCTIONS)}"
                )
            alpha, beta, _ = FUNCTIONS[name]
            takes = name in ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu")
            alpha = float(alphas.pop(0)) if takes and alphas else alpha
            beta = float(betas.pop(0)) if name in ("affine", "scaledtanh", "hardsigmoid") and betas else beta
            found.append((name, alpha, beta))
        return found

    def _hidden(self, node: Node, x: Facts) -> Element:
        return as_dim(int(node.attrs["hidden_size"])) if "hidden_size" in node.attrs else dims_of(x[2])[2]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        if node.attrs.get("layout", 0):
            raise UnsupportedError(f"{node.op} (node {node.name!r}) has layout=1; layout 0 is supported")
        steps, batch, _ = ranked_dims(node, x, 0, 3)
        directions, hidden = as_dim(directions_of(node)), self._hidden(node, x)
        shapes: list[Shape] = [(steps, directions, batch, hidden), (directions, batch, hidden)]
        return shapes[: len(node.outputs)]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return [UNDEF] * len(node.inputs)

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        hidden, (w, r) = self._hidden(node, x), (dims_of(x[1]), dims_of(x[2]))
        rows = lift(lambda h: h * self.gates, hidden)
        return (
            must_equal(dims_of(x[0])[2], w[2])
            + must_equal(r[2], hidden)
            + must_equal(w[1], rows)
            + must_equal(r[1], rows)
        )

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        steps, batch, inputs = known_dims(x[0])
        pointers = {name: "NULL" if present(x, i) is None else k.pointer(i)
                    for i, name in ((0, "x"), (1, "w"), (2, "r"), (3, "b"), (4, "lengths"), (5, "h0"))}  # fmt: skip
        wanted = {
            name: k.result(i) if i < len(node.outputs) and node.outputs[i] else "NULL"
            for i, name in enumerate(("y", "y_h"))
        }
        acts = ", ".join(f"{{SOD2_ACT_{n.upper()}, {f32(a)}, {f32(b)}}}" for n, a, b in self._activations(node))
        k.setup(
            initializer(
                "g", "sod2_recurrent", steps=k.c(steps), batch=k.c(batch), input=k.c(inputs),
                hidden=k.c(known_dims(x[2])[2]),
                directions=directions_of(node), reverse=int(node.attrs.get("direction", "forward") == "reverse"),
                gru=int(node.op == "GRU"), linear_before_reset=int(node.attrs.get("linear_before_reset", 0)),
                clip=f32(float(node.attrs.get("clip", math.inf))), act=f"{{{acts}}}", **pointers, **wanted,
            )
        )  # fmt: skip
        suffix = real_suffix(node, *x[:4], *x[5:])
        scratch = k.scratch(f"sod2_recurrent_scratch{suffix}(&g, threads)")
        return f"sod2_recurrent_run{suffix}(&g, {scratch}, pool);"

    def cell(
        self, node: Node, x: Array, h: Array, weights: Sequence[Array], acts: Sequence[Callable[[Array], Any]]
    ) -> Array:
        """The next state of one sequence from (input, state, (w, r, w's bias, r's bias), activations), in float64."""
        raise NotImplementedError

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, w, r, b, lengths, h0 = [*arrays, *[None] * (6 - len(arrays))][:6]
        assert x is not None and w is not None and r is not None
        steps, batch, _ = x.shape
        hidden, directions = r.shape[2], len(w)
        y = np.zeros((steps, directions, batch, hidden))
        h = np.zeros((directions, batch, hidden)) if h0 is None else h0.astype(np.float64)
        found, clip = self._activations(node), float(node.attrs.get("clip", math.inf))
        per = len(found) // directions
        for d in range(directions):
            acts = [
                lambda v, a=a: FUNCTIONS[a[0]][2](np.clip(v, -clip, clip), *a[1:])
                for a in found[d * per : (d + 1) * per]
            ]
            bias = np.zeros((2, self.gates * hidden)) if b is None else b[d].astype(np.float64).reshape(2, -1)
            backward = d == 1 or node.attrs.get("direction", "forward") == "reverse"
            for n in range(batch):
                order = range(steps if lengths is None else int(lengths[n]))
                for t in reversed(order) if backward else order:
                    weights = (w[d].astype(np.float64), r[d].astype(np.float64), *bias)
                    h[d, n] = self.cell(node, x[t, n].astype(np.float64), h[d, n], weights, acts)
                    y[t, d, n] = h[d, n]
        return [a.astype(x.dtype) for a in (y, h)][: len(node.outputs)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(70)

        def arrays(steps: int, batch: int, inputs: int, hidden: int, directions: int) -> list[Array]:
            rows = self.gates * hidden
            shapes = [(steps, batch, inputs), (directions, rows, inputs), (directions, rows, hidden),
                      (directions, 2 * rows), (directions, batch, hidden)]  # fmt: skip
            return [random.standard_normal(s).astype(np.float32) for s in shapes]

        x, w, r, b, h0 = arrays(4, 2, 3, 5, 1)
        yield {"hidden_size": 5}, [x, w, r]
        yield {"hidden_size": 5, "direction": "reverse"}, [x, w, r, b, np.array([4, 2], np.int32), h0]
        yield {"hidden_size": 5, "clip": 0.5}, [x, w, r, b]
        x, w, r, b, h0 = arrays(3, 1, 4, 2, 2)
        yield {"hidden_size": 2, "direction": "bidirectional"}, [x, w, r, b, None, h0]


@register()
class RNN(Recurrent):
    """h = f(w x + r h + biases)."""

    def cell(
        self, node: Node, x: Array, h: Array, weights: Sequence[Array], acts: Sequence[Callable[[Array], Any]]
    ) -> Array:
        w, r, wb, rb = weights
        return np.asarray(acts[0](w @ x + r @ h + wb + rb))


@register()
class GRU(Recurrent):
    """h = (1 - z) g(candidate) + z h, with the gates z and r by f."""

    gates = 3
    defaults = ("sigmoid", "tanh")

    def cell(
        self, node: Node, x: Array, h: Array, weights: Sequence[Array], acts: Sequence[Callable[[Array], Any]]
    ) -> Array:
        w, r, wb, rb = weights
        f, g = acts
        (wz, wr, wh), (rz, rr, rh) = np.split(w @ x + wb, 3), np.split(r, 3)
        bz, br, bh = np.split(rb, 3)
        z, reset = f(wz + rz @ h + bz), f(wr + rr @ h + br)
        if node.attrs.get("linear_before_reset", 0):
            candidate = g(wh + reset * (rh @ h + bh))
        else:
            candidate = g(wh + rh @ (reset * h) + bh)
        return np.asarray((1 - z) * candidate + z * h)

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        for attrs, arrays in super().examples():
            yield attrs, arrays
            yield {**attrs, "linear_before_reset": 1}, arrays
