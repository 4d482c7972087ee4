"""LSTM: all steps of a recurrent layer in one anchor (runtime/lstm_real.h).

x [steps, batch, input] (layout 0), weights [directions, 4 hidden, ...] with the gates in the order i, o, f, c.
Default activations only; layout 1 is analysed but has no kernel. With the attribute `quantised` the products see x
and the hidden states rounded to 8 bits, which is what a DynamicQuantizeLSTM becomes (contrib.py).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.errors import UnsupportedError
from sod2.graph import Node
from sod2.lattice import UNDEF, Shape
from sod2.ops.anchor import (
    Anchor,
    backwards,
    dims_of,
    f32,
    initializer,
    known_dims,
    must_equal,
    proved,
    ranked_dims,
    real_suffix,
)
from sod2.ops.attributes import present
from sod2.ops.lift import Element, lift
from sod2.ops.op import Array, Call, Facts, MappingType, register
from sod2.symbolic import Dim, as_dim

_ACTIVATIONS = ["Sigmoid", "Tanh", "Tanh"]


def directions_of(node: Node) -> int:
    """1, or 2 for a bidirectional layer."""
    return 2 if node.attrs.get("direction", "forward") == "bidirectional" else 1


@register()
class LSTM(Anchor):
    """Outputs y [steps, directions, batch, hidden], y_h and y_c [directions, batch, hidden]; each may be absent."""

    mapping = MappingType.MANY_TO_MANY

    def _sizes(self, node: Node, x: Facts) -> tuple[Element, Element, Element]:
        """Steps, batch and hidden."""
        first, second, _ = ranked_dims(node, x, 0, 3)
        steps, batch = (second, first) if node.attrs.get("layout", 0) else (first, second)
        if "hidden_size" in node.attrs:
            return steps, batch, as_dim(int(node.attrs["hidden_size"]))
        return steps, batch, dims_of(x[2])[2]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        steps, batch, hidden = self._sizes(node, x)
        directions = as_dim(directions_of(node))
        if node.attrs.get("layout", 0):
            y: Shape = (batch, steps, directions, hidden)
            state: Shape = (batch, directions, hidden)
        else:
            y, state = (steps, directions, batch, hidden), (directions, batch, hidden)
        return [y, state, state][: len(node.outputs)]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        if node.attrs.get("layout", 0):
            return [UNDEF] * len(node.inputs)
        batch = proved(x[0], 3)[1]
        hidden: Element = proved(x[2], 3)[2]
        if "hidden_size" in node.attrs:
            hidden = as_dim(int(node.attrs["hidden_size"]))
        directions = as_dim(directions_of(node))
        four = lift(lambda h: h * 4, hidden)
        steps = proved(y[0], 4)[0]
        inputs = proved(x[1], 3)[2]
        state = (directions, batch, hidden)
        return backwards(
            node,
            [
                (steps, UNDEF, inputs),
                (directions, four, proved(x[0], 3)[2]),
                (directions, four, hidden),
                (directions, lift(lambda h: h * 8, hidden)),
                (batch,),
                state,
                state,
                (directions, lift(lambda h: h * 3, hidden)),
            ],
        )

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        hidden = self._sizes(node, x)[2]
        w, r = dims_of(x[1]), dims_of(x[2])
        pairs = must_equal(dims_of(x[0])[2], w[2]) + must_equal(r[2], hidden) + must_equal(w[1], r[1])
        return pairs + must_equal(w[1], lift(lambda h: h * 4, hidden))

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        self._check(node, x)
        steps, batch, inputs = known_dims(x[0])
        hidden = known_dims(x[2])[2]

        def operand(i: int) -> str:
            return "NULL" if present(x, i) is None else k.pointer(i)

        def result(i: int) -> str:
            return k.result(i) if i < len(node.outputs) and node.outputs[i] else "NULL"

        k.setup(
            initializer(
                "g",
                "sod2_lstm",
                steps=k.c(steps),
                batch=k.c(batch),
                input=k.c(inputs),
                hidden=k.c(hidden),
                directions=directions_of(node),
                reverse=int(node.attrs.get("direction", "forward") == "reverse"),
                input_forget=int(node.attrs.get("input_forget", 0)),
                quantised=int(node.attrs.get("quantised", 0)),
                clip=f32(float(node.attrs.get("clip", math.inf))),
                x=operand(0),
                w=operand(1),
                r=operand(2),
                b=operand(3),
                p=operand(7),
                h0=operand(5),
                c0=operand(6),
                lengths=operand(4),
                y=result(0),
                y_h=result(1),
                y_c=result(2),
            )
        )
        suffix = real_suffix(node, *x[:4], *x[5:])
        scratch = k.scratch(f"sod2_lstm_scratch{suffix}(&g, threads)")
        return f"sod2_lstm_run{suffix}(&g, {scratch}, pool);"

    def _check(self, node: Node, x: Facts) -> None:
        """UnsupportedError for what the kernel lacks."""
        lengths = present(x, 4)
        if lengths is not None and lengths.dtype != np.int32:
            raise UnsupportedError(
                f"LSTM (node {node.name!r}) has sequence_lens of {lengths.dtype}; int32 is supported"
            )
        activations = list(node.attrs.get("activations") or _ACTIVATIONS * directions_of(node))
        if [a.lower() for a in activations] != [a.lower() for a in _ACTIVATIONS * directions_of(node)]:
            raise UnsupportedError(
                f"LSTM (node {node.name!r}) has activations {activations}; {_ACTIVATIONS} is supported"
            )
        if node.attrs.get("layout", 0):
            raise UnsupportedError(f"LSTM (node {node.name!r}) has layout=1; layout 0 is supported")

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        padded: list[Array | None] = [*arrays, *[None] * (8 - len(arrays))]
        x, w, r, b, lengths, h0, c0, p = padded
        assert x is not None and w is not None and r is not None
        self._check(node, [])
        steps, batch, _ = x.shape
        hidden = r.shape[2]
        lengths = np.full(batch, steps) if lengths is None else lengths
        quantised = node.attrs.get("quantised", 0)
        read = rounded_to_8_bits(x.astype(np.float64)) if quantised else x
        y = np.zeros((steps, len(w), batch, hidden))
        h = np.zeros((len(w), batch, hidden)) if h0 is None else h0.astype(np.float64)
        c = np.zeros((len(w), batch, hidden)) if c0 is None else c0.astype(np.float64)
        for d in range(len(w)):
            backward = d == 1 or node.attrs.get("direction", "forward") == "reverse"
            bias = np.zeros(4 * hidden) if b is None else b[d, : 4 * hidden].astype(np.float64) + b[d, 4 * hidden :]
            peephole = np.zeros(3 * hidden) if p is None else p[d].astype(np.float64)
            for step in range(steps):
                seen = rounded_to_8_bits(h[d]) if quantised else h[d].copy()
                for n in np.flatnonzero(np.asarray(lengths) > step):
                    t = int(lengths[n]) - 1 - step if backward else step
                    gates = w[d].astype(np.float64) @ read[t, n] + r[d].astype(np.float64) @ seen[n] + bias
                    h[d, n], c[d, n] = cell(node, gates, c[d, n], peephole)
                    y[t, d, n] = h[d, n]
        return [a.astype(x.dtype) for a in (y, h, c)][: len(node.outputs)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(18)

        def arrays(steps: int, batch: int, inputs: int, hidden: int, directions: int) -> list[Array]:
            d, h = directions, hidden
            shapes = [
                (steps, batch, inputs),
                (d, 4 * h, inputs),
                (d, 4 * h, h),
                (d, 8 * h),
                (d, batch, h),
                (d, batch, h),
            ]
            return [random.standard_normal(s).astype(np.float32) for s in (*shapes, (d, 3 * h))]

        x, w, r, b, h0, c0, p = arrays(4, 2, 3, 5, 1)
        yield {"hidden_size": 5}, [x, w, r]
        yield {"hidden_size": 5}, [x, w, r, b, None, h0, c0]
        yield {"hidden_size": 5, "direction": "reverse"}, [x, w, r, b, np.array([4, 2], np.int32), h0, c0, p]
        yield {"hidden_size": 5, "clip": 0.5}, [x, w, r, b]
        x, w, r, b, h0, c0, p = arrays(3, 1, 4, 2, 2)
        yield {"hidden_size": 2, "direction": "bidirectional"}, [x, w, r, b, None, h0, c0, p]
        x, w, r, b, h0, c0, p = arrays(1, 1, 10, 10, 1)
        yield {"hidden_size": 10}, [x, w, r, b, None, h0, c0]


def rounded_to_8_bits(a: Array) -> Array:
    """What DynamicQuantizeLinear and DequantizeLinear leave of numbers."""
    low, high = a.min(initial=0.0), a.max(initial=0.0)
    scale = (high - low) / 255 if high > low else 1.0
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return np.asarray((np.clip(np.rint(a / scale) + zero, 0, 255) - zero) * scale)


def cell(node: Node, gates: Array, c: Array, peephole: Array) -> tuple[Array, Array]:
    """One step of one sequence: the new h and c from the gates' pre-activations, in float64."""
    i, o, f, g = np.split(gates, 4)
    p_i, p_o, p_f = np.split(peephole, 3)
    clip = float(node.attrs.get("clip", math.inf))

    def sigmoid(a: Array) -> Array:
        return np.asarray(1 / (1 + np.exp(-np.clip(a, -clip, clip))))

    i = sigmoid(i + p_i * c)
    f = 1 - i if node.attrs.get("input_forget", 0) else sigmoid(f + p_f * c)
    c = f * c + i * np.tanh(np.clip(g, -clip, clip))
    return sigmoid(o + p_o * c) * np.tanh(c), c
