"""Small operators of ai.onnx.ml on numbers: LabelEncoder, ArrayFeatureExtractor, Binarizer. Strings are refused."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.errors import UnsupportedError
from sod2.graph import Node
from sod2.lattice import UNDEF, Shape
from sod2.ops.anchor import dims_of
from sod2.ops.elementwise import CType, Elementwise
from sod2.ops.gather import wrapped
from sod2.ops.lift import lift, nonempty_guards, product
from sod2.ops.op import Array, Emitter, Facts, Index, MappingType, Op, register
from sod2.symbolic import Dim, as_dim

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]
DOMAIN = "ai.onnx.ml"
_KINDS = {"int64s": np.int64, "floats": np.float32}


@register(domain=DOMAIN)
class Binarizer(Elementwise):
    """1 where x is larger than the threshold, else 0."""

    def expression(self, node: Node, operands: Sequence[str], c: CType) -> str:
        return f"({operands[0]} > {c.number(float(node.attrs.get('threshold', 0.0)))})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        return [(arrays[0] > float(node.attrs.get("threshold", 0.0))).astype(arrays[0].dtype)]

    def examples(self) -> Examples:
        yield {"threshold": 0.5}, [np.array([[0.5, 1, -2]], np.float32)]


@register(domain=DOMAIN)
class LabelEncoder(Op):
    """Each element looked up in a table of keys; the default where it isn't there."""

    mapping = MappingType.ONE_TO_ONE
    cost = 50

    def _table(self, node: Node) -> tuple[Array, Array, Any]:
        """Keys, values and the default."""
        sides = []
        for side in ("keys", "values"):
            found = node.attrs.get(f"{side}_tensor")
            for kind, dtype in _KINDS.items():
                if f"{side}_{kind}" in node.attrs:
                    found = np.array(node.attrs[f"{side}_{kind}"], dtype)
            if found is None or np.asarray(found).dtype.kind not in "iuf":
                raise UnsupportedError(f"LabelEncoder (node {node.name!r}) has {side} that are no numbers")
            sides.append(np.asarray(found))
        keys, values = sides
        fallback = {"i": ("default_int64", -1), "f": ("default_float", -0.0)}[values.dtype.kind]
        default = node.attrs.get("default_tensor", node.attrs.get(*fallback))
        return keys, values, np.asarray(default).reshape(-1)[0]

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [self._table(node)[1].dtype]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        return [dims_of(x[0])]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return [UNDEF if y[0] is None else y[0].shape]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        keys, values, default = self._table(node)
        c, k = (CType(a.dtype, e.element(a.dtype)) for a in (values, keys))
        operand = e.load(0, index)
        text = c.number(default)
        for key, value in zip(keys, values, strict=True):
            same = f"{operand} != {operand}" if key != key else f"{operand} == {k.number(key)}"  # noqa: PLR0124 - NaN
            text = f"({same} ? {c.number(value)} : {text})"
        return text

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        keys, values, default = self._table(node)
        x = arrays[0]
        assert x is not None
        out = np.full(x.shape, default, values.dtype)
        for key, value in zip(keys, values, strict=True):
            out[np.isnan(x) if key != key else x == key] = value  # noqa: PLR0124
        return [out]

    def examples(self) -> Examples:
        attrs = {"keys_int64s": [1, 2, 7], "values_floats": [0.5, -1.0, 3.0], "default_float": 9.0}
        yield attrs, [np.array([[1, 7, 4], [2, 2, 0]], np.int64)]


@register(domain=DOMAIN)
class ArrayFeatureExtractor(Op):
    """The elements of the last axis at the given positions, as [product of the other dims or 1, positions]."""

    mapping = MappingType.ONE_TO_MANY

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        data, picked = dims_of(x[0]), product(dims_of(x[1]))
        return [(*(data[:-1] or (as_dim(1),)), lift(lambda d: d, picked))]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        return nonempty_guards(dims_of(x[0])[-1], product(dims_of(x[1])))

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and x[1] is not None
        at = [e.position(0)] * (len(x[1].dims) - 1) + [index[-1]]
        position = wrapped(e, x[1], e.load(1, at), x[0].dims[-1])
        return e.load(0, [*index[: len(x[0].dims) - 1], position])

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, picked = arrays
        assert x is not None and picked is not None
        taken = np.take(x, picked.ravel(), axis=-1)
        return [taken.reshape(1, -1) if x.ndim == 1 else taken]

    def examples(self) -> Examples:
        yield {}, [np.arange(12, dtype=np.float32).reshape(3, 4), np.array([0, 3], np.int64)]
