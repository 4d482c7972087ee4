"""CausalConvWithState: a depthwise convolution along time that carries its state (runtime/causal_conv.c)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.errors import UnsupportedError
from sod2.graph import Node
from sod2.lattice import Shape
from sod2.ops.anchor import Anchor, dims_of, initializer, known_dims, must_equal, require_float32
from sod2.ops.attributes import present
from sod2.ops.lift import lift
from sod2.ops.op import Array, Call, Facts, MappingType, register
from sod2.symbolic import Dim


@register()
class CausalConvWithState(Anchor):
    """(x [batch, channels, length], w [channels, 1, taps], bias, past state) -> (y, present state [.., taps - 1])."""

    mapping = MappingType.MANY_TO_MANY

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        batch, channels, length = dims_of(x[0])
        before = lift(lambda k: k - 1, dims_of(x[1])[2])
        shapes: list[Shape] = [(batch, channels, length), (batch, channels, before)]
        return shapes[: len(node.outputs)]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        return must_equal(dims_of(x[0])[1], dims_of(x[1])[0])

    def _is_silu(self, node: Node) -> bool:
        name = str(node.attrs.get("activation", "none"))
        if name not in ("none", "silu", "swish"):
            raise UnsupportedError(
                f"{node.op} (node {node.name!r}) has activation={name!r}; none, silu, swish are supported"
            )
        return name != "none"

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        require_float32(node, *x)
        (batch, channels, length), taps = known_dims(x[0]), known_dims(x[1])[2]
        operands = {name: "NULL" if present(x, i) is None else k.pointer(i)
                    for i, name in enumerate(("x", "w", "bias", "past"))}  # fmt: skip
        results = {name: k.result(i) if i < len(node.outputs) and node.outputs[i] else "NULL"
                   for i, name in enumerate(("y", "present"))}  # fmt: skip
        sizes = {"batch": batch, "channels": channels, "length": length, "taps": taps}
        fields = {name: k.c(size) for name, size in sizes.items()}
        k.setup(initializer("g", "sod2_causal_conv", **fields, silu=int(self._is_silu(node)), **operands, **results))
        return "sod2_causal_conv_run(&g, pool);"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, w, bias, past = [*arrays, None, None][:4]
        assert x is not None and w is not None
        taps = w.shape[2]
        before = np.zeros((*x.shape[:2], taps - 1)) if past is None else past
        whole = np.concatenate([before, x], axis=2).astype(np.float64)
        total = np.zeros(x.shape) if bias is None else np.zeros(x.shape) + bias[:, None]
        for k in range(taps):
            total += w[:, 0, k, None] * whole[:, :, k : k + x.shape[2]]
        y = total / (1 + np.exp(-total)) if self._is_silu(node) else total
        return [np.asarray(a).astype(x.dtype) for a in (y, whole[:, :, x.shape[2] :])]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(95)
        x, w, bias, past = (
            random.standard_normal(s).astype(np.float32) for s in ((2, 3, 6), (3, 1, 4), (3,), (2, 3, 3))
        )
        yield {}, [x, w]
        yield {"activation": "silu"}, [x, w, bias, past]
        yield {}, [x[:, :, :1], w, None, past]
        yield {}, [x, w[:, :, :1]]
