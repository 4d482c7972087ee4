"""An operator of our own that onnxruntime's DynamicQuantizeLSTM is made of: the weights of an LSTM from quantised ones.

(w [directions, inputs, 4 hidden], scale, zero point) -> [directions, 4 hidden, inputs] in float32. Scale and zero point
have a number per direction, or per direction and column.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.errors import ModelError
from sod2.graph import Node
from sod2.lattice import Shape
from sod2.ops.anchor import ranked_dims
from sod2.ops.op import Array, Emitter, Facts, Index, MappingType, Op, register


@register(domain="sod2")
class RecurrentWeights(Op):
    """(w - zero point) * scale with the last two dims exchanged."""

    mapping = MappingType.SHUFFLE
    cost = 4

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [np.dtype(np.float32)]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        directions, inputs, columns = ranked_dims(node, x, 0, 3)
        for fact in x[1:]:
            if fact is None or fact.rank not in (1, 2):
                raise ModelError(f"weights of {node.name!r} have scale or zero point {fact}; 1 or 2 dims are needed")
        return [(directions, columns, inputs)]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        direction, column, row = index
        scale, zero = (e.load(k, [direction, column][: len(f.dims)]) for k, f in enumerate(x) if k and f is not None)
        return f"(((float){e.load(0, [direction, row, column])} - (float){zero}) * {scale})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        w, scale, zero = arrays
        assert w is not None and scale is not None and zero is not None
        factor, shift = (a.reshape(len(w), 1, -1).astype(np.float32) for a in (scale, zero))
        return [np.ascontiguousarray(((w.astype(np.float32) - shift) * factor).swapaxes(1, 2))]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        w = np.arange(48, dtype=np.uint8).reshape(2, 3, 8)
        scale, zero = np.array([0.5, 2], np.float32), np.array([3, 4], np.uint8)
        yield {}, [w, scale, zero]
        yield {}, [w.astype(np.int8), np.arange(16, dtype=np.float32).reshape(2, 8), np.zeros((2, 8), np.int8)]
        yield {}, [w[:, :0], scale, zero]
