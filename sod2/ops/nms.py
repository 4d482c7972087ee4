"""NonMaxSuppression: how many boxes remain is counted before they are written, by the same kernel without a result."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.graph import Node
from sod2.lattice import NAC, Shape
from sod2.ops.anchor import initializer, must_equal, require_float32
from sod2.ops.attributes import present
from sod2.ops.lift import concrete
from sod2.ops.op import Array, Call, Counting, Facts, MappingType, Op, register
from sod2.symbolic import Dim, as_dim


@register()
class NonMaxSuppression(Op):
    """(boxes [b, n, 4], scores [b, c, n], most, iou, score) -> int64 [count, 3]: image, class, box of what is kept."""

    execution = True
    mapping = MappingType.MANY_TO_MANY

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [np.dtype(np.int64)]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        return [(NAC, *concrete([3]))]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        boxes, scores = (f.shape if f is not None else NAC for f in x[:2])
        if not isinstance(boxes, tuple) or not isinstance(scores, tuple):
            return []
        pairs = ((boxes[0], scores[0]), (boxes[1], scores[2]), (boxes[2], as_dim(4)))
        return [pair for a, b in pairs for pair in must_equal(a, b)]

    def _kernel(self, node: Node, k: Call, x: Facts, selected: str) -> str:
        """The call of the kernel, whose value is the count."""
        require_float32(node, x[0], x[1])
        assert x[1] is not None

        def number(position: int, default: str) -> str:
            given = position < len(node.inputs) and node.inputs[position]
            return f"*({k.pointer(position)})" if given else default

        batches, classes, n = x[1].dims
        k.setup(
            initializer(
                "g", "sod2_nms", boxes=k.pointer(0), scores=k.pointer(1), batches=k.c(batches), classes=k.c(classes),
                n=k.c(n), is_centered=node.attrs.get("center_point_box", 0),
            )
        )  # fmt: skip
        scratch = k.scratch("8 * sod2_nms_scratch(&g)")
        limits = f"g.most = {number(2, '0')}, g.overlap = {number(3, '0')}, g.score = {number(4, '-INFINITY')};\n"
        return f"{limits}const int64_t count = sod2_nms_run(&g, (int64_t *){scratch}, {selected});\n"

    def count(self, node: Node, k: Counting, x: Facts, y: Facts) -> str:
        return f"{self._kernel(node, k, x, 'NULL')}{k.minted(0, 0)} = count;"

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        return f"{self._kernel(node, k, x, k.result())}(void)count;"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        boxes, scores = arrays[0], arrays[1]
        assert boxes is not None and scores is not None
        most, iou, least = (present(arrays, i) for i in (2, 3, 4))
        limit = 0 if most is None else int(most.item())
        rows: list[tuple[int, int, int]] = []
        for batch, classes in enumerate(scores):
            corners = _corners(boxes[batch], bool(node.attrs.get("center_point_box", 0)))
            for label, score in enumerate(classes):
                kept: list[int] = []
                for i in np.argsort(-score, kind="stable").tolist():
                    if len(kept) >= limit or (least is not None and score[i] <= least.item()):
                        break
                    if all(_overlap(corners[i], corners[j]) <= (0 if iou is None else iou.item()) for j in kept):
                        kept.append(i)
                rows += [(batch, label, i) for i in kept]
        return [np.array(rows, np.int64).reshape(-1, 3)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(4)
        corners, sizes = random.random((2, 30, 2), np.float32), random.random((2, 30, 2), np.float32) / 3
        boxes, scores = np.concatenate([corners, corners + sizes], 2), random.random((2, 3, 30), np.float32)
        limits: list[Array | None] = [np.array([5], np.int64), np.array([0.3], np.float32), np.array([0.4], np.float32)]
        yield {}, [boxes, scores, *limits]
        yield {"center_point_box": 1}, [np.concatenate([corners, sizes], 2), scores, *limits]
        yield {}, [np.flip(boxes, 2), scores, *limits[:2]]
        yield {}, [boxes, scores]
        yield {}, [boxes[:, :0], scores[:, :, :0], *limits]


def _corners(boxes: Array, is_centered: bool) -> Array:
    """Boxes as top, left, bottom, right."""
    if is_centered:
        half = boxes[:, 2:] / 2
        return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], 1)
    return np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], 1)


def _overlap(a: Array, b: Array) -> float:
    """Intersection over union, 0 for boxes without area."""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    areas = np.prod(a[2:] - a[:2]), np.prod(b[2:] - b[:2])
    if (sides <= 0).any() or min(areas) <= 0:
        return 0.0
    return float(np.prod(sides) / (areas[0] + areas[1] - np.prod(sides)))
