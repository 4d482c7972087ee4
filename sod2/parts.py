"""Tensors that lie inside another one, so that Concat, Split and Slice copy nothing.

Along an axis before which every dim is provably 1, the operands of a Concat are consecutive bytes of its result, and
the results of a Split and of a Slice without steps consecutive bytes of its operand. An operand may then be computed
where the result lies, and a slice be read where the operand lies. That is not always a gain: the whole result is
reserved from the first operand on, which a long skip connection would make expensive, and an operand as long as any
slice of it is read. `Profile` decides: pieces move into the whole when the largest sum of live bytes during its life
does not grow by it, at sampled sizes of the symbols. In a dense block, where each Concat extends the previous one's
result and all of them are kept, memory then grows linearly instead of quadratically.

Limits: peaks are compared before tensors are reused in place, so the decision is a heuristic; what it decides is
always correct, because sharing.py checks the rest.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from sod2.graph import Node
from sod2.ops import OPS
from sod2.ops.slice import Slice
from sod2.peak import environments, sampled
from sod2.rdp import Analysis
from sod2.symbolic import Dim, as_dim, eq

Span = tuple[int, int]


def offsets(analysis: Analysis, whole: str, pieces: Sequence[str], axis: int) -> list[Dim] | None:
    """Byte offset of every piece in the whole; None where pieces are not consecutive bytes of it.

    All sizes must be known when a shape is bound: nothing can lie in a tensor that has no size yet.
    """
    dims = analysis.dims(whole)
    axis %= len(dims)
    row = as_dim(analysis[whole].dtype.itemsize)
    for dim in dims[axis + 1 :]:
        row = row * dim
    lengths = [analysis.dims(p)[axis] * row for p in pieces]
    known = set(analysis.symbols)
    if not all(eq(d, 1) is True for d in dims[:axis]) or not all(n.symbols() <= known for n in lengths):
        return None
    return list(accumulate(lengths[:-1], initial=as_dim(0)))


def offset_of_slice(analysis: Analysis, node: Node) -> Dim | None:
    """Byte offset of a Slice's result in its operand; None where it is not consecutive bytes of it."""
    operator, facts = OPS(node), analysis.of(node.inputs)
    assert isinstance(operator, Slice)
    dims, taken = analysis.dims(node.inputs[0]), analysis.dims(node.outputs[0])
    found = operator.spans(node, facts)
    cut = [axis for axis, (d, t) in enumerate(zip(dims, taken, strict=True)) if eq(d, t) is not True]
    if found is None or len(cut) != 1:
        return None
    (axis,) = cut
    along = found[axis]
    if along is None or along.step != 1 or not isinstance(along.start, Dim):
        return None
    if not all(eq(d, 1) is True for d in dims[:axis]):
        return None
    start = along.start * analysis[node.inputs[0]].dtype.itemsize
    for dim in dims[axis + 1 :]:
        start = start * dim
    return start if start.symbols() <= set(analysis.symbols) else None


def axis_of(node: Node) -> int:
    """The axis of a Concat or Split, as the file says it."""
    return int(node.attrs.get("axis", 0))


class Profile:
    """Bytes live at each position of an order, at sampled sizes, as tensors move into others."""

    def __init__(self, spans: Mapping[str, Span], sizes: Mapping[str, Dim], positions: int) -> None:
        names = sorted(spans)
        dims = [sizes[name] for name in names]
        columns = np.array(sampled(dims, environments(dims)), np.float64).reshape(len(names), -1)
        self.spans = dict(spans)
        self.sizes = dict(zip(names, columns, strict=True))
        self.usage = np.zeros((columns.shape[1], positions + 1))
        for name in names:
            self._add(self.usage, name, 1.0)

    def _add(self, usage: np.ndarray, name: str, sign: float) -> None:
        first, last = self.spans[name]
        usage[:, first : last + 1] += sign * self.sizes[name][:, None]

    def move(self, pieces: Sequence[str], whole: str) -> list[str]:
        """Those of the pieces that now live in the whole: all, or the most recent ones for which no peak grows."""
        if whole not in self.spans:
            return []
        latest = sorted((p for p in pieces if p in self.spans), key=lambda p: self.spans[p][0])
        while latest and not self._moved(latest, whole):
            latest = latest[1:]
        return latest

    def _moved(self, pieces: Sequence[str], whole: str) -> bool:
        """Let the pieces live in the whole unless that makes the peak of its time higher; whether they do."""
        moved = [self.spans[name] for name in (*pieces, whole)]
        usage = self.usage.copy()
        for name in (*pieces, whole):
            self._add(usage, name, -1.0)
        first, last = min(f for f, _ in moved), max(last for _, last in moved)
        old, self.spans[whole] = self.spans[whole], (first, last)
        self._add(usage, whole, 1.0)
        while_there = slice(first, last + 1)
        if np.any(usage[:, while_there].max(axis=1) > self.usage[:, while_there].max(axis=1)):
            self.spans[whole] = old
            return False
        self.usage = usage
        for piece in pieces:
            del self.spans[piece]
        return True
