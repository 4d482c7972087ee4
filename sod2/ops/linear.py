"""Det: the determinant of square matrices, by elimination in double (runtime/linear.c)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.graph import Node
from sod2.lattice import Shape
from sod2.ops.anchor import Anchor, count, dims_of, is_double, known_dims, must_equal, require_float32
from sod2.ops.op import Array, Call, Facts, MappingType, register
from sod2.symbolic import Dim


@register()
class Det(Anchor):
    """[..., n, n] -> [...]."""

    mapping = MappingType.MANY_TO_MANY

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        return [dims_of(x[0])[:-2]]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        return must_equal(*dims_of(x[0])[-2:])

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        doubles = is_double(x)
        if not doubles:
            require_float32(node, x[0])
        *batch, n, _ = known_dims(x[0])
        scratch = k.scratch(f"{k.c(n * n)} * (int64_t)sizeof(double)")
        return f"sod2_det({k.pointer(0)}, {k.result()}, {int(doubles)}, {k.c(count(batch))}, {k.c(n)}, {scratch});"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        return [np.asarray(np.linalg.det(arrays[0].astype(np.float64))).astype(arrays[0].dtype)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(90)
        for shape in ((2, 2), (3, 4, 4), (1, 1), (0, 3, 3)):
            yield {}, [random.standard_normal(shape).astype(np.float32)]
        yield {}, [np.zeros((3, 3), np.float32)]
