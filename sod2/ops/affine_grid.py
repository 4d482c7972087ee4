"""AffineGrid: the positions that GridSample reads for an affine map of the image, (x, y) or (x, y, z) of each element.

An element expression instead of the standard's definition: that squeezes the batch away when it is 1, so that its rank
depends on the size, and divides by zero where `align_corners` meets a dim of 1. Such an axis has the one position -1
here, as the definition has it for the depth that it adds to images of two axes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Shape
from sod2.ops.anchor import dims_of, must_equal
from sod2.ops.lift import integers, is_undefined
from sod2.ops.op import Array, Emitter, Facts, Index, MappingType, Op, register
from sod2.ops.shape_of import size_guards
from sod2.symbolic import as_dim

DOUBLE = np.dtype(np.float64)


@register()
class AffineGrid(Op):
    """theta [N, r, r + 1] at the positions of an image of size [N, C, r axes]: [N, r axes, r], the last axis first."""

    mapping = MappingType.MANY_TO_MANY
    shape_inputs = (1,)
    cost = 20

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        if is_undefined(x[1:]):
            return [UNDEF]
        size = integers(x[1])
        return [NAC if size is None else (dims_of(x[0])[0], *size[2:], as_dim(len(size) - 2))]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Any, Any]]:
        size = integers(x[1])
        if size is None:
            return []
        r = len(size) - 2
        pairs = zip(dims_of(x[0]), (size[0], as_dim(r), as_dim(r + 1)), strict=True)
        return [*size_guards(x, 1), *(pair for a, b in pairs for pair in must_equal(a, b))]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and y[0] is not None
        n, *at, row = index
        terms = [e.load(0, [n, row, e.position(len(at))])]
        for column, (i, size) in enumerate(zip(at[::-1], y[0].dims[-2:0:-1], strict=True)):
            p, count = f"(double){e.c(i)}", f"(double){e.c(size)}"
            aligned = node.attrs.get("align_corners", 0)
            position = f"2 * {p} / fmax({count} - 1, 1) - 1" if aligned else f"(2 * {p} + 1) / {count} - 1"
            terms.append(f"{e.load(0, [n, row, e.position(column)])} * {e.local(DOUBLE, position)}")
        return f"(({e.element(x[0].dtype)})({' + '.join(terms)}))"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        theta, size = arrays
        assert theta is not None and size is not None
        axes = [np.arange(n) for n in size[2:]]
        if node.attrs.get("align_corners", 0):
            axes = [2 * p / max(len(p) - 1, 1) - 1 for p in axes]
        else:
            axes = [(2 * p + 1) / max(len(p), 1) - 1 for p in axes]
        positions = np.stack([*np.meshgrid(*axes, indexing="ij")[::-1], np.ones(size[2:])], axis=-1)
        return [np.einsum("...k,nik->n...i", positions, theta.astype(np.float64)).astype(theta.dtype)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(43)
        plane, space = (random.standard_normal((2, r, r + 1)).astype(np.float32) for r in (2, 3))
        for align in (0, 1):
            yield {"align_corners": align}, [plane, np.array([2, 3, 4, 5], np.int64)]
            yield {"align_corners": align}, [space, np.array([2, 1, 2, 3, 4], np.int64)]
        yield {}, [plane[:1], np.array([1, 1, 1, 3], np.int64)]
        yield {}, [plane[:0], np.array([0, 1, 2, 2], np.int64)]
